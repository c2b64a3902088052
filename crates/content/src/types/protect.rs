//! Protected properties: those that the repository alone sets.
//!
//! Importers and the repository's own work set them through the same sessions as people, so a commit cannot tell who
//! did. Whoever carries out a person's wish asks here first.

use super::judge::NodeTypesOf;
use super::violation::{Violation, ViolationKind};
use crate::{Error, NodePath, Property, Result, Snapshot};

impl Snapshot {
    /// Checks that a person may set or remove a property of a node, as far as its types say, whoever looks. A node that
    /// does not exist protects nothing.
    ///
    /// # Errors
    /// [`Error::Constraint`] if its types protect the property; errors of the store.
    pub fn check_settable(&self, path: &NodePath, name: &str, property: &Property) -> Result<()> {
        let Some(node) = Self(self.0.clone(), None).node(path)? else { return Ok(()) };
        let Some(node) = node.borrowed() else { return Ok(()) };
        let rules = self.0.rules(None)?;
        let effective = NodeTypesOf::of(node).effective(&rules);
        // People choose types, though only the repository stores them.
        let is_type = name == crate::PRIMARY_TYPE || name == crate::MIXIN_TYPES;
        if is_type || !effective.is_protected(name, property.value_type(), property.is_list()) {
            return Ok(());
        }
        let violation = Violation::new(path, ViolationKind::Protected, name);
        Err(Error::Constraint(vec![violation.saying(format!("the types are {effective}"))]))
    }
}
