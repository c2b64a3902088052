//! Writing blobs: sealed on the threads that add them, collected in packs, and written by separate threads.
//!
//! In: plain bytes of pieces and folders. Out: packs, and the index files that list them.
//!
//! Invariants
//! * A blob that is listed, or was added before, is not written again.
//! * An index file appears only after all its packs are durable, and [`PackWriter::finish`] returns after all indexes.
//! * A durable pack is listed within a few minutes.
//! * Memory is bounded: two packs are being filled, one is being written by each connection, and a limited number wait
//!   in a queue; when it is full, adding blobs blocks. Their buffers are reused.
//!
//! On failure: the first failure is stored, and all later calls return it or stop. A writer that is dropped before its
//! end, as by an interruption, writes no more packs, and lists those that are durable, so that the next run finds their
//! blobs.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::debug;

use super::Vault;
use super::index::{StoredIndex, StoredPack, VaultIndex};
use super::lock::{LockWitness, VaultLock};
use super::opening::FINAL_FILE_COUNT;
use super::pack_blob::{PackBlobKind, StoredBlob};
use crate::backend::{StagedFile, VaultFileKind};
use crate::error::{Error, Result};
use crate::object_id::VaultObjectId;

/// Length at which a pack is closed, or the queue limit if that is smaller.
const TARGET_PACK_BYTES: usize = 16 << 20;
const MIN_PACK_BYTES: usize = 1 << 20;
/// Maximum number of packs in the queue, however large its limit in bytes is.
const MAX_QUEUED_PACKS: usize = 4096;
/// Maximum number of blobs in a pack, so that its header stays small.
const MAX_PACK_BLOBS: usize = 10_000;
/// Extra capacity of a pack's buffer for the piece that fills it, if that is short, and for its header.
const PACK_BUFFER_RESERVE: usize = 1 << 20;
/// Maximum capacity of the seal buffer that a thread retains for the next piece.
const MAX_SEAL_BUFFER_BYTES: usize = 2 << 20;
/// The number of blobs without an index entry at which an index file is written.
const MAX_INDEX_BLOBS: usize = 50_000;
/// The longest time for which a blob waits for an index file, which limits the loss of a killed run.
const MAX_INDEX_DELAY: Duration = Duration::from_mins(5);
/// The interval at which the waiting time is checked while no packs are written.
const INDEX_CHECK_INTERVAL: Duration = Duration::from_secs(15);

/// The written index files, and their packs if the collection was requested.
#[derive(Debug, Default)]
pub(crate) struct WrittenIndexFiles {
    pub(crate) packs: Vec<StoredPack>,
    pub(crate) files: Vec<VaultObjectId>,
    collects_packs: bool,
}

impl WrittenIndexFiles {
    /// Records an index file, and its packs only if requested: the list of a large run is long.
    fn add(&mut self, file: VaultObjectId, packs: Vec<StoredPack>) {
        self.files.push(file);
        if self.collects_packs {
            self.packs.extend(packs);
        }
    }
}

