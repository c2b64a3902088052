//! The latency goal with its conditions, and the components of a page, over a scripted server.

use std::sync::atomic::{AtomicU64, Ordering};

use tympan_lab::components::{Profile, run as components};
use tympan_lab::slo::{Pages, run as slo};
use tympan_testkit::origin::{Answer, Origin, Seen};

fn pages(origin: &Origin, path: &str) -> Pages {
    Pages {
        urls: vec![format!("http://{}{path}", origin.addr())],
        samples: 100,
        headers: Vec::new(),
        login: None,
        bypass: None,
        admin: None,
    }
}

fn held(json: &serde_json::Value) -> Vec<Option<bool>> {
    json["conditions"].as_array().unwrap().iter().map(|one| one["held"].as_bool()).collect()
}

/// A publisher that counts its requests, and draws everything anew for those who are logged in.
fn publisher(seen: &Seen, millis: u32, others: u64, count: &AtomicU64) -> Answer {
    let served = count.fetch_add(1, Ordering::SeqCst) + 1;
    match seen.target.as_str() {
        "/health" => Answer::status(200).body("{\"role\":\"publish\"}"),
        "/metrics" => Answer::status(200).body(format!(
            "# TYPE tympan_requests_total counter\ntympan_requests_total{{role=\"publish\"}} {}\ntympan_renders_total 9\n",
            served * others
        )),
        _ => {
            let hits = if seen.target.contains("_flex=nocache") { 0 } else { 3 };
            Answer::html("<html>")
                .header("Server-Timing", &format!("render;dur={millis}"))
                .header("X-Tympan-Fragments", &format!("hit={hits} miss=1 never=0"))
        }
    }
}

fn start(millis: u32, others: u64) -> Origin {
    let count = AtomicU64::new(0);
    Origin::start(move |seen| publisher(seen, millis, others, &count))
}

#[test]
fn the_goal_is_judged_by_the_servers_clock_with_all_conditions_checked() {
    let origin = start(80, 1);
    let asked = Pages { login: Some("admin:secret".to_owned()), ..pages(&origin, "/a.html") };
    let sheet = slo(&asked).unwrap();
    assert_eq!(held(&sheet.json), [Some(true); 5], "{}", sheet.plain());
    assert_eq!((&sheet.json["met"], &sheet.json["comparable"]), (&true.into(), &true.into()));
    assert_eq!((&sheet.json["clock"], &sheet.json["p70_ms"]), (&"server".into(), &80.0.into()));
    assert_eq!(origin.requests_for("/a.html?_flex=nocache"), 100);
    let seen = origin.seen();
    assert!(seen.iter().all(|seen| seen.header("authorization") == Some("Basic YWRtaW46c2VjcmV0")));
    assert!(!sheet.html().contains("secret"));
}

#[test]
fn what_does_not_hold_is_told_and_makes_it_not_comparable() {
    // Fragments from the cache, and three requests for each of ours.
    let origin = start(80, 3);
    let sheet = slo(&pages(&origin, "/a.html?x=1")).unwrap();
    assert_eq!(held(&sheet.json), [Some(true), Some(true), Some(false), Some(true), Some(false)]);
    assert!(sheet.plain().contains("NOT COMPARABLE"), "{}", sheet.plain());
    assert!(!sheet.is_bad(), "the goal itself is met");

    let origin = Origin::always(Answer::status(200).header("Content-Type", "image/png").body("p"));
    let sheet = slo(&Pages { samples: 5, ..pages(&origin, "/a.png") }).unwrap();
    assert_eq!(held(&sheet.json), [None, Some(false), None, Some(false), None]);
    assert!(sheet.plain().contains("fewer than 100 samples"));
}

