//! What a save costs: chunks written, counted at the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use tympan_blobs::MemoryBlobStore;
use tympan_content::{JCR_CONTENT, JcrDate, NodePath, Repository, Subtree, Value};
use tympan_store::{ChunkStore, LocalStore};
use tympan_testkit::watched_store::WatchedStore;

/// New chunks of all commits so far, and their bytes.
#[derive(Default)]
pub(crate) struct Written {
    chunks: AtomicUsize,
    bytes: AtomicUsize,
}

impl Written {
    pub(crate) fn get(&self) -> (usize, usize) {
        (self.chunks.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// Opens a store that counts the chunks of each commit that were not there before.
pub(crate) fn counting() -> (Arc<WatchedStore>, Arc<Written>) {
    let store = Arc::new(LocalStore::open_in_memory().unwrap());
    let written = Arc::new(Written::default());
    let (inner, counts) = (store.clone(), written.clone());
    let watched = WatchedStore::new(store, move |batch| {
        for (id, bytes) in batch.chunks() {
            if !inner.contains_chunks(&[*id])?[0] {
                counts.chunks.fetch_add(1, Ordering::Relaxed);
                counts.bytes.fetch_add(bytes.len(), Ordering::Relaxed);
            }
        }
        Ok(())
    });
    (Arc::new(watched), written)
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

/// A page of 25 nodes with text that varies, modified at a time.
fn page(number: u64) -> Subtree {
    let mut root =
        Subtree::new("root", "nt:unstructured").with_property("sling:resourceType", "x/container");
    for component in 0..22 {
        let text = format!(
            "Paragraph {component} of page {number}: {}",
            "some words that fill it up. ".repeat(8)
        );
        root = root.with_child(
            Subtree::new(format!("text{component}"), "nt:unstructured")
                .with_property("sling:resourceType", "x/text")
                .with_property("text", text.as_str()),
        );
    }
    let content = Subtree::new(JCR_CONTENT, "cq:PageContent")
        .with_property("jcr:title", format!("Page {number}").as_str())
        .with_property("sling:resourceType", "x/page")
        .with_property("cq:lastModified", Value::Date(JcrDate::from_system_time(at(number))))
        .with_child(root);
    Subtree::new(format!("p{number}"), "cq:Page").with_child(content)
}

#[test]
fn a_page_save_writes_a_path_of_each_map_that_changes_and_no_more() {
    let (store, written) = counting();
    let repository = Repository::open(store, Arc::new(MemoryBlobStore::default())).unwrap();
    let mut session = repository.session("ann").unwrap();
    let mut site = Subtree::new("content", "sling:OrderedFolder");
    site.children = (0..2_000).map(page).collect();
    session.put_node(&NodePath::new("/content").unwrap(), site).unwrap();
    session.commit("import", at(0)).unwrap();

    // Ten components of one page change, without and with the date that indexes follow.
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
            let now = Value::Date(JcrDate::from_system_time(at(100_000 + number)));
            session.set_property(&content, "cq:lastModified", now.into()).unwrap();
        }
        let before = written.get();
        session.commit("save", at(number)).unwrap();
        let after = written.get();
        (after.0 - before.0, after.1 - before.1)
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
        "chunks per save: at most {} ({} bytes) without index changes, {} ({} bytes) with the indexes of the date",
        most(&plain),
        mean(&plain),
        most(&dated),
        mean(&dated)
    );
    // The root object, the body, and a path of the content map with at most one boundary that moves.
    assert!(most(&plain) <= 6, "{plain:?}");
    // Two indexes follow the date, `modified` and that of `cq:lastModified`: each loses a key in one place and gains one
    // in another, two paths more.
    assert!(most(&dated) <= 16, "{dated:?}");
}
