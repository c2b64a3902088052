//! Folders that are saved and restored.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tympan_backup::{
    BackupProgress, ClientFilter, ExcludeRules, ExistingFilePolicy, ExtendedAttribute, FolderMark,
    IndexedVault, LocalBackend, ParentSelection, RestoreOptions, SaveOptions, SnapshotNodeKind,
    Vault, VaultFileKind, VaultSnapshot, VaultUser, WriterTuning, diff_trees, find_path,
    restore_snapshot, verify_snapshot, walk_tree,
};

use crate::full_disk::Disk;
use crate::prune::Meddling;
use crate::vault_bench::{Bench, PASSWORD, describe, noise, now, plant, save, save_with};

#[test]
fn everything_comes_back() {
    let bench = Bench::new();
    plant(&bench.source());
    let saved = bench.save();
    assert!(saved.faults.is_empty(), "{:?}", saved.faults);
    let restored = bench.restore(&saved.snapshot, "out");
    assert!(restored.faults.is_empty(), "{:?}", restored.faults);
    assert_eq!(describe(&bench.path("out")), describe(&bench.source()));
    let sparse = fs::metadata(bench.path("out/sparse")).unwrap();
    assert!(sparse.blocks() * 512 < 1 << 20, "{} blocks", sparse.blocks());
}

#[test]
fn what_did_not_change_is_neither_read_nor_written() {
    let bench = Bench::new();
    plant(&bench.source());
    let first = bench.save();
    let progress = BackupProgress::default();
    let options = SaveOptions::new(VaultUser::this_process(), now());
    let second = save_with(&bench.vault, &[bench.source()], &options, &progress).unwrap();
    assert_eq!(progress.read_items.load(Ordering::Relaxed), 0);
    // The folder above all tests' folders may have changed.
    assert!(second.written.pieces == 0 && second.written.folders <= 2, "{:?}", second.written);
    let tree = |snapshot: &VaultSnapshot| {
        let path = bench.source().display().to_string();
        find_path(&bench.vault, &bench.index(), snapshot, &path).unwrap().subtree
    };
    assert_eq!(tree(&second.snapshot), tree(&first.snapshot));
    assert_eq!(second.snapshot.parent, Some(first.snapshot.id));

    fs::write(bench.source().join("deep/er/new"), "new").unwrap();
    let progress = BackupProgress::default();
    let third = save_with(&bench.vault, &[bench.source()], &options, &progress).unwrap();
    assert_eq!(progress.read_items.load(Ordering::Relaxed), 1);
    assert_eq!(third.written.pieces, 1);
    // Without a parent all is read, and the same comes of it.
    let options = SaveOptions { parent: ParentSelection::Nothing, ..options };
    let full = save_with(&bench.vault, &[bench.source()], &options, &progress).unwrap();
    assert_eq!(tree(&full.snapshot), tree(&third.snapshot));
    assert_eq!(full.written.pieces, 0);
}

/// Limits count what is read, and nothing else.
#[test]
fn what_is_read_of_folders_is_counted() {
    let bench = Bench::new();
    fs::create_dir(bench.source()).unwrap();
    fs::write(bench.source().join("short"), "ten bytes.").unwrap();
    fs::write(bench.source().join("empty"), "").unwrap();
    let long = (9 << 20) + 7;
    fs::write(bench.source().join("long"), noise(long, 3)).unwrap();
    let options = SaveOptions::new(VaultUser::this_process(), now());
    let read = || {
        let progress = BackupProgress::default();
        save_with(&bench.vault, &[bench.source()], &options, &progress).unwrap();
        (progress.read_bytes.into_inner(), progress.reads.into_inner())
    };
    let (bytes, reads) = read();
    assert_eq!(bytes, 10 + long as u64);
    assert!((3..=40).contains(&reads), "{reads}");
    assert_eq!(read(), (0, 0));
}

