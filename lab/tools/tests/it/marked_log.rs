//! What a `request.log` adds to samples that servers were told of.

use tympan_lab_engine::measurement::jtl::JtlExtraColumns;
use tympan_lab_engine::measurement::{RunResults, ServerLogJoin};
use tympan_lab_engine::report::{
    RunReport, read_results_with_log, render_report_html, report_to_json, report_to_plain_text,
};
use tympan_lab_tools::request_log::{self, RequestLog, RequestLogLimits};

fn tell(results: &RunResults) -> (String, String, serde_json::Value) {
    let report = RunReport { title: "t", results, judged_goals: &[], is_own_load: false };
    (report_to_plain_text(&report), render_report_html(&report), report_to_json(&report))
}

fn log(text: &str) -> RequestLog {
    request_log::read_request_log(&mut text.as_bytes(), "request.log", RequestLogLimits::default())
        .unwrap()
}

#[test]
fn a_log_divides_what_clients_waited_for() {
    let header = JtlExtraColumns { microseconds: false, mark: true }.header_line();
    let row = |elapsed: u64, mark: &str| {
        format!(
            "1763700000000,{elapsed},page,200,OK,g 1-1,text,true,,9,9,1,1,http://h/page,1,0,0,{mark}\n"
        )
    };
    let rows = [row(900, "r-1"), row(100, "r-2"), row(50, "r-3"), row(40, "no mark"), row(30, "")];
    let text = format!("{header}\n{}", rows.concat());
    let line = |number: u32, rest: &str| {
        let at = "21/Nov/2026:00:50:16 +0000";
        format!("{at} [{number}] -> GET /page HTTP/1.1\n{at} [{number}] <- {rest}\n")
    };
    // The first sample was redirected; the third was answered by a cache; another run is not of this file.
    let one = log(&[
        line(1, "302 -; lab=r-1 20ms"),
        line(2, "200 text/html; lab=r-1 80ms"),
        line(3, "200 text/html 9ms"),
        line(4, "200 text/html; lab=other-1 9ms"),
    ]
    .concat());
    let two = log(&line(1, "200 text/html; lab=r-2 99ms"));
    assert!(
        one.to_rlog_text(None).contains("80ms")
            && one.to_rlog_text(None).contains("text/html lab=r-1")
    );
    let joined = ServerLogJoin::from_marked_times(one.marked_times().chain(two.marked_times()));
    let results = read_results_with_log(&mut text.as_bytes(), "r.jtl", Some(joined)).unwrap();
    let joined = results.server_log_join.as_ref().unwrap();
    assert_eq!((joined.marked_samples, joined.matched_samples), (3, 2));
    let (text, page, told) = tell(&results);
    let number = |place: usize, field: &str| told["slowest"][place][field].as_f64();
    assert_eq!(number(0, "server_ms"), Some(100.0));
    assert_eq!(number(0, "elsewhere_ms"), Some(800.0));
    assert_eq!(told["slowest"][0]["server_requests"], 2);
    assert_eq!((number(1, "server_ms"), number(1, "elsewhere_ms")), (Some(99.0), Some(1.0)));
    assert_eq!((number(2, "server_ms"), number(2, "elsewhere_ms")), (None, None));
    assert_eq!(told["joined"]["found"], 2);
    assert_eq!(told["joined"]["elsewhere"]["max_ms"], 800.0);
    assert!(text.contains("2 of 3 marked samples are in the log"), "{text}");
    assert!(text.contains("r-1 page: server 100 ms (2 requests), elsewhere 800 ms"), "{text}");
    assert!(page.contains("knows 2 of 3 marked samples") && page.contains("not in the log"));
}
