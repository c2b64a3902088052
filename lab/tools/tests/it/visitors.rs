//! What visitors did, from logs and recordings: figures, plans, and the same again.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use proptest::prelude::*;
use tympan_lab_engine::plan_run::{RunOptions, run_plan};
use tympan_lab_plan::TestPlan;
use tympan_lab_tools::recording::{RecordingOptions, recording_to_plan};
use tympan_lab_tools::recording_proxy::RecordingProxy;
use tympan_lab_tools::replay::{LogReplay, schedule_visits};
use tympan_lab_tools::traffic_profile::{AccessLogVisit, TrafficProfile, read_access_log};
use tympan_testkit::origin_server::{OriginResponse, OriginServer, exchange_bytes, refusing_addr};

fn line(second: u32, client: u32, request: &str, status: u16) -> String {
    let (minute, second) = (second / 60, second % 60);
    format!(
        "10.0.0.{client} - - [21/Nov/2026:00:{minute:02}:{second:02} +0000] \"{request}\" {status} 10 \"-\" \"x\"\n"
    )
}

/// Reads a text as a plan of our own, as `tympan lab load run` does.
fn own_plan(text: &str) -> TestPlan {
    TestPlan::parse(text.as_bytes(), "plan.toml", std::path::PathBuf::new()).unwrap()
}

/// Five minutes: one request a second, and 240 more in the fourth minute; 9 of 10 for one page.
fn log() -> String {
    let mut log = String::new();
    for second in 0..300 {
        let busy = (180..240).contains(&second);
        for number in 0..if busy { 5 } else { 1 } {
            let page = if (second + number) % 10 == 0 { "/b.html?x=1" } else { "/a.html" };
            log.push_str(&line(second, number, &format!("GET {page} HTTP/1.1"), 200));
        }
    }
    log
}

#[test]
fn a_log_has_a_rate_a_peak_and_a_mix() {
    let text = format!("{}broken\n{}", log(), line(299, 9, "POST /c HTTP/1.1", 500));
    let (visits, malformed) = read_access_log(&mut text.as_bytes(), "access.log").unwrap();
    let profile = TrafficProfile::from_visits(&visits, malformed);
    assert_eq!((profile.requests, profile.malformed_lines, profile.span_seconds), (541, 1, 300));
    assert_eq!(
        (profile.peak_minute_rate, profile.peak_second_requests, profile.client_count),
        (5.0, 5, 6)
    );
    assert_eq!(format!("{:.3}", profile.average_rate), "1.803");
    assert_eq!(format!("{:.3}", profile.busiest_fifth_share), format!("{:.3}", 300.0 / 541.0));
    assert_eq!(profile.requests_per_address[0].1, "/a.html");
    assert_eq!(profile.methods["POST"], 1);
    assert_eq!(format!("{:.4}", profile.error_rate), format!("{:.4}", 1.0 / 541.0));
    assert!(
        profile.to_string().contains("in time      55 % of the requests in 20 % of the minutes")
    );
}

#[test]
fn a_few_seconds_at_the_end_of_a_log_are_no_minute() {
    let mut text: String = (0..60).map(|second| line(second, 0, "GET / HTTP/1.1", 200)).collect();
    (0..5).for_each(|number| text.push_str(&line(60, number, "GET / HTTP/1.1", 200)));
    let (visits, _) = read_access_log(&mut text.as_bytes(), "access.log").unwrap();
    let profile = TrafficProfile::from_visits(&visits, 0);
    assert_eq!(
        (profile.span_seconds, profile.peak_minute_rate, profile.peak_second_requests),
        (61, 1.0, 5)
    );
    let (visits, _) =
        read_access_log(&mut line(60, 0, "GET / HTTP/1.1", 200).as_bytes(), "one.log").unwrap();
    assert_eq!(TrafficProfile::from_visits(&visits, 0).peak_minute_rate, 1.0);
}

