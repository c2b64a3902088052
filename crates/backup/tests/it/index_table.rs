//! The table of an index, which spares parsing index files and must never tell of what is not there.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tympan_backup::{
    IndexedVault, LocalBackend, Vault, VaultFileKind, VaultIndex, VaultStats, compute_vault_stats,
};

use crate::vault_bench::{Bench, PASSWORD, save, some_file};

/// Opens the vault with a table in the folder `tables`.
fn open(bench: &Bench) -> Arc<Vault> {
    let backend = Arc::new(LocalBackend::new(bench.path("vault")));
    let mut vault = Vault::open(backend, PASSWORD.as_bytes()).unwrap();
    vault.enable_index_table(&bench.path("tables")).unwrap();
    Arc::new(vault)
}

fn table(bench: &Bench) -> PathBuf {
    bench.path("tables").join(bench.vault.id()).join("index.table")
}

fn write_files(bench: &Bench, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let folder = bench.source().join(format!("{}", number / 100));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("{number}")), format!("file {number}")).unwrap();
    }
}

fn stats_of(vault: &Vault) -> VaultStats {
    compute_vault_stats(
        IndexedVault::new(vault, &VaultIndex::load(vault).unwrap()),
        &vault.read_snapshots().unwrap(),
    )
    .unwrap()
}

#[test]
fn what_a_table_tells_is_what_the_index_files_say() {
    let bench = Bench::new();
    write_files(&bench, 0..1_500);
    bench.save();
    let index = some_file(&bench.vault, &bench, VaultFileKind::Index);
    let expected = stats_of(&bench.vault);
    assert!(expected.pieces >= 1_500 && expected.folders >= 15, "{expected:?}");
    let vault = open(&bench);
    assert_eq!(stats_of(&vault), expected);
    assert!(table(&bench).is_file(), "no table was written");

    // What the table tells is not read again: nobody notices that it cannot be read.
    let bytes = fs::read(&index).unwrap();
    fs::remove_file(&index).unwrap();
    fs::write(&index, b"damaged").unwrap();
    assert_eq!(stats_of(&vault), expected);
    assert_eq!(VaultIndex::load(&bench.vault).unwrap().damaged_files().len(), 1);
    fs::remove_file(&index).unwrap();
    fs::write(&index, &bytes).unwrap();

    // What is saved on top is in files of its own, and the next save finds what the table tells.
    write_files(&bench, 1_500..1_520);
    let saved = save(&vault, &[bench.source()]).unwrap();
    assert_eq!(saved.written.pieces, 20);
    let more = stats_of(&bench.vault);
    assert_eq!((more.pieces, stats_of(&vault)), (expected.pieces + 20, more));

    // A damaged table, or one of another vault, is none.
    let sealed = fs::read(table(&bench)).unwrap();
    let other = Bench::new();
    fs::create_dir_all(table(&other).parent().unwrap()).unwrap();
    fs::write(table(&other), &sealed).unwrap();
    assert_eq!(stats_of(&open(&other)), stats_of(&other.vault));
    for (at, byte) in [(0, 1), (sealed.len() / 2, 1), (sealed.len() - 1, 128)] {
        let mut damaged = sealed.clone();
        damaged[at] ^= byte;
        fs::write(table(&bench), damaged).unwrap();
        assert_eq!(stats_of(&open(&bench)), stats_of(&bench.vault), "byte {at}");
    }
}

/// What was killed while it wrote a table leaves a file as long as the vault's index is.
#[test]
fn what_killed_runs_left_beside_the_table_goes() {
    let bench = Bench::new();
    write_files(&bench, 0..1_200);
    bench.save();
    let folder = table(&bench).parent().unwrap().to_owned();
    fs::create_dir_all(&folder).unwrap();
    let put = |name: &str, hours: u64| {
        let file = fs::File::create(folder.join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_hours(hours)).unwrap();
    };
    put(".index.table-old", 30);
    // One that somebody is writing, and one that is nobody's.
    put(".index.table-new", 20);
    put("other", 30);
    stats_of(&open(&bench));
    let there = |name: &str| folder.join(name).exists();
    assert!(table(&bench).is_file());
    assert!(there(".index.table-new") && there("other") && !there(".index.table-old"));
    let mut names: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [".index.table-new", "index.table", "other"]);
    // Also where the table is read, and none is written.
    put(".index.table-old", 30);
    let before = fs::metadata(table(&bench)).unwrap().ino();
    stats_of(&open(&bench));
    assert_eq!(fs::metadata(table(&bench)).unwrap().ino(), before);
    assert!(there(".index.table-new") && !there(".index.table-old"));
}

/// A prune takes packs away that the table tells of, and the index files that listed them.
#[test]
fn after_a_prune_the_table_before_is_not_used() {
    let bench = Bench::new();
    write_files(&bench, 0..1_200);
    let first = bench.save();
    let vault = open(&bench);
    stats_of(&vault);
    let before = fs::read(table(&bench)).unwrap();
    fs::remove_dir_all(bench.source()).unwrap();
    write_files(&bench, 600..700);
    bench.save();
    bench.vault.remove_snapshot(&first.snapshot.id).unwrap();
    bench.prune().unwrap();
    fs::write(table(&bench), before).unwrap();
    assert_eq!(stats_of(&vault), stats_of(&bench.vault));
    // What is gone is stored again, and not taken for there.
    write_files(&bench, 0..1_200);
    let saved = save(&vault, &[bench.source()]).unwrap();
    assert!(saved.written.pieces >= 1_100, "{:?}", saved.written);
    assert_eq!(bench.check().faults, Vec::<String>::new());
}