thread_local! {
    /// The seal buffer of this thread.
    static SEALED: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Totals of the written data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteTotals {
    /// The number of pieces that were new to the vault.
    pub pieces: u64,
    /// The number of folders that were new to the vault.
    pub folders: u64,
    /// The plain bytes of both.
    pub plain_bytes: u64,
    /// The bytes of the packs that contain them.
    pub stored_bytes: u64,
}

#[derive(Debug, Default)]
struct UnfinishedPack {
    bytes: Vec<u8>,
    blobs: Vec<StoredBlob>,
}

/// Durable packs that are not in an index file yet.
#[derive(Debug, Default)]
struct UnlistedPacks {
    index: StoredIndex,
    /// The time at which the first of them was written.
    oldest_written_at: Option<Instant>,
}

impl UnlistedPacks {
    fn add(&mut self, pack: StoredPack, now: Instant) {
        self.index.packs.push(pack);
        self.oldest_written_at.get_or_insert(now);
    }

    /// Returns true if an index of them is due.
    fn is_due(&self, now: Instant) -> bool {
        let blobs: usize = self.index.packs.iter().map(|pack| pack.blobs.len()).sum();
        let waited =
            self.oldest_written_at.map_or(Duration::ZERO, |since| now.duration_since(since));
        blobs >= MAX_INDEX_BLOBS || waited >= MAX_INDEX_DELAY
    }
}

#[derive(Debug, Default)]
struct PackWriterState {
    unlisted: Mutex<UnlistedPacks>,
    listed: Mutex<WrittenIndexFiles>,
    /// Buffers of written packs, for reuse.
    spare_buffers: Mutex<Vec<Vec<u8>>>,
    failure: Mutex<Option<Error>>,
    has_failed: AtomicBool,
    stored_bytes: AtomicU64,
}

impl PackWriterState {
    fn record_failure(&self, error: Error) {
        self.failure.lock().get_or_insert(error);
        self.has_failed.store(true, Ordering::Release);
    }
}

/// Writes blobs to a vault.
#[derive(Debug)]
pub(crate) struct PackWriter {
    vault: Arc<Vault>,
    index: Arc<VaultIndex>,
    added_blobs: Mutex<HashSet<(PackBlobKind, VaultObjectId)>>,
    /// The packs that are being filled: of pieces, and of folders.
    open_packs: [Mutex<UnfinishedPack>; 2],
    target_pack_bytes: usize,
    queue: Option<SyncSender<UnfinishedPack>>,
    threads: Vec<JoinHandle<()>>,
    shared: Arc<PackWriterState>,
    witness: LockWitness,
    pieces: AtomicU64,
    folders: AtomicU64,
    plain_bytes: AtomicU64,
}

impl PackWriter {
    /// Creates a writer; blobs that `index` lists are already in the vault.
    pub(crate) fn new(vault: &Arc<Vault>, index: &Arc<VaultIndex>, lock: &VaultLock) -> Self {
        let queue_bytes = usize::try_from(vault.tuning.queue_bytes).unwrap_or(usize::MAX);
        let pack_bytes = queue_bytes.clamp(MIN_PACK_BYTES, TARGET_PACK_BYTES);
        vault.files().backend().expect_writes(FINAL_FILE_COUNT);
        let connections =
            vault.tuning.connections.unwrap_or_else(|| vault.files().backend().connections());
        let (queue, receiver) = sync_channel(queue_capacity(queue_bytes / pack_bytes, connections));
        let receiver = Arc::new(Mutex::new(receiver));
        let shared = Arc::new(PackWriterState::default());
        let threads = (0..connections.max(1)).map(|_| {
            let (vault, receiver, shared) = (vault.clone(), receiver.clone(), shared.clone());
            let witness = lock.witness();
            std::thread::spawn(move || write_packs((&vault, &witness), &receiver, &shared))
        });
        Self {
            vault: vault.clone(),
            index: index.clone(),
            added_blobs: Mutex::default(),
            open_packs: Default::default(),
            target_pack_bytes: pack_bytes,
            queue: Some(queue),
            threads: threads.collect(),
            shared,
            witness: lock.witness(),
            pieces: AtomicU64::new(0),
            folders: AtomicU64::new(0),
            plain_bytes: AtomicU64::new(0),
        }
    }

    /// Enables recording of the listed packs, for the result of [`PackWriter::finish`].
    pub(crate) fn with_pack_collection(self) -> Self {
        self.shared.listed.lock().collects_packs = true;
        self
    }

    /// Returns true if a blob is in the vault or was added.
    pub(crate) fn contains(&self, kind: PackBlobKind, id: &VaultObjectId) -> bool {
        self.index.contains(kind, id) || self.added_blobs.lock().contains(&(kind, *id))
    }

    /// Adds a blob; returns its id, and true if it is new.
    pub(crate) fn add_blob(
        &self,
        kind: PackBlobKind,
        plain: &[u8],
    ) -> Result<(VaultObjectId, bool)> {
        let id = VaultObjectId::of(plain);
        if self.index.contains(kind, &id) || !self.added_blobs.lock().insert((kind, id)) {
            return Ok((id, false));
        }
        if kind == PackBlobKind::Data && !self.vault.tuning.piece_delay.is_zero() {
            std::thread::sleep(self.vault.tuning.piece_delay);
        }
        let mut sealed = SEALED.take();
        sealed.clear();
        let raw = self.vault.sealing().seal_blob(kind, plain, &mut sealed)?;
        match kind {
            PackBlobKind::Data => self.pieces.fetch_add(1, Ordering::Relaxed),
            PackBlobKind::Tree => self.folders.fetch_add(1, Ordering::Relaxed),
        };
        self.plain_bytes.fetch_add(plain.len() as u64, Ordering::Relaxed);
        self.append_sealed(kind, id, &sealed, raw)?;
        // Threads outlive a run: the buffer of a long piece is freed.
        if sealed.capacity() <= MAX_SEAL_BUFFER_BYTES {
            SEALED.set(sealed);
        }
        Ok((id, true))
    }

    /// Appends sealed bytes unmodified.
    pub(crate) fn append_sealed(
        &self,
        kind: PackBlobKind,
        id: VaultObjectId,
        sealed: &[u8],
        raw: Option<u32>,
    ) -> Result<()> {
        let [data, trees] = &self.open_packs;
        let mut pack = if kind == PackBlobKind::Data { data } else { trees }.lock();
        if pack.bytes.capacity() == 0 {
            let spare = self.shared.spare_buffers.lock().pop();
            pack.bytes = spare.unwrap_or_else(|| {
                Vec::with_capacity(self.target_pack_bytes + PACK_BUFFER_RESERVE)
            });
        }
        let offset = to_u32_length(pack.bytes.len());
        let length = to_u32_length(sealed.len());
        // Automatic growth would double the buffer.
        pack.bytes.reserve_exact(sealed.len());
        pack.bytes.extend_from_slice(sealed);
        pack.blobs.push(StoredBlob { id, kind, offset, length, uncompressed_length: raw });
        if pack.bytes.len() < self.target_pack_bytes && pack.blobs.len() < MAX_PACK_BLOBS {
            return Ok(());
        }
        // The lock is held, so that other threads wait, too: each of them would fill one more pack otherwise.
        self.enqueue_pack(std::mem::take(&mut *pack))
    }

    fn enqueue_pack(&self, pack: UnfinishedPack) -> Result<()> {
        self.check_failure()?;
        let sent = self.queue.as_ref().map(|queue| queue.send(pack));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => self.check_failure().and(Err(Error::Interrupted)),
        }
    }

    fn check_failure(&self) -> Result<()> {
        if !self.shared.has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        // The first caller gets the error; the others are only interrupted.
        Err(self.shared.failure.lock().take().unwrap_or(Error::Interrupted))
    }

    /// Writes the remaining data and the index. `lock` is checked before anything is listed, and after.
    pub(crate) fn finish(self, lock: &VaultLock) -> Result<(WriteTotals, WrittenIndexFiles)> {
        let (written, listed, _) = self.finish_with(lock, None)?;
        Ok((written, listed))
    }

    /// Like [`PackWriter::finish`], with another file that is staged concurrently: it may be revealed after this
    /// returns.
    ///
    /// If each call costs a round trip, files are uploaded concurrently, and only their final names wait for each
    /// other: the index for its packs, and the other file for the index.
    pub(crate) fn finish_with(
        mut self,
        lock: &VaultLock,
        extra_file: Option<(VaultFileKind, Vec<u8>)>,
    ) -> Result<(WriteTotals, WrittenIndexFiles, Option<StagedFile>)> {
        self.check_failure()?;
        let vault = self.vault.clone();
        let open_packs = std::mem::take(&mut self.open_packs).into_iter().map(Mutex::into_inner);
        let open_packs = open_packs.filter(|pack| !pack.blobs.is_empty()).collect();
        let sealed_packs = run_parallel(open_packs, |pack| seal_pack(&vault, pack));
        let sealed_packs = sealed_packs.into_iter().collect::<Result<Vec<_>>>()?;
        let (extra_file, final_packs) = vault.files().run_both(
            || extra_file.map(|(kind, bytes)| vault.files().stage(kind, bytes)).transpose(),
            || self.stage_final_packs(sealed_packs),
        );
        let result = match (extra_file, final_packs) {
            (Ok(extra_file), Ok(final_packs)) => match self.reveal_final_packs(lock, final_packs) {
                Ok(()) => Ok(extra_file),
                Err(error) => Err((extra_file, error)),
            },
            (Err(error), final_packs) => {
                if let Ok(final_packs) = final_packs {
                    final_packs.discard(&vault, &self.shared);
                }
                Err((None, error))
            }
            (Ok(extra_file), Err(error)) => Err((extra_file, error)),
        };
        let extra_file = match result {
            Ok(extra_file) => extra_file,
            Err((extra_file, error)) => {
                extra_file.iter().for_each(|file| vault.files().discard(file));
                return Err(error);
            }
        };
        let totals = WriteTotals {
            pieces: self.pieces.load(Ordering::Relaxed),
            folders: self.folders.load(Ordering::Relaxed),
            plain_bytes: self.plain_bytes.load(Ordering::Relaxed),
            stored_bytes: self.shared.stored_bytes.load(Ordering::Relaxed),
        };
        let listed = std::mem::take(&mut *self.shared.listed.lock());
        Ok((totals, listed, extra_file))
    }

    /// Stages the last packs and the index, after waiting for all other packs.
    fn stage_final_packs(&mut self, sealed_packs: Vec<SealedPack>) -> Result<FinalPacks> {
        let vault = self.vault.clone();
        let (files, entries): (Vec<(VaultObjectId, Vec<u8>)>, Vec<StoredPack>) = sealed_packs
            .into_iter()
            .map(|pack| ((pack.index_entry.id, pack.bytes), pack.index_entry))
            .unzip();
        let (staged_packs, index) = vault
            .files()
            .run_both(|| stage_packs(&vault, files), || self.stage_index(entries.clone()));
        match (staged_packs, index) {
            (Ok(staged_packs), Ok((packs_to_list, index))) => {
                Ok(FinalPacks { packs_to_list, entries, staged_packs, index })
            }
            (Ok(staged_packs), Err(error)) => {
                staged_packs.iter().for_each(|file| vault.files().discard(file));
                Err(error)
            }
            (Err(error), Ok((packs_to_list, index))) => {
                let (entries, staged_packs) = (Vec::new(), Vec::new());
                FinalPacks { packs_to_list, entries, staged_packs, index }
                    .discard(&vault, &self.shared);
                Err(error)
            }
            (Err(error), Err(_)) => Err(error),
        }
    }

    /// Stages the index of the durable unlisted packs and the last ones.
    fn stage_index(
        &mut self,
        final_entries: Vec<StoredPack>,
    ) -> Result<(StoredIndex, Option<StagedFile>)> {
        self.join_threads();
        self.check_failure()?;
        let mut unlisted = std::mem::take(&mut *self.shared.unlisted.lock());
        let durable_count = unlisted.index.packs.len();
        unlisted.index.packs.extend(final_entries);
        if unlisted.index.packs.is_empty() {
            return Ok((unlisted.index, None));
        }
        let staged_index = self.vault.files().stage_json(VaultFileKind::Index, &unlisted.index);
        unlisted.index.packs.truncate(durable_count);
        match staged_index {
            Ok(staged_index) => Ok((unlisted.index, Some(staged_index))),
            Err(error) => {
                *self.shared.unlisted.lock() = unlisted;
                Err(error)
            }
        }
    }

    /// Reveals the last packs, and then the index.
    fn reveal_final_packs(&self, lock: &VaultLock, mut final_packs: FinalPacks) -> Result<()> {
        let vault = &self.vault;
        let (reveal_results, lock_check) = vault
            .files()
            .run_both(|| reveal_packs(vault, &final_packs.staged_packs), || lock.check_held());
        for ((pack, staged_pack), reveal_result) in std::mem::take(&mut final_packs.entries)
            .into_iter()
            .zip(&final_packs.staged_packs)
            .zip(&reveal_results)
        {
            if reveal_result.is_ok() {
                record_pack(vault, &pack, staged_pack.bytes(), &self.shared);
                final_packs.packs_to_list.packs.push(pack);
            }
        }
        let outcome = reveal_results.into_iter().collect::<Result<Vec<()>>>().and(lock_check);
        if let Err(error) = outcome {
            final_packs.discard(vault, &self.shared);
            return Err(error);
        }
        let Some(index) = &final_packs.index else { return Ok(()) };
        let (reveal_result, lock_check) =
            vault.files().run_both(|| vault.files().reveal(index), || lock.check_held());
        reveal_result?;
        self.shared.listed.lock().add(index.id(), final_packs.packs_to_list.packs);
        lock_check
    }

    fn join_threads(&mut self) {
        drop(self.queue.take());
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                self.shared.record_failure(Error::Interrupted);
            }
        }
    }
}

