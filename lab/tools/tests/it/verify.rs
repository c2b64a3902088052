//! Two sites that should answer alike.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tympan_lab_engine::plan_run::RunOptions;
use tympan_lab_plan::TestPlan;
use tympan_lab_tools::verification::ComparisonRules;
use tympan_lab_tools::verification::DifferenceAspect;
use tympan_lab_tools::verification::compare_plan_runs;
use tympan_lab_tools::verification::{SiteComparison, SiteComparisonResult, parse_request_list};
use tympan_testkit::origin_server::{OriginResponse, OriginServer, refusing_addr};

fn verify(before: &OriginServer, after: &OriginServer) -> SiteComparison {
    SiteComparison {
        before_url: format!("http://{}", before.addr()),
        after_url: format!("http://{}", after.addr()),
        headers: Vec::new(),
        rules: ComparisonRules::default(),
        timeout: Duration::from_secs(60),
    }
}

fn run(before: &OriginServer, after: &OriginServer, list: &str) -> SiteComparisonResult {
    verify(before, after).compare_requests(&parse_request_list(list, "list").unwrap()).unwrap()
}

fn aspects(verdict: &SiteComparisonResult) -> Vec<String> {
    verdict.changes.iter().map(|one| format!("{} {}", one.request_line, one.aspect)).collect()
}

#[test]
fn answers_that_differ_in_dates_nonces_and_their_own_address_are_the_same() {
    let site = |date: &'static str, nonce: &'static str| {
        OriginServer::start(move |seen| {
            let host = seen.header("host").unwrap_or_default();
            OriginResponse::html(format!(
                "<p>made {date}</p><script nonce=\"{nonce}\"></script><a href=\"http://{host}/x\">"
            ))
            .with_header("Date", date)
            .with_header("Set-Cookie", &format!("sid={nonce}; Path=/"))
        })
    };
    let before = site("2026-11-21T00:50:16Z", "aaaaaaaaaaaa");
    let after = site("2026-11-22T01:02:03.5Z", "bbbbbbbbbbbb");
    let verdict = run(&before, &after, "/a.html\nGET /b.html?c=d\n# nothing\n");
    assert!(verdict.is_same(), "{verdict:?}");
    assert_eq!((verdict.compared_count, before.request_count(), after.request_count()), (2, 2, 2));
}

#[test]
fn every_kind_of_change_is_named_with_what_went_and_what_came() {
    let before = OriginServer::start(|seen| match seen.target.as_str() {
        "/status" => OriginResponse::html("x"),
        "/header" => OriginResponse::html("x").with_header("Cache-Control", "max-age=60"),
        "/bytes" => OriginResponse::with_status(200)
            .with_header("Content-Type", "image/png")
            .with_body([1, 2, 3]),
        _ => OriginResponse::html("<h1>One</h1>\n<p>same</p>"),
    });
    let after = OriginServer::start(|seen| match seen.target.as_str() {
        "/status" => OriginResponse::with_status(404)
            .with_header("Content-Type", "text/html; charset=utf-8")
            .with_body("x"),
        "/header" => OriginResponse::html("x"),
        "/bytes" => OriginResponse::with_status(200)
            .with_header("Content-Type", "image/png")
            .with_body([1, 9, 3, 4]),
        _ => OriginResponse::html("<h1>Two</h1>\n<p>same</p>"),
    });
    let verdict = run(&before, &after, "/status\n/header\n/bytes\n/body");
    assert_eq!(
        aspects(&verdict),
        [
            "GET /status status",
            "GET /header header cache-control",
            "GET /bytes body",
            "GET /body body"
        ]
    );
    let diffs: Vec<&str> = verdict.changes.iter().map(|one| one.diff.as_str()).collect();
    assert_eq!(diffs[0], "- 200\n+ 404");
    assert_eq!(diffs[1], "- max-age=60");
    assert_eq!(diffs[2], "- 3 bytes\n+ 4 bytes, first difference at offset 1");
    assert_eq!(diffs[3], "- <h1>One</h1>\n+ <h1>Two</h1>");
}

