//! Other renders that are asked for a part of what is fetched (`/x-shadow`).

use std::net::SocketAddr;

use tympan_testkit::condition_wait::wait_until;
use tympan_testkit::origin_server::{OriginGate, OriginResponse, OriginServer, refusing_addr};

use crate::front::{Front, Setup};

fn shadowed(origin: &OriginServer, shadow: SocketAddr, percent: &str) -> Front {
    let port = shadow.port();
    let farm = format!(
        "/x-shadow {{ /percent \"{percent}\" /renders {{ /new {{ /hostname \"127.0.0.1\" /port \"{port}\" }} }} }}"
    );
    let renders = vec![origin.addr()];
    // A test's strings live as long as it does.
    Front::start(&Setup { farm: Box::leak(farm.into_boxed_str()), renders, ..Setup::default() })
}

#[test]
fn a_shadow_is_compared_and_seen_by_nobody() {
    let page = || OriginResponse::html("page");
    for (theirs, same, different, failed) in [
        (page(), 1, 0, 0),
        (OriginResponse::html("pagf"), 0, 1, 0),
        (OriginResponse::html("pag"), 0, 1, 0),
        (OriginResponse::html("page more"), 0, 1, 0),
        (page().with_header("Set-Cookie", "x=1"), 1, 0, 0),
        (
            OriginResponse::with_status(200)
                .with_body("page")
                .with_header("Content-Type", "text/plain"),
            0,
            1,
            0,
        ),
        (OriginResponse::with_status(500).with_body("page"), 0, 1, 0),
    ] {
        let (origin, shadow) =
            (OriginServer::start_constant(page()), OriginServer::start_constant(theirs.clone()));
        let front = shadowed(&origin, shadow.addr(), "100");
        let reply = front.send("GET", "/a.html?utm_x=1", &[("X-Visitor", "1")], "");
        // A query that counts makes a page that is not stored, and not compared.
        assert_eq!(reply.body, "page");
        assert_eq!(shadow.request_count(), 0);
        assert_eq!(front.send("GET", "/a.html", &[("X-Visitor", "1")], "").body, "page");
        shadow.wait_for_requests(1);
        front.wait_for("shadow_matches_total", same);
        front.wait_for("shadow_differences_total", different);
        front.wait_for("shadow_failures_total", failed);
        let seen = &shadow.requests()[0];
        assert_eq!((seen.target.as_str(), seen.header("x-visitor")), ("/a.html", Some("1")));
        assert!(front.get("/a.html").is_hit());
        assert_eq!(front.read("a.html"), "page", "{theirs:?}");
        assert_eq!(shadow.request_count(), 1, "only what is fetched is compared");
    }
    let origin = OriginServer::start_constant(page());
    let front = shadowed(&origin, refusing_addr(), "100");
    assert_eq!(front.get("/a.html").body, "page");
    front.wait_for("shadow_failures_total", 1);
}

#[test]
fn a_share_is_spread_evenly_and_a_slow_shadow_holds_nobody_up() {
    let origin = OriginServer::start(|seen| OriginResponse::html(format!("page {}", seen.target)));
    let shadow = OriginServer::start(|seen| OriginResponse::html(format!("page {}", seen.target)));
    let front = shadowed(&origin, shadow.addr(), "25");
    for number in 0..40 {
        front.get(&format!("/{number}.html"));
    }
    let skipped = || front.metric("shadow_skipped_total");
    wait_until("ten of forty are compared", || {
        front.metric("shadow_matches_total") + skipped() >= 10
    });
    assert_eq!(front.metric("shadow_matches_total") + skipped(), 10);

    let gate = OriginGate::default();
    let door = gate.clone();
    let slow = OriginServer::start(move |_| {
        door.wait_open();
        OriginResponse::html("x")
    });
    let front = shadowed(&origin, slow.addr(), "100");
    for number in 0..10 {
        assert_eq!(front.get(&format!("/{number}.html")).status, 200);
    }
    assert_eq!(front.metric("shadow_skipped_total"), 6, "four are asked at a time");
    gate.open();
}
