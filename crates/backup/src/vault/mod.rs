//! The vault: a store of backups in the format of restic's repositories, version 2.
//!
//! In: a [`VaultBackend`] and a password. Out: an opened [`Vault`], which reads and writes sealed files.
//!
//! The format's parts: `config`, one file per key, lock, snapshot and index, and packs, which contain pieces of files
//! and folders. All but keys are sealed; all but keys, packs and `config` are compressed.
//!
//! Invariant: a file is named by the hash of its own bytes, and what is read is checked against its name.

mod cache;
pub(crate) mod index;
mod index_table;
pub(crate) mod key_file;
pub(crate) mod lock;
pub(crate) mod node;
mod opening;
pub(crate) mod pack_writer;
mod range_read;
pub(crate) mod snapshot;
pub(crate) mod tree_text;
mod user;

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use rayon::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracing::warn;

pub use key_file::{KeyDerivationCost, KeyMetadata};
pub use opening::VaultOpening;
pub use user::VaultUser;

use self::cache::VaultCache;
use self::index::{PackBlobKind, PackBlobLocation, VaultIndex};
use self::index_table::IndexTableFile;
use self::opening::{EarlyLock, OpenedVault};
use self::snapshot::VaultSnapshot;
use crate::backend::{DryRunBackend, StagedFile, VaultBackend, VaultFileKind, VaultFileListing};
use crate::compression::{
    CompressionMode, compress_append, compress_json_append, decompress, decompress_unsized,
};
use crate::error::{Error, Result, is_data_lost, is_transient_io};
use crate::object_id::VaultObjectId;
use crate::piece_splitter::{self, PieceSplitter};
use crate::vault_encryption::{self, VaultKey};

const VAULT_FORMAT_VERSION: u32 = 2;
/// Marks a sealed file that is compressed.
const COMPRESSED_FILE_MARKER: u8 = 2;
/// Maximum decompressed length of an index, snapshot or lock.
const MAX_UNPACKED_FILE_BYTES: usize = 1 << 30;
/// Maximum number of attempts to read a range of a pack. The wait before the second one doubles with each further one.
const MAX_READ_ATTEMPTS: u32 = 4;
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
/// Maximum decompressed length of a piece or folder.
const MAX_BLOB_BYTES: usize = 1 << 30;

/// The content of `config`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VaultConfig {
    version: u32,
    id: String,
    chunker_polynomial: String,
}

impl VaultConfig {
    pub(crate) fn parse(plain: &[u8]) -> Result<Self> {
        let config: Self = serde_json::from_slice(plain).map_err(|error| {
            Error::damaged(VaultFileKind::Config, &VaultObjectId::default(), &error)
        })?;
        if !(1..=VAULT_FORMAT_VERSION).contains(&config.version) {
            return Err(Error::UnknownVersion { version: config.version });
        }
        Ok(config)
    }

    /// Validates the config; returns a splitter for its polynomial.
    pub(crate) fn piece_splitter(&self) -> Result<PieceSplitter> {
        let damaged =
            |fault: &str| Error::damaged(VaultFileKind::Config, &VaultObjectId::default(), &fault);
        // Local folders and files are named by it.
        if self.id.parse::<VaultObjectId>().is_err() {
            return Err(damaged("its id is invalid"));
        }
        let polynomial = u64::from_str_radix(&self.chunker_polynomial, 16).ok();
        polynomial.and_then(PieceSplitter::new).ok_or_else(|| damaged("its polynomial is invalid"))
    }
}

/// Returns the content of an unsealed file: as it is, or decompressed to at most `limit` bytes.
pub(crate) fn unpack_file(bytes: Vec<u8>, limit: usize) -> Result<Vec<u8>, &'static str> {
    match bytes.split_first() {
        Some((b'{' | b'[', _)) => Ok(bytes),
        Some((&COMPRESSED_FILE_MARKER, packed)) => {
            decompress_unsized(packed, limit).ok_or("it cannot be decompressed")
        }
        _ => Err("its encoding is unknown"),
    }
}

/// Resource limits of a writer.
#[derive(Clone, Copy, Debug)]
pub struct WriterTuning {
    /// The number of packs that are written concurrently; the default is that of the backend.
    pub connections: Option<usize>,
    /// Limit in bytes on finished packs that wait or are being written; one pack per connection and one waiting are
    /// always allowed. Packs are no larger than this.
    pub queue_bytes: u64,
    /// The delay before each new piece.
    pub piece_delay: Duration,
}

