//! Statements of the query engine over the index: the rows are those of a scan.

use std::time::UNIX_EPOCH;

use proptest::prelude::*;
use tympan_content::{Property, Snapshot, Subtree, ValueType, Viewer};
use tympan_content_query::{FullTextIndex, QueryEngine, QueryRequest, QueryRow, parse_sql2};

use crate::indexed_site::{Site, page, path};

/// An engine over the index as it is now, which does not follow the content from here on.
fn engine_now(site: &Site) -> QueryEngine {
    let engine = QueryEngine::default();
    engine.set_full_text_index(site.caught_up().pinned_state().unwrap());
    engine
}

fn rows(engine: &QueryEngine, snapshot: &Snapshot, statement: &str) -> Vec<QueryRow> {
    let request = QueryRequest::new(parse_sql2(statement).unwrap());
    engine.query_page(snapshot, &request).unwrap().rows
}

fn paths(engine: &QueryEngine, snapshot: &Snapshot, statement: &str) -> Vec<String> {
    let rows = rows(engine, snapshot, statement);
    rows.iter().map(|row| row.node().unwrap().path().to_string()).collect()
}

/// Returns the rows in the order of paths, as a text without `/content/`.
fn found(engine: &QueryEngine, snapshot: &Snapshot, statement: &str) -> String {
    let mut paths = paths(engine, snapshot, statement);
    paths.sort();
    paths.join(" ").replace("/content/", "").replace("jcr:content", "_")
}

fn indexes(engine: &QueryEngine, snapshot: &Snapshot, statement: &str) -> String {
    let request = QueryRequest::new(parse_sql2(statement).unwrap());
    let explanation = engine.explain(snapshot, &request, false).unwrap();
    let indexes: Vec<String> = explanation.steps.into_iter().map(|step| step.index).collect();
    indexes.join("; ")
}

fn asset(title: &str) -> Subtree {
    let metadata = Subtree::new("metadata", "nt:unstructured").with_property("dc:title", title);
    let content = Subtree::new("jcr:content", "dam:AssetContent").with_child(metadata);
    Subtree::new("", "dam:Asset").with_child(content)
}

fn deny(principal: &str) -> Subtree {
    let privileges = Property::parse_list(ValueType::Name, ["jcr:read"]).unwrap();
    let entry = Subtree::new("deny", "rep:DenyACE")
        .with_property("rep:principalName", Property::text(principal))
        .with_property("rep:privileges", privileges);
    Subtree::new("rep:policy", "rep:ACL").with_child(entry)
}

fn site() -> Site {
    let site = Site::new();
    site.page("/content/a", "Apple tree", "A pear is running.");
    site.page("/content/b", "Pear", "No fruit; see /content/a");
    site.put("/content/c", asset("A picture of an apple"));
    let note = Subtree::new("jcr:content", "nt:unstructured").with_property("jcr:title", "Plum");
    site.put("/content/d", Subtree::new("", "sling:Folder").with_child(note));
    site
}

