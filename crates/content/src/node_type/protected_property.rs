//! Protected properties: those that only the repository may set.
//!
//! Importers and the repository itself set them through the same sessions as users, so a commit cannot tell the author.
//! Code that executes a user's request must call this check first.

use super::node_type_validator::DeclaredNodeTypes;
use super::violation::{ConstraintViolation, ConstraintViolationKind};
use crate::{Error, NodePath, Property, Result, Snapshot};

impl Snapshot {
    /// Checks that a user may set or remove a property of a node according to its types; permissions are not
    /// considered. A node that does not exist protects nothing.
    ///
    /// # Errors
    /// [`Error::ConstraintViolations`] if its types protect the property; errors of the store.
    pub fn check_settable(&self, path: &NodePath, name: &str, property: &Property) -> Result<()> {
        let Some(node) = self.unrestricted().node(path)? else { return Ok(()) };
        let Some(node) = node.as_borrowed() else { return Ok(()) };
        let rules = self.view.node_type_rules(None)?;
        let effective = DeclaredNodeTypes::from_node(node).effective_type(&rules);
        // Users choose types, although only the repository stores them.
        let is_type = name == crate::PRIMARY_TYPE || name == crate::MIXIN_TYPES;
        if is_type || !effective.is_protected(name, property.value_type(), property.is_list()) {
            return Ok(());
        }
        let violation = ConstraintViolation::new(path, ConstraintViolationKind::Protected, name);
        Err(Error::ConstraintViolations(vec![
            violation.with_detail(format!("the types are {effective}")),
        ]))
    }
}
