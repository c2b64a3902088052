//! When a file is out of date, and who waits for the new one (`FR`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use tympan_testkit::origin_server::{
    OriginGate, OriginResponse, OriginServer, ResponseDelivery, refusing_addr,
};

use crate::front::{Front, Setup, front};

/// Numbers its answers.
fn counting() -> OriginServer {
    let count = AtomicUsize::new(0);
    OriginServer::start(move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        OriginResponse::html(format!("version {number}"))
    })
}

#[test]
fn fr86_a_flush_makes_what_invalidate_allows_stale() {
    let origin = counting();
    let front = front(&origin, "");
    front.get("/content/a.html");
    front.get("/content/a.png");
    front.flush("Activate", "/content/other", &[]);
    let page = front.get("/content/a.html");
    assert_eq!(page.info(), "caching: stat file is more recent");
    assert_eq!(page.body, "version 3");
    assert!(front.get("/content/a.html").is_hit());
    assert!(front.get("/content/a.png").is_hit());
}

#[test]
fn fr87_the_nearest_stat_file_counts_not_the_newest() {
    let origin = counting();
    let front = front(&origin, "/statfileslevel 3");
    front.get("/content/en/a.html");
    front.get("/content/de/a.html");
    // Touches the levels 0 to 2 on the way to English pages; German pages get a stat file of their own first.
    front.flush("Activate", "/content/de/x", &[]);
    assert!(!front.get("/content/de/a.html").is_hit());
    front.flush("Activate", "/content/en/x", &[]);
    assert!(!front.get("/content/en/a.html").is_hit());
    assert!(front.get("/content/de/a.html").is_hit());
}

#[test]
fn fr88_the_touched_levels() {
    let handle = "/content/dam/brand1/en/us/logo.jpg";
    let all = [
        "",
        "content/",
        "content/dam/",
        "content/dam/brand1/",
        "content/dam/brand1/en/",
        "content/dam/brand1/en/us/",
    ];
    let levels = [
        "/statfileslevel 0",
        "/statfileslevel 1",
        "/statfileslevel 2",
        "/statfileslevel 3",
        "/statfileslevel 4",
        "/statfileslevel 5",
        "/statfileslevel 6",
    ];
    for (level, setting) in levels.into_iter().enumerate() {
        let origin = counting();
        let front = front(&origin, setting);
        front.get(handle);
        front.flush("Activate", handle, &[]);
        let mut expected: Vec<String> =
            all.iter().take(level + 1).map(|folder| format!("{folder}.stat")).collect();
        expected.sort();
        assert_eq!(front.stats(), expected, "level {level}");
    }
}

#[test]
fn fr88_folders_that_do_not_exist_get_no_stat_file() {
    let origin = counting();
    let front = front(&origin, "/statfileslevel 5");
    front.get("/content/dam/a.png");
    front.flush("Activate", "/content/dam/brand/x/y", &[]);
    assert_eq!(front.stats(), [".stat", "content/.stat", "content/dam/.stat"]);
}

#[test]
fn fr88_a_single_stat_file_stands_anywhere() {
    let origin = counting();
    let setup =
        Setup { cache: "/statfile \"STATFILE\"", renders: vec![origin.addr()], ..Setup::default() };
    let root = tempfile::tempdir().unwrap();
    let text = setup.text(root.path()).replace("STATFILE", "/elsewhere/.stat");
    let loaded = crate::front::load(&text);
    let cache = loaded.config.farms[0].cache.as_ref().unwrap();
    let expected = tympan_dispatcher::config::StatFileLayout::Single("/elsewhere/.stat".into());
    assert_eq!(cache.stat_files, expected);
    let text = text.replace("/statfile ", "/statfileslevel 2 /statfile ");
    let loaded = crate::front::load(&text);
    let cache = loaded.config.farms[0].cache.as_ref().unwrap();
    assert_eq!(cache.stat_files, tympan_dispatcher::config::StatFileLayout::Level(2));
}

#[test]
fn fr89_a_lower_level_after_a_restart_sees_the_upper_stat_files() {
    let origin = counting();
    let high = front(&origin, "/statfileslevel 2");
    high.get("/content/en/a.html");
    high.flush("Activate", "/content/en/x", &[]);
    let root = high.stop();
    let low = Setup { renders: vec![origin.addr()], ..Setup::default() };
    let low = Front::start_in(&low, root);
    assert!(!low.get("/content/en/a.html").is_hit());
}

