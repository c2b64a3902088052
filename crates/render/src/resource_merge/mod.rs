//! Merged resources: what lies at one path below the search paths, or a resource with those of its super types.
//!
//! They are those of Sling's resource merger: `/mnt/overlay/<path>` and `/mnt/override/<path>`.
//!
//! Input: a snapshot and a path. Output: a tree, and a node that exists in memory only.
//!
//! Invariants
//! * Every stored node is read through the snapshot, so that a merged resource shows nothing that its viewer may not
//!   read.
//! * A merged resource is read only: no session can reach it.
//! * A merge reads a limited number of nodes and bytes, and follows a limited number of super types.
//!
//! `tree_merge` merges trees, `merge_layer` finds and reads them, and `platform_content` has those of this program.

mod merge_layer;
mod platform_content;
mod tree_merge;

use self::merge_layer::{MergeLayer, overlay_layers, override_layers, read_layers};
pub(crate) use self::platform_content::PLATFORM_SUPER_TYPES;
use tympan_content::{Node, NodePath, Result, Snapshot, Subtree};

/// The path below which resources of the search paths are merged.
const OVERLAY_ROOT: &str = "/mnt/overlay/";
/// The path below which resources are merged with those of their super types.
const OVERRIDE_ROOT: &str = "/mnt/override/";

/// Returns true if a path is that of a merged resource, whether or not there is one.
#[must_use]
pub fn is_merged_path(path: &str) -> bool {
    path.starts_with(OVERLAY_ROOT) || path.starts_with(OVERRIDE_ROOT)
}

/// Finds the merged resource at a path below `/mnt/overlay` or `/mnt/override`; `None` for other paths, and if nothing
/// of it exists or all is hidden.
///
/// # Errors
/// [`tympan_content::Error::InvalidEdit`] if it is too large to be merged; if content cannot be read.
pub fn find_merged_node(snapshot: &Snapshot, path: &NodePath) -> Result<Option<Node>> {
    let Some(layers) = layers_of_path(snapshot, path)? else { return Ok(None) };
    match read_layers(snapshot, &layers)? {
        Some(tree) => snapshot.detached_node(path, tree),
        None => Ok(None),
    }
}

/// Reads the resource at a path, merged if it is the path of a merged one; `None` if there is none.
///
/// # Errors
/// As [`find_merged_node`].
pub(crate) fn find_merged_tree(snapshot: &Snapshot, path: &NodePath) -> Result<Option<Subtree>> {
    let layers = match layers_of_path(snapshot, path)? {
        Some(layers) => layers,
        None => vec![MergeLayer::of_path(path)],
    };
    read_layers(snapshot, &layers)
}

/// Returns the stored resources that are merged at a path, the underlying one first; `None` if it is no path of a merged
/// resource.
fn layers_of_path(snapshot: &Snapshot, path: &NodePath) -> Result<Option<Vec<MergeLayer>>> {
    if let Some(relative) = path.as_str().strip_prefix(OVERLAY_ROOT) {
        return overlay_layers(relative).map(Some);
    }
    match path.as_str().strip_prefix(OVERRIDE_ROOT) {
        Some(rest) => override_layers(snapshot, &NodePath::new(&format!("/{rest}"))?).map(Some),
        None => Ok(None),
    }
}

/// Returns the paths of the resources that are merged at a path, whether or not they exist.
pub(crate) fn merged_paths(snapshot: &Snapshot, path: &NodePath) -> Result<Vec<NodePath>> {
    let layers = layers_of_path(snapshot, path)?.unwrap_or_default();
    Ok(layers.into_iter().map(|layer| layer.path).collect())
}

/// Merges a stored resource with those of its super types; `None` if there is none or all is hidden.
///
/// # Errors
/// As [`find_merged_node`].
pub(crate) fn read_override(snapshot: &Snapshot, path: &NodePath) -> Result<Option<Subtree>> {
    read_layers(snapshot, &override_layers(snapshot, path)?)
}

/// Returns the path of a stored resource and those at the same place below its super types, the nearest first, whether
/// or not they exist.
pub(crate) fn inherited_paths(snapshot: &Snapshot, path: &NodePath) -> Result<Vec<NodePath>> {
    let layers = override_layers(snapshot, path)?;
    Ok(layers.into_iter().rev().map(|layer| layer.path).collect())
}
