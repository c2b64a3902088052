//! Samples that servers are told of: what is sent, what rows and reports know them by, and what a log adds to that.

use std::collections::HashSet;
use std::path::PathBuf;

use tympan_lab::get_load::GetLoad;
use tympan_lab::measurement::jtl::{self, JtlExtraColumns};
use tympan_lab::measurement::{RunResults, ServerLogJoin};
use tympan_lab::plan::{RunOptions, TestPlan};
use tympan_lab::report::{
    RunReport, read_results_with_log, render_report_html, report_to_json, report_to_plain_text,
};
use tympan_lab::request_log::{self, RequestLog, RequestLogLimits};
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
fn nothing_is_told_to_servers_unless_it_is_asked_for() {
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
    let outcome = plan.run(&run, &mut |_| {}).unwrap();
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

fn log(text: &str) -> RequestLog {
    request_log::read_request_log(&mut text.as_bytes(), "request.log", RequestLogLimits::default())
        .unwrap()
}

#[test]
fn a_log_divides_what_clients_waited_for() {
    let header = JtlExtraColumns { microseconds: false, mark: true }.header_line();
    let row = |elapsed: u64, mark: &str| {
        format!(
            "1763700000000,{elapsed},page,200,OK,g 1-1,text,true,,9,9,1,1,http://h/page,1,0,0,{mark}\n"
        )
    };
    let rows = [row(900, "r-1"), row(100, "r-2"), row(50, "r-3"), row(40, "no mark"), row(30, "")];
    let text = format!("{header}\n{}", rows.concat());
    let line = |number: u32, rest: &str| {
        let at = "21/Nov/2026:00:50:16 +0000";
        format!("{at} [{number}] -> GET /page HTTP/1.1\n{at} [{number}] <- {rest}\n")
    };
    // The first sample was redirected; the third was answered by a cache; another run is not of this file.
    let one = log(&[
        line(1, "302 -; lab=r-1 20ms"),
        line(2, "200 text/html; lab=r-1 80ms"),
        line(3, "200 text/html 9ms"),
        line(4, "200 text/html; lab=other-1 9ms"),
    ]
    .concat());
    let two = log(&line(1, "200 text/html; lab=r-2 99ms"));
    assert!(
        one.to_rlog_text(None).contains("80ms")
            && one.to_rlog_text(None).contains("text/html lab=r-1")
    );
    let joined = ServerLogJoin::from_logs(&[one, two]);
    let results = read_results_with_log(&mut text.as_bytes(), "r.jtl", Some(joined)).unwrap();
    let joined = results.server_log_join.as_ref().unwrap();
    assert_eq!((joined.marked_samples, joined.matched_samples), (3, 2));
    let (text, page, told) = tell(&results);
    let number = |place: usize, field: &str| told["slowest"][place][field].as_f64();
    assert_eq!(number(0, "server_ms"), Some(100.0));
    assert_eq!(number(0, "elsewhere_ms"), Some(800.0));
    assert_eq!(told["slowest"][0]["server_requests"], 2);
    assert_eq!((number(1, "server_ms"), number(1, "elsewhere_ms")), (Some(99.0), Some(1.0)));
    assert_eq!((number(2, "server_ms"), number(2, "elsewhere_ms")), (None, None));
    assert_eq!(told["joined"]["found"], 2);
    assert_eq!(told["joined"]["elsewhere"]["max_ms"], 800.0);
    assert!(text.contains("2 of 3 marked samples are in the log"), "{text}");
    assert!(text.contains("r-1 page: server 100 ms (2 requests), elsewhere 800 ms"), "{text}");
    assert!(page.contains("knows 2 of 3 marked samples") && page.contains("not in the log"));
}
