//! Pruning: removing what no snapshot refers to.
//!
//! In: a vault under an exclusive lock. Out: the same snapshots, fewer packs.
//!
//! An unused pack is marked first, in an index, under rustic's name `packs_to_delete`. A later prune removes it, after
//! its grace period. So a writer that takes no locks, or lost its own, may still refer to a marked pack during that
//! period: the next prune finds that the pack is needed and removes the mark.
//!
//! Invariants, at any instant, including a crash
//! * Whatever a snapshot refers to is in an existing pack that an index lists.
//! * The order is: write packs with the used blobs of partly used ones, write the new index, remove the old index,
//!   remove packs.
//! * Only index files that were read are removed; one that another process wrote concurrently stays.
//! * Nothing is removed, no snapshot either, if anything that a remaining snapshot refers to cannot be found, or the
//!   lock is not confirmed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tracing::warn;
use tympan_notation::error_chain_text;

use crate::backend::VaultFileKind;
use crate::backup_progress::BackupProgress;
use crate::error::{Error, Result};
use crate::inspection::walk_trees;
use crate::object_id::VaultObjectId;
use crate::vault::index::{MarkedPack, StoredIndex, StoredPack, VaultIndex};
use crate::vault::lock::VaultLock;
use crate::vault::pack_blob::{PackBlobKind, StoredBlob};
use crate::vault::pack_writer::{PackWriter, WrittenIndexFiles};
use crate::vault::{IndexedVault, Vault};

/// Packs are rewritten when the unused bytes exceed the needed bytes divided by this.
const MAX_UNUSED_DIVISOR: u64 = 20;
const MAX_INDEX_BLOBS: usize = 50_000;
/// Number of packs that are removed between two checks of the lock.
const REMOVAL_BATCH_SIZE: usize = 64;

/// Options of a prune.
#[derive(Clone, Debug)]
pub struct PruneOptions {
    /// Snapshots that are removed first, if the rest can be pruned; they may be damaged.
    pub snapshots_to_remove: Vec<VaultObjectId>,
    /// How long a pack stays after it was marked; zero removes unused packs at once.
    pub grace_period: Duration,
    /// The current time, with which packs are marked.
    pub now: Timestamp,
    /// The time used to decide that a grace period is over: that of a clock that is known not to have jumped ahead, and
    /// never later than `now`.
    pub trusted_now: Timestamp,
}

/// The result of a prune.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PruneReport {
    /// The number of packs removed.
    pub removed_packs: usize,
    /// The number of packs that were partly rewritten.
    pub rewritten_packs: usize,
    /// The number of bytes by which the vault became smaller.
    pub freed_bytes: u64,
    /// Unused bytes that stay, as rewriting their packs is not worthwhile yet.
    pub unused_bytes: u64,
    /// The number of marked packs, which are removed after their grace period.
    pub marked_packs: usize,
    /// The bytes in marked packs.
    pub marked_bytes: u64,
    /// The number of packs whose mark was removed, as a snapshot needs them.
    pub recovered_packs: usize,
}

/// A pack and its used blobs.
struct PackUsage {
    pack: StoredPack,
    needed_blobs: Vec<StoredBlob>,
    unused_bytes: u64,
}

/// The index to be written by a prune or a repair.
#[derive(Default)]
pub(crate) struct ReplacementIndex {
    pub(crate) packs: Vec<StoredPack>,
    pub(crate) marked_packs: Vec<MarkedPack>,
}

