//! Tests of several phases over a scripted origin: what is sent, and what is concluded from the answers.

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tympan_lab::calculate::Uploads;
use tympan_lab::goal;
use tympan_lab::live::{Form, Live};
use tympan_lab::phase::outage::{Outages, Switch};
use tympan_lab::phase::watch::Source;
use tympan_lab::phase::{Show, Subject, breakpoint, component, endure, errors, golive, upload};
use tympan_lab::plan::{Amount, Offer, Plan, Run};
use tympan_lab::report::sheet::Sheet;
use tympan_testkit::origin::{Answer, Origin};

use crate::plan::{defaults, element, sampler};

fn plan(origin: &Origin, step: &str) -> Plan {
    let text = format!(
        "target = \"http://{}\"\n[load]\nusers = 1\nvisits = 1\non_error = \"go-on\"\n[[scenario]]\nname = \"visit\"\n[[scenario.step]]\n{step}",
        origin.addr()
    );
    Plan::parse(text.as_bytes(), "p.toml", PathBuf::new()).unwrap_or_else(|error| panic!("{error}"))
}

fn subject(plan: &Plan) -> Subject<'_> {
    Subject { plan, run: Run { workers: 2, ..Run::default() }, watched: None, show: None }
}

fn offer(amount: Amount, millis: u64) -> Offer {
    let lasts = Duration::from_millis(millis);
    Offer { amount, lasts, ramp: Duration::ZERO, is_random: false }
}

fn search() -> breakpoint::Search {
    breakpoint::Search {
        from: 1.0,
        by_users: true,
        growth: breakpoint::Growth::Times(3.0),
        dwell: Duration::from_millis(300),
        is_exact: true,
        most_steps: 5,
        most: None,
        p95_limit: None,
        narrows: false,
    }
}

fn met(sheet: &Sheet, words: &str) -> Vec<bool> {
    let goals =
        sheet.goals.iter().filter(|goal| goal.wanted.contains(words) || goal.label.contains(words));
    goals.map(|goal| goal.is_met).collect()
}

#[test]
fn a_breakpoint_is_the_step_before_errors() {
    let origin = Origin::start(|seen| match seen.target.as_str() {
        "/user/1" => Answer::html("x"),
        _ => Answer::status(503),
    });
    let plan = plan(&origin, "path = \"/user/${__threadNum}\"\n");
    let mut told = Vec::new();
    let sheet = breakpoint::run(&subject(&plan), &search(), &mut |line| told.push(line.to_owned()))
        .unwrap();
    assert_eq!(told, ["step 1 users for 300 ms", "step 3 users for 300 ms"]);
    let json = sheet.to_json();
    assert_eq!((&json["broke"], &json["knee"]["users"]), (&true.into(), &1.into()));
    assert_eq!(json["steps"][1]["sign"], "errors");
    let text = sheet.plain();
    assert!(text.contains("breaks at 1 users") && text.contains("status 503"), "{text}");
    assert!(sheet.html().contains("Throughput against load"));
}

#[test]
fn a_target_that_never_answers_has_no_breakpoint() {
    let closed = tympan_testkit::origin::dead_addr();
    let plan = Plan::of_url(&format!("http://{closed}/")).unwrap();
    let sheet = breakpoint::run(&subject(&plan), &search(), &mut |_| {}).unwrap();
    assert!(sheet.is_doubtful());
    assert!(sheet.plain().contains("the target never answered"), "{}", sheet.plain());
}

#[test]
fn going_live_judges_every_phase_by_the_same_goals() {
    let origin = Origin::always(Answer::html("x"));
    let plan = plan(&origin, "path = \"/\"\n");
    let launch = golive::Launch {
        expected: golive::Expected { average: 10.0, peak: 20.0 },
        factor: 2.0,
        hold: Duration::from_secs(1),
        soft: Some(0.5),
        goals: goal::parse("[goal.\"*\"]\nerror_rate = \"0%\"\n[goal.visit]\nmax = \"60s\"", "g")
            .unwrap(),
    };
    let mut told = Vec::new();
    let sheet =
        golive::run(&subject(&plan), &launch, &mut |line| told.push(line.to_owned())).unwrap();
    assert_eq!(told, ["average: 10.0/s", "peak: 20.0/s", "soft launch: 20.0/s", "launch: 40.0/s"]);
    assert_eq!(met(&sheet, "errors"), [true; 4]);
    assert_eq!(met(&sheet, "all under"), [true; 4]);
    assert_eq!(sheet.json["phases"].as_array().unwrap().len(), 4);
    assert!(origin.requests() > 40, "{}", origin.requests());
}

