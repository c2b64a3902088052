//! The index maps beside the content map: written in the same commit, from the documents it changes.
//!
//! | map | key |
//! |---|---|
//! | `uuid` | identifier, 0x00, node path |
//! | `reference` | what is referred to (identifier or path), 0x00, node path, 0x00, property |
//! | `link` | a path that a text may link to, by a link, the name of a tag or of a policy, 0x00, node path, 0x00, property; and the empty key |
//! | `type` | primary type or mixin, 0x00, node path |
//! | `resource` | `sling:resourceType`, 0x00, node path |
//! | `modified` | milliseconds of the last change (big-endian, sign flipped), 0x00, path of the record |
//! | `order` | the record's own key with its order key before the name; and the empty key, so that the map is never empty |
//!
//! | `property/…` | a value of the property, then the node path (`property_index`); and the empty key |
//!
//! Values are empty: everything is in the key, so a look-up is a range.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use tympan_store::{Batch, Map, ReadChunks, Root, Staged, Value as Stored};

use crate::body::{Body, BodyNode};
use crate::borrowed::{BorrowedNode, BorrowedProperty, BorrowedValue};
use crate::link::link_keys;
use crate::property_index::{Definitions, PREFIX};
use crate::record::Record;
use crate::reference::refers;
use crate::repository::ROOT_TYPE;
use crate::subtree::{MIXIN_TYPES, PRIMARY_TYPE};
use crate::value_key::{split_entry, successor};
use crate::{Error, NodePath, Result, Snapshot, ValueType, keys};

/// The indexes that answer look-ups by a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Index {
    /// `jcr:uuid`.
    Uuid,
    /// What a property refers to: an identifier, or a path below `/content` or `/conf`.
    Reference,
    /// A primary type or mixin.
    Type,
    /// `sling:resourceType`.
    ResourceType,
}

impl Index {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Uuid => "uuid",
            Self::Reference => "reference",
            Self::Type => "type",
            Self::ResourceType => "resource",
        }
    }
}

impl Snapshot {
    /// Returns the paths of the nodes that an index lists for a value, sorted. Pending edits of a session do not show.
    ///
    /// # Errors
    /// If the store fails.
    pub fn look_up(&self, index: Index, value: &str) -> Result<Vec<NodePath>> {
        let reads = self.0.shared.reads();
        let map = Root::read(reads, &self.0.root)?.map(index.name());
        let mut start =
            value.as_bytes().get(..MAX_VALUE_BYTES).unwrap_or(value.as_bytes()).to_vec();
        start.push(0);
        let mut end = start.clone();
        end.pop();
        end.push(1);
        let mut paths = Vec::new();
        for entry in map.range(reads, (Bound::Included(&*start), Bound::Excluded(&*end))) {
            let (key, _) = entry?;
            let rest = key.get(start.len()..).unwrap_or_default();
            let path = rest.split(|byte| *byte == 0).next().unwrap_or_default();
            paths.push(NodePath::new(&String::from_utf8_lossy(path))?);
        }
        paths.dedup();
        self.only_seen(index, value, paths)
    }
}

impl Snapshot {
    /// Leaves out what the viewer does not see: the node, or the property that holds the value.
    fn only_seen(
        &self,
        index: Index,
        value: &str,
        mut paths: Vec<NodePath>,
    ) -> Result<Vec<NodePath>> {
        if self.1.is_none() {
            return Ok(paths);
        }
        let is_shown = |node: BorrowedNode<'_>| match index {
            Index::Uuid => node.property("jcr:uuid").is_some(),
            Index::ResourceType => node.property("sling:resourceType").is_some(),
            Index::Type => node.property(PRIMARY_TYPE).is_some(),
            Index::Reference => !refers(node, value).is_empty(),
        };
        let mut failure = None;
        paths.retain(|path| match self.node(path) {
            Ok(node) => node.is_some_and(|node| node.borrowed().is_some_and(is_shown)),
            Err(error) => {
                failure = Some(error);
                false
            }
        });
        failure.map_or(Ok(paths), Err)
    }
}

/// Longer values are cut in keys: the tree bounds its keys, and whoever looks up compares the node's own value.
/// With the longest path and name a key stays below 2 KiB.
pub(crate) const MAX_VALUE_BYTES: usize = 512;