#[test]
fn rows_are_nodes_of_the_wanted_type_in_the_documents_hit() {
    let site = site();
    let engine = engine_now(&site);
    let snapshot = site.repository.snapshot().unwrap();
    for (node_type, condition, expected, by_index) in [
        ("cq:Page", "CONTAINS(a.*, 'pear')", "a b", true),
        ("cq:PageContent", "CONTAINS(a.*, 'pear')", "a/_ b/_", true),
        ("cq:PageContent", "CONTAINS(a.[jcr:title], 'pear')", "b/_", true),
        ("cq:Page", "CONTAINS(a.[jcr:title], 'pear')", "", true),
        ("cq:Page", "CONTAINS(a.[jcr:content/jcr:title], 'pear')", "b", true),
        ("cq:Page", "CONTAINS(a.[jcr:content/text/text], 'pear')", "a", true),
        ("cq:Page", "CONTAINS(a.[jcr:content], 'pear')", "a b", true),
        ("cq:Page", "CONTAINS(a.[jcr:content/*], 'pear')", "a", true),
        ("nt:unstructured", "CONTAINS(a.*, 'pear')", "a/_ a/_/text b/_", true),
        ("nt:unstructured", "CONTAINS(a.[text], 'pear')", "a/_ a/_/text", true),
        ("nt:base", "CONTAINS(a.*, 'pear')", "a a/_ a/_/text b b/_", true),
        ("dam:Asset", "CONTAINS(a.*, 'apple')", "c", true),
        ("dam:Asset", "CONTAINS(a.[jcr:content/metadata/dc:title], 'apple')", "c", true),
        ("cq:PageContent", "CONTAINS(a.*, 'apple -fruit')", "a/_", true),
        ("nt:unstructured", "CONTAINS(a.*, 'pear -apple')", "a/_/text b/_", true),
        ("cq:Page", "CONTAINS(a.*, 'pear -apple')", "b", true),
        ("cq:Page", "CONTAINS(a.*, '-apple')", "b", false),
        ("cq:Page", "CONTAINS(a.*, '\"apple tree\"')", "a", true),
        ("cq:Page", "CONTAINS(a.*, 'apple OR fruit')", "a b", true),
        ("cq:Page", "CONTAINS(a.*, 'nowhere')", "", true),
        ("sling:Folder", "CONTAINS(a.[jcr:content/jcr:title], 'plum')", "d", false),
        (
            "nt:base",
            "ISDESCENDANTNODE(a, '/content/a') AND CONTAINS(a.*, 'pear')",
            "a/_ a/_/text",
            true,
        ),
        (
            "nt:base",
            "ISDESCENDANTNODE(a, '/content/a/jcr:content') AND CONTAINS(a.*, 'pear')",
            "a/_/text",
            true,
        ),
        ("nt:base", "ISCHILDNODE(a, '/content') AND CONTAINS(a.*, 'pear')", "a b", true),
        ("nt:base", "ISSAMENODE(a, '/content/a') AND CONTAINS(a.*, 'pear')", "a", false),
    ] {
        let statement = format!("SELECT * FROM [{node_type}] AS a WHERE {condition}");
        assert_eq!(found(&engine, &snapshot, &statement), expected, "{statement}");
        assert_eq!(found(&QueryEngine::default(), &snapshot, &statement), expected, "{statement}");
        let index = indexes(&engine, &snapshot, &statement);
        assert_eq!(index == "full text", by_index, "{statement}: {index}");
    }
}

#[test]
fn a_long_value_is_found_in_its_property_alone() {
    let long = "rind and peel ".repeat(20);
    let site = Site::new();
    site.page("/content/a", "Plum", &format!("{long} a ripe fig"));
    site.page("/content/b", "A fig", &long);
    site.page("/content/c", "Fig", "a ripe fig");
    let engine = engine_now(&site);
    let snapshot = site.repository.snapshot().unwrap();
    for (property, words, expected) in [
        ("jcr:content/text/text", "fig", "a c"),
        ("jcr:content/text/text", "\"ripe fig\"", "a c"),
        ("jcr:content/text/text", "rip*", "a c"),
        ("jcr:content/text/text", "*eel", "a b"),
        ("jcr:content/text/text", "rind -fig", "b"),
        ("jcr:content/jcr:title", "fig", "b c"),
        ("jcr:content/jcr:title", "rind", ""),
    ] {
        let statement =
            format!("SELECT * FROM [cq:Page] AS a WHERE CONTAINS(a.[{property}], '{words}')");
        assert_eq!(found(&engine, &snapshot, &statement), expected, "{statement}");
        assert_eq!(found(&QueryEngine::default(), &snapshot, &statement), expected, "{statement}");
        assert_eq!(indexes(&engine, &snapshot, &statement), "full text", "{statement}");
    }
}