impl Drop for PackWriter {
    fn drop(&mut self) {
        // An interrupted run does not wait for the queue.
        self.shared.has_failed.store(true, Ordering::Release);
        self.join_threads();
        let unlisted = std::mem::take(&mut *self.shared.unlisted.lock()).index;
        if unlisted.packs.is_empty() {
            return;
        }
        let outcome = self.witness.check_held().and_then(|()| {
            let file = self.vault.files().write_json(VaultFileKind::Index, &unlisted)?;
            self.shared.listed.lock().add(file, unlisted.packs);
            Ok(())
        });
        if let Err(error) = outcome {
            // Unlisted packs are garbage, which a prune removes.
            debug!(%error, "cannot write an index of the new packs");
            self.shared.record_failure(error);
        }
    }
}

fn to_u32_length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Returns the queue capacity, where `packs` is the number that may wait or be written.
fn queue_capacity(packs: usize, connections: usize) -> usize {
    packs.saturating_sub(connections).clamp(1, MAX_QUEUED_PACKS)
}

/// Writes packs until the queue is closed, or one fails.
fn write_packs(
    vault: (&Vault, &LockWitness),
    receiver: &Mutex<Receiver<UnfinishedPack>>,
    shared: &PackWriterState,
) {
    loop {
        let received_pack = receiver.lock().recv_timeout(INDEX_CHECK_INTERVAL);
        if matches!(received_pack, Err(RecvTimeoutError::Disconnected)) {
            return;
        }
        // After a failure, remaining packs are dropped, so that no thread waits for queue capacity.
        if shared.has_failed.load(Ordering::Acquire) {
            continue;
        }
        let outcome = received_pack.map_or(Ok(()), |pack| write_pack(vault.0, pack, shared));
        if let Err(error) = outcome.and_then(|()| write_index_if_due(vault, shared, Instant::now()))
        {
            shared.record_failure(error);
        }
    }
}