#[test]
fn a_file_replaced_with_equal_length_and_time_is_noticed() {
    let bench = Bench::new();
    fs::create_dir(bench.source()).unwrap();
    let file = bench.source().join("file");
    fs::write(&file, "one").unwrap();
    let time = fs::metadata(&file).unwrap().modified().unwrap();
    bench.save();
    fs::write(bench.source().join("other"), "two").unwrap();
    fs::rename(bench.source().join("other"), &file).unwrap();
    fs::File::open(&file).unwrap().set_modified(time).unwrap();
    let saved = bench.save();
    bench.restore(&saved.snapshot, "out");
    assert_eq!(fs::read_to_string(bench.path("out/file")).unwrap(), "two");
}

#[test]
fn excludes_and_marked_caches_stay_out() {
    let bench = Bench::new();
    let source = bench.source();
    for folder in ["keep", "cache", "node_modules"] {
        fs::create_dir_all(source.join(folder)).unwrap();
        fs::write(source.join(folder).join("file.txt"), folder).unwrap();
    }
    let mark = "Signature: 8a477f597d28d172789f06886806bc55\n";
    fs::write(source.join("cache/CACHEDIR.TAG"), mark).unwrap();
    fs::write(source.join("keep/x.tmp"), "").unwrap();
    let mut excludes = ExcludeRules::new(vec!["*.tmp".into(), "node_modules".into()]).unwrap();
    excludes.marks.push(FolderMark::cache());
    let options = SaveOptions { excludes, ..SaveOptions::new(VaultUser::this_process(), now()) };
    let saved = save_with(&bench.vault, &[source], &options, &BackupProgress::default()).unwrap();
    let mut paths = Vec::new();
    let index = bench.index();
    let node =
        find_path(&bench.vault, &index, &saved.snapshot, &bench.source().display().to_string());
    walk_tree(
        IndexedVault::new(&bench.vault, &index),
        &node.unwrap().subtree.unwrap(),
        Path::new(""),
        &mut |path, _| {
            paths.push(path.display().to_string());
            Ok(())
        },
    )
    .unwrap();
    assert_eq!(paths, ["/cache", "/cache/CACHEDIR.TAG", "/keep", "/keep/file.txt"]);
    assert_eq!(saved.snapshot.excludes, ["*.tmp", "node_modules"]);
}

#[test]
fn a_restore_replaces_only_what_differs_and_nothing_outside() {
    let bench = Bench::new();
    plant(&bench.source());
    let saved = bench.save();
    bench.restore(&saved.snapshot, "out");
    let out = bench.path("out");
    // What is in the way: a changed file, a link in place of a folder, a file in place of a folder.
    fs::write(out.join("a.txt"), "spoiled").unwrap();
    fs::remove_dir_all(out.join("deep")).unwrap();
    fs::create_dir(bench.path("outside")).unwrap();
    std::os::unix::fs::symlink(bench.path("outside"), out.join("deep")).unwrap();
    fs::remove_dir(out.join("empty")).unwrap();
    fs::write(out.join("empty"), "a file").unwrap();
    let untouched = fs::metadata(out.join("sparse")).unwrap().ino();
    fs::set_permissions(out.join("sparse"), fs::Permissions::from_mode(0o777)).unwrap();

    let index = bench.index();
    let path = bench.source().display().to_string();
    let node = find_path(&bench.vault, &index, &saved.snapshot, &path).unwrap();
    let progress = BackupProgress::default();
    let refuse = RestoreOptions::default();
    assert!(
        restore_snapshot(IndexedVault::new(&bench.vault, &index), &node, &out, &refuse, &progress)
            .is_err()
    );
    let replace =
        RestoreOptions { existing: ExistingFilePolicy::Replace, ..RestoreOptions::default() };
    let restored =
        restore_snapshot(IndexedVault::new(&bench.vault, &index), &node, &out, &replace, &progress)
            .unwrap();
    assert!(restored.faults.is_empty(), "{:?}", restored.faults);
    assert_eq!(describe(&out), describe(&bench.source()));
    assert_eq!(fs::metadata(out.join("sparse")).unwrap().ino(), untouched);
    assert_eq!(fs::read_dir(bench.path("outside")).unwrap().count(), 0);
}

