//! The vault: a place that holds backups, in the format of restic's repositories, version 2.
//!
//! In: a [`Backend`] and a password. Out: an opened [`Vault`], which reads and writes sealed files.
//!
//! The format's parts: `config`, one file per key, lock, snapshot and index, and packs, which hold pieces of files and
//! folders. All but keys are sealed; all but keys, packs and `config` are compressed.
//!
//! Invariant: a file is named by the hash of its own bytes, and what is read is checked against its name.

mod cache;
pub(crate) mod index;
mod index_table;
pub(crate) mod key;
pub(crate) mod lock;
mod near;
pub(crate) mod node;
mod open;
pub(crate) mod snapshot;
pub(crate) mod tree_text;
pub(crate) mod write;

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

pub use key::{KeyCost, KeyFacts};
pub use open::Opening;

use self::cache::Cache;
use self::index::{BlobKind, Index, Place};
use self::index_table::IndexTableFile;
use self::open::{Early, Found};
use self::snapshot::Snapshot;
use crate::backend::{Backend, DryBackend, FileKind, Listing, Staged};
use crate::compress::{Compression, compress_json, compress_onto, decompress, decompress_unknown};
use crate::cut::{self, Cutter};
use crate::error::{Error, Result, is_lost, is_passing};
use crate::id::Id;
use crate::seal::{self, Key};

const VERSION: u32 = 2;
/// Marks a sealed file that is compressed.
const COMPRESSED: u8 = 2;
/// No index, snapshot or lock is longer than this when decompressed.
const MAX_UNPACKED: usize = 1 << 30;
/// How often a part of a pack is asked for, and the wait before the second time; it doubles.
const ATTEMPTS: u32 = 4;
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// No piece of a file, and no folder, is longer than this when decompressed.
const MAX_BLOB: usize = 1 << 30;

/// What `config` says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Config {
    version: u32,
    id: String,
    chunker_polynomial: String,
}

impl Config {
    pub(crate) fn parse(plain: &[u8]) -> Result<Self> {
        let config: Self = serde_json::from_slice(plain)
            .map_err(|error| Error::damaged(FileKind::Config, &Id::default(), &error))?;
        if !(1..=VERSION).contains(&config.version) {
            return Err(Error::Version { version: config.version });
        }
        Ok(config)
    }

    /// Makes sure of what it says; returns what cuts by its polynomial.
    pub(crate) fn cutter(&self) -> Result<Cutter> {
        let damaged = |fault: &str| Error::damaged(FileKind::Config, &Id::default(), &fault);
        // Folders and files here are named by it.
        if self.id.parse::<Id>().is_err() {
            return Err(damaged("its id is none"));
        }
        let polynomial = u64::from_str_radix(&self.chunker_polynomial, 16).ok();
        polynomial.and_then(Cutter::new).ok_or_else(|| damaged("its polynomial is none"))
    }
}

/// Returns what stands in an unsealed file: itself, or decompressed to at most `limit` bytes.
pub(crate) fn unpacked(bytes: Vec<u8>, limit: usize) -> Result<Vec<u8>, &'static str> {
    match bytes.split_first() {
        Some((b'{' | b'[', _)) => Ok(bytes),
        Some((&COMPRESSED, packed)) => {
            decompress_unknown(packed, limit).ok_or("it cannot be decompressed")
        }
        _ => Err("it is in no known encoding"),
    }
}

/// Who uses the vault, as it is written into snapshots, keys and locks.
#[derive(Clone, Debug)]
pub struct Who {
    /// The host's name.
    pub host: String,
    /// The user's name.
    pub user: String,
    /// The user's number.
    pub uid: u32,
    /// The number of the user's group.
    pub gid: u32,
    /// The process.
    pub pid: u32,
    /// Among which processes its number is one: those of a PID namespace, since a machine was started. Containers of one host
    /// name differ in it. Empty where the system does not tell.
    pub pid_scope: String,
}

impl Who {
    /// Returns who this process is.
    #[must_use]
    pub fn this_process() -> Self {
        let uid = rustix::process::getuid().as_raw();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = host.trim().to_owned();
        let user =
            crate::source::names::Names::of_system().user(uid).unwrap_or_default().to_owned();
        let gid = rustix::process::getgid().as_raw();
        Self { host, user, uid, gid, pid: std::process::id(), pid_scope: pid_scope() }
    }
}

