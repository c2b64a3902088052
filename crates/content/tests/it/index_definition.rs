//! Definitions of property indexes: whom they take, when they are built anew, and on branches.

use std::sync::Arc;
use std::time::SystemTime;

use tympan_blobs::MemoryBlobs;
use tympan_content::query::{QueryEngine, Request, parse_sql2};
use tympan_content::{
    IndexMaps, IndexState, Property, Repository, Revising, Subtree, Value, ValueType,
};
use tympan_store::LocalStore;
use tympan_testkit::store::WatchedStore;

use crate::session::{commit, path};

fn by(message: &str) -> Revising<'_> {
    Revising { user: "ann", message, at: SystemTime::UNIX_EPOCH }
}

fn names(names: &[&str]) -> Property {
    let values = names.iter().map(|name| Value::Name((*name).to_owned())).collect();
    Property::List(ValueType::Name, values)
}

fn definition(name: &str, property: &str) -> Subtree {
    Subtree::new(name, "oak:QueryIndexDefinition")
        .with("type", "property")
        .with("propertyNames", names(&[property]))
}

fn define(repository: &Repository, definition: Subtree) {
    let mut session = repository.session("ann").unwrap();
    let folder = path("/oak:index");
    if session.snapshot().unwrap().node(&folder).unwrap().is_none() {
        session.put(&folder, Subtree::new("oak:index", "nt:unstructured")).unwrap();
    }
    session.put(&folder.child(&definition.name).unwrap(), definition).unwrap();
    commit(&mut session);
}

/// Adds nodes of these types by turns, of which one in twenty has the same `p`.
fn fill(repository: &Repository, types: &[(&str, &[&str])], count: usize) {
    let mut session = repository.session("ann").unwrap();
    let mut site = Subtree::new("site", "oak:Unstructured");
    for number in 0..count {
        let (kind, mixins) = types[number % types.len()];
        let mut node = Subtree::new(format!("n{number}"), kind)
            .with("p", Value::Long((number / types.len() % 20) as i64));
        if !mixins.is_empty() {
            node = node.with("jcr:mixinTypes", names(mixins));
        }
        site.put_child(node);
    }
    session.put(&path("/site"), site).unwrap();
    commit(&mut session);
}

/// Returns the index that a statement is planned with, and its rows.
fn plan_and_rows(repository: &Repository, statement: &str) -> (String, Vec<String>) {
    let engine = QueryEngine::default();
    let snapshot = repository.snapshot().unwrap();
    let request = Request::new(parse_sql2(statement).unwrap());
    let plan = engine.explain(&snapshot, &request, false).unwrap().steps[0].index.clone();
    let rows = engine.page(&snapshot, &request).unwrap().rows;
    let mut rows: Vec<String> =
        rows.iter().map(|row| row.node().unwrap().path().name().to_owned()).collect();
    rows.sort();
    (plan, rows)
}

fn is_in_order(repository: &Repository) -> bool {
    IndexMaps::new(&**repository.chunks()).compare().unwrap().is_empty()
}

const OWN_TYPES: &str = "
    <my='http://example.com/my'>
    [my:base] > nt:base  - * (undefined)  + * (nt:base)
    [my:kind] > my:base
    [my:mark] mixin
    [my:bright] > my:mark mixin
    [my:other] > nt:base  - * (undefined)
";

#[test]
fn declared_types_of_a_site_take_their_subtypes_and_mixins() {
    let repository = Repository::memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    session.register_types(OWN_TYPES).unwrap();
    commit(&mut session);
    fill(
        &repository,
        &[
            ("my:base", &[]),
            ("my:kind", &[]),
            ("my:other", &["my:bright"]),
            ("my:other", &[]),
            ("nt:unstructured", &["my:mark"]),
            ("nt:unstructured", &[]),
        ],
        120,
    );
    define(
        &repository,
        definition("own", "p").with("declaringNodeTypes", names(&["my:base", "my:mark"])),
    );
    repository.build_indexes().unwrap();
    let statement = |kind: &str| format!("SELECT * FROM [{kind}] WHERE [p] = 3");
    let entries = || {
        let statuses = repository.index_statuses().unwrap();
        statuses.into_iter().find(|one| one.name == "own").unwrap().state
    };
    assert_eq!(entries(), IndexState::Ready { entries: 80 });
    for (kind, count) in [("my:base", 2), ("my:kind", 1), ("my:mark", 2), ("my:bright", 1)] {
        let (plan, rows) = plan_and_rows(&repository, &statement(kind));
        assert_eq!((&*plan, rows.len()), ("property own [p]", count), "{kind}");
    }
    // Nodes that are none of these are not in the index, which does not serve them then.
    let (plan, rows) = plan_and_rows(&repository, &statement("my:other"));
    assert_ne!(plan, "property own [p]");
    assert_eq!(rows.len(), 2);
    assert!(is_in_order(&repository));
}

#[test]
fn a_type_that_becomes_a_subtype_makes_the_index_be_built_anew() {
    let repository = Repository::memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    session.register_types(OWN_TYPES).unwrap();
    commit(&mut session);
    fill(&repository, &[("my:base", &[]), ("my:other", &[])], 100);
    define(&repository, definition("own", "p").with("declaringNodeTypes", names(&["my:base"])));
    repository.build_indexes().unwrap();
    let statement = "SELECT * FROM [my:base] WHERE [p] = 3";
    assert_eq!(plan_and_rows(&repository, statement).1.len(), 3);
    let mut session = repository.session("ann").unwrap();
    session
        .register_types("<my='http://example.com/my'> [my:other] > my:base  - * (undefined)")
        .unwrap();
    commit(&mut session);
    // Until it is built, no index answers; the nodes whose type has become one of the wanted are there at once.
    let (plan, rows) = plan_and_rows(&repository, statement);
    assert_eq!((plan == "property own [p]", rows.len()), (false, 6));
    repository.build_indexes().unwrap();
    let (plan, again) = plan_and_rows(&repository, statement);
    assert_eq!((&*plan, again), ("property own [p]", rows));
    assert!(is_in_order(&repository));
}

