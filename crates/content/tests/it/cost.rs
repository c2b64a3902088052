//! What saves and readings cost: chunks written, counted at the store, and documents decoded and encoded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use tympan_blobs::MemoryBlobStore;
use tympan_content::{Error, JCR_CONTENT, JcrDate, NodePath, Repository, Subtree, Value};
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

/// The cache of documents does not accept one that is larger than a part of it.
#[test]
fn a_large_document_is_decoded_once_for_all_its_nodes() {
    let repository = Repository::in_memory().unwrap();
    let text = "x".repeat(400_000);
    let mut tree = Subtree::new("large", "nt:unstructured");
    for number in 0..50 {
        let child = Subtree::new(format!("n{number}"), "nt:unstructured");
        tree.put_child(child.with_property("text", text.as_str()));
    }
    let mut session = repository.session("admin").unwrap();
    session.put_node(&NodePath::new("/large").unwrap(), tree).unwrap();
    session.commit("put", at(1)).unwrap();
    let snapshot = repository.snapshot().unwrap();
    let node = |number: usize| {
        snapshot.node(&NodePath::new(&format!("/large/n{number}")).unwrap()).unwrap().unwrap()
    };
    let before = repository.documents_decoded();
    let first = node(0);
    for number in 1..50 {
        assert_eq!(node(number).text("text").map(|text| text.len()), Some(400_000));
    }
    assert_eq!(repository.documents_decoded() - before, 1);
    drop(first);
    // Nobody holds it any more, so its memory is free.
    assert!(node(1).text("text").is_some());
    assert_eq!(repository.documents_decoded() - before, 2);
}

/// Moves and copies inside one document must not write it back each time.
#[test]
fn moves_and_copies_inside_a_document_encode_it_once() {
    let repository = Repository::in_memory().unwrap();
    let top = NodePath::new("/many").unwrap();
    let mut session = repository.session("admin").unwrap();
    let children = (0..500).map(|number| {
        Subtree::new(format!("n{number}"), "nt:unstructured")
            .with_property("n", number.to_string().as_str())
    });
    let mut tree = Subtree::new("", "nt:unstructured");
    children.for_each(|child| tree.put_child(child));
    session.put_node(&top, tree).unwrap();
    session.commit("put", at(1)).unwrap();
    let before = repository.documents_encoded();
    for number in 0..500 {
        let from = top.child(&format!("n{number}")).unwrap();
        session.move_node(&from, &top.child(&format!("m{number}")).unwrap()).unwrap();
        let moved = top.child(&format!("m{number}")).unwrap();
        session.copy_node(&moved, &top.child(&format!("c{number}")).unwrap()).unwrap();
    }
    assert_eq!(repository.documents_encoded(), before);
    let (taken, other) = (top.child("m1").unwrap(), top.child("m2").unwrap());
    assert!(matches!(session.copy_node(&taken, &other), Err(Error::NodeExists(_))));
    let gone = top.child("n3").unwrap();
    assert!(matches!(
        session.move_node(&gone, &other),
        Err(Error::NodeExists(_) | Error::NodeMissing(_))
    ));
    session.commit("move", at(2)).unwrap();
    let snapshot = repository.snapshot().unwrap();
    let children = snapshot.node(&top).unwrap().unwrap().children().unwrap();
    assert_eq!(children.len(), 1_000);
    for (child, number) in children.chunks(2).zip(0..) {
        assert_eq!(child[0].name(), format!("m{number}"));
        assert_eq!(child[1].name(), format!("c{number}"));
        let values = child.iter().map(|child| child.property("n").unwrap());
        assert!(values.into_iter().all(|value| value == number.to_string().as_str().into()));
    }
}

/// Reading and editing by turns must not encode the document each time.
#[test]
fn edits_of_many_nodes_of_a_document_encode_it_once() {
    let repository = Repository::in_memory().unwrap();
    let top = NodePath::new("/many").unwrap();
    let mut session = repository.session("admin").unwrap();
    session.put_node(&top, Subtree::new("", "nt:unstructured")).unwrap();
    session.commit("put", at(1)).unwrap();
    let before = repository.documents_encoded();
    for number in 0..2_000 {
        let path = top.child(&format!("n{number}")).unwrap();
        assert!(!session.has_node(&path).unwrap());
        session.add_node(&path, "nt:unstructured").unwrap();
        assert_eq!(session.read_primary_type(&path).unwrap().as_deref(), Some("nt:unstructured"));
        session.set_property(&path, "a", "one".into()).unwrap();
        assert_eq!(session.read_property(&path, "a").unwrap(), Some("one".into()));
        assert_eq!(session.read_node_fields(&path).unwrap().unwrap().properties.len(), 2);
    }
    let names: Vec<String> = (0..2_000).rev().map(|number| format!("n{number}")).collect();
    session.order_children(&top, &names).unwrap();
    assert_eq!(session.read_node_fields(&top).unwrap().unwrap().child_names, names);
    let removed = names.iter().map(|name| &**name).filter(|name| name.ends_with('7')).collect();
    session.remove_children(&top, &removed).unwrap();
    assert_eq!(repository.documents_encoded(), before);
    session.commit("edit", at(2)).unwrap();
    assert_eq!(repository.documents_encoded() - before, 1);
    let snapshot = repository.snapshot().unwrap();
    let children = snapshot.node(&top).unwrap().unwrap().children().unwrap();
    assert_eq!(children.len(), 1_800);
    assert_eq!(children[0].name(), "n1999");
}
