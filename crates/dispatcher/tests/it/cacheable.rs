//! What is cached and what is not (`CA`).

use tympan_testkit::origin_server::{OriginResponse, OriginServer, ResponseDelivery};

use crate::front::{Front, Setup, front};

fn html() -> OriginServer {
    OriginServer::start(|seen| OriginResponse::html(format!("page {}", seen.target)))
}

/// Asks twice and tells whether the second answer came from the cache, and why not.
fn verdict(front: &Front, method: &str, target: &str, headers: &[(&str, &str)]) -> String {
    let first = front.send(method, target, headers, "");
    let second = front.send(method, target, headers, "");
    assert_eq!(first.status, second.status);
    second.info().to_owned()
}

#[test]
fn ca62_to_ca72_requests_that_are_not_cached_say_why() {
    let origin = html();
    let front = Front::start(&Setup {
        cache: "/rules { /0 { /type \"allow\" /glob \"*\" } /1 { /type \"deny\" /glob \"/private/*\" } }",
        renders: vec![origin.addr()],
        ..Setup::default()
    });
    let check = |method, target: &str, headers: &[(&str, &str)], expected: &str| {
        assert_eq!(verdict(&front, method, target, headers), expected, "{method} {target}");
    };
    for folder in ["folder.v1", "page.html"] {
        std::fs::create_dir_all(front.file(folder)).unwrap();
    }
    let long = format!("/{}.html", "a".repeat(251));
    let almost = format!("/{}.html", "a".repeat(245));
    check("GET", "/a.html", &[], "target file cached");
    check("GET", &long, &[], "not cacheable: cache file path too long");
    check("GET", &almost, &[], "not cacheable: temporary file path too long");
    check("GET", "/test.html/a/path", &[], "not cacheable: request URL is missing extension");
    check("GET", "/home.html/a/suffix.html", &[], "target file cached");
    check("DELETE", "/a.html", &[], "not cacheable: request needed to be a GET or HEAD");
    check("GET", "/a.html?b=c", &[], "not cacheable: request contained a query string");
    check("GET", "/a.html?", &[], "target file cached");
    let authorization = ("Authorization", "Basic eDp5");
    check("GET", "/a.html", &[authorization], "not cacheable: request contains authorization");
    let cookie = ("Cookie", "x=y; login-token=z");
    check("GET", "/a.html", &[cookie], "not cacheable: request contains authorization");
    check("GET", "/a.html", &[("Cookie", "x=login-token")], "target file cached");
    check("GET", "/folder.v1", &[], "not cacheable: target is a directory");
    check("GET", "/page.html", &[], "target file cached");
    check("GET", "/a.b/", &[], "not cacheable: request URL has a trailing slash");
    check("GET", "/private/a.html", &[], "not cacheable: request URL is missing in cache rules");
}

#[test]
fn ca62_without_a_document_root_nothing_is_cached() {
    let origin = html();
    // The last of two sections counts.
    let farm = "/cache { /rules { /0 { /type \"allow\" /glob \"*\" } } }";
    let text = Setup { farm, renders: vec![origin.addr()], ..Setup::default() }.text("/".as_ref());
    let (before, rest) = text.split_once("/docroot \"/\"").unwrap();
    let front = Front::start_text(&format!("{before}{rest}"));
    let expected = "not cacheable: document root non-existent";
    assert_eq!(verdict(&front, "GET", "/a.html", &[]), expected);
    assert_eq!(origin.request_count(), 2);
}

#[test]
fn ca81_a_login_cookie_keeps_a_page_out_of_the_cache_in_both_directions() {
    let origin =
        OriginServer::start(|seen| OriginResponse::html(format!("{:?}", seen.header("cookie"))));
    let front = front(&origin, "");
    for name in ["login-token", "authorization"] {
        let cookie = format!("a=b; {name}=secret");
        let mine = front.send("GET", "/a.html", &[("Cookie", &cookie)], "");
        assert!(mine.body.contains("secret"), "{}", mine.body);
        assert_eq!(mine.info(), "not cacheable: request contains authorization");
        assert!(!front.has("a.html"));
    }
    assert!(!front.get("/a.html").body.contains("secret"));
    let cookie = [("Cookie", "login-token=secret")];
    assert!(
        front.send("GET", "/a.html", &cookie, "").body.contains("secret"),
        "not from the cache"
    );
    assert!(front.get("/a.html").is_hit());
}

