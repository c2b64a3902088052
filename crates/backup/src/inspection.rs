//! Inspecting snapshots: listing, finding paths, comparing, and reading files.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::deep_stack;
use crate::error::{Error, Result};
use crate::object_id::VaultObjectId;
use crate::vault::index::VaultIndex;
use crate::vault::node::{SnapshotNode, SnapshotNodeKind, SnapshotTree, go_mode};
use crate::vault::snapshot::VaultSnapshot;
use crate::vault::{IndexedVault, Vault};

/// Finds the node at a path of a snapshot such as `/srv/site`; the snapshot's topmost folder for `/`.
///
/// # Errors
/// [`Error::PathMissing`], or a folder that cannot be read.
pub fn find_path(
    vault: &Vault,
    index: &VaultIndex,
    snapshot: &VaultSnapshot,
    path: &str,
) -> Result<SnapshotNode> {
    let mut node = SnapshotNode::new("", SnapshotNodeKind::Dir, go_mode::DIR | 0o755);
    node.subtree = Some(snapshot.tree);
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let tree = node.subtree.map(|tree| vault.read_tree(index, &tree)).transpose()?;
        let child = tree.and_then(|tree| tree.find(name.as_bytes()).cloned());
        node = child.ok_or_else(|| Error::PathMissing {
            snapshot: snapshot.id.short(),
            path: path.to_owned(),
        })?;
    }
    Ok(node)
}

/// Lists the nodes directly in a folder; none for a file.
///
/// # Errors
/// A folder that cannot be read.
pub fn list_folder(
    IndexedVault { vault, index }: IndexedVault<'_>,
    folder: &SnapshotNode,
) -> Result<Vec<SnapshotNode>> {
    let tree = folder.subtree.map(|tree| vault.read_tree(index, &tree)).transpose()?;
    Ok(tree.map(|tree| tree.nodes).unwrap_or_default())
}

/// Visits everything below a folder, by path, until `visit` fails.
///
/// # Errors
/// An error of `visit`, or a folder that cannot be read.
pub fn walk_tree(
    IndexedVault { vault, index }: IndexedVault<'_>,
    tree: &VaultObjectId,
    above: &Path,
    visit: &mut dyn FnMut(&Path, &SnapshotNode) -> Result<()>,
) -> Result<()> {
    let mut open = vec![(above.to_owned(), vault.read_tree(index, tree)?.nodes.into_iter())];
    while let Some((above, nodes)) = open.last_mut() {
        let Some(node) = nodes.next() else {
            open.pop();
            continue;
        };
        let path = node_path(above, &node);
        visit(&path, &node)?;
        if let Some(tree) = &node.subtree {
            deep_stack::check_folder_depth(open.len(), tree)?;
            open.push((path, vault.read_tree(index, tree)?.nodes.into_iter()));
        }
    }
    Ok(())
}

/// Returns the path of a node in a folder; the path of the topmost folder is `/`, or empty.
fn node_path(above: &Path, node: &SnapshotNode) -> PathBuf {
    let above = if above.as_os_str().is_empty() { Path::new("/") } else { above };
    above.join(OsStr::from_bytes(&node.name))
}

/// How a path differs between two snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotChange {
    /// Only the later snapshot contains it.
    Added,
    /// Only the earlier snapshot contains it.
    Removed,
    /// Its content differs.
    Modified,
    /// Only its metadata differs.
    MetadataChanged,
    /// Its node type differs.
    KindChanged,
}

impl SnapshotChange {
    /// Returns the character that precedes the path in listings.
    #[must_use]
    pub const fn sign(self) -> char {
        match self {
            Self::Added => '+',
            Self::Removed => '-',
            Self::Modified => 'M',
            Self::MetadataChanged => 'U',
            Self::KindChanged => 'T',
        }
    }
}

/// A path in which two snapshots differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotDifference {
    /// The path; that of a folder ends with `/`.
    pub path: String,
    /// The kind of difference.
    pub change: SnapshotChange,
}

/// Lists the differences between two folders. Folders with the same id are not read.
///
/// # Errors
/// A folder that cannot be read.
pub fn diff_trees(
    IndexedVault { vault, index }: IndexedVault<'_>,
    (old, new): (&VaultObjectId, &VaultObjectId),
    above: &str,
    differences: &mut Vec<SnapshotDifference>,
) -> Result<()> {
    deep_stack::run_on_deep_stack(|| diff_trees_at(vault, index, old, new, above, 0, differences))
}

