//! Renders a report as one HTML file that works from disk: no script, no network, light and dark, for narrow screens
//! and paper.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use tympan_notation::escape_html;

use super::chart::{self, ChartLine};
use super::run_report::RunReport;
use super::{cache_warmup, figure_text, slow_sample, text, trace};
use crate::measurement::log_watch_result::LogWatchResult;
use crate::measurement::{RunResults, SampleStats, TimingHistogram};
use crate::report::goal::format_response_time;
use crate::report::process_chart;

/// The style sheet of all reports.
pub const REPORT_CSS: &str = include_str!("report.css");

/// Returns the report as HTML.
#[must_use]
pub fn render_report_html(report: &RunReport<'_>) -> String {
    let results = report.results;
    let total = results.total_stats();
    let mut out = String::new();
    write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{}</title><style>{REPORT_CSS}</style></head><body><main><h1>{}</h1>",
        escape_html(report.title),
        escape_html(report.title)
    )
    .ok();
    write_verdict(&mut out, report);
    write_figures(&mut out, results, &total);
    write_goals(&mut out, report);
    write_log_watches(&mut out, results);
    write_charts(&mut out, results, &total);
    write_target(&mut out, results);
    write_labels(&mut out, results, &total);
    cache_warmup::write_warmup_table(&mut out, results);
    write_phases(&mut out, results, &total);
    slow_sample::write_slow_sample_table(&mut out, results);
    write_statuses(&mut out, &total);
    write_errors(&mut out, results, &total);
    write_generator(&mut out, report);
    trace::write_traces(&mut out, results);
    out.push_str("</main></body></html>\n");
    out
}

fn write_verdict(out: &mut String, report: &RunReport<'_>) {
    for loss in report.losses() {
        write!(out, "<p class=\"doubt\"><strong>Incomplete:</strong> {}.</p>", escape_html(&loss))
            .ok();
    }
    for doubt in report.doubts() {
        write!(out, "<p class=\"doubt\"><strong>Generator saturated:</strong> {}. The times below are the generator's as much as the target's.</p>", escape_html(&doubt)).ok();
    }
    for note in report.notes() {
        write!(out, "<p><strong>Note:</strong> {}.</p>", escape_html(&note)).ok();
    }
    let missed = report.judged_goals.iter().filter(|goal| !goal.is_met).count();
    match (report.judged_goals.len(), missed) {
        (0, _) => {}
        (all, 0) => {
            write!(out, "<p class=\"good\">All {all} goals are met.</p>").ok();
        }
        (all, missed) => {
            write!(out, "<p class=\"bad\">{missed} of {all} goals are missed.</p>").ok();
        }
    }
}

fn write_figures(out: &mut String, results: &RunResults, total: &SampleStats) {
    let figures = [
        ("Started", figure_text::format_date(results.started)),
        ("Lasted", figure_text::format_duration(results.elapsed)),
        ("Samples", figure_text::format_count(total.count())),
        ("Per second", format!("{:.1}", results.rate_of(total.count()))),
        (
            "Errors",
            format!(
                "{} ({:.2} %)",
                figure_text::format_count(total.error_count),
                total.error_rate() * 100.0
            ),
        ),
        ("Median", format_response_time(total.response_times.quantile(0.5))),
        ("95 %", format_response_time(total.response_times.quantile(0.95))),
        ("99 %", format_response_time(total.response_times.quantile(0.99))),
        ("Longest", format_response_time(total.response_times.max())),
        ("Received", figure_text::format_bytes(total.received_bytes)),
        ("Apdex (500 ms)", format!("{:.3}", text::apdex_score(total))),
    ];
    out.push_str("<dl class=\"figures\">");
    for (name, value) in figures {
        write!(out, "<div><dt>{name}</dt><dd>{}</dd></div>", escape_html(&value)).ok();
    }
    out.push_str("</dl>");
}

fn write_goals(out: &mut String, report: &RunReport<'_>) {
    if report.judged_goals.is_empty() {
        return;
    }
    out.push_str("<h2>Goals</h2><div class=\"wide\"><table class=\"words stack\"><thead><tr><th>Label</th><th>Wanted</th><th>Measured</th><th></th></tr></thead><tbody>");
    for goal in report.judged_goals {
        let (class, status) = if goal.is_met { ("good", "met") } else { ("bad", "missed") };
        write!(
            out,
            "<tr><td>{}</td><td data-n=\"Wanted\">{}</td><td data-n=\"Measured\">{}</td><td class=\"{class}\">{status}</td></tr>",
            escape_html(&goal.label),
            escape_html(&goal.requirement),
            escape_html(&goal.measured)
        )
        .ok();
    }
    out.push_str("</tbody></table></div>");
}

