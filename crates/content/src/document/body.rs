//! Bodies: the stored form of a document's inner tree, read in place.
//!
//! In: a [`Subtree`]. Out: bytes and the blobs they name; and from these a [`DocumentBody`] whose nodes are read
//! without decoding the rest. `docs/formats/document.md` specifies the format.
//!
//! Invariants
//! * Equal subtrees have equal bytes: names are interned in order of first use, properties and blobs are sorted.
//! * A [`DocumentBody`] is validated completely when it is opened, so that reading its nodes cannot fail.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tympan_store::BlobId;

use crate::access::is_guarded_name;
use crate::document::borrowed_property::{BodyTables, BorrowedProperty, LIST_FLAG};
use crate::document::codec::{
    ByteCursor, write_length_prefixed, write_signed_varint, write_varint,
};
use crate::{Property, Subtree, Value};

/// Deeper trees are refused, so that recursion cannot exhaust a thread's stack.
const MAX_BODY_DEPTH: usize = 200;
/// The number of children, or of properties, from which on those of a node are indexed by name once the body has been
/// searched often.
const MIN_INDEXED_ITEMS: usize = 32;

/// A document's inner tree, validated and ready to read.
#[derive(Debug)]
pub(crate) struct DocumentBody {
    bytes: Bytes,
    tables: BodyTables,
    root: BodyNode,
    /// True if any name in the body is one that access control decides individually.
    has_guarded_name: bool,
    /// Number of children of nodes with many children, and of properties of nodes with many properties.
    indexed_items: usize,
    index: OnceLock<ItemIndex>,
    /// Number of children and properties that searches among many of them have read.
    searched_items: AtomicUsize,
}

/// The children of nodes with many children and the properties of nodes with many properties: by the node's
/// [`BodyNode::offset_id`], the offsets of the items sorted by name.
#[derive(Debug, Default)]
struct ItemIndex {
    children: HashMap<u32, Box<[u32]>>,
    properties: HashMap<u32, Box<[u32]>>,
}

/// The position of a node in its document: the offsets of its parts in the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyNode {
    name_index: u32,
    properties_offset: u32,
    children_offset: u32,
    end_offset: u32,
}

impl BodyNode {
    /// Returns an offset that identifies the node within its body.
    pub(crate) fn offset_id(self) -> u32 {
        self.properties_offset
    }
}

/// Encodes a document's tree and returns the bytes with the blobs that they refer to by index.
pub(crate) fn encode_body(tree: &Subtree) -> (Vec<u8>, Vec<BlobId>) {
    let mut blobs = BTreeSet::new();
    collect_blobs(tree, &mut blobs);
    let mut encoder = BodyEncoder { blobs: blobs.into_iter().collect(), ..BodyEncoder::default() };
    let mut nodes = Vec::new();
    encoder.write_node(tree, true, &mut nodes);
    let mut bytes = Vec::with_capacity(nodes.len() + 64 * encoder.name_indexes.len());
    write_varint(&mut bytes, encoder.names.len() as u64);
    for name in &encoder.names {
        write_length_prefixed(&mut bytes, name.as_bytes());
    }
    bytes.extend_from_slice(&nodes);
    (bytes, encoder.blobs)
}

/// Collects the blobs that a tree names, sorted and without duplicates, as the store keeps them.
fn collect_blobs(tree: &Subtree, blobs: &mut BTreeSet<BlobId>) {
    for value in tree.properties.values().flat_map(Property::values) {
        if let Value::Binary(blob) = value {
            blobs.insert(*blob);
        }
    }
    tree.children.iter().for_each(|child| collect_blobs(child, blobs));
}

/// The state of an encoder.
#[derive(Default)]
struct BodyEncoder<'a> {
    name_indexes: HashMap<&'a str, u64>,
    names: Vec<&'a str>,
    /// All blobs of the tree, sorted.
    blobs: Vec<BlobId>,
}

impl<'a> BodyEncoder<'a> {
    fn intern_name(&mut self, name: &'a str) -> u64 {
        let next = self.names.len() as u64;
        *self.name_indexes.entry(name).or_insert_with(|| {
            self.names.push(name);
            next
        })
    }

