//! Pruning in two phases: what nobody needs is marked, and goes when its grace is over.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tympan_backup::{
    BackendWrapper, BackupProgress, Error, LocalBackend, PruneOptions, SaveSummary, UnlockScope,
    VaultBackend, VaultFileKind, VaultLock, VaultLockMode, VaultObjectId, VaultUser,
    prune_snapshots,
};

use crate::vault_bench::{
    Bench, describe, noise, now, plant, prune_vault, prune_with, save, some_file,
};

const GRACE: Duration = Duration::from_hours(23);

/// Makes a vault with two snapshots of which the first alone holds a large file, and forgets that one.
fn bench_with_waste() -> (Bench, SaveSummary) {
    let bench = Bench::new();
    plant(&bench.source());
    let first = bench.save();
    fs::remove_file(bench.source().join("deep/er/est/b.bin")).unwrap();
    let second = bench.save();
    bench.vault.remove_snapshot(&first.snapshot.id).unwrap();
    (bench, second)
}

fn expect_whole(bench: &Bench, saved: &SaveSummary, out: &str) {
    let report = bench.check();
    assert!(report.faults.is_empty(), "{:?}", report.faults);
    bench.restic_ok(&["check", "--read-data"]);
    bench.restore(&saved.snapshot, out);
    assert_eq!(describe(&bench.path(out)), describe(&bench.source()));
}

#[test]
fn packs_are_marked_first_and_go_when_their_grace_is_over() {
    let (bench, second) = bench_with_waste();
    let begin = now();
    let marked = prune_with(&bench.vault, GRACE, begin).unwrap();
    assert!(marked.marked_packs > 0 && marked.marked_bytes > 2 << 20, "{marked:?}");
    assert_eq!((marked.removed_packs, marked.freed_bytes), (0, 0));
    let report = bench.check();
    assert_eq!((report.marked_packs, report.unindexed_packs), (marked.marked_packs, 0));
    expect_whole(&bench, &second, "marked");

    // Not a moment before, however often; and a prune with nothing to do writes nothing.
    let index = some_file(&bench.vault, &bench, VaultFileKind::Index);
    let early = begin.checked_add(GRACE).unwrap() - Duration::from_secs(1);
    for _ in 0..2 {
        let waiting = prune_with(&bench.vault, GRACE, early).unwrap();
        assert_eq!((waiting.removed_packs, waiting.marked_packs), (0, marked.marked_packs));
    }
    assert_eq!(some_file(&bench.vault, &bench, VaultFileKind::Index), index);

    let over = begin.checked_add(GRACE).unwrap();
    let removed = prune_with(&bench.vault, GRACE, over).unwrap();
    assert_eq!((removed.removed_packs, removed.marked_packs), (marked.marked_packs, 0));
    assert!(removed.freed_bytes >= marked.marked_bytes, "{removed:?}");
    assert_eq!(bench.check().marked_packs, 0);
    expect_whole(&bench, &second, "removed");
}

/// A writer without locks had seen the packs before they were marked, and finishes afterwards.
#[test]
fn a_marked_pack_that_a_snapshot_needs_after_all_stays() {
    let bench = Bench::new();
    plant(&bench.source());
    let first = bench.save();
    fs::remove_file(bench.source().join("deep/er/est/b.bin")).unwrap();
    bench.save();
    let file = bench.path("vault/snapshots").join(first.snapshot.id.to_string());
    let forgotten = fs::read(&file).unwrap();
    bench.vault.remove_snapshot(&first.snapshot.id).unwrap();
    let begin = now();
    let marked = prune_with(&bench.vault, GRACE, begin).unwrap();
    assert!(marked.marked_packs > 0);
    fs::write(&file, forgotten).unwrap();
    let over = begin.checked_add(GRACE * 2).unwrap();
    let pruned = prune_with(&bench.vault, GRACE, over).unwrap();
    assert!(pruned.recovered_packs > 0 && pruned.removed_packs < marked.marked_packs, "{pruned:?}");
    let report = bench.check();
    assert!(report.faults.is_empty(), "{:?}", report.faults);
    bench.restic_ok(&["check", "--read-data"]);
    let restored = bench.restore(&first.snapshot, "out");
    assert!(restored.faults.is_empty(), "{:?}", restored.faults);
    assert_eq!(fs::read(bench.path("out/deep/er/est/b.bin")).unwrap(), noise(3 << 20, 7));
}

