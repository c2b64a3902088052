//! Conversion of values between HTL and the engine.
//!
//! Values for scripts are encoded: primitives as they are, anything else as a pair of a kind and a payload, which the
//! bootstrap decodes. Values for HTL are copied, except objects, which stay in the engine.

use std::rc::Rc;
use std::sync::Arc;

use rquickjs::function::This;
use rquickjs::promise::PromiseState;
use rquickjs::{Array, Ctx, Exception, Function, IntoJs, Object, Promise, Value};
use tympan_htl::{HtlDate, HtlOptions, HtlValue};

use crate::realm::{Realm, RealmState};
use crate::script_object::ScriptObject;

/// Lists may be nested, and functions return functions, to this depth.
const MAX_DEPTH: u32 = 64;

/// The kinds of encoded values, as in the bootstrap.
const HOST_OBJECT: i32 = 0;
const LIST: i32 = 1;
const MAP: i32 = 2;
const DATE: i32 = 3;
const SCRIPT_VALUE: i32 = 4;

/// The steps of an object of the host, which takes memory outside the engine.
const STEPS_PER_OBJECT: u64 = 20;

/// Encodes a value of HTL for the bootstrap.
pub(crate) fn encode<'js>(
    ctx: &Ctx<'js>,
    state: &RealmState,
    value: &HtlValue,
) -> rquickjs::Result<Value<'js>> {
    encode_nested(ctx, state, value, 0)
}

fn encode_nested<'js>(
    ctx: &Ctx<'js>,
    state: &RealmState,
    value: &HtlValue,
    depth: u32,
) -> rquickjs::Result<Value<'js>> {
    if depth > MAX_DEPTH {
        return Err(too_deep(ctx));
    }
    state.spend(ctx, 1)?;
    match value {
        HtlValue::Null => Ok(Value::new_null(ctx.clone())),
        HtlValue::Template(_) => Ok(Value::new_undefined(ctx.clone())),
        HtlValue::Boolean(value) => value.into_js(ctx),
        HtlValue::Integer(number) => number.into_js(ctx),
        HtlValue::Float(number) => number.into_js(ctx),
        HtlValue::Text(text) => {
            state.spend_bytes(ctx, text.len())?;
            (&**text).into_js(ctx)
        }
        HtlValue::List(items) => {
            let list = Array::new(ctx.clone())?;
            for (at, item) in items.iter().enumerate() {
                list.set(at, encode_nested(ctx, state, item, depth + 1)?)?;
            }
            pair(ctx, LIST, list)
        }
        HtlValue::Map(map) => {
            let entries = Array::new(ctx.clone())?;
            for (at, (key, item)) in map.iter().enumerate() {
                entries.set(2 * at, &**key)?;
                entries.set(2 * at + 1, encode_nested(ctx, state, item, depth + 1)?)?;
            }
            pair(ctx, MAP, entries)
        }
        HtlValue::Date(date) => pair(ctx, DATE, date.millis),
        HtlValue::Object(object) => {
            if let Some(object) =
                value.downcast_ref::<ScriptObject>().and_then(|object| object.restore(ctx))
            {
                return pair(ctx, SCRIPT_VALUE, object);
            }
            state.spend(ctx, STEPS_PER_OBJECT)?;
            pair(ctx, HOST_OBJECT, state.add_object(object))
        }
    }
}

/// Encodes the options of `data-sly-use` as a map.
pub(crate) fn option_map<'js>(
    ctx: &Ctx<'js>,
    state: &RealmState,
    options: &HtlOptions,
) -> rquickjs::Result<Value<'js>> {
    let entries = options.iter().map(|(name, value)| (name, value.clone()));
    encode(ctx, state, &HtlValue::map(entries))
}

/// Decodes an argument that the bootstrap encoded.
fn decode_nested<'js>(
    ctx: &Ctx<'js>,
    state: &RealmState,
    value: &Value<'js>,
    depth: u32,
) -> rquickjs::Result<HtlValue> {
    if depth > MAX_DEPTH {
        return Err(too_deep(ctx));
    }
    if let Some(primitive) = primitive_to_htl(ctx, state, value)? {
        return Ok(primitive);
    }
    let Some(pair) = value.as_array() else { return Ok(HtlValue::Null) };
    match pair.get(0)? {
        HOST_OBJECT => Ok(host_object(state, pair.get(1)?)),
        DATE => Ok(date_value(pair.get(1)?)),
        LIST => {
            let items: Array<'js> = pair.get(1)?;
            decode_items(ctx, state, &items, depth + 1).map(HtlValue::list)
        }
        _ => Ok(HtlValue::Null),
    }
}

/// Decodes the items of a list.
pub(crate) fn decode_items<'js>(
    ctx: &Ctx<'js>,
    state: &RealmState,
    list: &Array<'js>,
    depth: u32,
) -> rquickjs::Result<Vec<HtlValue>> {
    let mut items = Vec::new();
    for at in 0..list_length(list)? {
        state.spend(ctx, 1)?;
        items.push(decode_nested(ctx, state, &list.get(at)?, depth)?);
    }
    Ok(items)
}

/// Returns the length of a list, which `Array::len` gives for small ones only.
fn list_length(list: &Array<'_>) -> rquickjs::Result<usize> {
    let length: f64 = list.as_object().get("length")?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the length of a list is less than 2^32"
    )]
    Ok(length as usize)
}

/// Converts the value of a script to HTL.
pub(crate) fn to_htl<'js>(
    realm: &Rc<Realm>,
    ctx: &Ctx<'js>,
    api: &Object<'js>,
    value: Value<'js>,
    script: &Arc<str>,
) -> rquickjs::Result<HtlValue> {
    let this = Value::new_undefined(ctx.clone());
    ValueReader { realm, ctx, api, script }.read(value, this, 0)
}

