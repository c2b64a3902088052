//! Includes: one stored page for everyone, with parts for each visitor.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tympan_testkit::origin_server::{OriginRequest, OriginResponse, OriginServer};

use crate::front::{Front, Setup, front};

const PAGE: &str = "<p>Hello <!--#include virtual=\"/who.html\" -->!</p>";

/// A page that includes the name of its visitor, who is told by a cookie.
fn greeting(seen: &OriginRequest) -> OriginResponse {
    match seen.target.as_str() {
        "/who.html" => {
            let name = seen.header("cookie").unwrap_or("stranger").replace("user=", "");
            OriginResponse::html(name).with_header("Cache-Control", "private, no-cache")
        }
        _ => OriginResponse::html(PAGE)
            .with_header("X-Tympan-Include", "/who.html")
            .with_header("ETag", "\"1\""),
    }
}

fn as_user(cookie: &str) -> [(&str, &str); 1] {
    [("Cookie", cookie)]
}

#[test]
fn one_file_greets_two_users() {
    let origin = OriginServer::start(greeting);
    let front = front(&origin, "");
    let anna = front.send("GET", "/a.html", &as_user("user=Anna"), "");
    let ben = front.send("GET", "/a.html", &as_user("user=Ben"), "");
    assert_eq!(anna.body, "<p>Hello Anna!</p>");
    assert_eq!(ben.body, "<p>Hello Ben!</p>");
    assert_eq!(front.get("/a.html").body, "<p>Hello stranger!</p>");
    assert!(ben.is_hit(), "the page itself came from its file: {}", ben.info());
    assert_eq!(origin.request_count_for("/a.html"), 1);
    assert_eq!(origin.request_count_for("/who.html"), 3);
    assert_eq!(front.read("a.html"), PAGE, "nobody's name is in the file");
    assert!(!front.has("who.html"));
    for reply in [&anna, &ben] {
        assert_eq!(reply.header("cache-control"), Some("private, no-cache"));
        assert_eq!(reply.header("etag"), None);
        assert_eq!(reply.header("last-modified"), None);
        assert_eq!(reply.header("x-tympan-include"), None);
        assert!(reply.is_complete);
    }
    assert_eq!(front.metric("includes_total"), 3);
}

#[test]
fn a_page_and_its_parts_come_from_one_render_by_one_cookie() {
    let render = |name: &'static str| {
        OriginServer::start(move |seen: &OriginRequest| match seen.target.as_str() {
            "/s/one.html" | "/s/two.html" | "/s/three.html" => {
                OriginResponse::html(name).with_header("Cache-Control", "no-store")
            }
            target => {
                let include = |part: &str| format!("<!--#include virtual=\"/s/{part}.html\" -->");
                let body = format!("{}{}{}", include("one"), include("two"), include("three"));
                let life = if target == "/s/kept.html" { "max-age=60" } else { "no-store" };
                OriginResponse::html(body)
                    .with_header("Cache-Control", life)
                    .with_header("X-Tympan-Include", "/s/one.html /s/two.html /s/three.html")
            }
        })
    };
    let renders = [render("r0"), render("r1")];
    let front = Front::start(&Setup {
        farm: "/stickyConnectionsFor \"/s\"",
        renders: renders.iter().map(OriginServer::addr).collect(),
        ..Setup::default()
    });
    // The page itself from a render, and from its file.
    for target in ["/s/drawn.html", "/s/kept.html"] {
        for _ in 0..30 {
            let reply = front.get(target);
            let cookies = reply.headers.iter().filter(|(name, _)| name == "set-cookie");
            let cookies: Vec<&str> = cookies.map(|(_, value)| value.as_str()).collect();
            let name = reply.body.get(..2).unwrap();
            assert_eq!(reply.body, name.repeat(3), "{target}");
            assert_eq!(cookies, [format!("renderid={name}; Path=/")], "{target}");
        }
    }
    for (name, other) in [("r0", "r1"), ("r1", "r0")] {
        let cookie = format!("renderid={name}");
        let reply = front.send("GET", "/s/drawn.html", &as_user(&cookie), "");
        assert_eq!(reply.body, name.repeat(3));
        assert!(!reply.body.contains(other));
    }
}

