//! Writing blobs: sealed on the threads that bring them, gathered in packs, written by threads of their own.
//!
//! In: plain bytes of pieces and folders. Out: packs, and the index files that list them.
//!
//! Invariants
//! * A blob that is listed, or was brought before, is not written again.
//! * An index file appears only after all its packs are durable, and [`Writer::finish`] returns after all indexes.
//! * A durable pack is listed a few minutes later at the latest.
//! * Memory is bounded: two packs are being filled, one is on its way by each connection, and some wait to be; then whoever
//!   brings more waits. Their buffers are used again.
//!
//! On failure: the first failure is kept, all later calls return it or stop. A writer that is dropped before its end, as by
//! an interruption, writes no more packs, and lists those that are durable, so that the next run finds what is in them.

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
use super::index::{BlobKind, Index, StoredBlob, StoredIndex, StoredPack};
use super::lock::{Lock, Witness};
use crate::backend::{FileKind, Staged};
use crate::error::{Error, Result};
use crate::id::Id;

/// A pack is closed when it reaches this length, or that of the queue if it is shorter.
const PACK_BYTES: usize = 16 << 20;
const MIN_PACK_BYTES: usize = 1 << 20;
/// No more packs wait than this, however long the queue may be.
const MAX_QUEUE: usize = 4096;
/// A pack is closed when it holds so many blobs, so that its header stays small.
const PACK_BLOBS: usize = 10_000;
/// Room in the buffer of a pack for the piece that fills it, if that is short, and for its header.
const PACK_ROOM: usize = 1 << 20;
/// A thread keeps a buffer of so many bytes for the next piece.
const KEPT_SEALED: usize = 2 << 20;
/// The files with which a short run ends: a pack of pieces and one of folders, the index, and what needs it.
pub(super) const LAST_FILES: usize = 4;
/// An index file is written when so many blobs wait for one,
const INDEX_BLOBS: usize = 50_000;
/// or the first of them has waited for so long: a run that is killed loses no more.
const INDEX_WAIT: Duration = Duration::from_mins(5);
/// How often it is looked whether that is so while no packs come.
const LOOK: Duration = Duration::from_secs(15);

/// Index files that were written, and the packs that they list if somebody has asked for these.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    pub(crate) packs: Vec<StoredPack>,
    pub(crate) files: Vec<Id>,
    tells_packs: bool,
}

impl Listed {
    /// Notes that a file lists some packs: all that a large run has written is much to keep in mind.
    fn add(&mut self, file: Id, packs: Vec<StoredPack>) {
        self.files.push(file);
        if self.tells_packs {
            self.packs.extend(packs);
        }
    }
}

thread_local! {
    /// Where this thread seals what it brings.
    static SEALED: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Pieces that the vault lacked.
    pub pieces: u64,
    /// Folders that the vault lacked.
    pub folders: u64,
    /// Their plain bytes.
    pub plain_bytes: u64,
    /// The bytes of the packs they are in.
    pub stored_bytes: u64,
}

#[derive(Debug, Default)]
struct Pack {
    bytes: Vec<u8>,
    blobs: Vec<StoredBlob>,
}

/// Packs that are durable and in no index file yet.
#[derive(Debug, Default)]
struct Unlisted {
    index: StoredIndex,
    /// When the first of them had been written.
    since: Option<Instant>,
}

impl Unlisted {
    fn add(&mut self, pack: StoredPack, now: Instant) {
        self.index.packs.push(pack);
        self.since.get_or_insert(now);
    }

    /// Tells whether they are to be listed.
    fn is_due(&self, now: Instant) -> bool {
        let blobs: usize = self.index.packs.iter().map(|pack| pack.blobs.len()).sum();
        let waited = self.since.map_or(Duration::ZERO, |since| now.duration_since(since));
        blobs >= INDEX_BLOBS || waited >= INDEX_WAIT
    }
}

#[derive(Debug, Default)]
struct Shared {
    unlisted: Mutex<Unlisted>,
    listed: Mutex<Listed>,
    /// Buffers of packs that were written.
    spare: Mutex<Vec<Vec<u8>>>,
    failure: Mutex<Option<Error>>,
    has_failed: AtomicBool,
    stored_bytes: AtomicU64,
}

