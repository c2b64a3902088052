//! Soak: months of page saves with history and daily collections; disk, memory and descriptors stay bounded.
//!
//! Time is simulated. The work is done by this test program, started again for one of its tests, so that its memory
//! and descriptors are its own. `TYMPAN_SAVES` sets the number of saves; `make torture` asks for the full count.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tympan_store::disk::FileDisk;
use tympan_store::{
    ByteSize, ChunkBatch, ChunkId, ChunkStore, GarbageCollectionMode, GarbageCollectionOptions,
    LocalStore, LocalStoreOptions, RecordCompression, RefUpdate, RevisionRetention, SortedMap,
    StoreRoot, body, check_store,
};

use crate::map_model::{Edits, Numbers, value};

/// Names the folder to the process that does the work.
const FOLDER: &str = "TYMPAN_SOAK_FOLDER";
const SAVES: &str = "TYMPAN_SAVES";
const PAGES: u64 = 1_000;
/// Saves of one simulated day.
const SAVES_EACH_DAY: u64 = 40;

/// What the process says after each day.
#[derive(Debug)]
struct Sample {
    /// Bytes of all files, and of what refs and kept revisions reach, just before the day's collection.
    before: [u64; 2],
    /// The same just behind it.
    after: [u64; 2],
    resident_kib: u64,
    descriptors: u64,
}

#[test]
fn months_of_saves_keep_disk_and_memory_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let saves: u64 = std::env::var(SAVES).ok().and_then(|count| count.parse().ok()).unwrap_or(400);
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "soak::the_process_that_saves", "--nocapture", "--test-threads=1"])
        .env(FOLDER, dir.path().join("store"))
        .env(SAVES, saves.to_string())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let samples: Vec<Sample> = said.lines().filter_map(parse).collect();
    assert_eq!(samples.len() as u64, saves / SAVES_EACH_DAY, "{said}");
    let ratios = samples.iter().flat_map(|sample| [sample.before, sample.after]);
    let highest = ratios.map(|[disk, live]| disk as f64 / live as f64).fold(0.0, f64::max);
    assert!(highest <= 1.3, "{highest:.3} of live on the disk: {said}");
    // The first third fills caches; from then on nothing grows but with what is live.
    let (warm_up, rest) = samples.split_at(samples.len() / 3);
    let most = |samples: &[Sample], of: fn(&Sample) -> u64| samples.iter().map(of).max().unwrap();
    let [memory, descriptors]: [fn(&Sample) -> u64; 2] =
        [|sample| sample.resident_kib, |sample| sample.descriptors];
    let (warm, later) = (most(warm_up, memory), most(rest, memory));
    assert!(later < warm + warm / 4 + 8 * 1_024, "memory grows from {warm} to {later} KiB");
    let (warm, later) = (most(warm_up, descriptors), most(rest, descriptors));
    let last = samples.last().unwrap();
    assert!(later <= warm + 16, "descriptors grow from {warm} to {later}");
    eprintln!(
        "{saves} saves in {} days: at most {highest:.2} of live on the disk, {} KiB of memory, {} descriptors; \
         at the end {} of {} KiB live",
        samples.len(),
        most(&samples, memory),
        most(&samples, descriptors),
        last.after[1] / 1_024,
        last.after[0] / 1_024,
    );
}

fn parse(line: &str) -> Option<Sample> {
    let numbers: Option<Vec<u64>> =
        line.strip_prefix("sample ")?.split(' ').map(|number| number.parse().ok()).collect();
    let [_day, disk_before, live_before, disk_after, live_after, resident_kib, descriptors] =
        numbers?.try_into().ok()?;
    let (before, after) = ([disk_before, live_before], [disk_after, live_after]);
    Some(Sample { before, after, resident_kib, descriptors })
}

/// No test of its own: what `months_of_saves_keep_disk_and_memory_bounded` starts.
#[test]
fn the_process_that_saves() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let saves: u64 = std::env::var(SAVES).unwrap().parse().unwrap();
    let disk = Arc::new(FileDisk::open(folder).unwrap());
    let options = LocalStoreOptions {
        pack_limit: ByteSize::from_mib(8),
        cache_size: ByteSize::from_mib(1),
        compression: RecordCompression::Lz4,
    };
    let store = LocalStore::open(disk, options).unwrap();
    let mut author = Author::load(&store);
    for day in 0..saves / SAVES_EACH_DAY {
        for _ in 0..SAVES_EACH_DAY {
            author.now += Duration::from_hours(24) / u32::try_from(SAVES_EACH_DAY).unwrap();
            author.save(&store);
        }
        let options = GarbageCollectionOptions::at_time(author.now);
        let before = [disk_bytes(folder), live_bytes(&store, author.now)];
        store.collect_garbage(&options, &mut |_| ControlFlow::Continue(())).unwrap();
        let after = [disk_bytes(folder), live_bytes(&store, author.now)];
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
        let [before, after] = [before, after].map(|[disk, live]| format!("{disk} {live}"));
        // The test runner has left its own line open.
        println!("\nsample {day} {before} {after} {} {descriptors}", resident_kib());
    }
    assert!(check_store(&store).unwrap().is_clean());
}

/// Saves one page after the other.
struct Author {
    map: SortedMap,
    root: Option<ChunkId>,
    numbers: Numbers,
    now: SystemTime,
}

impl Author {
    /// Loads all pages.
    fn load(store: &LocalStore) -> Self {
        let now = UNIX_EPOCH + Duration::from_hours(24 * 365);
        let mut author = Self { map: SortedMap::EMPTY_MAP, root: None, numbers: Numbers(7), now };
        author.write(store, 0..PAGES);
        author
    }

    fn save(&mut self, store: &LocalStore) {
        let page = self.numbers.below(PAGES);
        self.write(store, page..page + 1);
    }

    fn write(&mut self, store: &LocalStore, pages: std::ops::Range<u64>) {
        let mut batch = ChunkBatch::new();
        let mut edits = Edits::new();
        for page in pages {
            let text = self.words(4_000);
            let mut record = value(self.words(250));
            record.body = Some(body::write_body(&mut batch, text.as_bytes(), &[]).unwrap());
            edits.insert(format!("/content/site/page-{page:05}").into_bytes(), Some(record));
        }
        self.map = self.map.edit(store, &mut batch, edits).unwrap();
        let maps = BTreeMap::from([("content".to_owned(), self.map)]);
        let root = StoreRoot { maps }.write(&mut batch).unwrap();
        batch.add_ref_update(RefUpdate {
            name: "main".to_owned(),
            expected_root: self.root,
            new_root: Some(root),
            updated_at: self.now,
            author: "Ada".to_owned(),
            message: "save".to_owned(),
        });
        store.commit(batch).unwrap();
        self.root = Some(root);
    }

    /// Returns text that compresses about as words do.
    fn words(&mut self, bytes: usize) -> String {
        let mut text = String::new();
        while text.len() < bytes {
            let word = self.numbers.below(2_000);
            text.push_str(&format!("{}{word} ", ["har", "mor", "tra", "win"][word as usize % 4]));
        }
        text
    }
}

fn live_bytes(store: &LocalStore, now: SystemTime) -> u64 {
    let options = GarbageCollectionOptions {
        mode: GarbageCollectionMode::DryRun,
        retention: RevisionRetention::default(),
        ..GarbageCollectionOptions::at_time(now)
    };
    store.collect_garbage(&options, &mut |_| ControlFlow::Continue(())).unwrap().live_bytes
}

fn disk_bytes(folder: &Path) -> u64 {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}
