//! The two lanes: what the memory answers is what the full way through rules and files answers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tympan_testkit::client_crowd::{KeepAliveClient, run_crowd};
use tympan_testkit::origin_server::{OriginGate, OriginResponse, OriginServer, exchange_bytes};
use tympan_web::listen::ListenerLimits;

use crate::front::{Front, Reply, Setup, front, limits};

/// A request with a head in which every line is known; the way through the lane is open to it.
fn plain(method: &str, target: &str, more: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nHost: www.example.com\r\n{more}")
}

/// Asks on a connection of its own.
fn ask(front: &Front, head: &str) -> Reply {
    let bytes = format!("{head}Connection: close\r\n\r\n");
    Reply::parse(&exchange_bytes(front.addr, bytes.as_bytes()), head.starts_with("HEAD"))
}

/// Asks such that only the full way answers: an unknown header closes the lane and the memory.
fn ask_fully(front: &Front, head: &str) -> Reply {
    ask(front, &format!("{head}X-Only-Full: 1\r\n"))
}

/// Asks such that the memory answers behind hyper: the lane leaves connections with an unknown option alone.
fn ask_behind(front: &Front, head: &str) -> Reply {
    let bytes = format!("{head}Connection: close, x\r\n\r\n");
    Reply::parse(&exchange_bytes(front.addr, bytes.as_bytes()), head.starts_with("HEAD"))
}

/// What has to be the same in two answers.
fn comparable(reply: &Reply) -> (u16, Vec<(String, String)>, String) {
    let mut headers = reply.headers.clone();
    headers.retain(|(name, _)| name != "date");
    headers.sort();
    (reply.status, headers, reply.body.clone())
}

/// How many answers are kept.
fn kept(front: &Front) -> u64 {
    front.metric("memory_responses")
}

#[test]
fn a_second_hit_is_answered_from_memory_alike() {
    let origin = OriginServer::start_constant(
        OriginResponse::html("0123456789").with_header("Cache-Control", "max-age=60"),
    );
    let front = front(&origin, "/headers { \"Cache-Control\" }");
    for more in [
        "",
        "Range: bytes=2-4\r\n",
        "Range: bytes=90-\r\n",
        "If-None-Match: *\r\n",
        "If-None-Match: \"x\"\r\n",
        "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT\r\n",
        "If-Match: \"x\"\r\n",
        "User-Agent: Mozilla\r\nCookie: a=b\r\nAccept: */*\r\n",
    ] {
        for method in ["GET", "HEAD"] {
            let head = plain(method, "/a.html", more);
            for _ in 0..2 {
                ask(&front, &plain(method, "/a.html", ""));
            }
            let (quick, full) = (ask(&front, &head), ask_fully(&front, &head));
            assert_eq!(comparable(&quick), comparable(&full), "{head}");
        }
    }
    assert!(kept(&front) >= 2, "GET and HEAD are kept");
    assert!(front.metric("fast_path_hits_total") > 20, "the lane took part");
    assert_eq!(origin.request_count(), 1);
}

#[test]
fn large_bodies_are_sent_from_their_file() {
    let body: String = (0..60_000).map(|number| format!("{number} ")).collect();
    let text = body.clone();
    let origin = OriginServer::start(move |_| OriginResponse::html(text.clone()));
    let front = front(&origin, "");
    for _ in 0..4 {
        assert_eq!(ask(&front, &plain("GET", "/a.html", "")).body, body);
    }
    assert!(front.metric("fast_path_hits_total") >= 2, "the lane took part");
    let part = ask(&front, &plain("GET", "/a.html", "Range: bytes=100000-299999\r\n"));
    assert_eq!((part.status, part.body.as_str()), (206, &body[100_000..300_000]));
}

