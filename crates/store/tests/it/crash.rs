//! Power cuts at every call and every byte, full disks, failing syncs, flipped bits.
//!
//! `TYMPAN_CRASH_SAVES` sets how many saves the power is cut in; `make torture` asks for more.

use std::collections::BTreeMap;
use std::sync::Arc;

use tympan_store::disk::{Disk, FileDisk, MemoryDisk};
use tympan_store::{
    BlobId, ByteSize, ChunkBatch, ChunkId, ChunkStore, Error, LocalStore, LocalStoreOptions,
    ReadChunks, RecordCompression, SortedMap, StoreRoot, body, check_store,
};
use tympan_testkit::crash_disk::{CrashDisk, UnsyncedWrites};

use crate::map_model::{Edits, Model, Numbers, apply, moves, value};

fn options(pack_limit: ByteSize) -> LocalStoreOptions {
    LocalStoreOptions {
        pack_limit,
        cache_size: ByteSize::from_kib(64),
        compression: RecordCompression::Lz4,
    }
}

fn open(disk: impl Disk + 'static, pack_limit: ByteSize) -> LocalStore {
    LocalStore::open(Arc::new(disk), options(pack_limit)).unwrap()
}

/// One state that was acknowledged, and how many calls the disk had seen by then.
struct Acknowledged {
    calls: usize,
    root: Option<ChunkId>,
    model: Model,
}

/// A store that commits pages with bodies and small blobs, one after the other.
struct Author {
    store: LocalStore,
    map: SortedMap,
    root: Option<ChunkId>,
    model: Model,
    numbers: Numbers,
}

impl Author {
    fn new(store: LocalStore) -> Self {
        Self {
            store,
            map: SortedMap::EMPTY_MAP,
            root: None,
            model: Model::new(),
            numbers: Numbers(3),
        }
    }

    /// Saves a few pages; returns an error as the store gives it.
    fn save(&mut self) -> tympan_store::Result<()> {
        let mut batch = ChunkBatch::new();
        let mut edits = Edits::new();
        for _ in 0..=self.numbers.below(4) {
            let n = self.numbers.below(60);
            let text = vec![b'a' + (n % 26) as u8; self.numbers.below(2_000) as usize];
            let blob = BlobId::hash_of(&text);
            batch.add_blob(blob, text.clone().into());
            let mut page = value(format!("page {n} {}", self.numbers.below(1_000)));
            page.body = Some(body::write_body(&mut batch, &text, &[blob])?);
            let key = format!("page-{n:03}").into_bytes();
            edits.insert(key, (self.numbers.below(5) > 0).then_some(page));
        }
        let map = self.map.edit(&self.store, &mut batch, edits.clone())?;
        let maps = BTreeMap::from([("content".to_owned(), map)]);
        let root = StoreRoot { maps }.write(&mut batch)?;
        batch.add_ref_update(moves("main", self.root, Some(root)));
        self.store.commit(batch)?;
        apply(&mut self.model, &edits);
        (self.map, self.root) = (map, Some(root));
        Ok(())
    }

    fn acknowledged(&self, disk: &CrashDisk) -> Acknowledged {
        Acknowledged { calls: disk.call_count(), root: self.root, model: self.model.clone() }
    }
}

