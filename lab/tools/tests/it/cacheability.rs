//! Walks through scripted sites.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tympan_lab_tools::cacheability::CacheObstacle;
use tympan_lab_tools::cacheability::{CrawlOptions, survey_cacheability};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

fn crawl(origin: &OriginServer) -> CrawlOptions {
    CrawlOptions {
        start_url: format!("http://{}/index.html", origin.addr()),
        max_addresses: 100,
        headers: Vec::new(),
        visitor_headers: Vec::new(),
        timeout: Duration::from_secs(60),
    }
}

/// One page per sin, and one without.
fn sinful() -> OriginServer {
    let count = AtomicUsize::new(0);
    OriginServer::start(move |seen| {
        let cookie = seen.header("cookie").unwrap_or_default().to_owned();
        match seen.target.as_str() {
            "/index.html" => OriginResponse::html(
                "<a href='clean.html'>a</a><a href=/gallery.html?event=christmas&amp;page=1>b</a>\
                 <a href='/download.jsp?file=2214'>c</a><a href=/news>d</a><a href=plain.html>e</a>\
                 <a href=cookie.html>f</a><a href=size.html>g</a><a href=hello.html>h</a>\
                 <a href=counter.html>i</a><a href=private.html>j</a><img src=logo.png>\
                 <a href=http://elsewhere.example/x.html>k</a><a href=mailto:a@b.c>l</a>\
                 <a href=/logout.html>m</a><a href=clean.html#top>n</a>",
            ),
            "/plain.html" => OriginResponse::with_status(200)
                .with_header("Content-Type", "text/html")
                .with_body("x"),
            "/cookie.html" => {
                OriginResponse::html("x").with_header("Set-Cookie", "size=large; Path=/")
            }
            "/size.html" if cookie.contains("size=large") => {
                OriginResponse::html("<p>big letters</p>")
            }
            "/hello.html" if cookie.contains("login=me") => {
                OriginResponse::html("<p>Hello, Ada</p>")
            }
            "/counter.html" => OriginResponse::html(format!(
                "visitor number {}",
                count.fetch_add(1, Ordering::SeqCst)
            )),
            "/private.html" => {
                OriginResponse::html("x").with_header("Cache-Control", "private, max-age=0")
            }
            "/logo.png" => OriginResponse::with_status(200)
                .with_header("Content-Type", "image/png")
                .with_body([1, 2]),
            _ => OriginResponse::html("<p>small letters</p>"),
        }
    })
}

#[test]
fn every_obstacle_is_found_once_with_an_example() {
    let origin = sinful();
    let visitor = vec![("Cookie".to_owned(), "login=me".to_owned())];
    let survey =
        survey_cacheability(&CrawlOptions { visitor_headers: visitor, ..crawl(&origin) }).unwrap();
    let found: Vec<(&str, Vec<&str>)> = survey
        .examples
        .iter()
        .map(|(obstacle, examples)| {
            (obstacle.name(), examples.iter().map(|one| one.target.as_str()).collect())
        })
        .collect();
    assert_eq!(
        found,
        [
            ("query-string", vec!["/gallery.html?event=christmas&page=1"]),
            ("generic-script", vec!["/download.jsp?file=2214"]),
            ("no-extension", vec!["/news"]),
            ("no-charset", vec!["/plain.html"]),
            ("set-cookie", vec!["/cookie.html"]),
            ("forbidden", vec!["/private.html"]),
            ("cookie-dependent-bytes", vec!["/size.html"]),
            ("personalized-bytes", vec!["/hello.html"]),
            ("varying-bytes", vec!["/counter.html"]),
        ]
    );
    let hello = &survey.examples[&CacheObstacle::PersonalizedBytes][0];
    assert!(hello.observation.contains("Hello, Ada"), "{hello:?}");
    assert_eq!(hello.referrer, "/index.html");
    assert_eq!((survey.requested_count, survey.hindered_count, survey.skipped_count), (12, 9, 0));
    let asked: Vec<String> = origin.requests().into_iter().map(|seen| seen.target).collect();
    assert!(!asked.iter().any(|target| target.contains("logout")), "nobody is logged out");
    assert!(origin.requests().iter().all(|seen| seen.method == "GET"));
}

#[test]
fn a_clean_site_has_no_obstacle() {
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/index.html" => {
            OriginResponse::html("<a href=a.print.a4.html>a</a><script nonce=abcdefgh1234>")
                .with_header("Date", "x")
        }
        _ => OriginResponse::html("made 2026-11-21T00:50:16Z"),
    });
    let survey = survey_cacheability(&crawl(&origin)).unwrap();
    assert!(survey.examples.is_empty(), "{survey:?}");
    assert_eq!(survey.requested_count, 2);
}

#[test]
fn a_walk_stays_within_its_limits() {
    // Every page leads to ten more, and one path to ever new query strings.
    let origin = OriginServer::start(|seen| {
        if seen.target.contains('?') {
            return OriginResponse::html("found nothing");
        }
        let name = seen.target.trim_start_matches('/').replace(".html", "");
        let links: String = (0..10)
            .map(|number| {
                format!("<a href=/{name}{number}.html><a href='/s.html?q={name}{number}'>")
            })
            .collect();
        OriginResponse::html(links)
    });
    let survey =
        survey_cacheability(&CrawlOptions { max_addresses: 25, ..crawl(&origin) }).unwrap();
    assert_eq!(survey.requested_count, 25);
    assert!(survey.skipped_count > 0);
    // Each address is asked for at most twice, as nobody sets cookies.
    assert_eq!(origin.request_count(), 50);
    let queries = origin.requests().into_iter().filter(|seen| seen.target.contains('?')).count();
    assert_eq!(queries, 4, "two query strings of a path are enough");
}

#[test]
fn a_start_that_does_not_answer_is_an_error_and_a_page_that_does_not_is_reported() {
    let dead = tympan_testkit::origin_server::refusing_addr();
    let lost = CrawlOptions { start_url: format!("http://{dead}/"), ..crawl(&sinful()) };
    assert!(!survey_cacheability(&lost).unwrap_err().is_usage());
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/index.html" => OriginResponse::html("<a href=gone.html>"),
        _ => OriginResponse::html("x")
            .with_delivery(tympan_testkit::origin_server::ResponseDelivery::Hangup),
    });
    let survey = survey_cacheability(&crawl(&origin)).unwrap();
    assert_eq!(survey.failures.len(), 1);
    assert!(survey.failures[0].contains("/gone.html"), "{survey:?}");
}
