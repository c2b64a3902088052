//! Queries: plans and rows of statements, pages, indexes.

use std::collections::BTreeMap;
use std::time::SystemTime;

use tympan_content::{
    Error as ContentError, IndexState, JCR_CONTENT, JcrDate, NodePath, Property, Repository,
    Subtree, Value, ValueType, Viewer,
};
use tympan_content_query::{
    BuilderQuery, ContentQuery, Error, QueryEngine, QueryLimits, QueryRequest, parse_sql2,
    parse_xpath,
};

use crate::test_session::{commit, path};

fn date(day: u32) -> Value {
    Value::Date(JcrDate::parse(&format!("2020-01-{day:02}T00:00:00.000Z")).unwrap())
}

fn page(name: &str, title: &str, day: u32, tags: &[&str]) -> Subtree {
    let tags = tags.iter().map(|tag| Value::String((*tag).to_owned())).collect();
    let text = Subtree::new("text", "nt:unstructured")
        .with_property("sling:resourceType", "x/text")
        .with_property("text", format!("Hello from {title}").as_str());
    let content = Subtree::new(JCR_CONTENT, "cq:PageContent")
        .with_property("jcr:title", title)
        .with_property("cq:template", "/conf/x/page")
        .with_property("cq:lastModified", date(day))
        .with_property("order", Value::Long(i64::from(day)))
        .with_property("cq:tags", Property::List(ValueType::String, tags))
        .with_child(text);
    Subtree::new(name, "cq:Page").with_child(content)
}

/// `/content/site` with three pages, the second with a page below, and a folder beside it; and elsewhere so much that an
/// index is worth its while.
pub(crate) fn site() -> Repository {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    let site = page("site", "Site", 1, &[])
        .with_child(page("a", "Apple", 4, &["x:fruit", "x:red"]))
        .with_child(page("b", "Banana", 3, &["x:fruit"]).with_child(page(
            "c",
            "Cherry",
            2,
            &["x:red"],
        )))
        .with_child(page("d", "Date", 5, &[]));
    let folder = Subtree::new("docs", "sling:Folder").with_child(
        Subtree::new("note one", "nt:unstructured")
            .with_property("jcr:title", "Note")
            .with_property("n", Value::Long(7)),
    );
    let content =
        Subtree::new("content", "sling:OrderedFolder").with_child(site).with_child(folder);
    session.put_node(&path("/content"), content).unwrap();
    let mut rest = Subtree::new("rest", "oak:Unstructured");
    rest.children =
        (0..500).map(|number| Subtree::new(format!("x{number}"), "oak:Unstructured")).collect();
    session.put_node(&path("/rest"), rest).unwrap();
    commit(&mut session);
    repository.build_indexes().unwrap();
    repository
}

pub(crate) fn paths(repository: &Repository, query: ContentQuery) -> Vec<String> {
    let page = QueryEngine::default()
        .query_page(&repository.snapshot().unwrap(), &QueryRequest::new(query))
        .unwrap();
    let nodes = |row: &tympan_content_query::QueryRow| {
        let paths = row
            .nodes
            .iter()
            .map(|(_, node)| node.as_ref().map_or("-", |node| node.path().as_str()));
        paths.collect::<Vec<_>>().join(" ")
    };
    page.rows.iter().map(nodes).collect()
}

fn index(repository: &Repository, query: ContentQuery) -> String {
    let snapshot = repository.snapshot().unwrap();
    let explanation =
        QueryEngine::default().explain(&snapshot, &QueryRequest::new(query), false).unwrap();
    let indexes: Vec<String> = explanation.steps.into_iter().map(|step| step.index).collect();
    format!("{} / {}", indexes.join("; "), explanation.order)
}

/// Runs a statement; the rows are written one behind the other, `/content/site` as `~`. Tells what differs.
fn difference(
    repository: &Repository,
    query: ContentQuery,
    plan: &str,
    rows: &str,
) -> Option<String> {
    let text = query.to_string();
    let found = paths(repository, query.clone()).join(", ");
    let found = found.replace("/content/site", "~").replace("/jcr:content", "/_");
    let used = index(repository, query);
    let is_same = found == rows && used == plan;
    (!is_same)
        .then(|| format!("{text}\n  rows {found}\n  not  {rows}\n  plan {used}\n  not  {plan}\n"))
}

