//! Passes over a directory: what is new, changed, moved or gone there becomes so here, and nothing else.

use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tympan_content::{NodePath, Property, Repository, Value};
use tympan_jobs::{JOB_MIGRATIONS, JobQueues};
use tympan_mounts::{
    AssetMount, DirectorySource, MOUNT_MIGRATIONS, MountLedger, MountPassOptions, MountPassReport,
    MountPurpose, MountSource, MountSourceError, SourceFile, SourceItem, escape_name,
    run_mount_pass,
};
use tympan_testkit::StateDatabase;

pub(crate) fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

/// A repository and a ledger, with the runtime that the ledger works on.
pub(crate) struct Desk {
    pub(crate) repository: Repository,
    pub(crate) queues: JobQueues,
    pub(crate) runtime: tokio::runtime::Runtime,
    _home: tempfile::TempDir,
}

impl Desk {
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let queues = runtime.block_on(async {
            let state = StateDatabase::open(&home.path().join("state.db")).await.unwrap();
            state.migrate_tables("jobs", JOB_MIGRATIONS).await.unwrap();
            state.migrate_tables("mounts", MOUNT_MIGRATIONS).await.unwrap();
            JobQueues::new(state.pool().clone())
        });
        Self { repository: Repository::in_memory().unwrap(), queues, runtime, _home: home }
    }

    pub(crate) fn ledger(&self) -> MountLedger {
        MountLedger::new(&self.queues, self.runtime.handle().clone())
    }

    pub(crate) fn try_pass(
        &self,
        mount: &AssetMount,
        order: MountPassOptions,
    ) -> Result<MountPassReport, String> {
        let made = run_mount_pass(&self.repository, &self.ledger(), mount, order, &mut |_, _| true);
        made.map_err(|error| {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            format!("{error}: {}", source.unwrap_or_default())
        })
    }

    pub(crate) fn pass(&self, mount: &AssetMount) -> MountPassReport {
        self.try_pass(mount, order()).unwrap()
    }

    pub(crate) fn exists(&self, place: &str) -> bool {
        self.repository.snapshot().unwrap().node(&path(place)).unwrap().is_some()
    }

    /// Returns the bytes of an asset's original.
    pub(crate) fn original(&self, place: &str) -> Vec<u8> {
        let place = path(&format!("{place}/jcr:content/renditions/original/jcr:content"));
        let node = self.repository.snapshot().unwrap().node(&place).unwrap().unwrap();
        let data = node.property("jcr:data").unwrap();
        let Some(Value::Binary(blob)) = data.first() else { panic!() };
        let mut bytes = Vec::new();
        let opened = self.repository.blobs().open(blob).unwrap().unwrap();
        opened.into_reader().read_to_end(&mut bytes).unwrap();
        bytes
    }

    pub(crate) fn edit(&self, work: impl FnOnce(&mut tympan_content::Session)) {
        let mut session = self.repository.session("ann").unwrap();
        work(&mut session);
        session.commit("edit", SystemTime::now()).unwrap();
    }
}

/// A pass an hour from now, when everything has long been written.
pub(crate) fn order() -> MountPassOptions {
    let now = SystemTime::now() + Duration::from_secs(3600);
    MountPassOptions { now, accepts_removals: false, is_dry_run: false }
}

pub(crate) fn mount_of(source: Arc<dyn MountSource>) -> AssetMount {
    AssetMount {
        name: "archive".to_owned(),
        target: path("/content/dam/archive"),
        source,
        purpose: MountPurpose::Synchronize,
        min_file_age: Duration::from_secs(5),
    }
}

fn mount(folder: &Path) -> AssetMount {
    mount_of(Arc::new(DirectorySource::new(folder)))
}

/// New, changed, moved, removed, unchanged.
pub(crate) fn counts(report: &MountPassReport) -> [u64; 5] {
    [report.added, report.changed, report.moved, report.removed, report.unchanged]
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    let file = folder.join(name);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, bytes).unwrap();
}

