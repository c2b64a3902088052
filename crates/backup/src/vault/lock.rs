//! Locks as restic writes and honors them: one sealed file per process that uses the vault.
//!
//! A lock is shared or exclusive. It is written, then the others are looked at, so that of two that come at once at
//! least one gives way. It says that its process lives by being written anew every few minutes.
//!
//! Invariants
//! * What another process holds is never removed, unless it is gone: dead among the processes that this one sees, or silent
//!   for too long.
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

use super::{Vault, VaultUser};
use crate::backend::{StagedFile, VaultFileKind, VaultFileListing};
use crate::error::{Error, Result};
use crate::object_id::VaultObjectId;
use crate::vault_key::VaultKey;

/// A lock that was not renewed for so long belongs to nobody, for who cannot do beside it what he wants.
const STALE_LOCK_AGE: Duration = Duration::from_mins(30);
/// One that is in nobody's way is left alone for longer: the clock of who wrote it may be slow.
const FORGOTTEN_LOCK_AGE: Duration = Duration::from_hours(24);
/// A lock is renewed so often.
const RENEWAL_INTERVAL: Duration = Duration::from_mins(5);
/// A process whose own lock is older does not go on: others may hold it for gone soon.
const MAX_OWN_LOCK_AGE: Duration = Duration::from_mins(25);
/// Two that lock at once see each other after this at the latest.
const CONFLICT_CHECK_DELAY: Duration = Duration::from_millis(200);

/// Whether others may use the vault meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VaultLockMode {
    /// Others may, but not exclusively.
    Shared,
    /// Nobody else may.
    Exclusive,
}

/// The stored form.
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
    /// Unknown to restic, which passes it over.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pid_scope: String,
}

impl StoredLock {
    fn new(who: &VaultUser, mode: VaultLockMode) -> Self {
        let VaultUser { host, user, uid, gid, pid, pid_scope } = who.clone();
        let exclusive = mode == VaultLockMode::Exclusive;
        let time = Timestamp::now().to_string();
        Self { time, exclusive, hostname: host, username: user, pid, uid, gid, pid_scope }
    }

    pub(crate) fn is_stale(&self, who: &VaultUser, now: Timestamp) -> bool {
        self.is_abandoned(who, now, STALE_LOCK_AGE)
    }

    /// Tells whether its process is dead on this host, or was silent for longer than `silence`.
    fn is_abandoned(&self, who: &VaultUser, now: Timestamp, silence: Duration) -> bool {
        let Ok(time) = self.time.parse::<Timestamp>() else { return false };
        let age = now.duration_since(time);
        if age > jiff::SignedDuration::try_from(silence).unwrap_or(jiff::SignedDuration::MAX) {
            return true;
        }
        // What restic left says nothing about its scope, and restic itself goes by the host's name. Elsewhere the number says
        // nothing: it may be that of nobody here, and of somebody who lives there.
        let is_of_ours = self.pid_scope.is_empty() || self.pid_scope == who.pid_scope;
        self.hostname == who.host && is_of_ours && self.pid != who.pid && is_process_dead(self.pid)
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

/// What was there when the lock had been written: nobody has removed anything of it since.
#[derive(Debug, Default)]
struct LockedListings {
    index: Option<VaultFileListing>,
    snapshots: Option<VaultFileListing>,
}

#[derive(Debug)]
struct VaultLockState {
    id: VaultObjectId,
    /// When it was written last, on a clock that goes on while the process is stopped.
    written_at: Timestamp,
    /// The same, on a clock that nobody sets.
    written_instant: Instant,
}

/// When a lock is about to be written: its age counts from here, however long the writing takes.
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

    /// Returns the lock's id, unless it was silent for so long that others may take it for dead.
    fn current_id(&self) -> Result<VaultObjectId> {
        let silence = Timestamp::now().duration_since(self.written_at).unsigned_abs();
        let is_late =
            silence > MAX_OWN_LOCK_AGE || self.written_instant.elapsed() > MAX_OWN_LOCK_AGE;
        if is_late { Err(Error::LockLost) } else { Ok(self.id) }
    }
}

impl VaultLock {
    /// Locks the vault, waiting for others for at most `wait`.
    ///
    /// # Errors
    /// [`Error::Locked`], or a failed write.
    pub fn acquire(
        vault: &Arc<Vault>,
        who: &VaultUser,
        mode: VaultLockMode,
        wait: Duration,
    ) -> Result<Self> {
        let begin = Instant::now();
        loop {
            match try_acquire(vault, who, mode) {
                Err(Error::Locked { .. }) if begin.elapsed() < wait => {
                    std::thread::sleep(CONFLICT_CHECK_DELAY.min(wait));
                }
                taken => return Ok(Self::start_renewal(vault, (who, mode), taken?)),
            }
        }
    }

