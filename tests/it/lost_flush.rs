//! A flush that is lost on its way is missed by the next one, and no page stays old for it.
//!
//! Between publisher and dispatcher stands a proxy that answers for some flushes itself and passes none of them on, so that
//! the publisher takes them for delivered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tympan_testkit::condition_wait::wait_until;
use tympan_testkit::origin_server::{OriginRequest, OriginResponse, OriginServer};

use crate::program::{Demo, ask, get};

const LOST: &str = "/content/wayfare/en/journal/night-train-to-lisbon";
const NEXT: &str = "/content/wayfare/en/about";

/// Tells whether a flush is about the page that is changed last.
fn is_next(flush: &OriginRequest) -> bool {
    let body = String::from_utf8_lossy(&flush.body);
    flush.header("cq-handle").is_some_and(|handle| handle.starts_with(NEXT))
        || body.lines().any(|line| line.starts_with(NEXT))
}

/// Starts a proxy in front of a dispatcher that swallows flushes while it is told to.
fn proxy(dispatcher: std::net::SocketAddr, is_lossy: &Arc<AtomicBool>) -> OriginServer {
    let is_lossy = Arc::clone(is_lossy);
    OriginServer::start(move |seen| {
        if is_lossy.load(Ordering::SeqCst) && !is_next(seen) {
            return OriginResponse::html("<H1>OK</H1>\r\n");
        }
        let own = ["host", "connection", "content-length", "transfer-encoding"];
        let headers: Vec<(&str, String)> = seen
            .headers
            .iter()
            .filter(|(name, _)| !own.iter().any(|own| own.eq_ignore_ascii_case(name)))
            .map(|(name, value)| (name.as_str(), value.clone()))
            .collect();
        match ask(dispatcher, &seen.method, &seen.target, &headers, &seen.body) {
            Ok(answer) => OriginResponse::with_status(answer.status).with_body(answer.body),
            Err(_gone) => OriginResponse::with_status(502),
        }
    })
}

/// Returns run and count of a flush.
fn order(flush: &OriginRequest) -> (String, u64) {
    let order = flush.header("x-tympan-order").expect("flushes are numbered");
    let mut words = order.rsplitn(3, ' ');
    let (count, run) = (words.next().unwrap(), words.next().unwrap());
    (run.to_owned(), count.parse().unwrap())
}

#[test]
fn a_lost_flush_is_missed_by_the_next_one_and_healed() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let is_lossy = Arc::new(AtomicBool::new(false));
    let proxy = proxy(demo.dispatcher, &is_lossy);
    let agent = "/etc/replication/agents.publish/flush";
    let settings = format!(
        "./serializationType=precise&./transportUri=http://{}/dispatcher/invalidate.cache",
        proxy.addr()
    );
    assert_eq!(demo.post(&format!("{agent}/jcr:content"), &settings).status, 200);
    assert_eq!(demo.post(agent, ":operation=activate").status, 200);
    wait_until("the publisher to use the proxy", || proxy.request_count() > 0);
    let (lost, next) = (format!("{LOST}.html"), format!("{NEXT}.html"));
    let shows = |address, url: &str, text: &str| {
        let answer = get(address, url);
        answer.status == 200 && answer.text().contains(text)
    };
    let change = |page: &str, title: &str| {
        let content = format!("{page}/jcr:content");
        assert_eq!(demo.post(&content, &format!("./jcr:title={title}")).status, 200);
        assert_eq!(demo.post(page, ":operation=activate").status, 200);
    };
    for (page, url, title) in [(LOST, &lost, "Zebra-one"), (NEXT, &next, "Ibis-one")] {
        // A page that nobody has is flushed for nobody.
        wait_until("a page to be drawn", || get(demo.dispatcher, url).status == 200);
        change(page, title);
        wait_until("visitors to see a change", || shows(demo.dispatcher, url, title));
    }
    // A page that was not cached shows a change before its flush has come.
    let has_come = |page: &str| {
        let seen = proxy.requests();
        seen.iter().any(|flush| flush.header("cq-handle") == Some(page))
    };
    wait_until("both flushes to come", || has_come(LOST) && has_come(NEXT));
    wait_until("the page to be cached", || {
        let before = demo.renders_of(&lost);
        (0..3).all(|_| shows(demo.dispatcher, &lost, "Zebra-one"))
            && demo.renders_of(&lost) == before
    });

    is_lossy.store(true, Ordering::SeqCst);
    let before = proxy.request_count();
    change(LOST, "Zebra-two");
    wait_until("the flush to be lost", || proxy.request_count() > before);
    wait_until("the publisher to show the change", || shows(demo.publish, &lost, "Zebra-two"));
    assert!(shows(demo.dispatcher, &lost, "Zebra-one"), "nobody told the dispatcher");

    change(NEXT, "Ibis-two");
    wait_until("visitors to see what was lost", || shows(demo.dispatcher, &lost, "Zebra-two"));
    wait_until("visitors to see what came next", || shows(demo.dispatcher, &next, "Ibis-two"));
    let seen = proxy.requests();
    let passed = (before..seen.len()).find(|at| is_next(&seen[*at])).unwrap();
    assert!(passed > before);
    let orders: Vec<_> = seen[before - 1..=passed].iter().map(order).collect();
    for pair in orders.windows(2) {
        // One whose answer came too late is sent again.
        let is_next = pair[1].1 == pair[0].1 + 1 || pair[1].1 == pair[0].1;
        assert!(pair[0].0 == pair[1].0 && is_next, "{orders:?}");
    }
    let log = dir.path().join("dispatcher/logs/dispatcher.log");
    wait_until("the log to tell it", || {
        let text = std::fs::read_to_string(&log).unwrap();
        text.contains("may have been missed (gap): touched all stat files")
    });
}
