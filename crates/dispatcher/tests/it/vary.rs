//! Nobody gets the answer of somebody else: pages whose `Vary` names a header that the farm passes on.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tympan_testkit::origin_server::{OriginGate, OriginResponse, OriginServer};

use crate::front::{Front, Reply, Setup, front};

/// An origin that tells what it was sent in `header`, and that it varies by it.
fn telling(header: &'static str) -> OriginServer {
    OriginServer::start(move |seen| told(header, seen.header(header).unwrap_or("none"), ""))
}

fn told(header: &str, value: &str, more: &str) -> OriginResponse {
    OriginResponse::html(format!("for {value}.{more}")).with_header("Vary", header)
}

/// Asks as a browser does, on the lane.
fn ask(front: &Front, header: &str, value: &str) -> Reply {
    ask_with(front, header, value, "")
}

/// Asks such that only the full way answers.
fn ask_fully(front: &Front, header: &str, value: &str) -> Reply {
    ask_with(front, header, value, "X-Only-Full: 1\r\n")
}

fn ask_with(front: &Front, header: &str, value: &str, more: &str) -> Reply {
    let own = if value.is_empty() { String::new() } else { format!("{header}: {value}\r\n") };
    let request = format!(
        "GET /content/a.html HTTP/1.1\r\nHost: www.example.com\r\n{own}{more}Connection: close\r\n\r\n"
    );
    let mut stream = TcpStream::connect(front.addr).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Reply::parse(&bytes, false)
}

const HEADERS: [&str; 5] =
    ["Cookie", "User-Agent", "Accept-Language", "X-Forwarded-For", "X-Customer"];

#[test]
fn pages_go_to_visitors_with_the_same_header_only() {
    for header in HEADERS {
        for policy in ["/clientheaders { \"*\" }", "/clientheaders { \"Host\" \"HEADER\" }"] {
            let origin = telling(header);
            let policy: &'static str = Box::leak(policy.replace("HEADER", header).into_boxed_str());
            let setup = Setup { farm: policy, renders: vec![origin.addr()], ..Setup::default() };
            let front = Front::start(&setup);
            for _ in 0..4 {
                for value in ["a=1", "a=2", "", "a=1, b"] {
                    for ask in [ask, ask_fully] {
                        let body = ask(&front, header, value).body;
                        let expected = match (header, value) {
                            ("X-Forwarded-For", "") => "for 127.0.0.1.".to_owned(),
                            ("X-Forwarded-For", _) => format!("for {value}, 127.0.0.1."),
                            (_, "") => "for none.".to_owned(),
                            _ => format!("for {value}."),
                        };
                        assert_eq!(body, expected, "{header} {policy}");
                    }
                }
            }
            // Each of the four is cached.
            assert_eq!(origin.request_count(), 4, "{header} {policy}");
            assert_eq!(front.metric("header_variants_total"), 4, "{header} {policy}");
            assert_eq!(front.metric("memory_responses"), 0, "the memory compares no headers");
        }
    }
}

#[test]
fn a_header_that_no_render_gets_separates_nobody() {
    for header in ["Cookie", "X-Customer", "Accept-Encoding"] {
        let origin = telling(header);
        let farm = "/clientheaders { \"Host\" }";
        let front = Front::start(&Setup { farm, renders: vec![origin.addr()], ..Setup::default() });
        for value in ["gzip", "x", "", "gzip"] {
            assert_eq!(ask(&front, header, value).body, "for none.", "{header}");
        }
        assert_eq!(origin.request_count(), 1, "{header}");
        assert!(front.metric("memory_responses") > 0, "{header}");
    }
}

#[test]
fn credentials_select_pages_where_they_are_cached() {
    let origin = telling("Authorization");
    let front = front(&origin, "/allowAuthorized 1");
    for _ in 0..3 {
        for value in ["Basic YTpi", "", "Basic eDp5"] {
            let expected = if value.is_empty() { "none" } else { value };
            let body = ask(&front, "Authorization", value).body;
            assert_eq!(body, format!("for {expected}."));
        }
    }
    assert_eq!(origin.request_count(), 3);
}

