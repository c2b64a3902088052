//! The functions of the host that the bootstrap calls.

use std::collections::HashSet;
use std::rc::Rc;

use rquickjs::{Array, Ctx, Exception, Function, Object, Value};
use tympan_htl::{HostError, HtlObject, HtlValue};

use crate::conversion::{decode_items, encode};
use crate::host::ScriptLogLevel;
use crate::realm::{RealmState, compile};

/// Makes the object with all functions. They hold the state, and no value of the engine, which could never be freed.
pub(crate) fn host_functions<'js>(
    ctx: &Ctx<'js>,
    state: &Rc<RealmState>,
) -> rquickjs::Result<Object<'js>> {
    let functions = Object::new(ctx.clone())?;
    add_object_functions(ctx, state, &functions)?;
    add_script_functions(ctx, state, &functions)?;
    Ok(functions)
}

/// Adds the functions of the host's objects, which scripts know by number.
fn add_object_functions<'js>(
    ctx: &Ctx<'js>,
    state: &Rc<RealmState>,
    functions: &Object<'js>,
) -> rquickjs::Result<()> {
    let own = Rc::clone(state);
    functions.set(
        "read",
        Function::new(ctx.clone(), move |ctx: Ctx<'js>, number: usize, name: String| {
            own.spend(&ctx, 1)?;
            let value = find_object(&ctx, &own, number)?.property(&name);
            encode_optional(&ctx, &own, value)
        })?,
    )?;
    let own = Rc::clone(state);
    functions.set(
        "isMethod",
        Function::new(ctx.clone(), move |ctx: Ctx<'js>, number: usize, name: String| {
            own.spend(&ctx, 1)?;
            Ok::<_, rquickjs::Error>(find_object(&ctx, &own, number)?.has_method(&name))
        })?,
    )?;
    let own = Rc::clone(state);
    functions.set(
        "call",
        Function::new(
            ctx.clone(),
            move |ctx: Ctx<'js>, number: usize, name: String, arguments: Array<'js>| {
                own.spend(&ctx, 1)?;
                let arguments = decode_items(&ctx, &own, &arguments, 0)?;
                let value = find_object(&ctx, &own, number)?.call(&name, &arguments);
                encode_optional(&ctx, &own, value)
            },
        )?,
    )?;
    let own = Rc::clone(state);
    functions.set(
        "has",
        Function::new(ctx.clone(), move |ctx: Ctx<'js>, number: usize, name: String| {
            own.spend(&ctx, 1)?;
            let object = find_object(&ctx, &own, number)?;
            object.contains(&name).map_err(|error| throw(&ctx, &error))
        })?,
    )?;
    let own = Rc::clone(state);
    functions.set(
        "keys",
        Function::new(ctx.clone(), move |ctx: Ctx<'js>, number: usize| {
            let object = find_object(&ctx, &own, number)?;
            let mut keys = Vec::new();
            let mut known = HashSet::new();
            for item in object.items().map_err(|error| throw(&ctx, &error))?.into_iter().flatten() {
                let item = item.map_err(|error| throw(&ctx, &error))?;
                let Some(key) = key_text(&item) else { continue };
                own.spend_bytes(&ctx, key.len())?;
                if known.insert(key.clone()) {
                    keys.push(key);
                }
            }
            Ok::<_, rquickjs::Error>(keys)
        })?,
    )?;
    let own = Rc::clone(state);
    functions.set(
        "items",
        Function::new(ctx.clone(), move |ctx: Ctx<'js>, number: usize| {
            let object = find_object(&ctx, &own, number)?;
            let items = object.items().and_then(|items| {
                items.map(|items| items.collect::<Result<_, _>>().map(HtlValue::List)).transpose()
            });
            encode_optional(&ctx, &own, items)
        })?,
    )?;
    let own = Rc::clone(state);
    functions.set(
        "primitive",
        Function::new(ctx.clone(), move |ctx: Ctx<'js>, number: usize| {
            let object = find_object(&ctx, &own, number)?;
            let value = object.primitive().unwrap_or_else(|| HtlValue::from(object.to_text()));
            encode(&ctx, &own, &value)
        })?,
    )
}