impl Default for WriterTuning {
    fn default() -> Self {
        Self { connections: None, queue_bytes: 32 << 20, piece_delay: Duration::ZERO }
    }
}

/// An opened vault.
#[derive(Debug)]
pub struct Vault {
    backend: Arc<dyn VaultBackend>,
    key: VaultKey,
    opening_key_id: VaultObjectId,
    config: VaultConfig,
    splitter: PieceSplitter,
    compression: CompressionMode,
    tuning: WriterTuning,
    /// The local cache of a remote vault.
    cache: Option<VaultCache>,
    /// The local table of the index, for local and remote vaults.
    index_table: Option<IndexTableFile>,
    /// Snapshots that were read: their files never change.
    known_snapshots: Mutex<HashMap<VaultObjectId, VaultSnapshot>>,
    /// Data obtained during opening for the first lock.
    early_lock: Mutex<Option<EarlyLock>>,
    is_dry_run: bool,
}

impl Vault {
    /// Creates a vault in an empty location.
    ///
    /// # Errors
    /// [`Error::VaultExists`], or an error of the backend.
    pub fn init(
        backend: Arc<dyn VaultBackend>,
        password: &[u8],
        cost: KeyDerivationCost,
        (user, now): (&VaultUser, Timestamp),
    ) -> Result<Self> {
        let location = backend.location();
        backend.create().map_err(|source| match source.kind() {
            ErrorKind::AlreadyExists => Error::VaultExists { place: location },
            _ => Error::Backend { action: "create", what: "the folders".to_owned(), source },
        })?;
        let key = VaultKey::random()?;
        let opened_with = key_file::add_key(&*backend, &key, password, cost, (user, now))?;
        let mut id = [0; 32];
        vault_encryption::fill_random(&mut id)?;
        let config = VaultConfig {
            version: VAULT_FORMAT_VERSION,
            id: VaultObjectId::from_bytes(id).to_string(),
            chunker_polynomial: format!("{:x}", piece_splitter::random_polynomial()?),
        };
        let plain = serde_json::to_vec(&config).unwrap_or_default();
        let none = VaultObjectId::default();
        backend.write(VaultFileKind::Config, &none, &key.seal(&plain)?).map_err(Error::backend(
            "write",
            VaultFileKind::Config,
            &none,
        ))?;
        Self::from_parts(backend, key, opened_with, config)
    }

    /// Opens a vault.
    ///
    /// # Errors
    /// [`Error::NoVault`], [`Error::WrongPassword`], or another error.
    pub fn open(backend: Arc<dyn VaultBackend>, password: &[u8]) -> Result<Self> {
        Self::open_with(backend, password, VaultOpening::default())
    }

    /// Like [`Vault::open`], with hints about the operations that follow.
    ///
    /// # Errors
    /// As [`Vault::open`].
    pub fn open_with(
        backend: Arc<dyn VaultBackend>,
        password: &[u8],
        opening: VaultOpening<'_>,
    ) -> Result<Self> {
        let OpenedVault { opening_key_id, key, config, early_lock } =
            opening::open_vault(&*backend, password, opening)?;
        let vault = Self::from_parts(backend, key, opening_key_id, config)?;
        *vault.early_lock.lock() = early_lock;
        Ok(vault)
    }

    fn from_parts(
        backend: Arc<dyn VaultBackend>,
        key: VaultKey,
        opened_with: VaultObjectId,
        config: VaultConfig,
    ) -> Result<Self> {
        let cutter = config.piece_splitter()?;
        let (compression, tuning) = (CompressionMode::default(), WriterTuning::default());
        let known_snapshots = Mutex::default();
        Ok(Self {
            backend,
            key,
            opening_key_id: opened_with,
            config,
            splitter: cutter,
            compression,
            tuning,
            cache: None,
            index_table: None,
            known_snapshots,
            early_lock: Mutex::default(),
            is_dry_run: false,
        })
    }

    /// Returns the same vault with writes discarded, so that a save only counts what it would write.
    #[must_use]
    pub fn to_dry_run(&self) -> Self {
        Self {
            backend: Arc::new(DryRunBackend(self.backend.clone())),
            key: self.key.clone(),
            opening_key_id: self.opening_key_id,
            config: self.config.clone(),
            splitter: self.splitter.clone(),
            compression: self.compression,
            tuning: self.tuning,
            cache: None,
            index_table: self.index_table.clone(),
            known_snapshots: Mutex::default(),
            early_lock: Mutex::default(),
            is_dry_run: true,
        }
    }

