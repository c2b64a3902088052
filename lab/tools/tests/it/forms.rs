//! Plans in other forms: from HAR files, from JMeter to TOML and back, each proved by what is then sent.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tympan_lab_engine::plan_run::{RunOptions, run_plan};
use tympan_lab_plan::Error;
use tympan_lab_plan::TestPlan;
use tympan_lab_tools::recording::RecordingOptions;
use tympan_lab_tools::{har, recording};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

fn origin() -> OriginServer {
    OriginServer::start(|seen| match seen.target.as_str() {
        "/login" => OriginResponse::html("token=7f").with_header("Set-Cookie", "sid=1; Path=/"),
        "/missing" => OriginResponse::with_status(404),
        _ => OriginResponse::html("{\"id\":\"x9\"}"),
    })
}

/// Returns what was sent, without what names the sender.
fn sent(origin: &OriginServer) -> Vec<String> {
    origin
        .requests()
        .iter()
        .map(|seen| {
            let mut headers: Vec<String> = seen
                .headers
                .iter()
                .filter(|(name, _)| {
                    ["cookie", "content-type", "x-own"]
                        .iter()
                        .any(|kept| name.eq_ignore_ascii_case(kept))
                })
                .map(|(name, value)| format!("{}: {value}", name.to_lowercase()))
                .collect();
            headers.sort();
            let body = String::from_utf8_lossy(&seen.body);
            format!("{} {} {headers:?} {body}", seen.method, seen.target)
        })
        .collect()
}

fn play(text: &str, file: &str, folder: &Path) -> Vec<String> {
    let origin = origin();
    // Plans that were exported hold the address in variables.
    let text = text
        .replace("127.0.0.1:9", &origin.addr().to_string())
        .replace(",9)}", &format!(",{})}}", origin.addr().port()));
    let plan = TestPlan::parse(text.as_bytes(), file, folder.to_owned())
        .unwrap_or_else(|error| panic!("{error}\n{text}"));
    let outcome = run_plan(&plan, &RunOptions::default(), &mut |_| ()).unwrap();
    assert_eq!(outcome.errors, Vec::<String>::new());
    sent(&origin)
}

const HAR: &str = r##"{"log":{"version":"1.2","entries":[
 {"startedDateTime":"2026-11-21T10:00:02.500Z","time":20,"request":{"method":"POST","url":"http://127.0.0.1:9/login","headers":
   [{"name":":authority","value":"x"},{"name":"Content-Type","value":"application/x-www-form-urlencoded"},{"name":"Cookie","value":"old=1"}],
   "postData":{"mimeType":"application/x-www-form-urlencoded","params":[{"name":"user","value":"me"},{"name":"password","value":"s3cret"}]}},
   "response":{"status":303,"content":{"mimeType":"text/html"}}},
 {"startedDateTime":"2026-11-21T10:00:00.000Z","time":100,"request":{"method":"GET","url":"http://127.0.0.1:9/a?q={x}#top","headers":[]},
   "response":{"status":200,"content":{"mimeType":"text/html"}}},
 {"startedDateTime":"2026-11-21T10:00:00.050Z","time":10,"request":{"method":"GET","url":"http://127.0.0.1:9/logo.png","headers":[]},
   "response":{"status":200,"content":{"mimeType":"image/png"}}},
 {"startedDateTime":"2026-11-21T10:00:00.060Z","time":10,"request":{"method":"GET","url":"https://cdn.example/x.js","headers":[]},
   "response":{"status":200,"content":{"mimeType":"text/javascript"}}},
 {"startedDateTime":"2026-11-21T10:00:03.000Z","time":5,"request":{"method":"GET","url":"http://127.0.0.1:9/missing","headers":[]},
   "response":{"status":404,"content":{"mimeType":"text/html"}}},
 {"startedDateTime":"2026-11-21T10:00:04.000Z","time":5,"request":{"method":"POST","url":"http://127.0.0.1:9/rpc","headers":
   [{"name":"Content-Type","value":"application/json"}],"postData":{"mimeType":"application/json","text":"{\"a\":\"${b}\"}"}},
   "response":{"status":200,"content":{"mimeType":"application/json"}}},
 {"startedDateTime":"2026-11-21T10:00:05.000Z","time":0,"request":{"method":"GET","url":"http://127.0.0.1:9/aborted","headers":[]},
   "response":{"status":0,"content":{}}}
]}}"##;

#[test]
fn a_har_file_becomes_a_plan_that_does_the_same() {
    let har = har::parse_har(HAR, "visit.har", None).unwrap();
    assert_eq!(har.target_site, "http://127.0.0.1:9");
    assert_eq!((har.exchanges.len(), har.unanswered_count), (5, 1));
    assert_eq!(har.other_site_counts.get("https://cdn.example"), Some(&1));
    let draft =
        recording::recording_to_plan(&har.target_site, &har.exchanges, RecordingOptions::default());
    let text = draft.to_toml();
    assert!(!text.contains("s3cret") && !text.contains("old=1"), "{text}");
    assert!(text.contains("think = \"2400ms\""), "{text}");
    // The pauses of the recording are not waited for here.
    let quick: String = text
        .lines()
        .filter(|line| !line.starts_with("think"))
        .map(|line| format!("{line}\n"))
        .collect();
    let sent = play(&quick, "plan.toml", Path::new(""));
    assert_eq!(
        sent,
        [
            "GET /a?q=%7Bx%7D [] ",
            "POST /login [\"content-type: application/x-www-form-urlencoded\"] user=me&password={secret}",
            "GET /missing [\"cookie: sid=1\"] ",
            "POST /rpc [\"content-type: application/json\", \"cookie: sid=1\"] {\"a\":\"${b}\"}",
        ]
        .map(|line| line.to_owned())
    );
}

