//! Plans in TOML: what they send, in which shares, and what is refused before anything is sent.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tympan_lab_engine::plan_run::{LoadAmount, LoadOffer, PlanRunOutcome, RunOptions, run_plan};
use tympan_lab_plan::TestPlan;
use tympan_testkit::origin_server::{OriginRequest, OriginResponse, OriginServer};

fn play(origin: &OriginServer, text: &str, folder: &Path) -> PlanRunOutcome {
    let text = text.replace("TARGET", &format!("http://{}", origin.addr()));
    let plan = TestPlan::parse(text.as_bytes(), "p.toml", folder.to_owned())
        .unwrap_or_else(|error| panic!("{error}"));
    run_plan(&plan, &RunOptions { worker_count: 2, ..RunOptions::default() }, &mut |_| {}).unwrap()
}

fn targets(origin: &OriginServer) -> Vec<String> {
    origin.requests().iter().map(|seen| seen.target.clone()).collect()
}

fn counts(origin: &OriginServer) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for target in targets(origin) {
        *counts.entry(target).or_default() += 1;
    }
    counts
}

#[test]
fn a_step_that_is_sent_once_is_sent_in_the_first_visit_of_each_user() {
    let origin = OriginServer::start(|_| OriginResponse::html("page"));
    let text = r#"
target = "TARGET"
[load]
users = 3
visits = 4
[[scenario]]
name = "customer"
[[scenario.step]]
path = "/login"
once = true
[[scenario.step]]
path = "/status"
"#;
    play(&origin, text, Path::new(""));
    let expected = [("/login".to_owned(), 3), ("/status".to_owned(), 12)];
    assert_eq!(counts(&origin), BTreeMap::from(expected));
    assert_eq!(targets(&origin)[0], "/login");
}

#[test]
fn steps_are_sent_in_order_with_everything_they_say() {
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/login" => OriginResponse::html("token='a b'").with_header("Set-Cookie", "sid=7; Path=/"),
        "/missing" => OriginResponse::with_status(404),
        _ => OriginResponse::html("{\"id\":[\"x9\"]}"),
    });
    let text = r#"
name = "shop"
target = "TARGET"
[variables]
lang = "de"
[headers]
Accept-Language = "${lang}"
[load]
users = 1
visits = 2
[[scenario]]
name = "buy"
[[scenario.step]]
path = "/login"
form = { user = "an na", password = "ü" }
extract = { name = "token", between = ["'", "'"] }
[[scenario.step]]
name = "search"
path = "/search"
query = { q = "${token}" }
headers = { X-Own = "1" }
expect = { status = [200, 304], text = "id", regex = "\\{.*\\}", json = { "$.id[0]" = "x9" }, header = { Content-Type = "html" } }
extract = { name = "id", json = "$.id[0]" }
[[scenario.step]]
method = "PUT"
path = "/items/${id}"
json = '{"n":1}'
[[scenario.step]]
path = "/missing"
expect = { status = 404 }
"#;
    let outcome = play(&origin, text, Path::new(""));
    assert_eq!(
        outcome.results.total_stats().error_count,
        0,
        "{:?}",
        outcome.results.total_stats().failure_reason_counts
    );
    let seen = origin.requests();
    let lines: Vec<String> =
        seen.iter().map(|seen| format!("{} {}", seen.method, seen.target)).collect();
    let visit = ["POST /login", "GET /search?q=a+b", "PUT /items/x9", "GET /missing"];
    assert_eq!(lines, [visit, visit].concat());
    assert_eq!(seen[0].body, b"user=an+na&password=%C3%BC");
    assert_eq!(seen[1].header("accept-language"), Some("de"));
    assert_eq!((seen[1].header("x-own"), seen[2].header("x-own")), (Some("1"), None));
    assert_eq!(
        (seen[2].body.as_slice(), seen[2].header("content-type")),
        (b"{\"n\":1}".as_slice(), Some("application/json"))
    );
    assert_eq!(seen[1].header("cookie"), Some("sid=7"));
    // The next visit is somebody else's.
    assert_eq!(seen[4].header("cookie"), None);
    let results = &outcome.results;
    assert_eq!(
        results.labels.keys().map(|name| &**name).collect::<Vec<_>>(),
        ["GET /missing", "POST /login", "PUT /items/${id}", "search"]
    );
    assert_eq!(results.transactions["buy"].total.count(), 2);
}