/// A publisher that tells visitors nothing, and its admin listener what it counted.
fn silent_publisher(seen: &Seen, pages: &AtomicU64) -> Answer {
    match seen.target.as_str() {
        "/health" => Answer::status(200).body("{\"role\":\"publish\"}"),
        "/metrics" => {
            let count = pages.load(Ordering::SeqCst);
            let bucket =
                "tympan_request_seconds_bucket{role=\"publish\",method=\"GET\",status=\"2xx\",le=";
            Answer::status(200).body(format!(
                "tympan_requests_total{{role=\"publish\"}} {count}\n\
                 tympan_answered_at_once_total{{role=\"publish\"}} {}\n\
                 tympan_fragment_hits_total{{role=\"publish\"}} 7\n\
                 {bucket}\"0.1\"}} {}\n{bucket}\"1\"}} {count}\n{bucket}\"+Inf\"}} {count}\n",
                count / 200,
                count * 9 / 10
            ))
        }
        _ => {
            pages.fetch_add(1, Ordering::SeqCst);
            Answer::html("<html>")
        }
    }
}

#[test]
fn what_answers_do_not_tell_is_read_from_the_servers_metrics() {
    let pages_drawn = AtomicU64::new(0);
    let origin = Origin::start(move |seen| silent_publisher(seen, &pages_drawn));
    let sheet = slo(&pages(&origin, "/a.html")).unwrap();
    assert_eq!(held(&sheet.json), [Some(true); 5], "{}", sheet.plain());
    assert_eq!((&sheet.json["clock"], &sheet.json["comparable"]), (&"server".into(), &true.into()));
    // One in ten took up to a second, as far as is known.
    let met: Vec<bool> = sheet.goals.iter().map(|goal| goal.is_met).collect();
    assert_eq!(met, [true, false, false, true, true]);
    // Of the second hundred, one came from memory.
    let sheet = slo(&pages(&origin, "/a.html")).unwrap();
    assert_eq!(held(&sheet.json)[2], Some(false), "{}", sheet.plain());
    assert!(sheet.plain().contains("1 answers came from the server's memory"), "{}", sheet.plain());
}

#[test]
fn a_goal_that_is_missed_is_bad() {
    let origin = start(400, 1);
    let sheet = slo(&pages(&origin, "/a.html")).unwrap();
    assert!(sheet.is_bad());
    assert_eq!(
        sheet.goals.iter().map(|goal| goal.is_met).collect::<Vec<_>>(),
        [false, false, true, true, true]
    );
    let origin = Origin::always(Answer::status(404));
    assert!(slo(&Pages { samples: 2, ..pages(&origin, "/") }).unwrap().is_bad());
}

#[test]
fn components_are_a_tree_of_the_servers_times() {
    let origin = Origin::start(|seen| {
        let is_admin =
            seen.header("authorization").is_some() && seen.target.ends_with("&tympan-profile=1");
        let comment = "<!-- tympan: total us, self us, calls, look-ups, queries, script, path\n    1480      210     1    41   0  /apps/page.j2 /en\n     620      620     1    31   2    /apps/nav.j2 /en/nav\nhit=1 miss=3 never=1 -->\n";
        if is_admin {
            Answer::html(format!("<html></html>\n{comment}"))
        } else {
            Answer::html("<html>").header("Server-Timing", "db;dur=3")
        }
    });
    let url = format!("http://{}/en.html?x=1", origin.addr());
    let asked = Profile { url, headers: Vec::new(), login: Some("admin:x".to_owned()), count: 3 };
    let sheet = components(&asked).unwrap();
    assert_eq!(origin.requests(), 3);
    let rows = sheet.json["components"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!((&rows[1]["depth"], &rows[1]["total_us"]), (&1.into(), &620.into()));
    assert!(sheet.plain().contains("  /apps/nav.j2 /en/nav"), "{}", sheet.plain());
    // Without a login there is what the header says.
    let sheet = components(&Profile { login: None, ..asked }).unwrap();
    assert_eq!(sheet.json["components"][0]["script"], "db");
    let silent = Origin::always(Answer::html("x"));
    let url = format!("http://{}/", silent.addr());
    let sheet = components(&Profile { url, headers: Vec::new(), login: None, count: 1 }).unwrap();
    assert!(sheet.is_doubtful());
}
