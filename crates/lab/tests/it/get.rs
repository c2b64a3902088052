//! The load engine through `get`: what it sends, and what it says about what came back.

use std::time::Duration;

use tympan_lab::get_load::{GetArrivals, GetLoad};
use tympan_lab::live_display::{LiveDisplay, LiveDisplayMode};
use tympan_lab::report::{RunReport, report_to_plain_text};
use tympan_testkit::origin_server::{OriginGate, OriginResponse, OriginServer, ResponseDelivery};

fn get(origin: &OriginServer, path: &str) -> GetLoad {
    GetLoad {
        urls: vec![format!("http://{}{path}", origin.addr())],
        workers: 2,
        ..GetLoad::default()
    }
}

#[test]
fn a_closed_load_sends_exactly_the_wanted_requests() {
    let origin = OriginServer::start_constant(OriginResponse::html("hello"));
    let load = GetLoad { users: 4, requests: Some(50), ..get(&origin, "/a?b=c") };
    let results = load.run().unwrap();
    let total = results.total_stats();
    assert_eq!((total.count(), total.error_count, origin.request_count_for("/a?b=c")), (50, 0, 50));
    assert_eq!(total.status_counts.get(&200), Some(&50));
    assert_eq!(total.body_bytes, 50 * 5);
    // Of a run that is over within its first second, too.
    assert_eq!(results.generator.max_active_users, 4);
    assert_eq!(results.labels.keys().map(|label| &**label).collect::<Vec<_>>(), ["GET /a?b=c"]);
    assert_eq!(origin.requests()[0].header("host"), Some(origin.addr().to_string().as_str()));
}

#[test]
fn an_open_load_measures_the_wait_for_a_stalled_server() {
    let gate = OriginGate::default();
    let behind = gate.clone();
    let origin = OriginServer::start(move |_| {
        behind.wait_open();
        OriginResponse::html("at last")
    });
    let load = GetLoad {
        rate: Some(100.0),
        duration: Some(Duration::from_secs(1)),
        arrivals: GetArrivals::Uniform,
        ..get(&origin, "/")
    };
    let results = std::thread::scope(|scope| {
        let run = scope.spawn(|| load.run().unwrap());
        origin.wait_for_requests(50);
        gate.open();
        run.join().unwrap()
    });
    let response = results.total_stats().response_times;
    assert_eq!(response.count(), 100, "a stall hides no sample");
    // The 50th arrival is due at 490 ms, so the first waited at least until then, and all before it their share.
    assert!(response.max() >= Duration::from_millis(490), "{:?}", response.max());
    assert!(response.mean() >= Duration::from_micros(122_500), "{:?}", response.mean());
}

#[test]
fn every_way_to_fail_has_its_reason() {
    let check = |delivery: ResponseDelivery, reason: &str| {
        // What fails at once must not fail by the limit on a busy machine.
        let limit = if reason == "read timed out" { 300 } else { 60_000 };
        let origin =
            OriginServer::start_constant(OriginResponse::html("some body").with_delivery(delivery));
        let load = GetLoad {
            requests: Some(2),
            timeout: Duration::from_millis(limit),
            ..get(&origin, "/")
        };
        let total = load.run().unwrap().total_stats();
        assert_eq!((total.count(), total.error_count), (2, 2), "{delivery:?}");
        assert_eq!(
            total.failure_reason_counts.keys().collect::<Vec<_>>(),
            [reason],
            "{delivery:?}"
        );
    };
    check(ResponseDelivery::CutAfter(3), "premature end of the body");
    check(ResponseDelivery::Hangup, "the server closed the connection without a response");
    check(ResponseDelivery::NoResponse, "read timed out");
    check(ResponseDelivery::StallAfter(3), "read timed out");
    let addr = OriginServer::start_constant(OriginResponse::with_status(200)).addr();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let load = GetLoad {
        urls: vec![format!("http://{closed}/")],
        requests: Some(1),
        ..GetLoad::default()
    };
    let total = load.run().unwrap().total_stats();
    assert_eq!(
        total.failure_reason_counts.keys().collect::<Vec<_>>(),
        ["connection refused"],
        "{addr}"
    );
}

