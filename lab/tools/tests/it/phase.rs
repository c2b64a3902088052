//! Tests of several phases over a scripted origin: what is sent, and what is concluded from the answers.

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tympan_lab_engine::live_display::{LiveDisplay, LiveDisplayMode};
use tympan_lab_engine::load::request_authorization::RequestAuthorization;
use tympan_lab_engine::plan_run::{LoadAmount, LoadOffer, RunOptions};
use tympan_lab_engine::report::report_sheet::ReportSheet;
use tympan_lab_plan::TestPlan;
use tympan_lab_tools::calculator::UploadWorkload;
use tympan_lab_tools::phase::outage::{OutageOptions, OutageSwitch};
use tympan_lab_tools::phase::process_watch::ProcessMetricsSource;
use tympan_lab_tools::phase::{
    LiveDisplayFactory, PhaseSubject, breakpoint, component, endurance, error_trial, go_live,
    upload,
};
use tympan_testkit::jmeter_plan::{defaults, element, sampler};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

fn plan(origin: &OriginServer, step: &str) -> TestPlan {
    let text = format!(
        "target = \"http://{}\"\n[load]\nusers = 1\nvisits = 1\non_error = \"go-on\"\n[[scenario]]\nname = \"visit\"\n[[scenario.step]]\n{step}",
        origin.addr()
    );
    TestPlan::parse(text.as_bytes(), "p.toml", PathBuf::new())
        .unwrap_or_else(|error| panic!("{error}"))
}

fn subject(plan: &TestPlan) -> PhaseSubject<'_> {
    PhaseSubject {
        plan,
        run: RunOptions { worker_count: 2, ..RunOptions::default() },
        metrics_source: None,
        live_display: None,
    }
}

fn offer(amount: LoadAmount, millis: u64) -> LoadOffer {
    let lasts = Duration::from_millis(millis);
    LoadOffer { amount, duration: lasts, ramp: Duration::ZERO, is_random: false }
}

fn search() -> breakpoint::BreakpointSearch {
    breakpoint::BreakpointSearch {
        start_level: 1.0,
        steps_are_users: true,
        growth: breakpoint::LoadGrowth::Multiply(3.0),
        min_step_duration: Duration::from_millis(300),
        is_step_duration_fixed: true,
        max_steps: 5,
        max_level: None,
        p95_limit: None,
        narrows_knee: false,
    }
}

fn met(sheet: &ReportSheet, words: &str) -> Vec<bool> {
    let goals = sheet
        .judged_goals
        .iter()
        .filter(|goal| goal.requirement.contains(words) || goal.label.contains(words));
    goals.map(|goal| goal.is_met).collect()
}

#[test]
fn a_breakpoint_is_the_step_before_errors() {
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/user/1" => OriginResponse::html("x"),
        _ => OriginResponse::with_status(503),
    });
    let plan = plan(&origin, "path = \"/user/${__threadNum}\"\n");
    let mut told = Vec::new();
    let sheet = breakpoint::search_breakpoint(&subject(&plan), &search(), &mut |line| {
        told.push(line.to_owned())
    })
    .unwrap();
    assert_eq!(told, ["step 1 users for 300 ms", "step 3 users for 300 ms"]);
    let json = sheet.to_json();
    assert_eq!((&json["broke"], &json["knee"]["users"]), (&true.into(), &1.into()));
    assert_eq!(json["steps"][1]["sign"], "errors");
    let text = sheet.to_plain_text();
    assert!(text.contains("breaks at 1 users") && text.contains("status 503"), "{text}");
    assert!(sheet.to_html().contains("Throughput against load"));
}

#[test]
fn a_target_that_never_answers_has_no_breakpoint() {
    let closed = tympan_testkit::origin_server::refusing_addr();
    let plan = TestPlan::for_url(&format!("http://{closed}/")).unwrap();
    let sheet = breakpoint::search_breakpoint(&subject(&plan), &search(), &mut |_| {}).unwrap();
    assert!(sheet.is_doubtful());
    assert!(
        sheet.to_plain_text().contains("the target never responded"),
        "{}",
        sheet.to_plain_text()
    );
}

