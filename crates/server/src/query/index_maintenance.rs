//! Builds the indexes that are missing while an instance runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tympan_content::{ChunkId, Repository};

/// Interval between two checks for missing indexes.
const INDEX_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Builds missing indexes for as long as their owner exists.
pub(crate) fn maintain_indexes<T: Send + Sync + 'static>(
    owner: &Arc<T>,
    repository_of: fn(&T) -> &Repository,
) {
    let owner = Arc::downgrade(owner);
    let keep = move || {
        let mut indexed_roots = HashMap::new();
        while let Some(owner) = owner.upgrade() {
            if let Err(error) = build_missing_indexes(repository_of(&owner), &mut indexed_roots) {
                tracing::error!(reason = %error, "cannot build indexes");
            }
            drop(owner);
            std::thread::sleep(INDEX_CHECK_INTERVAL);
        }
    };
    let spawned = std::thread::Builder::new().name("indexes".to_owned()).spawn(keep);
    if let Err(error) = spawned {
        tracing::error!(reason = %error, "cannot start the thread that builds indexes");
    }
}

/// Builds the missing indexes of the repository's branch, then those of other branches that have changed.
fn build_missing_indexes(
    repository: &Repository,
    indexed_roots: &mut HashMap<String, ChunkId>,
) -> tympan_content::Result<()> {
    repository.build_indexes()?;
    for branch in repository.branches()? {
        if branch.name == repository.branch()
            || indexed_roots.get(&branch.name) == Some(&branch.root)
        {
            continue;
        }
        let on_branch = repository.open_branch(&branch.name)?;
        on_branch.build_indexes()?;
        indexed_roots.insert(branch.name, on_branch.head_root()?);
    }
    Ok(())
}
