//! Input that means harm, and folders that vanish.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use tympan_content::{Property, Subtree};
use tympan_content_query::{FullTextExpression, FullTextIndex};

use crate::indexed_site::{Site, names, now, path, request, term};

fn text_at(site: &Site, at: &str, text: String) {
    let tree = Subtree::new("", "nt:unstructured").with_property("text", Property::text(text));
    site.put(at, tree);
}

#[test]
fn a_folder_deleted_under_a_running_index_is_built_anew() {
    let site = Site::new();
    site.page("/content/a", "One", "alpha");
    site.caught_up();
    std::fs::remove_dir_all(site.folder.path()).unwrap();
    assert_eq!(site.index.search(&request(term("alpha"))).unwrap().hits.len(), 1);
    site.page("/content/b", "Two", "alpha");
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", site.index.status(now()));
        assert!(site.index.wait_until_current(Duration::from_secs(60)));
        let found = site.index.search(&request(term("alpha"))).unwrap().hits;
        // The new index answers before its place is noted.
        if names(&found).len() == 2 && site.folder.path().join("current").exists() {
            break;
        }
    }
}

#[test]
fn long_texts_are_read_as_far_as_they_count() {
    let site = Site::new();
    // Tags that never end, tags that always end, quotes that never close.
    text_at(&site, "/content/open", "<a ".repeat(600_000) + "alpha");
    text_at(&site, "/content/tags", "<p>x</p>".repeat(200_000) + "alpha");
    text_at(&site, "/content/quotes", "<a title=\"x>' ".repeat(100_000) + "alpha");
    text_at(&site, "/content/long", "alpha ".repeat(4_000_000) + "beyond");
    text_at(&site, "/content/word", "y".repeat(3_000_000));
    let found = site.find_sorted(term("alpha"));
    assert_eq!(found, ["long", "open", "quotes", "tags"]);
    assert_eq!(site.find_sorted(term("beyond")), Vec::<String>::new());
    let status = site.index.status(now()).unwrap();
    assert_eq!((status.failure_count, status.pause_reason), (0, None));
    assert!(status.bytes < 64 << 20, "{}", status.bytes);
}

#[test]
fn expressions_of_people_get_an_answer_or_a_reason() {
    let site = Site::new();
    site.page("/content/a", "One", "alpha beta");
    let check = |text: &str, reason: &str| {
        let answer =
            FullTextExpression::parse(text).map_err(|error| error.to_string()).and_then(|parsed| {
                site.caught_up().search(&request(parsed)).map_err(|error| {
                    let source = std::error::Error::source(&error);
                    source.map_or_else(|| error.to_string(), ToString::to_string)
                })
            });
        let said = answer.map_or_else(|reason| reason, |page| page.hits.len().to_string());
        assert!(said.contains(reason), "{text:.40}: {said}");
    };
    check("*lph*", "1");
    check("*", "3");
    check("-alpha", "2");
    check("?????", "1");
    check("\"alpha", "\"");
    check("(alpha", "`)`");
    check("alpha)", "no matching");
    check("", "expected a word");
    check(&"w ".repeat(5_000), "too many words");
    check(&"word ".repeat(10_000), "longer than 16 KiB");
    check(&"*a* ".repeat(2_000), "too many words");
    check(&"(".repeat(2_000), "at most 50 levels of nesting");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// Whatever is typed, and in whatever property it is looked for, no search fails for a reason of its own.
    #[test]
    fn no_expression_breaks_a_search(
        texts in prop::collection::vec("[a-c\"\\-*?()^0-9\\\\ OR東é.]{0,24}", 20..40),
        property in prop::sample::select(&["", "jcr:title", "a.b", "jcr:content/x/y", "*", "/", "jcr:data"][..]),
    ) {
        let site = Site::new();
        site.page("/content/a", "a b c", "aa bb cc 東京 é");
        let index = site.caught_up();
        for text in texts {
            let Ok(expression) = FullTextExpression::parse(&text) else { continue };
            let mut request = request(expression);
            request.property = (!property.is_empty()).then(|| property.to_owned());
            request.wants_excerpt = true;
            request.ancestor = Some(path("/content"));
            if let Err(error) = index.search(&request) {
                prop_assert!(
                    matches!(error, tympan_content_query::Error::QueryRefused { .. }),
                    "{text}: {error}"
                );
            }
            prop_assert!(index.suggest(&text, 5, None).is_ok());
            prop_assert!(index.spellcheck(&text, 5, None).is_ok());
        }
        let rebuilds = index.counters().rebuilds.load(std::sync::atomic::Ordering::Relaxed);
        prop_assert_eq!(rebuilds, 1);
    }
}
