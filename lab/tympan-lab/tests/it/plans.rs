//! What is refused before a load begins, and the other forms of plans, by exit codes.

use std::path::Path;
use std::process::Output;

use tympan_testkit::origin_server::{OriginResponse, OriginServer};

use crate::program::lab_command;

struct Told {
    code: Option<i32>,
    text: String,
    errors: String,
}

fn lab(folder: &Path, login: &str, words: &[&str]) -> Told {
    let mut command = lab_command();
    command.current_dir(folder).env("TYMPAN_LAB_LOGIN", login).args(words);
    let Output { status, stdout, stderr } = command.output().unwrap();
    Told {
        code: status.code(),
        text: String::from_utf8(stdout).unwrap(),
        errors: String::from_utf8(stderr).unwrap(),
    }
}

#[test]
fn what_cannot_be_loaded_is_refused_before_anything_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let told = lab(path, "a:b", &["tough", "--dry-run", "--rate", "10/s", "--duration", "100s"]);
    assert_eq!(told.code, Some(0), "{}", told.errors);
    assert!(
        told.text.contains("75.0 %  GetHomepage") && told.text.contains("about 350 nodes"),
        "{}",
        told.text
    );
    std::fs::write(path.join("bad.yaml"), "tests:\n  - add: CreateLiveCopyTest\n").unwrap();
    let told = lab(path, "a:b", &["tough", "bad.yaml", "--author", "http://127.0.0.1:1"]);
    assert_eq!(told.code, Some(2));
    assert!(
        told.errors.contains("bad.yaml:2:") && told.errors.contains("live copies"),
        "{}",
        told.errors
    );
    assert_eq!(lab(path, "a:b", &["tough", "nothing"]).code, Some(2));
    assert_eq!(lab(path, "a:b", &["tough"]).code, Some(2), "no author is named");
    assert_eq!(
        lab(path, "a:b", &["tough", "--author", "http://127.0.0.1:1", "--rate", "x"]).code,
        Some(2)
    );
    assert_eq!(lab(path, "a:b", &["backup-impact", "--mix", "1/2", "--", "true"]).code, Some(2));
    assert_eq!(lab(path, "a:b", &["backup-impact", "--load", "120%", "--", "true"]).code, Some(2));
    assert_eq!(lab(path, "a:b", &["backup-impact", "--delay", "0,1", "--", "true"]).code, Some(2));
}

#[test]
fn plans_change_their_form_and_runs_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let origin = OriginServer::start_constant(OriginResponse::html("x"));
    let plan = format!(
        "name = \"p\"\ntarget = \"http://{}\"\n[load]\nusers = 2\nvisits = 3\n[[scenario]]\nname = \"s\"\n[[scenario.step]]\npath = \"/a\"\n",
        origin.addr()
    );
    std::fs::write(path.join("plan.toml"), plan).unwrap();
    let told = lab(path, "a:b", &["export", "--jmx", "plan.toml"]);
    assert_eq!(told.code, Some(0), "{}", told.errors);
    assert_eq!(
        lab(path, "a:b", &["export", "--jmx", "plan.toml"]).code,
        Some(2),
        "nothing is replaced unasked"
    );
    assert_eq!(lab(path, "a:b", &["jmeter", "-n", "-t", "plan.jmx"]).code, Some(0));
    assert_eq!(origin.request_count(), 6);
    let told = lab(path, "a:b", &["convert", "plan.jmx", "-o", "again.toml"]);
    assert_eq!(told.code, Some(0), "{}{}", told.text, told.errors);
    let told = lab(
        path,
        "a:b",
        &["run", "again.toml", "--keep", "runs", "--pid", &std::process::id().to_string()],
    );
    assert_eq!(told.code, Some(0), "{}{}", told.text, told.errors);
    assert_eq!(origin.request_count(), 12);
    let run = std::fs::read_dir(path.join("runs")).unwrap().next().unwrap().unwrap().path();
    let hist = std::fs::read_to_string(run.join("hist.hlog")).unwrap();
    assert!(
        hist.lines().any(|line| line.starts_with("Tag=") && line.split(',').count() == 5),
        "{hist}"
    );
    let metrics = std::fs::read_to_string(run.join("metrics.csv")).unwrap();
    assert!(metrics.starts_with("second,requests,errors,"), "{metrics}");
    let requests = |line: &str| line.split(',').nth(1).unwrap().parse::<u64>().unwrap();
    assert_eq!(metrics.lines().skip(1).map(requests).sum::<u64>(), 6, "{metrics}");
    for name in ["run.toml", "plan.toml", "summary.json", "report.html"] {
        assert!(run.join(name).exists(), "{name}");
    }
    let har = r#"{"log":{"entries":[{"startedDateTime":"2026-01-01T00:00:00Z","time":1,"request":{"method":"GET",
        "url":"http://h.example/x","headers":[]},"response":{"status":200,"content":{"mimeType":"text/html"}}}]}}"#;
    std::fs::write(path.join("visit.har"), har).unwrap();
    let told = lab(path, "a:b", &["record", "--from-har", "visit.har", "-o", "visit.toml"]);
    assert_eq!(told.code, Some(0), "{}", told.errors);
    assert_eq!(lab(path, "a:b", &["check", "visit.toml"]).code, Some(0));
    std::fs::write(path.join("broken.har"), "{").unwrap();
    assert_eq!(
        lab(path, "a:b", &["record", "--from-har", "broken.har", "-o", "x.toml"]).code,
        Some(2)
    );
    assert_eq!(
        lab(path, "a:b", &["get", "http://127.0.0.1:1/", "--keep", "runs", "--agents", "local:2"])
            .code,
        Some(2)
    );
}