fn write_log_watches(out: &mut String, results: &RunResults) {
    let mut lines = results.log_watches.iter().flat_map(LogWatchResult::describe_lines).peekable();
    if lines.peek().is_none() {
        return;
    }
    out.push_str("<h2>Logged meanwhile</h2><ul>");
    for line in lines {
        write!(out, "<li class=\"bad\">{}</li>", escape_html(&line)).ok();
    }
    out.push_str("</ul>");
}

/// Returns the number of seconds in the unit that suits the length of a run, and the unit's name.
pub(super) fn time_unit(elapsed: Duration) -> (f64, &'static str) {
    match elapsed.as_secs() {
        0..=600 => (1.0, "s"),
        601..=10_800 => (60.0, "min"),
        _ => (3600.0, "h"),
    }
}

/// Totals of all labels in one second.
#[derive(Default)]
struct RunSecondTotals {
    sample_count: u64,
    error_count: u64,
    received_bytes: u64,
    times: TimingHistogram,
}

fn write_charts(out: &mut String, results: &RunResults, total: &SampleStats) {
    let mut seconds: BTreeMap<u32, RunSecondTotals> = BTreeMap::new();
    for series in results.labels.values() {
        for (&second, values) in &series.seconds {
            let totals = seconds.entry(second).or_default();
            totals.sample_count += values.sample_count;
            totals.error_count += values.error_count;
            totals.received_bytes += values.received_bytes;
            values
                .time_buckets
                .iter()
                .for_each(|&(time, count)| totals.times.record_us(time, count));
        }
    }
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    // A partial second has few samples, and the slow ones end last.
    let whole = u32::try_from(results.elapsed.as_secs()).unwrap_or(u32::MAX);
    let whole = if whole < 10 { u32::MAX } else { whole };
    let (unit, axis) = time_unit(results.elapsed);
    let over = |value: &dyn Fn(&RunSecondTotals) -> f64| -> Vec<(f64, f64)> {
        let point = |(&second, values)| (f64::from(second) / unit, value(values));
        seconds.range(..whole).map(point).collect()
    };
    let spans = timing_spans(&seconds, whole);
    let quantile = |share: f64| -> Vec<(f64, f64)> {
        let point =
            |(second, times): &(f64, TimingHistogram)| (second / unit, ms(times.quantile(share)));
        spans.iter().map(point).collect()
    };
    out.push_str("<h2>Over time</h2>");
    out.push_str(&chart::render_line_chart(
        "Response time",
        "ms",
        axis,
        &[
            ChartLine { name: "median", class: "c1", points: quantile(0.5) },
            ChartLine { name: "95 %", class: "c2", points: quantile(0.95) },
            ChartLine { name: "99 %", class: "c3", points: quantile(0.99) },
        ],
    ));
    out.push_str(&render_time_heat_map(&seconds, unit, axis));
    out.push_str(&chart::render_line_chart(
        "Throughput and errors",
        "1/s",
        axis,
        &[
            ChartLine {
                name: "samples",
                class: "c1",
                points: over(&|values| values.sample_count as f64),
            },
            ChartLine {
                name: "errors",
                class: "c3",
                points: over(&|values| values.error_count as f64),
            },
        ],
    ));
    let users: Vec<(f64, f64)> = results
        .generator
        .seconds
        .range(..whole)
        .map(|(&second, own)| (f64::from(second) / unit, own.active_users as f64))
        .collect();
    if users.iter().any(|(_, users)| *users > 0.0) {
        let line = ChartLine { name: "users at a time", class: "c1", points: users };
        out.push_str(&chart::render_line_chart("Users", "", axis, &[line]));
    }
    let megabytes = over(&|values| values.received_bytes as f64 / 1e6);
    let line = ChartLine { name: "megabytes received", class: "c1", points: megabytes };
    out.push_str(&chart::render_line_chart("Received", "MB/s", axis, &[line]));
    out.push_str("<h2>Distribution</h2>");
    let (due, sent) = (
        chart::percentile_points(&total.response_times),
        chart::percentile_points(&total.service_times),
    );
    let mut lines = vec![ChartLine { name: "from the due time", class: "c1", points: due }];
    match lines.first_mut().filter(|line| line.points == sent) {
        Some(line) => line.name = "response time",
        None => lines.push(ChartLine { name: "from the send time", class: "c2", points: sent }),
    }
    out.push_str(&chart::render_percentile_chart("Response time by percentile", &lines));
}