/// Names the boot of this machine and the PID namespace in it; the system gives the latter's number again after a boot.
fn pid_scope() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let namespace = std::fs::read_link("/proc/self/ns/pid");
    match (boot, namespace) {
        (Ok(boot), Ok(namespace)) => format!("{} {}", boot.trim(), namespace.display()),
        _ => String::new(),
    }
}

/// How much a writer takes of the machine and of the way to the vault.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Packs that are written at once; the backend knows how many pay off.
    pub connections: Option<usize>,
    /// Bytes of finished packs that may wait to be written or be on their way, but for one on each connection and one that
    /// waits in any case. Packs are no larger.
    pub queue_bytes: u64,
    /// A wait before each new piece.
    pub delay: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { connections: None, queue_bytes: 32 << 20, delay: Duration::ZERO }
    }
}

/// An opened vault.
#[derive(Debug)]
pub struct Vault {
    backend: Arc<dyn Backend>,
    key: Key,
    opened_with: Id,
    config: Config,
    cutter: Cutter,
    compression: Compression,
    tuning: Tuning,
    /// What is kept here of a vault that is elsewhere.
    cache: Option<Cache>,
    /// Where it is kept what the index files say, wherever the vault is.
    index_table: Option<IndexTableFile>,
    /// Snapshots that were read: their files never change.
    known_snapshots: Mutex<HashMap<Id, Snapshot>>,
    /// What whoever locks it first need not ask for.
    early: Mutex<Option<Early>>,
    is_dry: bool,
}

impl Vault {
    /// Makes a vault in an empty place.
    ///
    /// # Errors
    /// [`Error::VaultExists`], or what the backend says.
    pub fn init(
        backend: Arc<dyn Backend>,
        password: &[u8],
        cost: KeyCost,
        (who, now): (&Who, Timestamp),
    ) -> Result<Self> {
        let place = backend.place();
        backend.create().map_err(|source| match source.kind() {
            ErrorKind::AlreadyExists => Error::VaultExists { place },
            _ => Error::Backend { action: "make", what: "the folders".to_owned(), source },
        })?;
        let key = Key::random()?;
        let opened_with = key::add(&*backend, &key, password, cost, (who, now))?;
        let mut id = [0; 32];
        seal::fill_random(&mut id)?;
        let config = Config {
            version: VERSION,
            id: Id::from_bytes(id).to_string(),
            chunker_polynomial: format!("{:x}", cut::random_polynomial()?),
        };
        let plain = serde_json::to_vec(&config).unwrap_or_default();
        let none = Id::default();
        backend.write(FileKind::Config, &none, &key.seal(&plain)?).map_err(Error::backend(
            "write",
            FileKind::Config,
            &none,
        ))?;
        Self::with(backend, key, opened_with, config)
    }

    /// Opens a vault.
    ///
    /// # Errors
    /// [`Error::NoVault`], [`Error::WrongPassword`], or what else stands in the way.
    pub fn open(backend: Arc<dyn Backend>, password: &[u8]) -> Result<Self> {
        Self::open_for(backend, password, Opening::default())
    }

    /// As [`Vault::open`], by somebody who says what comes next.
    ///
    /// # Errors
    /// As [`Vault::open`].
    pub fn open_for(
        backend: Arc<dyn Backend>,
        password: &[u8],
        opening: Opening<'_>,
    ) -> Result<Self> {
        let Found { opened_with, key, config, early } = open::open(&*backend, password, opening)?;
        let vault = Self::with(backend, key, opened_with, config)?;
        *vault.early.lock() = early;
        Ok(vault)
    }

    fn with(backend: Arc<dyn Backend>, key: Key, opened_with: Id, config: Config) -> Result<Self> {
        let cutter = config.cutter()?;
        let (compression, tuning) = (Compression::default(), Tuning::default());
        let known_snapshots = Mutex::default();
        Ok(Self {
            backend,
            key,
            opened_with,
            config,
            cutter,
            compression,
            tuning,
            cache: None,
            index_table: None,
            known_snapshots,
            early: Mutex::default(),
            is_dry: false,
        })
    }