    fn blob_index(&self, blob: BlobId) -> u64 {
        // All blobs of the tree were collected before.
        self.blobs.binary_search(&blob).unwrap_or_else(|at| at) as u64
    }

    /// Writes a node; the root of a document has no name because its path contains it.
    fn write_node(&mut self, node: &'a Subtree, is_root: bool, out: &mut Vec<u8>) {
        let name = self.intern_name(if is_root { "" } else { &node.name });
        let mut properties = Vec::new();
        write_varint(&mut properties, node.properties.len() as u64);
        for (name, property) in &node.properties {
            write_varint(&mut properties, self.intern_name(name));
            let mut value = Vec::new();
            let tag = self.write_property(property, &mut value);
            properties.push(tag);
            write_length_prefixed(&mut properties, &value);
        }
        let mut children = Vec::new();
        for child in &node.children {
            self.write_node(child, false, &mut children);
        }
        write_varint(out, name);
        write_length_prefixed(out, &properties);
        write_length_prefixed(out, &children);
    }

    fn write_property(&mut self, property: &'a Property, out: &mut Vec<u8>) -> u8 {
        match property {
            Property::Single(value) => {
                self.write_value(value, out);
                property.value_type() as u8
            }
            Property::List(value_type, values) => {
                write_varint(out, values.len() as u64);
                values.iter().for_each(|value| self.write_value(value, out));
                *value_type as u8 | LIST_FLAG
            }
        }
    }

    fn write_value(&mut self, value: &'a Value, out: &mut Vec<u8>) {
        match value {
            Value::String(text)
            | Value::Path(text)
            | Value::Reference(text)
            | Value::WeakReference(text)
            | Value::Uri(text)
            | Value::Decimal(text) => write_length_prefixed(out, text.as_bytes()),
            Value::Name(name) => write_varint(out, self.intern_name(name)),
            Value::Binary(blob) => write_varint(out, self.blob_index(*blob)),
            Value::Long(number) => write_signed_varint(out, *number),
            Value::Double(number) => out.extend_from_slice(&number.to_bits().to_le_bytes()),
            Value::Boolean(truth) => out.push(u8::from(*truth)),
            Value::Date(date) => {
                write_signed_varint(out, date.millis);
                write_signed_varint(out, i64::from(date.offset_minutes));
            }
        }
    }
}

impl DocumentBody {
    /// Opens stored bytes and validates them once; `None` if they are invalid.
    pub(crate) fn open(bytes: Bytes, blobs: Vec<BlobId>) -> Option<Self> {
        let mut cursor = ByteCursor::new(&bytes, 0);
        let count = cursor.read_length()?;
        let mut tables = BodyTables::new(count.min(bytes.len()), blobs);
        let mut is_guarded = false;
        for _ in 0..count {
            let name = cursor.read_prefixed_text()?;
            is_guarded |= is_guarded_name(name);
            tables.push_name(name)?;
        }
        let at = cursor.offset();
        let root = read_node_at(&bytes, at)?;
        let mut body = Self {
            bytes,
            tables,
            root,
            has_guarded_name: is_guarded,
            indexed_items: 0,
            index: OnceLock::new(),
            searched_items: AtomicUsize::new(0),
        };
        if root.end_offset as usize != body.bytes.len() {
            return None;
        }
        body.indexed_items = body.validate_node(root, 0)?;
        Some(body)
    }