#[test]
fn a_filled_page_as_long_as_its_file_is_not_cached_in_memory() {
    const DIRECTIVE: &str = "<!--#include virtual=\"/turn.html\" -->";
    let turns = AtomicUsize::new(0);
    let origin = OriginServer::start(move |seen: &OriginRequest| match seen.target.as_str() {
        "/turn.html" => {
            let turn = turns.fetch_add(1, Ordering::SeqCst);
            OriginResponse::html(format!("{turn:>width$}", width = DIRECTIVE.len()))
                .with_header("Cache-Control", "no-store")
        }
        _ => OriginResponse::html(format!("<p>{DIRECTIVE}</p>"))
            .with_header("X-Tympan-Include", "/turn.html"),
    });
    let front = front(&origin, "");
    for turn in 0..4 {
        let body = front.get("/a.html").body;
        assert_eq!(body.trim_matches(|c| "</p> ".contains(c)), turn.to_string());
    }
    assert_eq!(origin.request_count_for("/a.html"), 1);
}

#[test]
fn conditions_and_ranges_are_about_other_bytes() {
    let origin = OriginServer::start(greeting);
    let front = front(&origin, "/headers { \"ETag\" }");
    front.get("/a.html");
    for header in [("If-None-Match", "\"1\""), ("Range", "bytes=0-3"), ("If-Match", "\"2\"")] {
        let reply = front.send("GET", "/a.html", &[("Cookie", "user=Anna"), header], "");
        assert_eq!((reply.status, reply.body.as_str()), (200, "<p>Hello Anna!</p>"), "{header:?}");
    }
    let head = front.send("HEAD", "/a.html", &[], "");
    assert_eq!((head.status, head.header("content-length")), (200, None));
    assert_eq!(head.header("x-tympan-include"), None);
}

#[test]
fn nothing_that_somebody_typed_is_included() {
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/secret.html" => OriginResponse::html("secret"),
        "/named.html" => OriginResponse::html(
            "<!--#include virtual=\"/secret.html\" --><!--#include virtual=\"/part.html\" -->",
        )
        .with_header("X-Tympan-Include", "/part.html"),
        "/part.html" => OriginResponse::html("<!--#include virtual=\"/secret.html\" -->part"),
        _ => OriginResponse::html(
            "<!--#include virtual=\"/secret.html\" --><esi:include src=\"/secret.html\"/>",
        ),
    });
    let front = front(&origin, "");
    let plain = front.get("/plain.html");
    assert!(plain.body.starts_with("<!--#include"), "{}", plain.body);
    let named = front.get("/named.html").body;
    assert!(named.ends_with("-->part"), "{named}");
    assert_eq!(origin.request_count_for("/secret.html"), 0);
}

#[test]
fn a_part_that_fails_leaves_a_comment() {
    let origin = OriginServer::start(|seen| {
        match seen.target.as_str() {
        "/gone.html" => OriginResponse::with_status(404).with_body("no"),
        "/moved.html" => OriginResponse::with_status(302).with_header("Location", "/login.html"),
        "/x.html?a=1" | "/good.html" => OriginResponse::html("good"),
        _ => ["/gone.html", "/moved.html", "/denied.html", "/x.html?a=1", "/good.html"].iter().fold(
            OriginResponse::html(
                "<!--#include virtual=\"/gone.html\" -->,<!--#include virtual=\"/moved.html\" -->,\
                 <!--#include virtual=\"/denied.html\" -->,<esi:include src=\"/x.html?a=1\"/>,\
                 <esi:include src='/good.html' />.",
            ),
            |answer, address| answer.with_header("X-Tympan-Include", address),
        ),
    }
    });
    let setup = Setup {
        farm: "/filter { /0 { /type \"allow\" /url \"/*\" } /1 { /type \"deny\" /url \"/denied*\" } }",
        renders: vec![origin.addr()],
        ..Setup::default()
    };
    let front = Front::start(&setup);
    let none = "<!-- this part cannot be shown -->";
    assert_eq!(front.get("/a.html").body, format!("{none},{none},{none},good,good."));
    assert_eq!(origin.request_count_for("/denied.html"), 0, "the filter refuses it");
    assert_eq!(front.metric("include_failures_total"), 3);
}