#[test]
fn several_paths_and_single_files_are_one_snapshot() {
    let bench = Bench::new();
    plant(&bench.source());
    let paths = [bench.source().join("deep"), bench.source().join("a.txt")];
    let saved = save(&bench.vault, &paths).unwrap();
    let index = bench.index();
    let above = bench.source().display().to_string();
    let node = find_path(&bench.vault, &index, &saved.snapshot, &above).unwrap();
    let tree = bench.vault.read_tree(&index, &node.subtree.unwrap()).unwrap();
    let names: Vec<String> =
        tree.nodes.iter().map(tympan_backup::SnapshotNode::text_name).collect();
    assert_eq!(names, ["a.txt", "deep"]);
    let file = find_path(&bench.vault, &index, &saved.snapshot, &format!("{above}/a.txt")).unwrap();
    assert_eq!(file.kind, SnapshotNodeKind::File);
    let mut bytes = Vec::new();
    tympan_backup::write_file_content(IndexedVault::new(&bench.vault, &index), &file, &mut bytes)
        .unwrap();
    assert_eq!(bytes, b"some text");
    assert!(save(&bench.vault, &[bench.path("absent")]).is_err());
}

#[test]
fn differences_are_reported_path_by_path() {
    let bench = Bench::new();
    plant(&bench.source());
    let old = bench.save().snapshot;
    let source = bench.source();
    fs::write(source.join("a.txt"), "changed text").unwrap();
    fs::remove_file(source.join("nothing")).unwrap();
    fs::create_dir(source.join("young")).unwrap();
    fs::write(source.join("young/one"), "1").unwrap();
    let new = bench.save().snapshot;
    let mut found = Vec::new();
    diff_trees(
        IndexedVault::new(&bench.vault, &bench.index()),
        (&old.tree, &new.tree),
        "",
        &mut found,
    )
    .unwrap();
    let above = source.display().to_string();
    let lines: Vec<String> = found
        .iter()
        .filter_map(|one| Some(format!("{}{}", one.change.sign(), one.path.strip_prefix(&above)?)))
        .collect();
    assert_eq!(lines, ["U/", "M/a.txt", "-/nothing", "+/young/", "+/young/one"]);
}

/// A file that the system lists and does not let anybody read.
const UNREADABLE: &str = "/proc/self/mem";

#[test]
fn a_snapshot_that_lacks_something_says_so() {
    let bench = Bench::new();
    plant(&bench.source());
    let paths = [bench.source(), PathBuf::from(UNREADABLE)];
    let whole = bench.save();
    assert!(!whole.snapshot.is_incomplete());
    let first = save(&bench.vault, &paths).unwrap();
    assert_eq!(first.faults.len(), 1, "{:?}", first.faults);
    assert!(first.snapshot.is_incomplete());
    let stored = bench.vault.find_snapshot(&first.snapshot.id.short(), &ClientFilter::All).unwrap();
    assert_eq!(stored.tags(), ["incomplete"]);
    // The next one looks at each file anyway: what did not change is not read again, what is missing is tried again.
    let progress = BackupProgress::default();
    let options = SaveOptions::new(VaultUser::this_process(), now());
    let second = save_with(&bench.vault, &paths, &options, &progress).unwrap();
    assert_eq!(progress.read_items.load(Ordering::Relaxed), 1);
    assert_eq!(second.faults, first.faults);
}