/// A sealed pack, and its index entry.
struct SealedPack {
    index_entry: StoredPack,
    bytes: Vec<u8>,
}

fn seal_pack(vault: &Vault, mut pack: UnfinishedPack) -> Result<SealedPack> {
    let header = vault.sealing().seal_bytes(&encode_pack_header(&pack.blobs))?;
    pack.bytes.reserve_exact(header.len() + 4);
    pack.bytes.extend_from_slice(&header);
    pack.bytes.extend_from_slice(&to_u32_length(header.len()).to_le_bytes());
    let id = VaultObjectId::of(&pack.bytes);
    pack.blobs.shrink_to_fit();
    Ok(SealedPack { index_entry: StoredPack { id, blobs: pack.blobs }, bytes: pack.bytes })
}

/// Caches a durable pack if it contains folders, and counts it.
fn record_pack(vault: &Vault, pack: &StoredPack, bytes: &[u8], shared: &PackWriterState) {
    if let Some(cache) = vault.files().cache()
        && pack.blobs.first().is_some_and(|blob| blob.kind == PackBlobKind::Tree)
    {
        cache.store(VaultFileKind::Pack, &pack.id, bytes);
    }
    shared.stored_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
}

/// The remaining data after the last blob was added.
struct FinalPacks {
    /// The packs that [`Self::index`] lists and that are durable: those before the last ones, and each of the last ones
    /// once it has its final name.
    packs_to_list: StoredIndex,
    /// The index entries of the last packs, in the order of [`Self::staged_packs`].
    entries: Vec<StoredPack>,
    /// The staged files of the last packs.
    staged_packs: Vec<StagedFile>,
    /// The index of all of them; `None` if there are none.
    index: Option<StagedFile>,
}

