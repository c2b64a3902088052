//! Identifiers (`jcr:uuid`) in packages: no two nodes may have the same.

use std::collections::BTreeMap;
use std::io::{Read, Seek};

use super::apply::Installer;
use super::options::IdentifierRule;
use super::tree::{ImportNode, Source};
use crate::{Error, NodePath, Property, Result};

pub(super) const UUID: &str = "jcr:uuid";

/// A node that got an identifier from the package.
#[derive(Debug)]
pub(super) struct Identified<'a> {
    path: NodePath,
    identifier: String,
    source: &'a Source,
}

impl<'a, R: Read + Seek> Installer<'a, R> {
    /// Remembers that a node is stored with an identifier that it did not have before.
    pub(super) fn note_identifier(
        &mut self,
        node: &'a ImportNode,
        path: &NodePath,
        properties: &BTreeMap<String, Property>,
    ) {
        let identifier = properties.get(UUID).and_then(Property::first);
        if let Some(identifier) = identifier {
            self.identified.push(Identified {
                path: self.place(path),
                identifier: identifier.to_text().into_owned(),
                source: node.source(),
            });
        }
    }

    /// Looks for nodes elsewhere that have the identifiers of nodes in the package and are still there.
    pub(super) fn settle_identifiers(&mut self, rule: IdentifierRule) -> Result<()> {
        let mut known: BTreeMap<String, NodePath> = BTreeMap::new();
        for one in std::mem::take(&mut self.identified) {
            let others = self.target.find_identifier(&one.identifier)?;
            let own = known.get(&one.identifier).cloned();
            for other in others.into_iter().chain(own.clone()) {
                if other != one.path && self.has_identifier(&other, &one.identifier)? {
                    // Within one package nobody else's node is in question, and none of both is lost.
                    let is_own = own.as_ref() == Some(&other);
                    let rule = match rule {
                        IdentifierRule::Refuse if is_own => IdentifierRule::New,
                        rule => rule,
                    };
                    self.settle(rule, &one, &other)?;
                }
            }
            known.insert(one.identifier, one.path);
        }
        Ok(())
    }

    fn has_identifier(&mut self, path: &NodePath, identifier: &str) -> Result<bool> {
        let node = self.target.node(path)?;
        let known = node.as_ref().and_then(|node| node.properties.get(UUID)?.first());
        Ok(known.is_some_and(|known| known.to_text() == identifier))
    }

    fn settle(
        &mut self,
        rule: IdentifierRule,
        one: &Identified<'_>,
        other: &NodePath,
    ) -> Result<()> {
        let Identified { path, identifier, source } = one;
        match rule {
            IdentifierRule::Replace if !path.is_within(other) => {
                self.report
                    .warnings
                    .push(format!("`{other}` is removed: `{path}` has its identifier"));
                self.report.subtrees_removed += 1;
                self.target.remove(other)
            }
            IdentifierRule::New => {
                let Some(node) = self.target.node(path)? else {
                    return Ok(());
                };
                let mut properties = node.properties;
                let fresh = uuid::Uuid::new_v4().to_string();
                properties.insert(UUID.to_owned(), Property::text(fresh));
                self.report.warnings.push(format!(
                    "`{path}` gets an identifier of its own: `{other}` has the package's"
                ));
                self.target.set_properties(path, properties)
            }
            IdentifierRule::Replace | IdentifierRule::Refuse => Err(Error::Package {
                file: source.file(),
                line: source.line(),
                message: format!(
                    "`{path}` has the identifier `{identifier}`, which `{other}` has already; \
                     give one of them another, or install with another rule for identifiers"
                ),
            }),
        }
    }
}
