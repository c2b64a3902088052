//! Looking into snapshots: what they hold, where something is, how two differ, what a file says.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::deep;
use crate::error::{Error, Result};
use crate::id::Id;
use crate::vault::Vault;
use crate::vault::index::Index;
use crate::vault::node::{Node, NodeKind, Tree, go_mode};
use crate::vault::snapshot::Snapshot;

/// Finds what a snapshot holds at a path such as `/srv/site`; the snapshot's topmost folder for `/`.
///
/// # Errors
/// [`Error::PathMissing`], or a folder that cannot be read.
pub fn find_path(vault: &Vault, index: &Index, snapshot: &Snapshot, path: &str) -> Result<Node> {
    let mut node = Node::new("", NodeKind::Dir, go_mode::DIR | 0o755);
    node.subtree = Some(snapshot.tree);
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let tree = node.subtree.map(|tree| vault.read_tree(index, &tree)).transpose()?;
        let found = tree.and_then(|tree| tree.find(name.as_bytes()).cloned());
        node = found.ok_or_else(|| Error::PathMissing {
            snapshot: snapshot.id.short(),
            path: path.to_owned(),
        })?;
    }
    Ok(node)
}

/// Visits all that is below a folder, by path, until `visit` fails.
///
/// # Errors
/// What `visit` says, or a folder that cannot be read.
pub fn walk(
    (vault, index): (&Vault, &Index),
    tree: &Id,
    above: &Path,
    visit: &mut dyn FnMut(&Path, &Node) -> Result<()>,
) -> Result<()> {
    let mut open = vec![(above.to_owned(), vault.read_tree(index, tree)?.nodes.into_iter())];
    while let Some((above, nodes)) = open.last_mut() {
        let Some(node) = nodes.next() else {
            open.pop();
            continue;
        };
        let path = join(above, &node);
        visit(&path, &node)?;
        if let Some(tree) = &node.subtree {
            deep::bound(open.len(), tree)?;
            open.push((path, vault.read_tree(index, tree)?.nodes.into_iter()));
        }
    }
    Ok(())
}

/// Returns the path of what is in a folder; that of the topmost folder is `/`, or empty.
fn join(above: &Path, node: &Node) -> PathBuf {
    let above = if above.as_os_str().is_empty() { Path::new("/") } else { above };
    above.join(OsStr::from_bytes(&node.name))
}

/// How one path differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Only the later snapshot has it.
    Added,
    /// Only the earlier one has it.
    Removed,
    /// Its content differs.
    Modified,
    /// Only what is known about it differs.
    Described,
    /// It is another kind of thing.
    Kind,
}

impl Change {
    /// Returns the sign that stands before the path in lists.
    #[must_use]
    pub const fn sign(self) -> char {
        match self {
            Self::Added => '+',
            Self::Removed => '-',
            Self::Modified => 'M',
            Self::Described => 'U',
            Self::Kind => 'T',
        }
    }
}

/// One path in which two snapshots differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The path; that of a folder ends with `/`.
    pub path: String,
    /// How.
    pub change: Change,
}

/// Tells how two folders differ. Folders with the same id are not looked into.
///
/// # Errors
/// A folder that cannot be read.
pub fn diff(
    (vault, index): (&Vault, &Index),
    (old, new): (&Id, &Id),
    above: &str,
    found: &mut Vec<Difference>,
) -> Result<()> {
    deep::run(|| diff_at((vault, index), (old, new), (above, 0), found))
}

fn diff_at(
    (vault, index): (&Vault, &Index),
    (old, new): (&Id, &Id),
    (above, depth): (&str, usize),
    found: &mut Vec<Difference>,
) -> Result<()> {
    if old == new {
        return Ok(());
    }
    deep::bound(depth, new)?;
    let (old, new) = (vault.read_tree(index, old)?, vault.read_tree(index, new)?);
    let names: BTreeSet<&[u8]> =
        old.nodes.iter().chain(&new.nodes).map(|node| node.name.as_slice()).collect();
    for name in names {
        let (before, after) = (old.find(name), new.find(name));
        let Some(node) = after.or(before) else { continue };
        let end = if node.kind == NodeKind::Dir { "/" } else { "" };
        let path = format!("{above}/{}{end}", node.text_name());
        let mut tell = |change| found.push(Difference { path: path.clone(), change });
        match (before, after) {
            (Some(before), Some(after)) if before.kind != after.kind => tell(Change::Kind),
            (Some(before), Some(after)) => {
                if before.content != after.content || before.target() != after.target() {
                    tell(Change::Modified);
                } else if !is_described_alike(before, after) {
                    tell(Change::Described);
                }
                let path = path.trim_end_matches('/');
                if let (Some(before), Some(after)) = (&before.subtree, &after.subtree) {
                    diff_at((vault, index), (before, after), (path, depth + 1), found)?;
                }
            }
            (None, Some(node)) => tell_all((vault, index), (&path, node), Change::Added, found)?,
            (Some(node), None) => tell_all((vault, index), (&path, node), Change::Removed, found)?,
            (None, None) => {}
        }
    }
    Ok(())
}

/// Compares what a restore brings back.
fn is_described_alike(left: &Node, right: &Node) -> bool {
    let facts = |node: &Node| (node.mode, node.uid, node.gid, node.mtime, node.device);
    facts(left) == facts(right) && left.extended_attributes == right.extended_attributes
}

fn tell_all(
    at: (&Vault, &Index),
    (path, node): (&str, &Node),
    change: Change,
    found: &mut Vec<Difference>,
) -> Result<()> {
    found.push(Difference { path: path.to_owned(), change });
    let Some(tree) = &node.subtree else { return Ok(()) };
    walk(at, tree, Path::new(path.trim_end_matches('/')), &mut |path, node| {
        let end = if node.kind == NodeKind::Dir { "/" } else { "" };
        found.push(Difference { path: format!("{}{end}", path.display()), change });
        Ok(())
    })
}

/// Writes the bytes of a file to a stream.
///
/// # Errors
/// [`Error::Refused`] if it is no file, [`Error::Target`] if the stream fails, or what the vault says.
pub fn dump((vault, index): (&Vault, &Index), node: &Node, out: &mut dyn Write) -> Result<()> {
    if node.kind != NodeKind::File {
        let text = format!("`{}` is no file; restore it", node.text_name());
        return Err(Error::Refused(text));
    }
    crate::restore::stream((vault, index), node, out)
}

/// Reads all folders below some, each once, and hands them over.
pub(crate) fn walk_trees(
    (vault, index): (&Vault, &Index),
    roots: &[Id],
    visit: &mut dyn FnMut(&Id, Result<Tree>) -> Result<()>,
) -> Result<()> {
    use rayon::prelude::*;
    let mut seen: std::collections::HashSet<Id> = roots.iter().copied().collect();
    let mut level: Vec<Id> = seen.iter().copied().collect();
    while !level.is_empty() {
        let mut below = Vec::new();
        for some in level.chunks(512) {
            let trees: Vec<Result<Tree>> =
                some.par_iter().map(|id| vault.read_tree(index, id)).collect();
            for (id, tree) in some.iter().zip(trees) {
                if let Ok(tree) = &tree {
                    let subtrees = tree.nodes.iter().filter_map(|node| node.subtree);
                    below.extend(subtrees.filter(|id| seen.insert(*id)));
                }
                visit(id, tree)?;
            }
        }
        level = below;
    }
    Ok(())
}
