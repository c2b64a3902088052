//! Samples that servers are told of: what is sent, what rows and reports know them by, and what a log adds to that.

use std::collections::HashSet;
use std::path::PathBuf;

use tympan_lab_engine::get_load::GetLoad;
use tympan_lab_engine::measurement::jtl::JtlExtraColumns;
use tympan_lab_engine::measurement::{RunResults, jtl};
use tympan_lab_engine::plan_run::{RunOptions, run_plan};
use tympan_lab_engine::report::{
    RunReport, render_report_html, report_to_json, report_to_plain_text,
};
use tympan_lab_plan::TestPlan;
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

fn site() -> OriginServer {
    OriginServer::start(|seen| match seen.target.as_str() {
        "/old" => OriginResponse::with_status(302).with_header("Location", "/page"),
        "/page" => OriginResponse::html("<p>here").with_header("Server-Timing", "render;dur=1.5"),
        "/parts" => OriginResponse::html("<img src=/picture>"),
        "/picture" => OriginResponse::html("picture"),
        _ => OriginResponse::with_status(404),
    })
}

/// Returns the marks that the origin was sent for a target.
fn marks_for(origin: &OriginServer, target: &str) -> Vec<Option<String>> {
    let seen = origin.requests();
    let of = seen.iter().filter(|seen| seen.target == target);
    of.map(|seen| seen.header("x-tympan-lab").map(str::to_owned)).collect()
}

fn rows_of(path: &std::path::Path) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    let file = std::fs::File::open(path).unwrap();
    jtl::read_jtl(&mut std::io::BufReader::new(file), "r", &mut |row| {
        rows.push((row.label.to_string(), row.mark.to_string()));
    })
    .unwrap();
    rows
}

fn tell(results: &RunResults) -> (String, String, serde_json::Value) {
    let report = RunReport { title: "t", results, judged_goals: &[], is_own_load: false };
    (report_to_plain_text(&report), render_report_html(&report), report_to_json(&report))
}

#[test]
fn each_sample_has_its_mark_and_its_redirects_have_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let origin = site();
    let rows = folder.path().join("r.jtl");
    let load = GetLoad {
        urls: vec![format!("http://{}/old", origin.addr())],
        users: 2,
        requests: Some(6),
        follow: true,
        rows: Some(rows.clone()),
        added: JtlExtraColumns { microseconds: false, mark: true },
        mark: Some("1a2b".to_owned()),
        ..GetLoad::default()
    };
    let results = load.run().unwrap();
    let first: HashSet<_> = marks_for(&origin, "/old").into_iter().map(Option::unwrap).collect();
    let wanted: HashSet<String> = (1..=6).map(|number| format!("1a2b-{number}")).collect();
    assert_eq!(first, wanted);
    let second: HashSet<_> = marks_for(&origin, "/page").into_iter().map(Option::unwrap).collect();
    assert_eq!(second, wanted, "where it leads is the same sample");
    let in_rows: HashSet<_> = rows_of(&rows).into_iter().map(|(_, mark)| mark).collect();
    assert_eq!(in_rows, wanted);
    let slowest = results.slowest_samples.sorted();
    assert_eq!(slowest.len(), 6);
    assert!(slowest.is_sorted_by_key(|slow| std::cmp::Reverse(slow.response_us)));
    let (text, page, told) = tell(&results);
    assert!(text.contains(&format!("{} GET /old: render;dur=1.5", slowest[0].mark)), "{text}");
    assert!(page.contains("Slowest samples") && page.contains("render;dur=1.5"));
    assert_eq!(told["slowest"][0]["mark"], *slowest[0].mark);
    assert_eq!(told["joined"], serde_json::Value::Null);
}

#[test]
fn servers_get_no_marks_unless_they_are_asked_for() {
    let origin = site();
    let urls = vec![format!("http://{}/page", origin.addr())];
    let results = GetLoad { urls, requests: Some(2), ..GetLoad::default() }.run().unwrap();
    assert_eq!(marks_for(&origin, "/page"), [None, None]);
    assert!(results.slowest_samples.sorted().is_empty());
    assert!(!tell(&results).1.contains("Slowest samples"));
}

#[test]
fn samples_of_plans_have_marks_and_parts_of_their_pages_have_none() {
    let folder = tempfile::tempdir().unwrap();
    let origin = site();
    let text = format!(
        "target = \"http://{}\"\n[load]\nusers = 1\nvisits = 2\n[[scenario]]\nname = \"visit\"\n[[scenario.step]]\npath = \"/old\"\n[[scenario.step]]\npath = \"/parts\"\nparts = true\n",
        origin.addr()
    );
    let plan = TestPlan::parse(text.as_bytes(), "p.toml", PathBuf::new()).unwrap();
    let rows = folder.path().join("r.jtl");
    let run = RunOptions {
        result_file: Some(rows.clone()),
        extra_columns: JtlExtraColumns { microseconds: true, mark: true },
        run_mark: Some("run7".to_owned()),
        worker_count: 1,
        ..RunOptions::default()
    };
    let outcome = run_plan(&plan, &run, &mut |_| {}).unwrap();
    let mark = |number: u32| Some(format!("run7-{number}"));
    assert_eq!(marks_for(&origin, "/old"), [mark(1), mark(3)]);
    assert_eq!(marks_for(&origin, "/page"), [mark(1), mark(3)]);
    assert_eq!(marks_for(&origin, "/parts"), [mark(2), mark(4)]);
    assert_eq!(marks_for(&origin, "/picture"), [None, None]);
    let rows = rows_of(&rows);
    let of = |label: &str| -> Vec<&str> {
        rows.iter().filter(|(of, _)| of == label).map(|(_, mark)| mark.as_str()).collect()
    };
    assert_eq!(of("GET /old"), ["run7-1", "run7-3"], "{rows:?}");
    assert_eq!(of("GET /parts"), ["run7-2", "run7-4"]);
    assert_eq!(outcome.results.slowest_samples.sorted().len(), 4);
}
