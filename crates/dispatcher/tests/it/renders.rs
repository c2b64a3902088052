//! Renders that fail, come back, and are left alone meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use tympan_testkit::origin_server::{
    OriginGate, OriginResponse, OriginServer, WAIT_TIMEOUT, refusing_addr,
};

use crate::front::{Front, Setup};

/// A render whose answers can be turned bad.
fn moody(status: u16) -> (OriginServer, Arc<AtomicBool>) {
    let is_bad = Arc::new(AtomicBool::new(false));
    let mood = Arc::clone(&is_bad);
    let origin = OriginServer::start(move |_| match mood.load(Ordering::SeqCst) {
        true => OriginResponse::with_status(status).with_body("bad"),
        false => OriginResponse::html("page"),
    });
    (origin, is_bad)
}

fn state(front: &Front, render: usize) -> &'static str {
    front.dispatcher.status().farms[0].renders[render].standing
}

#[test]
fn a_render_that_fails_in_a_row_is_left_alone() {
    for status in [502, 503, 504] {
        let (bad, is_bad) = moody(status);
        let good = OriginServer::start_constant(OriginResponse::html("page"));
        let front = Front::start(&Setup {
            farm: "/x-health { /failures 3 /pause 1000 }",
            renders: vec![bad.addr(), good.addr()],
            ..Setup::default()
        });
        is_bad.store(true, Ordering::SeqCst);
        let deadline = std::time::Instant::now() + WAIT_TIMEOUT;
        while state(&front, 0) != "out" {
            front.get("/a");
            assert!(std::time::Instant::now() < deadline, "{status}");
        }
        assert_eq!(bad.request_count(), 3, "{status}");
        for _ in 0..20 {
            assert_eq!(front.get("/a").status, 200, "{status}");
        }
        assert_eq!(bad.request_count(), 3, "{status}");
        let text = front.dispatcher.prometheus_metrics();
        assert!(text.contains("render_up{farm=\"site\",render=\"r0\"} 0"), "{text}");
    }
}

#[test]
fn a_broken_page_does_not_put_a_render_out() {
    let (origin, is_bad) = moody(500);
    is_bad.store(true, Ordering::SeqCst);
    let front = Front::start(&Setup {
        farm: "/x-health { /failures 2 }",
        renders: vec![origin.addr()],
        ..Setup::default()
    });
    for _ in 0..10 {
        assert_eq!(front.get("/a").status, 500);
    }
    assert_eq!(state(&front, 0), "in");
}

#[test]
fn without_a_breaker_the_last_render_is_asked_whatever_it_said() {
    let (origin, is_bad) = moody(503);
    let front = Front::start(&Setup {
        farm: "/x-health { /failures 2 /pause 1000 }",
        renders: vec![origin.addr()],
        ..Setup::default()
    });
    is_bad.store(true, Ordering::SeqCst);
    for _ in 0..5 {
        assert_eq!(front.get("/a").status, 503);
    }
    assert_eq!((state(&front, 0), origin.request_count()), ("out", 5));
    is_bad.store(false, Ordering::SeqCst);
    assert_eq!(front.get("/a").status, 200);
    assert_eq!(state(&front, 0), "slow start");
}

#[test]
fn a_breaker_answers_at_once_and_lets_one_try() {
    let (origin, is_bad) = moody(503);
    let front = Front::start(&Setup {
        // A pause of nothing, so that every request finds its time out passed.
        farm: "/x-health { /failures 2 /pause 0 /slowStart 0 /breaker 1 }",
        renders: vec![origin.addr()],
        ..Setup::default()
    });
    is_bad.store(true, Ordering::SeqCst);
    front.get("/a");
    front.get("/a");
    is_bad.store(false, Ordering::SeqCst);
    assert_eq!(front.get("/a").status, 200, "the trial");
    assert_eq!(state(&front, 0), "in");
    let front = Front::start(&Setup {
        farm: "/x-health { /failures 1 /pause 1000 /breaker 1 } /numberOfRetries 9999 /retryDelay 9999",
        renders: vec![refusing_addr(), refusing_addr()],
        ..Setup::default()
    });
    for _ in 0..3 {
        assert_eq!(front.get("/a").status, 502, "the rounds would take longer than anyone waits");
    }
}

#[test]
fn busy_renders_let_wait_and_then_refuse() {
    let gate = OriginGate::default();
    let inner = gate.clone();
    let most = Arc::new(AtomicUsize::new(0));
    let now = Arc::new(AtomicUsize::new(0));
    let (peak, present) = (Arc::clone(&most), Arc::clone(&now));
    let origin = OriginServer::start(move |_| {
        peak.fetch_max(present.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        inner.wait_open();
        present.fetch_sub(1, Ordering::SeqCst);
        OriginResponse::html("page")
    });
    let front = Arc::new(Front::start(&Setup {
        render: "/x-maxConcurrent 2 /x-maxQueue 3 /x-queueWait 600",
        renders: vec![origin.addr()],
        ..Setup::default()
    }));
    let visitors: Vec<_> = (0..5)
        .map(|number| {
            let front = Arc::clone(&front);
            std::thread::spawn(move || front.get(&format!("/{number}")).status)
        })
        .collect();
    front.wait_for("render_queue", 3);
    assert_eq!(front.get("/more").status, 503, "who finds the queue full is told at once");
    let status = front.dispatcher.status();
    let render = &status.farms[0].renders[0];
    assert_eq!((render.in_flight, render.waiting), (2, 3));
    // Both were sent; the render may not have begun with the second.
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while most.load(Ordering::SeqCst) < 2 && Instant::now() < deadline {
        std::thread::yield_now();
    }
    gate.open();
    for visitor in visitors {
        assert_eq!(visitor.join().unwrap(), 200);
    }
    assert_eq!(most.load(Ordering::SeqCst), 2);
}

#[test]
fn names_are_resolved_for_each_request_where_that_is_asked() {
    let origin = OriginServer::start(|seen| {
        OriginResponse::html(seen.header("host").unwrap_or("-").to_owned())
    });
    let port = origin.addr().port();
    for more in ["/always-resolve 1", "/ipv4 1", "/always-resolve 1 /ipv4 1"] {
        let text = format!(
            "/farms {{ /site {{ /virtualhosts {{ \"*\" }} /numberOfRetries 1
               /renders {{ /r0 {{ /hostname \"localhost\" /port \"{port}\" {more} }} }} }} }}"
        );
        let front = Front::start_text(&text);
        assert_eq!(front.get("/a").body, format!("localhost:{port}"), "{more}: the name stays");
    }
}