/// Snapshots and packs go together: where a prune would refuse, no snapshot goes either; and whoever forgets what is damaged
/// can prune.
#[test]
fn a_damaged_vault_keeps_its_snapshots() {
    let bench = Bench::new();
    fs::create_dir(bench.source()).unwrap();
    let save = |seed: u64| {
        fs::write(bench.source().join(format!("file {seed}")), noise(300_000, seed)).unwrap();
        bench.save().snapshot.id
    };
    let first = save(1);
    let mut packs: Vec<_> = files_of(&bench);
    let (second, third) = (save(2), save(3));
    packs.sort_by_key(|pack| fs::metadata(pack).unwrap().len());
    let prune = |forget: Vec<VaultObjectId>| {
        let who = VaultUser::this_process();
        let lock = VaultLock::acquire(&bench.vault, &who, VaultLockMode::Exclusive, Duration::ZERO)
            .unwrap();
        let options = PruneOptions {
            snapshots_to_remove: forget,
            grace_period: Duration::ZERO,
            now: now(),
            trusted_now: now(),
        };
        prune_snapshots(&bench.vault, &lock, &options, &BackupProgress::default())
    };
    // All three need the first file.
    let damaged = packs.pop().unwrap();
    fs::remove_file(damaged).unwrap();
    let refused = prune(vec![first, second]);
    assert!(matches!(&refused, Err(Error::DamagedVault { .. })), "{refused:?}");
    assert!(refused.unwrap_err().to_string().contains("tympan backup repair"));
    assert_eq!(bench.vault.read_snapshots().unwrap().len(), 3);
    fs::remove_file(bench.source().join("file 1")).unwrap();
    let whole = bench.save().snapshot.id;
    prune(vec![first, second, third]).unwrap();
    let left = bench.vault.read_snapshots().unwrap();
    assert_eq!(left.iter().map(|one| one.id).collect::<Vec<_>>(), [whole]);
    assert!(bench.check().faults.is_empty());
}

/// Returns the packs.
fn files_of(bench: &Bench) -> Vec<std::path::PathBuf> {
    let folders = fs::read_dir(bench.path("vault/data")).unwrap();
    folders
        .flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap())
        .map(|file| file.unwrap().path())
        .collect()
}

/// What a prune marks is written again by a save that needs it: nobody builds on a marked pack.
#[test]
fn a_save_takes_nothing_from_marked_packs() {
    let (bench, _) = bench_with_waste();
    let begin = now();
    prune_with(&bench.vault, GRACE, begin).unwrap();
    fs::write(bench.source().join("deep/er/est/b.bin"), noise(3 << 20, 7)).unwrap();
    let saved = bench.save();
    assert!(saved.written.plain_bytes > 3 << 20, "{:?}", saved.written);
    let over = begin.checked_add(GRACE).unwrap();
    assert!(prune_with(&bench.vault, GRACE, over).unwrap().removed_packs > 0);
    expect_whole(&bench, &saved, "out");
}

#[test]
fn what_a_run_left_that_did_not_end_is_marked_too() {
    let bench = Bench::new();
    plant(&bench.source());
    let saved = bench.save();
    let id = VaultObjectId::of(b"left").to_string();
    let left = bench.path("vault/data").join(&id[..2]).join(&id);
    fs::write(&left, b"left").unwrap();
    let begin = now();
    let marked = prune_with(&bench.vault, GRACE, begin).unwrap();
    assert_eq!((marked.marked_packs, marked.removed_packs), (1, 0));
    assert!(left.exists());
    // A clock that was set back neither removes it at once nor keeps it forever.
    let before = begin - GRACE * 2;
    assert_eq!(prune_with(&bench.vault, GRACE, before).unwrap().removed_packs, 0);
    let over = begin - GRACE;
    assert_eq!(prune_with(&bench.vault, GRACE, over).unwrap().removed_packs, 1);
    assert!(!left.exists());
    expect_whole(&bench, &saved, "out");
}

#[test]
fn restic_goes_on_with_marked_packs() {
    let (bench, second) = bench_with_waste();
    prune_with(&bench.vault, GRACE, now()).unwrap();
    if bench.restic(&["prune"]).is_none() {
        return;
    }
    bench.restic_ok(&["prune"]);
    let report = bench.check();
    assert_eq!((report.marked_packs, report.unindexed_packs), (0, 0));
    prune_vault(&bench.vault).unwrap();
    expect_whole(&bench, &second, "out");
}

/// A backend through which somebody else acts at the first call of a kind.
pub(crate) struct Meddling {
    pub(crate) inner: LocalBackend,
    pub(crate) at: VaultFileKind,
    /// A file that is listed and not found.
    pub(crate) hides: Option<VaultObjectId>,
    pub(crate) act: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for Meddling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meddling").finish_non_exhaustive()
    }
}