impl FinalPacks {
    /// Removes the staged files. Durable packs are left for the writer's end to list.
    fn discard(self, vault: &Vault, shared: &PackWriterState) {
        self.staged_packs.iter().chain(&self.index).for_each(|file| vault.files().discard(file));
        shared.unlisted.lock().index.packs.extend(self.packs_to_list.packs);
    }
}

/// Stages packs concurrently; none remains staged if one fails.
fn stage_packs(vault: &Vault, packs: Vec<(VaultObjectId, Vec<u8>)>) -> Result<Vec<StagedFile>> {
    let staged_files = run_parallel(packs, |(id, bytes)| {
        vault.files().stage_named(VaultFileKind::Pack, id, bytes)
    });
    let are_all_staged = staged_files.iter().all(Result::is_ok);
    if !are_all_staged {
        staged_files.iter().flatten().for_each(|file| vault.files().discard(file));
    }
    staged_files.into_iter().collect()
}

/// Reveals packs concurrently.
fn reveal_packs(vault: &Vault, packs: &[StagedFile]) -> Vec<Result<()>> {
    run_parallel(packs.iter().collect(), |staged| vault.files().reveal(staged))
}

/// Runs a function on each of a few items concurrently.
fn run_parallel<A: Send, T: Send>(
    mut items: Vec<A>,
    work: impl Fn(A) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let Some(last_item) = items.pop() else { return Vec::new() };
    std::thread::scope(|scope| {
        let work = &work;
        let other_threads: Vec<_> =
            items.into_iter().map(|item| scope.spawn(move || work(item))).collect();
        let last_result = work(last_item);
        let other_results = other_threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(Err(Error::Interrupted)));
        let mut results: Vec<Result<T>> = other_results.collect();
        results.push(last_result);
        results
    })
}

