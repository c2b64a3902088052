//! Writes the report as JSON, JUnit XML, Markdown and plain text.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use tympan_notation::escape_xml;

use super::figure_text::{format_bytes, format_date};
use super::run_report::RunReport;
use super::{cache_warmup, slow_sample};
use crate::measurement::log_watch_result::LogWatchResult;
use crate::measurement::{
    LoadProcess, PoolUsage, ProcessMetrics, RunResults, SampleStats, TimingHistogram,
};
use crate::report::goal::format_response_time;
use crate::report::process_chart;

/// Returns the Apdex score for a threshold of 500 ms: satisfied requests, plus half of those that take up to 1500 ms.
pub(super) fn apdex_score(stats: &SampleStats) -> f64 {
    let count = stats.count() as f64;
    if count == 0.0 {
        return 1.0;
    }
    let within = |timing: &TimingHistogram, ms| {
        timing.share_within(Duration::from_millis(ms)) * timing.count() as f64
    };
    // A failed sample counts as frustrated, however fast it failed.
    let good = |ms| {
        let failed = stats.failed_response_times.as_ref().map_or(0.0, |failed| within(failed, ms));
        within(&stats.response_times, ms) - failed
    };
    let (satisfied, tolerated) = (good(500), good(1500));
    ((satisfied + tolerated) / 2.0).max(0.0) / count
}

/// Returns the report as JSON.
#[must_use]
pub fn report_to_json(report: &RunReport<'_>) -> Value {
    let results = report.results;
    let stats = |stats: &SampleStats| {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        json!({
            "samples": stats.count(),
            "errors": stats.error_count,
            "per_second": results.rate_of(stats.count()),
            "mean_ms": ms(stats.response_times.mean()),
            "min_ms": ms(stats.response_times.min()),
            "max_ms": ms(stats.response_times.max()),
            "p50_ms": ms(stats.response_times.quantile(0.5)),
            "p90_ms": ms(stats.response_times.quantile(0.9)),
            "p95_ms": ms(stats.response_times.quantile(0.95)),
            "p98_ms": ms(stats.response_times.quantile(0.98)),
            "p99_ms": ms(stats.response_times.quantile(0.99)),
            "p999_ms": ms(stats.response_times.quantile(0.999)),
            "service_p99_ms": ms(stats.service_times.quantile(0.99)),
            "received_bytes": stats.received_bytes,
            "body_bytes": stats.body_bytes,
            "sent_bytes": stats.sent_bytes,
            "statuses": stats.status_counts,
            "reasons": stats.failure_reason_counts,
            "phases": phases_to_json(stats),
        })
    };
    let labels: serde_json::Map<String, Value> = results
        .labels
        .iter()
        .map(|(name, series)| {
            let mut label_json = stats(&series.total);
            if let Some(fields) = label_json.as_object_mut() {
                let first_cached = cache_warmup::first_cached_to_json(series.total.first_cached());
                fields.insert("first_cached".to_owned(), first_cached);
            }
            (name.to_string(), label_json)
        })
        .collect();
    let transactions: serde_json::Map<String, Value> = results
        .transactions
        .iter()
        .map(|(name, series)| (name.to_string(), stats(&series.total)))
        .collect();
    let goals: Vec<Value> = report
        .judged_goals
        .iter()
        .map(|goal| {
            json!({ "label": goal.label, "wanted": goal.requirement, "measured": goal.measured, "met": goal.is_met })
        })
        .collect();
    let generator = &results.generator;
    json!({
        "title": report.title,
        "started": format_date(results.started),
        "seconds": results.elapsed.as_secs_f64(),
        "total": stats(&results.total_stats()),
        "labels": labels,
        "transactions": transactions,
        "goals": goals,
        "doubts": report.doubts(),
        "notes": report.notes(),
        "incomplete": report.losses(),
        "agents": agents_to_json(results),
        "target": target_to_json(&results.target_facts),
        "slowest": slow_sample::slowest_to_json(results),
        "joined": slow_sample::server_log_join_to_json(results),
        "errors_logged": results.log_watches.iter().map(LogWatchResult::to_json).collect::<Vec<_>>(),
        "generator": {
            "workers": generator.worker_count,
            "cpu_seconds": generator.cpu_time.as_secs_f64(),
            "cpu_share": generator.cpu_share(results.elapsed),
            "lag_p99_ms": generator.lag.quantile(0.99).as_secs_f64() * 1000.0,
            "offered_per_second": generator.offered_rate,
            "late": generator.late_arrivals,
            "repeated": generator.repeated_requests,
        },
    })
}

