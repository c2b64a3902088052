//! Locks as restic writes and honors them: one sealed file per process that uses the vault.
//!
//! A lock is shared or exclusive. A process writes its lock and then checks the others, so that of two concurrent ones
//! at least one yields. Rewriting the lock every few minutes shows that the process is alive.
//!
//! Invariants
//! * A lock of another process is never removed unless that process is dead in this process's PID scope, or has not
//!   renewed the lock for too long.
//! * A process that could not renew its lock in time, or whose lock was removed, writes no index and no snapshot, and
//!   removes nothing.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::Vault;
use super::user::VaultUser;
use crate::backend::{StagedFile, VaultFileKind, VaultFileListing};
use crate::error::{Error, Result};
use crate::object_id::VaultObjectId;
use crate::vault_encryption::VaultKey;

/// Age after which a conflicting lock counts as abandoned.
const STALE_LOCK_AGE: Duration = Duration::from_mins(30);
/// Age after which a lock that does not conflict counts as abandoned. It is longer, because the writer's clock may be
/// slow.
const FORGOTTEN_LOCK_AGE: Duration = Duration::from_hours(24);
/// Interval of lock renewal.
const RENEWAL_INTERVAL: Duration = Duration::from_mins(5);
/// Maximum age of a process's own lock, after which it stops: others may soon treat the lock as abandoned.
const MAX_OWN_LOCK_AGE: Duration = Duration::from_mins(25);
/// Maximum time after which two concurrent lockers see each other's lock.
const CONFLICT_CHECK_DELAY: Duration = Duration::from_millis(200);

/// The mode of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VaultLockMode {
    /// Other processes may hold shared locks, but no exclusive one.
    Shared,
    /// No other process may hold a lock.
    Exclusive,
}

/// The stored form of a lock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredLock {
    time: String,
    exclusive: bool,
    hostname: String,
    username: String,
    pid: u32,
    #[serde(default)]
    uid: u32,
    #[serde(default)]
    gid: u32,
    /// Unknown to restic, which ignores it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pid_scope: String,
}

impl StoredLock {
    fn new(holder: &VaultUser, mode: VaultLockMode) -> Self {
        let VaultUser { host, user, uid, gid, pid, pid_scope } = holder.clone();
        let exclusive = mode == VaultLockMode::Exclusive;
        let time = Timestamp::now().to_string();
        Self { time, exclusive, hostname: host, username: user, pid, uid, gid, pid_scope }
    }

    pub(crate) fn is_stale(&self, user: &VaultUser, now: Timestamp) -> bool {
        self.is_abandoned(user, now, STALE_LOCK_AGE)
    }

    /// Returns true if its process is dead on this host, or has not renewed it for longer than `silence`.
    fn is_abandoned(&self, user: &VaultUser, now: Timestamp, silence: Duration) -> bool {
        let Ok(time) = self.time.parse::<Timestamp>() else { return false };
        let age = now.duration_since(time);
        if age > jiff::SignedDuration::try_from(silence).unwrap_or(jiff::SignedDuration::MAX) {
            return true;
        }
        // Locks of restic have no scope, and restic itself compares host names. In another scope the process id is
        // meaningless: it may be unused there, or belong to another process.
        let is_of_ours = self.pid_scope.is_empty() || self.pid_scope == user.pid_scope;
        self.hostname == user.host
            && is_of_ours
            && self.pid != user.pid
            && is_process_dead(self.pid)
    }
}

fn is_process_dead(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

/// A lock, held until it is dropped.
#[derive(Debug)]
pub struct VaultLock {
    vault: Arc<Vault>,
    state: Arc<Mutex<VaultLockState>>,
    listings: Mutex<LockedListings>,
    stop_sender: Option<Sender<()>>,
    renewal_thread: Option<JoinHandle<()>>,
}

/// The listings made after the lock was written: nothing in them has been removed since.
#[derive(Debug, Default)]
struct LockedListings {
    index: Option<VaultFileListing>,
    snapshots: Option<VaultFileListing>,
}

#[derive(Debug)]
struct VaultLockState {
    id: VaultObjectId,
    /// The time of the last write, by a clock that continues while the process is suspended.
    written_at: Timestamp,
    /// The same time, by a monotonic clock.
    written_instant: Instant,
}

/// The time before a lock is written: its age counts from here, however long the write takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct LockTimestamp {
    wall_clock: Timestamp,
    monotonic: Instant,
}

impl LockTimestamp {
    pub(super) fn now() -> Self {
        Self { wall_clock: Timestamp::now(), monotonic: Instant::now() }
    }
}

impl VaultLockState {
    const fn new(id: VaultObjectId, begin: LockTimestamp) -> Self {
        Self { id, written_at: begin.wall_clock, written_instant: begin.monotonic }
    }