#[test]
fn a_stored_plan_holds_no_secret_and_runs_again_when_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let origin = OriginServer::start(|seen| {
        let sent = String::from_utf8_lossy(&seen.body).into_owned();
        let is_known = seen.header("authorization") == Some("Bearer s3cr3t-one")
            && sent == "user=ann&password=s3cr3t-two";
        OriginResponse::with_status(if is_known { 200 } else { 401 })
    });
    let port = origin.addr().port();
    let toml = format!(
        "target = \"http://127.0.0.1:{port}\"\n[headers]\nAuthorization = \"Bearer s3cr3t-one\"\n[load]\nusers = 1\nvisits = 1\n\
         [[scenario]]\n[[scenario.step]]\npath = \"/login\"\nform = {{ user = \"ann\", password = \"s3cr3t-two\" }}\n"
    );
    let jmx = lab_plan(port);
    for (name, plan) in [("plan.toml", &toml), ("plan.jmx", &jmx)] {
        std::fs::write(path.join(name), plan).unwrap();
        let runs = format!("runs-{name}");
        let told = lab(path, "a:b", &["run", name, "--keep", &runs]);
        assert_eq!(told.code, Some(0), "{}{}", told.text, told.errors);
        assert!(told.text.contains(" 0 errors"), "{}", told.text);
        let run = std::fs::read_dir(path.join(&runs)).unwrap().next().unwrap().unwrap().path();
        for entry in std::fs::read_dir(&run).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            assert!(!String::from_utf8_lossy(&bytes).contains("s3cr3t"), "{name}");
        }
        let kept = run.join(name);
        let kept = kept.to_str().unwrap();
        let before = origin.request_count();
        let refused = lab(path, "a:b", &["run", kept]);
        assert_eq!(refused.code, Some(2), "{}", refused.errors);
        assert!(refused.errors.contains("-Jkept.password=..."), "{}", refused.errors);
        assert_eq!(origin.request_count(), before, "nothing is sent without the secrets");
        let again = lab(
            path,
            "a:b",
            &["run", kept, "-Jkept.password=s3cr3t-two", "-Jkept.authorization=s3cr3t-one"],
        );
        assert_eq!(again.code, Some(0), "{}{}", again.text, again.errors);
        assert!(again.text.contains(" 0 errors"), "{}", again.text);
    }
    let named = toml.replace("127.0.0.1", "shop.invalid");
    std::fs::write(path.join("named.toml"), named).unwrap();
    let told = lab(path, "a:b", &["run", "named.toml", "--resolve", "shop.invalid=127.0.0.1"]);
    assert!(told.text.contains(" 0 errors"), "{}{}", told.text, told.errors);
    assert_eq!(lab(path, "a:b", &["run", "named.toml", "--resolve", "shop"]).code, Some(2));
}

/// Returns a plan of JMeter that logs in with a password and a token of its own.
fn lab_plan(port: u16) -> String {
    let prop =
        |name: &str, value: &str| format!("<stringProp name=\"{name}\">{value}</stringProp>");
    let argument = |name: &str, value: &str| {
        format!(
            "<elementProp name=\"{name}\" elementType=\"HTTPArgument\">{}{}{}</elementProp>",
            prop("Argument.name", name),
            prop("Argument.value", value),
            prop("Argument.metadata", "=")
        )
    };
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<jmeterTestPlan version=\"1.2\"><hashTree><TestPlan testclass=\"TestPlan\" testname=\"p\"/><hashTree>\
         <HeaderManager testclass=\"HeaderManager\" testname=\"h\"><collectionProp name=\"HeaderManager.headers\"><elementProp name=\"\" elementType=\"Header\">{}{}\
         </elementProp></collectionProp></HeaderManager><hashTree/><ThreadGroup testclass=\"ThreadGroup\" testname=\"g\">{}{}</ThreadGroup><hashTree>\
         <HTTPSamplerProxy testclass=\"HTTPSamplerProxy\" testname=\"log in\"><elementProp name=\"HTTPsampler.Arguments\" elementType=\"Arguments\">\
         <collectionProp name=\"Arguments.arguments\">{}{}</collectionProp></elementProp>{}{}{}{}</HTTPSamplerProxy><hashTree/></hashTree></hashTree></hashTree></jmeterTestPlan>",
        prop("Header.name", "Authorization"),
        prop("Header.value", "Bearer s3cr3t-one"),
        prop("ThreadGroup.num_threads", "1"),
        prop("ThreadGroup.ramp_time", "0"),
        argument("user", "ann"),
        argument("password", "s3cr3t-two"),
        prop("HTTPSampler.domain", "127.0.0.1"),
        prop("HTTPSampler.port", &port.to_string()),
        prop("HTTPSampler.path", "/login"),
        prop("HTTPSampler.method", "POST"),
    )
}
