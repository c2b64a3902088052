//! Listing children behind a key: whole, in order, and at the price of the page.

use std::sync::Arc;
use std::time::SystemTime;

use tympan_blobs::MemoryBlobStore;
use tympan_content::{
    JcrDate, ListingSort, Node, Property, Repository, SiblingPosition, SortPosition, Subtree, Value,
};
use tympan_store::LocalStore;
use tympan_testkit::watched_store::WatchedStore;

use crate::session::{commit, path};

fn names(nodes: &[Node]) -> Vec<String> {
    nodes.iter().map(|node| node.name().to_owned()).collect()
}

/// Reads a listing page by page.
fn pages(next: impl Fn(Option<&Node>) -> Vec<Node>) -> Vec<String> {
    let mut all: Vec<Node> = Vec::new();
    loop {
        let page = next(all.last());
        if page.is_empty() {
            return names(&all);
        }
        all.extend(page);
    }
}

fn folder_of(repository: &Repository, kind: &str, children: &[(&str, &str, i64)]) -> Node {
    let mut session = repository.session("ann").unwrap();
    let mut folder = Subtree::new("f", kind);
    for (name, title, day) in children {
        let modified = Value::Date(JcrDate { millis: day * 86_400_000, offset_minutes: 0 });
        let content = Subtree::new("jcr:content", "nt:unstructured")
            .with_property("jcr:title", *title)
            .with_property("jcr:lastModified", Property::Single(modified.clone()))
            .with_property("cq:lastModified", Property::Single(modified));
        folder = folder.with_child(Subtree::new(*name, "cq:Page").with_child(content));
    }
    session.put_node(&path("/f"), folder).unwrap();
    commit(&mut session);
    if kind == "sling:OrderedFolder" {
        session.reorder_node(&path("/f/e"), &SiblingPosition::First).unwrap();
        commit(&mut session);
    }
    repository.snapshot().unwrap().node(&path("/f")).unwrap().unwrap()
}

const CHILDREN: [(&str, &str, i64); 5] =
    [("a", "zebra", 3), ("b", "Apple", 1), ("c", "apple", 2), ("d", "mango", 5), ("e", "Kiwi", 4)];

#[test]
fn every_order_is_listed_whole_page_by_page() {
    for (kind, in_order) in [("sling:OrderedFolder", "e a b c d"), ("sling:Folder", "a b c d e")] {
        let folder = folder_of(&Repository::in_memory().unwrap(), kind, &CHILDREN);
        let check = |listed: Vec<String>, expected: &str| {
            assert_eq!(listed.join(" "), expected, "{kind}");
        };
        for limit in [1, 2, 5, 9] {
            check(
                pages(|last| {
                    folder.children_after(last.map(Node::order_position).as_ref(), limit).unwrap()
                }),
                in_order,
            );
            check(
                pages(|last| folder.children_by_name(last.map(Node::name), limit).unwrap()),
                "a b c d e",
            );
            let sorted = |sorting, is_reversed| {
                pages(|last| {
                    let after = last.map(|last| last.sort_position(sorting));
                    folder.children_sorted(sorting, is_reversed, after.as_ref(), limit).unwrap()
                })
            };
            check(sorted(ListingSort::Title, false), "b c e d a");
            check(sorted(ListingSort::Title, true), "a d e c b");
            check(sorted(ListingSort::Modified, false), "b c a e d");
            check(sorted(ListingSort::Modified, true), "d e a c b");
        }
        // What was behind the page may be gone when the next one is asked for.
        let gone = SortPosition { sort_value: Vec::new(), name: "bb".to_owned() };
        check(names(&folder.children_by_name(Some(&gone.name), 9).unwrap()), "c d e");
        assert!(folder.children_after(Some(&gone), 9).is_ok());
    }
}

#[test]
fn a_page_among_100_000_children_reads_what_one_among_100_does() {
    let reads = |count: usize| {
        let store = Arc::new(WatchedStore::new(
            Arc::new(LocalStore::open_in_memory().unwrap()),
            |_| Ok(()),
        ));
        let repository =
            Repository::open(store.clone(), Arc::new(MemoryBlobStore::default())).unwrap();
        let mut session = repository.session("ann").unwrap();
        let mut folder = Subtree::new("f", "sling:OrderedFolder");
        for number in 0..count {
            folder.children.push(Subtree::new(format!("n{number:06}"), "nt:unstructured"));
        }
        session.put_node(&path("/f"), folder).unwrap();
        session.commit("many", SystemTime::UNIX_EPOCH).unwrap();
        let folder = repository.snapshot().unwrap().node(&path("/f")).unwrap().unwrap();
        let middle = path(&format!("/f/n{:06}", count / 2));
        let middle = repository.snapshot().unwrap().node(&middle).unwrap().unwrap();
        store.take_read_count();
        let page = folder.children_by_name(Some(middle.name()), 20).unwrap();
        let by_name = store.take_read_count();
        assert_eq!(page[0].name(), format!("n{:06}", count / 2 + 1));
        assert_eq!(
            names(&folder.children_after(Some(&middle.order_position()), 20).unwrap()),
            names(&page)
        );
        (by_name, store.take_read_count())
    };
    let (few, many) = (reads(100), reads(100_000));
    println!(
        "chunk reads of a page by name and in order: {few:?} among 100, {many:?} among 100,000"
    );
    assert!(many.0 <= few.0 + 6, "by name: {few:?} {many:?}");
    // In order, each child is looked up by its own key: one path of the tree for each.
    assert!(many.1 <= few.1 + 20 * 3 + 6, "in order: {few:?} {many:?}");
}
