//! Resources as scripts see them.

use tympan_content::NodePath;
use tympan_core_components::{ComponentContext, ComponentResource};
use tympan_htl::{HostError, HtlItems, HtlObject, HtlValue};

use super::content_conversion::bean_property;
use super::property_map::PropertyMapView;
use super::site_access::SiteAccess;

/// A resource, as `resource` in scripts.
#[derive(Debug)]
pub(super) struct ResourceView {
    access: SiteAccess,
    resource: ComponentResource,
}

impl ResourceView {
    /// Creates the view of a resource of a model.
    pub(super) fn of_model(access: SiteAccess, resource: ComponentResource) -> Self {
        Self { access, resource }
    }

    /// Creates the value of the resource at a path; null if there is none.
    pub(super) fn value_at(access: &SiteAccess, path: &str) -> HtlValue {
        if access.context.node_exists(path) {
            HtlValue::object(Self::of_model(access.clone(), ComponentResource::new(path)))
        } else {
            HtlValue::Null
        }
    }

    /// Returns the resource as models take it.
    pub(super) fn to_model_resource(&self) -> ComponentResource {
        self.resource.clone()
    }

    /// Returns the resource.
    pub(super) fn model_resource(&self) -> &ComponentResource {
        &self.resource
    }

    fn child_values(&self) -> Vec<HtlValue> {
        let path = self.resource.path();
        let names = self.access.context.child_names(path).into_iter();
        names
            .map(|name| {
                let child =
                    ComponentResource::new(format!("{}/{name}", path.trim_end_matches('/')));
                HtlValue::object(Self::of_model(self.access.clone(), child))
            })
            .collect()
    }
}

impl HtlObject for ResourceView {
    fn property(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        let context = &*self.access.context;
        // `hasChildren` is a method of its own, not the getter of `children`.
        if name == "hasChildren" {
            return Ok(Some(HtlValue::Boolean(
                !context.child_names(self.resource.path()).is_empty(),
            )));
        }
        Ok(Some(match &*bean_property(name) {
            "path" => HtlValue::from(self.resource.path()),
            "name" => HtlValue::from(self.resource.name()),
            "resourceType" => HtlValue::from(self.resource.resource_type(context)),
            "resourceSuperType" => {
                let super_type = self.resource.property(context, "sling:resourceSuperType");
                HtlValue::from(super_type.and_then(|value| value.to_text()))
            }
            "valueMap" | "properties" => HtlValue::object(PropertyMapView::of_resource(
                self.access.clone(),
                self.resource.clone(),
            )),
            "children" | "listChildren" => HtlValue::list(self.child_values()),
            "parent" => {
                let parent =
                    NodePath::new(self.resource.path()).ok().and_then(|path| path.parent());
                parent
                    .map_or(HtlValue::Null, |parent| Self::value_at(&self.access, parent.as_str()))
            }
            _ => return Ok(None),
        }))
    }

    fn call(&self, name: &str, arguments: &[HtlValue]) -> Result<Option<HtlValue>, HostError> {
        match (name, arguments) {
            ("getChild", [path]) => {
                let path = NodePath::new(self.resource.path())
                    .ok()
                    .and_then(|own| own.resolve(&path.to_text()).ok());
                Ok(Some(
                    path.map_or(HtlValue::Null, |path| Self::value_at(&self.access, path.as_str())),
                ))
            }
            (_, []) => self.property(name),
            _ => Ok(None),
        }
    }

    fn items(&self) -> Result<Option<HtlItems>, HostError> {
        let children = self.child_values().into_iter().map(Ok);
        Ok(Some(Box::new(children)))
    }

    fn is_true(&self) -> bool {
        true
    }

    fn to_text(&self) -> String {
        self.resource.path().to_owned()
    }
}
