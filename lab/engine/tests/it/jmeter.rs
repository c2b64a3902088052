//! Real JMeter as referee: the plans of the fixtures, as copies that point at one server of this machine, make the same
//! requests and the same rows in both.
//!
//! JMeter is found through `TYMPAN_JMETER`, a folder with its `bin` and `lib`. Without it, or without the fixtures, the
//! comparison says that it was skipped; what can be told without JMeter is tested in any case.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;
use tympan_lab_engine::measurement::jtl;
use tympan_lab_engine::plan_run::{RunOptions, run_plan};
use tympan_lab_plan::TestPlan;
use tympan_testkit::fixture_folder::fixture_folder;
use tympan_testkit::origin_server::{OriginRequest, OriginResponse, OriginServer};

fn plans(folder: &Path) -> Vec<PathBuf> {
    let mut plans: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jmx"))
        .collect();
    plans.sort();
    plans
}

#[test]
fn every_public_plan_is_classified() {
    let Some(folder) = fixture_folder("jmx") else { return };
    let mut refused = Vec::new();
    for path in plans(&folder) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let check = tympan_lab_plan::check_plan(&path).unwrap();
        for finding in &check.findings {
            eprintln!("{finding}");
        }
        if !check.findings.is_empty() {
            refused.push(name);
        }
    }
    assert_eq!(
        refused,
        [
            // Scripts that start a server of JMeter's, and an extractor of a plugin that reads YAML.
            "apache__jmeter__TEST_HTTP.jmx",
            "apache__jmeter__TestCookieManager.jmx",
            "grafana__jmeter-to-k6__full.jmx",
        ]
    );
}

