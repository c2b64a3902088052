//! Dispatchers that ask each other before the render (`/x-siblings`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tympan_testkit::origin_server::{OriginGate, OriginResponse, OriginServer, refusing_addr};

use crate::front::{Front, Setup, front};

/// Numbers its answers.
fn counting() -> OriginServer {
    let count = AtomicUsize::new(0);
    OriginServer::start(move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        OriginResponse::html(format!("version {number}"))
    })
}

/// A front that asks `sibling` for what it has not.
fn beside(sibling: SocketAddr, origin: &OriginServer, cache: &'static str) -> Front {
    let port = sibling.port();
    let farm = format!("/x-siblings {{ /other {{ /hostname \"127.0.0.1\" /port \"{port}\" }} }}");
    let renders = vec![origin.addr()];
    // A test's strings live as long as it does.
    Front::start(&Setup {
        farm: Box::leak(farm.into_boxed_str()),
        cache,
        renders,
        ..Setup::default()
    })
}

fn advance(fronts: [&Front; 2], seconds: u64) {
    fronts.iter().for_each(|front| front.advance(seconds));
}

#[test]
fn a_cold_dispatcher_takes_what_its_sibling_has() {
    let origin = OriginServer::start(|seen| {
        let kind = "text/html; charset=gbk";
        OriginResponse::with_status(200)
            .with_body(format!("page {}", seen.target))
            .with_header("Content-Type", kind)
            .with_header("X-Kept", "1")
            .with_header("Surrogate-Key", "teaser")
    });
    let keeping = "/headers { \"X-Kept\" }";
    let warm = front(&origin, keeping);
    let cold = beside(warm.addr, &origin, keeping);
    warm.get("/content/a.html");
    advance([&warm, &cold], 5);
    let first = cold.get("/content/a.html");
    assert_eq!((first.body.as_str(), first.info()), ("page /content/a.html", "caching"));
    let hit = cold.get("/content/a.html");
    assert!(hit.is_hit());
    for reply in [&first, &hit] {
        assert_eq!(reply.header("x-kept"), Some("1"));
        let told = ["x-tympan-stored", "x-tympan-age", "x-tympan-keys"];
        assert_eq!(told.map(|name| reply.header(name)), [None; 3]);
    }
    assert_eq!(hit.header("content-type"), Some("text/html; charset=gbk"));
    let age: u64 = hit.header("age").unwrap().parse().unwrap();
    assert!((4..=5).contains(&age), "it is as old as the sibling's, not {age} s");
    assert_eq!(origin.request_count(), 1);
    assert_eq!(cold.metric("sibling_hits_total"), 1);
    assert_eq!(warm.metric("sibling_copies_served_total"), 1);
    // Its keys came with it.
    cold.send("PURGE", "/x.html", &[("Surrogate-Key", "teaser")], "");
    assert!(!cold.has("content/a.html"));
    // What the sibling has not, it does not fetch.
    assert_eq!(cold.get("/content/b.html").status, 200);
    assert_eq!(origin.request_count_for("/content/b.html"), 1);
    assert!(!warm.has("content/b.html"));
}

#[test]
fn no_copy_is_taken_that_is_older_than_a_flush() {
    let flushes: [fn(&Front); 4] = [
        |front| drop(front.flush("Activate", "/content/a", &[])),
        |front| drop(front.flush("Activate", "/content/dam/x.png", &[])),
        |front| drop(front.send("PURGE", "/content/a.html", &[], "")),
        |front| drop(front.send("PURGE", "/x.html", &[("Surrogate-Key", "k")], "")),
    ];
    for (number, flush) in flushes.into_iter().enumerate() {
        let origin = counting();
        let slow = front(&origin, "");
        let quick = beside(slow.addr, &origin, "");
        for page in ["a", "b", "c"] {
            slow.get(&format!("/content/{page}.html"));
        }
        advance([&slow, &quick], 10);
        // The sibling has not heard of it yet.
        flush(&quick);
        advance([&slow, &quick], 10);
        assert_eq!(quick.get("/content/a.html").body, "version 4", "{number}");
        assert_eq!(quick.metric("sibling_hits_total"), 0, "{number}");
        // Once it has, what it fetched since is as good as a render's.
        slow.flush("Activate", "/content/b", &[]);
        assert_eq!(slow.get("/content/b.html").body, "version 5", "{number}");
        advance([&slow, &quick], 1);
        assert_eq!(quick.get("/content/b.html").body, "version 5", "{number}");
        assert_eq!(quick.metric("sibling_hits_total"), 1, "{number}");
        // And it does not send what is out of date.
        assert_eq!(quick.get("/content/c.html").body, "version 6", "{number}");
    }
}

