//! Numbered flushes: a lost one makes pages stale, one that comes twice changes nothing, a publisher that went back in
//! time is noticed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tympan_testkit::condition_wait::wait_until;
use tympan_testkit::origin_server::{OriginGate, OriginResponse, OriginServer};

use crate::front::{Front, Setup, front};

fn counting() -> OriginServer {
    let count = AtomicUsize::new(0);
    OriginServer::start(move |_| {
        OriginResponse::html(format!("version {}", count.fetch_add(1, Ordering::SeqCst) + 1))
    })
}

/// Sends a flush that concerns no page, as the `count`-th of a run.
fn flush(front: &Front, run: &str, count: u64, sequence: u64) {
    let order = format!("p/flush {run} {count}");
    let sequence = sequence.to_string();
    let headers = [
        ("CQ-Action", "Activate"),
        ("CQ-Handle", "/content/none"),
        ("CQ-Action-Scope", "ResourceOnly"),
        ("X-Tympan-Seq", sequence.as_str()),
        ("X-Tympan-Order", order.as_str()),
    ];
    assert_eq!(front.send("POST", "/dispatcher/invalidate.cache", &headers, "").status, 200);
}

fn orders(front: &Front) -> String {
    let text = front.dispatcher.prometheus_metrics();
    let counts = text.lines().filter_map(|line| {
        let rest = line.strip_prefix("tympan_dispatcher_flush_order_total{")?;
        let (_, order) = rest.split_once("order=\"")?;
        let (name, count) = order.split_once("\"} ")?;
        (count != "0").then(|| format!("{name} {count}"))
    });
    counts.collect::<Vec<_>>().join(", ")
}

/// Puts a page under a `.stat` file of its own into the cache.
fn prepared(front: &Front) -> &'static str {
    const PAGE: &str = "/content/site/a.html";
    front.get(PAGE);
    front.flush("Activate", "/content/site/none", &[]);
    front.advance(1);
    front.get(PAGE);
    front.advance(1);
    assert!(front.get(PAGE).is_hit());
    assert!(front.has("content/site/.stat"));
    PAGE
}

#[test]
fn a_lost_flush_makes_every_page_stale_once() {
    let origin = counting();
    let front = front(&origin, "/statfileslevel 3");
    let page = prepared(&front);
    let is_hit = |front: &Front| {
        front.advance(1);
        let is_hit = front.get(page).is_hit();
        front.advance(1);
        is_hit
    };
    flush(&front, "a", 1, 10);
    flush(&front, "a", 2, 12);
    assert!(is_hit(&front), "flushes in order concern what they name");
    flush(&front, "a", 2, 12);
    assert!(is_hit(&front), "one that comes twice changes nothing");
    flush(&front, "a", 5, 20);
    assert!(!is_hit(&front), "two are missing");
    assert!(is_hit(&front), "fetched anew, it is fresh");
    flush(&front, "a", 4, 18);
    flush(&front, "a", 6, 22);
    assert!(is_hit(&front), "a late one is no loss");
    assert_eq!(orders(&front), "first 1, next 2, repeated 1, late 1, gap 1");
    // Pages that do not obey `.stat` files are concerned by what names them alone.
    assert_eq!(front.read(".tympan-flushes").lines().nth(1), Some("p/flush 22 a 6"));
}

#[test]
fn a_publisher_that_was_restored_is_noticed() {
    let origin = counting();
    let front = front(&origin, "/statfileslevel 3");
    let page = prepared(&front);
    flush(&front, "a", 1, 100);
    flush(&front, "b", 1, 101);
    front.advance(1);
    assert!(front.get(page).is_hit(), "a restart is no loss");
    flush(&front, "c", 1, 70);
    front.advance(1);
    assert!(!front.get(page).is_hit(), "what was published since is gone");
    flush(&front, "c", 2, 71);
    assert_eq!(orders(&front), "first 1, next 1, restarted 1, restored 1");
}

#[test]
fn what_was_heard_outlives_a_restart_and_belongs_to_the_files() {
    let origin = counting();
    let setup =
        Setup { cache: "/statfileslevel 3", renders: vec![origin.addr()], ..Setup::default() };
    let first = Front::start(&setup);
    let page = prepared(&first);
    flush(&first, "a", 1, 1);
    flush(&first, "a", 2, 2);
    let second = Front::start_in(&setup, first.stop());
    second.advance(10);
    flush(&second, "a", 3, 3);
    second.advance(1);
    assert!(second.get(page).is_hit());
    // Another folder takes its place, as from a backup: it has missed what came since.
    let numbers = second.read(".tympan-flushes").replace("a 3", "a 1");
    std::fs::write(second.file(".tympan-flushes"), numbers).unwrap();
    let third = Front::start_in(&setup, second.stop());
    third.advance(20);
    flush(&third, "a", 4, 4);
    third.advance(1);
    assert!(!third.get(page).is_hit());
    // Without the file nobody knows.
    std::fs::write(third.file(".tympan-flushes"), "broken").unwrap();
    let fourth = Front::start_in(&setup, third.stop());
    fourth.advance(40);
    flush(&fourth, "a", 5, 5);
    assert_eq!(orders(&fourth), "first_seen 1");
    flush(&fourth, "a", 6, 6);
    assert_eq!(orders(&fourth), "next 1, first_seen 1");
}

