//! A host with fixed variables and scripts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use tympan_htl::{HostError, HtlBudget, HtlLimits, HtlObject, HtlOptions, HtlValue};
use tympan_use_script::{
    Error, ScriptLogLevel, UseScript, UseScriptHost, UseScriptLimits, UseScriptRealm,
};

/// What scripts read and logged, in order.
pub(crate) type Trace = Rc<RefCell<Vec<String>>>;

/// A host with fixed variables and scripts.
#[derive(Debug, Default)]
pub(crate) struct TestHost {
    pub(crate) globals: BTreeMap<&'static str, HtlValue>,
    pub(crate) scripts: BTreeMap<&'static str, &'static str>,
    pub(crate) trace: Trace,
}

impl UseScriptHost for TestHost {
    fn global(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        self.trace.borrow_mut().push(format!("variable {name}"));
        Ok(self.globals.get(name).cloned())
    }

    fn find_script(&self, name: &str, naming_script: &str) -> Result<Option<UseScript>, HostError> {
        self.trace.borrow_mut().push(format!("script {name} from {naming_script}"));
        Ok(self.scripts.get(name).map(|source| script(&format!("/apps/{name}"), source)))
    }

    fn resource(&self, path: &str) -> Result<HtlValue, HostError> {
        self.trace.borrow_mut().push(format!("resource {path}"));
        Ok(if path.ends_with("/missing") { HtlValue::Null } else { resource(path, &self.trace) })
    }

    fn now_millis(&self) -> i64 {
        self.trace.borrow_mut().push("time".to_owned());
        1_700_000_000_000
    }

    fn random_seed(&self) -> u32 {
        7
    }

    fn log(&self, level: ScriptLogLevel, script: &str, message: &str) {
        self.trace.borrow_mut().push(format!("{level:?} {script} {message}"));
    }
}

/// A map whose reads are traced.
#[derive(Debug)]
struct TracedMap {
    name: String,
    values: BTreeMap<String, HtlValue>,
    trace: Trace,
}

impl HtlObject for TracedMap {
    fn property(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        self.trace.borrow_mut().push(format!("read {}.{name}", self.name));
        match name {
            "broken" => Err(HostError::message("the store does not answer")),
            "getTitle" => Ok(self.values.get("title").cloned()),
            _ => Ok(self.values.get(name).cloned()),
        }
    }

    fn call(&self, name: &str, arguments: &[HtlValue]) -> Result<Option<HtlValue>, HostError> {
        match (name, arguments) {
            ("getText", [key, rest @ ..]) => {
                let value = self.property(&key.to_text())?;
                Ok(Some(value.or_else(|| rest.first().cloned()).unwrap_or_default()))
            }
            (_, []) => self.property(name),
            _ => Ok(None),
        }
    }

    fn items(&self) -> Result<Option<tympan_htl::HtlItems>, HostError> {
        let keys: Vec<_> = self.values.keys().map(|key| Ok(HtlValue::from(key.as_str()))).collect();
        Ok(Some(Box::new(keys.into_iter())))
    }
}

/// Makes a map whose reads are traced.
pub(crate) fn map<const N: usize>(
    name: &str,
    values: [(&str, HtlValue); N],
    trace: &Trace,
) -> HtlValue {
    let values = values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    HtlValue::object(TracedMap { name: name.to_owned(), values, trace: Rc::clone(trace) })
}

fn resource(path: &str, trace: &Trace) -> HtlValue {
    let properties = map("valueMap", [("title", format!("Title of {path}").into())], trace);
    map(
        "resource",
        [("path", path.into()), ("valueMap", properties), ("resourceType", "test/text".into())],
        trace,
    )
}

pub(crate) fn script(path: &str, source: &str) -> UseScript {
    UseScript { path: path.into(), source: source.into() }
}

impl TestHost {
    /// Makes a host with a resource and its properties.
    pub(crate) fn new() -> Self {
        let host = Self::default();
        let trace = Rc::clone(&host.trace);
        let tags = HtlValue::list(["red".into(), "blue".into()]);
        let properties = [("title", HtlValue::from("A & B")), ("count", 3.into()), ("tags", tags)];
        let globals = BTreeMap::from([
            ("properties", map("properties", properties, &trace)),
            ("resource", resource("/content/a", &trace)),
        ]);
        Self { globals, ..host }
    }

    pub(crate) fn with_script(mut self, name: &'static str, source: &'static str) -> Self {
        self.scripts.insert(name, source);
        self
    }

    /// Makes a realm with a budget of 100,000 steps.
    pub(crate) fn realm(self) -> (UseScriptRealm, Trace) {
        let trace = Rc::clone(&self.trace);
        let limits = HtlLimits { steps: 100_000, ..HtlLimits::default() };
        let realm =
            UseScriptRealm::new(Rc::new(self), HtlBudget::new(limits), UseScriptLimits::default());
        (realm.unwrap(), trace)
    }
}

/// Runs a script without options.
pub(crate) fn run(realm: &UseScriptRealm, source: &str) -> Result<HtlValue, Error> {
    realm.run(&script("/apps/test.js", source), &HtlOptions::default())
}

/// Runs a script with options.
pub(crate) fn run_with<const N: usize>(
    realm: &UseScriptRealm,
    source: &str,
    options: [(&str, HtlValue); N],
) -> Result<HtlValue, Error> {
    let options = options.into_iter().map(|(name, value)| (Arc::from(name), value)).collect();
    realm.run(&script("/apps/test.js", source), &options)
}

/// Writes a value as expressions see it.
pub(crate) fn show(value: &Result<HtlValue, Error>) -> String {
    match value {
        Ok(value) => show_value(value),
        Err(error) => format!("ERROR {error}"),
    }
}

fn show_value(value: &HtlValue) -> String {
    match value {
        HtlValue::Null => "null".to_owned(),
        HtlValue::Text(text) => format!("'{text}'"),
        HtlValue::List(items) => {
            format!("[{}]", items.iter().map(show_value).collect::<Vec<_>>().join(", "))
        }
        HtlValue::Object(object) => {
            let items = match object.items() {
                Ok(items) => items.into_iter().flatten(),
                Err(error) => return format!("ERROR {error}"),
            };
            let parts = items.map(|key| {
                let key = key.unwrap().to_text();
                match object.property(&key) {
                    Ok(value) => format!("{key}: {}", show_value(&value.unwrap_or_default())),
                    Err(error) => format!("{key}: ERROR {error}"),
                }
            });
            format!("{{{}}}", parts.collect::<Vec<_>>().join(", "))
        }
        other => other.to_text(),
    }
}
