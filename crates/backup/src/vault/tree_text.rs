//! A folder in its text form: nodes are replaced while the text of the others stays unchanged.
//!
//! In: the bytes of a folder. Out: requested nodes, and the bytes of the folder with some nodes replaced.
//!
//! Invariants
//! * The output is identical, byte for byte, to what [`SnapshotTree`] would produce for the same nodes, if this program
//!   wrote the folder.
//! * Names are safe and ascend, as in a [`SnapshotTree`]. Nodes that are not requested are not examined further.
//!
//! A long folder in which one node changes is rewritten with each save: the other nodes are neither parsed nor
//! serialized again.

use memchr::{memchr2, memmem};

use super::node::{SnapshotNode, SnapshotTree, check_node_names};

const TREE_TEXT_HEAD: &[u8] = br#"{"nodes":["#;
const TREE_TEXT_TAIL: &[u8] = b"]}\n";
/// The start of a node; all but the first are preceded by a comma.
const NODE_TEXT_START: &[u8] = br#"{"name":""#;
const NODE_TEXT_SEPARATOR: &[u8] = br#"},{"name":""#;
/// The text after the name of a node, which does not follow the names of other objects.
const NODE_NAME_TERMINATOR: &[u8] = br#"","type":""#;

/// A folder in its text form.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotTreeText {
    bytes: Vec<u8>,
    nodes: Vec<NodeTextSpan>,
}

/// The position of a node.
#[derive(Clone, Debug)]
struct NodeTextSpan {
    start: usize,
    end: usize,
    name: NodeTextName,
}

#[derive(Clone, Debug)]
enum NodeTextName {
    /// The node is in the text unmodified, with this length.
    Plain(usize),
    Quoted(Vec<u8>),
}

impl SnapshotTreeText {
    /// Parses a folder, and rejects one that would be unsafe to restore.
    pub(crate) fn parse(bytes: Vec<u8>) -> Result<Self, String> {
        let Some(nodes) = split_nodes(&bytes) else {
            return Ok(Self::from_tree(&SnapshotTree::parse(&bytes)?));
        };
        let text = Self { bytes, nodes };
        check_node_names(text.nodes.iter().map(|span| text.node_name(span)))?;
        Ok(text)
    }

    fn from_tree(tree: &SnapshotTree) -> Self {
        let mut text = Self { bytes: TREE_TEXT_HEAD.to_vec(), nodes: Vec::new() };
        for node in &tree.nodes {
            let written = push_node_text(&mut text.bytes, &encode_node(node));
            let name = NodeTextName::Quoted(node.name.clone());
            text.nodes.push(NodeTextSpan { start: written.start, end: written.end, name });
        }
        text.bytes.extend_from_slice(TREE_TEXT_TAIL);
        text
    }

    fn node_text(&self, span: &NodeTextSpan) -> &[u8] {
        self.bytes.get(span.start..span.end).unwrap_or_default()
    }

    fn node_name<'a>(&'a self, span: &'a NodeTextSpan) -> &'a [u8] {
        match &span.name {
            NodeTextName::Plain(length) => {
                let start = span.start + NODE_TEXT_START.len();
                self.bytes.get(start..start + length).unwrap_or_default()
            }
            NodeTextName::Quoted(name) => name,
        }
    }

    /// Finds a node by its name; also `None` if it is not a valid node.
    pub(crate) fn find(&self, name: &[u8]) -> Option<SnapshotNode> {
        let position = self.nodes.binary_search_by(|span| self.node_name(span).cmp(name)).ok()?;
        serde_json::from_slice(self.node_text(self.nodes.get(position)?)).ok()
    }