#[test]
fn fr90_grace_holds_from_the_last_touch_on() {
    let origin = counting();
    let front = front(&origin, "/gracePeriod 10");
    front.get("/a.html");
    front.flush("Activate", "/x", &[]);
    front.advance(8);
    assert!(front.get("/a.html").is_hit());
    front.flush("Activate", "/x", &[]);
    front.advance(8);
    assert!(front.get("/a.html").is_hit());
    front.advance(3);
    assert!(!front.get("/a.html").is_hit());
}

#[test]
fn fr91_grace_does_not_protect_what_was_named() {
    let origin = counting();
    let front = front(&origin, "/gracePeriod 10");
    front.get("/a.html");
    front.flush("Activate", "/a", &[]);
    assert_eq!(front.get("/a.html").body, "version 2");
}

#[test]
fn fr92_fr93_a_life_from_the_render_ends_it_and_does_not_prolong_it() {
    let origin = OriginServer::start_constant(
        OriginResponse::html("page").with_header("Cache-Control", "max-age=60"),
    );
    let front = front(&origin, "/enableTTL 1");
    front.get("/a.html");
    assert_eq!(front.files(), ["a.html", "a.html.ttl"]);
    front.advance(59);
    assert!(front.get("/a.html").is_hit());
    front.advance(2);
    assert!(!front.get("/a.html").is_hit());
    assert!(front.get("/a.html").is_hit());
    front.flush("Activate", "/x", &[]);
    assert!(!front.get("/a.html").is_hit());
}

#[test]
fn fr92_without_a_life_there_is_no_ttl_file() {
    let origin = counting();
    let front = front(&origin, "/enableTTL 1");
    front.write("a.html.ttl", "");
    front.get("/a.html");
    assert_eq!(front.files(), ["a.html"]);
}

#[test]
fn fr95_fr96_an_old_page_stands_in_for_a_failing_render() {
    let check = |cache, answer: OriginResponse, expected: (u16, &str)| {
        let status = Arc::new(AtomicU16::new(0));
        let (is_ill, failing) = (Arc::clone(&status), answer.clone());
        let origin = OriginServer::start(move |_| match is_ill.load(Ordering::SeqCst) {
            0 => OriginResponse::html("good"),
            _ => failing.clone(),
        });
        let front = front(&origin, cache);
        front.get("/a.html");
        front.flush("Activate", "/x", &[]);
        status.store(1, Ordering::SeqCst);
        let reply = front.get("/a.html");
        assert_eq!((reply.status, reply.body.as_str()), expected, "{cache} {answer:?}");
        if cache.contains('1') && expected.0 == 200 {
            assert_eq!(reply.header("warning"), Some("111 - \"Revalidation Failed\""));
        }
    };
    let serve_stale = "/serveStaleOnError 1";
    for status in [429, 502, 503, 504] {
        check(serve_stale, OriginResponse::with_status(status).with_body("bad"), (200, "good"));
        check("", OriginResponse::with_status(status).with_body("bad"), (status, "bad"));
    }
    for status in [404, 500] {
        check(serve_stale, OriginResponse::with_status(status).with_body("bad"), (status, "bad"));
    }
    check(
        serve_stale,
        OriginResponse::html("x").with_delivery(ResponseDelivery::Hangup),
        (200, "good"),
    );
}

#[test]
fn fr95_an_old_page_stands_in_when_no_render_lives() {
    let front = Front::start(&Setup {
        cache: "/serveStaleOnError 1",
        renders: vec![refusing_addr()],
        ..Setup::default()
    });
    front.write("a.html", "good");
    front.flush("Activate", "/x", &[]);
    assert_eq!(front.get("/a.html").body, "good");
    assert_eq!(front.get("/b.html").status, 502);
}

/// Asks `count` times at once and returns the bodies, sorted, once `release` has let the render answer.
fn crowd(
    front: &Arc<Front>,
    count: usize,
    arrived: impl Fn(),
    release: &OriginGate,
) -> Vec<String> {
    let visitors: Vec<_> = (0..count)
        .map(|_| {
            let front = Arc::clone(front);
            std::thread::spawn(move || front.get("/a.html").body)
        })
        .collect();
    arrived();
    release.open();
    let mut bodies: Vec<String> =
        visitors.into_iter().map(|visitor| visitor.join().unwrap()).collect();
    bodies.sort();
    bodies
}

#[test]
fn fr97_of_ten_visitors_of_a_stale_page_one_waits() {
    let gate = OriginGate::default();
    gate.open();
    let count = AtomicUsize::new(0);
    let door = gate.clone();
    let origin = OriginServer::start(move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        door.wait_open();
        OriginResponse::html(format!("version {number}"))
    });
    let front = Arc::new(front(&origin, ""));
    front.get("/a.html");
    front.flush("Activate", "/x", &[]);
    gate.close();
    let arrived = || {
        origin.wait_for_requests(2);
        front.wait_for("stale_total", 9);
    };
    let bodies = crowd(&front, 10, arrived, &gate);
    assert_eq!(bodies[..9], ["version 1"; 9]);
    assert_eq!(bodies[9], "version 2");
    assert_eq!(origin.request_count(), 2);
}

