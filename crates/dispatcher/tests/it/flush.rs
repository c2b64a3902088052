//! Flush messages (`FL`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tympan_dispatcher::FlushKeys;
use tympan_testkit::origin_server::{OriginGate, OriginResponse, OriginServer, exchange_bytes};

use crate::front::{Front, Setup, front};

/// Numbers its answers and names what was asked for.
fn counting() -> OriginServer {
    let count = AtomicUsize::new(0);
    OriginServer::start(move |seen| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        OriginResponse::html(format!("{} {number}", seen.target))
    })
}

const FILES: [&str; 14] = [
    "content/de.html",
    "content/en",
    "content/en.html",
    "content/en.html.h",
    "content/en.html.ttl",
    "content/en.print.a4.html",
    "content/english.html",
    "content/en-us.html",
    "content/sub.html",
    "other/en.html",
    "content/dam/a.jpg",
    "content/dam/a.jpg/_jcr_content/renditions/thumb.png",
    "content/dam/a.jpg.thumb.png",
    "content/dam/b.jpg",
];

/// A document root in which `content/en` may be a folder.
fn fill(front: &Front) {
    for name in FILES {
        if name != "content/en" && name != "content/dam/a.jpg" {
            front.write(name, name);
        }
    }
    front.write("content/en/sub.html", "sub");
    front.write("content/en/_jcr_content/image.png", "image");
    front.write("content/en.suffix.html/a/b.html", "suffix");
}

#[test]
fn a_flush_takes_files_with_path_parameters_and_both_spellings_of_content() {
    let origin = counting();
    for action in ["Activate", "Deactivate"] {
        let front = front(&origin, "");
        // As caches of older versions hold them.
        let files = [
            "content/dam/a.jpg",
            "content/dam/a;x='1'.jpg",
            "content/dam/a.jpg;v=1",
            "content/dam/a.jpg;x=1.html",
            "content/dam/a;x='p/q'.jpg",
        ];
        for name in files {
            front.write(name, name);
        }
        front.write("content/dam/ab;x=1.jpg", "another");
        front.flush(action, "/content/dam/a.jpg", &[]);
        assert_eq!(front.files(), ["content/dam/ab;x=1.jpg"], "{action}");
        front.write("content/en/jcr:content/a.json", "content");
        front.write("content/en/_jcr_content/a.json", "content");
        front.flush(action, "/content/en", &[]);
        assert_eq!(front.files(), ["content/dam/ab;x=1.jpg"], "{action}");
    }
}

/// Flushes and returns which files are gone.
fn gone_after(action: &str, handle: &str, headers: &[(&str, &str)]) -> Vec<String> {
    let origin = counting();
    let front = front(&origin, "/statfileslevel 1");
    fill(&front);
    let before = front.files();
    let mut all = vec![("CQ-Action", action), ("CQ-Handle", handle)];
    all.extend(headers);
    let reply = front.send("POST", "/dispatcher/invalidate.cache", &all, "");
    assert_eq!((reply.status, reply.body.as_str()), (200, "<H1>OK</H1>\r\n"));
    let after = front.files();
    before.into_iter().filter(|name| !after.contains(name)).collect()
}

const ENGLISH: [&str; 6] = [
    "content/en.html",
    "content/en.html.h",
    "content/en.html.ttl",
    "content/en.print.a4.html",
    "content/en.suffix.html/a/b.html",
    "content/en/_jcr_content/image.png",
];

#[test]
fn fl101_get_and_post_flush() {
    for method in ["GET", "POST"] {
        let origin = counting();
        let front = front(&origin, "");
        front.write("content/en.html", "old");
        let headers = [("CQ-Action", "Activate"), ("CQ-Handle", "/content/en"), ("Host", "flush")];
        let reply = front.send(method, "/dispatcher/invalidate.cache", &headers, "");
        assert_eq!(reply.status, 200, "{method}");
        assert!(!front.has("content/en.html"), "{method}");
    }
}