/// Adds the functions of the host itself.
fn add_script_functions<'js>(
    ctx: &Ctx<'js>,
    state: &Rc<RealmState>,
    functions: &Object<'js>,
) -> rquickjs::Result<()> {
    let own = Rc::clone(state);
    functions.set(
        "global",
        Function::new(ctx.clone(), move |ctx: Ctx<'js>, name: String| {
            encode_optional(&ctx, &own, own.host.global(&name))
        })?,
    )?;
    let own = Rc::clone(state);
    functions.set(
        "resource",
        Function::new(ctx.clone(), move |ctx: Ctx<'js>, path: String| {
            own.spend(&ctx, 1)?;
            encode_optional(&ctx, &own, own.host.resource(&path).map(Some))
        })?,
    )?;
    let own = Rc::clone(state);
    functions.set(
        "load",
        Function::new(ctx.clone(), move |ctx: Ctx<'js>, name: String, from: String| {
            own.spend(&ctx, 1)?;
            let found = own.host.find_script(&name, &from);
            let Some(script) = found.map_err(|error| throw(&ctx, &error))? else {
                return Ok(Value::new_undefined(ctx));
            };
            let loaded = Array::new(ctx.clone())?;
            loaded.set(0, &*script.path)?;
            loaded.set(1, compile(&ctx, &own, &script)?)?;
            Ok::<_, rquickjs::Error>(loaded.into_value())
        })?,
    )?;
    let own = Rc::clone(state);
    functions.set(
        "count",
        Function::new(ctx.clone(), move |ctx: Ctx<'js>, items: f64| {
            own.count_operation(&ctx, items)
        })?,
    )?;
    let own = Rc::clone(state);
    functions.set("now", Function::new(ctx.clone(), move || own.host.now_millis())?)?;
    let own = Rc::clone(state);
    functions.set("seed", Function::new(ctx.clone(), move || own.host.random_seed())?)?;
    let own = Rc::clone(state);
    functions.set(
        "log",
        Function::new(
            ctx.clone(),
            move |ctx: Ctx<'js>, level: i32, script: String, message: String| {
                own.spend_bytes(&ctx, message.len())?;
                let level = match level {
                    0 => ScriptLogLevel::Debug,
                    1 => ScriptLogLevel::Info,
                    2 => ScriptLogLevel::Warn,
                    _ => ScriptLogLevel::Error,
                };
                own.host.log(level, &script, &message);
                Ok::<_, rquickjs::Error>(())
            },
        )?,
    )
}

fn find_object(
    ctx: &Ctx<'_>,
    state: &RealmState,
    number: usize,
) -> rquickjs::Result<Rc<dyn HtlObject>> {
    state.object(number).ok_or_else(|| Exception::throw_message(ctx, "there is no such object"))
}

/// Encodes the answer of the host; `undefined` if there is none.
fn encode_optional<'js>(
    ctx: &Ctx<'js>,
    state: &RealmState,
    value: Result<Option<HtlValue>, HostError>,
) -> rquickjs::Result<Value<'js>> {
    match value.map_err(|error| throw(ctx, &error))? {
        Some(value) => encode(ctx, state, &value),
        None => Ok(Value::new_undefined(ctx.clone())),
    }
}

/// Returns the text of a map's key; `None` for an item that is none.
fn key_text(item: &HtlValue) -> Option<String> {
    match item {
        HtlValue::Text(text) => Some(text.to_string()),
        HtlValue::Object(object) => object.primitive()?.as_text().map(str::to_owned),
        _ => None,
    }
}

/// Throws an error of the host as an exception.
fn throw(ctx: &Ctx<'_>, error: &HostError) -> rquickjs::Error {
    Exception::throw_message(ctx, &error.to_string())
}
