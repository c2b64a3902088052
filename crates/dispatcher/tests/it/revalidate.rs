//! Copies that their render confirms with 304 (`/x-revalidate`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tympan_testkit::origin_server::{OriginGate, OriginRequest, OriginResponse, OriginServer};

use crate::front::{Front, Setup, front};

const EXPIRED: &str = "/enableTTL 1 /x-revalidate expired";
const FLUSHED: &str = "/enableTTL 1 /x-revalidate flushed";
const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const SENT: &str = "Sun, 06 Nov 1994 08:50:00 GMT";

fn has_condition(seen: &OriginRequest) -> bool {
    seen.header("if-none-match").is_some() || seen.header("if-modified-since").is_some()
}

/// Numbers its pages, and confirms every copy that it is asked about with `confirm`.
fn confirming(confirm: impl Fn() -> OriginResponse + Send + Sync + 'static) -> OriginServer {
    let count = AtomicUsize::new(0);
    OriginServer::start(move |seen| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        if has_condition(seen) {
            return confirm();
        }
        OriginResponse::html(format!("version {number}"))
            .with_header("ETag", "\"tag\"")
            .with_header("Cache-Control", "max-age=60")
    })
}

fn unchanged() -> OriginResponse {
    OriginResponse::with_status(304)
        .with_header("ETag", "\"tag\"")
        .with_header("Cache-Control", "max-age=60")
}

#[test]
fn a_confirmed_copy_is_fresh_again_as_long_as_the_render_says() {
    let origin = confirming(unchanged);
    let front = front(&origin, EXPIRED);
    assert_eq!(front.get("/a.html").body, "version 1");
    for round in 1..=3 {
        front.advance(61);
        let reply = front.get("/a.html");
        assert_eq!((reply.status, reply.body.as_str()), (200, "version 1"));
        assert!(!reply.is_hit(), "{}", reply.info());
        assert_eq!(origin.request_count(), 1 + round);
        front.advance(59);
        let hit = front.get("/a.html");
        assert!(hit.is_hit(), "{}", hit.info());
        assert_eq!(hit.header("x-tympan-etag"), None);
        assert_eq!(origin.request_count(), 1 + round);
        front.advance(1);
    }
    assert_eq!(front.metric("revalidated_total"), 3);
    assert_eq!(front.files(), ["a.html", "a.html.h", "a.html.ttl"]);
    let seen = origin.requests();
    assert_eq!(seen[1].header("if-none-match"), Some("\"tag\""));
    assert!(!has_condition(&seen[0]));
}

#[test]
fn what_is_asked_depends_on_what_ended_the_copy() {
    let check = |cache, tag: Option<&'static str>, is_flushed: bool, expected: [bool; 2]| {
        let origin = OriginServer::start(move |seen| {
            if has_condition(seen) {
                return OriginResponse::with_status(304).with_header("Cache-Control", "max-age=60");
            }
            let page = OriginResponse::html("page")
                .with_header("Cache-Control", "max-age=60")
                .with_header("Last-Modified", MODIFIED)
                .with_header("Date", SENT);
            match tag {
                Some(tag) => page.with_header("ETag", tag),
                None => page,
            }
        });
        let front = front(&origin, cache);
        front.get("/a.html");
        if is_flushed {
            front.flush("Activate", "/x", &[]);
        } else {
            front.advance(61);
        }
        assert_eq!(front.get("/a.html").body, "page");
        let seen = origin.requests();
        let names = ["if-none-match", "if-modified-since"];
        let asked = names.map(|name| seen[1].header(name).is_some());
        assert_eq!(asked, expected, "{cache} {tag:?} {is_flushed}");
        assert!(front.get("/a.html").is_hit());
        assert_eq!(origin.request_count(), 2);
    };
    let (strong, weak) = (Some("\"a\""), Some("W/\"a\""));
    for cache in [EXPIRED, FLUSHED] {
        check(cache, strong, false, [true, true]);
        check(cache, weak, false, [true, true]);
        check(cache, None, false, [false, true]);
    }
    check(EXPIRED, strong, true, [false, false]);
    check(FLUSHED, strong, true, [true, false]);
    check(FLUSHED, weak, true, [false, false]);
    check(FLUSHED, None, true, [false, false]);
    check("/enableTTL 1", strong, false, [false, false]);
}