#[test]
fn fl102_a_foreign_address_changes_nothing() {
    let origin = counting();
    let front = front(&origin, "/allowedClients { /0 { /glob \"*.*.*.*\" /type \"deny\" } }");
    front.write("content/en.html", "old");
    assert_eq!(front.flush("Activate", "/content/en", &["/content/en.html"]).status, 403);
    assert!(front.has("content/en.html"));
    assert_eq!(front.stats(), Vec::<String>::new());
    assert_eq!(front.metric("flushes_refused_total"), 1);
}

#[test]
fn fl103_an_activation_deletes_the_files_of_the_page() {
    for action in ["Activate", "activate", "Reorder"] {
        assert_eq!(gone_after(action, "/content/en", &[]), ENGLISH, "{action}");
    }
}

#[test]
fn fl104_a_deletion_takes_the_folder_too() {
    for action in ["Delete", "Deactivate"] {
        let mut expected: Vec<&str> = ENGLISH.to_vec();
        expected.push("content/en/sub.html");
        assert_eq!(gone_after(action, "/content/en", &[]), expected, "{action}");
    }
}

#[test]
fn fl105_a_change_of_the_resource_only_touches_nothing() {
    let origin = counting();
    let front = front(&origin, "");
    front.get("/content/de.html");
    front.write("content/en.html", "old");
    let headers = [
        ("CQ-Action", "Activate"),
        ("CQ-Handle", "/content/en"),
        ("CQ-Action-Scope", "ResourceOnly"),
    ];
    assert_eq!(front.send("POST", "/x", &headers, "").status, 200);
    assert!(!front.has("content/en.html"));
    assert_eq!(front.stats(), Vec::<String>::new());
    assert!(front.get("/content/de.html").is_hit());
}

#[test]
fn fl106_a_test_changes_nothing() {
    let origin = counting();
    let front = front(&origin, "");
    front.write("content/en.html", "old");
    assert_eq!(front.flush("Test", "/content/en", &[]).status, 200);
    assert!(front.has("content/en.html"));
    assert_eq!(front.stats(), Vec::<String>::new());
}

#[test]
fn fl107_an_asset_takes_its_renditions_along() {
    let expected =
        ["content/dam/a.jpg.thumb.png", "content/dam/a.jpg/_jcr_content/renditions/thumb.png"];
    assert_eq!(gone_after("Activate", "/content/dam/a.jpg", &[]), expected);
}

#[test]
fn fl108_deleting_the_root_empties_it() {
    let origin = counting();
    let front = front(&origin, "");
    fill(&front);
    assert_eq!(front.flush("Delete", "/", &[]).status, 200);
    assert_eq!(front.files(), Vec::<String>::new());
    assert_eq!(front.stats(), [".stat"]);
    front.get("/content/en.html");
    assert_eq!(front.files(), ["content/en.html"]);
}

#[test]
fn fl109_a_handle_that_is_no_path_is_refused() {
    let origin = counting();
    let front = front(&origin, "");
    fill(&front);
    let before = front.files();
    for handle in ["", "content/en", "/content/../etc", "/.."] {
        let reply = front.flush("Delete", handle, &[]);
        assert_eq!(reply.status, 400, "{handle}");
    }
    let missing = front.send("POST", "/x", &[("CQ-Action", "Delete")], "");
    assert_eq!(missing.status, 400);
    assert_eq!(front.flush("Explode", "/content/en", &[]).status, 400);
    assert_eq!(front.files(), before);
    assert_eq!(front.stats(), Vec::<String>::new());
}