impl Shared {
    fn fail(&self, error: Error) {
        self.failure.lock().get_or_insert(error);
        self.has_failed.store(true, Ordering::Release);
    }
}

/// Writes blobs into a vault.
#[derive(Debug)]
pub(crate) struct Writer {
    vault: Arc<Vault>,
    index: Arc<Index>,
    seen: Mutex<HashSet<(BlobKind, Id)>>,
    packs: [Mutex<Pack>; 2],
    pack_bytes: usize,
    queue: Option<SyncSender<Pack>>,
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
    witness: Witness,
    pieces: AtomicU64,
    folders: AtomicU64,
    plain_bytes: AtomicU64,
}

impl Writer {
    /// Begins; what `index` lists is in the vault already.
    pub(crate) fn new(vault: &Arc<Vault>, index: &Arc<Index>, lock: &Lock) -> Self {
        let queue_bytes = usize::try_from(vault.tuning.queue_bytes).unwrap_or(usize::MAX);
        let pack_bytes = queue_bytes.clamp(MIN_PACK_BYTES, PACK_BYTES);
        vault.backend.expect_writes(LAST_FILES);
        let connections = vault.tuning.connections.unwrap_or_else(|| vault.backend.connections());
        let (queue, packs) = sync_channel(waiting_packs(queue_bytes / pack_bytes, connections));
        let packs = Arc::new(Mutex::new(packs));
        let shared = Arc::new(Shared::default());
        let threads = (0..connections.max(1)).map(|_| {
            let (vault, packs, shared) = (vault.clone(), packs.clone(), shared.clone());
            let witness = lock.witness();
            std::thread::spawn(move || write_packs((&vault, &witness), &packs, &shared))
        });
        Self {
            vault: vault.clone(),
            index: index.clone(),
            seen: Mutex::default(),
            packs: Default::default(),
            pack_bytes,
            queue: Some(queue),
            threads: threads.collect(),
            shared,
            witness: lock.witness(),
            pieces: AtomicU64::new(0),
            folders: AtomicU64::new(0),
            plain_bytes: AtomicU64::new(0),
        }
    }

    /// From now on, what is listed is kept in mind, for [`Writer::finish`].
    pub(crate) fn telling_packs(self) -> Self {
        self.shared.listed.lock().tells_packs = true;
        self
    }

    /// Tells whether a blob is in the vault, or was brought.
    pub(crate) fn contains(&self, kind: BlobKind, id: &Id) -> bool {
        self.index.contains(kind, id) || self.seen.lock().contains(&(kind, *id))
    }

    /// Brings a blob; returns its id, and whether it is new.
    pub(crate) fn add(&self, kind: BlobKind, plain: &[u8]) -> Result<(Id, bool)> {
        let id = Id::of(plain);
        if self.index.contains(kind, &id) || !self.seen.lock().insert((kind, id)) {
            return Ok((id, false));
        }
        if kind == BlobKind::Data && !self.vault.tuning.delay.is_zero() {
            std::thread::sleep(self.vault.tuning.delay);
        }
        let mut sealed = SEALED.take();
        sealed.clear();
        let raw = self.vault.seal_blob(kind, plain, &mut sealed)?;
        match kind {
            BlobKind::Data => self.pieces.fetch_add(1, Ordering::Relaxed),
            BlobKind::Tree => self.folders.fetch_add(1, Ordering::Relaxed),
        };
        self.plain_bytes.fetch_add(plain.len() as u64, Ordering::Relaxed);
        self.append((kind, id), &sealed, raw)?;
        // Threads outlive a run: what a long piece took is given back.
        if sealed.capacity() <= KEPT_SEALED {
            SEALED.set(sealed);
        }
        Ok((id, true))
    }

