//! Names of samplers and transactions that are evaluated: when, and how often, as functions that count tell.

use tympan_lab_engine::measurement::jtl;
use tympan_lab_engine::plan_run::{RunOptions, run_plan};
use tympan_lab_plan::TestPlan;
use tympan_testkit::jmeter_plan::{defaults, element, plan, sampler};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

use super::jmeter::{home, run_in_jmeter};

const ALL: &str = "${__counter(FALSE,)}";
const OWN: &str = "${__counter(TRUE,)}";

fn origin() -> OriginServer {
    OriginServer::start(|seen| match seen.target.as_str() {
        "/to" => OriginResponse::with_status(302).with_header("Location", "/there"),
        _ => OriginResponse::html("<b>7</b>"),
    })
}

fn named(name: &str, path: &str, inside: &str) -> String {
    sampler(path, inside)
        .replace(&format!("testname=\"GET {path}\""), &format!("testname=\"{name}\""))
}

fn transaction(name: &str, is_parent: bool, inside: &str) -> String {
    let parent = if is_parent { "true" } else { "false" };
    element("TransactionController", name, &[("TransactionController.parent", parent)], inside)
}

/// Returns the labels of a run in their order, and the requests.
fn labels(text: &str, origin: &OriginServer) -> (Vec<String>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("rows.jtl");
    let plan = TestPlan::parse(text.as_bytes(), "p.jmx", folder.path().to_owned())
        .unwrap_or_else(|error| panic!("{error}"));
    let run = RunOptions { result_file: Some(output.clone()), ..RunOptions::default() };
    run_plan(&plan, &run, &mut |_| ()).unwrap();
    let mut labels = Vec::new();
    jtl::read_jtl(&mut std::fs::read(&output).unwrap().as_slice(), "rows", &mut |row| {
        labels.push(row.label.to_string());
    })
    .unwrap();
    (labels, origin.requests().into_iter().map(|seen| seen.target).collect())
}

fn counting(origin: &OriginServer) -> String {
    let loops = element(
        "LoopController",
        "twice",
        &[("LoopController.loops", "2")],
        &named(&format!("l{ALL}"), "/l", ""),
    );
    let debug = element("DebugSampler", &format!("d{ALL}"), &[], "");
    let inside = [
        defaults(origin),
        named(&format!("a{ALL}"), &format!("/a?{ALL}"), ""),
        named(&format!("b{OWN}"), "/b", ""),
        transaction(&format!("T{ALL}"), false, &named(&format!("t{ALL}"), "/t", "")),
        transaction(&format!("P{OWN}"), true, &named(&format!("p{ALL}"), "/p", "")),
        transaction(
            &format!("N{ALL}"),
            false,
            &transaction(&format!("M{ALL}"), false, &named("m", "/m", "")),
        ),
        loops,
        debug,
        // The same text at another place counts for itself.
        named(&format!("a{ALL}"), "/c", ""),
        // Each look at the name counts, that of a request's path too.
        named(&format!("s{ALL}"), "/s?${__samplerName()}", ""),
    ]
    .concat();
    plan("2", "1", &inside)
}

#[test]
fn counters_in_names_count_as_in_jmeter() {
    let origin = origin();
    let (labels, requests) = labels(&counting(&origin), &origin);
    let expected = [
        "a2", "b2", "t2", "T2", "P2", "p2", "m", "M2", "N2", "l2", "l4", "d1", "a2", "s3", //
        "a4", "b4", "t4", "T3", "P3", "p4", "m", "M3", "N3", "l6", "l8", "d2", "a4", "s6",
    ];
    assert_eq!(labels, expected);
    let expected = [
        "/a?1", "/b", "/t", "/p", "/m", "/l", "/l", "/c", "/s?s1", //
        "/a?2", "/b", "/t", "/p", "/m", "/l", "/l", "/c", "/s?s4",
    ];
    assert_eq!(requests, expected);
}

#[test]
fn names_are_evaluated_when_jmeter_does() {
    let origin = origin();
    let after = element(
        "RegexExtractor",
        "r",
        &[
            ("RegexExtractor.refname", "seven"),
            ("RegexExtractor.regex", "&lt;b&gt;(\\d)"),
            ("RegexExtractor.template", "$1$"),
        ],
        "",
    );
    let before = element("JSR223PreProcessor", "p", &[("script", "vars.put('new', 'yes')")], "");
    let inside = [
        defaults(&origin),
        // A transaction has the name that it began with, a sampler the one before its extractors.
        transaction("T ${seven}", false, &named("x ${seven}", "/x", &after)),
        transaction("P ${seven}", true, &named("y ${new}", "/y", &before)),
        // Each hop of a redirect is a look at the name.
        named(&format!("h{ALL}"), "/to", ""),
    ]
    .concat();
    let text = plan("1", "1", &inside);
    let expected = ["x ${seven}", "T ${seven}", "P 7", "y yes", "h3", "h3-0", "h3-1"];
    assert_eq!(labels(&text, &origin).0, expected);
}

#[test]
fn jmeter_counts_alike() {
    let Some(home) = home() else { return };
    let origin = origin();
    let text = counting(&origin);
    let folder = tempfile::tempdir().unwrap();
    let mut rows: Vec<String> = run_in_jmeter(&home, &text, folder.path())
        .iter()
        .map(|row| row.split('|').next().unwrap_or_default().to_owned())
        .collect();
    let mut own = labels(&text, &origin).0;
    rows.sort();
    own.sort();
    assert_eq!(own, rows);
}
