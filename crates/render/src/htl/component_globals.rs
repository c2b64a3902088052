//! The variables of a component's scripts, in HTL and in JavaScript.

use std::sync::Arc;

use tympan_content::JCR_CONTENT;
use tympan_core_components::{AuthoringMode, ComponentContext, ComponentResource};
use tympan_htl::{HostError, HtlObject, HtlValue};

use super::content_conversion::bean_property;
use super::page_object::PageView;
use super::property_map::PropertyMapView;
use super::request_object::{AuthoringModeView, ScriptRequestView};
use super::site_access::SiteAccess;
use super::site_object::ResourceView;

/// What the variables of a component are made from.
#[derive(Debug, Clone)]
pub(super) struct ComponentGlobals {
    pub access: SiteAccess,
    /// The resource as models take it.
    pub model_resource: ComponentResource,
    pub resource_path: Arc<str>,
    pub selectors: Arc<[String]>,
    pub mode: AuthoringMode,
}

impl ComponentGlobals {
    /// Returns the path of the page that contains the resource.
    fn resource_page(&self) -> Option<String> {
        let path = &*self.resource_path;
        let at = path.find(&format!("/{JCR_CONTENT}")).unwrap_or(path.len());
        let page = path.get(..at)?;
        self.access.context.is_page(page).then(|| page.to_owned())
    }

    /// Returns a variable by its name in lower case; `None` if there is none.
    pub(super) fn make_global(&self, name: &str) -> Option<HtlValue> {
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
                resource_path: self.resource_path.to_string(),
            }),
            "request" | "slingrequest" => HtlValue::object(ScriptRequestView {
                access: access.clone(),
                selectors: self.selectors.to_vec(),
                resource_path: self.resource_path.to_string(),
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
