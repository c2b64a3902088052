//! The table of a source, which spares reading what did not change and must never change what is saved.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use tympan_backup::{
    BackendWrapper, BackupProgress, LocalBackend, ParentSelection, SaveOptions, SaveSummary,
    VaultBackend, VaultFileKind, VaultObjectId, VaultUser, find_path,
};

use crate::vault_bench::{Bench, cases, describe, now, plant, prune_vault, save_with};

/// Saves with the table in the folder `tables`.
fn save(bench: &Bench, progress: &BackupProgress) -> SaveSummary {
    let mut options = SaveOptions::new(VaultUser::this_process(), now());
    options.table_dir = Some(bench.path("tables"));
    save_with(&bench.vault, &[bench.source()], &options, progress).unwrap()
}

/// Saves without a table and without a snapshot before.
fn save_anew(bench: &Bench) -> SaveSummary {
    let mut options = SaveOptions::new(VaultUser::this_process(), now());
    options.parent = ParentSelection::Nothing;
    save_with(&bench.vault, &[bench.source()], &options, &BackupProgress::default()).unwrap()
}

/// Returns the tree of the source: the folders above it, which hold the vault and what other tests make, change.
fn tree(bench: &Bench, saved: &SaveSummary) -> VaultObjectId {
    let path = bench.source().display().to_string();
    let node = find_path(&bench.vault, &bench.index(), &saved.snapshot, &path).unwrap();
    node.subtree.unwrap()
}

fn table_file(bench: &Bench) -> PathBuf {
    let mut folder = bench.path("tables");
    loop {
        let path = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
        if path.is_file() {
            return path;
        }
        folder = path;
    }
}

/// Counts what is read of packs.
#[derive(Debug)]
struct Counting {
    inner: LocalBackend,
    reads: AtomicU64,
}

impl BackendWrapper for Counting {
    fn inner(&self) -> &dyn VaultBackend {
        &self.inner
    }

    fn read_range(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        start: u64,
        length: usize,
    ) -> io::Result<Vec<u8>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.read_range(kind, id, start, length)
    }
}

#[test]
fn what_did_not_change_is_not_read_from_the_vault() {
    let bench = Bench::new();
    plant(&bench.source());
    for number in 0..30 {
        fs::create_dir_all(bench.source().join(format!("more/{number}/deep"))).unwrap();
        fs::write(bench.source().join(format!("more/{number}/deep/file")), "x").unwrap();
    }
    let first = save(&bench, &BackupProgress::default());
    let backend = Arc::new(Counting {
        inner: LocalBackend::new(bench.path("vault")),
        reads: AtomicU64::new(0),
    });
    let vault = bench.open_through(backend.clone());
    let above = bench.source().components().count() as u64 - 1;
    let save_counted = |tables: Option<PathBuf>| {
        let before = backend.reads.load(Ordering::Relaxed);
        let progress = BackupProgress::default();
        let mut options = SaveOptions::new(VaultUser::this_process(), now());
        options.table_dir = tables;
        let saved = save_with(&vault, &[bench.source()], &options, &progress).unwrap();
        (backend.reads.load(Ordering::Relaxed) - before, saved, progress.read_items.into_inner())
    };
    let reads_of = |tables| {
        let (reads, saved, read_items) = save_counted(tables);
        assert_eq!(tree(&bench, &saved), tree(&bench, &first));
        assert_eq!((read_items, saved.written.pieces), (0, 0));
        // The folders on the way to the source, of which nobody keeps a table.
        assert!(saved.written.folders <= above, "{:?}", saved.written);
        reads
    };
    let tables = Some(bench.path("tables"));
    let with = reads_of(tables.clone());
    let without = reads_of(None);
    // The table is for the snapshot before that one, and is made anew.
    reads_of(tables.clone());
    assert!(with <= above && without > with + 30, "{with} with a table, {without} without");

    // One change costs the folders on its way.
    fs::write(bench.source().join("more/7/deep/file"), "other").unwrap();
    let (some, saved, _) = save_counted(tables);
    assert!(some <= above + 4, "{some} reads");
    assert_eq!(tree(&bench, &saved), tree(&bench, &save_anew(&bench)));
}

#[test]
fn a_table_that_is_wrong_is_not_used() {
    let bench = Bench::new();
    plant(&bench.source());
    save(&bench, &BackupProgress::default());
    let old = fs::read(table_file(&bench)).unwrap();
    fs::write(bench.source().join("a.txt"), "other text").unwrap();
    fs::write(bench.source().join("deep/new"), "new").unwrap();
    let second = save(&bench, &BackupProgress::default());
    let expected = tree(&bench, &save_anew(&bench));
    assert_eq!(tree(&bench, &second), expected);

    let right = fs::read(table_file(&bench)).unwrap();
    let mut flipped = right.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    let other = Bench::new();
    fs::create_dir_all(other.source()).unwrap();
    fs::write(other.source().join("a.txt"), "x").unwrap();
    save(&other, &BackupProgress::default());
    let foreign = fs::read(table_file(&other)).unwrap();
    for table in [old, flipped, foreign, Vec::new(), right[..40].to_vec()] {
        fs::write(table_file(&bench), table).unwrap();
        assert_eq!(tree(&bench, &save(&bench, &BackupProgress::default())), expected);
    }
}

