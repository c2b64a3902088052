//! Default output of resources that no component renders: plain text, a document view, or a bare page.

use std::fmt::Write;

use tympan_content::{Node, Property, Subtree, Value};
use tympan_content_package::docview;
use tympan_notation::escape_html;

use crate::dependency::content_reader::ContentReader;
use crate::resource::ContentResource;

/// Maximum number of nodes of a document view; larger trees need packages.
pub(crate) const MAX_XML_NODES: usize = 10_000;

/// Writes a resource like Sling's plain-text renderer: a header, then `name: value`.
pub(crate) fn write_plain_text(resource: &ContentResource) -> String {
    let mut out = format!(
        "** Resource dumped by PlainTextRendererServlet**\nResource path:{}\nResource metadata: {{}}\nResource type: {}\nResource super type: {}\n\n** Resource properties **\n",
        resource.path(),
        resource.resource_type(),
        resource.super_type().unwrap_or("-"),
    );
    let visible = resource.node().map(|node| node.properties()).unwrap_or_default().into_iter();
    for (name, property) in visible.filter(|(name, _)| name != "rep:password") {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{name}: {}", format_property_value(&property));
    }
    out
}

/// Writes a resource as a page with its properties and links to its children, for authors.
pub(crate) fn write_html(reader: &ContentReader, resource: &ContentResource) -> String {
    let path = escape_html(resource.path().as_str());
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{path}</title></head><body>\n\
         <h1>{path}</h1>\n<p>No script draws the type <code>{}</code>.</p>\n<table>\n",
        escape_html(resource.resource_type())
    );
    let Some(node) = resource.node() else {
        return out;
    };
    for (name, property) in node.properties().into_iter().filter(|(name, _)| name != "rep:password")
    {
        let (name, value) = (escape_html(&name), escape_html(&format_property_value(&property)));
        let _ = writeln!(out, "<tr><th>{name}</th><td>{value}</td></tr>");
    }
    out.push_str("</table>\n<ul>\n");
    for child in reader.children(node) {
        let href = escape_html(&crate::page::link::encode_path(child.path().as_str()));
        let _ = writeln!(out, "<li><a href=\"{href}.html\">{}</a></li>", escape_html(child.name()));
    }
    out.push_str("</ul>\n</body></html>\n");
    out
}

/// Writes a resource and its descendants as a document view, as in packages; `None` if there are more than
/// [`MAX_XML_NODES`].
pub(crate) fn write_document_view(reader: &ContentReader, node: &Node) -> Option<String> {
    let mut left = MAX_XML_NODES;
    let tree = read_subtree(reader, node, &mut left)?;
    Some(docview::write_docview(&tree, &docview::DocviewNamespaces::default()))
}

/// Reads a node and its descendants, and records the reads.
fn read_subtree(reader: &ContentReader, node: &Node, left: &mut usize) -> Option<Subtree> {
    *left = left.checked_sub(1)?;
    let mut tree = Subtree { name: node.name().to_owned(), ..Subtree::default() };
    let visible = node.properties().into_iter().filter(|(name, _)| name != "rep:password");
    tree.properties.extend(visible);
    for child in reader.children(node) {
        tree.children.push(read_subtree(reader, &child, left)?);
    }
    Some(tree)
}

/// Formats a property on one line: lists in brackets, binaries as their size.
fn format_property_value(property: &Property) -> String {
    let format_value = |value: &Value| match value {
        Value::Binary(blob) => format!("{} bytes", blob.length()),
        value => value.to_text().into_owned(),
    };
    match property {
        Property::Single(value) => format_value(value),
        Property::List(_, values) => {
            format!("[{}]", values.iter().map(format_value).collect::<Vec<_>>().join(", "))
        }
    }
}
