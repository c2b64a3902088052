//! Disks that fail: full, unreadable, not answering; files of newer programs. What was acknowledged stays readable.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tympan_store::disk::{
    Disk, DiskFile, DiskLock, DiskLockError, FileDisk, MappedFile, MemoryDisk,
};
use tympan_store::{
    ByteSize, ChunkBatch, ChunkStore, Error, LocalStore, LocalStoreOptions, body, check_store,
    inspect_store, repair_store,
};
use tympan_testkit::crash_disk::{CrashDisk, UnsyncedWrites};

use crate::map_model::moves;
use crate::site::{Author, Titles, disk, files, options, pages, site};

const LIMIT: ByteSize = ByteSize::from_kib(16);

fn author(disk: &CrashDisk) -> Author {
    Author::new(LocalStore::open(Arc::new(disk.clone()), options(LIMIT)).unwrap())
}

/// Everything acknowledged can be read, from the running store and after a power cut.
fn check_acknowledged(author: &Author, disk: &CrashDisk, at: &str) {
    for (_, root, model) in author.revisions.values() {
        assert_eq!(pages(&author.store, root).unwrap(), *model, "{at}");
    }
    let crashed = disk.crash(disk.call_count(), UnsyncedWrites::Lost);
    let store = LocalStore::open(Arc::new(crashed), options(LIMIT)).unwrap();
    assert!(check_store(&store).unwrap().is_clean(), "{at}");
    let newest = author.revisions.values().next_back().unwrap();
    assert_eq!(store.read_ref("main").unwrap(), Some(newest.1), "{at}");
}

#[test]
fn a_full_disk_at_ten_levels_of_fill() {
    let disk = CrashDisk::new();
    let mut author = author(&disk);
    author.save("main", 40).unwrap();
    let mut refused = [0; 3];
    for level in 0..10 {
        let at = format!("level {level}");
        // Room for some commits, so that it ends in a commit, in the roll of a pack, or in an index file.
        disk.set_free_bytes(Some(level * 1_777));
        let mut saves = 0;
        let error = loop {
            match author.save("main", 3) {
                Ok(_) => saves += 1,
                Err(error) => break error,
            }
            assert!(saves < 100, "the disk is full some time");
        };
        assert!(matches!(error, Error::FileWrite { .. }) && error.is_transient(), "{at}: {error}");
        assert_eq!(author.store.write_failure(), None);
        check_acknowledged(&author, &disk, &at);
        refused[0] += 1;
        // A collection has no room either, removes what it began, and breaks nothing.
        if author.collect().is_err() {
            refused[1] += 1;
        }
        assert_eq!(author.store.write_failure(), None, "{at}");
        check_acknowledged(&author, &disk, &at);
        if author.store.close().is_err() {
            refused[2] += 1;
        }
        disk.set_free_bytes(None);
        author.save("main", 3).unwrap();
        author.collect().unwrap();
        author.save("main", 3).unwrap();
        check_acknowledged(&author, &disk, &at);
    }
    assert!(refused[0] == 10 && refused[1] > 0, "{refused:?}");
}

#[test]
fn no_space_for_the_index_of_the_open_pack() {
    let disk = CrashDisk::new();
    let store = LocalStore::open(Arc::new(disk.clone()), LocalStoreOptions::default()).unwrap();
    let mut numbers = crate::map_model::Numbers(3);
    let mut batch = ChunkBatch::new();
    let mut last = None;
    for _ in 0..150 {
        let noise: Vec<u8> = (0..9_000).map(|_| numbers.below(256) as u8).collect();
        last = Some(body::write_body(&mut batch, &noise, &[]).unwrap());
    }
    batch.add_ref_update(moves("main", None, last));
    store.commit(batch).unwrap();
    for room in [0, 10, 700, 2_000] {
        disk.set_free_bytes(Some(room));
        assert!(matches!(store.close(), Err(Error::FileWrite { .. })), "room {room}");
        assert_eq!(store.write_failure(), None);
        assert_eq!(store.read_ref("main").unwrap(), last);
    }
    disk.set_free_bytes(None);
    store.close().unwrap();
    assert!(disk.content("pack-000001.index").is_some());
}