#[test]
fn going_live_judges_every_phase_by_the_same_goals() {
    let origin = OriginServer::start_constant(OriginResponse::html("x"));
    let plan = plan(&origin, "path = \"/\"\n");
    let launch = go_live::GoLiveTrial {
        expected_traffic: go_live::ExpectedTraffic { average_rate: 10.0, peak_rate: 20.0 },
        peak_multiplier: 2.0,
        hold_duration: Duration::from_secs(1),
        soft_launch_share: Some(0.5),
        goals: tympan_lab_plan::goal::parse_goals(
            "[goal.\"*\"]\nerror_rate = \"0%\"\n[goal.visit]\nmax = \"60s\"",
            "g",
        )
        .unwrap(),
    };
    let mut told = Vec::new();
    let sheet = go_live::run_go_live_trial(&subject(&plan), &launch, &mut |line| {
        told.push(line.to_owned())
    })
    .unwrap();
    assert_eq!(told, ["average: 10.0/s", "peak: 20.0/s", "soft launch: 20.0/s", "launch: 40.0/s"]);
    assert_eq!(met(&sheet, "errors"), [true; 4]);
    assert_eq!(met(&sheet, "all under"), [true; 4]);
    assert_eq!(sheet.json_result["phases"].as_array().unwrap().len(), 4);
    assert!(origin.request_count() > 40, "{}", origin.request_count());
}

#[test]
fn every_phase_begins_with_the_first_row() {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = (0..25).map(|row| format!("r{row}\n")).collect();
    std::fs::write(folder.path().join("rows.csv"), format!("name\n{rows}")).unwrap();
    let origin = OriginServer::start_constant(OriginResponse::html("x"));
    let words = [
        ("filename", "rows.csv"),
        ("delimiter", ","),
        ("recycle", "false"),
        ("stopThread", "true"),
    ];
    let data = element("CSVDataSet", "d", &words, "");
    let inside = format!("{}{data}{}", defaults(&origin), sampler("/${name}", ""));
    let text = tympan_testkit::jmeter_plan::plan("1", "1", &inside);
    let healthy = TestPlan::parse(text.as_bytes(), "p.jmx", folder.path().to_owned()).unwrap();
    let site = format!("http://{}", origin.addr());
    let mistakes = error_trial::common_mistakes_plan(&site, "/page.html", None, None).unwrap();
    let trial = error_trial::ErrorTrial {
        healthy_offer: offer(LoadAmount::Rate(20.0), 1000),
        error_offer: offer(LoadAmount::Rate(4.0), 1000),
        max_error_p95: Duration::from_secs(60),
        max_slowdown: 1000.0,
        slow_clients: None,
        outages: None,
    };
    error_trial::run_error_trial(&subject(&healthy), &mistakes, &trial, &mut |_| {}).unwrap();
    // Twenty visits each: more than there are rows, if the second phase went on where the first one ended.
    let asked = ["/r0", "/r19", "/r20"].map(|target| origin.request_count_for(target));
    assert_eq!(asked, [2, 2, 0]);
}

#[test]
fn errors_are_judged_by_their_answers_and_by_what_they_cost() {
    let check = |missing: u16, is_right: bool| {
        let origin = OriginServer::start(move |seen| {
            if seen.target == "/upload" {
                return OriginResponse::with_status(if seen.body.len() == 3 << 20 {
                    413
                } else {
                    500
                });
            }
            let is_odd = seen.target.contains("missing") || seen.target.contains('%');
            if is_odd { OriginResponse::with_status(missing) } else { OriginResponse::html("x") }
        });
        let site = format!("http://{}", origin.addr());
        let healthy = TestPlan::for_url(&format!("{site}/page.html")).unwrap();
        let (search, upload) = (Some("/find?q={}"), Some(("/upload", "3 MiB")));
        let mistakes =
            error_trial::common_mistakes_plan(&site, "/page.html", search, upload).unwrap();
        let trial = error_trial::ErrorTrial {
            healthy_offer: offer(LoadAmount::Rate(20.0), 1000),
            error_offer: offer(LoadAmount::Rate(14.0), 1000),
            max_error_p95: Duration::from_secs(60),
            max_slowdown: 1000.0,
            slow_clients: Some((site.clone(), 3)),
            outages: None,
        };
        let sheet =
            error_trial::run_error_trial(&subject(&healthy), &mistakes, &trial, &mut |_| {})
                .unwrap();
        assert_eq!(sheet.json_result["correct_responses"], is_right, "{}", sheet.to_plain_text());
        assert_eq!(sheet.json_result["healthy_unaffected"], true, "{}", sheet.to_plain_text());
        assert_eq!(sheet.has_bad_result(), !is_right);
        let slow = &sheet.json_result["slow"];
        assert_eq!((&slow["connections"], &slow["held"]), (&3.into(), &3.into()), "{slow}");
        let told = sheet.json_result["errors"].as_object().unwrap();
        assert_eq!(told.len(), 7);
        let upload = &told["upload that is too large"];
        assert_eq!(
            (&upload["wrong"], &upload["statuses"]["413"]),
            (&0.into(), &2.into()),
            "{told:?}"
        );
        assert_eq!(origin.request_count_for("/page.html"), 40);
    };
    check(404, true);
    check(200, false);
}