    /// Lists the index files; those that were listed with the locks, the first time.
    pub(crate) fn list_index(&self) -> Result<VaultFileListing> {
        let listed = self.listings.lock().index.take();
        listed.map_or_else(|| self.vault.list_files(VaultFileKind::Index), Ok)
    }

    /// As [`VaultLock::list_index`], of snapshots.
    pub(crate) fn list_snapshots(&self) -> Result<VaultFileListing> {
        let listed = self.listings.lock().snapshots.take();
        listed.map_or_else(|| self.vault.list_files(VaultFileKind::Snapshot), Ok)
    }

    /// Returns the snapshots that were there with the locks, if nobody has asked for them yet.
    pub(crate) fn initial_snapshots(&self) -> VaultFileListing {
        self.listings.lock().snapshots.clone().unwrap_or_default()
    }

    fn start_renewal(
        vault: &Arc<Vault>,
        (who, mode): (&VaultUser, VaultLockMode),
        (state, listed): (VaultLockState, LockedListings),
    ) -> Self {
        let state = Arc::new(Mutex::new(state));
        let (stop, stopped) = channel();
        let (vault, who) = (vault.clone(), who.clone());
        let renewing = (vault.clone(), state.clone());
        let renewer =
            std::thread::spawn(move || renew_until_stopped(&renewing, &who, mode, &stopped));
        let listed = Mutex::new(listed);
        Self {
            vault,
            state,
            listings: listed,
            stop_sender: Some(stop),
            renewal_thread: Some(renewer),
        }
    }

    /// Makes sure that others still see the lock.
    ///
    /// # Errors
    /// [`Error::LockLost`] if they may not.
    pub fn check_held(&self) -> Result<()> {
        self.witness().check_held()
    }

