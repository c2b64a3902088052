//! The index maps beside the content map: written in the same commit, derived from the documents that the commit
//! changes.
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
//! Values are empty: the key holds everything, so a look-up is a range scan.

pub(crate) mod build;
pub(crate) mod build_progress;
pub(crate) mod check;
pub(crate) mod missing_maps;
pub(crate) mod property_index;
pub(crate) mod rebuild;
mod stored_definitions;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use tympan_store::{ChunkBatch, ReadChunks, SortedMap, StagedView, StoreRoot};

use crate::document::body::{BodyNode, DocumentBody};
use crate::document::borrowed_node::BorrowedNode;
use crate::document::borrowed_property::{BorrowedProperty, BorrowedValue};
use crate::document::property_reference::referring_properties;
use crate::document::record::ContentRecord;
use crate::document::record_key::ORDER_MAP;
use crate::index::property_index::{IndexDefinitions, MAP_NAME_PREFIX, presence_value};
use crate::model::subtree::{MIXIN_TYPES, PRIMARY_TYPE, ROOT_NODE_TYPE};
use crate::model::text_link::link_index_keys;
use crate::model::value_key::{KeySpan, prefix_successor, split_entry};
use crate::{Error, NodePath, Result, Snapshot, ValueType, document::record_key};

/// The indexes that answer look-ups by a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LookupIndex {
    /// `jcr:uuid`.
    Uuid,
    /// The target of a reference property: an identifier, or a path below `/content` or `/conf`.
    Reference,
    /// A primary type or mixin.
    Type,
    /// `sling:resourceType`.
    ResourceType,
}

impl LookupIndex {
    /// Returns the name of the map.
    #[must_use]
    pub fn map_name(self) -> &'static str {
        match self {
            Self::Uuid => "uuid",
            Self::Reference => "reference",
            Self::Type => "type",
            Self::ResourceType => "resource",
        }
    }

    /// Returns the range of a value's entries, in which 0x00 and the node path follow the value; `None` if keys do not
    /// hold the whole value.
    #[must_use]
    pub fn value_span(value: &str) -> Option<KeySpan> {
        let is_whole = value.len() <= MAX_VALUE_KEY_BYTES && !value.contains('\0');
        let key = |separator: u8| [value.as_bytes(), &[separator]].concat();
        is_whole.then(|| (key(0), key(1)))
    }
}

impl Snapshot {
    /// Returns the paths of the nodes that an index lists for a value, sorted. Pending edits of a session do not show.
    ///
    /// # Errors
    /// If the store fails.
    pub fn look_up_paths(&self, index: LookupIndex, value: &str) -> Result<Vec<NodePath>> {
        let reads = self.view.repository_state.chunk_reader();
        let map = StoreRoot::read(reads, &self.view.root_id)?.map(index.map_name());
        let mut start =
            value.as_bytes().get(..MAX_VALUE_KEY_BYTES).unwrap_or(value.as_bytes()).to_vec();
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
        self.retain_visible(index, value, paths)
    }
}

impl Snapshot {
    /// Retains only what the viewer sees; checks the node and the property that holds the value.
    fn retain_visible(
        &self,
        index: LookupIndex,
        value: &str,
        mut paths: Vec<NodePath>,
    ) -> Result<Vec<NodePath>> {
        if self.access_gate.is_none() {
            return Ok(paths);
        }
        let is_shown = |node: BorrowedNode<'_>| match index {
            LookupIndex::Uuid => node.property("jcr:uuid").is_some(),
            LookupIndex::ResourceType => node.property("sling:resourceType").is_some(),
            LookupIndex::Type => node.property(PRIMARY_TYPE).is_some(),
            LookupIndex::Reference => !referring_properties(node, value).is_empty(),
        };
        let mut failure = None;
        paths.retain(|path| match self.node(path) {
            Ok(node) => node.is_some_and(|node| node.as_borrowed().is_some_and(is_shown)),
            Err(error) => {
                failure = Some(error);
                false
            }
        });
        failure.map_or(Ok(paths), Err)
    }
}

/// Longer values are truncated in keys, because the tree limits key size; a look-up compares the node's own value. With
/// the longest path and name a key stays below 2 KiB.
const MAX_VALUE_KEY_BYTES: usize = 512;