#[test]
fn values_are_counted_of_rows_alone() {
    let long = "rind and peel ".repeat(20);
    let site = Site::new();
    site.page("/content/a", "Plum", &format!("{long} a ripe fig"));
    site.page("/content/b", "A fig", &long);
    let engine = engine_now(&site);
    let snapshot = site.repository.snapshot().unwrap();
    let statement = "SELECT [jcr:path], [rep:facet(jcr:content/jcr:title)] FROM [cq:Page] AS a \
                     WHERE CONTAINS(a.[jcr:content/text/text], 'fig')";
    let request = QueryRequest::new(parse_sql2(statement).unwrap());
    let page = engine.query_page(&snapshot, &request).unwrap();
    assert_eq!(page.rows.len(), 1);
    assert_eq!(page.facets, [("jcr:content/jcr:title".to_owned(), vec![("Plum".to_owned(), 1)])]);
}

#[test]
fn stems_are_found_by_documents_seen_whole() {
    let site = Site::new();
    site.put("/content/en", Subtree::new("", "sling:Folder"));
    site.page("/content/en/a", "Story", "He was running");
    let engine = engine_now(&site);
    let snapshot = site.repository.snapshot().unwrap();
    for (node_type, expected) in [("cq:Page", "en/a"), ("nt:unstructured", "")] {
        let statement = format!("SELECT * FROM [{node_type}] AS a WHERE CONTAINS(a.*, 'runs')");
        assert_eq!(found(&engine, &snapshot, &statement), expected, "{node_type}");
    }
}

#[test]
fn commits_show_before_the_index_has_them() {
    let site = site();
    let engine = engine_now(&site);
    site.page("/content/new", "Pear", "Fresh");
    site.page("/content/b", "Cherry", "No more");
    site.remove("/content/a");
    let snapshot = site.repository.snapshot().unwrap();
    let pears = "SELECT * FROM [cq:Page] AS a WHERE CONTAINS(a.*, 'pear')";
    assert_eq!(found(&engine, &snapshot, pears), "new");
    assert_eq!(
        indexes(&engine, &snapshot, pears),
        "full text, and 3 documents that are not indexed yet"
    );
    let inside = "SELECT * FROM [cq:PageContent] AS a WHERE CONTAINS(a.[jcr:title], 'cherry')";
    assert_eq!(found(&engine, &snapshot, inside), "b/_");
    // An index that has caught up shows no other rows.
    assert_eq!(found(&engine_now(&site), &snapshot, pears), "new");
    assert_eq!(indexes(&engine_now(&site), &snapshot, pears), "full text");
}

#[test]
fn an_index_ahead_of_the_snapshot_answers_for_the_snapshot() {
    let site = site();
    let snapshot = site.repository.snapshot().unwrap();
    site.remove("/content/a");
    site.page("/content/new", "Pear", "Fresh");
    let engine = engine_now(&site);
    let pears = "SELECT * FROM [cq:Page] AS a WHERE CONTAINS(a.*, 'pear')";
    assert_eq!(found(&engine, &snapshot, pears), "a b");
}

#[test]
fn an_index_far_behind_is_not_used() {
    let site = site();
    let engine = engine_now(&site);
    let mut session = site.repository.session("author").unwrap();
    for number in 0..1001 {
        session.put_node(&path(&format!("/content/p{number}")), page("Kiwi", "x")).unwrap();
    }
    session.commit("many", UNIX_EPOCH).unwrap();
    let snapshot = site.repository.snapshot().unwrap();
    let kiwis = "SELECT * FROM [cq:Page] AS a WHERE CONTAINS(a.*, 'kiwi')";
    assert_eq!(paths(&engine, &snapshot, kiwis).len(), 1001);
    let index = indexes(&engine, &snapshot, kiwis);
    assert_eq!(index, "traverse, as the full-text index differs too much from this state");
}

