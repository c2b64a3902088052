//! Damaged vaults that are repaired: what is whole stays, what is lost is told, and nobody finds anything wrong afterwards.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tympan_backup::{
    BackupProgress, CheckDepth, ClientFilter, Error, LocalBackend, RepairReport, SaveSummary,
    VaultFileKind, VaultIndex, VaultLock, VaultLockMode, VaultUser, repair_vault,
};

use crate::vault_bench::{Bench, describe, noise, now, plant, some_file};

fn repaired(bench: &Bench, depth: CheckDepth) -> Result<RepairReport, Error> {
    let vault = bench.open_through(Arc::new(LocalBackend::new(bench.path("vault"))));
    let lock = VaultLock::acquire(
        &vault,
        &VaultUser::this_process(),
        VaultLockMode::Exclusive,
        Duration::ZERO,
    )?;
    repair_vault(&vault, &lock, (depth, now()), &BackupProgress::default())
}

/// Two snapshots; the second has a file of its own in packs of its own.
fn two_snapshots() -> (Bench, SaveSummary, SaveSummary) {
    let bench = Bench::new();
    plant(&bench.source());
    let first = bench.save();
    fs::write(bench.source().join("deep/later"), noise(200_000, 77)).unwrap();
    let second = bench.save();
    (bench, first, second)
}

