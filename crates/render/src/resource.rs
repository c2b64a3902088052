//! Resources: the targets of URLs and includes.

use std::sync::Arc;

use tympan_content::{Node, NodePath};
use tympan_core_components::ComponentResource;

use crate::page::template_structure::TemplateStructure;

/// A node or the path of a missing one, together with its resource type. Cloning is cheap.
#[derive(Debug, Clone)]
pub(crate) struct ContentResource(Arc<ContentResourceData>);

#[derive(Debug)]
struct ContentResourceData {
    location: ResourceLocation,
    /// The type that an include requested instead of the node's own.
    forced_type: Option<String>,
    inclusion: InclusionContext,
}

/// The properties of an inclusion that the included component and the components in it inherit.
#[derive(Debug, Clone, Default)]
pub(crate) struct InclusionContext {
    /// True if the including script disabled editing (`wcmmode='disabled'`).
    pub is_editing_disabled: bool,
    /// The editable template whose structure contains the resource.
    pub structure: Option<Arc<TemplateStructure>>,
    /// The resource with properties that a model set; not inherited.
    pub model_resource: Option<ComponentResource>,
}

#[derive(Debug, Clone)]
enum ResourceLocation {
    Node(Node),
    /// A path without a node.
    Missing(NodePath),
}

impl ContentResource {
    fn new(location: ResourceLocation, forced_type: Option<String>) -> Self {
        let inclusion = InclusionContext::default();
        Self(Arc::new(ContentResourceData { location, forced_type, inclusion }))
    }

    /// Sets the context of the inclusion.
    pub(crate) fn with_inclusion(self, inclusion: InclusionContext) -> Self {
        let (location, forced_type) = (self.0.location.clone(), self.0.forced_type.clone());
        Self(Arc::new(ContentResourceData { location, forced_type, inclusion }))
    }

    /// Returns the context of the inclusion.
    pub(crate) fn inclusion(&self) -> &InclusionContext {
        &self.0.inclusion
    }

    /// Returns the type that an include requested instead of the node's own.
    pub(crate) fn forced_type(&self) -> Option<&str> {
        self.0.forced_type.as_deref()
    }

    /// Creates a resource from a node.
    pub(crate) fn from_node(node: Node) -> Self {
        Self::new(ResourceLocation::Node(node), None)
    }

    /// Creates a resource without a node.
    pub(crate) fn missing(path: NodePath) -> Self {
        Self::new(ResourceLocation::Missing(path), None)
    }

    /// Overrides the type of the resource.
    pub(crate) fn with_type(self, resource_type: String) -> Self {
        let (location, inclusion) = (self.0.location.clone(), self.0.inclusion.clone());
        let forced_type = Some(resource_type);
        Self(Arc::new(ContentResourceData { location, forced_type, inclusion }))
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &NodePath {
        match &self.0.location {
            ResourceLocation::Node(node) => node.path(),
            ResourceLocation::Missing(path) => path,
        }
    }

    /// Returns the node; `None` if it is missing.
    pub(crate) fn node(&self) -> Option<&Node> {
        match &self.0.location {
            ResourceLocation::Node(node) => Some(node),
            ResourceLocation::Missing(_) => None,
        }
    }

    /// Returns the type: the forced one, `sling:resourceType`, or the primary type.
    pub(crate) fn resource_type(&self) -> &str {
        if let Some(forced) = &self.0.forced_type {
            return forced;
        }
        let Some(node) = self.node() else { return "sling:nonexisting" };
        text_property(node, "sling:resourceType").unwrap_or_else(|| node.primary_type())
    }

    /// Returns the node's own `sling:resourceSuperType`; it does not apply to a forced type.
    pub(crate) fn super_type(&self) -> Option<&str> {
        match (&self.0.forced_type, self.node()) {
            (None, Some(node)) => text_property(node, "sling:resourceSuperType"),
            _ => None,
        }
    }

    /// Returns the type and the super type with one lookup of the node.
    pub(crate) fn types(&self) -> ResourceTypes<'_> {
        if let Some(forced) = &self.0.forced_type {
            return (forced, None);
        }
        let Some(node) = self.node() else { return (self.resource_type(), None) };
        let stored = node.as_borrowed();
        let text = |name| stored.and_then(|stored| stored.text(name));
        let resource_type = text("sling:resourceType").unwrap_or_else(|| node.primary_type());
        (resource_type, text("sling:resourceSuperType"))
    }
}

/// The type of a resource, and its own super type.
pub(crate) type ResourceTypes<'a> = (&'a str, Option<&'a str>);

/// Returns a borrowed single text-like property.
fn text_property<'a>(node: &'a Node, name: &str) -> Option<&'a str> {
    node.as_borrowed()?.text(name)
}
