//! Expressions and the documents they find.

use tympan_content::{Property, Subtree, Value};
use tympan_content_query::{FullTextExpression, FullTextIndex, FullTextPosition};

use crate::indexed_site::{Site, hits, names, page, path, request, search, term};

fn site() -> Site {
    let site = Site::new();
    site.page("/content/a", "Running shoes", "The quick brown fox jumps over the lazy dog.");
    site.page(
        "/content/b",
        "Brown bread",
        "A loaf of <b>bread</b> &amp; butter; Gr&uuml;&szlig;e.",
    );
    site.page("/content/c", "Nothing", "He runs a brown-fox farm. quickly done");
    site.put("/content/en", Subtree::new("", "sling:Folder"));
    site.page("/content/en/d", "Stories", "Many foxes were running");
    site.put("/content/de", Subtree::new("", "sling:Folder"));
    site.page("/content/de/e", "Häuser", "Alle Häuser sind bunt, 東京タワー auch");
    site
}

#[test]
fn expressions_find_documents() {
    let site = site();
    let not = |part: FullTextExpression| FullTextExpression::Not(Box::new(part));
    for (expression, expected) in [
        (term("fox"), "a c en/d"),
        (term("FOX"), "a c en/d"),
        (term("foxes"), "a c en/d"),
        (term("run"), "en/d"),
        (term("running"), "a en/d"),
        (term("haus"), "de/e"),
        (term("häuser"), "de/e"),
        (term("hauser"), "de/e"),
        (term("haeuser"), "de/e"),
        (term("grüße"), "b"),
        (term("grusse"), "b"),
        (term("amp"), ""),
        (term("brown-fox"), "a c"),
        (term("東京"), "de/e"),
        (term("京東"), ""),
        (term("..."), ""),
        (FullTextExpression::Phrase("quick brown fox".into()), "a"),
        (FullTextExpression::Phrase("brown quick".into()), ""),
        (FullTextExpression::Phrase("run".into()), ""),
        (FullTextExpression::Prefix("quick".into()), "a c"),
        (FullTextExpression::Prefix("Brown fo".into()), "a c"),
        (FullTextExpression::Wildcard("f?x".into()), "a c"),
        (FullTextExpression::Wildcard("*ead".into()), "b"),
        (FullTextExpression::Wildcard("F*".into()), "a c en/d"),
        (FullTextExpression::And(vec![term("brown"), term("quick")]), "a"),
        (FullTextExpression::And(vec![term("brown"), not(term("fox"))]), "b"),
        (FullTextExpression::And(vec![term("brown"), term("...")]), "a b c"),
        (FullTextExpression::Or(vec![term("bread"), term("lazy")]), "a b"),
        (not(term("brown")), "de en"),
        (not(not(term("bread"))), "b"),
        (FullTextExpression::Boost(Box::new(term("bread")), 5.0), "b"),
        (
            FullTextExpression::Or(vec![
                FullTextExpression::Boost(Box::new(term("nothing")), f32::NAN),
                term("stories"),
            ]),
            "c en/d",
        ),
        (FullTextExpression::Similar(path("/content/a")), "b c en/d"),
        (FullTextExpression::Similar(path("/content/nowhere")), ""),
    ] {
        let mut found = site.find(expression.clone());
        found.sort();
        // Folders and the root have nothing but names.
        let found: Vec<String> = match &expression {
            FullTextExpression::Not(part) if matches!(**part, FullTextExpression::Term(_)) => {
                found.into_iter().filter(|name| ["de", "en"].contains(&name.as_str())).collect()
            }
            _ => found,
        };
        let found = found.join(" ");
        assert_eq!(found, expected, "{expression:?}");
    }
}

#[test]
fn titles_count_more() {
    let site = site();
    assert_eq!(site.find(term("brown"))[0], "b");
    assert_eq!(site.find(term("running")), ["a", "en/d"]);
}

#[test]
fn properties_are_searched_alone() {
    let site = site();
    let index = site.caught_up();
    for (expression, property, expected) in [
        (term("brown"), "jcr:content/jcr:title", "b"),
        (term("brown"), "jcr:title", "b"),
        (term("brown"), "jcr:content/text/text", "a c"),
        (term("brown"), "text", "a c"),
        (term("brown"), "other", ""),
        (FullTextExpression::Prefix("bro".into()), "jcr:title", "b"),
        (FullTextExpression::Wildcard("*own".into()), "jcr:content/jcr:title", "b"),
        (FullTextExpression::Phrase("brown bread".into()), "jcr:title", "b"),
        (FullTextExpression::Phrase("bread brown".into()), "jcr:title", ""),
        (term("page"), "jcr:primaryType", "a b c de/e en/d"),
    ] {
        let mut request = request(expression.clone());
        request.property = Some(property.to_owned());
        let mut found = names(&hits(index, &request));
        found.sort();
        assert_eq!(found.join(" "), expected, "{expression:?} in {property}");
    }
}