/// The map of ordered children (`siblings`).
pub(crate) const ORDER: &str = "order";
/// The map of links in texts, names of tags and names of policies.
pub(crate) const LINK: &str = "link";
/// The names of all index maps.
pub(crate) const NAMES: [&str; 7] =
    ["uuid", "reference", LINK, "type", "resource", "modified", ORDER];

pub(crate) type Entries = BTreeSet<(String, Vec<u8>)>;

/// Which index maps are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Maps {
    /// All.
    All,
    /// Only those of property indexes.
    Properties,
    /// Only that of links.
    Links,
    /// Those of property indexes and that of links.
    PropertiesAndLinks,
}

/// Tells whether an index map is whole or absent: a part of it would pass for the whole. A state without it gets it when it is
/// opened, or when the index has been built.
pub(crate) fn is_whole_or_absent(map: &str) -> bool {
    map == ORDER || map == LINK || map.starts_with(PREFIX)
}

/// The edits of one commit, by index and key: whether the entry is there afterwards.
#[derive(Debug)]
pub(crate) struct IndexEdits {
    maps: Maps,
    /// The property indexes that are written.
    definitions: Arc<Definitions>,
    edits: BTreeMap<String, BTreeMap<Vec<u8>, bool>>,
}

impl IndexEdits {
    /// Begins edits of the maps of these property indexes, and of all others if `maps` says so.
    pub(crate) fn new(maps: Maps, definitions: Arc<Definitions>) -> Self {
        Self { maps, definitions, edits: BTreeMap::new() }
    }

    /// Notes that the document at `path` changed from one state to another.
    ///
    /// A node that went from one document to another is removed with the one and added with the other, in any order:
    /// the addition counts.
    pub(crate) fn change(
        &mut self,
        path: &NodePath,
        old: Option<(&Record, &Body)>,
        new: Option<(&Record, &Body)>,
    ) {
        let (old, new) = (self.entries_of(path, old), self.entries_of(path, new));
        for (index, key) in old.difference(&new) {
            self.edits.entry(index.clone()).or_default().entry(key.clone()).or_insert(false);
        }
        for (index, key) in new.difference(&old) {
            self.edits.entry(index.clone()).or_default().insert(key.clone(), true);
        }
    }

    /// Returns the entries that are there afterwards, by map, each map's sorted.
    pub(crate) fn added(&self) -> impl Iterator<Item = (&str, impl Iterator<Item = &[u8]>)> {
        self.edits.iter().map(|(index, edits)| {
            let there = edits.iter().filter(|(_, is_there)| **is_there);
            (&**index, there.map(|(key, _)| &**key))
        })
    }

    /// Applies the edits to the maps of a root.
    pub(crate) fn apply(
        self,
        maps: &mut BTreeMap<String, Map>,
        reads: &dyn ReadChunks,
        batch: &mut Batch,
    ) -> Result<()> {
        for (index, edits) in self.edits {
            if is_whole_or_absent(&index) && !maps.contains_key(&index) {
                continue;
            }
            let unique = self.definitions.0.iter().find(|one| one.unique && one.map == index);
            let added: Vec<Vec<u8>> = match unique {
                Some(_) => edits
                    .iter()
                    .filter(|(_, is_there)| **is_there)
                    .map(|(key, _)| key.clone())
                    .collect(),
                None => Vec::new(),
            };
            let edits =
                edits.into_iter().map(|(key, is_there)| (key, is_there.then(present))).collect();
            let map = maps.get(&index).copied().unwrap_or(Map::EMPTY);
            let map = map.edit(reads, batch, edits)?;
            if let Some(unique) = unique {
                check_unique(&unique.property, map, &Staged::new(batch, reads), &added)?;
            }
            // An emptied index leaves no trace, as equal content has one root.
            if map.is_empty() {
                maps.remove(&index);
            } else {
                maps.insert(index, map);
            }
        }
        Ok(())
    }