#[test]
fn new_changed_and_gone_files_follow() {
    let (desk, folder) = (Desk::new(), tempfile::tempdir().unwrap());
    let mount = mount(folder.path());
    write(folder.path(), "a.txt", b"one");
    write(folder.path(), "2024/spring/b.txt", b"two");
    for name in [".hidden", "c.txt.part", "Thumbs.db", "~$d.docx", ".git/config"] {
        write(folder.path(), name, b"x");
    }
    assert_eq!(counts(&desk.pass(&mount)), [2, 0, 0, 0, 0]);
    assert_eq!(desk.original("/content/dam/archive/2024/spring/b.txt"), b"two");
    // A second pass reads no file and writes nothing.
    let root = desk.repository.head_root().unwrap();
    let report = desk.pass(&mount);
    assert_eq!((counts(&report), report.bytes), ([0, 0, 0, 0, 2], 0));
    assert_eq!(desk.repository.head_root().unwrap(), root);
    // What people wrote stays when the file changes.
    let metadata = path("/content/dam/archive/a.txt/jcr:content/metadata");
    desk.edit(|session| session.set_property(&metadata, "dc:title", Property::text("A")).unwrap());
    write(folder.path(), "a.txt", b"one more");
    let report = desk.pass(&mount);
    assert_eq!((counts(&report), report.bytes), ([0, 1, 0, 0, 1], 8));
    assert_eq!(desk.original("/content/dam/archive/a.txt"), b"one more");
    let node = desk.repository.snapshot().unwrap().node(&metadata).unwrap().unwrap();
    assert_eq!(node.text("dc:title").as_deref(), Some("A"));
    // What goes there goes here, with the folders that it leaves empty.
    fs::remove_dir_all(folder.path().join("2024")).unwrap();
    assert_eq!(counts(&desk.pass(&mount)), [0, 0, 0, 1, 1]);
    assert!(!desk.exists("/content/dam/archive/2024") && desk.exists("/content/dam/archive/a.txt"));
}

#[test]
fn renamed_files_keep_their_assets_and_are_not_read() {
    let (desk, folder) = (Desk::new(), tempfile::tempdir().unwrap());
    let mount = mount(folder.path());
    write(folder.path(), "old/a.txt", b"one");
    write(folder.path(), "b.txt", b"two");
    desk.pass(&mount);
    let metadata = path("/content/dam/archive/old/a.txt/jcr:content/metadata");
    desk.edit(|session| session.set_property(&metadata, "dc:title", Property::text("A")).unwrap());
    fs::rename(folder.path().join("old"), folder.path().join("new")).unwrap();
    let report = desk.pass(&mount);
    assert_eq!((counts(&report), report.bytes), ([0, 0, 1, 0, 1], 0));
    assert!(!desk.exists("/content/dam/archive/old"));
    let metadata = path("/content/dam/archive/new/a.txt/jcr:content/metadata");
    let node = desk.repository.snapshot().unwrap().node(&metadata).unwrap().unwrap();
    assert_eq!(node.text("dc:title").as_deref(), Some("A"));
    assert_eq!(counts(&desk.pass(&mount)), [0, 0, 0, 0, 2]);
}

#[test]
fn files_that_were_just_written_wait() {
    let (desk, folder) = (Desk::new(), tempfile::tempdir().unwrap());
    let mount = mount(folder.path());
    write(folder.path(), "a.txt", b"half");
    let now = MountPassOptions { now: SystemTime::now(), ..order() };
    let report = desk.try_pass(&mount, now).unwrap();
    assert_eq!((counts(&report), report.settling), ([0; 5], 1));
    assert_eq!(counts(&desk.pass(&mount)), [1, 0, 0, 0, 0]);
    // One that is known and is being written anew is neither taken nor gone.
    write(folder.path(), "a.txt", b"half again");
    let report =
        desk.try_pass(&mount, MountPassOptions { now: SystemTime::now(), ..order() }).unwrap();
    assert_eq!((counts(&report), report.settling), ([0; 5], 1));
    assert_eq!(desk.original("/content/dam/archive/a.txt"), b"half");
}