/// A site with a back end that can be switched off, and that says `sorry` without it, or fails.
fn fragile(is_up_without: bool) -> (OriginServer, TestPlan, error_trial::ErrorTrial) {
    use std::sync::atomic::{AtomicBool, Ordering};
    let is_away = AtomicBool::new(false);
    let origin =
        OriginServer::start(move |seen| match (seen.method.as_str(), seen.target.as_str()) {
            ("POST", "/off" | "/on") => {
                is_away.store(seen.target == "/off", Ordering::Relaxed);
                OriginResponse::with_status(204)
            }
            (_, "/page.html") => match (is_away.load(Ordering::Relaxed), is_up_without) {
                (false, _) => OriginResponse::html("orders"),
                (true, true) => OriginResponse::html("sorry, no orders now"),
                (true, false) => OriginResponse::with_status(502),
            },
            _ => OriginResponse::with_status(404),
        });
    let site = format!("http://{}", origin.addr());
    let plan = TestPlan::for_url(&format!("{site}/page.html")).unwrap();
    let trial = error_trial::ErrorTrial {
        healthy_offer: offer(LoadAmount::Rate(20.0), 500),
        error_offer: offer(LoadAmount::Rate(4.0), 500),
        max_error_p95: Duration::from_secs(60),
        max_slowdown: 1000.0,
        slow_clients: None,
        outages: Some(OutageOptions {
            backends: vec![("orders down".to_owned(), OutageSwitch::parse(&format!("{site}/off")))],
            restore_switch: OutageSwitch::parse(&format!("{site}/on")),
            placeholder: Some((format!("{site}/page.html"), "sorry".to_owned())),
            max_failure_share: 0.01,
        }),
    };
    (origin, plan, trial)
}

fn mistakes_of(origin: &OriginServer) -> TestPlan {
    let site = format!("http://{}", origin.addr());
    error_trial::common_mistakes_plan(&site, "/none.html", None, None).unwrap()
}

#[test]
fn pages_stay_up_without_their_back_end_or_do_not() {
    let check = |is_up_without: bool| {
        let (origin, plan, trial) = fragile(is_up_without);
        let mut said = Vec::new();
        let mut say = |line: &str| said.push(line.to_owned());
        let sheet =
            error_trial::run_error_trial(&subject(&plan), &mistakes_of(&origin), &trial, &mut say)
                .unwrap();
        assert_eq!(
            said[2..],
            ["healthy traffic during orders down", "healthy traffic after orders down"]
        );
        let outage = &sheet.json_result["outages"][0];
        let told = (&outage["stays_up"], &outage["placeholder_shown"], &outage["recovers"]);
        assert_eq!(told, (&is_up_without.into(), &is_up_without.into(), &true.into()), "{outage}");
        assert!(outage["recovered_after_s"].is_number(), "{outage}");
        let share = if is_up_without { 0.0 } else { 1.0 };
        assert_eq!(outage["failed_share"], share, "{outage}");
        assert_eq!(met(&sheet, "pages stay up"), [is_up_without]);
        assert_eq!(met(&sheet, "complete again"), [true]);
        assert_eq!(met(&sheet, "healthy after orders down"), [true; 4]);
        let word = if is_up_without { "pages stay up" } else { "pages do not stay up" };
        assert!(
            sheet.to_plain_text().contains(&format!("orders down: {word} during the outage")),
            "{}",
            sheet.to_plain_text()
        );
        let switched: Vec<String> = origin
            .requests()
            .into_iter()
            .filter(|seen| seen.method == "POST")
            .map(|seen| seen.target)
            .collect();
        assert_eq!(switched, ["/off", "/on"]);
    };
    check(true);
    check(false);
}

