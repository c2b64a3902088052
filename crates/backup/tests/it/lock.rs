//! Locks: who excludes whom, and whose lock counts no more.

use std::fs;
use std::time::Duration;

use tympan_backup::{Error, Lock, LockMode, Unlock, Who};

use crate::support::{Bench, plant};

fn take(bench: &Bench, who: &Who, mode: LockMode) -> Result<Lock, Error> {
    Lock::take(&bench.vault, who, mode, Duration::ZERO)
}

#[test]
fn exclusive_locks_exclude_and_shared_ones_share() {
    let bench = Bench::new();
    let who = Who::this_process();
    let (one, two) = (take(&bench, &who, LockMode::Shared), take(&bench, &who, LockMode::Shared));
    assert!(one.is_ok() && two.is_ok());
    let refused = take(&bench, &who, LockMode::Exclusive);
    assert!(matches!(refused, Err(Error::Locked { exclusive: false, .. })));
    drop((one, two));
    let alone = take(&bench, &who, LockMode::Exclusive).unwrap();
    for mode in [LockMode::Shared, LockMode::Exclusive] {
        assert!(matches!(take(&bench, &who, mode), Err(Error::Locked { exclusive: true, .. })));
    }
    drop(alone);
    assert_eq!(fs::read_dir(bench.path("vault/locks")).unwrap().count(), 0);
}

#[test]
fn the_lock_of_a_dead_process_counts_no_more() {
    let bench = Bench::new();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let dead = Who { pid: child.id(), ..Who::this_process() };
    let left = take(&bench, &dead, LockMode::Exclusive).unwrap();
    child.wait().unwrap();
    std::mem::forget(left);
    assert_eq!(bench.vault.unlock(&Who::this_process(), Unlock::Stale).unwrap(), 1);

    // One of another host counts for as long as it is fresh.
    let elsewhere = Who { host: "elsewhere".into(), ..dead };
    std::mem::forget(take(&bench, &elsewhere, LockMode::Exclusive).unwrap());
    assert!(take(&bench, &Who::this_process(), LockMode::Shared).is_err());
    assert_eq!(bench.vault.unlock(&Who::this_process(), Unlock::Stale).unwrap(), 0);
    assert_eq!(bench.vault.unlock(&Who::this_process(), Unlock::All).unwrap(), 1);
}

#[test]
fn a_run_whose_lock_was_removed_writes_no_snapshot() {
    let bench = Bench::new();
    plant(&bench.source());
    let who = Who::this_process();
    let lock = take(&bench, &who, LockMode::Shared).unwrap();
    bench.vault.unlock(&who, Unlock::All).unwrap();
    let index = bench.index();
    let progress = tympan_backup::Progress::default();
    let session = tympan_backup::Session::new((&bench.vault, &index), &lock, &progress);
    let options = tympan_backup::SaveOptions::new(who, crate::support::now());
    let saved = tympan_backup::save_directories(&session, &[bench.source()], &options);
    assert!(matches!(saved, Err(Error::LockLost)));
    assert!(bench.vault.snapshots().unwrap().is_empty());
    assert_eq!(fs::read_dir(bench.path("vault/index")).unwrap().count(), 0);
}