/// Maximum number of points of a percentile line.
const MAX_PERCENTILE_POINTS: u32 = 300;

/// Returns the times of equal spans before the second `whole`, and the middle of each span. In a long run a single
/// second has too few samples for a percentile, and percentiles cannot be averaged.
fn timing_spans(
    seconds: &BTreeMap<u32, RunSecondTotals>,
    whole: u32,
) -> Vec<(f64, TimingHistogram)> {
    let last = seconds.range(..whole).next_back().map_or(0, |(second, _)| *second);
    let width = last / MAX_PERCENTILE_POINTS + 1;
    let mut spans: BTreeMap<u32, TimingHistogram> = BTreeMap::new();
    for (second, values) in seconds.range(..whole) {
        spans.entry(second / width).or_default().merge(&values.times);
    }
    let middle = |span: u32| f64::from(span * width) + f64::from(width - 1) / 2.0;
    spans.into_iter().map(|(span, times)| (middle(span), times)).collect()
}

/// Renders the tested process's resource usage over time.
fn write_target(out: &mut String, results: &RunResults) {
    if results.target_facts.len() < 2 {
        return;
    }
    let (unit, axis) = time_unit(results.elapsed);
    out.push_str("<h2>The tested process</h2>");
    for chart in process_chart::build_process_charts(&results.target_facts) {
        let lines: Vec<ChartLine<'_>> = chart
            .lines
            .iter()
            .zip(["c1", "c2", "c3"])
            .map(|((name, points), class)| ChartLine {
                name: name.as_str(),
                class,
                points: points.iter().map(|(at, value)| (at / unit, *value)).collect(),
            })
            .collect();
        out.push_str(&chart::render_line_chart(chart.title, chart.unit, axis, &lines));
    }
}

/// Upper bounds of the heat map's rows, in milliseconds.
const HEAT_MAP_ROW_BOUNDS_MS: [u64; 12] =
    [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, u64::MAX];

fn render_time_heat_map(seconds: &BTreeMap<u32, RunSecondTotals>, unit: f64, axis: &str) -> String {
    let last = seconds.keys().next_back().copied().unwrap_or(0);
    let width = (last as usize / 120) + 1;
    let mut columns = vec![vec![0u64; HEAT_MAP_ROW_BOUNDS_MS.len()]; last as usize / width + 1];
    for (&second, values) in seconds {
        let Some(column) = columns.get_mut(second as usize / width) else { continue };
        for (us, count) in values.times.buckets() {
            let row = HEAT_MAP_ROW_BOUNDS_MS
                .iter()
                .position(|&bound| us <= bound.saturating_mul(1000))
                .unwrap_or(0);
            if let Some(cell) = column.get_mut(row) {
                *cell += count;
            }
        }
    }
    let names: Vec<String> = std::iter::once("0 ms".to_owned())
        .chain(HEAT_MAP_ROW_BOUNDS_MS.iter().take(HEAT_MAP_ROW_BOUNDS_MS.len() - 1).map(|bound| {
            match bound {
                1000.. => format!("{} s", bound / 1000),
                _ => format!("{bound} ms"),
            }
        }))
        .collect();
    let end = (columns.len() * width) as f64 / unit;
    chart::render_heat_map("Distribution of response times", &names, &columns, end, axis)
}

/// Columns of the label table, after the label.
const LABEL_TABLE_COLUMNS: [&str; 12] = [
    "Samples", "Errors", "Mean", "Min", "Median", "90 %", "95 %", "99 %", "Max", "/s", "Received",
    "Apdex",
];

