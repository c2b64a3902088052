//! Runs that end at any call to the backend: what was there before stays whole, and the next run succeeds.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tympan_backup::{
    BackendWrapper, LocalBackend, StagedFile, VaultBackend, VaultFileKind, VaultObjectId,
};

use crate::vault_bench::{Bench, describe, noise, now, plant, prune_with, save};

/// A backend that stops working after some calls that change it, for good: as if the process had been killed.
#[derive(Debug)]
struct Dying {
    inner: LocalBackend,
    /// Whether each call counts as a round trip: then files are brought at once, and named one after another.
    is_far: bool,
    left: AtomicI64,
}

impl Dying {
    fn after(bench: &Bench, calls: i64) -> Arc<Self> {
        Arc::new(Self::new(bench, calls, false))
    }

    /// The same, far away.
    fn far_after(bench: &Bench, calls: i64) -> Arc<Self> {
        Arc::new(Self::new(bench, calls, true))
    }

    fn new(bench: &Bench, calls: i64, is_far: bool) -> Self {
        let inner = LocalBackend::new(bench.path("vault"));
        Self { inner, is_far, left: AtomicI64::new(calls) }
    }

    fn live(&self) -> io::Result<()> {
        if self.left.fetch_sub(1, Ordering::Relaxed) > 0 {
            return Ok(());
        }
        Err(io::ErrorKind::StorageFull.into())
    }

    fn has_died(&self) -> bool {
        self.left.load(Ordering::Relaxed) < 0
    }
}

impl BackendWrapper for Dying {
    fn inner(&self) -> &dyn VaultBackend {
        &self.inner
    }

    fn is_remote(&self) -> bool {
        self.is_far
    }

    fn stage(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        bytes: Vec<u8>,
    ) -> io::Result<StagedFile> {
        if self.is_far {
            self.live()?;
        }
        self.inner.stage(kind, id, bytes)
    }

    fn write(&self, kind: VaultFileKind, id: &VaultObjectId, bytes: &[u8]) -> io::Result<()> {
        self.live()?;
        self.inner.write(kind, id, bytes)
    }

