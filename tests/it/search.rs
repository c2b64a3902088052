//! The sample site's search page: what visitors type finds the pages that have it.

use std::collections::BTreeSet;

use tympan_testkit::condition_wait::{wait_for, wait_until};

use crate::program::{Answer, Demo, get};

const SEARCH: &str = "/content/wayfare/en/search";
/// Returns the addresses of the hits.
fn hits(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.text();
    let list = text.split_once("<ol class=\"hits\"").map_or("", |(_, rest)| rest);
    let list = list.split_once("</ol>").map_or("", |(list, _)| list);
    let links = list.split("<h3><a href=\"").skip(1);
    links.filter_map(|link| link.split('"').next().map(str::to_owned)).collect()
}

/// Asks until the pages that are found are these.
fn wait_for_hits(ask: impl Fn() -> Answer, expected: &[&str]) -> Answer {
    wait_for(|| {
        let answer = ask();
        let found = hits(&answer);
        if found == expected {
            Ok(answer)
        } else {
            Err(format!("found {found:?}, not {expected:?}"))
        }
    })
}

#[test]
fn visitors_find_words_of_the_text() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let night = "/content/wayfare/en/journal/night-train-to-lisbon.html";
    // No title has the word.
    let url = format!("{SEARCH}.html/cellist");
    // Until the index is built, pages are looked at one by one, and there is nothing to mark words with.
    wait_until("a word is marked", || get(demo.publish, &url).text().contains("<strong>"));
    for address in [demo.publish, demo.dispatcher] {
        let answer = wait_for_hits(|| get(address, &url), &[night]);
        assert!(answer.text().contains("<strong>cellist</strong>"), "{}", answer.text());
        assert!(answer.text().contains("1 page for “cellist”"), "{}", answer.text());
    }
    assert_eq!(hits(&demo.get_as_admin(&url)), [night]);
    for (typed, expected) in [
        ("CELLISTS", &[night][..]),
        ("cellist%20instrument", &[night]),
        ("cellist%20-instrument", &[]),
        ("%22holds%20her%20instrument%22", &[night]),
        ("%22her%20holds%20instrument%22", &[]),
        ("cell*", &[]),
        ("nosuchwordanywhere", &[]),
        ("%3Cscript%3Ealert(1)%3C%2Fscript%3E", &[]),
    ] {
        let answer = get(demo.publish, &format!("{SEARCH}.html/{typed}"));
        assert_eq!(hits(&answer), expected, "{typed}");
        assert!(!answer.text().contains("<script>alert"), "{typed}");
    }
    assert_eq!(hits(&get(demo.publish, &format!("{SEARCH}.html?q=cellist"))), [night]);
    assert_eq!(hits(&get(demo.publish, &format!("{SEARCH}.html"))), Vec::<String>::new());
}

#[test]
fn many_hits_are_turned_page_by_page() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let mut url = format!("{SEARCH}.html/the");
    let (mut seen, mut pages) = (BTreeSet::new(), 0);
    loop {
        let answer = get(demo.publish, &url);
        let found = hits(&answer);
        assert!(!found.is_empty() && found.len() <= 10, "{found:?}");
        found.into_iter().for_each(|hit| assert!(seen.insert(hit), "found twice"));
        pages += 1;
        let text = answer.text();
        let Some((before, _)) = text.split_once("\">Next →") else { break };
        url = before.rsplit_once("href=\"").unwrap().1.to_owned();
    }
    assert!(pages > 1 && seen.len() > 10, "{pages} pages, {seen:?}");
    // A page that is not there leads to the first one, so that invented addresses fill no cache.
    let beyond = get(demo.publish, &format!("{SEARCH}.999999.html/the"));
    assert_eq!(beyond.status, 302);
    assert!(beyond.header("location").unwrap().ends_with("/search.html/the"), "{}", beyond.head);
    for made_up in [".x.html/the", ".1.html/the", ".02.html/the", ".2.2.html/the"] {
        assert_eq!(get(demo.publish, &format!("{SEARCH}{made_up}")).status, 404, "{made_up}");
    }
}

#[test]
fn a_search_finds_what_was_published_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let page = "/content/wayfare/en/journal/night-train-to-lisbon";
    let url = format!("{SEARCH}.html/quokkas");
    let html = format!("{page}.html");
    let saved =
        demo.post(&format!("{page}/jcr:content"), "./jcr:description=Two+quokkas+on+a+train");
    assert_eq!(saved.status, 200, "{}", saved.text());
    wait_for_hits(|| demo.get_as_admin(&url), &[&html]);
    assert_eq!(hits(&get(demo.publish, &url)), Vec::<String>::new());
    assert_eq!(hits(&get(demo.dispatcher, &url)), Vec::<String>::new());
    assert_eq!(demo.post(page, ":operation=activate").status, 200);
    wait_for_hits(|| get(demo.publish, &url), &[&html]);
    // The dispatcher has the page without hits in its cache.
    wait_for_hits(|| get(demo.dispatcher, &url), &[&html]);
}