#[test]
fn a_back_end_is_brought_back_whatever_fails_and_a_switch_that_fails_ends_the_test() {
    let (origin, plan, mut trial) = fragile(true);
    let outages = trial.outages.as_mut().unwrap();
    outages.backends[0].1 = OutageSwitch::ShellCommand("exit 7".to_owned());
    let error =
        error_trial::run_error_trial(&subject(&plan), &mistakes_of(&origin), &trial, &mut |_| {});
    assert!(error.unwrap_err().to_string().contains("`exit 7` failed"));
    assert!(
        origin.requests().iter().any(|seen| seen.target == "/on"),
        "it may have done half of its work"
    );
    let outages = trial.outages.as_mut().unwrap();
    outages.restore_switch = OutageSwitch::parse(&format!("http://{}/nothing", origin.addr()));
    outages.backends[0].1 = OutageSwitch::ShellCommand("true".to_owned());
    let error =
        error_trial::run_error_trial(&subject(&plan), &mistakes_of(&origin), &trial, &mut |_| {});
    assert!(error.unwrap_err().to_string().contains("status 404"));
    // What stands on the page in any case proves nothing: nothing is sent then.
    let outages = trial.outages.as_mut().unwrap();
    outages.placeholder.as_mut().unwrap().1 = "orders".to_owned();
    let before = origin.request_count();
    let error =
        error_trial::run_error_trial(&subject(&plan), &mistakes_of(&origin), &trial, &mut |_| {});
    assert!(error.unwrap_err().to_string().contains("although there is no outage"));
    assert_eq!(origin.request_count(), before + 1, "but one look at the page");
}

#[test]
fn endurance_is_too_short_or_has_trends() {
    let origin = OriginServer::start_constant(OriginResponse::html("x"));
    let plan = plan(&origin, "path = \"/\"\n");
    let endurance = endurance::EnduranceTrial {
        load_offer: offer(LoadAmount::Rate(20.0), 1000),
        warm_up: Duration::ZERO,
        max_trend_per_hour: 0.02,
        goals: tympan_lab_plan::goal::parse_goals("[goal.\"*\"]\nerror_rate = \"0%\"", "g")
            .unwrap(),
    };
    let watched = Some(ProcessMetricsSource::Process(std::process::id()));
    let watching = PhaseSubject { metrics_source: watched, ..subject(&plan) };
    let sheet = endurance::run_endurance_trial(&watching, &endurance).unwrap();
    assert!(
        sheet.to_plain_text().contains("too little data for a trend"),
        "{}",
        sheet.to_plain_text()
    );
    assert_eq!(met(&sheet, "errors"), [true]);
    assert_eq!(origin.request_count(), 20);
}

/// A terminal that remembers what was written to it.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_phase_is_shown_while_it_runs_and_its_target_is_drawn() {
    let metrics = "process_cpu_seconds_total 1\nprocess_threads 4\n\
        tympan_pool_in_use{pool=\"work\"} 3\ntympan_pool_limit{pool=\"work\"} 4\n";
    let origin = OriginServer::start(move |seen| match seen.target.as_str() {
        "/metrics" => OriginResponse::with_status(200).with_body(metrics),
        _ => OriginResponse::html("x"),
    });
    let plan = plan(&origin, "path = \"/\"\n");
    let paper = Paper::default();
    let show = |name: &str, lasts: Duration| {
        LiveDisplay::new(Box::new(paper.clone()), LiveDisplayMode::Board, name, Some(lasts))
    };
    let shown = PhaseSubject {
        live_display: Some(LiveDisplayFactory(&show)),
        metrics_source: Some(ProcessMetricsSource::Metrics(format!(
            "http://{}/metrics",
            origin.addr()
        ))),
        ..subject(&plan)
    };
    let endurance = endurance::EnduranceTrial {
        load_offer: offer(LoadAmount::Rate(20.0), 2500),
        warm_up: Duration::ZERO,
        max_trend_per_hour: 0.02,
        goals: Vec::new(),
    };
    let sheet = endurance::run_endurance_trial(&shown, &endurance).unwrap();
    assert!(sheet.to_html().contains("Processors of the tested process"), "{}", sheet.to_html());
    let text = String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("endurance") && text.contains(" of 00:02"), "{text:?}");
    // The last thing is that the board is taken away.
    assert!(text.ends_with("\x1b[J"), "{text:?}");
    let no_address = PhaseSubject {
        metrics_source: Some(ProcessMetricsSource::Metrics("x".to_owned())),
        ..subject(&plan)
    };
    assert!(endurance::run_endurance_trial(&no_address, &endurance).is_err());
}