    /// Returns the lock's id, unless it was not renewed for so long that others may treat it as abandoned.
    fn current_id(&self) -> Result<VaultObjectId> {
        let silence = Timestamp::now().duration_since(self.written_at).unsigned_abs();
        let is_late =
            silence > MAX_OWN_LOCK_AGE || self.written_instant.elapsed() > MAX_OWN_LOCK_AGE;
        if is_late { Err(Error::LockLost) } else { Ok(self.id) }
    }
}

impl VaultLock {
    /// Locks the vault, waiting for conflicting locks for at most `wait`.
    ///
    /// # Errors
    /// [`Error::Locked`], or a failed write.
    pub fn acquire(
        vault: &Arc<Vault>,
        user: &VaultUser,
        mode: VaultLockMode,
        wait: Duration,
    ) -> Result<Self> {
        let begin = Instant::now();
        loop {
            match try_acquire(vault, user, mode) {
                Err(Error::Locked { .. }) if begin.elapsed() < wait => {
                    std::thread::sleep(CONFLICT_CHECK_DELAY.min(wait));
                }
                result => return Ok(Self::start_renewal(vault, (user, mode), result?)),
            }
        }
    }

    /// Lists the index files; the first call returns the listing made with the locks.
    pub(crate) fn list_index(&self) -> Result<VaultFileListing> {
        let listed = self.listings.lock().index.take();
        listed.map_or_else(|| self.vault.files().list(VaultFileKind::Index), Ok)
    }

    /// As [`VaultLock::list_index`], for snapshots.
    pub(crate) fn list_snapshots(&self) -> Result<VaultFileListing> {
        let listed = self.listings.lock().snapshots.take();
        listed.map_or_else(|| self.vault.files().list(VaultFileKind::Snapshot), Ok)
    }

    /// Returns the snapshots listed with the locks, if they have not been requested yet.
    pub(crate) fn initial_snapshots(&self) -> VaultFileListing {
        self.listings.lock().snapshots.clone().unwrap_or_default()
    }

    fn start_renewal(
        vault: &Arc<Vault>,
        (user, mode): (&VaultUser, VaultLockMode),
        (state, listed): (VaultLockState, LockedListings),
    ) -> Self {
        let state = Arc::new(Mutex::new(state));
        let (stop, stopped) = channel();
        let (vault, user) = (vault.clone(), user.clone());
        let renewing = (vault.clone(), state.clone());
        let renewer =
            std::thread::spawn(move || renew_until_stopped(&renewing, &user, mode, &stopped));
        let listed = Mutex::new(listed);
        Self {
            vault,
            state,
            listings: listed,
            stop_sender: Some(stop),
            renewal_thread: Some(renewer),
        }
    }

    /// Checks that the lock is still valid for others.
    ///
    /// # Errors
    /// [`Error::LockLost`] if it may not be.
    pub fn check_held(&self) -> Result<()> {
        self.witness().check_held()
    }

    /// Returns a handle that checks the lock from other threads.
    pub(crate) fn witness(&self) -> LockWitness {
        LockWitness { vault: self.vault.clone(), state: self.state.clone() }
    }
}

/// Checks if a lock is still held.
#[derive(Clone, Debug)]
pub(crate) struct LockWitness {
    vault: Arc<Vault>,
    state: Arc<Mutex<VaultLockState>>,
}

impl LockWitness {
    /// As [`VaultLock::check_held`].
    pub(crate) fn check_held(&self) -> Result<()> {
        let id = self.state.lock().current_id()?;
        let is_there = self.vault.files().contains(VaultFileKind::Lock, &id)?;
        // The renewal may have replaced it between the two checks.
        if is_there || self.state.lock().id != id { Ok(()) } else { Err(Error::LockLost) }
    }
}

impl Drop for VaultLock {
    fn drop(&mut self) {
        drop(self.stop_sender.take());
        if let Some(renewer) = self.renewal_thread.take()
            && renewer.join().is_err()
        {
            warn!("lock renewal thread panicked");
        }
        let id = self.state.lock().id;
        let vault = &self.vault;
        let prepared = || vault.files().backend().expect_no_writes();
        let (removed, ()) =
            vault.files().run_both(|| vault.files().remove(VaultFileKind::Lock, &id), prepared);
        if let Err(error) = removed {
            warn!(%error, "cannot remove a lock of the vault");
        }
    }
}