#[test]
fn another_site_of_a_har_file_can_be_taken() {
    let har = har::parse_har(HAR, "visit.har", Some("https://cdn.example/")).unwrap();
    assert_eq!(har.exchanges.len(), 1);
    assert_eq!(har.other_site_counts.get("http://127.0.0.1:9"), Some(&5));
    assert!(
        har.describe_omissions()
            .iter()
            .any(|remark| remark.contains("5 requests to http://127.0.0.1:9"))
    );
    assert!(har::parse_har(HAR, "visit.har", Some("http://other")).is_err());
}

const PLAN: &str = r#"
name = "shop"
target = "http://127.0.0.1:9"
cookies = "visit"
[variables]
lang = "de"
[[data]]
file = "users.csv"
[load]
users = 1
visits = 5
[[scenario]]
name = "buy"
weight = 3
[[scenario.step]]
path = "/login"
form = { user = "${USER}", word = "a b&c" }
extract = { name = "token", regex = "token=(\\w+)" }
[[scenario.step]]
name = "search"
path = "/search"
query = { q = "${token} ${lang}" }
headers = { X-Own = "1" }
expect = { status = [200, 304], text = "id", not_text = "no", regex = "\\{.*\\}", json = { "$.id" = "x9" }, under = "30s" }
extract = [{ name = "id", json = "$.id", default = "none" }, { name = "part", between = ["id", "}"] }]
[[scenario]]
name = "look"
[[scenario.step]]
method = "PUT"
path = "/items/${lang}"
json = '{"a": "<b>"}'
[[scenario.step]]
path = "/missing"
expect = { status = 404 }
"#;

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("users.csv"), "USER\nann\nbob\n").unwrap();
    folder
}

#[test]
fn a_plan_in_toml_does_the_same_as_a_plan_of_jmeter() {
    let folder = folder();
    let own = play(PLAN, "plan.toml", folder.path());
    assert_eq!(own.len(), 10, "{own:?}");
    let plan = TestPlan::parse(PLAN.as_bytes(), "plan.toml", folder.path().to_owned()).unwrap();
    let exported = plan.to_jmx("plan-order.csv").unwrap();
    assert_eq!(exported.scenario_order.as_deref(), Some("0\n0\n1\n0\n"));
    std::fs::write(folder.path().join("plan-order.csv"), exported.scenario_order.unwrap()).unwrap();
    let again = play(&exported.jmx, "plan.jmx", folder.path());
    assert_eq!(own, again);
}

#[test]
fn arrivals_and_stages_are_written_for_jmeter_and_read_again() {
    let plan = |load: &str| {
        let text = format!(
            "name = \"p\"\ntarget = \"http://127.0.0.1:9\"\n{load}\n[[scenario]]\nname = \"s\"\n[[scenario.step]]\npath = \"/\"\n"
        );
        TestPlan::parse(text.as_bytes(), "plan.toml", PathBuf::new())
            .unwrap()
            .to_jmx("o.csv")
            .unwrap()
            .jmx
    };
    let open =
        plan("[load]\nrate = \"50/s\"\nramp = \"30s\"\nduration = \"10m\"\narrivals = \"uniform\"");
    assert!(
        open.contains(
            "rate(0/s) even_arrivals(30 s) rate(50/s) rate(50/s) even_arrivals(570 s) rate(50/s)"
        ),
        "{open}"
    );
    let closed = plan("[load]\nusers = 4\nramp = \"2s\"\nduration = \"60s\"");
    assert!(
        closed.contains("\"ThreadGroup.num_threads\">4<")
            && closed.contains("\"ThreadGroup.ramp_time\">2<")
    );
    assert!(closed.contains("\"ThreadGroup.duration\">60<"), "{closed}");
    let staged =
        plan("[[load.stage]]\nusers = 2\nfor = \"10s\"\n[[load.stage]]\nusers = 1\nfor = \"5s\"");
    assert!(staged.contains("UltimateThreadGroup"), "{staged}");
    for jmx in [open, closed, staged] {
        TestPlan::parse(jmx.as_bytes(), "plan.jmx", PathBuf::new())
            .unwrap_or_else(|error| panic!("{error}\n{jmx}"));
    }
}

#[test]
fn a_plan_of_jmeter_is_written_in_toml() {
    let folder = folder();
    let plan = TestPlan::parse(PLAN.as_bytes(), "plan.toml", folder.path().to_owned()).unwrap();
    // A single scenario has no mix, which TOML would have to make anew.
    let single = PLAN.split("[[scenario]]\nname = \"look\"").next().unwrap();
    let single_plan =
        TestPlan::parse(single.as_bytes(), "plan.toml", folder.path().to_owned()).unwrap();
    let jmx = single_plan.to_jmx("o.csv").unwrap().jmx;
    let read = TestPlan::parse(jmx.as_bytes(), "plan.jmx", folder.path().to_owned()).unwrap();
    let text = read.to_toml(&HashMap::new(), 0).unwrap();
    let own = play(single, "plan.toml", folder.path());
    assert_eq!(play(&text, "again.toml", folder.path()), own, "{text}");
    // And what has no words is told.
    let mixed =
        TestPlan::parse(plan.to_jmx("o.csv").unwrap().jmx.as_bytes(), "plan.jmx", PathBuf::new())
            .unwrap();
    let Err(Error::UnusableInput(told)) = mixed.to_toml(&HashMap::new(), 0) else { panic!() };
    assert!(told.contains("`mix`: a controller that chooses among its children"), "{told}");
    assert!(plan.to_toml(&HashMap::new(), 0).is_err() && mixed.to_jmx("o.csv").is_err());
}
