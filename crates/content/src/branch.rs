//! Branches: made, renamed and removed in constant time, merged back document by document.
//!
//! A branch is a ref. Beside it, `base/<name>` names the state from which its own changes count: where it was made, or
//! where it was last merged into `main`. Where it was last merged into another branch, `base/<name>@<other>` says. These
//! refs also keep the states from being collected.

use std::collections::BTreeMap;
use std::time::SystemTime;

use tympan_store::{Batch, ChunkId, Map, Pin, RefUpdate, Revision, Root};

use crate::commit::{self, Change};
use crate::repository::MAIN;
use crate::snapshot::Overlay;
use crate::version::{VERSIONS, VersionEdits};
use crate::withdrawal::{self, ACTIVATED, WITHDRAWALS};
use crate::{Error, MergeChoice, Repository, Result, keys, package};

pub(crate) const BASE: &str = "base/";
const MAX_NAME_BYTES: usize = 200;

/// A branch as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Branch {
    /// Its name.
    pub name: String,
    /// Its newest state.
    pub root: ChunkId,
    /// Where it was made or last merged; nothing for `main`.
    pub base: Option<ChunkId>,
}

/// Who changes a branch, why, and when.
#[derive(Debug, Clone, Copy)]
pub struct Revising<'a> {
    /// The user.
    pub user: &'a str,
    /// What the history says about it.
    pub message: &'a str,
    /// The time.
    pub at: SystemTime,
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
    pub fn branches(&self) -> Result<Vec<Branch>> {
        let refs: BTreeMap<String, ChunkId> = self.0.chunks.refs()?.into_iter().collect();
        let names = refs
            .iter()
            .filter(|(name, _)| !name.starts_with(BASE) && !name.starts_with(package::REPLACED));
        Ok(names
            .map(|(name, root)| Branch {
                name: name.clone(),
                root: *root,
                base: refs.get(&base_of(name, MAIN)).copied(),
            })
            .collect())
    }

    /// Opens a branch: the same stores, read and committed to on that branch.
    ///
    /// # Errors
    /// [`Error::Branch`] if there is none of that name.
    pub fn on_branch(&self, name: &str) -> Result<Self> {
        if name == self.0.branch {
            return Ok(self.clone());
        }
        self.root_of(name)?;
        let shared = &self.0;
        Self::on(shared.chunks.clone(), shared.blobs.clone(), shared.bodies.clone(), name)
    }

    /// Makes a branch that begins as this one is now. The cost does not depend on the content.
    ///
    /// # Errors
    /// [`Error::Branch`] if the name is taken or cannot be one.
    pub fn create_branch(&self, name: &str, revising: Revising<'_>) -> Result<ChunkId> {
        self.begin_branch(name, &self.0.chunks.pin(self.head()?), revising)
    }

    /// Makes a branch that begins at a state of any branch's history.
    ///
    /// # Errors
    /// [`Error::Branch`] if the name is taken or cannot be one, or the state is in no history any more.
    pub fn create_branch_at(
        &self,
        name: &str,
        root: ChunkId,
        revising: Revising<'_>,
    ) -> Result<ChunkId> {
        let pin = self.pin_known(root)?;
        self.snapshot_at(root)?;
        self.begin_branch(name, &pin, revising)
    }

    fn begin_branch(&self, name: &str, pin: &Pin, revising: Revising<'_>) -> Result<ChunkId> {
        check_name(name)?;
        if self.0.chunks.read_ref(name)?.is_some() {
            return Err(refused(name, "it exists already"));
        }
        let root = pin.root();
        let base = base_of(name, MAIN);
        self.move_refs([(name, None, Some(root)), (&base, None, Some(root))], revising)?;
        Ok(root)
    }

    /// Removes a branch; what it had stays in its history for as long as that is kept.
    ///
    /// # Errors
    /// [`Error::Branch`] if there is none of that name, or it is `main`.
    pub fn delete_branch(&self, name: &str, revising: Revising<'_>) -> Result<()> {
        let root = self.own_root_of(name)?;
        let mut batch = Batch::new();
        add_moves(&mut batch, [(name, Some(root), None)], revising);
        for (base, from) in self.bases_with(name)? {
            add_moves(&mut batch, [(&base, Some(from), None)], revising);
        }
        Ok(self.0.chunks.commit(batch)?)
    }

    /// Renames a branch.
    ///
    /// # Errors
    /// [`Error::Branch`] if there is none of that name, it is `main`, or the new name is taken or cannot be one.
    pub fn rename_branch(&self, from: &str, to: &str, revising: Revising<'_>) -> Result<()> {
        check_name(to)?;
        let root = self.own_root_of(from)?;
        if self.0.chunks.read_ref(to)?.is_some() {
            return Err(refused(to, "it exists already"));
        }
        let mut batch = Batch::new();
        add_moves(&mut batch, [(from, Some(root), None), (to, None, Some(root))], revising);
        for (base, at) in self.bases_with(from)? {
            let (own, into) = parts_of(&base);
            let name = |name| if name == from { to } else { name };
            let renamed = base_of(name(own), name(into));
            add_moves(&mut batch, [(&base, Some(at), None), (&renamed, None, Some(at))], revising);
        }
        Ok(self.0.chunks.commit(batch)?)
    }

    /// Returns the refs that say from where changes count, of a branch and of others that were merged into it.
    fn bases_with(&self, name: &str) -> Result<Vec<(String, ChunkId)>> {
        let refs = self.0.chunks.refs()?.into_iter();
        Ok(refs
            .filter(|(base, _)| {
                let (own, into) = parts_of(base);
                base.starts_with(BASE) && (own == name || into == name)
            })
            .collect())
    }

    /// Merges what a branch has changed since it was made or last merged. Returns the new state of this branch.
    ///
    /// The cost is that of the changes, whatever the size of the content.
    ///
    /// # Errors
    /// [`Error::Conflicts`] with everything that both sides changed differently; nothing is merged then.
    pub fn merge_branch(&self, name: &str, revising: Revising<'_>) -> Result<ChunkId> {
        let merged = self.merge_part(name, &MergeChoice::default(), revising)?;
        Ok(merged.root.unwrap_or(self.head()?))
    }

    /// Takes the branch back to an earlier state, as a new revision. Versions that were kept since stay, and so does what is
    /// said about visitors: a document counts as activated if it does now, whatever the earlier state says.
    ///
    /// # Errors
    /// [`Error::Branch`] if the state is in no branch's history any more.
    pub fn revert_to(&self, root: ChunkId, revising: Revising<'_>) -> Result<()> {
        let _pin = self.pin_known(root)?;
        let target = self.snapshot_at(root)?;
        let head = self.snapshot()?;
        let from = head.root_id();
        let reads = self.0.reads();
        let before = Root::read(reads, &from)?;
        let mut batch = Batch::new();
        let mut maps = Root::read(reads, &root)?.maps;
        if self.branch() == MAIN {
            // What visitors have does not go back with the content.
            let mut edits = Overlay::new();
            for change in head.diff(&target) {
                let change = change?;
                edits.insert(keys::key_of(&change.path)?, change.into_after());
            }
            let Revising { user, message, at } = revising;
            let versions = &VersionEdits::new();
            let change = Change { user, message, at, versions, moves: &[], replication: None };
            let moves = withdrawal::moves(&head.0, &edits, &change)?;
            let stamped = withdrawal::with_own_stamps(&head.0, &edits)?;
            if let Some(edited) = commit::edited_maps(&target.0, &stamped, versions, &mut batch)? {
                maps = edited;
            }
            edits.extend(stamped);
            for name in [WITHDRAWALS, ACTIVATED] {
                match before.map(name) {
                    Map::EMPTY => maps.remove(name),
                    map => maps.insert(name.to_owned(), map),
                };
            }
            let withdrawals = withdrawal::edits(&head.0, &edits, &change, &moves)?;
            withdrawal::write(&mut maps, &withdrawals, reads, &mut batch)?;
        }
        if self.branch() != MAIN {
            maps.remove(WITHDRAWALS);
            maps.remove(ACTIVATED);
        }
        let kept = before.map(VERSIONS);
        if maps.get(VERSIONS).copied().unwrap_or_default() != kept {
            maps.insert(VERSIONS.to_owned(), kept);
        }
        if maps == Root::read(reads, &root)?.maps {
            return self.move_refs([(self.branch(), Some(from), Some(root))], revising);
        }
        let new = Root { maps }.write(&mut batch)?;
        add_moves(&mut batch, [(self.branch(), Some(from), Some(new))], revising);
        Ok(self.0.chunks.commit(batch)?)
    }

    /// Pins a state that is in some branch's history.
    fn pin_known(&self, root: ChunkId) -> Result<Pin> {
        // Pinned first: a collection that comes after this keeps the state, and what one before it let go of is no
        // longer in the history.
        let pin = self.0.chunks.pin(root);
        let mut is_known = false;
        for branch in self.branches()? {
            let history = self.0.chunks.history(&branch.name, None, usize::MAX)?;
            is_known |= branch.root == root;
            is_known |= history.iter().any(|one| one.update.new == Some(root));
        }
        if is_known {
            Ok(pin)
        } else {
            Err(refused(&self.0.branch, "this state is not in its history"))
        }
    }

    /// Returns the revisions of the branch below a sequence number, newest first.
    ///
    /// # Errors
    /// If the store fails.
    pub fn revisions(&self, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        Ok(self.0.chunks.history(&self.0.branch, before, limit)?)
    }

    fn root_of(&self, name: &str) -> Result<ChunkId> {
        let root = self.0.chunks.read_ref(name)?.filter(|_| !name.starts_with(BASE));
        root.ok_or_else(|| refused(name, "there is none of this name"))
    }

    pub(crate) fn own_root_of(&self, name: &str) -> Result<ChunkId> {
        if name == MAIN {
            return Err(refused(name, "it is the one that all others come from"));
        }
        self.root_of(name)
    }

    fn move_refs<const N: usize>(
        &self,
        moves: [(&str, Option<ChunkId>, Option<ChunkId>); N],
        revising: Revising<'_>,
    ) -> Result<()> {
        let mut batch = Batch::new();
        add_moves(&mut batch, moves, revising);
        Ok(self.0.chunks.commit(batch)?)
    }
}

