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

#[test]
fn each_origin_has_its_own_page_and_its_own_errors() {
    let origin = OriginServer::start(|seen| {
        let own = seen.header("host").unwrap().to_owned();
        let page = match seen.target.as_str() {
            "/moved.html" => OriginResponse::with_status(301)
                .with_header("Location", &format!("https://{own}/moved.html")),
            _ => OriginResponse::html(own),
        };
        page.with_header("Cache-Control", "max-age=60")
    });
    let front = start(&origin, "");
    let get = |target: &str, host: &str| front.send("GET", target, &[("Host", host)], "");
    for _ in 0..3 {
        for host in ["www.example.com", "evil.example.com"] {
            assert_eq!(get("/a.html", host).body, host);
            let expected = format!("https://{host}/moved.html");
            assert_eq!(get("/moved.html", host).header("location"), Some(expected.as_str()));
        }
    }
    assert_eq!(get("/a.html", "WWW.example.com").body, "www.example.com", "a host has no case");
    let pages = origin.requests().iter().filter(|seen| seen.target == "/a.html").count();
    assert_eq!(pages, 2);
    front.flush("Activate", "/a", &[]);
    assert_eq!(get("/a.html", "evil.example.com").body, "evil.example.com");
    assert_eq!(origin.requests().iter().filter(|seen| seen.target == "/a.html").count(), 3);
}

#[test]
fn no_visitor_names_another_url_for_the_page_that_others_get() {
    let forged = [
        ("X-Forwarded-Host", "evil.example"),
        ("X-Forwarded-Proto", "https"),
        ("X-Original-URL", "/admin"),
        ("X-Rewrite-URL", "/admin"),
        ("X-HTTP-Method-Override", "DELETE"),
        ("Forwarded", "host=evil.example"),
    ];
    let check = |farm: &'static str, settings: &str, is_passed_on: bool| {
        let origin = numbering(&[("Cache-Control", "max-age=60")]);
        let front = Front::start(&Setup {
            farm,
            settings: settings.to_owned(),
            renders: vec![origin.addr()],
            ..Setup::default()
        });
        front.send("GET", "/a.html", &forged, "");
        let seen = origin.requests().remove(0);
        for (name, _) in forged {
            assert_eq!(
                seen.header(&name.to_ascii_lowercase()).is_some(),
                is_passed_on,
                "{farm} {name}"
            );
        }
        if is_passed_on {
            // Another origin, which the key tells apart, also in memory.
            for _ in 0..3 {
                assert_eq!(front.get("/a.html").body, "page 2", "{farm}");
                assert_eq!(front.send("GET", "/a.html", &forged, "").body, "page 1", "{farm}");
            }
        }
    };
    check(HTTP, "", false);
    check(
        "/x-http \"1\" /clientheaders { \"Host\" \"Forwarded\" \"X-Forwarded-Host\" \"X-Forwarded-Proto\" \"X-Original-URL\" \
         \"X-Rewrite-URL\" \"X-HTTP-Method-Override\" }",
        "",
        true,
    );
    let trusted = "[front]\ntrusted_proxies = [\"127.0.0.1\"]";
    check(HTTP, trusted, true);
}

#[test]
fn many_values_of_headers_take_a_bounded_number_of_files() {
    let origin = numbering(&[("Cache-Control", "max-age=60"), ("Vary", "X-Any, Cookie")]);
    let front = Front::start(&Setup {
        farm: "/x-http \"1\" /x-variantLimit \"0\"",
        renders: vec![origin.addr()],
        ..Setup::default()
    });
    for number in 0..300 {
        let value = number.to_string();
        let host = format!("h{number}.example.com");
        front.send("GET", "/a.html", &[("X-Any", &value), ("Cookie", &value), ("Host", &host)], "");
    }
    let pages = front.files().iter().filter(|file| file.ends_with(".html")).count();
    assert!((2..=129).contains(&pages), "{pages}");
    let names: Vec<String> = (0..17).map(|number| format!("x-{number}")).collect();
    let origin = OriginServer::start_constant(
        OriginResponse::html("page")
            .with_header("Cache-Control", "max-age=60")
            .with_header("Vary", &names.join(", ")),
    );
    let front = start(&origin, "");
    front.get("/a.html");
    assert!(!front.get("/a.html").is_hit(), "more names than the cache compares");
}

/// 3 MiB of ASCII, of which no two groups of four bytes are alike.
fn large_body() -> Vec<u8> {
    (0..768 * 1024_u32).flat_map(|number| format!("{number:04x}").into_bytes()).collect()
}