#[test]
fn every_phase_begins_with_the_first_row() {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = (0..25).map(|row| format!("r{row}\n")).collect();
    std::fs::write(folder.path().join("rows.csv"), format!("name\n{rows}")).unwrap();
    let origin = Origin::always(Answer::html("x"));
    let words = [
        ("filename", "rows.csv"),
        ("delimiter", ","),
        ("recycle", "false"),
        ("stopThread", "true"),
    ];
    let data = element("CSVDataSet", "d", &words, "");
    let inside = format!("{}{data}{}", defaults(&origin), sampler("/${name}", ""));
    let text = crate::plan::plan("1", "1", &inside);
    let healthy = Plan::parse(text.as_bytes(), "p.jmx", folder.path().to_owned()).unwrap();
    let site = format!("http://{}", origin.addr());
    let mistakes = errors::common_mistakes(&site, "/page.html", None, None).unwrap();
    let trial = errors::Trial {
        healthy: offer(Amount::Rate(20.0), 1000),
        errors: offer(Amount::Rate(4.0), 1000),
        within: Duration::from_secs(60),
        delta: 1000.0,
        slow: None,
        outages: None,
    };
    errors::run(&subject(&healthy), &mistakes, &trial, &mut |_| {}).unwrap();
    // Twenty visits each: more than there are rows, if the second phase went on where the first one ended.
    let asked = ["/r0", "/r19", "/r20"].map(|target| origin.requests_for(target));
    assert_eq!(asked, [2, 2, 0]);
}

#[test]
fn errors_are_judged_by_their_answers_and_by_what_they_cost() {
    let check = |missing: u16, is_right: bool| {
        let origin = Origin::start(move |seen| {
            if seen.target == "/upload" {
                return Answer::status(if seen.body.len() == 3 << 20 { 413 } else { 500 });
            }
            let is_odd = seen.target.contains("missing") || seen.target.contains('%');
            if is_odd { Answer::status(missing) } else { Answer::html("x") }
        });
        let site = format!("http://{}", origin.addr());
        let healthy = Plan::of_url(&format!("{site}/page.html")).unwrap();
        let (search, upload) = (Some("/find?q={}"), Some(("/upload", "3 MiB")));
        let mistakes = errors::common_mistakes(&site, "/page.html", search, upload).unwrap();
        let trial = errors::Trial {
            healthy: offer(Amount::Rate(20.0), 1000),
            errors: offer(Amount::Rate(14.0), 1000),
            within: Duration::from_secs(60),
            delta: 1000.0,
            slow: Some((site.clone(), 3)),
            outages: None,
        };
        let sheet = errors::run(&subject(&healthy), &mistakes, &trial, &mut |_| {}).unwrap();
        assert_eq!(sheet.json["answered_rightly"], is_right, "{}", sheet.plain());
        assert_eq!(sheet.json["healthy_unharmed"], true, "{}", sheet.plain());
        assert_eq!(sheet.is_bad(), !is_right);
        let slow = &sheet.json["slow"];
        assert_eq!((&slow["connections"], &slow["held"]), (&3.into(), &3.into()), "{slow}");
        let told = sheet.json["errors"].as_object().unwrap();
        assert_eq!(told.len(), 7);
        let upload = &told["upload that is too large"];
        assert_eq!(
            (&upload["wrong"], &upload["statuses"]["413"]),
            (&0.into(), &2.into()),
            "{told:?}"
        );
        assert_eq!(origin.requests_for("/page.html"), 40);
    };
    check(404, true);
    check(200, false);
}

/// A site with a back end that can be switched off, and that says `sorry` without it, or fails.
fn fragile(is_up_without: bool) -> (Origin, Plan, errors::Trial) {
    use std::sync::atomic::{AtomicBool, Ordering};
    let is_away = AtomicBool::new(false);
    let origin = Origin::start(move |seen| match (seen.method.as_str(), seen.target.as_str()) {
        ("POST", "/off" | "/on") => {
            is_away.store(seen.target == "/off", Ordering::Relaxed);
            Answer::status(204)
        }
        (_, "/page.html") => match (is_away.load(Ordering::Relaxed), is_up_without) {
            (false, _) => Answer::html("orders"),
            (true, true) => Answer::html("sorry, no orders now"),
            (true, false) => Answer::status(502),
        },
        _ => Answer::status(404),
    });
    let site = format!("http://{}", origin.addr());
    let plan = Plan::of_url(&format!("{site}/page.html")).unwrap();
    let trial = errors::Trial {
        healthy: offer(Amount::Rate(20.0), 500),
        errors: offer(Amount::Rate(4.0), 500),
        within: Duration::from_secs(60),
        delta: 1000.0,
        slow: None,
        outages: Some(Outages {
            kinds: vec![("orders down".to_owned(), Switch::parse(&format!("{site}/off")))],
            restore: Switch::parse(&format!("{site}/on")),
            placeholder: Some((format!("{site}/page.html"), "sorry".to_owned())),
            allowed: 0.01,
        }),
    };
    (origin, plan, trial)
}