#[test]
fn restrictions_hold() {
    let site = site();
    site.put("/content/f", page("Brown", "x").with_child(Subtree::new("g", "dam:Asset")));
    let index = site.caught_up();
    for (types, below, expected) in [
        (&[][..], None, "a b c f"),
        (&["cq:Page"][..], None, "a b c f"),
        (&["cq:PageContent", "dam:Asset"][..], None, "a b c f"),
        (&["dam:Asset"][..], None, ""),
        (&[][..], Some("/"), "a b c f"),
        (&[][..], Some("/content"), "a b c f"),
        (&[][..], Some("/content/a"), "a"),
        (&[][..], Some("/content/a/jcr:content/text"), "a"),
        (&[][..], Some("/content/en"), ""),
        (&[][..], Some("/nowhere"), ""),
    ] {
        let mut request = request(term("brown"));
        request.node_types = types.iter().map(|one| (*one).to_owned()).collect();
        request.ancestor = below.map(path);
        let mut found = names(&hits(index, &request));
        found.sort();
        assert_eq!(found.join(" "), expected, "{types:?} {below:?}");
    }
}

#[test]
fn pages_of_hits_join_without_gap_or_repetition() {
    let site = Site::new();
    // Not in the order of paths, and more than one block of a list of documents holds.
    for number in 0..400 {
        let number = number * 171 % 400;
        let text = "apple pear plum ".repeat(number % 4 + 1);
        site.page(&format!("/content/p{number:03}"), "Fruit", &text);
    }
    let index = site.caught_up();
    let any =
        FullTextExpression::Or(vec![term("apple"), term("pear"), term("plum"), term("fruit")]);
    for (expression, total) in
        [(term("apple"), 400), (any, 400), (FullTextExpression::Not(Box::new(term("x"))), 402)]
    {
        let whole = hits(index, &request(expression.clone()));
        assert_eq!(whole.len(), total, "{expression:?}");
        let mut joined = Vec::new();
        loop {
            let mut request = request(expression.clone());
            request.limit = 37;
            request.after = joined.last().map(|hit: &tympan_content_query::FullTextHit| {
                FullTextPosition { score: hit.score, path: hit.path.clone() }
            });
            let page = hits(index, &request);
            if page.is_empty() {
                break;
            }
            joined.extend(page);
        }
        assert_eq!(joined, whole, "{expression:?}");
        let is_sorted = whole.is_sorted_by(|one, next| {
            one.score > next.score
                || (one.score == next.score && one.path.as_str() < next.path.as_str())
        });
        assert!(is_sorted, "{expression:?}");
    }
}

#[test]
fn facets_count_values() {
    let site = Site::new();
    for (name, tags) in [("a", &["red", "big"][..]), ("b", &["red"][..]), ("c", &[][..])] {
        let tags = tags.iter().map(|tag| Value::String((*tag).to_owned())).collect();
        let mut tree = page("Thing", "word");
        let content = tree.child_mut("jcr:content").unwrap();
        *content = content
            .clone()
            .with_property("cq:tags", Property::List(tympan_content::ValueType::String, tags));
        site.put(&format!("/content/{name}"), tree);
    }
    let mut request = request(term("word"));
    request.limit = 0;
    request.facets = vec!["jcr:content/cq:tags".into(), "jcr:primaryType".into(), "no.such".into()];
    let page = search(site.caught_up(), &request);
    assert_eq!(page.hits, []);
    assert_eq!(
        page.facets,
        [
            ("jcr:content/cq:tags".into(), vec![("red".into(), 2), ("big".into(), 1)]),
            ("jcr:primaryType".into(), vec![("cq:Page".to_owned(), 3)]),
            ("no.such".to_owned(), vec![]),
        ]
    );
    assert_eq!(site.find(term("big")), ["a"]);
}