/// An origin whose first responses break off after these numbers of bytes, and that serves ranges with these tags.
fn breaking_off(body: Vec<u8>, tags: [&'static str; 2], cuts: Vec<usize>) -> OriginServer {
    let count = AtomicUsize::new(0);
    OriginServer::start(move |seen| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        let tag = tags[usize::from(number > 0)];
        let start = seen.header("range").and_then(|range| {
            assert_eq!(seen.header("if-range"), Some(tags[0]));
            range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok()
        });
        let all = body.len();
        let response = match start.filter(|_| tag == tags[0]) {
            Some(start) => OriginResponse::with_status(206)
                .with_body(&body[start..])
                .with_header("Content-Range", &format!("bytes {start}-{}/{all}", all - 1)),
            None => OriginResponse::html(body.clone()),
        };
        let response = response.with_header("Cache-Control", "max-age=60").with_header("ETag", tag);
        match cuts.get(number) {
            Some(cut) => response.with_delivery(ResponseDelivery::CutAfter(*cut)),
            None => response,
        }
    })
}

#[test]
fn a_response_that_breaks_off_is_completed_where_its_tag_allows() {
    let same = ["\"1\"", "\"1\""];
    for (body, cuts) in [
        (b"0123456789".to_vec(), vec![4]),
        (b"0123456789".to_vec(), vec![4, 3]),
        (large_body(), vec![2_000_000, 100_000]),
    ] {
        let count = cuts.len();
        let origin = breaking_off(body.clone(), same, cuts);
        let front = start(&origin, "");
        let reply = front.get("/a.html");
        assert!(reply.is_complete && reply.body.as_bytes() == body, "{} bytes", reply.body.len());
        assert_eq!(origin.request_count(), count + 1);
        front.wait_for("stored_total", 1);
        assert!(front.get("/a.html").is_hit());
        assert_eq!(front.metric("resumed_total"), count as u64);
    }
    // Weak tags, other bytes, and responses without progress complete nothing.
    for (tags, cuts) in
        [(["W/\"1\"", "W/\"1\""], vec![4]), (["\"1\"", "\"2\""], vec![4]), (same, vec![4, 0])]
    {
        let origin = breaking_off(b"0123456789".to_vec(), tags, cuts);
        let front = start(&origin, "");
        assert_eq!(front.get("/a.html").status, 502, "{tags:?}");
        assert_eq!(front.files(), Vec::<String>::new());
    }
    // As Adobe documents it, such a page is an error.
    let origin = breaking_off(b"0123456789".to_vec(), same, vec![4]);
    let front = Front::start(&Setup { renders: vec![origin.addr()], ..Setup::default() });
    assert_eq!(front.get("/a.html").status, 502);
}

#[test]
fn the_first_visitor_of_a_large_page_gets_a_range_of_it() {
    let body = large_body();
    let length = body.len();
    let origin = OriginServer::start_constant(
        OriginResponse::html(body.clone())
            .with_header("Cache-Control", "max-age=60")
            .with_header("ETag", "\"1\""),
    );
    let front = start(&origin, "");
    for (range, first, last) in [
        ("bytes=5-1500004", 5, 1_500_004),
        ("bytes=-10", length - 10, length - 1),
        ("bytes=2000000-", 2_000_000, length - 1),
    ] {
        front.flush("Delete", "/a", &[]);
        let reply = front.send("GET", "/a.html", &[("Range", range)], "");
        assert_eq!(reply.status, 206, "{range}");
        let expected = format!("bytes {first}-{last}/{length}");
        assert_eq!(reply.header("content-range"), Some(expected.as_str()));
        assert!(reply.is_complete && reply.body.as_bytes() == &body[first..=last], "{range}");
    }
    assert_eq!(origin.request_count(), 3);
    assert!(origin.requests().iter().all(|seen| seen.header("range").is_none()));
    // A bomb of ranges is the whole page, once.
    let many: Vec<String> = (0..1000).map(|number| format!("{number}-{number}")).collect();
    let reply =
        front.send("GET", "/a.html", &[("Range", &format!("bytes={}", many.join(",")))], "");
    assert_eq!((reply.status, reply.body.len()), (200, length));
}

#[test]
fn both_versions_of_http_have_one_limit_of_headers() {
    let origin = numbering(&[("Cache-Control", "max-age=60")]);
    let limits = tympan_web::listen::ListenerLimits {
        max_header_bytes: 16 * 1024,
        ..crate::front::limits()
    };
    let front = Front::start(&Setup {
        farm: HTTP,
        renders: vec![origin.addr()],
        limits: Some(limits),
        ..Setup::default()
    });
    let status = |count: usize, bytes: usize| {
        let value = "x".repeat(bytes / count);
        let names: Vec<String> = (0..count).map(|number| format!("x-{number:03}")).collect();
        let headers: Vec<(&str, &str)> =
            names.iter().map(|name| (name.as_str(), &*value)).collect();
        front.send("GET", "/a.html", &headers, "").status
    };
    assert_eq!(status(90, 9000), 200);
    assert_eq!(status(101, 1010), 431);
    assert_eq!(status(90, 13_500), 431, "as many bytes as HTTP/2 counts for these fields");
    assert_eq!(status(1, 15_500), 200);
    assert_eq!(status(1, 16_300), 431);
}
