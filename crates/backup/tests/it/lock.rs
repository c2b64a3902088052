//! Locks: who excludes whom, and whose lock counts no more.

use std::fs;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use tympan_backup::{
    BackendWrapper, Error, LocalBackend, UnlockScope, Vault, VaultBackend, VaultFileKind,
    VaultLock, VaultLockMode, VaultObjectId, VaultUser,
};

use crate::vault_bench::{Bench, PASSWORD, plant};

fn take(bench: &Bench, who: &VaultUser, mode: VaultLockMode) -> Result<VaultLock, Error> {
    VaultLock::acquire(&bench.vault, who, mode, Duration::ZERO)
}

#[test]
fn exclusive_locks_exclude_and_shared_ones_share() {
    let bench = Bench::new();
    let who = VaultUser::this_process();
    let (one, two) =
        (take(&bench, &who, VaultLockMode::Shared), take(&bench, &who, VaultLockMode::Shared));
    assert!(one.is_ok() && two.is_ok());
    let refused = take(&bench, &who, VaultLockMode::Exclusive);
    assert!(matches!(refused, Err(Error::Locked { exclusive: false, .. })));
    drop((one, two));
    let alone = take(&bench, &who, VaultLockMode::Exclusive).unwrap();
    for mode in [VaultLockMode::Shared, VaultLockMode::Exclusive] {
        assert!(matches!(take(&bench, &who, mode), Err(Error::Locked { exclusive: true, .. })));
    }
    drop(alone);
    assert_eq!(fs::read_dir(bench.path("vault/locks")).unwrap().count(), 0);
}

#[test]
fn the_lock_of_a_dead_process_counts_no_more() {
    let bench = Bench::new();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let dead = VaultUser { pid: child.id(), ..VaultUser::this_process() };
    let left = take(&bench, &dead, VaultLockMode::Exclusive).unwrap();
    child.wait().unwrap();
    std::mem::forget(left);
    assert_eq!(bench.vault.unlock(&VaultUser::this_process(), UnlockScope::Stale).unwrap(), 1);

    // restic does not tell the scope of the process's number, and goes by the host's name.
    let of_restic = VaultUser { pid_scope: String::new(), ..dead.clone() };
    std::mem::forget(take(&bench, &of_restic, VaultLockMode::Exclusive).unwrap());
    assert_eq!(bench.vault.unlock(&VaultUser::this_process(), UnlockScope::Stale).unwrap(), 1);

    // One of another host counts for as long as it is fresh; and one of another container with the name of this host, where
    // the number may be that of a process that lives.
    let elsewhere = VaultUser { host: "elsewhere".into(), ..dead.clone() };
    let contained = VaultUser { pid_scope: "another boot pid:[1]".into(), ..dead };
    for other in [elsewhere, contained] {
        std::mem::forget(take(&bench, &other, VaultLockMode::Exclusive).unwrap());
        assert!(take(&bench, &VaultUser::this_process(), VaultLockMode::Shared).is_err());
        assert_eq!(bench.vault.unlock(&VaultUser::this_process(), UnlockScope::Stale).unwrap(), 0);
        assert_eq!(bench.vault.unlock(&VaultUser::this_process(), UnlockScope::All).unwrap(), 1);
    }
}

/// A lock that a full disk cut off tells nothing, and keeps nobody from removing those of processes that are gone.
#[test]
fn a_damaged_lock_does_not_stop_an_unlock() {
    let bench = Bench::new();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let dead = VaultUser { pid: child.id(), ..VaultUser::this_process() };
    let locks = bench.path("vault/locks");
    for digit in ['0', 'f'] {
        fs::write(locks.join(String::from(digit).repeat(64)), "").unwrap();
    }
    // Whoever takes a lock must know what the others are.
    assert!(take(&bench, &dead, VaultLockMode::Shared).is_err());
    fs::rename(&locks, bench.path("aside")).unwrap();
    fs::create_dir(&locks).unwrap();
    std::mem::forget(take(&bench, &dead, VaultLockMode::Shared).unwrap());
    child.wait().unwrap();
    for damaged in fs::read_dir(bench.path("aside")).unwrap() {
        let damaged = damaged.unwrap();
        fs::rename(damaged.path(), locks.join(damaged.file_name())).unwrap();
    }
    assert_eq!(bench.vault.unlock(&VaultUser::this_process(), UnlockScope::Stale).unwrap(), 1);
    assert_eq!(bench.vault.unlock(&VaultUser::this_process(), UnlockScope::All).unwrap(), 2);
}

#[test]
fn a_run_whose_lock_was_removed_writes_no_snapshot() {
    let bench = Bench::new();
    plant(&bench.source());
    let who = VaultUser::this_process();
    let lock = take(&bench, &who, VaultLockMode::Shared).unwrap();
    bench.vault.unlock(&who, UnlockScope::All).unwrap();
    let index = bench.index();
    let progress = tympan_backup::BackupProgress::default();
    let session = tympan_backup::SaveSession::new(&bench.vault, &index, &lock, &progress);
    let options = tympan_backup::SaveOptions::new(who, crate::vault_bench::now());
    let saved = tympan_backup::save_directories(&session, &[bench.source()], &options);
    assert!(matches!(saved, Err(Error::LockLost)));
    assert!(bench.vault.read_snapshots().unwrap().is_empty());
    assert_eq!(fs::read_dir(bench.path("vault/index")).unwrap().count(), 0);
}

/// A vault's folder on a medium that cannot be written.
#[derive(Debug)]
struct Fixed(LocalBackend);

impl BackendWrapper for Fixed {
    fn inner(&self) -> &dyn VaultBackend {
        &self.0
    }

    fn write(&self, _: VaultFileKind, _: &VaultObjectId, _: &[u8]) -> io::Result<()> {
        Err(ErrorKind::ReadOnlyFilesystem.into())
    }

    fn remove(&self, _: VaultFileKind, _: &VaultObjectId) -> io::Result<()> {
        Err(ErrorKind::ReadOnlyFilesystem.into())
    }
}

/// What is told is that it cannot be written, and not that it cannot be removed what was never there.
#[test]
fn a_lock_that_cannot_be_written_says_so() {
    let bench = Bench::new();
    let backend = Arc::new(Fixed(LocalBackend::new(bench.path("vault"))));
    let vault = Arc::new(Vault::open(backend, PASSWORD.as_bytes()).unwrap());
    for mode in [VaultLockMode::Shared, VaultLockMode::Exclusive] {
        let refused = VaultLock::acquire(&vault, &VaultUser::this_process(), mode, Duration::ZERO)
            .unwrap_err();
        assert!(refused.to_string().starts_with("cannot write the lock"), "{refused}");
    }
}
