//! A document as a tree, and the parser of XML.

use std::collections::HashMap;

/// The ID of a node in its tree.
pub(crate) type MarkupNodeId = usize;

/// The kind of a node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum MarkupNodeKind {
    Root,
    Element { name: String, attributes: Vec<(String, String)> },
    Text(String),
    Comment(String),
    Instruction { target: String, data: String },
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MarkupNode {
    pub(crate) kind: MarkupNodeKind,
    pub(crate) parent: Option<MarkupNodeId>,
    pub(crate) children: Vec<MarkupNodeId>,
}

/// A document.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MarkupTree {
    nodes: Vec<MarkupNode>,
    /// The namespace declarations at the document's root, as attributes: markup of a part includes them too.
    namespace_declarations: String,
}

/// Maximum expanded size of a response's entities in bytes: a small response must not exhaust the memory.
const MAX_EXPANDED_BYTES: u64 = 64 << 20;
/// Maximum nesting depth of entities that the parser supports.
const MAX_ENTITY_DEPTH: usize = 10;
/// Maximum number of nodes of a parsed response.
const MAX_NODES: u32 = 2_000_000;

/// Maximum number of undeclared prefixes that are tolerated.
const MAX_UNDECLARED_PREFIXES: usize = 100;

/// Returns the end offset of the name in the first tag of a document.
fn first_tag_name_end(text: &str) -> Option<usize> {
    let starts = text.match_indices('<').map(|(at, _)| at + 1);
    let start = starts
        .into_iter()
        .find(|at| text.get(*at..).is_some_and(|rest| !rest.starts_with(['?', '!'])))?;
    let name = text.get(start..)?;
    let end = name.find(|c: char| c.is_whitespace() || matches!(c, '>' | '/'))?;
    Some(start + end)
}

impl MarkupTree {
    pub(super) fn new() -> Self {
        let root = MarkupNode { kind: MarkupNodeKind::Root, parent: None, children: Vec::new() };
        Self { nodes: vec![root], namespace_declarations: String::new() }
    }

    pub(super) fn add_node(&mut self, parent: MarkupNodeId, kind: MarkupNodeKind) -> MarkupNodeId {
        let id = self.nodes.len();
        self.nodes.push(MarkupNode { kind, parent: Some(parent), children: Vec::new() });
        if let Some(node) = self.nodes.get_mut(parent) {
            node.children.push(id);
        }
        id
    }

    /// Parses XML.
    ///
    /// # Errors
    /// A description of the syntax error.
    pub(crate) fn parse_xml(text: &str) -> Result<Self, String> {
        if expanded_entity_length(text) > MAX_EXPANDED_BYTES {
            return Err("its entities expand to too much text".to_owned());
        }
        let options = roxmltree::ParsingOptions {
            allow_dtd: true,
            nodes_limit: MAX_NODES,
            ..Default::default()
        };
        let document =
            roxmltree::Document::parse_with_options(text.trim_start_matches('\u{feff}'), options)
                .map_err(|error| error.to_string())?;
        let mut tree = Self::new();
        for namespace in document.root_element().namespaces() {
            if let Some(prefix) = namespace.name().filter(|prefix| *prefix != "xml") {
                let uri = escape_markup(namespace.uri()).replace('"', "&quot;");
                tree.namespace_declarations.push_str(&format!(" xmlns:{prefix}=\"{uri}\""));
            }
        }
        let mut open: Vec<(roxmltree::Node<'_, '_>, MarkupNodeId)> = vec![(document.root(), 0)];
        // Depth first, so that IDs are in document order.
        while let Some((node, parent)) = open.pop() {
            let id = match markup_kind_of(&node) {
                Some(MarkupNodeKind::Root) => 0,
                Some(kind) => tree.add_node(parent, kind),
                None => continue,
            };
            let children: Vec<_> = node.children().collect();
            open.extend(children.into_iter().rev().map(|child| (child, id)));
        }
        Ok(tree)
    }