#[test]
fn weights_are_exact_over_all_users() {
    let origin = OriginServer::start_constant(OriginResponse::html("x"));
    let scenario = |path: &str, weight: u32| {
        format!("[[scenario]]\nweight = {weight}\n[[scenario.step]]\npath = \"{path}\"\n")
    };
    let text = format!(
        "target = \"TARGET\"\n[load]\nusers = 4\nvisits = 50\n{}{}{}{}",
        scenario("/a", 70),
        scenario("/b", 25),
        scenario("/c", 4),
        scenario("/d", 1)
    );
    play(&origin, &text, Path::new(""));
    let expected = [("/a", 140), ("/b", 50), ("/c", 8), ("/d", 2)];
    assert_eq!(counts(&origin), expected.map(|(path, count)| (path.to_owned(), count)).into());
}

#[test]
fn visitors_come_by_the_schedule_and_are_new() {
    let origin = OriginServer::start(|seen| {
        if seen.header("cookie").is_some() {
            OriginResponse::with_status(400)
        } else {
            OriginResponse::html("x").with_header("Set-Cookie", "a=b")
        }
    });
    let text = r#"
target = "TARGET"
[load]
rate = "100/s"
duration = "1s"
arrivals = "uniform"
[[scenario]]
[[scenario.step]]
path = "/"
"#;
    let outcome = play(&origin, text, Path::new(""));
    let total = outcome.results.total_stats();
    assert_eq!((total.count(), total.error_count, outcome.visits), (100, 0, 100));
    assert_eq!(outcome.results.generator.offered_rate, Some(100.0));
    assert_eq!(origin.request_count(), 100);
}

#[test]
fn data_is_shared_and_may_end_a_user() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("users.csv"), "USER,PASS\nanna,1\nben,2\ncleo,3\n").unwrap();
    let origin = OriginServer::start_constant(OriginResponse::html("x"));
    let text = r#"
target = "TARGET"
[[data]]
file = "users.csv"
at_end = "stop"
[load]
users = 2
visits = 100
[[scenario]]
[[scenario.step]]
path = "/${USER}/${PASS}"
"#;
    play(&origin, text, dir.path());
    let mut seen = targets(&origin);
    seen.sort();
    assert_eq!(seen, ["/anna/1", "/ben/2", "/cleo/3"]);
}

#[test]
fn a_failed_step_ends_its_visit_unless_configured_otherwise() {
    let check = |on_error: &str, expected: &str| {
        let origin = OriginServer::start(|seen| match seen.target.as_str() {
            "/b" => OriginResponse::with_status(500),
            _ => OriginResponse::html("x"),
        });
        let text = format!(
            "target = \"TARGET\"\n[load]\nusers = 1\nvisits = 2\n{on_error}\n[[scenario]]\n{}",
            ["/a", "/b", "/c"]
                .map(|path| format!("[[scenario.step]]\npath = \"{path}\"\n"))
                .concat()
        );
        let outcome = play(&origin, &text, Path::new(""));
        assert!(outcome.results.total_stats().error_count > 0);
        assert_eq!(targets(&origin).join(" "), expected, "{on_error}");
    };
    check("", "/a /b /a /b");
    check("on_error = \"go-on\"", "/a /b /c /a /b /c");
    check("on_error = \"stop-user\"", "/a /b");
}

#[test]
fn what_is_not_found_fails_its_step() {
    let origin = OriginServer::start_constant(OriginResponse::html("nothing here"));
    let text = r#"
target = "TARGET"
[load]
users = 1
visits = 1
[[scenario]]
[[scenario.step]]
path = "/"
extract = [{ name = "id", regex = "id=(\\d+)" }, { name = "other", regex = "x(y)", default = "z" }]
"#;
    let outcome = play(&origin, text, Path::new(""));
    let total = outcome.results.total_stats();
    assert_eq!(total.error_count, 1);
    assert!(
        total.failure_reason_counts.keys().next().unwrap().contains("id="),
        "{:?}",
        total.failure_reason_counts
    );
}