#[test]
fn a_place_that_is_gone_or_suddenly_empty_removes_nothing() {
    let (desk, folder) = (Desk::new(), tempfile::tempdir().unwrap());
    let share = folder.path().join("share");
    let mount = mount(&share);
    for number in 0..30 {
        write(&share, &format!("{number}.txt"), b"x");
    }
    desk.pass(&mount);
    let root = desk.repository.head_root().unwrap();
    fs::rename(&share, folder.path().join("away")).unwrap();
    let error = desk.try_pass(&mount, order()).unwrap_err();
    assert!(error.contains("cannot synchronize the mount `archive`: cannot read"), "{error}");
    // The empty directory on which nothing is mounted any more.
    fs::create_dir(&share).unwrap();
    assert_eq!(desk.pass(&mount).held_back, 30);
    // More than half.
    write(&share, "0.txt", b"x");
    assert!(desk.pass(&mount).held_back >= 29);
    assert!((1..30).all(|number| desk.exists(&format!("/content/dam/archive/{number}.txt"))));
    // It comes back as it was.
    fs::remove_dir_all(&share).unwrap();
    fs::rename(folder.path().join("away"), &share).unwrap();
    let report = desk.pass(&mount);
    assert_eq!(report.unchanged, 30, "{report:?}");
    assert_eq!(report.removed + report.added, 0);
    // Less than half goes by itself, all of it when somebody says so.
    for number in 0..14 {
        fs::remove_file(share.join(format!("{number}.txt"))).unwrap();
    }
    assert_eq!(desk.pass(&mount).removed, 14);
    fs::remove_dir_all(&share).unwrap();
    fs::create_dir(&share).unwrap();
    assert_eq!(desk.pass(&mount).held_back, 16);
    let accepting = MountPassOptions { accepts_removals: true, ..order() };
    assert_eq!(desk.try_pass(&mount, accepting).unwrap().removed, 16);
    assert!(!desk.exists("/content/dam/archive/20.txt"));
    assert_ne!(desk.repository.head_root().unwrap(), root);
}

#[test]
fn what_people_put_there_or_replaced_stays() {
    let (desk, folder) = (Desk::new(), tempfile::tempdir().unwrap());
    let mount = mount(folder.path());
    write(folder.path(), "theirs.txt", b"theirs");
    write(folder.path(), "shared.txt", b"first");
    desk.pass(&mount);
    desk.edit(|session| {
        session.add_node(&path("/content/dam/archive/mine.txt"), "nt:unstructured").unwrap();
        let original =
            "/content/dam/archive/shared.txt/jcr:content/renditions/original/jcr:content";
        let blob = session.put_blob(&mut &b"edited here"[..]).unwrap();
        session.set_property(&path(original), "jcr:data", Value::Binary(blob).into()).unwrap();
        session.remove_node(&path("/content/dam/archive/theirs.txt")).unwrap();
    });
    write(folder.path(), "mine.txt", b"not mine");
    write(folder.path(), "shared.txt", b"second");
    let report = desk.pass(&mount);
    // A removed asset comes back: what is there is shown.
    assert_eq!((counts(&report), report.skipped), ([1, 0, 0, 0, 0], 2), "{report:?}");
    assert_eq!(desk.original("/content/dam/archive/shared.txt"), b"edited here");
    assert_eq!(desk.original("/content/dam/archive/theirs.txt"), b"theirs");
    // Nor is what is left alone read again and again.
    assert_eq!(desk.pass(&mount).bytes, 0);
    // Gone there, it is no mount's here, and stays.
    fs::remove_file(folder.path().join("shared.txt")).unwrap();
    let report = desk.pass(&mount);
    assert_eq!((report.removed, report.skipped), (0, 2), "{report:?}");
    assert!(desk.exists("/content/dam/archive/shared.txt"));
}