#[test]
fn a_handle_names_its_files_in_whatever_way_its_agent_writes_it() {
    let pages =
        ["content/a b/ü.html", "content/a b/ü/_jcr_content/x.html", "content/_my_page.html"];
    let check = |handle: &[u8], action: &str, expected: &[&str]| {
        let origin = counting();
        let front = front(&origin, "/statfileslevel 2");
        for page in pages {
            front.write(page, "page");
        }
        let head =
            format!("POST /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\nCQ-Action: {action}\r\n");
        let request = [head.as_bytes(), b"CQ-Handle: ", handle, b"\r\n\r\n"].concat();
        let answer = tympan_testkit::origin_server::exchange_bytes(front.addr, &request);
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        let mut left = front.files();
        left.retain(|file| pages.contains(&file.as_str()));
        let gone: Vec<&str> =
            pages.into_iter().filter(|page| !left.iter().any(|file| file == page)).collect();
        assert_eq!(gone, expected, "{}", String::from_utf8_lossy(handle));
        // Their neighbors are stale, too, unless their folder is gone.
        let is_below = expected.iter().any(|page| page.starts_with("content/a b"));
        let is_touched = front.stats().contains(&"content/a b/.stat".to_owned());
        assert_eq!(is_touched, is_below && action == "Activate");
    };
    let page = &pages[..2];
    check("/content/a b/ü".as_bytes(), "Activate", page);
    check(b"/content/a b/\xfc", "Activate", page);
    check(b"/content/a%20b/%C3%BC", "Activate", page);
    check(b"/content/a%20b", "Delete", page);
    check(b"/content/my:page", "Activate", &pages[2..]);
    check(b"/content/%2e", "Delete", &[]);
    check(b"/content/x/%2e%2e", "Delete", &[]);
    // No file has such a name, and its agent must not wait for ever.
    check(format!("/content/{}", "a".repeat(300)).as_bytes(), "Delete", &[]);
}

#[test]
fn fl110_links_are_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("en.html"), "precious").unwrap();
    let origin = counting();
    let front = front(&origin, "/statfileslevel 5");
    front.write("content/x.html", "x");
    let link = |name: &str| std::os::unix::fs::symlink(outside.path(), front.file(name)).unwrap();
    link("content/en");
    link("content/en.linked");
    link("linked");
    front.flush("Delete", "/content/en", &[]);
    front.flush("Delete", "/linked/en", &[]);
    front.flush("Activate", "/linked/en", &["/linked/en.html"]);
    front.wait_for("refetch_queue", 0);
    front.flush("Delete", "/", &[]);
    let left: Vec<_> = std::fs::read_dir(outside.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(std::fs::read_to_string(outside.path().join("en.html")).unwrap(), "precious");
}

#[test]
fn links_are_neither_served_nor_written_through() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("en.html"), "secret").unwrap();
    let origin = counting();
    let front = front(&origin, "");
    std::os::unix::fs::symlink(outside.path(), front.file("linked")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("en.html"), front.file("en.html")).unwrap();
    assert_eq!(front.get("/linked/en.html").body, "/linked/en.html 1");
    assert_eq!(front.get("/linked/new.html").body, "/linked/new.html 2");
    assert_eq!(front.get("/en.html").body, "/en.html 3");
    assert!(!outside.path().join("new.html").exists());
    assert_eq!(std::fs::read_to_string(outside.path().join("en.html")).unwrap(), "secret");
}

#[test]
fn fl111_the_handler_gets_handle_action_and_scope() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (program, told) = (folder.path().join("handler"), folder.path().join("told"));
    let script =
        format!("#!/bin/sh\nfor value; do echo \"<$value>\"; done >> {}\n", told.display());
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let origin = counting();
    let text = format!("/invalidateHandler \"{}\"", program.display());
    let front = front(&origin, Box::leak(text.into_boxed_str()));
    front.flush("Activate", "/content/a b; rm -rf", &[]);
    let scope = [
        ("CQ-Action", "Delete"),
        ("CQ-Handle", "/content/en"),
        ("CQ-Action-Scope", "ResourceOnly"),
    ];
    front.send("POST", "/x", &scope, "");
    let expected =
        "</content/a b; rm -rf>\n<Activate>\n<>\n</content/en>\n<Delete>\n<ResourceOnly>\n";
    assert_eq!(std::fs::read_to_string(&told).unwrap(), expected);
}

#[test]
fn fl112_a_flush_is_forwarded_where_it_is_wanted() {
    let origin = counting();
    let front = Front::start(&Setup {
        farm: "/propagateSyndPost 1",
        renders: vec![origin.addr()],
        ..Setup::default()
    });
    assert_eq!(front.flush("Activate", "/content/en", &[]).status, 200);
    origin.wait_for_requests(1);
    let seen = origin.requests();
    assert_eq!(seen[0].method, "POST");
    assert_eq!(seen[0].target, "/dispatcher/invalidate.cache");
    assert_eq!(seen[0].header("cq-handle"), Some("/content/en"));
}

