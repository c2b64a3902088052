//! Farms with `/x-http`: a shared HTTP cache (RFC 9111). The public tests cover more (`http_cache_suite`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tympan_testkit::origin_server::{OriginGate, OriginResponse, OriginServer, ResponseDelivery};

use crate::front::{Front, Setup};

const HTTP: &str = "/x-http \"1\"";

fn start(origin: &OriginServer, cache: &'static str) -> Front {
    Front::start(&Setup { farm: HTTP, cache, renders: vec![origin.addr()], ..Setup::default() })
}

/// An origin that numbers its responses, all with these headers.
fn numbering(headers: &'static [(&'static str, &'static str)]) -> OriginServer {
    let count = AtomicUsize::new(0);
    OriginServer::start(move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        headers
            .iter()
            .fold(OriginResponse::html(format!("page {number}")), |page, (name, value)| {
                page.with_header(name, value)
            })
    })
}

#[test]
fn a_lifetime_is_used_up_and_what_has_none_is_not_stored() {
    let check = |headers: &'static [(&'static str, &'static str)], wait: u64, cached: bool| {
        let origin = numbering(headers);
        let front = start(&origin, "");
        front.get("/a.html");
        front.advance(wait);
        let body = front.get("/a.html").body;
        assert_eq!(body == "page 1", cached, "{headers:?} {wait}");
    };
    check(&[("Cache-Control", "max-age=60")], 50, true);
    check(&[("Cache-Control", "max-age=60")], 70, false);
    check(&[("Cache-Control", "max-age=60"), ("Age", "30")], 20, true);
    check(&[("Cache-Control", "max-age=60"), ("Age", "30")], 40, false);
    check(&[("Cache-Control", "max-age=60"), ("Age", "0"), ("Age", "0")], 0, false);
    check(&[("Cache-Control", "max-age=1"), ("CDN-Cache-Control", "max-age=60")], 50, true);
    check(&[("Cache-Control", "no-store"), ("Surrogate-Control", "max-age=60")], 50, true);
    check(&[("Cache-Control", "public")], 0, false);
    check(&[], 0, false);
}

#[test]
fn the_age_and_the_date_are_those_of_the_response() {
    let origin = numbering(&[
        ("Cache-Control", "max-age=600"),
        ("Age", "30"),
        ("Date", "Sun, 06 Nov 2094 08:49:37 GMT"),
        ("X-Any", "kept"),
        ("Set-Cookie", "a=b"),
    ]);
    let front = start(&origin, "");
    front.get("/a.html");
    front.advance(12);
    // By file, and twice from memory.
    for _ in 0..3 {
        let request = "GET /a.html HTTP/1.1\r\nHost: www.example.com\r\nConnection: close\r\n\r\n";
        let bytes = tympan_testkit::origin_server::exchange_bytes(front.addr, request.as_bytes());
        let reply = crate::front::Reply::parse(&bytes, false);
        let own = |name| reply.headers.iter().filter(|(key, _)| key == name).count();
        assert_eq!(reply.body, "page 1");
        // The time of a fetch is a little later than that of the clock, if another one came just before.
        assert!(matches!(reply.header("age"), Some("41" | "42")), "{:?}", reply.headers);
        assert_eq!(reply.header("date"), Some("Sun, 06 Nov 2094 08:49:37 GMT"));
        assert_eq!((own("date"), own("age")), (1, 1), "{:?}", reply.headers);
        assert_eq!(reply.header("x-any"), Some("kept"));
        assert_eq!(reply.header("set-cookie"), Some("a=b"));
        assert_eq!(reply.header("etag"), None, "the origin gave none");
        assert!(reply.header("cache-status").is_some());
        assert!(reply.headers.iter().all(|(name, _)| !name.starts_with("x-tympan-")));
    }
    assert!(front.metric("fast_path_hits_total") > 0, "the lane took part");
}

#[test]
fn lists_and_patterns_of_headers_limit_what_is_stored() {
    let origin = numbering(&[
        ("Cache-Control", "max-age=600, no-cache=\"X-B\", private=\"X-C\""),
        ("X-A", "1"),
        ("X-B", "1"),
        ("X-C", "1"),
        ("Other", "1"),
    ]);
    for (cache, has_a, has_other) in [
        ("", true, true),
        ("/headers { \"X-*\" }", true, false),
        ("/headers { \"other\" }", false, true),
    ] {
        let front = start(&origin, cache);
        front.get("/a.html");
        let reply = front.get("/a.html");
        assert!(reply.is_hit(), "{cache}");
        let names = ["x-a", "other", "x-b", "x-c"].map(|name| reply.header(name).is_some());
        assert_eq!(names, [has_a, has_other, false, false], "{cache}");
        assert!(reply.header("cache-control").is_some(), "{cache}");
    }
}