/// A sibling that always has a page, of an age in seconds.
fn generous(age: u64, gate: &OriginGate) -> OriginServer {
    let door = gate.clone();
    OriginServer::start(move |seen| {
        assert_eq!(seen.header("x-tympan-sibling"), Some("1"));
        door.wait_open();
        // `tympan-headers 1 1`
        OriginResponse::html("of the sibling")
            .with_header("X-Tympan-Stored", "dHltcGFuLWhlYWRlcnMgMSAxCg==")
            .with_header("X-Tympan-Age", &(age * 1_000_000_000).to_string())
    })
}

#[test]
fn a_flush_wins_over_a_copy_that_is_on_its_way() {
    for handle in ["/content/a", "/content/other"] {
        let (gate, origin) = (OriginGate::default(), counting());
        let sibling = generous(1, &gate);
        let front = Arc::new(beside(sibling.addr(), &origin, ""));
        let early = Arc::clone(&front);
        let early = std::thread::spawn(move || early.get("/content/a.html").body);
        sibling.wait_for_requests(1);
        assert_eq!(front.flush("Activate", handle, &[]).status, 200);
        gate.open();
        assert_eq!(early.join().unwrap(), "version 1", "{handle}");
        front.wait_for("fetches", 0);
        let later = front.get("/content/a.html").body;
        assert_ne!(later, "of the sibling", "{handle}");
        assert_eq!(front.metric("sibling_hits_total"), 0, "{handle}");
    }
}

#[test]
fn a_flush_before_a_restart_counts() {
    let (gate, origin) = (OriginGate::default(), counting());
    gate.open();
    let (old, new) = (generous(3600, &gate), generous(0, &gate));
    let first = beside(old.addr(), &origin, "");
    assert_eq!(first.get("/content/a.html").body, "of the sibling");
    first.flush("Delete", "/content", &[]);
    let root = first.stop();
    let farm = |addr: SocketAddr| {
        let port = addr.port();
        let text = format!("/x-siblings {{ /o {{ /hostname \"127.0.0.1\" /port \"{port}\" }} }}");
        let farm: &'static str = Box::leak(text.into_boxed_str());
        Setup { farm, renders: vec![origin.addr()], ..Setup::default() }
    };
    let second = Front::start_in(&farm(old.addr()), root);
    assert_eq!(second.get("/content/a.html").body, "version 1");
    second.flush("Delete", "/content", &[]);
    let third = Front::start_in(&farm(new.addr()), second.stop());
    third.advance(60);
    assert_eq!(third.get("/content/a.html").body, "of the sibling");
}

#[test]
fn siblings_that_fail_cost_little_and_change_nothing() {
    let origin = counting();
    let lonely = beside(refusing_addr(), &origin, "");
    for number in 1..=10 {
        let body = lonely.get(&format!("/{number}.html")).body;
        assert_eq!(body, format!("version {number}"));
    }
    for answer in [
        OriginResponse::with_status(404),
        OriginResponse::html("no copy"),
        OriginResponse::html("x")
            .with_header("X-Tympan-Stored", "???")
            .with_header("X-Tympan-Age", "1"),
        OriginResponse::html("x")
            .with_header("X-Tympan-Stored", "eA==")
            .with_header("X-Tympan-Age", "1"),
        OriginResponse::html("")
            .with_header("X-Tympan-Stored", "dHltcGFuLWhlYWRlcnMgMSAxCg==")
            .with_header("X-Tympan-Age", "1"),
    ] {
        let (sibling, origin) = (OriginServer::start_constant(answer.clone()), counting());
        let front = beside(sibling.addr(), &origin, "");
        assert_eq!(front.get("/a.html").body, "version 1", "{answer:?}");
    }
    // Without a word of its end a copy would live for ever.
    let (gate, origin) = (OriginGate::default(), counting());
    gate.open();
    let sibling = generous(1, &gate);
    let front = beside(sibling.addr(), &origin, "/enableTTL 1");
    assert_eq!(front.get("/a.html").body, "version 1");
}