#[test]
fn a_target_that_is_not_there_is_the_reason_whatever_was_expected() {
    let text = format!(
        "target = \"http://{}\"\n[load]\nusers = 1\nvisits = 1\n[[scenario]]\n[[scenario.step]]\npath = \"/\"\nexpect = {{ status = 200 }}\n",
        tympan_testkit::origin_server::refusing_addr()
    );
    let plan = TestPlan::parse(text.as_bytes(), "p.toml", PathBuf::new()).unwrap();
    let total = run_plan(&plan, &RunOptions::default(), &mut |_| {}).unwrap().results.total_stats();
    let reasons: Vec<&String> = total.failure_reason_counts.keys().collect();
    assert_eq!(reasons, ["Non HTTP response message: connection refused"]);
}

#[track_caller]
fn refused(text: &str, expected: &[&str]) {
    let error = TestPlan::parse(text.as_bytes(), "p.toml", PathBuf::new()).unwrap_err().to_string();
    for one in expected {
        assert!(error.contains(one), "{one}\n---\n{error}");
    }
    let count = error.lines().count() - 1;
    assert_eq!(count, expected.len(), "{error}");
}

#[test]
fn faults_are_reported_all_at_once_with_their_places() {
    let good = "target = \"http://127.0.0.1:1\"\n[load]\nusers = 1\nvisits = 1\n";
    let step = "[[scenario]]\n[[scenario.step]]\npath = \"/\"\n";
    refused("x = [", &["p.toml:1:6: "]);
    refused(good, &["the plan has no scenario"]);
    refused(
        &format!("{good}{step}nme = \"x\"\n"),
        &["p.toml:8:1: unknown key `nme` in `step`; did you mean `name`?"],
    );
    refused(
        &format!("{good}{step}method = \"P OST\"\nextract = {{ regex = \"(\" }}\n"),
        &["p.toml:8:10: `P OST` is not an HTTP method", "p.toml:9:11: `extract` has no `name`"],
    );
    refused(
        &format!("{good}[[scenario]]\n[[scenario.step]]\npath = \"/${{usr}}/a b\"\n"),
        &["p.toml:7:8: the path", "p.toml:7:8: variable `usr` is never set"],
    );
    refused(
        &format!(
            "{good}{step}expect = {{ status = 99, regex = \"(x\", json = {{ \"a[\" = 1 }} }}\n"
        ),
        &[
            "p.toml:8:21: `99` is not a status code",
            "p.toml:8:33: regular expression",
            "p.toml:8:48: ",
        ],
    );
    refused(&format!("{good}{step}target = \"shop\"\n"), &["p.toml:8:10: unknown target `shop`"]);
    refused(
        &format!("{good}{step}[goal.hom]\nq9 = \"1s\"\n"),
        &["no step or scenario is called `hom`", "unknown limit `q9`"],
    );
    refused(
        &format!("{good}[[data]]\nfile = \"absent.csv\"\n{step}"),
        &["p.toml:6:8: cannot read `absent.csv`"],
    );
    refused(
        "target = \"ftp://x\"\n[load]\nusers = 1\nrate = 3\n",
        &["p.toml:1:10: ", "not both", "the plan has no scenario"],
    );
    refused(
        &format!("target = \"http://127.0.0.1:1\"\n[load]\nusers = 2\n{step}"),
        &["p.toml:2:1: `load` has no end"],
    );
    refused(&format!("{good}{step}method = \"GET\"\nbody = \"x\"\n"), &["a GET has no body"]);
    refused(
        &format!("{good}{step}body = \"x\"\nform = {{ a = \"b\" }}\n"),
        &["a step has one body, not form and body"],
    );
    for size in ["64", "2 GiB", "x MB", "-1 B"] {
        refused(
            &format!("{good}{step}body_size = \"{size}\"\n"),
            &["`body_size` in `step` must be a size such as \"64 MiB\", at most 1024 MiB"],
        );
    }
    refused(
        &format!("{good}{step}headers = {{ \"a b\" = \"${{__nothing()}}\" }}\n"),
        &["`a b` is not a valid header name", "function __nothing: not supported"],
    );
}