#[test]
fn the_plan_of_a_log_has_its_mix_and_leaves_out_what_sends() {
    let text = format!("{}{}", log(), line(299, 9, "POST /c HTTP/1.1", 200));
    let (visits, _) = read_access_log(&mut text.as_bytes(), "access.log").unwrap();
    let profile = TrafficProfile::from_visits(&visits, 0);
    let text = profile.plan("http://127.0.0.1:8080", 100).to_toml();
    let plan: toml::Table = text.parse().unwrap();
    let scenarios = plan["scenario"].as_array().unwrap();
    let told: Vec<(&str, i64)> = scenarios
        .iter()
        .map(|one| {
            let weight = one.get("weight").map_or(1, |weight| weight.as_integer().unwrap());
            (one["step"][0]["path"].as_str().unwrap(), weight)
        })
        .collect();
    assert_eq!(told.len(), 2, "{text}");
    assert_eq!((told[0].0, told[1].0), ("/a.html", "/b.html?x=1"));
    assert_eq!(told[0].1 + told[1].1, 540);
    assert_eq!(plan["load"]["rate"].as_str(), Some("1.803/s"));
    assert!(text.contains("Left out: 1 requests that send data"), "{text}");
    own_plan(&text);
    let goals = tympan_lab_plan::goal::parse_goals(&profile.goals(), "goals.toml").unwrap();
    assert_eq!(goals.len(), 6);
    assert!(profile.goals().contains("throughput = \">=5.00/s\""), "{}", profile.goals());
}

#[test]
fn a_file_that_is_no_access_log_is_refused() {
    assert!(read_access_log(&mut "hello\n".as_bytes(), "x").unwrap_err().is_usage());
    let hostile = "1.2.3.4 - - [21/Nov/2026:00:00:00 +0000] \"\\x16\\x03\" 400 0 \"-\" \"-\"\n";
    assert!(
        read_access_log(&mut hostile.as_bytes(), "x").is_err(),
        "what is no request is no visit"
    );
}

fn visit(at: i64, client: &str, method: &str, target: &str) -> AccessLogVisit {
    AccessLogVisit {
        epoch_second: at,
        client: client.into(),
        method: method.into(),
        target: target.into(),
        status: 200,
    }
}

#[test]
fn requests_of_a_second_are_spread_over_it_and_speed_shortens_all() {
    let visits: Vec<AccessLogVisit> =
        [5, 5, 7].into_iter().map(|at| visit(at, "c", "GET", "/")).collect();
    let ms = |speed| -> Vec<u128> {
        schedule_visits(&visits, speed).iter().map(Duration::as_millis).collect()
    };
    assert_eq!((ms(1.0), ms(2.0)), (vec![0, 500, 2000], vec![0, 250, 1000]));
}

proptest! {
    #[test]
    fn a_schedule_keeps_the_log_s_order_and_seconds(mut seconds in prop::collection::vec(0i64..50, 1..60)) {
        seconds.sort_unstable();
        let visits: Vec<AccessLogVisit> = seconds.iter().map(|at| visit(*at, "c", "GET", "/")).collect();
        let due = schedule_visits(&visits, 1.0);
        prop_assert_eq!(due.len(), visits.len());
        prop_assert!(due.is_sorted());
        for (visit, due) in visits.iter().zip(&due) {
            prop_assert_eq!(due.as_secs(), u64::try_from(visit.epoch_second - seconds[0]).unwrap());
        }
    }
}

fn replay(origin: &OriginServer) -> LogReplay {
    LogReplay {
        base_url: format!("http://{}/prefix/", origin.addr()),
        speed: 100.0,
        headers: vec![("X-Replayed".to_owned(), "yes".to_owned())],
        sends_all_methods: false,
        worker_count: 2,
        timeout: Duration::from_secs(60),
    }
}

