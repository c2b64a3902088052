//! Sweeping: moves blobs that no repository marked to the trash, and later removes them from it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::SystemTime;

use super::blob_tally::BlobTally;
use super::id_sorter::{BlobIdSorter, SortedBlobIds};
use super::mark::read_marks_into;
use super::member::{StorageMember, register_member};
use super::member_list::list_members;
use super::needed_join::NeededBlobJoin;
use super::sweep_lease::{SweepLease, SweepLeaseOutcome};
use super::sweep_options::{SweepMode, SweepOptions};
use crate::{Error, ListedBlob, Result, WriteBlobs};

/// The result of a sweep; in a dry run, what it would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Blobs that some repository needs.
    pub live: BlobTally,
    /// Unmarked blobs that are too young to be known as garbage.
    pub too_young: BlobTally,
    /// Blobs that were moved to the trash.
    pub discarded: BlobTally,
    /// Blobs that were restored from the trash, as a repository needs them.
    pub restored: BlobTally,
    /// Blobs that were removed permanently.
    pub purged: BlobTally,
    /// Blobs that stay in the trash.
    pub remaining_trash: BlobTally,
    /// Repositories without marks: nothing is removed before they have some.
    pub unmarked_members: Vec<String>,
    /// The repository with the oldest marks, and when they were begun: blobs younger than that, less the grace period,
    /// stay.
    pub oldest_marks: Option<(String, SystemTime)>,
    /// True if it was stopped early.
    pub is_stopped: bool,
    /// Set if another process sweeps the storage, until this time at most: nothing was done, or the rest was left to
    /// that process.
    pub occupied_until: Option<SystemTime>,
}

/// Sweeps a storage, unless another process does. `pace` is called for each blob and may wait, or stop the sweep, which
/// is safe at any point.
///
/// # Errors
/// If the storage fails, cannot be listed, or contains notes that cannot be parsed.
pub fn sweep_storage(
    storage: &dyn WriteBlobs,
    options: &SweepOptions,
    pace: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<SweepReport> {
    if options.mode == SweepMode::DryRun {
        return sweep_with_lease(storage, options, None, pace);
    }
    let mut turn = match SweepLease::acquire(storage, options)? {
        SweepLeaseOutcome::Acquired(turn) => turn,
        SweepLeaseOutcome::Occupied(until) => {
            return Ok(SweepReport { occupied_until: Some(until), ..SweepReport::default() });
        }
    };
    let swept = sweep_with_lease(storage, options, Some(&mut turn), pace);
    let ended = turn.release();
    let swept = swept?;
    ended.map(|()| swept)
}

/// Sweeps under a lease, or only counts.
fn sweep_with_lease<'a>(
    storage: &'a dyn WriteBlobs,
    options: &'a SweepOptions,
    turn: Option<&'a mut SweepLease<'_>>,
    pace: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<SweepReport> {
    let mut swept = SweepReport::default();
    let mut sorter = BlobIdSorter::new(&options.scratch_dir);
    let mut is_complete = true;
    for member in list_sweep_members(storage, options)? {
        match read_member_marks(storage, options, &member.id, &mut sorter)? {
            Some(started_at)
                if swept.oldest_marks.as_ref().is_none_or(|(_, oldest)| started_at < *oldest) =>
            {
                swept.oldest_marks = Some((member.name, started_at));
            }
            Some(_) => {}
            None => {
                is_complete = false;
                swept.unmarked_members.push(member.name);
            }
        }
    }
    let oldest = swept.oldest_marks.as_ref().map(|(_, oldest)| *oldest);
    let unused_since =
        oldest.filter(|_| is_complete).and_then(|at| at.checked_sub(options.grace_period));
    let mut broom = BlobSweeper { storage, options, unused_since, lease: turn };
    // One sorted list of needed ids serves for both: it is merged once, in order, with each.
    let needed = NeededBlobFile::from_sorted(sorter.finish()?, options)?;
    // The trash first: blobs that are discarded now are examined by the next sweep.
    let trash = sort_listed_blobs(options, |visit| storage.list_trash(visit))?;
    if broom.sweep_trash(trash, needed.digests()?, &mut swept, pace)?.is_break() {
        return Ok(SweepReport { is_stopped: true, ..swept });
    }
    let live = sort_listed_blobs(options, |visit| storage.list(visit))?;
    let stopped = broom.sweep_live(live, needed.digests()?, &mut swept, pace)?;
    Ok(SweepReport { is_stopped: stopped.is_break(), ..swept })
}

/// Returns the repositories that need blobs of a storage. Guests are registered in the storage itself: if the notes
/// that they leave elsewhere cannot be read, nothing is removed.
fn list_sweep_members(
    storage: &dyn WriteBlobs,
    options: &SweepOptions,
) -> Result<Vec<StorageMember>> {
    let mut members = BTreeMap::new();
    for guests in &options.guest_storages {
        for guest in list_members(&**guests)? {
            if options.mode == SweepMode::Remove {
                register_member(storage, &guest.member, options.now)?;
            }
            members.insert(guest.member.id.clone(), guest.member);
        }
    }
    let own = list_members(storage)?.into_iter();
    members.extend(own.map(|registered| (registered.member.id.clone(), registered.member)));
    Ok(members.into_values().collect())
}

/// Adds the marks of a repository from all storages that contain them, and returns when the newest were begun.
fn read_member_marks(
    storage: &dyn WriteBlobs,
    options: &SweepOptions,
    id: &str,
    sorter: &mut BlobIdSorter,
) -> Result<Option<SystemTime>> {
    let mut started_at = read_marks_into(storage, id, sorter)?;
    for guests in &options.guest_storages {
        started_at = started_at.max(read_marks_into(&**guests, id, sorter)?);
    }
    Ok(started_at)
}

/// Sorts the listing of a storage.
pub(super) fn sort_listed_blobs(
    options: &SweepOptions,
    show: impl FnOnce(&mut dyn FnMut(ListedBlob) -> ControlFlow<()>) -> Result<()>,
) -> Result<SortedBlobIds> {
    let mut sorter = BlobIdSorter::new(&options.scratch_dir);
    let mut failed: Option<Error> = None;
    show(&mut |listed| match sorter.add(&listed) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    })?;
    failed.map_or(Ok(()), Err)?;
    sorter.finish()
}