/// What cannot be told about a file must not cost its bytes.
#[test]
fn bytes_are_restored_where_the_rest_is_refused() {
    let bench = Bench::new();
    plant(&bench.source());
    let saved = bench.save();
    let path = bench.source().join("deep/er/est/b.bin").display().to_string();
    let mut node = find_path(&bench.vault, &bench.index(), &saved.snapshot, &path).unwrap();
    node.mode = 0o640;
    node.mtime.seconds = 86_400;
    // Attributes have a namespace, which no system knows by this name.
    let attribute = ExtendedAttribute { name: "nonsense.note".to_owned(), value: b"x".to_vec() };
    node.extended_attributes.push(attribute);
    let restored = bench.restore_node(&node, "out");
    let out = bench.path("out/b.bin");
    assert_eq!(fs::read(&out).unwrap(), fs::read(&path).unwrap());
    assert_eq!(restored.faults.len(), 0, "an attribute that is not offered is no fault");

    // Nor does any take one of this length.
    node.extended_attributes[0].name = format!("user.{}", "x".repeat(300));
    let restored = bench.restore_node(&node, "refused");
    assert_eq!(restored.faults.len(), 1, "{:?}", restored.faults);
    let out = bench.path("refused/b.bin");
    assert_eq!(fs::read(&out).unwrap(), fs::read(&path).unwrap());
    let facts = fs::metadata(&out).unwrap();
    assert_eq!((facts.mode() & 0o777, facts.mtime()), (0o640, 86_400), "the rest is told");
    let left = fs::read_dir(bench.path("refused")).unwrap().count();
    assert_eq!(left, 1, "no temporary file stays");
}

/// A file that changes twice within a tick of the clock looks alike both times. What was as young as that when it was saved is
/// read again by the next save, with and without a table, and once only.
#[test]
fn what_was_saved_in_the_tick_of_its_change_is_read_again() {
    for has_table in [false, true] {
        let bench = Bench::new();
        fs::create_dir_all(bench.source().join("old")).unwrap();
        fs::write(bench.source().join("old/file"), "settled").unwrap();
        fs::create_dir(bench.source().join("young")).unwrap();
        let young = bench.source().join("young/file");
        fs::write(&young, "first").unwrap();
        let changed = |path: &Path| fs::metadata(path).unwrap().ctime();
        // The files of `old` may be as young as that: what counts is when the save says that it began.
        let just_now = jiff::Timestamp::from_second(changed(&young)).unwrap();
        let save_at = |seconds: i64| {
            let now = just_now + jiff::SignedDuration::from_secs(seconds);
            let mut options = SaveOptions::new(VaultUser::this_process(), now);
            options.table_dir = has_table.then(|| bench.path("tables"));
            let progress = BackupProgress::default();
            let saved = save_with(&bench.vault, &[bench.source()], &options, &progress).unwrap();
            (saved, progress.read_items.into_inner())
        };
        assert_eq!(save_at(0).1, 2, "all is new");
        assert_eq!(save_at(60).1, 2, "both were too young");
        assert_eq!(save_at(120).1, 0, "both are old enough now");
        fs::write(&young, "third").unwrap();
        assert_eq!(save_at(180).1, 1, "one has changed");
        assert_eq!(save_at(240).1, 0);
    }
}

/// Names of one file on two file systems, and names of more of them than a link may have: the bytes are there under each.
#[test]
fn names_that_cannot_be_links_are_files_of_their_own() {
    let bench = Bench::new();
    let bytes = noise(300_000, 5);
    for folder in ["one", "other"] {
        fs::create_dir_all(bench.source().join(folder)).unwrap();
    }
    fs::write(bench.source().join("one/file"), &bytes).unwrap();
    fs::hard_link(bench.source().join("one/file"), bench.source().join("other/file")).unwrap();
    let saved = bench.save();
    let index = bench.index();
    let path = bench.source().display().to_string();
    let node = find_path(&bench.vault, &index, &saved.snapshot, &path).unwrap();
    let out = bench.path("out");
    let Some(disk) = Disk::mount(&out.join("other"), "4m") else { return };
    let options =
        RestoreOptions { existing: ExistingFilePolicy::Replace, ..RestoreOptions::default() };
    let progress = BackupProgress::default();
    let restored =
        restore_snapshot(IndexedVault::new(&bench.vault, &index), &node, &out, &options, &progress)
            .unwrap();
    assert!(restored.faults.is_empty(), "{:?}", restored.faults);
    assert!(fs::read(out.join("one/file")).unwrap() == bytes);
    assert!(fs::read(out.join("other/file")).unwrap() == bytes);
    drop(disk);
}

