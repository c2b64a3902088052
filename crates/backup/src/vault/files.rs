//! The files of a vault: listed, read, staged and written, through the local cache of a remote vault.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rayon::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::warn;

use super::cache::VaultCache;
use super::sealing::{VaultSealing, unpack_file};
use crate::backend::{DryRunBackend, StagedFile, VaultBackend, VaultFileKind, VaultFileListing};
use crate::error::{Error, Result, is_transient_io};
use crate::object_id::VaultObjectId;

/// Maximum decompressed length of an index, snapshot or lock.
const MAX_UNPACKED_FILE_BYTES: usize = 1 << 30;
/// Maximum number of attempts to read a range of a pack. The wait before the second one doubles with each further one.
const MAX_READ_ATTEMPTS: u32 = 4;
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);

/// The files of a vault.
#[derive(Debug)]
pub(crate) struct VaultFiles {
    backend: Arc<dyn VaultBackend>,
    sealing: VaultSealing,
    /// The local cache of a remote vault.
    cache: Option<VaultCache>,
}

impl VaultFiles {
    /// Uses the files of a backend, without a cache.
    pub(super) fn new(backend: Arc<dyn VaultBackend>, sealing: VaultSealing) -> Self {
        Self { backend, sealing, cache: None }
    }

    /// Returns the same files with writes discarded.
    pub(super) fn to_dry_run(&self) -> Self {
        Self::new(Arc::new(DryRunBackend(self.backend.clone())), self.sealing.clone())
    }

    /// Caches files from now on.
    pub(super) fn set_cache(&mut self, cache: VaultCache) {
        self.cache = Some(cache);
    }

    /// Returns the local cache, if any.
    pub(super) const fn cache(&self) -> Option<&VaultCache> {
        self.cache.as_ref()
    }

    /// Returns the sealing of the files.
    pub(crate) const fn sealing(&self) -> &VaultSealing {
        &self.sealing
    }

    /// Returns the sealing, to change how later files are written.
    pub(super) const fn sealing_mut(&mut self) -> &mut VaultSealing {
        &mut self.sealing
    }

    /// Returns true if the files are on another machine.
    pub(crate) fn is_remote(&self) -> bool {
        self.backend.is_remote()
    }

    /// Returns the storage of the files.
    pub(crate) fn backend(&self) -> &dyn VaultBackend {
        &*self.backend
    }

    pub(crate) fn list(&self, kind: VaultFileKind) -> Result<Vec<(VaultObjectId, u64)>> {
        self.apply_listing(kind, self.backend.list(kind))
    }

    /// Reveals a staged file, and then lists files of some kinds.
    pub(crate) fn reveal_then_list<const N: usize>(
        &self,
        staged: &StagedFile,
        kinds: [VaultFileKind; N],
    ) -> Result<[Result<VaultFileListing>; N]> {
        let (kind, id) = (staged.kind(), staged.id());
        let listed = self.backend.reveal_then_list(staged, &kinds);
        let mut listed = listed.map_err(Error::backend("write", kind, &id))?.into_iter();
        Ok(kinds.map(|kind| {
            let listed = listed.next().unwrap_or_else(|| self.backend.list(kind));
            self.apply_listing(kind, listed)
        }))
    }

    /// Removes cached files that the vault no longer has.
    fn apply_listing(
        &self,
        kind: VaultFileKind,
        listed: io::Result<VaultFileListing>,
    ) -> Result<VaultFileListing> {
        let listed = listed.map_err(|source| Error::Backend {
            action: "list",
            what: format!("the files of kind {kind}"),
            source,
        })?;
        if let Some(cache) = &self.cache {
            cache.retain_listed(kind, &listed);
        }
        Ok(listed)
    }

    /// Returns true if a file exists.
    pub(crate) fn contains(&self, kind: VaultFileKind, id: &VaultObjectId) -> Result<bool> {
        self.backend.contains(kind, id).map_err(Error::backend("look for", kind, id))
    }

    /// Reads many files concurrently; the results are in the order of the ids.
    pub(crate) fn read_many<T: Send>(
        &self,
        ids: &[VaultObjectId],
        read: impl Fn(&VaultObjectId) -> Result<T> + Sync + Send,
    ) -> Vec<Result<T>> {
        let threads = self.backend.connections().min(ids.len());
        if threads < 2 || !self.backend.is_remote() {
            return ids.par_iter().map(read).collect();
        }
        // Waiting for another machine needs no processor: use more threads than rayon has.
        let part = ids.len().div_ceil(threads);
        std::thread::scope(|scope| {
            let read = &read;
            let parts: Vec<_> = ids
                .chunks(part)
                .map(|batch| scope.spawn(move || batch.iter().map(read).collect::<Vec<_>>()))
                .collect();
            let stopped = |_| vec![Err(Error::Interrupted)];
            parts.into_iter().flat_map(|part| part.join().unwrap_or_else(stopped)).collect()
        })
    }

    pub(crate) fn remove(&self, kind: VaultFileKind, id: &VaultObjectId) -> Result<()> {
        if let Some(cache) = &self.cache {
            cache.remove(kind, id);
        }
        self.backend.remove(kind, id).map_err(Error::backend("remove", kind, id))
    }

    /// Reads a sealed JSON file.
    pub(crate) fn read_json<T: DeserializeOwned>(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
    ) -> Result<T> {
        let plain = self.read_unsealed(kind, id)?;
        serde_json::from_slice(&plain).map_err(|error| Error::damaged(kind, id, &error))
    }

