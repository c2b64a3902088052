//! Mounts by configuration: schedules, passes on the queues, pausing, and nothing at all without a mount.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use tympan_content::{Property, Value};
use tympan_jobs::{JobFilter, OsgiConfigs};
use tympan_mounts::{ImportRequest, MountConfig, MountLocation, MountSettings};

use crate::pass::path;
use crate::source::Office;

fn settings(folder: &str, mounts: &[&str]) -> MountSettings {
    let mount = |name: &&str| MountConfig::new(name, folder, "/content/dam/archive").unwrap();
    MountSettings {
        locations: vec![MountLocation { url: folder.to_owned(), ..MountLocation::default() }],
        mounts: mounts.iter().map(mount).collect(),
        ..MountSettings::default()
    }
}

/// Writes a file that has long been written.
fn old_file(folder: &std::path::Path, name: &str) {
    let file = folder.join(name);
    fs::write(&file, name).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    fs::File::options().write(true).open(file).unwrap().set_modified(long_ago).unwrap();
}

#[test]
fn without_mounts_nothing_is_done() {
    let office = Office::with(settings("/srv", &[]));
    office.apply();
    let counters = office.mounts.counters();
    let block_on = |future| office.desk.runtime.block_on(future);
    assert_eq!(counters.passes.load(Ordering::Relaxed), 0);
    assert!(block_on(office.desk.queues.schedules().list()).unwrap().is_empty());
    let filter = JobFilter::default();
    let jobs = office.desk.queues.list_jobs(&filter, 10);
    assert!(office.desk.runtime.block_on(jobs).unwrap().is_empty());
    let asked = office.mounts.start_pass_now("archive", SystemTime::now());
    assert!(!office.desk.runtime.block_on(asked).unwrap());
}

#[test]
fn a_mount_has_a_schedule_and_begins_at_once() {
    let folder = tempfile::tempdir().unwrap();
    old_file(folder.path(), "a.txt");
    let office = Office::with(settings(folder.path().to_str().unwrap(), &["archive"]));
    office.apply();
    while office.mounts.counters().changes.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    office.wait_for_rest();
    let schedules = office.desk.runtime.block_on(office.desk.queues.schedules().list()).unwrap();
    assert_eq!((&*schedules[0].name, &*schedules[0].rule_text), ("mount archive", "every 300s"));
    assert!(office.desk.exists("/content/dam/archive/a.txt"));
    // The same configuration again begins nothing.
    office.apply();
    office.wait_for_rest();
    assert_eq!(office.mounts.counters().passes.load(Ordering::Relaxed), 1);
    // Nothing changed: the pass that is asked for commits nothing.
    let root = office.desk.repository.head_root().unwrap();
    assert_eq!(office.pass().unwrap().unchanged, 1);
    assert_eq!(office.desk.repository.head_root().unwrap(), root);
    let status = office.desk.runtime.block_on(office.mounts.list_statuses()).unwrap().remove(0);
    assert_eq!((status.file_count, status.is_paused), (1, false));
    assert!(status.next_run.is_some() && status.last_pass.unwrap().failure.is_none());
}

#[test]
fn a_paused_mount_waits_until_it_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let office = Office::with(settings(folder.path().to_str().unwrap(), &["archive"]));
    office.apply();
    office.wait_for_rest();
    assert!(office.desk.runtime.block_on(office.mounts.pause_mount("archive")).unwrap());
    assert!(!office.desk.runtime.block_on(office.mounts.pause_mount("other")).unwrap());
    // Another start, or another configuration, does not let it go on.
    office.apply();
    let status = office.desk.runtime.block_on(office.mounts.list_statuses()).unwrap();
    assert!(status[0].is_paused);
    let passes = office.mounts.counters().passes.load(Ordering::Relaxed);
    old_file(folder.path(), "a.txt");
    let resumed = office.mounts.resume_mount("archive", SystemTime::now());
    assert!(office.desk.runtime.block_on(resumed).unwrap());
    while office.mounts.counters().changes.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    office.wait_for_rest();
    assert_eq!(office.mounts.counters().passes.load(Ordering::Relaxed), passes + 1);
}