fn files(bench: &Bench, folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![bench.path("vault").join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found
}

fn damage(file: &PathBuf, change: impl FnOnce(&mut Vec<u8>)) {
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    let mut bytes = fs::read(file).unwrap();
    change(&mut bytes);
    fs::write(file, bytes).unwrap();
}

/// Tympan and restic find nothing wrong, and a prune goes through.
fn expect_sound(bench: &Bench) {
    let report = bench.check();
    assert!(report.faults.is_empty(), "{:?}", report.faults);
    bench.restic_ok(&["check", "--read-data"]);
    bench.prune().unwrap();
    assert!(bench.check().faults.is_empty());
}

#[test]
fn a_vault_in_which_nothing_is_wrong_stays_as_it_is() {
    let (bench, ..) = two_snapshots();
    let all = || {
        let mut all: Vec<PathBuf> = files(&bench, "");
        all.sort();
        all
    };
    let before = all();
    for depth in [CheckDepth::Structure, CheckDepth::Data] {
        let done = repaired(&bench, depth).unwrap();
        assert!(done.losses.is_empty() && done.repaired_snapshots.is_empty(), "{done:?}");
        assert_eq!(all(), before);
    }
}

/// The packs tell what is in them.
/// Of what only a damaged index file lists, nothing is known; all else comes back, and a save is whole.
#[test]
fn a_damaged_index_file_costs_what_it_lists() {
    let bench = Bench::new();
    fs::create_dir(bench.source()).unwrap();
    let plant = |seed: u64| {
        fs::write(bench.source().join(format!("file {seed}")), noise(300_000, seed)).unwrap();
    };
    plant(1);
    bench.save();
    let old = files(&bench, "index");
    plant(2);
    let second = bench.save();
    let new: Vec<_> = files(&bench, "index").into_iter().filter(|one| !old.contains(one)).collect();
    damage(&old[0], |bytes| bytes[50] ^= 1);
    let index = VaultIndex::load(&bench.vault).unwrap();
    assert_eq!((index.damaged_files().len(), new.len()), (1, 1));
    assert!(
        index.damaged_files()[0].message.contains("tympan backup repair"),
        "{:?}",
        index.damaged_files()
    );
    let restored = bench.restore(&second.snapshot, "out");
    assert!(restored.is_vault_damaged);
    let faults: Vec<_> = restored.faults.iter().map(|fault| fault.path.clone()).collect();
    assert_eq!(faults, [bench.path("out/file 1")]);
    assert_eq!(fs::read(bench.path("out/file 2")).unwrap(), noise(300_000, 2));
    // What is not known is saved once more.
    let saved = bench.save();
    assert!(saved.faults.is_empty(), "{:?}", saved.faults);
    let restored = bench.restore(&saved.snapshot, "whole");
    assert!(restored.faults.is_empty(), "{:?}", restored.faults);
    assert_eq!(describe(&bench.path("whole")), describe(&bench.source()));
    assert!(bench.prune().is_err(), "nothing is removed that the index may list");
}

#[test]
fn an_index_is_made_anew_from_the_packs() {
    let (bench, first, second) = two_snapshots();
    let index = files(&bench, "index");
    damage(&index[0], |bytes| bytes[40] ^= 1);
    fs::remove_file(&index[1]).unwrap();
    assert!(!bench.check().faults.is_empty());
    let done = repaired(&bench, CheckDepth::Structure).unwrap();
    assert!(done.losses.is_empty() && done.repaired_snapshots.is_empty(), "{done:?}");
    assert_eq!((done.damaged_index_files, done.added_packs > 2), (1, true), "{done:?}");
    expect_sound(&bench);
    assert!(bench.restore(&first.snapshot, "one").faults.is_empty());
    assert!(bench.restore(&second.snapshot, "two").faults.is_empty());
    assert_eq!(describe(&bench.path("two")), describe(&bench.source()));
}

/// One byte of a pack: what is whole in it is taken out, and only the snapshots that need the rest are written anew.
#[test]
fn what_is_whole_in_a_damaged_pack_is_saved() {
    for from_end in [false, true] {
        let (bench, first, second) = two_snapshots();
        let before: Vec<String> = describe(&bench.source());
        let packs = files(&bench, "data");
        let biggest = packs.iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
        // In a piece, or in the header, without which the index still tells what is where.
        damage(biggest, |bytes| {
            let at = if from_end { bytes.len() - 10 } else { bytes.len() / 2 };
            bytes[at] ^= 1;
        });
        let done = repaired(&bench, CheckDepth::Data).unwrap();
        assert_eq!(done.damaged_packs, 1, "{done:?}");
        assert!(done.salvaged_blobs > 0, "{done:?}");
        assert_eq!(done.repaired_snapshots.len(), if from_end { 0 } else { 2 }, "{done:?}");
        expect_sound(&bench);
        let latest = bench.vault.find_snapshot("latest", &ClientFilter::All).unwrap();
        assert_eq!(latest.is_incomplete(), !from_end);
        assert_eq!(latest.time, second.snapshot.time);
        let restored = bench.restore(&latest, "out");
        assert!(restored.faults.is_empty(), "{:?}", restored.faults);
        let out = describe(&bench.path("out"));
        let lost: Vec<&String> = before.iter().filter(|line| !out.contains(line)).collect();
        assert_eq!(lost.is_empty(), from_end, "{lost:?}");
        assert!(lost.len() < before.len() / 2, "{lost:?}");
        assert_eq!(out.iter().filter(|line| !before.contains(line)).count(), 0);
        // The next save has the file, and the vault holds it again.
        let third = bench.save();
        assert!(third.faults.is_empty() && third.snapshot.id != first.snapshot.id);
        assert!(bench.restore(&third.snapshot, "third").faults.is_empty());
        assert_eq!(describe(&bench.path("third")), before);
    }
}

/// A pack that is gone costs the snapshots that need it what is in it, and no others anything.
#[test]
fn what_a_missing_pack_held_is_reported_and_other_snapshots_stay() {
    let (bench, first, second) = two_snapshots();
    let packs = files(&bench, "data");
    let later = packs.iter().find(|path| {
        let length = fs::metadata(path).unwrap().len();
        (200_000..250_000).contains(&length)
    });
    fs::remove_file(later.unwrap()).unwrap();
    let done = repaired(&bench, CheckDepth::Structure).unwrap();
    let mended: Vec<_> = done.repaired_snapshots.iter().map(|(old, _)| *old).collect();
    assert_eq!((done.missing_packs, mended), (1, vec![second.snapshot.id]), "{done:?}");
    expect_sound(&bench);
    let restored = bench.restore(&first.snapshot, "one");
    assert!(restored.faults.is_empty(), "{:?}", restored.faults);
    let latest = bench.vault.find_snapshot("latest", &ClientFilter::All).unwrap();
    assert!(latest.tags().iter().any(|tag| tag == "repaired"), "{latest:?}");
    assert!(bench.restore(&latest, "two").faults.is_empty());
    assert!(!bench.path("two/deep/later").exists() && bench.path("two/deep/twin").exists());
}

/// A snapshot that nothing can be read of is told; forgetting it leaves a sound vault.
#[test]
fn a_damaged_snapshot_is_reported_and_can_be_forgotten() {
    let (bench, ..) = two_snapshots();
    let file = some_file(&bench.vault, &bench, VaultFileKind::Snapshot);
    damage(&file, |bytes| bytes.truncate(20));
    let done = repaired(&bench, CheckDepth::Structure).unwrap();
    assert_eq!(done.losses.len(), 1, "{done:?}");
    let name = file.file_name().unwrap().to_str().unwrap();
    bench.vault.remove_snapshot(&name.parse().unwrap()).unwrap();
    expect_sound(&bench);
}
