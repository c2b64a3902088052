//! Go-live test: the average, the peak and the launch load, compared against the same goals.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::time::Duration;

use serde_json::{Value, json};
use tympan_lab_engine::goal::{GoalResult, judge_goals};
use tympan_lab_engine::plan_run::{LoadAmount, LoadOffer};
use tympan_lab_engine::report::report_sheet::{ReportChart, ReportPart, ReportSheet, ReportTone};
use tympan_lab_plan::goal::LoadGoal;
use tympan_web::access_log;

use super::{
    LoadPhase, PhaseMeasurement, PhaseSubject, add_phase_row, judge_pace, phase_grid,
    process_charts, run_phase,
};
use crate::{Error, Result};

/// The expected visits per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpectedTraffic {
    /// Average rate.
    pub average_rate: f64,
    /// Rate in the busiest minute.
    pub peak_rate: f64,
}

/// Options of a go-live trial.
#[derive(Debug, Clone)]
pub struct GoLiveTrial {
    /// The traffic expected after the launch.
    pub expected_traffic: ExpectedTraffic,
    /// Factor of the first days over the peak.
    pub peak_multiplier: f64,
    /// Duration of each phase.
    pub hold_duration: Duration,
    /// The share of the launch load for a preceding soft launch.
    pub soft_launch_share: Option<f64>,
    /// The goals of every phase.
    pub goals: Vec<LoadGoal>,
}

/// Returns the average and the busiest minute of an access log.
///
/// # Errors
/// [`Error::FileAccess`]; [`Error::UnusableInput`] if it has no valid log line.
pub fn traffic_from_log(input: &mut dyn BufRead, name: &str) -> Result<ExpectedTraffic> {
    let mut minutes: BTreeMap<i64, u64> = BTreeMap::new();
    let mut text = Vec::new();
    let (mut first, mut last, mut count) = (i64::MAX, i64::MIN, 0u64);
    loop {
        text.clear();
        let read = input.read_until(b'\n', &mut text);
        if read.map_err(|source| Error::read_failed(std::path::Path::new(name), source))? == 0 {
            break;
        }
        let Ok(line) = access_log::parse_access_log_line(String::from_utf8_lossy(&text).trim_end())
        else {
            continue;
        };
        let at = line.completed_at.unix_seconds();
        (first, last) = (first.min(at), last.max(at));
        count += 1;
        *minutes.entry(at.div_euclid(60)).or_default() += 1;
    }
    if count == 0 {
        return Err(Error::UnusableInput(format!("{name} contains no line of an access.log")));
    }
    // Both ends count: a log with one second of entries lasts a second.
    let seconds = (last - first + 1).max(1) as f64;
    let busiest = minutes.values().copied().max().unwrap_or(0) as f64 / seconds.min(60.0);
    Ok(ExpectedTraffic { average_rate: count as f64 / seconds, peak_rate: busiest })
}

/// Runs the phases.
///
/// # Errors
/// As [`run_phase`].
pub fn run_go_live_trial(
    subject: &PhaseSubject<'_>,
    launch: &GoLiveTrial,
    say: &mut dyn FnMut(&str),
) -> Result<ReportSheet> {
    let full = launch.expected_traffic.peak_rate * launch.peak_multiplier;
    let mut rates = vec![
        ("average", launch.expected_traffic.average_rate),
        ("peak", launch.expected_traffic.peak_rate),
    ];
    if let Some(soft) = launch.soft_launch_share {
        rates.push(("soft launch", full * soft));
    }
    rates.push((LAUNCH_PHASE_NAME, full));
    let mut all = Vec::new();
    for (name, rate) in rates {
        say(&format!("{name}: {rate:.1}/s"));
        let offer = LoadOffer {
            amount: LoadAmount::Rate(rate),
            duration: launch.hold_duration,
            ramp: Duration::ZERO,
            is_random: true,
        };
        let measured = run_phase(subject, LoadPhase { name: name.to_owned(), load_offer: offer })?;
        let is_over = measured.is_unreachable() || !measured.doubts.is_empty();
        all.push(measured);
        if is_over {
            break;
        }
    }
    Ok(build_go_live_sheet(launch, &all))
}

/// The name of the last phase.
const LAUNCH_PHASE_NAME: &str = "launch";

/// Returns the default goals of a launch.
#[must_use]
pub fn default_launch_goals() -> Vec<LoadGoal> {
    let errors = LoadGoal {
        label: "*".to_owned(),
        limit: tympan_lab_plan::goal::GoalLimit::MaxErrorRate(0.01),
        abort_after: None,
    };
    tympan_lab_plan::goal::latency_goals().into_iter().chain([errors]).collect()
}

