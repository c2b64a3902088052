//! The tree of a dialog, as a form is made from it: the node of a dialog with the items of its data sources.
//!
//! In: the node of a dialog, with its includes and without what is hidden (`render::dialog`). Out: [`DialogNode`].

use tympan_content::Node;

use super::data_source::source_items;
use super::dialog_context::DialogContext;
use super::dialog_node::DialogNode;
use crate::failure::Result;

/// Maximum depth of a dialog's tree; what is deeper is left out.
const MAX_DIALOG_DEPTH: usize = 40;

/// Reads the tree of a dialog.
///
/// # Errors
/// If content cannot be read.
pub(super) fn read_dialog_tree(context: &DialogContext<'_>, dialog: &Node) -> Result<DialogNode> {
    read_tree(context, dialog, 0)
}

fn read_tree(context: &DialogContext<'_>, node: &Node, depth: usize) -> Result<DialogNode> {
    let mut read = DialogNode {
        name: node.name().to_owned(),
        properties: node.properties(),
        children: Vec::new(),
    };
    if depth >= MAX_DIALOG_DEPTH {
        return Ok(read);
    }
    for child in node.children()? {
        read.children.push(read_tree(context, &child, depth + 1)?);
    }
    let source = read.child("datasource").or(read.child("granite:datasource"));
    let items = source.map(|source| source_items(context, source)).transpose()?;
    for item in items.into_iter().flatten() {
        read.children.push(read_tree(context, &item, depth + 1)?);
    }
    Ok(read)
}
