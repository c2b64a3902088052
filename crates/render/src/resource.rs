//! Resources: what a URL or an include resolved to.

use std::sync::Arc;

use tympan_content::{Node, NodePath};

/// A node, or the place where one would be, together with the type that draws it. Cloning is cheap.
#[derive(Debug, Clone)]
pub(crate) struct Resource(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    place: Place,
    /// The type that an include asked for instead of the node's own.
    forced_type: Option<String>,
}

#[derive(Debug, Clone)]
enum Place {
    Node(Node),
    /// Where nothing is.
    Path(NodePath),
}

impl Resource {
    fn new(place: Place, forced_type: Option<String>) -> Self {
        Self(Arc::new(Inner { place, forced_type }))
    }

    /// Takes a node as it is.
    pub(crate) fn of(node: Node) -> Self {
        Self::new(Place::Node(node), None)
    }

    /// Makes a resource without a node.
    pub(crate) fn missing(path: NodePath) -> Self {
        Self::new(Place::Path(path), None)
    }

    /// Draws the resource as if it were of another type.
    pub(crate) fn with_type(self, resource_type: String) -> Self {
        Self::new(self.0.place.clone(), Some(resource_type))
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &NodePath {
        match &self.0.place {
            Place::Node(node) => node.path(),
            Place::Path(path) => path,
        }
    }

    /// Returns the node, if there is one.
    pub(crate) fn node(&self) -> Option<&Node> {
        match &self.0.place {
            Place::Node(node) => Some(node),
            Place::Path(_) => None,
        }
    }

    /// Returns the type: the forced one, `sling:resourceType`, or the primary type.
    pub(crate) fn resource_type(&self) -> &str {
        if let Some(forced) = &self.0.forced_type {
            return forced;
        }
        let Some(node) = self.node() else { return "sling:nonexisting" };
        text_of(node, "sling:resourceType").unwrap_or_else(|| node.primary_type())
    }

    /// Returns the node's own `sling:resourceSuperType`; it says nothing about a forced type.
    pub(crate) fn super_type(&self) -> Option<&str> {
        match (&self.0.forced_type, self.node()) {
            (None, Some(node)) => text_of(node, "sling:resourceSuperType"),
            _ => None,
        }
    }

    /// Returns the type and the super type, with one look at the node.
    pub(crate) fn types(&self) -> Types<'_> {
        if let Some(forced) = &self.0.forced_type {
            return (forced, None);
        }
        let Some(node) = self.node() else { return (self.resource_type(), None) };
        let stored = node.borrowed();
        let text = |name| stored.and_then(|stored| stored.text(name));
        let resource_type = text("sling:resourceType").unwrap_or_else(|| node.primary_type());
        (resource_type, text("sling:resourceSuperType"))
    }
}

/// The type of a resource, and the super type that it has by itself.
pub(crate) type Types<'a> = (&'a str, Option<&'a str>);

/// Returns a single text-like property, where it is stored.
fn text_of<'a>(node: &'a Node, name: &str) -> Option<&'a str> {
    node.borrowed()?.text(name)
}