#[test]
fn fr98_of_ten_visitors_of_an_absent_page_one_fetches_for_all() {
    let gate = OriginGate::default();
    let door = gate.clone();
    let origin = OriginServer::start(move |_| {
        door.wait_open();
        OriginResponse::html("page").with_header("Set-Cookie", "session=1")
    });
    let front = Arc::new(front(&origin, ""));
    let arrived = || front.wait_for("collapsed_total", 9);
    let bodies = crowd(&front, 10, arrived, &gate);
    assert_eq!(bodies, ["page"; 10]);
    assert_eq!(origin.request_count(), 1);
}

#[test]
fn fr98_a_page_for_one_visitor_is_fetched_by_each() {
    let gate = OriginGate::default();
    let (door, count) = (gate.clone(), AtomicUsize::new(0));
    let origin = OriginServer::start(move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        door.wait_open();
        OriginResponse::html(format!("own {number}")).with_header("Cache-Control", "private")
    });
    let front = Arc::new(front(&origin, ""));
    let arrived = || front.wait_for("collapsed_total", 4);
    let bodies = crowd(&front, 5, arrived, &gate);
    assert_eq!(bodies, ["own 1", "own 2", "own 3", "own 4", "own 5"]);
}

#[test]
fn of_visitors_who_wait_long_one_asks_the_render_for_itself() {
    let gate = OriginGate::default();
    let (door, count) = (gate.clone(), AtomicUsize::new(0));
    let origin = OriginServer::start(move |_| {
        if count.fetch_add(1, Ordering::SeqCst) == 0 {
            door.wait_open();
        }
        OriginResponse::html("page")
    });
    let front = Arc::new(front(&origin, "/x-collapseWait 1"));
    // When the second request comes, the others have waited as long.
    let arrived = || origin.wait_for_requests(2);
    let bodies = crowd(&front, 50, arrived, &gate);
    assert_eq!(bodies, ["page"; 50]);
    assert!(origin.request_count() < 10, "{} requests", origin.request_count());
}

#[test]
fn whoever_comes_after_a_flush_gets_nothing_from_before_it() {
    let gates = [OriginGate::default(), OriginGate::default(), OriginGate::default()];
    let (doors, count) = (gates.clone(), AtomicUsize::new(0));
    let origin = OriginServer::start(move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        doors[number].wait_open();
        OriginResponse::html(format!("version {}", number + 1))
    });
    let front = Arc::new(front(&origin, ""));
    let visit = || {
        let front = Arc::clone(&front);
        std::thread::spawn(move || front.get("/a.html").body)
    };
    let first = visit();
    origin.wait_for_requests(1);
    front.flush("Activate", "/a", &[]);
    let second = visit();
    origin.wait_for_requests(2);
    // Two fetches are enough, so the third visitor has to wait for the end of one.
    front.flush("Activate", "/a", &[]);
    let third = visit();
    front.wait_for("collapsed_total", 1);
    gates[1].open();
    assert_eq!(second.join().unwrap(), "version 2");
    gates[2].open();
    assert_eq!(third.join().unwrap(), "version 3");
    gates[0].open();
    assert_eq!(first.join().unwrap(), "version 1");
    assert_eq!(front.get("/a.html").body, "version 3");
    assert_eq!(origin.request_count(), 3);
}

#[test]
fn a_fetch_goes_on_when_its_visitor_leaves() {
    use std::io::Write;
    let gate = OriginGate::default();
    let door = gate.clone();
    let origin = OriginServer::start(move |_| {
        door.wait_open();
        OriginResponse::html("page")
    });
    let front = front(&origin, "");
    let mut visitor = std::net::TcpStream::connect(front.addr).unwrap();
    visitor.write_all(b"GET /a.html HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    origin.wait_for_requests(1);
    drop(visitor);
    gate.open();
    front.wait_for("stored_total", 1);
    assert!(front.get("/a.html").is_hit());
    assert_eq!(origin.request_count(), 1);
}

/// Flushes while a page is being fetched and returns what the two visitors and the next one got.
fn flush_during_fetch(handle: &str) -> (Vec<String>, usize) {
    let gate = OriginGate::default();
    let (door, count) = (gate.clone(), AtomicUsize::new(0));
    let origin = OriginServer::start(move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        if number == 1 {
            door.wait_open();
        }
        OriginResponse::html(format!("version {number}"))
    });
    let front = Arc::new(front(&origin, ""));
    let early = Arc::clone(&front);
    let early = std::thread::spawn(move || early.get("/content/a.html").body);
    origin.wait_for_requests(1);
    assert_eq!(front.flush("Activate", handle, &[]).status, 200);
    gate.open();
    let first = early.join().unwrap();
    front.wait_for("fetches", 0);
    let later = [front.get("/content/a.html"), front.get("/content/a.html")];
    assert!(later[1].is_hit());
    let bodies = vec![first, later[0].body.clone(), later[1].body.clone()];
    (bodies, origin.request_count())
}

