//! Dispatchers that tell each other what was flushed (`/x-passFlushes`).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use rustix::fs::{Mode, OFlags, mkdirat, openat};
use tempfile::TempDir;
use tympan_dispatcher::Dispatcher;
use tympan_testkit::condition_wait::wait_until;
use tympan_testkit::origin_server::{OriginResponse, OriginServer, WAIT_TIMEOUT, exchange_bytes};
use tympan_web::listen::{PortReuse, bind_listener};

use crate::front::{Front, Reply, Setup};

/// Numbers its answers; each carries the key of its folder.
fn counting() -> OriginServer {
    let count = AtomicUsize::new(0);
    OriginServer::start(move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        OriginResponse::html(format!("version {number}")).with_header("Surrogate-Key", "teaser")
    })
}

/// Dispatchers that know each other; each is in its own list as well, as when all have one configuration.
struct Mesh {
    origin: OriginServer,
    addresses: Vec<SocketAddr>,
    fronts: Vec<Option<Front>>,
    cache: &'static str,
}

impl Mesh {
    fn start(count: usize, cache: &'static str) -> Self {
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        let listeners: Vec<_> =
            (0..count).map(|_| bind_listener(any, PortReuse::Exclusive).unwrap()).collect();
        let addresses = listeners.iter().map(|one| one.local_addr().unwrap()).collect();
        let mut mesh = Self { origin: counting(), addresses, fronts: Vec::new(), cache };
        let setup = mesh.setup();
        for listener in listeners {
            let front = Front::start_on(&setup, tempfile::tempdir().unwrap(), listener);
            mesh.fronts.push(Some(front));
        }
        for number in 0..count {
            mesh.wait_for_contact(number, count - 1);
        }
        mesh
    }

    fn setup(&self) -> Setup {
        let siblings = self.addresses.iter().enumerate().map(|(index, addr)| {
            format!("/d{index} {{ /hostname \"127.0.0.1\" /port \"{}\" }}\n", addr.port())
        });
        let siblings: String = siblings.collect();
        let farm = format!("/x-passFlushes \"1\" /x-siblings {{ {siblings} }}");
        Setup {
            // A test's strings live as long as it does.
            farm: Box::leak(farm.into_boxed_str()),
            cache: self.cache,
            renders: vec![self.origin.addr()],
            ..Setup::default()
        }
    }

    fn at(&self, index: usize) -> &Front {
        self.fronts[index].as_ref().unwrap()
    }

    fn running(&self) -> impl Iterator<Item = &Front> {
        self.fronts.iter().flatten()
    }

    fn stop(&mut self, index: usize) -> TempDir {
        self.fronts[index].take().unwrap().stop()
    }

    /// Starts one again where it was.
    fn restart(&mut self, index: usize, root: TempDir) {
        let listener = bind_listener(self.addresses[index], PortReuse::Exclusive).unwrap();
        self.fronts[index] = Some(Front::start_on(&self.setup(), root, listener));
    }

    /// Waits until a dispatcher reaches so many siblings.
    fn wait_for_contact(&self, index: usize, count: usize) {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while self.siblings(index, "up").iter().filter(|value| **value == 1).count() != count {
            assert!(
                Instant::now() < deadline,
                "{}",
                self.at(index).dispatcher.prometheus_metrics()
            );
            std::thread::yield_now();
        }
    }

    /// The values of a gauge of siblings.
    fn siblings(&self, index: usize, gauge: &str) -> Vec<u64> {
        let text = self.at(index).dispatcher.prometheus_metrics();
        let name = format!("tympan_dispatcher_sibling_{gauge}{{");
        let lines = text.lines().filter(|line| line.starts_with(&name));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
    }

    /// Puts pages into all caches that run.
    fn fill(&self, pages: &[&str]) {
        for front in self.running() {
            pages.iter().for_each(|page| drop(front.get(page)));
            assert!(pages.iter().all(|page| front.get(page).is_hit()), "{pages:?}");
        }
    }

    /// Lets time pass for all, so that the order of what follows stands in the times of files.
    fn advance(&self) {
        self.running().for_each(|front| front.advance(1));
    }
}