/// The map of links in texts, names of tags and names of policies.
pub(crate) const LINK_MAP: &str = "link";
/// The names of all index maps.
const INDEX_MAP_NAMES: [&str; 7] =
    ["uuid", "reference", LINK_MAP, "type", "resource", "modified", ORDER_MAP];

pub(crate) type IndexEntries = BTreeSet<(String, Vec<u8>)>;

/// Selects the index maps to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexMapSelection {
    /// All maps.
    All,
    /// Only the maps of property indexes.
    PropertyIndexes,
    /// Only the map of links.
    Links,
    /// The maps of property indexes and the map of links.
    PropertiesAndLinks,
}

/// Returns true if an index map must be either complete or absent, because a partial map would be taken for a complete
/// one. A state without it gets the map when it is opened, or when the index has been built.
fn must_be_complete(map: &str) -> bool {
    map == ORDER_MAP || map == LINK_MAP || map.starts_with(MAP_NAME_PREFIX)
}

/// The index edits of one commit, by index and key; the value is true if the entry exists afterwards.
#[derive(Debug)]
pub(crate) struct IndexEdits {
    map_selection: IndexMapSelection,
    /// The property indexes to write.
    definitions: Arc<IndexDefinitions>,
    edits_by_map: BTreeMap<String, BTreeMap<Vec<u8>, bool>>,
}

impl IndexEdits {
    /// Creates empty edits for the maps of these property indexes, and for all others if `maps` selects them.
    pub(crate) fn new(maps: IndexMapSelection, definitions: Arc<IndexDefinitions>) -> Self {
        Self { map_selection: maps, definitions, edits_by_map: BTreeMap::new() }
    }

    /// Records that the document at `path` changed from one state to another.
    ///
    /// A node that moved between documents is removed with one and added with the other, in any order; the addition
    /// wins.
    pub(crate) fn record_change(
        &mut self,
        path: &NodePath,
        old: Option<(&ContentRecord, &DocumentBody)>,
        new: Option<(&ContentRecord, &DocumentBody)>,
    ) {
        let (old, new) = (self.document_entries(path, old), self.document_entries(path, new));
        for (index, key) in old.difference(&new) {
            self.edits_by_map.entry(index.clone()).or_default().entry(key.clone()).or_insert(false);
        }
        for (index, key) in new.difference(&old) {
            self.edits_by_map.entry(index.clone()).or_default().insert(key.clone(), true);
        }
    }

    /// Returns the entries that exist afterwards, by map, sorted within each map.
    fn added_entries(&self) -> impl Iterator<Item = (&str, impl Iterator<Item = &[u8]>)> {
        self.edits_by_map.iter().map(|(index, edits)| {
            let there = edits.iter().filter(|(_, is_there)| **is_there);
            (&**index, there.map(|(key, _)| &**key))
        })
    }

    /// Applies the edits to the maps of a root.
    pub(crate) fn apply(
        self,
        maps: &mut BTreeMap<String, SortedMap>,
        reads: &dyn ReadChunks,
        batch: &mut ChunkBatch,
    ) -> Result<()> {
        for (index, edits) in self.edits_by_map {
            if must_be_complete(&index) && !maps.contains_key(&index) {
                continue;
            }
            let unique = self
                .definitions
                .0
                .iter()
                .find(|definition| definition.is_unique && definition.map_name == index);
            let added: Vec<Vec<u8>> = match unique {
                Some(_) => edits
                    .iter()
                    .filter(|(_, is_there)| **is_there)
                    .map(|(key, _)| key.clone())
                    .collect(),
                None => Vec::new(),
            };
            let edits = edits
                .into_iter()
                .map(|(key, is_there)| (key, is_there.then(presence_value)))
                .collect();
            let map = maps.get(&index).copied().unwrap_or(SortedMap::EMPTY_MAP);
            let map = map.edit(reads, batch, edits)?;
            if let Some(unique) = unique {
                check_unique_values(&unique.property, map, &StagedView::new(batch, reads), &added)?;
            }
            // An empty index must leave no map behind, because equal content has one root.
            if map.is_empty() {
                maps.remove(&index);
            } else {
                maps.insert(index, map);
            }
        }
        Ok(())
    }

