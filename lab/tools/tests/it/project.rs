//! The project's page and map, and experiments.

use std::path::Path;

use tympan_lab_tools::experiment::LoadExperiment;
use tympan_lab_tools::project::{
    PerformanceProject, TargetColor, read_project, render_html_page, render_map_svg,
};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

const PROJECT: &str = r#"
title = "Shop <spring>"
architecture = ["one dispatcher, two publishers"]
[runs]
average = "average.json"
peak = "peak.json"
[phases]
knowledge = "done"
scope = "running"
[report]
critical = ["search falls over at 50/s"]
recommendations = ["cache the start page"]
[[use_case]]
name = "start page"
kind = "business"
kpi = "p95"
tool = "lab get"
average = "100ms"
peak = "300ms"
label = "GET /"
[[use_case]]
name = "search"
kind = "technical"
kpi = "rate"
average = "10/s"
peak = "50/s"
label = "GET /search"
[[use_case]]
name = "never measured"
kind = "technical"
kpi = "max"
average = "1s"
peak = "1s"
label = "GET /none"
[[use_case]]
name = "all"
kind = "business"
kpi = "errors"
average = "0.1%"
peak = "1%"
[[element]]
name = "dispatcher"
kind = "cache"
use_cases = ["start page"]
[[element]]
name = "publish"
kind = "renderer"
use_cases = ["start page", "search"]
[[element]]
name = "mail"
kind = "service"
[[edge]]
from = "dispatcher"
to = "publish"
text = "40/s"
[[edge]]
from = "publish"
to = "dispatcher"
"#;

const AVERAGE: &str = r#"{"total":{"samples":1000,"errors":0},"labels":{"GET /":{"p95_ms":80.0},"GET /search":{"per_second":20.0}}}"#;
const PEAK: &str = r#"{"total":{"samples":1000,"errors":50},"labels":{"GET /":{"p95_ms":250.0},"GET /search":{"per_second":30.0}}}"#;

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("average.json"), AVERAGE).unwrap();
    std::fs::write(folder.path().join("peak.json"), PEAK).unwrap();
    folder
}

fn project() -> PerformanceProject {
    read_project(PROJECT, "project.toml", folder().path()).unwrap()
}

#[test]
fn colors_come_from_what_was_measured() {
    let project = project();
    let colors: Vec<TargetColor> = project.use_cases.iter().map(|case| case.color()).collect();
    assert_eq!(
        colors,
        [TargetColor::Green, TargetColor::Amber, TargetColor::Grey, TargetColor::Amber]
    );
    let boxes: Vec<TargetColor> =
        project.elements.iter().map(|element| project.element_color(element)).collect();
    assert_eq!(
        boxes,
        [TargetColor::Green, TargetColor::Amber, TargetColor::Grey],
        "a box is as bad as its worst"
    );
    assert!(project.has_missed_target());
    let worse = folder();
    std::fs::write(worse.path().join("average.json"), PEAK.replace("30.0", "5.0")).unwrap();
    let project = read_project(PROJECT, "project.toml", worse.path()).unwrap();
    assert_eq!(project.use_cases[1].color(), TargetColor::Red);
}

#[test]
fn the_map_is_svg_that_tells_its_colors_in_words_too() {
    let svg = render_map_svg(&project());
    let document = roxmltree::Document::parse(&svg).unwrap();
    let titles: Vec<&str> = document
        .descendants()
        .filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "title")))
        .filter_map(|node| node.text())
        .collect();
    assert_eq!(titles, ["dispatcher: met", "publish: peak missed", "mail: not measured"]);
    let lines = document.descendants().filter(|node| node.tag_name().name() == "line").count();
    assert_eq!(lines, 2, "a circle of edges ends");
}