    /// Returns every index entry of a document.
    fn entries_of(&self, path: &NodePath, document: Option<(&Record, &Body)>) -> Entries {
        let mut entries = Entries::new();
        let Some((record, body)) = document else {
            return entries;
        };
        if self.maps == Maps::All {
            if let Some(entry) = order_entry(path, record) {
                entries.insert((ORDER.to_owned(), entry));
            }
            if let Some(modified) = record.summary.modified() {
                let moment = (modified.millis.cast_unsigned() ^ (1 << 63)).to_be_bytes();
                // Of fixed length, so that bytes of 0x00 in it do no harm.
                let key = [&moment, &[0][..], path.as_str().as_bytes()].concat();
                entries.insert(("modified".to_owned(), key));
            }
        }
        self.node_entries(path, body, &mut vec![body.root()], &mut entries);
        entries
    }

    /// Adds the entries of the last node of a chain of nodes in each other, and of all nodes below it.
    fn node_entries(
        &self,
        path: &NodePath,
        body: &Body,
        chain: &mut Vec<BodyNode>,
        entries: &mut Entries,
    ) {
        let Some(node) = chain.last().copied() else { return };
        if self.maps == Maps::All {
            fixed_entries(path, body, node, entries);
        }
        if self.maps != Maps::Properties {
            link_entries(path, body, node, entries);
        }
        self.definitions.entries(path, body, chain, entries);
        for child in body.children(node) {
            chain.push(child);
            self.node_entries(&path.child_unchecked(body.name(child)), body, chain, entries);
            chain.pop();
        }
    }
}

/// Returns the value of every entry that is there.
pub(crate) fn present() -> Stored {
    Stored { bytes: Bytes::new(), body: None }
}

/// Refuses values of a unique index that two nodes have.
fn check_unique(property: &str, map: Map, reads: &dyn ReadChunks, added: &[Vec<u8>]) -> Result<()> {
    for key in added {
        let Some((value, path)) = split_entry(key) else { continue };
        let end = successor(value);
        let range = (Bound::Included(value), Bound::Excluded(&*end));
        for entry in map.range(reads, range) {
            let (other, _) = entry?;
            if let Some((_, other)) = split_entry(&other).filter(|(_, other)| *other != path) {
                return Err(Error::NotUnique {
                    property: property.to_owned(),
                    path: NodePath::new(path)?,
                    other: Some(NodePath::new(other)?),
                });
            }
        }
    }
    Ok(())
}

/// Returns the entry in the order map; nothing where siblings have no order.
fn order_entry(path: &NodePath, record: &Record) -> Option<Vec<u8>> {
    let has_order = !record.order.0.is_empty();
    has_order.then(|| Some(keys::order_entry(&keys::key_of(path).ok()?, &record.order)))?
}

/// Adds the entries of a node in the maps that are no property indexes.
fn fixed_entries(path: &NodePath, body: &Body, node: BodyNode, entries: &mut Entries) {
    let place = path.as_str().as_bytes();
    for (name, property) in body.properties(node) {
        match name {
            // The first state of a repository has no index entries, and equal content has one root.
            PRIMARY_TYPE if path.as_str() == "/" && texts(property).next() == Some(ROOT_TYPE) => {}
            PRIMARY_TYPE | MIXIN_TYPES => {
                property.values().map(BorrowedValue::to_value).for_each(|value| {
                    put(entries, "type", value.to_text().as_bytes(), &[place]);
                });
            }
            "jcr:uuid" => {
                texts(property).for_each(|text| put(entries, "uuid", text.as_bytes(), &[place]))
            }
            "sling:resourceType" => {
                texts(property).for_each(|text| put(entries, "resource", text.as_bytes(), &[place]))
            }
            _ => targets(property).for_each(|target| {
                put(entries, "reference", target.as_bytes(), &[place, name.as_bytes()])
            }),
        }
    }
}

/// Adds the entries of a node in the map of links.
fn link_entries(path: &NodePath, body: &Body, node: BodyNode, entries: &mut Entries) {
    let place = path.as_str().as_bytes();
    for (name, property) in body.properties(node) {
        for value in property.values() {
            let BorrowedValue::Text(value_type, text) = value else { continue };
            for key in link_keys(path, name, (value_type, text)) {
                put(entries, LINK, key.as_bytes(), &[place, name.as_bytes()]);
            }
        }
    }
}

/// Returns the map of links without any, which is not empty, so that it is told from one that is not there.
pub(crate) fn empty_link_map(batch: &mut Batch) -> Result<Map> {
    Ok(Map::build(batch, std::iter::once((Vec::new(), present())))?)
}