/// Far deeper than the stacks of usual threads go, with two folders on each level: those of all who work on it hold it.
#[test]
fn very_deep_folders_are_saved_and_restored() {
    let bench = Bench::new();
    let mut at = bench.source();
    let room = 2_400;
    fs::create_dir_all(&at).unwrap();
    for _ in 0..room / 2 - 10 {
        at.push("a");
        fs::create_dir(&at).unwrap();
        fs::create_dir(at.with_file_name("b")).unwrap();
    }
    fs::write(at.join("f"), "deep").unwrap();
    let saved = bench.save();
    assert!(saved.faults.is_empty(), "{:?}", saved.faults.first());
    let index = bench.index();
    let tree = saved.snapshot.tree;
    let mut found = 0;
    walk_tree(IndexedVault::new(&bench.vault, &index), &tree, Path::new("/"), &mut |_, _| {
        found += 1;
        Ok(())
    })
    .unwrap();
    assert!(found > room - 30, "{found}");
    assert!(
        verify_snapshot(
            IndexedVault::new(&bench.vault, &index),
            &saved.snapshot,
            &BackupProgress::default()
        )
        .unwrap()
        .is_empty()
    );
    fs::remove_file(at.join("f")).unwrap();
    let second = bench.save();
    let mut changes = Vec::new();
    let trees = (&tree, &second.snapshot.tree);
    diff_trees(IndexedVault::new(&bench.vault, &bench.index()), trees, "", &mut changes).unwrap();
    assert!(changes.iter().any(|one| one.path.ends_with("/a/f")), "{}", changes.len());
    let restored = bench.restore(&saved.snapshot, "out");
    assert!(restored.faults.is_empty(), "{:?}", restored.faults.first());
    assert!(bench.check().faults.is_empty());
}

/// Names that are no text are found where they are.
#[test]
fn a_source_that_did_not_change_differs_nowhere() {
    let bench = Bench::new();
    plant(&bench.source());
    let saved = bench.save();
    let faults = verify_snapshot(
        IndexedVault::new(&bench.vault, &bench.index()),
        &saved.snapshot,
        &BackupProgress::default(),
    );
    assert_eq!(faults.unwrap(), []);
}

/// A log that somebody writes while it is read: what it held when it was opened is saved, and the rest by the next save.
#[test]
fn a_file_that_grows_meanwhile_does_not_hold_a_save_up() {
    let bench = Bench::new();
    fs::create_dir_all(bench.source()).unwrap();
    let log = bench.source().join("log");
    let before = 16 << 20;
    fs::write(&log, noise(before, 3)).unwrap();
    let grown = log.clone();
    let grow = move || {
        let mut file = fs::OpenOptions::new().append(true).open(grown).unwrap();
        file.write_all(&noise(1 << 20, 4)).unwrap();
    };
    let (inner, act) = (LocalBackend::new(bench.path("vault")), Box::new(grow) as Box<_>);
    let act = parking_lot::Mutex::new(Some(act));
    let meddling = Meddling { inner, at: VaultFileKind::Pack, hides: None, act };
    let mut vault = Vault::open(Arc::new(meddling), PASSWORD.as_bytes()).unwrap();
    // Packs of 1 MiB, so that the first is written long before the last byte is read.
    vault.set_tuning(WriterTuning {
        queue_bytes: 1 << 20,
        connections: Some(1),
        ..WriterTuning::default()
    });
    let saved = save(&Arc::new(vault), &[bench.source()]).unwrap();
    assert!(saved.faults.is_empty(), "{:?}", saved.faults);
    let length = |snapshot: &VaultSnapshot| {
        let path = log.display().to_string();
        find_path(&bench.vault, &bench.index(), snapshot, &path).unwrap().size
    };
    assert_eq!(length(&saved.snapshot), before as u64);
    assert_eq!(length(&bench.save().snapshot), fs::metadata(&log).unwrap().len());
}