#[test]
fn excerpts_are_marked_and_escaped() {
    let site = Site::new();
    site.page("/content/en", "Math", "<p>if 1 &lt; 2 then he runs &lt;fast&gt;</p>");
    let mut request = request(term("running"));
    request.wants_excerpt = true;
    let hits = hits(site.caught_up(), &request);
    let excerpt = hits[0].excerpt.as_deref().unwrap();
    assert!(excerpt.contains("1 &lt; 2 then he <strong>runs</strong> &lt;fast&gt;"), "{excerpt}");
}

#[test]
fn completes_and_corrects() {
    let site = site();
    let index = site.caught_up();
    assert_eq!(index.suggest("bro", 5, None).unwrap(), ["brown"]);
    assert_eq!(index.suggest("the qui", 5, None).unwrap(), ["the quick", "the quickly"]);
    assert_eq!(index.suggest("brown ", 5, None).unwrap(), Vec::<String>::new());
    assert_eq!(index.suggest("", 5, None).unwrap(), Vec::<String>::new());
    assert_eq!(index.spellcheck("braed", 5, None).unwrap(), ["bread"]);
    assert_eq!(index.spellcheck("lazi foks", 5, None).unwrap(), ["lazy foks",]);
    assert_eq!(index.spellcheck("bread", 5, None).unwrap(), Vec::<String>::new());
    assert_eq!(index.spellcheck("qqqqqq", 5, None).unwrap(), Vec::<String>::new());
}

#[test]
fn expressions_without_end_are_refused() {
    let site = Site::new();
    let index = site.caught_up();
    let mut deep = term("x");
    for _ in 0..100 {
        deep = FullTextExpression::Not(Box::new(deep));
    }
    let long = FullTextExpression::Or((0..5000).map(|number| term(&number.to_string())).collect());
    for expression in [deep, long] {
        let error = index.search(&request(expression)).unwrap_err();
        let is_refused = matches!(error, tympan_content_query::Error::QueryRefused { .. });
        assert!(is_refused, "{error}");
    }
}

#[test]
fn estimates_come_from_the_dictionary() {
    let site = Site::new();
    for number in 0..30 {
        site.page(
            &format!("/content/p{number}"),
            "T",
            if number < 4 { "rare word" } else { "word" },
        );
    }
    let index = site.caught_up();
    for (expression, expected) in [
        (term("word"), 30),
        (FullTextExpression::And(vec![term("word"), term("rare")]), 4),
        (FullTextExpression::Or(vec![term("rare"), term("t")]), 32),
    ] {
        let mut request = request(expression.clone());
        request.limit = 2;
        assert_eq!(search(index, &request).estimated_total, expected, "{expression:?}");
    }
}

#[test]
fn secrets_and_versions_are_outside() {
    let site = Site::new();
    site.put("/home", Subtree::new("", "sling:Folder"));
    let user = Subtree::new("", "rep:User").with_property("rep:password", Property::text("hidden"));
    site.put("/home/u", user.with_property("name", Property::text("hidden")));
    site.put(
        "/content/u",
        Subtree::new("", "rep:User").with_property("rep:password", Property::text("hidden")),
    );
    site.put(
        "/homes",
        Subtree::new("", "nt:unstructured").with_property("text", Property::text("hidden")),
    );
    assert_eq!(site.find(term("hidden")), ["/homes"]);
}

#[test]
fn words_are_found_however_they_are_typed() {
    let site = Site::new();
    for (name, title) in [
        ("istanbul", "İstanbul"),
        ("athens", "Αθήνα"),
        ("tree", "Ёлка"),
        ("smile", "Thank you 😀"),
        ("zurich", "Zu\u{308}rich"),
    ] {
        site.page(&format!("/content/page-{name}"), title, "A text.");
    }
    for (word, name) in [
        ("istanbul", "istanbul"),
        ("Istanbul", "istanbul"),
        ("İSTANBUL", "istanbul"),
        ("αθηνα", "athens"),
        ("ΑΘΉΝΑ", "athens"),
        ("елка", "tree"),
        ("ЁЛКА", "tree"),
        ("😀", "smile"),
        ("zürich", "zurich"),
        ("zurich", "zurich"),
    ] {
        assert!(site.find(term(word)).contains(&format!("page-{name}")), "{word}");
    }
    assert_eq!(site.find(FullTextExpression::Prefix("zür".into())), ["page-zurich"]);
    assert_eq!(site.find(FullTextExpression::Wildcard("İst*l".into())), ["page-istanbul"]);
}