#[test]
fn a_page_that_varies_by_everything_is_for_its_own_visitor() {
    for vary in ["*", "Accept-Encoding, *", "x y", "é"] {
        let count = AtomicUsize::new(0);
        let origin = OriginServer::start(move |_| {
            let number = count.fetch_add(1, Ordering::SeqCst);
            OriginResponse::html(format!("page {number}")).with_header("Vary", vary)
        });
        let front = front(&origin, "");
        let bodies: Vec<String> = (0..3).map(|_| ask(&front, "X", "1").body).collect();
        assert_eq!(bodies, ["page 0", "page 1", "page 2"], "{vary}");
        assert_eq!(
            front.get("/content/a.html").info(),
            "not cacheable: response varies by more than the cache compares"
        );
        assert_eq!(front.files(), Vec::<String>::new(), "{vary}");
    }
}

#[test]
fn a_page_kept_for_all_ends_when_its_render_begins_to_vary() {
    let count = Arc::new(AtomicUsize::new(0));
    let asked = Arc::clone(&count);
    let origin = OriginServer::start(move |seen| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => OriginResponse::html("for all"),
        _ => told("Cookie", seen.header("cookie").unwrap_or("none"), ""),
    });
    let front = front(&origin, "");
    for value in ["a=1", "a=2", "", "a=1"] {
        assert_eq!(ask(&front, "Cookie", value).body, "for all");
    }
    front.flush("Activate", "/content/a", &[]);
    for _ in 0..2 {
        for value in ["a=1", "a=2", "a=3"] {
            assert_eq!(ask(&front, "Cookie", value).body, format!("for {value}."));
        }
    }
    assert_eq!(origin.request_count(), 4);
    // And the variants go with their page.
    assert_eq!(front.files().iter().filter(|name| name.contains("q~")).count(), 2 * 2);
    front.flush("Activate", "/content/a", &[]);
    assert_eq!(front.files(), Vec::<String>::new());
}

#[test]
fn flushes_and_purges_take_the_variants_along() {
    let origin = telling("X-Customer");
    let keys = "/x-cacheKeyParams { /0 { /glob \"page\" /type \"allow\" } }";
    for (cache, target, flush) in [
        ("", "/content/dam/a.jpg", "Activate"),
        ("", "/content/dam/a.jpg", "PURGE"),
        (keys, "/content/dam/a.jpg?page=2", "Activate"),
        (keys, "/content/dam/a.jpg?page=2", "PURGE"),
        (keys, "/content/dam/a.html?page=2", "PURGE"),
    ] {
        let front = front(&origin, cache);
        for value in ["1", "2", "3"] {
            let headers = [("X-Customer", value)];
            assert_eq!(front.send("GET", target, &headers, "").body, format!("for {value}."));
        }
        assert_eq!(front.files().len(), 6, "{:?}", front.files());
        let reply = match flush {
            "PURGE" => front.send("PURGE", target, &[], ""),
            action => front.flush(action, target.split('?').next().unwrap(), &[]),
        };
        assert_eq!(reply.status, 200, "{target} {flush}");
        assert_eq!(front.files(), Vec::<String>::new(), "{target} {flush}");
    }
}

#[test]
fn visitors_who_wait_for_one_fetch_get_their_own_page() {
    for size in [1, 3_000_000] {
        let gate = OriginGate::default();
        let door = gate.clone();
        let origin = OriginServer::start(move |seen| {
            door.wait_open();
            let more = "x".repeat(size);
            told("Cookie", seen.header("cookie").unwrap_or("none"), &more)
        });
        let front = front(&origin, "");
        std::thread::scope(|scope| {
            let visitors: Vec<_> = (0..12)
                .map(|number| {
                    let front = &front;
                    scope.spawn(move || {
                        let value = format!("user={}", number % 3);
                        let body = ask(front, "Cookie", &value).body;
                        assert!(
                            body.starts_with(&format!("for {value}.x")),
                            "{value} got {}",
                            &body[..20]
                        );
                        assert!(body.len() > size);
                    })
                })
                .collect();
            front.wait_for("collapsed_total", 11);
            gate.open();
            for visitor in visitors {
                visitor.join().unwrap();
            }
        });
        if size == 1 {
            // Those with the same header wait for each other.
            assert!(origin.request_count() <= 6, "{}", origin.request_count());
        }
    }
}

