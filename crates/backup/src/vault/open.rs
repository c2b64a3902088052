//! Opening a vault in as few round trips as can be: what does not wait for each other is asked for at once, and the key
//! that opened it last is derived while the place is being reached.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tracing::debug;

use super::lock::{self, Moment};
use super::write::LAST_FILES;
use super::{Config, Who, key};
use crate::backend::{Backend, FileKind, Listing, Staged};
use crate::error::{Error, Result};
use crate::id::Id;
use crate::seal::Key;

/// What comes with the opening of a vault, and what comes next.
#[derive(Clone, Copy, Debug, Default)]
pub struct Opening<'a> {
    /// The folder that keeps the file of the key that opened last, sealed by its password as it is in the vault. A key that
    /// the vault no longer has opens nothing. Only for places where each call costs a round trip.
    pub keys: Option<&'a Path>,
    /// Who takes a shared lock next, and saves.
    pub saves: Option<&'a Who>,
}

/// What was found out for the one who takes the lock, while the vault was opened.
#[derive(Debug)]
pub(super) struct Early {
    /// The locks that were there.
    pub(super) locks: Option<Listing>,
    /// The lock itself, which has no name yet, and when it was made.
    pub(super) staged: Option<(Staged, Moment)>,
}

impl Early {
    fn give_up(self, backend: &dyn Backend) {
        self.staged.iter().for_each(|(staged, _)| backend.discard(staged));
    }
}

/// A vault that is open.
pub(super) struct Found {
    pub(super) opened_with: Id,
    pub(super) key: Key,
    pub(super) config: Config,
    pub(super) early: Option<Early>,
}

/// Reads what a vault needs, and finds the key that the password opens.
pub(super) fn open(backend: &dyn Backend, password: &[u8], opening: Opening<'_>) -> Result<Found> {
    let (sealed, opened_with, key, early) = if backend.is_remote() {
        open_far(backend, password, opening)?
    } else {
        let sealed = read_config(backend)?;
        let (id, key, _) = key::find(backend, &key::ids(backend)?, password)?;
        (sealed, id, key, None)
    };
    let damaged = |fault: &str| Error::damaged(FileKind::Config, &Id::default(), &fault);
    let config = key.open(sealed).ok_or_else(|| damaged("its seal is broken"));
    match config.and_then(|plain| Config::parse(&plain)) {
        Ok(config) => Ok(Found { opened_with, key, config, early }),
        Err(error) => {
            early.into_iter().for_each(|early| early.give_up(backend));
            backend.expect_no_writes();
            Err(error)
        }
    }
}

fn read_config(backend: &dyn Backend) -> Result<Vec<u8>> {
    let none = Id::default();
    backend.read(FileKind::Config, &none).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::NoVault { place: backend.place() },
        _ => Error::backend("read", FileKind::Config, &none)(error),
    })
}

/// Asks for all at once, and tries the key that opened the vault last meanwhile.
fn open_far(
    backend: &dyn Backend,
    password: &[u8],
    opening: Opening<'_>,
) -> Result<(Vec<u8>, Id, Key, Option<Early>)> {
    let kept = opening.keys.map(|keys| KeptKey::of(keys, &backend.place()));
    let (config, keys, tried, locks) = std::thread::scope(|scope| {
        let tried = scope.spawn(|| {
            let (id, key) = kept.as_ref()?.open(password)?;
            // Who knows the password may write; and nobody sees a lock that has no name.
            let staged = opening.saves.and_then(|who| stage_lock(backend, &key, who));
            Some((id, key, staged))
        });
        let keys = scope.spawn(|| key::ids(backend));
        let look = || opening.saves.and_then(|_| backend.list(FileKind::Lock).ok());
        let locks = scope.spawn(look);
        let config = read_config(backend);
        let keys = keys.join().unwrap_or(Err(Error::Interrupted));
        (config, keys, tried.join().ok().flatten(), locks.join().ok().flatten())
    });
    let (tried, staged) = match tried {
        Some((id, key, staged)) => (Some((id, key)), staged),
        None => (None, None),
    };
    let early = Early { locks, staged };
    let (config, keys) = match config.and_then(|config| Ok((config, keys?))) {
        Ok(read) => read,
        Err(error) => {
            early.give_up(backend);
            return Err(error);
        }
    };
    let prepare = || {
        if opening.saves.is_some() {
            backend.expect_writes(LAST_FILES);
        }
    };
    if let Some((id, key)) = tried.filter(|(id, _)| keys.contains(id)) {
        prepare();
        return Ok((config, id, key, Some(early)));
    }
    let locks = early.locks.clone();
    early.give_up(backend);
    let (id, key, bytes) = key::find(backend, &keys, password)?;
    prepare();
    if let Some(Err(error)) = kept.map(|kept| kept.keep(&bytes)) {
        debug!(%error, "the key is not kept here");
    }
    Ok((config, id, key, Some(Early { locks, staged: None })))
}

/// Brings a lock to the vault without its name; nothing if that cannot be, which whoever takes the lock is told.
fn stage_lock(backend: &dyn Backend, key: &Key, who: &Who) -> Option<(Staged, Moment)> {
    let begin = Moment::now();
    let sealed = lock::seal_shared(key, who).ok()?;
    let id = Id::of(&sealed);
    Some((backend.stage(FileKind::Lock, &id, sealed).ok()?, begin))
}

/// Where the file of the key is kept that opened the vault in a place.
struct KeptKey(PathBuf);

impl KeptKey {
    fn of(keys: &Path, place: &str) -> Self {
        Self(keys.join(Id::of(place.as_bytes()).to_string()))
    }

    /// Opens it with the password; nothing if that cannot be.
    fn open(&self, password: &[u8]) -> Option<(Id, Key)> {
        let bytes = fs::read(&self.0).ok()?;
        let id = Id::of(&bytes);
        key::open_file(&id, &bytes, password).ok().map(|key| (id, key))
    }

    fn keep(&self, bytes: &[u8]) -> io::Result<()> {
        let folder = self.0.parent().ok_or(ErrorKind::InvalidInput)?;
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(bytes)?;
        file.persist(&self.0)?;
        Ok(())
    }
}
