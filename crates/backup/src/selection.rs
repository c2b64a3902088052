//! Selecting the part of a snapshot to restore: all, what matches patterns, or what does not.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::source::exclude::ExcludeRules;
use crate::vault::IndexedVault;
use crate::vault::node::SnapshotNode;

/// The part of a snapshot to restore. Patterns apply to paths in the snapshot.
#[derive(Clone, Debug, Default)]
pub enum RestoreSelection {
    /// All of it.
    #[default]
    Everything,
    /// What matches, with its parent folders.
    Matching(ExcludeRules),
    /// What does not match.
    NotMatching(ExcludeRules),
}

/// A selection applied to a tree to be restored.
#[derive(Debug)]
pub(crate) struct AppliedSelection<'a> {
    selection: &'a RestoreSelection,
    /// Folders that contain something selected.
    ancestor_folders: HashSet<PathBuf>,
}

impl<'a> AppliedSelection<'a> {
    /// Applies a selection to a node at a path of its snapshot. What cannot be read selects nothing; the restore
    /// reports it.
    pub(crate) fn apply(
        selection: &'a RestoreSelection,
        IndexedVault { vault, index }: IndexedVault<'_>,
        (node, path): (&SnapshotNode, &Path),
    ) -> Self {
        let mut above = HashSet::new();
        if let RestoreSelection::Matching(patterns) = selection {
            let mut open = vec![(path.to_owned(), node.subtree)];
            while let Some((path, subtree)) = open.pop() {
                let tree = subtree.and_then(|tree| vault.read_tree(index, &tree).ok());
                for node in tree.into_iter().flat_map(|tree| tree.nodes) {
                    let path = path.join(OsStr::from_bytes(&node.name));
                    if patterns.contains(&path) {
                        above.extend(path.ancestors().skip(1).map(Path::to_owned));
                    } else if node.subtree.is_some() {
                        open.push((path, node.subtree));
                    }
                }
            }
        }
        Self { selection, ancestor_folders: above }
    }

    /// Returns true if a path is restored, or removed if the snapshot does not contain it.
    pub(crate) fn contains(&self, path: &Path) -> bool {
        match self.selection {
            RestoreSelection::Everything => true,
            RestoreSelection::Matching(patterns) => patterns.contains(path),
            RestoreSelection::NotMatching(patterns) => !patterns.contains(path),
        }
    }

    /// Like [`AppliedSelection::contains`], or true if something below the path is restored.
    pub(crate) fn contains_or_leads_to(&self, path: &Path) -> bool {
        self.contains(path) || self.ancestor_folders.contains(path)
    }
}
