//! Document boundaries: the fixed rule by which the tree is cut into records.
//!
//! A *container* is a folder or a page (not named `jcr:content`): a record of its own. Every other child of a container
//! starts a *document*: one record that holds its whole subtree. A page's `jcr:content` belongs to the page's own
//! record. The rule depends only on stored values, so equal content is always cut alike and has one root; a different
//! rule is a new format version.

use crate::model::subtree::JCR_CONTENT;

/// Returns true if a child of a container, with this name and primary type, is a container too. A node named
/// `jcr:content` never is, so that the last record on a path is known from the path alone.
pub(crate) fn is_container(name: &str, primary_type: &str) -> bool {
    let is_folder = matches!(
        primary_type,
        "rep:root"
            | "nt:folder"
            | "sling:Folder"
            | "sling:OrderedFolder"
            | "cq:Page"
            | "rep:AuthorizableFolder"
    );
    is_folder && name != JCR_CONTENT
}

/// Returns true if children of nodes of this type have documents of their own.
#[must_use]
pub fn is_container_type(primary_type: &str) -> bool {
    is_container("", primary_type)
}

/// Returns true if the order of a container's children is content; otherwise they are listed by name.
pub(crate) fn has_ordered_children(primary_type: &str) -> bool {
    matches!(primary_type, "sling:OrderedFolder" | "cq:Page")
}

/// Returns true if the child `name` of a container of this type belongs to the container's own record.
pub(crate) fn is_own_content(primary_type: &str, name: &str) -> bool {
    primary_type == "cq:Page" && name == JCR_CONTENT
}