#[test]
fn fl113_refetched_pages_stay_until_their_replacement_is_there() {
    let gate = OriginGate::default();
    let (door, count) = (gate.clone(), AtomicUsize::new(0));
    let origin = OriginServer::start(move |seen| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        if number > 3 {
            door.wait_open();
        }
        OriginResponse::html(format!("{} {number}", seen.target))
    });
    let front = front(&origin, "");
    for page in ["/content/en.html", "/content/en.print.html", "/content/en.lost.html"] {
        front.get(page);
    }
    front.flush("Activate", "/content/en", &["/content/en.print.html", "/content/en.html"]);
    assert_eq!(front.files(), ["content/en.html", "content/en.print.html"]);
    origin.wait_for_requests(4);
    for _ in 0..5 {
        let old = front.get("/content/en.html");
        assert!(old.is_hit());
        assert_eq!(old.body, "/content/en.html 1");
        assert_eq!(front.get("/content/en.print.html").body, "/content/en.print.html 2");
    }
    gate.open();
    front.wait_for("refetches_total", 2);
    assert_eq!(front.get("/content/en.html").body, "/content/en.html 5");
    assert!(front.get("/content/en.html").is_hit());
    let order: Vec<String> =
        origin.requests()[3..].iter().map(|seen| seen.target.clone()).collect();
    assert_eq!(order, ["/content/en.print.html", "/content/en.html"]);
}

#[test]
fn fl113_refetched_pages_are_rendered_as_for_their_visitors() {
    let origin = OriginServer::start(|seen| {
        let told = ["host", "x-forwarded-proto", "x-forwarded-port", "x-forwarded-ssl"];
        let told = told.map(|name| seen.header(name).unwrap_or("-"));
        let cookie = seen.header("cookie").unwrap_or("-");
        OriginResponse::html(format!("{} {cookie}", told.join(" ")))
    });
    let settings = "[front]\ntrusted_proxies = [\"127.0.0.1\"]";
    for (farm, settings) in [
        // A proxy in front ends the TLS, and no host is written out.
        ("", settings),
        ("", ""),
        ("/virtualhosts { \"www.example.com\" }", settings),
    ] {
        let front = Front::start(&Setup {
            farm,
            renders: vec![origin.addr()],
            settings: settings.to_owned(),
            ..Setup::default()
        });
        let visit = |page: &str, host: &str, proto: &str| {
            let headers = [
                ("Host", host),
                ("X-Forwarded-Proto", proto),
                ("X-Forwarded-Port", "8443"),
                ("Cookie", "me=1"),
            ];
            front.send("GET", page, &headers, "").body
        };
        let host = "www.example.com";
        let (mine, other) =
            (visit("/content/a/en.html", host, "https"), visit("/content/b/en.html", host, "http"));
        assert!(mine.starts_with("www.example.com https ") && mine.ends_with("me=1"), "{mine}");
        // Who is nobody's visitor decides about nothing.
        if !farm.is_empty() {
            visit("/content/a/evil.html", "evil.example.com", "https");
        }
        let pages = ["/content/a/en.html", "/content/b/en.html", "/content/a/new.html"];
        front.flush("Activate", "/content/none", &pages);
        front.wait_for("refetches_total", 3);
        let drawn = |page: &str| front.read(page.trim_start_matches('/'));
        let plain = |page: &str| page.replace("me=1", "-");
        assert_eq!(drawn(pages[0]), plain(&mine), "{farm}");
        assert_eq!(drawn(pages[1]), plain(&other), "{farm}");
        // A new page is drawn as others of its site, but for what is no trusted proxy's word.
        let new =
            if settings.is_empty() { "www.example.com - 80 - -".to_owned() } else { plain(&mine) };
        assert_eq!(drawn(pages[2]), new, "{farm}");
        if !farm.is_empty() {
            front.flush("Activate", "/content/none", &["/content/c/new.html"]);
            front.wait_for("refetches_total", 4);
            assert_eq!(drawn("/content/c/new.html"), "www.example.com - 80 - -", "{farm}");
        }
    }
}