    /// Appends sealed bytes as they are.
    pub(crate) fn append(
        &self,
        (kind, id): (BlobKind, Id),
        sealed: &[u8],
        raw: Option<u32>,
    ) -> Result<()> {
        let [data, trees] = &self.packs;
        let mut pack = if kind == BlobKind::Data { data } else { trees }.lock();
        if pack.bytes.capacity() == 0 {
            let spare = self.shared.spare.lock().pop();
            pack.bytes = spare.unwrap_or_else(|| Vec::with_capacity(self.pack_bytes + PACK_ROOM));
        }
        let offset = length_of(pack.bytes.len());
        let length = length_of(sealed.len());
        // A buffer that grew by itself would double.
        pack.bytes.reserve_exact(sealed.len());
        pack.bytes.extend_from_slice(sealed);
        pack.blobs.push(StoredBlob { id, kind, offset, length, uncompressed_length: raw });
        if pack.bytes.len() < self.pack_bytes && pack.blobs.len() < PACK_BLOBS {
            return Ok(());
        }
        // The others wait, too: each of them would fill one more pack meanwhile.
        self.send(std::mem::take(&mut *pack))
    }

    fn send(&self, pack: Pack) -> Result<()> {
        self.fail_if_failed()?;
        let sent = self.queue.as_ref().map(|queue| queue.send(pack));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => self.fail_if_failed().and(Err(Error::Interrupted)),
        }
    }

    fn fail_if_failed(&self) -> Result<()> {
        if !self.shared.has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        // Whoever comes first tells why; the others only stop.
        Err(self.shared.failure.lock().take().unwrap_or(Error::Interrupted))
    }

    /// Writes what is left, and the index. `lock` is confirmed before anything is listed, and after.
    pub(crate) fn finish(self, lock: &Lock) -> Result<(Written, Listed)> {
        let (written, listed, _) = self.finish_with(lock, None)?;
        Ok((written, listed))
    }

    /// As [`Writer::finish`], with a file that is staged meanwhile: it may appear when this is over.
    ///
    /// Where each call costs a round trip, files are brought to the vault at once, and only their names wait for each
    /// other: of the index for those of its packs, and of what comes after it for that of the index.
    pub(crate) fn finish_with(
        mut self,
        lock: &Lock,
        also: Option<(FileKind, Vec<u8>)>,
    ) -> Result<(Written, Listed, Option<Staged>)> {
        self.fail_if_failed()?;
        let vault = self.vault.clone();
        let packs = std::mem::take(&mut self.packs).into_iter().map(Mutex::into_inner);
        let packs = packs.filter(|pack| !pack.blobs.is_empty()).collect();
        let packs = at_once(packs, |pack| seal_pack(&vault, pack));
        let packs = packs.into_iter().collect::<Result<Vec<_>>>()?;
        let (also, last) = vault.both(
            || also.map(|(kind, bytes)| vault.stage(kind, bytes)).transpose(),
            || self.stage_last(packs),
        );
        let shown = match (also, last) {
            (Ok(also), Ok(last)) => match self.reveal_last(lock, last) {
                Ok(()) => Ok(also),
                Err(error) => Err((also, error)),
            },
            (Err(error), last) => {
                if let Ok(last) = last {
                    last.give_up(&vault, &self.shared);
                }
                Err((None, error))
            }
            (Ok(also), Err(error)) => Err((also, error)),
        };
        let also = match shown {
            Ok(also) => also,
            Err((also, error)) => {
                also.iter().for_each(|staged| vault.discard(staged));
                return Err(error);
            }
        };
        let written = Written {
            pieces: self.pieces.load(Ordering::Relaxed),
            folders: self.folders.load(Ordering::Relaxed),
            plain_bytes: self.plain_bytes.load(Ordering::Relaxed),
            stored_bytes: self.shared.stored_bytes.load(Ordering::Relaxed),
        };
        let listed = std::mem::take(&mut *self.shared.listed.lock());
        Ok((written, listed, also))
    }

    /// Stages the last packs, and beside them the index, for which all other packs are waited for.
    fn stage_last(&mut self, packs: Vec<SealedPack>) -> Result<Last> {
        let vault = self.vault.clone();
        let packs = packs.into_iter().map(|pack| ((pack.listed.id, pack.bytes), pack.listed));
        let (files, packs): (Vec<(Id, Vec<u8>)>, Vec<StoredPack>) = packs.unzip();
        let (staged, index) =
            vault.both(|| stage_packs(&vault, files), || self.stage_index(packs.clone()));
        match (staged, index) {
            (Ok(staged), Ok((durable, index))) => Ok(Last { durable, packs, staged, index }),
            (Ok(staged), Err(error)) => {
                staged.iter().for_each(|staged| vault.discard(staged));
                Err(error)
            }
            (Err(error), Ok((durable, index))) => {
                let (packs, staged) = (Vec::new(), Vec::new());
                Last { durable, packs, staged, index }.give_up(&vault, &self.shared);
                Err(error)
            }
            (Err(error), Err(_)) => Err(error),
        }
    }

    /// Stages the index of what is durable and in none yet, and of the last packs.
    fn stage_index(&mut self, last: Vec<StoredPack>) -> Result<(StoredIndex, Option<Staged>)> {
        self.join();
        self.fail_if_failed()?;
        let mut all = std::mem::take(&mut *self.shared.unlisted.lock());
        let durable = all.index.packs.len();
        all.index.packs.extend(last);
        if all.index.packs.is_empty() {
            return Ok((all.index, None));
        }
        let staged = self.vault.stage_json(FileKind::Index, &all.index);
        all.index.packs.truncate(durable);
        match staged {
            Ok(staged) => Ok((all.index, Some(staged))),
            Err(error) => {
                *self.shared.unlisted.lock() = all;
                Err(error)
            }
        }
    }

    /// Lets the last packs appear, and then the index.
    fn reveal_last(&self, lock: &Lock, mut last: Last) -> Result<()> {
        let vault = &self.vault;
        let (revealed, confirmed) =
            vault.both(|| reveal_packs(vault, &last.staged), || lock.confirm());
        for ((pack, staged), shown) in
            std::mem::take(&mut last.packs).into_iter().zip(&last.staged).zip(&revealed)
        {
            if shown.is_ok() {
                note_pack(vault, &pack, staged.bytes(), &self.shared);
                last.durable.packs.push(pack);
            }
        }
        let done = revealed.into_iter().collect::<Result<Vec<()>>>().and(confirmed);
        if let Err(error) = done {
            last.give_up(vault, &self.shared);
            return Err(error);
        }
        let Some(index) = &last.index else { return Ok(()) };
        let (revealed, confirmed) = vault.both(|| vault.reveal(index), || lock.confirm());
        revealed?;
        self.shared.listed.lock().add(index.id(), last.durable.packs);
        confirmed
    }

    fn join(&mut self) {
        drop(self.queue.take());
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                self.shared.fail(Error::Interrupted);
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Whoever has asked for an end does not wait for what is queued.
        self.shared.has_failed.store(true, Ordering::Release);
        self.join();
        let unlisted = std::mem::take(&mut *self.shared.unlisted.lock()).index;
        if unlisted.packs.is_empty() {
            return;
        }
        let listed = self.witness.confirm().and_then(|()| {
            let file = self.vault.write_json(FileKind::Index, &unlisted)?;
            self.shared.listed.lock().add(file, unlisted.packs);
            Ok(())
        });
        if let Err(error) = listed {
            // Packs that are not listed are garbage, which a prune removes.
            debug!(%error, "what a run has written is not listed");
            self.shared.fail(error);
        }
    }
}