#[test]
fn a_304_that_fits_badly_has_the_page_asked_for_as_a_whole() {
    let confirmations: [fn() -> OriginResponse; 5] = [
        || {
            OriginResponse::with_status(304)
                .with_header("ETag", "\"other\"")
                .with_header("Cache-Control", "max-age=60")
        },
        || unchanged().with_header("Cache-Control", "no-store"),
        || unchanged().with_header("Cache-Control", "private"),
        || unchanged().with_header("Dispatcher", "no-cache"),
        // Without an end the copy would live for ever.
        || OriginResponse::with_status(304).with_header("ETag", "\"tag\""),
    ];
    for (index, confirm) in confirmations.into_iter().enumerate() {
        let origin = confirming(confirm);
        let front = front(&origin, FLUSHED);
        front.get("/a.html");
        front.advance(61);
        assert_eq!(front.get("/a.html").body, "version 3", "{index}");
        assert!(front.get("/a.html").is_hit(), "{index}");
        let asked: Vec<bool> = origin.requests().iter().map(has_condition).collect();
        assert_eq!(asked, [false, true, false], "{index}");
        assert_eq!(front.metric("revalidated_total"), 0, "{index}");
    }
}

/// Lets something happen while the render is asked about an expired copy, which it confirms then.
fn while_it_is_asked(cache: &'static str, act: impl Fn(&Front)) -> (Front, OriginServer, String) {
    let gate = OriginGate::default();
    let door = gate.clone();
    let origin = confirming(move || {
        door.wait_open();
        unchanged()
    });
    let front = Arc::new(front(&origin, cache));
    front.get("/content/a.html");
    front.advance(61);
    let early = Arc::clone(&front);
    let early = std::thread::spawn(move || early.get("/content/a.html").body);
    origin.wait_for_requests(2);
    act(&front);
    gate.open();
    let first = early.join().unwrap();
    front.wait_for("fetches", 0);
    (Arc::into_inner(front).unwrap(), origin, first)
}

#[test]
fn a_flush_wins_over_a_304_that_it_met() {
    // The page itself is named: its copy is gone or marked, and what comes is not stored.
    for cache in [EXPIRED, "/enableTTL 1 /x-revalidate flushed /x-flushMode soft"] {
        let act = |front: &Front| {
            assert_eq!(front.flush("Activate", "/content/a", &[]).status, 200);
        };
        let (front, origin, first) = while_it_is_asked(cache, act);
        assert_eq!(first, "version 3", "{cache}");
        assert_eq!(front.metric("revalidated_total"), 0, "{cache}");
        front.advance(1);
        let later = front.get("/content/a.html");
        assert!(!later.is_hit() || cache.contains("soft"), "{cache}");
        front.wait_for("fetches", 0);
        // Whatever a soft flush still shows, the render was asked again, by a request of after the flush.
        assert_eq!(origin.request_count(), 4, "{cache}");
        assert!(front.get("/content/a.html").is_hit(), "{cache}");
    }
    // Only the `.stat` file is touched: the confirmed copy is older than that.
    let act = |front: &Front| {
        assert_eq!(front.flush("Activate", "/content/other", &[]).status, 200);
    };
    let (front, origin, first) = while_it_is_asked(EXPIRED, act);
    assert_eq!(first, "version 1");
    assert_eq!(front.get("/content/a.html").body, "version 3");
    assert_eq!(origin.request_count(), 3);
    // By its key.
    let act = |front: &Front| {
        let reply = front.send("PURGE", "/content/x.html", &[("Surrogate-Key", "k")], "");
        assert_eq!(reply.status, 200);
    };
    let (front, origin, first) = while_it_is_asked(EXPIRED, act);
    assert_eq!(first, "version 1");
    assert!(front.get("/content/a.html").is_hit(), "another key says nothing");
    assert_eq!(origin.request_count(), 2);
}