#[test]
fn hostile_names_and_links_stay_in_the_folder() {
    let (desk, folder) = (Desk::new(), tempfile::tempdir().unwrap());
    let share = folder.path().join("share");
    let mount = mount(&share);
    fs::create_dir(&share).unwrap();
    let names: [&[u8]; 7] = [
        b"jcr:content",
        b"a\nb\x01.txt",
        b"invalid\xff\xfe.txt",
        b" blank ",
        b"100%25",
        b"[x]|*",
        "é".as_bytes(),
    ];
    let long = "ü".repeat(127);
    let all: Vec<&[u8]> = names.into_iter().chain([long.as_bytes()]).collect();
    for name in &all {
        fs::write(share.join(std::ffi::OsStr::from_bytes(name)), name).unwrap();
    }
    write(folder.path(), "outside.txt", b"secret");
    std::os::unix::fs::symlink("..", share.join("up")).unwrap();
    std::os::unix::fs::symlink(".", share.join("loop")).unwrap();
    std::os::unix::fs::symlink("../outside.txt", share.join("out.txt")).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(share.join("pipe")).status().unwrap();
    assert!(pipe.success());
    let report = desk.pass(&mount);
    assert_eq!((counts(&report), report.skipped), ([8, 0, 0, 0, 0], 0), "{report:?}");
    let snapshot = desk.repository.snapshot().unwrap();
    let target = snapshot.node(&mount.target).unwrap().unwrap();
    let children = target.listed_children().unwrap();
    assert_eq!(children.len(), 8);
    for child in children {
        let file = child.child("jcr:content").unwrap().unwrap().text("dam:mountFile").unwrap();
        let bytes = desk.original(child.path().as_str());
        assert_eq!(escape_name(&bytes), file, "the name that the file holds is read back");
    }
    assert_eq!(desk.pass(&mount).unchanged, 8);
}

#[test]
fn a_folder_that_becomes_a_link_is_not_followed() {
    let (desk, folder) = (Desk::new(), tempfile::tempdir().unwrap());
    let share = folder.path().join("share");
    write(&share, "sub/a.txt", b"inside");
    write(folder.path(), "away/a.txt", b"secret");
    let source = DirectorySource::new(&share);
    let mut entries = Vec::new();
    source
        .list_files(&mut |found| {
            if let SourceItem::File(entry) = found {
                entries.push(entry);
            }
            Ok(())
        })
        .unwrap();
    fs::rename(share.join("sub"), share.join("other")).unwrap();
    std::os::unix::fs::symlink("../away", share.join("sub")).unwrap();
    assert!(matches!(source.open_file(&entries[0]), Err(MountSourceError::Read { .. })));
    let above = SourceFile { path: "%2E%2E/away/a.txt".to_owned(), ..entries[0].clone() };
    assert!(matches!(source.open_file(&above), Err(MountSourceError::Read { .. })));
    assert_eq!(counts(&desk.pass(&mount_of(Arc::new(source)))), [1, 0, 0, 0, 0]);
}

#[test]
fn a_file_that_changes_while_it_is_read_is_left_for_later() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a.txt", b"0123456789");
    let source = DirectorySource::new(folder.path());
    let mut entries = Vec::new();
    let mut keep = |found| {
        if let SourceItem::File(entry) = found {
            entries.push(entry);
        }
        Ok(())
    };
    source.list_files(&mut keep).unwrap();
    let mut opened = source.open_file(&entries[0]).unwrap();
    let mut half = [0; 5];
    opened.read_exact(&mut half).unwrap();
    std::io::Write::write_all(
        &mut fs::OpenOptions::new().append(true).open(folder.path().join("a.txt")).unwrap(),
        b"abc",
    )
    .unwrap();
    let error = opened.read_to_end(&mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("changed while it was read"));
}

#[test]
fn a_pass_that_is_stopped_or_forgot_goes_on_where_it_was() {
    let (desk, folder) = (Desk::new(), tempfile::tempdir().unwrap());
    let mount = mount(folder.path());
    for number in 0..200 {
        write(folder.path(), &format!("{number}.txt"), format!("{number}").as_bytes());
    }
    let mut stop_after_one = |done: u64, _: u64| done == 0;
    let ledger = desk.ledger();
    let first =
        run_mount_pass(&desk.repository, &ledger, &mount, order(), &mut stop_after_one).unwrap();
    assert_eq!(counts(&first), [64, 0, 0, 0, 0]);
    assert_eq!(counts(&desk.pass(&mount)), [136, 0, 0, 0, 64]);
    // A crash between content and ledger: the assets say what the files were.
    let forgetful = Desk::new();
    let again =
        run_mount_pass(&desk.repository, &forgetful.ledger(), &mount, order(), &mut |_, _| true)
            .unwrap();
    assert_eq!((counts(&again), again.bytes), ([0, 0, 0, 0, 200], 0));
}

