//! Exchanges that are kept whole, and what servers say of their own time.

use tympan_lab_engine::get_load::GetLoad;
use tympan_lab_engine::measurement::RunResults;
use tympan_lab_engine::plan_run::{PlanRunOutcome, RunOptions, run_plan};
use tympan_lab_engine::report::{
    RunReport, render_report_html, report_to_json, report_to_plain_text,
};
use tympan_lab_plan::TestPlan;
use tympan_testkit::jmeter_plan::{defaults, element, plan, sampler};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

/// A page that would like to run and to load something.
const HOSTILE: &str = "<html><head><script>alert(1)</script></head><body onload=\"alert(2)\">\
    </iframe></pre></details><img src=\"http://127.0.0.1:1/x\" onerror=\"alert(3)\">\"'</body></html>";

fn origin() -> OriginServer {
    OriginServer::start(|seen| {
        let answer = if seen.target.starts_with("/bad") {
            OriginResponse::with_status(500)
        } else {
            OriginResponse::html(HOSTILE)
        };
        answer
            .with_header("Set-Cookie", "login=topsecret; Path=/")
            .with_header("Server-Timing", "render;dur=12.5, db;dur=2")
    })
}

fn run(origin: &OriginServer, inside: &str, loops: &str, trace: usize) -> PlanRunOutcome {
    let headers = element(
        "HeaderManager",
        "h",
        &[],
        "",
    )
    .replacen(
        "></HeaderManager>",
        "><collectionProp name=\"HeaderManager.headers\"><elementProp name=\"\" elementType=\"Header\"><stringProp name=\"Header.name\">Authorization</stringProp><stringProp name=\"Header.value\">Bearer topsecret</stringProp></elementProp></collectionProp></HeaderManager>",
        1,
    );
    let text = plan(loops, "1", &format!("{}{headers}{inside}", defaults(origin)));
    let plan = TestPlan::parse(text.as_bytes(), "p.jmx", std::path::PathBuf::new()).unwrap();
    run_plan(&plan, &RunOptions { traces_per_label: trace, ..RunOptions::default() }, &mut |_| ())
        .unwrap()
}

fn page(results: &RunResults) -> String {
    render_report_html(&RunReport { title: "t", results, judged_goals: &[], is_own_load: true })
}

#[test]
fn the_first_exchanges_and_the_first_that_failed_are_kept_whole() {
    let origin = origin();
    let inside = format!("{}{}", sampler("/good", ""), sampler("/bad", ""));
    let results = run(&origin, &inside, "5", 2).results;
    let kept: Vec<(&str, usize)> =
        results.traces.iter().map(|(label, traces)| (&**label, traces.len())).collect();
    assert_eq!(kept, [("GET /bad", 2), ("GET /good", 2)]);
    let good = &results.traces["GET /good"][0];
    assert!(good.request.starts_with("GET /good HTTP/1.1\n"), "{}", good.request);
    assert!(good.head.starts_with("HTTP/1.1 200"), "{}", good.head);
    assert_eq!(good.body, HOSTILE);
    assert!(good.is_ok && good.elapsed_us > 0 && good.started_ms > 1_700_000_000_000);
    assert!(!results.traces["GET /bad"][0].is_ok);
    assert!(run(&origin, &inside, "2", 0).results.traces.is_empty());
}

#[test]
fn a_hostile_page_runs_and_loads_nothing_in_the_report() {
    let results = run(&origin(), &sampler("/good", ""), "1", 1).results;
    let page = page(&results);
    let (_, frame) = page.split_once("<iframe ").unwrap();
    assert!(frame.starts_with("sandbox=\"\" "), "no permission at all");
    let (_, source) = frame.split_once("srcdoc=\"").unwrap();
    let (source, rest) = source.split_once('"').unwrap();
    assert!(rest.starts_with("></iframe></details>"), "the page does not end its frame");
    assert!(source.starts_with(
        "&lt;meta http-equiv=&quot;Content-Security-Policy&quot; content=&quot;default-src &#39;none&#39;;"
    ));
    assert!(!page.contains("<script") && !page.contains("<img") && !page.contains("<body onload"));
    assert!(page.contains("&lt;script&gt;alert(1)"), "the source is shown");
    assert!(!page.contains("topsecret"), "what lets somebody in is left out");
}

#[test]
fn phases_of_the_server_are_in_the_report() {
    let origin = origin();
    let results = run(&origin, &sampler("/good", ""), "3", 0).results;
    let phases = &results.labels["GET /good"].total.server_phases;
    assert_eq!(phases["render"].count(), 3);
    assert_eq!(phases["db"].mean().as_micros(), 2000);
    assert!(page(&results).contains("<h2>Phases of the server</h2>"));
    let report = RunReport { title: "t", results: &results, judged_goals: &[], is_own_load: true };
    assert_eq!(report_to_json(&report)["labels"]["GET /good"]["phases"]["render"]["p50_ms"], 12.5);
    assert!(report_to_plain_text(&report).contains("  render"));
    let get = GetLoad {
        urls: vec![format!("http://{}/good", origin.addr())],
        requests: Some(4),
        trace: 1,
        ..GetLoad::default()
    };
    let results = get.run().unwrap();
    assert_eq!(results.total_stats().server_phases["render"].count(), 4);
    assert_eq!(results.traces["GET /good"].len(), 1);
    assert_eq!(results.traces["GET /good"][0].body, HOSTILE);
}