/// Stages moves of refs, but for those that stay where they are.
pub(crate) fn add_moves<const N: usize>(
    batch: &mut Batch,
    moves: [(&str, Option<ChunkId>, Option<ChunkId>); N],
    revising: Revising<'_>,
) {
    for (name, expected, new) in moves {
        if expected == new {
            continue;
        }
        batch.move_ref(RefUpdate {
            name: name.to_owned(),
            expected,
            new,
            at: revising.at,
            author: revising.user.to_owned(),
            message: revising.message.to_owned(),
        });
    }
}

/// Returns the name of the ref that says from where a branch's own changes count when it is merged into another one.
pub(crate) fn base_of(name: &str, into: &str) -> String {
    // No branch's name holds `@`.
    if into == MAIN { format!("{BASE}{name}") } else { format!("{BASE}{name}@{into}") }
}

/// Returns the two branches that such a ref is about.
fn parts_of(base: &str) -> (&str, &str) {
    let names = base.strip_prefix(BASE).unwrap_or(base);
    names.split_once('@').unwrap_or((names, MAIN))
}

fn check_name(name: &str) -> Result<()> {
    let is_plain =
        |character: char| character.is_ascii_alphanumeric() || "-_./".contains(character);
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(refused(name, "a name has 1 to 200 letters"));
    }
    if name.starts_with(BASE) || name.starts_with('/') || name.starts_with('-') {
        return Err(refused(name, "a name begins with neither `base/` nor `/` nor `-`"));
    }
    if name.starts_with(package::REPLACED) {
        return Err(refused(
            name,
            "names that begin with `package/` are kept for installed packages",
        ));
    }
    if !name.chars().all(is_plain) {
        return Err(refused(name, "a name has letters, digits and `-_./` in it, nothing else"));
    }
    Ok(())
}

pub(crate) fn refused(name: &str, reason: &'static str) -> Error {
    Error::Branch { name: name.to_owned(), reason }
}