fn length_of(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Returns how many packs may wait where so many may wait or be on their way.
fn waiting_packs(packs: usize, connections: usize) -> usize {
    packs.saturating_sub(connections).clamp(1, MAX_QUEUE)
}

/// Writes packs until there are no more, or one fails.
fn write_packs(vault: (&Vault, &Witness), packs: &Mutex<Receiver<Pack>>, shared: &Shared) {
    loop {
        let received = packs.lock().recv_timeout(LOOK);
        if matches!(received, Err(RecvTimeoutError::Disconnected)) {
            return;
        }
        // After a failure, the rest is taken and dropped, so that nobody waits for room.
        if shared.has_failed.load(Ordering::Acquire) {
            continue;
        }
        let written = received.map_or(Ok(()), |pack| write_pack(vault.0, pack, shared));
        if let Err(error) = written.and_then(|()| list_if_due(vault, shared, Instant::now())) {
            shared.fail(error);
        }
    }
}

/// A pack as it is in the vault, and in the index.
struct SealedPack {
    listed: StoredPack,
    bytes: Vec<u8>,
}

fn seal_pack(vault: &Vault, mut pack: Pack) -> Result<SealedPack> {
    let header = vault.key.seal(&header_of(&pack.blobs))?;
    pack.bytes.reserve_exact(header.len() + 4);
    pack.bytes.extend_from_slice(&header);
    pack.bytes.extend_from_slice(&length_of(header.len()).to_le_bytes());
    let id = Id::of(&pack.bytes);
    pack.blobs.shrink_to_fit();
    Ok(SealedPack { listed: StoredPack { id, blobs: pack.blobs }, bytes: pack.bytes })
}

/// Keeps a pack that is durable here if it holds folders, and counts it.
fn note_pack(vault: &Vault, pack: &StoredPack, bytes: &[u8], shared: &Shared) {
    if let Some(cache) = &vault.cache
        && pack.blobs.first().is_some_and(|blob| blob.kind == BlobKind::Tree)
    {
        cache.keep(FileKind::Pack, &pack.id, bytes);
    }
    shared.stored_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
}

/// What is left when there is nothing more to bring.
struct Last {
    /// Packs that are durable, and will be when the last ones have appeared.
    durable: StoredIndex,
    /// The last packs as the index lists them, and as they are staged.
    packs: Vec<StoredPack>,
    staged: Vec<Staged>,
    /// The index of all of them; nothing if there are none.
    index: Option<Staged>,
}

impl Last {
    /// Removes what has no name. What is durable is left for the writer's end to list.
    fn give_up(self, vault: &Vault, shared: &Shared) {
        self.staged.iter().chain(&self.index).for_each(|staged| vault.discard(staged));
        shared.unlisted.lock().index.packs.extend(self.durable.packs);
    }
}

/// Stages packs, all at once; none is left if one fails.
fn stage_packs(vault: &Vault, packs: Vec<(Id, Vec<u8>)>) -> Result<Vec<Staged>> {
    let staged = at_once(packs, |(id, bytes)| vault.stage_named(FileKind::Pack, id, bytes));
    let is_whole = staged.iter().all(Result::is_ok);
    if !is_whole {
        staged.iter().flatten().for_each(|staged| vault.discard(staged));
    }
    staged.into_iter().collect()
}

/// Lets packs appear, all at once.
fn reveal_packs(vault: &Vault, packs: &[Staged]) -> Vec<Result<()>> {
    at_once(packs.iter().collect(), |staged| vault.reveal(staged))
}

/// Does the same with each of a few things, all at once.
fn at_once<A: Send, T: Send>(
    mut things: Vec<A>,
    work: impl Fn(A) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let Some(last) = things.pop() else { return Vec::new() };
    std::thread::scope(|scope| {
        let work = &work;
        let others: Vec<_> =
            things.into_iter().map(|thing| scope.spawn(move || work(thing))).collect();
        let last = work(last);
        let others =
            others.into_iter().map(|other| other.join().unwrap_or(Err(Error::Interrupted)));
        let mut done: Vec<Result<T>> = others.collect();
        done.push(last);
        done
    })
}

fn write_pack(vault: &Vault, pack: Pack, shared: &Shared) -> Result<()> {
    let SealedPack { listed: pack, mut bytes } = seal_pack(vault, pack)?;
    vault.write(FileKind::Pack, &pack.id, &bytes)?;
    note_pack(vault, &pack, &bytes, shared);
    shared.unlisted.lock().add(pack, Instant::now());
    bytes.clear();
    shared.spare.lock().push(bytes);
    Ok(())
}

/// Lists what has waited for it.
fn list_if_due((vault, witness): (&Vault, &Witness), shared: &Shared, now: Instant) -> Result<()> {
    let due = {
        let mut unlisted = shared.unlisted.lock();
        unlisted.is_due(now).then(|| std::mem::take(&mut *unlisted))
    };
    let Some(Unlisted { index, since }) = due else { return Ok(()) };
    // Without the lock, a prune may have removed the packs that are to be listed.
    let done = witness.confirm().and_then(|()| vault.write_json(FileKind::Index, &index));
    match done {
        Ok(file) => {
            shared.listed.lock().add(file, index.packs);
            Ok(())
        }
        Err(Error::LockLost) => Err(Error::LockLost),
        Err(error) => {
            // They are as durable as before: the writer's end tries once more.
            let mut unlisted = shared.unlisted.lock();
            unlisted.index.packs.extend(index.packs);
            unlisted.since = since;
            Err(error)
        }
    }
}

/// Encodes what a pack holds: kind, lengths and id of each blob.
fn header_of(blobs: &[StoredBlob]) -> Vec<u8> {
    let mut header = Vec::with_capacity(blobs.len() * 41);
    for blob in blobs {
        let kind = match (blob.kind, blob.uncompressed_length) {
            (BlobKind::Data, None) => 0,
            (BlobKind::Tree, None) => 1,
            (BlobKind::Data, Some(_)) => 2,
            (BlobKind::Tree, Some(_)) => 3,
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

/// Decodes the header of a pack; nothing if it is damaged.
pub(crate) fn parse_header(mut header: &[u8]) -> Option<Vec<StoredBlob>> {
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
            0 | 2 => BlobKind::Data,
            1 | 3 => BlobKind::Tree,
            _ => return None,
        };
        let length = u32::from_le_bytes(*length);
        let id = Id::from_bytes(*id);
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
    use crate::vault::lock::{LockMode, Unlock};
    use crate::vault::{KeyCost, Tuning, Who};

    /// Brings so many blobs that an index is written before the end, without the lock by then.
    #[test]
    fn nothing_is_listed_without_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let backend = Arc::new(LocalBackend::new(dir.path().join("vault")));
        let who = Who::this_process();
        let by = (&who, Timestamp::UNIX_EPOCH);
        let vault = Arc::new(Vault::init(backend, b"x", KeyCost { log_rounds: 4 }, by).unwrap());
        for is_held in [true, false] {
            let lock = Lock::take(&vault, &who, LockMode::Shared, std::time::Duration::ZERO);
            let lock = lock.unwrap();
            if !is_held {
                vault.unlock(&who, Unlock::All).unwrap();
            }
            let before = vault.list(FileKind::Index).unwrap().len();
            let writer = Writer::new(&vault, &Arc::default(), &lock);
            let blob = |number: usize| {
                let id = Id::of(&number.to_le_bytes());
                writer.append((BlobKind::Data, id), b"sealed", None)
            };
            let brought = (0..INDEX_BLOBS).try_for_each(blob);
            let shared = writer.shared.clone();
            drop(writer);
            let listed = vault.list(FileKind::Index).unwrap().len() - before;
            let refused = brought.err().or_else(|| shared.failure.lock().take());
            if is_held {
                assert!(refused.is_none() && listed == 1, "{refused:?}, {listed} listed");
            } else {
                assert!(matches!(refused, Some(Error::LockLost)), "{refused:?}");
                assert_eq!(listed, 0);
            }
        }
    }

    /// Over a slow line a first save takes days: what it has brought is found again after a kill.
    #[test]
    fn what_is_durable_is_listed_after_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let backend = Arc::new(LocalBackend::new(dir.path().join("vault")));
        let who = Who::this_process();
        let by = (&who, Timestamp::UNIX_EPOCH);
        let vault = Arc::new(Vault::init(backend, b"x", KeyCost { log_rounds: 4 }, by).unwrap());
        let lock = Lock::take(&vault, &who, LockMode::Shared, Duration::ZERO).unwrap();
        let (shared, witness) = (Shared::default(), lock.witness());
        let listed = |now: Instant| {
            list_if_due((&vault, &witness), &shared, now).unwrap();
            let index = Index::load(&vault).unwrap();
            (0..3).map(|one| index.contains(BlobKind::Data, &Id::of(&[one]))).collect::<Vec<_>>()
        };
        let bring = |one: u8| {
            let id = Id::of(&[one]);
            let (kind, offset, length) = (BlobKind::Data, 0, 6);
            let blobs = vec![StoredBlob { id, kind, offset, length, uncompressed_length: None }];
            write_pack(&vault, Pack { bytes: b"sealed".to_vec(), blobs }, &shared).unwrap();
        };
        bring(0);
        let first = shared.unlisted.lock().since.unwrap();
        bring(1);
        assert_eq!(listed(first), [false, false, false]);
        // What could not be listed is listed later.
        let (index, away) = (dir.path().join("vault/index"), dir.path().join("away"));
        std::fs::rename(&index, &away).unwrap();
        std::fs::write(&index, b"").unwrap();
        list_if_due((&vault, &witness), &shared, first + INDEX_WAIT).unwrap_err();
        std::fs::remove_file(&index).unwrap();
        std::fs::rename(&away, &index).unwrap();
        assert_eq!(shared.unlisted.lock().since, Some(first));
        assert_eq!(listed(first + INDEX_WAIT), [true, true, false]);
        bring(2);
        let next = shared.unlisted.lock().since.unwrap();
        assert_eq!(listed(next), [true, true, false], "the time begins anew");
        assert_eq!(listed(next + INDEX_WAIT), [true, true, true]);
        assert_eq!(listed(next + INDEX_WAIT * 2), [true, true, true]);
        assert_eq!(vault.list(FileKind::Index).unwrap().len(), 2);
    }

    /// However many threads bring pieces, and however slowly packs are written.
    #[test]
    fn no_more_packs_are_in_memory_than_may_wait() {
        let dir = tempfile::tempdir().unwrap();
        let backend = Arc::new(LocalBackend::new(dir.path().join("vault")));
        let who = Who::this_process();
        let by = (&who, Timestamp::UNIX_EPOCH);
        let mut vault = Vault::init(backend, b"x", KeyCost { log_rounds: 4 }, by).unwrap();
        let connections = 2;
        let queue_bytes = 4 * MIN_PACK_BYTES as u64;
        vault.set_tuning(Tuning {
            connections: Some(connections),
            queue_bytes,
            ..Tuning::default()
        });
        let vault = Arc::new(vault);
        for tells_packs in [false, true] {
            let lock = Lock::take(&vault, &who, LockMode::Shared, Duration::ZERO).unwrap();
            let writer = Writer::new(&vault, &Arc::default(), &lock);
            let writer = if tells_packs { writer.telling_packs() } else { writer };
            let shared = writer.shared.clone();
            let piece = vec![0; queue_bytes as usize / 2];
            std::thread::scope(|scope| {
                for thread in 0..4_u8 {
                    let (writer, piece) = (&writer, &piece);
                    scope.spawn(move || {
                        for number in 0..8 {
                            let id = Id::of(&[thread, number, tells_packs.into()]);
                            writer.append((BlobKind::Data, id), piece, None).unwrap();
                        }
                    });
                }
            });
            let (_, listed) = writer.finish(&lock).unwrap();
            assert_eq!(listed.packs.len(), if tells_packs { 16 } else { 0 });
            assert_eq!(listed.files.len(), 1);
            let buffers = shared.spare.lock();
            // One is being filled, one waits, and the others are on their way.
            assert!((1..=2 + connections).contains(&buffers.len()), "{}", buffers.len());
            let longest = buffers.iter().map(Vec::capacity).max().unwrap();
            assert!(longest < queue_bytes as usize + 2 * PACK_ROOM, "{longest}");
        }
        assert_eq!(
            [(2, 5), (2, 2), (8, 5)].map(|(packs, ways)| waiting_packs(packs, ways)),
            [1, 1, 3]
        );
    }

    #[test]
    fn headers_survive_and_damage_is_no_panic() {
        let blob = |kind, offset, raw| StoredBlob {
            id: Id::of(&[1]),
            kind,
            offset,
            length: 7,
            uncompressed_length: raw,
        };
        let blobs = [blob(BlobKind::Data, 0, Some(9)), blob(BlobKind::Tree, 7, None)];
        let header = header_of(&blobs);
        let parsed = parse_header(&header).unwrap();
        assert_eq!(format!("{parsed:?}"), format!("{blobs:?}"));
        for length in 0..header.len() {
            assert_eq!(parse_header(&header[..length]).is_some(), length == 0 || length == 41);
        }
        assert!(parse_header(&[4; 41]).is_none());
    }
}
