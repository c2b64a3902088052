//! Differences that an installation would make, node by node and property by property.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;

use serde::{Serialize, Serializer};

use super::docview::write_literal;
use super::install_target::{ExistingNode, InstallTarget};
use crate::snapshot::SnapshotView;
use crate::{
    BlobId, Error, NodePath, Property, Result, Session, Subtree, Value, ValueType,
    document::record_key,
};

/// The difference of two states.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ContentDifference {
    /// The nodes that differ, sorted by path.
    pub nodes: Vec<ChangedNode>,
}

/// A node that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedNode {
    /// The path of the node.
    #[serde(serialize_with = "serialize_path")]
    pub path: NodePath,
    /// The kind of change.
    pub change: NodeChangeKind,
    /// True if the order of the children that both states have changes.
    pub is_reordered: bool,
    /// Its properties that differ.
    pub properties: Vec<ChangedProperty>,
}

fn serialize_path<S: Serializer>(path: &NodePath, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(path.as_str())
}

/// The kind of change of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeChangeKind {
    /// The node is created.
    Added,
    /// The properties or the order of the children change.
    Changed,
    /// The node is removed.
    Removed,
}

/// A property that differs, with values in docview notation; blobs by their ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedProperty {
    /// Its name.
    pub name: String,
    /// The current value; `None` if the property is added.
    pub before: Option<String>,
    /// The new value; `None` if the property is removed.
    pub after: Option<String>,
}

impl ContentDifference {
    /// Returns the number of nodes with this kind of change.
    #[must_use]
    pub fn count_changes(&self, change: NodeChangeKind) -> usize {
        self.nodes.iter().filter(|node| node.change == change).count()
    }

    /// Compares two states of one session; the second contains all edits of the first. Returns `None` if the changed
    /// documents of one state have more than `max_nodes` nodes.
    pub(super) fn between(
        before: &SnapshotView,
        after: &SnapshotView,
        max_nodes: usize,
    ) -> Result<Option<Self>> {
        let (mut old, mut new) = (NodesByPath::default(), NodesByPath::default());
        let mut reordered = BTreeSet::new();
        for (key, record) in &after.record_edits {
            let path = record_key::record_path(key)?;
            let old_record = before.read_record(key, &path)?;
            if let (Some(old_record), Some(record)) = (&old_record, record)
                && old_record.order_key != record.order_key
            {
                reordered.extend(path.parent());
            }
            for (view, record, nodes) in
                [(before, old_record.as_ref(), &mut old), (after, record.as_ref(), &mut new)]
            {
                if let Some(record) = record {
                    let body = view.load_body(record, &path)?;
                    nodes.add(&path, body.subtree(body.root()));
                    if nodes.0.len() > max_nodes {
                        return Ok(None);
                    }
                }
            }
        }
        Ok(Some(old.diff(new, &reordered)))
    }
}

impl fmt::Display for ContentDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for node in &self.nodes {
            let mark = match node.change {
                NodeChangeKind::Added => '+',
                NodeChangeKind::Changed => '*',
                NodeChangeKind::Removed => '-',
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
            self.count_changes(NodeChangeKind::Added),
            self.count_changes(NodeChangeKind::Changed),
            self.count_changes(NodeChangeKind::Removed)
        )
    }
}

/// The nodes of documents by path, independent of record boundaries.
#[derive(Default)]
struct NodesByPath(BTreeMap<NodePath, (BTreeMap<String, Property>, Vec<String>)>);

impl NodesByPath {
    fn add(&mut self, path: &NodePath, node: Subtree) {
        let names = node.children.iter().map(|child| child.name.clone()).collect();
        for child in node.children {
            self.add(&path.child_unchecked(&child.name), child);
        }
        self.0.insert(path.clone(), (node.properties, names));
    }

    fn diff(mut self, new: Self, reordered: &BTreeSet<NodePath>) -> ContentDifference {
        let mut nodes = Vec::new();
        for (path, (properties, names)) in new.0 {
            let (old_properties, old_names, change) = match self.0.remove(&path) {
                Some((properties, names)) => (properties, names, NodeChangeKind::Changed),
                None => (BTreeMap::new(), Vec::new(), NodeChangeKind::Added),
            };
            let is_reordered = change == NodeChangeKind::Changed
                && (reordered.contains(&path) || !has_same_order(&old_names, &names));
            let properties = diff_properties(&old_properties, &properties);
            if change == NodeChangeKind::Added || is_reordered || !properties.is_empty() {
                nodes.push(ChangedNode { path, change, is_reordered, properties });
            }
        }
        for path in reordered {
            let is_listed = nodes.iter().any(|node| node.path == *path);
            if !is_listed && !self.0.contains_key(path) {
                let (change, properties) = (NodeChangeKind::Changed, Vec::new());
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
            change: NodeChangeKind::Removed,
            is_reordered: false,
            properties: diff_properties(&properties, &BTreeMap::new()),
        }));
        nodes.sort_by(|left, right| left.path.cmp(&right.path));
        ContentDifference { nodes }
    }
}