#[test]
fn syncs_that_fail_during_a_collection_lose_nothing() {
    let disk = CrashDisk::new();
    let mut author = author(&disk);
    for _ in 0..8 {
        author.save("main", 8).unwrap();
    }
    disk.fail_syncs(true);
    assert!(author.collect().is_err());
    disk.fail_syncs(false);
    let is_poisoned = author.store.write_failure().is_some();
    for (_, root, model) in author.revisions.values() {
        assert_eq!(pages(&author.store, root).unwrap(), *model, "reading goes on");
    }
    assert_eq!(author.save("main", 1).is_err(), is_poisoned);
    drop(author.store);
    let store = LocalStore::open(Arc::new(disk.clone()), options(LIMIT)).unwrap();
    assert!(check_store(&store).unwrap().is_clean());
}

/// A disk of which a part of one file cannot be read.
#[derive(Clone, Debug)]
struct BadSectors {
    disk: MemoryDisk,
    file: String,
    sectors: std::ops::Range<u64>,
    is_bad: Arc<AtomicBool>,
}

#[derive(Debug)]
struct BadFile {
    file: Arc<dyn DiskFile>,
    sectors: std::ops::Range<u64>,
    is_bad: Arc<AtomicBool>,
}

impl BadSectors {
    fn wrap(&self, name: &str, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        if name != self.file {
            return file;
        }
        let (sectors, is_bad) = (self.sectors.clone(), Arc::clone(&self.is_bad));
        Arc::new(BadFile { file, sectors, is_bad })
    }
}

impl Disk for BadSectors {
    fn open_file(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.wrap(name, self.disk.open_file(name)?))
    }
    fn create_file(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.create_file(name)
    }
    fn rename_file(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename_file(from, to)
    }
    fn remove_file(&self, name: &str) -> io::Result<()> {
        self.disk.remove_file(name)
    }
    fn list_folder(&self, folder: &str) -> io::Result<Vec<String>> {
        self.disk.list_folder(folder)
    }
    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        self.disk.sync_folder(folder)
    }
    fn lock_folder(&self) -> Result<DiskLock, DiskLockError> {
        self.disk.lock_folder()
    }
    fn display_path(&self) -> PathBuf {
        self.disk.display_path()
    }
}

impl DiskFile for BadFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset + buffer.len() as u64;
        if self.is_bad.load(Ordering::Relaxed)
            && offset < self.sectors.end
            && end > self.sectors.start
        {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.file.read_at(offset, buffer)
    }
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.file.append(bytes)
    }
    fn truncate(&self, length: u64) -> io::Result<()> {
        self.file.truncate(length)
    }
    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
    fn map_content(&self) -> io::Result<MappedFile> {
        self.file.map_content()
    }
}

