//! Pages whose variants by query have cache files of their own (`/x-cacheKeyParams`).

use tympan_testkit::origin_server::{OriginGate, OriginResponse, OriginServer};

use crate::front::{Front, front};

const PAGE: &str = "/content/list.html";
const KEYS: &str = "/x-cacheKeyParams { /0 { /glob \"page\" /type \"allow\" } /1 { /glob \"sort\" /type \"allow\" } }
    /ignoreUrlParams { /0 { /glob \"utm_*\" /type \"allow\" } }";

fn origin() -> OriginServer {
    OriginServer::start(|seen| OriginResponse::html(format!("drawn for {}", seen.target)))
}

fn get(front: &Front, query: &str) -> String {
    front.get(&format!("{PAGE}{query}")).body
}

#[test]
fn each_variant_is_cached_and_found_by_its_parameters() {
    let origin = origin();
    let front = front(&origin, KEYS);
    for query in ["", "?page=1", "?page=2", "?page=2&sort=a", "?page=2&page=1", "?page=1&page=2"] {
        assert_eq!(get(&front, query), format!("drawn for {PAGE}{query}"));
        let again = front.get(&format!("{PAGE}{query}"));
        assert!(again.is_hit(), "{query}: {}", again.info());
        assert_eq!(again.body, format!("drawn for {PAGE}{query}"));
    }
    assert_eq!(origin.request_count(), 6);
    // What is ignored is no part of it, nor is the order of parameters.
    assert_eq!(get(&front, "?utm_source=x&page=2"), format!("drawn for {PAGE}?page=2"));
    assert_eq!(get(&front, "?sort=a&page=2"), format!("drawn for {PAGE}?page=2&sort=a"));
    assert_eq!(get(&front, "?utm_source=x"), format!("drawn for {PAGE}"));
    assert_eq!(origin.request_count(), 6);
    let other = front.get(&format!("{PAGE}?page=2&other=1"));
    assert_eq!(other.info(), "not cacheable: request contained a query string");
    assert!(front.has("content/list.q~.page=2&sort=a.html"), "{:?}", front.files());
    assert_eq!(front.files().iter().filter(|name| name.ends_with(".html")).count(), 6);
}

#[test]
fn no_path_reads_or_writes_the_file_of_a_variant() {
    let origin = origin();
    let front = front(&origin, KEYS);
    get(&front, "?page=2");
    let path = "/content/list.q~.page=2.html";
    assert_eq!(front.get(path).body, format!("drawn for {path}"));
    assert_eq!(front.get(path).info(), "not cacheable: file name is reserved");
    let escaped = "/content/list.q%7e.page=2.html";
    assert_eq!(front.get(escaped).body, format!("drawn for {escaped}"));
    assert_eq!(get(&front, "?page=2"), format!("drawn for {PAGE}?page=2"));
    assert_eq!(front.read("content/list.q~.page=2.html"), format!("drawn for {PAGE}?page=2"));
    // What would leave the folder stays in the name.
    get(&front, "?page=../../etc/x");
    assert!(
        front.has("content/list.q~.page=%2E%2E%2F%2E%2E%2Fetc%2Fx.html"),
        "{:?}",
        front.files()
    );
}

#[test]
fn whatever_forgets_a_page_forgets_its_variants() {
    let origin = origin();
    let front = front(&origin, KEYS);
    let fill = || {
        for page in ["/content/list.html", "/content/lister.html", "/content/other.html"] {
            front.get(page);
            front.get(&format!("{page}?page=2"));
        }
        assert_eq!(front.files().iter().filter(|name| name.contains("q~")).count(), 3);
    };
    let left = |front: &Front| {
        let files = front.files();
        files.into_iter().filter(|name| name.ends_with(".html")).collect::<Vec<_>>().join(" ")
    };
    const OTHERS: &str = "content/lister.html content/lister.q~.page=2.html \
        content/other.html content/other.q~.page=2.html";
    fill();
    assert_eq!(front.flush("Activate", "/content/list", &[]).status, 200);
    assert_eq!(left(&front), OTHERS);
    fill();
    assert_eq!(front.send("PURGE", PAGE, &[], "").status, 200);
    assert_eq!(left(&front), OTHERS);
    fill();
    // A publisher that lists the URL of the page by that of another one knows nothing of queries.
    let headers = [
        ("CQ-Action", "Activate"),
        ("CQ-Handle", "/content/none"),
        ("CQ-Action-Scope", "ResourceOnly"),
        ("Content-Type", "text/plain"),
    ];
    assert_eq!(front.send("POST", "/dispatcher/invalidate.cache", &headers, PAGE).status, 200);
    front.wait_for("refetches_total", 1);
    assert_eq!(left(&front), format!("content/list.html {OTHERS}"));
    assert_eq!(get(&front, "?page=2"), format!("drawn for {PAGE}?page=2"));
    assert_eq!(front.send("PURGE", &format!("{PAGE}?page=2"), &[], "").status, 200);
    assert_eq!(left(&front), format!("content/list.html {OTHERS}"));
}

#[test]
fn a_variant_that_was_flushed_while_it_was_rendered_is_not_cached() {
    let gate = OriginGate::default();
    let held = gate.clone();
    let origin = OriginServer::start(move |seen| {
        if seen.target.contains("page") {
            held.wait_open();
        }
        OriginResponse::html("page")
    });
    let front = front(&origin, KEYS);
    for purge in [true, false] {
        gate.close();
        let asked = origin.request_count();
        std::thread::scope(|scope| {
            let visitor = scope.spawn(|| front.get(&format!("{PAGE}?page=2")));
            origin.wait_for_requests(asked + 1);
            if purge {
                // There is no file yet.
                assert_eq!(front.send("PURGE", PAGE, &[], "").status, 404);
            } else {
                assert_eq!(front.flush("Activate", "/content/list", &[PAGE]).status, 200);
            }
            gate.open();
            assert_eq!(visitor.join().unwrap().status, 200);
        });
        assert!(!front.has("content/list.q~.page=2.html"), "purge: {purge}");
    }
}
