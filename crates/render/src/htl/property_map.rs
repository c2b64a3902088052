//! Properties as scripts see them: of a resource, of a policy, and inherited from pages above.

use tympan_core_components::{ComponentContext, ComponentResource, ContentValue};
use tympan_htl::{HostError, HtlItems, HtlObject, HtlValue};

use super::content_conversion::htl_content_value;
use super::site_access::SiteAccess;

/// Maximum number of pages above that properties are inherited from.
const MAX_INHERITANCE_DEPTH: usize = 64;

/// Where the properties come from.
#[derive(Debug)]
enum PropertySource {
    /// Nothing.
    Empty,
    /// One resource.
    Resource(ComponentResource),
    /// The nearest resource of these that has the property.
    Nearest(Vec<ComponentResource>),
}

/// A map of properties that are read one by one.
#[derive(Debug)]
pub(super) struct PropertyMapView {
    access: SiteAccess,
    source: PropertySource,
}

impl PropertyMapView {
    /// Creates the map of a resource.
    pub(super) fn of_resource(access: SiteAccess, resource: ComponentResource) -> Self {
        Self { access, source: PropertySource::Resource(resource) }
    }

    /// Creates the map of the node at a path; empty if there is none.
    pub(super) fn of_path(access: SiteAccess, path: Option<String>) -> Self {
        let source = path.map_or(PropertySource::Empty, |path| {
            PropertySource::Resource(ComponentResource::new(path))
        });
        Self { access, source }
    }

    /// Creates the map of a page's properties, which are inherited from the pages above it.
    pub(super) fn inherited(access: SiteAccess, page: &str) -> Self {
        let pages = std::iter::successors(Some(page), |path| {
            path.rsplit_once('/').map(|(above, _)| above).filter(|above| !above.is_empty())
        });
        let contents = pages.take(MAX_INHERITANCE_DEPTH).map(|page| format!("{page}/jcr:content"));
        let sources = contents.map(ComponentResource::new).collect();
        Self { access, source: PropertySource::Nearest(sources) }
    }

    fn value(&self, name: &str) -> Option<ContentValue> {
        let context = &*self.access.context;
        match &self.source {
            PropertySource::Empty => None,
            PropertySource::Resource(resource) => match name.split_once('/') {
                Some(_) => {
                    let (folder, name) = name.rsplit_once('/')?;
                    context.property(&format!("{}/{folder}", resource.path()), name)
                }
                None => resource.property(context, name),
            },
            PropertySource::Nearest(resources) => {
                resources.iter().find_map(|resource| resource.property(context, name))
            }
        }
    }

    fn names(&self) -> Vec<String> {
        let context = &*self.access.context;
        match &self.source {
            PropertySource::Empty => Vec::new(),
            PropertySource::Resource(resource) => resource.property_names(context),
            PropertySource::Nearest(resources) => resources
                .first()
                .map(|resource| resource.property_names(context))
                .unwrap_or_default(),
        }
    }
}

impl HtlObject for PropertyMapView {
    fn property(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        if let Some(value) = self.value(name) {
            return Ok(Some(htl_content_value(&value)));
        }
        Ok(match name {
            "size" => Some(HtlValue::Integer(self.names().len() as i64)),
            "empty" | "isEmpty" => Some(HtlValue::Boolean(self.names().is_empty())),
            "keySet" => Some(HtlValue::list(self.names().into_iter().map(HtlValue::from))),
            "entrySet" => Some(HtlValue::list(self.names().into_iter().map(|name| {
                let value =
                    self.value(&name).map_or(HtlValue::Null, |value| htl_content_value(&value));
                HtlValue::map([("key", HtlValue::from(name)), ("value", value)])
            }))),
            _ => None,
        })
    }

    fn has_method(&self, name: &str) -> bool {
        // A property with the name of a method hides it.
        let is_method =
            ["get", "containsKey", "keySet", "entrySet", "size", "isEmpty"].contains(&name);
        is_method && self.value(name).is_none()
    }

    fn call(&self, name: &str, arguments: &[HtlValue]) -> Result<Option<HtlValue>, HostError> {
        let key = arguments.first().map(HtlValue::to_text).unwrap_or_default();
        Ok(match (name, arguments) {
            ("get", [_, rest @ ..]) => {
                let value = self.value(&key).map(|value| htl_content_value(&value));
                Some(value.or_else(|| rest.first().cloned()).unwrap_or_default())
            }
            ("containsKey", [_]) => Some(HtlValue::Boolean(self.value(&key).is_some())),
            (_, []) => self.property(name)?,
            _ => None,
        })
    }

    fn items(&self) -> Result<Option<HtlItems>, HostError> {
        Ok(Some(Box::new(self.names().into_iter().map(|name| Ok(HtlValue::from(name))))))
    }

    fn is_true(&self) -> bool {
        !self.names().is_empty()
    }

    fn contains(&self, name: &str) -> Result<bool, HostError> {
        Ok(self.value(name).is_some())
    }
}