/// Returns the plan as one thread runs it quickly against `port`.
fn copy(text: &str, port: u16) -> String {
    let set = |text: String, name: &str, value: &str| {
        let pattern =
            format!(r#"(<(?:string|int|long|bool)Prop name="{}">)[^<]*"#, regex::escape(name));
        Regex::new(&pattern).unwrap().replace_all(&text, format!("${{1}}{value}")).into_owned()
    };
    let mut text = text.to_owned();
    for (name, value) in [
        ("HTTPSampler.domain", "127.0.0.1"),
        ("HTTPSampler.port", port.to_string().as_str()),
        ("HTTPSampler.protocol", "http"),
        ("ThreadGroup.num_threads", "1"),
        ("ThreadGroup.ramp_time", "0"),
        ("ThreadGroup.scheduler", "false"),
        ("LoopController.loops", "3"),
        ("ConstantTimer.delay", "1"),
        ("RandomTimer.range", "1"),
        ("ActionProcessor.duration", "1"),
    ] {
        text = set(text, name, value);
    }
    let folder = Regex::new(r#"name="filename">/Users[^<]*/"#).unwrap();
    text = folder.replace_all(&text, "name=\"filename\">").into_owned();
    // A property without a text is written as an empty element.
    let empty = Regex::new(r#"<stringProp name="HTTPSampler\.(domain|port|protocol)"/>"#).unwrap();
    text = empty
        .replace_all(&text, |captures: &regex::Captures<'_>| {
            let value = match &captures[1] {
                "domain" => "127.0.0.1".to_owned(),
                "port" => port.to_string(),
                _ => "http".to_owned(),
            };
            format!(r#"<stringProp name="HTTPSampler.{}">{value}</stringProp>"#, &captures[1])
        })
        .into_owned();
    text
}

fn server() -> OriginServer {
    OriginServer::start(|seen| {
        if seen.target.starts_with("/redirect") {
            return OriginResponse::with_status(302).with_header("Location", "/after");
        }
        OriginResponse::html("<html><body>id=17 <a href='show_bug.cgi?id=23'>bug</a></body></html>")
            .with_header("Set-Cookie", "session=abc; Path=/")
    })
}

/// What a request is, whoever sent it.
fn shown(seen: &OriginRequest) -> String {
    let mut headers: Vec<String> = seen
        .headers
        .iter()
        .map(|(name, value)| {
            let value = match name.to_ascii_lowercase().as_str() {
                // The part in parentheses names the Java version, or this program.
                "user-agent" => {
                    let name = value.split(" (").next().unwrap_or_default();
                    name.split(".0.").next().unwrap_or_default().to_owned()
                }
                "host" => "HOST".to_owned(),
                _ => value.clone(),
            };
            format!("{}: {value}", name.to_ascii_lowercase())
        })
        .collect();
    headers.sort();
    let body = String::from_utf8_lossy(&seen.body);
    format!("{} {} [{}] {body}", seen.method, seen.target, headers.join(" | "))
}

fn requests(origin: &OriginServer) -> Vec<String> {
    let mut all: Vec<String> = origin.requests().iter().map(shown).collect();
    all.sort();
    all
}

pub(crate) fn rows(file: &Path) -> Vec<String> {
    let text = std::fs::read(file).unwrap_or_default();
    let mut rows = Vec::new();
    jtl::read_jtl(&mut text.as_slice(), "rows", &mut |row| {
        rows.push(format!(
            "{}|{}|{}|{}|{}",
            row.label, row.response_code, row.response_message, row.is_ok, row.data_type
        ));
    })
    .unwrap();
    rows.sort();
    rows
}

const PROPERTIES: [(&str, &str); 7] = [
    ("resources_folder", "."),
    ("threads", "1"),
    ("rampup", "0"),
    ("duration", "1"),
    ("path", "/api"),
    ("tokens", "tokens.csv"),
    ("payload", "payload"),
];

fn run_lab(file: &Path, folder: &Path) -> (Vec<String>, Vec<String>) {
    let origin = server();
    let text = copy(&String::from_utf8_lossy(&std::fs::read(file).unwrap()), origin.addr().port());
    let plan = TestPlan::parse(text.as_bytes(), "copy.jmx", folder.to_owned()).unwrap();
    let output = folder.join("lab.jtl");
    let run = RunOptions {
        properties: properties(),
        result_file: Some(output.clone()),
        without_listeners: true,
        ..RunOptions::default()
    };
    run_plan(&plan, &run, &mut |_| ()).unwrap();
    (requests(&origin), rows(&output))
}

fn properties() -> HashMap<String, String> {
    PROPERTIES.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn run_jmeter(home: &Path, file: &Path, folder: &Path) -> (Vec<String>, Vec<String>) {
    let origin = server();
    let copy = copy(&String::from_utf8_lossy(&std::fs::read(file).unwrap()), origin.addr().port());
    let plan = folder.join("copy.jmx");
    std::fs::write(&plan, copy).unwrap();
    let output = folder.join("jmeter.jtl");
    run_java(home, &plan, &output, folder);
    (requests(&origin), rows(&output))
}

/// Returns where JMeter is, if it is to be the referee.
#[expect(clippy::print_stderr, reason = "what is skipped is said aloud")]
pub(crate) fn home() -> Option<PathBuf> {
    let home = std::env::var_os("TYMPAN_JMETER").map(PathBuf::from);
    if home.is_none() {
        eprintln!("skipped: the comparison with real JMeter needs TYMPAN_JMETER");
    }
    home
}

/// Runs a plan in JMeter and returns its rows.
pub(crate) fn run_in_jmeter(home: &Path, text: &str, folder: &Path) -> Vec<String> {
    let (plan, output) = (folder.join("jmeter.jmx"), folder.join("jmeter.jtl"));
    std::fs::write(&plan, text).unwrap();
    run_java(home, &plan, &output, folder);
    rows(&output)
}

fn run_java(home: &Path, plan: &Path, output: &Path, folder: &Path) {
    let at = home.display();
    let mut command = Command::new("java");
    command
        .current_dir(folder)
        .args(["-Xmx512m", "-Djava.awt.headless=true", "-cp"])
        .arg(format!("{at}/bin/ApacheJMeter.jar:{at}/lib/*:{at}/lib/ext/*"))
        .arg(format!("-Djmeter.home={at}"))
        .args(["org.apache.jmeter.NewDriver", "-n", "-Jjmeterengine.force.system.exit=true", "-t"])
        .arg(plan)
        .arg("-l")
        .arg(output)
        .arg("-j")
        .arg(folder.join("jmeter.log"));
    for (name, value) in PROPERTIES {
        command.arg(format!("-J{name}={value}"));
    }
    let told = command.output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stdout));
}

fn data(folder: &Path) {
    for (name, text) in [
        ("tokens.csv", "t1\nt2\n"),
        ("payload", "p"),
        ("data.csv", "PATH\n/search?q=water\n/search?q=fire\n"),
        ("login.csv", "ann,1\nbob,2\n"),
        ("CSVSample_user.csv", "ann,1\nbob,2\n"),
        ("CSVSample_actions.csv", "water,1\nfire,2\n"),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
}

#[test]
fn runnable_plans_do_in_lab_what_they_do_in_jmeter() {
    let Some(fixtures) = fixture_folder("jmx") else { return };
    let home = home();
    let only = std::env::var("TYMPAN_JMETER_PLAN").unwrap_or_default();
    let mut faults = Vec::new();
    for path in plans(&fixtures) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !tympan_lab_plan::check_plan(&path).unwrap().findings.is_empty() || !name.contains(&only)
        {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        data(folder.path());
        let lab = run_lab(&path, folder.path());
        let Some(home) = &home else { continue };
        let jmeter = run_jmeter(home, &path, folder.path());
        if lab != jmeter {
            faults.push(name.clone());
            for (what, one, other) in [("requests", &lab.0, &jmeter.0), ("rows", &lab.1, &jmeter.1)]
            {
                let missing = other.iter().filter(|line| !one.contains(line)).take(4);
                let surplus = one.iter().filter(|line| !other.contains(line)).take(4);
                eprintln!("{name}: {what}: lab {}, jmeter {}", one.len(), other.len());
                missing.for_each(|line| eprintln!("  only jmeter: {line}"));
                surplus.for_each(|line| eprintln!("  only lab:    {line}"));
            }
        } else {
            eprintln!("{name}: equal, {} requests, {} rows", lab.0.len(), lab.1.len());
        }
    }
    assert_eq!(faults, Vec::<String>::new());
}