    /// Returns what can tell about the lock from other threads.
    pub(crate) fn witness(&self) -> LockWitness {
        LockWitness { vault: self.vault.clone(), state: self.state.clone() }
    }
}

/// Tells whether a lock still holds.
#[derive(Clone, Debug)]
pub(crate) struct LockWitness {
    vault: Arc<Vault>,
    state: Arc<Mutex<VaultLockState>>,
}

impl LockWitness {
    /// As [`VaultLock::check_held`].
    pub(crate) fn check_held(&self) -> Result<()> {
        let id = self.state.lock().current_id()?;
        let is_there = self.vault.contains_file(VaultFileKind::Lock, &id)?;
        // The renewer may have replaced it between the two looks.
        if is_there || self.state.lock().id != id { Ok(()) } else { Err(Error::LockLost) }
    }
}

impl Drop for VaultLock {
    fn drop(&mut self) {
        drop(self.stop_sender.take());
        if let Some(renewer) = self.renewal_thread.take()
            && renewer.join().is_err()
        {
            warn!("the thread that renews a vault's lock has panicked");
        }
        let id = self.state.lock().id;
        let vault = &self.vault;
        let prepared = || vault.backend().expect_no_writes();
        let (removed, ()) =
            vault.run_both(|| vault.remove_file(VaultFileKind::Lock, &id), prepared);
        if let Err(error) = removed {
            warn!(%error, "a lock of a vault could not be removed");
        }
    }
}

fn try_acquire(
    vault: &Vault,
    who: &VaultUser,
    mode: VaultLockMode,
) -> Result<(VaultLockState, LockedListings)> {
    let early = vault.early_lock.lock().take();
    let (locks, early) = early.map_or((None, None), |early| (early.locks, early.staged_lock));
    // This look spares the others a lock that has to give way; the one after the lock has appeared decides.
    let locks = locks.map_or_else(|| vault.list_files(VaultFileKind::Lock), Ok);
    let free = locks.and_then(|locks| check_conflicts(vault, who, mode, (locks, None)));
    let early = match (early, mode, free) {
        (Some(staged), VaultLockMode::Shared, Ok(())) => Some(staged),
        (early, _, free) => {
            early.iter().for_each(|(staged, _)| vault.discard_staged(staged));
            free?;
            None
        }
    };
    let lock = || {
        let begin = LockTimestamp::now();
        let staged = vault.stage_json(VaultFileKind::Lock, &StoredLock::new(who, mode));
        staged.map(|staged| (staged, begin))
    };
    let (staged, begin) = early.map_or_else(lock, Ok)?;
    let id = staged.id();
    match reveal_and_verify(vault, who, mode, &staged) {
        Ok(listed) => Ok((VaultLockState::new(id, begin), listed)),
        Err(error) => {
            // Why there is no lock matters more: where none can be written, none can be removed either.
            if let Err(left) = vault.remove_file(VaultFileKind::Lock, &id)
                && vault.contains_file(VaultFileKind::Lock, &id).unwrap_or(true)
            {
                warn!(error = %left, "a lock of a vault could not be removed");
            }
            Err(error)
        }
    }
}

/// Lets a lock appear, and makes sure that it excludes nobody and nobody excludes it.
fn reveal_and_verify(
    vault: &Vault,
    who: &VaultUser,
    mode: VaultLockMode,
    staged: &StagedFile,
) -> Result<LockedListings> {
    let id = staged.id();
    let is_free = |locks| check_conflicts(vault, who, mode, (locks, Some(&id)));
    if mode == VaultLockMode::Shared && vault.backend().is_remote() {
        // What whoever shares a vault begins with comes along; what is lacking is listed again when it is needed.
        let kinds = [VaultFileKind::Lock, VaultFileKind::Index, VaultFileKind::Snapshot];
        let [locks, index, snapshots] = vault.reveal_then_list(staged, kinds)?;
        is_free(locks?)?;
        return Ok(LockedListings { index: index.ok(), snapshots: snapshots.ok() });
    }
    vault.reveal_file(staged)?;
    is_free(vault.list_files(VaultFileKind::Lock)?)?;
    // An exclusive lock must not overlook one that is being written.
    if mode == VaultLockMode::Exclusive {
        std::thread::sleep(CONFLICT_CHECK_DELAY);
        is_free(vault.list_files(VaultFileKind::Lock)?)?;
    }
    Ok(LockedListings::default())
}

/// Seals a shared lock for a vault of which no more is known than its key: not compressed, which every vault allows.
pub(super) fn seal_shared_lock(key: &VaultKey, who: &VaultUser) -> Result<Vec<u8>> {
    key.seal(&serde_json::to_vec(&StoredLock::new(who, VaultLockMode::Shared)).unwrap_or_default())
}

/// Fails if a lock other than `own` excludes this one. Locks of processes that are gone are removed.
fn check_conflicts(
    vault: &Vault,
    who: &VaultUser,
    mode: VaultLockMode,
    (locks, own): (VaultFileListing, Option<&VaultObjectId>),
) -> Result<()> {
    for (id, _) in locks {
        if Some(&id) == own {
            continue;
        }
        let Some(lock) = read_lock(vault, &id)? else { continue };
        let excludes = lock.exclusive || mode == VaultLockMode::Exclusive;
        if lock.is_abandoned(
            who,
            Timestamp::now(),
            if excludes { STALE_LOCK_AGE } else { FORGOTTEN_LOCK_AGE },
        ) {
            vault.remove_file(VaultFileKind::Lock, &id)?;
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

/// Reads a lock; nothing if its process has removed it meanwhile.
fn read_lock(vault: &Vault, id: &VaultObjectId) -> Result<Option<StoredLock>> {
    match vault.read_json(VaultFileKind::Lock, id) {
        Ok(lock) => Ok(Some(lock)),
        Err(Error::Backend { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn renew_until_stopped(
    (vault, state): &(Arc<Vault>, Arc<Mutex<VaultLockState>>),
    who: &VaultUser,
    mode: VaultLockMode,
    stopped: &Receiver<()>,
) {
    while stopped.recv_timeout(RENEWAL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        if let Err(error) = renew_lock(vault, state, who, mode) {
            warn!(%error, "a lock of a vault could not be renewed; trying again");
        }
    }
}

/// Writes a lock anew and removes its former file. One that others removed is not written again.
fn renew_lock(
    vault: &Vault,
    state: &Mutex<VaultLockState>,
    who: &VaultUser,
    mode: VaultLockMode,
) -> Result<()> {
    let old = state.lock().current_id()?;
    if !vault.contains_file(VaultFileKind::Lock, &old)? {
        return Err(Error::LockLost);
    }
    let begin = LockTimestamp::now();
    let id = vault.write_json(VaultFileKind::Lock, &StoredLock::new(who, mode))?;
    *state.lock() = VaultLockState::new(id, begin);
    vault.remove_file(VaultFileKind::Lock, &old)
}

/// Which locks to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnlockScope {
    /// Those of processes that are gone.
    Stale,
    /// All.
    All,
}

impl Vault {
    /// Removes locks; returns how many. What is damaged says nothing about its process, and goes with all only.
    ///
    /// # Errors
    /// A failed read or removal.
    pub fn unlock(&self, who: &VaultUser, which: UnlockScope) -> Result<usize> {
        let mut removed = 0;
        for (id, _) in self.list_files(VaultFileKind::Lock)? {
            let is_stale = || match read_lock(self, &id) {
                Ok(lock) => Ok(lock.is_some_and(|lock| lock.is_stale(who, Timestamp::now()))),
                Err(error @ Error::Damaged { .. }) => {
                    warn!(%error, "a lock is passed over");
                    Ok(false)
                }
                Err(error) => Err(error),
            };
            if which == UnlockScope::All || is_stale()? {
                self.remove_file(VaultFileKind::Lock, &id)?;
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
        vault.list_files(VaultFileKind::Lock).unwrap().into_iter().map(|(id, _)| id).collect()
    }

    /// A process that was asleep for so long that others may have removed its lock, or passed it over.
    #[test]
    fn a_lock_that_was_silent_for_too_long_is_not_renewed() {
        let dir = tempfile::tempdir().unwrap();
        let (vault, who) = (vault(&dir), VaultUser::this_process());
        let lock = VaultLock::acquire(&vault, &who, VaultLockMode::Shared, Duration::ZERO).unwrap();
        let before = names(&vault);
        let state = &lock.state;
        renew_lock(&vault, state, &who, VaultLockMode::Shared).unwrap();
        let renewed = names(&vault);
        assert!(renewed.len() == 1 && renewed != before, "{renewed:?}");
        lock.check_held().unwrap();

        let silent = MAX_OWN_LOCK_AGE + Duration::from_secs(1);
        state.lock().written_at = Timestamp::now() - silent;
        let refused = renew_lock(&vault, state, &who, VaultLockMode::Shared);
        assert!(matches!(refused, Err(Error::LockLost)), "{refused:?}");
        assert_eq!(names(&vault), renewed, "nothing was written");
        assert!(matches!(lock.check_held(), Err(Error::LockLost)));
    }

    /// A slow line makes a lock older for those who read it, and so it is for the one who holds it.
    #[test]
    fn a_lock_is_as_old_for_its_holder_as_for_others() {
        let dir = tempfile::tempdir().unwrap();
        let (vault, who) = (vault(&dir), VaultUser::this_process());
        let lock = VaultLock::acquire(&vault, &who, VaultLockMode::Shared, Duration::ZERO).unwrap();
        for turn in 0..2 {
            let state = lock.state.lock();
            let told =
                read_lock(&vault, &state.id).unwrap().unwrap().time.parse::<Timestamp>().unwrap();
            assert!(state.written_at <= told, "turn {turn}");
            drop(state);
            renew_lock(&vault, &lock.state, &who, VaultLockMode::Shared).unwrap();
        }
    }

    #[test]
    fn a_lock_that_others_removed_is_not_renewed() {
        let dir = tempfile::tempdir().unwrap();
        let (vault, who) = (vault(&dir), VaultUser::this_process());
        let lock = VaultLock::acquire(&vault, &who, VaultLockMode::Shared, Duration::ZERO).unwrap();
        vault.unlock(&who, UnlockScope::All).unwrap();
        let refused = renew_lock(&vault, &lock.state, &who, VaultLockMode::Shared);
        assert!(matches!(refused, Err(Error::LockLost)), "{refused:?}");
        assert!(names(&vault).is_empty());
    }
}
