//! Branches: created, renamed and removed in constant time, merged back document by document.
//!
//! A branch is a ref. The ref `base/<name>` holds the state from which its own changes count: the one it was created
//! at, or last merged into `main`. The ref `base/<name>@<other>` holds the state at which it was last merged into
//! another branch. These refs also protect the states from collection.

pub(crate) mod branch_ref;
pub(crate) mod merge;

use std::collections::BTreeMap;

use tympan_store::{ChunkBatch, ChunkId, Revision, RootPin, SortedMap, StoreRoot};

use crate::access::{FORMER_POLICIES_MAP, FormerPolicyEdits};
use crate::branch::branch_ref::{
    BASE_REF_PREFIX, MAIN_BRANCH, REPLACED_REF_PREFIX, RevisionDetails, base_ref_branches,
    base_ref_name, stage_ref_moves,
};
use crate::commit;
use crate::commit::commit_details::CommitDetails;
use crate::snapshot::RecordEdits;
use crate::version::version_entry::{VERSIONS_MAP, VersionEdits};
use crate::withdrawal::{self, ACTIVATED_MAP, WITHDRAWALS_MAP};
use crate::{Error, MergeOptions, Repository, Result, document::record_key};

const MAX_BRANCH_NAME_BYTES: usize = 200;

/// The current state of a branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BranchState {
    /// Its name.
    pub name: String,
    /// Its newest state.
    pub root: ChunkId,
    /// The state at which it was created or last merged; `None` for `main`.
    pub base: Option<ChunkId>,
}

impl Repository {
    /// Returns the name of the branch that this repository reads and commits to.
    #[must_use]
    pub fn branch(&self) -> &str {
        &self.0.branch
    }

    /// Returns all branches, sorted by name.
    ///
    /// # Errors
    /// If the store fails.
    pub fn branches(&self) -> Result<Vec<BranchState>> {
        let refs: BTreeMap<String, ChunkId> = self.0.chunks.list_refs()?.into_iter().collect();
        let names = refs.iter().filter(|(name, _)| {
            !name.starts_with(BASE_REF_PREFIX) && !name.starts_with(REPLACED_REF_PREFIX)
        });
        Ok(names
            .map(|(name, root)| BranchState {
                name: name.clone(),
                root: *root,
                base: refs.get(&base_ref_name(name, MAIN_BRANCH)).copied(),
            })
            .collect())
    }

    /// Opens a branch of the same stores; reads and commits then use that branch.
    ///
    /// # Errors
    /// [`Error::InvalidBranch`] if there is no branch of that name.
    pub fn open_branch(&self, name: &str) -> Result<Self> {
        if name == self.0.branch {
            return Ok(self.clone());
        }
        self.branch_root(name)?;
        let shared = &self.0;
        Self::open_stores_on_branch(
            shared.chunks.clone(),
            shared.blobs.clone(),
            shared.cache.clone(),
            name,
        )
    }

    /// Creates a branch that begins at the current state of this one. The cost does not depend on the size of the
    /// content.
    ///
    /// # Errors
    /// [`Error::InvalidBranch`] if the name is in use or invalid.
    pub fn create_branch(&self, name: &str, revising: RevisionDetails<'_>) -> Result<ChunkId> {
        self.create_pinned_branch(name, &self.0.chunks.pin_root(self.head_root()?), revising)
    }

    /// Creates a branch that begins at a state in the history of any branch.
    ///
    /// # Errors
    /// [`Error::InvalidBranch`] if the name is in use or invalid, or the state is no longer in any history.
    pub fn create_branch_at(
        &self,
        name: &str,
        root: ChunkId,
        revising: RevisionDetails<'_>,
    ) -> Result<ChunkId> {
        let pin = self.pin_historic_root(root)?;
        self.snapshot_at(root)?;
        self.create_pinned_branch(name, &pin, revising)
    }

    fn create_pinned_branch(
        &self,
        name: &str,
        pin: &RootPin,
        revising: RevisionDetails<'_>,
    ) -> Result<ChunkId> {
        check_branch_name(name)?;
        if self.0.chunks.read_ref(name)?.is_some() {
            return Err(branch_error(name, "it already exists"));
        }
        let root = pin.root();
        let base = base_ref_name(name, MAIN_BRANCH);
        self.commit_ref_moves([(name, None, Some(root)), (&base, None, Some(root))], revising)?;
        Ok(root)
    }

