//! What queries cost: chunks read, counted at the store.

use std::sync::Arc;

use tympan_content::{JCR_CONTENT, Repository, Subtree, Value};
use tympan_content_query::{QueryEngine, QueryLimits, QueryRequest, parse_sql2};
use tympan_testkit::blobs::MemoryBlobStore;
use tympan_testkit::store::LocalStore;
use tympan_testkit::watched_store::WatchedStore;

use crate::test_session::{commit, path};

fn page(number: usize) -> Subtree {
    let text = format!("Page {number}, {}", "whose text does not fit its record. ".repeat(12));
    let content = Subtree::new(JCR_CONTENT, "cq:PageContent")
        .with_property("jcr:title", format!("Page {number}").as_str())
        .with_property("n", Value::Long(number as i64))
        .with_property("text", text.as_str());
    Subtree::new(format!("p{number}"), "cq:Page").with_child(content)
}

/// A folder with so many pages, in a store that counts.
fn site(pages: usize) -> (Arc<WatchedStore>, Repository) {
    let store = Arc::new(LocalStore::open_in_memory().unwrap());
    let store = Arc::new(WatchedStore::new(store, |_| Ok(())));
    let repository = Repository::open(store.clone(), Arc::new(MemoryBlobStore::default())).unwrap();
    let mut session = repository.session("ann").unwrap();
    let mut site = Subtree::new("content", "sling:Folder");
    site.children = (0..pages).map(page).collect();
    session.put_node(&path("/content"), site).unwrap();
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
    let request =
        QueryRequest { limit, cursor, ..QueryRequest::new(parse_sql2(statement).unwrap()) };
    store.take_read_count();
    let page = QueryEngine::default().query_page(&snapshot, &request).unwrap();
    (page.rows.len(), page.cursor, store.take_read_count())
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

/// Two folders of nodes whose property pairs them off, without an index of it.
fn pairs(count: i64) -> Repository {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    for (folder, property) in [("/left", "own"), ("/right", "other")] {
        let mut tree = Subtree::new("x", "sling:Folder");
        tree.children = (0..count)
            .map(|number| {
                Subtree::new(format!("n{number}"), "sling:Folder")
                    .with_property(property, Value::Long(number))
            })
            .collect();
        session.put_node(&path(folder), tree).unwrap();
    }
    commit(&mut session);
    repository
}

const PAIRS: &str =
    "SELECT * FROM [sling:Folder] AS a INNER JOIN [sling:Folder] AS b ON a.[own] = b.[other]";

#[test]
fn an_equality_join_without_an_index_reads_each_side_a_few_times_and_not_once_for_each_row() {
    let repository = pairs(400);
    let snapshot = repository.snapshot().unwrap();
    let request = QueryRequest::new(parse_sql2(PAIRS).unwrap());
    let explanation = QueryEngine::default().explain(&snapshot, &request, true).unwrap();
    let measured = explanation.measured.unwrap();
    assert_eq!(measured.rows, 400);
    assert!(measured.rows_read < 5_000, "{} nodes read", measured.rows_read);
}

#[test]
fn a_join_whose_partners_do_not_fit_says_what_to_do() {
    let repository = pairs(400);
    let snapshot = repository.snapshot().unwrap();
    let engine =
        QueryEngine::new(QueryLimits { max_rows_in_memory: 100, ..QueryLimits::default() });
    let request = QueryRequest::new(parse_sql2(PAIRS).unwrap());
    let error = engine.query_page(&snapshot, &request).unwrap_err().to_string();
    assert!(
        error.contains(
            "to join `b` by `other` (`query.max_rows_in_memory`); add a condition on `b`"
        ),
        "{error}"
    );
}

#[test]
fn a_page_of_very_many_children_costs_what_one_of_few_does() {
    let children = "SELECT * FROM [nt:base] AS a WHERE ISCHILDNODE(a, '/content')";
    let newest = "SELECT * FROM [cq:Page] AS a WHERE ISCHILDNODE(a, '/content') AND [jcr:content/jcr:title] > 'Page 9' ORDER BY [jcr:content/jcr:title] DESC";
    let reads = |pages: usize| {
        let site = site(pages);
        let (rows, cursor, first) = cost(&site, children, Some(20), None);
        let (next, _, second) = cost(&site, children, Some(20), cursor);
        let (sorted, _, by_key) = cost(&site, newest, Some(5), None);
        assert_eq!((rows, next, sorted), (20, 20, 5));
        [first, second, by_key]
    };
    let (few, many) = (reads(100), reads(4_000));
    println!("chunk reads of the first page, the next and one by key: {few:?}, {many:?}");
    for (few, many) in few.into_iter().zip(many) {
        assert!(many <= few + 30, "{few} reads among 100, {many} among 4,000");
    }
}