#[test]
fn old_pages_stand_in_for_their_own_visitors_only() {
    let gate = OriginGate::default();
    gate.open();
    let (door, is_failing) = (gate.clone(), Arc::new(AtomicBool::new(false)));
    let failing = Arc::clone(&is_failing);
    let origin = OriginServer::start(move |seen| {
        door.wait_open();
        let value = seen.header("cookie").unwrap_or("none");
        match failing.load(Ordering::SeqCst) || value == "a=9" {
            true => OriginResponse::with_status(503),
            false => told("Cookie", value, ""),
        }
    });
    let front = front(&origin, "/serveStaleOnError 1");
    for value in ["a=1", "a=2", "a=3"] {
        assert_eq!(ask(&front, "Cookie", value).body, format!("for {value}."));
    }
    front.advance(10);
    front.flush("Activate", "/content/b", &[]);
    // One visitor fetches, and another with the same cookie gets the old page; a third one has none of it.
    gate.close();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| ask(&front, "Cookie", "a=1"));
        origin.wait_for_requests(4);
        assert_eq!(ask(&front, "Cookie", "a=1").body, "for a=1.");
        let other = scope.spawn(|| ask(&front, "Cookie", "a=9"));
        origin.wait_for_requests(5);
        gate.open();
        assert_eq!(first.join().unwrap().body, "for a=1.");
        assert_eq!(other.join().unwrap().status, 503);
    });
    is_failing.store(true, Ordering::SeqCst);
    for value in ["a=2", "a=3"] {
        let reply = ask(&front, "Cookie", value);
        assert_eq!((reply.status, reply.body), (200, format!("for {value}.")));
        assert!(reply.headers.iter().any(|(name, _)| name == "warning"));
    }
    assert_eq!(ask(&front, "Cookie", "a=8").status, 503);
}

#[test]
fn soft_flushes_and_refetches_mix_no_pages() {
    for (settings, listed) in [("/x-flushMode \"soft\"", false), ("", true)] {
        let count = Arc::new(AtomicUsize::new(1));
        let version = Arc::clone(&count);
        let origin = OriginServer::start(move |seen| {
            let more = format!(" {}", version.load(Ordering::SeqCst));
            told("Cookie", seen.header("cookie").unwrap_or("none"), &more)
        });
        let front = front(&origin, settings);
        for round in 1..4 {
            for value in ["a=1", "a=2", ""] {
                let whom = if value.is_empty() { "none" } else { value };
                // The old page may be served while the new one is fetched.
                loop {
                    let body = ask(&front, "Cookie", value).body;
                    assert!(body.starts_with(&format!("for {whom}.")), "{value} got {body}");
                    if body == format!("for {whom}. {round}") {
                        break;
                    }
                    std::thread::yield_now();
                }
            }
            count.fetch_add(1, Ordering::SeqCst);
            let pages: &[&str] = if listed { &["/content/a.html"] } else { &[] };
            front.flush("Activate", "/content/a", pages);
        }
    }
}

#[test]
fn variants_stay_apart_over_a_restart() {
    let origin = telling("Cookie");
    let setup = Setup { renders: vec![origin.addr()], ..Setup::default() };
    let front = Front::start(&setup);
    for value in ["a=1", "a=2"] {
        ask(&front, "Cookie", value);
    }
    let front = Front::start_in(&setup, front.stop());
    for value in ["a=2", "a=1", "a=3", "a=2", "a=1"] {
        assert_eq!(ask(&front, "Cookie", value).body, format!("for {value}."));
    }
    assert_eq!(origin.request_count(), 3);
}

#[test]
fn however_many_values_visitors_send_a_page_has_few_files() {
    let origin = telling("Cookie");
    let front = front(&origin, "");
    for number in 0..400 {
        let value = format!("a={number}");
        assert_eq!(ask(&front, "Cookie", &value).body, format!("for {value}."));
    }
    // A body and its headers for each of 128 slots, and the page's own.
    assert!(front.files().len() <= 2 * 129, "{}", front.files().len());
    assert!(front.files().len() > 2 * 64);
}

#[test]
fn a_cached_error_is_for_those_with_the_same_header_only() {
    let origin = OriginServer::start(|seen| {
        let value = seen.header("cookie").unwrap_or("none").to_owned();
        OriginResponse::with_status(404).with_body(value).with_header("Vary", "Cookie")
    });
    let front = front(&origin, "/x-negativeTTL { /404 60 }");
    for value in ["a=1", "a=2", "a=1"] {
        assert_eq!(ask(&front, "Cookie", value).body, value);
    }
}

#[test]
fn the_visitor_learns_by_what_a_page_varies() {
    let origin = telling("Cookie");
    let front = front(&origin, "");
    for _ in 0..2 {
        assert_eq!(ask(&front, "Cookie", "a=1").header("vary"), Some("Cookie"));
    }
    assert_eq!(ask(&front, "Cookie", "a=1").header("x-tympan-vary"), None);
}