#[test]
fn the_page_holds_phases_use_cases_and_the_four_sections() {
    let page = render_html_page(&project());
    for part in [
        "<h1>Shop &lt;spring&gt;</h1>",
        "Verification of knowledge: done",
        "Scope definition: in progress",
        "Test methodologies: open",
        "Performance goals: open",
        "Optimization: open",
        "<h2>Critical errors</h2><ul><li>search falls over at 50/s</li></ul>",
        "<h2>Non-critical issues that need more investigation</h2><p>None.</p>",
        "<h2>Assumptions</h2><p>None.</p>",
        "<h2>Recommendations</h2><ul><li>cache the start page</li></ul>",
        "4 use cases: 5 to 10 can be managed",
        "<td>95 % of the requests</td><td>lab get</td><td>100.0 ms</td><td>80.0 ms</td><td>300.0 ms</td><td>250.0 ms</td>",
        "5.00 %",
    ] {
        assert!(page.contains(part), "{part}\n{page}");
    }
    assert!(!page.contains("<script") && !page.contains("http://127"), "it works from disk");
}

#[test]
fn every_fault_of_a_project_is_reported_with_its_line() {
    let text = PROJECT
        .replace("knowledge = \"done\"", "knowing = \"done\"")
        .replace("kpi = \"rate\"", "kpi = \"speed\"")
        .replace("average = \"100ms\"", "average = \"fast\"")
        .replace("to = \"publish\"", "to = \"nowhere\"");
    let error = read_project(&text, "project.toml", folder().path()).unwrap_err();
    assert!(error.is_usage());
    let text = error.to_string();
    for part in
        ["unknown phase `knowing`", "unknown KPI `speed`", "invalid target `fast`", "`nowhere`"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains("project.toml:8:1: unknown phase `knowing`"), "{text}");
    let error =
        read_project("titel = \"x\"", "project.toml", Path::new("")).unwrap_err().to_string();
    assert!(error.starts_with("project.toml:1:"), "{error}");
}

/// The arrangement is a file that the setup writes and the site's script reads; the event writes into the log.
#[test]
fn an_experiment_alternates_and_counts_what_reached_the_publisher() {
    let folder = tempfile::tempdir().unwrap();
    let mode = folder.path().join("mode");
    let read_mode = mode.clone();
    let origin = OriginServer::start(move |_| {
        let mode = std::fs::read_to_string(&read_mode).unwrap_or_default();
        OriginResponse::with_status(if mode.trim() == "after" { 200 } else { 503 })
    });
    let text = format!(
        "name = \"x\"\nrounds = 2\n[load]\nurls = [\"http://{}/\"]\nusers = 2\nrequests = 20\n\
         [event]\nat = \"0s\"\nrun = \"cat mode >> order; echo '[1] -> GET / HTTP/1.1' >> request.log\"\n\
         [before]\nsetup = [\"echo before > mode\"]\nrequests = \"request.log\"\n\
         [after]\nsetup = [\"echo after > mode\", \"true\"]\nrequests = \"request.log\"\n",
        origin.addr()
    );
    let experiment = LoadExperiment::parse(&text, "x.toml", folder.path()).unwrap();
    let mut told = 0;
    let findings = experiment.run(&mut |_| told += 1).unwrap();
    assert_eq!((told, findings.trials.len(), origin.request_count()), (4, 4, 80));
    let order = std::fs::read_to_string(folder.path().join("order")).unwrap();
    assert_eq!(
        order.split_whitespace().collect::<Vec<_>>(),
        ["before", "after", "before", "after"]
    );
    let seen: Vec<(bool, f64, Option<u64>)> = findings
        .trials
        .iter()
        .map(|trial| (trial.is_after_arrangement, trial.error_rate, trial.publisher_requests))
        .collect();
    assert_eq!(
        seen,
        [(false, 1.0, Some(1)), (true, 0.0, Some(1)), (false, 1.0, Some(1)), (true, 0.0, Some(1))]
    );
    assert_eq!(findings.gains.len(), 2);
    assert!(findings.trials[0].summary.starts_with("summary =     20 in 00:00:0"));
    let broken = text.replace("\"true\"", "\"exit 4\"");
    let error = LoadExperiment::parse(&broken, "x.toml", folder.path()).unwrap().run(&mut |_| ());
    assert!(error.unwrap_err().to_string().contains("exit status: 4"));
    let endless = text.replace("requests = 20\n", "");
    assert!(LoadExperiment::parse(&endless, "x.toml", folder.path()).unwrap_err().is_usage());
}