fn check(repository: &Repository, query: ContentQuery, plan: &str, rows: &str) {
    if let Some(difference) = difference(repository, query, plan, rows) {
        panic!("{difference}");
    }
}

#[test]
fn sql2_statements_find_their_rows_by_the_plan_that_reads_least() {
    let repository = site();
    let mut differences = Vec::new();
    let mut check = |statement: &str, plan: &str, rows: &str| {
        let query = parse_sql2(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
        differences.extend(difference(&repository, query, plan, rows));
    };
    check("SELECT * FROM [cq:Page] WHERE ISSAMENODE('/content/site/a')", "path / as found", "~/a");
    check(
        "SELECT * FROM [cq:Page] AS p WHERE ISCHILDNODE(p, '/content/site')",
        "children / as found",
        "~/a, ~/b, ~/d",
    );
    check(
        "SELECT * FROM [cq:PageContent] WHERE [jcr:title] = 'Banana'",
        "property jcrTitle [jcr:title] / as found",
        "~/b/_",
    );
    check(
        "SELECT * FROM [cq:Page] WHERE [jcr:content/jcr:title] = 'Cherry'",
        "property jcrTitle [jcr:content/jcr:title] / as found",
        "~/b/c",
    );
    check(
        "SELECT * FROM [nt:base] WHERE [cq:tags] IN ('x:fruit', 'x:red')",
        "property cqTags [cq:tags] / as found",
        "~/a/_, ~/b/c/_, ~/b/_",
    );
    check(
        "SELECT * FROM [nt:base] WHERE [cq:tags] LIKE 'x:%' AND NOT [cq:tags] = 'x:red'",
        "property cqTags [cq:tags] / as found",
        "~/b/_",
    );
    check(
        "SELECT * FROM [nt:base] WHERE [sling:resourceType] = 'x/text' AND ISDESCENDANTNODE('/content/site/b')",
        "resource type x/text / as found",
        "~/b/c/_/text, ~/b/_/text",
    );
    check(
        "SELECT * FROM [nt:base] WHERE [jcr:title] = 'Apple' OR [cq:tags] = 'x:red'",
        "union of property jcrTitle [jcr:title] and property cqTags [cq:tags] / as found",
        "~/a/_, ~/b/c/_",
    );
    check(
        "SELECT * FROM [cq:PageContent] WHERE [cq:lastModified] > CAST('2020-01-03T00:00:00.000Z' AS DATE)",
        "property cqLastModified [cq:lastModified] / as found",
        "~/a/_, ~/d/_",
    );
    check(
        "SELECT * FROM [cq:PageContent] WHERE [cq:lastModified] >= '2020-01-02T00:00:00.000Z' ORDER BY [cq:lastModified] DESC OPTION(LIMIT 2)",
        "property cqLastModified [cq:lastModified], in its order / index",
        "~/d/_, ~/a/_",
    );
    check("SELECT * FROM [nt:base] WHERE [n] = 7", "traverse / as found", "/content/docs/note one");
    check(
        "SELECT * FROM [nt:base] WHERE [n] = '7' AND [n] > 6.5 AND [n] < 8",
        "traverse / as found",
        "/content/docs/note one",
    );
    check(
        "SELECT * FROM [sling:Folder] WHERE ISDESCENDANTNODE('/content')",
        "node type cq:ClientLibraryFolder, cq:PollConfigFolder, sling:Folder, sling:Mapping, sling:OrderedFolder / as found",
        "/content/docs",
    );
    check(
        "SELECT * FROM [cq:Page] AS p WHERE NAME(p) = 'c' OR LOCALNAME(p) = 'd'",
        "node type cq:Page / as found",
        "~/b/c, ~/d",
    );
    check(
        "SELECT * FROM [cq:PageContent] WHERE UPPER([jcr:title]) = 'APPLE' AND LENGTH([jcr:title]) = 5",
        "node type cq:PageContent / as found",
        "~/a/_",
    );
    check(
        "SELECT * FROM [cq:PageContent] WHERE CONTAINS(*, 'hello -banana \"from apple\"')",
        "node type cq:PageContent / as found",
        "~/a/_",
    );
    check(
        "SELECT * FROM [cq:PageContent] WHERE COALESCE([none], [jcr:title]) = 'Date'",
        "node type cq:PageContent / as found",
        "~/d/_",
    );
    check(
        "SELECT * FROM [cq:PageContent] WHERE [none] IS NULL AND [order] < 3 ORDER BY [order] DESC, [jcr:path]",
        "node type cq:PageContent / sort",
        "~/b/c/_, ~/_",
    );
    check(
        "SELECT * FROM [cq:Page] AS p INNER JOIN [cq:PageContent] AS c ON ISCHILDNODE(c, p) WHERE c.[jcr:title] LIKE '_a%' ORDER BY c.[jcr:title]",
        "node type cq:Page / sort",
        "~/b ~/b/_, ~/d ~/d/_",
    );
    check(
        "SELECT * FROM [cq:Page] AS p LEFT OUTER JOIN [cq:Page] AS q ON ISCHILDNODE(q, p) WHERE ISDESCENDANTNODE(p, '/content/site')",
        "node type cq:Page / as found",
        "~/a -, ~/b ~/b/c, ~/b/c -, ~/d -",
    );
    check(
        "SELECT * FROM [cq:PageContent] AS a INNER JOIN [cq:PageContent] AS b ON a.[cq:tags] = b.[cq:tags] WHERE a.[jcr:title] = 'Banana'",
        "property jcrTitle [jcr:title] / as found",
        "~/b/_ ~/a/_, ~/b/_ ~/b/_",
    );
    check(
        "SELECT * FROM [cq:Page] WHERE ISCHILDNODE('/content/site/b') UNION SELECT * FROM [cq:Page] WHERE ISDESCENDANTNODE('/content/site/b')",
        "children; node type cq:Page / as found",
        "~/b/c",
    );
    check(
        "SELECT * FROM [cq:PageContent] WHERE [cq:tags] = 'x:red' UNION ALL SELECT * FROM [cq:PageContent] WHERE [cq:tags] = 'x:fruit' ORDER BY [jcr:title]",
        "property cqTags [cq:tags]; property cqTags [cq:tags] / sort",
        "~/a/_, ~/a/_, ~/b/_, ~/b/c/_",
    );
    check(
        "SELECT * FROM [nt:base] WHERE [jcr:primaryType] = 'cq:Page' AND [jcr:content/order] IN (3, 5) OPTION(OFFSET 1, LIMIT 5)",
        "node type cq:Page / as found",
        "~/d",
    );
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn xpath_and_maps_are_the_same_queries() {
    let repository = site();
    let rows = |statement: &str| {
        paths(
            &repository,
            parse_xpath(statement).unwrap_or_else(|error| panic!("{statement}: {error}")),
        )
        .join(", ")
        .replace("/content/site", "~")
    };
    assert_eq!(
        rows("/jcr:root/content/site//element(*, cq:Page)[jcr:content/@jcr:title = 'Cherry']"),
        "~/b/c"
    );
    assert_eq!(
        rows(
            "/jcr:root/content/site/*[jcr:content/@order >= 4] order by jcr:content/@order descending"
        ),
        "~/d, ~/a"
    );
    assert_eq!(
        rows(
            "//element(*, cq:PageContent)[jcr:contains(., 'apple') or jcr:like(@jcr:title, 'Ba%')]"
        ),
        "~/a/jcr:content, ~/b/jcr:content"
    );
    assert_eq!(rows("/jcr:root/content/docs/note_x0020_one"), "/content/docs/note one");
    assert_eq!(
        rows("//element(*, cq:Page)[@none or jcr:content/@cq:tags = 'x:fruit']/jcr:content/text"),
        "~/a ~/a/jcr:content ~/a/jcr:content/text, ~/b ~/b/jcr:content ~/b/jcr:content/text"
    );
    assert_eq!(
        rows(
            "(//element(*, cq:Page)[fn:name() = 'a'] | //element(*, cq:Page)[fn:lower-case(jcr:content/@jcr:title) = 'date'])"
        ),
        "~/a, ~/d"
    );

    let now = JcrDate::parse("2020-01-06T00:00:00.000Z").unwrap();
    let map = |text: &str| {
        let pairs = text.split('&').map(|pair| pair.split_once('=').unwrap());
        let pairs: BTreeMap<String, String> =
            pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let built =
            BuilderQuery::parse(&pairs, now).unwrap_or_else(|error| panic!("{text}: {error}"));
        paths(&repository, built.query).join(", ").replace("/content/site", "~")
    };
    assert_eq!(
        map("path=/content/site&type=cq:Page&orderby=@jcr:content/jcr:title&orderby.sort=desc"),
        "~/d, ~/b/c, ~/b, ~/a"
    );
    assert_eq!(
        map("path=/content/site&path.flat=true&type=cq:Page&nodename=[ab]*"
            .replace("[ab]*", "?")
            .as_str()),
        "~/a, ~/b, ~/d"
    );
    assert_eq!(map("path=/content/site/b&path.self=true&type=cq:Page"), "~/b, ~/b/c");
    assert_eq!(
        map(
            "type=cq:Page&property=jcr:content/cq:tags&property.1_value=x:fruit&property.2_value=x:red&property.and=true"
        ),
        "~/a"
    );
    assert_eq!(
        map("type=cq:Page&1_property=jcr:title&1_property.value=Cherry&1_property.depth=1"),
        "~/b/c"
    );
    assert_eq!(map("type=cq:PageContent&group.p.or=true&group.1_property=jcr:title&group.1_property.value=Apple&group.2_group.tagid=x:red&group.2_group.property=jcr:title&group.2_group.property.operation=like&group.2_group.property.value=Ch%25".replace("%25", "%").as_str()), "~/a/jcr:content, ~/b/c/jcr:content");
    assert_eq!(
        map(
            "type=cq:PageContent&relativedaterange.property=cq:lastModified&relativedaterange.lowerBound=-2d"
        ),
        "~/d/jcr:content"
    );
    assert_eq!(
        map(
            "type=cq:PageContent&rangeproperty.property=order&rangeproperty.lowerBound=3&rangeproperty.lowerOperation=>=&rangeproperty.upperBound=5"
        ),
        "~/a/jcr:content, ~/b/jcr:content"
    );
    assert_eq!(map("type=cq:PageContent&fulltext=banana"), "~/b/jcr:content");
    let unknown = BuilderQuery::parse(&[("hasPermission".to_owned(), "x".to_owned())].into(), now);
    assert!(unknown.unwrap_err().message.contains("there is no predicate `hasPermission`"));
    let unnamed = [
        ("boolproperty", ""),
        ("property", "@"),
        ("rangeproperty.property", "@"),
        ("orderby", "@"),
    ];
    for (key, value) in unnamed {
        let map = [(key.to_owned(), value.to_owned())].into();
        let message = BuilderQuery::parse(&map, now).unwrap_err().message;
        assert!(message.contains("needs the name of a property"), "{key}: {message}");
    }
}

#[test]
fn faults_are_reported_with_their_column() {
    let sql2 = |text: &str| parse_sql2(text).unwrap_err().to_string();
    assert_eq!(sql2("SELECT * FORM [nt:base]"), "column 10: expected `FROM`, not `FORM`");
    assert_eq!(
        sql2("SELECT * FROM [nt:base] WHERE x ="),
        "column 34: expected a value: `'text'`, a number, `true`, `CAST('…' AS DATE)` or `$name`, not the end"
    );
    assert_eq!(
        sql2("SELECT * FROM [nt:base] WHERE [x] = 'y"),
        "column 37: the closing `'` is missing"
    );
    assert_eq!(
        sql2("SELECT * FROM [nt:base] AS a WHERE b.[x] = 1"),
        "column 36: there is no selector `b`"
    );
    assert_eq!(
        sql2("SELECT * FROM [nt:base] WHERE [d] > CAST('soon' AS DATE)"),
        "column 42: `soon` cannot be read as Date"
    );
    assert_eq!(
        sql2("SELECT * FROM [nt:base] WHERE CONTAINS(*, 'a \"b')"),
        "column 46: expected a closing `\"` for the phrase that begins here"
    );
    assert!(
        sql2(&format!("SELECT * FROM [nt:base] WHERE {}", "(".repeat(100_000))).contains("longer")
    );
    assert!(
        sql2(&format!("SELECT * FROM [nt:base] WHERE {}", "NOT ".repeat(5_000)))
            .contains("nesting")
    );
    let xpath = |text: &str| parse_xpath(text).unwrap_err().to_string();
    assert_eq!(
        xpath("/jcr:root/content//element(*, cq:Page)[a = 'b']"),
        "column 40: expected `@` before the property; did you mean `@a`?"
    );
    assert_eq!(xpath("//*[@a = 'b'"), "column 13: expected `]`, not the end");
}

#[test]
fn limits_name_what_was_exceeded() {
    let repository = site();
    let snapshot = repository.snapshot().unwrap();
    let run = |limits: QueryLimits, statement: &str| {
        let request = QueryRequest::new(parse_sql2(statement).unwrap());
        QueryEngine::new(limits).query_page(&snapshot, &request).unwrap_err().to_string()
    };
    let few = QueryLimits { max_rows_in_memory: 2, ..QueryLimits::default() };
    let message = run(few.clone(), "SELECT * FROM [cq:Page] ORDER BY [x]");
    assert!(message.contains("sort more than 2 rows (`query.max_rows_in_memory`)"), "{message}");
    let short = QueryLimits { max_rows_read: 3, ..QueryLimits::default() };
    assert!(run(short, "SELECT * FROM [nt:base]").contains("`query.max_rows_read`"));
    let refused =
        run(QueryLimits::default(), "SELECT * FROM [nt:base] WHERE [x] = 1 OPTION(TRAVERSAL FAIL)");
    assert!(refused.contains("no index serves it"), "{refused}");
    let unbound = run(QueryLimits::default(), "SELECT * FROM [nt:base] WHERE [x] = $y");
    assert!(unbound.contains("`$y` has no value"), "{unbound}");
    // A limit makes sorting cheap.
    let mut request = QueryRequest::new(
        parse_sql2("SELECT * FROM [cq:Page] ORDER BY [jcr:content/jcr:title] OPTION(LIMIT 1)")
            .unwrap(),
    );
    let page = QueryEngine::new(few).query_page(&snapshot, &request).unwrap();
    assert_eq!(page.rows[0].node().unwrap().name(), "a");
    request.cursor = Some("00".to_owned());
    let foreign = QueryEngine::default().query_page(&snapshot, &request).unwrap_err();
    assert!(matches!(foreign, Error::Syntax(_)), "{foreign}");
}

#[test]
fn pages_give_each_stable_row_once_while_others_commit() {
    let orders = [
        "",
        " ORDER BY [jcr:title]",
        " ORDER BY [cq:lastModified] DESC",
        " ORDER BY [order], [jcr:title] DESC",
    ];
    let conditions = [
        "[jcr:title] IS NOT NULL",
        "[cq:template] = '/conf/x/page'",
        "[order] > 0",
        "ISDESCENDANTNODE('/content')",
    ];
    for order in orders {
        for condition in conditions {
            let statement = format!("SELECT * FROM [cq:PageContent] WHERE {condition}{order}");
            let repository = Repository::in_memory().unwrap();
            let mut session = repository.session("ann").unwrap();
            let mut folder = Subtree::new("content", "sling:OrderedFolder");
            for number in 0..40_u32 {
                folder.put_child(page(
                    &format!("p{:02}", number * 2),
                    &format!("Title {}", number % 7),
                    1 + number % 5,
                    &[],
                ));
            }
            session.put_node(&path("/content"), folder).unwrap();
            commit(&mut session);
            repository.build_indexes().unwrap();
            let engine = QueryEngine::default();
            let mut request = QueryRequest::new(parse_sql2(&statement).unwrap());
            request.limit = Some(3);
            let mut seen = Vec::new();
            for round in 0.. {
                let page_found =
                    engine.query_page(&repository.snapshot().unwrap(), &request).unwrap();
                seen.extend(
                    page_found.rows.iter().map(|row| row.node().unwrap().path().to_string()),
                );
                let Some(cursor) = page_found.cursor else { break };
                request.cursor = Some(cursor);
                // Pages come and go around those that stay.
                let own = path(&format!("/content/p{:02}", (round * 5 % 40) * 2 + 1));
                session.refresh().unwrap();
                if session.node(&own).unwrap().is_some() {
                    session.remove_node(&own).unwrap();
                } else {
                    session
                        .put_node(&own, page(own.name(), &format!("Title {}", round % 7), 3, &[]))
                        .unwrap();
                }
                commit(&mut session);
            }
            let stable: Vec<&String> = seen
                .iter()
                .filter(|path| path.as_bytes()[11..12].iter().all(|digit| digit % 2 == 0))
                .collect();
            let distinct: std::collections::BTreeSet<_> = stable.iter().collect();
            assert_eq!((stable.len(), distinct.len()), (40, 40), "{statement}: {seen:?}");
        }
    }
}

#[test]
fn nodes_without_a_value_come_once_and_last_in_falling_order() {
    let repository = site();
    let mut session = repository.session("ann").unwrap();
    let empty = Property::List(ValueType::String, Vec::new());
    session.set_property(&path("/content/docs/note one"), "jcr:title", empty).unwrap();
    commit(&mut session);
    let query = || parse_sql2("SELECT * FROM [nt:base] ORDER BY [jcr:title] DESC").unwrap();
    let found = paths(&repository, query());
    let distinct: std::collections::BTreeSet<&String> = found.iter().collect();
    assert_eq!(found.len(), distinct.len());
    assert_eq!(found[..2], ["/content/site/jcr:content", "/content/site/d/jcr:content"]);
    // Page by page, by the index and then without it, the same.
    let mut request = QueryRequest { limit: Some(4), ..QueryRequest::new(query()) };
    let engine = QueryEngine::default();
    let snapshot = repository.snapshot().unwrap();
    assert_eq!(engine.explain(&snapshot, &request, false).unwrap().order, "index");
    let mut paged = Vec::new();
    loop {
        let page = engine.query_page(&snapshot, &request).unwrap();
        paged.extend(page.rows.iter().map(|row| row.node().unwrap().path().to_string()));
        request.cursor = page.cursor;
        if request.cursor.is_none() {
            break;
        }
    }
    assert_eq!(paged, found);
}

#[test]
fn an_index_of_a_site_is_built_beside_commits_and_then_serves() {
    let repository = site();
    let mut session = repository.session("ann").unwrap();
    let definition = Subtree::new("order", "oak:QueryIndexDefinition")
        .with_property("type", "property")
        .with_property(
            "propertyNames",
            Property::List(ValueType::Name, vec![Value::Name("order".to_owned())]),
        )
        .with_property("tags", "own");
    session
        .put_node(
            &path("/oak:index"),
            Subtree::new("oak:index", "nt:unstructured").with_child(definition),
        )
        .unwrap();
    commit(&mut session);
    let by_order = || parse_sql2("SELECT * FROM [nt:base] WHERE [order] = 4").unwrap();
    let state = || {
        repository
            .index_statuses()
            .unwrap()
            .into_iter()
            .find(|one| one.name == "order")
            .unwrap()
            .state
    };
    assert_eq!(
        (state(), index(&repository, by_order())),
        (IndexState::Waiting, "traverse / as found".to_owned())
    );
    let mut build = repository.begin_index_build().unwrap().unwrap();
    assert!(!build.run_step().unwrap());
    assert!(matches!(state(), IndexState::Building { .. }));
    // What is committed meanwhile is caught up with.
    session.remove_node(&path("/content/site/d")).unwrap();
    session.set_property(&path("/content/docs/note one"), "order", Value::Long(4).into()).unwrap();
    commit(&mut session);
    while !build.run_step().unwrap() {}
    assert_eq!(state(), IndexState::Ready { entries: 5 });
    check(
        &repository,
        by_order(),
        "property order [order] / as found",
        "/content/docs/note one, ~/a/_",
    );
    session.set_property(&path("/content/docs/note one"), "order", Value::Long(5).into()).unwrap();
    session.commit("later", SystemTime::UNIX_EPOCH).unwrap();
    check(&repository, by_order(), "property order [order] / as found", "~/a/_");
    // Built anew, the maps are those that commits have kept.
    let kept = repository.head_root().unwrap();
    assert!(repository.drop_indexes(None).unwrap() > 1);
    assert_eq!(index(&repository, by_order()), "traverse / as found");
    repository.build_indexes().unwrap();
    assert_eq!(repository.head_root().unwrap(), kept);
    // Without its definition, the map goes.
    session.refresh().unwrap();
    session.remove_node(&path("/oak:index")).unwrap();
    commit(&mut session);
    assert_eq!(index(&repository, by_order()), "traverse / as found");
}

#[test]
fn a_unique_index_refuses_the_second_of_a_value() {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    let definition = Subtree::new("sku", "oak:QueryIndexDefinition")
        .with_property("type", "property")
        .with_property("propertyNames", "sku")
        .with_property("unique", Value::Boolean(true));
    session
        .put_node(
            &path("/oak:index"),
            Subtree::new("oak:index", "nt:unstructured").with_child(definition),
        )
        .unwrap();
    session
        .put_node(&path("/a"), Subtree::new("a", "nt:unstructured").with_property("sku", "1"))
        .unwrap();
    commit(&mut session);
    repository.build_indexes().unwrap();
    session
        .put_node(&path("/b"), Subtree::new("b", "nt:unstructured").with_property("sku", "1"))
        .unwrap();
    let error = session.commit("clash", SystemTime::UNIX_EPOCH).unwrap_err();
    assert!(
        matches!(&error, ContentError::NotUnique { path, existing_path, .. } if path.as_str() == "/b" && *existing_path == Some(crate::test_session::path("/a"))),
        "{error}"
    );
    assert!(error.to_string().starts_with("OakConstraint0030"));
    // Moving the value is no clash.
    session.refresh().unwrap();
    session.remove_node(&path("/a")).unwrap();
    session
        .put_node(&path("/b"), Subtree::new("b", "nt:unstructured").with_property("sku", "1"))
        .unwrap();
    commit(&mut session);
}

#[test]
fn slow_statements_are_gathered_by_what_they_have_in_common() {
    let repository = site();
    let engine = QueryEngine::default();
    for number in 0..3 {
        let statement = format!("SELECT * FROM [nt:base] WHERE [n] = {number}");
        let request = QueryRequest {
            component: "/apps/x",
            ..QueryRequest::new(parse_sql2(&statement).unwrap())
        };
        engine.query_page(&repository.snapshot().unwrap(), &request).unwrap();
    }
    let request = QueryRequest::new(parse_sql2("SELECT * FROM [cq:Page]").unwrap());
    engine.query_page(&repository.snapshot().unwrap(), &request).unwrap();
    let slow = engine.slow_statements();
    let facts: Vec<_> =
        slow.iter().map(|one| (&*one.statement, one.count, &*one.plan, &*one.component)).collect();
    let statement = "SELECT [nt:base].* FROM [nt:base] AS [nt:base] WHERE [nt:base].[n] = $v";
    assert_eq!(facts, [(statement, 3, "traverse", "/apps/x")]);
}

#[test]
fn a_hidden_node_is_in_no_result() {
    let repository = site();
    let anonymous = Viewer::anonymous();
    let snapshot = repository.snapshot().unwrap().as_viewer(&anonymous);
    for statement in [
        "SELECT * FROM [nt:base]",
        "SELECT * FROM [cq:Page]",
        "SELECT * FROM [nt:base] WHERE [jcr:title] = 'Apple'",
        "SELECT * FROM [nt:base] WHERE [none] IS NULL",
    ] {
        let page = QueryEngine::default()
            .query_page(&snapshot, &QueryRequest::new(parse_sql2(statement).unwrap()))
            .unwrap();
        let seen = page.rows.iter().filter_map(|row| row.node());
        let hidden: Vec<&NodePath> = seen
            .map(|node| node.path())
            .filter(|path| snapshot.node(path).unwrap().is_none())
            .collect();
        assert!(hidden.is_empty(), "{statement}: {hidden:?}");
        assert!(page.rows.is_empty(), "{statement}");
    }
}