/// Evaluates a phase against the goals, and checks that the target kept pace.
fn judge_phase(goals: &[LoadGoal], measured: &PhaseMeasurement) -> Vec<GoalResult> {
    let mut judged = judge_goals(goals, &measured.results);
    judged.extend(judge_pace(measured));
    for goal in &mut judged {
        goal.label = format!("{}: {}", measured.phase.name, goal.label);
    }
    judged
}

fn build_go_live_sheet(launch: &GoLiveTrial, all: &[PhaseMeasurement]) -> ReportSheet {
    let mut sheet = ReportSheet::new("Going live");
    let mut table = phase_grid("Phases");
    let mut phases = Vec::new();
    let mut highest_rate = 0.0f64;
    for measured in all {
        let judged = judge_phase(&launch.goals, measured);
        let missed = judged.iter().filter(|goal| !goal.is_met).count();
        let (tone, label) = match (measured.doubts.is_empty(), missed) {
            (false, _) => (ReportTone::Doubtful, "not measured".to_owned()),
            (true, 0) => (ReportTone::Good, "met".to_owned()),
            (true, missed) => (ReportTone::Bad, format!("{missed} of {} missed", judged.len())),
        };
        if missed == 0 && measured.doubts.is_empty() {
            highest_rate = highest_rate.max(measured.offered_rate().unwrap_or(0.0));
        }
        for doubt in &measured.doubts {
            sheet.add_verdict(ReportTone::Doubtful, format!("in {}: {doubt}", measured.phase.name));
        }
        if measured.is_unreachable() {
            sheet.add_verdict(ReportTone::Doubtful, "the target never responded");
        }
        add_phase_row(&mut table, measured, tone, &label);
        phases.push(measured.to_json());
        sheet.judged_goals.extend(judged);
    }
    let times = if launch.expected_traffic.peak_rate > 0.0 {
        highest_rate / launch.expected_traffic.peak_rate
    } else {
        0.0
    };
    let is_whole = all.last().is_some_and(|last| last.phase.name == LAUNCH_PHASE_NAME)
        && all.iter().all(|measured| measured.doubts.is_empty() && !measured.is_unreachable());
    let (tone, verdict) = if !is_whole {
        (ReportTone::Doubtful, "not measured up to the launch: there is no verdict".to_owned())
    } else if sheet.judged_goals.iter().all(|goal| goal.is_met) {
        (
            ReportTone::Good,
            format!("ready: the goals hold up to the launch, {times:.1} times the peak"),
        )
    } else {
        (
            ReportTone::Bad,
            format!(
                "not ready: the goals hold up to {times:.1} times the peak, and the launch is {} times",
                launch.peak_multiplier
            ),
        )
    };
    sheet.add_verdict(tone, verdict);
    sheet.parts.push(ReportPart::Table(table));
    let quantiles = [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)].map(|(name, share)| {
        let points = all.iter().map(|measured| {
            (
                measured.offered_rate().unwrap_or(0.0),
                measured.total_stats.response_times.quantile(share).as_secs_f64() * 1000.0,
            )
        });
        (name.to_owned(), points.collect())
    });
    sheet.parts.push(ReportPart::Chart(ReportChart {
        title: "Response time by load".to_owned(),
        vertical_unit: "ms".to_owned(),
        horizontal_unit: "visits/s".to_owned(),
        lines: quantiles.into(),
    }));
    sheet.parts.extend(process_charts(&all.iter().collect::<Vec<_>>()));
    sheet.json_result = json!({
        "phases": phases,
        "average_per_second": launch.expected_traffic.average_rate,
        "peak_per_second": launch.expected_traffic.peak_rate,
        "factor": launch.peak_multiplier,
        "peak_multiple": if highest_rate > 0.0 { Value::from(times) } else { Value::Null },
    });
    sheet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_gives_the_average_and_the_busiest_minute() {
        let line = |minute: u32, second: u32| {
            format!(
                "1.2.3.4 - - 21/Nov/2026:10:{minute:02}:{second:02} +0000 \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"\n"
            )
        };
        let mut text: String = (0..60).map(|second| line(0, second)).collect();
        text.extend((0..180).map(|at| line(1, at / 3)));
        text.push_str("no line\n");
        text.extend((0..60).map(|second| line(3, second)));
        let expected = traffic_from_log(&mut text.as_bytes(), "access.log").unwrap();
        assert_eq!(expected, ExpectedTraffic { average_rate: 300.0 / 240.0, peak_rate: 3.0 });
        assert!(
            traffic_from_log(&mut "x\n".as_bytes(), "a.log")
                .unwrap_err()
                .to_string()
                .contains("a.log")
        );
    }
}