/// Opens what a crash left; the state must be one of `allowed`, whole and clean. Returns which one.
fn check_reopened(disk: MemoryDisk, limit: ByteSize, allowed: &[Acknowledged], at: &str) -> usize {
    let store = LocalStore::open(Arc::new(disk), options(limit))
        .unwrap_or_else(|error| panic!("{at}: {error}"));
    let root = store.read_ref("main").unwrap();
    let found = allowed.iter().position(|state| state.root == root);
    let found = found.unwrap_or_else(|| panic!("{at}: an acknowledged state is lost"));
    let report = check_store(&store).unwrap();
    assert!(report.is_clean(), "{at}: {report:?}");
    assert!(report.external_blobs.is_empty(), "{at}: {report:?}");
    let map = root.map_or(SortedMap::EMPTY_MAP, |root| {
        StoreRoot::read(&store, &root).unwrap().map("content")
    });
    let all = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
    let records =
        map.range(&store, all).map(|record| record.map(|(key, value)| (key.to_vec(), value)));
    let records: Model = records.collect::<Result<_, _>>().unwrap();
    assert_eq!(records, allowed[found].model, "{at}");
    // It takes new commits.
    let mut batch = ChunkBatch::new();
    let note = body::write_body(&mut batch, at.as_bytes(), &[]).unwrap();
    batch.add_ref_update(moves("after", None, root.or(Some(note))));
    store.commit(batch).unwrap();
    found
}

fn crash_everywhere(limit: ByteSize) {
    let saves = std::env::var("TYMPAN_CRASH_SAVES").ok().and_then(|count| count.parse().ok());
    let saves: usize = saves.unwrap_or(25);
    let disk = CrashDisk::new();
    let mut author = Author::new(open(disk.clone(), limit));
    let mut states = vec![author.acknowledged(&disk)];
    for _ in 0..saves {
        author.save().unwrap();
        states.push(author.acknowledged(&disk));
    }
    for calls in 0..=disk.call_count() {
        // What was acknowledged by then must be there; the save under way may be.
        let known = states.iter().rposition(|state| state.calls <= calls);
        let first = known.unwrap_or(0);
        let allowed = &states[first..states.len().min(first + 2)];
        for unsynced in
            [UnsyncedWrites::Lost, UnsyncedWrites::Persisted, UnsyncedWrites::Reordered(100)]
        {
            let at = format!("after call {calls}, {unsynced:?}");
            check_reopened(disk.crash(calls, unsynced), limit, allowed, &at);
        }
    }
    eprintln!(
        "{saves} saves, power cut after each of {} calls in three ways, none lost",
        disk.call_count()
    );
}

#[test]
fn a_power_cut_after_any_call_loses_nothing_acknowledged() {
    crash_everywhere(ByteSize::from_mib(1));
}

#[test]
fn a_power_cut_while_packs_fill_loses_nothing_acknowledged() {
    crash_everywhere(ByteSize::from_kib(4));
}

#[test]
fn a_cut_at_every_byte_of_the_last_three_commits() {
    let disk = CrashDisk::new();
    let limit = ByteSize::from_mib(1);
    let mut author = Author::new(open(disk.clone(), limit));
    let mut states = Vec::new();
    for _ in 0..12 {
        author.save().unwrap();
        states.push(author.acknowledged(&disk));
    }
    let mut outcomes = [0, 0];
    for last in states.len() - 3..states.len() {
        let before = states[last - 1].calls;
        // Each commit is one append and one sync.
        assert_eq!(states[last].calls, before + 2);
        let appended = disk.max_unsynced_bytes(before + 1);
        assert!(appended > 0);
        for bytes in 0..=appended {
            for unsynced in [UnsyncedWrites::Torn(bytes), UnsyncedWrites::Reordered(bytes)] {
                let at = format!("commit {last}, {unsynced:?}");
                let crashed = disk.crash(before + 1, unsynced);
                let found = check_reopened(crashed, limit, &states[last - 1..=last], &at);
                outcomes[found] += 1;
            }
        }
    }
    // Only the whole append is the new state.
    assert_eq!(outcomes[1], 6);
    eprintln!("three commits cut at each byte in two ways: {} cuts, none lost", outcomes[0] + 6);
}

#[test]
fn a_commit_is_one_append_and_one_sync() {
    let disk = CrashDisk::new();
    let mut author = Author::new(open(disk.clone(), ByteSize::from_mib(64)));
    author.save().unwrap();
    for _ in 0..20 {
        let (calls, syncs) = (disk.call_count(), disk.sync_count());
        author.save().unwrap();
        assert_eq!((disk.call_count() - calls, disk.sync_count() - syncs), (2, 1));
    }
}