#[test]
fn a_key_that_is_flushed_meanwhile_keeps_the_copy_from_being_renewed() {
    let gate = OriginGate::default();
    let door = gate.clone();
    let count = AtomicUsize::new(0);
    let origin = OriginServer::start(move |seen| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        if has_condition(seen) {
            door.wait_open();
            return unchanged();
        }
        OriginResponse::html(format!("version {number}"))
            .with_header("ETag", "\"tag\"")
            .with_header("Surrogate-Key", "teaser")
            .with_header("Cache-Control", "max-age=60")
    });
    let front = Arc::new(front(&origin, FLUSHED));
    front.get("/a.html");
    front.advance(61);
    let early = Arc::clone(&front);
    let early = std::thread::spawn(move || early.get("/a.html").body);
    origin.wait_for_requests(2);
    front.send("PURGE", "/x.html", &[("Surrogate-Key", "teaser")], "");
    gate.open();
    assert_eq!(early.join().unwrap(), "version 3");
    front.wait_for("fetches", 0);
    // A renewed copy keeps its keys.
    front.advance(61);
    assert_eq!(front.get("/a.html").body, "version 3");
    assert_eq!(front.metric("revalidated_total"), 1);
    front.send("PURGE", "/x.html", &[("Surrogate-Key", "teaser")], "");
    assert!(!front.has("a.html"));
}

#[test]
fn a_copy_that_someone_removed_meanwhile_is_not_renewed() {
    let act = |front: &Front| std::fs::remove_file(front.file("content/a.html")).unwrap();
    let (front, origin, first) = while_it_is_asked(EXPIRED, act);
    assert_eq!(first, "version 3");
    assert!(front.get("/content/a.html").is_hit());
    assert_eq!(origin.request_count(), 3);
}

#[test]
fn a_marked_copy_is_confirmed_in_the_background() {
    let origin = confirming(unchanged);
    let front = front(&origin, "/enableTTL 1 /x-revalidate flushed /x-flushMode soft");
    front.get("/a.html");
    front.flush("Activate", "/a", &[]);
    assert_eq!(front.get("/a.html").body, "version 1");
    front.wait_for("revalidated_total", 1);
    front.wait_for("fetches", 0);
    let reply = front.get("/a.html");
    assert!(reply.is_hit());
    assert_eq!(front.metric("stale_total"), 1);
    // And so are pages that a flush lists.
    front.flush("Activate", "/a", &["/a.html"]);
    front.wait_for("refetches_total", 1);
    assert_eq!(front.metric("revalidated_total"), 2);
    assert_eq!(origin.request_count(), 3);
}

#[test]
fn a_render_that_is_behind_confirms_nothing() {
    let count = AtomicUsize::new(0);
    let origin = OriginServer::start(move |seen| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        let sequence = if number < 3 { "4" } else { "5" };
        if has_condition(seen) && number < 3 {
            return unchanged().with_header("X-Tympan-Seq", sequence);
        }
        OriginResponse::html(format!("version {number}"))
            .with_header("ETag", "\"tag\"")
            .with_header("Cache-Control", "max-age=60")
            .with_header("X-Tympan-Seq", sequence)
    });
    let front = front(&origin, FLUSHED);
    front.get("/a.html");
    let headers = [
        ("CQ-Action", "Activate"),
        ("CQ-Handle", "/a"),
        ("X-Tympan-Seq", "5"),
        ("Content-Type", "text/plain"),
    ];
    front.send("POST", "/dispatcher/invalidate.cache", &headers, "/a.html\n");
    front.wait_for("refetches_total", 1);
    assert_eq!(front.get("/a.html").body, "version 3");
    assert_eq!(front.metric("revalidated_total"), 0);
}

#[test]
fn a_large_copy_is_renewed_byte_for_byte() {
    let body: Vec<u8> = (0..3_000_000_u32).map(|number| b'a' + (number % 23) as u8).collect();
    let sent = body.clone();
    let origin = OriginServer::start(move |seen| {
        if has_condition(seen) {
            return unchanged();
        }
        OriginResponse::html(sent.clone())
            .with_header("ETag", "\"tag\"")
            .with_header("Cache-Control", "max-age=60")
    });
    let front = front(&origin, EXPIRED);
    let whole = String::from_utf8(body).unwrap();
    assert!(front.get("/a.bin").body == whole);
    front.wait_for("stored_total", 1);
    front.advance(61);
    let reply = front.get("/a.bin");
    assert!(reply.is_complete && reply.body == whole);
    assert_eq!(front.metric("revalidated_total"), 1);
    assert!(front.read("a.bin") == whole);
    let hit = front.get("/a.bin");
    assert!(hit.is_hit() && hit.body == whole);
}