/// What of the paths that an index lists is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexedPaths {
    /// This path.
    Exact,
    /// Paths below this one.
    Below,
}

impl Snapshot {
    /// Returns the nodes that an index of references lists for a path, or for paths below it, whether the viewer sees them or
    /// not. Pending edits of a session do not show.
    pub(crate) fn listed_referrers(
        &self,
        map: &str,
        target: &str,
        wanted: IndexedPaths,
    ) -> Result<BTreeSet<NodePath>> {
        let reads = self.0.shared.reads();
        let maps = Root::read(reads, &self.0.root)?.maps;
        let (start, end) = index_range(target, wanted);
        let mut nodes = BTreeSet::new();
        let mut add = |key: &[u8]| -> Result<()> {
            let path = key.split(|byte| *byte == 0).nth(1).unwrap_or_default();
            nodes.insert(NodePath::new(&String::from_utf8_lossy(path))?);
            Ok(())
        };
        let range = (Bound::Included(&*start), Bound::Excluded(&*end));
        if let Some(map) = maps.get(map) {
            for entry in map.range(reads, range) {
                add(&entry?.0)?;
            }
            return Ok(nodes);
        }
        if map != LINK {
            return Ok(nodes);
        }
        // A state from before this map: all of it is read.
        for entry in self.0.content.range(reads, (Bound::Unbounded, Bound::Unbounded)) {
            let (key, stored) = entry?;
            let path = keys::path_of(&key)?;
            let Some(record) = Record::decode(&stored) else { continue };
            let Some(body) = record.read_body(reads)? else { continue };
            let mut edits = IndexEdits::new(Maps::Links, Arc::default());
            edits.change(&path, None, Some((&record, &body)));
            for (_, keys) in edits.added() {
                let mut within = keys.filter(|key| (&*start..&*end).contains(key));
                within.try_for_each(&mut add)?;
            }
        }
        Ok(nodes)
    }
}

/// Returns the first key of an index of references that is about a path, or about paths below it, and the key behind the last.
fn index_range(target: &str, wanted: IndexedPaths) -> (Vec<u8>, Vec<u8>) {
    let cut = |bytes: &[u8]| bytes.get(..MAX_VALUE_BYTES).unwrap_or(bytes).to_vec();
    let separated = |separator: u8| [target.as_bytes(), &[separator]].concat();
    match wanted {
        IndexedPaths::Exact => {
            let key = cut(target.as_bytes());
            ([&*key, &[0]].concat(), [&*key, &[1]].concat())
        }
        IndexedPaths::Below if target.len() >= MAX_VALUE_BYTES => {
            // Keys are cut, so that the entries of the path and of those below it are the same.
            index_range(target, IndexedPaths::Exact)
        }
        IndexedPaths::Below => (separated(b'/'), separated(b'/' + 1)),
    }
}

/// Returns the texts among a property's values.
fn texts(property: BorrowedProperty<'_>) -> impl Iterator<Item = &str> {
    property.values().filter_map(BorrowedValue::as_str)
}

/// Returns what a property refers to: identifiers, and paths below the places where content lives.
fn targets(property: BorrowedProperty<'_>) -> impl Iterator<Item = &str> {
    property.values().filter_map(|value| match value {
        BorrowedValue::Text(ValueType::Reference | ValueType::WeakReference, id) => Some(id),
        BorrowedValue::Text(ValueType::String | ValueType::Path, text)
            if (text.starts_with("/content/") || text.starts_with("/conf/"))
                && !text.contains(char::is_whitespace) =>
        {
            Some(text)
        }
        _ => None,
    })
}

/// Joins the parts of a key, cutting what is too long to look up whole.
fn put(entries: &mut Entries, index: &'static str, value: &[u8], rest: &[&[u8]]) {
    // 0x00 ends a value in a key; a value that holds one cannot be looked up.
    if value.contains(&0) {
        return;
    }
    let mut key = value.get(..MAX_VALUE_BYTES).unwrap_or(value).to_vec();
    for part in rest {
        key.push(0);
        key.extend_from_slice(part);
    }
    entries.insert((index.to_owned(), key));
}
