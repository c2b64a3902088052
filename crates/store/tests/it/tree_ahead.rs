//! Stores where round trips cost, and how much of a tree a walk holds.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use proptest::prelude::*;
use tympan_store::key::KeyRange;
use tympan_store::{
    Chunk, ChunkBatch, ChunkId, ChunkKind, ChunkStore, ConflictResolution, LocalStore, MapChange,
    MapValue, ReadChunks, Result, SortedMap,
};

use crate::map_model::{Edits, Model, Numbers, build, edit, value};
use crate::tree::{check_content, edits, keys, model, site, site_key};
use crate::tree_merge::scattered;

const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

/// A store behind a network: counts round trips and chunks, and how many chunks are held at most at a time.
struct Remote<'a> {
    store: &'a LocalStore,
    has_costly_round_trips: bool,
    trips: AtomicU64,
    chunks: AtomicU64,
    held: Arc<Held>,
}

#[derive(Default)]
struct Held {
    now: AtomicU64,
    most: AtomicU64,
}

/// The bytes of a chunk that is held.
struct Tracked {
    bytes: Bytes,
    held: Arc<Held>,
}

impl AsRef<[u8]> for Tracked {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.held.now.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<'a> Remote<'a> {
    fn new(store: &'a LocalStore) -> Self {
        let (trips, chunks) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { store, has_costly_round_trips: true, trips, chunks, held: Arc::default() }
    }

    /// A store beside the program, of which only the chunks that are held count.
    fn near(store: &'a LocalStore) -> Self {
        Self { has_costly_round_trips: false, ..Self::new(store) }
    }

    /// Returns the round trips and the chunks since the last call.
    fn take(&self) -> (u64, u64) {
        (self.trips.swap(0, Ordering::Relaxed), self.chunks.swap(0, Ordering::Relaxed))
    }

    /// Returns the most chunks that were held at a time.
    fn most_held(&self) -> u64 {
        self.held.most.swap(0, Ordering::Relaxed)
    }

    fn fetch(&self, id: &ChunkId) -> Result<Chunk> {
        self.chunks.fetch_add(1, Ordering::Relaxed);
        let bytes = self.store.read_chunk(id)?.bytes().clone();
        let now = self.held.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.held.most.fetch_max(now, Ordering::Relaxed);
        Chunk::parse(Bytes::from_owner(Tracked { bytes, held: Arc::clone(&self.held) }))
    }
}

impl ReadChunks for Remote<'_> {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        self.trips.fetch_add(1, Ordering::Relaxed);
        self.fetch(id)
    }

    fn read_chunks(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        self.trips.fetch_add(1, Ordering::Relaxed);
        ids.iter().map(|id| self.fetch(id)).collect()
    }

    fn has_costly_round_trips(&self) -> bool {
        self.has_costly_round_trips
    }
}

fn stored(store: &LocalStore, count: u64) -> SortedMap {
    let mut batch = ChunkBatch::new();
    let map = SortedMap::build(&mut batch, site(count)).unwrap();
    store.commit(batch).unwrap();
    map
}

/// Returns the chunks of a map's tree.
fn chunks_of(store: &LocalStore, map: &SortedMap) -> BTreeSet<ChunkId> {
    let mut found = BTreeSet::new();
    let mut open: Vec<ChunkId> = map.root().into_iter().collect();
    while let Some(id) = open.pop() {
        let chunk = store.read_chunk(&id).unwrap();
        found.insert(id);
        if chunk.kind() == ChunkKind::Interior {
            open.extend(chunk.chunk_refs());
        }
    }
    found
}

