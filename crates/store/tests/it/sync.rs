//! Copying states: only what is lacking travels, broken copies go on, and a hostile source is refused.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use tympan_store::disk::MemoryDisk;
use tympan_store::{
    BaseStore, BlobId, Chunk, ChunkBatch, ChunkId, ChunkStore, ChunkSyncReport, ChunkSyncRoute,
    Error, LocalStore, LocalStoreOptions, ReadChunks, ReadOnlyLocalStore, RefUpdate, Result,
    Revision, RootLease, SortedMap, StoreRoot, body, check_store, sync_chunks,
};

use crate::map_model::{Edits, moves, value};

/// What a source does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Honest,
    /// Another chunk comes in place of the last one that is asked for.
    Swaps,
    /// The last chunk that is asked for is left out.
    Omits,
    /// Blobs are not what they are called.
    FakesBlobs,
}

/// A source that counts, and fails after some requests.
struct Counting {
    inner: ReadOnlyLocalStore,
    manner: Manner,
    trips: AtomicU64,
    limit: u64,
}

impl Counting {
    fn trip(&self) -> Result<()> {
        if self.trips.fetch_add(1, Ordering::Relaxed) >= self.limit {
            let (base, reason) = ("there".to_owned(), "it is gone".to_owned());
            return Err(Error::Remote { base, reason, is_transient: true });
        }
        Ok(())
    }
}

impl fmt::Debug for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counting")
    }
}

impl ReadChunks for Counting {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        self.trip()?;
        self.inner.read_chunk(id)
    }

    fn read_chunks(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        self.trip()?;
        let mut chunks = self.inner.read_chunks(ids)?;
        match self.manner {
            Manner::Swaps => {
                let other = ChunkBatch::new().add_chunk(Bytes::from_static(b""));
                assert!(!ids.contains(&other));
                let mut batch = ChunkBatch::new();
                let id = body::write_body(&mut batch, b"hostile", &[]).unwrap();
                *chunks.last_mut().unwrap() =
                    Chunk::parse(batch.chunk(&id).unwrap().clone()).unwrap();
            }
            Manner::Omits => drop(chunks.pop()),
            Manner::Honest | Manner::FakesBlobs => {}
        }
        Ok(chunks)
    }
}

impl BaseStore for Counting {
    fn display_name(&self) -> String {
        self.inner.display_name()
    }

    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        self.inner.contains_chunks(ids)
    }

    fn read_blobs(&self, ids: &[BlobId]) -> Result<Vec<Option<Bytes>>> {
        self.trip()?;
        if self.manner == Manner::FakesBlobs {
            return Ok(ids.iter().map(|_| Some(Bytes::from_static(b"fake"))).collect());
        }
        self.inner.read_blobs(ids)
    }

    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.inner.list_refs()
    }

    fn ref_history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.inner.ref_history(name, before, limit)
    }

    fn find_lease(&self, holder: &str) -> Result<Option<RootLease>> {
        self.inner.find_lease(holder)
    }

    fn grant_lease(&self, lease: &RootLease) -> Result<()> {
        self.inner.grant_lease(lease)
    }

    fn release_lease(&self, holder: &str) -> Result<()> {
        self.inner.release_lease(holder)
    }
}

/// A store with pages, and a way to follow it.
struct Source {
    disk: MemoryDisk,
    store: LocalStore,
}

impl Source {
    fn new(pages: u64) -> Self {
        let disk = MemoryDisk::new();
        let store = LocalStore::open(Arc::new(disk.clone()), LocalStoreOptions::default()).unwrap();
        let source = Self { disk, store };
        source.save(0..pages, "old");
        source
    }

    fn save(&self, pages: impl Iterator<Item = u64>, text: &str) -> ChunkId {
        let from = self.store.read_ref("main").unwrap();
        let old = from.map_or(SortedMap::EMPTY_MAP, |root| {
            StoreRoot::read(&self.store, &root).unwrap().map("content")
        });
        let mut batch = ChunkBatch::new();
        let mut edits = Edits::new();
        for page in pages {
            let bytes = format!("{text} {page} ").repeat(150);
            let small = BlobId::hash_of(bytes.as_bytes());
            batch.add_blob(small, Bytes::from(bytes.clone()));
            // A large one is known by its name only.
            let large = BlobId::new([7; 32], 1 << 30);
            let blobs = if page % 10 == 0 { vec![small, large] } else { vec![small] };
            let mut record = value(format!("{text} {page}"));
            record.body = Some(body::write_body(&mut batch, bytes.as_bytes(), &blobs).unwrap());
            edits.insert(format!("page-{page:05}").into_bytes(), Some(record));
        }
        let map = old.edit(&self.store, &mut batch, edits).unwrap();
        let maps = BTreeMap::from([("content".to_owned(), map)]);
        let root = StoreRoot { maps }.write(&mut batch).unwrap();
        batch.add_ref_update(RefUpdate {
            updated_at: UNIX_EPOCH,
            ..moves("main", from, Some(root))
        });
        self.store.commit(batch).unwrap();
        root
    }