/// Converts a property of an object to HTL: a function is called as a method of the object.
pub(crate) fn property_to_htl<'js>(
    realm: &Rc<Realm>,
    ctx: &Ctx<'js>,
    api: &Object<'js>,
    (value, object): (Value<'js>, Object<'js>),
    script: &Arc<str>,
) -> rquickjs::Result<HtlValue> {
    ValueReader { realm, ctx, api, script }.read(value, object.into_value(), 0)
}

struct ValueReader<'a, 'js> {
    realm: &'a Rc<Realm>,
    ctx: &'a Ctx<'js>,
    api: &'a Object<'js>,
    script: &'a Arc<str>,
}

impl<'js> ValueReader<'_, 'js> {
    fn read(&self, value: Value<'js>, this: Value<'js>, depth: u32) -> rquickjs::Result<HtlValue> {
        let (ctx, state) = (self.ctx, self.realm.state());
        if depth > MAX_DEPTH {
            return Err(too_deep(ctx));
        }
        state.spend(ctx, 1)?;
        if value.is_string() && !is_well_formed(&value) {
            let to_text: Function<'js> = self.api.get("toText")?;
            let text: Value<'js> = to_text.call((value,))?;
            return Ok(primitive_to_htl(ctx, state, &text)?.unwrap_or_default());
        }
        if let Some(primitive) = primitive_to_htl(ctx, state, &value)? {
            return Ok(primitive);
        }
        if let Some(list) = value.as_array() {
            let mut items = Vec::new();
            for at in 0..list_length(list)? {
                let item: Value<'js> = list.get(at)?;
                items.push(self.read(item, Value::new_undefined(ctx.clone()), depth + 1)?);
            }
            return Ok(HtlValue::list(items));
        }
        if let Some(function) = value.as_function() {
            let result: Value<'js> = function.call((This(this),))?;
            return self.read(result, Value::new_undefined(ctx.clone()), depth + 1);
        }
        if let Some(promise) = value.as_promise() {
            let settled = self.settle(promise)?;
            return self.read(settled, Value::new_undefined(ctx.clone()), depth + 1);
        }
        let inspect: Function<'js> = self.api.get("inspect")?;
        let outside: Value<'js> = inspect.call((value.clone(),))?;
        if let Some(pair) = outside.as_array() {
            return match pair.get(0)? {
                HOST_OBJECT => Ok(host_object(state, pair.get(1)?)),
                DATE => Ok(date_value(pair.get(1)?)),
                _ => self.read(pair.get(1)?, Value::new_undefined(ctx.clone()), depth + 1),
            };
        }
        match value.into_object() {
            Some(object) => {
                Ok(HtlValue::object(ScriptObject::new(self.realm, ctx, object, self.script)))
            }
            // A symbol.
            None => Ok(HtlValue::Null),
        }
    }

    /// Runs the pending jobs until a promise is settled; a promise that nothing settles has no value.
    fn settle(&self, promise: &Promise<'js>) -> rquickjs::Result<Value<'js>> {
        let state = self.realm.state();
        while matches!(promise.state(), PromiseState::Pending) {
            state.spend(self.ctx, 1)?;
            if !self.ctx.execute_pending_job() || state.is_exceeded() {
                break;
            }
        }
        promise.result().unwrap_or_else(|| Ok(Value::new_undefined(self.ctx.clone())))
    }
}

/// Converts a primitive value; `None` for an object or a symbol.
fn primitive_to_htl<'js>(
    ctx: &Ctx<'js>,
    state: &RealmState,
    value: &Value<'js>,
) -> rquickjs::Result<Option<HtlValue>> {
    if value.is_undefined() || value.is_null() {
        return Ok(Some(HtlValue::Null));
    }
    if let Some(value) = value.as_bool() {
        return Ok(Some(HtlValue::Boolean(value)));
    }
    if let Some(number) = value.as_number() {
        return Ok(Some(number_value(number)));
    }
    if let Some(text) = value.as_string() {
        let text = text.to_string()?;
        state.spend_bytes(ctx, text.len())?;
        return Ok(Some(HtlValue::from(text)));
    }
    Ok(None)
}

/// Returns true unless a text has half a surrogate pair.
fn is_well_formed(value: &Value<'_>) -> bool {
    value.as_string().is_none_or(|text| text.to_string().is_ok())
}

/// Converts a number; one without a fraction is an integer, as in Sling.
fn number_value(number: f64) -> HtlValue {
    // 2^63, the first number that is no `i64`.
    const END: f64 = 9_223_372_036_854_775_808.0;
    if number.fract() == 0.0 && (-END..END).contains(&number) {
        #[expect(clippy::cast_possible_truncation, reason = "the range was tested")]
        return HtlValue::Integer(number as i64);
    }
    HtlValue::Float(number)
}

fn date_value(millis: f64) -> HtlValue {
    match number_value(millis) {
        HtlValue::Integer(millis) => HtlValue::Date(HtlDate { millis, offset_minutes: 0 }),
        _ => HtlValue::Null,
    }
}

fn host_object(state: &RealmState, number: usize) -> HtlValue {
    state.object(number).map_or(HtlValue::Null, HtlValue::Object)
}

fn pair<'js>(ctx: &Ctx<'js>, kind: i32, payload: impl IntoJs<'js>) -> rquickjs::Result<Value<'js>> {
    let pair = Array::new(ctx.clone())?;
    pair.set(0, kind)?;
    pair.set(1, payload)?;
    Ok(pair.into_value())
}

fn too_deep(ctx: &Ctx<'_>) -> rquickjs::Error {
    Exception::throw_range(ctx, &format!("more than {MAX_DEPTH} values within each other"))
}