#[test]
fn ca81_a_cookie_that_is_no_text_hides_no_login_cookie() {
    let origin =
        OriginServer::start(|seen| OriginResponse::html(format!("{:?}", seen.header("cookie"))));
    let front = front(&origin, "");
    for cookie in ["name=\u{e9}; login-token=secret", "login-token=secr\u{e9}t"] {
        let mine = front.send("GET", "/a.html", &[("Cookie", cookie)], "");
        assert_eq!(mine.info(), "not cacheable: request contains authorization", "{cookie}");
        assert!(!front.has("a.html"), "{cookie}");
    }
}

#[test]
fn ca75_a_byte_beyond_ascii_hides_no_directive() {
    for header in ["Cache-Control", "Pragma", "Dispatcher"] {
        let answer = OriginResponse::html("page").with_header(header, "x=\u{e9}, no-cache");
        let origin = OriginServer::start_constant(answer);
        let front = front(&origin, "");
        front.get("/a.html");
        assert_eq!(front.files(), Vec::<String>::new(), "{header}");
    }
}

#[test]
fn ca68_credentials_are_cached_where_it_is_allowed() {
    let origin = html();
    let front = front(&origin, "/allowAuthorized 1");
    let headers = [("Authorization", "Basic eDp5")];
    assert_eq!(verdict(&front, "GET", "/a.html", &headers), "target file cached");
}

#[test]
fn ca73_the_visitors_request_for_a_new_copy_does_not_count() {
    let origin = html();
    let front = front(&origin, "");
    let headers = [("Cache-Control", "no-cache"), ("Pragma", "no-cache")];
    assert_eq!(verdict(&front, "GET", "/a.html", &headers), "target file cached");
    assert_eq!(origin.request_count(), 1);
}

#[test]
fn ca74_to_ca76_answers_that_are_not_cached_say_why() {
    let check = |answer: OriginResponse, expected: &str| {
        let origin = OriginServer::start_constant(answer.clone());
        let front = front(&origin, "");
        assert_eq!(verdict(&front, "GET", "/a.html", &[]), expected, "{answer:?}");
        assert_eq!(front.files(), Vec::<String>::new(), "{answer:?}");
        assert_eq!(origin.request_count(), 2, "{answer:?}");
    };
    let page = || OriginResponse::html("page");
    for status in [404, 301, 500, 203] {
        check(
            OriginResponse::with_status(status).with_body("x"),
            "not cacheable: response status is not 200",
        );
    }
    check(
        page().with_header("Dispatcher", "no-cache"),
        "not cacheable: response contains no_cache",
    );
    check(page().with_header("Pragma", "no-cache"), "not cacheable: response contains no_cache");
    let forbidden = "not cacheable: response contains cache-control that forbids it";
    for directive in ["no-cache", "no-store", "must-revalidate", "private", "max-age=60, Private"] {
        check(page().with_header("Cache-Control", directive), forbidden);
    }
    check(OriginResponse::html(""), "not cacheable: response content length is zero");
    check(page().with_header("Content-Encoding", "compress"), "not cacheable: response is encoded");
}

#[test]
fn pages_that_are_stored_in_spite_of_a_header_are_counted() {
    let check = |answer: OriginResponse, expected: (u64, u64)| {
        let origin = OriginServer::start_constant(answer.clone());
        let front = front(&origin, "");
        front.get("/a.html");
        front.wait_for("stored_total", 1);
        front.wait_for("cookies_omitted_total", expected.0);
        let counted =
            (front.metric("cookies_omitted_total"), front.metric("header_variants_total"));
        assert_eq!(counted, expected, "{answer:?}");
    };
    let page = || OriginResponse::html("page");
    check(page(), (0, 0));
    check(page().with_header("Vary", "accept-encoding, Surrogate-Capability"), (0, 0));
    check(page().with_header("Vary", "Accept-Encoding, Cookie"), (0, 1));
    check(page().with_header("Set-Cookie", "a=b").with_header("Vary", "X-A"), (1, 1));
    check(OriginResponse::html(vec![b'x'; 3_000_000]).with_header("Set-Cookie", "a=b"), (1, 0));
}