#[test]
fn fl113_new_pages_are_rendered_for_the_host_that_is_written_out() {
    let origin = OriginServer::start(|seen| {
        OriginResponse::html(seen.header("host").unwrap_or("-").to_owned())
    });
    let front = Front::start(&Setup {
        farm: "/virtualhosts { \"www.example.com\" \"*\" }",
        renders: vec![origin.addr()],
        ..Setup::default()
    });
    front.send("GET", "/content/a/other.html", &[("Host", "evil.example.com")], "");
    front.flush("Activate", "/content/none", &["/content/a/new.html"]);
    front.wait_for("refetches_total", 1);
    assert_eq!(front.read("content/a/new.html"), "www.example.com");
}

#[test]
fn fl113_new_pages_are_rendered_for_the_port_at_which_visitors_come() {
    let origin = OriginServer::start(|seen| {
        let told = ["host", "x-forwarded-port", "x-forwarded-ssl"];
        OriginResponse::html(told.map(|name| seen.header(name).unwrap_or("-")).join(" "))
    });
    let drawn = |farm: &'static str, visitor: &dyn Fn(u16) -> String| {
        let front = Front::start(&Setup { farm, renders: vec![origin.addr()], ..Setup::default() });
        let host = visitor(front.addr.port());
        front.send("GET", "/content/a/old.html", &[("Host", &host)], "");
        front.flush("Activate", "/content/none", &["/content/a/old.html", "/content/a/new.html"]);
        front.wait_for("refetches_total", 2);
        let (old, new) = (front.read("content/a/old.html"), front.read("content/a/new.html"));
        (old.starts_with(&format!("{host} ")), new, front.addr.port())
    };
    let named = "/virtualhosts { \"www.example.com\" }";
    let (is_as_before, new, port) = drawn(named, &|port| format!("www.example.com:{port}"));
    assert_eq!((is_as_before, new), (true, format!("www.example.com:{port} {port} -")));
    // Nobody comes in at a port that a visitor makes up.
    let (is_as_before, new, _) = drawn(named, &|port| format!("www.example.com:{}", port ^ 1));
    assert_eq!((is_as_before, new.as_str()), (true, "www.example.com 80 -"));
    for (farm, expected) in [
        ("/virtualhosts { \"www.example.com:81\" }", "www.example.com:81 81 -"),
        ("/virtualhosts { \"https://www.example.com\" }", "www.example.com 443 on"),
    ] {
        let (_, new, _) = drawn(farm, &|_| "other.example.com".to_owned());
        assert_eq!(new, expected, "{farm}");
    }
}

#[test]
fn fl113_a_listed_page_without_a_file_is_fetched_too() {
    let origin = counting();
    let front = front(&origin, "");
    front.flush("Activate", "/content/en", &["/content/new.html", "/content/folder", "/../x.html"]);
    front.wait_for("refetches_total", 1);
    assert_eq!(front.files(), ["content/new.html"]);
    assert_eq!(origin.request_count(), 1);
}

#[test]
fn fl113_a_refetch_of_the_resource_only_leaves_the_neighbors_fresh() {
    let origin = counting();
    let front = front(&origin, "");
    front.get("/content/en.html");
    front.get("/content/de.html");
    let headers = [
        ("CQ-Action", "Activate"),
        ("CQ-Handle", "/content/dam/a.jpg"),
        ("CQ-Action-Scope", "ResourceOnly"),
        ("Content-Type", "text/plain"),
    ];
    front.send("POST", "/x", &headers, "/content/en.html\n");
    front.wait_for("refetches_total", 1);
    assert_eq!(front.get("/content/en.html").body, "/content/en.html 3");
    assert_eq!(front.get("/content/de.html").body, "/content/de.html 2");
    assert_eq!(origin.request_count(), 3);
}

