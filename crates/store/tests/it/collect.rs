//! Collecting garbage: nothing reachable goes, all else does, whatever happens meanwhile.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tympan_store::disk::Disk;
use tympan_store::{
    BlobId, ByteSize, ChunkBatch, ChunkId, ChunkStore, CollectionHold, Error,
    GarbageCollectionMode, GarbageCollectionOptions, GarbageCollectionProgress,
    GarbageCollectionReport, LocalStore, LocalStoreOptions, RecordCompression, RefUpdate,
    RevisionRetention, RootLease, RootPin, SortedMap, StoreRoot, body, check_store,
};
use tympan_testkit::crash_disk::{CrashDisk, UnsyncedWrites};

use crate::map_model::{Edits, Numbers, value};

fn open(disk: impl Disk + 'static, pack_limit: ByteSize) -> LocalStore {
    let cache = ByteSize::from_bytes(0);
    let options =
        LocalStoreOptions { pack_limit, cache_size: cache, compression: RecordCompression::Lz4 };
    LocalStore::open(Arc::new(disk), options).unwrap()
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

/// Collects without waiting.
fn collect(store: &LocalStore, options: &GarbageCollectionOptions) -> GarbageCollectionReport {
    store.collect_garbage(options, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// The options that leave nothing but what is live.
fn thorough(now: u64, retention: RevisionRetention) -> GarbageCollectionOptions {
    GarbageCollectionOptions {
        retention,
        min_live_share: 1.1,
        ..GarbageCollectionOptions::at_time(at(now))
    }
}

/// Reads everything that a root reaches; returns the ids of its chunks.
fn read_all(store: &dyn ChunkStore, root: ChunkId) -> Result<BTreeSet<ChunkId>, Error> {
    let mut seen = BTreeSet::from([root]);
    let mut waiting = VecDeque::from([root]);
    while let Some(id) = waiting.pop_front() {
        let chunk = store.read_chunk(&id)?;
        for blob in chunk.blob_refs() {
            assert!(store.read_blob(&blob)?.is_some(), "blob {blob} is gone");
        }
        waiting.extend(chunk.chunk_refs().filter(|id| seen.insert(*id)));
    }
    Ok(seen)
}

/// Stages a change of a state; few different texts, so that dropped content comes back.
fn change(
    store: &LocalStore,
    from: Option<ChunkId>,
    numbers: &mut Numbers,
) -> (ChunkBatch, ChunkId) {
    let mut batch = ChunkBatch::new();
    let map = match from {
        Some(root) => StoreRoot::read(store, &root).unwrap().map("content"),
        None => SortedMap::EMPTY_MAP,
    };
    let mut edits = Edits::new();
    for _ in 0..=numbers.below(5) {
        let n = numbers.below(40);
        let text = vec![b'a' + numbers.below(12) as u8; 200 + numbers.below(3) as usize * 700];
        let blob = BlobId::hash_of(&text);
        batch.add_blob(blob, text.clone().into());
        let mut page = value(format!("page {n} {}", numbers.below(3)));
        page.body = Some(body::write_body(&mut batch, &text, &[blob]).unwrap());
        edits.insert(format!("page-{n:03}").into_bytes(), Some(page));
    }
    let map = map.edit(store, &mut batch, edits).unwrap();
    let root = StoreRoot { maps: BTreeMap::from([("content".to_owned(), map)]) };
    let root = root.write(&mut batch).unwrap();
    (batch, root)
}

fn move_ref(name: &str, expected: Option<ChunkId>, new: Option<ChunkId>, now: u64) -> RefUpdate {
    let (author, message) = ("Ada".to_owned(), "test".to_owned());
    RefUpdate {
        name: name.to_owned(),
        expected_root: expected,
        new_root: new,
        updated_at: at(now),
        author,
        message,
    }
}

/// A writer that stores first and moves its ref later.
struct Pending {
    _hold: CollectionHold,
    /// The state that it was made from.
    _base: Option<RootPin>,
    name: String,
    root: ChunkId,
}

/// A store, and what must be readable in it.
struct World {
    disk: CrashDisk,
    store: LocalStore,
    numbers: Numbers,
    now: u64,
    refs: BTreeMap<String, ChunkId>,
    leases: BTreeMap<String, (ChunkId, u64)>,
    pins: Vec<RootPin>,
    pending: Vec<Pending>,
}

const LIMIT: ByteSize = ByteSize::from_kib(6);

impl World {
    fn new(seed: u64) -> Self {
        let disk = CrashDisk::new();
        let store = open(disk.clone(), LIMIT);
        Self {
            disk,
            store,
            numbers: Numbers(seed),
            now: 0,
            refs: BTreeMap::new(),
            leases: BTreeMap::new(),
            pins: Vec::new(),
            pending: Vec::new(),
        }
    }

    fn some_name(&mut self) -> String {
        format!("branch-{}", self.numbers.below(3))
    }

    fn some_root(&mut self) -> Option<ChunkId> {
        let roots: Vec<ChunkId> = self.refs.values().copied().collect();
        let index = self.numbers.below(roots.len().max(1) as u64) as usize;
        roots.get(index).copied()
    }

    fn step(&mut self) {
        self.now += self.numbers.below(4_000);
        match self.numbers.below(16) {
            0..=5 => self.commit(),
            6 => self.store_ahead(),
            7 => self.move_late(),
            8 => self.remove_ref(),
            9 => self.pins.extend(self.refs.values().next().map(|root| self.store.pin_root(*root))),
            10 => drop(self.pins.pop()),
            11 => self.grant(),
            12 => {
                let dir = self.disk.content("pack-000001").map(|pack| pack.len());
                assert!(dir != Some(0));
                self.reopen();
            }
            _ => self.collect(),
        }
        self.check();
    }

    fn commit(&mut self) {
        let name = self.some_name();
        let old = self.refs.get(&name).copied();
        let (mut batch, root) = change(&self.store, old, &mut self.numbers);
        batch.add_ref_update(move_ref(&name, old, Some(root), self.now));
        self.store.commit(batch).unwrap();
        self.refs.insert(name, root);
    }

    /// Stores a state without a ref, after asking what is there.
    fn store_ahead(&mut self) {
        let hold = self.store.begin_hold().unwrap();
        let name = self.some_name();
        let old = self.refs.get(&name).copied();
        let (batch, root) = change(&self.store, old, &mut self.numbers);
        let ids: Vec<ChunkId> = batch.chunks().map(|(id, _)| *id).collect();
        let present = self.store.contains_chunks(&ids).unwrap();
        let mut lacking = ChunkBatch::new();
        for ((_, bytes), is_here) in batch.chunks().zip(present) {
            if !is_here {
                lacking.add_chunk(bytes.clone());
            }
        }
        for (id, bytes) in batch.blobs() {
            if !self.store.contains_blob(id).unwrap() {
                lacking.add_blob(*id, bytes.clone());
            }
        }
        self.store.commit(lacking).unwrap();
        let base = old.map(|old| self.store.pin_root(old));
        self.pending.push(Pending { _hold: hold, _base: base, name, root });
    }

    fn move_late(&mut self) {
        let Some(pending) = self.pending.pop() else {
            return;
        };
        let old = self.refs.get(&pending.name).copied();
        let mut batch = ChunkBatch::new();
        batch.add_ref_update(move_ref(&pending.name, old, Some(pending.root), self.now));
        self.store.commit(batch).unwrap();
        self.refs.insert(pending.name, pending.root);
    }

    fn remove_ref(&mut self) {
        let name = self.some_name();
        if let Some(old) = self.refs.remove(&name) {
            let mut batch = ChunkBatch::new();
            batch.add_ref_update(move_ref(&name, Some(old), None, self.now));
            self.store.commit(batch).unwrap();
        }
    }

    fn grant(&mut self) {
        let holder = format!("client {}", self.numbers.below(3));
        let mut batch = ChunkBatch::new();
        match self.some_root() {
            Some(root) if self.numbers.below(3) > 0 => {
                let expires = self.now + self.numbers.below(20_000);
                batch.grant_lease(RootLease {
                    holder: holder.clone(),
                    root,
                    expires_at: Some(at(expires)),
                });
                self.leases.insert(holder, (root, expires));
            }
            _ => {
                batch.release_lease(holder.clone());
                self.leases.remove(&holder);
            }
        }
        self.store.commit(batch).unwrap();
    }

    /// Ends the process: pins and holds go, and what was stored under them may.
    fn reopen(&mut self) {
        self.pending.clear();
        self.pins.clear();
        self.store = open(CrashDisk::new(), LIMIT);
        self.store = open(self.disk.clone(), LIMIT);
    }

    fn collect(&mut self) {
        let hours = |hours| Duration::from_hours(hours);
        let retention = match self.numbers.below(3) {
            0 => RevisionRetention::KEEP_NEWEST,
            1 => RevisionRetention {
                full_period: hours(2),
                hourly_count: 3,
                daily_count: 1,
                weekly_count: 0,
            },
            _ => RevisionRetention { full_period: hours(20), ..RevisionRetention::KEEP_NEWEST },
        };
        let mode = if self.numbers.below(5) == 0 {
            GarbageCollectionMode::DryRun
        } else {
            GarbageCollectionMode::Remove
        };
        let min_live = [0.3, 0.6, 1.1][self.numbers.below(3) as usize];
        let options = GarbageCollectionOptions {
            retention,
            min_live_share: min_live,
            mode,
            ..GarbageCollectionOptions::at_time(at(self.now))
        };
        let stop_after = self.numbers.below(60);
        let writes = self.numbers.below(4);
        let Self { store, numbers, refs, now, .. } = self;
        let mut steps = 0;
        // Between any two steps of the collection, someone commits what was garbage when it began.
        let mut pace = |_: &GarbageCollectionProgress| {
            steps += 1;
            if numbers.below(4) < writes {
                let name = format!("branch-{}", numbers.below(3));
                let old = refs.get(&name).copied();
                let (mut batch, root) = change(store, old, numbers);
                batch.add_ref_update(move_ref(&name, old, Some(root), *now));
                store.commit(batch).unwrap();
                refs.insert(name, root);
            }
            if steps == stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        store.collect_garbage(&options, &mut pace).unwrap();
        self.leases.retain(|_, (_, expires)| *expires > self.now);
    }

    fn check(&self) {
        let refs: BTreeMap<String, ChunkId> = self.store.list_refs().unwrap().into_iter().collect();
        assert_eq!(refs, self.refs);
        let mut roots: Vec<ChunkId> = refs.values().copied().collect();
        roots.extend(self.pins.iter().map(RootPin::root));
        roots.extend(self.pending.iter().map(|pending| pending.root));
        let live = self.leases.values().filter(|(_, expires)| *expires > self.now);
        roots.extend(live.map(|(root, _)| *root));
        for name in ["branch-0", "branch-1", "branch-2"] {
            let history = self.store.ref_history(name, None, usize::MAX).unwrap();
            assert!(history.is_sorted_by(|left, right| left.sequence > right.sequence));
            assert_eq!(
                history.first().and_then(|one| one.update.new_root),
                refs.get(name).copied()
            );
            roots.extend(history.iter().filter_map(|one| one.update.new_root));
        }
        for root in roots {
            read_all(&self.store, root).unwrap_or_else(|error| panic!("at {}: {error}", self.now));
        }
    }

    /// Lets everything go but the refs, and checks that nothing else is left.
    fn finish(mut self) {
        self.pending.clear();
        self.pins.clear();
        self.now += 1_000_000;
        self.store.begin_hold().unwrap();
        for _ in 0..2 {
            collect(&self.store, &thorough(self.now, RevisionRetention::KEEP_NEWEST));
        }
        let mut live = BTreeSet::new();
        for root in self.refs.values() {
            live.extend(read_all(&self.store, *root).unwrap());
        }
        self.reopen();
        let report = check_store(&self.store).unwrap();
        assert!(report.is_clean(), "{report:?}");
        // The open pack, of 6 KiB at most, is not collected; everything else is gone.
        let spare = report.chunk_count - live.len() as u64;
        assert!(spare < 30, "{spare} chunks of {} are garbage", report.chunk_count);
        self.check();
    }
}

#[test]
fn nothing_reachable_goes_whatever_happens_between_collections() {
    let seeds = std::env::var("TYMPAN_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    for seed in 0..seeds.unwrap_or(8) {
        let mut world = World::new(seed);
        for _ in 0..120 {
            world.step();
        }
        world.finish();
    }
}

#[test]
fn garbage_is_given_back_and_counted() {
    let disk = CrashDisk::new();
    let store = open(disk.clone(), ByteSize::from_mib(1));
    let mut numbers = Numbers(5);
    let mut root = None;
    for n in 0..300 {
        let (mut batch, new) = change(&store, root, &mut numbers);
        batch.add_ref_update(move_ref("main", root, Some(new), n));
        store.commit(batch).unwrap();
        root = Some(new);
    }
    let size = |disk: &CrashDisk| -> usize {
        let names = disk.list_folder("").unwrap();
        let files = names.iter().filter(|name| !name.ends_with(".index"));
        files.filter_map(|name| disk.content(name)).map(|bytes| bytes.len()).sum()
    };
    let before = size(&disk);
    let options = GarbageCollectionOptions {
        mode: GarbageCollectionMode::DryRun,
        ..thorough(400, RevisionRetention::KEEP_NEWEST)
    };
    let calls = disk.call_count();
    let dry = collect(&store, &options);
    assert_eq!(disk.call_count(), calls, "a dry run writes nothing");
    assert_eq!(dry.dropped_revisions, 299);
    assert_eq!(store.ref_history("main", None, 1_000).unwrap().len(), 300);
    let done = collect(&store, &thorough(400, RevisionRetention::KEEP_NEWEST));
    assert_eq!((done.retained_revisions, done.dropped_revisions), (1, 299));
    assert_eq!(store.ref_history("main", None, 1_000).unwrap().len(), 1);
    let after = size(&disk);
    assert!(after * 4 < before, "{before} became {after}");
    assert!(
        done.retainers.iter().any(|one| one.description == "ref `main`" && one.retained_bytes > 0)
    );
    assert_eq!(done.generation, 1);
    // Bytes freed are those that the folder lost, but for the end of one pack and the beginning of another.
    let lost = (before - after) as u64;
    assert!(done.freed_bytes.abs_diff(lost) < 2_000, "{done:?}, {lost}");
    read_all(&store, root.unwrap()).unwrap();
}

#[test]
fn small_packs_are_brought_together() {
    let disk = CrashDisk::new();
    let store = open(disk.clone(), ByteSize::from_mib(16));
    let mut numbers = Numbers(9);
    let mut root = None;
    for round in 0..40 {
        let mut batch = ChunkBatch::new();
        let map = root.map_or(SortedMap::EMPTY_MAP, |root| {
            StoreRoot::read(&store, &root).unwrap().map("content")
        });
        let noise: Vec<u8> = (0..70_000).map(|_| numbers.below(256) as u8).collect();
        let mut page = value("page");
        page.body = Some(body::write_body(&mut batch, &noise, &[]).unwrap());
        let edits = Edits::from([(format!("page-{round:03}").into_bytes(), Some(page))]);
        let map = map.edit(&store, &mut batch, edits).unwrap();
        let maps = BTreeMap::from([("content".to_owned(), map)]);
        let new = StoreRoot { maps }.write(&mut batch).unwrap();
        batch.add_ref_update(move_ref("main", root, Some(new), round));
        store.commit(batch).unwrap();
        root = Some(new);
        // Next to nothing is garbage, and each collection ends a pack.
        collect(&store, &GarbageCollectionOptions::at_time(at(round)));
        let names = disk.list_folder("").unwrap();
        let packs = names.iter().filter(|name| !name.ends_with(".index")).count();
        assert!(packs <= 12, "{packs} packs after {} collections", round + 1);
    }
    assert!(check_store(&store).unwrap().is_clean());
}

#[test]
fn a_power_cut_at_any_call_of_a_collection_loses_nothing() {
    let disk = CrashDisk::new();
    let store = open(disk.clone(), ByteSize::from_kib(8));
    let mut numbers = Numbers(9);
    let mut roots: Vec<ChunkId> = Vec::new();
    for n in 0..25 {
        let old = roots.last().copied();
        let (mut batch, new) = change(&store, old, &mut numbers);
        batch.add_ref_update(move_ref("main", old, Some(new), n));
        store.commit(batch).unwrap();
        roots.push(new);
        if n % 8 == 7 {
            let before = disk.call_count();
            collect(&store, &thorough(n, RevisionRetention::KEEP_NEWEST));
            for calls in before..=disk.call_count() {
                for unsynced in
                    [UnsyncedWrites::Lost, UnsyncedWrites::Persisted, UnsyncedWrites::Reordered(64)]
                {
                    let crashed = open(disk.crash(calls, unsynced), ByteSize::from_kib(8));
                    assert_eq!(crashed.read_ref("main").unwrap(), Some(new));
                    read_all(&crashed, new).unwrap();
                    let report = check_store(&crashed).unwrap();
                    assert!(report.is_clean(), "after call {calls}, {unsynced:?}: {report:?}");
                    let history = crashed.ref_history("main", None, 100).unwrap();
                    for one in history.iter().filter_map(|one| one.update.new_root) {
                        read_all(&crashed, one).unwrap();
                    }
                    // The next collection makes an end of what this one began.
                    collect(&crashed, &thorough(n, RevisionRetention::KEEP_NEWEST));
                    read_all(&crashed, new).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_full_disk_ends_a_collection_and_nothing_else() {
    let disk = CrashDisk::new();
    let store = open(disk.clone(), ByteSize::from_kib(16));
    let mut numbers = Numbers(2);
    let mut root = None;
    for n in 0..60 {
        let (mut batch, new) = change(&store, root, &mut numbers);
        batch.add_ref_update(move_ref("main", root, Some(new), n));
        store.commit(batch).unwrap();
        root = Some(new);
    }
    let mut refused = 0;
    for room in (0..6_000).step_by(500) {
        disk.set_free_bytes(Some(room));
        match store.collect_garbage(&thorough(60, RevisionRetention::KEEP_NEWEST), &mut |_| {
            ControlFlow::Continue(())
        }) {
            Ok(_) => {}
            Err(Error::FileWrite { .. }) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        assert_eq!(store.write_failure(), None);
        read_all(&store, root.unwrap()).unwrap();
    }
    assert!(refused > 3, "{refused} refusals");
    disk.set_free_bytes(None);
    let (mut batch, new) = change(&store, root, &mut numbers);
    batch.add_ref_update(move_ref("main", root, Some(new), 61));
    store.commit(batch).unwrap();
    collect(&store, &thorough(62, RevisionRetention::KEEP_NEWEST));
    drop(store);
    let store = open(disk, ByteSize::from_kib(16));
    assert!(check_store(&store).unwrap().is_clean());
    read_all(&store, new).unwrap();
}

#[test]
fn what_a_follower_has_seen_last_stays() {
    let store = open(CrashDisk::new(), LIMIT);
    let mut numbers = Numbers(4);
    let mut roots = Vec::new();
    for n in 0..20 {
        let old = roots.last().copied();
        let (mut batch, new) = change(&store, old, &mut numbers);
        batch.add_ref_update(move_ref("main", old, Some(new), n));
        store.commit(batch).unwrap();
        roots.push(new);
    }
    let keep = BTreeSet::from([roots[7], ChunkId::hash_of(b"of another store")]);
    for _ in 0..2 {
        let options = GarbageCollectionOptions {
            retained_roots: keep.clone(),
            ..thorough(1_000, RevisionRetention::KEEP_NEWEST)
        };
        collect(&store, &options);
        read_all(&store, roots[7]).unwrap();
    }
    let history = store.ref_history("main", None, 100).unwrap();
    let kept: Vec<_> = history.iter().filter_map(|one| one.update.new_root).collect();
    assert_eq!(kept, [roots[19], roots[7]]);
    collect(&store, &thorough(1_000, RevisionRetention::KEEP_NEWEST));
    assert!(read_all(&store, roots[7]).is_err());
}

#[test]
fn a_chunk_that_was_never_committed_may_lose_what_it_refers_to() {
    let store = open(CrashDisk::new(), LIMIT);
    let mut numbers = Numbers(8);
    // Garbage from the beginning: a state that nothing keeps, and later, under a hold, what is made from it.
    let mut first = ChunkBatch::new();
    let records = (0..400).map(|n| (format!("{n:03}").into_bytes(), value("word ".repeat(30))));
    let base = SortedMap::build(&mut first, records).unwrap();
    store.commit(first).unwrap();
    let mut second = ChunkBatch::new();
    let edits = Edits::from([(b"007".to_vec(), Some(value("changed")))]);
    let unfinished = base.edit(&store, &mut second, edits).unwrap().root().unwrap();
    for n in 0..30 {
        let old = store.read_ref("main").unwrap();
        let (mut batch, new) = change(&store, old, &mut numbers);
        batch.add_ref_update(move_ref("main", old, Some(new), n));
        store.commit(batch).unwrap();
    }
    let hold = store.begin_hold().unwrap();
    store.commit(second).unwrap();
    collect(&store, &thorough(100, RevisionRetention::KEEP_NEWEST));
    drop(hold);
    assert!(read_all(&store, unfinished).is_err(), "its base is gone");
    // Whoever finds the chunk present now does not keep collections from running.
    let _hold = store.begin_hold().unwrap();
    assert_eq!(store.contains_chunks(&[unfinished]).unwrap(), [true]);
    collect(&store, &thorough(200, RevisionRetention::KEEP_NEWEST));
    assert_eq!(store.contains_chunks(&[unfinished]).unwrap(), [true]);
}

#[test]
fn only_one_collection_runs_at_a_time() {
    let store = LocalStore::open_in_memory().unwrap();
    let mut batch = ChunkBatch::new();
    let state = StoreRoot { maps: BTreeMap::new() }.write(&mut batch).unwrap();
    let text = body::write_body(&mut batch, b"text", &[]).unwrap();
    let map = {
        let page = tympan_store::MapValue { body: Some(text), ..value("page") };
        SortedMap::build(&mut batch, [(b"page".to_vec(), page)].into_iter()).unwrap()
    };
    let root = StoreRoot { maps: [("content".to_owned(), map)].into() }.write(&mut batch).unwrap();
    batch.add_ref_update(move_ref("main", None, Some(root), 0));
    store.commit(batch).unwrap();
    assert_ne!(root, state);
    let mut inner = Vec::new();
    let options = thorough(1, RevisionRetention::KEEP_NEWEST);
    let outer = store.collect_garbage(&options, &mut |_| {
        inner.push(store.collect_garbage(&options, &mut |_| ControlFlow::Continue(())).is_err());
        ControlFlow::Continue(())
    });
    assert!(outer.is_ok());
    assert!(!inner.is_empty() && inner.iter().all(|is_refused| *is_refused));
}

#[test]
fn a_ref_goes_only_to_what_is_here() {
    let store = LocalStore::open_in_memory().unwrap();
    let mut batch = ChunkBatch::new();
    batch.add_ref_update(move_ref("main", None, Some(ChunkId::hash_of(b"nothing")), 0));
    assert!(matches!(store.commit(batch), Err(Error::ChunkMissing { .. })));
    let mut batch = ChunkBatch::new();
    let root = ChunkId::hash_of(b"nothing");
    batch.grant_lease(RootLease { holder: "client".to_owned(), root, expires_at: None });
    assert!(matches!(store.commit(batch), Err(Error::ChunkMissing { .. })));
}

/// Writers, readers and a collector at once. Each writer brings back content that was garbage a moment ago.
#[test]
fn collections_run_beside_writers_and_readers() {
    let disk = CrashDisk::new();
    let store = Arc::new(open(disk.clone(), LIMIT));
    let is_done = AtomicBool::new(false);
    let (collections, reads) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3_u64)
            .map(|writer| {
                let store = &store;
                scope.spawn(move || {
                    let mut numbers = Numbers(writer);
                    let name = format!("writer-{writer}");
                    let mut root = None;
                    for n in 0..250 {
                        // Now and then in two steps, the second of which relies on the first.
                        let hold = (n % 3 == 0).then(|| store.begin_hold().unwrap());
                        let (mut batch, new) = change(store, root, &mut numbers);
                        if hold.is_some() {
                            store.commit(std::mem::take(&mut batch)).unwrap();
                        }
                        batch.add_ref_update(move_ref(&name, root, Some(new), n));
                        store.commit(batch).unwrap();
                        read_all(store.as_ref(), new).unwrap();
                        root = Some(new);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                for (_, root) in store.list_refs().unwrap() {
                    let _pin = store.pin_root(root);
                    // Between the look at the ref and the pin, another commit and a collection may have come.
                    if store.list_refs().unwrap().iter().any(|(_, now)| *now == root) {
                        read_all(store.as_ref(), root).unwrap();
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                collect(&store, &thorough(1_000, RevisionRetention::KEEP_NEWEST));
                collections.fetch_add(1, Ordering::Relaxed);
            }
        });
        let ended: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_done.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
    assert!(collections.into_inner() > 0 && reads.into_inner() > 0);
    let refs = store.list_refs().unwrap();
    drop(store);
    let store = open(disk, ByteSize::from_kib(64));
    assert_eq!(store.list_refs().unwrap(), refs);
    assert!(check_store(&store).unwrap().is_clean());
}
