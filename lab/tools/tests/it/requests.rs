//! Logs of a publisher and of a dispatcher.

use std::time::Duration;

use tympan_lab_tools::request_log::{
    CacheReachReport, RequestLogLimits, judge_latency, read_request_log,
};

const LOG: &str = "\
21/Nov/2026:00:50:16 +0000 [1] -> GET /content/en.html HTTP/1.1
21/Nov/2026:00:50:16 +0000 [2] -> GET /content/en.html?a=b HTTP/1.1
21/Nov/2026:00:50:16 +0000 [2] <- 200 text/html; charset=utf-8 98ms
21/Nov/2026:00:50:17 +0000 [3] -> POST /crx/de/x HTTP/1.1
21/Nov/2026:00:50:34 +0000 [1] <- 200 text/html 18051ms
21/Nov/2026:00:50:34 +0000 [3] <- 204 - 5ms
21/Nov/2026:00:50:35 +0000 [4] -> GET /never HTTP/1.1
21/Nov/2026:00:50:35 +0000 [4] -> GET /after/a/restart HTTP/1.1
21/Nov/2026:00:50:35 +0000 [9] <- 200 image/png 1ms
cut off by a cra
";

#[test]
fn entries_and_exits_are_joined_by_their_number() {
    let log =
        read_request_log(&mut LOG.as_bytes(), "request.log", RequestLogLimits::default()).unwrap();
    assert_eq!(
        (log.requests.len(), log.unfinished_count, log.orphan_exits, log.malformed_lines),
        (3, 2, 1, 1)
    );
    assert_eq!(log.max_concurrent, 2);
    let slowest = log.slowest();
    assert_eq!(
        (slowest[0].target.as_str(), slowest[0].elapsed),
        ("/content/en.html", Duration::from_millis(18_051))
    );
    let types: Vec<String> = log.times_per_media_type().into_keys().collect();
    assert_eq!(types, ["-", "text/html"]);
}

/// AEM as a Cloud Service gives one log of several instances, each of which counts its own requests.
#[test]
fn requests_of_several_instances_in_one_log_are_distinguished() {
    let log = "\
21/Nov/2026:00:50:16 +0000 [7] -> GET /a.html HTTP/1.1 [cm-p1-e1-aem-publish-1]
21/Nov/2026:00:50:16 +0000 [7] -> GET /b.html HTTP/1.1 [cm-p1-e1-aem-publish-2]
21/Nov/2026:00:50:17 +0000 [7] <- 200 text/html; charset=utf-8 12ms [cm-p1-e1-aem-publish-2]
21/Nov/2026:00:50:17 +0000 [7] <- 404 - 34ms [cm-p1-e1-aem-publish-1]
";
    let log =
        read_request_log(&mut log.as_bytes(), "request.log", RequestLogLimits::default()).unwrap();
    let told: Vec<(&str, u16, u128)> = log
        .requests
        .iter()
        .map(|request| (request.target.as_str(), request.status, request.elapsed.as_millis()))
        .collect();
    assert_eq!(told, [("/b.html", 200, 12), ("/a.html", 404, 34)]);
    assert_eq!((log.unfinished_count, log.orphan_exits, log.malformed_lines), (0, 0, 0));
}

#[test]
fn what_is_asked_for_often_may_take_the_most_time() {
    let mut log = String::new();
    for number in 0..50 {
        let target =
            if number == 7 { "/slow.html".to_owned() } else { format!("/a.html?q={number}") };
        let ms = if number == 7 { 900 } else { 20 };
        log.push_str(&format!(
            "21/Nov/2026:00:50:16 +0000 [{number}] -> GET {target} HTTP/1.1\n\
             21/Nov/2026:00:50:16 +0000 [{number}] <- 200 text/html {ms}ms\n"
        ));
    }
    let log =
        read_request_log(&mut log.as_bytes(), "request.log", RequestLogLimits::default()).unwrap();
    let totals = log.path_totals();
    let told: Vec<(&str, u64, u128)> = totals
        .iter()
        .map(|total| (total.path.as_str(), total.request_count, total.total_elapsed.as_millis()))
        .collect();
    assert_eq!(told, [("/a.html", 49, 980), ("/slow.html", 1, 900)]);
    assert_eq!(log.slowest()[0].target, "/slow.html");
}

#[test]
fn the_text_is_that_of_rlog_with_its_limits() {
    let limits = RequestLogLimits { max_requests: None, skips_crxde: true };
    let text =
        read_request_log(&mut LOG.as_bytes(), "request.log", limits).unwrap().to_rlog_text(Some(1));
    assert_eq!(
        text,
        "*Info * Parsed 2 requests.\n*Info * 2 requests were not finished.\n*Warn * 1 lines are not lines of a request.log.\n\
         ------------------------------------------------------\n     18051ms 21/Nov/2026:00:50:16 +0000 200 GET /content/en.html text/html\n"
    );
    let limits = RequestLogLimits { max_requests: Some(1), skips_crxde: false };
    assert_eq!(
        read_request_log(&mut LOG.as_bytes(), "request.log", limits).unwrap().requests.len(),
        1
    );
}

#[test]
fn a_file_of_another_kind_is_refused() {
    let error =
        read_request_log(&mut "hello\nworld\n".as_bytes(), "x.log", RequestLogLimits::default())
            .unwrap_err();
    assert!(error.is_usage(), "{error}");
}

#[test]
fn the_latency_goal_is_judged_cumulatively() {
    let times = |fast: usize, slow: usize| -> Vec<Duration> {
        let mut times = vec![Duration::from_millis(50); fast];
        times.extend(vec![Duration::from_millis(400); slow]);
        times
    };
    let met: Vec<bool> = judge_latency(&times(950, 50)).iter().map(|row| row.is_met()).collect();
    assert_eq!(met, [true, true, true, true], "faster than a row asks meets the row");
    let met: Vec<bool> = judge_latency(&times(900, 100)).iter().map(|row| row.is_met()).collect();
    assert_eq!(met, [true, false, true, true]);
    let rows = judge_latency(&times(50, 0));
    let judged: Vec<bool> = rows.iter().map(|row| row.has_enough_samples).collect();
    assert_eq!(judged, [true, true, false, false], "1 % cannot be told from 50 requests");
    assert!(
        !judge_latency(&[Duration::from_millis(1000)])[3].is_met(),
        "at the limit is not under it"
    );
}

#[test]
fn a_cache_report_adds_logs_of_several_hosts() {
    let access = "10.0.0.1 - - [21/Nov/2026:00:50:16 +0000] \"GET /content/site/en.html HTTP/1.1\" 200 10 \"-\" \"x\"\n";
    let mut report = CacheReachReport::default();
    for _ in 0..2 {
        report.add_access_log(&mut access.repeat(5).as_bytes(), "access.log").unwrap();
    }
    assert_eq!(report.add_request_log(&mut LOG.as_bytes(), "request.log").unwrap(), 1);
    assert_eq!((report.total_requests, report.publisher_requests), (10, 5));
    assert_eq!(report.cache_ratio().to_string(), "(10 - 5) / 10 = 50.0 %");
    assert_eq!(report.counts_per_extension["html"], (10, 2));
    assert_eq!(report.counts_per_folder["/content/site/"], (10, 0));
    assert_eq!(report.query_requests_per_path["/content/en.html"], 1);
}
