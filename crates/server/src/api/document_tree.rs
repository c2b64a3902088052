//! The visible part of a document.

use tympan_content::{Node, Subtree};

use crate::failure::Result;

/// Reads the part of a node's subtree within its document that the viewer can see.
pub(crate) fn read_document_tree(node: &Node) -> Result<Subtree> {
    let mut tree = Subtree {
        name: node.name().to_owned(),
        properties: node.properties().into_iter().collect(),
        ..Subtree::default()
    };
    tree.properties.remove("rep:password");
    for child in node.children()? {
        if child.summary().is_none() {
            tree.children.push(read_document_tree(&child)?);
        }
    }
    Ok(tree)
}
