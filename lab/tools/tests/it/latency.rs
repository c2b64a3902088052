//! The latency goal with its conditions, and the components of a page, over a scripted server.

use std::sync::atomic::{AtomicU64, Ordering};

use tympan_lab_engine::load::request_authorization::RequestAuthorization;
use tympan_lab_tools::component_profile::{
    ComponentProfileOptions, profile_components as components,
};
use tympan_lab_tools::slo::{SloCheck, run_slo_check as slo};
use tympan_testkit::origin_server::{OriginRequest, OriginResponse, OriginServer};

fn pages(origin: &OriginServer, path: &str) -> SloCheck {
    SloCheck {
        urls: vec![format!("http://{}{path}", origin.addr())],
        sample_count: 100,
        headers: Vec::new(),
        authorization: None,
        cache_bypass: None,
        admin_url: None,
    }
}

fn held(json: &serde_json::Value) -> Vec<Option<bool>> {
    json["conditions"].as_array().unwrap().iter().map(|one| one["held"].as_bool()).collect()
}

/// A publisher that counts its requests, and draws everything anew for those who are logged in.
fn publisher(seen: &OriginRequest, millis: u32, others: u64, count: &AtomicU64) -> OriginResponse {
    let served = count.fetch_add(1, Ordering::SeqCst) + 1;
    match seen.target.as_str() {
        "/health" => OriginResponse::with_status(200).with_body("{\"role\":\"publish\"}"),
        "/metrics" => OriginResponse::with_status(200).with_body(format!(
            "# TYPE tympan_requests_total counter\ntympan_requests_total{{role=\"publish\"}} {}\ntympan_renders_total 9\n",
            served * others
        )),
        _ => {
            let hits = if seen.target.contains("_flex=nocache") { 0 } else { 3 };
            OriginResponse::html("<html>")
                .with_header("Server-Timing", &format!("render;dur={millis}"))
                .with_header("X-Tympan-Fragments", &format!("hit={hits} miss=1 never=0"))
        }
    }
}

fn start(millis: u32, others: u64) -> OriginServer {
    let count = AtomicU64::new(0);
    OriginServer::start(move |seen| publisher(seen, millis, others, &count))
}

#[test]
fn the_goal_is_judged_by_the_servers_clock_with_all_conditions_checked() {
    let origin = start(80, 1);
    let asked = SloCheck {
        authorization: Some(RequestAuthorization::basic("admin:secret")),
        ..pages(&origin, "/a.html")
    };
    let sheet = slo(&asked).unwrap();
    assert_eq!(held(&sheet.json_result), [Some(true); 5], "{}", sheet.to_plain_text());
    assert_eq!(
        (&sheet.json_result["met"], &sheet.json_result["comparable"]),
        (&true.into(), &true.into())
    );
    assert_eq!(
        (&sheet.json_result["clock"], &sheet.json_result["p70_ms"]),
        (&"server".into(), &80.0.into())
    );
    assert_eq!(origin.request_count_for("/a.html?_flex=nocache"), 100);
    let seen = origin.requests();
    assert!(seen.iter().all(|seen| seen.header("authorization") == Some("Basic YWRtaW46c2VjcmV0")));
    assert!(!sheet.to_html().contains("secret"));
}

#[test]
fn what_does_not_hold_is_reported_and_makes_it_not_comparable() {
    // Fragments from the cache, and three requests for each of ours.
    let origin = start(80, 3);
    let sheet = slo(&pages(&origin, "/a.html?x=1")).unwrap();
    assert_eq!(
        held(&sheet.json_result),
        [Some(true), Some(true), Some(false), Some(true), Some(false)]
    );
    assert!(sheet.to_plain_text().contains("NOT COMPARABLE"), "{}", sheet.to_plain_text());
    assert!(!sheet.has_bad_result(), "the goal itself is met");

    let origin = OriginServer::start_constant(
        OriginResponse::with_status(200).with_header("Content-Type", "image/png").with_body("p"),
    );
    let sheet = slo(&SloCheck { sample_count: 5, ..pages(&origin, "/a.png") }).unwrap();
    assert_eq!(held(&sheet.json_result), [None, Some(false), None, Some(false), None]);
    assert!(sheet.to_plain_text().contains("fewer than 100 samples"));
}

