//! What an installation would change, node by node and property by property.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;

use serde::{Serialize, Serializer};

use super::docview::write_value;
use super::target::{ExistingNode, InstallTarget};
use crate::snapshot::View;
use crate::{BlobId, Error, NodePath, Property, Result, Session, Subtree, Value, ValueType, keys};

/// The difference of two states.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Difference {
    /// The nodes that differ, sorted by path.
    pub nodes: Vec<ChangedNode>,
}

/// A node that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedNode {
    /// Where it is.
    #[serde(serialize_with = "as_text")]
    pub path: NodePath,
    /// What happens to it.
    pub change: Change,
    /// Whether its children, as far as both states have them, stand in another order.
    pub is_reordered: bool,
    /// Its properties that differ.
    pub properties: Vec<ChangedProperty>,
}

fn as_text<S: Serializer>(path: &NodePath, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(path.as_str())
}

/// What happens to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It is created.
    Added,
    /// Its properties or the order of its children change.
    Changed,
    /// It is removed.
    Removed,
}

/// A property that differs, its values as docviews write them; blobs by their ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedProperty {
    /// Its name.
    pub name: String,
    /// What is there; nothing for one that is added.
    pub before: Option<String>,
    /// What will be; nothing for one that is removed.
    pub after: Option<String>,
}

impl Difference {
    /// Counts the nodes to which this happens.
    #[must_use]
    pub fn count(&self, change: Change) -> usize {
        self.nodes.iter().filter(|node| node.change == change).count()
    }

    /// Compares two states of one session, of which the second has all edits of the first.
    pub(super) fn between(before: &View, after: &View) -> Result<Self> {
        let (mut old, mut new) = (Nodes::default(), Nodes::default());
        let mut reordered = BTreeSet::new();
        for (key, record) in &after.overlay {
            let path = keys::path_of(key)?;
            let known = before.record(key, &path)?;
            if let (Some(known), Some(record)) = (&known, record)
                && known.order != record.order
            {
                reordered.extend(path.parent());
            }
            for (view, record, nodes) in
                [(before, known.as_ref(), &mut old), (after, record.as_ref(), &mut new)]
            {
                if let Some(record) = record {
                    let body = view.body(record, &path)?;
                    nodes.add(&path, body.subtree(body.root()));
                }
            }
        }
        Ok(old.compare(new, &reordered))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for node in &self.nodes {
            let mark = match node.change {
                Change::Added => '+',
                Change::Changed => '*',
                Change::Removed => '-',
            };
            let order = if node.is_reordered { " (children in another order)" } else { "" };
            writeln!(f, "{mark} {}{order}", node.path)?;
            for property in &node.properties {
                let name = &property.name;
                match (&property.before, &property.after) {
                    (Some(before), Some(after)) => {
                        writeln!(f, "    * {name}: {before} -> {after}")?
                    }
                    (Some(before), None) => writeln!(f, "    - {name}: {before}")?,
                    (None, Some(after)) => writeln!(f, "    + {name}: {after}")?,
                    (None, None) => {}
                }
            }
        }
        writeln!(
            f,
            "{} nodes added, {} changed, {} removed",
            self.count(Change::Added),
            self.count(Change::Changed),
            self.count(Change::Removed)
        )
    }
}

/// The nodes of documents by path, wherever documents are cut.
#[derive(Default)]
struct Nodes(BTreeMap<NodePath, (BTreeMap<String, Property>, Vec<String>)>);

impl Nodes {
    fn add(&mut self, path: &NodePath, node: Subtree) {
        let names = node.children.iter().map(|child| child.name.clone()).collect();
        for child in node.children {
            self.add(&path.child_unchecked(&child.name), child);
        }
        self.0.insert(path.clone(), (node.properties, names));
    }