impl BackendWrapper for Meddling {
    fn inner(&self) -> &dyn VaultBackend {
        &self.inner
    }

    fn read(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<Vec<u8>> {
        if self.hides == Some(*id) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.inner.read(kind, id)
    }

    fn write(&self, kind: VaultFileKind, id: &VaultObjectId, bytes: &[u8]) -> io::Result<()> {
        self.inner.write(kind, id, bytes)?;
        let act = if kind == self.at { self.act.lock().take() } else { None };
        if let Some(act) = act {
            act();
        }
        Ok(())
    }
}

#[test]
fn a_prune_whose_lock_is_removed_removes_nothing() {
    let (bench, second) = bench_with_waste();
    let packs = || bench.check().packs + bench.check().unindexed_packs + bench.check().marked_packs;
    let before = packs();
    let place = bench.path("vault");
    let inner = LocalBackend::new(&place);
    let vault = bench.vault.clone();
    let act = move || {
        vault.unlock(&VaultUser::this_process(), UnlockScope::All).unwrap();
    };
    let act: Box<dyn FnOnce() + Send> = Box::new(act);
    let meddling =
        Meddling { inner, at: VaultFileKind::Index, hides: None, act: Mutex::new(Some(act)) };
    let pruned = prune_vault(&bench.open_through(Arc::new(meddling)));
    assert!(matches!(pruned, Err(Error::LockLost)), "{pruned:?}");
    assert!(packs() >= before);
    expect_whole(&bench, &second, "out");
}

/// A writer without locks lists its packs while a prune writes its index: that index stays.
#[test]
fn an_index_that_somebody_writes_meanwhile_stays() {
    let (bench, _) = bench_with_waste();
    fs::create_dir(bench.path("other")).unwrap();
    fs::write(bench.path("other/file"), noise(1 << 20, 77)).unwrap();
    // A copy of the vault, to which the other writes; what it writes there appears here at the wrong moment.
    let (here, there) = (bench.path("vault"), bench.path("vault2"));
    let copied = std::process::Command::new("cp").arg("-a").args([&here, &there]).status().unwrap();
    assert!(copied.success());
    let other = bench.open_through(Arc::new(LocalBackend::new(&there)));
    let saved = save(&other, &[bench.path("other")]).unwrap();
    let act: Box<dyn FnOnce() + Send> = Box::new(move || {
        for folder in ["data", "index", "snapshots"] {
            let from = there.join(folder);
            let copied =
                std::process::Command::new("cp").arg("-an").arg(from).arg(&here).status().unwrap();
            assert!(copied.success());
        }
    });
    let inner = LocalBackend::new(bench.path("vault"));
    let meddling =
        Meddling { inner, at: VaultFileKind::Index, hides: None, act: Mutex::new(Some(act)) };
    prune_with(&bench.open_through(Arc::new(meddling)), GRACE, now()).unwrap();
    let report = bench.check();
    assert!(report.faults.is_empty(), "{:?}", report.faults);
    let node = tympan_backup::find_path(
        &bench.vault,
        &bench.index(),
        &saved.snapshot,
        &bench.path("other").display().to_string(),
    );
    bench.restore_node(&node.unwrap(), "out");
    assert_eq!(describe(&bench.path("out")), describe(&bench.path("other")));
}

#[test]
fn a_damaged_vault_is_reported_as_damaged() {
    let bench = Bench::new();
    plant(&bench.source());
    bench.save();
    fs::remove_file(some_file(&bench.vault, &bench, VaultFileKind::Pack)).unwrap();
    let refused = bench.prune().unwrap_err();
    let is_damage = matches!(refused, Error::DamagedVault { .. } | Error::UnreadableBlob { .. });
    assert!(is_damage, "{refused:?}");
}

/// A place that lists a snapshot and does not find it fails in some way: what the snapshot needs stays.
#[test]
fn a_snapshot_that_is_listed_and_not_found_ends_a_prune() {
    let (bench, second) = bench_with_waste();
    let before = bench.check().packs;
    let inner = LocalBackend::new(bench.path("vault"));
    let hides = Some(second.snapshot.id);
    let failing = Meddling { inner, at: VaultFileKind::Index, hides, act: Mutex::new(None) };
    let pruned = prune_vault(&bench.open_through(Arc::new(failing)));
    assert!(matches!(pruned, Err(Error::DamagedVault { .. })), "{pruned:?}");
    assert_eq!(bench.check().packs, before);
    expect_whole(&bench, &second, "out");
}
