//! Flushes by surrogate keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tympan_testkit::origin_server::{OriginResponse, OriginServer, WAIT_TIMEOUT};

use crate::front::{Front, Setup, front};

/// Draws pages whose keys stand in their names: `/a.product-7.html` carries `a` and `product-7`.
fn marked() -> OriginServer {
    let count = AtomicU64::new(0);
    OriginServer::start(move |seen| {
        let version = count.fetch_add(1, Ordering::SeqCst);
        let keys = seen.target.trim_matches('/').replace(".html", "").replace('.', " ");
        OriginResponse::html(format!("version {version}")).with_header("Surrogate-Key", &keys)
    })
}

fn flush(front: &Front, method: &str, keys: &str) -> u16 {
    front.send(method, "/dispatcher/invalidate.cache", &[("Surrogate-Key", keys)], "").status
}

#[test]
fn all_pages_with_a_key_go_and_no_other() {
    let origin = marked();
    let front = front(&origin, "");
    let pages = ["/a.red.html", "/b.red.blue.html", "/c.blue.html", "/d.redder.html"];
    for page in pages {
        front.get(page);
        // Visitors see no key that `/headers` does not name, however the page comes.
        for _ in 0..3 {
            let hit = front.get(page);
            assert!(hit.is_hit() && hit.header("surrogate-key").is_none());
            assert_eq!(hit.header("x-tympan-keys"), None);
        }
    }
    assert_eq!(flush(&front, "POST", "red"), 200);
    let hits = |pages: [&str; 4]| pages.map(|page| front.get(page).is_hit());
    assert_eq!(hits(pages), [false, false, true, true]);
    assert_eq!(flush(&front, "PURGE", "blue none"), 200);
    assert_eq!(hits(pages), [true, false, false, true]);
    assert_eq!(flush(&front, "POST", "none"), 200);
    assert_eq!(hits(pages), [true; 4]);
}

#[test]
fn keys_are_known_after_a_restart() {
    let origin = marked();
    let before = front(&origin, "");
    before.get("/a.red.html");
    before.get("/b.blue.html");
    let root = before.stop();
    let setup = Setup { renders: vec![origin.addr()], ..Setup::default() };
    let after = Front::start_in(&setup, root);
    assert_eq!(flush(&after, "POST", "red"), 200);
    assert!(!after.get("/a.red.html").is_hit());
    assert!(after.get("/b.blue.html").is_hit());
}

#[test]
fn a_page_whose_key_is_flushed_while_it_is_rendered_is_not_stored() {
    let (is_held, is_drawing) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let (held, drawing) = (Arc::clone(&is_held), Arc::clone(&is_drawing));
    let origin = OriginServer::start(move |_| {
        drawing.store(true, Ordering::SeqCst);
        let deadline = std::time::Instant::now() + WAIT_TIMEOUT;
        while held.load(Ordering::SeqCst) && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        OriginResponse::html("page").with_header("Surrogate-Key", "red")
    });
    let front = front(&origin, "");
    std::thread::scope(|scope| {
        let visit = scope.spawn(|| front.get("/a.html"));
        while !is_drawing.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        assert_eq!(flush(&front, "POST", "red"), 200);
        is_held.store(false, Ordering::SeqCst);
        assert_eq!(visit.join().unwrap().status, 200);
    });
    assert!(!front.has("a.html"));
    assert!(!front.get("/a.html").is_hit());
    assert!(front.get("/a.html").is_hit());
}

#[test]
fn keys_are_flushed_by_those_who_may_flush() {
    let origin = marked();
    let front = front(&origin, "/allowedClients { /0 { /type \"deny\" /glob \"*\" } }");
    front.get("/a.red.html");
    assert_eq!(flush(&front, "POST", "red"), 403);
    assert_eq!(flush(&front, "PURGE", "red"), 403);
    assert!(front.get("/a.red.html").is_hit());
}

#[test]
fn a_soft_flush_of_a_key_serves_the_old_page_meanwhile() {
    let origin = marked();
    let front = front(&origin, "/x-flushMode \"soft\"");
    front.get("/a.red.html");
    assert_eq!(flush(&front, "POST", "red"), 200);
    assert_eq!(front.get("/a.red.html").body, "version 0");
    front.wait_for("fetches", 0);
    assert_eq!(front.get("/a.red.html").body, "version 1");
}
