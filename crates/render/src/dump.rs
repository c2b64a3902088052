//! A resource as plain text, as a document view, or as a bare page: what shows where no component draws it.

use std::fmt::Write;

use tympan_content::package::docview;
use tympan_content::{Node, Property, Subtree, Value};

use crate::reads::Reader;
use crate::resource::Resource;
use crate::template::escape;

/// The most nodes of a document view; larger trees are for packages.
pub(crate) const MAX_XML_NODES: usize = 10_000;

/// Writes a resource as Sling's plain-text renderer does: a header, then `name: value`.
pub(crate) fn text(resource: &Resource) -> String {
    let mut out = format!(
        "** Resource dumped by PlainTextRendererServlet**\nResource path:{}\nResource metadata: {{}}\nResource type: {}\nResource super type: {}\n\n** Resource properties **\n",
        resource.path(),
        resource.resource_type(),
        resource.super_type().unwrap_or("-"),
    );
    let visible = resource.node().map(|node| node.properties()).unwrap_or_default().into_iter();
    for (name, property) in visible.filter(|(name, _)| name != "rep:password") {
        // Writing into a string cannot fail.
        let _ = writeln!(out, "{name}: {}", value_text(&property));
    }
    out
}

/// Writes a resource as a page with its properties and links to its children, for authors.
pub(crate) fn html(reader: &Reader, resource: &Resource) -> String {
    let path = escape(resource.path().as_str());
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{path}</title></head><body>\n\
         <h1>{path}</h1>\n<p>No script draws the type <code>{}</code>.</p>\n<table>\n",
        escape(resource.resource_type())
    );
    let Some(node) = resource.node() else {
        return out;
    };
    for (name, property) in node.properties().into_iter().filter(|(name, _)| name != "rep:password")
    {
        let (name, value) = (escape(&name), escape(&value_text(&property)));
        let _ = writeln!(out, "<tr><th>{name}</th><td>{value}</td></tr>");
    }
    out.push_str("</table>\n<ul>\n");
    for child in reader.children(node) {
        let href = escape(&crate::link::encode_path(child.path().as_str()));
        let _ = writeln!(out, "<li><a href=\"{href}.html\">{}</a></li>", escape(child.name()));
    }
    out.push_str("</ul>\n</body></html>\n");
    out
}

/// Writes a resource with everything below it as a document view, as packages hold it; nothing if these are more than
/// [`MAX_XML_NODES`].
pub(crate) fn xml(reader: &Reader, node: &Node) -> Option<String> {
    let mut left = MAX_XML_NODES;
    let tree = subtree(reader, node, &mut left)?;
    Some(docview::write(&tree, &docview::Namespaces::default()))
}

/// Reads a node with everything below it, noting what was read.
fn subtree(reader: &Reader, node: &Node, left: &mut usize) -> Option<Subtree> {
    *left = left.checked_sub(1)?;
    let mut tree = Subtree { name: node.name().to_owned(), ..Subtree::default() };
    let visible = node.properties().into_iter().filter(|(name, _)| name != "rep:password");
    tree.properties.extend(visible);
    for child in reader.children(node) {
        tree.children.push(subtree(reader, &child, left)?);
    }
    Some(tree)
}

/// Writes a property on one line: lists in brackets, binaries as their size.
fn value_text(property: &Property) -> String {
    let one = |value: &Value| match value {
        Value::Binary(blob) => format!("{} bytes", blob.length()),
        value => value.to_text().into_owned(),
    };
    match property {
        Property::Single(value) => one(value),
        Property::List(_, values) => {
            format!("[{}]", values.iter().map(one).collect::<Vec<_>>().join(", "))
        }
    }
}