    /// Seals and writes JSON; returns the name of the file.
    pub(crate) fn write_json<T: Serialize>(
        &self,
        kind: VaultFileKind,
        value: &T,
    ) -> Result<VaultObjectId> {
        let sealed = self.sealing.seal_json(kind, value)?;
        let id = VaultObjectId::of(&sealed);
        self.write(kind, &id, &sealed)?;
        Ok(id)
    }

    /// Seals and stages JSON.
    pub(crate) fn stage_json<T: Serialize>(
        &self,
        kind: VaultFileKind,
        value: &T,
    ) -> Result<StagedFile> {
        self.stage(kind, self.sealing.seal_json(kind, value)?)
    }

    /// Stages a file whose final name is the hash of its bytes.
    pub(crate) fn stage(&self, kind: VaultFileKind, bytes: Vec<u8>) -> Result<StagedFile> {
        self.stage_named(kind, VaultObjectId::of(&bytes), bytes)
    }

    /// Like [`VaultFiles::stage`], for bytes whose hash is known: a pack is long.
    pub(crate) fn stage_named(
        &self,
        kind: VaultFileKind,
        id: VaultObjectId,
        bytes: Vec<u8>,
    ) -> Result<StagedFile> {
        self.backend.stage(kind, &id, bytes).map_err(Error::backend("write", kind, &id))
    }

    /// Reveals a staged file, and caches it if its kind is cached.
    pub(crate) fn reveal(&self, staged: &StagedFile) -> Result<()> {
        let (kind, id) = (staged.kind(), staged.id());
        self.backend.reveal(staged).map_err(Error::backend("write", kind, &id))?;
        if let Some(cache) = self.cache.as_ref().filter(|_| kind != VaultFileKind::Pack) {
            cache.store(kind, &id, staged.bytes());
        }
        Ok(())
    }

    /// Removes a staged file that is not to be revealed.
    pub(crate) fn discard(&self, staged: &StagedFile) {
        self.backend.discard(staged);
    }

    /// Runs two functions concurrently if each call costs a round trip, else in sequence.
    pub(crate) fn run_both<A: Send, B>(
        &self,
        background_work: impl FnOnce() -> A + Send,
        foreground_work: impl FnOnce() -> B,
    ) -> (A, B) {
        if !self.backend.is_remote() {
            return (background_work(), foreground_work());
        }
        std::thread::scope(|scope| {
            let background = scope.spawn(background_work);
            let foreground_result = foreground_work();
            (
                background.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                foreground_result,
            )
        })
    }

    /// Writes a file, and caches it if its kind is cached.
    pub(super) fn write(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        bytes: &[u8],
    ) -> Result<()> {
        self.backend.write(kind, id, bytes).map_err(Error::backend("write", kind, id))?;
        if let Some(cache) = self.cache.as_ref().filter(|_| kind != VaultFileKind::Pack) {
            cache.store(kind, id, bytes);
        }
        Ok(())
    }

    /// Reads a file from the cache or the vault and verifies its bytes against the hash that it is named by.
    fn read_verified(&self, kind: VaultFileKind, id: &VaultObjectId) -> Result<Vec<u8>> {
        if let Some(cache) = &self.cache
            && let Some(bytes) = cache.read(kind, id)
        {
            if VaultObjectId::of(&bytes) == *id {
                return Ok(bytes);
            }
            cache.remove(kind, id);
        }
        let bytes = self.backend.read(kind, id).map_err(Error::backend("read", kind, id))?;
        if VaultObjectId::of(&bytes) != *id {
            let fault = "its content does not match the hash in its name";
            return Err(Error::damaged(kind, id, &fault));
        }
        if let Some(cache) = &self.cache {
            cache.store(kind, id, &bytes);
        }
        Ok(bytes)
    }

    fn read_unsealed(&self, kind: VaultFileKind, id: &VaultObjectId) -> Result<Vec<u8>> {
        let sealed = self.read_verified(kind, id)?;
        let damaged = |fault: &str| Error::damaged(kind, id, &fault);
        let bytes =
            self.sealing.open_bytes(sealed).ok_or_else(|| damaged("it cannot be decrypted"))?;
        unpack_file(bytes, MAX_UNPACKED_FILE_BYTES).map_err(damaged)
    }

    /// Reads a range of a pack. Remote backends retry by themselves; a folder on a network file system does not.
    pub(super) fn read_pack_range(
        &self,
        pack: &VaultObjectId,
        start: u64,
        length: usize,
    ) -> io::Result<Vec<u8>> {
        let read = || self.backend.read_range(VaultFileKind::Pack, pack, start, length);
        let mut wait = INITIAL_BACKOFF;
        let attempts = if self.backend.is_remote() { 1 } else { MAX_READ_ATTEMPTS };
        for _ in 1..attempts {
            match read() {
                Err(error) if is_transient_io(&error) => {
                    warn!(%error, blob = %pack, "cannot read a pack; retrying");
                    std::thread::sleep(wait);
                    wait *= 2;
                }
                read => return read,
            }
        }
        read()
    }

    /// Cuts a folder from a cached pack, fetching the pack into the cache if needed: it contains the neighbors of the
    /// folder, which are needed next.
    pub(super) fn read_cached_range(
        &self,
        cache: &VaultCache,
        pack: &VaultObjectId,
        start: u64,
        length: usize,
    ) -> Option<Vec<u8>> {
        if let Some(sealed) = cache.read_range(pack, start, length) {
            return Some(sealed);
        }
        if !cache.can_cache_pack() {
            return None;
        }
        let bytes = self.read_verified(VaultFileKind::Pack, pack).ok()?;
        let start = usize::try_from(start).ok()?;
        bytes.get(start..start.checked_add(length)?).map(<[u8]>::to_vec)
    }
}
