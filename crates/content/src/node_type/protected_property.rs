//! Protected properties: those that only the repository may set.
//!
//! Importers and the repository itself set them through the same sessions as users, so a commit cannot tell the author.
//! Code that executes a user's request must call this check first.

use super::effective_type::EffectiveNodeType;
use super::node_type_validator::DeclaredNodeTypes;
use super::violation::{ConstraintViolation, ConstraintViolationKind};
use crate::{Error, NodePath, Property, Result, Snapshot, Subtree};

/// The protection of one node's properties, by its types. It answers for any number of properties without reading the
/// node again.
#[derive(Debug)]
pub struct PropertyProtection {
    path: NodePath,
    /// `None` if the node does not exist.
    types: Option<EffectiveNodeType>,
}

impl Snapshot {
    /// Returns the protection of a node's properties; permissions are not considered. A node that does not exist
    /// protects nothing.
    ///
    /// # Errors
    /// If the store fails.
    pub fn property_protection(&self, path: &NodePath) -> Result<PropertyProtection> {
        let node = self.unrestricted().node(path)?;
        let types = match node.as_ref().and_then(|node| node.as_borrowed()) {
            Some(node) => {
                let rules = self.view.node_type_rules(None)?;
                Some(DeclaredNodeTypes::from_node(node).effective_type(&rules))
            }
            None => None,
        };
        Ok(PropertyProtection { path: path.clone(), types })
    }
}

impl PropertyProtection {
    /// Returns the protection at a path without a node.
    pub(crate) fn of_missing_node(path: &NodePath) -> Self {
        Self { path: path.clone(), types: None }
    }

    /// Returns the protection of a node that is not stored yet, by the node types of a state.
    pub(crate) fn of_pending_node(
        path: &NodePath,
        node: &Subtree,
        state: &Snapshot,
    ) -> Result<Self> {
        let rules = state.view.node_type_rules(None)?;
        let types = DeclaredNodeTypes::from_tree(node).effective_type(&rules);
        Ok(Self { path: path.clone(), types: Some(types) })
    }

    /// Checks that a user may set or remove a property of the node.
    ///
    /// # Errors
    /// [`Error::ConstraintViolations`] if its types protect the property.
    pub fn check_settable(&self, name: &str, property: &Property) -> Result<()> {
        let Some(types) = &self.types else { return Ok(()) };
        // Users choose types, although only the repository stores them.
        let is_type = name == crate::PRIMARY_TYPE || name == crate::MIXIN_TYPES;
        if is_type || !types.is_protected(name, property.value_type(), property.is_list()) {
            return Ok(());
        }
        let violation =
            ConstraintViolation::new(&self.path, ConstraintViolationKind::Protected, name);
        Err(Error::ConstraintViolations(vec![
            violation.with_detail(format!("the types are {types}")),
        ]))
    }
}