#[test]
fn sectors_that_cannot_be_read_are_named_and_repaired() {
    let site = site();
    let file = site.files.keys().find(|name| name.starts_with("live")).unwrap().clone();
    let bad = BadSectors {
        disk: disk(&site.files),
        file: file.clone(),
        sectors: 8_192..12_288,
        is_bad: Arc::new(AtomicBool::new(true)),
    };
    let open = || LocalStore::open(Arc::new(bad.clone()), options(ByteSize::from_kib(24))).unwrap();
    let store = open();
    // Reading says which file, and does not take it for damage: a cable may be loose.
    let mut errors = Vec::new();
    for (_, root, _) in site.revisions.values() {
        errors.extend(pages(&store, root).err());
    }
    assert!(!errors.is_empty());
    for error in &errors {
        assert!(matches!(error, Error::FileRead { file: name, .. } if *name == file), "{error}");
    }
    assert_eq!(store.write_failure(), None);
    let found = inspect_store(&store, std::time::UNIX_EPOCH).unwrap();
    let fault = format!("`{file}` is damaged from byte");
    assert!(found.report.faults.iter().any(|one| one.starts_with(&fault)), "{:#?}", found.report);
    let repaired = repair_store(&store, &found, &Titles(&store), std::time::UNIX_EPOCH).unwrap();
    assert!(repaired.quarantined_files.iter().any(|name| name.ends_with(&file)));
    drop(store);
    let report = check_store(&open()).unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

#[test]
fn an_index_of_a_newer_format_is_refused_with_advice() {
    let mut site = site();
    let name = site.files.keys().find(|name| name.ends_with(".index")).unwrap().clone();
    let index = site.files.get_mut(&name).unwrap();
    index[7] = b'2';
    let whole = index.clone();
    let open = |target: &MemoryDisk| {
        LocalStore::open(Arc::new(target.clone()), options(ByteSize::from_kib(24)))
    };
    // The header's checksum does not vouch for it: it is damage, and made again.
    let target = disk(&site.files);
    let store = open(&target).unwrap();
    let notes = check_store(&store).unwrap().recovery_notes;
    assert!(notes.iter().any(|note| note.contains(&name)), "{notes:?}");
    drop(store);
    assert_ne!(target.file_content(&name), Some(whole));
    let index = site.files.get_mut(&name).unwrap();
    let crc = crc32c::crc32c(&index[..44]).to_le_bytes();
    index[44..48].copy_from_slice(&crc);
    let target = disk(&site.files);
    let message = open(&target).err().unwrap().to_string();
    assert!(message.contains(&name) && message.contains("start the program that wrote it"));
    assert_eq!(files(&target), site.files, "nothing is touched");
}

#[test]
fn a_flipped_bit_is_never_served() {
    let site = site();
    let mut errors = 0;
    for (name, content) in &site.files {
        for at in (0..content.len()).step_by(1_499) {
            let mut damaged = site.files.clone();
            damaged.get_mut(name).unwrap()[at] ^= 1 << (at % 8);
            let store = LocalStore::open(Arc::new(disk(&damaged)), options(ByteSize::from_kib(24)))
                .unwrap();
            for (_, root, model) in site.revisions.values() {
                match pages(&store, root) {
                    Ok(found) => assert_eq!(found, *model, "`{name}` byte {at}"),
                    Err(
                        Error::ChunkDamaged { .. }
                        | Error::ChunkMissing { .. }
                        | Error::FileMalformed { .. }
                        | Error::FileRead { .. },
                    ) => errors += 1,
                    Err(other) => panic!("`{name}` byte {at}: {other}"),
                }
            }
        }
    }
    assert!(errors > 0);
}

#[test]
fn a_collection_does_not_believe_a_damaged_index() {
    let site = site();
    let name = site.files.keys().find(|name| name.ends_with(".index")).unwrap();
    let mut damaged = site.files.clone();
    let index = damaged.get_mut(name).unwrap();
    let last = index.len() - 1;
    index[last] ^= 1;
    let target = disk(&damaged);
    let store =
        LocalStore::open(Arc::new(target.clone()), options(ByteSize::from_kib(24))).unwrap();
    let options = tympan_store::GarbageCollectionOptions::at_time(std::time::UNIX_EPOCH);
    let collected = store.collect_garbage(&options, &mut |_| std::ops::ControlFlow::Continue(()));
    let message = collected.err().unwrap().to_string();
    assert!(message.contains(name.as_str()) && message.contains("repair"), "{message}");
    let found = inspect_store(&store, std::time::UNIX_EPOCH).unwrap();
    let repaired = repair_store(&store, &found, &Titles(&store), std::time::UNIX_EPOCH).unwrap();
    assert_eq!(repaired.rebuilt_indexes, std::slice::from_ref(name));
    assert_eq!(target.file_content(name).as_ref(), site.files.get(name), "byte for byte");
    store.collect_garbage(&options, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
}

#[test]
fn others_on_the_machine_read_nothing() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("sites/home");
    let disk = FileDisk::open(home.join("store")).unwrap();
    let store = LocalStore::open(Arc::new(disk.clone()), LocalStoreOptions::default()).unwrap();
    let mut batch = ChunkBatch::new();
    let mut numbers = crate::map_model::Numbers(1);
    let noise: Vec<u8> = (0..5_000).map(|_| numbers.below(256) as u8).collect();
    let root = body::write_body(&mut batch, &noise, &[]).unwrap();
    batch.add_ref_update(moves("main", None, Some(root)));
    store.commit(batch).unwrap();
    store.close().unwrap();
    disk.create_file("leases/one").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let state = tympan_store::StateDatabase::open(&home.join("state.db")).await.unwrap();
        state.migrate_tables("room", &["CREATE TABLE login (name TEXT)"]).await.unwrap();
        for file in [
            ".",
            "store",
            "store/leases",
            "store/leases/one",
            "store/pack-000001",
            "store/pack-000001.index",
            "store/lock",
            "state.db",
            "state.db-wal",
            "state.db-shm",
        ] {
            let mode = std::fs::metadata(home.join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "`{file}` has the mode {:o}", mode & 0o777);
        }
    });
}