#[test]
fn a_replay_sends_what_the_log_holds_and_nothing_that_may_change_something() {
    let origin = OriginServer::start(|seen| {
        OriginResponse::with_status(if seen.target.ends_with("/gone") { 404 } else { 200 })
    });
    let mut visits: Vec<AccessLogVisit> = (0..40)
        .map(|number| {
            visit(number / 4, &format!("c{}", number % 3), "GET", &format!("/p{}?q=1", number % 5))
        })
        .collect();
    visits.push(visit(9, "c1", "POST", "/form"));
    visits.push(visit(9, "c1", "HEAD", "/gone"));
    let replayed = replay(&origin).run(&visits).unwrap();
    assert_eq!(replayed.skipped_visits, 1);
    let total = replayed.results.total_stats();
    assert_eq!((total.count(), origin.request_count()), (41, 41));
    assert_eq!(total.status_counts.get(&404), Some(&1));
    assert_eq!(origin.request_count_for("/prefix/p0?q=1"), 8);
    let labels: Vec<&str> = replayed.results.labels.keys().map(|label| &**label).collect();
    assert_eq!(labels, ["GET /p0", "GET /p1", "GET /p2", "GET /p3", "GET /p4", "HEAD /gone"]);
    assert!(origin.requests().iter().all(|seen| seen.header("x-replayed") == Some("yes")));
    let all = LogReplay { sends_all_methods: true, ..replay(&origin) };
    assert_eq!(all.run(&visits).unwrap().results.total_stats().count(), 42);
    assert!(replay(&origin).run(&[visit(0, "c", "POST", "/")]).unwrap_err().is_usage());
    assert!(LogReplay { speed: 0.0, ..replay(&origin) }.run(&visits).unwrap_err().is_usage());
}

/// What a browser sends through the proxy, and what comes back.
fn browse(address: SocketAddr, request: &str) -> String {
    let text = request.replace('\n', "\r\n");
    String::from_utf8(exchange_bytes(address, text.as_bytes())).unwrap()
}

#[test]
fn a_recording_becomes_a_plan_without_secrets() {
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/style.css" => {
            OriginResponse::with_status(200).with_header("Content-Type", "text/css").with_body("x")
        }
        "/missing.html" => OriginResponse::with_status(404),
        _ => OriginResponse::html(format!("{} {}", seen.method, seen.body.len())),
    });
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let target = format!("http://{}", origin.addr());
    let proxy =
        RecordingProxy::start(listen, Some(&target), Duration::from_secs(60), |_| {}).unwrap();
    let host = "Host: x\nConnection: close";
    let page = browse(
        proxy.address(),
        &format!("GET /a.html HTTP/1.1\n{host}\nCookie: sid=s3cret\nAccept: text/html\n\n"),
    );
    assert!(page.starts_with("HTTP/1.1 200 ") && page.ends_with("GET 0"), "{page}");
    browse(proxy.address(), &format!("GET /style.css HTTP/1.1\n{host}\n\n"));
    let form = "user=me&password=s3cret";
    let sent = browse(
        proxy.address(),
        &format!(
            "POST /login HTTP/1.1\n{host}\nAuthorization: Basic s3cret\nContent-Type: application/x-www-form-urlencoded\nContent-Length: {}\n\n{form}",
            form.len()
        ),
    );
    assert!(sent.ends_with("POST 23"), "the site hears all of it: {sent}");
    browse(proxy.address(), &format!("GET /missing.html HTTP/1.1\n{host}\n\n"));
    let text =
        recording_to_plan(&target, &proxy.exchanges(), RecordingOptions::default()).to_toml();
    assert!(!text.contains("s3cret"), "{text}");
    let read: toml::Table = text.parse().unwrap();
    let steps = read["scenario"][0]["step"].as_array().unwrap();
    let paths: Vec<&str> = steps.iter().map(|step| step["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/a.html", "/login", "/missing.html"]);
    assert_eq!(steps[1]["body"].as_str(), Some("user=me&password={secret}"));
    assert_eq!(steps[2]["expect"]["status"].as_integer(), Some(404));
    let all =
        recording_to_plan(&target, &proxy.exchanges(), RecordingOptions { keeps_page_parts: true });
    assert_eq!(all.scenarios[0].steps.len(), 4);
    let before = origin.request_count();
    let results = run_plan(&own_plan(&text), &RunOptions::default(), &mut |_| ()).unwrap().results;
    assert_eq!(
        (results.total_stats().count(), results.total_stats().error_count),
        (3, 0),
        "it plays what was recorded"
    );
    let seen = origin.requests();
    assert_eq!(seen.len(), before + 3);
    assert_eq!(seen[before + 1].body, b"user=me&password={secret}");
    assert_eq!(seen[0].header("host"), Some(origin.addr().to_string().as_str()));
    assert_eq!(seen[0].header("cookie"), Some("sid=s3cret"));
}