#[test]
fn a_sibling_that_has_nothing_is_asked_again() {
    let (gate, origin) = (OriginGate::default(), counting());
    let empty = OriginServer::start_constant(OriginResponse::with_status(404));
    let front = beside(empty.addr(), &origin, "");
    for number in 0..20 {
        front.get(&format!("/{number}.html"));
    }
    assert_eq!(empty.request_count(), 20);
    // Rules of hosts are applied once: what they made of a URL is what the sibling is asked for.
    gate.open();
    let sibling = generous(1, &gate);
    let port = sibling.addr().port();
    let farm = format!("/x-siblings {{ /o {{ /hostname \"127.0.0.1\" /port \"{port}\" }} }}");
    let front = Front::start(&Setup {
        farm: Box::leak(farm.into_boxed_str()),
        renders: vec![origin.addr()],
        settings: "[[host]]\n[[host.rule]]\nmatch = '^/en/'\nrewrite = \"/content/en/x.html\"\n"
            .to_owned(),
        ..Setup::default()
    });
    assert_eq!(front.get("/en/x.html").body, "of the sibling");
    let seen = &sibling.requests()[0];
    assert_eq!(seen.target, "/content/en/x.html");
    assert_eq!(seen.header("host"), Some("www.example.com"));
    // And those of the sibling are not asked, nor are its error documents drawn.
    let told = front.send("GET", "/en/none.html", &[("X-Tympan-Sibling", "1")], "");
    assert_eq!(told.status, 404);
    assert_eq!(origin.request_count(), 20);
}

#[test]
fn a_copy_ends_when_it_would_have_ended_there() {
    let origin = OriginServer::start_constant(
        OriginResponse::html("page").with_header("Cache-Control", "max-age=60"),
    );
    let warm = front(&origin, "/enableTTL 1");
    let cold = beside(warm.addr, &origin, "/enableTTL 1");
    warm.get("/a.html");
    advance([&warm, &cold], 40);
    assert_eq!(cold.get("/a.html").body, "page");
    assert_eq!((origin.request_count(), cold.metric("sibling_hits_total")), (1, 1));
    cold.advance(19);
    assert!(cold.get("/a.html").is_hit());
    cold.advance(2);
    assert!(!cold.get("/a.html").is_hit());
    assert_eq!(origin.request_count(), 2);
}

#[test]
fn only_who_may_flush_is_given_copies() {
    let origin = counting();
    let check = |cache: &'static str, shown: &str, target: &str, expected: u16| {
        let front = front(&origin, cache);
        front.get("/content/a.html");
        front.advance(1);
        let reply = front.send("GET", target, &[("X-Tympan-Sibling", shown)], "");
        assert_eq!(reply.status, expected, "{cache} {shown} {target}");
        assert_eq!(reply.header("x-tympan-stored").is_some(), expected == 200);
    };
    let open = "/allowedClients { /0 { /type \"allow\" /glob \"127.0.0.1\" } }";
    let closed =
        "/allowedClients { /0 { /type \"deny\" /glob \"*\" } } /x-flushToken \"0123456789abcdef\"";
    check(open, "1", "/content/a.html", 200);
    check(open, "1", "/content/b.html", 404);
    check(open, "1", "/content/a.html?x=1", 404);
    check(closed, "1", "/content/a.html", 403);
    check(closed, "0123456789abcdeg", "/content/a.html", 403);
    check(closed, "0123456789abcdef", "/content/a.html", 200);
}
