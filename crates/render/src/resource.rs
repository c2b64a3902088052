//! Resources: what a URL or an include resolved to.

use tympan_content::{Node, NodePath};

/// A node, or the place where one would be, together with the type that draws it.
#[derive(Debug, Clone)]
pub(crate) struct Resource {
    path: NodePath,
    node: Option<Node>,
    /// The type that an include asked for instead of the node's own.
    forced_type: Option<String>,
}

impl Resource {
    /// Takes a node as it is.
    pub(crate) fn of(node: Node) -> Self {
        Self { path: node.path().clone(), node: Some(node), forced_type: None }
    }

    /// Makes a resource without a node.
    pub(crate) fn missing(path: NodePath) -> Self {
        Self { path, node: None, forced_type: None }
    }

    /// Draws the resource as if it were of another type.
    pub(crate) fn with_type(self, resource_type: String) -> Self {
        Self { forced_type: Some(resource_type), ..self }
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &NodePath {
        &self.path
    }

    /// Returns the node, if there is one.
    pub(crate) fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// Returns the type: the forced one, `sling:resourceType`, or the primary type.
    pub(crate) fn resource_type(&self) -> String {
        if let Some(forced) = &self.forced_type {
            return forced.clone();
        }
        match &self.node {
            Some(node) => node.resource_type().unwrap_or_else(|| node.primary_type().to_owned()),
            None => "sling:nonexisting".to_owned(),
        }
    }

    /// Returns the node's own `sling:resourceSuperType`; it says nothing about a forced type.
    pub(crate) fn super_type(&self) -> Option<String> {
        match (&self.forced_type, &self.node) {
            (None, Some(node)) => node.text("sling:resourceSuperType"),
            _ => None,
        }
    }
}