fn try_acquire(
    vault: &Vault,
    user: &VaultUser,
    mode: VaultLockMode,
) -> Result<(VaultLockState, LockedListings)> {
    let early = vault.early_lock.lock().take();
    let (locks, early) = early.map_or((None, None), |early| (early.locks, early.staged_lock));
    // This check avoids writing a lock that would have to be removed again; the check after the lock has appeared
    // decides.
    let locks = locks.map_or_else(|| vault.files().list(VaultFileKind::Lock), Ok);
    let free = locks.and_then(|locks| check_conflicts(vault, user, mode, locks, None));
    let early = match (early, mode, free) {
        (Some(staged), VaultLockMode::Shared, Ok(())) => Some(staged),
        (early, _, free) => {
            early.iter().for_each(|(staged, _)| vault.files().discard(staged));
            free?;
            None
        }
    };
    let lock = || {
        let begin = LockTimestamp::now();
        let staged = vault.files().stage_json(VaultFileKind::Lock, &StoredLock::new(user, mode));
        staged.map(|staged| (staged, begin))
    };
    let (staged, begin) = early.map_or_else(lock, Ok)?;
    let id = staged.id();
    match reveal_and_verify(vault, user, mode, &staged) {
        Ok(listed) => Ok((VaultLockState::new(id, begin), listed)),
        Err(error) => {
            // The reason for the missing lock matters more: if a lock cannot be written, it cannot be removed either.
            if let Err(left) = vault.files().remove(VaultFileKind::Lock, &id)
                && vault.files().contains(VaultFileKind::Lock, &id).unwrap_or(true)
            {
                warn!(error = %left, "cannot remove a lock of the vault");
            }
            Err(error)
        }
    }
}

/// Reveals a lock, and verifies that it does not conflict with another one.
fn reveal_and_verify(
    vault: &Vault,
    user: &VaultUser,
    mode: VaultLockMode,
    staged: &StagedFile,
) -> Result<LockedListings> {
    let id = staged.id();
    let is_free = |locks| check_conflicts(vault, user, mode, locks, Some(&id));
    if mode == VaultLockMode::Shared && vault.files().backend().is_remote() {
        // Also list what a process with a shared lock needs first; a failed listing is repeated when needed.
        let kinds = [VaultFileKind::Lock, VaultFileKind::Index, VaultFileKind::Snapshot];
        let [locks, index, snapshots] = vault.files().reveal_then_list(staged, kinds)?;
        is_free(locks?)?;
        return Ok(LockedListings { index: index.ok(), snapshots: snapshots.ok() });
    }
    vault.files().reveal(staged)?;
    is_free(vault.files().list(VaultFileKind::Lock)?)?;
    // An exclusive lock must not miss one that is being written.
    if mode == VaultLockMode::Exclusive {
        std::thread::sleep(CONFLICT_CHECK_DELAY);
        is_free(vault.files().list(VaultFileKind::Lock)?)?;
    }
    Ok(LockedListings::default())
}

/// Seals a shared lock for a vault of which only the key is known: uncompressed, which every vault allows.
pub(super) fn seal_shared_lock(key: &VaultKey, user: &VaultUser) -> Result<Vec<u8>> {
    key.seal(&serde_json::to_vec(&StoredLock::new(user, VaultLockMode::Shared)).unwrap_or_default())
}

/// Returns an error if a lock other than `own` conflicts with this one. Abandoned locks are removed.
fn check_conflicts(
    vault: &Vault,
    user: &VaultUser,
    mode: VaultLockMode,
    locks: VaultFileListing,
    own: Option<&VaultObjectId>,
) -> Result<()> {
    for (id, _) in locks {
        if Some(&id) == own {
            continue;
        }
        let Some(lock) = read_lock(vault, &id)? else { continue };
        let excludes = lock.exclusive || mode == VaultLockMode::Exclusive;
        if lock.is_abandoned(
            user,
            Timestamp::now(),
            if excludes { STALE_LOCK_AGE } else { FORGOTTEN_LOCK_AGE },
        ) {
            vault.files().remove(VaultFileKind::Lock, &id)?;
            continue;
        }
        if excludes {
            return Err(Error::Locked {
                host: lock.hostname,
                user: lock.username,
                pid: lock.pid,
                since: lock.time,
                exclusive: lock.exclusive,
            });
        }
    }
    Ok(())
}

