//! What every chunk store does, asked of each of them: in memory, in packs, in PostgreSQL.
//!
//! A behavior is a function of an empty store; `conformance!` makes a test of each for one kind of store.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use proptest::prelude::*;
use tympan_store::disk::{FileDisk, MemoryDisk};
use tympan_store::{
    BlobId, ByteSize, ChunkBatch, ChunkId, ChunkStore, CollectionHold, Error,
    GarbageCollectionMode, GarbageCollectionOptions, GarbageCollectionReport, LocalStore,
    LocalStoreOptions, MapValue, PostgresOptions, PostgresStore, RefUpdate, RevisionRetention,
    RootLease, RootPin, SortedMap, StoreRoot, body,
};
use tympan_testkit::postgres_server::PostgresServer;

use crate::map_model::{Numbers, moves};

/// An empty store, and what has to live as long as it.
pub(crate) struct Fixture {
    pub(crate) store: Arc<dyn ChunkStore>,
    _kept: Option<tempfile::TempDir>,
}

/// Packs this small turn often; nothing is read from a cache, which might hide what is gone.
fn local_options() -> LocalStoreOptions {
    let (cache, pack_limit) = (ByteSize::from_bytes(0), ByteSize::from_kib(96));
    LocalStoreOptions { cache_size: cache, pack_limit, ..LocalStoreOptions::default() }
}

fn memory() -> Fixture {
    let store = LocalStore::open(Arc::new(MemoryDisk::new()), local_options()).unwrap();
    Fixture { store: Arc::new(store), _kept: None }
}

fn packs() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let disk = FileDisk::open(dir.path().join("store")).unwrap();
    let store = LocalStore::open(Arc::new(disk), local_options()).unwrap();
    Fixture { store: Arc::new(store), _kept: Some(dir) }
}

/// Options for a schema of its own on the server that the tests share.
pub(crate) fn postgres_options() -> PostgresOptions {
    PostgresOptions {
        schema: PostgresServer::unique_schema_name(),
        max_connections: 4,
        wait_timeout: Duration::from_secs(20),
        cache_size: ByteSize::from_bytes(0),
        // One process knows its own pins at once.
        grace_period: Duration::ZERO,
        ..PostgresOptions::new(PostgresServer::shared_server().url())
    }
}

fn postgres() -> Fixture {
    let store = PostgresStore::open(postgres_options()).unwrap();
    Fixture { store: Arc::new(store), _kept: None }
}

fn composite() -> Fixture {
    Fixture { store: crate::composite::fresh(local_options()), _kept: None }
}

macro_rules! conformance {
    ($store:ident, $cases:literal: $($behavior:ident),+ $(,)?) => {
        mod $store {
            $(#[test]
            fn $behavior() {
                let fixture = super::$store();
                super::$behavior(&*fixture.store);
            })+

            #[test]
            fn no_interleaving_loses_what_is_reachable() {
                super::no_interleaving_loses_what_is_reachable(super::$store, $cases);
            }
        }
    };
}

macro_rules! every_behavior {
    ($($store:ident: $cases:literal),+ $(,)?) => {
        $(conformance! {
            $store, $cases:
            a_ref_moves_by_compare_and_swap,
            moves_of_one_batch_follow_each_other_or_none_is_done,
            history_is_read_newest_first_in_pages,
            leases_are_granted_renewed_and_released,
            chunks_are_read_alone_and_together,
            small_blobs_are_read_by_digest_and_length,
            names_and_roots_are_checked,
            every_one_of_many_writers_gets_its_turn,
            garbage_goes_and_the_rest_stays,
            a_dry_run_counts_and_removes_nothing,
            pins_and_leases_keep_their_roots,
            holds_keep_what_was_stored_and_what_was_found,
            history_keeps_what_retention_says,
            a_collection_can_be_stopped,
            one_collection_runs_at_a_time,
        })+
    };
}

every_behavior! { memory: 48, packs: 12, composite: 24, postgres: 12 }

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

fn body_of(batch: &mut ChunkBatch, text: &str) -> ChunkId {
    body::write_body(batch, text.as_bytes(), &[]).unwrap()
}

