//! Errors that are remembered for a while (`/x-negativeTTL`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tympan_testkit::origin_server::{OriginGate, OriginResponse, OriginServer, ResponseDelivery};

use crate::front::{Front, Setup, front};

const SHORT: &str = "/x-negativeTTL { /404 \"10\" /410 \"10\" /503 \"2\" }";

/// Misses its page until it is told to have it.
fn missing() -> (OriginServer, Arc<AtomicBool>) {
    let has_page = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&has_page);
    let origin = OriginServer::start(move |_| match told.load(Ordering::SeqCst) {
        true => OriginResponse::html("page"),
        false => OriginResponse::with_status(404)
            .with_body("not here")
            .with_header("Content-Type", "text/plain")
            .with_header("Set-Cookie", "visitor=1")
            .with_header("X-Kept", "1"),
    });
    (origin, has_page)
}

#[test]
fn a_missing_page_is_asked_for_once_in_its_time() {
    let (origin, _) = missing();
    let front = front(&origin, "/x-negativeTTL { /404 10 } /headers { \"X-Kept\" }");
    let first = front.get("/a.html");
    assert_eq!((first.status, first.header("set-cookie")), (404, Some("visitor=1")));
    front.advance(10);
    let later = front.get("/a.html");
    assert_eq!((later.status, later.body.as_str()), (404, "not here"));
    assert_eq!(later.info(), "negative answer cached");
    let told = ["set-cookie", "content-type", "x-kept", "age"].map(|name| later.header(name));
    assert_eq!(told, [None, Some("text/plain"), Some("1"), Some("10")]);
    let head = front.send("HEAD", "/a.html", &[], "");
    assert_eq!((head.status, head.body.as_str()), (404, ""));
    assert_eq!(head.header("content-length"), Some("8"));
    assert_eq!(origin.request_count(), 1);
    assert_eq!(front.metric("negative_hits_total"), 2);
    assert_eq!(front.files(), [""; 0]);
    front.advance(1);
    assert_eq!(front.get("/a.html").status, 404);
    assert_eq!(origin.request_count(), 2);
    // Its neighbor is another page, and a parameter that counts makes none that is kept.
    front.get("/b.html");
    front.get("/a.html?x=1");
    front.get("/a.html?x=1");
    assert_eq!(origin.request_count(), 5);
}

#[test]
fn every_flush_ends_what_is_remembered() {
    let keys = |front: &Front| front.send("PURGE", "/x.html", &[("Surrogate-Key", "k")], "");
    type Act = fn(&Front);
    let acts: [(&str, Act); 7] = [
        ("names it", |front| drop(front.flush("Activate", "/content/a", &[]))),
        ("names another", |front| drop(front.flush("Activate", "/content/b", &[]))),
        ("names a picture", |front| drop(front.flush("Delete", "/content/dam/x.png", &[]))),
        ("re-fetches", |front| drop(front.flush("Activate", "/content/a", &["/content/b.html"]))),
        ("purges", |front| drop(front.send("PURGE", "/content/a.html", &[], ""))),
        ("touches", |front| {
            front.advance(1);
            front.write(".stat", "");
            let stat = std::fs::File::options().write(true).open(front.file(".stat")).unwrap();
            let later = std::time::SystemTime::now() + std::time::Duration::from_secs(2);
            stat.set_modified(later).unwrap();
        }),
        ("puts a file", |front| front.write("content/a.png", "page")),
    ];
    for (name, act) in acts {
        let (origin, has_page) = missing();
        let front = front(&origin, SHORT);
        assert_eq!(front.get("/content/a.png").status, 404);
        assert_eq!(front.get("/content/a.png").status, 404);
        has_page.store(true, Ordering::SeqCst);
        act(&front);
        assert_eq!(front.get("/content/a.png").body, "page", "{name}");
    }
    let (origin, has_page) = missing();
    let front = front(&origin, SHORT);
    front.get("/content/a.png");
    has_page.store(true, Ordering::SeqCst);
    keys(&front);
    assert_eq!(front.get("/content/a.png").body, "page");
}

#[test]
fn an_error_that_a_flush_met_on_its_way_is_not_remembered() {
    for handle in ["/content/a", "/content/b"] {
        let (gate, has_page) = (OriginGate::default(), Arc::new(AtomicBool::new(false)));
        let (door, told) = (gate.clone(), Arc::clone(&has_page));
        let origin = OriginServer::start(move |_| {
            if told.load(Ordering::SeqCst) {
                return OriginResponse::html("page");
            }
            door.wait_open();
            OriginResponse::with_status(404)
        });
        let front = Arc::new(front(&origin, SHORT));
        let early = Arc::clone(&front);
        let early = std::thread::spawn(move || early.get("/content/a.html").status);
        origin.wait_for_requests(1);
        assert_eq!(front.flush("Activate", handle, &[]).status, 200);
        has_page.store(true, Ordering::SeqCst);
        gate.open();
        assert_eq!(early.join().unwrap(), 404);
        front.wait_for("fetches", 0);
        assert_eq!(front.get("/content/a.html").body, "page", "{handle}");
    }
}