    /// Replaces or adds nodes by name, and removes others; returns the bytes that are stored. Of several with one name,
    /// the last one is used.
    pub(crate) fn replace_nodes(
        &self,
        nodes: Vec<SnapshotNode>,
        is_gone: impl Fn(&[u8]) -> bool,
    ) -> Vec<u8> {
        let mut new = SnapshotTree::from_nodes(nodes).nodes.into_iter().peekable();
        let mut out = Vec::with_capacity(self.bytes.len());
        out.extend_from_slice(TREE_TEXT_HEAD);
        for span in &self.nodes {
            let name = self.node_name(span);
            while let Some(node) = new.next_if(|node| node.name.as_slice() < name) {
                push_node_text(&mut out, &encode_node(&node));
            }
            if let Some(node) = new.next_if(|node| node.name == name) {
                push_node_text(&mut out, &encode_node(&node));
            } else if !is_gone(name) {
                push_node_text(&mut out, self.node_text(span));
            }
        }
        for node in new {
            push_node_text(&mut out, &encode_node(&node));
        }
        out.extend_from_slice(TREE_TEXT_TAIL);
        out
    }
}

fn encode_node(node: &SnapshotNode) -> Vec<u8> {
    serde_json::to_vec(node).unwrap_or_default()
}

/// Appends the text of a node to those before it; returns its range.
fn push_node_text(out: &mut Vec<u8>, text: &[u8]) -> std::ops::Range<usize> {
    if out.len() > TREE_TEXT_HEAD.len() {
        out.push(b',');
    }
    let start = out.len();
    out.extend_from_slice(text);
    start..out.len()
}

/// Finds the start and end of each node; `None` if the text is not in this program's form. Quotes within a string are
/// escaped, so that a separator cannot occur in a name.
fn split_nodes(bytes: &[u8]) -> Option<Vec<NodeTextSpan>> {
    let inner = bytes.strip_prefix(TREE_TEXT_HEAD)?.strip_suffix(TREE_TEXT_TAIL)?;
    if inner.is_empty() {
        return Some(Vec::new());
    }
    let last = TREE_TEXT_HEAD.len() + inner.len();
    let mut nodes = Vec::new();
    let mut start = TREE_TEXT_HEAD.len();
    // The brace that ends a node, and the comma after it.
    for between in memmem::find_iter(inner, NODE_TEXT_SEPARATOR).map(|at| TREE_TEXT_HEAD.len() + at)
    {
        nodes.push(parse_node_span(bytes, start, between + 1)?);
        start = between + 2;
    }
    nodes.push(parse_node_span(bytes, start, last)?);
    Some(nodes)
}