#[test]
fn a_slow_reader_gets_all_of_many_large_answers() {
    let body = "x".repeat(300_000);
    let text = body.clone();
    let origin =
        OriginServer::start(move |seen| OriginResponse::html(format!("{}{text}", seen.target)));
    let front = front(&origin, "");
    let mut stream = TcpStream::connect(front.addr).unwrap();
    // Misses, hits on both ways and a request that is not cached, all at once: nothing is read until all are sent.
    let mut expected = String::new();
    let mut bytes = String::new();
    for round in 0..4 {
        for name in ["/a.html", "/b.html", "/c.html?q=1"] {
            bytes.push_str(&plain("GET", name, "\r\n"));
            expected.push_str(&format!("{name}{body}"));
        }
        bytes.push_str(&plain("GET", "/a.html", "X-Unknown: 1\r\n\r\n"));
        expected.push_str(&format!("/a.html{body}"));
        if round == 3 {
            bytes.push_str(&plain("GET", "/d.html", "Connection: close\r\n\r\n"));
            expected.push_str(&format!("/d.html{body}"));
        }
    }
    stream.write_all(bytes.as_bytes()).unwrap();
    let mut answers = Vec::new();
    stream.read_to_end(&mut answers).unwrap();
    let mut seen = String::new();
    let mut rest = answers.as_slice();
    while !rest.is_empty() {
        let end = rest.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        let head = String::from_utf8_lossy(&rest[..end]).to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1).unwrap();
        let length: usize = length.split('\r').next().unwrap().parse().unwrap();
        seen.push_str(std::str::from_utf8(&rest[end..end + length]).unwrap());
        rest = &rest[end + length..];
    }
    assert!(seen == expected, "{} bytes in place of {}", seen.len(), expected.len());
}

#[test]
fn heads_that_come_in_pieces_are_understood() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let front = front(&origin, "");
    front.get("/a.html");
    let mut stream = TcpStream::connect(front.addr).unwrap();
    stream.set_nodelay(true).unwrap();
    let head = plain("GET", "/a.html", "\r\n");
    let last = plain("GET", "/a.html", "Connection: close\r\n\r\n");
    for piece in format!("{head}{head}{last}").as_bytes().chunks(7) {
        stream.write_all(piece).unwrap();
    }
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("\r\n\r\npage").count(), 3, "{answers}");
}

#[test]
fn changes_by_others_are_seen_at_once() {
    let origin = OriginServer::start(|_| OriginResponse::html("drawn"));
    let front = front(&origin, "/statfileslevel 1");
    let head = plain("GET", "/content/a.html", "");
    let fill = || {
        for _ in 0..3 {
            assert_eq!(ask(&front, &head).body, "drawn");
        }
    };
    fill();
    let before = origin.request_count();
    // Removed by a script.
    std::fs::remove_file(front.file("content/a.html")).unwrap();
    fill();
    assert_eq!(origin.request_count(), before + 1);
    // Flushed by another dispatcher: its clock is a little ahead.
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
    front.write("content/.stat", "");
    std::fs::File::options()
        .write(true)
        .open(front.file("content/.stat"))
        .unwrap()
        .set_modified(later)
        .unwrap();
    assert_eq!(ask(&front, &head).body, "drawn");
    assert_eq!(origin.request_count(), before + 2);
    std::fs::remove_file(front.file("content/.stat")).unwrap();
    fill();
    // Replaced in place, and by another file.
    std::fs::write(front.file("content/a.html"), "other").unwrap();
    assert_eq!(ask(&front, &head).body, "other");
    front.write("content/new", "renamed");
    std::fs::rename(front.file("content/new"), front.file("content/a.html")).unwrap();
    assert_eq!(ask(&front, &head).body, "renamed");
    // Its folder replaced.
    std::fs::rename(front.file("content"), front.file("old")).unwrap();
    front.write("content/a.html", "another folder");
    assert_eq!(ask(&front, &head).body, "another folder");
    std::fs::remove_dir_all(front.file("content")).unwrap();
    assert_eq!(ask(&front, &head).body, "drawn");
}

