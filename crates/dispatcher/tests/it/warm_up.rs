//! Filling a cold cache at the start (`[dispatcher.warm_up]`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tympan_testkit::origin_server::{OriginGate, OriginResponse, OriginServer};

use crate::front::{Front, Setup};

/// Starts a front that fetches what `list` names, through a farm with these keys.
fn warming(
    origin: &OriginServer,
    list: &str,
    more: &str,
    setup: Setup,
) -> (Front, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("urls");
    std::fs::write(&file, list).unwrap();
    let settings = format!("[warm_up]\nfrom = {:?}\n{more}", file.to_str().unwrap());
    let front = Front::start(&Setup { renders: vec![origin.addr()], settings, ..setup });
    (front, folder)
}

#[test]
fn what_was_asked_for_most_is_there_before_a_visitor_asks() {
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/gone.html" => OriginResponse::with_status(404),
        "/own.html" => OriginResponse::html("own").with_header("Cache-Control", "private"),
        target => OriginResponse::html(format!("page {target}")),
    });
    let log = |target: &str| {
        format!(
            "127.0.0.1 - - 21/Nov/2026:00:50:16 +0000 \"GET {target} HTTP/1.1\" 200 1 \"-\" \"x\"\n"
        )
    };
    let list = [
        log("/seldom.html"),
        log("/often.html"),
        log("/gone.html"),
        log("/own.html"),
        log("/refused.html"),
        log("/plain"),
        log("/asked.html?x=1"),
        log("/often.html"),
    ]
    .concat();
    let setup = Setup {
        farm: "/filter { /0 { /type \"allow\" /url \"*\" } /1 { /type \"deny\" /url \"/refused*\" } }",
        ..Setup::default()
    };
    let (front, _folder) = warming(&origin, &list, "concurrency = 1\n", setup);
    front.wait_for("warmed_up_total", 2);
    // The file's order after the most wanted one; nothing that no visitor could have, and nothing that is not kept.
    origin.wait_for_requests(4);
    let seen: Vec<String> = origin.requests().into_iter().map(|seen| seen.target).collect();
    assert_eq!(seen, ["/often.html", "/seldom.html", "/gone.html", "/own.html"]);
    assert!(front.get("/often.html").is_hit());
    assert!(front.get("/seldom.html").is_hit());
    assert_eq!(origin.request_count(), 4);
    assert_eq!(front.metric("warm_up_failures_total"), 0);
}

#[test]
fn pages_that_are_fresh_are_left_alone_and_stale_ones_are_not() {
    let origin = OriginServer::start(|seen| OriginResponse::html(format!("page {}", seen.target)));
    let setup = Setup { renders: vec![origin.addr()], ..Setup::default() };
    let first = Front::start(&setup);
    first.get("/content/fresh.png");
    first.get("/content/stale.html");
    first.flush("Activate", "/content/x", &[]);
    let root = first.stop();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("urls");
    std::fs::write(&file, "/content/fresh.png\n/content/stale.html\n").unwrap();
    let settings = format!("[warm_up]\nfrom = {:?}\n", file.to_str().unwrap());
    let second = Front::start_in(&Setup { settings, ..setup }, root);
    second.wait_for("warmed_up_total", 1);
    assert!(second.get("/content/stale.html").is_hit());
    assert!(second.get("/content/fresh.png").is_hit());
    assert_eq!(origin.request_count_for("/content/fresh.png"), 1);
    assert_eq!(origin.request_count_for("/content/stale.html"), 2);
}

#[test]
fn paths_are_asked_for_at_the_host_that_is_set_and_after_the_rules() {
    let origin = OriginServer::start(|seen| {
        OriginResponse::html(seen.header("host").unwrap_or("-").to_owned())
    });
    let more = "host = \"www.example.org\"\n\n[[host]]\n[[host.rule]]\nmatch = '^/short$'\n\
                rewrite = \"/content/long.html\"\n";
    let list = "/short\nhttp://other.example.net/b.html\n";
    let (front, _folder) = warming(&origin, list, more, Setup::default());
    front.wait_for("warmed_up_total", 2);
    assert_eq!(front.read("content/long.html"), "www.example.org");
    assert_eq!(front.read("b.html"), "other.example.net");
}

#[test]
fn a_flush_wins_over_a_page_that_is_on_its_way() {
    let (gate, count) = (OriginGate::default(), AtomicUsize::new(0));
    let door = gate.clone();
    let origin = OriginServer::start(move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        if number == 1 {
            door.wait_open();
        }
        OriginResponse::html(format!("version {number}"))
    });
    let (front, _folder) = warming(&origin, "/content/a.html\n", "", Setup::default());
    origin.wait_for_requests(1);
    assert_eq!(front.flush("Activate", "/content/a", &[]).status, 200);
    gate.open();
    front.wait_for("fetches", 0);
    assert_eq!(front.get("/content/a.html").body, "version 2");
}

#[test]
fn renders_that_do_not_answer_are_left_alone_after_a_while() {
    let is_up = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_up);
    let origin = OriginServer::start(move |_| match told.load(Ordering::SeqCst) {
        true => OriginResponse::html("page"),
        false => OriginResponse::with_status(503),
    });
    let list: String = (0..200).map(|number| format!("/{number}.html\n")).collect();
    let (front, _folder) = warming(&origin, &list, "concurrency = 1\n", Setup::default());
    front.wait_for("warm_up_failures_total", 50);
    front.wait_for("fetches", 0);
    is_up.store(true, Ordering::SeqCst);
    assert_eq!(front.get("/199.html").body, "page");
    assert_eq!(front.metric("warm_up_failures_total"), 50);
    assert_eq!(origin.request_count(), 51);
}
