//! `tympan lab`: plans in TOML, tests of several phases and pages, from words to exit codes.

use std::path::Path;

use tympan_testkit::origin_server::{OriginResponse, OriginServer, refusing_addr};

use crate::program::{lab_command, run};

fn plan(folder: &Path, name: &str, more: &str) -> String {
    let text = format!(
        "name = \"p\"\ntarget = \"http://127.0.0.1:9\"\n[load]\nusers = 1\nvisits = 2\n[[scenario]]\nname = \"visit\"\n[[scenario.step]]\npath = \"/page.html\"\n{more}\n"
    );
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn site() -> OriginServer {
    OriginServer::start(|seen| match seen.target.split('?').next().unwrap() {
        "/page.html" => {
            OriginResponse::html("<img src=/gone.png>").with_header("Server-Timing", "render;dur=9")
        }
        "/alone.html" => OriginResponse::html("x"),
        "/content/dam/lab" => OriginResponse::with_status(403),
        _ => OriginResponse::with_status(404),
    })
}

#[track_caller]
fn check(arguments: &[&str], code: i32, expected: &str) -> String {
    let output = run(arguments);
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{text}");
    assert!(text.contains(expected), "{arguments:?}: {expected}\n{text}");
    text
}

#[test]
fn plans_in_toml_are_checked_and_run() {
    let dir = tempfile::tempdir().unwrap();
    let origin = site();
    let target = format!("http://{}", origin.addr());
    let good = plan(dir.path(), "good.toml", "expect = { status = 200 }");
    let bad = plan(dir.path(), "bad.toml", "expct = { status = 200 }");
    let strict = plan(dir.path(), "strict.toml", "[goal.visit]\nmax = \"0us\"");
    check(&["check", &good], 0, "can be run");
    check(
        &["check", &bad],
        2,
        "bad.toml:10:1: unknown key `expct` in `step`; did you mean `expect`?",
    );
    check(&["run", &bad, "--target", &target], 2, "nothing was run");
    assert_eq!(origin.request_count(), 0);
    check(&["run", &good, "--target", &target], 0, "requests 2 in");
    assert_eq!(origin.request_count_for("/page.html"), 2);
    check(&["run", &good, "--target", &target, "--rate", "10/s", "--for", "500ms"], 0, "service ");
    check(&["run", &strict, "--target", &target], 1, "MISSED visit");
    check(&["run", &good, "--target", &format!("http://{}", refusing_addr())], 3, "2 errors");
    check(&["run", &good, "--target", "http://a/b"], 2, "without a path");
}

#[test]
fn tests_of_phases_end_with_their_codes_and_keep_their_runs() {
    let dir = tempfile::tempdir().unwrap();
    let origin = site();
    let url = format!("http://{}/alone.html", origin.addr());
    let kept = dir.path().join("runs");
    let keep = kept.to_str().unwrap();
    let good = plan(dir.path(), "good.toml", "");
    let target = format!("http://{}", origin.addr());
    let steps = ["--users", "--from", "1", "--steps", "1", "--dwell", "200ms", "--exact-dwell"];
    let words = [
        &["breakpoint", &good, "--target", &target, "--keep", keep, "-Jpassword=secret"][..],
        &steps[..],
    ]
    .concat();
    check(&words, 0, "did not break up to 1 users");
    let runs: Vec<_> =
        std::fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(runs.len(), 1);
    let read = |name: &str| std::fs::read_to_string(runs[0].join(name)).unwrap();
    assert!(read("run.toml").contains("-Jpassword=***") && !read("run.toml").contains("secret"));
    assert!(read("run.toml").parse::<toml::Table>().is_ok());
    assert!(read("plan.toml").contains("/page.html") && read("report.html").contains("<svg"));
    assert!(
        serde_json::from_str::<serde_json::Value>(&read("summary.json")).unwrap()["steps"]
            .is_array()
    );
    let dead = format!("http://{}/", refusing_addr());
    check(&[&["breakpoint", &dead][..], &steps[..]].concat(), 3, "the target never responded");
    check(&["golive", &url], 2, "--avg");
    check(&["golive", &url, "--avg", "5/s", "--peak", "x"], 2, "is not a rate");
    check(&["endure", &url, "--rate", "5/s", "--for", "1s", "--warm-up", "2s"], 2, "the warm-up");
    check(&["endure", &url, "--rate", "5/s", "--for", "1s"], 3, "too little data for a trend");
    check(&["errors", &good, "--rate", "5/s", "--for", "1s"], 2, "--errors");
    let missing = format!("http://{}/missing.html", origin.addr());
    let goals = dir.path().join("goals.toml");
    std::fs::write(&goals, "[goal.\"*\"]\nerror_rate = \"0%\"\n").unwrap();
    check(
        &[
            "component",
            &missing,
            "--avg",
            "5/s",
            "--peak",
            "9/s",
            "--hold",
            "500ms",
            "--goals",
            goals.to_str().unwrap(),
        ],
        1,
        "goals are missed",
    );
    let dam = format!("http://{}/content/dam/lab", origin.addr());
    check(
        &[
            "upload", &dam, "--assets", "9", "--size", "0.001", "--window", "1s", "--skew", "1/1",
            "--for", "300ms",
        ],
        1,
        "status 403",
    );
}

#[test]
fn the_tested_process_is_drawn_by_its_number_or_its_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = "process_cpu_seconds_total 1\nprocess_threads 4\ntympan_pool_in_use{pool=\"work\"} 3\ntympan_pool_limit{pool=\"work\"} 4\n";
    let origin = OriginServer::start(move |seen| match seen.target.as_str() {
        "/metrics" => OriginResponse::with_status(200).with_body(metrics),
        _ => OriginResponse::html("x"),
    });
    let url = format!("http://{}/", origin.addr());
    let file = dir.path().join("r.html");
    let report = file.to_str().unwrap();
    let own = std::process::id().to_string();
    let tell = |words: &[&str]| -> (serde_json::Value, String) {
        let base = ["get", &url, "--report", report, "--json"];
        let output = run(&[&base[..], words].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        (serde_json::from_slice(&output.stdout).unwrap(), std::fs::read_to_string(&file).unwrap())
    };
    let (json, html) = tell(&["--pid", &own]);
    assert!(json["target"]["max_memory_bytes"].as_u64() > Some(1_000_000), "{json}");
    assert!(html.contains("Memory of the tested process"));
    let (json, html) = tell(&["--metrics", &format!("{url}metrics")]);
    assert_eq!(json["target"]["max_threads"], 4);
    assert_eq!(json["target"]["pools"]["work"]["max_used_share"], 0.75);
    assert!(html.contains("Pool usage"));
    let rows = dir.path().join("r.jtl");
    tell(&["--jtl", rows.to_str().unwrap(), "--jtl-us", "-n", "3"]);
    let text = std::fs::read_to_string(&rows).unwrap();
    assert!(text.lines().next().unwrap().ends_with(",Connect,elapsedUs"), "{text}");
    assert_eq!(text.lines().count(), 4);
    check(&["report", rows.to_str().unwrap()], 0, "requests 3 in");
    check(&["report", dir.path().to_str().unwrap()], 2, "contains no lab run");
    let (json, html) = tell(&[]);
    assert!(json["target"].is_null() && !html.contains("The tested process"));
    check(&["get", &url, "--metrics", "no address"], 2, "no address");
    check(&["component", &url, "--all"], 2, "reports no components");
    check(&["component", &url], 2, "--avg");
}

#[test]
fn stored_runs_are_overlaid() {
    let dir = tempfile::tempdir().unwrap();
    let origin = site();
    let page = format!("http://{}/alone.html", origin.addr());
    let runs = dir.path().join("runs");
    let keep = runs.to_str().unwrap();
    for count in ["20", "30"] {
        check(&["get", &page, "-n", count, "--keep", keep], 0, "requests");
    }
    let phases = ["--users", "--from", "1", "--steps", "2", "--dwell", "200ms", "--exact-dwell"];
    check(&[&["breakpoint", &page, "--keep", keep][..], &phases].concat(), 0, "");
    let file = dir.path().join("all.html");
    let out = ["-o", file.to_str().unwrap()];
    let text = check(&[&["report", keep][..], &out].concat(), 0, "95 % by label");
    assert!(text.contains(&format!("lab get {page} -n 20")), "{text}");
    let html = std::fs::read_to_string(&file).unwrap();
    let curves = html.matches("Response time by percentile</figcaption>").count();
    assert!(curves == 1 && html.contains("class=\"line c2\""), "{html}");
    let told = check(&["report", keep, "--json"], 0, "");
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let counts: Vec<_> =
        (0..2).map(|run| told["runs"][run]["steps"][0]["samples"].as_f64()).collect();
    assert_eq!(counts, [Some(20.0), Some(30.0)]);
    assert!(told["runs"][2]["steps"].as_array().unwrap().len() >= 2, "{told}");
    let goals = dir.path().join("goals.toml");
    std::fs::write(&goals, "[goal.\"*\"]\nmax = \"0us\"\n").unwrap();
    let goals = goals.to_str().unwrap();
    check(&["report", keep, "--goals", goals], 2, "is for a single result file");
    check(&["get", &page, "-n", "2", "--keep", keep, "--goals", goals], 1, "MISSED");
    check(&["report", keep], 1, "1 of 1 goals missed");
}

#[test]
fn pages_and_the_latency_goal_have_their_codes() {
    let origin = site();
    let page = format!("http://{}/page.html", origin.addr());
    let alone = format!("http://{}/alone.html", origin.addr());
    check(&["page", &page, "--visits", "1"], 1, "gone.png (status 404)");
    check(&["page", &alone, "--visits", "2"], 0, "whole");
    check(&["components", &page], 0, "render");
    check(&["slo", &page, "--samples", "3"], 0, "NOT COMPARABLE");
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("urls.txt");
    std::fs::write(&list, format!("# pages\n{page}\n\n{alone}\n")).unwrap();
    check(&["slo", list.to_str().unwrap(), "--samples", "4"], 0, &alone);
    check(&["slo", &page, "--samples", "3", "--strict"], 3, "--strict");
    check(&["slo", &page, "--samples", "3", "--watch", "--rounds", "1"], 0, "1 met: p70 9.0 ms");
    // What a login is, no report tells.
    let output = lab_command()
        .args(["slo", &page, "--samples", "1", "--json"])
        .env("TYMPAN_LAB_LOGIN", "admin:secret")
        .output()
        .unwrap();
    assert!(!String::from_utf8_lossy(&output.stdout).contains("secret"));
    assert_eq!(
        origin.requests().last().unwrap().header("authorization"),
        Some("Basic YWRtaW46c2VjcmV0")
    );
    // A token of a file takes precedence over the login of the environment.
    let token = dir.path().join("token");
    std::fs::write(&token, "a1b2c3\n").unwrap();
    let output = lab_command()
        .args(["page", "slo", &page, "--requests", "1", "--token-file", token.to_str().unwrap()])
        .env("TYMPAN_LAB_LOGIN", "admin:secret")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(origin.requests().last().unwrap().header("authorization"), Some("Bearer a1b2c3"));
    let lost = dir.path().join("lost");
    check(&["page", "slo", &page, "--token-file", lost.to_str().unwrap()], 2, "lost");
}

/// Runs a command that prints JSON and returns it.
#[track_caller]
fn told(words: &[&str], code: i32) -> serde_json::Value {
    let output = run(&[words, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{words:?}\n{errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"))
}

/// A site that refuses what is too large and what does not exist.
fn sturdy() -> OriginServer {
    OriginServer::start(|seen| match seen.target.split('?').next().unwrap() {
        "/page.html" => OriginResponse::html("orders"),
        "/full" => OriginResponse::with_status(if seen.body.len() > 1 << 20 { 413 } else { 204 }),
        "/taken" => OriginResponse::with_status(201),
        _ => OriginResponse::with_status(404),
    })
}

#[test]
fn errors_bring_uploads_and_slow_clients_if_they_are_asked_for() {
    let origin = sturdy();
    let url = format!("http://{}/page.html", origin.addr());
    let base =
        ["errors", &url, "--rate", "20/s", "--for", "1s", "--share", "50%", "--within", "60s"];
    let base = [&base[..], &["--delta", "100000%"]].concat();
    let upload = |path: &'static str, size: &'static str| {
        [&base[..], &["--upload", path, "--upload-size", size]].concat()
    };
    let json = told(&upload("/full", "2 MiB"), 0);
    let of = |json: &serde_json::Value| json["errors"]["upload that is too large"].clone();
    assert_eq!((&of(&json)["wrong"], &of(&json)["right"]), (&0.into(), &true.into()), "{json}");
    assert!(of(&json)["statuses"]["413"].as_u64() > Some(0), "{json}");
    assert!(json["slow"].is_null(), "{json}");
    let sizes: Vec<usize> = {
        let seen = origin.requests();
        seen.iter().filter(|seen| seen.target == "/full").map(|seen| seen.body.len()).collect()
    };
    assert!(!sizes.is_empty() && sizes.iter().all(|size| *size == 2 << 20), "{sizes:?}");
    // What takes an upload of any size answers it wrongly.
    let json = told(&upload("/taken", "10 B"), 1);
    assert_eq!(of(&json)["right"], false, "{json}");
    let json = told(&[&base[..], &["--slow", "4"]].concat(), 0);
    assert_eq!((&json["slow"]["connections"], &json["slow"]["held"]), (&4.into(), &4.into()));
    assert!(of(&json).is_null(), "{json}");
    check(&upload("/full", "10"), 2, "--upload-size `10` is not a size");
    check(&upload("/full", "2 GiB"), 2, "at most 1024 MiB");
    check(&[&base[..], &["--upload-size", "2 MiB"]].concat(), 2, "--upload");
    let dir = tempfile::tempdir().unwrap();
    let plan = plan(dir.path(), "p.toml", "");
    let words = ["errors", &plan, "--errors", &plan, "--rate", "9/s", "--for", "1s", "--slow", "1"];
    check(&words, 2, "slow clients need the address");
}

#[test]
fn a_back_end_is_taken_away_by_a_command_and_brought_back() {
    let dir = tempfile::tempdir().unwrap();
    let away = dir.path().join("away");
    let switch = away.clone();
    let origin = OriginServer::start(move |seen| match seen.target.split('?').next().unwrap() {
        "/page.html" if switch.exists() => OriginResponse::html("sorry"),
        "/page.html" => OriginResponse::html("orders"),
        _ => OriginResponse::with_status(404),
    });
    let url = format!("http://{}/page.html", origin.addr());
    let base = ["errors", &url, "--rate", "20/s", "--for", "500ms", "--within", "60s"];
    let base = [&base[..], &["--delta", "100000%"]].concat();
    let (off, on) =
        (format!("orders down=touch {0}", away.display()), format!("rm {}", away.display()));
    let outage = ["--outage", &off, "--restore", &on, "--placeholder"];
    let json = told(&[&base[..], &outage, &["sorry"]].concat(), 0);
    let survived = &json["outages"][0];
    assert_eq!((&survived["name"], &survived["stays_up"]), (&"orders down".into(), &true.into()));
    assert_eq!(survived["placeholder_shown"], true, "{survived}");
    assert!(!away.exists());
    // A page that only looks as ever says nothing of what it lacks.
    let json = told(&[&base[..], &outage, &["we are sorry"]].concat(), 1);
    assert_eq!(json["outages"][0]["placeholder_shown"], false, "{json}");
    assert!(!away.exists());
    let failing = ["--outage", "gone=exit 7", "--restore", "true"];
    check(&[&base[..], &failing].concat(), 3, "`exit 7` failed");
    check(
        &[&base[..], &["--outage", "exit 7", "--restore", "true"]].concat(),
        2,
        "is not an outage",
    );
    check(&[&base[..], &["--outage", "a=b"]].concat(), 2, "--restore");
}

#[test]
fn authors_are_watched_beside_what_loads_them() {
    let metrics = "process_cpu_seconds_total 1\nprocess_threads 4\n";
    let origin = OriginServer::start(move |seen| match seen.target.as_str() {
        "/metrics" => OriginResponse::with_status(200).with_body(metrics),
        "/content/dam/lab" => OriginResponse::with_status(201),
        _ => OriginResponse::html("x"),
    });
    let author = format!("http://{}", origin.addr());
    let dam = format!("{author}/content/dam/lab");
    let own = std::process::id().to_string();
    let measured = format!("{author}/metrics");
    let tough =
        ["tough", "get_tests", "--author", &author, "--concurrency", "1", "--duration", "1s"];
    let upload = [
        "upload",
        &dam,
        "--assets",
        "9",
        "--size",
        "0.001",
        "--window",
        "1s",
        "--skew",
        "1/1",
        "--for",
        "500ms",
        "--no-renditions",
    ];
    for words in [&tough[..], &upload] {
        let json = told(&[words, &["--pid", &own]].concat(), 0);
        assert!(json["target"]["max_memory_bytes"].as_u64() > Some(1_000_000), "{json}");
        let json = told(&[words, &["--metrics", &measured]].concat(), 0);
        assert_eq!(json["target"]["max_threads"], 4, "{json}");
        let json = told(words, 0);
        assert!(json["target"].is_null(), "{json}");
        let both = [words, &["--pid", &own, "--metrics", &measured]].concat();
        check(&both, 2, "cannot be used with");
        check(&[words, &["--metrics", "no address"]].concat(), 2, "no address");
    }
}

#[test]
fn what_needs_the_rows_of_one_run_is_refused_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let origin = site();
    let page = format!("http://{}/alone.html", origin.addr());
    let runs = dir.path().join("runs");
    let keep = runs.to_str().unwrap();
    let rows = dir.path().join("r.jtl");
    let rows = rows.to_str().unwrap();
    check(&["get", &page, "-n", "3", "--mark", "--keep", keep, "--jtl", rows], 0, "slow ");
    // Kept runs, summaries and rows stand on one page.
    let summary = dir.path().join("s.json");
    let output = run(&["get", &page, "-n", "5", "--json"]);
    std::fs::write(&summary, output.stdout).unwrap();
    let several = ["report", keep, summary.to_str().unwrap(), rows];
    let json = told(&several, 0);
    let counts: Vec<_> =
        (0..3).map(|run| json["runs"][run]["steps"][0]["samples"].as_f64()).collect();
    assert_eq!(counts, [Some(3.0), Some(5.0), Some(3.0)], "{json}");
    check(&[&several[..], &["--request-log", rows]].concat(), 2, "for a single result file");
    check(&["report", rows, "--request-log", rows], 2, "request.log");
    check(&["report", rows, "--request-log", "/nowhere/r.log"], 2, "/nowhere/r.log");
    check(&["get", &page, "--mark", "--agents", "2"], 2, "leave out --mark");
    let empty = dir.path().join("empty.log");
    std::fs::write(&empty, "").unwrap();
    let json = told(&["report", rows, "--request-log", empty.to_str().unwrap()], 0);
    assert_eq!((&json["joined"]["samples"], &json["joined"]["found"]), (&3.into(), &0.into()));
}

#[test]
fn what_measures_nothing_says_so_in_place_of_a_figure() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let empty = file("empty", "");
    check(&["report", &empty], 3, "contains no samples");
    check(&["cache-ratio", "--access", &empty, "--request", &empty], 2, "there is no ratio");
    check(&["cache-ratio", "--total", "0", "--reached", "0"], 2, "--total must be above 0");
    check(&["cache-ratio", "--total", "1", "--reached", "2"], 2, "--total must be above 0");
    check(&["cache-ratio", "--total", "129491", "--reached", "58959"], 0, "54.5 %");
    let at = "21/Nov/2026:00:50:16 +0000";
    let access =
        file("access", &format!("127.0.0.1 - - {at} \"GET /a HTTP/1.1\" 200 5 \"-\" \"-\"\n"));
    let twice = format!("{at} [1] -> GET /a HTTP/1.1\n{at} [2] -> GET /a HTTP/1.1\n");
    let reached = file("reached", &twice);
    check(&["cache-ratio", "--access", &access, "--request", &reached], 3, "more requests reached");
    let once = file("once", &format!("{at} [1] -> GET /a.html?x=1 HTTP/1.1\n"));
    let ratio = told(&["cache-ratio", "--access", &access, "--request", &once], 0);
    assert_eq!((&ratio["requests"], &ratio["hit_share"]), (&1.into(), &0.0.into()), "{ratio}");
    assert_eq!(ratio["paths_with_query"][0]["path"], "/a.html", "{ratio}");
    assert_eq!(ratio["extensions"]["html"]["reached_publish"], 1, "{ratio}");
    assert_eq!(told(&["cache-ratio", "--total", "4", "--reached", "1"], 0)["hit_share"], 0.75);
    let users = ["users", "--users", "10", "--interval", "2s"];
    let load = told(&users, 0);
    assert_eq!((&load["arrivals_per_second"], &load["in_flight"]), (&5.0.into(), &().into()));
    let answered = [&users[..], &["--response-time", "1s"]].concat();
    assert_eq!(told(&answered, 0)["in_flight"], 5.0);
    let day = ["upload-goal", "--assets", "3600", "--size", "1", "--window", "1h"];
    assert_eq!(told(&day, 0)["average_mb_per_second"].as_f64(), Some(1.0));
    let dam = ["upload", "http://127.0.0.1:9/content/dam/x", "--size", "1", "--assets", "many"];
    check(&dam, 2, "`many` is not a number");
    let journal = dir.path().join("j.jsonl");
    let dead = format!("http://{}/", refusing_addr());
    let words = ["journal", "add", "--journal", journal.to_str().unwrap(), "x", "--", "get", &dead];
    let text = check(&words, 3, "no step is added: 1 x connection refused");
    assert!(!text.contains('{') && !journal.exists(), "{text}");
}