/// Stages a state of some bodies that do not compress, one of which names a small blob.
fn state(batch: &mut ChunkBatch, seeds: impl IntoIterator<Item = u64>) -> ChunkId {
    let mut records = BTreeMap::new();
    for seed in seeds {
        let mut numbers = Numbers(seed);
        let bytes: Vec<u8> =
            (0..1_000).flat_map(|_| numbers.below(u64::MAX).to_le_bytes()).collect();
        let text = Bytes::from(format!("blob {seed}"));
        let blob = BlobId::hash_of(&text);
        batch.add_blob(blob, text);
        let body = Some(body::write_body(batch, &bytes, &[blob]).unwrap());
        records.insert(seed.to_be_bytes().to_vec(), MapValue { bytes: Bytes::new(), body });
    }
    let map = SortedMap::build(batch, records.into_iter()).unwrap();
    StoreRoot { maps: BTreeMap::from([("content".to_owned(), map)]) }.write(batch).unwrap()
}

fn move_at(name: &str, expected: Option<ChunkId>, new: Option<ChunkId>, now: u64) -> RefUpdate {
    RefUpdate { updated_at: at(now), ..moves(name, expected, new) }
}

/// Commits a state of these bodies to a ref.
fn commit_state(store: &dyn ChunkStore, name: &str, seeds: &[u64], now: u64) -> ChunkId {
    let mut batch = ChunkBatch::new();
    let root = state(&mut batch, seeds.iter().copied());
    batch.add_ref_update(move_at(name, store.read_ref(name).unwrap(), Some(root), now));
    store.commit(batch).unwrap();
    root
}

fn remove_ref(store: &dyn ChunkStore, name: &str, now: u64) {
    let mut batch = ChunkBatch::new();
    batch.add_ref_update(move_at(name, store.read_ref(name).unwrap(), None, now));
    store.commit(batch).unwrap();
}

fn thorough(now: u64, retention: RevisionRetention) -> GarbageCollectionOptions {
    GarbageCollectionOptions {
        retention,
        min_live_share: 1.1,
        ..GarbageCollectionOptions::at_time(at(now))
    }
}