    /// Removes a branch; its content stays in its history for as long as that is retained.
    ///
    /// # Errors
    /// [`Error::InvalidBranch`] if there is no branch of that name, or it is `main`.
    pub fn delete_branch(&self, name: &str, revising: RevisionDetails<'_>) -> Result<()> {
        let root = self.own_branch_root(name)?;
        let mut batch = ChunkBatch::new();
        stage_ref_moves(&mut batch, [(name, Some(root), None)], revising);
        for (base, from) in self.base_refs_of(name)? {
            stage_ref_moves(&mut batch, [(&base, Some(from), None)], revising);
        }
        Ok(self.0.chunks.commit(batch)?)
    }

    /// Renames a branch.
    ///
    /// # Errors
    /// [`Error::InvalidBranch`] if there is no branch of that name, it is `main`, or the new name is in use or invalid.
    pub fn rename_branch(&self, from: &str, to: &str, revising: RevisionDetails<'_>) -> Result<()> {
        check_branch_name(to)?;
        let root = self.own_branch_root(from)?;
        if self.0.chunks.read_ref(to)?.is_some() {
            return Err(branch_error(to, "it already exists"));
        }
        let mut batch = ChunkBatch::new();
        stage_ref_moves(&mut batch, [(from, Some(root), None), (to, None, Some(root))], revising);
        for (base, at) in self.base_refs_of(from)? {
            let (own, into) = base_ref_branches(&base);
            let name = |name| if name == from { to } else { name };
            let renamed = base_ref_name(name(own), name(into));
            stage_ref_moves(
                &mut batch,
                [(&base, Some(at), None), (&renamed, None, Some(at))],
                revising,
            );
        }
        Ok(self.0.chunks.commit(batch)?)
    }

    /// Returns the base refs of a branch and of other branches that were merged into it.
    fn base_refs_of(&self, name: &str) -> Result<Vec<(String, ChunkId)>> {
        let refs = self.0.chunks.list_refs()?.into_iter();
        Ok(refs
            .filter(|(base, _)| {
                let (own, into) = base_ref_branches(base);
                base.starts_with(BASE_REF_PREFIX) && (own == name || into == name)
            })
            .collect())
    }

    /// Merges the changes of a branch since it was created or last merged. Returns the new state of this branch.
    ///
    /// The cost is proportional to the changes, not to the size of the content.
    ///
    /// # Errors
    /// [`Error::Conflicts`] with every item that both sides changed differently; nothing is merged then.
    pub fn merge_branch(&self, name: &str, revising: RevisionDetails<'_>) -> Result<ChunkId> {
        let merged = self.merge_branch_part(name, &MergeOptions::default(), revising)?;
        Ok(merged.root.unwrap_or(self.head_root()?))
    }

    /// Reverts the branch to an earlier state, as a new revision. Versions created since then are retained, and so is
    /// the activation status: a document counts as activated if it does now, whatever the earlier state says.
    ///
    /// # Errors
    /// [`Error::InvalidBranch`] if the state is no longer in the history of any branch.
    pub fn revert_to_root(&self, root: ChunkId, revising: RevisionDetails<'_>) -> Result<()> {
        let _pin = self.pin_historic_root(root)?;
        let target = self.snapshot_at(root)?;
        let head = self.snapshot()?;
        let from = head.root_id();
        let reads = self.0.chunk_reader();
        let before = StoreRoot::read(reads, &from)?;
        let mut batch = ChunkBatch::new();
        let mut maps = StoreRoot::read(reads, &root)?.maps;
        if self.branch() == MAIN_BRANCH {
            // The published state does not revert with the content.
            let mut edits = RecordEdits::new();
            for change in head.changed_documents(&target) {
                let change = change?;
                edits.insert(record_key::record_key(&change.path)?, change.into_record_after());
            }
            let RevisionDetails { user, message, time } = revising;
            let versions = &VersionEdits::new();
            let change = CommitDetails {
                user,
                message,
                time,
                version_edits: versions,
                moves: &[],
                replication: None,
            };
            let moves = withdrawal::document_moves(&head.view, &edits, &change)?;
            let stamped = withdrawal::records_with_own_stamps(&head.view, &edits)?;
            if let Some(edited) =
                commit::stage_edited_maps(&target.view, &stamped, versions, &mut batch)?
            {
                maps = edited;
            }
            edits.extend(stamped);
            for name in [WITHDRAWALS_MAP, ACTIVATED_MAP, FORMER_POLICIES_MAP] {
                match before.map(name) {
                    SortedMap::EMPTY_MAP => maps.remove(name),
                    map => maps.insert(name.to_owned(), map),
                };
            }
            let withdrawals = withdrawal::visitor_edits(&head.view, &edits, &change, &moves)?;
            withdrawal::write_visitor_edits(&mut maps, &withdrawals, reads, &mut batch)?;
            FormerPolicyEdits::from_edits(&head.view, &edits)?
                .stage(&head.view, &edits, &mut maps, &mut batch)?;
        }
        if self.branch() != MAIN_BRANCH {
            maps.remove(WITHDRAWALS_MAP);
            maps.remove(ACTIVATED_MAP);
        }
        let versions_map = before.map(VERSIONS_MAP);
        if maps.get(VERSIONS_MAP).copied().unwrap_or_default() != versions_map {
            maps.insert(VERSIONS_MAP.to_owned(), versions_map);
        }
        if maps == StoreRoot::read(reads, &root)?.maps {
            return self.commit_ref_moves([(self.branch(), Some(from), Some(root))], revising);
        }
        let new = StoreRoot { maps }.write(&mut batch)?;
        stage_ref_moves(&mut batch, [(self.branch(), Some(from), Some(new))], revising);
        Ok(self.0.chunks.commit(batch)?)
    }

