//! Answers from a file: types, conditions, ranges.

use tympan_testkit::origin_server::{OriginResponse, OriginServer};

use crate::front::{Front, front};

/// A front whose cache holds `a.html` with `0123456789`.
fn cached() -> (OriginServer, Front) {
    let origin = OriginServer::start_constant(OriginResponse::html("0123456789"));
    let front = front(&origin, "/headers { \"Cache-Control\" }");
    front.get("/a.html");
    (origin, front)
}

#[test]
fn a_hit_tells_its_type_age_and_version() {
    let (origin, front) = cached();
    front.advance(7);
    let hit = front.get("/a.html");
    assert_eq!((hit.status, hit.body.as_str()), (200, "0123456789"));
    assert_eq!(hit.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(hit.header("content-length"), Some("10"));
    assert_eq!(hit.header("accept-ranges"), Some("bytes"));
    assert_eq!(hit.header("age"), Some("7"));
    assert!(hit.header("last-modified").is_some() && hit.header("date").is_some());
    let tags = hit.headers.iter().filter(|(name, _)| name == "etag").count();
    assert_eq!(tags, 1);
    assert_eq!(origin.request_count(), 1);
}

#[test]
fn nothing_is_cached_in_memory_for_an_unusually_long_url() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let front = front(&origin, "/ignoreUrlParams { /0 { /type \"allow\" /glob \"*\" } }");
    for (length, kept) in [(1, 1), (1900, 2), (2048, 2), (20_000, 2)] {
        let url = format!("/a.html?x={}", "x".repeat(length));
        for _ in 0..3 {
            assert_eq!(front.get(&url).body, "page");
        }
        assert_eq!(front.metric("memory_responses"), kept, "{length}");
    }
    assert_eq!(origin.request_count(), 1);
}

#[test]
fn a_known_version_is_not_sent_again() {
    let (_origin, front) = cached();
    let hit = front.get("/a.html");
    let (tag, date) = (hit.header("etag").unwrap(), hit.header("last-modified").unwrap());
    for condition in [("If-None-Match", tag), ("If-Modified-Since", date)] {
        let known = front.send("GET", "/a.html", &[condition], "");
        assert_eq!((known.status, known.body.as_str()), (304, ""), "{condition:?}");
        assert_eq!(known.header("etag"), Some(tag));
    }
    let other = front.send("GET", "/a.html", &[("If-None-Match", "\"other\"")], "");
    assert_eq!(other.status, 200);
    front.flush("Activate", "/a", &[]);
    front.get("/a.html");
    let changed = front.send("GET", "/a.html", &[("If-None-Match", tag)], "");
    assert_eq!(changed.status, 200);
}

#[test]
fn a_range_is_cut_from_the_file() {
    let (_origin, front) = cached();
    let part = front.send("GET", "/a.html", &[("Range", "bytes=2-4")], "");
    assert_eq!((part.status, part.body.as_str()), (206, "234"));
    assert_eq!(part.header("content-range"), Some("bytes 2-4/10"));
    let beyond = front.send("GET", "/a.html", &[("Range", "bytes=10-")], "");
    assert_eq!((beyond.status, beyond.body.as_str()), (416, ""));
    assert_eq!(beyond.header("content-range"), Some("bytes */10"));
}

#[test]
fn conditions_and_encodings_of_one_visitor_do_not_shape_the_stored_page() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let front = front(&origin, "");
    let headers = [
        ("If-None-Match", "\"x\""),
        ("Range", "bytes=0-1"),
        ("Accept-Encoding", "gzip"),
        ("Accept-Language", "de"),
    ];
    assert_eq!(front.send("GET", "/a.html", &headers, "").body, "page");
    let seen = origin.requests();
    for name in ["if-none-match", "range", "accept-encoding"] {
        assert_eq!(seen[0].header(name), None, "{name}");
    }
    assert_eq!(seen[0].header("accept-language"), Some("de"));
}

#[test]
fn types_come_from_the_end_of_the_name() {
    let origin = OriginServer::start_constant(OriginResponse::with_status(404));
    let front = front(&origin, "");
    for (name, expected) in [
        ("a.css", "text/css; charset=utf-8"),
        ("a.min.js", "text/javascript; charset=utf-8"),
        ("a.json", "application/json; charset=utf-8"),
        ("a.png", "image/png"),
        ("a.html/b.svg", "image/svg+xml"),
        ("a.unknown-kind", "application/octet-stream"),
    ] {
        front.write(&format!("dir-{name}").replace(".html/", ".html.s~/"), "x");
        let hit = front.get(&format!("/dir-{name}"));
        assert!(hit.is_hit(), "{name}");
        assert_eq!(hit.header("content-type"), Some(expected), "{name}");
    }
}

#[test]
fn only_get_knows_parts() {
    let (_origin, front) = cached();
    for round in 0..3 {
        for range in ["bytes=2-4", "bytes=90-"] {
            let reply = front.send("HEAD", "/a.html", &[("Range", range)], "");
            assert_eq!(
                (reply.status, reply.header("content-length")),
                (200, Some("10")),
                "{round}"
            );
            assert_eq!(reply.header("content-range"), None);
        }
        let part = front.send("GET", "/a.html", &[("Range", "Bytes=2-4")], "");
        assert_eq!((part.status, part.body.as_str()), (206, "234"));
    }
}