fn phases_to_json(stats: &SampleStats) -> Value {
    let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    let phase = |(name, timing): (&String, &TimingHistogram)| {
        let phase_json = json!({
            "samples": timing.count(),
            "mean_ms": ms(timing.mean()),
            "p50_ms": ms(timing.quantile(0.5)),
            "p95_ms": ms(timing.quantile(0.95)),
            "p99_ms": ms(timing.quantile(0.99)),
            "max_ms": ms(timing.max()),
        });
        (name.clone(), phase_json)
    };
    Value::Object(stats.server_phases.iter().map(phase).collect())
}

/// Returns the tested process's resource usage as JSON; null unless the process was watched.
pub(super) fn target_to_json(processes: &[ProcessMetrics]) -> Value {
    let most = |value: &dyn Fn(&ProcessMetrics) -> u64| processes.iter().map(value).max();
    match processes.last() {
        None => Value::Null,
        Some(last) => json!({
            "cpu_seconds": processes.first().map(|first| last.cpu_time.saturating_sub(first.cpu_time).as_secs_f64()),
            "cpu_share": process_chart::cpu_share(processes),
            "max_memory_bytes": most(&|facts| facts.memory_bytes),
            "max_threads": most(&|facts| facts.thread_count),
            "max_files": most(&|facts| facts.open_files),
            "disk_bytes": processes.first().map(|first| last.disk_bytes.saturating_sub(first.disk_bytes)),
            "pools": pools_to_json(processes),
        }),
    }
}

/// Returns the maximum usage of the busiest pools, and the number of waiters.
fn pools_to_json(processes: &[ProcessMetrics]) -> Value {
    let of = |name: &str| {
        let all =
            || processes.iter().flat_map(|facts| &facts.pools).filter(|pool| pool.name == name);
        let share = all().map(PoolUsage::used_share).fold(0.0, f64::max);
        let waiting = all().map(|pool| pool.waiting).fold(0.0, f64::max);
        (name.to_owned(), json!({ "max_used_share": share, "max_waiting": waiting }))
    };
    Value::Object(process_chart::busiest_pools(processes).into_iter().map(of).collect())
}

fn agents_to_json(results: &RunResults) -> Vec<Value> {
    let agent = |member: &LoadProcess| {
        json!({
            "name": member.name,
            "samples": member.sample_count,
            "seconds": member.elapsed.as_secs_f64(),
            "workers": member.generator.worker_count,
            "cpu_seconds": member.generator.cpu_time.as_secs_f64(),
            "cpu_share": member.generator.cpu_share(member.elapsed),
            "lag_p99_ms": member.generator.lag.quantile(0.99).as_secs_f64() * 1000.0,
            "lost": member.loss_reason,
        })
    };
    results.processes.iter().map(agent).collect()
}