#[test]
fn nothing_is_sent_by_a_plan_with_a_fault() {
    let origin = OriginServer::start_constant(OriginResponse::html("x"));
    let text = format!(
        "target = \"http://{}\"\n[load]\nusers = 1\nvisits = 1\n[[scenario]]\n[[scenario.step]]\npath = \"/\"\nthink = \"2\"\n",
        origin.addr()
    );
    assert!(TestPlan::parse(text.as_bytes(), "p.toml", PathBuf::new()).is_err());
    assert_eq!(origin.request_count(), 0);
}

#[test]
fn any_plan_takes_another_load() {
    let origin = OriginServer::start_constant(OriginResponse::html("x"));
    let run = |plan: &TestPlan, amount: LoadAmount, millis: u64| {
        let lasts = std::time::Duration::from_millis(millis);
        let offer = LoadOffer {
            amount,
            duration: lasts,
            ramp: std::time::Duration::ZERO,
            is_random: false,
        };
        run_plan(
            plan,
            &RunOptions { load_offer: Some(offer), worker_count: 2, ..RunOptions::default() },
            &mut |_| {},
        )
        .unwrap()
    };
    let url = TestPlan::for_url(&format!("http://{}/page?x=1", origin.addr())).unwrap();
    assert_eq!(run(&url, LoadAmount::Rate(50.0), 1000).visits, 50);
    assert_eq!(origin.request_count_for("/page?x=1"), 50);
    let jmx = tympan_testkit::jmeter_plan::plan(
        "3",
        "2",
        &tympan_testkit::jmeter_plan::get(&origin, "/jmx"),
    );
    let jmx = TestPlan::parse(jmx.as_bytes(), "p.jmx", PathBuf::new()).unwrap();
    assert_eq!(run(&jmx, LoadAmount::Rate(40.0), 500).visits, 20);
    assert_eq!(origin.request_count_for("/jmx"), 20);
    let users = tympan_testkit::jmeter_plan::plan(
        "1",
        "2",
        &tympan_testkit::jmeter_plan::get(&origin, "/user/${__threadNum}"),
    );
    let users = TestPlan::parse(users.as_bytes(), "p.jmx", PathBuf::new()).unwrap();
    assert!(run(&users, LoadAmount::Users(3), 1000).results.total_stats().count() >= 3);
    for user in 1..=3 {
        assert!(origin.request_count_for(&format!("/user/{user}")) > 0, "{user}");
    }
    assert_eq!(origin.request_count_for("/user/4"), 0);
}

/// The plans of the documentation: each is sound, and has the shares and the load that it names.
#[test]
fn the_example_plans_are_sound() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plans");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            TestPlan::load(&path).unwrap_or_else(|error| panic!("{error}"));
            found.push(path.file_name().unwrap().to_str().unwrap().to_owned());
        }
    }
    found.sort();
    assert_eq!(found, ["errors.toml", "mix.toml", "portal.toml"]);
}

#[test]
fn the_example_mix_sends_its_shares() {
    let origin = OriginServer::start(|seen: &OriginRequest| {
        if seen.target.starts_with("/missing") {
            OriginResponse::with_status(404)
        } else {
            OriginResponse::html("<html>x</html>")
        }
    });
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plans/mix.toml");
    let plan = TestPlan::load(&path).unwrap();
    let lasts = std::time::Duration::from_secs(1);
    let offer = LoadOffer {
        amount: LoadAmount::Rate(100.0),
        duration: lasts,
        ramp: std::time::Duration::ZERO,
        is_random: false,
    };
    let properties = [
        ("target.host", "127.0.0.1".to_owned()),
        ("target.port", origin.addr().port().to_string()),
    ];
    let properties = properties.map(|(name, value)| (name.to_owned(), value)).into();
    let run = RunOptions {
        load_offer: Some(offer),
        worker_count: 2,
        properties,
        ..RunOptions::default()
    };
    let outcome = run_plan(&plan, &run, &mut |_| {}).unwrap();
    let counts: Vec<(&str, u64)> = outcome
        .results
        .transactions
        .iter()
        .map(|(name, series)| (&**name, series.total.count()))
        .collect();
    assert_eq!(counts, [("articles", 25), ("home page", 70), ("order", 1), ("search", 4)]);
    assert_eq!(
        outcome.results.total_stats().error_count,
        0,
        "{:?}",
        outcome.results.total_stats().failure_reason_counts
    );
    assert!(plan.goals.len() >= 5);
}
