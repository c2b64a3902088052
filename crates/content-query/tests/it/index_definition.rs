//! Definitions of property indexes: whom they take, when they are built anew, and on branches.

use std::sync::Arc;
use std::time::SystemTime;

use tympan_content::{
    IndexMapRebuilder, IndexState, Property, Repository, RevisionDetails, Subtree, Value, ValueType,
};
use tympan_content_query::{QueryEngine, QueryRequest, parse_sql2};
use tympan_testkit::blobs::MemoryBlobStore;
use tympan_testkit::store::LocalStore;
use tympan_testkit::watched_store::WatchedStore;

use crate::test_session::{commit, path};

fn by(message: &str) -> RevisionDetails<'_> {
    RevisionDetails { user: "ann", message, time: SystemTime::UNIX_EPOCH }
}

fn names(names: &[&str]) -> Property {
    let values = names.iter().map(|name| Value::Name((*name).to_owned())).collect();
    Property::List(ValueType::Name, values)
}

fn definition(name: &str, property: &str) -> Subtree {
    Subtree::new(name, "oak:QueryIndexDefinition")
        .with_property("type", "property")
        .with_property("propertyNames", names(&[property]))
}

fn define(repository: &Repository, definition: Subtree) {
    let mut session = repository.session("ann").unwrap();
    let folder = path("/oak:index");
    if session.snapshot().unwrap().node(&folder).unwrap().is_none() {
        session.put_node(&folder, Subtree::new("oak:index", "nt:unstructured")).unwrap();
    }
    session.put_node(&folder.child(&definition.name).unwrap(), definition).unwrap();
    commit(&mut session);
}

/// Adds nodes of these types by turns, of which one in twenty has the same `p`.
fn fill(repository: &Repository, types: &[(&str, &[&str])], count: usize) {
    let mut session = repository.session("ann").unwrap();
    let mut site = Subtree::new("site", "oak:Unstructured");
    for number in 0..count {
        let (kind, mixins) = types[number % types.len()];
        let mut node = Subtree::new(format!("n{number}"), kind)
            .with_property("p", Value::Long((number / types.len() % 20) as i64));
        if !mixins.is_empty() {
            node = node.with_property("jcr:mixinTypes", names(mixins));
        }
        site.put_child(node);
    }
    session.put_node(&path("/site"), site).unwrap();
    commit(&mut session);
}

/// Returns the index that a statement is planned with, and its rows.
fn plan_and_rows(repository: &Repository, statement: &str) -> (String, Vec<String>) {
    let engine = QueryEngine::default();
    let snapshot = repository.snapshot().unwrap();
    let request = QueryRequest::new(parse_sql2(statement).unwrap());
    let plan = engine.explain(&snapshot, &request, false).unwrap().steps[0].index.clone();
    let rows = engine.query_page(&snapshot, &request).unwrap().rows;
    let mut rows: Vec<String> =
        rows.iter().map(|row| row.node().unwrap().path().name().to_owned()).collect();
    rows.sort();
    (plan, rows)
}

fn is_in_order(repository: &Repository) -> bool {
    IndexMapRebuilder::new(&**repository.chunks()).find_faults().unwrap().is_empty()
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
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    session.types().register_types(OWN_TYPES).unwrap();
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
        definition("own", "p").with_property("declaringNodeTypes", names(&["my:base", "my:mark"])),
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
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    session.types().register_types(OWN_TYPES).unwrap();
    commit(&mut session);
    fill(&repository, &[("my:base", &[]), ("my:other", &[])], 100);
    define(
        &repository,
        definition("own", "p").with_property("declaringNodeTypes", names(&["my:base"])),
    );
    repository.build_indexes().unwrap();
    let statement = "SELECT * FROM [my:base] WHERE [p] = 3";
    assert_eq!(plan_and_rows(&repository, statement).1.len(), 3);
    let mut session = repository.session("ann").unwrap();
    session
        .types()
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
    let repository = Repository::in_memory().unwrap();
    fill(&repository, &[("nt:unstructured", &[])], 200);
    define(&repository, definition("own", "p").with_property("reindex", Value::Boolean(true)));
    let node = || {
        let snapshot = repository.snapshot().unwrap();
        let node = snapshot.node(&path("/oak:index/own")).unwrap().unwrap();
        (node.property("reindex").unwrap(), node.property("reindexCount"))
    };
    repository.build_indexes().unwrap();
    let settled = (Value::Boolean(false).into(), Some(Value::Long(1).into()));
    assert_eq!(node(), settled);
    let head = repository.head_root().unwrap();
    repository.build_indexes().unwrap();
    assert_eq!(repository.head_root().unwrap(), head, "there is nothing more to do");

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
    let store = Arc::new(LocalStore::open_in_memory().unwrap());
    let store = Arc::new(WatchedStore::new(store, |_| Ok(())));
    let main = Repository::open(store.clone(), Arc::new(MemoryBlobStore::default())).unwrap();
    fill(&main, &[("sling:Folder", &[])], 3_000);
    main.create_branch("draft", by("begin")).unwrap();
    define(&main, definition("own", "p"));
    main.build_indexes().unwrap();
    main.create_branch("later", by("begin")).unwrap();
    let statement = "SELECT * FROM [nt:base] WHERE [p] = 3";
    let expected = plan_and_rows(&main, statement);
    assert_eq!((&*expected.0, expected.1.len()), ("property own [p]", 150));
    // One that begins with the index has it.
    assert_eq!(plan_and_rows(&main.open_branch("later").unwrap(), statement), expected);
    let draft = main.open_branch("draft").unwrap();
    let (plan, rows) = plan_and_rows(&draft, statement);
    assert_eq!((&*plan, &rows), ("traverse", &expected.1));
    // It gets the definition, and what it has changed itself counts.
    define(&draft, definition("own", "p"));
    let mut session = draft.session("ann").unwrap();
    session.set_property(&path("/site/n3"), "p", Value::Long(4).into()).unwrap();
    session.set_property(&path("/site/n4"), "p", Value::Long(3).into()).unwrap();
    session.remove_node(&path("/site/n23")).unwrap();
    commit(&mut session);
    let unindexed = plan_and_rows(&draft, statement);
    assert_eq!((&*unindexed.0, unindexed.1.len()), ("traverse", 149));
    store.take_read_count();
    draft.build_indexes().unwrap();
    let reads = store.take_read_count();
    assert!(reads < 200, "{reads} reads for a difference of three documents");
    assert_eq!(plan_and_rows(&draft, statement), ("property own [p]".to_owned(), unindexed.1));
    assert!(is_in_order(&main));
    assert_eq!(plan_and_rows(&main, statement), expected);
}

