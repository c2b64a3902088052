//! A host for tests: variables, objects and scripts in memory.

use std::collections::HashMap;

use tympan_htl::{
    HostError, HtlBudget, HtlHost, HtlLimits, HtlOptions, HtlScript, HtlUseRequest, HtlUseResult,
    HtlValue, ResourceInclusion, ScriptInclusion, TranslationRequest,
};

/// Makes the object of a `data-sly-use` from its options.
pub(crate) type ObjectMaker = Box<dyn Fn(&HtlOptions) -> HtlValue>;

/// The host. Resources are written as a marker with their options; scripts come from `scripts`.
#[derive(Default)]
pub(crate) struct TestHost {
    pub(crate) globals: HashMap<String, HtlValue>,
    pub(crate) objects: HashMap<String, ObjectMaker>,
    pub(crate) scripts: HashMap<String, String>,
    /// By language, text and hint.
    pub(crate) translations: HashMap<(String, String, String), String>,
    pub(crate) budget: HtlBudget,
    /// The names of variables that were asked for.
    pub(crate) asked: Vec<String>,
}

impl TestHost {
    pub(crate) fn with(globals: impl IntoIterator<Item = (&'static str, HtlValue)>) -> Self {
        let globals = globals.into_iter().map(|(name, value)| (name.to_lowercase(), value));
        Self { globals: globals.collect(), ..Self::default() }
    }

    pub(crate) fn with_script(mut self, name: &str, source: &str) -> Self {
        self.scripts.insert(name.to_owned(), source.to_owned());
        self
    }

    pub(crate) fn with_limits(mut self, limits: HtlLimits) -> Self {
        self.budget = HtlBudget::new(limits);
        self
    }

    /// Returns what a script writes, or its faults, or the error that ended it.
    pub(crate) fn render(&mut self, source: &str) -> String {
        let script = match HtlScript::compile("test.html", source) {
            Ok(script) => script,
            Err(error) => return format!("FAULT {error}"),
        };
        let mut out = Vec::new();
        let budget = self.budget.clone();
        match script.render(self, &budget, &mut out) {
            Ok(()) => String::from_utf8(out).unwrap(),
            Err(error) => format!("ERROR {error}"),
        }
    }

    fn script(&self, path: &str) -> Result<HtlScript, HostError> {
        let source = self.scripts.get(path);
        let source =
            source.ok_or_else(|| HostError::message(format!("there is no script `{path}`")))?;
        HtlScript::compile(path, source).map_err(HostError::new)
    }
}

impl HtlHost for TestHost {
    fn global(&mut self, name: &str) -> Result<Option<HtlValue>, HostError> {
        self.asked.push(name.to_owned());
        Ok(self.globals.get(name).cloned())
    }

    fn use_object(&mut self, request: &HtlUseRequest<'_>) -> Result<HtlUseResult, HostError> {
        if let Some(maker) = self.objects.get(request.name) {
            return Ok(HtlUseResult::Object(maker(request.options)));
        }
        self.script(request.name).map(HtlUseResult::Templates)
    }

    fn include_resource(
        &mut self,
        inclusion: &ResourceInclusion<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), HostError> {
        let path = inclusion.path.unwrap_or("(object)");
        let mut text = format!("[{path} {}", inclusion.selectors(&["one", "two"]).join("."));
        for (name, value) in inclusion.options.iter() {
            text.push_str(&format!(" {name}={}", value.to_text()));
        }
        out.extend_from_slice(text.as_bytes());
        out.push(b']');
        Ok(())
    }

    fn include_script(
        &mut self,
        inclusion: &ScriptInclusion<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), HostError> {
        let script = self.script(inclusion.path)?;
        let budget = self.budget.clone();
        Ok(script.render(self, &budget, out)?)
    }

    fn translate(&mut self, request: &TranslationRequest<'_>) -> Result<Option<String>, HostError> {
        let key = (
            request.locale.unwrap_or("en").to_owned(),
            request.text.to_owned(),
            request.hint.unwrap_or_default().to_owned(),
        );
        Ok(self.translations.get(&key).cloned())
    }

    fn zone_offset(&mut self, zone: &str, _millis: i64) -> Option<i32> {
        (zone == "Europe/Berlin").then_some(60)
    }
}
