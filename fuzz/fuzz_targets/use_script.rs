//! JavaScripts of HTL components: each is refused, or ends within its budget, and what it returns can be read.
#![no_main]

use std::rc::Rc;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tympan_htl::{HostError, HtlBudget, HtlLimits, HtlObject, HtlOptions, HtlValue};
use tympan_use_script::{ScriptLogLevel, UseScript, UseScriptHost, UseScriptLimits, UseScriptRealm};

#[derive(Debug)]
struct FuzzHost;

#[derive(Debug)]
struct FuzzObject;

impl HtlObject for FuzzObject {
    fn property(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        Ok(match name {
            "a" => Some(HtlValue::list(["x".into(), 1.into(), HtlValue::Null])),
            "b" => Some(HtlValue::object(Self)),
            "fails" => return Err(HostError::message("no")),
            _ => None,
        })
    }
}

impl UseScriptHost for FuzzHost {
    fn global(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        Ok((name == "properties").then(|| HtlValue::object(FuzzObject)))
    }

    fn find_script(&self, name: &str, _: &str) -> Result<Option<UseScript>, HostError> {
        let source = "use(function () { return { a: 1 }; })";
        Ok((name == "a.js").then(|| UseScript { path: "a.js".into(), source: source.into() }))
    }

    fn resource(&self, _: &str) -> Result<HtlValue, HostError> {
        Ok(HtlValue::object(FuzzObject))
    }

    fn now_millis(&self) -> i64 {
        0
    }

    fn random_seed(&self) -> u32 {
        0
    }

    fn log(&self, _: ScriptLogLevel, _: &str, _: &str) {}
}

fn read(value: &HtlValue, depth: u32) {
    if depth > 3 {
        return;
    }
    match value {
        HtlValue::List(items) => items.iter().take(10).for_each(|item| read(item, depth + 1)),
        HtlValue::Object(object) => {
            let Ok(Some(keys)) = object.items() else { return };
            for key in keys.take(10).flatten() {
                if let Ok(Some(value)) = object.property(&key.to_text()) {
                    read(&value, depth + 1);
                }
            }
        }
        other => drop(other.to_text()),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let budget = HtlBudget::new(HtlLimits { steps: 50_000, ..HtlLimits::default() });
    let limits = UseScriptLimits {
        memory_bytes: 2 << 20,
        run_time: Duration::from_secs(1),
        ..UseScriptLimits::default()
    };
    let realm = UseScriptRealm::new(Rc::new(FuzzHost), budget, limits).expect("a realm starts");
    let script = UseScript { path: "fuzz.js".into(), source: source.into() };
    if let Ok(value) = realm.run(&script, &HtlOptions::default()) {
        read(&value, 0);
    }
});