    pub(crate) const fn is_dry_run(&self) -> bool {
        self.is_dry_run
    }

    /// Sets the compression of later writes.
    pub const fn set_compression(&mut self, compression: CompressionMode) {
        self.compression = compression;
    }

    /// Sets the resource limits of later writers.
    pub const fn set_tuning(&mut self, tuning: WriterTuning) {
        self.tuning = tuning;
    }

    /// Caches index files, snapshots and folders in a folder below `dir`, up to `max_bytes`, so that they are fetched
    /// once.
    ///
    /// # Errors
    /// If the folder cannot be used; nothing is cached then.
    pub fn enable_cache(&mut self, dir: &Path, max_bytes: u64) -> io::Result<()> {
        self.cache = Some(VaultCache::open(&self.vault_folder(dir)?, max_bytes)?);
        Ok(())
    }

    /// Stores the contents of the index files in a sealed file below `dir`, so that [`VaultIndex::load`] parses only
    /// newer files.
    ///
    /// # Errors
    /// If the vault's id is not valid as a folder name; nothing is stored then.
    pub fn enable_index_table(&mut self, dir: &Path) -> io::Result<()> {
        self.index_table = Some(IndexTableFile(self.vault_folder(dir)?));
        Ok(())
    }

    /// Returns the folder of this vault below `dir`.
    fn vault_folder(&self, dir: &Path) -> io::Result<PathBuf> {
        // The id comes from the vault: it must be a plain name, not a path.
        let is_plain = self.id().bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_plain || self.id().is_empty() {
            return Err(io::Error::new(ErrorKind::InvalidData, "the id of the vault is invalid"));
        }
        Ok(dir.join(self.id()))
    }