#[test]
fn changes_below_a_folder_that_moved_are_seen_at_once() {
    let origin = OriginServer::start(|_| OriginResponse::html("drawn"));
    let front = front(&origin, "");
    let head = plain("GET", "/content/site/en/a.html", "");
    for round in 0..3 {
        for _ in 0..3 {
            ask(&front, &head);
        }
        std::fs::rename(front.file("content"), front.file(&format!("old{round}"))).unwrap();
        front.write("content/site/en/a.html", "another folder");
        for _ in 0..3 {
            assert_eq!(ask(&front, &head).body, "another folder");
        }
        std::fs::write(front.file("content/site/en/a.html"), "changed").unwrap();
        assert_eq!(ask(&front, &head).body, "changed", "round {round}");
    }
}

#[test]
fn a_reload_forgets_what_was_cached() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let front = front(&origin, "");
    let head = plain("GET", "/a.html", "");
    for _ in 0..3 {
        assert_eq!(ask(&front, &head).status, 200);
    }
    let denied = Setup {
        farm: "/filter { /0 { /type \"deny\" /url \"*\" } }",
        renders: vec![origin.addr()],
        ..Setup::default()
    };
    front.reload(&denied);
    assert_eq!(ask(&front, &head).status, 404);
}

/// What happens to a site, and what visitors ask meanwhile.
#[derive(Debug, Clone)]
enum Step {
    Ask { method: &'static str, page: usize, query: usize, condition: usize, host: usize },
    Flush { action: &'static str, handle: usize },
    Purge(usize),
    Advance(u64),
    Remove(usize),
    Reload(usize),
}

const PAGES: [&str; 7] = [
    "/content/a.html",
    "/content/b.x.html",
    "/content/a/c.html",
    "/content/a.html/s.html",
    "/content/img.png",
    "/content/%61.html",
    "/denied.html",
];
const QUERIES: [&str; 3] = ["", "?utm=1", "?q=1"];
const HANDLES: [&str; 4] = ["/content/a", "/content", "/content/img.png", "/other"];
const HOSTS: [&str; 6] = [
    "www.example.com",
    "WWW.example.com",
    "www.example.com:8080",
    "www.example.com.",
    "127.0.0.1",
    "[::1]:80",
];
const CONDITIONS: [&str; 30] = [
    "",
    "Range: bytes=1-3\r\n",
    "Range: bytes=-2\r\n",
    "If-None-Match: *\r\n",
    "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT\r\n",
    "If-Unmodified-Since: Fri, 01 Jan 1999 00:00:00 GMT\r\n",
    "Cookie: session=1\r\nUser-Agent: x\r\n",
    "X-Dispatcher-Info: 1\r\n",
    "Range: bytes=0-\r\n",
    "Range: BYTES=0-0\r\n",
    "Range: bytes=0-1,3-4\r\n",
    "Range: bytes=1-2\r\nRange: bytes=3-4\r\n",
    "Range: bytes=99999-\r\n",
    "Range: bytes=1-3\r\nIf-Range: \"x\"\r\n",
    "Range: bytes=1-3\r\nIf-Range: Fri, 01 Jan 2100 00:00:00 GMT\r\n",
    "If-None-Match: \"x\", W/\"y,z\"\r\n",
    "If-None-Match: \"x\"\r\nIf-None-Match: *\r\n",
    "If-None-Match: \"x\"\r\nIf-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT\r\n",
    "If-None-Match:\r\n",
    "If-Match: \"x\", \"y\"\r\n",
    "If-Match: *\r\n",
    "If-Modified-Since: Fri, 01 Jan 1999 00:00:00 GMT\r\n",
    "If-Modified-Since: Friday, 01-Jan-99 00:00:00 GMT\r\n",
    "If-Modified-Since: yesterday\r\n",
    "If-Unmodified-Since: Fri, 01 Jan 2100 00:00:00 GMT\r\n",
    "Cookie: a=b\r\nCookie: login-token=x\r\n",
    "Cache-Control: no-cache\r\nPragma: no-cache\r\n",
    "Accept-Encoding: gzip;q=0.001, *;q=0\r\n",
    "Keep-Alive: 300\r\nTE: trailers\r\n",
    "X-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: https\r\n",
];

fn setups(origin: &OriginServer) -> Vec<Setup> {
    const FILTER: &str = "/filter { /0 { /type \"allow\" /url \"*\" } /1 { /type \"deny\" /url \"/denied*\" } \
        /2 { /type \"deny\" /method \"HEAD\" /selectors \"x\" } }";
    let with = |farm, cache, settings: &str| Setup {
        farm,
        cache,
        renders: vec![origin.addr()],
        settings: settings.to_owned(),
        ..Setup::default()
    };
    const HTTP_FILTER: &str = "/x-http 1 /filter { /0 { /type \"allow\" /url \"*\" } \
        /1 { /type \"deny\" /url \"/denied*\" } }";
    vec![
        with(HTTP_FILTER, "/statfileslevel 1", ""),
        with("/x-http 1", "/x-defaultTTL 60 /headers { \"X-*\" } /x-flushMode \"soft\"", ""),
        with(FILTER, "/statfileslevel 2 /headers { \"X-Version\" \"Cache-Control\" }", ""),
        with(FILTER, "/ignoreUrlParams { /0 { /type \"allow\" /glob \"utm\" } }", ""),
        with(FILTER, "/enableTTL 1 /x-flushMode \"soft\"", ""),
        with("", "/gracePeriod 3 /statfileslevel 1", ""),
        with(
            FILTER,
            "/headers { \"Content-Type\" }",
            "[[host]]\nheaders = { \"X-Frame-Options\" = \"DENY\" }\n\
             [[host.rule]]\nmatch = \"^/content/b\\\\.x\"\nrewrite = \"/content/a.html\"\n",
        ),
        with(
            "",
            "",
            "[[host]]\n[[host.rule]]\nmatch = \"^/content/img\"\nredirect = \"/content/a.html\"\n\
             [[host.rule.when]]\ntest = \"%{HTTP_USER_AGENT}\"\nmatch = \"x\"\n",
        ),
    ]
}

/// How many histories are tried; `make torture` sets more.
fn cases() -> u32 {
    std::env::var("TYMPAN_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(10)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let method = prop_oneof![4 => Just("GET"), 2 => Just("HEAD")];
    let host = prop_oneof![3 => Just(0), 2 => 0..HOSTS.len()];
    let ask = (method, 0..PAGES.len(), 0..QUERIES.len(), 0..CONDITIONS.len(), host);
    let ask = ask.prop_map(|(method, page, query, condition, host)| Step::Ask {
        method,
        page,
        query,
        condition,
        host,
    });
    let action = prop_oneof![3 => Just("Activate"), 1 => Just("Delete"), 1 => Just("Deactivate")];
    let flush =
        (action, 0..HANDLES.len()).prop_map(|(action, handle)| Step::Flush { action, handle });
    let step = prop_oneof![
        12 => ask,
        2 => flush,
        1 => (0..PAGES.len()).prop_map(Step::Purge),
        1 => (0..6_u64).prop_map(Step::Advance),
        1 => (0..PAGES.len()).prop_map(Step::Remove),
        2 => (0..8_usize).prop_map(Step::Reload),
    ];
    proptest::collection::vec(step, 1..60)
}

#[test]
fn both_lanes_answer_alike_whatever_happens() {
    let mut runner =
        TestRunner::new(Config { cases: cases(), failure_persistence: None, ..Config::default() });
    let total = AtomicU64::new(0);
    runner
        .run(&steps(), |steps| {
            let version = Arc::new(AtomicU64::new(0));
            let drawn = Arc::clone(&version);
            let origin = OriginServer::start(move |seen| {
                let version = drawn.load(Ordering::SeqCst);
                let page = OriginResponse::html(format!("{} of version {version}", seen.target))
                    .with_header("Cache-Control", "max-age=4")
                    .with_header("X-Version", &version.to_string());
                // Some pages are for those with the same cookies.
                match seen.target.contains('b') {
                    true => page
                        .with_body(format!("version {version} of {:?}", seen.header("cookie")))
                        .with_header("Vary", "Cookie"),
                    false => page,
                }
            });
            let setups = setups(&origin);
            let front = Front::start(&setups[0]);
            for step in steps {
                match step {
                    Step::Ask { method, page, query, condition, host } => {
                        let target = format!("{}{}", PAGES[page], QUERIES[query]);
                        let of = |target: &str, more: &str| {
                            let host = HOSTS[host];
                            format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{more}")
                        };
                        let head = of(&target, CONDITIONS[condition]);
                        // The first may fetch the page, and the second leaves it in memory.
                        ask(&front, &head);
                        front.wait_for("fetches", 0);
                        ask(&front, &of(&target, ""));
                        let (quick, full) = (ask(&front, &head), ask_fully(&front, &head));
                        prop_assert_eq!(comparable(&quick), comparable(&full), "{}", head);
                        let behind = ask_behind(&front, &head);
                        prop_assert_eq!(comparable(&quick), comparable(&behind), "{}", head);
                        // The host of an absolute target is the one that counts.
                        let absolute = format!("http://{}{target}", HOSTS[host]);
                        let absolute = ask(&front, &of(&absolute, CONDITIONS[condition]));
                        prop_assert_eq!(comparable(&quick), comparable(&absolute), "{}", head);
                    }
                    Step::Flush { action, handle } => {
                        version.fetch_add(1, Ordering::SeqCst);
                        let reply = front.flush(action, HANDLES[handle], &[]);
                        prop_assert_eq!(reply.status, 200);
                    }
                    Step::Purge(page) => {
                        front.send("PURGE", PAGES[page], &[], "");
                    }
                    Step::Advance(seconds) => front.advance(seconds),
                    Step::Remove(page) => {
                        std::fs::remove_file(front.file(PAGES[page].trim_start_matches('/'))).ok();
                    }
                    Step::Reload(setup) => front.reload(&setups[setup]),
                }
            }
            total.fetch_add(front.metric("memory_hits_total"), Ordering::SeqCst);
            Ok(())
        })
        .unwrap();
    assert!(total.load(Ordering::SeqCst) > 0, "memory took part");
}

#[test]
fn encodings_are_chosen_alike_on_both_ways_from_memory() {
    let text: String = (0..3000).map(|line| format!("<p>line {line}</p>\n")).collect();
    let page = text.clone();
    let origin = OriginServer::start(move |_| OriginResponse::html(page.clone()));
    let front = front(&origin, "/x-compress 1");
    // Until its encodings are made.
    loop {
        let reply = ask(&front, &plain("GET", "/a.html", "Accept-Encoding: gzip\r\n"));
        if reply.header("content-encoding").is_some() {
            break;
        }
        std::thread::yield_now();
    }
    ask(&front, &plain("HEAD", "/a.html", ""));
    let weight = prop_oneof![
        Just(""),
        Just(";q=0"),
        Just(";q=0.5"),
        Just("; Q=1.0"),
        Just(";q=0.001"),
        Just(";q=x")
    ];
    let name = proptest::sample::select(vec![
        "gzip", "br", "zstd", "identity", "*", "x-gzip", "deflate", "BR", "",
    ]);
    let accepted = proptest::collection::vec((name, weight), 0..5);
    let condition =
        proptest::sample::select(vec!["", "If-None-Match: *\r\n", "Range: bytes=5-9\r\n"]);
    let method = proptest::sample::select(vec!["GET", "HEAD"]);
    let mut runner =
        TestRunner::new(Config { cases: 150, failure_persistence: None, ..Config::default() });
    runner
        .run(&(accepted, condition, method), |(accepted, condition, method)| {
            let list: Vec<String> =
                accepted.iter().map(|(name, weight)| format!("{name}{weight}")).collect();
            let more = format!("Accept-Encoding: {}\r\n{condition}", list.join(", "));
            let head = plain(method, "/a.html", &more);
            let (quick, behind) = (ask(&front, &head), ask_behind(&front, &head));
            prop_assert_eq!(comparable(&quick), comparable(&behind), "{}", head);
            let coding = quick.header("content-encoding").unwrap_or("identity").to_owned();
            // Of several weights of one coding the first counts.
            let names = |name: &str| {
                let plain = name.to_ascii_lowercase();
                plain == coding || coding == "gzip" && plain == "x-gzip"
            };
            let first = accepted.iter().find(|(name, _)| names(name));
            let is_refused = first.is_some_and(|(_, weight)| matches!(*weight, ";q=0" | ";q=x"));
            prop_assert!(coding == "identity" || !is_refused, "{}", head);
            Ok(())
        })
        .unwrap();
}

#[test]
fn no_visitor_of_the_fast_path_sees_a_page_older_than_a_flush() {
    let current = Arc::new(AtomicU64::new(1));
    let drawn = Arc::clone(&current);
    let origin = OriginServer::start(move |_| {
        let version = drawn.load(Ordering::SeqCst);
        OriginResponse::html(format!("{version} ").repeat(if version.is_multiple_of(2) {
            5
        } else {
            9_000
        }))
    });
    let front = front(&origin, "");
    let stop = AtomicBool::new(false);
    let asked = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (front, stop, current, asked) = (&front, &stop, &current, &asked);
            scope.spawn(move || {
                let mut stream = TcpStream::connect(front.addr).unwrap();
                // No stat file concerns it, so that nobody gets the old page while another one fetches.
                let head = plain("GET", "/content/p.txt", "\r\n");
                while !stop.load(Ordering::SeqCst) {
                    let at_least = current.load(Ordering::SeqCst) - 1;
                    stream.write_all(head.as_bytes()).unwrap();
                    let body = read_answer(&mut stream);
                    let version: u64 = body.split(' ').next().unwrap().parse().unwrap();
                    assert!(version >= at_least, "{version} after a flush of {at_least}");
                    assert!(body.split_terminator(' ').all(|word| word == version.to_string()));
                    asked.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for _ in 0..60 {
            // Visitors that asked before this line may still get the version before.
            current.fetch_add(1, Ordering::SeqCst);
            assert_eq!(front.flush("Activate", "/content/p", &[]).status, 200);
            let before = asked.load(Ordering::SeqCst);
            while asked.load(Ordering::SeqCst) < before + 20 {
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
}

/// Reads one answer with a `Content-Length` and returns its body.
fn read_answer(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut piece = [0; 16 * 1024];
    loop {
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "the connection ended in an answer");
        bytes.extend_from_slice(&piece[..count]);
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1).unwrap();
        let length: usize = length.split('\r').next().unwrap().parse().unwrap();
        if bytes.len() >= end + 4 + length {
            return String::from_utf8(bytes.split_off(end + 4)).unwrap();
        }
    }
}

/// What 100 visitors get while a page that takes 10 s is fetched again is most of what they get at all.
#[test]
fn old_pages_are_given_from_memory_until_the_new_one_is_there() {
    for (settings, listed) in [("", true), ("/x-flushMode \"soft\"", false)] {
        let gate = OriginGate::default();
        let (door, count) = (gate.clone(), AtomicU64::new(0));
        let origin = OriginServer::start(move |_| {
            let number = count.fetch_add(1, Ordering::SeqCst) + 1;
            if number == 2 {
                door.wait_open();
            }
            OriginResponse::html(format!("version {number}"))
        });
        let front = front(&origin, settings);
        let get = || ask(&front, &plain("GET", "/a.html", ""));
        for _ in 0..3 {
            assert_eq!(get().body, "version 1");
        }
        front.flush("Activate", "/a", if listed { &["/a.html"] } else { &[] });
        // Without a list the first visitor has it fetched.
        let first = get();
        origin.wait_for_requests(2);
        assert_eq!(comparable(&get()), comparable(&first), "{settings}");
        assert_eq!(first.body, "version 1");
        let (quick, old) = (front.metric("fast_path_hits_total"), front.metric("stale_total"));
        for more in ["", "Range: bytes=2-4\r\n", "If-None-Match: *\r\n"] {
            let head = plain("GET", "/a.html", more);
            let (quick, full) = (ask(&front, &head), ask_fully(&front, &head));
            assert_eq!(comparable(&quick), comparable(&full), "{head}");
        }
        assert_eq!(
            front.metric("fast_path_hits_total") - quick,
            3,
            "{settings}: the lane took part"
        );
        assert_eq!(front.metric("stale_total") - old, 6, "{settings}");
        gate.open();
        while get().body == "version 1" {
            std::thread::yield_now();
        }
        // A page that is new is never followed by an old one.
        for _ in 0..3 {
            let new = get();
            assert_eq!(new.body, "version 2");
            assert_ne!(new.headers, first.headers, "{settings}");
        }
        assert_eq!(origin.request_count(), 2);
    }
}

#[test]
fn old_pages_do_not_outlive_the_fetch_that_was_to_replace_them() {
    let origin = OriginServer::start({
        let count = AtomicU64::new(0);
        move |_| match count.fetch_add(1, Ordering::SeqCst) {
            0 => OriginResponse::html("old"),
            1..=3 => OriginResponse::with_status(500),
            _ => OriginResponse::html("new"),
        }
    });
    let front = front(&origin, "");
    let get = || ask(&front, &plain("GET", "/a.html", ""));
    assert_eq!(get().body, "old");
    front.flush("Activate", "/a", &["/a.html"]);
    while front.metric("refetch_failures_total") == 0 {
        if get().body == "new" {
            break;
        }
    }
    assert_eq!(get().body, "new");
    assert!(front.metric("fast_path_hits_total") > 0, "the lane took part");
}

/// Sixty visitors keep connections to kept pages and to others, and fifty have room.
#[test]
fn more_visitors_than_places_take_turns() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let limits = ListenerLimits { max_connections: 50, ..limits() };
    let setup = Setup { renders: vec![origin.addr()], limits: Some(limits), ..Setup::default() };
    let front = Front::start(&setup);
    let path = |visitor: usize, round: usize| match visitor % 4 {
        0 => format!("/new/{visitor}-{round}.html"),
        _ => "/kept.html".to_owned(),
    };
    let met = run_crowd(front.addr, (60, 20), path);
    assert_eq!((met.succeeded, met.failures), (60 * 20, Vec::new()));
    assert!(met.connection_count < 60 * 20, "{} connections", met.connection_count);
    let closed =
        ["evicted", "released"].map(|how| front.metric(&format!("connections_{how}_total")));
    assert!(closed.iter().sum::<u64>() > 0);
}

#[test]
fn the_longest_idle_connection_leaves_the_fast_path_for_a_new_one() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let limits = ListenerLimits { max_connections: 8, ..limits() };
    let setup = Setup { renders: vec![origin.addr()], limits: Some(limits), ..Setup::default() };
    let front = Front::start(&setup);
    let mut old: Vec<KeepAliveClient> = (0..8).map(|_| KeepAliveClient::new(front.addr)).collect();
    // Twice, so that the lane has it.
    for _ in 0..2 {
        for visitor in &mut old {
            assert_eq!(visitor.send_request("/kept.html").unwrap(), 200);
        }
    }
    let kept = |old: &[KeepAliveClient]| old.iter().filter(|one| one.has_open_connection()).count();
    assert_eq!(kept(&old), 8);
    let mut new = KeepAliveClient::new(front.addr);
    assert_eq!(new.send_request("/kept.html").unwrap(), 200);
    let left = kept(&old);
    assert!((4..8).contains(&left), "{left} of 8 stay");
    assert!(front.metric("connections_evicted_total") >= 1);
    for visitor in &mut old {
        assert_eq!(visitor.send_request("/kept.html").unwrap(), 200, "they come again");
    }
}
