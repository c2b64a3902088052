//! The writer of docviews.
//!
//! The form is FileVault's: one attribute per line, `jcr:mixinTypes` and the other properties sorted by name, empty
//! elements self-closed.

use std::collections::BTreeSet;

use tympan_content::Subtree;

use crate::docview::{DocviewNamespaces, default_value_type, iso9075, literal};
use crate::xml_reader::push_escaped_attribute;

/// The form of a child in its parent's document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChildPlacement {
    /// Complete, with everything below it.
    Inline,
    /// An empty element that only fixes the order; the child is described elsewhere.
    OrderOnly,
}

/// Writes a node with everything below it as a docview. The node's own name is not included.
#[must_use]
pub fn write_docview(node: &Subtree, namespaces: &DocviewNamespaces) -> String {
    write_docview_split(node, namespaces, &mut |_, _| ChildPlacement::Inline)
}

/// Writes a node; `split` decides for every descendant, given its path relative to `node`.
pub(crate) fn write_docview_split(
    node: &Subtree,
    namespaces: &DocviewNamespaces,
    split: &mut dyn FnMut(&str, &Subtree) -> ChildPlacement,
) -> String {
    let mut prefixes = BTreeSet::from(["jcr".to_owned()]);
    let mut body = String::new();
    let mut writer = DocviewWriter { out: &mut body, prefixes: &mut prefixes, place_child: split };
    writer.push_attributes_and_children(node, "jcr:root", "", 0);
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<jcr:root");
    for prefix in prefixes {
        out.push_str(" xmlns:");
        out.push_str(&prefix);
        out.push_str("=\"");
        push_escaped_attribute(&mut out, &namespaces.uri_of(&prefix));
        out.push('"');
    }
    out.push_str(&body);
    out
}

struct DocviewWriter<'a> {
    out: &'a mut String,
    prefixes: &'a mut BTreeSet<String>,
    place_child: &'a mut dyn FnMut(&str, &Subtree) -> ChildPlacement,
}

impl DocviewWriter<'_> {
    /// Writes the rest of an element after its name: attributes and children.
    fn push_attributes_and_children(
        &mut self,
        node: &Subtree,
        element: &str,
        path: &str,
        depth: usize,
    ) {
        for (name, property) in &node.properties {
            self.push_indent(depth + 1);
            let name_in_xml = self.encode_name(name);
            self.out.push_str(&name_in_xml);
            self.out.push_str("=\"");
            push_escaped_attribute(
                self.out,
                &literal::write_literal(property, default_value_type(name)),
            );
            self.out.push('"');
        }
        if node.children.is_empty() {
            self.out.push_str("/>\n");
            return;
        }
        self.out.push('>');
        for child in &node.children {
            let separator = if path.is_empty() { "" } else { "/" };
            let child_path = format!("{path}{separator}{}", child.name);
            let child_element = self.encode_name(&child.name);
            self.push_indent(depth + 1);
            self.out.push('<');
            self.out.push_str(&child_element);
            match (self.place_child)(&child_path, child) {
                ChildPlacement::OrderOnly => self.out.push_str("/>"),
                ChildPlacement::Inline => {
                    self.push_attributes_and_children(
                        child,
                        &child_element,
                        &child_path,
                        depth + 1,
                    );
                    // The next item starts its own line.
                    self.out.truncate(self.out.trim_end().len());
                }
            }
        }
        self.push_indent(depth);
        self.out.push_str("</");
        self.out.push_str(element);
        self.out.push_str(">\n");
    }

    fn push_indent(&mut self, depth: usize) {
        self.out.push('\n');
        for _ in 0..depth {
            self.out.push_str("    ");
        }
    }

    fn encode_name(&mut self, name: &str) -> String {
        if let Some((prefix, _)) = name.split_once(':').filter(|(prefix, _)| *prefix != "xml") {
            let prefix = iso9075::encode_name(prefix);
            if !self.prefixes.contains(&prefix) {
                self.prefixes.insert(prefix);
            }
        }
        iso9075::encode_name(name)
    }
}