fn write_pack(vault: &Vault, pack: UnfinishedPack, shared: &PackWriterState) -> Result<()> {
    let SealedPack { index_entry: pack, mut bytes } = seal_pack(vault, pack)?;
    vault.files().write(VaultFileKind::Pack, &pack.id, &bytes)?;
    record_pack(vault, &pack, &bytes, shared);
    shared.unlisted.lock().add(pack, Instant::now());
    bytes.clear();
    shared.spare_buffers.lock().push(bytes);
    Ok(())
}

/// Writes an index of the unlisted packs if it is due.
fn write_index_if_due(
    (vault, witness): (&Vault, &LockWitness),
    shared: &PackWriterState,
    now: Instant,
) -> Result<()> {
    let due_packs = {
        let mut unlisted = shared.unlisted.lock();
        unlisted.is_due(now).then(|| std::mem::take(&mut *unlisted))
    };
    let Some(UnlistedPacks { index, oldest_written_at }) = due_packs else { return Ok(()) };
    // Without the lock, a prune may have removed the packs that are to be listed.
    let outcome =
        witness.check_held().and_then(|()| vault.files().write_json(VaultFileKind::Index, &index));
    match outcome {
        Ok(file) => {
            shared.listed.lock().add(file, index.packs);
            Ok(())
        }
        Err(Error::LockLost) => Err(Error::LockLost),
        Err(error) => {
            // They are still durable: the end of the writer tries again.
            let mut unlisted = shared.unlisted.lock();
            unlisted.index.packs.extend(index.packs);
            unlisted.oldest_written_at = oldest_written_at;
            Err(error)
        }
    }
}

/// Encodes the header of a pack: type, lengths and id of each blob.
fn encode_pack_header(blobs: &[StoredBlob]) -> Vec<u8> {
    let mut header = Vec::with_capacity(blobs.len() * 41);
    for blob in blobs {
        let kind = match (blob.kind, blob.uncompressed_length) {
            (PackBlobKind::Data, None) => 0,
            (PackBlobKind::Tree, None) => 1,
            (PackBlobKind::Data, Some(_)) => 2,
            (PackBlobKind::Tree, Some(_)) => 3,
        };
        header.push(kind);
        header.extend_from_slice(&blob.length.to_le_bytes());
        if let Some(raw) = blob.uncompressed_length {
            header.extend_from_slice(&raw.to_le_bytes());
        }
        header.extend_from_slice(blob.id.as_bytes());
    }
    header
}