#[test]
fn components_are_tried_at_their_average_and_their_peak() {
    let origin = OriginServer::start(|seen| {
        if seen.target == "/bad.html" {
            OriginResponse::with_status(500)
        } else {
            OriginResponse::html("x")
        }
    });
    let url = |path: &str| format!("http://{}{path}", origin.addr());
    let trial = component::ComponentTrial {
        urls: vec![url("/nav.html"), url("/bad.html")],
        average_rate: 10.0,
        peak_rate: 20.0,
        hold_duration: Duration::from_secs(1),
        goals: tympan_lab_plan::goal::parse_goals("[goal.\"*\"]\nerror_rate = \"1%\"", "g")
            .unwrap(),
        metrics_source: None,
    };
    let sheet =
        component::run_component_trial(&trial, &RunOptions::default(), None, &mut |_| {}).unwrap();
    assert_eq!(met(&sheet, "errors"), [true, true, false, false]);
    assert!(sheet.has_bad_result() && sheet.to_junit_xml().contains("failure"));
}

fn proof(origin: &OriginServer) -> upload::UploadTrial {
    upload::UploadTrial {
        folder_url: format!("http://{}/content/dam/lab/", origin.addr()),
        authorization: Some(RequestAuthorization::basic("admin:secret")),
        headers: Vec::new(),
        // 20 a second.
        workload_goal: UploadWorkload {
            assets_per_window: 20.0,
            original_mb: 0.01,
            renditions_mb: 0.01,
            window: Duration::from_secs(1),
            peak_factor: 1.0,
        },
        peak_duration: Duration::from_millis(500),
        waits_for_renditions: true,
        rendition_timeout: Duration::from_secs(60),
        picture_bytes: None,
        seed: 7,
    }
}

#[test]
fn uploads_are_files_of_their_own_and_wait_for_their_renditions() {
    let looks = std::sync::Mutex::new(std::collections::HashMap::new());
    let origin = OriginServer::start(move |seen| {
        if seen.method == "POST" {
            return OriginResponse::with_status(201);
        }
        // The first look comes too early.
        let mut looks = looks.lock().unwrap();
        let count: &mut u32 = looks.entry(seen.target.clone()).or_default();
        *count += 1;
        OriginResponse::with_status(200).with_body(if *count == 1 {
            "{}"
        } else {
            "{\"dam:assetState\":\"processed\"}"
        })
    });
    let sheet = upload::run_upload_trial(&proof(&origin)).unwrap();
    assert_eq!(
        (&sheet.json_result["sent"], &sheet.json_result["processed"], &sheet.json_result["failed"]),
        (&10.into(), &10.into(), &0.into()),
        "{}",
        sheet.to_plain_text()
    );
    let seen = origin.requests();
    let posts: Vec<_> = seen.iter().filter(|seen| seen.method == "POST").collect();
    assert_eq!((posts.len(), seen.len()), (10, 30));
    assert!(posts.iter().all(|post| post.target == "/content/dam/lab" && post.header("authorization").is_some()));
    let mut bodies: Vec<&[u8]> =
        posts.iter().map(|post| &post.body[post.body.len() - 80..]).collect();
    bodies.sort_unstable();
    bodies.dedup();
    assert_eq!(bodies.len(), 10, "no two files are equal");
    assert!(
        seen.iter()
            .any(|seen| seen.target == "/content/dam/lab/lab-00000007-0.bmp/jcr:content.json")
    );
}

#[test]
fn an_author_that_refuses_or_fails_misses_the_goal() {
    let refusing = OriginServer::start_constant(OriginResponse::with_status(507));
    let sheet = upload::run_upload_trial(&proof(&refusing)).unwrap();
    assert_eq!((&sheet.json_result["failed"], refusing.request_count()), (&10.into(), 10));
    assert!(
        sheet.has_bad_result() && sheet.to_plain_text().contains("status 507"),
        "{}",
        sheet.to_plain_text()
    );
    let failing = OriginServer::start(|seen| {
        if seen.method == "POST" {
            OriginResponse::with_status(201)
        } else {
            OriginResponse::with_status(200).with_body("{\"dam:assetState\":\"failed\"}")
        }
    });
    let sheet = upload::run_upload_trial(&upload::UploadTrial {
        picture_bytes: Some(vec![0xFF, 0xD8, 0xFF]),
        ..proof(&failing)
    })
    .unwrap();
    assert_eq!(
        (&sheet.json_result["processed"], &sheet.json_result["failed"]),
        (&0.into(), &10.into())
    );
    assert!(failing.requests().iter().any(|seen| seen.target.ends_with(".jpg/jcr:content.json")));
}
