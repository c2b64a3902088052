//! Reports of runs and of result files.

use tympan_lab::goal;
use tympan_lab::measurement::{MAX_LABELS, OTHER_LABELS};
use tympan_lab::report::{
    RunReport, read_results, render_report_html, report_to_json, report_to_junit,
    report_to_markdown, report_to_plain_text,
};

fn rows() -> String {
    let mut text = format!("{}\n", tympan_lab::measurement::jtl::JTL_HEADER);
    for number in 0..2000u64 {
        let (ok, code) = if number % 100 == 0 { ("false", "503") } else { ("true", "200") };
        let label = if number % 2 == 0 { "GET <home>" } else { "search" };
        text.push_str(&format!(
            "{},{},{label},{code},msg,g 1-1,text,{ok},,1000,100,1,1,http://h/,5,0,0\n",
            1_700_000_000_000 + number * 10,
            10 + number % 90
        ));
    }
    text.push_str("1700000000000,500,both,200,\"Number of samples in transaction : 2, number of failing samples : 0\",g 1-1,,true,,2000,200,1,1,null,5,0,0\n");
    text
}

#[test]
fn a_result_file_becomes_a_report_in_every_form() {
    let results = read_results(&mut rows().as_bytes(), "r.jtl").unwrap();
    assert_eq!(results.elapsed.as_millis(), 20_019);
    assert_eq!((results.total_stats().count(), results.total_stats().error_count), (2000, 20));
    assert_eq!(
        results.transactions["both"].total.count(),
        1,
        "a transaction counts beside its samples"
    );
    let goals = goal::parse_goals(
        "[goal.\"*\"]\np95=\"90ms\"\nerror_rate=\"0.5%\"\nthroughput=\">=90/s\"\n",
        "g",
    )
    .unwrap();
    let judged = goal::judge_goals(&goals, &results);
    assert_eq!(judged.iter().map(|goal| goal.is_met).collect::<Vec<_>>(), [false, false, true]);
    let report =
        RunReport { title: "A & B", results: &results, judged_goals: &judged, is_own_load: false };

    let page = render_report_html(&report);
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(
        page.contains("A &amp; B")
            && page.contains("GET &lt;home&gt;")
            && !page.contains("GET <home>")
    );
    assert!(page.contains("2 of 3 goals are missed"));
    assert!(
        !page.contains("http://") && !page.contains("<script"),
        "one file, without network or script"
    );
    assert!(page.contains("<dd>2,000</dd>") && page.contains("<td data-n=\"99 %\">"), "{page}");
    assert!(page.len() < 500_000, "{}", page.len());
    for needed in ["prefers-color-scheme:dark", "@media print", "viewport"] {
        assert!(page.contains(needed), "{needed}");
    }

    let value = report_to_json(&report);
    assert_eq!(value["total"]["samples"], 2000);
    assert_eq!(value["labels"]["search"]["errors"], 0);
    assert_eq!(value["goals"][0]["met"], false);
    let xml = report_to_junit(&report);
    assert!(xml.contains("tests=\"3\" failures=\"2\""), "{xml}");
    assert!(report_to_markdown(&report).contains("| total | 2000 | 20 |"));
    assert!(
        report_to_plain_text(&report).starts_with("requests 2000 in 20.02 s, 99.9/s, 20 errors"),
        "{}",
        report_to_plain_text(&report)
    );
}

#[test]
fn rows_in_any_order_make_the_same_report() {
    let text = rows();
    let mut lines: Vec<&str> = text.lines().collect();
    let page = |lines: &[&str]| {
        let results = read_results(&mut lines.join("\n").as_bytes(), "r.jtl").unwrap();
        let seconds: Vec<u32> = results.labels["search"].seconds.keys().copied().collect();
        assert_eq!(seconds, (0..=20).collect::<Vec<u32>>());
        render_report_html(&RunReport {
            title: "x",
            results: &results,
            judged_goals: &[],
            is_own_load: false,
        })
    };
    let first = page(&lines);
    assert!(first.contains("<td>503</td><td>20</td>") && first.contains(">Users<"), "{first}");
    assert!(first.contains(
        "503 msg</td><td data-n=\"Count\">20</td><td data-n=\"Of all samples\">1.00 %</td><td class=\"names\" data-n=\"Labels\">GET &lt;home&gt; (20)<"
    ));
    lines[1..].reverse();
    assert_eq!(page(&lines), first);
}

#[test]
fn a_report_of_nothing_is_a_report() {
    let empty = format!("{}\n", tympan_lab::measurement::jtl::JTL_HEADER);
    let results = read_results(&mut empty.as_bytes(), "r.jtl").unwrap();
    let report =
        RunReport { title: "nothing", results: &results, judged_goals: &[], is_own_load: false };
    assert!(render_report_html(&report).contains("nothing"));
    assert!(report_to_plain_text(&report).starts_with("requests 0 in 0.00 s"));
}