#[test]
fn ca75_the_dispatcher_header_stays_inside() {
    let origin = OriginServer::start_constant(
        OriginResponse::html("page").with_header("Dispatcher", "no-cache"),
    );
    assert_eq!(front(&origin, "").get("/a.html").header("dispatcher"), None);
}

#[test]
fn ca77_an_answer_that_breaks_off_leaves_no_file() {
    // Before anything was sent on, an error is better than half a page; afterwards only the cut tells.
    for (size, sent, status) in [(1000, 500, 502), (3_000_000, 2_000_000, 200)] {
        let origin = OriginServer::start(move |_| {
            OriginResponse::html(vec![b'x'; size]).with_delivery(ResponseDelivery::CutAfter(sent))
        });
        let front = front(&origin, "");
        let reply = front.get("/a.html");
        assert_eq!((reply.status, reply.is_complete), (status, status == 502), "{size}");
        assert!(reply.body.len() <= sent, "{size}");
        front.wait_for("fetches", 0);
        assert_eq!(front.files(), Vec::<String>::new(), "{size}");
    }
}

#[test]
fn ca78_a_post_is_forwarded_with_its_body_and_stores_nothing() {
    let origin = OriginServer::start(|seen| OriginResponse::html(seen.body.clone()));
    let front = front(&origin, "");
    let reply = front.send("POST", "/a.html", &[], "text");
    assert_eq!((reply.status, reply.body.as_str()), (200, "text"));
    assert_eq!(front.files(), Vec::<String>::new());
}

#[test]
fn ca79_a_head_is_served_but_never_stored() {
    let origin = html();
    let front = front(&origin, "");
    let miss = front.send("HEAD", "/a.html", &[], "");
    assert_eq!((miss.status, miss.body.as_str()), (200, ""));
    assert!(miss.info().contains("request was a HEAD"), "{}", miss.info());
    assert_eq!(front.files(), Vec::<String>::new());
    front.get("/a.html");
    let hit = front.send("HEAD", "/a.html", &[], "");
    assert!(hit.is_hit());
    assert_eq!(hit.header("content-length"), Some("12"));
    assert_eq!(hit.body, "");
    assert_eq!(origin.request_count(), 2);
}

#[test]
fn ca80_ignored_parameters_do_not_count() {
    let check = |cache, target: &str, expected: bool| {
        let origin = html();
        let front = front(&origin, cache);
        front.get("/a.html");
        assert_eq!(front.get(target).is_hit(), expected, "{target}");
    };
    let allow_list = "/ignoreUrlParams { /0 { /glob \"*\" /type \"deny\" } /1 { /glob \"utm_*\" /type \"allow\" } }";
    check(allow_list, "/a.html?utm_source=x", true);
    check(allow_list, "/a.html?utm_source=", true);
    check(allow_list, "/a.html?utm_source", true);
    check(allow_list, "/a.html?utm_source=x&utm_source=y", true);
    check(allow_list, "/a.html?%75tm_source=x", true);
    check(allow_list, "/a.html?utm_source=x&q=y", false);
    check(allow_list, "/a.html?q=utm_source", false);
    let deny_list =
        "/ignoreUrlParams { /0 { /glob \"*\" /type \"allow\" } /1 { /glob \"q\" /type \"deny\" } }";
    check(deny_list, "/a.html?anything=x", true);
    check(deny_list, "/a.html?anything=x&q=y", false);
}

#[test]
fn ca80_the_render_still_sees_ignored_parameters() {
    let origin = html();
    let front = front(&origin, "/ignoreUrlParams { /0 { /glob \"*\" /type \"allow\" } }");
    front.get("/a.html?utm_source=x");
    assert_eq!(origin.requests()[0].target, "/a.html?utm_source=x");
    assert_eq!(front.files(), ["a.html"]);
}