#[test]
fn fl113_the_refetch_list_survives_a_crash_as_a_mark() {
    let gate = OriginGate::default();
    let (door, count) = (gate.clone(), AtomicUsize::new(0));
    let origin = OriginServer::start(move |seen| {
        if count.fetch_add(1, Ordering::SeqCst) == 1 {
            door.wait_open();
        }
        OriginResponse::html(format!("{} {}", seen.target, count.load(Ordering::SeqCst)))
    });
    let first = front(&origin, "");
    first.get("/a.png");
    first.flush("Activate", "/a", &["/a.png"]);
    origin.wait_for_requests(2);
    let root = first.stop();
    let second = Front::start_in(&Setup { renders: vec![origin.addr()], ..Setup::default() }, root);
    // Nothing else would tell that the image is old: it obeys no stat file.
    assert!(!second.get("/a.png").is_hit());
    gate.open();
}

#[test]
fn fl114_a_refetch_with_ignored_parameters_fills_the_file() {
    let origin = counting();
    let front = front(&origin, "/ignoreUrlParams { /0 { /glob \"*\" /type \"allow\" } }");
    front.flush("Activate", "/content/en", &["/content/en.html?x=1"]);
    front.wait_for("refetches_total", 1);
    assert_eq!(front.read("content/en.html"), "/content/en.html?x=1 1");
}

#[test]
fn fl115_a_refetched_page_that_is_gone_is_removed() {
    let count = AtomicUsize::new(0);
    let origin = OriginServer::start(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 => OriginResponse::html("page"),
        _ => OriginResponse::with_status(404),
    });
    let front = front(&origin, "");
    front.get("/a.html");
    front.flush("Activate", "/a", &["/a.html"]);
    front.wait_for("refetches_total", 1);
    assert_eq!(front.files(), Vec::<String>::new());
}

#[test]
fn fl115_a_refetch_that_fails_leaves_the_page_to_visitors() {
    let count = AtomicUsize::new(0);
    let origin = OriginServer::start(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 => OriginResponse::html("old"),
        1..=3 => OriginResponse::with_status(500),
        _ => OriginResponse::html("new"),
    });
    let front = front(&origin, "");
    front.get("/a.html");
    front.flush("Activate", "/a", &["/a.html"]);
    front.wait_for("refetch_failures_total", 1);
    assert_eq!(front.get("/a.html").body, "new");
    assert_eq!(origin.request_count(), 5);
}

#[test]
fn fl116_flushes_during_a_refetch_lead_to_one_more() {
    let gate = OriginGate::default();
    let (door, count) = (gate.clone(), AtomicUsize::new(0));
    let origin = OriginServer::start(move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        if number == 2 {
            door.wait_open();
        }
        OriginResponse::html(format!("version {number}"))
    });
    let front = front(&origin, "");
    front.get("/a.html");
    for _ in 0..5 {
        front.flush("Activate", "/a", &["/a.html"]);
        origin.wait_for_requests(2);
    }
    assert_eq!(front.get("/a.html").body, "version 1");
    gate.open();
    front.wait_for("refetches_total", 2);
    assert_eq!(front.get("/a.html").body, "version 3");
    assert_eq!(origin.request_count(), 3);
}

#[test]
fn fl117_after_a_storm_of_flushes_the_last_state_shows() {
    let state = Arc::new(AtomicUsize::new(0));
    let shown = Arc::clone(&state);
    let origin = OriginServer::start(move |_| {
        OriginResponse::html(shown.load(Ordering::SeqCst).to_string())
    });
    let front = Arc::new(front(&origin, ""));
    let visitors: Vec<_> = (0..3)
        .map(|_| {
            let front = Arc::clone(&front);
            std::thread::spawn(move || {
                for _ in 0..200 {
                    assert_eq!(front.get("/content/a.html").status, 200);
                }
            })
        })
        .collect();
    for number in 1..=200 {
        state.store(number, Ordering::SeqCst);
        let handle = if number % 2 == 0 { "/content/a" } else { "/content/b" };
        assert_eq!(front.flush("Activate", handle, &[]).status, 200);
    }
    for visitor in visitors {
        visitor.join().unwrap();
    }
    front.wait_for("fetches", 0);
    front.get("/content/a.html");
    assert_eq!(front.get("/content/a.html").body, "200");
}