    /// Validates a node and its descendants; returns how many of their children and properties are among many.
    fn validate_node(&self, node: BodyNode, depth: usize) -> Option<usize> {
        if depth > MAX_BODY_DEPTH {
            return None;
        }
        self.tables.interned_name(node.name_index)?;
        let mut properties = ByteCursor::new(
            self.bytes.get(..node.children_offset as usize)?,
            node.properties_offset as usize,
        );
        let property_count = properties.read_length()?;
        for _ in 0..property_count {
            let name = u32::try_from(properties.read_varint()?).ok()?;
            self.tables.interned_name(name)?;
            let property = BorrowedProperty::new(
                &self.tables,
                properties.read_byte()?,
                properties.read_prefixed_bytes()?,
            );
            if !property.is_well_formed() {
                return None;
            }
        }
        let mut at = offset_after_length(&self.bytes, node.children_offset as usize)?;
        let (mut children, mut indexed) = (0, 0);
        while at < node.end_offset as usize {
            let child = read_node_at(&self.bytes, at)?;
            if child.end_offset > node.end_offset {
                return None;
            }
            indexed += self.validate_node(child, depth + 1)?;
            children += 1;
            at = child.end_offset as usize;
        }
        indexed += [children, property_count]
            .iter()
            .filter(|count| **count >= MIN_INDEXED_ITEMS)
            .sum::<usize>();
        (at == node.end_offset as usize).then_some(indexed)
    }

