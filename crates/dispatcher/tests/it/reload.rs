//! Another configuration while the dispatcher serves.

use std::sync::Arc;

use tympan_dispatcher::DispatcherSettings;
use tympan_testkit::condition_wait::wait_until;
use tympan_testkit::origin_server::{OriginGate, OriginResponse, OriginServer, exchange_bytes};
use tympan_testkit::tls_proxy::{CertificateAuthority, TlsProxy};
use tympan_web::tls::TlsTrust;

use crate::front::{Front, Reply, Setup, load};

const CLOSED: &str =
    "/filter { /0 { /type \"deny\" /url \"*\" } /1 { /type \"allow\" /url \"/open/*\" } }";

#[test]
fn the_next_request_obeys_the_new_configuration_and_the_cache_stays() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let setup = Setup { renders: vec![origin.addr()], ..Setup::default() };
    let front = Front::start(&setup);
    front.get("/a.html");
    front.get("/open/a.html");
    let hits = front.metric("hits_total");
    front.reload(&Setup { farm: CLOSED, ..setup.clone() });
    assert_eq!(front.get("/a.html").status, 404);
    assert!(front.get("/open/a.html").is_hit());
    assert_eq!(front.metric("hits_total"), hits + 1, "counters go on");
    front.reload(&setup);
    assert!(front.get("/a.html").is_hit());
    assert_eq!(origin.request_count(), 2);
}

#[test]
fn a_configuration_that_lets_responses_be_cached_opens_the_fast_path_for_them() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    // Who comes through a proxy is told by headers, which no kept answer knows.
    let closed = Setup {
        renders: vec![origin.addr()],
        settings: "[front]\ntrusted_proxies = [\"192.0.2.1\"]".to_owned(),
        ..Setup::default()
    };
    let front = Front::start(&closed);
    let ask = || {
        let request = b"GET /a.html HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
        assert_eq!(Reply::parse(&exchange_bytes(front.addr, request), false).body, "page");
    };
    (0..3).for_each(|_| ask());
    assert_eq!((front.metric("memory_hits_total"), front.metric("fast_path_hits_total")), (0, 0));
    front.reload(&Setup { settings: String::new(), ..closed.clone() });
    (0..3).for_each(|_| ask());
    assert_eq!((front.metric("memory_hits_total"), front.metric("fast_path_hits_total")), (2, 2));
    front.reload(&closed);
    (0..3).for_each(|_| ask());
    assert_eq!((front.metric("memory_hits_total"), front.metric("fast_path_hits_total")), (2, 2));
}

#[test]
fn a_request_under_way_ends_by_the_configuration_it_began_with() {
    let gate = OriginGate::default();
    let inner = gate.clone();
    let origin = OriginServer::start(move |_| {
        inner.wait_open();
        OriginResponse::html("x".repeat(3_000_000))
    });
    let setup = Setup { renders: vec![origin.addr()], ..Setup::default() };
    let front = Arc::new(Front::start(&setup));
    let asking = Arc::clone(&front);
    let visitor = std::thread::spawn(move || asking.get("/a.html"));
    origin.wait_for_requests(1);
    front.reload(&Setup { farm: CLOSED, ..setup.clone() });
    // One who comes later waits for the same fetch, and a new root would have swept its file away.
    front.reload(&setup);
    let asking = Arc::clone(&front);
    let second = std::thread::spawn(move || asking.get("/a.html"));
    front.wait_for("collapsed_total", 1);
    gate.open();
    for visitor in [visitor, second] {
        let reply = visitor.join().unwrap();
        assert_eq!((reply.status, reply.body.len()), (200, 3_000_000));
    }
    assert_eq!(origin.request_count(), 1);
    front.wait_for("fetches", 0);
    assert!(front.get("/a.html").is_hit());
}

#[test]
fn pages_that_wait_to_be_fetched_again_are_asked_of_the_new_renders() {
    let gate = OriginGate::default();
    let door = gate.clone();
    let old = OriginServer::start(move |_| {
        door.wait_open();
        OriginResponse::html("old")
    });
    let new = OriginServer::start_constant(OriginResponse::html("new"));
    let setup = Setup { renders: vec![old.addr()], ..Setup::default() };
    let front = Front::start(&setup);
    front.flush("Activate", "/none", &["/a.html", "/b.html", "/my/c.html"]);
    old.wait_for_requests(1);
    let cache =
        "/rules { /0 { /type \"allow\" /glob \"*\" } /1 { /type \"deny\" /glob \"/my/*\" } }";
    front.reload(&Setup { renders: vec![new.addr()], cache, ..setup });
    gate.open();
    front.wait_for("refetches_total", 2);
    front.wait_for("refetch_queue", 0);
    assert_eq!((front.read("a.html"), front.read("b.html")), ("old".to_owned(), "new".to_owned()));
    assert_eq!(
        (old.request_count(), new.request_count()),
        (1, 1),
        "what is not cached any more is not fetched"
    );
}

#[test]
fn a_configuration_that_cannot_be_used_changes_nothing() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let front = crate::front::front(&origin, "");
    assert!(
        front
            .dispatcher
            .reload(load("/farms { }").config, &DispatcherSettings::default(), None)
            .is_err()
    );
    let settings: DispatcherSettings = toml::from_str("pass_error = \"200\"").unwrap();
    let config = load(&Setup::default().text("/".as_ref())).config;
    let error = front.dispatcher.reload(config, &settings, None).unwrap_err();
    assert!(error.to_string().contains("`pass_error` in `[dispatcher]`"), "{error}");
    assert_eq!(front.get("/a.html").body, "page");
}

#[test]
fn trust_in_renders_comes_with_the_configuration() {
    let (origin, authority) =
        (OriginServer::start_constant(OriginResponse::html("page")), CertificateAuthority::new());
    let door = TlsProxy::start(origin.addr(), &authority, "127.0.0.1");
    let setup = Setup { renders: vec![origin.addr()], ..Setup::default() };
    let front = Front::start(&setup);
    let secure = Setup { renders: vec![door.addr()], render: "/secure 1", ..setup };
    let of = |authority: &CertificateAuthority| TlsTrust::from_pem(authority.pem().as_bytes()).ok();
    for (page, trust, status) in [
        ("/a.html", of(&authority), 200),
        ("/b.html", of(&CertificateAuthority::new()), 502),
        ("/c.html", of(&authority), 200),
        ("/d.html", None, 502),
    ] {
        front.reload_trusting(&secure, trust);
        assert_eq!(front.get(page).status, status, "{page}");
    }
    assert_eq!(door.request_count(), 2);
}

#[test]
fn vanity_urls_that_come_with_a_reload_are_loaded() {
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/list" => OriginResponse::html("/short\n"),
        target => OriginResponse::html(format!("page {target}")),
    });
    let setup = Setup { farm: CLOSED, renders: vec![origin.addr()], ..Setup::default() };
    let front = Front::start(&setup);
    assert_eq!(front.get("/short").status, 404);
    let farm =
        "/filter { /0 { /type \"deny\" /url \"*\" } } /vanity_urls { /url \"/list\" /delay 300 }";
    front.reload(&Setup { farm, ..setup });
    origin.wait_for_requests(1);
    wait_until("the list comes", || front.get("/short").status != 404);
    assert_eq!(front.get("/short").body, "page /short");
}