#[test]
fn a_run_for_a_time_ends_where_nobody_listens() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let load = GetLoad {
        urls: vec![format!("http://{closed}/")],
        requests: None,
        duration: Some(Duration::from_millis(300)),
        ..GetLoad::default()
    };
    let total = load.run().unwrap().total_stats();
    assert!(total.error_count > 0 && total.error_count == total.count(), "{}", total.error_count);
}

#[test]
fn redirects_are_one_sample() {
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/old/page" => OriginResponse::with_status(302).with_header("Location", "../new?x=1"),
        "/new?x=1" => OriginResponse::html("here"),
        _ => OriginResponse::with_status(404),
    });
    let followed = GetLoad { requests: Some(3), follow: true, ..get(&origin, "/old/page") };
    let total = followed.run().unwrap().total_stats();
    assert_eq!((total.count(), total.error_count, total.status_counts.get(&200)), (3, 0, Some(&3)));
    assert_eq!(origin.request_count_for("/new?x=1"), 3);
    let plain = GetLoad { requests: Some(1), ..get(&origin, "/old/page") };
    assert_eq!(plain.run().unwrap().total_stats().status_counts.get(&302), Some(&1));
}

#[test]
fn a_redirect_that_never_ends_is_no_answer() {
    let origin = OriginServer::start_constant(
        OriginResponse::with_status(302).with_header("Location", "/again"),
    );
    let load = GetLoad { requests: Some(2), follow: true, ..get(&origin, "/") };
    let total = load.run().unwrap().total_stats();
    assert_eq!((total.count(), total.error_count, origin.request_count()), (2, 2, 2 * 21));
    assert_eq!(
        total.failure_reason_counts.keys().next().unwrap(),
        "Exceeded maximum number of redirects: 20"
    );
}

#[test]
fn credentials_of_an_address_are_sent_to_it_and_not_where_it_leads() {
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/guarded" if seen.header("Authorization") == Some("Basic YW5uOnNAeA==") => {
            OriginResponse::with_status(302).with_header("Location", "/open")
        }
        "/open" if seen.header("Authorization").is_none() => OriginResponse::html("here"),
        _ => OriginResponse::with_status(401),
    });
    let mut load = GetLoad { requests: Some(2), follow: true, ..get(&origin, "/guarded") };
    load.urls[0] = load.urls[0].replace("://", "://ann:s%40x@");
    assert_eq!(load.run().unwrap().total_stats().status_counts.get(&200), Some(&2));
}

#[test]
fn a_redirect_takes_no_credentials_to_another_server() {
    let other = OriginServer::start_constant(OriginResponse::html("elsewhere"));
    let place = format!("http://{}/there", other.addr());
    let origin = OriginServer::start(move |seen| match seen.target.as_str() {
        "/" => OriginResponse::with_status(302).with_header("Location", "/here"),
        _ => OriginResponse::with_status(302).with_header("Location", &place),
    });
    let headers = ["Authorization", "Cookie", "Proxy-Authorization", "X-Api-Key-Secret", "X-Own"];
    let load = GetLoad {
        requests: Some(1),
        follow: true,
        headers: headers
            .map(|name| (name.to_owned(), "x".to_owned()))
            .into_iter()
            .chain([("Host".to_owned(), "site.example".to_owned())])
            .collect(),
        ..get(&origin, "/")
    };
    assert_eq!(load.run().unwrap().total_stats().status_counts.get(&200), Some(&1));
    // On the way within the server everything is told.
    assert_eq!(origin.request_count(), 2);
    for seen in origin.requests() {
        assert!(headers.iter().all(|name| seen.header(name) == Some("x")), "{seen:?}");
        assert_eq!(seen.header("host"), Some("site.example"));
    }
    let seen = other.requests().remove(0);
    let told: Vec<&str> = headers.into_iter().filter(|name| seen.header(name).is_some()).collect();
    assert_eq!(told, ["X-Own"]);
    assert_eq!(seen.header("host"), Some(other.addr().to_string().as_str()));
}