const PAGE: &str = "/content/a.html";
const OTHER: &str = "/content/b.html";
const FILE: &str = "content/a.html";

#[test]
fn what_is_flushed_at_one_is_flushed_at_all() {
    let flushes: [fn(&Front) -> Reply; 4] = [
        |front| front.flush("Activate", "/content/a", &[]),
        |front| front.flush("Delete", "/content", &[]),
        |front| front.send("PURGE", PAGE, &[], ""),
        |front| front.send("PURGE", "/x.html", &[("Surrogate-Key", "teaser")], ""),
    ];
    for (number, flush) in flushes.into_iter().enumerate() {
        let mesh = Mesh::start(3, "");
        mesh.fill(&[PAGE]);
        mesh.advance();
        assert_eq!(flush(mesh.at(number % 3)).status, 200);
        // Siblings in reach have done it when it is answered.
        assert!(mesh.running().all(|front| !front.has(FILE)), "flush {number}");
        mesh.advance();
        assert!(mesh.running().all(|front| front.get(PAGE).body != "version 1"), "flush {number}");
    }
}

#[test]
fn pages_to_fetch_again_are_fetched_again_at_all() {
    let mesh = Mesh::start(3, "/x-flushMode \"soft\"");
    mesh.fill(&[PAGE, OTHER]);
    mesh.advance();
    let before = mesh.origin.request_count_for(PAGE);
    assert_eq!(mesh.at(0).flush("Activate", "/content/none", &[PAGE]).status, 200);
    for front in mesh.running() {
        front.wait_for("refetches_total", 1);
        assert!(front.has(FILE));
    }
    // Each of them draws it, as each was told to.
    assert_eq!(mesh.origin.request_count_for(PAGE), before + 3);
    mesh.advance();
    assert!(mesh.running().all(|front| front.get(PAGE).is_hit()));
}

#[test]
fn nothing_goes_in_a_circle() {
    let mesh = Mesh::start(3, "");
    for number in 0..5 {
        mesh.at(number % 2).flush("Activate", &format!("/content/{number}"), &[]);
    }
    for front in mesh.running() {
        front.wait_for(
            "sibling_flushes_total",
            if front.addr == mesh.addresses[2] {
                5
            } else {
                2 + u64::from(front.addr == mesh.addresses[1])
            },
        );
    }
    // A sender counts a flush once its sibling has answered, which is after the sibling counted it.
    for (front, passed) in mesh.running().zip([6, 4, 0]) {
        front.wait_for("flushes_forwarded_total", passed);
    }
    assert!(
        (0..3).all(|index| mesh.siblings(index, "pending_flushes") == [0, 0]),
        "none is its own sibling"
    );
}

#[test]
fn who_was_away_catches_up() {
    let mut mesh = Mesh::start(3, "");
    mesh.fill(&[PAGE, OTHER]);
    let root = mesh.stop(1);
    mesh.advance();
    mesh.at(0).flush("Activate", "/content/a", &[]);
    mesh.at(2).send("PURGE", OTHER, &[], "");
    mesh.restart(1, root);
    // It asks before it lets anyone in.
    let back = mesh.at(1);
    back.advance(10);
    assert!(!back.has(FILE) || back.get(PAGE).body != "version 1");
    let bodies = [back.get(PAGE).body, back.get(OTHER).body];
    assert!(
        !bodies.contains(&"version 1".to_owned()) && !bodies.contains(&"version 2".to_owned()),
        "{bodies:?}"
    );
    assert_eq!((back.metric("sibling_flushes_total"), back.metric("sibling_resets_total")), (2, 0));
    // And what comes now, it is told.
    mesh.wait_for_contact(0, 2);
    mesh.fill(&[PAGE]);
    mesh.advance();
    mesh.at(0).flush("Activate", "/content/a", &[]);
    assert!(mesh.running().all(|front| !front.has(FILE)));
    assert_eq!(mesh.at(1).metric("sibling_flushes_total"), 3);
}