    /// Returns every index entry of a document.
    fn document_entries(
        &self,
        path: &NodePath,
        document: Option<(&ContentRecord, &DocumentBody)>,
    ) -> IndexEntries {
        let mut entries = IndexEntries::new();
        let Some((record, body)) = document else {
            return entries;
        };
        if self.map_selection == IndexMapSelection::All {
            if let Some(entry) = order_map_entry(path, record) {
                entries.insert((ORDER_MAP.to_owned(), entry));
            }
            if let Some(modified) = record.summary.last_modified() {
                let sort_key = (modified.millis.cast_unsigned() ^ (1 << 63)).to_be_bytes();
                // The time has a fixed length, so 0x00 bytes in it are harmless.
                let key = [&sort_key, &[0][..], path.as_str().as_bytes()].concat();
                entries.insert(("modified".to_owned(), key));
            }
        }
        self.collect_node_entries(path, body, &mut vec![body.root()], &mut entries);
        entries
    }

    /// Adds the entries of the last node of a chain of nested nodes, and of all nodes below it.
    fn collect_node_entries(
        &self,
        path: &NodePath,
        body: &DocumentBody,
        chain: &mut Vec<BodyNode>,
        entries: &mut IndexEntries,
    ) {
        let Some(node) = chain.last().copied() else { return };
        if self.map_selection == IndexMapSelection::All {
            collect_fixed_entries(path, body, node, entries);
        }
        if self.map_selection != IndexMapSelection::PropertyIndexes {
            collect_link_entries(path, body, node, entries);
        }
        self.definitions.collect_node_entries(path, body, chain, entries);
        for child in body.children(node) {
            chain.push(child);
            self.collect_node_entries(
                &path.child_unchecked(body.name(child)),
                body,
                chain,
                entries,
            );
            chain.pop();
        }
    }
}

/// Returns an error if two nodes have the same value in a unique index.
fn check_unique_values(
    property: &str,
    map: SortedMap,
    reads: &dyn ReadChunks,
    added: &[Vec<u8>],
) -> Result<()> {
    for key in added {
        let Some((value, path)) = split_entry(key) else { continue };
        let end = prefix_successor(value);
        let range = (Bound::Included(value), Bound::Excluded(&*end));
        for entry in map.range(reads, range) {
            let (entry_key, _) = entry?;
            if let Some((_, existing_key)) =
                split_entry(&entry_key).filter(|(_, existing_path)| *existing_path != path)
            {
                return Err(Error::NotUnique {
                    property: property.to_owned(),
                    path: NodePath::new(path)?,
                    existing_path: Some(NodePath::new(existing_key)?),
                });
            }
        }
    }
    Ok(())
}

/// Returns the entry in the order map; `None` if siblings are not ordered.
fn order_map_entry(path: &NodePath, record: &ContentRecord) -> Option<Vec<u8>> {
    let has_order = !record.order_key.0.is_empty();
    has_order.then(|| {
        Some(record_key::order_map_key(&record_key::record_key(path).ok()?, &record.order_key))
    })?
}

/// Adds the entries of a node in all maps except those of property indexes.
fn collect_fixed_entries(
    path: &NodePath,
    body: &DocumentBody,
    node: BodyNode,
    entries: &mut IndexEntries,
) {
    let path_bytes = path.as_str().as_bytes();
    for (name, property) in body.properties(node) {
        match name {
            // The first state of a repository has no index entries, because equal content has one root.
            PRIMARY_TYPE
                if path.as_str() == "/" && text_values(property).next() == Some(ROOT_NODE_TYPE) => {
            }
            PRIMARY_TYPE | MIXIN_TYPES => {
                property.values().map(BorrowedValue::to_value).for_each(|value| {
                    insert_entry(entries, "type", value.to_text().as_bytes(), &[path_bytes]);
                });
            }
            "jcr:uuid" => text_values(property)
                .for_each(|text| insert_entry(entries, "uuid", text.as_bytes(), &[path_bytes])),
            "sling:resourceType" => text_values(property)
                .for_each(|text| insert_entry(entries, "resource", text.as_bytes(), &[path_bytes])),
            _ => reference_targets(property).for_each(|target| {
                insert_entry(
                    entries,
                    "reference",
                    target.as_bytes(),
                    &[path_bytes, name.as_bytes()],
                )
            }),
        }
    }
}