fn write_labels(out: &mut String, results: &RunResults, total: &SampleStats) {
    out.push_str(
        "<h2>Labels</h2><div class=\"wide\"><table class=\"stack\"><thead><tr><th>Label</th>",
    );
    for name in LABEL_TABLE_COLUMNS {
        write!(out, "<th>{name}</th>").ok();
    }
    out.push_str("</tr></thead><tbody>");
    let mut row = |name: &str, stats: &SampleStats, class: &str| {
        let time = |share: f64| format_response_time(stats.response_times.quantile(share));
        let values = [
            figure_text::format_count(stats.count()),
            figure_text::format_count(stats.error_count),
            format_response_time(stats.response_times.mean()),
            format_response_time(stats.response_times.min()),
            time(0.5),
            time(0.9),
            time(0.95),
            time(0.99),
            format_response_time(stats.response_times.max()),
            format!("{:.1}", results.rate_of(stats.count())),
            figure_text::format_bytes(stats.received_bytes),
            format!("{:.3}", text::apdex_score(stats)),
        ];
        let name = escape_html(if name.is_empty() { "(no name)" } else { name });
        write!(out, "<tr class=\"{class}\"><td>{name}</td>").ok();
        // On narrow screens each value is shown with its column's name.
        for (column, value) in LABEL_TABLE_COLUMNS.iter().zip(&values) {
            write!(out, "<td data-n=\"{column}\">{value}</td>").ok();
        }
        out.push_str("</tr>");
    };
    row("Total", total, "total");
    for (name, series) in &results.labels {
        row(name, &series.total, "");
    }
    for (name, series) in &results.transactions {
        row(&format!("transaction {name}"), &series.total, "transaction");
    }
    out.push_str("</tbody></table></div>");
}

fn write_phases(out: &mut String, results: &RunResults, total: &SampleStats) {
    if total.server_phases.is_empty() {
        return;
    }
    out.push_str("<h2>Phases of the server</h2><p>From <code>Server-Timing</code> headers; the share is of the mean service time of the label.</p><div class=\"wide\"><table class=\"stack\"><thead><tr><th>Phase</th><th>Samples</th><th>Mean</th><th>Median</th><th>95 %</th><th>99 %</th><th>Max</th><th>Share</th></tr></thead><tbody>");
    let mut rows = |name: &str, stats: &SampleStats, class: &str| {
        for (phase, timing) in &stats.server_phases {
            let whole = stats.service_times.mean().as_secs_f64();
            // A phase that not every response reports counts only for the responses that report it.
            let sum = timing.mean().as_secs_f64() * timing.count() as f64;
            let share =
                if whole > 0.0 { sum / (whole * stats.count() as f64) * 100.0 } else { 0.0 };
            write!(
                out,
                "<tr class=\"{class}\"><td>{} \u{b7} {}</td><td data-n=\"Samples\">{}</td><td data-n=\"Mean\">{}</td><td data-n=\"Median\">{}</td><td data-n=\"95 %\">{}</td><td data-n=\"99 %\">{}</td><td data-n=\"Max\">{}</td><td data-n=\"Share\">{share:.0} %</td></tr>",
                escape_html(if name.is_empty() { "(no name)" } else { name }),
                escape_html(phase),
                timing.count(),
                format_response_time(timing.mean()),
                format_response_time(timing.quantile(0.5)),
                format_response_time(timing.quantile(0.95)),
                format_response_time(timing.quantile(0.99)),
                format_response_time(timing.max())
            )
            .ok();
        }
    };
    rows("Total", total, "total");
    for (name, series) in &results.labels {
        rows(name, &series.total, "");
    }
    out.push_str("</tbody></table></div>");
}

fn write_statuses(out: &mut String, total: &SampleStats) {
    out.push_str("<h2>Responses</h2><div class=\"wide\"><table><thead><tr><th>Status</th><th>Count</th><th>Of all samples</th></tr></thead><tbody>");
    for (status, &count) in &total.status_counts {
        let share = count as f64 / total.count().max(1) as f64 * 100.0;
        let name = if *status == 0 { "no response".to_owned() } else { status.to_string() };
        write!(
            out,
            "<tr><td>{name}</td><td>{}</td><td>{share:.2} %</td></tr>",
            figure_text::format_count(count)
        )
        .ok();
    }
    out.push_str("</tbody></table></div>");
}

/// Maximum number of labels listed with a failure reason; the labels with most failures are listed.
const MAX_NAMED_LABELS: usize = 3;