/// Removes snapshots, marks packs that no other snapshot refers to, and removes packs whose grace period is over.
/// `lock` is exclusive.
///
/// # Errors
/// [`Error::DamagedVault`] if needed data is missing: then nothing is changed. A failed read or write; no needed data
/// is lost then.
pub fn prune_snapshots(
    vault: &Arc<Vault>,
    lock: &VaultLock,
    options: &PruneOptions,
    progress: &BackupProgress,
) -> Result<PruneReport> {
    // No other process writes now. What cannot be removed is left to the next prune.
    if let Err(error) = vault.files().backend().remove_leftovers(options.trusted_now.into()) {
        warn!(%error, "cannot remove leftovers of an earlier run from the vault");
    }
    let (mut index, marked) = VaultIndex::load_with_marks(vault).map_err(as_damaged_vault)?;
    for pack in &marked {
        index.add(&StoredPack { id: pack.id, blobs: pack.blobs.clone() });
    }
    let mut needed = find_needed_blobs(vault, &index, &options.snapshots_to_remove)?;
    let there: HashMap<VaultObjectId, u64> =
        vault.files().list(VaultFileKind::Pack)?.into_iter().collect();
    let mut pack_usages = compute_pack_usage(vault, &index, &mut needed)?;
    let (recovered, marked) = recover_marked_packs(marked, &mut needed);
    let mut pruned = PruneReport { recovered_packs: recovered.len(), ..PruneReport::default() };
    pack_usages.extend(recovered);
    let is_lost =
        |usage: &&PackUsage| !usage.needed_blobs.is_empty() && !there.contains_key(&usage.pack.id);
    if let Some(lost) = pack_usages.iter().find(is_lost) {
        let fault = format!("the pack `{}` is needed, but missing", lost.pack.id);
        return Err(Error::DamagedVault { fault });
    }
    for id in &options.snapshots_to_remove {
        lock.check_held()?;
        vault.remove_snapshot(id)?;
    }
    let mut unlisted: HashSet<VaultObjectId> = there.keys().copied().collect();
    for id in
        pack_usages.iter().map(|usage| &usage.pack.id).chain(marked.iter().map(|pack| &pack.id))
    {
        unlisted.remove(id);
    }

    let (unused_packs, used_packs): (Vec<PackUsage>, Vec<PackUsage>) =
        pack_usages.into_iter().partition(|usage| usage.needed_blobs.is_empty());
    let (whole, partly): (Vec<PackUsage>, Vec<PackUsage>) =
        used_packs.into_iter().partition(|usage| usage.unused_bytes == 0);
    let (rewritten, left) = choose_packs_to_rewrite(&whole, partly);
    pruned.rewritten_packs = rewritten.len();
    pruned.unused_bytes = left.iter().map(|usage| usage.unused_bytes).sum();

    let time = options.now.to_string();
    let mark = |id: VaultObjectId, blobs: Vec<StoredBlob>| {
        let size = there.get(&id).and_then(|length| u32::try_from(*length).ok());
        MarkedPack { id, blobs, time: Some(time.clone()), size }
    };
    let obsolete: HashSet<VaultObjectId> =
        unused_packs.iter().chain(&rewritten).map(|usage| usage.pack.id).collect();
    let before = marked.iter().filter(|pack| marked_at(pack, options.now).is_some()).count();
    let mut marks: Vec<MarkedPack> =
        marked.into_iter().map(|pack| with_valid_time(pack, options.now)).collect();
    for usage in unused_packs.iter().chain(&rewritten) {
        marks.push(mark(usage.pack.id, usage.pack.blobs.clone()));
    }
    marks.extend(unlisted.into_iter().map(|id| mark(id, Vec::new())));
    let is_new = marks.len() > before || !obsolete.is_empty() || pruned.recovered_packs > 0;
    marks.retain(|pack| there.contains_key(&pack.id));
    let (expired, marks): (Vec<MarkedPack>, Vec<MarkedPack>) =
        marks.into_iter().partition(|pack| is_grace_over(pack, options));
    pruned.marked_packs = marks.len();
    pruned.marked_bytes = marks.iter().filter_map(|pack| there.get(&pack.id)).sum();
    if !is_new && marks.len() == before {
        return Ok(pruned);
    }

    let packs = whole.into_iter().chain(left).map(|usage| usage.pack).collect();
    let mut next = ReplacementIndex { packs, marked_packs: marks };
    let (written, listed) = rewrite_packs(vault, lock, &rewritten, progress)?;
    next.packs.extend(listed.packs);
    replace_index(vault, lock, index.files().iter().chain(&listed.files), next)?;
    let expired: Vec<VaultObjectId> = expired.iter().map(|pack| pack.id).collect();
    remove_packs((vault, lock), &expired, (&there, progress), &mut pruned)?;
    pruned.freed_bytes = pruned.freed_bytes.saturating_sub(written);
    Ok(pruned)
}

/// Converts the error of a damaged vault file to the reason why nothing is removed.
fn as_damaged_vault(error: Error) -> Error {
    match error {
        error if error.is_loss() => Error::DamagedVault { fault: error_chain_text(&error) },
        error => error,
    }
}