#[test]
fn the_numbers_are_nobodys_to_read_and_survive_a_flush_of_everything() {
    let origin = counting();
    let front = front(&origin, "");
    flush(&front, "a", 1, 1);
    assert!(front.has(".tympan-flushes"));
    assert_eq!(front.get("/.tympan-flushes").status, 404);
    assert_eq!(front.flush("Delete", "/", &[]).status, 200);
    assert!(front.has(".tympan-flushes"));
}

#[test]
fn a_window_does_not_hold_back_what_was_missed() {
    let origin = counting();
    let front = front(&origin, "/statfileslevel 3 /x-flushWindow 1000000");
    front.get("/content/a.html");
    flush(&front, "a", 1, 1);
    front.advance(1);
    assert!(front.get("/content/a.html").is_hit());
    flush(&front, "a", 3, 3);
    front.advance(1);
    assert!(!front.get("/content/a.html").is_hit());
}

#[test]
fn pages_that_wait_for_a_late_render_hold_nobody_up() {
    let has_caught_up = Arc::new(AtomicBool::new(false));
    let reached = Arc::clone(&has_caught_up);
    let origin = OriginServer::start(move |seen| {
        let is_late = seen.target.contains("late") && !reached.load(Ordering::SeqCst);
        OriginResponse::html("page").with_header("X-Tympan-Seq", if is_late { "6" } else { "7" })
    });
    // One page at a time is fetched again.
    let front = front(&origin, "");
    let late: Vec<String> = (0..5).map(|number| format!("/content/late{number}.html")).collect();
    let pages: Vec<&str> = late.iter().map(String::as_str).chain(["/content/other.html"]).collect();
    let headers = [
        ("CQ-Action", "Activate"),
        ("CQ-Handle", "/content/none"),
        ("Content-Type", "text/plain"),
        ("X-Tympan-Seq", "7"),
    ];
    let body = pages.join("\n");
    assert_eq!(front.send("POST", "/dispatcher/invalidate.cache", &headers, &body).status, 200);
    front.wait_for("refetches_total", 1);
    assert!(front.has("content/other.html"));
    assert_eq!(front.metric("refetch_failures_total"), 0, "the others are not given up");
    assert!(late.iter().all(|page| !front.has(&page[1..])));
    has_caught_up.store(true, Ordering::SeqCst);
    front.wait_for("refetches_total", 6);
    assert!(late.iter().all(|page| front.has(&page[1..])));
    assert_eq!((front.metric("refetch_failures_total"), front.metric("refetch_queue")), (0, 0));
}

#[test]
fn a_page_that_waits_for_a_late_render_takes_the_number_of_the_newest_flush() {
    let sequence = Arc::new(AtomicUsize::new(6));
    let reached = Arc::clone(&sequence);
    let origin = OriginServer::start(move |_| {
        let reached = reached.load(Ordering::SeqCst).to_string();
        OriginResponse::html(format!("version {reached}")).with_header("X-Tympan-Seq", &reached)
    });
    let front = front(&origin, "");
    let page = "/content/a.html";
    let flush = |sequence: &str| {
        let headers = [
            ("CQ-Action", "Activate"),
            ("CQ-Handle", "/content/none"),
            ("Content-Type", "text/plain"),
            ("X-Tympan-Seq", sequence),
        ];
        assert_eq!(front.send("POST", "/dispatcher/invalidate.cache", &headers, page).status, 200);
    };
    flush("7");
    origin.wait_for_requests(1);
    flush("9");
    sequence.store(8, Ordering::SeqCst);
    let asked = origin.request_count();
    origin.wait_for_requests(asked + 2);
    assert!(!front.has("content/a.html"), "8 is still too old");
    sequence.store(9, Ordering::SeqCst);
    wait_until("the page is fetched again", || front.has("content/a.html"));
    assert_eq!(front.read("content/a.html"), "version 9");
}

