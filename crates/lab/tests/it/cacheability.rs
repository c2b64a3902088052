//! Walks through scripted sites.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tympan_lab::cacheability::{Crawl, Obstacle, survey};
use tympan_testkit::origin::{Answer, Origin};

fn crawl(origin: &Origin) -> Crawl {
    Crawl {
        url: format!("http://{}/index.html", origin.addr()),
        most: 100,
        headers: Vec::new(),
        visitor: Vec::new(),
        timeout: Duration::from_secs(60),
    }
}

/// One page per sin, and one without.
fn sinful() -> Origin {
    let count = AtomicUsize::new(0);
    Origin::start(move |seen| {
        let cookie = seen.header("cookie").unwrap_or_default().to_owned();
        match seen.target.as_str() {
            "/index.html" => Answer::html(
                "<a href='clean.html'>a</a><a href=/gallery.html?event=christmas&amp;page=1>b</a>\
                 <a href='/download.jsp?file=2214'>c</a><a href=/news>d</a><a href=plain.html>e</a>\
                 <a href=cookie.html>f</a><a href=size.html>g</a><a href=hello.html>h</a>\
                 <a href=counter.html>i</a><a href=private.html>j</a><img src=logo.png>\
                 <a href=http://elsewhere.example/x.html>k</a><a href=mailto:a@b.c>l</a>\
                 <a href=/logout.html>m</a><a href=clean.html#top>n</a>",
            ),
            "/plain.html" => Answer::status(200).header("Content-Type", "text/html").body("x"),
            "/cookie.html" => Answer::html("x").header("Set-Cookie", "size=large; Path=/"),
            "/size.html" if cookie.contains("size=large") => Answer::html("<p>big letters</p>"),
            "/hello.html" if cookie.contains("login=me") => Answer::html("<p>Hello, Ada</p>"),
            "/counter.html" => {
                Answer::html(format!("visitor number {}", count.fetch_add(1, Ordering::SeqCst)))
            }
            "/private.html" => Answer::html("x").header("Cache-Control", "private, max-age=0"),
            "/logo.png" => Answer::status(200).header("Content-Type", "image/png").body([1, 2]),
            _ => Answer::html("<p>small letters</p>"),
        }
    })
}

#[test]
fn every_obstacle_is_found_once_with_an_example() {
    let origin = sinful();
    let visitor = vec![("Cookie".to_owned(), "login=me".to_owned())];
    let survey = survey(&Crawl { visitor, ..crawl(&origin) }).unwrap();
    let found: Vec<(&str, Vec<&str>)> = survey
        .found
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
    let hello = &survey.found[&Obstacle::PersonalizedBytes][0];
    assert!(hello.seen.contains("Hello, Ada"), "{hello:?}");
    assert_eq!(hello.from, "/index.html");
    assert_eq!((survey.asked, survey.hindered, survey.left), (12, 9, 0));
    let asked: Vec<String> = origin.seen().into_iter().map(|seen| seen.target).collect();
    assert!(!asked.iter().any(|target| target.contains("logout")), "nobody is logged out");
    assert!(origin.seen().iter().all(|seen| seen.method == "GET"));
}

#[test]
fn a_clean_site_has_no_obstacle() {
    let origin = Origin::start(|seen| match seen.target.as_str() {
        "/index.html" => Answer::html("<a href=a.print.a4.html>a</a><script nonce=abcdefgh1234>")
            .header("Date", "x"),
        _ => Answer::html("made 2026-11-21T00:50:16Z"),
    });
    let survey = survey(&crawl(&origin)).unwrap();
    assert!(survey.found.is_empty(), "{survey:?}");
    assert_eq!(survey.asked, 2);
}

#[test]
fn a_walk_stays_within_its_limits() {
    // Every page leads to ten more, and one path to ever new query strings.
    let origin = Origin::start(|seen| {
        if seen.target.contains('?') {
            return Answer::html("found nothing");
        }
        let name = seen.target.trim_start_matches('/').replace(".html", "");
        let links: String = (0..10)
            .map(|number| {
                format!("<a href=/{name}{number}.html><a href='/s.html?q={name}{number}'>")
            })
            .collect();
        Answer::html(links)
    });
    let survey = survey(&Crawl { most: 25, ..crawl(&origin) }).unwrap();
    assert_eq!(survey.asked, 25);
    assert!(survey.left > 0);
    // Each address is asked for at most twice, as nobody sets cookies.
    assert_eq!(origin.requests(), 50);
    let queries = origin.seen().into_iter().filter(|seen| seen.target.contains('?')).count();
    assert_eq!(queries, 4, "two query strings of a path are enough");
}

#[test]
fn a_start_that_does_not_answer_is_an_error_and_a_page_that_does_not_is_told() {
    let dead = tympan_testkit::origin::dead_addr();
    let lost = Crawl { url: format!("http://{dead}/"), ..crawl(&sinful()) };
    assert!(!survey(&lost).unwrap_err().is_usage());
    let origin = Origin::start(|seen| match seen.target.as_str() {
        "/index.html" => Answer::html("<a href=gone.html>"),
        _ => Answer::html("x").deliver(tympan_testkit::origin::Delivery::Hangup),
    });
    let survey = survey(&crawl(&origin)).unwrap();
    assert_eq!(survey.unanswered.len(), 1);
    assert!(survey.unanswered[0].contains("/gone.html"), "{survey:?}");
}