/// Finds the ids of all blobs that snapshots refer to, except those that are to be removed.
fn find_needed_blobs(
    vault: &Vault,
    index: &VaultIndex,
    forget: &[VaultObjectId],
) -> Result<HashSet<(PackBlobKind, VaultObjectId)>> {
    let mut listed = vault.files().list(VaultFileKind::Snapshot)?;
    listed.retain(|(id, _)| !forget.contains(id));
    let snapshots = vault.read_listed_snapshots(&listed).map_err(as_damaged_vault)?;
    // No other process removes snapshots now. If a listed snapshot cannot be found, the backend fails, and what the
    // snapshot needs is unknown.
    let there: HashSet<VaultObjectId> = snapshots.iter().map(|snapshot| snapshot.id).collect();
    if let Some((id, _)) = listed.iter().find(|(id, _)| !there.contains(id)) {
        let fault = format!("the snapshot `{id}` is listed, but missing");
        return Err(Error::DamagedVault { fault });
    }
    let roots: Vec<VaultObjectId> = snapshots.iter().map(|snapshot| snapshot.tree).collect();
    let mut needed = HashSet::new();
    walk_trees(IndexedVault::new(vault, index), &roots, &mut |id, tree| {
        needed.insert((PackBlobKind::Tree, *id));
        for node in tree.map_err(as_damaged_vault)?.nodes {
            needed.extend(node.content.into_iter().flatten().map(|id| (PackBlobKind::Data, id)));
        }
        Ok(())
    })?;
    if let Some((kind, id)) = needed.iter().find(|(kind, id)| !index.contains(*kind, id)) {
        let fault =
            format!("a snapshot refers to the {} `{id}`, which is not in the vault", kind.name());
        return Err(Error::DamagedVault { fault });
    }
    Ok(needed)
}

/// Computes for each pack its used blobs. A blob in several packs counts as used in one of them; found blobs are
/// removed from `needed`.
fn compute_pack_usage(
    vault: &Vault,
    index: &VaultIndex,
    needed: &mut HashSet<(PackBlobKind, VaultObjectId)>,
) -> Result<Vec<PackUsage>> {
    let mut pack_usages = Vec::new();
    let mut seen = HashSet::new();
    for file in index.files() {
        for pack in vault.files().read_json::<StoredIndex>(VaultFileKind::Index, file)?.packs {
            if seen.insert(pack.id) {
                pack_usages.push(pack_usage(pack, needed));
            }
        }
    }
    Ok(pack_usages)
}

fn pack_usage(pack: StoredPack, needed: &mut HashSet<(PackBlobKind, VaultObjectId)>) -> PackUsage {
    let (needed_blobs, unused): (Vec<StoredBlob>, Vec<StoredBlob>) =
        pack.blobs.iter().cloned().partition(|blob| needed.remove(&(blob.kind, blob.id)));
    let unused = unused.iter().map(|blob| u64::from(blob.length)).sum();
    PackUsage { pack, needed_blobs, unused_bytes: unused }
}

/// Removes the mark from packs that are needed after all.
fn recover_marked_packs(
    marked: Vec<MarkedPack>,
    needed: &mut HashSet<(PackBlobKind, VaultObjectId)>,
) -> (Vec<PackUsage>, Vec<MarkedPack>) {
    let mut recovered = Vec::new();
    let mut left = Vec::new();
    for pack in marked {
        let stored = StoredPack { id: pack.id, blobs: pack.blobs.clone() };
        let usage = pack_usage(stored, needed);
        if usage.needed_blobs.is_empty() {
            left.push(pack);
        } else {
            recovered.push(usage);
        }
    }
    (recovered, left)
}

/// Returns when a pack was marked; `None` if the time is unknown or in the future.
fn marked_at(pack: &MarkedPack, now: Timestamp) -> Option<Timestamp> {
    let time: Timestamp = pack.time.as_deref()?.parse().ok()?;
    (time <= now).then_some(time)
}

/// Replaces a missing or future time of a mark by the current time: the pack must neither be removed at once nor stay
/// forever.
fn with_valid_time(pack: MarkedPack, now: Timestamp) -> MarkedPack {
    match marked_at(&pack, now) {
        Some(_) => pack,
        None => MarkedPack { time: Some(now.to_string()), ..pack },
    }
}