    fn serve(&self, manner: Manner, limit: u64) -> Counting {
        let disk = Arc::new(self.disk.clone());
        let inner = ReadOnlyLocalStore::open(disk, LocalStoreOptions::default()).unwrap();
        Counting { inner, manner, trips: AtomicU64::new(0), limit }
    }
}

fn copy(source: &Counting, target: &LocalStore, root: ChunkId) -> Result<ChunkSyncReport> {
    let known: Vec<ChunkId> = target.list_refs()?.into_iter().map(|(_, root)| root).collect();
    let route = ChunkSyncRoute { source, target, small_blob_limit: 1 << 14 };
    let _hold = target.begin_hold()?;
    let mut large = Vec::new();
    let synced = sync_chunks(route, &[root], &known, &mut |blobs| {
        large.extend_from_slice(blobs);
        Ok(())
    })?;
    assert!(large.iter().all(|blob| blob.length() == 1 << 30));
    let mut batch = ChunkBatch::new();
    batch.add_ref_update(moves("main", target.read_ref("main")?, Some(root)));
    target.commit(batch)?;
    assert_eq!(source.trips.load(Ordering::Relaxed), synced.round_trips);
    Ok(synced)
}

#[test]
fn the_work_is_in_proportion_to_the_change() {
    let source = Source::new(3_000);
    let target = LocalStore::open_in_memory().unwrap();
    let root = source.store.read_ref("main").unwrap().unwrap();
    let first = copy(&source.serve(Manner::Honest, u64::MAX), &target, root).unwrap();
    assert!(first.fetched_chunks > 3_000 && first.fetched_blobs == 3_000, "{first:?}");
    assert!(first.round_trips < 40, "{first:?}");
    assert!(check_store(&target).unwrap().is_clean());
    let root = source.save([1_500].into_iter(), "new");
    let next = copy(&source.serve(Manner::Honest, u64::MAX), &target, root).unwrap();
    assert!(
        next.fetched_chunks <= 6 && next.fetched_blobs == 1 && next.round_trips <= 6,
        "{next:?}"
    );
    assert!(next.present_chunks <= 2, "{next:?}");
    let none = copy(&source.serve(Manner::Honest, u64::MAX), &target, root).unwrap();
    assert_eq!(none, ChunkSyncReport::default());
    // Many changes at once take no more trips.
    let root = source.save((0..3_000).step_by(40), "newer");
    let many = copy(&source.serve(Manner::Honest, u64::MAX), &target, root).unwrap();
    assert!(many.round_trips <= 8 && many.fetched_blobs == 75, "{many:?}");
    assert!(check_store(&target).unwrap().is_clean());
}

#[test]
fn a_copy_that_broke_off_goes_on_where_it_was() {
    let source = Source::new(1_200);
    let root = source.store.read_ref("main").unwrap().unwrap();
    let whole = LocalStore::open_in_memory().unwrap();
    let whole = copy(&source.serve(Manner::Honest, u64::MAX), &whole, root).unwrap();
    let target = LocalStore::open_in_memory().unwrap();
    let mut attempts = 0;
    let last = loop {
        match copy(&source.serve(Manner::Honest, 2), &target, root) {
            Ok(synced) => break synced,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        attempts += 1;
        assert!(attempts < 100);
        assert_eq!(target.list_refs().unwrap(), []);
    };
    assert!(attempts > 3, "{attempts}");
    assert!(last.fetched_chunks < whole.fetched_chunks / 2, "{last:?} of {whole:?}");
    assert!(check_store(&target).unwrap().is_clean());
}

#[test]
fn what_lies_below_a_stray_chunk_is_not_taken_for_present() {
    let source = Source::new(400);
    let root = source.store.read_ref("main").unwrap().unwrap();
    let target = LocalStore::open_in_memory().unwrap();
    // The root alone is there, as after a copy that broke off and a collection that took the rest.
    let mut batch = ChunkBatch::new();
    batch.add_chunk(source.store.read_chunk(&root).unwrap().bytes().clone());
    target.commit(batch).unwrap();
    let synced = copy(&source.serve(Manner::Honest, u64::MAX), &target, root).unwrap();
    assert_eq!((synced.present_chunks, synced.fetched_blobs), (1, 400));
    assert!(check_store(&target).unwrap().is_clean());
}

#[test]
fn a_hostile_source_is_refused() {
    let source = Source::new(50);
    let root = source.store.read_ref("main").unwrap().unwrap();
    for manner in [Manner::Swaps, Manner::Omits, Manner::FakesBlobs] {
        let target = LocalStore::open_in_memory().unwrap();
        let refused = copy(&source.serve(manner, u64::MAX), &target, root).unwrap_err();
        assert!(
            matches!(
                refused,
                Error::ChunkDamaged { .. } | Error::ChunkMissing { .. } | Error::BlobDamaged { .. }
            ),
            "{manner:?}: {refused}"
        );
        assert_eq!(target.list_refs().unwrap(), [], "{manner:?}");
    }
}
