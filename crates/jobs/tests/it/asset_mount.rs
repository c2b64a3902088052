//! Folders of other systems, kept as assets.

use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use tympan_content::{NodePath, Property};
use tympan_jobs::asset::{
    Assets, Directory, Mount, MountService, Processed, Synchronized, needs_processing, synchronize,
};

use crate::asset_ingest::{assets, path, read, upload};
use crate::asset_support::{photo, png};

fn mount(folder: &std::path::Path) -> Mount {
    Mount {
        name: "archive".to_owned(),
        target: path("/content/dam/archive"),
        source: Box::new(Directory::new(folder)),
    }
}

fn pass(assets: &Assets, mount: &Mount) -> Synchronized {
    synchronize(assets.repository(), mount, SystemTime::UNIX_EPOCH, &mut |_, _| true).unwrap()
}

fn counts(done: &Synchronized) -> [usize; 4] {
    [done.added, done.changed, done.removed, done.unchanged]
}

fn exists(assets: &Assets, place: &str) -> bool {
    assets.repository().snapshot().unwrap().node(&path(place)).unwrap().is_some()
}

#[test]
fn a_directory_becomes_assets_and_stays_so() {
    let (assets, folder) = (assets(), tempfile::tempdir().unwrap());
    let mount = mount(folder.path());
    std::fs::create_dir_all(folder.path().join("2024/spring")).unwrap();
    std::fs::write(folder.path().join("a.png"), png(photo(20, 10))).unwrap();
    std::fs::write(folder.path().join("2024/spring/b.png"), png(photo(30, 10))).unwrap();
    std::fs::write(folder.path().join(".hidden"), b"x").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).unwrap();
    assert_eq!(counts(&pass(&assets, &mount)), [2, 0, 0, 0]);
    let deep = path("/content/dam/archive/2024/spring/b.png");
    assert!(matches!(
        assets.process(&deep, SystemTime::UNIX_EPOCH).unwrap(),
        Processed::Done { renditions: 4, .. }
    ));
    // A second pass reads no file and writes nothing.
    let root = assets.repository().head().unwrap();
    assert_eq!(counts(&pass(&assets, &mount)), [0, 0, 0, 2]);
    assert_eq!(assets.repository().head().unwrap(), root);
    // What people wrote stays when the file changes, and the new original is due.
    let metadata = path("/content/dam/archive/2024/spring/b.png/jcr:content/metadata");
    let mut session = assets.repository().session("ann").unwrap();
    session.set_property(&metadata, "dc:title", Property::text("Spring")).unwrap();
    session.commit("describe", SystemTime::UNIX_EPOCH).unwrap();
    std::fs::write(folder.path().join("2024/spring/b.png"), png(photo(31, 10))).unwrap();
    assert_eq!(counts(&pass(&assets, &mount)), [0, 1, 0, 1]);
    let node = assets.repository().snapshot().unwrap().node(&deep).unwrap().unwrap();
    assert!(needs_processing(&node).unwrap());
    assert_eq!(read(&assets, &metadata).text("dc:title"), Some("Spring"));
    // What goes there goes here; what is not of the mount stays.
    let own = upload(&assets, "/content/dam/archive/own.png", "", b"x");
    std::fs::remove_file(folder.path().join("a.png")).unwrap();
    assert_eq!(counts(&pass(&assets, &mount)), [0, 0, 1, 1]);
    assert!(!exists(&assets, "/content/dam/archive/a.png") && exists(&assets, own.as_str()));
}

#[test]
fn a_place_that_is_gone_removes_nothing() {
    let (assets, folder) = (assets(), tempfile::tempdir().unwrap());
    let mount = mount(&folder.path().join("share"));
    std::fs::create_dir(folder.path().join("share")).unwrap();
    std::fs::write(folder.path().join("share/a.txt"), b"x").unwrap();
    pass(&assets, &mount);
    std::fs::remove_dir_all(folder.path().join("share")).unwrap();
    let error = synchronize(assets.repository(), &mount, SystemTime::UNIX_EPOCH, &mut |_, _| true)
        .unwrap_err();
    assert!(error.to_string().contains("`archive` cannot be listed"));
    assert!(exists(&assets, "/content/dam/archive/a.txt"));
}

#[test]
fn names_that_are_taken_are_left_alone() {
    let (assets, folder) = (assets(), tempfile::tempdir().unwrap());
    let mount = mount(folder.path());
    pass(&assets, &mount);
    let mut session = assets.repository().session("ann").unwrap();
    session.add_node(&path("/content/dam/archive"), "sling:Folder").unwrap();
    session.commit("folder", SystemTime::UNIX_EPOCH).unwrap();
    let own: NodePath = upload(&assets, "/content/dam/archive/a.txt", "text/plain", b"mine");
    let before = read(&assets, &own);
    std::fs::write(folder.path().join("a.txt"), b"theirs").unwrap();
    let done = pass(&assets, &mount);
    assert_eq!(done.skipped.len(), 1);
    assert_eq!(read(&assets, &own), before);
}

#[test]
fn a_pass_that_is_ended_goes_on_where_it_was() {
    let (assets, folder) = (assets(), tempfile::tempdir().unwrap());
    let mount = mount(folder.path());
    for number in 0..100 {
        std::fs::write(folder.path().join(format!("{number}.txt")), format!("{number}")).unwrap();
    }
    let seen = Mutex::new(Vec::new());
    let mut stop_after_one = |done: usize, total: usize| {
        seen.lock().unwrap().push((done, total));
        done == 0
    };
    let first =
        synchronize(assets.repository(), &mount, SystemTime::UNIX_EPOCH, &mut stop_after_one)
            .unwrap();
    assert_eq!(counts(&first), [32, 0, 0, 0]);
    assert_eq!(*seen.lock().unwrap(), [(0, 100), (32, 100)]);
    assert_eq!(counts(&pass(&assets, &mount)), [68, 0, 0, 32]);
}

#[test]
fn the_service_runs_when_it_is_told_and_not_without_mounts() {
    let (assets, folder) = (assets(), tempfile::tempdir().unwrap());
    let hour = Duration::from_secs(3600);
    let none = MountService::start(assets.repository().clone(), Vec::new(), hour).unwrap();
    assert!(none.is_none());
    let mounts = vec![mount(folder.path())];
    let service = MountService::start(assets.repository().clone(), mounts, hour).unwrap().unwrap();
    service.wait_for_passes(1);
    std::fs::write(folder.path().join("a.txt"), b"x").unwrap();
    service.pause();
    service.run_now();
    service.wait_for_passes(2);
    let status = service.status().remove(0);
    assert_eq!(status.last.unwrap().unwrap().added, 1);
    assert!(status.last_run.is_some() && status.progress.is_none());
}