    /// Returns the vault's own id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.config.id
    }

    /// Returns true if the vault is on another machine.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.backend.is_remote()
    }

    pub(crate) fn backend(&self) -> &dyn VaultBackend {
        &*self.backend
    }

    pub(crate) const fn splitter(&self) -> &PieceSplitter {
        &self.splitter
    }

    /// Lists the keys.
    ///
    /// # Errors
    /// A failed read.
    pub fn keys(&self) -> Result<Vec<KeyMetadata>> {
        key_file::list_keys(&*self.backend, &self.opening_key_id)
    }

    /// Adds a key for another password and returns its id.
    ///
    /// # Errors
    /// A failed write.
    pub fn add_key(
        &self,
        password: &[u8],
        cost: KeyDerivationCost,
        by: (&VaultUser, Timestamp),
    ) -> Result<VaultObjectId> {
        key_file::add_key(&*self.backend, &self.key, password, cost, by)
    }

    /// Removes a key, given by a prefix of its id.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for the key in use, or a prefix that matches no key or several.
    pub fn remove_key(&self, name: &str) -> Result<VaultObjectId> {
        let keys = self.keys()?;
        let mut fitting = keys.iter().filter(|key| key.id.to_string().starts_with(name));
        let (Some(fitting_key), None) = (fitting.next(), fitting.next()) else {
            return Err(Error::InvalidRequest(format!("`{name}` matches no key, or several")));
        };
        if fitting_key.is_used {
            let text = "cannot remove the key that this command uses";
            return Err(Error::InvalidRequest(text.to_owned()));
        }
        self.remove_file(VaultFileKind::Key, &fitting_key.id)?;
        Ok(fitting_key.id)
    }

    /// Replaces the key that the vault was opened with by one for another password.
    ///
    /// # Errors
    /// A failed write or removal; a usable key always exists.
    pub fn change_password(
        &mut self,
        password: &[u8],
        cost: KeyDerivationCost,
        by: (&VaultUser, Timestamp),
    ) -> Result<VaultObjectId> {
        let added = self.add_key(password, cost, by)?;
        // The old key is removed only after the new one was verified to open the vault.
        key_file::open_key(&*self.backend, &added, password)?;
        self.remove_file(VaultFileKind::Key, &self.opening_key_id)?;
        self.opening_key_id = added;
        Ok(added)
    }

    pub(crate) fn list_files(&self, kind: VaultFileKind) -> Result<Vec<(VaultObjectId, u64)>> {
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
    pub(crate) fn contains_file(&self, kind: VaultFileKind, id: &VaultObjectId) -> Result<bool> {
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

    pub(crate) fn remove_file(&self, kind: VaultFileKind, id: &VaultObjectId) -> Result<()> {
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
        let plain = self.read_unsealed_file(kind, id)?;
        serde_json::from_slice(&plain).map_err(|error| Error::damaged(kind, id, &error))
    }

    /// Seals and writes JSON; returns the name of the file.
    pub(crate) fn write_json<T: Serialize>(
        &self,
        kind: VaultFileKind,
        value: &T,
    ) -> Result<VaultObjectId> {
        let sealed = self.seal_json(kind, value)?;
        let id = VaultObjectId::of(&sealed);
        self.write_file(kind, &id, &sealed)?;
        Ok(id)
    }

    /// Seals and stages JSON.
    pub(crate) fn stage_json<T: Serialize>(
        &self,
        kind: VaultFileKind,
        value: &T,
    ) -> Result<StagedFile> {
        self.stage_file(kind, self.seal_json(kind, value)?)
    }

    /// Seals JSON while it is serialized.
    pub(crate) fn seal_json<T: Serialize>(
        &self,
        kind: VaultFileKind,
        value: &T,
    ) -> Result<Vec<u8>> {
        let mut sealed = Vec::new();
        self.key.seal_appended(&mut sealed, |out| {
            let encoded = if self.config.version == 1 {
                serde_json::to_writer(out, value).map_err(io::Error::from)
            } else {
                out.push(COMPRESSED_FILE_MARKER);
                compress_json_append(value, self.compression, out)
            };
            encoded
                .map_err(|error| Error::InvalidRequest(format!("cannot encode a {kind}: {error}")))
        })?;
        Ok(sealed)
    }

    /// Stages a file whose final name is the hash of its bytes.
    pub(crate) fn stage_file(&self, kind: VaultFileKind, bytes: Vec<u8>) -> Result<StagedFile> {
        self.stage_named_file(kind, VaultObjectId::of(&bytes), bytes)
    }

    /// Like [`Vault::stage_file`], for bytes whose hash is known: a pack is long.
    pub(crate) fn stage_named_file(
        &self,
        kind: VaultFileKind,
        id: VaultObjectId,
        bytes: Vec<u8>,
    ) -> Result<StagedFile> {
        self.backend.stage(kind, &id, bytes).map_err(Error::backend("write", kind, &id))
    }

    /// Reveals a staged file, and caches it if its kind is cached.
    pub(crate) fn reveal_file(&self, staged: &StagedFile) -> Result<()> {
        let (kind, id) = (staged.kind(), staged.id());
        self.backend.reveal(staged).map_err(Error::backend("write", kind, &id))?;
        if let Some(cache) = self.cache.as_ref().filter(|_| kind != VaultFileKind::Pack) {
            cache.store(kind, &id, staged.bytes());
        }
        Ok(())
    }

    /// Removes a staged file that is not to be revealed.
    pub(crate) fn discard_staged(&self, staged: &StagedFile) {
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
    fn write_file(&self, kind: VaultFileKind, id: &VaultObjectId, bytes: &[u8]) -> Result<()> {
        self.backend.write(kind, id, bytes).map_err(Error::backend("write", kind, id))?;
        if let Some(cache) = self.cache.as_ref().filter(|_| kind != VaultFileKind::Pack) {
            cache.store(kind, id, bytes);
        }
        Ok(())
    }

    /// Reads a file from the cache or the vault and verifies its bytes against the hash that it is named by.
    fn read_verified_file(&self, kind: VaultFileKind, id: &VaultObjectId) -> Result<Vec<u8>> {
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

    fn read_unsealed_file(&self, kind: VaultFileKind, id: &VaultObjectId) -> Result<Vec<u8>> {
        let sealed = self.read_verified_file(kind, id)?;
        let damaged = |fault: &str| Error::damaged(kind, id, &fault);
        let bytes = self.key.open(sealed).ok_or_else(|| damaged("it cannot be decrypted"))?;
        unpack_file(bytes, MAX_UNPACKED_FILE_BYTES).map_err(damaged)
    }

    /// Seals a piece or a folder for a pack into a buffer; returns the plain length if it is compressed.
    fn seal_blob(
        &self,
        kind: PackBlobKind,
        plain: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<u32>> {
        let is_compressed = self.config.version > 1
            && (kind == PackBlobKind::Tree || self.compression != CompressionMode::Off);
        let compression = match kind {
            PackBlobKind::Data => self.compression,
            PackBlobKind::Tree => self.compression.for_folders(),
        };
        self.key.seal_appended(out, |out| {
            let before = out.len();
            let packed =
                if is_compressed { compress_append(plain, compression, out) } else { None };
            if packed.is_some_and(|length| length < plain.len() || kind == PackBlobKind::Tree) {
                return Ok(Some(u32::try_from(plain.len()).unwrap_or(u32::MAX)));
            }
            out.truncate(before);
            out.extend_from_slice(plain);
            Ok(None)
        })
    }

    /// Opens a blob cut from a pack, and verifies it against its id.
    pub(crate) fn open_blob(
        &self,
        (kind, id): (PackBlobKind, &VaultObjectId),
        location: PackBlobLocation,
        sealed: Vec<u8>,
    ) -> Result<Vec<u8>> {
        let damaged = |fault: &str| Error::UnreadableBlob {
            what: kind.name(),
            id: *id,
            fault: fault.to_owned(),
        };
        let bytes = self.key.open(sealed).ok_or_else(|| damaged("it cannot be decrypted"))?;
        let plain = match location.uncompressed_length {
            0 => bytes,
            raw => decompress(&bytes, (raw as usize).min(MAX_BLOB_BYTES))
                .ok_or_else(|| damaged("it cannot be decompressed"))?,
        };
        if VaultObjectId::of(&plain) != *id {
            return Err(damaged("its content does not match its hash"));
        }
        Ok(plain)
    }

    /// Reads a piece or a folder.
    ///
    /// # Errors
    /// [`Error::UnreadableBlob`] if it is missing or damaged; [`Error::Backend`] if the backend cannot be read now.
    pub(crate) fn read_blob(
        &self,
        index: &VaultIndex,
        kind: PackBlobKind,
        id: &VaultObjectId,
    ) -> Result<Vec<u8>> {
        let failed = |fault: String| Error::UnreadableBlob { what: kind.name(), id: *id, fault };
        let location =
            index.find(kind, id).ok_or_else(|| failed("it is not in any index".to_owned()))?;
        let pack = index.pack_id(location);
        let (start, length) = (u64::from(location.offset), location.length as usize);
        if let Some(cache) = self.cache.as_ref().filter(|_| kind == PackBlobKind::Tree)
            && let Some(sealed) = self.read_cached_blob(cache, &pack, start, length)
        {
            match self.open_blob((kind, id), location, sealed) {
                Ok(plain) => return Ok(plain),
                // The cached copy is damaged; the vault's may be intact.
                Err(_) => cache.remove(VaultFileKind::Pack, &pack),
            }
        }
        let sealed = self.read_pack_range(&pack, start, length).map_err(|error| {
            // Data that is only out of reach must not be treated as lost.
            if is_data_lost(&error) {
                failed(format!("the pack `{pack}`: {error}"))
            } else {
                Error::backend("read", VaultFileKind::Pack, &pack)(error)
            }
        })?;
        self.open_blob((kind, id), location, sealed)
    }

    /// Reads a range of a pack. Remote backends retry by themselves; a folder on a network file system does not.
    fn read_pack_range(
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
    fn read_cached_blob(
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
        let bytes = self.read_verified_file(VaultFileKind::Pack, pack).ok()?;
        let start = usize::try_from(start).ok()?;
        bytes.get(start..start.checked_add(length)?).map(<[u8]>::to_vec)
    }
}

impl Vault {
    pub(crate) fn open_sealed_bytes(&self, sealed: Vec<u8>) -> Option<Vec<u8>> {
        self.key.open(sealed)
    }

    pub(crate) fn seal_bytes(&self, plain: &[u8]) -> Result<Vec<u8>> {
        self.key.seal(plain)
    }

    /// Opens a blob given by its index entry.
    pub(crate) fn open_stored_blob(
        &self,
        blob: &index::StoredBlob,
        sealed: Vec<u8>,
    ) -> Result<Vec<u8>> {
        self.open_blob((blob.kind, &blob.id), PackBlobLocation::from_stored(blob), sealed)
    }
}

/// Decodes the table of an index, and looks up all its entries.
#[cfg(any(fuzzing, test))]
pub(crate) fn decode_index_table(plain: &[u8]) {
    let Some(table) = index_table::VaultIndexTable::parse(plain.to_vec()) else { return };
    for kind in [PackBlobKind::Data, PackBlobKind::Tree] {
        let ids: Vec<VaultObjectId> = table.blob_locations(kind).map(|(id, _)| id).collect();
        // A table that is not sorted is never written: lookups in it may only fail.
        let is_sorted = ids.is_sorted();
        for id in ids {
            assert!(table.find(kind, &id).is_some() || !is_sorted);
        }
    }
}
