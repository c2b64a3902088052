//! Resources: what a URL or an include resolved to.

use std::sync::Arc;

use tympan_content::{Node, NodePath};

/// A node, or the place where one would be, together with the type that draws it. Cloning is cheap.
#[derive(Debug, Clone)]
pub(crate) struct ContentResource(Arc<ContentResourceData>);

#[derive(Debug)]
struct ContentResourceData {
    location: ResourceLocation,
    /// The type that an include asked for instead of the node's own.
    forced_type: Option<String>,
}

#[derive(Debug, Clone)]
enum ResourceLocation {
    Node(Node),
    /// Where nothing is.
    Missing(NodePath),
}

impl ContentResource {
    fn new(place: ResourceLocation, forced_type: Option<String>) -> Self {
        Self(Arc::new(ContentResourceData { location: place, forced_type }))
    }

    /// Takes a node as it is.
    pub(crate) fn from_node(node: Node) -> Self {
        Self::new(ResourceLocation::Node(node), None)
    }

    /// Makes a resource without a node.
    pub(crate) fn missing(path: NodePath) -> Self {
        Self::new(ResourceLocation::Missing(path), None)
    }

    /// Draws the resource as if it were of another type.
    pub(crate) fn with_type(self, resource_type: String) -> Self {
        Self::new(self.0.location.clone(), Some(resource_type))
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &NodePath {
        match &self.0.location {
            ResourceLocation::Node(node) => node.path(),
            ResourceLocation::Missing(path) => path,
        }
    }

    /// Returns the node, if there is one.
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

    /// Returns the node's own `sling:resourceSuperType`; it says nothing about a forced type.
    pub(crate) fn super_type(&self) -> Option<&str> {
        match (&self.0.forced_type, self.node()) {
            (None, Some(node)) => text_property(node, "sling:resourceSuperType"),
            _ => None,
        }
    }

    /// Returns the type and the super type, with one look at the node.
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

/// The type of a resource, and the super type that it has by itself.
pub(crate) type ResourceTypes<'a> = (&'a str, Option<&'a str>);

/// Returns a single text-like property, where it is stored.
fn text_property<'a>(node: &'a Node, name: &str) -> Option<&'a str> {
    node.as_borrowed()?.text(name)
}