#[test]
fn parts_that_are_everyones_are_stored_and_leave_the_page_to_caches() {
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/part.html" => OriginResponse::html("part"),
        _ => OriginResponse::html("<!--#include virtual=\"/part.html\" -->")
            .with_header("X-Tympan-Include", "/part.html")
            .with_header("Cache-Control", "max-age=60"),
    });
    let front = front(&origin, "/headers { \"Cache-Control\" }");
    for _ in 0..2 {
        let reply = front.get("/a.html");
        assert_eq!(
            (reply.body.as_str(), reply.header("cache-control")),
            ("part", Some("max-age=60"))
        );
    }
    assert_eq!(origin.request_count(), 2);
    front.flush("Activate", "/part", &[]);
    assert_eq!(front.get("/a.html").body, "part");
    assert_eq!(origin.request_count_for("/part.html"), 2, "a flush of the part reaches it");
}

#[test]
fn a_filled_page_lives_no_longer_than_its_parts_and_carries_their_keys() {
    let origin = OriginServer::start(|seen| {
        let (life, name, inner) = match seen.target.as_str() {
            "/inner.html" => ("max-age=20", "inner", None),
            "/part.html" => ("max-age=600", "part", Some("/inner.html")),
            _ => ("max-age=3600", "page", Some("/part.html")),
        };
        let tag = inner.map(|inner| format!("<!--#include virtual=\"{inner}\" -->"));
        let answer = OriginResponse::html(format!("{name} {}", tag.unwrap_or_default()))
            .with_header("Cache-Control", life)
            .with_header("Surrogate-Key", name);
        inner
            .into_iter()
            .fold(answer, |answer, inner| answer.with_header("X-Tympan-Include", inner))
    });
    let front = front(&origin, "/headers { \"Cache-Control\" \"Surrogate-Key\" }");
    // The moments of requests lie a little after what the clock shows, so ages are one second less.
    for (seconds, life) in [(0, "max-age=20"), (5, "max-age=16"), (60, "max-age=0")] {
        front.advance(seconds);
        let reply = front.get("/a.html");
        assert_eq!(reply.body, "page part inner ");
        assert_eq!(reply.header("cache-control"), Some(life));
        assert_eq!(reply.header("age"), None);
        let keys = reply.headers.iter().filter(|(name, _)| name == "surrogate-key");
        let keys: Vec<&str> = keys.map(|(_, key)| key.as_str()).collect();
        assert_eq!(keys, ["page", "part", "inner"]);
    }
    assert_eq!(origin.request_count(), 3);
}

#[test]
fn pages_that_include_each_other_end() {
    let asked = Arc::new(Mutex::new(0));
    let count = Arc::clone(&asked);
    let origin = OriginServer::start(move |_| {
        *count.lock().unwrap() += 1;
        let tags = "<!--#include virtual=\"/b.html?x\" -->".repeat(20);
        OriginResponse::html(format!("[{tags}]")).with_header("X-Tympan-Include", "/b.html?x")
    });
    let front = front(&origin, "");
    let reply = front.get("/a.html");
    assert_eq!(reply.status, 200);
    assert!(reply.body.contains("cannot be shown"));
    let asked = *asked.lock().unwrap();
    assert!(asked <= 65, "one page asked for {asked} others");
}