#[test]
fn what_was_not_passed_on_yet_outlives_a_restart() {
    let mut mesh = Mesh::start(2, "");
    mesh.fill(&[PAGE]);
    let away = mesh.stop(1);
    mesh.at(0).flush("Activate", "/content/a", &[]);
    let told = mesh.stop(0);
    mesh.restart(1, away);
    assert!(mesh.at(1).has(FILE), "nobody could tell");
    mesh.restart(0, told);
    mesh.at(1).wait_for("sibling_flushes_total", 1);
    assert!(!mesh.at(1).has(FILE));
    assert_eq!(mesh.at(1).metric("sibling_resets_total"), 0);
}

#[test]
fn who_missed_too_much_takes_everything_for_out_of_date() {
    let mut mesh = Mesh::start(2, "");
    let image = "/content/dam/a.png";
    mesh.fill(&[PAGE, image]);
    let root = mesh.stop(1);
    let first = mesh.at(0);
    // Several at a time, as each is on the disk before it is answered.
    std::thread::scope(|scope| {
        for begin in 0..11 {
            scope.spawn(move || {
                for number in 0..100 {
                    let page = format!("/{begin}-{number}.png");
                    assert_eq!(first.send("PURGE", &page, &[], "").status, 404);
                }
            });
        }
    });
    mesh.restart(1, root);
    let back = mesh.at(1);
    back.advance(10);
    // The image obeys no stat file.
    for page in [PAGE, image] {
        let reply = back.get(page);
        assert!(!reply.is_hit(), "{page}: {}", reply.info());
        assert!(back.get(page).is_hit(), "{page} was fetched anew");
    }
    assert_eq!(back.metric("sibling_resets_total"), 1);
}

#[test]
fn a_log_that_is_lost_or_restored_makes_everything_out_of_date() {
    for (name, change) in [
        ("restored", (|log, old| std::fs::write(log, old).unwrap()) as fn(&std::path::Path, &str)),
        ("garbage", |log, _| std::fs::write(log, "???").unwrap()),
    ] {
        let mut mesh = Mesh::start(2, "");
        mesh.fill(&[PAGE]);
        mesh.at(0).flush("Activate", "/content/none", &[]);
        let log = |root: &std::path::Path| {
            let mut files = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
            files.find(|file| file.to_str().unwrap().contains(".tympan-passed-")).unwrap()
        };
        let root = mesh.stop(0);
        let old = std::fs::read_to_string(log(root.path())).unwrap();
        mesh.restart(0, root);
        mesh.at(0).flush("Activate", "/content/none", &[]);
        mesh.at(1).wait_for("sibling_flushes_total", 2);
        let root = mesh.stop(0);
        change(&log(root.path()), &old);
        mesh.restart(0, root);
        mesh.at(0).flush("Activate", "/content/none", &[]);
        mesh.at(1).wait_for("sibling_resets_total", 1);
        mesh.at(1).advance(1);
        assert!(!mesh.at(1).get(PAGE).is_hit(), "{name}");
    }
}

#[test]
fn copies_of_a_document_root_tell_themselves_apart() {
    let mut mesh = Mesh::start(2, "");
    mesh.at(0).flush("Activate", "/content/none", &[]);
    let (first, second) = (mesh.stop(0), mesh.stop(1));
    for entry in std::fs::read_dir(first.path()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_str().unwrap().starts_with(".tympan-passed-") {
            std::fs::copy(entry.path(), second.path().join(entry.file_name())).unwrap();
        }
    }
    mesh.restart(0, first);
    mesh.restart(1, second);
    mesh.wait_for_contact(0, 1);
    mesh.wait_for_contact(1, 1);
    for index in 0..2 {
        mesh.fill(&[PAGE]);
        mesh.advance();
        mesh.at(index).flush("Activate", "/content/a", &[]);
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while mesh.running().any(|front| front.has(FILE)) {
            assert!(Instant::now() < deadline, "a flush at {index} does not reach the other");
            std::thread::yield_now();
        }
    }
}