/// All needed ids, sorted, in a file that can be read several times.
struct NeededBlobFile {
    file: std::fs::File,
    scratch_dir: PathBuf,
}

impl NeededBlobFile {
    fn from_sorted(sorted: SortedBlobIds, options: &SweepOptions) -> Result<Self> {
        use std::io::Write;
        let scratch = options.scratch_dir.clone();
        let failed = |source| Error::Disk {
            action: "write a file in",
            path: options.scratch_dir.clone(),
            source,
        };
        let file = tempfile::tempfile_in(&scratch).map_err(failed)?;
        let mut out = std::io::BufWriter::with_capacity(128 * 1024, &file);
        let mut last = None;
        for entry in sorted {
            let digest = *entry?.id.digest();
            if last != Some(digest) {
                out.write_all(&digest).map_err(failed)?;
                last = Some(digest);
            }
        }
        out.flush().map_err(failed)?;
        drop(out);
        Ok(Self { file, scratch_dir: scratch })
    }

    fn digests(&self) -> Result<impl Iterator<Item = Result<[u8; 32]>> + use<>> {
        use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};
        let path = self.scratch_dir.clone();
        let failed =
            move |source| Error::Disk { action: "read a file in", path: path.clone(), source };
        let mut file = self.file.try_clone().map_err(&failed)?;
        file.seek(SeekFrom::Start(0)).map_err(&failed)?;
        let mut file = BufReader::with_capacity(128 * 1024, file);
        Ok(std::iter::from_fn(move || {
            let mut digest = [0; 32];
            match file.read_exact(&mut digest) {
                Ok(()) => Some(Ok(digest)),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => None,
                Err(error) => Some(Err(failed(error))),
            }
        }))
    }
}

/// The state of a running sweep.
struct BlobSweeper<'a, 't> {
    storage: &'a dyn WriteBlobs,
    options: &'a SweepOptions,
    /// Unmarked blobs that were put or touched before this time are garbage; `None` if it is not known.
    unused_since: Option<SystemTime>,
    /// The lease; without one, everything is only counted.
    lease: Option<&'a mut SweepLease<'t>>,
}

impl BlobSweeper<'_, '_> {
    /// Runs an action on the storage, unless everything is only counted; `None` if the lease was lost.
    fn act_with_lease(
        &mut self,
        action: impl FnOnce(&dyn WriteBlobs) -> Result<bool>,
    ) -> Result<Option<bool>> {
        let Some(turn) = &mut self.lease else { return Ok(Some(true)) };
        if turn.renew_if_due()? { action(self.storage).map(Some) } else { Ok(None) }
    }

    fn sweep_live(
        &mut self,
        live: SortedBlobIds,
        needed: impl Iterator<Item = Result<[u8; 32]>>,
        swept: &mut SweepReport,
        pace: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        for joined in NeededBlobJoin::new(live, needed) {
            let (listed, is_needed) = joined?;
            let garbage = self.unused_since.filter(|since| listed.modified < *since);
            match garbage {
                _ if is_needed => swept.live.add(&listed),
                None => swept.too_young.add(&listed),
                Some(since) => {
                    match self.act_with_lease(|storage| storage.discard(&listed.id, since))? {
                        Some(true) => swept.discarded.add(&listed),
                        Some(false) => swept.too_young.add(&listed),
                        None => return Ok(self.record_lost_lease(swept)),
                    }
                }
            }
            if pace().is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn sweep_trash(
        &mut self,
        trash: SortedBlobIds,
        needed: impl Iterator<Item = Result<[u8; 32]>>,
        swept: &mut SweepReport,
        pace: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        for joined in NeededBlobJoin::new(trash, needed) {
            let (listed, is_needed) = joined?;
            let (counts, done) = if is_needed {
                (&mut swept.restored, self.act_with_lease(|storage| storage.undelete(&listed.id))?)
            } else if self.is_trash_expired(&listed) {
                (&mut swept.purged, self.act_with_lease(|storage| storage.purge(&listed.id))?)
            } else {
                (&mut swept.remaining_trash, Some(true))
            };
            if done.is_none() {
                return Ok(self.record_lost_lease(swept));
            }
            counts.add(&listed);
            if pace().is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Records that another process sweeps, because this one was suspended for too long.
    fn record_lost_lease(&self, swept: &mut SweepReport) -> ControlFlow<()> {
        swept.occupied_until = Some(self.options.clock.now() + self.options.lease_duration);
        ControlFlow::Break(())
    }

    /// Returns true if all repositories began to mark long enough after a blob was discarded, and its retention period
    /// is over.
    fn is_trash_expired(&self, listed: &ListedBlob) -> bool {
        let is_over = listed.modified + self.options.trash_retention <= self.options.now;
        is_over && self.unused_since.is_some_and(|since| listed.modified < since)
    }
}