/// Returns the goals as JUnit XML, for build servers.
#[must_use]
pub fn report_to_junit(report: &RunReport<'_>) -> String {
    let failures = report.judged_goals.iter().filter(|goal| !goal.is_met).count();
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    writeln!(
        out,
        "<testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\" time=\"{:.3}\">",
        escape_xml(report.title),
        report.judged_goals.len(),
        report.results.elapsed.as_secs_f64()
    )
    .ok();
    for goal in report.judged_goals {
        write!(
            out,
            "  <testcase classname=\"{}\" name=\"{}\"",
            escape_xml(&goal.label),
            escape_xml(&goal.requirement)
        )
        .ok();
        if goal.is_met {
            out.push_str("/>\n");
        } else {
            writeln!(
                out,
                "><failure message=\"measured {}\"/></testcase>",
                escape_xml(&goal.measured)
            )
            .ok();
        }
    }
    out.push_str("</testsuite>\n");
    out
}

/// Returns the report as Markdown for a pull request.
#[must_use]
pub fn report_to_markdown(report: &RunReport<'_>) -> String {
    let results = report.results;
    let mut out = format!("## {}\n\n", report.title);
    for loss in report.losses() {
        writeln!(out, "> **Incomplete:** {loss}\n").ok();
    }
    for doubt in report.doubts() {
        writeln!(out, "> **Generator saturated:** {doubt}\n").ok();
    }
    for note in report.notes() {
        writeln!(out, "> **Note:** {note}\n").ok();
    }
    if !report.judged_goals.is_empty() {
        out.push_str("| goal | wanted | measured | |\n|---|---|---|---|\n");
        for goal in report.judged_goals {
            let status = if goal.is_met { "met" } else { "**missed**" };
            writeln!(
                out,
                "| {} | {} | {} | {status} |",
                escape_markdown_cell(&goal.label),
                escape_markdown_cell(&goal.requirement),
                escape_markdown_cell(&goal.measured)
            )
            .ok();
        }
        out.push('\n');
    }
    out.push_str("| label | samples | errors | /s | p50 | p95 | p99 | max |\n|---|---|---|---|---|---|---|---|\n");
    for (name, stats) in label_rows(results) {
        writeln!(
            out,
            "| {} | {} | {} | {:.1} | {} | {} | {} | {} |",
            escape_markdown_cell(&name),
            stats.count(),
            stats.error_count,
            results.rate_of(stats.count()),
            format_response_time(stats.response_times.quantile(0.5)),
            format_response_time(stats.response_times.quantile(0.95)),
            format_response_time(stats.response_times.quantile(0.99)),
            format_response_time(stats.response_times.max())
        )
        .ok();
    }
    for line in results.log_watches.iter().flat_map(LogWatchResult::describe_lines) {
        write!(out, "\n> {}\n", escape_markdown_cell(&line)).ok();
    }
    out
}

fn escape_markdown_cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn label_rows(results: &RunResults) -> Vec<(String, SampleStats)> {
    let mut rows = vec![("total".to_owned(), results.total_stats())];
    rows.extend(
        results.labels.iter().map(|(name, series)| (name.to_string(), series.total.clone())),
    );
    rows
}

