//! What queries cost: chunks read, counted at the store.

use std::sync::Arc;

use tympan_blobs::MemoryBlobs;
use tympan_content::query::{QueryEngine, Request, parse_sql2};
use tympan_content::{JCR_CONTENT, Repository, Subtree, Value};
use tympan_store::LocalStore;
use tympan_testkit::store::WatchedStore;

use crate::session::{commit, path};

fn page(number: usize) -> Subtree {
    let text = format!("Page {number}, {}", "whose text does not fit its record. ".repeat(12));
    let content = Subtree::new(JCR_CONTENT, "cq:PageContent")
        .with("jcr:title", format!("Page {number}").as_str())
        .with("n", Value::Long(number as i64))
        .with("text", text.as_str());
    Subtree::new(format!("p{number}"), "cq:Page").with_child(content)
}

/// A folder with so many pages, in a store that counts.
fn site(pages: usize) -> (Arc<WatchedStore>, Repository) {
    let store = Arc::new(LocalStore::memory().unwrap());
    let store = Arc::new(WatchedStore::new(store, |_| Ok(())));
    let repository = Repository::open(store.clone(), Arc::new(MemoryBlobs::default())).unwrap();
    let mut session = repository.session("ann").unwrap();
    let mut site = Subtree::new("content", "sling:Folder");
    site.children = (0..pages).map(page).collect();
    session.put(&path("/content"), site).unwrap();
    commit(&mut session);
    repository.build_indexes().unwrap();
    (store, repository)
}

/// Returns the rows of a statement's first page, its cursor, and what was read for them.
fn cost(
    (store, repository): &(Arc<WatchedStore>, Repository),
    statement: &str,
    limit: Option<u64>,
    cursor: Option<String>,
) -> (usize, Option<String>, u64) {
    let snapshot = repository.snapshot().unwrap();
    let request = Request { limit, cursor, ..Request::new(parse_sql2(statement).unwrap()) };
    store.take_reads();
    let page = QueryEngine::default().page(&snapshot, &request).unwrap();
    (page.rows.len(), page.cursor, store.take_reads())
}

#[test]
fn the_rows_of_a_scan_cost_no_reads_beside_those_of_the_scan() {
    let site = site(300);
    let none = cost(&site, "SELECT * FROM [nt:base] WHERE [text] = 'nothing'", None, None);
    let all = cost(&site, "SELECT * FROM [nt:base] WHERE [text] LIKE 'Page%'", None, None);
    assert_eq!((none.0, all.0), (0, 300));
    // The plan of a condition that an index could serve may read a chunk or two more.
    assert!(all.2 <= none.2 + 4, "{} reads for 300 rows, {} for none", all.2, none.2);
}
