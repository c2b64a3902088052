//! A mount of very many files: what a first pass costs, and that a second one does nothing.
//!
//! `TYMPAN_FILES` says how many; `scripts/torture.sh jobs` makes it 100,000 and prints what was measured.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tympan_content::Repository;
use tympan_mounts::{DirectorySource, run_mount_pass};
use tympan_testkit::watched_store::open_home_stores;

use crate::pass::{Desk, counts, mount_of, order};

/// Files of a folder.
const FOLDER: usize = 1000;

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Memory of this process, now and at most, in MiB.
fn memory() -> (u64, u64) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0)
    };
    (line("VmRSS:") >> 10, line("VmHWM:") >> 10)
}

#[test]
fn a_second_pass_over_many_files_writes_nothing() {
    let files = number("TYMPAN_FILES", 3000);
    let (home, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    for file in 0..files {
        let within = folder.path().join(format!("{:03}", file / FOLDER));
        if file % FOLDER == 0 {
            fs::create_dir(&within).unwrap();
        }
        let path = within.join(format!("{file:06}.txt"));
        fs::write(&path, format!("the text of file {file}\n").repeat(20)).unwrap();
        fs::File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
    }
    let (store, blobs) = open_home_stores(home.path());
    let repository = Repository::open(store.clone(), blobs).unwrap();
    let mut desk = Desk::new();
    desk.repository = repository.clone();
    let mount = mount_of(Arc::new(DirectorySource::new(folder.path())));
    let (before, _) = memory();
    // A pass takes 50,000 changes at most; the job begins the next at once.
    let mut added = 0;
    while added < files as u64 {
        let (begun, writes) = (Instant::now(), desk.queues.write_count());
        let report = desk.pass(&mount);
        assert!(report.added > 0 && report.skipped == 0, "{report:?}");
        added += report.added;
        let elapsed = begun.elapsed();
        println!(
            "{} files added in {:.1} s, {:.0} a second; {} transactions of the ledger",
            report.added,
            elapsed.as_secs_f64(),
            report.added as f64 / elapsed.as_secs_f64(),
            desk.queues.write_count() - writes
        );
    }
    let (after, most) = memory();
    println!("memory {before} MiB before, {after} MiB after, {most} MiB at most");
    let (head, size) = (repository.head_root().unwrap(), on_disk(home.path()));
    for _ in 0..2 {
        let (begun, writes) = (Instant::now(), desk.queues.write_count());
        let made = run_mount_pass(&repository, &desk.ledger(), &mount, order(), &mut |_, _| true);
        assert_eq!(counts(&made.unwrap()), [0, 0, 0, 0, files as u64]);
        println!("nothing to do among {files} files: {:.2} s", begun.elapsed().as_secs_f64());
        assert_eq!(desk.queues.write_count(), writes, "no file is noted again");
        assert_eq!(repository.head_root().unwrap(), head, "nothing is committed");
        assert_eq!(on_disk(home.path()), size, "not a byte is appended to the store");
    }
    store.close().unwrap();
}

/// Counts the bytes of all files below a folder.
fn on_disk(folder: &std::path::Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let bytes = entries.map(|entry| match entry.metadata().unwrap() {
        folder if folder.is_dir() => on_disk(&entry.path()),
        file => file.len(),
    });
    bytes.sum()
}
