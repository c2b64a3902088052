//! What a component's scripts ask for: variables, objects of `data-sly-use`, included scripts, translations.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tympan_content::JCR_CONTENT;
use tympan_core_components::{ComponentContext, ModelRequest, find_model};
use tympan_htl::{
    HostError, HtlHost, HtlObject, HtlUseRequest, HtlUseResult, HtlValue, ResourceInclusion,
    ScriptInclusion, TranslationRequest,
};

use super::component_host::HtlComponentHost;
use super::content_conversion::bean_property;
use super::model_object::{htl_model_value, model_value};
use super::page_object::PageView;
use super::platform_object;
use super::property_map::PropertyMapView;
use super::request_object::{AuthoringModeView, ScriptRequestView};
use super::resource_inclusion;
use super::site_access::SiteAccess;
use super::site_object::ResourceView;
use crate::script_language::ScriptLanguage;
use crate::template::ComponentFailure;

impl HtlComponentHost {
    /// Returns the path of the page that contains the resource.
    fn resource_page(&self) -> Option<String> {
        let path = self.frame.resource.path().as_str();
        let at = path.find(&format!("/{JCR_CONTENT}")).unwrap_or(path.len());
        let page = path.get(..at)?;
        self.access.context.is_page(page).then(|| page.to_owned())
    }

    fn make_global(&self, name: &str) -> Option<HtlValue> {
        let access = &self.access;
        let current_page = || access.context.current_page().unwrap_or_default();
        let content_of = |page: &str| Some(format!("{page}/{JCR_CONTENT}"));
        let map_at = |path| HtlValue::object(PropertyMapView::of_path(access.clone(), path));
        Some(match name {
            "properties" => HtlValue::object(PropertyMapView::of_resource(
                access.clone(),
                self.model_resource.clone(),
            )),
            "resource" => HtlValue::object(ResourceView::of_model(
                access.clone(),
                self.model_resource.clone(),
            )),
            "currentpage" => PageView::value_at(access, &current_page()),
            "resourcepage" => {
                let page = self.resource_page();
                page.map_or(HtlValue::Null, |page| PageView::value_at(access, &page))
            }
            "pageproperties" => map_at(content_of(&current_page())),
            "inheritedpageproperties" => {
                HtlValue::object(PropertyMapView::inherited(access.clone(), &current_page()))
            }
            "currentstyle" | "currentcontentpolicyproperties" | "currentdesign" => {
                map_at(access.context.content_policy(&self.model_resource))
            }
            "component" => self.component_value(),
            "caconfig" => HtlValue::object(ConfigurationView {
                access: access.clone(),
                resource_path: self.frame.resource.path().to_string(),
            }),
            "request" | "slingrequest" => HtlValue::object(ScriptRequestView {
                access: access.clone(),
                selectors: self.frame.selectors.to_vec(),
                resource_path: self.frame.resource.path().to_string(),
            }),
            "wcmmode" => HtlValue::object(AuthoringModeView(self.mode)),
            _ => return None,
        })
    }

    /// Returns the component as `component` in scripts.
    fn component_value(&self) -> HtlValue {
        let context = &self.access.context;
        let resource_type = self.model_resource.resource_type(&**context);
        let path = resource_type.and_then(|resource_type| context.component_path(&resource_type));
        HtlValue::object(ComponentView { access: self.access.clone(), path })
    }

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
        let message = if request.name.ends_with(".js") {
            format!("server-side JavaScript is not supported: `{}`", request.name)
        } else {
            format!("no class `{}` is available", request.name)
        };
        self.add_finding(request.script, request.name, &message);
        HtlValue::Null
    }
}

impl HtlHost for HtlComponentHost {
    fn global(&mut self, name: &str) -> Result<Option<HtlValue>, HostError> {
        if let Some(value) = self.globals.get(name) {
            return Ok(Some(value.clone()));
        }
        let value = self.make_global(name);
        if let Some(value) = &value {
            self.globals.insert(name.to_owned(), value.clone());
        }
        Ok(value)
    }

    fn use_object(&mut self, request: &HtlUseRequest<'_>) -> Result<HtlUseResult, HostError> {
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

/// The context-aware configurations of a resource, as `caconfig` in scripts.
#[derive(Debug)]
struct ConfigurationView {
    access: SiteAccess,
    resource_path: String,
}

impl HtlObject for ConfigurationView {
    fn property(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        let node = self.access.context.configuration(&self.resource_path, name);
        let map = PropertyMapView::of_path(self.access.clone(), node);
        Ok(Some(HtlValue::object(map)))
    }
}

/// A component, as `component` in scripts.
#[derive(Debug)]
struct ComponentView {
    access: SiteAccess,
    path: Option<String>,
}

impl HtlObject for ComponentView {
    fn property(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        let Some(path) = &self.path else { return Ok(None) };
        let context = &self.access.context;
        let text = |property: &str| {
            HtlValue::from(context.property(path, property).and_then(|value| value.to_text()))
        };
        Ok(Some(match &*bean_property(name) {
            "path" => HtlValue::from(path.as_str()),
            "name" => HtlValue::from(path.rsplit('/').next().unwrap_or_default()),
            "title" => text("jcr:title"),
            "description" => text("jcr:description"),
            "componentGroup" => text("componentGroup"),
            "resourceType" => {
                let relative = crate::page::container_policy::relative_resource_type(path);
                HtlValue::from(relative)
            }
            "properties" => {
                HtlValue::object(PropertyMapView::of_path(self.access.clone(), Some(path.clone())))
            }
            _ => return Ok(None),
        }))
    }
}
