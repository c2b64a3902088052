//! The diary of tuning, and reports side by side.

use tympan_lab::ab::parse_ab_reports;
use tympan_lab::get_load::GetLoad;
use tympan_lab::journal::{
    JournalStep, RunFigures, append_step, compare_steps, format_journal_table, read_steps,
};
use tympan_lab::metric_comparison::ComparisonVerdict;
use tympan_lab::paired_run::{compare_reports, read_reports};
use tympan_lab::report::{RunReport, report_to_json};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

/// The runs of source 004, as steps of a journal.
fn diary() -> Vec<JournalStep> {
    let names = ["baseline", "query cache", "page cached", "page cached", "200 connections"];
    parse_ab_reports(include_str!("../data/opencms-tuning.txt"))
        .iter()
        .zip(names)
        .map(|(run, what)| {
            let mut step = JournalStep {
                what: what.to_owned(),
                figures: RunFigures::from_ab_report(run),
                ..JournalStep::default()
            };
            let mut note = |name: &str, value: String| step.asked.insert(name.into(), value);
            note("concurrency", run.concurrency.to_string());
            note("count", run.completed_requests.to_string());
            note("keep-alive", run.keep_alive_requests.is_some().to_string());
            step.record_response_length();
            step
        })
        .collect()
}

#[test]
fn the_source_s_steps_have_factors_only_where_they_asked_for_the_same() {
    let rows = compare_steps(&diary());
    let factors: Vec<String> = rows
        .iter()
        .map(|row| row.factor.map_or("-".to_owned(), |factor| format!("{factor:.2}x")))
        .collect();
    assert_eq!(factors, ["-", "1.77x", "-", "1.22x", "-"]);
    let rates: Vec<f64> = rows.iter().map(|row| row.figures.rate).collect();
    assert_eq!(rates, [10.48, 18.52, 65.44, 79.92, 108.49]);
    assert_eq!(rows[2].differences, ["document length 5986 -> 7595"]);
    assert_eq!(
        rows[4].differences,
        ["concurrency 10 -> 200", "count 1000 -> 10000", "document length 7595 -> 6005"]
    );
    let repeats: Vec<bool> = rows.iter().map(|row| row.is_repeat).collect();
    assert_eq!(repeats, [false, false, false, true, false], "the second run finds warm caches");
    let text = format_journal_table(&rows);
    assert!(text.contains("not comparable with step 2: document length 5986 -> 7595"), "{text}");
    assert!(text.contains("repeat: caches were filled by the previous step"), "{text}");
}

#[test]
fn a_journal_is_added_to_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lab-journal.jsonl");
    let steps = diary();
    for step in &steps {
        append_step(&path, step).unwrap();
    }
    assert_eq!(read_steps(&path).unwrap(), steps);
    let mut text = std::fs::read_to_string(&path).unwrap();
    text.push_str("{\"what\":\"x\"}\n\nno json\n");
    std::fs::write(&path, text).unwrap();
    let error = read_steps(&path).unwrap_err();
    assert!(error.is_usage());
    let text = error.to_string();
    assert!(
        text.contains("lab-journal.jsonl:6:") && text.contains("lab-journal.jsonl:8:"),
        "{text}"
    );
}

#[test]
fn a_step_is_compared_whatever_is_missing_in_the_other() {
    let mut one = JournalStep::default();
    one.asked.insert("rate".to_owned(), "5".to_owned());
    assert_eq!(JournalStep::default().differences_from(&one), ["rate 5 -> -"]);
    let length = |length: f64| {
        let mut step = JournalStep {
            figures: RunFigures { length, ..RunFigures::default() },
            ..JournalStep::default()
        };
        step.record_response_length();
        step
    };
    assert!(length(6005.0).differences_from(&length(5986.0)).is_empty(), "a date more or less");
    assert!(!length(7595.0).differences_from(&length(5986.0)).is_empty());
}

#[test]
fn reports_of_runs_are_compared_figure_by_figure() {
    let origin = OriginServer::start_constant(OriginResponse::html("hello"));
    let load = GetLoad {
        urls: vec![format!("http://{}/", origin.addr())],
        requests: Some(10),
        workers: 1,
        ..GetLoad::default()
    };
    let results = load.run().unwrap();
    let report = report_to_json(&RunReport {
        title: "x",
        results: &results,
        judged_goals: &[],
        is_own_load: true,
    });
    let figures = RunFigures::from_report(&report).unwrap();
    assert_eq!((figures.samples, figures.errors, figures.length), (10, 0, 5.0));
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    for run in 0..6 {
        let mut one = report.clone();
        one["total"]["p95_ms"] = (20.0 + f64::from(run) / 10.0).into();
        write(&format!("a/run-{run}/summary.json"), &one.to_string());
        one["total"]["p95_ms"] = (10.0 + f64::from(run) / 10.0).into();
        write(&format!("b/run-{run}/summary.json"), &one.to_string());
    }
    write("a/run-0/other.json", "{}");
    write("none/x.json", "{}");
    let read = |name: &str| read_reports(&folder.path().join(name));
    let (before, after) = (read("a").unwrap(), read("b").unwrap());
    assert_eq!((before.len(), after.len()), (6, 6));
    let rows = compare_reports(&before, &after, 1);
    let verdict = |name: &str| rows.iter().find(|row| row.metric == name).unwrap().verdict();
    assert_eq!(
        (verdict("p95 ms"), verdict("p99 ms")),
        (ComparisonVerdict::Better, ComparisonVerdict::NoDifference)
    );
    assert!(read("none").unwrap_err().is_usage());
}