fn diff_trees_at(
    vault: &Vault,
    index: &VaultIndex,
    old: &VaultObjectId,
    new: &VaultObjectId,
    above: &str,
    depth: usize,
    differences: &mut Vec<SnapshotDifference>,
) -> Result<()> {
    if old == new {
        return Ok(());
    }
    deep_stack::check_folder_depth(depth, new)?;
    let (old, new) = (vault.read_tree(index, old)?, vault.read_tree(index, new)?);
    let names: BTreeSet<&[u8]> =
        old.nodes.iter().chain(&new.nodes).map(|node| node.name.as_slice()).collect();
    for name in names {
        let (before, after) = (old.find(name), new.find(name));
        let Some(node) = after.or(before) else { continue };
        let end = if node.kind == SnapshotNodeKind::Dir { "/" } else { "" };
        let path = format!("{above}/{}{end}", node.text_name());
        let mut tell = |change| differences.push(SnapshotDifference { path: path.clone(), change });
        match (before, after) {
            (Some(before), Some(after)) if before.kind != after.kind => {
                tell(SnapshotChange::KindChanged)
            }
            (Some(before), Some(after)) => {
                if before.content != after.content || before.target() != after.target() {
                    tell(SnapshotChange::Modified);
                } else if !has_same_metadata(before, after) {
                    tell(SnapshotChange::MetadataChanged);
                }
                let path = path.trim_end_matches('/');
                if let (Some(before), Some(after)) = (&before.subtree, &after.subtree) {
                    diff_trees_at(vault, index, before, after, path, depth + 1, differences)?;
                }
            }
            (None, Some(node)) => add_all_differences(
                IndexedVault::new(vault, index),
                &path,
                node,
                SnapshotChange::Added,
                differences,
            )?,
            (Some(node), None) => add_all_differences(
                IndexedVault::new(vault, index),
                &path,
                node,
                SnapshotChange::Removed,
                differences,
            )?,
            (None, None) => {}
        }
    }
    Ok(())
}

/// Compares the metadata that a restore recreates.
fn has_same_metadata(left: &SnapshotNode, right: &SnapshotNode) -> bool {
    let facts = |node: &SnapshotNode| (node.mode, node.uid, node.gid, node.mtime, node.device);
    facts(left) == facts(right) && left.extended_attributes == right.extended_attributes
}

fn add_all_differences(
    at: IndexedVault<'_>,
    path: &str,
    node: &SnapshotNode,
    change: SnapshotChange,
    differences: &mut Vec<SnapshotDifference>,
) -> Result<()> {
    differences.push(SnapshotDifference { path: path.to_owned(), change });
    let Some(tree) = &node.subtree else { return Ok(()) };
    walk_tree(at, tree, Path::new(path.trim_end_matches('/')), &mut |path, node| {
        let end = if node.kind == SnapshotNodeKind::Dir { "/" } else { "" };
        differences.push(SnapshotDifference { path: format!("{}{end}", path.display()), change });
        Ok(())
    })
}

/// Writes the bytes of a file to a stream.
///
/// # Errors
/// [`Error::InvalidRequest`] if the node is not a file, [`Error::Target`] if the stream fails, or an error of the
/// vault.
pub fn write_file_content(
    IndexedVault { vault, index }: IndexedVault<'_>,
    node: &SnapshotNode,
    out: &mut dyn Write,
) -> Result<()> {
    if node.kind != SnapshotNodeKind::File {
        let text = format!("`{}` is not a file; restore it instead", node.text_name());
        return Err(Error::InvalidRequest(text));
    }
    crate::restore::stream_file(IndexedVault::new(vault, index), node, out)
}

/// Reads all folders below the given ones, each once, and passes them to a callback.
pub(crate) fn walk_trees(
    IndexedVault { vault, index }: IndexedVault<'_>,
    roots: &[VaultObjectId],
    visit: &mut dyn FnMut(&VaultObjectId, Result<SnapshotTree>) -> Result<()>,
) -> Result<()> {
    use rayon::prelude::*;
    let mut visited: std::collections::HashSet<VaultObjectId> = roots.iter().copied().collect();
    let mut level: Vec<VaultObjectId> = visited.iter().copied().collect();
    while !level.is_empty() {
        let mut below = Vec::new();
        for batch in level.chunks(512) {
            let trees: Vec<Result<SnapshotTree>> =
                batch.par_iter().map(|id| vault.read_tree(index, id)).collect();
            for (id, tree) in batch.iter().zip(trees) {
                if let Ok(tree) = &tree {
                    let subtrees = tree.nodes.iter().filter_map(|node| node.subtree);
                    below.extend(subtrees.filter(|id| visited.insert(*id)));
                }
                visit(id, tree)?;
            }
        }
        level = below;
    }
    Ok(())
}