/// Adds the entries of a node in the map of links.
fn collect_link_entries(
    path: &NodePath,
    body: &DocumentBody,
    node: BodyNode,
    entries: &mut IndexEntries,
) {
    let path_bytes = path.as_str().as_bytes();
    for (name, property) in body.properties(node) {
        for value in property.values() {
            let BorrowedValue::Text(value_type, text) = value else { continue };
            for key in link_index_keys(path, name, value_type, text) {
                insert_entry(entries, LINK_MAP, key.as_bytes(), &[path_bytes, name.as_bytes()]);
            }
        }
    }
}

/// Creates a map of links without links. It holds the empty key, which distinguishes it from an absent map.
fn create_empty_link_map(batch: &mut ChunkBatch) -> Result<SortedMap> {
    Ok(SortedMap::build(batch, std::iter::once((Vec::new(), presence_value())))?)
}

/// The scope of an index look-up by path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexPathScope {
    /// Only this path.
    Exact,
    /// Paths below this one.
    Descendants,
}

impl Snapshot {
    /// Returns the nodes that an index of references lists for a path, or for paths below it, whether or not the viewer
    /// sees them. Pending edits of a session are not included.
    pub(crate) fn indexed_referrers(
        &self,
        map: &str,
        target: &str,
        scope: IndexPathScope,
    ) -> Result<BTreeSet<NodePath>> {
        let reads = self.view.repository_state.chunk_reader();
        let maps = StoreRoot::read(reads, &self.view.root_id)?.maps;
        let (start, end) = index_key_range(target, scope);
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
        if map != LINK_MAP {
            return Ok(nodes);
        }
        // A state from before this map: scan all content.
        for entry in self.view.content_map.range(reads, (Bound::Unbounded, Bound::Unbounded)) {
            let (key, stored) = entry?;
            let path = record_key::record_path(&key)?;
            let Some(record) = ContentRecord::decode(&stored) else { continue };
            let Some(body) = record.read_body(reads)? else { continue };
            let mut edits = IndexEdits::new(IndexMapSelection::Links, Arc::default());
            edits.record_change(&path, None, Some((&record, &body)));
            for (_, keys) in edits.added_entries() {
                let mut within = keys.filter(|key| (&*start..&*end).contains(key));
                within.try_for_each(&mut add)?;
            }
        }
        Ok(nodes)
    }
}

/// Returns the first key of an index of references for a path, or for paths below it, and the key after the last.
fn index_key_range(target: &str, scope: IndexPathScope) -> (Vec<u8>, Vec<u8>) {
    let cut = |bytes: &[u8]| bytes.get(..MAX_VALUE_KEY_BYTES).unwrap_or(bytes).to_vec();
    let separated = |separator: u8| [target.as_bytes(), &[separator]].concat();
    match scope {
        IndexPathScope::Exact => {
            let key = cut(target.as_bytes());
            ([&*key, &[0]].concat(), [&*key, &[1]].concat())
        }
        IndexPathScope::Descendants if target.len() >= MAX_VALUE_KEY_BYTES => {
            // Keys are truncated, so the entries of the path and of the paths below it have the same prefix.
            index_key_range(target, IndexPathScope::Exact)
        }
        IndexPathScope::Descendants => (separated(b'/'), separated(b'/' + 1)),
    }
}

/// Returns the texts among a property's values.
fn text_values(property: BorrowedProperty<'_>) -> impl Iterator<Item = &str> {
    property.values().filter_map(BorrowedValue::as_str)
}

/// Returns the targets of a reference property: identifiers, and paths below the roots of content.
fn reference_targets(property: BorrowedProperty<'_>) -> impl Iterator<Item = &str> {
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

/// Joins the parts of a key, and truncates a value that is too long for a complete key.
fn insert_entry(entries: &mut IndexEntries, index: &'static str, value: &[u8], rest: &[&[u8]]) {
    // 0x00 terminates a value in a key; a value that contains it cannot be looked up.
    if value.contains(&0) {
        return;
    }
    let mut key = value.get(..MAX_VALUE_KEY_BYTES).unwrap_or(value).to_vec();
    for part in rest {
        key.push(0);
        key.extend_from_slice(part);
    }
    entries.insert((index.to_owned(), key));
}