    fn remove(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<()> {
        self.live()?;
        self.inner.remove(kind, id)
    }
}

/// Removes the locks that a killed process has left; here it is this one, which lives.
fn unlock(bench: &Bench) {
    let who = tympan_backup::VaultUser::this_process();
    bench.vault.unlock(&who, tympan_backup::UnlockScope::All).unwrap();
}

#[test]
fn a_save_that_dies_at_any_call_harms_nothing() {
    saves_that_die(Dying::after);
}

#[test]
fn a_far_save_that_dies_at_any_call_harms_nothing() {
    saves_that_die(Dying::far_after);
}

fn saves_that_die(after: impl Fn(&Bench, i64) -> Arc<Dying>) {
    let bench = Bench::new();
    plant(&bench.source());
    let first = bench.save();
    std::fs::write(bench.source().join("more"), noise(1 << 20, 2)).unwrap();
    let mut survived = 0;
    for calls in 0..100 {
        let dying = after(&bench, calls);
        let saved = save(&bench.open_through(dying.clone()), &[bench.source()]);
        unlock(&bench);
        let report = bench.check();
        assert!(report.faults.is_empty(), "after {calls} calls: {:?}", report.faults);
        survived = calls;
        if saved.is_ok() {
            // The last call removes the lock, which may fail without harm.
            break;
        }
        assert!(dying.has_died());
        assert_eq!(bench.vault.read_snapshots().unwrap().len(), 1, "after {calls} calls");
        // Change something, so that each attempt has all to write.
        let name = format!("more {calls}");
        std::fs::write(bench.source().join(name), noise(1000, 10 + calls as u64)).unwrap();
    }
    assert!(survived >= 4, "a save is several calls: {survived}");
    bench.restic_ok(&["check", "--read-data"]);
    let last = bench.save();
    bench.restore(&last.snapshot, "out");
    assert_eq!(describe(&bench.path("out")), describe(&bench.source()));
    bench.restore(&first.snapshot, "before");
    assert!(!bench.path("before/more").exists());
}

/// Does something through a vault that dies after 0, 1, 2 and more calls, until it lives to the end; returns how many that
/// took. Each time what was saved is there, for restic too.
fn dies_at_any_call(
    bench: &Bench,
    kept: &tympan_backup::VaultSnapshot,
    mut act: impl FnMut(&Arc<tympan_backup::Vault>) -> tympan_backup::Result<()>,
) -> i64 {
    for calls in 0..100 {
        let dying = Dying::after(bench, calls);
        let done = act(&bench.open_through(dying.clone()));
        unlock(bench);
        let report = bench.check();
        assert!(report.faults.is_empty(), "after {calls} calls: {:?}", report.faults);
        bench.restic_ok(&["check"]);
        let out = format!("out {calls}");
        bench.restore(kept, &out);
        assert_eq!(describe(&bench.path(&out)), describe(&bench.source()));
        std::fs::remove_dir_all(bench.path(&out)).unwrap();
        if done.is_ok() && !dying.has_died() {
            return calls;
        }
    }
    panic!("it never ends");
}

#[test]
fn a_forget_that_dies_at_any_call_harms_nothing() {
    let bench = Bench::new();
    plant(&bench.source());
    let first = bench.save().snapshot.id;
    let kept = bench.save().snapshot;
    let calls = dies_at_any_call(&bench, &kept, |vault| vault.remove_snapshot(&first));
    assert_eq!(calls, 1, "a snapshot is gone at once or not at all");
    assert_eq!(bench.vault.read_snapshots().unwrap().len(), 1);
}

/// At each moment the old password opens the vault, or the new one does.
#[test]
fn a_change_of_passwords_that_dies_at_any_call_leaves_one_that_opens() {
    use crate::vault_bench::{COST, PASSWORD};
    let bench = Bench::new();
    plant(&bench.source());
    let kept = bench.save().snapshot;
    let opens = |password: &[u8]| {
        let backend = Arc::new(LocalBackend::new(bench.path("vault")));
        tympan_backup::Vault::open(backend, password).is_ok()
    };
    let by = tympan_backup::VaultUser::this_process();
    let (mut ended, mut keys) = (false, Vec::new());
    for calls in 0..10 {
        // As it was: one key, with the usual password.
        let backend = Dying::after(&bench, calls);
        let mut vault = tympan_backup::Vault::open(backend.clone(), PASSWORD.as_bytes()).unwrap();
        let changed = vault.change_password(b"new", COST, (&by, now()));
        let (old, new) = (opens(PASSWORD.as_bytes()), opens(b"new"));
        assert!(old || new, "after {calls} calls nothing opens");
        assert_eq!(changed.is_ok(), new && !old, "after {calls} calls");
        keys.push(bench.vault.keys().unwrap().len());
        if new {
            let whole = Arc::new(LocalBackend::new(bench.path("vault")));
            let mut vault = tympan_backup::Vault::open(whole, b"new").unwrap();
            vault.change_password(PASSWORD.as_bytes(), COST, (&by, now())).unwrap();
            // What a change that was cut off left opens still, and goes by its name.
            let spare: Vec<_> =
                vault.keys().unwrap().into_iter().filter(|key| !key.is_used).collect();
            for key in spare {
                vault.remove_key(&key.id.to_string()).unwrap();
            }
        }
        if changed.is_ok() {
            ended = true;
            break;
        }
    }
    assert!(ended && keys == [1, 2, 1], "{keys:?}");
    bench.restic_ok(&["check"]);
    bench.restore(&kept, "out");
    assert_eq!(describe(&bench.path("out")), describe(&bench.source()));
}

/// A vault whose index is gone is mended step by step; whichever step was the last, the next repair goes on.
#[test]
fn a_repair_that_dies_at_any_call_loses_nothing() {
    let bench = Bench::new();
    plant(&bench.source());
    let kept = bench.save().snapshot;
    let mut ended = false;
    for calls in 0..30 {
        for entry in std::fs::read_dir(bench.path("vault/index")).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        let mend = |vault: &Arc<tympan_backup::Vault>| {
            let who = tympan_backup::VaultUser::this_process();
            let mode = tympan_backup::VaultLockMode::Exclusive;
            let lock = tympan_backup::VaultLock::acquire(vault, &who, mode, Duration::ZERO)?;
            let depth = (tympan_backup::CheckDepth::Structure, now());
            tympan_backup::repair_vault(
                vault,
                &lock,
                depth,
                &tympan_backup::BackupProgress::default(),
            )
        };
        let dying = Dying::after(&bench, calls);
        let repaired = mend(&bench.open_through(dying));
        unlock(&bench);
        if repaired.is_err() {
            mend(&bench.vault).unwrap();
        }
        let report = bench.check();
        assert!(report.faults.is_empty(), "after {calls} calls: {:?}", report.faults);
        let out = format!("out {calls}");
        bench.restore(&kept, &out);
        assert_eq!(describe(&bench.path(&out)), describe(&bench.source()));
        if repaired.is_ok() {
            ended = true;
            break;
        }
    }
    assert!(ended);
    bench.restic_ok(&["check", "--read-data"]);
}

#[test]
fn a_prune_that_dies_at_any_call_harms_nothing() {
    prunes_that_die(Duration::ZERO);
}

/// What one prune marked, a later one removes.
#[test]
fn a_prune_in_two_phases_that_dies_at_any_call_harms_nothing() {
    prunes_that_die(Duration::from_secs(1));
}

fn prunes_that_die(grace: Duration) {
    let bench = Bench::new();
    plant(&bench.source());
    let mut ended = false;
    for calls in 0..100 {
        let name = bench.source().join("passing");
        std::fs::write(&name, noise(900_000, 100 + calls as u64)).unwrap();
        let passing = bench.save();
        std::fs::remove_file(&name).unwrap();
        let kept = bench.save();
        bench.vault.remove_snapshot(&passing.snapshot.id).unwrap();
        let dying = Dying::after(&bench, calls);
        let pruned = prune_with(&bench.open_through(dying), grace, now());
        unlock(&bench);
        let report = bench.check();
        assert!(report.faults.is_empty(), "after {calls} calls: {:?}", report.faults);
        let out = format!("out {calls}");
        bench.restore(&kept.snapshot, &out);
        assert_eq!(describe(&bench.path(&out)), describe(&bench.source()));
        std::fs::remove_dir_all(bench.path(&out)).unwrap();
        bench.restic_ok(&["check"]);
        if pruned.is_ok() {
            ended = true;
            break;
        }
    }
    assert!(ended);
}
