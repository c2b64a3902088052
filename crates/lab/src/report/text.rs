//! The same numbers for machines, pull requests and terminals.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::html::escape;
use super::{Report, opening, slow};
use crate::goal::show;
use crate::phase::watch::{self, Facts, Pool};
use crate::record::{Member, Results, Stats, Timing};
use crate::watch_log::Logged;

pub(super) fn date(at: SystemTime) -> String {
    let seconds = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let at =
        i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    at.map(|at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()).unwrap_or_default()
}

/// Returns a number with its digits in groups of three.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Shows how long something lasted: beyond two minutes with whole seconds, beyond two hours with whole minutes.
pub(super) fn lasted(time: Duration) -> String {
    let seconds = (time.as_secs_f64() + 0.5) as u64;
    match seconds {
        0..120 => show(time),
        120..7200 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

pub(super) fn bytes(count: u64) -> String {
    let count = count as f64;
    if count >= 1e9 {
        format!("{:.2} GB", count / 1e9)
    } else if count >= 1e6 {
        format!("{:.1} MB", count / 1e6)
    } else {
        format!("{:.1} kB", count / 1e3)
    }
}

/// Returns the Apdex for a threshold of 500 ms: satisfied, and half of those who tolerate up to 1500 ms.
pub(super) fn apdex(stats: &Stats) -> f64 {
    let count = stats.count() as f64;
    if count == 0.0 {
        return 1.0;
    }
    let within = |timing: &Timing, ms| {
        timing.share_within(Duration::from_millis(ms)) * timing.count() as f64
    };
    // A failed sample frustrates, however fast it failed: a quick one satisfies nobody, and a slow one never did.
    let good = |ms| {
        let failed = stats.failed.as_ref().map_or(0.0, |failed| within(failed, ms));
        within(&stats.response, ms) - failed
    };
    let (satisfied, tolerated) = (good(500), good(1500));
    ((satisfied + tolerated) / 2.0).max(0.0) / count
}

/// Returns the report as JSON.
#[must_use]
pub fn json(report: &Report<'_>) -> Value {
    let results = report.results;
    let stats = |stats: &Stats| {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        json!({
            "samples": stats.count(),
            "errors": stats.errors,
            "per_second": results.rate(stats.count()),
            "mean_ms": ms(stats.response.mean()),
            "min_ms": ms(stats.response.min()),
            "max_ms": ms(stats.response.max()),
            "p50_ms": ms(stats.response.quantile(0.5)),
            "p90_ms": ms(stats.response.quantile(0.9)),
            "p95_ms": ms(stats.response.quantile(0.95)),
            "p98_ms": ms(stats.response.quantile(0.98)),
            "p99_ms": ms(stats.response.quantile(0.99)),
            "p999_ms": ms(stats.response.quantile(0.999)),
            "service_p99_ms": ms(stats.service.quantile(0.99)),
            "received_bytes": stats.received,
            "body_bytes": stats.body,
            "sent_bytes": stats.sent,
            "statuses": stats.statuses,
            "reasons": stats.reasons,
            "phases": phases(stats),
        })
    };
    let labels: serde_json::Map<String, Value> = results
        .labels
        .iter()
        .map(|(name, series)| {
            let mut told = stats(&series.total);
            if let Some(fields) = told.as_object_mut() {
                let found = opening::to_json(series.total.first_cached());
                fields.insert("first_cached".to_owned(), found);
            }
            (name.to_string(), told)
        })
        .collect();
    let transactions: serde_json::Map<String, Value> = results
        .transactions
        .iter()
        .map(|(name, series)| (name.to_string(), stats(&series.total)))
        .collect();
    let goals: Vec<Value> = report
        .goals
        .iter()
        .map(|goal| {
            json!({ "label": goal.label, "wanted": goal.wanted, "measured": goal.measured, "met": goal.is_met })
        })
        .collect();
    let generator = &results.generator;
    json!({
        "title": report.title,
        "started": date(results.started),
        "seconds": results.elapsed.as_secs_f64(),
        "total": stats(&results.total()),
        "labels": labels,
        "transactions": transactions,
        "goals": goals,
        "doubts": report.doubts(),
        "notes": report.notes(),
        "incomplete": report.losses(),
        "agents": agents(results),
        "target": target(&results.target),
        "slowest": slow::slowest(results),
        "joined": slow::joined(results),
        "errors_logged": results.logged.iter().map(Logged::to_json).collect::<Vec<_>>(),
        "generator": {
            "workers": generator.workers,
            "cpu_seconds": generator.cpu.as_secs_f64(),
            "cpu_share": generator.cpu_share(results.elapsed),
            "lag_p99_ms": generator.lag.quantile(0.99).as_secs_f64() * 1000.0,
            "offered_per_second": generator.offered,
            "late": generator.late,
            "repeated": generator.repeated,
        },
    })
}

fn phases(stats: &Stats) -> Value {
    let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    let phase = |(name, timing): (&String, &Timing)| {
        let told = json!({
            "samples": timing.count(),
            "mean_ms": ms(timing.mean()),
            "p50_ms": ms(timing.quantile(0.5)),
            "p95_ms": ms(timing.quantile(0.95)),
            "p99_ms": ms(timing.quantile(0.99)),
            "max_ms": ms(timing.max()),
        });
        (name.clone(), told)
    };
    Value::Object(stats.phases.iter().map(phase).collect())
}

/// Returns what the tested process took; nothing unless it was watched.
pub(super) fn target(seen: &[Facts]) -> Value {
    let most = |value: &dyn Fn(&Facts) -> u64| seen.iter().map(value).max();
    match seen.last() {
        None => Value::Null,
        Some(last) => json!({
            "cpu_seconds": seen.first().map(|first| last.cpu.saturating_sub(first.cpu).as_secs_f64()),
            "cpu_share": watch::cpu_share(seen),
            "most_memory_bytes": most(&|facts| facts.memory),
            "most_threads": most(&|facts| facts.threads),
            "most_files": most(&|facts| facts.files),
            "disk_bytes": seen.first().map(|first| last.disk.saturating_sub(first.disk)),
            "pools": pools(seen),
        }),
    }
}

/// Returns how full the busiest pools were, and how many waited.
fn pools(seen: &[Facts]) -> Value {
    let of = |name: &str| {
        let all = || seen.iter().flat_map(|facts| &facts.pools).filter(|pool| pool.name == name);
        let share = all().map(Pool::share).fold(0.0, f64::max);
        let waiting = all().map(|pool| pool.waiting).fold(0.0, f64::max);
        (name.to_owned(), json!({ "most_taken_share": share, "most_waiting": waiting }))
    };
    Value::Object(watch::busiest_pools(seen).into_iter().map(of).collect())
}

fn agents(results: &Results) -> Vec<Value> {
    let agent = |member: &Member| {
        json!({
            "name": member.name,
            "samples": member.samples,
            "seconds": member.elapsed.as_secs_f64(),
            "workers": member.generator.workers,
            "cpu_seconds": member.generator.cpu.as_secs_f64(),
            "cpu_share": member.generator.cpu_share(member.elapsed),
            "lag_p99_ms": member.generator.lag.quantile(0.99).as_secs_f64() * 1000.0,
            "lost": member.lost,
        })
    };
    results.members.iter().map(agent).collect()
}

/// Returns the goals as JUnit XML, for build servers.
#[must_use]
pub fn junit(report: &Report<'_>) -> String {
    let failures = report.goals.iter().filter(|goal| !goal.is_met).count();
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    writeln!(
        out,
        "<testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\" time=\"{:.3}\">",
        escape(report.title),
        report.goals.len(),
        report.results.elapsed.as_secs_f64()
    )
    .ok();
    for goal in report.goals {
        write!(
            out,
            "  <testcase classname=\"{}\" name=\"{}\"",
            escape(&goal.label),
            escape(&goal.wanted)
        )
        .ok();
        if goal.is_met {
            out.push_str("/>\n");
        } else {
            writeln!(out, "><failure message=\"measured {}\"/></testcase>", escape(&goal.measured))
                .ok();
        }
    }
    out.push_str("</testsuite>\n");
    out
}

/// Returns the report for a pull request.
#[must_use]
pub fn markdown(report: &Report<'_>) -> String {
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
    if !report.goals.is_empty() {
        out.push_str("| goal | wanted | measured | |\n|---|---|---|---|\n");
        for goal in report.goals {
            let word = if goal.is_met { "met" } else { "**missed**" };
            writeln!(
                out,
                "| {} | {} | {} | {word} |",
                cell(&goal.label),
                cell(&goal.wanted),
                cell(&goal.measured)
            )
            .ok();
        }
        out.push('\n');
    }
    out.push_str("| label | samples | errors | /s | p50 | p95 | p99 | max |\n|---|---|---|---|---|---|---|---|\n");
    for (name, stats) in rows(results) {
        writeln!(
            out,
            "| {} | {} | {} | {:.1} | {} | {} | {} | {} |",
            cell(&name),
            stats.count(),
            stats.errors,
            results.rate(stats.count()),
            show(stats.response.quantile(0.5)),
            show(stats.response.quantile(0.95)),
            show(stats.response.quantile(0.99)),
            show(stats.response.max())
        )
        .ok();
    }
    for line in results.logged.iter().flat_map(Logged::told) {
        write!(out, "\n> {}\n", cell(&line)).ok();
    }
    out
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn rows(results: &Results) -> Vec<(String, Stats)> {
    let mut rows = vec![("total".to_owned(), results.total())];
    rows.extend(
        results.labels.iter().map(|(name, series)| (name.to_string(), series.total.clone())),
    );
    rows
}

/// Returns the report for a terminal.
#[must_use]
pub fn plain(report: &Report<'_>) -> String {
    let results = report.results;
    let total = results.total();
    let mut out = String::new();
    // `loadgen.sh` reads the first line.
    writeln!(
        out,
        "requests {} in {:.2} s, {:.1}/s, {} errors, {} received",
        total.count(),
        results.elapsed.as_secs_f64(),
        results.rate(total.count()),
        total.errors,
        bytes(total.received)
    )
    .ok();
    let line = |out: &mut String, name: &str, timing: &Timing| {
        writeln!(
            out,
            "{name:<10} p50 {:>9}  p90 {:>9}  p95 {:>9}  p99 {:>9}  p99.9 {:>9}  max {:>9}",
            show(timing.quantile(0.5)),
            show(timing.quantile(0.9)),
            show(timing.quantile(0.95)),
            show(timing.quantile(0.99)),
            show(timing.quantile(0.999)),
            show(timing.max())
        )
        .ok();
    };
    line(&mut out, "response", &total.response);
    for (phase, timing) in &total.phases {
        line(&mut out, &format!("  {phase}"), timing);
    }
    let generator = &results.generator;
    if generator.is_open {
        line(&mut out, "service", &total.service);
        let offered = generator.offered.unwrap_or(0.0);
        let achieved = results.rate(total.count());
        if achieved < offered * 0.97 {
            writeln!(
                out,
                "the target is slower than the rate that was asked: {achieved:.1}/s of {offered:.1}/s; response counts from when a request was due"
            )
            .ok();
        }
    } else if report.is_own {
        writeln!(
            out,
            "closed model: {} users; a stall of 1 s would hide about {:.0} samples",
            generator.most_active,
            results.rate(total.count())
        )
        .ok();
    }
    for (reason, count) in &total.reasons {
        writeln!(out, "{count:>8} x {reason}").ok();
    }
    for goal in report.goals {
        let word = if goal.is_met { "met   " } else { "MISSED" };
        writeln!(out, "goal {word} {}: {}, measured {}", goal.label, goal.wanted, goal.measured)
            .ok();
    }
    opening::tell(&mut out, results);
    slow::tell(&mut out, results);
    write_generator(&mut out, report);
    for note in report.notes() {
        writeln!(out, "NOTE: {note}").ok();
    }
    for line in results.logged.iter().flat_map(Logged::told) {
        writeln!(out, "{line}").ok();
    }
    out
}

/// Writes what is known of who made the load, and why the numbers may not be believed.
fn write_generator(out: &mut String, report: &Report<'_>) {
    let results = report.results;
    let generator = &results.generator;
    if report.is_own {
        writeln!(
            out,
            "generator  {:.0} % of its processors, lag p99 {}",
            generator.cpu_share(results.elapsed) * 100.0,
            show(generator.lag.quantile(0.99))
        )
        .ok();
    }
    for member in &results.members {
        writeln!(
            out,
            "    {:<32} {:>9} samples, {:.0} % of its processors, lag p99 {}",
            member.name,
            member.samples,
            member.generator.cpu_share(member.elapsed) * 100.0,
            show(member.generator.lag.quantile(0.99))
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

    #[test]
    fn long_runs_are_told_in_minutes_and_hours() {
        let told = |seconds: f64| lasted(Duration::from_secs_f64(seconds));
        assert_eq!(told(20.019), "20.02 s");
        assert_eq!(told(1800.59), "30 min 1 s");
        assert_eq!(told(28_859.9), "8 h 1 min");
    }

    #[test]
    fn a_failed_sample_frustrates_once_however_long_it_took() {
        let mut stats = Stats::default();
        let mut add = |ms: u64, is_failed: bool| {
            stats.response.record(Duration::from_millis(ms));
            if is_failed {
                stats.fail_us(ms * 1000);
            }
            apdex(&stats)
        };
        assert!((add(100, false) - 1.0).abs() < 1e-9);
        // A slow failure was never counted as good.
        assert!((add(30_000, true) - 0.5).abs() < 1e-9);
        // A quick one satisfies nobody either.
        assert!((add(10, true) - 1.0 / 3.0).abs() < 1e-9);
        // One is tolerated: half.
        assert!((add(1_000, false) - 1.5 / 4.0).abs() < 1e-9);
    }
}
