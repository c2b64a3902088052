//! What a save costs: chunks written, counted at the store.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tympan_blobs::MemoryBlobs;
use tympan_content::{BlobId, ChunkId, Date, JCR_CONTENT, NodePath, Repository, Subtree, Value};
use tympan_store::{
    Batch, Chunk, ChunkStore, CollectOptions, Collected, Hold, Lease, LocalStore, Pin, Progress,
    ReadChunks, Result, Revision,
};

/// A store that counts the chunks of each commit that were not there before.
struct Counting {
    store: LocalStore,
    written: AtomicUsize,
    bytes: AtomicUsize,
}

impl ReadChunks for Counting {
    fn read(&self, id: &ChunkId) -> Result<Chunk> {
        self.store.read(id)
    }

    fn read_many(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        self.store.read_many(ids)
    }
}

impl ChunkStore for Counting {
    fn contains_many(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        self.store.contains_many(ids)
    }

    fn read_blob(&self, id: &BlobId) -> Result<Option<Bytes>> {
        self.store.read_blob(id)
    }

    fn contains_blob(&self, id: &BlobId) -> Result<bool> {
        self.store.contains_blob(id)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        let chunks: Vec<(ChunkId, usize)> =
            batch.chunks().map(|(id, bytes)| (*id, bytes.len())).collect();
        let ids: Vec<ChunkId> = chunks.iter().map(|(id, _)| *id).collect();
        for ((_, length), is_known) in chunks.iter().zip(self.store.contains_many(&ids)?) {
            if !is_known {
                self.written.fetch_add(1, Ordering::Relaxed);
                self.bytes.fetch_add(*length, Ordering::Relaxed);
            }
        }
        self.store.commit(batch)
    }

    fn flush(&self) -> Result<()> {
        self.store.flush()
    }

    fn read_ref(&self, name: &str) -> Result<Option<ChunkId>> {
        self.store.read_ref(name)
    }

    fn refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.store.refs()
    }

    fn history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.store.history(name, before, limit)
    }

    fn leases(&self) -> Result<Vec<Lease>> {
        self.store.leases()
    }

    fn pin(&self, root: ChunkId) -> Pin {
        self.store.pin(root)
    }

    fn hold(&self) -> Result<Hold> {
        self.store.hold()
    }

    fn collect(
        &self,
        options: &CollectOptions,
        pace: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Collected> {
        self.store.collect(options, pace)
    }
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

/// A page of 25 nodes with text that varies, modified at a time.
fn page(number: u64) -> Subtree {
    let mut root =
        Subtree::new("root", "nt:unstructured").with("sling:resourceType", "x/container");
    for component in 0..22 {
        let text = format!(
            "Paragraph {component} of page {number}: {}",
            "some words that fill it up. ".repeat(8)
        );
        root = root.with_child(
            Subtree::new(format!("text{component}"), "nt:unstructured")
                .with("sling:resourceType", "x/text")
                .with("text", text.as_str()),
        );
    }
    let content = Subtree::new(JCR_CONTENT, "cq:PageContent")
        .with("jcr:title", format!("Page {number}").as_str())
        .with("sling:resourceType", "x/page")
        .with("cq:lastModified", Value::Date(Date::from_system_time(at(number))))
        .with_child(root);
    Subtree::new(format!("p{number}"), "cq:Page").with_child(content)
}

#[test]
fn a_page_save_writes_a_path_of_each_map_that_changes_and_no_more() {
    let store = Arc::new(Counting {
        store: LocalStore::memory().unwrap(),
        written: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
    });
    let repository = Repository::open(store.clone(), Arc::new(MemoryBlobs::default())).unwrap();
    let mut session = repository.session("ann").unwrap();
    let mut site = Subtree::new("content", "sling:OrderedFolder");
    site.children = (0..2_000).map(page).collect();
    session.put(&NodePath::new("/content").unwrap(), site).unwrap();
    session.commit("import", at(0)).unwrap();

    // Ten components of one page change, without and with the date that the index `modified` follows.
    let mut save = |number: u64, is_dated: bool| {
        let content = NodePath::new(&format!("/content/p{number}/jcr:content")).unwrap();
        for component in 0..10 {
            let text = content.resolve(&format!("root/text{component}")).unwrap();
            session
                .set_property(
                    &text,
                    "text",
                    format!("changed {number} {component}").as_str().into(),
                )
                .unwrap();
        }
        if is_dated {
            let now = Value::Date(Date::from_system_time(at(100_000 + number)));
            session.set_property(&content, "cq:lastModified", now.into()).unwrap();
        }
        let before = (store.written.load(Ordering::Relaxed), store.bytes.load(Ordering::Relaxed));
        session.commit("save", at(number)).unwrap();
        (
            store.written.load(Ordering::Relaxed) - before.0,
            store.bytes.load(Ordering::Relaxed) - before.1,
        )
    };
    let (mut plain, mut dated) = (Vec::new(), Vec::new());
    for number in 0..50 {
        plain.push(save(number * 37, false));
        dated.push(save(number * 37 + 1, true));
    }
    let most = |saves: &[(usize, usize)]| saves.iter().map(|save| save.0).max().unwrap();
    let mean =
        |saves: &[(usize, usize)]| saves.iter().map(|save| save.1).sum::<usize>() / saves.len();
    println!(
        "chunks per save: at most {} ({} bytes) without index changes, {} ({} bytes) with the index `modified`",
        most(&plain),
        mean(&plain),
        most(&dated),
        mean(&dated)
    );
    // The root object, the body, and a path of the content map with at most one boundary that moves.
    assert!(most(&plain) <= 6, "{plain:?}");
    // The index loses a key in one place and gains one in another: two paths more.
    assert!(most(&dated) <= 12, "{dated:?}");
}