#[test]
fn a_visitor_stays_with_the_proxy_that_records_a_site() {
    let own = std::sync::Arc::new(std::sync::OnceLock::new());
    let seen_by = std::sync::Arc::clone(&own);
    let origin = OriginServer::start(move |seen| {
        let own: &String = seen_by.get().unwrap();
        let place = match seen.target.as_str() {
            "/away" => "http://elsewhere.invalid/x".to_owned(),
            _ => format!("{own}/in?a=b#top"),
        };
        OriginResponse::with_status(302)
            .with_header("Location", &place)
            .with_header("Set-Cookie", "sid=a; Path=/; Domain=127.0.0.1; HttpOnly; SameSite=Lax")
    });
    let target = own.get_or_init(|| format!("http://{}", origin.addr()));
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let proxy =
        RecordingProxy::start(listen, Some(target.as_str()), Duration::from_secs(60), |_| {})
            .unwrap();
    let ask = |path: &str| {
        browse(proxy.address(), &format!("GET {path} HTTP/1.1\nHost: x\nConnection: close\n\n"))
    };
    let answer = ask("/login");
    assert!(answer.contains("Location: /in?a=b#top\r\n"), "{answer}");
    assert!(answer.contains("Set-Cookie: sid=a; Path=/; HttpOnly; SameSite=Lax\r\n"), "{answer}");
    assert!(ask("/away").contains("Location: http://elsewhere.invalid/x\r\n"));
    // What is compared and recorded is what the site said.
    let told = &proxy.exchanges()[0].response_headers;
    assert!(told.iter().any(|(_, value)| *value == format!("{target}/in?a=b#top")), "{told:?}");
}

#[test]
fn a_connection_that_sends_nonsense_is_closed() {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let proxy = RecordingProxy::start(listen, None, Duration::from_secs(60), |_| {}).unwrap();
    assert_eq!(browse(proxy.address(), "no request\n\n"), "");
}

#[test]
fn a_forward_proxy_goes_where_the_request_says() {
    let origin = OriginServer::start_constant(OriginResponse::html("here"));
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let proxy = RecordingProxy::start(listen, None, Duration::from_secs(60), |_| {}).unwrap();
    let ask =
        |line: &str| browse(proxy.address(), &format!("{line}\nHost: x\nConnection: close\n\n"));
    assert!(ask(&format!("GET http://{}/a?b HTTP/1.1", origin.addr())).ends_with("here"));
    assert_eq!(origin.request_count_for("/a?b"), 1);
    assert!(ask("CONNECT site.example:443 HTTP/1.1").starts_with("HTTP/1.1 501 "));
    let lost = ask(&format!("GET http://{}/ HTTP/1.1", refusing_addr()));
    assert!(lost.starts_with("HTTP/1.1 502 ") && lost.contains("connection refused"), "{lost}");
    assert_eq!(proxy.exchanges().len(), 2);
    assert!(proxy.exchanges()[1].failure.is_some());
    let address = proxy.address();
    drop(proxy);
    // Whoever still comes is not served.
    if let Ok(stream) = TcpStream::connect(address) {
        drop(stream);
    }
}