#[test]
fn a_page_that_differs_from_itself_is_unstable_not_changed() {
    let count = AtomicUsize::new(0);
    let before = OriginServer::start(move |_| {
        OriginResponse::html(format!("visit {}", count.fetch_add(1, Ordering::SeqCst)))
    });
    let after = OriginServer::start_constant(
        OriginResponse::html("visit 99").with_header("X-Frame-Options", "DENY"),
    );
    let verdict = run(&before, &after, "/");
    assert_eq!(aspects(&verdict), ["GET / header x-frame-options"]);
    assert_eq!(verdict.unstable_differences.len(), 1);
    assert_eq!(verdict.unstable_differences[0].aspect, DifferenceAspect::Body);
    let mut with_rule = verify(&before, &after);
    with_rule.rules.add_rule(r"visit \d+").unwrap();
    with_rule.rules.ignore_header("x-frame-options");
    assert!(
        with_rule.compare_requests(&parse_request_list("/", "list").unwrap()).unwrap().is_same()
    );
}

#[test]
fn a_site_that_does_not_answer_is_reported_and_nothing_is_called_the_same() {
    let before = OriginServer::start_constant(OriginResponse::html("x"));
    let mut verify = verify(&before, &before);
    verify.after_url = format!("http://{}", refusing_addr());
    let verdict = verify.compare_requests(&parse_request_list("/", "list").unwrap()).unwrap();
    assert_eq!((verdict.compared_count, verdict.unanswered_requests.len()), (0, 1));
    assert!(!verdict.is_same() && verdict.unanswered_requests[0].contains("connection refused"));
}

#[test]
fn a_list_that_does_not_read_is_refused_with_its_lines() {
    let text = parse_request_list("/a\nb c\nPOST relative\n", "pages.txt").unwrap_err().to_string();
    assert!(text.contains("pages.txt:2:1: ") && text.contains("pages.txt:3:1: "), "{text}");
    assert!(parse_request_list("# nothing\n", "x").is_err());
    let asks = parse_request_list("https://site.example/a?b=c\nHEAD /d", "x").unwrap();
    assert_eq!((asks[0].target.as_str(), asks[1].method.as_str()), ("/a?b=c", "HEAD"));
}

/// A plan with a host that does not exist: everything goes to the two sites instead.
const PLAN: &str = r#"<?xml version="1.0"?><jmeterTestPlan version="1.2"><hashTree><TestPlan testname="p"/><hashTree>
<ThreadGroup testname="g"><elementProp name="ThreadGroup.main_controller" elementType="LoopController"><stringProp name="LoopController.loops">2</stringProp></elementProp><stringProp name="ThreadGroup.num_threads">1</stringProp><stringProp name="ThreadGroup.ramp_time">0</stringProp></ThreadGroup><hashTree>
<HTTPSamplerProxy testname="a"><stringProp name="HTTPSampler.domain">no-such-host.invalid</stringProp><stringProp name="HTTPSampler.port">443</stringProp><stringProp name="HTTPSampler.protocol">https</stringProp><stringProp name="HTTPSampler.path">/a</stringProp><stringProp name="HTTPSampler.method">GET</stringProp></HTTPSamplerProxy><hashTree/>
<HTTPSamplerProxy testname="b"><stringProp name="HTTPSampler.domain">no-such-host.invalid</stringProp><stringProp name="HTTPSampler.path">/b</stringProp><stringProp name="HTTPSampler.method">GET</stringProp></HTTPSamplerProxy><hashTree/>
</hashTree></hashTree></hashTree></jmeterTestPlan>"#;

#[test]
fn a_whole_plan_is_played_against_both_sites() {
    let plan = TestPlan::parse(PLAN.as_bytes(), "p.jmx", std::path::PathBuf::new()).unwrap();
    let before = OriginServer::start(|seen| OriginResponse::html(format!("at {}", seen.target)));
    let same = OriginServer::start(|seen| OriginResponse::html(format!("at {}", seen.target)));
    let verdict =
        compare_plan_runs(&verify(&before, &same), &plan, &RunOptions::default()).unwrap();
    assert!(verdict.is_same(), "{verdict:?}");
    assert_eq!(
        (verdict.compared_count, same.request_count_for("/a"), same.request_count_for("/b")),
        (4, 2, 2)
    );
    let host = same.addr().to_string();
    assert_eq!(
        same.requests()[0].header("host"),
        Some(host.as_str()),
        "the site hears its own name"
    );
    let other = OriginServer::start(|seen| match seen.target.as_str() {
        "/b" => OriginResponse::html("elsewhere"),
        _ => OriginResponse::html("at /a"),
    });
    let verdict =
        compare_plan_runs(&verify(&before, &other), &plan, &RunOptions::default()).unwrap();
    assert_eq!(aspects(&verdict), ["GET /b body", "GET /b body"]);
}

