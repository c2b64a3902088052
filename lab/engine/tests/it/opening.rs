//! When answers begin to come from a cache: by headers of a load, and by the times of rows.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use tympan_lab_engine::get_load::GetLoad;
use tympan_lab_engine::measurement::RunResults;
use tympan_lab_engine::measurement::jtl::JTL_HEADER;
use tympan_lab_engine::plan_run::{RunOptions, run_plan};
use tympan_lab_engine::report::{
    RunReport, read_results, render_report_html, report_to_json, report_to_plain_text,
};
use tympan_lab_plan::TestPlan;
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

/// A site whose cache gives a page from the third answer on.
fn site(name: &'static str, miss: &'static str, hit: &'static str) -> OriginServer {
    let answered = AtomicUsize::new(0);
    OriginServer::start(move |_| {
        let is_hit = answered.fetch_add(1, Ordering::Relaxed) >= 2;
        OriginResponse::html("page").with_header(name, if is_hit { hit } else { miss })
    })
}

fn tell(results: &RunResults) -> (String, String, serde_json::Value) {
    let report = RunReport { title: "t", results, judged_goals: &[], is_own_load: false };
    (report_to_plain_text(&report), render_report_html(&report), report_to_json(&report))
}

#[test]
fn headers_say_from_when_on_a_cache_answers() {
    for (name, miss, hit) in [
        ("Cache-Status", "tympan; fwd=miss; stored", "tympan; hit"),
        ("X-Cache-Info", "caching", "target file cached"),
        ("X-Cache", "MISS", "HIT"),
    ] {
        let origin = site(name, miss, hit);
        let urls = vec![format!("http://{}/page", origin.addr())];
        let results = GetLoad { urls, requests: Some(5), ..GetLoad::default() }.run().unwrap();
        let (text, page, told) = tell(&results);
        let found = &told["labels"]["GET /page"]["first_cached"];
        assert_eq!(found["known_by"], "header", "{name}: {told}");
        let at = |field: &str| found[field].as_f64().unwrap();
        assert!(at("first_answer_s") < at("first_cached_s"), "{name}: {found}");
        assert!(at("first_cached_s") <= told["seconds"].as_f64().unwrap(), "{found}");
        assert!(text.contains("cached     GET /page: first cached response at "), "{text}");
        assert!(page.contains("First cached responses"), "{name}");
    }
}

#[test]
fn a_cache_that_never_answers_is_reported_and_silence_is_not() {
    let never =
        OriginServer::start_constant(OriginResponse::html("x").with_header("X-Cache", "MISS"));
    let load = |origin: &OriginServer| {
        let urls = vec![format!("http://{}/a", origin.addr())];
        tell(&GetLoad { urls, requests: Some(3), ..GetLoad::default() }.run().unwrap())
    };
    let (text, page, told) = load(&never);
    assert!(told["labels"]["GET /a"]["first_cached"]["first_cached_s"].is_null(), "{told}");
    assert!(text.contains("GET /a: no cached response") && page.contains("never"), "{text}");
    let silent = OriginServer::start_constant(OriginResponse::html("x"));
    let (text, page, told) = load(&silent);
    assert!(told["labels"]["GET /a"]["first_cached"].is_null(), "{told}");
    assert!(!text.contains("cached") && !page.contains("First cached"), "{text}");
}

#[test]
fn plans_tell_it_for_each_of_their_steps() {
    let origin = site("X-Cache", "MISS", "HIT");
    let text = format!(
        "target = \"http://{}\"\n[load]\nusers = 1\nvisits = 2\n[[scenario]]\nname = \"visit\"\n[[scenario.step]]\npath = \"/a\"\n[[scenario.step]]\npath = \"/b\"\n",
        origin.addr()
    );
    let plan = TestPlan::parse(text.as_bytes(), "p.toml", PathBuf::new()).unwrap();
    let run = RunOptions { worker_count: 1, ..RunOptions::default() };
    let (_, _, told) = tell(&run_plan(&plan, &run, &mut |_| {}).unwrap().results);
    for label in ["GET /a", "GET /b"] {
        let found = &told["labels"][label]["first_cached"];
        assert_eq!(found["known_by"], "header", "{label}: {told}");
        assert!(found["first_cached_s"].as_f64() > found["first_answer_s"].as_f64(), "{found}");
    }
    assert!(told["total"].get("first_cached").is_none());
    assert!(told["transactions"]["visit"].get("first_cached").is_none());
}

#[test]
fn rows_tell_it_by_their_times_as_the_herd_of_the_source() {
    // A page of ten seconds that threads ask for as they come, cached after 11.6 seconds; the fastest answer is an error.
    let row = |start: u64, elapsed: u64, is_ok: bool| {
        let at = 1_763_700_000_000 + start;
        format!("{at},{elapsed},page,200,OK,g 1-1,text,{is_ok},,9,9,1,1,http://h/p,1,0,0\n")
    };
    let mut rows: Vec<String> = (0..5).map(|number| row(number * 300, 10_000, true)).collect();
    rows.push(row(50, 1, false));
    rows.push(row(11_580, 20, true));
    rows.extend((0..200).map(|number| row(11_600 + number * 5, 3, true)));
    // Files that were put together come in any order.
    rows.rotate_left(3);
    let text = format!("{JTL_HEADER}\n{}", rows.concat());
    let results = read_results(&mut text.as_bytes(), "r.jtl").unwrap();
    let (text, _, told) = tell(&results);
    let found = &told["labels"]["page"]["first_cached"];
    assert_eq!(
        (&found["first_answer_s"], &found["first_took_s"], &found["first_cached_s"]),
        (&10.0.into(), &10.0.into(), &11.6.into())
    );
    assert_eq!(found["known_by"], "time");
    assert!(text.contains("first cached response at 11.60 s by its response time"), "{text}");
}