    /// Checks that a text is well-formed XML without a document type, as JMeter's parser does: prefixes need no
    /// declaration.
    ///
    /// # Errors
    /// A description of the syntax error.
    pub(crate) fn check_well_formed(text: &str) -> Result<(), String> {
        let mut text = text.trim_start_matches('\u{feff}').to_owned();
        for _ in 0..MAX_UNDECLARED_PREFIXES {
            let options =
                roxmltree::ParsingOptions { nodes_limit: MAX_NODES, ..Default::default() };
            let parsed = roxmltree::Document::parse_with_options(&text, options).map(drop);
            match parsed {
                Ok(()) => return Ok(()),
                // Declare the prefix at the document's root, so that the parser continues.
                Err(roxmltree::Error::UnknownNamespace(prefix, _)) => {
                    let Some(end) = first_tag_name_end(&text) else { return Ok(()) };
                    text.insert_str(end, &format!(" xmlns:{prefix}=\"urn:{prefix}\""));
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    pub(crate) fn kind(&self, id: MarkupNodeId) -> &MarkupNodeKind {
        self.nodes.get(id).map_or(&MarkupNodeKind::Root, |node| &node.kind)
    }

    pub(crate) fn parent(&self, id: MarkupNodeId) -> Option<MarkupNodeId> {
        self.nodes.get(id)?.parent
    }

    pub(crate) fn children(&self, id: MarkupNodeId) -> &[MarkupNodeId] {
        self.nodes.get(id).map_or(&[], |node| &node.children)
    }

    /// Returns an element's name; empty for other nodes.
    pub(crate) fn name(&self, id: MarkupNodeId) -> &str {
        match self.kind(id) {
            MarkupNodeKind::Element { name, .. } => name,
            _ => "",
        }
    }

    pub(crate) fn is_element(&self, id: MarkupNodeId) -> bool {
        matches!(self.kind(id), MarkupNodeKind::Element { .. })
    }

    pub(crate) fn attributes(&self, id: MarkupNodeId) -> &[(String, String)] {
        match self.kind(id) {
            MarkupNodeKind::Element { attributes, .. } => attributes,
            _ => &[],
        }
    }

    pub(crate) fn attribute(&self, id: MarkupNodeId, name: &str) -> Option<&str> {
        let pair = self.attributes(id).iter().find(|(key, _)| key == name);
        pair.map(|(_, value)| value.as_str())
    }

    /// Returns the unmodified text of a node and its descendants.
    pub(crate) fn text(&self, id: MarkupNodeId) -> String {
        match self.kind(id) {
            MarkupNodeKind::Text(text) | MarkupNodeKind::Comment(text) => text.clone(),
            MarkupNodeKind::Instruction { data, .. } => data.clone(),
            MarkupNodeKind::Root | MarkupNodeKind::Element { .. } => {
                let mut out = String::new();
                for below in self.descendants(id) {
                    if let MarkupNodeKind::Text(text) = self.kind(below) {
                        out.push_str(text);
                    }
                }
                out
            }
        }
    }

    /// Returns the DOM node value; `None` for elements.
    pub(crate) fn node_value(&self, id: MarkupNodeId) -> Option<&str> {
        match self.kind(id) {
            MarkupNodeKind::Text(text) | MarkupNodeKind::Comment(text) => Some(text),
            MarkupNodeKind::Instruction { data, .. } => Some(data),
            MarkupNodeKind::Root | MarkupNodeKind::Element { .. } => None,
        }
    }

    /// Returns a node as markup.
    pub(crate) fn to_markup(&self, id: MarkupNodeId) -> String {
        let mut out = String::new();
        self.write_markup(id, &mut out);
        out
    }

    fn write_markup(&self, from: MarkupNodeId, out: &mut String) {
        // Uses an explicit stack, because documents may be nested too deeply for a thread's stack.
        let mut open = vec![(from, false)];
        while let Some((id, is_end)) = open.pop() {
            match self.kind(id) {
                MarkupNodeKind::Element { name, .. } if is_end => {
                    out.push_str(&format!("</{name}>"))
                }
                MarkupNodeKind::Element { name, attributes } => {
                    out.push_str(&format!("<{name}"));
                    if id == from {
                        out.push_str(&self.namespace_declarations);
                    }
                    for (name, value) in attributes {
                        out.push_str(&format!(
                            " {name}=\"{}\"",
                            escape_markup(value).replace('"', "&quot;")
                        ));
                    }
                    if self.children(id).is_empty() {
                        out.push_str("/>");
                        continue;
                    }
                    out.push('>');
                    open.push((id, true));
                }
                MarkupNodeKind::Text(text) => out.push_str(&escape_markup(text)),
                MarkupNodeKind::Comment(text) => out.push_str(&format!("<!--{text}-->")),
                MarkupNodeKind::Instruction { target, data } => {
                    out.push_str(&format!("<?{target} {data}?>"))
                }
                MarkupNodeKind::Root => {}
            }
            if !is_end {
                open.extend(self.children(id).iter().rev().map(|&child| (child, false)));
            }
        }
    }
}

/// Returns the expanded length of a document's references to its own entities; 0 if it declares none.
fn expanded_entity_length(text: &str) -> u64 {
    // A declaration: its name, and its value in either kind of quotes.
    let mut values: Vec<(&str, &str)> = Vec::new();
    for declaration in text.split("<!ENTITY").skip(1) {
        let rest = declaration.trim_start();
        let name = rest.split(char::is_whitespace).next().unwrap_or_default();
        let rest = rest.get(name.len()..).unwrap_or_default().trim_start();
        let Some(quote) = rest.chars().next().filter(|c| matches!(c, '"' | '\'')) else { continue };
        let value = rest.get(1..).and_then(|rest| rest.split(quote).next()).unwrap_or_default();
        values.push((name, value));
    }
    if values.is_empty() {
        return 0;
    }
    let mut lengths: HashMap<&str, u64> = HashMap::new();
    // An entity may refer to others that are declared later, up to the parser's depth limit.
    for _ in 0..MAX_ENTITY_DEPTH.min(values.len()) {
        for (name, value) in &values {
            let length = value.len() as u64;
            lengths.insert(name, length.saturating_add(referenced_entity_length(value, &lengths)));
        }
    }
    referenced_entity_length(text, &lengths)
}

/// Returns the expanded length of a text's entity references.
fn referenced_entity_length(text: &str, lengths: &HashMap<&str, u64>) -> u64 {
    let names = text.split('&').skip(1).filter_map(|rest| rest.get(..rest.find(';')?));
    names.filter_map(|name| lengths.get(name)).fold(0, |sum, length| sum.saturating_add(*length))
}

fn escape_markup(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn markup_kind_of(node: &roxmltree::Node<'_, '_>) -> Option<MarkupNodeKind> {
    use roxmltree::NodeType;
    let named = |uri: Option<&str>, name: &str| match uri.and_then(|uri| node.lookup_prefix(uri)) {
        Some(prefix) if !prefix.is_empty() => format!("{prefix}:{name}"),
        _ => name.to_owned(),
    };
    Some(match node.node_type() {
        NodeType::Root => MarkupNodeKind::Root,
        NodeType::Element => {
            let tag = node.tag_name();
            let attributes = node
                .attributes()
                .map(|attribute| {
                    (named(attribute.namespace(), attribute.name()), attribute.value().to_owned())
                })
                .collect();
            MarkupNodeKind::Element { name: named(tag.namespace(), tag.name()), attributes }
        }
        NodeType::Text => MarkupNodeKind::Text(node.text()?.to_owned()),
        NodeType::Comment => MarkupNodeKind::Comment(node.text()?.to_owned()),
        NodeType::PI => {
            let instruction = node.pi()?;
            let (target, data) =
                (instruction.target.to_owned(), instruction.value.unwrap_or_default().to_owned());
            MarkupNodeKind::Instruction { target, data }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xml_is_read_in_the_order_of_the_document() {
        let tree = MarkupTree::parse_xml("<a x='1'><b>t</b><!--c--><d:e xmlns:d='u'/><?p q?></a>")
            .unwrap();
        assert_eq!(tree.to_markup(0), "<a x=\"1\"><b>t</b><!--c--><d:e/><?p q?></a>");
        let names: Vec<&str> = tree.descendants(0).map(|id| tree.name(id)).collect();
        assert_eq!(names, ["a", "b", "", "", "d:e", ""]);
        assert!(MarkupTree::parse_xml("<a>").is_err());
    }

    #[test]
    fn html_is_read_as_browsers_do() {
        let tree = MarkupTree::parse_html("<p>one<p>two<table><tr><td>x</table>");
        assert_eq!(
            tree.to_markup(0),
            "<html><head/><body><p>one</p><p>two<table><tbody><tr><td>x</td></tr></tbody></table></p></body></html>"
        );
    }

    #[test]
    fn entities_are_resolved_as_long_as_they_are_no_bomb() {
        let tree = MarkupTree::parse_xml(
            "<!DOCTYPE a [<!ENTITY b 'two'><!ENTITY c \"one &b;\">]><a>&c;</a>",
        );
        assert_eq!(tree.unwrap().text(0), "one two");
        // Many references to a long entity: 100 KB become 100 MB.
        let long = "x".repeat(50_000);
        let often = "&b;".repeat(2_000);
        let wide = format!("<!DOCTYPE a [<!ENTITY b '{long}'>]><a>{often}</a>");
        assert!(MarkupTree::parse_xml(&wide).unwrap_err().contains("entities"));
        // Each entity is ten times the previous one, eight times.
        let mut nested = "<!DOCTYPE a [<!ENTITY e0 '0123456789'>".to_owned();
        for level in 1..9 {
            let value = format!("&e{};", level - 1).repeat(10);
            nested.push_str(&format!("<!ENTITY e{level} '{value}'>"));
        }
        nested.push_str("]><a>&e8;</a>");
        assert!(MarkupTree::parse_xml(&nested).unwrap_err().contains("entities"));
    }

    #[test]
    fn deep_documents_are_no_danger() {
        let deep = "<div>".repeat(3_000);
        let tree = MarkupTree::parse_html(&deep);
        assert!(tree.to_markup(0).len() > 100);
        assert_eq!(tree.text(0), "");
    }
}
