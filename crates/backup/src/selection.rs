//! What of a snapshot is restored: all, what fits patterns, or what does not.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::source::exclude::Excludes;
use crate::vault::Vault;
use crate::vault::index::Index;
use crate::vault::node::Node;

/// What of a snapshot is restored. Patterns are about paths as the snapshot has them.
#[derive(Clone, Debug, Default)]
pub enum Selection {
    /// All of it.
    #[default]
    Everything,
    /// What fits, with the folders above it.
    Only(Excludes),
    /// What does not fit.
    AllBut(Excludes),
}

/// A selection that is applied to what is restored.
#[derive(Debug)]
pub(crate) struct AppliedSelection<'a> {
    selection: &'a Selection,
    /// Folders with something below them that is selected.
    above: HashSet<PathBuf>,
}

impl<'a> AppliedSelection<'a> {
    /// Applies a selection to a node, which stands at a path of its snapshot. What cannot be read selects nothing; whoever
    /// restores it tells that.
    pub(crate) fn of(
        selection: &'a Selection,
        (vault, index): (&Vault, &Index),
        (node, path): (&Node, &Path),
    ) -> Self {
        let mut above = HashSet::new();
        if let Selection::Only(patterns) = selection {
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
        Self { selection, above }
    }

    /// Tells whether something is restored, or removed where the snapshot does not have it.
    pub(crate) fn contains(&self, path: &Path) -> bool {
        match self.selection {
            Selection::Everything => true,
            Selection::Only(patterns) => patterns.contains(path),
            Selection::AllBut(patterns) => !patterns.contains(path),
        }
    }

    /// As [`AppliedSelection::contains`], or whether something below it is restored.
    pub(crate) fn reaches(&self, path: &Path) -> bool {
        self.contains(path) || self.above.contains(path)
    }
}