    /// Returns the same vault, which from now on drops what is written: a save counts what it would take.
    #[must_use]
    pub fn dry(&self) -> Self {
        Self {
            backend: Arc::new(DryBackend(self.backend.clone())),
            key: self.key.clone(),
            opened_with: self.opened_with,
            config: self.config.clone(),
            cutter: self.cutter.clone(),
            compression: self.compression,
            tuning: self.tuning,
            cache: None,
            index_table: self.index_table.clone(),
            known_snapshots: Mutex::default(),
            early: Mutex::default(),
            is_dry: true,
        }
    }

    pub(crate) const fn is_dry(&self) -> bool {
        self.is_dry
    }

    /// Chooses how hard what is written from now on is compressed.
    pub const fn set_compression(&mut self, compression: Compression) {
        self.compression = compression;
    }

    /// Chooses what writers take from now on.
    pub const fn set_tuning(&mut self, tuning: Tuning) {
        self.tuning = tuning;
    }

    /// Keeps index, snapshots and folders in a folder below `dir`, up to some bytes, so that they are fetched once.
    ///
    /// # Errors
    /// If the folder cannot be used; nothing is kept then.
    pub fn keep_in(&mut self, dir: &Path, max_bytes: u64) -> io::Result<()> {
        self.cache = Some(Cache::open(&self.folder_in(dir)?, max_bytes)?);
        Ok(())
    }

    /// Keeps what the index files say in a sealed file below `dir`, so that [`Index::load`] parses those anew that came since.
    ///
    /// # Errors
    /// If the vault has no id that a folder can be named by; nothing is kept then.
    pub fn keep_index_in(&mut self, dir: &Path) -> io::Result<()> {
        self.index_table = Some(IndexTableFile(self.folder_in(dir)?));
        Ok(())
    }

    /// Returns the folder of this vault among those of others.
    fn folder_in(&self, dir: &Path) -> io::Result<PathBuf> {
        // The vault says what it is called: that must be a name and nothing else.
        let is_plain = self.id().bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_plain || self.id().is_empty() {
            return Err(io::Error::new(ErrorKind::InvalidData, "the vault's id is none"));
        }
        Ok(dir.join(self.id()))
    }

