//! References between nodes: by identifier, strong or weak, and by path; looked up in both directions.
//!
//! In: a node's path. Out: who refers to it, and what it refers to.
//!
//! The index `reference` lists candidates; the properties themselves decide, so that long values, which the index
//! cuts, are told apart.

use std::fmt;

use crate::borrowed::{BorrowedProperty, BorrowedValue};
use crate::subtree::JCR_CONTENT;
use crate::{BorrowedNode, Error, Index, Node, NodePath, Result, Snapshot, ValueType};

/// The property with a node's identifier.
pub(crate) const UUID: &str = "jcr:uuid";

/// How a property refers to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReferenceKind {
    /// By identifier; the node cannot be removed while it is referred to.
    Strong,
    /// By identifier; the node may be missing.
    Weak,
    /// By path; the node may be missing.
    Path,
}

impl ReferenceKind {
    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Strong => "reference",
            Self::Weak => "weakReference",
            Self::Path => "path",
        }
    }
}

/// A property that refers to a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Referrer {
    /// The node that has the property.
    pub path: NodePath,
    /// The property's name.
    pub property: String,
    /// How it refers.
    pub kind: ReferenceKind,
}

impl fmt::Display for Referrer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` of {}", self.property, self.path)
    }
}

/// What a property refers to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// The node that has the property.
    pub path: NodePath,
    /// The property's name.
    pub property: String,
    /// How it refers.
    pub kind: ReferenceKind,
    /// The identifier or path that it holds.
    pub text: String,
    /// The node that is referred to, if it exists.
    pub target: Option<NodePath>,
}

impl Snapshot {
    /// Finds the node with an identifier.
    ///
    /// # Errors
    /// If the store fails.
    pub fn find_by_identifier(&self, identifier: &str) -> Result<Option<Node>> {
        for path in self.look_up(Index::Uuid, identifier)? {
            let node = self.node(&path)?;
            // The index cuts long values, and pending edits do not show in it.
            let node = node.filter(|node| node.text(UUID).as_deref() == Some(identifier));
            if node.is_some() {
                return Ok(node);
            }
        }
        Ok(None)
    }

    /// Returns the properties that refer to a node, by its path or its identifier, sorted. The content of a page,
    /// file or asset counts as the node itself.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; errors of the store.
    pub fn referrers(&self, path: &NodePath) -> Result<Vec<Referrer>> {
        let node = self.node(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        let mut targets = Vec::new();
        for node in [node.child(JCR_CONTENT)?, Some(node)].into_iter().flatten() {
            targets.extend(node.text(UUID));
            targets.push(node.path().as_str().to_owned());
        }
        let mut referrers = Vec::new();
        for target in targets {
            for path in self.look_up(Index::Reference, &target)? {
                let Some(node) = self.node(&path)? else { continue };
                let Some(node) = node.borrowed() else { continue };
                for (property, kind) in refers(node, &target) {
                    referrers.push(Referrer { path: path.clone(), property, kind });
                }
            }
        }
        referrers.sort();
        referrers.dedup();
        Ok(referrers)
    }

    /// Returns what a node and everything below it in its document refers to, sorted by path and property.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; errors of the store.
    pub fn references_of(&self, path: &NodePath) -> Result<Vec<Reference>> {
        let node = self.node(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        let mut references = Vec::new();
        if let Some(node) = node.borrowed() {
            self.collect_references(path, node, &mut references)?;
        }
        references.sort();
        Ok(references)
    }

    fn collect_references(
        &self,
        path: &NodePath,
        node: BorrowedNode<'_>,
        references: &mut Vec<Reference>,
    ) -> Result<()> {
        for (name, property) in node.properties() {
            for (kind, text) in targets(property) {
                let target = match kind {
                    ReferenceKind::Path => {
                        NodePath::new(text).ok().map(|path| self.node(&path)).transpose()?.flatten()
                    }
                    ReferenceKind::Strong | ReferenceKind::Weak => self.find_by_identifier(text)?,
                };
                references.push(Reference {
                    path: path.clone(),
                    property: name.to_owned(),
                    kind,
                    text: text.to_owned(),
                    target: target.map(|node| node.path().clone()),
                });
            }
        }
        for child in node.children() {
            self.collect_references(&path.child_unchecked(child.name()), child, references)?;
        }
        Ok(())
    }
}

/// Returns the properties of a node that hold an identifier or path, with how.
pub(crate) fn refers(node: BorrowedNode<'_>, target: &str) -> Vec<(String, ReferenceKind)> {
    let mut found = Vec::new();
    for (name, property) in node.properties() {
        let kind = targets(property).find(|(_, text)| *text == target).map(|(kind, _)| kind);
        found.extend(kind.map(|kind| (name.to_owned(), kind)));
    }
    found
}

/// Returns what a property refers to: identifiers, and texts that are absolute paths.
fn targets(property: BorrowedProperty<'_>) -> impl Iterator<Item = (ReferenceKind, &str)> {
    property.values().filter_map(|value| {
        let BorrowedValue::Text(value_type, text) = value else { return None };
        match value_type {
            ValueType::Reference => Some((ReferenceKind::Strong, text)),
            ValueType::WeakReference => Some((ReferenceKind::Weak, text)),
            ValueType::String | ValueType::Path => {
                let is_path = text.starts_with("/content/") || text.starts_with("/conf/");
                (is_path && !text.contains(char::is_whitespace))
                    .then_some((ReferenceKind::Path, text))
            }
            _ => None,
        }
    })
}