#[test]
fn fl118_an_old_agent_over_http_1_0_is_answered_and_closed() {
    let origin = counting();
    let front = front(&origin, "");
    front.write("content/en.html", "old");
    let request = "POST /dispatcher/invalidate.cache HTTP/1.0\r\nCQ-Action: Activate\r\n\
                   CQ-Handle: /content/en\r\nCQ-Path: /content/en\r\nReferer: about:blank\r\n\
                   Connection: close\r\nContent-Length: 0\r\n\
                   Content-Type: application/octet-stream\r\nHost: flush\r\n\r\n";
    let answer = String::from_utf8(exchange_bytes(front.addr, request.as_bytes())).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    assert!(answer.ends_with("<H1>OK</H1>\r\n"), "{answer}");
    assert!(!front.has("content/en.html"));
}

#[test]
fn fl119_a_body_that_is_no_text_is_no_list() {
    let origin = counting();
    let front = front(&origin, "");
    front.write("content/en.html", "old");
    let headers = [
        ("CQ-Action", "Activate"),
        ("CQ-Handle", "/content/en"),
        ("Content-Type", "application/octet-stream"),
    ];
    front.send("POST", "/x", &headers, "/content/en.html\n");
    assert!(!front.has("content/en.html"));
    assert_eq!(origin.request_count(), 0);
}

#[test]
fn a_flush_does_not_depend_on_filter_and_rules() {
    let origin = counting();
    let front = Front::start(&Setup {
        farm: "/filter { /0 { /type \"deny\" /url \"*\" } }",
        cache: "/rules { /0 { /type \"deny\" /glob \"*\" } }",
        renders: vec![origin.addr()],
        ..Setup::default()
    });
    front.write("content/en.html", "old");
    assert_eq!(front.flush("Activate", "/content/en", &[]).status, 200);
    assert!(!front.has("content/en.html"));
}

#[test]
fn a_soft_flush_lets_nobody_wait() {
    let gate = OriginGate::default();
    let (door, count) = (gate.clone(), AtomicUsize::new(0));
    let origin = OriginServer::start(move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        if number == 2 {
            door.wait_open();
        }
        OriginResponse::html(format!("version {number}"))
    });
    let front = front(&origin, "/x-flushMode \"soft\"");
    front.get("/a.html");
    front.flush("Activate", "/a", &[]);
    assert_eq!(front.files(), ["a.html"]);
    for _ in 0..3 {
        assert_eq!(front.get("/a.html").body, "version 1");
    }
    gate.open();
    front.wait_for("stored_total", 2);
    front.wait_for("fetches", 0);
    assert_eq!(front.get("/a.html").body, "version 2");
    assert_eq!(origin.request_count(), 2);
    front.flush("Deactivate", "/a", &[]);
    assert_eq!(front.files(), Vec::<String>::new());
}

#[test]
fn a_refetch_waits_for_a_render_that_has_the_content() {
    let count = AtomicUsize::new(0);
    let origin = OriginServer::start(move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        OriginResponse::html(format!("version {number}"))
            .with_header("X-Tympan-Seq", &number.to_string())
    });
    let front = front(&origin, "");
    front.get("/a.html");
    let headers = [
        ("CQ-Action", "Activate"),
        ("CQ-Handle", "/a"),
        ("Content-Type", "text/plain"),
        ("X-Tympan-Seq", "2"),
    ];
    front.send("POST", "/x", &headers, "/a.html\n");
    front.wait_for("refetches_total", 1);
    assert_eq!(front.get("/a.html").body, "version 2");
}

/// Flushes `/a` with a key; returns the status.
fn flush_with(front: &Front, key: &str) -> u16 {
    let key = format!("Bearer {key}");
    let headers = [("CQ-Action", "Activate"), ("CQ-Handle", "/a"), ("Authorization", key.as_str())];
    front.send("POST", "/dispatcher/invalidate.cache", &headers, "").status
}