/// Asks for a page to be fetched again once its render has reached a number.
fn refetch(front: &Front, page: &str, sequence: &str) {
    let headers = [
        ("CQ-Action", "Activate"),
        ("CQ-Handle", "/content/none"),
        ("Content-Type", "text/plain"),
        ("X-Tympan-Seq", sequence),
    ];
    assert_eq!(front.send("POST", "/dispatcher/invalidate.cache", &headers, page).status, 200);
}

#[test]
fn visitors_of_a_new_page_get_it_while_its_render_is_late() {
    let (gate, sequence) = (OriginGate::default(), Arc::new(AtomicUsize::new(6)));
    let (door, reached) = (gate.clone(), Arc::clone(&sequence));
    let origin = OriginServer::start(move |_| {
        door.wait_open();
        let reached = reached.load(Ordering::SeqCst).to_string();
        OriginResponse::html(format!("version {reached}")).with_header("X-Tympan-Seq", &reached)
    });
    let front = Arc::new(front(&origin, ""));
    refetch(&front, "/content/a.html", "7");
    origin.wait_for_requests(1);
    let visitors: Vec<_> = (0..5)
        .map(|_| {
            let front = Arc::clone(&front);
            std::thread::spawn(move || front.get("/content/a.html"))
        })
        .collect();
    front.wait_for("collapsed_total", 5);
    gate.open();
    for visitor in visitors {
        let reply = visitor.join().unwrap();
        assert_eq!((reply.status, reply.body.as_str()), (200, "version 6"));
    }
    sequence.store(7, Ordering::SeqCst);
    front.wait_for("refetches_total", 1);
    assert_eq!(front.read("content/a.html"), "version 7");
}

#[test]
fn a_visitor_s_page_of_a_late_render_is_not_what_was_to_be_fetched_again() {
    let (gate, sequence) = (OriginGate::default(), Arc::new(AtomicUsize::new(6)));
    let (door, reached) = (gate.clone(), Arc::clone(&sequence));
    let origin = OriginServer::start(move |seen| {
        if seen.header("cookie").is_some() {
            door.wait_open();
        }
        let reached = reached.load(Ordering::SeqCst).to_string();
        OriginResponse::html(format!("version {reached}")).with_header("X-Tympan-Seq", &reached)
    });
    let front = Arc::new(front(&origin, ""));
    refetch(&front, "/content/a.html", "7");
    origin.wait_for_requests(1);
    let asking = Arc::clone(&front);
    let visitor = std::thread::spawn(move || {
        asking.send("GET", "/content/a.html", &[("Cookie", "slow=1")], "").body
    });
    wait_until("the visitor's fetch comes", || {
        origin.requests().iter().any(|seen| seen.header("cookie").is_some())
    });
    // The page is tried again, and waits for the visitor's fetch.
    front.wait_for("refetch_queue", 0);
    gate.open();
    assert_eq!(visitor.join().unwrap(), "version 6");
    sequence.store(7, Ordering::SeqCst);
    front.wait_for("refetches_total", 1);
    assert_eq!(front.read("content/a.html"), "version 7");
}

#[test]
fn a_page_that_is_flushed_before_each_visit_gets_new_once_in_each_window() {
    let origin = counting();
    let front = front(&origin, "/statfileslevel 3 /x-flushWindow 10");
    front.get("/content/a.html");
    for _ in 0..12 {
        front.advance(5);
        front.flush("Activate", "/content/none", &[]);
        front.get("/content/a.html");
    }
    // Sixty seconds: the first visit, and one for each of the windows that ended.
    assert!((6..=8).contains(&origin.request_count()), "{} renders", origin.request_count());
}

#[test]
fn a_stat_file_that_is_new_below_a_window_does_not_hide_the_flush_before() {
    for (page, handle) in [
        ("/content/en/a.html", "/content/en/none"),
        ("/content/en/us/a.html", "/content/en/us/none"),
        ("/content/en/us/a.html", "/content/en/none"),
    ] {
        let origin = counting();
        let front = front(&origin, "/statfileslevel 3 /x-flushWindow 10");
        front.get(page);
        // As versions left it that gave folders no stat files of their own.
        for stat in front.stats() {
            std::fs::remove_file(front.file(&stat)).unwrap();
        }
        // Touches the stat files above the page's folder only.
        front.flush("Activate", "/content/none", &[]);
        // That window is over, and the next one begins with a stat file nearer to the page.
        front.advance(10);
        front.flush("Activate", handle, &[]);
        assert!(!front.get(page).is_hit(), "{page} after {handle}");
        // Another flush of the same window says nothing new.
        front.flush("Activate", handle, &[]);
        assert!(front.get(page).is_hit(), "{page} after {handle}");
    }
}