/// Returns true if the names that both lists have are in the same order.
fn has_same_order(left: &[String], right: &[String]) -> bool {
    let (left_names, right_names): (BTreeSet<_>, BTreeSet<_>) =
        (left.iter().collect(), right.iter().collect());
    let common = |names: &[String]| -> Vec<String> {
        names
            .iter()
            .filter(|name| left_names.contains(name) && right_names.contains(name))
            .cloned()
            .collect()
    };
    common(left) == common(right)
}

fn diff_properties(
    old: &BTreeMap<String, Property>,
    new: &BTreeMap<String, Property>,
) -> Vec<ChangedProperty> {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differing = names.into_iter().filter(|name| old.get(*name) != new.get(*name));
    differing
        .map(|name| ChangedProperty {
            name: name.clone(),
            before: old.get(name).map(property_text),
            after: new.get(name).map(property_text),
        })
        .collect()
}

fn property_text(property: &Property) -> String {
    if property.value_type() != ValueType::Binary {
        return write_literal(property, ValueType::String);
    }
    let ids: Vec<_> = property.values().iter().map(Value::to_text).collect();
    let ids = ids.join(",");
    if property.is_list() { format!("{{Binary}}[{ids}]") } else { format!("{{Binary}}{ids}") }
}

/// Maximum number of nodes that a dry run reads for each node that it may change. An installation reads the nodes of its
/// package a few times; only a filter with patterns walks nodes that it leaves as they are.
const MAX_READS_PER_CHANGE: usize = 10;

/// A session in which blobs are hashed and not stored, and which refuses to change or read more than a number of nodes.
pub(super) struct DryRunTarget<'a> {
    session: &'a mut Session,
    /// The name of the package in messages.
    package_name: String,
    max_nodes: usize,
    remaining_nodes: usize,
    remaining_reads: usize,
}

impl<'a> DryRunTarget<'a> {
    pub(super) fn new(session: &'a mut Session, package_name: String, max_nodes: usize) -> Self {
        let remaining_reads = max_nodes.saturating_mul(MAX_READS_PER_CHANGE);
        Self { session, package_name, max_nodes, remaining_nodes: max_nodes, remaining_reads }
    }

    /// Returns the error of an installation that changes or reads too many nodes.
    pub(super) fn too_many_nodes(&self) -> Error {
        Error::InvalidPackage {
            file: self.package_name.clone(),
            line: 0,
            message: format!("it affects more than {} nodes, too many to compare", self.max_nodes),
        }
    }

    fn spend_nodes(&mut self, count: usize) -> Result<()> {
        let remaining = self.remaining_nodes.checked_sub(count);
        self.remaining_nodes = remaining.ok_or_else(|| self.too_many_nodes())?;
        Ok(())
    }

    fn spend_reads(&mut self, count: usize) -> Result<()> {
        let remaining = self.remaining_reads.checked_sub(count);
        self.remaining_reads = remaining.ok_or_else(|| self.too_many_nodes())?;
        Ok(())
    }
}

impl InstallTarget for DryRunTarget<'_> {
    fn read_subtree(&mut self, path: &NodePath) -> Result<Option<Subtree>> {
        InstallTarget::read_subtree(self.session, path)
    }

    fn put(&mut self, path: &NodePath, subtree: Subtree) -> Result<()> {
        self.spend_nodes(subtree.node_count())?;
        InstallTarget::put(self.session, path, subtree)
    }

    fn remove(&mut self, path: &NodePath) -> Result<()> {
        let limit = self.remaining_nodes.saturating_add(1);
        let removed = self.session.count_documents_below(path, limit)?;
        self.spend_nodes(removed + 1)?;
        InstallTarget::remove(self.session, path)
    }

    fn put_blob(&mut self, source: &mut dyn Read) -> Result<BlobId> {
        tympan_blobs::compute_blob_id(source)
            .map_err(|source| Error::Read { input_name: "a file of the package".into(), source })
    }

    fn read_node(&mut self, path: &NodePath) -> Result<Option<ExistingNode>> {
        let node = InstallTarget::read_node(self.session, path)?;
        self.spend_reads(1 + node.as_ref().map_or(0, |node| node.children.len()))?;
        Ok(node)
    }

    fn find_by_identifier(&mut self, identifier: &str) -> Result<Vec<NodePath>> {
        InstallTarget::find_by_identifier(self.session, identifier)
    }

    fn accounts(&mut self) -> Result<BTreeMap<String, NodePath>> {
        InstallTarget::accounts(self.session)
    }

    fn register_node_types(&mut self, cnd: &str) -> Result<()> {
        InstallTarget::register_node_types(self.session, cnd)
    }

    fn has_node_type(&mut self, name: &str) -> Result<bool> {
        InstallTarget::has_node_type(self.session, name)
    }

    fn register_namespace(&mut self, prefix: &str, uri: &str) -> Result<()> {
        InstallTarget::register_namespace(self.session, prefix, uri)
    }

    fn set_properties(
        &mut self,
        path: &NodePath,
        properties: BTreeMap<String, Property>,
    ) -> Result<()> {
        InstallTarget::set_properties(self.session, path, properties)
    }

    fn order_children(&mut self, path: &NodePath, names: &[String]) -> Result<()> {
        InstallTarget::order_children(self.session, path, names)
    }
}