#[test]
fn what_a_publisher_lost_is_doubtful_at_all() {
    let mesh = Mesh::start(2, "/statfileslevel 2");
    mesh.fill(&[PAGE]);
    mesh.advance();
    let flush = |count: u64| {
        let order = format!("p/flush a {count}");
        let headers = [
            ("CQ-Action", "Activate"),
            ("CQ-Handle", "/content/none"),
            ("CQ-Action-Scope", "ResourceOnly"),
            ("X-Tympan-Order", order.as_str()),
        ];
        assert_eq!(
            mesh.at(0).send("POST", "/dispatcher/invalidate.cache", &headers, "").status,
            200
        );
    };
    flush(1);
    mesh.at(1).wait_for("sibling_flushes_total", 1);
    mesh.advance();
    assert!(mesh.at(1).get(PAGE).is_hit());
    flush(3);
    mesh.at(1).wait_for("sibling_flushes_total", 3);
    mesh.advance();
    assert!(!mesh.at(1).get(PAGE).is_hit());
}

/// Sends what a sibling would; `prev` and `next` are numbers of one run, 0 for none.
fn tell(front: &Front, headers: &[(&str, &str)], (prev, next): (u64, u64), page: &str) -> Reply {
    let prev =
        if prev == 0 { "null".to_owned() } else { format!(r#"{{"run":"r","count":{prev}}}"#) };
    let body = format!(
        r#"{{"pass":{{"origin":"o","instance":"i","prev":{prev},"next":{{"run":"r","count":{next}}},"events":[{{"page":"{page}"}}]}}}}"#
    );
    send(front, headers, "1 site", &body)
}

fn send(front: &Front, headers: &[(&str, &str)], mark: &str, body: &str) -> Reply {
    let headers = [headers, &[("X-Tympan-Passed", mark)]].concat();
    front.send("POST", "/dispatcher/invalidate.cache", &headers, body)
}

#[test]
fn messages_that_come_twice_or_in_another_order_change_nothing() {
    let origin = counting();
    let setup = Setup { renders: vec![origin.addr()], ..Setup::default() };
    let front = Front::start(&setup);
    front.get(PAGE);
    assert_eq!(tell(&front, &[], (0, 1), PAGE).status, 200);
    assert!(!front.has(FILE));
    front.get(PAGE);
    let again = tell(&front, &[], (0, 1), PAGE);
    assert_eq!((again.status, again.body.as_str()), (409, r#"{"position":{"run":"r","count":1}}"#));
    // The third before the second.
    assert_eq!(tell(&front, &[], (2, 3), PAGE).status, 409);
    assert!(front.has(FILE));
    assert_eq!(tell(&front, &[], (1, 2), OTHER).status, 200);
    assert_eq!(tell(&front, &[], (1, 2), PAGE).status, 409);
    assert!(front.has(FILE));
    assert_eq!(tell(&front, &[], (2, 3), PAGE).status, 200);
    assert!(!front.has(FILE));
    assert_eq!(front.read(".tympan-heard"), "tympan-heard 1\no r 3\n");
    // Also after a restart.
    let front = Front::start_in(&setup, front.stop());
    front.get(PAGE);
    assert_eq!(tell(&front, &[], (2, 3), PAGE).status, 409);
    assert!(front.has(FILE));
    assert_eq!(front.metric("sibling_flushes_total"), 0);
    // Emptying the cache does not forget it.
    front.flush("Delete", "/", &[]);
    assert_eq!(tell(&front, &[], (0, 1), PAGE).status, 409);
}

#[test]
fn only_who_may_flush_is_heard() {
    let origin = counting();
    let check = |cache: &'static str, headers: &[(&str, &str)], expected: u16| {
        let setup = Setup { cache, renders: vec![origin.addr()], ..Setup::default() };
        let front = Front::start(&setup);
        front.get(PAGE);
        let reply = tell(&front, headers, (0, 1), PAGE);
        assert_eq!(reply.status, expected, "{cache} {headers:?}");
        assert_eq!(front.has(FILE), expected != 200, "{cache} {headers:?}");
        let ask = send(&front, headers, "1 site", r#"{"ask":{"instance":"i","heard":[]}}"#);
        // It passes nothing on, and says so only to those who may ask.
        assert_eq!(ask.status, if expected == 200 { 404 } else { 403 });
        assert_eq!(front.metric("flushes_refused_total"), if expected == 200 { 0 } else { 2 });
    };
    let closed =
        "/allowedClients { /0 { /type \"deny\" /glob \"*\" } } /x-flushToken \"0123456789abcdef\"";
    check("", &[], 200);
    check(closed, &[], 403);
    check(closed, &[("Authorization", "Bearer 0123456789abcdeg")], 403);
    check(closed, &[("Authorization", "Bearer 0123456789abcdef")], 200);
    let open =
        "/allowedClients { /0 { /type \"allow\" /glob \"*\" } } /x-flushToken \"0123456789abcdef\"";
    check(open, &[("Authorization", "Bearer x")], 403);
}

#[test]
fn messages_that_make_no_sense_are_refused() {
    let origin = counting();
    let front = Front::start(&Setup { renders: vec![origin.addr()], ..Setup::default() });
    front.get(PAGE);
    let sound = r#"{"ask":{"instance":"i","heard":[]}}"#;
    for (mark, body, expected) in [
        ("1 site", "", 400),
        ("1 site", "{", 400),
        ("1 site", r#"{"pass":{}}"#, 400),
        (
            "1 site",
            r#"{"pass":{"origin":"o","instance":"i","prev":null,"next":{"run":"r","count":1},"events":[{"page":"/../a"}]}}"#,
            400,
        ),
        (
            "1 site",
            r#"{"pass":{"origin":"o\nx","instance":"i","prev":null,"next":{"run":"r","count":1},"events":["all"]}}"#,
            400,
        ),
        (
            "1 site",
            r#"{"pass":{"origin":"o","instance":"i","prev":null,"next":{"run":"r","count":-1},"events":["all"]}}"#,
            400,
        ),
        ("2 site", sound, 403),
        ("site", sound, 403),
        ("1 other", sound, 403),
        ("1 %ff", sound, 403),
        ("", sound, 403),
    ] {
        assert_eq!(send(&front, &[], mark, body).status, expected, "{mark} {body}");
    }
    let deep = format!("{}{}", r#"{"pass":"#.repeat(1000), "}".repeat(1000));
    assert_eq!(send(&front, &[], "1 site", &deep).status, 400);
    assert_eq!(send(&front, &[], "1 site", &" ".repeat(9 * 1024 * 1024)).status, 413);
    assert!(front.get(PAGE).is_hit());
    assert!(!front.has(".tympan-heard"));
    // Its own files are nobody's pages.
    for name in [".tympan-heard", ".tympan-passed-0123456789abcdef"] {
        assert_eq!(front.get(&format!("/{name}")).status, 404);
    }
}

#[test]
fn a_sibling_that_takes_no_long_messages_takes_everything_for_out_of_date() {
    let origin = counting();
    let taken = Arc::new(Mutex::new(None::<String>));
    let heard = Arc::clone(&taken);
    let sibling = OriginServer::start(move |seen| {
        let body = String::from_utf8_lossy(&seen.body).into_owned();
        if body.len() > 100_000 {
            return OriginResponse::with_status(413);
        }
        let mut heard = heard.lock().unwrap();
        if body.starts_with(r#"{"pass""#) && body.contains(r#""events":[""#) {
            *heard = Some(body);
        }
        of_sibling("{}")
    });
    let front = Front::start(&before(&sibling, &origin));
    let long: Vec<String> = (0..5000).map(|n| format!("/content/none/{n:020}/x")).collect();
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    front.flush("Activate", "/content/a", &long);
    wait_until("the sibling is told to drop everything", || {
        taken.lock().unwrap().as_ref().is_some_and(|body| body.contains(r#""events":["all"]"#))
    });
}

#[test]
fn siblings_that_answer_nonsense_do_no_harm() {
    let origin = counting();
    for answer in [
        OriginResponse::html("x"),
        OriginResponse::with_status(200)
            .with_body("{}")
            .with_header("Content-Type", "application/json"),
        OriginResponse::with_status(508),
        of_sibling("x"),
        of_sibling(
            r#"{"origin":"o","instance":"i","prev":null,"next":{"run":"r","count":1},"events":[{"page":"/../a"}]}"#,
        ),
        OriginResponse { status: 409, ..of_sibling("x") },
        OriginResponse { status: 409, ..of_sibling(r#"{"position":{"run":"never","count":7}}"#) },
        OriginResponse::with_status(500),
    ] {
        let sibling = OriginServer::start_constant(answer.clone());
        let front = Front::start(&before(&sibling, &origin));
        front.get(PAGE);
        assert_eq!(front.flush("Activate", "/content/a", &[]).status, 200, "{answer:?}");
        assert!(!front.has(FILE));
        if answer.headers.iter().all(|(name, _)| name != "X-Tympan-Passed") {
            // Whoever that is has carried nothing out.
            assert_eq!(front.metric("flushes_forwarded_total"), 0, "{answer:?}");
            let text = front.dispatcher.prometheus_metrics();
            let behind =
                "tympan_dispatcher_sibling_pending_flushes{farm=\"site\",sibling=\"o\"} 1\n";
            assert!(text.contains(behind), "{answer:?} {text}");
        }
    }
}

/// What a sibling answers.
fn of_sibling(body: &str) -> OriginResponse {
    OriginResponse::with_status(200).with_body(body).with_header("X-Tympan-Passed", "1")
}

/// A front with a sibling that is none.
fn before(sibling: &OriginServer, origin: &OriginServer) -> Setup {
    let port = sibling.addr().port();
    let farm = format!(
        "/x-passFlushes \"1\" /x-siblings {{ /o {{ /hostname \"127.0.0.1\" /port \"{port}\" }} }}"
    );
    Setup {
        farm: Box::leak(farm.into_boxed_str()),
        renders: vec![origin.addr()],
        ..Setup::default()
    }
}

#[test]
fn a_sibling_that_tells_by_itself_is_asked_on_for_the_rest() {
    let origin = counting();
    let earlier = Front::start(&Setup { renders: vec![origin.addr()], ..Setup::default() });
    earlier.get(PAGE);
    assert!(earlier.get(PAGE).is_hit());
    let listener = bind_listener(([127, 0, 0, 1], 0).into(), PortReuse::Exclusive).unwrap();
    let back = listener.local_addr().unwrap();
    let message = |prev: &str, next: u32, events: &str| {
        format!(
            r#"{{"origin":"o","instance":"i","prev":{prev},"next":{{"run":"r","count":{next}}},"events":[{events}]}}"#
        )
    };
    let asked = AtomicUsize::new(0);
    let sibling = OriginServer::start(move |seen| {
        if !seen.body.starts_with(br#"{"ask""#) {
            return of_sibling("{}");
        }
        match asked.fetch_add(1, Ordering::SeqCst) {
            0 => {
                // What it answers comes by itself before the answer does.
                let first = message("null", 1, r#"{"page":"/content/b.html"}"#);
                let told = format!("{{\"pass\":{first}}}");
                let head =
                    "POST /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\nX-Tympan-Passed: 1 site";
                let request = format!("{head}\r\nContent-Length: {}\r\n\r\n{told}", told.len());
                let reply = exchange_bytes(back, request.as_bytes());
                assert_eq!(Reply::parse(&reply, false).status, 200);
                of_sibling(&first)
            }
            1 => {
                assert!(seen.body.ends_with(br#""heard":[["o",{"run":"r","count":1}]]}}"#));
                let prev = r#"{"run":"r","count":1}"#;
                of_sibling(&message(prev, 2, r#"{"page":"/content/a.html"}"#))
            }
            _ => of_sibling(&message(r#"{"run":"r","count":2}"#, 2, "")),
        }
    });
    let front = Front::start_on(&before(&sibling, &origin), earlier.stop(), listener);
    let reply = front.get(PAGE);
    assert!(!reply.is_hit() && reply.body != "version 1", "{} {}", reply.info(), reply.body);
    assert_eq!(front.metric("sibling_flushes_total"), 2);
    assert_eq!(front.read(".tympan-heard"), "tympan-heard 1\no r 2\n");
}

#[test]
fn who_left_the_cache_takes_no_flush_that_siblings_would_miss() {
    let mut mesh = Mesh::start(2, "");
    mesh.fill(&[PAGE]);
    let away = mesh.stop(1);
    let left = mesh.at(0);
    left.dispatcher.leave_cache();
    let reply = left.flush("Activate", "/content/a", &[]);
    assert_eq!((reply.status, reply.header("connection")), (503, Some("close")));
    assert_eq!(left.send("PURGE", PAGE, &[], "").status, 503);
    assert_eq!(left.send("PURGE", "/x", &[("Surrogate-Key", "teaser")], "").status, 503);
    assert!(left.has(FILE), "it was not carried out either");
    // Who passes nothing on obeys as before: the files are the same.
    let origin = counting();
    let alone = Front::start(&Setup { renders: vec![origin.addr()], ..Setup::default() });
    alone.get(PAGE);
    alone.dispatcher.leave_cache();
    assert_eq!(alone.flush("Activate", "/content/a", &[]).status, 200);
    drop(away);
}

#[test]
fn files_that_cannot_be_listed_are_not_taken_for_out_of_date() {
    let origin = counting();
    let front = Front::start(&Setup { renders: vec![origin.addr()], ..Setup::default() });
    front.get(PAGE);
    // Its path is longer than the system takes.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut folder = rustix::fs::open(front.file(""), flags, Mode::empty()).unwrap();
    let name = "d".repeat(200);
    for _ in 0..30 {
        mkdirat(&folder, &name, Mode::RWXU).unwrap();
        folder = openat(&folder, &name, flags, Mode::empty()).unwrap();
    }
    let all = r#"{"pass":{"origin":"o","instance":"i","prev":null,"next":{"run":"r","count":1},"events":["all"]}}"#;
    assert_eq!(send(&front, &[], "1 site", all).status, 500);
    assert!(!front.has(".tympan-heard"), "it is told again");
    let is_out_of_date = || {
        front.advance(1);
        !front.get(PAGE).is_hit()
    };
    assert!(is_out_of_date() && !is_out_of_date());
    // What was done is not done again each time.
    assert_eq!(send(&front, &[], "1 site", all).status, 500);
    assert!(!is_out_of_date());
    assert_eq!(front.metric("sibling_resets_total"), 1);
    // A message that goes further tells of more.
    let more = all.replace(r#""count":1"#, r#""count":2"#);
    assert_eq!(send(&front, &[], "1 site", &more).status, 500);
    assert!(is_out_of_date() && !is_out_of_date());
    // What could not be listed then is still of that time.
    let image = front.file("content/old.png");
    std::fs::write(&image, "old").unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH;
    std::fs::File::options().write(true).open(&image).unwrap().set_modified(long_ago).unwrap();
    std::fs::remove_dir_all(front.file(&name)).unwrap();
    assert_eq!(send(&front, &[], "1 site", &more).status, 200);
    assert!(front.has(".tympan-heard"));
    assert!(!is_out_of_date());
    assert!(!front.get("/content/old.png").is_hit());
}

#[test]
fn a_farm_does_not_wait_for_the_handlers_of_another_one() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("handler");
    // That of the farm `slow` ends when it is let go.
    let script = format!(
        "#!/bin/sh\ncd {} || exit 1\necho $1 >> told\n\
         case $1 in /slow*) until [ -e go ]; do sleep 0.01; done;; esac\n",
        folder.path().display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let farm = |name: &str| {
        format!(
            "/{name} {{ /virtualhosts {{ \"{name}\" }} /renders {{ /0 {{ /hostname \"127.0.0.1\" }} }}
                /cache {{ /docroot \"{}\" /invalidateHandler \"{}\" /rules {{ /0 {{ /type \"deny\" /glob \"*\" }} }}
                    /allowedClients {{ /0 {{ /type \"allow\" /glob \"127.0.0.1\" }} }} }} }}\n",
            folder.path().join(name).display(),
            program.display()
        )
    };
    let front = Front::start_text(&format!("/farms {{ {} {} }}", farm("slow"), farm("quick")));
    let flush = |name: &str| {
        let handle = format!("/{name}");
        let headers = [("Host", name), ("CQ-Action", "Activate"), ("CQ-Handle", handle.as_str())];
        front.send("POST", "/dispatcher/invalidate.cache", &headers, "").status
    };
    let told = || std::fs::read_to_string(folder.path().join("told")).unwrap_or_default();
    std::thread::scope(|scope| {
        let slow: Vec<_> = (0..9).map(|_| scope.spawn(|| flush("slow"))).collect();
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while told().lines().count() < 8 {
            assert!(Instant::now() < deadline, "{}", told());
            std::thread::yield_now();
        }
        assert_eq!(flush("quick"), 200);
        assert!(slow.iter().all(|slow| !slow.is_finished()), "it waited for the other farm");
        std::fs::write(folder.path().join("go"), "").unwrap();
        assert!(slow.into_iter().all(|slow| slow.join().unwrap() == 200));
    });
    assert_eq!(told().lines().filter(|handle| *handle == "/quick").count(), 1);
}

#[test]
fn who_left_tells_nothing_of_what_a_sibling_heard_of_its_successor() {
    let origin = counting();
    let (leaving, all) = (Arc::new(OnceLock::<Dispatcher>::new()), Arc::new(AtomicUsize::new(0)));
    let (left, told) = (Arc::clone(&leaving), Arc::clone(&all));
    let sibling = OriginServer::start(move |seen| {
        let body = String::from_utf8_lossy(&seen.body);
        if body.contains(r#""events":["all"]"#) {
            told.fetch_add(1, Ordering::SeqCst);
        }
        if !body.contains(r#""events":[{"#) {
            return of_sibling("{}");
        }
        // Another process went on with the log, and was faster.
        left.get().unwrap().leave_cache();
        OriginResponse { status: 409, ..of_sibling(r#"{"position":{"run":"later","count":2}}"#) }
    });
    let front = Front::start(&before(&sibling, &origin));
    leaving.set(front.dispatcher.clone()).unwrap();
    // Answered when the sibling has carried out what it is told, or is told no more.
    assert_eq!(front.flush("Activate", "/content/a", &[]).status, 200);
    assert_eq!(all.load(Ordering::SeqCst), 0);
}

#[test]
fn few_handlers_run_at_once_however_many_flushes_come() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("handler");
    // Each tells how many run, and ends when it is let go.
    let script = format!(
        "#!/bin/sh\ncd {} || exit 1\n: > run.$$\nset -- run.*\necho $# >> told\n\
         until [ -e go ]; do sleep 0.01; done\nrm run.$$\n",
        folder.path().display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let origin = counting();
    let cache = format!("/invalidateHandler \"{}\"", program.display());
    let cache = Box::leak(cache.into_boxed_str());
    let front = Front::start(&Setup { cache, renders: vec![origin.addr()], ..Setup::default() });
    let event = r#"{"flush":{"action":"Activate","handle":"/content/a"}}"#;
    let events = vec![event; 40].join(",");
    let body = format!(
        r#"{{"pass":{{"origin":"o","instance":"i","prev":null,"next":{{"run":"r","count":40}},"events":[{events}]}}}}"#
    );
    let told = || std::fs::read_to_string(folder.path().join("told")).unwrap_or_default();
    std::thread::scope(|scope| {
        let telling = scope.spawn(|| send(&front, &[], "1 site", &body).status);
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while told().lines().count() < 8 {
            assert!(Instant::now() < deadline, "{}", told());
            std::thread::yield_now();
        }
        std::fs::write(folder.path().join("go"), "").unwrap();
        assert_eq!(telling.join().unwrap(), 200);
    });
    let told: Vec<usize> = told().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!((told.len(), told.iter().filter(|running| **running > 8).count()), (40, 0));
}