    /// Returns the vault's own id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.config.id
    }

    /// Tells whether it is on another machine.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.backend.is_remote()
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    pub(crate) const fn cutter(&self) -> &Cutter {
        &self.cutter
    }

    /// Lists the keys.
    ///
    /// # Errors
    /// A failed read.
    pub fn keys(&self) -> Result<Vec<KeyFacts>> {
        key::list(&*self.backend, &self.opened_with)
    }

    /// Adds a key for another password and returns its id.
    ///
    /// # Errors
    /// A failed write.
    pub fn add_key(&self, password: &[u8], cost: KeyCost, by: (&Who, Timestamp)) -> Result<Id> {
        key::add(&*self.backend, &self.key, password, cost, by)
    }

    /// Removes a key, named by the first digits of its id.
    ///
    /// # Errors
    /// [`Error::Refused`] for the key in use, or a name that fits no key or several.
    pub fn remove_key(&self, name: &str) -> Result<Id> {
        let keys = self.keys()?;
        let mut fitting = keys.iter().filter(|key| key.id.to_string().starts_with(name));
        let (Some(found), None) = (fitting.next(), fitting.next()) else {
            return Err(Error::Refused(format!("`{name}` names no key, or several")));
        };
        if found.is_used {
            let text = "the key that this command was opened with cannot be removed by it";
            return Err(Error::Refused(text.to_owned()));
        }
        self.remove(FileKind::Key, &found.id)?;
        Ok(found.id)
    }

    /// Replaces the key that the vault was opened with by one for another password.
    ///
    /// # Errors
    /// A failed write or removal; a key that opens is always there.
    pub fn change_password(
        &mut self,
        password: &[u8],
        cost: KeyCost,
        by: (&Who, Timestamp),
    ) -> Result<Id> {
        let added = self.add_key(password, cost, by)?;
        // The old key goes only after the new one was seen to open the vault.
        key::find_one(&*self.backend, &added, password)?;
        self.remove(FileKind::Key, &self.opened_with)?;
        self.opened_with = added;
        Ok(added)
    }

    pub(crate) fn list(&self, kind: FileKind) -> Result<Vec<(Id, u64)>> {
        self.note_list(kind, self.backend.list(kind))
    }

    /// Lets a staged file appear, and then lists files of some kinds.
    pub(crate) fn reveal_then_list<const N: usize>(
        &self,
        staged: &Staged,
        kinds: [FileKind; N],
    ) -> Result<[Result<Listing>; N]> {
        let (kind, id) = (staged.kind(), staged.id());
        let listed = self.backend.reveal_then_list(staged, &kinds);
        let mut listed = listed.map_err(Error::backend("write", kind, &id))?.into_iter();
        Ok(kinds.map(|kind| {
            let listed = listed.next().unwrap_or_else(|| self.backend.list(kind));
            self.note_list(kind, listed)
        }))
    }

    /// Forgets what is kept here of files that are not there.
    fn note_list(&self, kind: FileKind, listed: io::Result<Listing>) -> Result<Listing> {
        let listed = listed.map_err(|source| Error::Backend {
            action: "list",
            what: format!("the files of kind {kind}"),
            source,
        })?;
        if let Some(cache) = &self.cache {
            cache.retain(kind, &listed);
        }
        Ok(listed)
    }

    /// Tells whether a file is there.
    pub(crate) fn contains(&self, kind: FileKind, id: &Id) -> Result<bool> {
        self.backend.contains(kind, id).map_err(Error::backend("look for", kind, id))
    }

    /// Reads many files, as many at once as pays off; the results have their order.
    pub(crate) fn read_many<T: Send>(
        &self,
        ids: &[Id],
        read: impl Fn(&Id) -> Result<T> + Sync + Send,
    ) -> Vec<Result<T>> {
        let threads = self.backend.connections().min(ids.len());
        if threads < 2 || !self.backend.is_remote() {
            return ids.par_iter().map(read).collect();
        }
        // What waits for another machine needs no processor: more threads than those of rayon.
        let part = ids.len().div_ceil(threads);
        std::thread::scope(|scope| {
            let read = &read;
            let parts: Vec<_> = ids
                .chunks(part)
                .map(|some| scope.spawn(move || some.iter().map(read).collect::<Vec<_>>()))
                .collect();
            let stopped = |_| vec![Err(Error::Interrupted)];
            parts.into_iter().flat_map(|part| part.join().unwrap_or_else(stopped)).collect()
        })
    }

    pub(crate) fn remove(&self, kind: FileKind, id: &Id) -> Result<()> {
        if let Some(cache) = &self.cache {
            cache.forget(kind, id);
        }
        self.backend.remove(kind, id).map_err(Error::backend("remove", kind, id))
    }

    /// Reads a sealed file of JSON.
    pub(crate) fn read_json<T: DeserializeOwned>(&self, kind: FileKind, id: &Id) -> Result<T> {
        let plain = self.read_unpacked(kind, id)?;
        serde_json::from_slice(&plain).map_err(|error| Error::damaged(kind, id, &error))
    }

    /// Seals and writes JSON; returns the name it got.
    pub(crate) fn write_json<T: Serialize>(&self, kind: FileKind, value: &T) -> Result<Id> {
        let sealed = self.seal_json(kind, value)?;
        let id = Id::of(&sealed);
        self.write(kind, &id, &sealed)?;
        Ok(id)
    }

    /// Seals JSON, and stages it.
    pub(crate) fn stage_json<T: Serialize>(&self, kind: FileKind, value: &T) -> Result<Staged> {
        self.stage(kind, self.seal_json(kind, value)?)
    }

    /// Seals JSON as it is written.
    pub(crate) fn seal_json<T: Serialize>(&self, kind: FileKind, value: &T) -> Result<Vec<u8>> {
        let mut sealed = Vec::new();
        self.key.seal_appended(&mut sealed, |out| {
            let encoded = if self.config.version == 1 {
                serde_json::to_writer(out, value).map_err(io::Error::from)
            } else {
                out.push(COMPRESSED);
                compress_json(value, self.compression, out)
            };
            encoded.map_err(|error| Error::Refused(format!("cannot encode a {kind}: {error}")))
        })?;
        Ok(sealed)
    }

    /// Brings a file to the vault without its name, which is that of its bytes.
    pub(crate) fn stage(&self, kind: FileKind, bytes: Vec<u8>) -> Result<Staged> {
        self.stage_named(kind, Id::of(&bytes), bytes)
    }

    /// As [`Vault::stage`], of bytes whose name is known: a pack is long.
    pub(crate) fn stage_named(&self, kind: FileKind, id: Id, bytes: Vec<u8>) -> Result<Staged> {
        self.backend.stage(kind, &id, bytes).map_err(Error::backend("write", kind, &id))
    }

    /// Lets a staged file appear, and keeps it here if such files are.
    pub(crate) fn reveal(&self, staged: &Staged) -> Result<()> {
        let (kind, id) = (staged.kind(), staged.id());
        self.backend.reveal(staged).map_err(Error::backend("write", kind, &id))?;
        if let Some(cache) = self.cache.as_ref().filter(|_| kind != FileKind::Pack) {
            cache.keep(kind, &id, staged.bytes());
        }
        Ok(())
    }

    /// Removes a staged file that is not to appear.
    pub(crate) fn discard(&self, staged: &Staged) {
        self.backend.discard(staged);
    }

    /// Does two things at once where each call costs a round trip, else one after the other.
    pub(crate) fn both<A: Send, B>(
        &self,
        one: impl FnOnce() -> A + Send,
        other: impl FnOnce() -> B,
    ) -> (A, B) {
        if !self.backend.is_remote() {
            return (one(), other());
        }
        std::thread::scope(|scope| {
            let one = scope.spawn(one);
            let other = other();
            (one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), other)
        })
    }

    /// Writes a file, and keeps it here if such files are.
    fn write(&self, kind: FileKind, id: &Id, bytes: &[u8]) -> Result<()> {
        self.backend.write(kind, id, bytes).map_err(Error::backend("write", kind, id))?;
        if let Some(cache) = self.cache.as_ref().filter(|_| kind != FileKind::Pack) {
            cache.keep(kind, id, bytes);
        }
        Ok(())
    }

    /// Reads a file whose bytes have the hash that it is named by, from here if it is kept.
    fn read_named(&self, kind: FileKind, id: &Id) -> Result<Vec<u8>> {
        if let Some(cache) = &self.cache
            && let Some(bytes) = cache.read(kind, id)
        {
            if Id::of(&bytes) == *id {
                return Ok(bytes);
            }
            cache.forget(kind, id);
        }
        let bytes = self.backend.read(kind, id).map_err(Error::backend("read", kind, id))?;
        if Id::of(&bytes) != *id {
            let fault = "its bytes do not have the hash that it is named by";
            return Err(Error::damaged(kind, id, &fault));
        }
        if let Some(cache) = &self.cache {
            cache.keep(kind, id, &bytes);
        }
        Ok(bytes)
    }

    fn read_unpacked(&self, kind: FileKind, id: &Id) -> Result<Vec<u8>> {
        let sealed = self.read_named(kind, id)?;
        let damaged = |fault: &str| Error::damaged(kind, id, &fault);
        let bytes = self.key.open(sealed).ok_or_else(|| damaged("its seal is broken"))?;
        unpacked(bytes, MAX_UNPACKED).map_err(damaged)
    }

    /// Seals a piece or a folder for a pack into a buffer; returns the plain length if it is compressed.
    fn seal_blob(&self, kind: BlobKind, plain: &[u8], out: &mut Vec<u8>) -> Result<Option<u32>> {
        let wanted = self.config.version > 1
            && (kind == BlobKind::Tree || self.compression != Compression::Off);
        let compression = match kind {
            BlobKind::Data => self.compression,
            BlobKind::Tree => self.compression.of_folders(),
        };
        self.key.seal_appended(out, |out| {
            let before = out.len();
            let packed = if wanted { compress_onto(plain, compression, out) } else { None };
            if packed.is_some_and(|length| length < plain.len() || kind == BlobKind::Tree) {
                return Ok(Some(u32::try_from(plain.len()).unwrap_or(u32::MAX)));
            }
            out.truncate(before);
            out.extend_from_slice(plain);
            Ok(None)
        })
    }

    /// Opens what was cut from a pack, and checks it against its id.
    pub(crate) fn open_blob(
        &self,
        (kind, id): (BlobKind, &Id),
        place: Place,
        sealed: Vec<u8>,
    ) -> Result<Vec<u8>> {
        let damaged =
            |fault: &str| Error::Blob { what: kind.name(), id: *id, fault: fault.to_owned() };
        let bytes = self.key.open(sealed).ok_or_else(|| damaged("its seal is broken"))?;
        let plain = match place.raw {
            0 => bytes,
            raw => decompress(&bytes, (raw as usize).min(MAX_BLOB))
                .ok_or_else(|| damaged("it cannot be decompressed"))?,
        };
        if Id::of(&plain) != *id {
            return Err(damaged("its bytes have another hash"));
        }
        Ok(plain)
    }

    /// Reads a piece or a folder.
    ///
    /// # Errors
    /// [`Error::Blob`] if it is not there or damaged; [`Error::Backend`] if the place cannot be read now.
    pub(crate) fn read_blob(&self, index: &Index, kind: BlobKind, id: &Id) -> Result<Vec<u8>> {
        let failed = |fault: String| Error::Blob { what: kind.name(), id: *id, fault };
        let place = index.find(kind, id).ok_or_else(|| failed("no index lists it".to_owned()))?;
        let pack = index.pack(place);
        let (start, length) = (u64::from(place.offset), place.length as usize);
        if let Some(cache) = self.cache.as_ref().filter(|_| kind == BlobKind::Tree)
            && let Some(sealed) = self.kept_blob(cache, (&pack, start, length))
        {
            match self.open_blob((kind, id), place, sealed) {
                Ok(plain) => return Ok(plain),
                // What is kept here is damaged; what is there may be whole.
                Err(_) => cache.forget(FileKind::Pack, &pack),
            }
        }
        let sealed = self.read_part(&pack, start, length).map_err(|error| {
            // What is only out of reach must not pass for lost.
            if is_lost(&error) {
                failed(format!("the pack `{pack}`: {error}"))
            } else {
                Error::backend("read", FileKind::Pack, &pack)(error)
            }
        })?;
        self.open_blob((kind, id), place, sealed)
    }

    /// Reads a part of a pack. Places on other machines try again by themselves; a folder of a network's file system does
    /// not.
    fn read_part(&self, pack: &Id, start: u64, length: usize) -> io::Result<Vec<u8>> {
        let read = || self.backend.read_range(FileKind::Pack, pack, start, length);
        let mut wait = FIRST_WAIT;
        let attempts = if self.backend.is_remote() { 1 } else { ATTEMPTS };
        for _ in 1..attempts {
            match read() {
                Err(error) if is_passing(&error) => {
                    warn!(%error, blob = %pack, "a pack could not be read; trying again");
                    std::thread::sleep(wait);
                    wait *= 2;
                }
                read => return read,
            }
        }
        read()
    }

    /// Cuts a folder from a pack that is kept here, or that is fetched to be: with it come its neighbors, which are
    /// needed next.
    fn kept_blob(
        &self,
        cache: &Cache,
        (pack, start, length): (&Id, u64, usize),
    ) -> Option<Vec<u8>> {
        if let Some(sealed) = cache.read_range(pack, start, length) {
            return Some(sealed);
        }
        if !cache.has_room() {
            return None;
        }
        let bytes = self.read_named(FileKind::Pack, pack).ok()?;
        let start = usize::try_from(start).ok()?;
        bytes.get(start..start.checked_add(length)?).map(<[u8]>::to_vec)
    }
}

impl Vault {
    pub(crate) fn open_sealed(&self, sealed: Vec<u8>) -> Option<Vec<u8>> {
        self.key.open(sealed)
    }

    pub(crate) fn seal_bytes(&self, plain: &[u8]) -> Result<Vec<u8>> {
        self.key.seal(plain)
    }

    /// Opens a blob as an index lists it.
    pub(crate) fn open_stored(&self, blob: &index::StoredBlob, sealed: Vec<u8>) -> Result<Vec<u8>> {
        self.open_blob((blob.kind, &blob.id), Place::of(blob), sealed)
    }
}

/// Decodes the table of an index, and looks up all that it lists.
#[cfg(any(fuzzing, test))]
pub(crate) fn look_into_index_table(plain: &[u8]) {
    let Some(table) = index_table::IndexTable::parse(plain.to_vec()) else { return };
    for kind in [BlobKind::Data, BlobKind::Tree] {
        let ids: Vec<Id> = table.all(kind).map(|(id, _)| id).collect();
        // What is not sorted is nobody's table: that it cannot be found is all that comes of it.
        let is_sorted = ids.is_sorted();
        for id in ids {
            assert!(table.find(kind, &id).is_some() || !is_sorted);
        }
    }
}