/// Reads a lock; `None` if its process has removed it concurrently.
fn read_lock(vault: &Vault, id: &VaultObjectId) -> Result<Option<StoredLock>> {
    match vault.files().read_json(VaultFileKind::Lock, id) {
        Ok(lock) => Ok(Some(lock)),
        Err(Error::Backend { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn renew_until_stopped(
    (vault, state): &(Arc<Vault>, Arc<Mutex<VaultLockState>>),
    user: &VaultUser,
    mode: VaultLockMode,
    stopped: &Receiver<()>,
) {
    while stopped.recv_timeout(RENEWAL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        if let Err(error) = renew_lock(vault, state, user, mode) {
            warn!(%error, "cannot renew a lock of the vault; retrying");
        }
    }
}

/// Writes a new lock file and removes the previous one. A lock that others removed is not written again.
fn renew_lock(
    vault: &Vault,
    state: &Mutex<VaultLockState>,
    user: &VaultUser,
    mode: VaultLockMode,
) -> Result<()> {
    let old = state.lock().current_id()?;
    if !vault.files().contains(VaultFileKind::Lock, &old)? {
        return Err(Error::LockLost);
    }
    let begin = LockTimestamp::now();
    let id = vault.files().write_json(VaultFileKind::Lock, &StoredLock::new(user, mode))?;
    *state.lock() = VaultLockState::new(id, begin);
    vault.files().remove(VaultFileKind::Lock, &old)
}

/// The set of locks to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnlockScope {
    /// Abandoned locks.
    Stale,
    /// All locks.
    All,
}

impl Vault {
    /// Removes locks; returns their number. A damaged lock does not identify its process, and is removed only with all.
    ///
    /// # Errors
    /// A failed read or removal.
    pub fn unlock(&self, user: &VaultUser, which: UnlockScope) -> Result<usize> {
        let mut removed = 0;
        for (id, _) in self.files().list(VaultFileKind::Lock)? {
            let is_stale = || match read_lock(self, &id) {
                Ok(lock) => Ok(lock.is_some_and(|lock| lock.is_stale(user, Timestamp::now()))),
                Err(error @ Error::Damaged { .. }) => {
                    warn!(%error, "skipped a damaged lock");
                    Ok(false)
                }
                Err(error) => Err(error),
            };
            if which == UnlockScope::All || is_stale()? {
                self.files().remove(VaultFileKind::Lock, &id)?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::LocalBackend;
    use crate::vault::KeyDerivationCost;

    fn vault(dir: &tempfile::TempDir) -> Arc<Vault> {
        let backend = Arc::new(LocalBackend::new(dir.path().join("vault")));
        let by = (&VaultUser::this_process(), Timestamp::UNIX_EPOCH);
        Arc::new(Vault::init(backend, b"x", KeyDerivationCost { log_rounds: 4 }, by).unwrap())
    }

    fn names(vault: &Vault) -> Vec<VaultObjectId> {
        vault.files().list(VaultFileKind::Lock).unwrap().into_iter().map(|(id, _)| id).collect()
    }

    /// A process that was suspended for so long that others may have removed or ignored its lock.
    #[test]
    fn a_lock_that_was_silent_for_too_long_is_not_renewed() {
        let dir = tempfile::tempdir().unwrap();
        let (vault, user) = (vault(&dir), VaultUser::this_process());
        let lock =
            VaultLock::acquire(&vault, &user, VaultLockMode::Shared, Duration::ZERO).unwrap();
        let before = names(&vault);
        let state = &lock.state;
        renew_lock(&vault, state, &user, VaultLockMode::Shared).unwrap();
        let renewed = names(&vault);
        assert!(renewed.len() == 1 && renewed != before, "{renewed:?}");
        lock.check_held().unwrap();

        let silent = MAX_OWN_LOCK_AGE + Duration::from_secs(1);
        state.lock().written_at = Timestamp::now() - silent;
        let refused = renew_lock(&vault, state, &user, VaultLockMode::Shared);
        assert!(matches!(refused, Err(Error::LockLost)), "{refused:?}");
        assert_eq!(names(&vault), renewed, "nothing was written");
        assert!(matches!(lock.check_held(), Err(Error::LockLost)));
    }

    /// A slow connection makes a lock older for its readers, so it must be as old for its holder.
    #[test]
    fn a_lock_is_as_old_for_its_holder_as_for_others() {
        let dir = tempfile::tempdir().unwrap();
        let (vault, user) = (vault(&dir), VaultUser::this_process());
        let lock =
            VaultLock::acquire(&vault, &user, VaultLockMode::Shared, Duration::ZERO).unwrap();
        for turn in 0..2 {
            let state = lock.state.lock();
            let recorded_at =
                read_lock(&vault, &state.id).unwrap().unwrap().time.parse::<Timestamp>().unwrap();
            assert!(state.written_at <= recorded_at, "turn {turn}");
            drop(state);
            renew_lock(&vault, &lock.state, &user, VaultLockMode::Shared).unwrap();
        }
    }

    #[test]
    fn a_lock_that_others_removed_is_not_renewed() {
        let dir = tempfile::tempdir().unwrap();
        let (vault, user) = (vault(&dir), VaultUser::this_process());
        let lock =
            VaultLock::acquire(&vault, &user, VaultLockMode::Shared, Duration::ZERO).unwrap();
        vault.unlock(&user, UnlockScope::All).unwrap();
        let refused = renew_lock(&vault, &lock.state, &user, VaultLockMode::Shared);
        assert!(matches!(refused, Err(Error::LockLost)), "{refused:?}");
        assert!(names(&vault).is_empty());
    }
}
