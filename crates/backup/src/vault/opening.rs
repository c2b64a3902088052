//! Opening a vault in as few round trips as possible: independent requests are sent concurrently, and the key that
//! opened the vault last is derived while the connection is established.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tracing::debug;

use super::lock::{self, LockTimestamp};
use super::user::VaultUser;
use super::{VaultConfig, key_file};
use crate::backend::{StagedFile, VaultBackend, VaultFileKind, VaultFileListing};
use crate::error::{Error, Result};
use crate::object_id::VaultObjectId;
use crate::vault_encryption::VaultKey;

/// The number of files that a short run writes at its end: a pack of pieces and one of folders, the index, and the file
/// that refers to it.
pub(super) const FINAL_FILE_COUNT: usize = 4;

/// Options for opening a vault.
#[derive(Clone, Copy, Debug, Default)]
pub struct VaultOpening<'a> {
    /// The folder that caches the file of the key that opened the vault last, sealed by its password as in the vault. A
    /// key that the vault no longer has is not accepted. Only for backends where each call costs a round trip.
    pub key_cache_dir: Option<&'a Path>,
    /// The user who takes a shared lock next, and saves.
    pub saving_user: Option<&'a VaultUser>,
}

/// Data for the first lock, obtained while the vault was opened.
#[derive(Debug)]
pub(super) struct EarlyLock {
    /// The existing locks.
    pub(super) locks: Option<VaultFileListing>,
    /// The staged lock, and the time at which it was created.
    pub(super) staged_lock: Option<(StagedFile, LockTimestamp)>,
}

impl EarlyLock {
    fn discard(self, backend: &dyn VaultBackend) {
        self.staged_lock.iter().for_each(|(staged, _)| backend.discard(staged));
    }
}

/// A vault that is open.
pub(super) struct OpenedVault {
    pub(super) opening_key_id: VaultObjectId,
    pub(super) key: VaultKey,
    pub(super) config: VaultConfig,
    pub(super) early_lock: Option<EarlyLock>,
}

/// Reads the data that a vault needs, and finds the key that the password opens.
pub(super) fn open_vault(
    backend: &dyn VaultBackend,
    password: &[u8],
    opening: VaultOpening<'_>,
) -> Result<OpenedVault> {
    let (sealed, opened_with, key, early) = if backend.is_remote() {
        open_remote_vault(backend, password, opening)?
    } else {
        let sealed = read_config(backend)?;
        let (id, key, _) =
            key_file::find_key(backend, &key_file::list_key_ids(backend)?, password)?;
        (sealed, id, key, None)
    };
    let damaged =
        |fault: &str| Error::damaged(VaultFileKind::Config, &VaultObjectId::default(), &fault);
    let config = key.open(sealed).ok_or_else(|| damaged("it cannot be decrypted"));
    match config.and_then(|plain| VaultConfig::parse(&plain)) {
        Ok(config) => {
            Ok(OpenedVault { opening_key_id: opened_with, key, config, early_lock: early })
        }
        Err(error) => {
            early.into_iter().for_each(|early| early.discard(backend));
            backend.expect_no_writes();
            Err(error)
        }
    }
}

fn read_config(backend: &dyn VaultBackend) -> Result<Vec<u8>> {
    let none = VaultObjectId::default();
    backend.read(VaultFileKind::Config, &none).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::NoVault { place: backend.location() },
        _ => Error::backend("read", VaultFileKind::Config, &none)(error),
    })
}

/// Sends all requests at once, and concurrently tries the key that opened the vault last.
fn open_remote_vault(
    backend: &dyn VaultBackend,
    password: &[u8],
    opening: VaultOpening<'_>,
) -> Result<(Vec<u8>, VaultObjectId, VaultKey, Option<EarlyLock>)> {
    let cached_file =
        opening.key_cache_dir.map(|keys| CachedKeyFile::at(keys, &backend.location()));
    let (config, keys, tried, locks) = std::thread::scope(|scope| {
        let tried = scope.spawn(|| {
            let (id, key) = cached_file.as_ref()?.open(password)?;
            // A user who knows the password may write, and a staged lock is not visible to others.
            let staged = opening.saving_user.and_then(|user| stage_lock(backend, &key, user));
            Some((id, key, staged))
        });
        let keys = scope.spawn(|| key_file::list_key_ids(backend));
        let look = || opening.saving_user.and_then(|_| backend.list(VaultFileKind::Lock).ok());
        let locks = scope.spawn(look);
        let config = read_config(backend);
        let keys = keys.join().unwrap_or(Err(Error::Interrupted));
        (config, keys, tried.join().ok().flatten(), locks.join().ok().flatten())
    });
    let (tried, staged) = match tried {
        Some((id, key, staged)) => (Some((id, key)), staged),
        None => (None, None),
    };
    let early = EarlyLock { locks, staged_lock: staged };
    let (config, keys) = match config.and_then(|config| Ok((config, keys?))) {
        Ok(read) => read,
        Err(error) => {
            early.discard(backend);
            return Err(error);
        }
    };
    let prepare = || {
        if opening.saving_user.is_some() {
            backend.expect_writes(FINAL_FILE_COUNT);
        }
    };
    if let Some((id, key)) = tried.filter(|(id, _)| keys.contains(id)) {
        prepare();
        return Ok((config, id, key, Some(early)));
    }
    let locks = early.locks.clone();
    early.discard(backend);
    let (id, key, bytes) = key_file::find_key(backend, &keys, password)?;
    prepare();
    if let Some(Err(error)) = cached_file.map(|cached_file| cached_file.store(&bytes)) {
        debug!(%error, "cannot cache the key");
    }
    Ok((config, id, key, Some(EarlyLock { locks, staged_lock: None })))
}

/// Stages a lock; `None` on failure, which is reported when the lock is acquired.
fn stage_lock(
    backend: &dyn VaultBackend,
    key: &VaultKey,
    user: &VaultUser,
) -> Option<(StagedFile, LockTimestamp)> {
    let begin = LockTimestamp::now();
    let sealed = lock::seal_shared_lock(key, user).ok()?;
    let id = VaultObjectId::of(&sealed);
    Some((backend.stage(VaultFileKind::Lock, &id, sealed).ok()?, begin))
}

/// The cached file of the key that last opened the vault at a location.
struct CachedKeyFile(PathBuf);

impl CachedKeyFile {
    fn at(keys: &Path, location: &str) -> Self {
        Self(keys.join(VaultObjectId::of(location.as_bytes()).to_string()))
    }

    /// Opens the cached key with the password; `None` on failure.
    fn open(&self, password: &[u8]) -> Option<(VaultObjectId, VaultKey)> {
        let bytes = fs::read(&self.0).ok()?;
        let id = VaultObjectId::of(&bytes);
        key_file::open_key_file(&id, &bytes, password).ok().map(|key| (id, key))
    }

    fn store(&self, bytes: &[u8]) -> io::Result<()> {
        let folder = self.0.parent().ok_or(ErrorKind::InvalidInput)?;
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(bytes)?;
        file.persist(&self.0)?;
        Ok(())
    }
}