fn mistakes_of(origin: &Origin) -> Plan {
    let site = format!("http://{}", origin.addr());
    errors::common_mistakes(&site, "/none.html", None, None).unwrap()
}

#[test]
fn pages_stay_up_without_their_back_end_or_do_not() {
    let check = |is_up_without: bool| {
        let (origin, plan, trial) = fragile(is_up_without);
        let mut said = Vec::new();
        let mut say = |line: &str| said.push(line.to_owned());
        let sheet = errors::run(&subject(&plan), &mistakes_of(&origin), &trial, &mut say).unwrap();
        assert_eq!(
            said[2..],
            ["healthy traffic during orders down", "healthy traffic after orders down"]
        );
        let outage = &sheet.json["outages"][0];
        let told = (&outage["stays_up"], &outage["placeholder_shown"], &outage["recovers"]);
        assert_eq!(told, (&is_up_without.into(), &is_up_without.into(), &true.into()), "{outage}");
        assert!(outage["whole_again_s"].is_number(), "{outage}");
        let share = if is_up_without { 0.0 } else { 1.0 };
        assert_eq!(outage["failed_share"], share, "{outage}");
        assert_eq!(met(&sheet, "pages stay up"), [is_up_without]);
        assert_eq!(met(&sheet, "whole again"), [true]);
        assert_eq!(met(&sheet, "healthy after orders down"), [true; 4]);
        let word = if is_up_without { "pages stay up" } else { "pages do not stay up" };
        assert!(
            sheet.plain().contains(&format!("orders down: {word} meanwhile")),
            "{}",
            sheet.plain()
        );
        let switched: Vec<String> = origin
            .seen()
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
    outages.kinds[0].1 = Switch::Command("exit 7".to_owned());
    let error = errors::run(&subject(&plan), &mistakes_of(&origin), &trial, &mut |_| {});
    assert!(error.unwrap_err().to_string().contains("`exit 7` failed"));
    assert!(
        origin.seen().iter().any(|seen| seen.target == "/on"),
        "it may have done half of its work"
    );
    let outages = trial.outages.as_mut().unwrap();
    outages.restore = Switch::parse(&format!("http://{}/nothing", origin.addr()));
    outages.kinds[0].1 = Switch::Command("true".to_owned());
    let error = errors::run(&subject(&plan), &mistakes_of(&origin), &trial, &mut |_| {});
    assert!(error.unwrap_err().to_string().contains("status 404"));
    // What stands on the page in any case proves nothing: nothing is sent then.
    let outages = trial.outages.as_mut().unwrap();
    outages.placeholder.as_mut().unwrap().1 = "orders".to_owned();
    let before = origin.requests();
    let error = errors::run(&subject(&plan), &mistakes_of(&origin), &trial, &mut |_| {});
    assert!(error.unwrap_err().to_string().contains("although nothing is away"));
    assert_eq!(origin.requests(), before + 1, "but one look at the page");
}

#[test]
fn endurance_is_too_short_or_has_trends() {
    let origin = Origin::always(Answer::html("x"));
    let plan = plan(&origin, "path = \"/\"\n");
    let endurance = endure::Endurance {
        offer: offer(Amount::Rate(20.0), 1000),
        warm_up: Duration::ZERO,
        trend: 0.02,
        goals: goal::parse("[goal.\"*\"]\nerror_rate = \"0%\"", "g").unwrap(),
    };
    let watched = Some(Source::Process(std::process::id()));
    let watching = Subject { watched, ..subject(&plan) };
    let sheet = endure::run(&watching, &endurance).unwrap();
    assert!(sheet.plain().contains("too short for a trend"), "{}", sheet.plain());
    assert_eq!(met(&sheet, "errors"), [true]);
    assert_eq!(origin.requests(), 20);
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
    let origin = Origin::start(move |seen| match seen.target.as_str() {
        "/metrics" => Answer::status(200).body(metrics),
        _ => Answer::html("x"),
    });
    let plan = plan(&origin, "path = \"/\"\n");
    let paper = Paper::default();
    let show = |name: &str, lasts: Duration| {
        Live::new(Box::new(paper.clone()), Form::Board, name, Some(lasts))
    };
    let shown = Subject {
        show: Some(Show(&show)),
        watched: Some(Source::Metrics(format!("http://{}/metrics", origin.addr()))),
        ..subject(&plan)
    };
    let endurance = endure::Endurance {
        offer: offer(Amount::Rate(20.0), 2500),
        warm_up: Duration::ZERO,
        trend: 0.02,
        goals: Vec::new(),
    };
    let sheet = endure::run(&shown, &endurance).unwrap();
    assert!(sheet.html().contains("Processors of the tested process"), "{}", sheet.html());
    let text = String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("endurance") && text.contains(" of 00:02"), "{text:?}");
    // The last thing is that the board is taken away.
    assert!(text.ends_with("\x1b[J"), "{text:?}");
    let no_address = Subject { watched: Some(Source::Metrics("x".to_owned())), ..subject(&plan) };
    assert!(endure::run(&no_address, &endurance).is_err());
}

