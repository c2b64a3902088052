//! What a component's scripts ask for: variables, objects of `data-sly-use`, included scripts, translations.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tympan_core_components::{ModelRequest, find_model};
use tympan_htl::{
    HostError, HtlHost, HtlUseRequest, HtlUseResult, HtlValue, ResourceInclusion, ScriptInclusion,
    TranslationRequest,
};

use super::component_host::HtlComponentHost;
use super::model_object::{htl_model_value, model_value};
use super::platform_object;
use super::resource_inclusion;
use crate::script_language::{ScriptLanguage, is_javascript_name};
use crate::template::ComponentFailure;

impl HtlComponentHost {
    /// Returns the object of a class.
    fn make_object(&mut self, request: &HtlUseRequest<'_>) -> HtlValue {
        if let Some(object) = platform_object::make_object(self, request) {
            return object;
        }
        if let Some(factory) = find_model(request.name) {
            let mut model_request =
                ModelRequest::new(self.access.model_context(), self.model_resource.clone());
            let options = request.options.iter();
            model_request.options =
                options.map(|(name, value)| (name.to_owned(), model_value(value))).collect();
            return htl_model_value(&self.access, factory(&model_request));
        }
        let message = format!("no class `{}` is available", request.name);
        self.add_finding(request.script, request.name, &message);
        HtlValue::Null
    }

    /// Runs a JavaScript and returns its value.
    fn run_use_script(&mut self, request: &HtlUseRequest<'_>) -> Result<HtlValue, HostError> {
        let scope = Arc::clone(&self.access.scope);
        let types = self.frame.resource.types();
        let found =
            scope.scripts.find_use_script(&scope.reader, types, request.script, request.name);
        let Some(script) = found else {
            let message = format!("there is no script `{}`", request.name);
            self.add_finding(request.script, request.name, &message);
            return Ok(HtlValue::Null);
        };
        let realm = self.use_script_realm().map_err(HostError::new)?;
        realm.run(script, request.options).map_err(HostError::new)
    }
}

impl HtlHost for HtlComponentHost {
    fn global(&mut self, name: &str) -> Result<Option<HtlValue>, HostError> {
        if let Some(value) = self.globals.get(name) {
            return Ok(Some(value.clone()));
        }
        let value = self.component_globals().make_global(name);
        if let Some(value) = &value {
            self.globals.insert(name.to_owned(), value.clone());
        }
        Ok(value)
    }

    fn use_object(&mut self, request: &HtlUseRequest<'_>) -> Result<HtlUseResult, HostError> {
        if is_javascript_name(request.name) {
            return Ok(HtlUseResult::Object(self.run_use_script(request)?));
        }
        if !request.name.ends_with(".html") {
            return Ok(HtlUseResult::Object(self.make_object(request)));
        }
        let scope = Arc::clone(&self.access.scope);
        let types = self.frame.resource.types();
        let found =
            scope.scripts.find_named_script(&scope.reader, types, request.script, request.name);
        let Some(info) = found else {
            let message = format!("there is no script `{}`", request.name);
            self.add_finding(request.script, request.name, &message);
            return Ok(HtlUseResult::Object(HtlValue::Null));
        };
        scope.reader.record_script(info.path());
        match scope.scripts.htl_script(info.path()) {
            Ok(compiled) => Ok(HtlUseResult::Templates(compiled.script.clone())),
            Err(failure) => Err(HostError::message(failure.to_string())),
        }
    }

    fn include_resource(
        &mut self,
        inclusion: &ResourceInclusion<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), HostError> {
        self.count_steps();
        let text = resource_inclusion::include_resource(self, inclusion);
        out.extend_from_slice(text.as_bytes());
        Ok(())
    }

    fn include_script(
        &mut self,
        inclusion: &ScriptInclusion<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), HostError> {
        let scope = Arc::clone(&self.access.scope);
        let types = self.frame.resource.types();
        let found =
            scope.scripts.find_named_script(&scope.reader, types, inclusion.script, inclusion.path);
        let Some(info) = found else {
            // A service of AEM that adds nothing to a page.
            if !inclusion.path.starts_with("/libs/cq/cloudserviceconfigs/") {
                let message = format!("there is no script `{}`", inclusion.path);
                self.add_finding(inclusion.script, inclusion.path, &message);
            }
            return Ok(());
        };
        if info.language() == ScriptLanguage::MiniJinja {
            let (resource, selectors) =
                (self.frame.resource.clone(), Arc::clone(&self.frame.selectors));
            self.count_steps();
            let text =
                scope.render_resource(&resource, &info, selectors).unwrap_or_else(|failure| {
                    self.frame.render_failure(&failure, resource.path().as_str())
                });
            out.extend_from_slice(text.as_bytes());
            return Ok(());
        }
        scope.reader.record_script(info.path());
        let compiled = scope
            .scripts
            .htl_script(info.path())
            .map_err(|failure: ComponentFailure| HostError::message(failure.to_string()))?;
        let script = compiled.script.clone();
        let budget = self.budget.clone();
        script.render(self, &budget, out).map_err(HostError::from)
    }

    fn translate(&mut self, request: &TranslationRequest<'_>) -> Result<Option<String>, HostError> {
        let context = &self.access.context;
        Ok(Some(context.translate_with_hint(request.text, request.hint, request.locale)))
    }

    fn locale(&mut self) -> Cow<'_, str> {
        let context = &self.access.context;
        let language = self.language.get_or_init(|| {
            let language = context.page_language();
            if language.is_empty() { "en".to_owned() } else { language }
        });
        Cow::Borrowed(language)
    }

    fn zone_offset(&mut self, zone: &str, millis: i64) -> Option<i32> {
        let zone = TimeZone::get(zone).ok()?;
        let instant = Timestamp::from_millisecond(millis).ok()?;
        Some(zone.to_offset(instant).seconds() / 60)
    }
}