/// Decodes the header of a pack; `None` if it is damaged.
pub(crate) fn parse_pack_header(mut header: &[u8]) -> Option<Vec<StoredBlob>> {
    let mut blobs = Vec::new();
    let mut offset = 0_u32;
    while let Some((kind, rest)) = header.split_first() {
        let (length, mut rest) = rest.split_first_chunk::<4>()?;
        let mut raw = None;
        if *kind > 1 {
            let (plain, after) = rest.split_first_chunk::<4>()?;
            (raw, rest) = (Some(u32::from_le_bytes(*plain)), after);
        }
        let (id, rest) = rest.split_first_chunk::<32>()?;
        let kind = match kind {
            0 | 2 => PackBlobKind::Data,
            1 | 3 => PackBlobKind::Tree,
            _ => return None,
        };
        let length = u32::from_le_bytes(*length);
        let id = VaultObjectId::from_bytes(*id);
        blobs.push(StoredBlob { id, kind, offset, length, uncompressed_length: raw });
        offset = offset.checked_add(length)?;
        header = rest;
    }
    Some(blobs)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::backend::LocalBackend;
    use crate::vault::lock::{UnlockScope, VaultLockMode};
    use crate::vault::{KeyDerivationCost, VaultUser, WriterTuning};

    /// Adds enough blobs for an index to be written before the end, when the lock is already lost.
    #[test]
    fn nothing_is_listed_without_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let backend = Arc::new(LocalBackend::new(dir.path().join("vault")));
        let user = VaultUser::this_process();
        let by = (&user, Timestamp::UNIX_EPOCH);
        let vault =
            Arc::new(Vault::init(backend, b"x", KeyDerivationCost { log_rounds: 4 }, by).unwrap());
        for is_held in [true, false] {
            let lock =
                VaultLock::acquire(&vault, &user, VaultLockMode::Shared, std::time::Duration::ZERO);
            let lock = lock.unwrap();
            if !is_held {
                vault.unlock(&user, UnlockScope::All).unwrap();
            }
            let before = vault.files().list(VaultFileKind::Index).unwrap().len();
            let writer = PackWriter::new(&vault, &Arc::default(), &lock);
            let add_blob = |number: usize| {
                let id = VaultObjectId::of(&number.to_le_bytes());
                writer.append_sealed(PackBlobKind::Data, id, b"sealed", None)
            };
            let outcome = (0..MAX_INDEX_BLOBS).try_for_each(add_blob);
            let shared = writer.shared.clone();
            drop(writer);
            let listed = vault.files().list(VaultFileKind::Index).unwrap().len() - before;
            let failure = outcome.err().or_else(|| shared.failure.lock().take());
            if is_held {
                assert!(failure.is_none() && listed == 1, "{failure:?}, {listed} listed");
            } else {
                assert!(matches!(failure, Some(Error::LockLost)), "{failure:?}");
                assert_eq!(listed, 0);
            }
        }
    }

    /// A first save over a slow connection takes days: what it has uploaded is found again after a kill.
    #[test]
    fn what_is_durable_is_listed_after_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let backend = Arc::new(LocalBackend::new(dir.path().join("vault")));
        let user = VaultUser::this_process();
        let by = (&user, Timestamp::UNIX_EPOCH);
        let vault =
            Arc::new(Vault::init(backend, b"x", KeyDerivationCost { log_rounds: 4 }, by).unwrap());
        let lock =
            VaultLock::acquire(&vault, &user, VaultLockMode::Shared, Duration::ZERO).unwrap();
        let (shared, witness) = (PackWriterState::default(), lock.witness());
        let listed = |now: Instant| {
            write_index_if_due((&vault, &witness), &shared, now).unwrap();
            let index = VaultIndex::load(&vault).unwrap();
            (0..3)
                .map(|number| index.contains(PackBlobKind::Data, &VaultObjectId::of(&[number])))
                .collect::<Vec<_>>()
        };
        let write = |number: u8| {
            let id = VaultObjectId::of(&[number]);
            let (kind, offset, length) = (PackBlobKind::Data, 0, 6);
            let blobs = vec![StoredBlob { id, kind, offset, length, uncompressed_length: None }];
            write_pack(&vault, UnfinishedPack { bytes: b"sealed".to_vec(), blobs }, &shared)
                .unwrap();
        };
        write(0);
        let first = shared.unlisted.lock().oldest_written_at.unwrap();
        write(1);
        assert_eq!(listed(first), [false, false, false]);
        // What could not be listed is listed later.
        let (index, away) = (dir.path().join("vault/index"), dir.path().join("away"));
        std::fs::rename(&index, &away).unwrap();
        std::fs::write(&index, b"").unwrap();
        write_index_if_due((&vault, &witness), &shared, first + MAX_INDEX_DELAY).unwrap_err();
        std::fs::remove_file(&index).unwrap();
        std::fs::rename(&away, &index).unwrap();
        assert_eq!(shared.unlisted.lock().oldest_written_at, Some(first));
        assert_eq!(listed(first + MAX_INDEX_DELAY), [true, true, false]);
        write(2);
        let next = shared.unlisted.lock().oldest_written_at.unwrap();
        assert_eq!(listed(next), [true, true, false], "the time begins anew");
        assert_eq!(listed(next + MAX_INDEX_DELAY), [true, true, true]);
        assert_eq!(listed(next + MAX_INDEX_DELAY * 2), [true, true, true]);
        assert_eq!(vault.files().list(VaultFileKind::Index).unwrap().len(), 2);
    }

    /// The number of threads and the speed of writing packs make no difference.
    #[test]
    fn no_more_packs_are_in_memory_than_may_wait() {
        let dir = tempfile::tempdir().unwrap();
        let backend = Arc::new(LocalBackend::new(dir.path().join("vault")));
        let user = VaultUser::this_process();
        let by = (&user, Timestamp::UNIX_EPOCH);
        let mut vault =
            Vault::init(backend, b"x", KeyDerivationCost { log_rounds: 4 }, by).unwrap();
        let connections = 2;
        let queue_bytes = 4 * MIN_PACK_BYTES as u64;
        vault.set_tuning(WriterTuning {
            connections: Some(connections),
            queue_bytes,
            ..WriterTuning::default()
        });
        let vault = Arc::new(vault);
        for collects_packs in [false, true] {
            let lock =
                VaultLock::acquire(&vault, &user, VaultLockMode::Shared, Duration::ZERO).unwrap();
            let writer = PackWriter::new(&vault, &Arc::default(), &lock);
            let writer = if collects_packs { writer.with_pack_collection() } else { writer };
            let shared = writer.shared.clone();
            let piece = vec![0; queue_bytes as usize / 2];
            std::thread::scope(|scope| {
                for thread in 0..4_u8 {
                    let (writer, piece) = (&writer, &piece);
                    scope.spawn(move || {
                        for number in 0..8 {
                            let id = VaultObjectId::of(&[thread, number, collects_packs.into()]);
                            writer.append_sealed(PackBlobKind::Data, id, piece, None).unwrap();
                        }
                    });
                }
            });
            let (_, listed) = writer.finish(&lock).unwrap();
            assert_eq!(listed.packs.len(), if collects_packs { 16 } else { 0 });
            assert_eq!(listed.files.len(), 1);
            let buffers = shared.spare_buffers.lock();
            // One is being filled, one waits, and the others are being written.
            assert!((1..=2 + connections).contains(&buffers.len()), "{}", buffers.len());
            let longest = buffers.iter().map(Vec::capacity).max().unwrap();
            assert!(longest < queue_bytes as usize + 2 * PACK_BUFFER_RESERVE, "{longest}");
        }
        assert_eq!(
            [(2, 5), (2, 2), (8, 5)].map(|(packs, ways)| queue_capacity(packs, ways)),
            [1, 1, 3]
        );
    }

    #[test]
    fn headers_survive_and_damage_is_no_panic() {
        let blob = |kind, offset, raw| StoredBlob {
            id: VaultObjectId::of(&[1]),
            kind,
            offset,
            length: 7,
            uncompressed_length: raw,
        };
        let blobs = [blob(PackBlobKind::Data, 0, Some(9)), blob(PackBlobKind::Tree, 7, None)];
        let header = encode_pack_header(&blobs);
        let parsed = parse_pack_header(&header).unwrap();
        assert_eq!(format!("{parsed:?}"), format!("{blobs:?}"));
        for length in 0..header.len() {
            assert_eq!(parse_pack_header(&header[..length]).is_some(), length == 0 || length == 41);
        }
        assert!(parse_pack_header(&[4; 41]).is_none());
    }
}