/// Returns the labels that failed for a reason, with their counts.
fn labels_failed_for(results: &RunResults, reason: &str) -> String {
    let mut all: Vec<(&str, u64)> = results
        .labels
        .iter()
        .filter_map(|(name, series)| {
            Some((&**name, *series.total.failure_reason_counts.get(reason)?))
        })
        .collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let more = all.len().saturating_sub(MAX_NAMED_LABELS);
    let names = all.iter().take(MAX_NAMED_LABELS).map(|(name, count)| {
        let name = if name.is_empty() { "(no name)" } else { name };
        format!("{name} ({})", figure_text::format_count(*count))
    });
    let mut list = names.collect::<Vec<_>>().join(", ");
    if more > 0 {
        write!(list, ", {more} more").ok();
    }
    list
}

fn write_errors(out: &mut String, results: &RunResults, total: &SampleStats) {
    if total.failure_reason_counts.is_empty() {
        return;
    }
    out.push_str("<h2>Errors</h2><div class=\"wide\"><table class=\"stack\"><thead><tr><th>Reason</th><th>Count</th><th>Of all samples</th><th>Labels</th></tr></thead><tbody>");
    let mut reasons: Vec<_> = total.failure_reason_counts.iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (reason, &count) in reasons.into_iter().take(50) {
        let share = count as f64 / total.count().max(1) as f64 * 100.0;
        write!(
            out,
            "<tr><td>{}</td><td data-n=\"Count\">{}</td><td data-n=\"Of all samples\">{share:.2} %</td><td class=\"names\" data-n=\"Labels\">{}</td></tr>",
            escape_html(reason),
            figure_text::format_count(count),
            escape_html(&labels_failed_for(results, reason))
        )
        .ok();
    }
    out.push_str("</tbody></table></div>");
}

fn write_generator(out: &mut String, report: &RunReport<'_>) {
    if !report.is_own_load {
        out.push_str("<h2>Generator</h2><p>These rows were read from a file. If its load was closed (users who wait for responses), a stall of the server hides the requests that would have come meanwhile.</p>");
        return;
    }
    let generator = &report.results.generator;
    write!(
        out,
        "<h2>Generator</h2><p>{} threads on {} processors used {:.0} % of what they may use. It acted {} later than planned (99th percentile). {}</p>",
        generator.worker_count,
        generator.processor_count,
        generator.cpu_share(report.results.elapsed) * 100.0,
        format_response_time(generator.lag.quantile(0.99)),
        match generator.offered_rate {
            Some(rate) => format!("Open model: {rate} arrivals per second were asked for; {} found no free user at once.", generator.late_arrivals),
            None => format!("Closed model: at most {} users, who wait for responses; a stall of the server hides the requests that would have come meanwhile.", generator.max_active_users),
        }
    )
    .ok();
    if report.results.processes.is_empty() {
        return;
    }
    out.push_str("<div class=\"wide\"><table><thead><tr><th>Agent</th><th>Samples</th><th>Lasted</th><th>Processors</th><th>Lag 99 %</th><th></th></tr></thead><tbody>");
    for member in &report.results.processes {
        write!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.0} %</td><td>{}</td><td>{}</td></tr>",
            escape_html(&member.name),
            member.sample_count,
            format_response_time(member.elapsed),
            member.generator.cpu_share(member.elapsed) * 100.0,
            format_response_time(member.generator.lag.quantile(0.99)),
            if member.loss_reason.is_some() { "lost" } else { "" }
        )
        .ok();
    }
    out.push_str("</tbody></table></div>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_long_run_are_of_spans_and_not_of_single_seconds() {
        let mut seconds: BTreeMap<u32, RunSecondTotals> = BTreeMap::new();
        for second in 0..1_200 {
            // Every fourth second has a single slow response.
            let time = if second % 4 == 3 { 900_000 } else { 1_000 };
            seconds.entry(second).or_default().times.record_us(time, 1);
        }
        let all = timing_spans(&seconds, u32::MAX);
        assert_eq!(all.len(), 300);
        let (first, times) = &all[0];
        assert_eq!((*first, times.count(), times.quantile(0.5).as_micros()), (1.5, 4, 1_000));
        assert_eq!(all[299].0, 1_197.5);
        let short = timing_spans(&seconds, 300);
        assert_eq!((short.len(), short[7].0), (300, 7.0));
        assert!(timing_spans(&BTreeMap::new(), 0).is_empty());
    }
}