#[test]
fn what_varies_in_a_plan_is_unstable_on_whichever_site() {
    let plan = TestPlan::parse(PLAN.as_bytes(), "p.jmx", std::path::PathBuf::new()).unwrap();
    let still = || OriginServer::start(|seen| OriginResponse::html(format!("at {}", seen.target)));
    let varying = |first: usize| {
        let count = AtomicUsize::new(first);
        OriginServer::start(move |seen| match seen.target.as_str() {
            "/b" => OriginResponse::html(format!("visit {}", count.fetch_add(1, Ordering::SeqCst)))
                .with_header("X-Frame-Options", "DENY"),
            _ => OriginResponse::html("at /a"),
        })
    };
    for (before, after) in [(varying(0), still()), (still(), varying(0)), (varying(0), varying(50))]
    {
        let verdict =
            compare_plan_runs(&verify(&before, &after), &plan, &RunOptions::default()).unwrap();
        let unstable: Vec<String> =
            verdict.unstable_differences.iter().map(|it| it.aspect.to_string()).collect();
        let changed: Vec<String> = verdict.changes.iter().map(|it| it.aspect.to_string()).collect();
        assert!(unstable.iter().all(|aspect| aspect == "body"), "{verdict:?}");
        assert!(changed.iter().all(|aspect| aspect == "header x-frame-options"), "{verdict:?}");
        assert!(!verdict.is_same());
        // Both requests to `/b`, on each side, are judged alone.
        assert_eq!((verdict.compared_count, before.request_count_for("/b")), (4, 4));
    }
}

#[test]
fn what_a_plan_sends_differently_each_time_is_no_change() {
    let origin = OriginServer::start_constant(OriginResponse::html("x"));
    let text = PLAN.replace(">/b<", ">/b?at=${__time}<");
    let plan = TestPlan::parse(text.as_bytes(), "p.jmx", std::path::PathBuf::new()).unwrap();
    let verdict =
        compare_plan_runs(&verify(&origin, &origin), &plan, &RunOptions::default()).unwrap();
    assert!(verdict.changes.is_empty() && !verdict.is_same(), "{verdict:?}");
    assert!(
        verdict.unstable_differences.iter().all(|one| one.aspect == DifferenceAspect::Sequence),
        "{verdict:?}"
    );
}

#[test]
fn answers_to_what_writes_are_changes_even_if_a_repeat_differs() {
    let text = PLAN.replace(">GET<", ">POST<");
    let plan = TestPlan::parse(text.as_bytes(), "p.jmx", std::path::PathBuf::new()).unwrap();
    let before = OriginServer::start_constant(OriginResponse::html("x"));
    let count = AtomicUsize::new(0);
    let after = OriginServer::start(move |_| {
        OriginResponse::html(format!("made {}", count.fetch_add(1, Ordering::SeqCst)))
    });
    let verdict =
        compare_plan_runs(&verify(&before, &after), &plan, &RunOptions::default()).unwrap();
    assert_eq!((verdict.changes.len(), verdict.unstable_differences.len()), (4, 0));
}

#[test]
fn both_sites_of_a_plan_get_the_same_rows_and_faults_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    std::fs::write(&path, "name\na\nb\nc\nd\n").unwrap();
    let text = r#"target = "http://no-such-host.invalid"
load = { users = 1, visits = 3 }
[[data]]
file = "rows.csv"
[[scenario]]
name = "s"
[[scenario.step]]
path = "/${name}"
"#;
    let plan = TestPlan::parse(text.as_bytes(), "p.toml", folder.path().to_owned()).unwrap();
    let (before, after) = (
        OriginServer::start_constant(OriginResponse::html("x")),
        OriginServer::start_constant(OriginResponse::html("x")),
    );
    let verdict =
        compare_plan_runs(&verify(&before, &after), &plan, &RunOptions::default()).unwrap();
    assert!(verdict.is_same(), "{verdict:?}");
    let targets = |origin: &OriginServer| -> Vec<String> {
        origin.requests().iter().map(|seen| seen.target.clone()).collect()
    };
    assert_eq!(targets(&before), ["/a", "/b", "/c"]);
    assert_eq!(targets(&after), targets(&before));
    std::fs::remove_file(&path).unwrap();
    let verdict =
        compare_plan_runs(&verify(&before, &after), &plan, &RunOptions::default()).unwrap();
    assert!(!verdict.is_same() && !verdict.plan_faults.is_empty(), "{verdict:?}");
    assert!(verdict.plan_faults[0].contains("rows.csv"), "{verdict:?}");
}