#[test]
fn rows_of_a_run_read_back() {
    let origin = OriginServer::start(|seen| {
        OriginResponse::with_status(if seen.target == "/x" { 200 } else { 503 })
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.jtl");
    let mut load = GetLoad { requests: Some(10), rows: Some(file.clone()), ..get(&origin, "/x") };
    load.urls.push(format!("http://{}/y", origin.addr()));
    load.run().unwrap();
    let text = std::fs::read_to_string(file).unwrap();
    let mut codes = Vec::new();
    let count =
        tympan_lab::measurement::jtl::read_jtl(&mut text.as_bytes(), "run.jtl", &mut |row| {
            codes.push((row.label.to_string(), row.response_code.to_string(), row.is_ok));
        });
    assert_eq!(count.unwrap(), 10);
    codes.sort();
    codes.dedup();
    assert_eq!(
        codes,
        [("GET /x".into(), "200".into(), true), ("GET /y".into(), "503".into(), false)]
    );
}

#[test]
fn a_run_ends_on_time_although_answers_do_not_come() {
    let origin = OriginServer::start_constant(
        OriginResponse::html("x").with_delivery(ResponseDelivery::NoResponse),
    );
    let load = GetLoad {
        users: 3,
        duration: Some(Duration::from_millis(200)),
        timeout: Duration::from_millis(400),
        ..get(&origin, "/")
    };
    let total = load.run().unwrap().total_stats();
    assert_eq!((total.count(), total.error_count), (3, 3), "what did not finish is no success");
}

#[test]
fn what_cannot_be_run_is_refused() {
    let refuse = |load: GetLoad| assert!(load.run().unwrap_err().is_usage());
    refuse(GetLoad::default());
    refuse(GetLoad { urls: vec!["ftp://x/".into()], ..GetLoad::default() });
    refuse(GetLoad {
        urls: vec!["http://127.0.0.1/".into()],
        rate: Some(5.0),
        ..GetLoad::default()
    });
    refuse(GetLoad { urls: vec!["http://127.0.0.1/".into()], users: 0, ..GetLoad::default() });
}

#[test]
fn a_missed_goal_ends_the_run_if_it_says_so() {
    let origin = OriginServer::start_constant(OriginResponse::with_status(503));
    let load = GetLoad { users: 2, duration: Some(Duration::from_secs(60)), ..get(&origin, "/") };
    let goals = |text: &str| tympan_lab::goal::parse_goals(text, "g.toml").unwrap();
    let abort = goals("[goal.\"*\"]\nerror_rate = \"1%\"\nabort_after = \"1s\"\n");
    let mut live = LiveDisplay::new(Box::new(std::io::sink()), LiveDisplayMode::Lines, "x", None);
    live.set_abort_goals(&abort);
    let results = load.run_with_display(&mut live).unwrap();
    let breach = results.breached_goal.as_deref().unwrap();
    assert!(breach.starts_with("*: ") && breach.contains("measured 100"), "{breach}");
    let told = report_to_plain_text(&RunReport {
        title: "x",
        results: &results,
        judged_goals: &[],
        is_own_load: true,
    });
    assert!(told.contains("NOTE: a missed goal ended the run early: *"), "{told}");
    // Without the key, and for labels that nothing is known of, a run goes on.
    for text in [
        "[goal.\"*\"]\nerror_rate = \"1%\"\n",
        "[goal.\"other\"]\np95 = \"1ms\"\nabort_after = \"1s\"\n",
    ] {
        let short =
            GetLoad { users: 1, duration: Some(Duration::from_secs(2)), ..get(&origin, "/") };
        let mut live =
            LiveDisplay::new(Box::new(std::io::sink()), LiveDisplayMode::Lines, "x", None);
        live.set_abort_goals(&goals(text));
        let results = short.run_with_display(&mut live).unwrap();
        assert_eq!(results.breached_goal, None, "{text}");
    }
    let wrong =
        tympan_lab::goal::parse_goals("[goal.\"*\"]\np95=\"1s\"\nabort_after = \"soon\"\n", "g");
    assert!(wrong.unwrap_err().to_string().contains("must be a time such as"));
}