    /// Returns true if any node or property has this name, or any value is this name.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.tables.has_name(name)
    }

    /// Returns true if the body may hold policies or passwords.
    pub(crate) fn has_guarded_name(&self) -> bool {
        self.has_guarded_name
    }

    /// Returns the document's own node.
    pub(crate) fn root(&self) -> BodyNode {
        self.root
    }

    /// Returns the memory use of the body in bytes, for bounded caches.
    pub(crate) fn memory_size(&self) -> u64 {
        let index_size = self.indexed_items * size_of::<u32>();
        (self.bytes.len() + self.tables.memory_size() + index_size + 250) as u64
    }

    /// Returns the stored bytes.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the blobs that the body names.
    pub(crate) fn blobs(&self) -> &[BlobId] {
        self.tables.blobs()
    }

    /// Returns a node's name.
    pub(crate) fn name(&self, node: BodyNode) -> &str {
        self.tables.interned_name(node.name_index).unwrap_or_default()
    }

    /// Returns the node's children in order.
    pub(crate) fn children(&self, node: BodyNode) -> impl Iterator<Item = BodyNode> + '_ {
        self.children_with_offsets(node).map(|(_, child)| child)
    }

    /// Returns the node's children in order, each with the offset at which it begins.
    fn children_with_offsets(&self, node: BodyNode) -> impl Iterator<Item = (usize, BodyNode)> {
        let mut at = offset_after_length(&self.bytes, node.children_offset as usize)
            .unwrap_or(node.end_offset as usize);
        std::iter::from_fn(move || {
            if at >= node.end_offset as usize {
                return None;
            }
            let child = read_node_at(&self.bytes, at)?;
            Some((std::mem::replace(&mut at, child.end_offset as usize), child))
        })
    }

    /// Finds the first child of a name.
    pub(crate) fn child(&self, node: BodyNode, name: &str) -> Option<BodyNode> {
        let indexed = self.index.get().and_then(|index| index.children.get(&node.offset_id()));
        if let Some(offsets) = indexed {
            return self.find_indexed_child(offsets, name);
        }
        let mut searched = 0;
        let child = self.children(node).find(|child| {
            searched += 1;
            self.tables.is_interned_name(child.name_index, name)
        });
        if searched > MIN_INDEXED_ITEMS {
            self.count_search(searched);
        }
        child
    }

    /// Finds the first child of a name by binary search.
    fn find_indexed_child(&self, offsets: &[u32], name: &str) -> Option<BodyNode> {
        let read = |at: &u32| read_node_at(&self.bytes, *at as usize);
        let name_of = |at: &u32| read(at).map_or("", |child| self.name(child));
        let first = offsets.partition_point(|at| name_of(at) < name);
        let child = read(offsets.get(first)?)?;
        (self.name(child) == name).then_some(child)
    }

    /// Counts the items that a search has read, and builds the index when searching has read more of them than the body
    /// has bytes. A body that is searched a few times is not indexed.
    fn count_search(&self, items: usize) {
        let searched = self.searched_items.fetch_add(items, Ordering::Relaxed) + items;
        if searched > self.bytes.len() {
            self.index.get_or_init(|| {
                let mut index = ItemIndex::default();
                self.index_items(self.root, &mut index);
                index
            });
        }
    }

    /// Adds the children and properties of a node, and of the nodes below it, to an index.
    fn index_items(&self, node: BodyNode, index: &mut ItemIndex) {
        let mut children = Vec::new();
        for (at, child) in self.children_with_offsets(node) {
            children.push((self.name(child), at));
            self.index_items(child, index);
        }
        insert_sorted_offsets(&mut index.children, node, children);
        let properties = self.stored_properties(node).map(|stored| {
            (self.tables.interned_name(stored.name_index).unwrap_or_default(), stored.offset)
        });
        insert_sorted_offsets(&mut index.properties, node, properties.collect());
    }

    /// Returns the number of items that searches among many of them have read.
    #[cfg(test)]
    fn searched_items(&self) -> usize {
        self.searched_items.load(Ordering::Relaxed)
    }

    /// Finds a node below the root by its relative path.
    pub(crate) fn find_relative(&self, relative: &str) -> Option<BodyNode> {
        relative
            .split('/')
            .filter(|name| !name.is_empty())
            .try_fold(self.root, |node, name| self.child(node, name))
    }

    /// Returns a property of a node.
    pub(crate) fn property(&self, node: BodyNode, name: &str) -> Option<BorrowedProperty<'_>> {
        let indexed = self.index.get().and_then(|index| index.properties.get(&node.offset_id()));
        if let Some(offsets) = indexed {
            return self.find_indexed_property(offsets, name);
        }
        let mut searched = 0;
        let stored = self.stored_properties(node).find(|stored| {
            searched += 1;
            self.tables.is_interned_name(stored.name_index, name)
        });
        if searched > MIN_INDEXED_ITEMS {
            self.count_search(searched);
        }
        stored.map(|stored| stored.property)
    }

    /// Finds the first property of a name by binary search.
    fn find_indexed_property(&self, offsets: &[u32], name: &str) -> Option<BorrowedProperty<'_>> {
        let read = |at: &u32| self.read_property(&mut ByteCursor::new(&self.bytes, *at as usize));
        let name_of = |at: &u32| {
            read(at).and_then(|stored| self.tables.interned_name(stored.name_index)).unwrap_or("")
        };
        let first = offsets.partition_point(|at| name_of(at) < name);
        let stored = read(offsets.get(first)?)?;
        self.tables.is_interned_name(stored.name_index, name).then_some(stored.property)
    }

    /// Reads the property at a cursor and moves the cursor behind it.
    fn read_property<'a>(&'a self, cursor: &mut ByteCursor<'a>) -> Option<StoredProperty<'a>> {
        let offset = cursor.offset();
        let name_index = u32::try_from(cursor.read_varint()?).ok()?;
        let (tag, value) = (cursor.read_byte()?, cursor.read_prefixed_bytes()?);
        let property = BorrowedProperty::new(&self.tables, tag, value);
        Some(StoredProperty { offset, name_index, property })
    }

    /// Returns all properties of a node as they are stored, sorted by name.
    fn stored_properties(&self, node: BodyNode) -> impl Iterator<Item = StoredProperty<'_>> {
        let mut cursor = ByteCursor::new(&self.bytes, node.properties_offset as usize);
        let count = cursor.read_length().unwrap_or(0);
        (0..count).map_while(move |_| self.read_property(&mut cursor))
    }

    /// Returns a single text-like property of a node without copying it.
    pub(crate) fn text(&self, node: BodyNode, name: &str) -> Option<&str> {
        let property = self.property(node, name).filter(|property| !property.is_list())?;
        property.first()?.as_str()
    }

    /// Returns all properties of a node, sorted by name.
    pub(crate) fn properties(
        &self,
        node: BodyNode,
    ) -> impl Iterator<Item = (&str, BorrowedProperty<'_>)> {
        self.stored_properties(node).map_while(|stored| {
            Some((self.tables.interned_name(stored.name_index)?, stored.property))
        })
    }

    /// Decodes a node and everything below it.
    pub(crate) fn subtree(&self, node: BodyNode) -> Subtree {
        // The properties are sorted already; collecting would sort again.
        let mut properties = BTreeMap::new();
        for (name, property) in self.properties(node) {
            properties.insert(name.to_owned(), property.to_property());
        }
        let mut children = Vec::with_capacity(self.children(node).count());
        children.extend(self.children(node).map(|child| self.subtree(child)));
        Subtree { name: self.name(node).to_owned(), properties, children: children.into() }
    }
}