#[test]
fn a_page_that_everyone_gets_is_rendered_without_what_one_visitor_added() {
    let origin = html();
    let front = front(
        &origin,
        "/x-stripIgnored 1 /x-cacheKeyParams { /0 { /glob \"page\" /type \"allow\" } }
         /ignoreUrlParams { /0 { /glob \"*\" /type \"deny\" } /1 { /glob \"utm_*\" /type \"allow\" } }",
    );
    for (asked, drawn) in [
        ("/a.html?utm_source=x", "/a.html"),
        ("/b.html?utm_a=1&page=2&utm_b=3", "/b.html?page=2"),
        ("/c.html?utm_a=1&id=7", "/c.html?utm_a=1&id=7"),
        ("/d.html", "/d.html"),
    ] {
        assert_eq!(front.get(asked).body, format!("page {drawn}"), "{asked}");
    }
    front.flush("Activate", "/a", &["/a.html?utm_source=y"]);
    front.wait_for("refetches_total", 1);
    assert_eq!(front.read("a.html"), "page /a.html");
}

#[test]
fn ca82_a_cookie_reaches_its_visitor_and_nobody_else() {
    let origin = OriginServer::start_constant(
        OriginResponse::html("page").with_header("Set-Cookie", "session=1"),
    );
    let front = front(&origin, "/headers { \"Set-Cookie\" \"X-Kept\" }");
    assert_eq!(front.get("/a.html").header("set-cookie"), Some("session=1"));
    let hit = front.get("/a.html");
    assert!(hit.is_hit());
    assert_eq!(hit.header("set-cookie"), None);
}

#[test]
fn ca83_named_headers_are_cached_with_repeats_and_others_not() {
    let origin = OriginServer::start_constant(
        OriginResponse::html("page")
            .with_header("X-Kept", "1")
            .with_header("Link", "</a>; rel=x")
            .with_header("Link", "</b>; rel=x")
            .with_header("X-Lost", "1"),
    );
    let front = front(&origin, "/headers { \"x-kept\" \"LINK\" }");
    assert_eq!(front.get("/a.html").header("x-lost"), Some("1"));
    let hit = front.get("/a.html");
    assert!(hit.is_hit());
    assert_eq!(hit.header("x-kept"), Some("1"));
    assert_eq!(hit.header("x-lost"), None);
    let links = hit.headers.iter().filter(|(name, _)| name == "link").count();
    assert_eq!(links, 2);
    assert_eq!(front.files(), ["a.html", "a.html.h"]);
}

#[test]
fn headers_that_protect_visitors_are_cached_whatever_the_farm_names() {
    let protecting = [
        ("content-security-policy", "sandbox"),
        ("content-security-policy-report-only", "default-src 'self'"),
        ("content-disposition", "attachment"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cross-origin-embedder-policy", "require-corp"),
        ("permissions-policy", "camera=()"),
        ("referrer-policy", "no-referrer"),
        ("strict-transport-security", "max-age=60"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
    ];
    let answer = protecting
        .iter()
        .fold(OriginResponse::html("page").with_header("X-Lost", "1"), |answer, (name, value)| {
            answer.with_header(name, value)
        });
    let origin = OriginServer::start_constant(answer);
    for cache in ["", "/headers { \"X-Kept\" }", "/headers { \"X-Kept\" } /x-compress 1"] {
        let front = front(&origin, cache);
        front.get("/a.svg");
        let check = |asked: &str, reply: crate::front::Reply| {
            assert!(reply.is_hit(), "{asked}");
            for (name, value) in protecting {
                assert_eq!(reply.header(name), Some(value), "{asked}: {name}");
            }
            assert_eq!(reply.header("x-lost"), None);
        };
        check("first", front.get("/a.svg"));
        check("second", front.get("/a.svg"));
        check("HEAD", front.send("HEAD", "/a.svg", &[], ""));
        let part = front.send("GET", "/a.svg", &[("Range", "bytes=0-1")], "");
        assert_eq!((part.status, part.header("content-security-policy")), (206, Some("sandbox")));
    }
}

#[test]
fn what_has_path_parameters_is_not_cached() {
    let origin = html();
    let front = front(&origin, "");
    let why = "not cacheable: request URL has path parameters";
    for target in ["/a.html;x=1", "/a;v='1.0'.html", "/dam/a;x=2.jpg", "/a.html;"] {
        assert_eq!(verdict(&front, "GET", target, &[]), why, "{target}");
    }
    assert_eq!(front.files(), [""; 0]);
    assert_eq!(verdict(&front, "GET", "/a%3Bb.html", &[]), "target file cached");
}

#[test]
fn ca83_a_type_that_the_name_does_not_tell_is_cached() {
    let typed = |kind: &'static str| {
        OriginServer::start(move |_| {
            OriginResponse::with_status(200).with_body("page").with_header("Content-Type", kind)
        })
    };
    let usual = typed("text/html;charset=UTF-8");
    let front_of_usual = front(&usual, "");
    front_of_usual.get("/a.html");
    assert_eq!(front_of_usual.files(), ["a.html"]);
    let odd = typed("text/html; charset=iso-8859-1");
    let front_of_odd = front(&odd, "");
    front_of_odd.get("/a.html");
    let hit = front_of_odd.get("/a.html");
    assert!(hit.is_hit());
    assert_eq!(hit.header("content-type"), Some("text/html; charset=iso-8859-1"));
    assert_eq!(front_of_odd.files(), ["a.html", "a.html.h"]);
}

#[test]
fn ca84_files_get_the_configured_mode() {
    use std::os::unix::fs::PermissionsExt;
    let origin = html();
    let front = front(&origin, "/mode 0700");
    front.get("/a/b.html");
    for name in ["a", "a/b.html"] {
        let mode = front.file(name).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, 0o700, "{name}");
    }
}

#[test]
fn ca85_a_page_and_its_suffix_pages_live_side_by_side() {
    let origin = html();
    let urls = ["/home.html", "/home.html/a/s.html", "/home.html/s.html/t.html", "/dam/a.jpg"];
    let more = ["/dam/a.jpg/_jcr_content/b.png", "/etc.clientlibs/c.css", "/v1.2/d.html"];
    let urls = [&urls[..], &more].concat();
    let backwards = urls.iter().rev().copied().collect::<Vec<_>>();
    for order in [&urls, &backwards] {
        let front = front(&origin, "");
        for url in order {
            front.get(url);
            let again = front.get(url);
            let page = format!("page {url}");
            assert_eq!((again.info(), &again.body), ("target file cached", &page));
        }
        let files = [
            "dam/a.jpg",
            "dam/a.jpg.s~/_jcr_content/b.png",
            "etc.clientlibs/c.css",
            "home.html",
            "home.html.s~/a/s.html",
            "home.html.s~/s.html.s~/t.html",
            "v1.2/d.html",
        ];
        let bodies = || {
            let all = front.files().into_iter();
            all.filter(|name| !name.ends_with(".h")).collect::<Vec<_>>()
        };
        assert_eq!(bodies(), files);
        front.advance(1);
        for (handle, left) in [("/home", 4), ("/dam/a.jpg/jcr:content", 4), ("/dam/a.jpg", 2)] {
            front.flush("Activate", handle, &[]);
            assert_eq!(bodies().len(), left, "{handle}: {:?}", bodies());
        }
    }
}

/// Earlier versions kept `/home.html/s.html` in a folder `home.html`.
#[test]
fn suffix_pages_of_an_earlier_layout_make_way_for_the_page() {
    let origin = html();
    let front = front(&origin, "");
    let old = || {
        front.write("home.html/s.html", "old");
        front.write("home.html/t.html", "old");
    };
    // What is kept goes on from where it is looked for now.
    old();
    assert_eq!(front.get("/home.html").body, "page /home.html");
    assert!(front.get("/home.html").is_hit());
    assert_eq!(front.get("/home.html/s.html").body, "old");
    front.advance(1);
    front.flush("Activate", "/home", &[]);
    assert!(front.files().is_empty(), "{:?}", front.files());
    // A flush takes away what still lies in the earlier folder.
    old();
    front.flush("Activate", "/home", &[]);
    assert!(front.files().is_empty(), "{:?}", front.files());
    // Nobody gets it beside a newer folder.
    assert_eq!(front.get("/home.html/s.html").body, "page /home.html/s.html");
    old();
    front.get("/home.html");
    assert!(front.get("/home.html").is_hit());
    assert_eq!(front.get("/home.html/t.html").body, "page /home.html/t.html");
    let files = front.files();
    assert_eq!(files, ["home.html", "home.html.s~/s.html", "home.html.s~/t.html"]);
}

#[test]
fn a_large_page_is_stored_and_shared_whole() {
    let size = 5_000_000;
    let origin = OriginServer::start(move |_| {
        let bytes: Vec<u8> = (0..size).map(|at| b'a' + (at % 23) as u8).collect();
        OriginResponse::html(bytes)
    });
    let front = front(&origin, "");
    let miss = front.get("/a.html");
    assert!(miss.is_complete);
    front.wait_for("stored_total", 1);
    let hit = front.get("/a.html");
    assert!(hit.is_hit() && hit.is_complete);
    assert!(miss.body == hit.body && hit.body.len() == size);
    let part = front.send("GET", "/a.html", &[("Range", "bytes=4000000-4999999")], "");
    assert_eq!(part.status, 206);
    assert!(part.body == hit.body[4_000_000..]);
}

#[test]
fn a_cache_that_cannot_be_written_still_serves() {
    for size in [1000, 3_000_000] {
        let origin = OriginServer::start(move |_| OriginResponse::html(vec![b'x'; size]));
        let front = front(&origin, "");
        // A file where a folder is wanted stands in for a full disk.
        front.write("sub", "");
        let reply = front.get("/sub/a.html");
        assert_eq!((reply.status, reply.body.len(), reply.is_complete), (200, size, true));
        front.wait_for("fetches", 0);
        assert_eq!(front.files(), ["sub"]);
    }
}

#[test]
fn a_document_root_that_someone_replaced_is_used_again() {
    let origin = html();
    let front = front(&origin, "");
    front.get("/a.html");
    for entry in std::fs::read_dir(front.file("")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap();
        } else {
            std::fs::remove_file(path).unwrap();
        }
    }
    assert_eq!(front.get("/a.html").info(), "caching");
    assert_eq!(front.files(), ["a.html"]);
    std::fs::remove_dir_all(front.file("")).unwrap();
    std::fs::create_dir(front.file("")).unwrap();
    assert_eq!(front.get("/b.html").info(), "caching");
    assert_eq!(front.files(), ["b.html"]);
    std::fs::remove_dir_all(front.file("")).unwrap();
    assert_eq!(front.get("/c.html").info(), "caching");
    front.flush("Activate", "/c", &[]);
    assert_eq!(front.files(), Vec::<String>::new());
    assert_eq!(front.stats(), [".stat"]);
}

#[test]
fn ca67_pages_behind_a_session_are_not_cached() {
    let origin = html();
    let front = Front::start(&Setup {
        farm: "/sessionmanagement { /directory \"/tmp/sessions\" }",
        renders: vec![origin.addr()],
        ..Setup::default()
    });
    let expected = "not cacheable: session manager needs to authenticate";
    assert_eq!(verdict(&front, "GET", "/a.html", &[]), expected);
    assert_eq!(front.files(), Vec::<String>::new());
}

#[test]
fn rules_may_name_parts_of_the_path() {
    let origin = html();
    let front = Front::start(&Setup {
        cache: "/rules {
            /0 { /type \"deny\" /glob \"*\" }
            /1 { /type \"allow\" /path \"/content/*\" /extension '(html|json)' }
            /2 { /type \"deny\" /selectors \"search\" /extension \"html\" }
            /3 { /type \"deny\" /suffix \"/private/*\" }
            /4 { /type \"allow\" /glob \"*.print.html\" /selectors \"print\" }
        }",
        renders: vec![origin.addr()],
        ..Setup::default()
    });
    let check = |target: &str, is_cached: bool| {
        let expected = match is_cached {
            true => "target file cached",
            false => "not cacheable: request URL is missing in cache rules",
        };
        assert_eq!(verdict(&front, "GET", target, &[]), expected, "{target}");
    };
    check("/content/a.html", true);
    check("/content/a.json", true);
    check("/content/a.xml", false);
    check("/other/a.html", false);
    check("/content/a.search.html", false);
    check("/content/a.x.search.html", false);
    check("/content/a.search.json", true);
    check("/content/a.html/x.html", true);
    check("/content/a.html/private/x.html", false);
    check("/other/a.print.html", true);
}
