//! Identifiers (`jcr:uuid`) in packages: they must be unique.

use std::collections::BTreeMap;
use std::io::{Read, Seek};

use tympan_content::{NodePath, Property};

use crate::import_node::{ImportNode, PackageLocation};
use crate::install_options::IdentifierRule;
use crate::installer::PackageInstaller;
use crate::{Error, Result};

pub(crate) const UUID_PROPERTY: &str = "jcr:uuid";

/// A node that received an identifier from the package.
#[derive(Debug)]
pub(crate) struct AssignedIdentifier<'a> {
    path: NodePath,
    identifier: String,
    location: &'a PackageLocation,
}

impl<'a, R: Read + Seek> PackageInstaller<'a, R> {
    /// Records that a node is stored with an identifier that it did not have before.
    pub(crate) fn record_identifier(
        &mut self,
        node: &'a ImportNode,
        path: &NodePath,
        properties: &BTreeMap<String, Property>,
    ) {
        let identifier = properties.get(UUID_PROPERTY).and_then(Property::first);
        if let Some(identifier) = identifier {
            self.assigned_identifiers.push(AssignedIdentifier {
                path: self.stored_path(path),
                identifier: identifier.to_text().into_owned(),
                location: node.location(),
            });
        }
    }

    /// Finds remaining nodes elsewhere that have the same identifiers as nodes of the package, and applies the rule to
    /// them.
    pub(crate) fn resolve_identifier_conflicts(&mut self, rule: IdentifierRule) -> Result<()> {
        let mut path_by_identifier: BTreeMap<String, NodePath> = BTreeMap::new();
        for assignment in std::mem::take(&mut self.assigned_identifiers) {
            let others = self.target.find_by_identifier(&assignment.identifier)?;
            let own = path_by_identifier.get(&assignment.identifier).cloned();
            for holder in others.into_iter().chain(own.clone()) {
                if holder != assignment.path
                    && self.has_identifier(&holder, &assignment.identifier)?
                {
                    // Both nodes belong to the package, so no existing node is affected, and neither is removed.
                    let is_own = own.as_ref() == Some(&holder);
                    let rule = match rule {
                        IdentifierRule::Refuse if is_own => IdentifierRule::Regenerate,
                        rule => rule,
                    };
                    self.resolve_identifier_conflict(rule, &assignment, &holder)?;
                }
            }
            path_by_identifier.insert(assignment.identifier, assignment.path);
        }
        Ok(())
    }

    fn has_identifier(&mut self, path: &NodePath, identifier: &str) -> Result<bool> {
        let node = self.target.read_node(path)?;
        let identifier_value =
            node.as_ref().and_then(|node| node.properties.get(UUID_PROPERTY)?.first());
        Ok(identifier_value.is_some_and(|value| value.to_text() == identifier))
    }

    fn resolve_identifier_conflict(
        &mut self,
        rule: IdentifierRule,
        assignment: &AssignedIdentifier<'_>,
        holder: &NodePath,
    ) -> Result<()> {
        let AssignedIdentifier { path, identifier, location } = assignment;
        match rule {
            IdentifierRule::RemoveExisting if !path.is_within(holder) => {
                self.report
                    .warnings
                    .push(format!("`{holder}` is removed, as `{path}` has the same identifier"));
                self.report.subtrees_removed += 1;
                self.target.remove(holder)
            }
            IdentifierRule::Regenerate => {
                let Some(node) = self.target.read_node(path)? else {
                    return Ok(());
                };
                let mut properties = node.properties;
                let fresh = uuid::Uuid::new_v4().to_string();
                properties.insert(UUID_PROPERTY.to_owned(), Property::text(fresh));
                self.report.warnings.push(format!(
                    "`{path}` gets a new identifier, as `{holder}` already has the one in the package"
                ));
                self.target.set_properties(path, properties)
            }
            IdentifierRule::RemoveExisting | IdentifierRule::Refuse => Err(Error::InvalidPackage {
                file: location.file_name(),
                line: location.line(),
                message: format!(
                    "`{path}` has the identifier `{identifier}`, which `{holder}` already has; change one of \
                     them, or install with another identifier rule"
                ),
            }),
        }
    }
}