#[test]
fn other_statuses_are_kept_with_a_lifetime() {
    for status in [203, 204, 301, 302, 404, 410, 500, 503] {
        for (control, requests) in [("max-age=60", 1), ("no-store", 2), ("max-age=0", 2)] {
            let body: &[u8] = if status == 204 { b"" } else { b"text" };
            let origin = OriginServer::start_constant(
                OriginResponse::with_status(status)
                    .with_body(body)
                    .with_header("Location", "/b.html")
                    .with_header("Cache-Control", control),
            );
            let front = start(&origin, "");
            for _ in 0..2 {
                let reply = front.get("/a.html");
                assert_eq!(reply.status, status);
                assert_eq!(reply.body.as_bytes(), body);
                assert_eq!(reply.header("location"), Some("/b.html"));
            }
            assert_eq!(origin.request_count(), requests, "{status} {control}");
            assert_eq!(front.files(), Vec::<String>::new());
        }
    }
}

#[test]
fn an_expired_page_is_validated_for_all_who_wait() {
    let gate = OriginGate::default();
    gate.open();
    let door = gate.clone();
    let origin = OriginServer::start(move |seen| {
        door.wait_open();
        let page = match seen.header("if-none-match") {
            Some("\"1\"") => OriginResponse::with_status(304).with_header("X-New", "1"),
            _ => OriginResponse::html("page").with_header("ETag", "\"1\""),
        };
        page.with_header("Cache-Control", "max-age=10")
    });
    let front = start(&origin, "");
    front.get("/a.html");
    front.advance(20);
    gate.close();
    std::thread::scope(|scope| {
        let visitors: Vec<_> = (0..6).map(|_| scope.spawn(|| front.get("/a.html"))).collect();
        front.wait_for("collapsed_total", 5);
        gate.open();
        for visitor in visitors {
            let reply = visitor.join().unwrap();
            assert_eq!((reply.status, reply.body.as_str()), (200, "page"));
            assert_eq!(reply.header("x-new"), Some("1"));
        }
    });
    assert_eq!(origin.request_count(), 2);
    assert!(front.get("/a.html").is_hit());
    // The visitor's own condition is answered after the validation.
    front.advance(20);
    let reply = front.send("GET", "/a.html", &[("If-None-Match", "\"1\"")], "");
    assert_eq!((reply.status, reply.body.as_str()), (304, ""));
}

#[test]
fn stale_pages_are_served_as_their_response_allows() {
    let check = |control: &'static str, cache: &'static str, expected: u16| {
        let is_failing = Arc::new(AtomicBool::new(false));
        let failing = Arc::clone(&is_failing);
        let origin = OriginServer::start(move |_| match failing.load(Ordering::SeqCst) {
            true => OriginResponse::html("x").with_delivery(ResponseDelivery::Hangup),
            false => OriginResponse::html("page").with_header("Cache-Control", control),
        });
        let front = start(&origin, cache);
        front.get("/a.html");
        front.advance(20);
        is_failing.store(true, Ordering::SeqCst);
        assert_eq!(front.get("/a.html").status, expected, "{control} {cache}");
    };
    let on_error = "/serveStaleOnError 1";
    check("max-age=10", "", 502);
    check("max-age=10", on_error, 200);
    check("max-age=10, stale-if-error=60", "", 200);
    check("max-age=10, stale-if-error=5", "", 502);
    for prohibited in ["must-revalidate", "proxy-revalidate", "s-maxage=10"] {
        let control = format!("max-age=10, stale-if-error=60, {prohibited}");
        check(Box::leak(control.into_boxed_str()), on_error, 502);
    }
}