#[test]
fn a_render_that_never_heard_of_conditions_is_asked_as_ever() {
    let origin = OriginServer::start_constant(
        OriginResponse::html("page")
            .with_header("ETag", "\"tag\"")
            .with_header("Cache-Control", "max-age=60"),
    );
    let front = Front::start(&Setup {
        cache: FLUSHED,
        // What renders get is listed; conditions of the dispatcher's own are no visitor's.
        farm: "/clientheaders { \"Host\" }",
        renders: vec![origin.addr()],
        ..Setup::default()
    });
    front.send("GET", "/a.html", &[("If-None-Match", "\"visitor\"")], "");
    front.advance(61);
    assert_eq!(front.get("/a.html").body, "page");
    assert!(front.get("/a.html").is_hit());
    assert!(!has_condition(&origin.requests()[0]));
    assert_eq!(origin.requests()[1].header("if-none-match"), Some("\"tag\""));
}

#[test]
fn grace_and_windows_end_as_without_conditions_and_by_a_strong_tag_alone() {
    let check = |cache, held: u64, is_asked: bool| {
        let origin = confirming(unchanged);
        let front = front(&origin, cache);
        front.get("/content/a.html");
        front.flush("Activate", "/content/x", &[]);
        front.advance(held - 1);
        assert!(front.get("/content/a.html").is_hit(), "{cache}");
        front.advance(2);
        let body = front.get("/content/a.html").body;
        assert_eq!(body, if is_asked { "version 1" } else { "version 2" }, "{cache}");
        assert_eq!(has_condition(&origin.requests()[1]), is_asked, "{cache}");
        // What was confirmed after the flush is newer than it.
        front.advance(30);
        assert!(front.get("/content/a.html").is_hit(), "{cache}");
        assert_eq!(origin.request_count(), 2, "{cache}");
    };
    check("/enableTTL 1 /x-revalidate flushed /gracePeriod 20", 20, true);
    check("/enableTTL 1 /x-revalidate expired /gracePeriod 20", 20, false);
    // A copy that expires while grace holds is one that a flush concerns, too.
    check("/enableTTL 1 /x-revalidate expired /gracePeriod 600", 61, false);
    check("/enableTTL 1 /x-revalidate flushed /gracePeriod 600", 61, true);
}

#[test]
fn each_level_of_stat_files_makes_copies_out_of_date_as_ever() {
    for (cache, handle, is_concerned) in [
        ("/enableTTL 1 /x-revalidate flushed /statfileslevel 0", "/other/x", true),
        ("/enableTTL 1 /x-revalidate flushed /statfileslevel 1", "/content/x", true),
        ("/enableTTL 1 /x-revalidate flushed /statfileslevel 2", "/content/en/x", true),
        ("/enableTTL 1 /x-revalidate flushed /statfileslevel 2", "/content/de/x", false),
    ] {
        let origin = confirming(unchanged);
        let front = front(&origin, cache);
        front.get("/content/de/a.html");
        front.get("/content/en/a.html");
        // Both folders have `.stat` files of their own from now on, as far as the level goes.
        front.flush("Activate", "/content/de/y", &[]);
        front.flush("Activate", "/content/en/y", &[]);
        assert_eq!(front.get("/content/en/a.html").body, "version 2", "{cache}");
        assert_eq!(front.metric("revalidated_total"), 1, "{cache}");
        assert!(front.get("/content/en/a.html").is_hit(), "{cache}");
        front.flush("Activate", handle, &[]);
        assert_eq!(front.get("/content/en/a.html").is_hit(), !is_concerned, "{cache} {handle}");
        let renewed = 1 + u64::from(is_concerned);
        assert_eq!(front.metric("revalidated_total"), renewed, "{cache} {handle}");
    }
}

#[test]
fn a_crowd_at_an_expired_page_has_its_copy_confirmed_once() {
    let gate = OriginGate::default();
    let door = gate.clone();
    let origin = confirming(move || {
        door.wait_open();
        unchanged()
    });
    let front = Arc::new(front(&origin, EXPIRED));
    front.get("/a.html");
    front.advance(61);
    let visitors: Vec<_> = (0..10)
        .map(|_| {
            let front = Arc::clone(&front);
            std::thread::spawn(move || front.get("/a.html").body)
        })
        .collect();
    origin.wait_for_requests(2);
    front.wait_for("stale_total", 9);
    gate.open();
    for visitor in visitors {
        assert_eq!(visitor.join().unwrap(), "version 1");
    }
    assert_eq!((origin.request_count(), front.metric("revalidated_total")), (2, 1));
}