fn is_grace_over(pack: &MarkedPack, options: &PruneOptions) -> bool {
    if options.grace_period.is_zero() {
        return true;
    }
    // A mark that lies in the future of the trusted clock counts as new.
    marked_at(pack, options.trusted_now).is_some_and(|time| {
        options.trusted_now.duration_since(time).unsigned_abs() >= options.grace_period
    })
}

/// Chooses the packs to rewrite: those with the most unused bytes, until few enough unused bytes remain.
fn choose_packs_to_rewrite(
    whole: &[PackUsage],
    mut partly: Vec<PackUsage>,
) -> (Vec<PackUsage>, Vec<PackUsage>) {
    let used = |usage: &PackUsage| {
        usage.needed_blobs.iter().map(|blob| u64::from(blob.length)).sum::<u64>()
    };
    let needed: u64 = whole.iter().chain(&partly).map(used).sum();
    partly.sort_by_key(|usage| std::cmp::Reverse(usage.unused_bytes));
    let mut unused: u64 = partly.iter().map(|usage| usage.unused_bytes).sum();
    let mut left = Vec::new();
    let mut rewritten = Vec::new();
    for usage in partly {
        if unused > needed / MAX_UNUSED_DIVISOR {
            unused -= usage.unused_bytes;
            rewritten.push(usage);
        } else {
            left.push(usage);
        }
    }
    (rewritten, left)
}

/// Writes the used blobs of some packs to new packs; returns their bytes and contents.
fn rewrite_packs(
    vault: &Arc<Vault>,
    lock: &VaultLock,
    packs: &[PackUsage],
    progress: &BackupProgress,
) -> Result<(u64, WrittenIndexFiles)> {
    let writer = PackWriter::new(vault, &Arc::default(), lock).with_pack_collection();
    for usage in packs {
        progress.check_running()?;
        let id = &usage.pack.id;
        let bytes = vault
            .files()
            .backend()
            .read(VaultFileKind::Pack, id)
            .map_err(Error::backend("read", VaultFileKind::Pack, id))?;
        for blob in &usage.needed_blobs {
            let (begin, end) = (blob.offset as usize, blob.offset as usize + blob.length as usize);
            let sealed = bytes.get(begin..end).unwrap_or_default();
            // A damaged blob must not be copied into a pack whose hash is correct.
            vault.sealing().open_stored_blob(blob, sealed.to_vec())?;
            writer.append_sealed(blob.kind, blob.id, sealed, blob.uncompressed_length)?;
        }
        progress.add_done(1, bytes.len() as u64);
    }
    let (written, listed) = writer.finish(lock)?;
    Ok((written.stored_bytes, listed))
}

/// Writes the new index, then removes the files of the previous one.
pub(crate) fn replace_index<'a>(
    vault: &Vault,
    lock: &VaultLock,
    old: impl Iterator<Item = &'a VaultObjectId>,
    next: ReplacementIndex,
) -> Result<()> {
    let mut new_files = HashSet::new();
    let mut file = StoredIndex { packs: Vec::new(), packs_to_delete: next.marked_packs };
    let mut blobs: usize = file.packs_to_delete.iter().map(|pack| pack.blobs.len()).sum();
    for pack in next.packs {
        blobs += pack.blobs.len();
        file.packs.push(pack);
        if blobs >= MAX_INDEX_BLOBS {
            new_files.insert(
                vault.files().write_json(VaultFileKind::Index, &std::mem::take(&mut file))?,
            );
            blobs = 0;
        }
    }
    if !file.packs.is_empty() || !file.packs_to_delete.is_empty() {
        new_files.insert(vault.files().write_json(VaultFileKind::Index, &file)?);
    }
    lock.check_held()?;
    for id in old.filter(|id| !new_files.contains(id)) {
        vault.files().remove(VaultFileKind::Index, id)?;
    }
    Ok(())
}

fn remove_packs(
    (vault, lock): (&Vault, &VaultLock),
    packs: &[VaultObjectId],
    (there, progress): (&HashMap<VaultObjectId, u64>, &BackupProgress),
    pruned: &mut PruneReport,
) -> Result<()> {
    for batch in packs.chunks(REMOVAL_BATCH_SIZE) {
        lock.check_held()?;
        for id in batch {
            progress.check_running()?;
            vault.files().remove(VaultFileKind::Pack, id)?;
            pruned.removed_packs += 1;
            pruned.freed_bytes += there.get(id).copied().unwrap_or(0);
        }
    }
    Ok(())
}