    fn compare(mut self, new: Self, reordered: &BTreeSet<NodePath>) -> Difference {
        let mut nodes = Vec::new();
        for (path, (properties, names)) in new.0 {
            let (old_properties, old_names, change) = match self.0.remove(&path) {
                Some((properties, names)) => (properties, names, Change::Changed),
                None => (BTreeMap::new(), Vec::new(), Change::Added),
            };
            let is_reordered = change == Change::Changed
                && (reordered.contains(&path) || !is_same_order(&old_names, &names));
            let properties = changed_properties(&old_properties, &properties);
            if change == Change::Added || is_reordered || !properties.is_empty() {
                nodes.push(ChangedNode { path, change, is_reordered, properties });
            }
        }
        for path in reordered {
            let is_listed = nodes.iter().any(|node| node.path == *path);
            if !is_listed && !self.0.contains_key(path) {
                let (change, properties) = (Change::Changed, Vec::new());
                nodes.push(ChangedNode {
                    path: path.clone(),
                    change,
                    is_reordered: true,
                    properties,
                });
            }
        }
        nodes.extend(self.0.into_iter().map(|(path, (properties, _))| ChangedNode {
            path,
            change: Change::Removed,
            is_reordered: false,
            properties: changed_properties(&properties, &BTreeMap::new()),
        }));
        nodes.sort_by(|left, right| left.path.cmp(&right.path));
        Difference { nodes }
    }
}

/// Tells whether the names that both lists have stand in the same order.
fn is_same_order(left: &[String], right: &[String]) -> bool {
    let (known, wanted): (BTreeSet<_>, BTreeSet<_>) =
        (left.iter().collect(), right.iter().collect());
    let common = |names: &[String]| -> Vec<String> {
        names.iter().filter(|name| known.contains(name) && wanted.contains(name)).cloned().collect()
    };
    common(left) == common(right)
}

fn changed_properties(
    old: &BTreeMap<String, Property>,
    new: &BTreeMap<String, Property>,
) -> Vec<ChangedProperty> {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differing = names.into_iter().filter(|name| old.get(*name) != new.get(*name));
    differing
        .map(|name| ChangedProperty {
            name: name.clone(),
            before: old.get(name).map(shown),
            after: new.get(name).map(shown),
        })
        .collect()
}

fn shown(property: &Property) -> String {
    if property.value_type() != ValueType::Binary {
        return write_value(property, ValueType::String);
    }
    let ids: Vec<_> = property.values().iter().map(Value::to_text).collect();
    let ids = ids.join(",");
    if property.is_list() { format!("{{Binary}}[{ids}]") } else { format!("{{Binary}}{ids}") }
}

/// A session in which blobs are hashed and not stored.
pub(super) struct Trial<'a>(pub(super) &'a mut Session);

impl InstallTarget for Trial<'_> {
    fn read(&mut self, path: &NodePath) -> Result<Option<Subtree>> {
        InstallTarget::read(self.0, path)
    }

    fn put(&mut self, path: &NodePath, subtree: Subtree) -> Result<()> {
        InstallTarget::put(self.0, path, subtree)
    }

    fn remove(&mut self, path: &NodePath) -> Result<()> {
        InstallTarget::remove(self.0, path)
    }

    fn put_blob(&mut self, source: &mut dyn Read) -> Result<BlobId> {
        tympan_blobs::id_of(source)
            .map_err(|source| Error::Read { what: "a file of the package".into(), source })
    }

    fn node(&mut self, path: &NodePath) -> Result<Option<ExistingNode>> {
        InstallTarget::node(self.0, path)
    }

    fn find_identifier(&mut self, identifier: &str) -> Result<Vec<NodePath>> {
        InstallTarget::find_identifier(self.0, identifier)
    }

    fn accounts(&mut self) -> Result<BTreeMap<String, NodePath>> {
        InstallTarget::accounts(self.0)
    }

    fn add_types(&mut self, cnd: &str) -> Result<()> {
        InstallTarget::add_types(self.0, cnd)
    }

    fn knows_type(&mut self, name: &str) -> Result<bool> {
        InstallTarget::knows_type(self.0, name)
    }

    fn add_namespace(&mut self, prefix: &str, uri: &str) -> Result<()> {
        InstallTarget::add_namespace(self.0, prefix, uri)
    }

    fn set_properties(
        &mut self,
        path: &NodePath,
        properties: BTreeMap<String, Property>,
    ) -> Result<()> {
        InstallTarget::set_properties(self.0, path, properties)
    }

    fn order_children(&mut self, path: &NodePath, names: &[String]) -> Result<()> {
        InstallTarget::order_children(self.0, path, names)
    }
}