#[test]
fn an_import_makes_assets_of_its_own_once() {
    let (desk, folder) = (Desk::new(), tempfile::tempdir().unwrap());
    let import = AssetMount { purpose: MountPurpose::Import, ..mount(folder.path()) };
    write(folder.path(), "a.txt", b"one");
    write(folder.path(), "b/c.txt", b"two");
    let dry = desk.try_pass(&import, MountPassOptions { is_dry_run: true, ..order() }).unwrap();
    assert_eq!(dry.added, 2);
    assert!(!desk.exists("/content/dam/archive"));
    assert_eq!(counts(&desk.pass(&import)), [2, 0, 0, 0, 0]);
    let content = path("/content/dam/archive/a.txt/jcr:content");
    let node = desk.repository.snapshot().unwrap().node(&content).unwrap().unwrap();
    assert!(node.property("dam:mount").is_none());
    // What people make of them is theirs, and what is gone there stays here.
    desk.edit(|session| session.remove_node(&path("/content/dam/archive/b")).unwrap());
    fs::remove_file(folder.path().join("a.txt")).unwrap();
    write(folder.path(), "d.txt", b"three");
    let report = desk.pass(&import);
    assert_eq!(report.added, 2, "the removed one is imported again: {report:?}");
    assert!(desk.exists("/content/dam/archive/a.txt"));
    // Where the ledger is behind, equal bytes are not put twice and others do not replace anything.
    let forgetful = Desk::new();
    write(folder.path(), "a.txt", b"other");
    let again =
        run_mount_pass(&desk.repository, &forgetful.ledger(), &import, order(), &mut |_, _| true)
            .unwrap();
    assert_eq!((again.added, again.unchanged, again.skipped), (0, 2, 1), "{again:?}");
    assert_eq!(desk.original("/content/dam/archive/a.txt"), b"one");
}

/// A source that tells what a test says.
#[derive(Debug)]
struct Told(Vec<SourceFile>);

impl MountSource for Told {
    fn list_files(
        &self,
        found: &mut dyn FnMut(SourceItem) -> Result<(), MountSourceError>,
    ) -> Result<(), MountSourceError> {
        self.0.iter().try_for_each(|entry| found(SourceItem::File(entry.clone())))
    }

    fn open_file(&self, entry: &SourceFile) -> Result<Box<dyn Read + Send>, MountSourceError> {
        match &*entry.source_handle {
            "endless" => Ok(Box::new(std::io::repeat(b'x'))),
            handle => Ok(Box::new(std::io::Cursor::new(handle.as_bytes().to_vec()))),
        }
    }
}

fn told(path: &str, bytes: u64, handle: &str) -> SourceFile {
    SourceFile {
        path: path.to_owned(),
        fingerprint: format!("{bytes}-1"),
        identity: None,
        byte_count: Some(bytes),
        modified_at: None,
        source_handle: handle.to_owned(),
    }
}

#[test]
fn sources_that_lie_about_lengths_give_nothing() {
    let desk = Desk::new();
    let mount = mount_of(Arc::new(Told(vec![
        told("short", 10, "123"),
        told("long", 2, "123"),
        told("endless", 5, "endless"),
        told("huge", u64::MAX, "endless"),
        told("fine", 3, "123"),
        told("fine", 3, "123"),
        told("fine/below", 3, "123"),
    ])));
    let report = desk.pass(&mount);
    assert_eq!((report.added, report.skipped), (1, 5), "{report:?}");
    assert!(desk.exists("/content/dam/archive/fine"));
    assert!(
        !desk.exists("/content/dam/archive/short") && !desk.exists("/content/dam/archive/long")
    );
}

#[test]
fn work_follows_what_changed() {
    // As many files as still take a moment here; the same holds for any number: nothing is opened and nothing committed.
    const FILES: usize = 3000;
    let desk = Desk::new();
    let entry = |number: usize| told(&format!("{}/{number}", number / 100), 1, "x");
    let mut entries: Vec<SourceFile> = (0..FILES).map(entry).collect();
    let first = desk.pass(&mount_of(Arc::new(Told(entries.clone()))));
    assert_eq!(first.added, FILES as u64);
    let root = desk.repository.head_root().unwrap();
    desk.pass(&mount_of(Arc::new(Told(entries.clone()))));
    assert_eq!(desk.repository.head_root().unwrap(), root);
    entries[7].fingerprint = "other".to_owned();
    let report = desk.pass(&mount_of(Arc::new(Told(entries))));
    assert_eq!((report.unchanged, report.bytes), (FILES as u64, 1));
}