/// A property in a body.
struct StoredProperty<'a> {
    /// Where it begins in the body.
    offset: usize,
    name_index: u32,
    property: BorrowedProperty<'a>,
}

/// Adds the items of a node, each with its offset, to an index if they are many.
fn insert_sorted_offsets(
    index: &mut HashMap<u32, Box<[u32]>>,
    node: BodyNode,
    mut items: Vec<(&str, usize)>,
) {
    if items.len() >= MIN_INDEXED_ITEMS {
        // The sort is stable, so the first of several items of a name stays the first.
        items.sort_by_key(|(name, _)| *name);
        // Offsets in a body fit into 32 bits.
        index.insert(node.offset_id(), items.into_iter().map(|(_, at)| at as u32).collect());
    }
}

/// Reads the offsets of the node that begins at `at`.
fn read_node_at(bytes: &[u8], at: usize) -> Option<BodyNode> {
    let mut cursor = ByteCursor::new(bytes, at);
    let name = u32::try_from(cursor.read_varint()?).ok()?;
    let length = cursor.read_length()?;
    let properties = u32::try_from(cursor.offset()).ok()?;
    cursor.read_exact_bytes(length)?;
    let children = u32::try_from(cursor.offset()).ok()?;
    cursor.read_prefixed_bytes()?;
    Some(BodyNode {
        name_index: name,
        properties_offset: properties,
        children_offset: children,
        end_offset: u32::try_from(cursor.offset()).ok()?,
    })
}

