//! Each form of a query that sites are written with: SQL-2, XPath, and maps of predicates.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tympan_content::{JcrDate, Repository, Subtree};
use tympan_content_query::{
    BuilderQuery, Error, QueryEngine, QueryLimits, QueryRequest, parse_sql2, parse_xpath,
};

use crate::query::{paths, site};
use crate::test_session::{commit, path};

/// Writes rows in short; sorted unless the query has an order.
fn short(statement: &str, rows: &[String]) -> String {
    let short = |row: &String| row.replace("/content/site", "~").replace("/jcr:content", "/_");
    let mut rows: Vec<String> = rows.iter().map(short).collect();
    if !statement.to_lowercase().contains("order by") && !statement.contains("orderby") {
        rows.sort();
    }
    rows.join(", ")
}

/// Checks statements with their rows; each is written and read back, too.
fn check(repository: &Repository, table: &[(&str, &str)]) {
    let mut wrong = Vec::new();
    for (statement, expected) in table {
        let query = parse_sql2(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
        let again = parse_sql2(&query.to_string());
        assert_eq!(again.unwrap().to_string(), query.to_string(), "{statement}");
        let found = short(statement, &paths(repository, query));
        if found != *expected {
            wrong.push(format!("{statement}\n  found {found}\n  not   {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_form_of_sql2_finds_its_rows() {
    let pages = "~/a, ~/b, ~/b/c, ~/d";
    let titled = "SELECT * FROM [cq:PageContent] AS a WHERE";
    let joined = "SELECT * FROM [cq:Page] AS a";
    let table = [
        ("SELECT * FROM [cq:Page] AS a WHERE ISDESCENDANTNODE(a, '/content/site')", pages),
        ("select * from [cq:Page] as a where isdescendantnode(a, [/content/site])", pages),
        ("SELECT * FROM [cq:Page] AS a WHERE ISCHILDNODE(a, '/content/site/b')", "~/b/c"),
        ("SELECT * FROM [cq:Page] AS a WHERE ISSAMENODE(a, '/content/site/b')", "~/b"),
        (&format!("{titled} a.[jcr:title] = 'Apple'"), "~/a/_"),
        (&format!("{titled} a.[jcr:title] <> 'Apple' AND a.[order] < 4"), "~/_, ~/b/_, ~/b/c/_"),
        (&format!("{titled} a.[jcr:title] LIKE '%rr%'"), "~/b/c/_"),
        (&format!("{titled} a.[none] IS NOT NULL"), ""),
        (&format!("{titled} a.[jcr:title] IN('Apple', 'Date')"), "~/a/_, ~/d/_"),
        (&format!("{titled} CONTAINS(a.*, 'hello -apple OR note')"), "~/_, ~/b/_, ~/b/c/_, ~/d/_"),
        (&format!("{titled} CONTAINS(a.[jcr:title], '\"cherry\"')"), "~/b/c/_"),
        (
            &format!("{titled} a.[cq:lastModified] <= CAST('2020-01-02T00:00:00.000Z' AS DATE)"),
            "~/_, ~/b/c/_",
        ),
        (&format!("{titled} a.[order] = CAST('4' AS LONG)"), "~/a/_"),
        (&format!("{titled} a.[order] >= 4 ORDER BY a.[order] DESC"), "~/d/_, ~/a/_"),
        (
            &format!("{titled} a.[order] > 0 ORDER BY [jcr:score], a.[jcr:title] OPTION(LIMIT 1)"),
            "~/a/_",
        ),
        (
            &format!("{titled} a.[order] > 0 ORDER BY a.[order] OPTION(OFFSET 3, LIMIT 9)"),
            "~/a/_, ~/d/_",
        ),
        (&format!("{titled} a.[order] = 1 UNION {titled} a.[order] < 3"), "~/_, ~/b/c/_"),
        (
            &format!(
                "{joined} INNER JOIN [cq:PageContent] AS b ON ISCHILDNODE(b, a) WHERE b.[order] = 4"
            ),
            "~/a ~/a/_",
        ),
        (
            &format!(
                "{joined} INNER JOIN [nt:unstructured] AS b ON ISDESCENDANTNODE(b, a) WHERE ISSAMENODE(a, '/content/site/a')"
            ),
            "~/a ~/a/_, ~/a ~/a/_/text",
        ),
        (
            &format!(
                "{joined} LEFT OUTER JOIN [cq:Page] AS b ON ISDESCENDANTNODE(b, a) WHERE ISDESCENDANTNODE(a, '/content/site/b')"
            ),
            "~/b/c -",
        ),
        (
            &format!(
                "{joined} INNER JOIN [cq:Page] AS b ON a.[jcr:content/order] = b.[jcr:content/order] WHERE NAME(b) = 'd'"
            ),
            "~/d ~/d",
        ),
        ("SELECT * FROM [cq:Page] AS a WHERE NAME(a) = 'd' OPTION(TRAVERSAL OK)", "~/d"),
        (
            "SELECT * FROM [nt:base] AS a WHERE [n] = 7 OPTION(TRAVERSAL WARN)",
            "/content/docs/note one",
        ),
        (
            &format!(
                "{titled} a.[jcr:title] = 'Date' OPTION(TRAVERSAL FAIL, INDEX NAME [jcrTitle])"
            ),
            "~/d/_",
        ),
        (&format!("{titled} a.[jcr:title] = 'Date' OPTION(INDEX TAG [none])"), "~/d/_"),
    ];
    check(&site(), &table);
}

#[test]
fn what_only_a_full_text_index_can_tell_is_empty_without_one() {
    let repository = site();
    let snapshot = repository.snapshot().unwrap();
    let run = |statement: &str| {
        let request = QueryRequest::new(parse_sql2(statement).unwrap());
        QueryEngine::default().query_page(&snapshot, &request).unwrap()
    };
    for statement in [
        "SELECT [rep:suggest()] FROM [nt:base] WHERE SUGGEST('appl')",
        "SELECT [rep:spellcheck()] FROM [nt:base] WHERE SPELLCHECK('aple')",
    ] {
        assert_eq!(run(statement).suggestions, Vec::<String>::new(), "{statement}");
    }
    let similar = "SELECT * FROM [nt:base] AS a WHERE SIMILAR(a.*, '/content/site/a')";
    assert_eq!(run(similar).rows.len(), 0);
    // Values are counted at each row.
    let facets = run("SELECT [rep:facet(cq:tags)] FROM [cq:PageContent] WHERE [order] > 0").facets;
    let counts = vec![("x:fruit".to_owned(), 2), ("x:red".to_owned(), 2)];
    assert_eq!(facets, [("cq:tags".to_owned(), counts)]);
    // So they are whatever the order and the length of a page.
    let ordered =
        "SELECT [rep:facet(cq:tags)] FROM [cq:PageContent] WHERE [order] > 0 ORDER BY [order]";
    let request =
        QueryRequest { limit: Some(0), ..QueryRequest::new(parse_sql2(ordered).unwrap()) };
    assert_eq!(QueryEngine::default().query_page(&snapshot, &request).unwrap().facets, facets);
}

#[test]
fn each_form_of_xpath_finds_its_rows() {
    let repository = site();
    for (statement, expected) in [
        ("/jcr:root/content/site//element(*, cq:Page)", "~/a, ~/b, ~/b/c, ~/d"),
        ("/jcr:root/content/site/element(a, cq:Page)", "~/a"),
        ("//element(*, cq:PageContent)[@jcr:title = 'Apple']", "~/a/_"),
        ("//element(*, cq:PageContent)[@order > 1 and @order < 4]", "~/b/_, ~/b/c/_"),
        ("//element(*, cq:PageContent)[not(@order > 1)]", "~/_"),
        ("//element(*, cq:PageContent)[jcr:contains(., 'cherry')]", "~/b/c/_"),
        ("//element(*, cq:PageContent)[jcr:contains(@jcr:title, 'date')]", "~/d/_"),
        (
            "//element(*, cq:PageContent)[@cq:lastModified >= xs:dateTime('2020-01-05T00:00:00.000Z')]",
            "~/d/_",
        ),
        ("//element(*, cq:PageContent)[@order > 3] order by @order descending", "~/d/_, ~/a/_"),
        (
            "//element(*, cq:PageContent)[@order > 3] order by jcr:score() descending, @order",
            "~/a/_, ~/d/_",
        ),
        ("/jcr:root/content/site/b//*[@order = 2]", "~/b/c/_"),
    ] {
        let query = parse_xpath(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
        assert_eq!(short(statement, &paths(&repository, query)), expected, "{statement}");
    }
}

fn built(text: &str) -> Result<BuilderQuery, Box<Error>> {
    let now = JcrDate::parse("2020-01-06T00:00:00.000Z").unwrap();
    let pairs = text.split('&').map(|pair| pair.split_once('=').unwrap());
    let map: BTreeMap<String, String> =
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    BuilderQuery::parse(&map, now).map_err(|error| Box::new(error.into()))
}

#[test]
fn each_predicate_of_a_map_finds_its_rows() {
    let repository = site();
    let day = |day: u32| format!("2020-01-{day:02}T00:00:00.000Z");
    let (second, fourth) = (day(2), day(4));
    for (map, expected) in [
        ("path=/content/site/b&path.exact=true", "~/b"),
        ("path=/content/site/b&type=cq:Page", "~/b/c"),
        ("path=/content/site/b&path.flat=true&type=cq:Page", "~/b/c"),
        ("type=cq:PageContent&property=jcr:title&property.value=Apple", "~/a/_"),
        (
            "type=cq:PageContent&property=jcr:title&property.value=Apple&property.operation=unequals&orderby=@order&p.limit=2",
            "~/_, ~/b/c/_, ~/b/_, ~/d/_",
        ),
        ("type=cq:PageContent&property=none&property.operation=exists", ""),
        ("type=cq:PageContent&property=cq:tags&property.operation=not", ""),
        (
            "type=cq:PageContent&1_property=order&1_property.value=2&2_property=jcr:title&2_property.value=Cherry",
            "~/b/c/_",
        ),
        (
            "type=cq:PageContent&group.p.or=true&group.1_property=order&group.1_property.value=1&group.2_property=order&group.2_property.value=5",
            "~/_, ~/d/_",
        ),
        (
            "type=cq:PageContent&group.p.not=true&group.property=order&group.property.value=1&orderby=@order",
            "~/b/c/_, ~/b/_, ~/a/_, ~/d/_",
        ),
        (
            "p.or=true&1_property=order&1_property.value=1&2_property=order&2_property.value=5",
            "~/_, ~/d/_",
        ),
        ("type=cq:PageContent&fulltext=cherry", "~/b/c/_"),
        ("type=cq:PageContent&fulltext=cherry&fulltext.relPath=@jcr:title", "~/b/c/_"),
        // Bounds are open unless they say otherwise.
        (
            &format!(
                "type=cq:PageContent&daterange.property=cq:lastModified&daterange.lowerBound={second}&daterange.upperBound={fourth}"
            ),
            "~/b/_",
        ),
        (
            &format!(
                "type=cq:PageContent&daterange.property=cq:lastModified&daterange.lowerBound={second}&daterange.lowerOperation=>=&daterange.upperBound={fourth}&daterange.upperOperation=<=&orderby=@order"
            ),
            "~/b/c/_, ~/b/_, ~/a/_",
        ),
        (
            "type=cq:PageContent&daterange.property=cq:lastModified&daterange.lowerBound=2020-01-04",
            "~/d/_",
        ),
        (
            "type=cq:PageContent&daterange.property=cq:lastModified&daterange.lowerBound=1578096000000",
            "~/d/_",
        ),
        (
            "type=cq:PageContent&rangeproperty.property=order&rangeproperty.lowerBound=3&rangeproperty.upperBound=5",
            "~/a/_",
        ),
        (
            "type=cq:PageContent&boolproperty=none&boolproperty.value=false&orderby=@order&p.limit=1",
            "~/_, ~/b/c/_, ~/b/_, ~/a/_, ~/d/_",
        ),
        (
            "type=cq:PageContent&1_orderby=@cq:template&2_orderby=@order&2_orderby.sort=desc",
            "~/d/_, ~/a/_, ~/b/_, ~/b/c/_, ~/_",
        ),
        (
            "type=cq:PageContent&orderby=@jcr:title&orderby.case=ignore&orderby.sort=desc",
            "~/_, ~/d/_, ~/b/c/_, ~/b/_, ~/a/_",
        ),
        ("type=cq:Page&nodename=c", "~/b/c"),
    ] {
        let query = built(map).unwrap_or_else(|error| panic!("{map}: {error}")).query;
        assert_eq!(short(map, &paths(&repository, query)), expected, "{map}");
    }
}

#[test]
fn the_parameters_of_a_map_are_read() {
    let read = |text: &str| {
        let built = built(text).unwrap();
        (built.limit, built.offset, built.guess_total, built.node_depth)
    };
    assert_eq!(read("type=cq:Page"), (Some(10), 0, None, 0));
    assert_eq!(read("p.limit=-1&p.offset=5&p.guessTotal=true"), (None, 5, Some(0), 0));
    assert_eq!(read("p.limit=3&p.guessTotal=100&p.nodedepth=2"), (Some(3), 0, Some(100), 2));
    assert_eq!(read("p.guessTotal=false&p.nodedepth=0"), (Some(10), 0, None, u32::MAX));
    for wrong in
        ["p.limit=many", "p.guessTotal=x", "path=content", "similar=/a", "daterange.lowerBound=1"]
    {
        let error = built(wrong).unwrap_err().to_string();
        let name = wrong.split(['=', '.']).next().unwrap();
        assert!(
            error.contains(name) || error.contains(wrong.split('=').next().unwrap()),
            "{error}"
        );
    }
}

/// Each look at this clock is ten seconds after the one before.
fn hasty() -> Instant {
    static LOOKS: AtomicU64 = AtomicU64::new(0);
    static BEGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let looks = LOOKS.fetch_add(1, Ordering::Relaxed);
    *BEGIN.get_or_init(Instant::now) + Duration::from_secs(10 * looks)
}

#[test]
fn a_query_that_takes_too_long_says_what_to_do_about_it() {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    let mut many = Subtree::new("many", "oak:Unstructured");
    many.children = (0..3_000)
        .map(|number| {
            Subtree::new(format!("n{number}"), "oak:Unstructured").with_property("same", "x")
        })
        .collect();
    session.put_node(&path("/many"), many).unwrap();
    commit(&mut session);
    let limits =
        QueryLimits { max_time: Duration::from_secs(1), clock: hasty, ..QueryLimits::default() };
    let engine = QueryEngine::new(limits);
    for statement in [
        "SELECT * FROM [nt:base] WHERE [none] = 1",
        "SELECT * FROM [nt:base] AS a INNER JOIN [nt:base] AS b ON a.[same] = b.[same]",
    ] {
        let request = QueryRequest::new(parse_sql2(statement).unwrap());
        let error = engine.query_page(&repository.snapshot().unwrap(), &request).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the query was stopped: it has run for 1 s (`query.max_time`); add an index or a limit; narrow it, or raise the limit"
        );
    }
}
