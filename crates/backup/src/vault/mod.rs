//! The vault: a store of backups in the format of restic's repositories, version 2.
//!
//! In: a [`VaultBackend`] and a password. Out: an opened [`Vault`], which reads and writes sealed files.
//!
//! The format's parts: `config`, one file per key, lock, snapshot and index, and packs, which contain pieces of files
//! and folders. All but keys are sealed; all but keys, packs and `config` are compressed.
//!
//! Invariant: a file is named by the hash of its own bytes, and what is read is checked against its name.

mod cache;
pub(crate) mod files;
pub(crate) mod index;
mod index_table;
pub(crate) mod key_file;
pub(crate) mod lock;
pub(crate) mod node;
mod opening;
pub(crate) mod pack_blob;
pub(crate) mod pack_writer;
mod range_read;
pub(crate) mod sealing;
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
use serde::{Deserialize, Serialize};

pub use key_file::{KeyDerivationCost, KeyMetadata};
pub use opening::VaultOpening;
pub use user::VaultUser;

use self::cache::VaultCache;
use self::files::VaultFiles;
use self::index::VaultIndex;
use self::index_table::IndexTableFile;
use self::opening::{EarlyLock, OpenedVault};
use self::pack_blob::PackBlobKind;
use self::sealing::VaultSealing;
use self::snapshot::VaultSnapshot;
use crate::backend::{VaultBackend, VaultFileKind};
use crate::compression::CompressionMode;
use crate::error::{Error, Result, is_data_lost};
use crate::object_id::VaultObjectId;
use crate::piece_splitter::{self, PieceSplitter};
use crate::vault_encryption::{self, VaultKey};

const VAULT_FORMAT_VERSION: u32 = 2;

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
    files: VaultFiles,
    opening_key_id: VaultObjectId,
    config: VaultConfig,
    splitter: PieceSplitter,
    tuning: WriterTuning,
    /// The local table of the index, for local and remote vaults.
    index_table: Option<IndexTableFile>,
    /// Snapshots that were read: their files never change.
    known_snapshots: Mutex<HashMap<VaultObjectId, VaultSnapshot>>,
    /// Data obtained during opening for the first lock.
    early_lock: Mutex<Option<EarlyLock>>,
    is_dry_run: bool,
}

/// A vault, and the index of its data: what reading snapshots needs.
#[derive(Clone, Copy, Debug)]
pub struct IndexedVault<'a> {
    /// The vault.
    pub vault: &'a Vault,
    /// Its index.
    pub index: &'a VaultIndex,
}

impl<'a> IndexedVault<'a> {
    /// Combines a vault with its index.
    #[must_use]
    pub const fn new(vault: &'a Vault, index: &'a VaultIndex) -> Self {
        Self { vault, index }
    }
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
        let sealing = VaultSealing::new(key, config.version);
        Ok(Self {
            files: VaultFiles::new(backend, sealing),
            opening_key_id: opened_with,
            config,
            splitter: cutter,
            tuning: WriterTuning::default(),
            index_table: None,
            known_snapshots: Mutex::default(),
            early_lock: Mutex::default(),
            is_dry_run: false,
        })
    }

    /// Returns the same vault with writes discarded, so that a save only counts what it would write.
    #[must_use]
    pub fn to_dry_run(&self) -> Self {
        Self {
            files: self.files.to_dry_run(),
            opening_key_id: self.opening_key_id,
            config: self.config.clone(),
            splitter: self.splitter.clone(),
            tuning: self.tuning,
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
        self.files.sealing_mut().set_compression(compression);
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
        self.files.set_cache(VaultCache::open(&self.vault_folder(dir)?, max_bytes)?);
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
        self.files.is_remote()
    }

    /// Returns the files of the vault.
    pub(crate) const fn files(&self) -> &VaultFiles {
        &self.files
    }

    /// Returns the sealing of its files.
    pub(crate) const fn sealing(&self) -> &VaultSealing {
        self.files.sealing()
    }

    pub(crate) const fn splitter(&self) -> &PieceSplitter {
        &self.splitter
    }

    /// Lists the keys.
    ///
    /// # Errors
    /// A failed read.
    pub fn keys(&self) -> Result<Vec<KeyMetadata>> {
        key_file::list_keys(self.files.backend(), &self.opening_key_id)
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
        key_file::add_key(self.files.backend(), self.files.sealing().key(), password, cost, by)
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
        self.files.remove(VaultFileKind::Key, &fitting_key.id)?;
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
        key_file::open_key(self.files.backend(), &added, password)?;
        self.files.remove(VaultFileKind::Key, &self.opening_key_id)?;
        self.opening_key_id = added;
        Ok(added)
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
        if let Some(cache) = self.files.cache().filter(|_| kind == PackBlobKind::Tree)
            && let Some(sealed) = self.files.read_cached_range(cache, &pack, start, length)
        {
            match self.sealing().open_blob(kind, id, location, sealed) {
                Ok(plain) => return Ok(plain),
                // The cached copy is damaged; the vault's may be intact.
                Err(_) => cache.remove(VaultFileKind::Pack, &pack),
            }
        }
        let sealed = self.files.read_pack_range(&pack, start, length).map_err(|error| {
            // Data that is only out of reach must not be treated as lost.
            if is_data_lost(&error) {
                failed(format!("the pack `{pack}`: {error}"))
            } else {
                Error::backend("read", VaultFileKind::Pack, &pack)(error)
            }
        })?;
        self.sealing().open_blob(kind, id, location, sealed)
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