/// The table says that nothing changed, and what it speaks of is in the vault no more.
#[test]
fn a_table_is_not_used_after_what_it_speaks_of_is_gone() {
    let bench = Bench::new();
    plant(&bench.source());
    let first = save(&bench, &BackupProgress::default());
    let kept = fs::read(table_file(&bench)).unwrap();
    let expected = tree(&bench, &first);
    bench.vault.remove_snapshot(&first.snapshot.id).unwrap();
    prune_vault(&bench.vault).unwrap();
    // The same tree again, saved elsewhere, and lost in part.
    let again = save_anew(&bench);
    assert_eq!(tree(&bench, &again), expected);
    fs::write(table_file(&bench), kept).unwrap();
    let saved = save(&bench, &BackupProgress::default());
    assert_eq!(tree(&bench, &saved), expected);
    let report = bench.check();
    assert!(report.faults.is_empty(), "{:?}", report.faults);
    let restored = bench.restore(&saved.snapshot, "out");
    assert!(restored.faults.is_empty(), "{:?}", restored.faults);
    assert_eq!(describe(&bench.source()), describe(&bench.path("out")));
}

/// What is done to the source between two saves.
#[derive(Clone, Debug)]
enum Edit {
    Write(usize),
    Remove(usize),
    Move(usize, usize),
    Folder(usize),
    Link(usize),
    Mode(usize, u32),
    Twin(usize, usize),
}

fn edits() -> impl Strategy<Value = Vec<Vec<Edit>>> {
    let place = 0..PLACES.len();
    let edit = prop_oneof![
        4 => place.clone().prop_map(Edit::Write),
        2 => place.clone().prop_map(Edit::Remove),
        2 => (place.clone(), place.clone()).prop_map(|(from, to)| Edit::Move(from, to)),
        2 => place.clone().prop_map(Edit::Folder),
        1 => place.clone().prop_map(Edit::Link),
        1 => (place.clone(), prop_oneof![Just(0o600), Just(0o644), Just(0o755)])
            .prop_map(|(place, mode)| Edit::Mode(place, mode)),
        1 => (place.clone(), place).prop_map(|(from, to)| Edit::Twin(from, to)),
    ];
    prop::collection::vec(prop::collection::vec(edit, 0..6), 1..5)
}

const PLACES: [&[u8]; 10] = [
    b"a",
    b"a/b",
    b"a/b/c",
    b"a/\xff\xfe",
    b"d",
    b"d/e",
    b"d/e/f",
    b"d/e/f/g",
    b"h \" \\ \n",
    b"i",
];

/// Carries out an edit; one that makes no sense where it stands does nothing.
fn carry_out(root: &Path, edit: &Edit, number: usize) {
    let at = |place: usize| root.join(std::ffi::OsString::from_vec(PLACES[place].to_vec()));
    let clear = |path: &Path| {
        drop(fs::remove_dir_all(path));
        drop(fs::remove_file(path));
    };
    match edit {
        // No two writes have the same length, so that each can be seen within one tick of the clock.
        Edit::Write(place) => drop(fs::write(at(*place), vec![b'x'; 1_000 + number])),
        Edit::Remove(place) => clear(&at(*place)),
        Edit::Move(from, to) => drop(fs::rename(at(*from), at(*to))),
        Edit::Folder(place) => {
            clear(&at(*place));
            drop(fs::create_dir_all(at(*place)));
        }
        Edit::Link(place) => {
            clear(&at(*place));
            drop(symlink(format!("to {number}"), at(*place)));
        }
        Edit::Mode(place, mode) => {
            if at(*place).is_file() && !at(*place).is_symlink() {
                fs::set_permissions(at(*place), fs::Permissions::from_mode(*mode)).unwrap();
            }
        }
        Edit::Twin(from, to) => drop(fs::hard_link(at(*from), at(*to))),
    }
}

/// Very many files in one folder: a change of a few is the tree that a full save makes. `TYMPAN_ENTRIES` sets how many.
#[test]
fn differences_of_a_large_folder_give_what_a_full_save_gives() {
    let entries: usize =
        std::env::var("TYMPAN_ENTRIES").ok().and_then(|count| count.parse().ok()).unwrap_or(3_000);
    let bench = Bench::new();
    let folder = bench.source().join("folder");
    fs::create_dir_all(&folder).unwrap();
    let file = |number: usize| folder.join(format!("file {number:06}"));
    (0..entries).for_each(|number| drop(fs::File::create(file(number)).unwrap()));
    save(&bench, &BackupProgress::default());
    fs::write(file(entries / 2), "no longer empty").unwrap();
    fs::remove_file(file(0)).unwrap();
    fs::rename(file(1), folder.join("aaa")).unwrap();
    fs::rename(file(2), bench.source().join("outside")).unwrap();
    let progress = BackupProgress::default();
    let saved = save(&bench, &progress);
    assert!(progress.read_items.load(Ordering::Relaxed) <= 3, "{progress:?}");
    assert_eq!(tree(&bench, &saved), tree(&bench, &save_anew(&bench)));
    let restored = bench.restore(&saved.snapshot, "out");
    assert_eq!(restored.faults, []);
    assert_eq!(fs::read_dir(bench.path("out/folder")).unwrap().count(), entries - 2);
    println!("{entries} entries in a folder: the same tree");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn differences_give_what_a_full_save_gives(rounds in edits()) {
        let bench = Bench::new();
        fs::create_dir_all(bench.source().join("a/b")).unwrap();
        fs::create_dir_all(bench.source().join("d/e/f")).unwrap();
        fs::write(bench.source().join("d/e/f/g"), "begin").unwrap();
        save(&bench, &BackupProgress::default());
        let mut number = 0;
        for round in rounds {
            for edit in round {
                number += 1;
                carry_out(&bench.source(), &edit, number);
            }
            let saved = save(&bench, &BackupProgress::default());
            prop_assert_eq!(tree(&bench, &saved), tree(&bench, &save_anew(&bench)));
        }
        let saved = save(&bench, &BackupProgress::default());
        bench.restore(&saved.snapshot, "out");
        prop_assert_eq!(describe(&bench.source()), describe(&bench.path("out")));
    }
}