#[test]
fn a_part_that_was_asked_for_one_visitor_makes_the_page_that_visitors() {
    let part = |body: &str| OriginResponse::html(body);
    let check = |farm, address: &'static str, answer: OriginResponse, is_private: bool| {
        let origin = OriginServer::start(move |seen: &OriginRequest| {
            if seen.target == address {
                return answer.clone();
            }
            match seen.method.as_str() {
                "HEAD" => OriginResponse::with_status(200),
                _ => OriginResponse::html(format!("<!--#include virtual=\"{address}\" -->"))
                    .with_header("X-Tympan-Include", address)
                    .with_header("Cache-Control", "max-age=60"),
            }
        });
        let front = Front::start(&Setup {
            farm,
            cache: "/headers { \"Cache-Control\" } /allowAuthorized 1",
            renders: vec![origin.addr()],
            ..Setup::default()
        });
        let expected = if is_private { "private, no-cache" } else { "max-age=60" };
        for round in 0..3 {
            let reply = front.send("GET", "/a.html", &as_user("user=Anna"), "");
            assert_eq!(reply.body, "part", "{address}");
            assert_eq!(reply.header("cache-control"), Some(expected), "{address} in round {round}");
        }
        origin.request_count_for("/a.html")
    };
    // Not cacheable for its query, and nothing says that it is everyone's.
    assert_eq!(check("", "/part.html?user", part("part"), true), 1);
    // The render says so.
    let everyones = part("part").with_header("Cache-Control", "max-age=60");
    assert_eq!(check("", "/part.html?q", everyones, false), 1);
    assert_eq!(check("", "/part.html", part("part"), false), 1);
    // It brings a cookie with it.
    let greeting =
        part("part").with_header("Cache-Control", "max-age=60").with_header("Set-Cookie", "a=b");
    assert_eq!(check("", "/part.html?c", greeting, true), 1);
    // It is in the cache, but not for everyone.
    let guarded = "/auth_checker { /url \"/bin/check\"
        /filter { /0 { /type \"deny\" /glob \"*\" } /1 { /type \"allow\" /glob \"/part*\" } } }";
    assert_eq!(check(guarded, "/part.html", part("part"), true), 1);
}

#[test]
fn error_documents_are_filled_too() {
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/errors/404.html" => OriginResponse::html("gone, <!--#include virtual=\"/who.html\" -->!")
            .with_header("X-Tympan-Include", "/who.html"),
        "/errors/416.html" => {
            OriginResponse::html("no such part of <!--#include virtual=\"/who.html\" -->")
                .with_header("X-Tympan-Include", "/who.html")
        }
        "/who.html" => {
            let name = seen.header("cookie").unwrap_or("stranger").replace("user=", "");
            OriginResponse::html(name).with_header("Cache-Control", "private, no-cache")
        }
        "/a.html" => OriginResponse::html("0123456789"),
        // An error page with a place that nobody sees.
        _ => OriginResponse::with_status(404)
            .with_header("X-Tympan-Include", "/who.html")
            .with_body("no"),
    });
    let front = Front::start(&Setup {
        renders: vec![origin.addr()],
        settings: "pass_error = \"1\"\n\
            error_documents = { 404 = \"/errors/404.html\", 416 = \"/errors/416.html\" }\n"
            .to_owned(),
        ..Setup::default()
    });
    for name in ["Anna", "Ben"] {
        let cookie = format!("user={name}");
        let reply = front.send("GET", "/gone.html", &as_user(&cookie), "");
        assert_eq!((reply.status, reply.body), (404, format!("gone, {name}!")));
        assert_eq!(reply.headers.iter().find(|(key, _)| key == "x-tympan-include"), None);
    }
    front.get("/a.html");
    for _ in 0..3 {
        let headers = [("Cookie", "user=Anna"), ("Range", "bytes=90-")];
        let reply = front.send("GET", "/a.html", &headers, "");
        assert_eq!((reply.status, reply.body.as_str()), (416, "no such part of Anna"));
    }
    assert_eq!(origin.request_count_for("/errors/404.html"), 1, "the document is stored once");
    let head = front.send("HEAD", "/gone.html", &[], "");
    assert_eq!((head.status, head.header("x-tympan-include")), (404, None));
}
