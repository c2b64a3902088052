//! Runs that end at any call to the backend: what was there before stays whole, and the next run succeeds.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tympan_backup::{Around, Backend, FileKind, Id, LocalBackend};

use crate::support::{Bench, describe, noise, now, plant, prune_with, save};

/// A backend that stops working after some calls that change it, for good: as if the process had been killed.
#[derive(Debug)]
struct Dying {
    inner: LocalBackend,
    left: AtomicI64,
}

impl Dying {
    fn after(bench: &Bench, calls: i64) -> Arc<Self> {
        let inner = LocalBackend::new(bench.path("vault"));
        Arc::new(Self { inner, left: AtomicI64::new(calls) })
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

impl Around for Dying {
    fn inner(&self) -> &dyn Backend {
        &self.inner
    }

    fn write(&self, kind: FileKind, id: &Id, bytes: &[u8]) -> io::Result<()> {
        self.live()?;
        self.inner.write(kind, id, bytes)
    }

    fn remove(&self, kind: FileKind, id: &Id) -> io::Result<()> {
        self.live()?;
        self.inner.remove(kind, id)
    }
}

/// Removes the locks that a killed process has left; here it is this one, which lives.
fn unlock(bench: &Bench) {
    let who = tympan_backup::Who::this_process();
    bench.vault.unlock(&who, tympan_backup::Unlock::All).unwrap();
}

#[test]
fn a_save_that_dies_at_any_call_harms_nothing() {
    let bench = Bench::new();
    plant(&bench.source());
    let first = bench.save();
    std::fs::write(bench.source().join("more"), noise(1 << 20, 2)).unwrap();
    let mut survived = 0;
    for calls in 0..100 {
        let dying = Dying::after(&bench, calls);
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
        assert_eq!(bench.vault.snapshots().unwrap().len(), 1, "after {calls} calls");
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
        bench.vault.forget(&passing.snapshot.id).unwrap();
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