/// A publisher that tells visitors nothing, and its admin listener what it counted.
fn silent_publisher(seen: &OriginRequest, pages: &AtomicU64) -> OriginResponse {
    match seen.target.as_str() {
        "/health" => OriginResponse::with_status(200).with_body("{\"role\":\"publish\"}"),
        "/metrics" => {
            let count = pages.load(Ordering::SeqCst);
            let bucket = "tympan_request_duration_seconds_bucket{role=\"publish\",method=\"GET\",status=\"2xx\",le=";
            OriginResponse::with_status(200).with_body(format!(
                "tympan_requests_total{{role=\"publish\"}} {count}\n\
                 tympan_response_cache_hits_total{{role=\"publish\"}} {}\n\
                 tympan_fragment_hits_total{{role=\"publish\"}} 7\n\
                 {bucket}\"0.1\"}} {}\n{bucket}\"1\"}} {count}\n{bucket}\"+Inf\"}} {count}\n",
                count / 200,
                count * 9 / 10
            ))
        }
        _ => {
            pages.fetch_add(1, Ordering::SeqCst);
            OriginResponse::html("<html>")
        }
    }
}

#[test]
fn what_answers_do_not_tell_is_read_from_the_servers_metrics() {
    let pages_drawn = AtomicU64::new(0);
    let origin = OriginServer::start(move |seen| silent_publisher(seen, &pages_drawn));
    let sheet = slo(&pages(&origin, "/a.html")).unwrap();
    assert_eq!(held(&sheet.json_result), [Some(true); 5], "{}", sheet.to_plain_text());
    assert_eq!(
        (&sheet.json_result["clock"], &sheet.json_result["comparable"]),
        (&"server".into(), &true.into())
    );
    // One in ten took up to a second, as far as is known.
    let met: Vec<bool> = sheet.judged_goals.iter().map(|goal| goal.is_met).collect();
    assert_eq!(met, [true, false, false, true, true]);
    // Of the second hundred, one came from memory.
    let sheet = slo(&pages(&origin, "/a.html")).unwrap();
    assert_eq!(held(&sheet.json_result)[2], Some(false), "{}", sheet.to_plain_text());
    assert!(
        sheet.to_plain_text().contains("1 responses came from the server's memory"),
        "{}",
        sheet.to_plain_text()
    );
}

#[test]
fn a_goal_that_is_missed_is_bad() {
    let origin = start(400, 1);
    let sheet = slo(&pages(&origin, "/a.html")).unwrap();
    assert!(sheet.has_bad_result());
    assert_eq!(
        sheet.judged_goals.iter().map(|goal| goal.is_met).collect::<Vec<_>>(),
        [false, false, true, true, true]
    );
    let origin = OriginServer::start_constant(OriginResponse::with_status(404));
    assert!(slo(&SloCheck { sample_count: 2, ..pages(&origin, "/") }).unwrap().has_bad_result());
}

#[test]
fn components_are_a_tree_of_the_servers_times() {
    let origin = OriginServer::start(|seen| {
        let is_admin =
            seen.header("authorization").is_some() && seen.target.ends_with("&tympan-profile=1");
        let comment = "<!-- tympan: total us, self us, calls, look-ups, queries, script, path\n    1480      210     1    41   0  /apps/page.j2 /en\n     620      620     1    31   2    /apps/nav.j2 /en/nav\nhit=1 miss=3 never=1 -->\n";
        if is_admin {
            OriginResponse::html(format!("<html></html>\n{comment}"))
        } else {
            OriginResponse::html("<html>").with_header("Server-Timing", "db;dur=3")
        }
    });
    let url = format!("http://{}/en.html?x=1", origin.addr());
    let asked = ComponentProfileOptions {
        url,
        headers: Vec::new(),
        authorization: Some(RequestAuthorization::basic("admin:x")),
        request_count: 3,
    };
    let sheet = components(&asked).unwrap();
    assert_eq!(origin.request_count(), 3);
    let rows = sheet.json_result["components"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!((&rows[1]["depth"], &rows[1]["total_us"]), (&1.into(), &620.into()));
    assert!(sheet.to_plain_text().contains("  /apps/nav.j2 /en/nav"), "{}", sheet.to_plain_text());
    // Without a login there is what the header says.
    let sheet = components(&ComponentProfileOptions { authorization: None, ..asked }).unwrap();
    assert_eq!(sheet.json_result["components"][0]["script"], "db");
    let silent = OriginServer::start_constant(OriginResponse::html("x"));
    let url = format!("http://{}/", silent.addr());
    let sheet = components(&ComponentProfileOptions {
        url,
        headers: Vec::new(),
        authorization: None,
        request_count: 1,
    })
    .unwrap();
    assert!(sheet.is_doubtful());
}