#[test]
fn transactions_are_counted_where_rows_hold_nothing_else() {
    let row = |label: &str, is_ok: bool, message: &str| {
        format!("1700000000000,20,{label},200,{message},g 1-1,,{is_ok},,1000,100,1,1,null,5,0,0\n")
    };
    let sum = "\"Number of samples in transaction : 2, number of failing samples : 0\"";
    let read = |rows: &str| {
        let text = format!("{}\n{rows}", tympan_lab::measurement::jtl::JTL_HEADER);
        read_results(&mut text.as_bytes(), "r.jtl").unwrap()
    };
    let sums = format!("{}{}", row("login", true, sum), row("buy", false, sum));
    let results = read(&sums);
    assert_eq!((results.total_stats().count(), results.total_stats().error_count), (2, 1));
    let report = RunReport { title: "x", results: &results, judged_goals: &[], is_own_load: false };
    assert!(
        report_to_plain_text(&report).contains("NOTE: the file contains only transaction samples"),
        "{}",
        report_to_plain_text(&report)
    );
    let results = read(&format!("{sums}{}", row("page", true, "OK")));
    assert_eq!((results.total_stats().count(), results.transactions.len()), (1, 2));
    let report = RunReport { title: "x", results: &results, judged_goals: &[], is_own_load: false };
    assert!(report.notes().is_empty());
}

#[test]
fn labels_that_hold_a_value_do_not_make_the_report_long_without_end() {
    let mut text = format!("{}\n", tympan_lab::measurement::jtl::JTL_HEADER);
    let count = MAX_LABELS as u64 * 2;
    for number in 0..count {
        let start = 1_700_000_000_000 + number;
        text.push_str(&format!(
            "{start},10,item {number},200,OK,g 1-1,text,true,,1000,100,1,1,http://h/,5,0,0\n"
        ));
    }
    let results = read_results(&mut text.as_bytes(), "r.jtl").unwrap();
    assert_eq!((results.labels.len(), results.total_stats().count()), (MAX_LABELS + 1, count));
    assert_eq!(results.labels[OTHER_LABELS].total.count(), MAX_LABELS as u64);
    let report =
        RunReport { title: "items", results: &results, judged_goals: &[], is_own_load: false };
    let said = "1,000 samples have labels beyond the first 1,000";
    assert!(render_report_html(&report).contains(said));
    assert!(
        report_to_plain_text(&report).contains(&format!("NOTE: {said}")),
        "{}",
        report_to_plain_text(&report)
    );
    assert!(report_to_markdown(&report).contains(said));
    assert!(report_to_json(&report)["notes"][0].as_str().unwrap().starts_with(said));
}

#[test]
fn a_quote_that_is_never_closed_swallows_no_rows() {
    let row = "1700000000000,20,a,200,OK,g 1-1,text,true,,1000,100,1,1,http://h/,5,0,0\n";
    let broken = "1700000000000,20,a,500,\"no end,g 1-1,text,false,,1000,100,1,1,http://h/,5,0,0\n";
    let spread =
        "1700000000000,20,a,500,\"two\nlines\",g 1-1,text,false,,1000,100,1,1,http://h/,5,0,0\n";
    let read = |parts: &[&str]| {
        let text = format!("{}\n{}", tympan_lab::measurement::jtl::JTL_HEADER, parts.concat());
        read_results(&mut text.as_bytes(), "r.jtl").map(|results| results.total_stats().count())
    };
    assert_eq!(read(&[row, spread, row]).unwrap(), 3);
    let many = row.repeat(30_000);
    for parts in [&[row, spread, broken, many.as_str()][..], &[row, spread, broken, row]] {
        let error = read(parts).unwrap_err();
        // The row before it takes two lines.
        assert_eq!(error.to_string(), "r.jtl:5: unterminated quote");
        assert!(error.is_usage());
    }
}

#[test]
fn rows_that_do_not_say_whether_they_succeeded_are_known_by_their_status() {
    let read = |text: &str| read_results(&mut text.as_bytes(), "r.jtl").unwrap();
    let bare = read("timeStamp,elapsed,label\n1700000000000,5,a\n1700000000000,5,b\n");
    assert_eq!((bare.total_stats().count(), bare.total_stats().error_count), (2, 0));
    let statuses = read(
        "timeStamp,elapsed,label,responseCode\n1700000000000,5,a,200\n1700000000000,5,a,404\n1700000000000,5,a,Non HTTP response code: x\n",
    );
    assert_eq!((statuses.total_stats().count(), statuses.total_stats().error_count), (3, 2));
    let silent = read("timeStamp,elapsed,label,success\n1700000000000,5,a,false\n");
    assert_eq!(
        silent.total_stats().failure_reason_counts.keys().next().unwrap(),
        "no reason given"
    );
}
