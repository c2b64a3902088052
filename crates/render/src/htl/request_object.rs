//! The request and the authoring mode as scripts see them.

use tympan_core_components::AuthoringMode;
use tympan_htl::{HostError, HtlObject, HtlValue};

use super::content_conversion::bean_property;
use super::property_map::PropertyMapView;
use super::site_access::SiteAccess;
use super::site_object::ResourceView;
use crate::dependency::content_reader::RequestFacts;

/// The request, as `request` in scripts.
#[derive(Debug)]
pub(super) struct ScriptRequestView {
    pub access: SiteAccess,
    pub selectors: Vec<String>,
    pub resource_path: String,
}

impl HtlObject for ScriptRequestView {
    fn property(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        let scope = &self.access.scope;
        let request = &scope.request;
        let record = |fact| scope.reader.record_fact(fact);
        Ok(Some(match &*bean_property(name) {
            "requestPathInfo" => HtlValue::object(PathInfoView {
                access: self.access.clone(),
                selectors: self.selectors.clone(),
                resource_path: self.resource_path.clone(),
            }),
            "method" => HtlValue::from(request.method.as_str()),
            "contextPath" => HtlValue::from(""),
            "scheme" => {
                record(RequestFacts::HOST);
                HtlValue::from(request.scheme.as_str())
            }
            "serverName" => {
                record(RequestFacts::HOST);
                let host = request.host.rsplit_once(':').map_or(&*request.host, |(host, _)| host);
                HtlValue::from(host)
            }
            "queryString" => {
                record(RequestFacts::PARAMETERS);
                HtlValue::from(request.raw_url.split_once('?').map(|(_, query)| query.to_owned()))
            }
            "requestURI" | "pathInfo" => {
                record(RequestFacts::URL);
                record(RequestFacts::PAGE);
                HtlValue::from(request.raw_url.split('?').next().unwrap_or_default())
            }
            "resource" => ResourceView::value_at(&self.access, &self.resource_path),
            "parameterMap" | "requestParameterMap" => {
                record(RequestFacts::PARAMETERS);
                HtlValue::map(request.parameters.names().map(|name| {
                    let values = request.parameters.values(name).unwrap_or_default();
                    (
                        name,
                        HtlValue::list(values.iter().map(|value| HtlValue::from(value.as_str()))),
                    )
                }))
            }
            "locale" => HtlValue::from(self.access.context.page_language()),
            "attributes" => HtlValue::object(PropertyMapView::of_path(self.access.clone(), None)),
            _ => return Ok(None),
        }))
    }

    fn call(&self, name: &str, arguments: &[HtlValue]) -> Result<Option<HtlValue>, HostError> {
        let scope = &self.access.scope;
        match (name, arguments) {
            ("getParameter", [parameter]) => {
                scope.reader.record_fact(RequestFacts::PARAMETERS);
                let values = scope.request.parameters.values(&parameter.to_text());
                let first = values.and_then(|values| values.first()).map(|value| value.as_str());
                Ok(Some(HtlValue::from(first)))
            }
            ("getAttribute", [_]) => Ok(Some(HtlValue::Null)),
            (_, []) => self.property(name),
            _ => Ok(None),
        }
    }
}

/// The parts of the URL, as `request.requestPathInfo` in scripts.
#[derive(Debug)]
struct PathInfoView {
    access: SiteAccess,
    selectors: Vec<String>,
    resource_path: String,
}

impl HtlObject for PathInfoView {
    fn property(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        let scope = &self.access.scope;
        scope.reader.record_fact(RequestFacts::URL);
        let url = &scope.request.url;
        Ok(Some(match &*bean_property(name) {
            "resourcePath" => HtlValue::from(self.resource_path.as_str()),
            "selectorString" if self.selectors.is_empty() => HtlValue::Null,
            "selectorString" => HtlValue::from(self.selectors.join(".")),
            "selectors" => {
                HtlValue::list(self.selectors.iter().map(|name| HtlValue::from(name.as_str())))
            }
            "extension" => HtlValue::from(url.extension.clone()),
            "suffix" => HtlValue::from(url.suffix.clone()),
            "suffixResource" => {
                let suffix = url.suffix.as_deref();
                suffix.map_or(HtlValue::Null, |path| ResourceView::value_at(&self.access, path))
            }
            _ => return Ok(None),
        }))
    }
}

/// The authoring mode, as `wcmmode` in scripts.
#[derive(Debug)]
pub(super) struct AuthoringModeView(pub AuthoringMode);

impl HtlObject for AuthoringModeView {
    fn property(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        let mode = match &*bean_property(name) {
            "edit" => AuthoringMode::Edit,
            "preview" => AuthoringMode::Preview,
            "design" => AuthoringMode::Design,
            "disabled" => AuthoringMode::Disabled,
            _ => return Ok(None),
        };
        Ok(Some(HtlValue::Boolean(self.0 == mode)))
    }

    fn primitive(&self) -> Option<HtlValue> {
        Some(HtlValue::from(match self.0 {
            AuthoringMode::Edit => "EDIT",
            AuthoringMode::Preview => "PREVIEW",
            AuthoringMode::Design => "DESIGN",
            AuthoringMode::Disabled => "DISABLED",
        }))
    }
}
