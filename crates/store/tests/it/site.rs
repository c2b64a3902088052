//! A store with everything in it: pages with bodies and small blobs, a branch, a lease, history, a collection; and
//! what each revision of it held.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tympan_store::disk::{Disk, MemoryDisk};
use tympan_store::{
    BlobId, ByteSize, ChunkBatch, ChunkId, ChunkStore, DeriveMaps, Error, GarbageCollectionOptions,
    LocalStore, LocalStoreOptions, MapValue, ReadChunks, RefUpdate, RootLease, SortedMap,
    StagedView, StoreRoot, body,
};

use crate::map_model::Numbers;

/// Pages by key: what stands in the record, and the hash of the body's text.
pub(crate) type Pages = BTreeMap<Vec<u8>, (String, ChunkId)>;
/// The files of a store.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

pub(crate) const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

pub(crate) fn options(pack_limit: ByteSize) -> LocalStoreOptions {
    LocalStoreOptions {
        pack_limit,
        cache_size: ByteSize::from_bytes(0),
        ..LocalStoreOptions::default()
    }
}

/// What was acknowledged, and the files that it lies in.
pub(crate) struct Site {
    pub(crate) files: Files,
    /// The content of every revision, by its sequence number, with the ref that it moved and its root.
    pub(crate) revisions: BTreeMap<u64, (String, ChunkId, Pages)>,
    pub(crate) leased: ChunkId,
}

/// Writes a site: `saves` commits on `main`, then a collection, then some more.
pub(crate) struct Author {
    pub(crate) store: LocalStore,
    numbers: Numbers,
    pages: BTreeMap<String, (SortedMap, Pages)>,
    pub(crate) revisions: BTreeMap<u64, (String, ChunkId, Pages)>,
}

/// Returns the time of a revision.
fn time(sequence: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_000 + sequence)
}

impl Author {
    pub(crate) fn new(store: LocalStore) -> Self {
        Self { store, numbers: Numbers(7), pages: BTreeMap::new(), revisions: BTreeMap::new() }
    }

    /// Saves some pages to a ref.
    pub(crate) fn save(&mut self, name: &str, pages: u64) -> tympan_store::Result<ChunkId> {
        let (map, mut model) = self.pages.get(name).cloned().unwrap_or_default();
        let old = self.store.read_ref(name)?;
        let mut batch = ChunkBatch::new();
        let mut edits = BTreeMap::new();
        let sequence = self.revisions.len() as u64;
        for _ in 0..pages {
            let n = self.numbers.below(300);
            let key = format!("page-{n:03}").into_bytes();
            if self.numbers.below(8) == 0 {
                model.remove(&key);
                edits.insert(key, None);
                continue;
            }
            let length = self.numbers.below(600) as usize;
            let text: Vec<u8> = (0..length).map(|_| self.numbers.below(256) as u8).collect();
            let icon = format!("icon {}", n % 20).into_bytes();
            let blob = BlobId::hash_of(&icon);
            batch.add_blob(blob, Bytes::from(icon));
            let title = format!("page {n} of {sequence}");
            let body = Some(body::write_body(&mut batch, &text, &[blob])?);
            edits.insert(
                key.clone(),
                Some(MapValue { bytes: title.clone().into_bytes().into(), body }),
            );
            model.insert(key, (title, ChunkId::hash_of(&text)));
        }
        let map = map.edit(&self.store, &mut batch, edits)?;
        let index = index_of(&self.store, &mut batch, map)?;
        let maps = [("content".to_owned(), map), ("index".to_owned(), index)].into();
        let root = StoreRoot { maps }.write(&mut batch)?;
        batch.add_ref_update(RefUpdate {
            name: name.to_owned(),
            expected_root: old,
            new_root: Some(root),
            updated_at: time(sequence),
            author: "Ada".to_owned(),
            message: format!("save {sequence}"),
        });
        self.store.commit(batch)?;
        self.revisions.insert(sequence, (name.to_owned(), root, model.clone()));
        self.pages.insert(name.to_owned(), (map, model));
        Ok(root)
    }

    /// Begins a branch.
    pub(crate) fn branch(&mut self, from: &str, to: &str) {
        let state = self.pages[from].clone();
        let root = self.store.read_ref(from).unwrap();
        let sequence = self.revisions.len() as u64;
        let mut batch = ChunkBatch::new();
        batch.add_ref_update(RefUpdate {
            name: to.to_owned(),
            expected_root: None,
            new_root: root,
            updated_at: time(sequence),
            author: "Ada".to_owned(),
            message: "branch".to_owned(),
        });
        self.store.commit(batch).unwrap();
        self.revisions.insert(sequence, (to.to_owned(), root.unwrap(), state.1.clone()));
        self.pages.insert(to.to_owned(), state);
    }