fn collect(store: &dyn ChunkStore, options: &GarbageCollectionOptions) -> GarbageCollectionReport {
    store.collect_garbage(options, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Collects all that nothing keeps; more than once, as a store may spare what it is still writing to.
fn collect_all(store: &dyn ChunkStore, now: u64) -> GarbageCollectionReport {
    // What has been written last may be spared.
    let mut batch = ChunkBatch::new();
    state(&mut batch, 1_000_000..1_000_020);
    store.commit(batch).unwrap();
    collect(store, &thorough(now, RevisionRetention::KEEP_NEWEST))
}

/// Reads everything that a root reaches; returns the ids of its chunks.
fn read_all(store: &dyn ChunkStore, root: ChunkId) -> Result<BTreeSet<ChunkId>, Error> {
    let mut seen = BTreeSet::from([root]);
    let mut waiting = vec![root];
    while !waiting.is_empty() {
        let chunks = store.read_chunks(&waiting)?;
        waiting.clear();
        for chunk in chunks {
            for blob in chunk.blob_refs() {
                assert!(store.read_blob(&blob)?.is_some(), "blob {blob} is gone");
            }
            waiting.extend(chunk.chunk_refs().filter(|id| seen.insert(*id)));
        }
    }
    Ok(seen)
}

fn has(store: &dyn ChunkStore, id: ChunkId) -> bool {
    store.contains_chunks(&[id]).unwrap()[0]
}

fn a_ref_moves_by_compare_and_swap(store: &dyn ChunkStore) {
    let ids = ["one", "two"].map(|text| {
        let mut batch = ChunkBatch::new();
        let id = body_of(&mut batch, text);
        store.commit(batch).unwrap();
        id
    });
    let check = |expected, new, outcome: Result<(), Option<ChunkId>>| {
        let mut batch = ChunkBatch::new();
        let staged = body_of(&mut batch, &format!("{expected:?} to {new:?}"));
        batch.add_ref_update(moves("main", expected, new));
        match (store.commit(batch), outcome) {
            (Ok(()), Ok(())) => assert_eq!(store.read_ref("main").unwrap(), new),
            (Err(error @ Error::RefMoved { .. }), Err(found)) => {
                let Error::RefMoved { name, expected: believed, actual } = &error else {
                    unreachable!()
                };
                assert_eq!((name.as_str(), *believed, *actual), ("main", expected, found));
                assert!(!error.is_transient());
                assert!(!has(store, staged), "nothing is stored");
            }
            (outcome, _) => panic!("{outcome:?}"),
        }
    };
    let [one, two] = ids.map(Some);
    check(one, two, Err(None));
    check(None, one, Ok(()));
    check(None, two, Err(one));
    check(two, one, Err(one));
    check(one, two, Ok(()));
    check(two, None, Ok(()));
    assert_eq!(store.list_refs().unwrap(), []);
    check(None, two, Ok(()));
}

fn moves_of_one_batch_follow_each_other_or_none_is_done(store: &dyn ChunkStore) {
    let mut batch = ChunkBatch::new();
    let [one, two, three] = ["1", "2", "3"].map(|text| Some(body_of(&mut batch, text)));
    for (name, from, to) in [("b", None, one), ("a", None, two), ("b", one, three)] {
        batch.add_ref_update(moves(name, from, to));
    }
    store.commit(batch).unwrap();
    let refs = [("a".to_owned(), two.unwrap()), ("b".to_owned(), three.unwrap())];
    assert_eq!(store.list_refs().unwrap(), refs);
    let mut batch = ChunkBatch::new();
    let four = body_of(&mut batch, "4");
    batch.grant_lease(RootLease { holder: "stage".to_owned(), root: four, expires_at: None });
    batch.add_ref_update(moves("c", None, Some(four)));
    batch.add_ref_update(moves("a", two, Some(four)));
    batch.add_ref_update(moves("b", one, Some(four)));
    assert!(matches!(store.commit(batch), Err(Error::RefMoved { name, .. }) if name == "b"));
    assert_eq!(store.list_refs().unwrap(), refs);
    assert_eq!(store.list_leases().unwrap(), []);
    assert!(!has(store, four));
}

fn history_is_read_newest_first_in_pages(store: &dyn ChunkStore) {
    let mut expected: Vec<Option<ChunkId>> = Vec::new();
    for n in 0..30_u64 {
        let mut batch = ChunkBatch::new();
        let new = (n % 7 != 3).then(|| body_of(&mut batch, &n.to_string()));
        let mut update = move_at("main", expected.last().copied().flatten(), new, n);
        update.message = format!("revision {n}");
        batch.add_ref_update(update);
        let other = body_of(&mut batch, &format!("other {n}"));
        batch.add_ref_update(moves(&format!("other/{n}"), None, Some(other)));
        store.commit(batch).unwrap();
        expected.push(new);
    }
    expected.reverse();
    let all = store.ref_history("main", None, 100).unwrap();
    assert_eq!(all.iter().map(|one| one.update.new_root).collect::<Vec<_>>(), expected);
    assert!(all.is_sorted_by(|newer, older| newer.sequence > older.sequence));
    let newest = &all[0].update;
    assert_eq!((newest.message.as_str(), newest.author.as_str()), ("revision 29", "Ada"));
    assert_eq!((newest.updated_at, newest.expected_root), (at(29), expected[1]));
    let mut paged = Vec::new();
    while let page = store
        .ref_history("main", paged.last().map(|one: &tympan_store::Revision| one.sequence), 7)
        .unwrap()
        && !page.is_empty()
    {
        assert!(page.len() <= 7);
        paged.extend(page);
    }
    assert_eq!(paged, all);
    assert_eq!(store.ref_history("absent", None, 5).unwrap(), []);
}

fn leases_are_granted_renewed_and_released(store: &dyn ChunkStore) {
    let mut batch = ChunkBatch::new();
    let root = body_of(&mut batch, "leased");
    let lease =
        |holder: &str, expires| RootLease { holder: holder.to_owned(), root, expires_at: expires };
    batch.grant_lease(lease("b", Some(at(5))));
    batch.grant_lease(lease("a", None));
    store.commit(batch).unwrap();
    assert_eq!(store.list_leases().unwrap(), [lease("a", None), lease("b", Some(at(5)))]);
    let mut batch = ChunkBatch::new();
    batch.grant_lease(lease("b", Some(at(9))));
    batch.release_lease("a");
    batch.release_lease("absent");
    store.commit(batch).unwrap();
    assert_eq!(store.list_leases().unwrap(), [lease("b", Some(at(9)))]);
    let mut batch = ChunkBatch::new();
    batch.grant_lease(RootLease { root: ChunkId::hash_of(b"absent"), ..lease("c", None) });
    assert!(matches!(store.commit(batch), Err(Error::ChunkMissing { .. })));
}

fn chunks_are_read_alone_and_together(store: &dyn ChunkStore) {
    let mut batch = ChunkBatch::new();
    let ids: Vec<ChunkId> = (0..50).map(|n| body_of(&mut batch, &format!("chunk {n}"))).collect();
    store.commit(batch).unwrap();
    store.sync().unwrap();
    let mut wanted: Vec<ChunkId> = ids.iter().rev().copied().collect();
    wanted.push(ids[7]);
    let chunks = store.read_chunks(&wanted).unwrap();
    let read: Vec<ChunkId> = chunks.iter().map(|chunk| ChunkId::hash_of(chunk.bytes())).collect();
    assert_eq!(read, wanted, "in the order of the question, also what is asked twice");
    assert_eq!(store.read_chunk(&ids[3]).unwrap(), store.read_chunks(&ids[3..4]).unwrap()[0]);
    assert!(store.read_chunks(&[]).unwrap().is_empty());
    let absent = ChunkId::hash_of(b"absent");
    // A composite names the lease that should have kept it.
    let missing = match store.read_chunk(&absent) {
        Err(Error::ChunkMissing { id } | Error::BaseChunkMissing { id, .. }) => Some(id),
        _ => None,
    };
    assert_eq!(missing, Some(absent));
    assert!(store.read_chunks(&[ids[0], absent]).is_err());
    assert_eq!(store.contains_chunks(&[ids[0], absent, ids[1]]).unwrap(), [true, false, true]);
    assert!(store.contains_chunks(&[]).unwrap().is_empty());
    // Once more changes nothing.
    let mut batch = ChunkBatch::new();
    body_of(&mut batch, "chunk 0");
    store.commit(batch).unwrap();
    store.commit(ChunkBatch::new()).unwrap();
    let mut batch = ChunkBatch::new();
    batch.add_chunk(Bytes::from_static(b"no chunk"));
    assert!(matches!(store.commit(batch), Err(Error::ChunkMalformed { .. })));
}

fn small_blobs_are_read_by_digest_and_length(store: &dyn ChunkStore) {
    let bytes = Bytes::from_static(b"a small blob");
    let id = BlobId::hash_of(&bytes);
    assert_eq!(store.read_blob(&id).unwrap(), None);
    assert!(!store.contains_blob(&id).unwrap());
    let mut batch = ChunkBatch::new();
    batch.add_blob(id, bytes.clone());
    batch.add_blob(BlobId::hash_of(b""), Bytes::new());
    store.commit(batch).unwrap();
    assert_eq!(store.read_blob(&id).unwrap(), Some(bytes));
    assert_eq!(store.read_blob(&BlobId::hash_of(b"")).unwrap(), Some(Bytes::new()));
    assert!(store.contains_blob(&id).unwrap());
    let other_length = BlobId::new(*id.digest(), 5);
    assert_eq!(store.read_blob(&other_length).unwrap(), None);
    let large = Bytes::from(vec![0; (1 << 20) + 1]);
    let mut batch = ChunkBatch::new();
    batch.add_blob(BlobId::hash_of(&large), large);
    assert!(matches!(store.commit(batch), Err(Error::TooLong { .. })));
}

fn names_and_roots_are_checked(store: &dyn ChunkStore) {
    let root = commit_state(store, "main", &[1], 0);
    let long = "n".repeat(256);
    for name in ["", "a\nb", "a\u{1f}b", "a\0", long.as_str()] {
        let mut batch = ChunkBatch::new();
        batch.add_ref_update(moves(name, None, Some(root)));
        assert!(store.commit(batch).is_err(), "{name:?}");
        let mut batch = ChunkBatch::new();
        batch.release_lease(name);
        assert!(store.commit(batch).is_err(), "{name:?}");
    }
    let longest = "é".repeat(127);
    for name in [longest.as_str(), "a/b c'\"%$1\\"] {
        let mut batch = ChunkBatch::new();
        batch.add_ref_update(moves(name, None, Some(root)));
        store.commit(batch).unwrap();
        assert_eq!(store.read_ref(name).unwrap(), Some(root));
    }
    let absent = ChunkId::hash_of(b"absent");
    let mut batch = ChunkBatch::new();
    batch.add_ref_update(moves("main", Some(root), Some(absent)));
    assert!(matches!(store.commit(batch), Err(Error::ChunkMissing { id }) if id == absent));
    assert_eq!(store.read_ref("main").unwrap(), Some(root));
}

fn every_one_of_many_writers_gets_its_turn(store: &dyn ChunkStore) {
    const WRITERS: u64 = 8;
    const TURNS: u64 = 12;
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            scope.spawn(move || {
                for turn in 0..TURNS {
                    loop {
                        let current = store.read_ref("main").unwrap();
                        let mut batch = ChunkBatch::new();
                        let new = body_of(&mut batch, &format!("{writer} {turn} {current:?}"));
                        let mut update = moves("main", current, Some(new));
                        update.message = format!("{writer} {turn}");
                        batch.add_ref_update(update);
                        match store.commit(batch) {
                            Ok(()) => break,
                            Err(Error::RefMoved { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
    });
    let history = store.ref_history("main", None, 1_000).unwrap();
    let messages: BTreeSet<&str> = history.iter().map(|one| one.update.message.as_str()).collect();
    assert_eq!((history.len(), messages.len()), (96, 96), "each once");
    for pair in history.windows(2) {
        assert_eq!(
            pair[0].update.expected_root, pair[1].update.new_root,
            "each from the one before"
        );
    }
    assert_eq!(store.read_ref("main").unwrap(), history[0].update.new_root);
}

fn garbage_goes_and_the_rest_stays(store: &dyn ChunkStore) {
    let old = commit_state(store, "main", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0);
    let gone = read_all(store, old).unwrap();
    let new = commit_state(store, "main", &[1, 2, 3], 1);
    let other = commit_state(store, "other", &[10], 1);
    let kept: BTreeSet<ChunkId> =
        [new, other].into_iter().flat_map(|root| read_all(store, root).unwrap()).collect();
    let found = collect_all(store, 2);
    assert!(found.freed_bytes > 0 && found.live_bytes > 0 && !found.is_stopped, "{found:?}");
    // With four blobs, and with the list of revisions where that is made of chunks.
    let live = kept.len() as u64 + 4;
    assert!((live..=live + 1).contains(&found.live_records), "{found:?}, not {live}");
    for root in [new, other] {
        read_all(store, root).unwrap();
    }
    for id in gone.difference(&kept) {
        assert!(!has(store, *id));
    }
    assert!(!store.contains_blob(&BlobId::hash_of(b"blob 5")).unwrap());
    assert!(store.contains_blob(&BlobId::hash_of(b"blob 10")).unwrap());
    // What was garbage can come back.
    let back = commit_state(store, "main", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 3);
    assert_eq!(back, old);
    assert_eq!(read_all(store, back).unwrap(), gone);
    let again = collect(store, &thorough(4, RevisionRetention::KEEP_NEWEST));
    assert_eq!(again.generation, found.generation + 1);
    read_all(store, back).unwrap();
}

fn a_dry_run_counts_and_removes_nothing(store: &dyn ChunkStore) {
    let old = commit_state(store, "main", &(0..40).collect::<Vec<_>>(), 0);
    commit_state(store, "main", &[1], 1);
    let options = GarbageCollectionOptions {
        mode: GarbageCollectionMode::DryRun,
        ..thorough(2, RevisionRetention::KEEP_NEWEST)
    };
    let found = collect(store, &options);
    assert!(found.live_bytes > 8_000 && found.live_bytes < 100_000, "{found:?}");
    assert_eq!((found.retained_revisions, found.dropped_revisions), (1, 1));
    assert!(found.retainers.iter().any(|keeper| keeper.description == "ref `main`"), "{found:?}");
    assert_eq!(store.ref_history("main", None, 10).unwrap().len(), 2);
    read_all(store, old).unwrap();
}

fn pins_and_leases_keep_their_roots(store: &dyn ChunkStore) {
    let roots = [[1, 2], [3, 4], [5, 6]].map(|seeds| commit_state(store, "main", &seeds, 0));
    let mut batch = ChunkBatch::new();
    for (holder, root, expires) in [("a", roots[0], None), ("b", roots[1], Some(at(10)))] {
        batch.grant_lease(RootLease { holder: holder.to_owned(), root, expires_at: expires });
    }
    store.commit(batch).unwrap();
    let pin = store.pin_root(roots[2]);
    assert_eq!(pin.root(), roots[2]);
    remove_ref(store, "main", 1);
    collect_all(store, 9);
    for root in roots {
        read_all(store, root).unwrap();
    }
    collect_all(store, 10);
    assert!(!has(store, roots[1]), "the lease has expired");
    let holders: Vec<String> =
        store.list_leases().unwrap().into_iter().map(|one| one.holder).collect();
    assert_eq!(holders, ["a"], "a lease that has expired is gone");
    let copy = pin.clone();
    drop(pin);
    let mut batch = ChunkBatch::new();
    batch.release_lease("a");
    store.commit(batch).unwrap();
    collect_all(store, 11);
    assert!(!has(store, roots[0]), "the lease has been released");
    read_all(store, roots[2]).unwrap();
    drop(copy);
    collect_all(store, 12);
    assert!(!has(store, roots[2]), "the pin has been dropped");
}

fn holds_keep_what_was_stored_and_what_was_found(store: &dyn ChunkStore) {
    let found = commit_state(store, "main", &[1, 2, 3], 0);
    remove_ref(store, "main", 1);
    let hold = store.begin_hold().unwrap();
    assert_eq!(store.contains_chunks(&[found]).unwrap(), [true]);
    let mut batch = ChunkBatch::new();
    let stored = state(&mut batch, [3, 4, 5]);
    store.commit(batch).unwrap();
    assert!(store.contains_blob(&BlobId::hash_of(b"blob 1")).unwrap());
    // A later hold that ends changes nothing for the first.
    drop(store.begin_hold().unwrap());
    collect_all(store, 2);
    collect_all(store, 2);
    for root in [found, stored] {
        read_all(store, root).unwrap();
    }
    let mut batch = ChunkBatch::new();
    batch.add_ref_update(move_at("main", None, Some(stored), 3));
    store.commit(batch).unwrap();
    drop(hold);
    collect_all(store, 4);
    collect_all(store, 4);
    read_all(store, stored).unwrap();
    assert!(!has(store, found));
    assert!(!store.contains_blob(&BlobId::hash_of(b"blob 1")).unwrap());
}

fn history_keeps_what_retention_says(store: &dyn ChunkStore) {
    let roots: Vec<ChunkId> =
        (0..6).map(|n| commit_state(store, "main", &[100 + n], n * 10)).collect();
    let retention = RevisionRetention {
        full_period: Duration::from_secs(25),
        ..RevisionRetention::KEEP_NEWEST
    };
    let found = collect(store, &thorough(50, retention));
    assert_eq!((found.retained_revisions, found.dropped_revisions), (3, 3));
    collect_all(store, 50);
    let left: Vec<_> = store
        .ref_history("main", None, 10)
        .unwrap()
        .iter()
        .map(|one| one.update.new_root)
        .collect();
    assert_eq!(left, [Some(roots[5])], "the newest stays in any case");
    assert!(!has(store, roots[0]));
    read_all(store, roots[5]).unwrap();
}

fn a_collection_can_be_stopped(store: &dyn ChunkStore) {
    let root = commit_state(store, "main", &(0..30).collect::<Vec<_>>(), 0);
    commit_state(store, "main", &(10..40).collect::<Vec<_>>(), 1);
    let new = store.read_ref("main").unwrap().unwrap();
    for steps in 0..6 {
        let mut left = steps;
        let options = thorough(
            2,
            RevisionRetention {
                full_period: Duration::from_hours(1),
                ..RevisionRetention::KEEP_NEWEST
            },
        );
        let mut pace = |_: &_| {
            left -= 1;
            if left < 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        store.collect_garbage(&options, &mut pace).unwrap();
        read_all(store, root).unwrap();
        read_all(store, new).unwrap();
    }
    collect_all(store, 3);
    read_all(store, new).unwrap();
}

fn one_collection_runs_at_a_time(store: &dyn ChunkStore) {
    commit_state(store, "main", &[1, 2, 3], 0);
    let mut asked = 0;
    let options = thorough(1, RevisionRetention::KEEP_NEWEST);
    let mut pace = |_: &_| {
        asked += 1;
        let second = store.collect_garbage(&options, &mut |_| ControlFlow::Continue(()));
        let error = second.unwrap_err();
        assert!(matches!(error, Error::CollectionRunning) && error.is_transient(), "{error}");
        ControlFlow::Continue(())
    };
    store.collect_garbage(&options, &mut pace).unwrap();
    assert!(asked > 0);
    collect(store, &options);
}

/// One step of an interleaving.
#[derive(Clone, Debug)]
enum Step {
    /// A ref moves to a state of these bodies, few of which there are, so that what was dropped comes back.
    Commit {
        name: u8,
        seeds: Vec<u64>,
    },
    /// A ref goes.
    Remove {
        name: u8,
    },
    /// A ref moves to what a writer has stored under its hold.
    Adopt {
        name: u8,
    },
    /// A writer begins: it holds, stores a state, and looks another up.
    Write {
        seeds: Vec<u64>,
        found: Vec<u64>,
    },
    /// A writer gives up.
    Abandon,
    Pin {
        name: u8,
    },
    Unpin,
    Lease {
        name: u8,
        until: Option<u8>,
    },
    Release,
    Collect,
}

fn step() -> impl Strategy<Value = Step> {
    let seeds = || prop::collection::vec(0..6_u64, 1..4);
    let name = 0..3_u8;
    prop_oneof![
        3 => (name.clone(), seeds()).prop_map(|(name, seeds)| Step::Commit { name, seeds }),
        1 => name.clone().prop_map(|name| Step::Remove { name }),
        1 => name.clone().prop_map(|name| Step::Adopt { name }),
        2 => (seeds(), seeds()).prop_map(|(seeds, found)| Step::Write { seeds, found }),
        1 => Just(Step::Abandon),
        1 => name.clone().prop_map(|name| Step::Pin { name }),
        1 => Just(Step::Unpin),
        1 => (name, prop::option::of(0..30_u8)).prop_map(|(name, until)| Step::Lease { name, until }),
        1 => Just(Step::Release),
        3 => Just(Step::Collect),
    ]
}

/// What must be readable, after all that was done.
#[derive(Default)]
struct Kept {
    refs: BTreeMap<String, ChunkId>,
    pins: Vec<RootPin>,
    lease: Option<RootLease>,
    held: Option<(CollectionHold, Vec<ChunkId>)>,
    ever: BTreeSet<ChunkId>,
}

impl Kept {
    fn check(&self, store: &dyn ChunkStore, now: u64) {
        let held = self.held.iter().flat_map(|(_, roots)| roots);
        let leased = self.lease.iter().filter(|lease| lease.is_live(at(now)));
        let roots = self.refs.values().chain(held).copied();
        let roots =
            roots.chain(self.pins.iter().map(RootPin::root)).chain(leased.map(|lease| lease.root));
        for root in roots {
            read_all(store, root).unwrap();
        }
    }

    fn run(&mut self, store: &dyn ChunkStore, step: &Step, now: u64) {
        let of = |name: &u8| format!("ref {name}");
        match step {
            Step::Commit { name, seeds } => {
                let root = commit_state(store, &of(name), seeds, now);
                self.ever.extend(read_all(store, root).unwrap());
                self.refs.insert(of(name), root);
            }
            Step::Remove { name } => {
                if self.refs.remove(&of(name)).is_some() {
                    remove_ref(store, &of(name), now);
                }
            }
            Step::Adopt { name } => {
                if let Some((_hold, roots)) = self.held.take() {
                    let root = *roots.last().unwrap();
                    let mut batch = ChunkBatch::new();
                    batch.add_ref_update(move_at(
                        &of(name),
                        self.refs.get(&of(name)).copied(),
                        Some(root),
                        now,
                    ));
                    store.commit(batch).unwrap();
                    self.refs.insert(of(name), root);
                }
            }
            Step::Write { seeds, found } => self.write(store, seeds, found),
            Step::Abandon => self.held = None,
            Step::Pin { name } => {
                self.pins.extend(self.refs.get(&of(name)).map(|root| store.pin_root(*root)));
            }
            Step::Unpin => drop(self.pins.pop()),
            Step::Lease { name, until } => {
                if let Some(root) = self.refs.get(&of(name)).copied() {
                    let expires = until.map(|until| at(u64::from(until)));
                    let lease = RootLease { holder: "stage".to_owned(), root, expires_at: expires };
                    let mut batch = ChunkBatch::new();
                    batch.grant_lease(lease.clone());
                    store.commit(batch).unwrap();
                    self.lease = Some(lease);
                }
            }
            Step::Release => {
                let mut batch = ChunkBatch::new();
                batch.release_lease("stage");
                store.commit(batch).unwrap();
                self.lease = None;
            }
            Step::Collect => {
                collect(store, &thorough(now, RevisionRetention::KEEP_NEWEST));
                self.check(store, now);
            }
        }
    }

    fn write(&mut self, store: &dyn ChunkStore, seeds: &[u64], found: &[u64]) {
        let hold = store.begin_hold().unwrap();
        let mut unstored = ChunkBatch::new();
        let looked_up = state(&mut unstored, found.iter().copied());
        let mut roots = Vec::new();
        if has(store, looked_up) {
            roots.push(looked_up);
        }
        let mut batch = ChunkBatch::new();
        roots.push(state(&mut batch, seeds.iter().copied()));
        self.ever.extend(batch.chunks().map(|(id, _)| *id));
        store.commit(batch).unwrap();
        self.held = Some((hold, roots));
    }
}

fn no_interleaving_loses_what_is_reachable(open: fn() -> Fixture, cases: u32) {
    let config = ProptestConfig {
        cases,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(steps in prop::collection::vec(step(), 1..40))| {
        let fixture = open();
        let store = &*fixture.store;
        let mut kept = Kept::default();
        for (now, step) in steps.iter().enumerate() {
            kept.run(store, step, now as u64);
        }
        kept.check(store, steps.len() as u64);
        // When nothing keeps anything any more, all of it goes.
        for name in kept.refs.keys() {
            remove_ref(store, name, 1_000);
        }
        let ever: Vec<ChunkId> = kept.ever.iter().copied().collect();
        drop(kept);
        kept_no_longer(store);
        collect_all(store, 1_001);
        let left = store.contains_chunks(&ever).unwrap();
        prop_assert!(!left.contains(&true), "{left:?}");
    });
}

fn kept_no_longer(store: &dyn ChunkStore) {
    let mut batch = ChunkBatch::new();
    batch.release_lease("stage");
    store.commit(batch).unwrap();
}