#[test]
fn requests_that_change_a_page_end_it() {
    for (method, status, ends) in [
        ("POST", 200, true),
        ("PUT", 204, true),
        ("DELETE", 200, true),
        ("M-SEARCH", 200, true),
        ("POST", 303, true),
        ("POST", 500, false),
        ("OPTIONS", 200, false),
    ] {
        let count = AtomicUsize::new(0);
        let origin = OriginServer::start(move |seen| match seen.method.as_str() {
            "GET" => {
                let number = count.fetch_add(1, Ordering::SeqCst);
                OriginResponse::html(format!("page {number}"))
                    .with_header("Cache-Control", "max-age=60")
            }
            _ => OriginResponse::with_status(status)
                .with_header("Location", "b.html?x=1")
                .with_header("Content-Location", "http://www.example.com/c/d.html")
                .with_header("X-Any", "http://www.example.com/e.html"),
        });
        let front = start(&origin, "");
        let pages = ["/c/a.html", "/c/b.html?x=1", "/c/d.html", "/e.html"];
        for page in pages {
            front.get(page);
        }
        front.send(method, "/c/a.html", &[], "");
        let hits = pages.map(|page| front.get(page).is_hit());
        assert_eq!(hits, [!ends, !ends, !ends, true], "{method} {status}");
    }
}

#[test]
fn another_origin_is_not_changed() {
    let origin = OriginServer::start(|seen| match seen.method.as_str() {
        "GET" => OriginResponse::html("page").with_header("Cache-Control", "max-age=60"),
        _ => {
            OriginResponse::with_status(201).with_header("Location", "http://other.example/b.html")
        }
    });
    let front = start(&origin, "");
    front.get("/b.html");
    front.send("POST", "/a.html", &[], "");
    assert!(front.get("/b.html").is_hit());
}

#[test]
fn the_answer_to_credentials_is_shared_where_it_says_so() {
    let check = |control: &'static str, is_shared: bool| {
        let origin = OriginServer::start(move |seen| {
            OriginResponse::html(seen.header("authorization").unwrap_or("nobody"))
                .with_header("Cache-Control", control)
        });
        let authorization = [("Authorization", "Basic YTpi")];
        let front = start(&origin, "");
        let own = front.send("GET", "/a.html", &authorization, "").body;
        assert_eq!(own, "Basic YTpi");
        assert_eq!(front.get("/a.html").body != "nobody", is_shared, "{control}");
        // And the other way round.
        let front = start(&origin, "");
        assert_eq!(front.get("/a.html").body, "nobody");
        let own = front.send("GET", "/a.html", &authorization, "").body;
        assert_eq!(own == "nobody", is_shared, "{control}");
    };
    check("max-age=60", false);
    check("max-age=60, public", true);
    check("s-maxage=60", true);
    check("max-age=60, must-revalidate", true);
}

#[test]
fn each_query_is_a_page_in_the_order_of_its_parameters() {
    let origin = OriginServer::start(|seen| {
        OriginResponse::html(seen.target.clone()).with_header("Cache-Control", "max-age=60")
    });
    let front = start(&origin, "");
    let targets = ["/a.html", "/a.html?a=1&b=2", "/a.html?b=2&a=1", "/a.html?a=1"];
    for _ in 0..2 {
        for target in targets {
            assert_eq!(front.get(target).body, target);
        }
    }
    assert_eq!(origin.request_count(), 4);
    front.flush("Activate", "/a", &[]);
    assert_eq!(front.files(), Vec::<String>::new());
}

#[test]
fn files_from_before_the_mode_are_validated_first() {
    let origin = numbering(&[("Cache-Control", "max-age=60")]);
    let setup = Setup { renders: vec![origin.addr()], ..Setup::default() };
    let front = Front::start(&setup);
    front.get("/a.html");
    assert!(front.get("/a.html").is_hit());
    front.reload(&Setup { farm: HTTP, ..setup });
    assert_eq!(front.get("/a.html").body, "page 2");
    assert!(front.get("/a.html").is_hit());
}

#[test]
fn a_default_lifetime_is_for_pages_that_state_none() {
    let origin = numbering(&[("Set-Cookie", "a=b")]);
    let front = start(&origin, "/x-defaultTTL 60");
    front.get("/a.html");
    assert!(!front.get("/a.html").is_hit(), "a cookie is not shared by guess");
    let origin = numbering(&[]);
    let front = start(&origin, "/x-defaultTTL 60");
    front.get("/a.html");
    assert!(front.get("/a.html").is_hit());
    front.advance(61);
    assert!(!front.get("/a.html").is_hit());
}