#[test]
fn a_crowd_at_a_missing_page_reaches_the_render_once() {
    let gate = OriginGate::default();
    let door = gate.clone();
    let origin = OriginServer::start(move |_| {
        door.wait_open();
        OriginResponse::with_status(404).with_body("not here")
    });
    let front = Arc::new(front(&origin, SHORT));
    let visitors: Vec<_> = (0..10)
        .map(|_| {
            let front = Arc::clone(&front);
            std::thread::spawn(move || front.get("/a.html"))
        })
        .collect();
    front.wait_for("collapsed_total", 9);
    gate.open();
    for visitor in visitors {
        let reply = visitor.join().unwrap();
        assert_eq!((reply.status, reply.body.as_str()), (404, "not here"));
    }
    assert_eq!(origin.request_count(), 1);
}

#[test]
fn not_every_error_is_remembered() {
    let check = |answer: OriginResponse, seconds: u64, expected: usize| {
        let scripted = answer.clone();
        let origin = OriginServer::start(move |_| scripted.clone());
        let front = front(&origin, SHORT);
        let first = front.get("/a.html");
        front.advance(seconds);
        let second = front.get("/a.html");
        assert_eq!(first.status, second.status, "{answer:?}");
        assert_eq!(first.body, second.body, "{answer:?}");
        assert_eq!(origin.request_count(), expected, "{:?}", answer.headers);
    };
    check(OriginResponse::with_status(404), 10, 1);
    check(OriginResponse::with_status(410), 10, 1);
    check(OriginResponse::with_status(503), 2, 1);
    check(OriginResponse::with_status(503), 3, 2);
    check(OriginResponse::with_status(500), 0, 2);
    check(OriginResponse::with_status(403), 0, 2);
    check(OriginResponse::with_status(404).with_header("Cache-Control", "no-store"), 0, 2);
    check(OriginResponse::with_status(404).with_header("Cache-Control", "private"), 0, 2);
    check(OriginResponse::with_status(404).with_header("Dispatcher", "no-cache"), 0, 2);
    check(OriginResponse::with_status(404).with_header("Cache-Control", "max-age=5"), 5, 1);
    check(OriginResponse::with_status(404).with_header("Cache-Control", "max-age=5"), 6, 2);
    check(OriginResponse::with_status(404).with_body("x".repeat(65 * 1024)), 0, 2);
    check(OriginResponse::with_status(404).with_body("x".repeat(63 * 1024)), 0, 1);
    let cut = ResponseDelivery::CutAfter(3);
    let origin = OriginServer::start_constant(
        OriginResponse::with_status(404).with_body("not here").with_delivery(cut),
    );
    let front = front(&origin, SHORT);
    assert_eq!(front.get("/a.html").status, 502);
    front.get("/a.html");
    assert!(origin.request_count() >= 2);
}

#[test]
fn pages_that_are_not_for_everyone_have_no_remembered_errors() {
    let (origin, _) = missing();
    let front = Front::start(&Setup {
        farm: "/auth_checker { /url \"/check\" /filter { /0 { /type \"allow\" /glob \"/secure/*\" } } }",
        cache: SHORT,
        renders: vec![origin.addr()],
        ..Setup::default()
    });
    front.get("/secure/a.html");
    front.get("/secure/a.html");
    assert_eq!(origin.request_count_for("/secure/a.html"), 2);
}

#[test]
fn another_configuration_forgets_what_the_old_one_remembered() {
    let (origin, _) = missing();
    let setup = Setup { cache: SHORT, renders: vec![origin.addr()], ..Setup::default() };
    let front = Front::start(&setup);
    front.get("/a.html");
    let there = OriginServer::start_constant(OriginResponse::html("page"));
    front.reload(&Setup { renders: vec![there.addr()], ..setup });
    assert_eq!(front.get("/a.html").body, "page");
}

#[test]
fn an_error_in_place_of_an_old_copy_takes_that_along() {
    let (origin, has_page) = missing();
    has_page.store(true, Ordering::SeqCst);
    let front = front(&origin, SHORT);
    front.get("/a.html");
    has_page.store(false, Ordering::SeqCst);
    front.flush("Activate", "/x", &[]);
    assert_eq!(front.get("/a.html").status, 404);
    assert!(!front.has("a.html"));
    assert_eq!(front.get("/a.html").info(), "negative answer cached");
    assert_eq!(origin.request_count(), 2);
}

#[test]
fn a_stat_file_of_any_level_ends_what_is_remembered_below_it() {
    for (cache, stat, is_over) in [
        ("/x-negativeTTL { /404 10 } /statfileslevel 0", ".stat", true),
        ("/x-negativeTTL { /404 10 } /statfileslevel 2", "content/en/.stat", true),
        ("/x-negativeTTL { /404 10 } /statfileslevel 2", "content/.stat", true),
        ("/x-negativeTTL { /404 10 } /statfileslevel 2", ".stat", true),
        ("/x-negativeTTL { /404 10 } /statfileslevel 2", "content/de/.stat", false),
        ("/x-negativeTTL { /404 10 } /statfileslevel 0", "content/.stat", false),
    ] {
        let (origin, _) = missing();
        let front = front(&origin, cache);
        front.get("/content/en/a.html");
        front.write(stat, "");
        let file = std::fs::File::options().write(true).open(front.file(stat)).unwrap();
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(2);
        file.set_modified(later).unwrap();
        front.get("/content/en/a.html");
        assert_eq!(origin.request_count(), 1 + usize::from(is_over), "{cache} {stat}");
    }
}