/// Returns the offset after the length-prefixed bytes at `at`.
fn offset_after_length(bytes: &[u8], at: usize) -> Option<usize> {
    let mut cursor = ByteCursor::new(bytes, at);
    cursor.read_length()?;
    Some(cursor.offset())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{JcrDate, ValueType};
    use proptest::prelude::*;

    fn values() -> impl Strategy<Value = Property> {
        let value = prop_oneof![
            ".{0,12}".prop_map(Value::String),
            "[a-z]{1,3}".prop_map(Value::Name),
            any::<i64>().prop_map(Value::Long),
            any::<f64>().prop_map(Value::Double),
            any::<bool>().prop_map(Value::Boolean),
            (any::<i64>(), -900_i16..900).prop_map(|(millis, offset_minutes)| Value::Date(
                JcrDate { millis, offset_minutes }
            )),
            (0_u8..4, any::<u64>())
                .prop_map(|(seed, length)| Value::Binary(BlobId::new([seed; 32], length))),
        ];
        let list =
            (proptest::sample::select(&ValueType::ALL[..]), prop::collection::vec(".{0,4}", 0..4))
                .prop_map(|(value_type, texts)| {
                    let values = texts
                        .into_iter()
                        .filter_map(|text| Value::parse(value_type, &text).ok())
                        .collect();
                    Property::List(value_type, values)
                });
        prop_oneof![value.prop_map(Property::Single), list]
    }

    fn trees() -> impl Strategy<Value = Subtree> {
        let node = (prop::collection::btree_map("[a-z]{1,4}", values(), 0..5), "[a-z]{1,4}")
            .prop_map(|(properties, name)| Subtree { name, properties, ..Subtree::default() });
        node.prop_recursive(4, 40, 5, |inner| {
            (
                prop::collection::vec(inner, 0..5),
                prop::collection::btree_map("[a-z]{1,4}", values(), 0..3),
            )
                .prop_map(|(children, properties)| {
                    let mut node = Subtree { name: "n".into(), properties, ..Subtree::default() };
                    children.into_iter().for_each(|child| node.put_child(child));
                    node
                })
        })
    }

    #[test]
    fn the_work_of_finding_all_children_grows_with_their_number() {
        let work = |count: usize| {
            let children = (0..count).map(|number| {
                Subtree::new(format!("n{}", (number * 7) % count), "nt:unstructured")
            });
            let tree = Subtree { children: children.collect(), ..Subtree::default() };
            let body = encoded_body(&tree);
            for name in tree.children.iter().map(|child| &*child.name) {
                let child = body.child(body.root(), name).unwrap();
                assert_eq!(body.name(child), name);
                assert!(body.child(body.root(), &format!("{name}x")).is_none());
            }
            assert_eq!(body.subtree(body.root()), tree);
            body.searched_items() as f64 / body.bytes().len() as f64
        };
        for count in [1_000, 2_000, 4_000] {
            assert!(work(count) < 1.5, "{count} {}", work(count));
        }
    }

    #[test]
    fn the_work_of_finding_all_properties_grows_with_their_number() {
        let work = |count: usize| {
            let values = (0..count).map(|number| {
                (format!("p{}", (number * 7) % count), Value::Long(number as i64).into())
            });
            let inner = Subtree { properties: values.collect(), ..Subtree::new("inner", "t") };
            let body = encoded_body(&Subtree::default().with_child(inner.clone()));
            let node = body.child(body.root(), "inner").unwrap();
            for (name, property) in &inner.properties {
                assert_eq!(body.property(node, name).unwrap().to_property(), *property);
                assert!(body.property(node, &format!("{name}x")).is_none());
            }
            body.searched_items() as f64 / body.bytes().len() as f64
        };
        for count in [1_000, 2_000, 4_000] {
            assert!(work(count) < 1.5, "{count} {}", work(count));
        }
    }

    #[test]
    fn of_several_children_of_a_name_the_first_is_found() {
        let child = |number: i64| {
            Subtree::new(format!("n{}", number % 50), "nt:unstructured")
                .with_property("at", Value::Long(number))
        };
        let tree = Subtree { children: (0..100).map(child).collect(), ..Subtree::default() };
        let body = encoded_body(&tree);
        for _ in 0..100 {
            for at in 0..50_i64 {
                let child = body.child(body.root(), &format!("n{at}")).unwrap();
                assert_eq!(
                    body.property(child, "at").unwrap().to_property(),
                    Value::Long(at).into()
                );
            }
        }
        assert!(body.index.get().is_some());
    }

    fn encoded_body(tree: &Subtree) -> DocumentBody {
        let (bytes, blobs) = encode_body(tree);
        DocumentBody::open(bytes.into(), blobs).unwrap()
    }

    proptest! {
        #[test]
        fn what_was_written_reads_back(mut tree in trees()) {
            tree.name = String::new();
            let (bytes, blobs) = encode_body(&tree);
            let body = DocumentBody::open(bytes.into(), blobs).unwrap();
            prop_assert_eq!(body.subtree(body.root()), tree.clone());
            for child in &tree.children {
                let node = body.find_relative(&child.name).unwrap();
                for (name, property) in &child.properties {
                    let stored = body.property(node, name).map(|stored| stored.to_property());
                    prop_assert_eq!(stored.as_ref(), Some(property));
                }
                prop_assert!(body.property(node, "missing").is_none());
            }
        }

        #[test]
        fn damaged_bytes_never_panic(tree in trees(), flips in prop::collection::vec((any::<usize>(), any::<u8>()), 1..6)) {
            let (mut bytes, blobs) = encode_body(&tree);
            for (at, value) in flips {
                let length = bytes.len();
                bytes[at % length] = value;
            }
            if let Some(body) = DocumentBody::open(bytes.into(), blobs) {
                body.subtree(body.root());
            }
        }
    }

    #[test]
    fn a_tree_too_deep_is_refused() {
        let mut tree = Subtree::new("leaf", "nt:unstructured");
        for _ in 0..=MAX_BODY_DEPTH + 1 {
            tree = Subtree::new("n", "nt:unstructured").with_child(tree);
        }
        let (bytes, blobs) = encode_body(&tree);
        assert!(DocumentBody::open(bytes.into(), blobs).is_none());
    }
}