#[test]
fn what_arrives_ahead_is_durable_with_the_next_commit() {
    let disk = CrashDisk::new();
    let store = open(disk.clone(), ByteSize::from_mib(1));
    let blob = BlobId::hash_of(b"icon");
    let mut batch = ChunkBatch::new();
    batch.add_blob(blob, b"icon".as_slice().into());
    let syncs = disk.sync_count();
    store.commit(batch).unwrap();
    assert_eq!(disk.sync_count(), syncs, "nothing is synced ahead");
    assert_eq!(store.read_blob(&blob).unwrap().unwrap(), "icon");
    let lost =
        open(disk.crash(disk.call_count(), UnsyncedWrites::Persisted), ByteSize::from_mib(1));
    assert!(!lost.contains_blob(&blob).unwrap());
    store.sync().unwrap();
    let kept = open(disk.crash(disk.call_count(), UnsyncedWrites::Lost), ByteSize::from_mib(1));
    assert!(kept.contains_blob(&blob).unwrap());
    let syncs = disk.sync_count();
    store.sync().unwrap();
    assert_eq!(disk.sync_count(), syncs, "nothing is left to sync");
}

#[test]
fn a_full_disk_refuses_writes_and_recovers_by_itself() {
    for limit in [ByteSize::from_mib(1), ByteSize::from_kib(4)] {
        let disk = CrashDisk::new();
        let mut author = Author::new(open(disk.clone(), limit));
        for _ in 0..10 {
            author.save().unwrap();
        }
        for room in (0..3_000).step_by(37) {
            disk.set_free_bytes(Some(room));
            let mut refused = 0;
            while refused == 0 {
                match author.save() {
                    Ok(()) => {}
                    Err(error @ Error::FileWrite { .. }) => {
                        assert!(error.is_transient());
                        refused += 1;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            assert_eq!(author.store.write_failure(), None);
            let first = author
                .map
                .range(&author.store, (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded));
            assert_eq!(first.count(), author.model.len(), "reading goes on");
            disk.set_free_bytes(None);
            author.save().unwrap();
        }
        let states = [author.acknowledged(&disk)];
        let crashed = disk.crash(disk.call_count(), UnsyncedWrites::Lost);
        check_reopened(crashed, limit, &states, "after a full disk");
    }
}

#[test]
fn a_failed_sync_closes_the_store_for_writing() {
    let disk = CrashDisk::new();
    let mut author = Author::new(open(disk.clone(), ByteSize::from_mib(1)));
    author.save().unwrap();
    let before = author.root;
    disk.fail_syncs(true);
    assert!(matches!(author.save(), Err(Error::FileWrite { .. })));
    disk.fail_syncs(false);
    assert!(matches!(author.save(), Err(Error::WriteDisabled { .. })));
    assert!(author.store.write_failure().is_some());
    assert_eq!(author.store.read_ref("main").unwrap(), before);
    assert!(author.store.read_chunk(&before.unwrap()).is_ok());
}

#[test]
fn any_flipped_bit_is_found_by_the_check() {
    let disk = CrashDisk::new();
    // No cache worth the name, so that reads meet the disk.
    let tiny =
        LocalStoreOptions { cache_size: ByteSize::from_bytes(0), ..options(ByteSize::from_kib(8)) };
    let mut author = Author::new(LocalStore::open(Arc::new(disk.clone()), tiny).unwrap());
    for _ in 0..20 {
        author.save().unwrap();
    }
    assert!(check_store(&author.store).unwrap().is_clean());
    let packs: Vec<String> = disk.list_folder("").unwrap();
    let packs = packs.iter().filter(|name| !name.ends_with(".index"));
    let mut affected = 0;
    for name in packs {
        let length = disk.content(name).unwrap().len();
        for offset in (0..length).step_by(61) {
            disk.flip_bit(name, offset);
            let report = check_store(&author.store).unwrap();
            assert!(!report.is_clean(), "`{name}` byte {offset}");
            affected += report.damaged_locations.len();
            disk.flip_bit(name, offset);
        }
    }
    assert!(affected > 0, "some bits belong to what the ref reaches");
    assert!(check_store(&author.store).unwrap().is_clean(), "the bits are back");
}

#[test]
fn reading_a_damaged_chunk_is_an_error_and_closes_the_store() {
    let disk = CrashDisk::new();
    let tiny =
        LocalStoreOptions { cache_size: ByteSize::from_bytes(0), ..options(ByteSize::from_mib(1)) };
    let store = LocalStore::open(Arc::new(disk.clone()), tiny).unwrap();
    let mut batch = ChunkBatch::new();
    let body = body::write_body(&mut batch, &[7; 900], &[]).unwrap();
    batch.add_ref_update(moves("main", None, Some(body)));
    store.commit(batch).unwrap();
    let length = disk.content("pack-000001").unwrap().len();
    for offset in 0..length {
        disk.flip_bit("pack-000001", offset);
        // Bytes of other records, and the checksum that only a scan looks at, leave the chunk alone.
        match store.read_chunk(&body) {
            Ok(chunk) => assert_eq!(chunk.payload(), [7; 900]),
            Err(Error::ChunkDamaged { id, .. }) => assert_eq!(id, body),
            Err(other) => panic!("{other}"),
        }
        disk.flip_bit("pack-000001", offset);
    }
    assert!(store.write_failure().is_some());
    assert!(store.read_chunk(&body).is_ok());
    let refused = store.commit(ChunkBatch::new());
    assert!(matches!(refused, Err(Error::WriteDisabled { .. })));
}

#[test]
fn damage_in_what_was_durable_is_kept_apart_from_an_unfinished_write() {
    let disk = CrashDisk::new();
    let mut author = Author::new(open(disk.clone(), ByteSize::from_mib(1)));
    for _ in 0..6 {
        author.save().unwrap();
    }
    let early = disk.content("pack-000001").unwrap().len();
    for _ in 0..6 {
        author.save().unwrap();
    }
    // A bit in the middle of the pack: everything behind it is kept.
    disk.flip_bit("pack-000001", early / 2);
    let crashed = MemoryDisk::new();
    crashed.put_file("pack-000001", disk.content("pack-000001").unwrap());
    let store = open(crashed.clone(), ByteSize::from_mib(1));
    assert_eq!(store.read_ref("main").unwrap(), author.root);
    let report = check_store(&store).unwrap();
    assert!(!report.is_clean());
    assert!(report.faults.iter().any(|fault| fault.contains("damaged from byte")), "{report:?}");
    let length = crashed.file_content("pack-000001").unwrap().len();
    assert_eq!(length, disk.content("pack-000001").unwrap().len(), "not cut");
}

#[test]
fn index_files_are_made_again() {
    let disk = CrashDisk::new();
    let limit = ByteSize::from_kib(4);
    let mut author = Author::new(open(disk.clone(), limit));
    for _ in 0..25 {
        author.save().unwrap();
    }
    let names = disk.list_folder("").unwrap();
    let indexes: Vec<&String> = names.iter().filter(|name| name.ends_with(".index")).collect();
    assert!(indexes.len() >= 3, "{names:?}");
    let states = [author.acknowledged(&disk)];
    // Missing, cut, damaged: the pack tells all.
    for (index, how) in indexes.iter().zip([0, 1, 2].into_iter().cycle()) {
        let crashed = disk.crash(disk.call_count(), UnsyncedWrites::Persisted);
        let mut content = crashed.file_content(index).unwrap();
        match how {
            0 => crashed.remove_file(index).unwrap(),
            1 => crashed.put_file(index, content[..30].to_vec()),
            _ => {
                content[9] ^= 1;
                crashed.put_file(index, content);
            }
        }
        check_reopened(crashed, limit, &states, index);
    }
}

#[test]
fn a_clean_stop_leaves_an_index_that_covers_the_open_pack() {
    let disk = MemoryDisk::new();
    let limit = ByteSize::from_mib(64);
    let store = open(disk.clone(), limit);
    let mut batch = ChunkBatch::new();
    let mut numbers = Numbers(5);
    for _ in 0..200 {
        let noise: Vec<u8> = (0..10_000).map(|_| numbers.below(256) as u8).collect();
        body::write_body(&mut batch, &noise, &[]).unwrap();
    }
    let some = *batch.chunks().next().unwrap().0;
    batch.add_ref_update(moves("main", None, Some(some)));
    store.commit(batch).unwrap();
    store.close().unwrap();
    drop(store);
    assert!(disk.file_content("pack-000001.index").is_some());
    // What the index covers is not scanned: a bit flipped there is found by the check, not by opening.
    let store = open(disk.clone(), limit);
    assert_eq!(store.read_ref("main").unwrap(), Some(some));
    assert!(check_store(&store).unwrap().is_clean());
    let mut batch = ChunkBatch::new();
    body::write_body(&mut batch, b"later", &[]).unwrap();
    batch.add_ref_update(moves("later", None, Some(some)));
    store.commit(batch).unwrap();
    drop(store);
    let store = open(disk, limit);
    assert_eq!(store.list_refs().unwrap().len(), 2);
    assert!(check_store(&store).unwrap().is_clean());
}

#[test]
fn a_store_in_use_names_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let disk = || Arc::new(FileDisk::open(dir.path().join("store")).unwrap());
    let store = LocalStore::open(disk(), LocalStoreOptions::default()).unwrap();
    let second = LocalStore::open(disk(), LocalStoreOptions::default());
    let message = second.err().unwrap().to_string();
    let pid = format!("process {}", std::process::id());
    assert!(message.contains(&pid), "{message}");
    drop(store);
    LocalStore::open(disk(), LocalStoreOptions::default()).unwrap();
}

#[test]
fn a_pack_of_another_format_is_left_alone() {
    let disk = MemoryDisk::new();
    let store = open(disk.clone(), ByteSize::from_mib(1));
    drop(store);
    let mut pack = disk.file_content("pack-000001").unwrap();
    // The version follows the header of the head record; its checksum is made right again.
    pack[52] = 2;
    let crc = crc32c::crc32c(&1_u32.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &0_u32.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &pack[..16]);
    let crc = crc32c::crc32c_append(crc, &pack[20..]);
    pack[16..20].copy_from_slice(&crc.to_le_bytes());
    disk.put_file("pack-000001", pack.clone());
    let opened = LocalStore::open(Arc::new(disk.clone()), LocalStoreOptions::default());
    assert!(matches!(opened, Err(Error::FileMalformed { .. })));
    assert_eq!(disk.file_content("pack-000001"), Some(pack));
}

#[test]
fn after_a_clean_stop_damage_to_the_last_commit_is_not_taken_for_an_unfinished_write() {
    let disk = MemoryDisk::new();
    let store = open(disk.clone(), ByteSize::from_mib(64));
    let mut author = Author::new(store);
    for _ in 0..4 {
        author.save().unwrap();
    }
    let root = author.root;
    drop(author);
    let pack = disk.file_content("pack-000001").unwrap();
    let mut damaged = pack.clone();
    let last = damaged.len() - 60;
    damaged[last] ^= 1;
    disk.put_file("pack-000001", damaged);
    let store = open(disk.clone(), ByteSize::from_mib(64));
    assert_eq!(store.read_ref("main").unwrap(), root, "it was acknowledged");
    assert!(!check_store(&store).unwrap().is_clean());
    drop(store);
    assert_eq!(disk.file_content("pack-000001").unwrap().len(), pack.len(), "nothing is cut off");
}