#[test]
fn content_configures_mounts_and_their_period() {
    let folder = tempfile::tempdir().unwrap();
    let office = Office::with(settings(folder.path().to_str().unwrap(), &[]));
    let put = |pid: &str, properties: &[(&str, Property)]| {
        office.desk.edit(|session| {
            for name in ["/apps", "/apps/config"] {
                if session.node(&path(name)).unwrap().is_none() {
                    session.add_node(&path(name), "sling:Folder").unwrap();
                }
            }
            let node = path(&format!("/apps/config/{pid}"));
            session.add_node(&node, "sling:OsgiConfig").unwrap();
            for (name, property) in properties {
                session.set_property(&node, name, property.clone()).unwrap();
            }
        });
    };
    let apply = || {
        let snapshot = office.desk.repository.snapshot().unwrap();
        let configs =
            OsgiConfigs::read_snapshot(&office.desk.repository, &snapshot, &["author"]).unwrap();
        let applied = office.mounts.apply_configs(&configs, SystemTime::now());
        office.desk.runtime.block_on(applied).unwrap();
        office.wait_for_rest();
        office.desk.runtime.block_on(office.desk.queues.schedules().list()).unwrap()
    };
    let source = folder.path().join("sub");
    fs::create_dir(&source).unwrap();
    let text = |text: &str| Property::text(text);
    put(
        "org.tympan.assets.Mount-archive",
        &[("source", text(source.to_str().unwrap())), ("target", text("/content/dam/archive"))],
    );
    let year = [("scheduler.period", Value::Long(31_536_000).into())];
    put("com.day.cq.dam.jcrconnector.impl.AssetSynchronizationService", &year);
    let schedules = apply();
    assert_eq!(
        (&*schedules[0].name, &*schedules[0].rule_text),
        ("mount archive", "every 31536000s")
    );
    assert_eq!(office.mounts.faults(), []);
    office.desk.edit(|session| {
        session.remove_node(&path("/apps/config/org.tympan.assets.Mount-archive")).unwrap();
    });
    assert!(apply().is_empty());
    assert!(office.desk.runtime.block_on(office.mounts.list_statuses()).unwrap().is_empty());
}

#[test]
fn removals_that_are_accepted_happen_once() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..20 {
        old_file(folder.path(), &format!("{number}.txt"));
    }
    let office = Office::with(settings(folder.path().to_str().unwrap(), &["archive"]));
    office.mounts.load_configs(&OsgiConfigs::default());
    assert_eq!(office.added().added, 20);
    for number in 0..15 {
        fs::remove_file(folder.path().join(format!("{number}.txt"))).unwrap();
    }
    assert_eq!(office.added().held_back, 15);
    let accepted = office.mounts.accept_removals("archive");
    assert!(office.desk.runtime.block_on(accepted).unwrap());
    assert_eq!(office.added().removed, 15);
    for number in 15..20 {
        fs::remove_file(folder.path().join(format!("{number}.txt"))).unwrap();
    }
    assert_eq!(office.added().held_back, 5, "what was accepted was those fifteen");
}

#[test]
fn an_import_is_a_job_with_a_report() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..150 {
        old_file(folder.path(), &format!("{number}.txt"));
    }
    fs::create_dir(folder.path().join("taken")).unwrap();
    old_file(folder.path(), "taken/a");
    let office = Office::with(settings(folder.path().to_str().unwrap(), &[]));
    office.mounts.load_configs(&OsgiConfigs::default());
    office.desk.edit(|session| {
        for name in ["/content", "/content/dam", "/content/dam/new"] {
            if session.node(&path(name)).unwrap().is_none() {
                session.add_node(&path(name), "sling:Folder").unwrap();
            }
        }
        session.add_node(&path("/content/dam/new/0.txt"), "nt:unstructured").unwrap();
    });
    let wish = ImportRequest {
        source: folder.path().to_str().unwrap().to_owned(),
        target: "/content/dam/new".to_owned(),
        is_dry_run: true,
        user: "ann".to_owned(),
    };
    let run = |wish: &ImportRequest| {
        let begun = office.mounts.start_import(wish, SystemTime::now());
        let (name, _) = office.desk.runtime.block_on(begun).unwrap().unwrap();
        loop {
            let status = office.mounts.import_status(&name);
            let status = office.desk.runtime.block_on(status).unwrap();
            if status.job.is_none() {
                return status.last_pass.unwrap().report;
            }
            std::thread::yield_now();
        }
    };
    let report = run(&wish);
    assert!(report.is_dry && report.added == 151 && !office.desk.exists("/content/dam/new/1.txt"));
    let real = ImportRequest { is_dry_run: false, ..wish.clone() };
    let report = run(&real);
    assert_eq!((report.added, report.skipped), (150, 1), "{report:?}");
    assert_eq!(report.skipped_files[0].0, "0.txt");
    // Again: nothing twice, and what failed is tried anew.
    office.desk.edit(|session| session.remove_node(&path("/content/dam/new/0.txt")).unwrap());
    let report = run(&real);
    assert_eq!((report.added, report.unchanged, report.bytes), (1, 150, 5), "{report:?}");
    let refused = |source: &str, target: &str| {
        let wish =
            ImportRequest { source: source.to_owned(), target: target.to_owned(), ..wish.clone() };
        let begun = office.mounts.start_import(&wish, SystemTime::now());
        office.desk.runtime.block_on(begun).unwrap().unwrap_err()
    };
    assert!(refused("/etc", "/content/dam/x").contains("is not in any location"));
    assert!(refused(&format!("{}/../x", wish.source), "/content/dam/x").contains("`..`"));
    assert!(refused(&wish.source, "/apps/x").contains("is not a folder for assets"));
}