#[test]
fn components_are_tried_at_their_average_and_their_peak() {
    let origin = Origin::start(|seen| {
        if seen.target == "/bad.html" { Answer::status(500) } else { Answer::html("x") }
    });
    let url = |path: &str| format!("http://{}{path}", origin.addr());
    let trial = component::Trial {
        urls: vec![url("/nav.html"), url("/bad.html")],
        average: 10.0,
        peak: 20.0,
        hold: Duration::from_secs(1),
        goals: goal::parse("[goal.\"*\"]\nerror_rate = \"1%\"", "g").unwrap(),
        watched: None,
    };
    let sheet = component::run(&trial, &Run::default(), None, &mut |_| {}).unwrap();
    assert_eq!(met(&sheet, "errors"), [true, true, false, false]);
    assert!(sheet.is_bad() && sheet.junit().contains("failure"));
}

fn proof(origin: &Origin) -> upload::Proof {
    upload::Proof {
        folder: format!("http://{}/content/dam/lab/", origin.addr()),
        login: Some("admin:secret".to_owned()),
        headers: Vec::new(),
        // 20 a second.
        goal: Uploads {
            assets: 20.0,
            size: 0.01,
            renditions: 0.01,
            window: Duration::from_secs(1),
            peak: 1.0,
        },
        lasts: Duration::from_millis(500),
        waits: true,
        patience: Duration::from_secs(60),
        picture: None,
        seed: 7,
    }
}

#[test]
fn uploads_are_files_of_their_own_and_wait_for_their_renditions() {
    let looks = std::sync::Mutex::new(std::collections::HashMap::new());
    let origin = Origin::start(move |seen| {
        if seen.method == "POST" {
            return Answer::status(201);
        }
        // The first look comes too early.
        let mut looks = looks.lock().unwrap();
        let count: &mut u32 = looks.entry(seen.target.clone()).or_default();
        *count += 1;
        Answer::status(200).body(if *count == 1 {
            "{}"
        } else {
            "{\"dam:assetState\":\"processed\"}"
        })
    });
    let sheet = upload::run(&proof(&origin)).unwrap();
    assert_eq!(
        (&sheet.json["sent"], &sheet.json["processed"], &sheet.json["failed"]),
        (&10.into(), &10.into(), &0.into()),
        "{}",
        sheet.plain()
    );
    let seen = origin.seen();
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
    let refusing = Origin::always(Answer::status(507));
    let sheet = upload::run(&proof(&refusing)).unwrap();
    assert_eq!((&sheet.json["failed"], refusing.requests()), (&10.into(), 10));
    assert!(sheet.is_bad() && sheet.plain().contains("status 507"), "{}", sheet.plain());
    let failing = Origin::start(|seen| {
        if seen.method == "POST" {
            Answer::status(201)
        } else {
            Answer::status(200).body("{\"dam:assetState\":\"failed\"}")
        }
    });
    let sheet =
        upload::run(&upload::Proof { picture: Some(vec![0xFF, 0xD8, 0xFF]), ..proof(&failing) })
            .unwrap();
    assert_eq!((&sheet.json["processed"], &sheet.json["failed"]), (&0.into(), &10.into()));
    assert!(failing.seen().iter().any(|seen| seen.target.ends_with(".jpg/jcr:content.json")));
}