    /// Pins a state that is in the history of some branch.
    fn pin_historic_root(&self, root: ChunkId) -> Result<RootPin> {
        // Pin first: a later collection then retains the state, and a state that an earlier collection removed is no
        // longer in the history.
        let pin = self.0.chunks.pin_root(root);
        let mut is_known = false;
        for branch in self.branches()? {
            let history = self.0.chunks.ref_history(&branch.name, None, usize::MAX)?;
            is_known |= branch.root == root;
            is_known |= history.iter().any(|revision| revision.update.new_root == Some(root));
        }
        if is_known {
            Ok(pin)
        } else {
            Err(branch_error(&self.0.branch, "the state is not in its history"))
        }
    }

    /// Returns the revisions of the branch below a sequence number, newest first.
    ///
    /// # Errors
    /// If the store fails.
    pub fn revisions(&self, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        Ok(self.0.chunks.ref_history(&self.0.branch, before, limit)?)
    }

    fn branch_root(&self, name: &str) -> Result<ChunkId> {
        let root = self.0.chunks.read_ref(name)?.filter(|_| !name.starts_with(BASE_REF_PREFIX));
        root.ok_or_else(|| branch_error(name, "it does not exist"))
    }

    fn own_branch_root(&self, name: &str) -> Result<ChunkId> {
        if name == MAIN_BRANCH {
            return Err(branch_error(name, "the main branch cannot be merged, renamed or removed"));
        }
        self.branch_root(name)
    }

    fn commit_ref_moves<const N: usize>(
        &self,
        moves: [(&str, Option<ChunkId>, Option<ChunkId>); N],
        revising: RevisionDetails<'_>,
    ) -> Result<()> {
        let mut batch = ChunkBatch::new();
        stage_ref_moves(&mut batch, moves, revising);
        Ok(self.0.chunks.commit(batch)?)
    }
}

fn check_branch_name(name: &str) -> Result<()> {
    let is_plain =
        |character: char| character.is_ascii_alphanumeric() || "-_./".contains(character);
    if name.is_empty() || name.len() > MAX_BRANCH_NAME_BYTES {
        return Err(branch_error(name, "a name must have 1 to 200 characters"));
    }
    if name.starts_with(BASE_REF_PREFIX) || name.starts_with('/') || name.starts_with('-') {
        return Err(branch_error(name, "a name must not begin with `base/`, `/` or `-`"));
    }
    if name.starts_with(REPLACED_REF_PREFIX) {
        return Err(branch_error(
            name,
            "names that begin with `package/` are reserved for installed packages",
        ));
    }
    if !name.chars().all(is_plain) {
        return Err(branch_error(name, "a name may contain only letters, digits and `-_./`"));
    }
    Ok(())
}

fn branch_error(name: &str, reason: &'static str) -> Error {
    Error::InvalidBranch { name: name.to_owned(), reason }
}