/// Returns how many chunks a difference reads, and how many only one of the maps has.
fn diff_cost(store: &LocalStore, left: &SortedMap, right: &SortedMap) -> (u64, u64) {
    let near = Remote::near(store);
    assert!(left.diff(right, &near).all(|change| change.is_ok()));
    let [left, right] = [left, right].map(|map| chunks_of(store, map));
    (near.take().1, left.symmetric_difference(&right).count() as u64)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn what_is_read_ahead_is_what_is_read(
        model in model(),
        edits in edits(),
        (low, high) in (keys(), keys()),
        skip in 0..200_u64,
    ) {
        let store = LocalStore::open_in_memory().unwrap();
        let map = build(&store, &model);
        let edited = edit(&store, map, &edits).0;
        let remote = Remote::new(&store);
        let range = (Bound::Included(low.as_slice()), Bound::Excluded(high.as_slice()));
        for range in [ALL, range] {
            for skip in [0, skip] {
                let scan = |reads| -> Vec<_> {
                    map.range(reads, range).skip_records(skip).map(Result::unwrap).collect()
                };
                prop_assert_eq!(scan(&remote), scan(&store));
                let back = |reads| -> Vec<_> {
                    map.range_reversed(reads, range).skip_records(skip).map(Result::unwrap).collect()
                };
                prop_assert_eq!(back(&remote), back(&store));
            }
        }
        let diff = |reads| -> Vec<MapChange> { map.diff(&edited, reads).map(Result::unwrap).collect() };
        prop_assert_eq!(diff(&remote), diff(&store));
    }

    #[test]
    fn a_difference_reads_hardly_more_than_what_only_one_map_has(
        model in model(),
        rounds in proptest::collection::vec(edits(), 1..4),
    ) {
        let store = LocalStore::open_in_memory().unwrap();
        let map = build(&store, &model);
        let mut edited = map;
        for edits in &rounds {
            edited = edit(&store, edited, edits).0;
            let (read, differing) = diff_cost(&store, &map, &edited);
            // A chunk that stays is read where its shortened separator does not tell that what is new precedes it.
            prop_assert!(read <= 2 * differing, "{} read, {} differ", read, differing);
        }
    }

    #[test]
    fn many_keys_at_once(
        model in model(),
        absent in proptest::collection::vec(keys(), 0..20),
        order in any::<u64>(),
    ) {
        let store = LocalStore::open_in_memory().unwrap();
        let map = build(&store, &model);
        let mut asked: Vec<Vec<u8>> = model.keys().cloned().chain(absent).collect();
        let mut numbers = Numbers(order);
        for index in (1..asked.len()).rev() {
            asked.swap(index, numbers.below(index as u64 + 1) as usize);
        }
        asked.extend(asked.first().cloned());
        let found = map.get_many(&store, &asked).unwrap();
        let expected: Vec<_> = asked.iter().map(|key| model.get(key).cloned()).collect();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn many_keys_cost_one_round_trip_per_level() {
    let store = LocalStore::open_in_memory().unwrap();
    let map = stored(&store, 100_000);
    let remote = Remote::new(&store);
    let mut numbers = Numbers(5);
    map.get(&remote, &site_key(0)).unwrap();
    let (height, _) = remote.take();
    for count in [1, 10, 500] {
        let keys: Vec<_> = (0..count).map(|_| site_key(numbers.below(100_000))).collect();
        let found = map.get_many(&remote, &keys).unwrap();
        assert!(found.iter().all(Option::is_some));
        let (trips, chunks) = remote.take();
        assert_eq!(trips, height, "{count} keys");
        assert!(chunks <= height * count, "{chunks} chunks for {count} keys");
    }
    assert!(map.get_many::<&[u8]>(&remote, &[]).unwrap().is_empty());
    assert_eq!(SortedMap::EMPTY_MAP.get_many(&remote, &[site_key(1)]).unwrap(), [None]);
    assert_eq!(remote.take(), (0, 0));
}

#[test]
fn scattered_edits_cost_one_round_trip_per_level() {
    let store = LocalStore::open_in_memory().unwrap();
    let map = stored(&store, 100_000);
    let remote = Remote::new(&store);
    map.get(&remote, &site_key(0)).unwrap();
    let (height, _) = remote.take();
    for round in 0..5 {
        let saved = scattered(&mut Numbers(round), 100_000, 100, "saved");
        let edited = map.edit(&remote, &mut ChunkBatch::new(), saved.clone()).unwrap();
        // Where an edit moves the limit of a chunk, the next one is read.
        let (trips, chunks) = remote.take();
        assert!(trips <= height + 45, "{trips} trips, {chunks} chunks for 100 edits");
        assert_eq!(edited, edit(&store, map, &saved).0);
    }
}

#[test]
fn a_scan_reads_ahead_in_growing_windows() {
    let store = LocalStore::open_in_memory().unwrap();
    let map = stored(&store, 100_000);
    let remote = Remote::new(&store);
    assert!(map.range(&remote, ALL).next().is_some());
    let (height, chunks) = remote.take();
    assert_eq!(height, chunks, "one record needs one path");
    // A folder of 100 pages is about four leaves.
    assert_eq!(map.range(&remote, ALL).take(100).count(), 100);
    let (trips, chunks) = remote.take();
    assert!(trips <= height + 3 && chunks <= height + 10, "{trips} trips, {chunks} chunks");
    assert_eq!(map.range(&remote, ALL).count(), 100_000);
    let (trips, chunks) = remote.take();
    assert!(trips <= chunks / 12, "{trips} trips for {chunks} chunks");
    // The range ends the reading ahead.
    let start = site_key(40_000);
    let range = (Bound::Included(start.as_slice()), Bound::Excluded(&start[..start.len() - 1]));
    assert_eq!(map.range(&remote, range).count(), 0);
    assert!(remote.take().1 <= height);
}

#[test]
fn a_difference_costs_few_round_trips() {
    let store = LocalStore::open_in_memory().unwrap();
    let map = stored(&store, 100_000);
    let mut numbers = Numbers(17);
    for (changes, most) in [(1, 4), (100, 90), (2_000, 230)] {
        let edited = edit(&store, map, &scattered(&mut numbers, 100_000, changes, "new")).0;
        let near = Remote::near(&store);
        let expected: Vec<MapChange> = map.diff(&edited, &near).map(Result::unwrap).collect();
        let (_, needed) = near.take();
        let remote = Remote::new(&store);
        let found: Vec<MapChange> = map.diff(&edited, &remote).map(Result::unwrap).collect();
        assert_eq!(found, expected);
        let (trips, chunks) = remote.take();
        assert!(trips <= most, "{trips} trips, {chunks} chunks for {changes} changes");
        assert_eq!(chunks, needed, "chunks for {changes} changes");
    }
}

#[test]
fn a_difference_of_pages_reads_what_only_one_map_has() {
    let store = LocalStore::open_in_memory().unwrap();
    let map = stored(&store, 20_000);
    let mut numbers = Numbers(29);
    for round in 0..60 {
        let count = [1, 1, 1, 20][round % 4];
        let edited = edit(&store, map, &scattered(&mut numbers, 20_000, count, "new")).0;
        let (read, differing) = diff_cost(&store, &map, &edited);
        assert_eq!(read, differing, "round {round}");
    }
}

#[test]
fn walks_over_a_million_records_hold_a_path() {
    let store = LocalStore::open_in_memory().unwrap();
    let key = |n: u32| format!("content\u{1}magazine\0page-{n:07}").into_bytes();
    let records = |text: &'static str| (0..1_000_000).map(move |n| (key(n), value(text)));
    let mut batch = ChunkBatch::new();
    let [old, new] =
        ["old", "new"].map(|text| SortedMap::build(&mut batch, records(text)).unwrap());
    store.commit(batch).unwrap();
    let near = Remote::near(&store);
    assert_eq!(old.range(&near, ALL).count(), 1_000_000);
    assert!(near.most_held() <= 6, "a scan holds a path");
    assert_eq!(old.range_reversed(&near, ALL).take(200_000).count(), 200_000);
    assert!(near.most_held() <= 6, "so does one backwards");
    assert_eq!(old.diff(&new, &near).count(), 1_000_000);
    assert!(near.most_held() <= 12, "a difference holds two");

    let remote = Remote::new(&store);
    assert_eq!(old.range(&remote, ALL).count(), 1_000_000);
    let held = remote.most_held();
    assert!(held <= 32 * 3, "{held} chunks held: a window per level");
    assert_eq!(old.diff(&new, &remote).take(200_000).count(), 200_000);
    let held = remote.most_held();
    assert!(held <= 2 * 32 * 3, "{held} chunks held: two windows per level");
}

#[test]
fn a_moved_range_streams() {
    let store = LocalStore::open_in_memory().unwrap();
    let map = stored(&store, 50_000);
    let near = Remote::near(&store);
    let range = KeyRange { start: site_key(10_000), end: Some(site_key(40_000)) };
    for is_move in [false, true] {
        let mut batch = ChunkBatch::new();
        let mut count = 0_u64;
        let rewrite = |key: &[u8], value: &MapValue| {
            count += 1;
            Ok(([b"moved", key].concat(), value.clone()))
        };
        let moved = if is_move {
            map.move_range(&near, &mut batch, &range, rewrite).unwrap()
        } else {
            map.copy_range(&near, &mut batch, &range, rewrite).unwrap()
        };
        assert_eq!(count, 30_000);
        let (_, read) = near.take();
        let held = near.most_held();
        assert!(held <= 16 && read > 1_000, "{held} of {read} chunks held");
        store.commit(batch).unwrap();
        let expected = if is_move { 50_000 } else { 80_000 };
        assert_eq!(moved.count_records(&store).unwrap(), expected);
    }
}

#[test]
fn a_merge_of_many_changes_streams() {
    let store = LocalStore::open_in_memory().unwrap();
    let base_model: Model = site(20_000).collect();
    let base = build(&store, &base_model);
    let changed = |from: usize, text: &str| -> Edits {
        (0..20_000).skip(from).step_by(2).map(|n| (site_key(n), Some(value(text)))).collect()
    };
    let [ours, theirs] =
        [(0, "ours"), (1, "theirs")].map(|(from, text)| edit(&store, base, &changed(from, text)).0);
    let near = Remote::near(&store);
    let mut batch = ChunkBatch::new();
    let merged = base
        .merge(&ours, &theirs, &near)
        .apply_merge(&mut batch, |_| Ok(ConflictResolution::Unresolved))
        .unwrap();
    assert!(merged.unresolved.is_empty());
    let (_, read) = near.take();
    let held = near.most_held();
    assert!(held <= read / 10, "{held} of {read} chunks held");
    store.commit(batch).unwrap();
    let mut model = base_model;
    model.extend((0..20_000).map(|n| (site_key(n), value(["ours", "theirs"][n as usize % 2]))));
    check_content(&store, &merged.map, &model);
}