#[test]
fn reindex_builds_anew_and_is_set_back() {
    let repository = Repository::memory().unwrap();
    fill(&repository, &[("nt:unstructured", &[])], 200);
    define(&repository, definition("own", "p").with("reindex", Value::Boolean(true)));
    let node = || {
        let snapshot = repository.snapshot().unwrap();
        let node = snapshot.node(&path("/oak:index/own")).unwrap().unwrap();
        (node.property("reindex").unwrap(), node.property("reindexCount"))
    };
    repository.build_indexes().unwrap();
    let settled = (Value::Boolean(false).into(), Some(Value::Long(1).into()));
    assert_eq!(node(), settled);
    let head = repository.head().unwrap();
    repository.build_indexes().unwrap();
    assert_eq!(repository.head().unwrap(), head, "there is nothing more to do");

    let statement = "SELECT * FROM [nt:base] WHERE [p] = 3";
    assert_eq!(plan_and_rows(&repository, statement).0, "property own [p]");
    let mut session = repository.session("ann").unwrap();
    session.set_property(&path("/oak:index/own"), "reindex", Value::Boolean(true).into()).unwrap();
    commit(&mut session);
    assert_eq!(plan_and_rows(&repository, statement).0, "traverse");
    repository.build_indexes().unwrap();
    assert_eq!(node(), (Value::Boolean(false).into(), Some(Value::Long(2).into())));
    assert_eq!(plan_and_rows(&repository, statement).0, "property own [p]");
    assert!(is_in_order(&repository));
}

#[test]
fn a_branch_from_before_a_definition_gives_the_same_rows_and_takes_over_what_main_has() {
    let store = Arc::new(LocalStore::memory().unwrap());
    let store = Arc::new(WatchedStore::new(store, |_| Ok(())));
    let main = Repository::open(store.clone(), Arc::new(MemoryBlobs::default())).unwrap();
    fill(&main, &[("sling:Folder", &[])], 3_000);
    main.create_branch("draft", by("begin")).unwrap();
    define(&main, definition("own", "p"));
    main.build_indexes().unwrap();
    main.create_branch("later", by("begin")).unwrap();
    let statement = "SELECT * FROM [nt:base] WHERE [p] = 3";
    let expected = plan_and_rows(&main, statement);
    assert_eq!((&*expected.0, expected.1.len()), ("property own [p]", 150));
    // One that begins with the index has it.
    assert_eq!(plan_and_rows(&main.on_branch("later").unwrap(), statement), expected);
    let draft = main.on_branch("draft").unwrap();
    let (plan, rows) = plan_and_rows(&draft, statement);
    assert_eq!((&*plan, &rows), ("traverse", &expected.1));
    // It gets the definition, and what it has changed itself counts.
    define(&draft, definition("own", "p"));
    let mut session = draft.session("ann").unwrap();
    session.set_property(&path("/site/n3"), "p", Value::Long(4).into()).unwrap();
    session.set_property(&path("/site/n4"), "p", Value::Long(3).into()).unwrap();
    session.remove(&path("/site/n23")).unwrap();
    commit(&mut session);
    let unindexed = plan_and_rows(&draft, statement);
    assert_eq!((&*unindexed.0, unindexed.1.len()), ("traverse", 149));
    store.take_reads();
    draft.build_indexes().unwrap();
    let reads = store.take_reads();
    assert!(reads < 200, "{reads} reads for a difference of three documents");
    assert_eq!(plan_and_rows(&draft, statement), ("property own [p]".to_owned(), unindexed.1));
    assert!(is_in_order(&main));
    assert_eq!(plan_and_rows(&main, statement), expected);
}

#[test]
fn paths_patterns_and_unknown_types_of_a_definition_are_kept_to() {
    let repository = Repository::memory().unwrap();
    fill(&repository, &[("nt:unstructured", &[])], 100);
    let paths = |texts: &[&str]| {
        let values = texts.iter().map(|text| Value::String((*text).to_owned())).collect();
        Property::List(ValueType::String, values)
    };
    define(
        &repository,
        definition("part", "p")
            .with("includedPaths", paths(&["/site"]))
            .with("excludedPaths", paths(&["/site/n3"])),
    );
    define(&repository, definition("odd", "p").with("declaringNodeTypes", names(&["such"])));
    define(&repository, definition("broken", "p").with("valuePattern", "(("));
    repository.build_indexes().unwrap();
    let below = "SELECT * FROM [nt:base] AS a WHERE [p] = 3 AND ISDESCENDANTNODE(a, '/site/n2')";
    assert_eq!(plan_and_rows(&repository, below).1, Vec::<String>::new());
    let all = "SELECT * FROM [nt:base] WHERE [p] = 3";
    let (plan, rows) = plan_and_rows(&repository, all);
    assert_eq!((&*plan, rows.len()), ("traverse", 5), "no index has all of them");
    assert!(rows.contains(&"n3".to_owned()));
    assert_eq!(
        repository.index_statuses().unwrap().iter().filter(|one| one.name == "broken").count(),
        0
    );
    assert!(is_in_order(&repository));
}
