//! Writing docviews.
//!
//! The form is FileVault's: one attribute to a line, `jcr:mixinTypes` and the other properties sorted by name, an
//! element that holds nothing closed at once.

use std::collections::BTreeSet;

use super::super::xml::push_attribute;
use super::{Namespaces, iso9075, literal, untyped};
use crate::Subtree;

/// How a child appears in its parent's document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Split {
    /// Whole, with everything below.
    Inside,
    /// As an empty element that tells the order: it is described elsewhere.
    Elsewhere,
}

/// Writes a node with everything below it as a docview. The node's own name is not part of it.
#[must_use]
pub fn write(node: &Subtree, namespaces: &Namespaces) -> String {
    write_split(node, namespaces, &mut |_, _| Split::Inside)
}

/// Writes a node; `split` is asked for every node below, with its path relative to `node`.
pub(in super::super) fn write_split(
    node: &Subtree,
    namespaces: &Namespaces,
    split: &mut dyn FnMut(&str, &Subtree) -> Split,
) -> String {
    let mut prefixes = BTreeSet::from(["jcr".to_owned()]);
    let mut body = String::new();
    let mut writer = Writer { out: &mut body, prefixes: &mut prefixes, split };
    writer.push_rest(node, "jcr:root", "", 0);
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<jcr:root");
    for prefix in prefixes {
        out.push_str(" xmlns:");
        out.push_str(&prefix);
        out.push_str("=\"");
        push_attribute(&mut out, &namespaces.uri(&prefix));
        out.push('"');
    }
    out.push_str(&body);
    out
}

struct Writer<'a> {
    out: &'a mut String,
    prefixes: &'a mut BTreeSet<String>,
    split: &'a mut dyn FnMut(&str, &Subtree) -> Split,
}

impl Writer<'_> {
    /// Writes what follows the element's name: attributes and children.
    fn push_rest(&mut self, node: &Subtree, element: &str, path: &str, depth: usize) {
        for (name, property) in &node.properties {
            self.push_indent(depth + 1);
            let name_in_xml = self.name(name);
            self.out.push_str(&name_in_xml);
            self.out.push_str("=\"");
            push_attribute(self.out, &literal::write(property, untyped(name)));
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
            let child_element = self.name(&child.name);
            self.push_indent(depth + 1);
            self.out.push('<');
            self.out.push_str(&child_element);
            match (self.split)(&child_path, child) {
                Split::Elsewhere => self.out.push_str("/>"),
                Split::Inside => {
                    self.push_rest(child, &child_element, &child_path, depth + 1);
                    // The line ends where the next one begins.
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

    fn name(&mut self, name: &str) -> String {
        if let Some((prefix, _)) = name.split_once(':').filter(|(prefix, _)| *prefix != "xml") {
            let prefix = iso9075::encode(prefix);
            if !self.prefixes.contains(&prefix) {
                self.prefixes.insert(prefix);
            }
        }
        iso9075::encode(name)
    }
}