#[test]
fn the_key_of_a_pair_flushes_until_the_pair_is_removed() {
    let origin = counting();
    let pairs = Arc::new(Mutex::new(vec!["the key of one publisher", "the key of another"]));
    let known = Arc::clone(&pairs);
    let keys = FlushKeys::new(move |key| {
        let known = known.lock().unwrap();
        let is_known = known.iter().any(|one| one.as_bytes() == key);
        Ok((!known.is_empty()).then_some(is_known))
    });
    let cache = "/allowedClients { }";
    let setup = Setup { renders: vec![origin.addr()], cache, ..Setup::default() };
    let front = Front::start_with_keys(&setup, keys);
    front.get("/a.html");
    // A farm without `/allowedClients` is open to nobody else.
    assert_eq!(front.flush("Activate", "/a", &[]).status, 403);
    for wrong in ["", "the key of one publishe", "the key of one publishers"] {
        assert_eq!(flush_with(&front, wrong), 403, "{wrong:?}");
    }
    assert!(front.has("a.html"));
    assert_eq!(flush_with(&front, "the key of another"), 200);
    assert!(!front.has("a.html"));
    pairs.lock().unwrap().pop();
    assert_eq!(flush_with(&front, "the key of another"), 403);
    assert_eq!(flush_with(&front, "the key of one publisher"), 200);
    // Without pairs, it is as it was.
    pairs.lock().unwrap().clear();
    assert_eq!(front.flush("Activate", "/a", &[]).status, 200);
}

#[test]
fn pairs_that_cannot_be_read_admit_nobody() {
    let origin = counting();
    let keys = FlushKeys::new(|_| Err(std::io::ErrorKind::PermissionDenied.into()));
    let cache = "/allowedClients { }";
    let setup = Setup { renders: vec![origin.addr()], cache, ..Setup::default() };
    let front = Front::start_with_keys(&setup, keys);
    assert_eq!(flush_with(&front, "any key that is long enough"), 403);
    assert_eq!(front.flush("Activate", "/a", &[]).status, 403);
}

#[test]
fn a_token_opens_the_flush_where_addresses_do_not() {
    let origin = counting();
    let cache =
        "/allowedClients { /0 { /type \"deny\" /glob \"*\" } } /x-flushToken \"0123456789abcdef\"";
    let front = front(&origin, cache);
    front.get("/a.html");
    let with = |token: &str| {
        let token = format!("Bearer {token}");
        let headers =
            [("CQ-Action", "Activate"), ("CQ-Handle", "/a"), ("Authorization", token.as_str())];
        front.send("POST", "/dispatcher/invalidate.cache", &headers, "").status
    };
    assert_eq!(front.flush("Activate", "/a", &[]).status, 403);
    for wrong in ["", "0123456789abcde", "0123456789abcdeF", "0123456789abcdef0"] {
        assert_eq!(with(wrong), 403, "{wrong}");
    }
    assert!(front.has("a.html"));
    assert_eq!(with("0123456789abcdef"), 200);
    assert!(!front.has("a.html"));
    let short = crate::front::load(
        &Setup { cache: "/x-flushToken \"short\"", ..Setup::default() }.text("/".as_ref()),
    );
    assert!(short.has_errors());
}

#[test]
fn a_purge_forgets_one_page() {
    let origin = counting();
    let front = front(&origin, "");
    let purge = |target: &str| front.send("PURGE", target, &[], "").status;
    front.get("/a.html");
    front.get("/a.x.html");
    assert_eq!(purge("/a.html"), 200);
    assert_eq!(front.files(), ["a.x.html"]);
    assert_eq!(purge("/a.html"), 404);
    assert_eq!(purge("/.stat"), 404);
    assert_eq!(front.stats(), Vec::<String>::new());
    let closed =
        crate::front::front(&origin, "/allowedClients { /0 { /type \"deny\" /glob \"*\" } }");
    closed.get("/a.html");
    assert_eq!(closed.send("PURGE", "/a.html", &[], "").status, 403);
    assert!(closed.has("a.html"));
}
