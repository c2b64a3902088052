//! `stale-while-revalidate` and `stale-if-error` of renders (`/x-staleDirectives`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use tympan_testkit::origin_server::{OriginGate, OriginResponse, OriginServer};

use crate::front::{Front, front};

const OBEYING: &str = "/enableTTL 1 /x-staleDirectives 1";

/// Numbers its pages and lets them be used for 30 s more while they are fetched, and 600 s more while it fails.
fn lenient() -> OriginServer {
    let count = AtomicUsize::new(0);
    OriginServer::start(move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        let control = "max-age=60, stale-while-revalidate=30, stale-if-error=600";
        OriginResponse::html(format!("version {number}")).with_header("Cache-Control", control)
    })
}

#[test]
fn nobody_waits_for_a_page_within_stale_while_revalidate() {
    let origin = lenient();
    let front = front(&origin, OBEYING);
    front.get("/a.html");
    front.advance(90);
    let reply = front.get("/a.html");
    assert_eq!((reply.body.as_str(), reply.header("x-tympan-stale")), ("version 1", None));
    front.wait_for("stored_total", 2);
    front.wait_for("fetches", 0);
    assert_eq!(front.get("/a.html").body, "version 2");
    // Afterwards the first visitor waits.
    front.advance(92);
    assert_eq!(front.get("/a.html").body, "version 3");
    assert_eq!(front.metric("stale_total"), 1);
}

#[test]
fn what_a_flush_concerns_is_not_used_by_the_render_s_word() {
    let check = |cache, flush: Option<&str>, expected: &str| {
        let origin = lenient();
        let front = front(&origin, cache);
        front.get("/content/a.html");
        front.advance(70);
        if let Some(handle) = flush {
            front.flush("Activate", handle, &[]);
        }
        assert_eq!(front.get("/content/a.html").body, expected, "{cache} {flush:?}");
    };
    check(OBEYING, None, "version 1");
    check(OBEYING, Some("/content/other"), "version 2");
    check(OBEYING, Some("/content/a"), "version 2");
    check("/enableTTL 1 /x-staleDirectives 1 /gracePeriod 100", Some("/content/x"), "version 2");
    check("/enableTTL 1", None, "version 2");
    check("/enableTTL 1 /x-staleDirectives 0", None, "version 2");
}

#[test]
fn an_expired_page_stands_in_for_a_failing_render_as_long_as_it_allows() {
    let check = |status: u16, advance: u64, flush: Option<&str>, is_old: bool| {
        let ill = Arc::new(AtomicU16::new(200));
        let told = Arc::clone(&ill);
        let origin = OriginServer::start(move |_| match told.load(Ordering::SeqCst) {
            200 => OriginResponse::html("good")
                .with_header("Cache-Control", "max-age=60, stale-if-error=600"),
            status => OriginResponse::with_status(status).with_body("bad"),
        });
        let front = front(&origin, OBEYING);
        front.get("/content/a.html");
        ill.store(status, Ordering::SeqCst);
        front.advance(advance);
        if let Some(handle) = flush {
            front.flush("Activate", handle, &[]);
        }
        let reply = front.get("/content/a.html");
        let expected = if is_old { (200, "good") } else { (status, "bad") };
        assert_eq!((reply.status, reply.body.as_str()), expected, "{advance} {flush:?}");
        assert_eq!(reply.header("warning").is_some(), is_old);
        assert_eq!(front.metric("stale_on_error_total"), u64::from(is_old));
    };
    for status in [500, 502, 503, 504] {
        check(status, 61, None, true);
        check(status, 660, None, true);
        check(status, 661, None, false);
        check(status, 61, Some("/content/x"), false);
        check(status, 61, Some("/content/a"), false);
    }
    for status in [403, 404, 410, 501] {
        check(status, 61, None, false);
    }
}

#[test]
fn a_flush_while_the_render_fails_ends_its_permission() {
    for handle in ["/content/a", "/content/other"] {
        let (gate, count) = (OriginGate::default(), AtomicUsize::new(0));
        let door = gate.clone();
        let origin = OriginServer::start(move |_| {
            if count.fetch_add(1, Ordering::SeqCst) == 0 {
                let control = "max-age=60, stale-if-error=600";
                return OriginResponse::html("good").with_header("Cache-Control", control);
            }
            door.wait_open();
            OriginResponse::with_status(503).with_body("bad")
        });
        let front: Arc<Front> = Arc::new(front(&origin, OBEYING));
        front.get("/content/a.html");
        front.advance(61);
        let early = Arc::clone(&front);
        let early = std::thread::spawn(move || early.get("/content/a.html").status);
        origin.wait_for_requests(2);
        assert_eq!(front.flush("Activate", handle, &[]).status, 200);
        gate.open();
        assert_eq!(early.join().unwrap(), 503, "{handle}");
    }
}