#[test]
fn hidden_parts_give_no_hit_excerpt_or_score() {
    let site = Site::new();
    assert!(site.repository.install_initial_policies(UNIX_EPOCH).unwrap());
    let hidden = Subtree::new("secret", "nt:unstructured")
        .with_property("text", Property::text("a quokka pear"))
        .with_child(deny("everyone"));
    let mut tree = page("Story", "a pear");
    let content = tree.child_mut("jcr:content").unwrap();
    *content = content.clone().with_child(hidden);
    site.put("/content/half", tree);
    site.page("/content/open", "Open", "a quokka pear");
    let engine = engine_now(&site);
    let whole = site.repository.snapshot().unwrap();
    let seen = whole.as_viewer(&Viewer::anonymous());
    let statement = |word: &str| {
        format!("SELECT [rep:excerpt] FROM [cq:Page] AS a WHERE CONTAINS(a.*, '{word}')")
    };
    assert_eq!(found(&engine, &whole, &statement("quokka")), "half open");
    assert_eq!(found(&engine, &seen, &statement("quokka")), "open");
    assert_eq!(found(&engine, &seen, &statement("pear")), "half open");
    for row in rows(&engine, &seen, &statement("pear")) {
        let is_half = row.node().unwrap().path().as_str() == "/content/half";
        assert_eq!(row.excerpt.is_none(), is_half, "{row:?}");
        assert_eq!(row.score == 1.0, is_half, "{row:?}");
    }
    let inside = "SELECT * FROM [nt:unstructured] AS a WHERE CONTAINS(a.*, 'quokka')";
    assert_eq!(found(&engine, &seen, inside), "open/_ open/_/text");
}

#[test]
fn words_that_only_others_may_read_are_not_offered() {
    let site = Site::new();
    assert!(site.repository.install_initial_policies(UNIX_EPOCH).unwrap());
    let hidden = Subtree::new("", "sling:Folder").with_child(deny("everyone"));
    site.put("/content/hidden", hidden);
    // More hidden words than are offered, each of them said more often than the open one.
    for number in 0..15 {
        let text = format!("quokka{number:02}");
        site.page(&format!("/content/hidden/a{number}"), "Hidden", &text);
        site.page(&format!("/content/hidden/b{number}"), "Hidden", &text);
    }
    site.page("/content/open", "Open", "quokkazoo");
    let engine = engine_now(&site);
    let whole = site.repository.snapshot().unwrap();
    let seen = whole.as_viewer(&Viewer::anonymous());
    let words = |snapshot: &Snapshot, function: &str, text: &str| {
        let statement = format!("SELECT [rep:suggest()] FROM [nt:base] WHERE {function}('{text}')");
        let request = QueryRequest::new(parse_sql2(&statement).unwrap());
        engine.query_page(snapshot, &request).unwrap().suggestions
    };
    assert_eq!(words(&whole, "SUGGEST", "quok").len(), 10);
    assert_eq!(words(&seen, "SUGGEST", "quok"), ["quokkazoo"]);
    assert_eq!(words(&whole, "SPELLCHECK", "quokka0").len(), 10);
    assert_eq!(words(&seen, "SPELLCHECK", "quokka0"), Vec::<String>::new());
    assert_eq!(words(&seen, "SPELLCHECK", "quokkazo"), ["quokkazoo"]);
}

/// Returns what the functions say to somebody who is not logged in.
fn said(site: &Site) -> Vec<String> {
    let engine = engine_now(site);
    let seen = site.repository.snapshot().unwrap();
    let seen = seen.as_viewer(&Viewer::anonymous());
    let mut said = Vec::new();
    for text in ["quo", "quokka", "quokkas", "quok", "a quokka", "wombats", "quokkb", "wom", "qu"] {
        for function in ["SUGGEST", "SPELLCHECK"] {
            let statement =
                format!("SELECT [rep:suggest()] FROM [nt:base] WHERE {function}('{text}')");
            let request = QueryRequest::new(parse_sql2(&statement).unwrap());
            let words = engine.query_page(&seen, &request).unwrap().suggestions;
            said.push(format!("{function} {text}: {words:?}"));
        }
    }
    said
}

