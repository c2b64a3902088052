//! Rows of what a sample consists of: hops of redirects, parts of pages, samples of a transaction that stands for them.
//!
//! Where `TYMPAN_JMETER` names JMeter's folder, JMeter runs the same plan and must write the same rows.

use std::collections::HashMap;
use std::path::Path;

use tympan_lab_engine::measurement::jtl;
use tympan_lab_engine::plan_run::{RunOptions, run_plan};
use tympan_lab_plan::TestPlan;
use tympan_testkit::jmeter_plan::{defaults, element, plan, sampler};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

use crate::jmeter::{home, rows, run_in_jmeter};

fn site() -> OriginServer {
    OriginServer::start(|seen| match seen.target.as_str() {
        "/old" => OriginResponse::with_status(302).with_header("Location", "/page"),
        "/page" => OriginResponse::html(
            "<link rel=stylesheet href=/s.css><img src=/moved.png><img src=/gone.png>",
        ),
        "/s.css" => OriginResponse::with_status(200)
            .with_header("Content-Type", "text/css")
            .with_body("@import url('/inner.css');"),
        "/inner.css" => OriginResponse::with_status(200)
            .with_header("Content-Type", "text/css")
            .with_body("b{}"),
        "/moved.png" => OriginResponse::with_status(301).with_header("Location", "/here.png"),
        "/here.png" => {
            OriginResponse::with_status(200).with_header("Content-Type", "image/png").with_body("x")
        }
        "/gone.png" => OriginResponse::with_status(404),
        _ => OriginResponse::html("x"),
    })
}

/// Returns a sampler that fetches the parts of its page, one after the other.
fn with_parts(path: &str) -> String {
    sampler(path, "").replace(
        "</HTTPSamplerProxy>",
        "<boolProp name=\"HTTPSampler.image_parser\">true</boolProp></HTTPSamplerProxy>",
    )
}

fn transaction(inside: &str) -> String {
    element("TransactionController", "t", &[("TransactionController.parent", "true")], inside)
}

/// Runs a plan with one thread; returns its rows in the order of the file, and how many samples were told.
fn run(text: &str, name: &str, properties: &[(&str, &str)], folder: &Path) -> (Vec<String>, u64) {
    let plan = TestPlan::parse(text.as_bytes(), name, folder.to_owned());
    let file = folder.join("rows.jtl");
    std::fs::remove_file(&file).ok();
    let properties =
        properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let run = RunOptions {
        result_file: Some(file.clone()),
        properties: properties.collect::<HashMap<_, _>>(),
        ..RunOptions::default()
    };
    let outcome =
        run_plan(&plan.unwrap_or_else(|error| panic!("{error}")), &run, &mut |_| {}).unwrap();
    let text = std::fs::read(&file).unwrap();
    let mut rows = Vec::new();
    jtl::read_jtl(&mut text.as_slice(), "rows", &mut |row| {
        let path = row.url.split_once("//").map_or("", |(_, rest)| rest);
        let path = path.find('/').map_or("-", |at| &path[at..]);
        rows.push(format!(
            "{} {} {path} {} {} {}/{}",
            row.label,
            row.response_code,
            row.is_ok,
            row.thread_name,
            row.group_threads,
            row.all_threads
        ));
    })
    .unwrap();
    (rows, outcome.results.total_stats().count())
}

const OFF: [(&str, &str); 1] = [("jmeter.save.saveservice.subresults", "false")];
const ON: [(&str, &str); 1] = [("jmeter.save.saveservice.subresults", "true")];

#[test]
fn what_a_sample_consists_of_stands_below_its_row_as_in_jmeter() {
    let folder = tempfile::tempdir().unwrap();
    let origin = site();
    let inside = format!("{}{}{}", defaults(&origin), with_parts("/old"), sampler("/plain", ""));
    let text = plan("1", "1", &inside);
    let (told, samples) = run(&text, "p.jmx", &[], folder.path());
    assert_eq!(
        told,
        [
            "GET /old 200 /page false g 1-1 1/1",
            "GET /old-0 302 /old true g 1-1 1/1",
            "GET /old-1 200 /page true g 1-1 1/1",
            "GET /old-2 200 /s.css true g 1-1 1/1",
            "GET /old-0 200 /s.css true  0/0",
            "GET /old-1 200 /inner.css true g 1-1 0/0",
            "GET /old-3 200 /here.png true g 1-1 1/1",
            "GET /old-0 301 /moved.png true  0/0",
            "GET /old-1 200 /here.png true g 1-1 0/0",
            "GET /old-4 404 /gone.png false g 1-1 1/1",
            "GET /plain 200 /plain true g 1-1 1/1",
        ]
    );
    assert_eq!(samples, 2, "what a sample consists of is no sample");
    let (told, _) = run(&text, "p.jmx", &OFF, folder.path());
    assert_eq!(told.len(), 2, "{told:?}");
    let Some(home) = home() else { return };
    run(&text, "p.jmx", &[], folder.path());
    let own = rows(&folder.path().join("rows.jtl"));
    assert_eq!(own, run_in_jmeter(&home, &text, folder.path()));
}

#[test]
fn samples_stand_below_the_transaction_that_stands_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let origin = site();
    let inner = transaction(&sampler("/inner", ""));
    let outer = transaction(&format!("{}{inner}{}", sampler("/old", ""), sampler("/last", "")));
    let text = plan("2", "1", &format!("{}{outer}", defaults(&origin)));
    let (told, _) = run(&text, "p.jmx", &[], folder.path());
    let labels = |told: &[String]| -> Vec<String> {
        told.iter().map(|row| row.split(" g 1-1").next().unwrap().to_owned()).collect()
    };
    let round = [
        "t 200 - true",
        "GET /old 200 /page true",
        "GET /old-0 302 /old true",
        "GET /old-1 200 /page true",
        "t 200 - true",
        "GET /inner 200 /inner true",
        "GET /last 200 /last true",
    ];
    assert_eq!(labels(&told), [round, round].concat());
    let (told, _) = run(&text, "p.jmx", &OFF, folder.path());
    assert_eq!(labels(&told), ["t 200 - true", "t 200 - true"]);
}

#[test]
fn plans_in_toml_tell_a_row_for_each_step_unless_they_are_asked_for_more() {
    let folder = tempfile::tempdir().unwrap();
    let origin = site();
    let text = format!(
        "target = \"http://{}\"\n[load]\nusers = 1\nvisits = 1\n[[scenario]]\nname = \"s\"\n[[scenario.step]]\npath = \"/old\"\n",
        origin.addr()
    );
    // The step and its scenario.
    assert_eq!(run(&text, "p.toml", &[], folder.path()).0.len(), 2);
    assert_eq!(run(&text, "p.toml", &ON, folder.path()).0.len(), 4);
}
