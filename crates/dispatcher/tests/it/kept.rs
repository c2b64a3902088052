//! What is kept in memory is what everybody gets: whatever a step did to somebody's answer, the next visitor's is the same as
//! from a dispatcher that remembers nothing.
//!
//! The type of the response, `DispatcherResponse`, takes the permission to store it away with every change. The requests in
//! the list pass through every step that changes a response: whoever adds a step adds a request for it.

use tympan_testkit::origin_server::{OriginRequest, OriginResponse, OriginServer};

use crate::front::{Front, Reply, Setup};

/// Method, target and headers of a request.
type RequestRow = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// Requests that steps answer each in its own way, of pages that all of them share.
const REQUESTS: [RequestRow; 14] = [
    ("GET", "/a.html", &[]),
    ("HEAD", "/a.html", &[]),
    ("GET", "/a.html", &[("Range", "bytes=2-5")]),
    ("GET", "/a.html", &[("If-None-Match", "*")]),
    ("GET", "/a.html", &[("If-Match", "\"other\"")]),
    ("GET", "/a.html", &[("Accept-Encoding", "gzip")]),
    ("GET", "/a.html", &[("X-Dispatcher-Info", "1")]),
    ("GET", "/a.html?utm_source=x", &[]),
    ("GET", "/included.html", &[]),
    ("GET", "/included.html", &[("Cookie", "user=Anna")]),
    ("GET", "/included.html", &[("Cookie", "user=Beth")]),
    ("HEAD", "/included.html", &[("Cookie", "user=Anna")]),
    ("GET", "/included.html", &[("Accept-Encoding", "gzip"), ("Cookie", "user=Anna")]),
    ("GET", "/included.html", &[("Range", "bytes=0-3"), ("Cookie", "user=Beth")]),
];

fn origin() -> OriginServer {
    OriginServer::start(|seen: &OriginRequest| {
        let user = seen.header("cookie").unwrap_or("user=anyone").replace("user=", "");
        let path = seen.target.split('?').next().unwrap_or_default();
        match path {
            "/who.html" => {
                OriginResponse::html(user).with_header("Cache-Control", "private, no-cache")
            }
            "/included.html" => {
                let text = "text of everybody ".repeat(100);
                OriginResponse::html(format!("{text}<!--#include virtual=\"/who.html\" -->"))
                    .with_header("X-Tympan-Include", "/who.html")
            }
            _ => OriginResponse::html("page of everybody ".repeat(200)),
        }
    })
}

fn start(origin: &OriginServer) -> Front {
    Front::start(&Setup {
        cache: "/ignoreUrlParams { /0 { /type \"allow\" /glob \"utm_*\" } }",
        renders: vec![origin.addr()],
        ..Setup::default()
    })
}

/// Asks, and returns what does not change from one dispatcher to another.
fn ask(front: &Front, (method, target, headers): (&str, &str, &[(&str, &str)])) -> String {
    let Reply { status, mut headers, body, .. } = front.send(method, target, headers, "");
    let changing = ["age", "date", "etag", "last-modified", "via", "connection"];
    headers.retain(|(name, _)| !changing.contains(&name.as_str()));
    headers.sort();
    format!("{status} {headers:?}\n{body}")
}

/// Lets every page be in the cache, as a file.
fn prime(front: &Front) {
    for target in ["/a.html", "/included.html"] {
        front.send("GET", target, &[("Cookie", "user=Anna")], "");
    }
}

#[test]
fn no_step_leaves_its_change_to_the_next_visitor() {
    let origin = origin();
    let expected = REQUESTS.map(|request| {
        let front = start(&origin);
        prime(&front);
        ask(&front, request)
    });
    let front = start(&origin);
    prime(&front);
    for round in 0..REQUESTS.len() {
        // Each request comes once directly behind each other one of its distance, and twice in a row.
        for number in 0..REQUESTS.len() {
            let at = (number * (2 * round + 1) + round) % REQUESTS.len();
            for _ in 0..2 {
                let answer = ask(&front, REQUESTS[at]);
                assert_eq!(answer, expected[at], "round {round}: {:?}", REQUESTS[at]);
            }
        }
    }
    assert!(front.metric("memory_responses") > 0, "the memory took part");
}