#[test]
fn fr99_a_page_that_was_fetched_before_a_flush_counts_as_older() {
    for handle in ["/content/a", "/content/other"] {
        let (bodies, requests) = flush_during_fetch(handle);
        assert_eq!(bodies, ["version 1", "version 2", "version 2"], "{handle}");
        assert_eq!(requests, 2, "{handle}");
    }
}

#[test]
fn fr99_whoever_comes_after_the_flush_does_not_join_the_fetch_before_it() {
    let gate = OriginGate::default();
    let (door, count) = (gate.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&count);
    let origin = OriginServer::start(move |_| {
        let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
        if number == 1 {
            door.wait_open();
        }
        OriginResponse::html(format!("version {number}"))
    });
    let front = Arc::new(front(&origin, ""));
    let early = Arc::clone(&front);
    let early = std::thread::spawn(move || early.get("/a.html").body);
    // The origin notes a request before it counts it, and the next one must not overtake this one in between.
    while count.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    front.flush("Activate", "/a", &[]);
    assert_eq!(front.get("/a.html").body, "version 2");
    gate.open();
    assert_eq!(early.join().unwrap(), "version 1");
    front.wait_for("fetches", 0);
    assert_eq!(front.get("/a.html").body, "version 2");
}

#[test]
fn fr100_unfinished_files_are_neither_served_nor_stored() {
    let origin = counting();
    let first = front(&origin, "");
    first.get("/a.html");
    first.write(".tympan-tmp/999999999-1", "half a pa");
    first.write(".tympan-tmp/999999999-2/inner.html", "half a pa");
    assert_eq!(first.get("/.tympan-tmp/999999999-1").status, 404);
    let root = first.stop();
    let second = Front::start_in(&Setup { renders: vec![origin.addr()], ..Setup::default() }, root);
    assert_eq!(second.files(), ["a.html"]);
    assert!(second.get("/a.html").is_hit());
}

#[test]
fn fr100_a_body_without_its_own_headers_is_fetched_again() {
    let origin =
        OriginServer::start_constant(OriginResponse::html("page").with_header("X-Kept", "1"));
    let front = front(&origin, "/headers { \"X-Kept\" }");
    front.get("/a.html");
    // As after a crash between the two renames.
    let old = front.read("a.html.h").replace("tympan-headers 1 1", "tympan-headers 1 2");
    front.write("a.html.h", &old);
    assert_eq!(front.get("/a.html").info(), "caching");
    assert!(front.get("/a.html").is_hit());
}

#[test]
fn a_page_that_is_gone_takes_its_file_along() {
    let count = AtomicUsize::new(0);
    let origin = OriginServer::start(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 => OriginResponse::html("page"),
        _ => OriginResponse::with_status(404),
    });
    let front = front(&origin, "");
    front.get("/a.html");
    front.flush("Activate", "/x", &[]);
    assert_eq!(front.get("/a.html").status, 404);
    assert!(!front.has("a.html"));
}

#[test]
fn a_flush_of_one_tree_leaves_its_siblings_fresh_from_the_first_time_on() {
    let origin = counting();
    let front = front(&origin, "/statfileslevel 2");
    for page in ["/content/a/x.html", "/content/b/y.html", "/content/b/c/z.html"] {
        front.get(page);
    }
    assert_eq!(front.stats(), ["content/.stat", "content/a/.stat", "content/b/.stat"]);
    front.advance(10);
    front.flush("Activate", "/content/a/other", &[]);
    assert!(!front.get("/content/a/x.html").is_hit());
    assert!(front.get("/content/b/y.html").is_hit());
    assert!(front.get("/content/b/c/z.html").is_hit());
    front.advance(10);
    // A folder that gets its first page later counts from the flush above it.
    front.write("content/d/old.html", "old");
    std::fs::File::open(front.file("content/d/old.html"))
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH)
        .unwrap();
    front.get("/content/d/new.html");
    assert!(front.has("content/d/.stat"));
    assert!(!front.get("/content/d/old.html").is_hit());
    assert!(front.get("/content/d/new.html").is_hit());
}