fn parse_node_span(bytes: &[u8], start: usize, end: usize) -> Option<NodeTextSpan> {
    let text = bytes.get(start..end)?;
    let behind = text.strip_prefix(NODE_TEXT_START)?;
    let length = memchr2(b'"', b'\\', behind)?;
    let name = if behind.get(length..)?.starts_with(NODE_NAME_TERMINATOR) {
        NodeTextName::Plain(length)
    } else {
        // The name is quoted, or this is not a node.
        NodeTextName::Quoted(serde_json::from_slice::<SnapshotNode>(text).ok()?.name)
    };
    text.ends_with(b"}").then_some(NodeTextSpan { start, end, name })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::object_id::VaultObjectId;
    use crate::vault::node::{ExtendedAttribute, SnapshotNodeKind};

    fn name() -> impl Strategy<Value = Vec<u8>> {
        let plain = "[a-e]{1,3}".prop_map(String::into_bytes);
        let odd = proptest::sample::select(vec![
            b"\"},{\"name\":\"".to_vec(),
            b"\\".to_vec(),
            b"\xff\xfe".to_vec(),
            "\u{fc}\n".into(),
            b"},{".to_vec(),
        ]);
        prop_oneof![9 => plain, 1 => odd]
    }

    fn node() -> impl Strategy<Value = SnapshotNode> {
        (name(), any::<u64>(), 0..12_u8).prop_map(|(name, size, kind)| {
            let mut node = SnapshotNode::new(name, SnapshotNodeKind::Dir, 0o700);
            node.size = size;
            match kind {
                0 => node.subtree = Some(VaultObjectId::of(&[1])),
                1 => node.content = Some(vec![VaultObjectId::of(&[2]), VaultObjectId::of(&[3])]),
                2 => {
                    let attribute =
                        |name: &str| ExtendedAttribute { name: name.into(), value: vec![7] };
                    node.extended_attributes = vec![attribute("user.a"), attribute("user.b")];
                }
                3 => node.user = "\"},{\"name\":\"x\",\"type\":\"".to_owned(),
                _ => {}
            }
            node
        })
    }

    proptest! {
        #[test]
        fn nodes_are_replaced_as_in_a_tree(
            old in proptest::collection::vec(node(), 0..12),
            new in proptest::collection::vec(node(), 0..6),
            gone in proptest::collection::vec(name(), 0..4),
        ) {
            let old = SnapshotTree::from_nodes(old);
            let text = SnapshotTreeText::parse(old.to_bytes()).unwrap();
            let by_name = |nodes: &[SnapshotNode]| -> BTreeMap<Vec<u8>, SnapshotNode> {
                nodes.iter().map(|node| (node.name.clone(), node.clone())).collect()
            };
            let mut all = by_name(&old.nodes);
            for name in all.keys().chain(&gone) {
                let found = text.find(name);
                prop_assert_eq!(found.as_ref(), all.get(name));
            }
            all.retain(|name, _| !gone.contains(name));
            all.extend(by_name(&new));
            let expected = SnapshotTree { nodes: all.into_values().collect() }.to_bytes();
            let is_gone = |name: &[u8]| gone.iter().any(|one| one == name);
            prop_assert_eq!(text.replace_nodes(new, is_gone), expected);
        }

        #[test]
        fn damage_is_no_panic(
            nodes in proptest::collection::vec(node(), 0..6),
            (place, byte) in (any::<proptest::sample::Index>(), any::<u8>()),
        ) {
            let mut bytes = SnapshotTree::from_nodes(nodes).to_bytes();
            let place = place.index(bytes.len());
            bytes[place] = byte;
            if let Ok(text) = SnapshotTreeText::parse(bytes) {
                text.replace_nodes(vec![SnapshotNode::new("b", SnapshotNodeKind::Fifo, 0)], |name| name == b"a");
            }
        }
    }

    #[test]
    fn folders_that_others_wrote_are_read() {
        let check = |json: &str, expected: &[&str]| {
            let text = SnapshotTreeText::parse(json.as_bytes().to_vec()).unwrap();
            let names: Vec<&[u8]> = text.nodes.iter().map(|span| text.node_name(span)).collect();
            assert_eq!(names, expected.iter().map(|name| name.as_bytes()).collect::<Vec<_>>());
            let tree = SnapshotTree::parse(json.as_bytes()).unwrap();
            assert_eq!(text.replace_nodes(Vec::new(), |_| false), tree.to_bytes(), "{json}");
        };
        check(r#"{"nodes":[]}"#, &[]);
        check(
            r#"{ "nodes": [ {"type":"fifo","name":"a"}, {"name":"b","type":"dir"} ] }"#,
            &["a", "b"],
        );
        for bad in ["", "{}", r#"{"nodes":[{"name":"a"}]}"#, "{\"nodes\":[{\"name\":\"a\"}]}\n"] {
            assert!(SnapshotTreeText::parse(bad.into()).is_err(), "{bad}");
        }
    }

    #[test]
    fn harmful_folders_are_refused() {
        for bad in [["", "b"], [".", "b"], ["..", "b"], ["a/b", "b"], ["b", "a"], ["a", "a"]] {
            let nodes = bad
                .iter()
                .map(|name| SnapshotNode::new(*name, SnapshotNodeKind::Fifo, 0))
                .collect();
            assert!(SnapshotTreeText::parse(SnapshotTree { nodes }.to_bytes()).is_err(), "{bad:?}");
        }
    }
}