/// Returns the report as text for a terminal.
#[must_use]
pub fn report_to_plain_text(report: &RunReport<'_>) -> String {
    let results = report.results;
    let total = results.total_stats();
    let mut out = String::new();
    // `loadgen.sh` reads the first line.
    writeln!(
        out,
        "requests {} in {:.2} s, {:.1}/s, {} errors, {} received",
        total.count(),
        results.elapsed.as_secs_f64(),
        results.rate_of(total.count()),
        total.error_count,
        format_bytes(total.received_bytes)
    )
    .ok();
    let line = |out: &mut String, name: &str, timing: &TimingHistogram| {
        writeln!(
            out,
            "{name:<10} p50 {:>9}  p90 {:>9}  p95 {:>9}  p99 {:>9}  p99.9 {:>9}  max {:>9}",
            format_response_time(timing.quantile(0.5)),
            format_response_time(timing.quantile(0.9)),
            format_response_time(timing.quantile(0.95)),
            format_response_time(timing.quantile(0.99)),
            format_response_time(timing.quantile(0.999)),
            format_response_time(timing.max())
        )
        .ok();
    };
    line(&mut out, "response", &total.response_times);
    for (phase, timing) in &total.server_phases {
        line(&mut out, &format!("  {phase}"), timing);
    }
    let generator = &results.generator;
    if generator.is_open_model {
        line(&mut out, "service", &total.service_times);
        let offered = generator.offered_rate.unwrap_or(0.0);
        let achieved = results.rate_of(total.count());
        if achieved < offered * 0.97 {
            writeln!(
                out,
                "the target is slower than the requested rate: {achieved:.1}/s of {offered:.1}/s; response \
                 counts from when a request was due"
            )
            .ok();
        }
    } else if report.is_own_load {
        writeln!(
            out,
            "closed model: {} users; a stall of 1 s would hide about {:.0} samples",
            generator.max_active_users,
            results.rate_of(total.count())
        )
        .ok();
    }
    for (reason, count) in &total.failure_reason_counts {
        writeln!(out, "{count:>8} x {reason}").ok();
    }
    for goal in report.judged_goals {
        let status = if goal.is_met { "met   " } else { "MISSED" };
        writeln!(
            out,
            "goal {status} {}: {}, measured {}",
            goal.label, goal.requirement, goal.measured
        )
        .ok();
    }
    cache_warmup::write_warmup_text(&mut out, results);
    slow_sample::write_slow_sample_text(&mut out, results);
    write_generator(&mut out, report);
    for note in report.notes() {
        writeln!(out, "NOTE: {note}").ok();
    }
    for line in results.log_watches.iter().flat_map(LogWatchResult::describe_lines) {
        writeln!(out, "{line}").ok();
    }
    out
}

/// Writes the facts about the load generator, and the reasons not to trust the measurements.
fn write_generator(out: &mut String, report: &RunReport<'_>) {
    let results = report.results;
    let generator = &results.generator;
    if report.is_own_load {
        writeln!(
            out,
            "generator  {:.0} % of its processors, lag p99 {}",
            generator.cpu_share(results.elapsed) * 100.0,
            format_response_time(generator.lag.quantile(0.99))
        )
        .ok();
    }
    for member in &results.processes {
        writeln!(
            out,
            "    {:<32} {:>9} samples, {:.0} % of its processors, lag p99 {}",
            member.name,
            member.sample_count,
            member.generator.cpu_share(member.elapsed) * 100.0,
            format_response_time(member.generator.lag.quantile(0.99))
        )
        .ok();
    }
    for loss in report.losses() {
        writeln!(out, "INCOMPLETE: {loss}").ok();
    }
    for doubt in report.doubts() {
        writeln!(out, "GENERATOR SATURATED: {doubt}").ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::figure_text::format_duration;

    #[test]
    fn long_runs_are_reported_in_minutes_and_hours() {
        let duration_text = |seconds: f64| format_duration(Duration::from_secs_f64(seconds));
        assert_eq!(duration_text(20.019), "20.02 s");
        assert_eq!(duration_text(1800.59), "30 min 1 s");
        assert_eq!(duration_text(28_859.9), "8 h 1 min");
    }

    #[test]
    fn a_failed_sample_frustrates_once_however_long_it_took() {
        let mut stats = SampleStats::default();
        let mut add = |ms: u64, is_failed: bool| {
            stats.response_times.record(Duration::from_millis(ms));
            if is_failed {
                stats.record_failed_us(ms * 1000);
            }
            apdex_score(&stats)
        };
        assert!((add(100, false) - 1.0).abs() < 1e-9);
        // A slow failure does not count as good.
        assert!((add(30_000, true) - 0.5).abs() < 1e-9);
        // A fast failure does not count as good either.
        assert!((add(10, true) - 1.0 / 3.0).abs() < 1e-9);
        // One request is tolerated, which counts half.
        assert!((add(1_000, false) - 1.5 / 4.0).abs() < 1e-9);
    }
}