/// A site of which a part is hidden, and the same without what is.
fn hidden_and_without(hidden: &[&str], open: &[&str]) -> [Site; 2] {
    [true, false].map(|has_hidden| {
        let site = Site::new();
        assert!(site.repository.install_initial_policies(UNIX_EPOCH).unwrap());
        site.put("/content/h", Subtree::new("", "sling:Folder").with_child(deny("everyone")));
        for (number, text) in hidden.iter().enumerate().filter(|_| has_hidden) {
            site.page(&format!("/content/h/p{number}"), "Hidden", text);
        }
        for (number, text) in open.iter().enumerate() {
            site.page(&format!("/content/p{number}"), "Open", text);
            let closed = Subtree::new("closed", "nt:unstructured")
                .with_property(
                    "text",
                    Property::text(if has_hidden { "quokka wombat" } else { "x" }),
                )
                .with_child(deny("everyone"));
            site.put(&format!("/content/p{number}/jcr:content/closed"), closed);
        }
        site
    })
}

#[test]
fn silence_tells_nothing_of_hidden_words() {
    let hidden = ["quokka", "quokkab quokkac", "quokkaz wombats", "a b c"];
    let [with, without] = hidden_and_without(&hidden, &["quokkas and", "wombat and quoll"]);
    let said_with = said(&with);
    assert_eq!(said_with, said(&without));
    // The word is unknown to who does not see it, however often it stands elsewhere.
    assert!(said_with.contains(&r#"SPELLCHECK quokka: ["quokkas"]"#.to_owned()), "{said_with:?}");
    assert!(said_with.contains(&r#"SPELLCHECK wombats: ["wombat"]"#.to_owned()), "{said_with:?}");
    assert!(said_with.contains(&r#"SUGGEST quok: ["quokkas"]"#.to_owned()), "{said_with:?}");
}

#[test]
fn words_that_are_gone_are_not_offered() {
    let [site, _] = hidden_and_without(&[], &["quokkas", "quoll"]);
    let engine = engine_now(&site);
    site.page("/content/p0", "Open", "nothing");
    // The index is behind the content.
    let seen = site.repository.snapshot().unwrap();
    let seen = seen.as_viewer(&Viewer::anonymous());
    let request = parse_sql2("SELECT [rep:suggest()] FROM [nt:base] WHERE SUGGEST('quo')").unwrap();
    assert_eq!(
        engine.query_page(&seen, &QueryRequest::new(request)).unwrap().suggestions,
        ["quoll"]
    );
}

#[test]
fn a_name_may_be_that_of_a_property_and_of_a_node() {
    let site = Site::new();
    let text = |text: &str| Property::text(text);
    let content = |child: Option<Subtree>, value: Option<&str>| {
        let mut content = Subtree::new("jcr:content", "nt:unstructured");
        child.into_iter().for_each(|child| content.put_child(child));
        value
            .into_iter()
            .fold(content, |content, value| content.with_property("cq:note", text(value)))
    };
    let note =
        || Subtree::new("cq:note", "nt:unstructured").with_property("text", text("a ripe fig"));
    let page = |content: Subtree| Subtree::new("", "cq:Page").with_child(content);
    site.put("/content/a", page(content(None, Some("a ripe fig"))));
    site.put("/content/b", page(content(Some(note()), None)));
    site.put("/content/c", page(content(Some(note()), Some("a plum"))));
    site.put(
        "/content/d",
        page(content(None, Some("a plum")).with_property("text", text("a ripe fig"))),
    );
    let engine = engine_now(&site);
    let snapshot = site.repository.snapshot().unwrap();
    for (node_type, property, words, expected) in [
        ("nt:unstructured", "cq:note", "fig", "a/_ b/_ c/_"),
        ("nt:unstructured", "cq:note", "\"ripe fig\"", "a/_ b/_ c/_"),
        ("nt:unstructured", "cq:note", "rip*", "a/_ b/_ c/_"),
        ("nt:unstructured", "cq:note", "plum", "c/_ d/_"),
        ("cq:Page", "jcr:content/cq:note", "fig", "a b c"),
        ("cq:Page", "jcr:content/cq:note", "*lum", "c d"),
    ] {
        let statement =
            format!("SELECT * FROM [{node_type}] AS a WHERE CONTAINS(a.[{property}], '{words}')");
        assert_eq!(found(&engine, &snapshot, &statement), expected, "{statement}");
        assert_eq!(found(&QueryEngine::default(), &snapshot, &statement), expected, "{statement}");
        assert_eq!(indexes(&engine, &snapshot, &statement), "full text", "{statement}");
    }
}

const WORDS: [&str; 6] = ["quince", "plum", "fig", "lime", "kiwi", "yuzu"];

/// Words, and around them sometimes so much that the index does not have the property by itself.
fn text() -> impl Strategy<Value = String> {
    let words = prop::collection::vec(prop::sample::select(&WORDS[..]), 0..4);
    let filler = prop::sample::select(&["", "rind ", "peel and stone and seed "][..]);
    (words, filler).prop_map(|(words, filler)| words.join(" ") + " " + &filler.repeat(30))
}

fn condition() -> impl Strategy<Value = String> {
    let word = || prop::sample::select(&WORDS[..]);
    prop_oneof![
        word().prop_map(str::to_owned),
        (word(), word()).prop_map(|(one, other)| format!("{one} {other}")),
        (word(), word()).prop_map(|(one, other)| format!("{one} -{other}")),
        (word(), word()).prop_map(|(one, other)| format!("{one} OR {other}")),
        (word(), word(), word()).prop_map(|(a, b, c)| format!("{a} OR {b} -{c}")),
        word().prop_map(|word| format!("-{word}")),
        (word(), word()).prop_map(|(one, other)| format!("\"{one} {other}\"")),
        word().prop_map(|word| format!("{}*", &word[..2])),
        word().prop_map(|word| format!("*{}", &word[1..])),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Rows by the index, behind the content and caught up, are those of a scan; pages of any size join to the whole.
    #[test]
    fn rows_are_those_of_a_scan(
        first in prop::collection::vec((0..12_u8, text(), text()), 1..10),
        then in prop::collection::vec((0..12_u8, text(), text(), any::<bool>()), 0..6),
        conditions in prop::collection::vec(condition(), 1..6),
        limit in 1..5_u64,
    ) {
        let site = Site::new();
        for (name, title, text) in &first {
            site.page(&format!("/content/n{name}"), title, text);
        }
        let behind = engine_now(&site);
        for (name, title, text, is_removed) in &then {
            let at = format!("/content/n{name}");
            let is_there = site.repository.snapshot().unwrap().node(&path(&at)).unwrap().is_some();
            match (is_there, *is_removed) {
                (true, true) => site.remove(&at),
                _ => site.page(&at, title, text),
            }
        }
        let caught_up = engine_now(&site);
        let snapshot = site.repository.snapshot().unwrap();
        let scan = QueryEngine::default();
        for condition in &conditions {
            for (node_type, part) in [
                ("cq:Page", "*"), ("nt:base", "*"), ("nt:unstructured", "*"),
                ("cq:PageContent", "[jcr:title]"), ("cq:Page", "[jcr:content/text/text]"),
                ("cq:Page", "[jcr:content]"),
            ] {
                let statement = format!(
                    "SELECT * FROM [{node_type}] AS a WHERE ISDESCENDANTNODE(a, '/content') \
                     AND CONTAINS(a.{part}, '{condition}')"
                );
                let mut expected = paths(&scan, &snapshot, &statement);
                expected.sort();
                for engine in [&behind, &caught_up] {
                    let whole = paths(engine, &snapshot, &statement);
                    let mut sorted = whole.clone();
                    sorted.sort();
                    prop_assert_eq!(&sorted, &expected, "{}", statement);
                    let mut joined = Vec::new();
                    let mut request = QueryRequest::new(parse_sql2(&statement).unwrap());
                    request.limit = Some(limit);
                    loop {
                        let page = engine.query_page(&snapshot, &request).unwrap();
                        let nodes = page.rows.iter().map(|row| row.node().unwrap().path().to_string());
                        joined.extend(nodes);
                        request.cursor = page.cursor;
                        if request.cursor.is_none() {
                            break;
                        }
                    }
                    prop_assert_eq!(&joined, &whole, "{}", statement);
                }
            }
        }
    }
}