    pub(crate) fn collect(&self) -> tympan_store::Result<()> {
        let now = time(self.revisions.len() as u64);
        let options = GarbageCollectionOptions {
            min_live_share: 1.0,
            ..GarbageCollectionOptions::at_time(now)
        };
        self.store.collect_garbage(&options, &mut |_| ControlFlow::Continue(())).map(drop)
    }
}

/// A map that follows from the content: titles with their keys.
fn index_of(
    reads: &dyn ReadChunks,
    batch: &mut ChunkBatch,
    content: SortedMap,
) -> tympan_store::Result<SortedMap> {
    let mut entries = BTreeMap::new();
    for record in content.range(&StagedView::new(batch, reads), ALL) {
        let (key, value) = record?;
        entries.insert([&value.bytes[..], b"\0", &key[..]].concat(), MapValue::default());
    }
    SortedMap::build(batch, entries.into_iter())
}

/// Makes the index of [`index_of`] again.
pub(crate) struct Titles<'a>(pub(crate) &'a LocalStore);

impl DeriveMaps for Titles<'_> {
    type Error = Error;

    fn is_derived(&self, map: &str) -> bool {
        map == "index"
    }

    fn derive_maps(&self, _: &StoreRoot, root: &mut StoreRoot) -> tympan_store::Result<()> {
        let mut batch = ChunkBatch::new();
        let index = index_of(self.0, &mut batch, root.map("content"))?;
        root.maps.insert("index".to_owned(), index);
        self.0.commit(batch)
    }
}

/// Writes a site into files.
pub(crate) fn site() -> Site {
    let disk = MemoryDisk::new();
    let open = LocalStore::open(Arc::new(disk.clone()), options(ByteSize::from_kib(24))).unwrap();
    let mut author = Author::new(open);
    author.save("main", 70).unwrap();
    let mut leased = None;
    for number in 0..16 {
        let root = author.save("main", 4).unwrap();
        if number == 5 {
            leased = Some(root);
            let mut batch = ChunkBatch::new();
            batch.grant_lease(RootLease { holder: "backup".to_owned(), root, expires_at: None });
            author.store.commit(batch).unwrap();
        }
        if number == 8 {
            author.branch("main", "draft");
        }
        if number > 8 && number % 2 == 0 {
            author.save("draft", 3).unwrap();
        }
        if number == 11 {
            author.collect().unwrap();
        }
    }
    let Author { store, revisions, .. } = author;
    store.close().unwrap();
    drop(store);
    Site { files: files(&disk), revisions, leased: leased.unwrap() }
}

/// Returns all files of a disk.
pub(crate) fn files(disk: &MemoryDisk) -> Files {
    let names = disk.list_folder("").unwrap().into_iter();
    names.filter_map(|name| Some((name.clone(), disk.file_content(&name)?))).collect()
}

/// Puts files on a disk.
pub(crate) fn disk(files: &Files) -> MemoryDisk {
    let disk = MemoryDisk::new();
    for (name, content) in files {
        disk.put_file(name, content.clone());
    }
    disk
}

/// Returns the titles of pages that two states have differently.
pub(crate) fn differences(left: &Pages, right: &Pages) -> Vec<String> {
    let title =
        |pages: &Pages, key| pages.get(key).map_or("-".to_owned(), |(title, _)| title.clone());
    let keys: std::collections::BTreeSet<&Vec<u8>> = left.keys().chain(right.keys()).collect();
    let keys = keys.into_iter().filter(|key| left.get(*key) != right.get(*key));
    keys.map(|key| format!("{} | {}", title(left, key), title(right, key))).collect()
}

/// Reads the pages of a state.
pub(crate) fn pages(store: &LocalStore, root: &ChunkId) -> tympan_store::Result<Pages> {
    let root = StoreRoot::read(store, root)?;
    let mut pages = Pages::new();
    for record in root.map("content").range(store, ALL) {
        let (key, value) = record?;
        let body = body::read_body(store, &value.body.unwrap())?;
        let title = String::from_utf8(value.bytes.to_vec()).unwrap();
        pages.insert(key.to_vec(), (title, ChunkId::hash_of(&body.payload)));
    }
    let mut batch = ChunkBatch::new();
    assert_eq!(index_of(store, &mut batch, root.map("content"))?, root.map("index"));
    Ok(pages)
}
