//! Objects of scripts as HTL sees them.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use rquickjs::{Ctx, Object, Persistent, Value};
use tympan_htl::{HostError, HtlItems, HtlObject, HtlValue};

use crate::conversion::property_to_htl;
use crate::realm::Realm;

/// An object of a script.
pub(crate) struct ScriptObject {
    // Dropped in front of the realm, which holds the engine.
    object: Persistent<Object<'static>>,
    realm: Rc<Realm>,
    /// The script that returned it, for errors.
    script: Arc<str>,
}

impl fmt::Debug for ScriptObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptObject").field("script", &self.script).finish_non_exhaustive()
    }
}

impl ScriptObject {
    pub(crate) fn new<'js>(
        realm: &Rc<Realm>,
        ctx: &Ctx<'js>,
        object: Object<'js>,
        script: &Arc<str>,
    ) -> Self {
        let object = Persistent::save(ctx, object);
        Self { object, realm: Rc::clone(realm), script: Arc::clone(script) }
    }

    /// Returns the object in its engine; `None` in another one.
    pub(crate) fn restore<'js>(&self, ctx: &Ctx<'js>) -> Option<Object<'js>> {
        self.object.clone().restore(ctx).ok()
    }
}

impl HtlObject for ScriptObject {
    fn property(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        let value = self.realm.enter(&self.script, |ctx, api| {
            self.realm.state().spend(ctx, 1)?;
            let object = self.object.clone().restore(ctx)?;
            let value: Value<'_> = object.get(name)?;
            if value.is_undefined() {
                return Ok(None);
            }
            property_to_htl(&self.realm, ctx, api, (value, object), &self.script).map(Some)
        });
        value.map_err(HostError::new)
    }

    fn items(&self) -> Result<Option<HtlItems>, HostError> {
        let keys = self.realm.enter(&self.script, |ctx, _| {
            let object = self.object.clone().restore(ctx)?;
            let mut keys = Vec::new();
            for key in object.keys::<String>() {
                let key = key?;
                self.realm.state().spend_bytes(ctx, key.len())?;
                keys.push(Ok(HtlValue::from(key)));
            }
            Ok(keys)
        });
        Ok(Some(Box::new(keys.map_err(HostError::new)?.into_iter())))
    }

    fn is_true(&self) -> bool {
        true
    }
}