#[test]
fn paths_patterns_and_unknown_types_of_a_definition_are_kept_to() {
    let repository = Repository::in_memory().unwrap();
    fill(&repository, &[("nt:unstructured", &[])], 100);
    let paths = |texts: &[&str]| {
        let values = texts.iter().map(|text| Value::String((*text).to_owned())).collect();
        Property::List(ValueType::String, values)
    };
    define(
        &repository,
        definition("part", "p")
            .with_property("includedPaths", paths(&["/site"]))
            .with_property("excludedPaths", paths(&["/site/n3"])),
    );
    define(
        &repository,
        definition("odd", "p").with_property("declaringNodeTypes", names(&["such"])),
    );
    define(&repository, definition("broken", "p").with_property("valuePattern", "(("));
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

fn state_of(repository: &Repository, name: &str) -> IndexState {
    let statuses = repository.index_statuses().unwrap();
    statuses.into_iter().find(|one| one.name == name).unwrap().state
}

fn set(repository: &Repository, node: &str, property: &str, value: &str) {
    let mut session = repository.session("ann").unwrap();
    session.set_property(&path(node), property, value.into()).unwrap();
    commit(&mut session);
}

#[test]
fn a_unique_index_that_failed_is_built_when_what_is_in_its_way_changes() {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    for name in ["a", "b", "c"] {
        let value = if name == "c" { "other" } else { "same" };
        let node = Subtree::new(name, "nt:unstructured").with_property("p", value);
        session.put_node(&path(&format!("/{name}")), node).unwrap();
    }
    commit(&mut session);
    define(&repository, definition("single", "p").with_property("unique", Value::Boolean(true)));
    define(&repository, definition("plain", "q"));
    repository.build_indexes().unwrap();
    let failed = state_of(&repository, "single");
    let IndexState::Failed { reason } = &failed else { panic!("{failed:?}") };
    assert!(reason.contains("/a") && reason.contains("/b"), "{reason}");
    assert_eq!(state_of(&repository, "plain"), IndexState::Ready { entries: 0 });

    // Nothing is read in vain.
    assert!(repository.begin_index_build().unwrap().is_none());
    set(&repository, "/c", "p", "another");
    assert!(repository.begin_index_build().unwrap().is_none());
    assert_eq!(state_of(&repository, "single"), failed);

    // A change that does not help fails with the new reason, one that does is enough.
    set(&repository, "/b", "p", "another");
    repository.build_indexes().unwrap();
    let failed = state_of(&repository, "single");
    let IndexState::Failed { reason } = &failed else { panic!("{failed:?}") };
    assert!(reason.contains("/b") && reason.contains("/c"), "{reason}");
    set(&repository, "/b", "p", "third");
    repository.build_indexes().unwrap();
    assert_eq!(state_of(&repository, "single"), IndexState::Ready { entries: 3 });
    assert!(is_in_order(&repository));
}

#[test]
fn a_failure_on_a_branch_is_none_of_main() {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    for name in ["a", "b"] {
        let node = Subtree::new(name, "nt:unstructured").with_property("p", name);
        session.put_node(&path(&format!("/{name}")), node).unwrap();
    }
    commit(&mut session);
    repository.create_branch("launch", by("launch")).unwrap();
    let launch = repository.open_branch("launch").unwrap();
    set(&launch, "/a", "p", "b");
    for one in [&launch, &repository] {
        define(one, definition("single", "p").with_property("unique", Value::Boolean(true)));
        one.build_indexes().unwrap();
    }
    assert!(matches!(state_of(&launch, "single"), IndexState::Failed { .. }));
    assert_eq!(state_of(&repository, "single"), IndexState::Ready { entries: 2 });
}

/// Makes pages with titles in letters of both cases.
fn titled(repository: &Repository) {
    let mut session = repository.session("ann").unwrap();
    let mut site = Subtree::new("site", "sling:Folder");
    for (number, title) in
        ["Apple", "APPLE", "pear", "Plum", "plum tart", "ÄPFEL", "äpfel"].into_iter().enumerate()
    {
        let content =
            Subtree::new("jcr:content", "cq:PageContent").with_property("jcr:title", title);
        let name = format!("cq:Page{number}");
        site.put_child(Subtree::new(name, "cq:Page").with_child(content));
    }
    let none = Subtree::new("jcr:content", "cq:PageContent");
    site.put_child(Subtree::new("untitled", "cq:Page").with_child(none));
    // So much else that walking it would cost more than any index.
    for number in 0..300 {
        site.put_child(Subtree::new(format!("other{number}"), "nt:unstructured"));
    }
    session.put_node(&path("/site"), site).unwrap();
    commit(&mut session);
}

fn function(name: &str, text: &str) -> Subtree {
    Subtree::new(name, "oak:QueryIndexDefinition")
        .with_property("type", "property")
        .with_property("function", text)
}

/// Compares the rows of a statement with and without indexes, and looks for the index in the plan.
fn check_function(statement: &str, index: &str, count: usize) {
    let plain = Repository::in_memory().unwrap();
    titled(&plain);
    let indexed = Repository::in_memory().unwrap();
    titled(&indexed);
    define(&indexed, function("lowerTitle", "fn:lower-case(jcr:content/@jcr:title)"));
    define(&indexed, function("upperTitle", "upper([jcr:title])"));
    define(&indexed, function("names", "fn:name()"));
    define(&indexed, function("localNames", "localname()"));
    indexed.build_indexes().unwrap();
    // More content than the indexes saw when they were built.
    for repository in [&plain, &indexed] {
        set(repository, "/site/cq:Page2/jcr:content", "jcr:title", "apple");
        let mut session = repository.session("ann").unwrap();
        session.remove_node(&path("/site/cq:Page0")).unwrap();
        commit(&mut session);
    }
    let (_, expected) = plan_and_rows(&plain, statement);
    let (plan, rows) = plan_and_rows(&indexed, statement);
    assert_eq!(rows, expected, "{statement}");
    assert_eq!(rows.len(), count, "{statement}: {rows:?}");
    assert!(plan.contains(index), "{statement}: {plan}");
    assert!(is_in_order(&indexed));
}

#[test]
fn functions_of_properties_and_names_are_indexed() {
    let page = "SELECT * FROM [cq:Page] AS a WHERE";
    let lower = "LOWER(a.[jcr:content/jcr:title])";
    let at = "property lowerTitle [lower(jcr:content/jcr:title)]";
    check_function(&format!("{page} {lower} = 'apple'"), at, 2);
    check_function(&format!("{page} {lower} = 'äpfel'"), at, 2);
    check_function(&format!("{page} {lower} IN ('pear', 'plum')"), at, 1);
    check_function(&format!("{page} {lower} LIKE 'plum%'"), at, 2);
    check_function(&format!("{page} {lower} > 'plum'"), at, 3);
    check_function(&format!("{page} {lower} = 'APPLE'"), at, 0);
    let node = "SELECT * FROM [nt:base] AS a WHERE";
    let at = "property upperTitle [upper(jcr:title)]";
    check_function(&format!("{node} UPPER(a.[jcr:title]) = 'APPLE'"), at, 2);
    check_function(&format!("{node} NAME(a) = 'cq:Page3'"), "property names [name()]", 1);
    let at = "property localNames [localname()]";
    check_function(&format!("{node} LOCALNAME(a) LIKE 'Page%'"), at, 6);
}

#[test]
fn an_index_of_a_function_gives_its_order() {
    let repository = Repository::in_memory().unwrap();
    titled(&repository);
    let statement = "SELECT * FROM [nt:base] AS a WHERE LOWER(a.[jcr:title]) > 'b' \
                     ORDER BY LOWER(a.[jcr:title])";
    let rows = |repository: &Repository| {
        let snapshot = repository.snapshot().unwrap();
        let request = QueryRequest::new(parse_sql2(statement).unwrap());
        let rows = QueryEngine::default().query_page(&snapshot, &request).unwrap().rows;
        let text =
            |row: &tympan_content_query::QueryRow| row.node().unwrap().text("jcr:title").unwrap();
        rows.iter().map(text).collect::<Vec<_>>()
    };
    let expected = rows(&repository);
    assert_eq!(expected.first().map(String::as_str), Some("pear"));
    define(&repository, function("lowerTitle", "lower([jcr:title])"));
    repository.build_indexes().unwrap();
    assert_eq!(rows(&repository).len(), expected.len());
    let lower =
        |texts: Vec<String>| texts.iter().map(|text| text.to_lowercase()).collect::<Vec<_>>();
    assert_eq!(lower(rows(&repository)), lower(expected));
}
