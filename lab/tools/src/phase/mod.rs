//! Tests of several phases over any plan: breakpoint, endurance, going live, errors.
//!
//! In: a [`TestPlan`] and a load per phase. Out: a [`ReportSheet`](tympan_lab_engine::report::report_sheet::ReportSheet) with
//! verdicts.
//!
//! Invariants
//! * A phase whose generator was saturated is reported as doubtful and never attributed to the target.
//! * Every figure of a phase comes from its own run; percentiles are never averaged.

pub mod breakpoint;
pub mod component;
pub mod endurance;
pub mod error_trial;
pub mod go_live;
mod healthy_traffic;
pub mod outage;
pub mod process_watch;
mod slow_client;
pub mod upload;

use std::time::Duration;

use serde_json::{Value, json};
use tympan_lab_engine::goal::{GoalResult, format_response_time};
use tympan_lab_engine::live_display::LiveDisplay;
use tympan_lab_engine::measurement::{RunResults, SampleStats};
use tympan_lab_engine::plan_run::{
    LoadAmount, LoadOffer, PlanRunOutcome, RunOptions, run_plan, run_plan_with_display,
};
use tympan_lab_engine::report::process_chart::cpu_share;
use tympan_lab_engine::report::report_sheet::{
    ReportPart, ReportTable, ReportTone, target_chart_parts,
};
use tympan_lab_engine::result_validity;
use tympan_lab_plan::TestPlan;
use tympan_lab_plan::goal::{GoalLimit, LoadGoal};

use crate::Result;

/// The inputs of every phase test.
#[derive(Debug)]
pub struct PhaseSubject<'a> {
    /// The plan.
    pub plan: &'a TestPlan,
    /// The run options; the load is replaced in each phase.
    pub run: RunOptions,
    /// The metrics source to monitor during the load.
    pub metrics_source: Option<process_watch::ProcessMetricsSource>,
    /// Creates the live displays of the phases.
    pub live_display: Option<LiveDisplayFactory<'a>>,
}

/// Creates the display of a phase from its name and duration.
#[derive(Clone, Copy)]
pub struct LiveDisplayFactory<'a>(pub &'a (dyn Fn(&str, Duration) -> LiveDisplay + Sync));

impl std::fmt::Debug for LiveDisplayFactory<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Show")
    }
}

/// One phase.
#[derive(Debug, Clone)]
pub struct LoadPhase {
    /// The name, such as `peak`.
    pub name: String,
    /// Its load.
    pub load_offer: LoadOffer,
}

/// The measurements of a phase.
#[derive(Debug)]
pub struct PhaseMeasurement {
    /// The phase.
    pub phase: LoadPhase,
    /// The results of the run.
    pub results: RunResults,
    /// Statistics of all labels together.
    pub total_stats: SampleStats,
    /// Completed visits per second in the evaluated part of the time; samples per second for persistent users.
    pub achieved_rate: f64,
    /// The reasons why the numbers reflect the generator instead of the target.
    pub doubts: Vec<String>,
    /// Faults outside of samples.
    pub faults: Vec<String>,
    /// Metrics of the target's process.
    pub process_metrics: Vec<process_watch::ProcessMetrics>,
}

impl PhaseMeasurement {
    /// Returns the number of concurrent requests, by Little's law.
    #[must_use]
    pub fn in_flight(&self) -> f64 {
        self.results.rate_of(self.total_stats.count())
            * self.total_stats.response_times.mean().as_secs_f64()
    }

    /// Returns the offered visits per second; `None` for persistent users.
    #[must_use]
    pub fn offered_rate(&self) -> Option<f64> {
        match self.phase.load_offer.amount {
            LoadAmount::Rate(rate) => Some(rate),
            LoadAmount::Users(_) => None,
        }
    }

    /// Returns true if no request received a response.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        self.total_stats.status_counts.keys().all(|status| *status == 0)
    }

    /// Returns the phase as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let (rate, users) = match self.phase.load_offer.amount {
            LoadAmount::Rate(rate) => (Some(rate), None),
            LoadAmount::Users(users) => (None, Some(users)),
        };
        json!({
            "phase": self.phase.name,
            "offered_per_second": rate,
            "users": users,
            "seconds": self.results.elapsed.as_secs_f64(),
            "achieved_per_second": self.achieved_rate,
            "samples": self.total_stats.count(),
            "errors": self.total_stats.error_count,
            "in_flight": self.in_flight(),
            "mean_ms": ms(self.total_stats.response_times.mean()),
            "p50_ms": ms(self.total_stats.response_times.quantile(0.5)),
            "p95_ms": ms(self.total_stats.response_times.quantile(0.95)),
            "p99_ms": ms(self.total_stats.response_times.quantile(0.99)),
            "max_ms": ms(self.total_stats.response_times.max()),
            "doubts": self.doubts,
            "faults": self.faults,
            "target_cpu": cpu_share(&self.process_metrics),
        })
    }
}

/// Adds an error limit to goals without one, because a target that only fails can sustain any rate.
fn with_error_bound(goals: &[LoadGoal]) -> Vec<LoadGoal> {
    let mut goals = goals.to_vec();
    if !goals.iter().any(|goal| matches!(goal.limit, GoalLimit::MaxErrorRate(_))) {
        goals.push(LoadGoal {
            label: "*".to_owned(),
            limit: GoalLimit::MaxErrorRate(0.01),
            abort_after: None,
        });
    }
    goals
}

/// Checks that the target kept pace with the offered load; `None` if users wait for their responses.
fn judge_pace(measured: &PhaseMeasurement) -> Option<GoalResult> {
    let offered = measured.offered_rate()?;
    Some(GoalResult {
        label: "*".to_owned(),
        requirement: format!("keeps pace with {offered:.1}/s"),
        measured: format!("{:.1}/s", measured.achieved_rate),
        is_met: measured.achieved_rate >= offered * 0.97,
    })
}

/// Runs one phase, which starts from the same state as the first one: the first row of data, the first count, the first
/// turn.
///
/// # Errors
/// As `TestPlan::run`.
pub fn run_phase(subject: &PhaseSubject<'_>, phase: LoadPhase) -> Result<PhaseMeasurement> {
    let run = RunOptions { load_offer: Some(phase.load_offer.clone()), ..subject.run.clone() };
    subject.plan.rewind();
    let watch =
        subject.metrics_source.as_ref().map(process_watch::ProcessWatch::start).transpose()?;
    let outcome = match subject.live_display {
        Some(LiveDisplayFactory(show)) => {
            let mut live = show(&phase.name, phase.load_offer.duration);
            run_plan_with_display(subject.plan, &run, &mut |_| {}, &mut live)?
        }
        None => run_plan(subject.plan, &run, &mut |_| {})?,
    };
    let watched = watch.map(process_watch::ProcessWatch::stop).unwrap_or_default();
    Ok(summarize_phase(phase, outcome, watched))
}

fn summarize_phase(
    phase: LoadPhase,
    outcome: PlanRunOutcome,
    watched: Vec<process_watch::ProcessMetrics>,
) -> PhaseMeasurement {
    let total = outcome.results.total_stats();
    let achieved = match phase.load_offer.amount {
        LoadAmount::Rate(rate) => rate * pace_share(&outcome, rate, phase.load_offer.duration),
        LoadAmount::Users(_) => outcome.results.rate_of(total.count()),
    };
    // Arrivals that an overloaded target leaves unsent are an expected result of this test.
    let mut believed = outcome.results.clone();
    believed.generator.unsent_arrivals = 0;
    let saturated = result_validity::validity_doubts(&believed).into_iter();
    let ended = outcome.errors.iter().map(|fault| format!("THE PLAN ENDED EARLY: {fault}"));
    let doubts =
        saturated.map(|doubt| format!("GENERATOR SATURATED: {doubt}")).chain(ended).collect();
    PhaseMeasurement {
        phase,
        results: outcome.results,
        total_stats: total,
        achieved_rate: achieved,
        doubts,
        faults: outcome.errors,
        process_metrics: watched,
    }
}

/// Returns the share of the offered visits with which the target kept pace.
///
/// Long phases are evaluated from their first quarter to their end: if the target keeps pace, equally many visits are
/// in progress at both moments, so that visits without a response at the end are no loss. In short phases the time that
/// the target took beyond the schedule counts.
fn pace_share(outcome: &PlanRunOutcome, rate: f64, duration: Duration) -> f64 {
    let expected_visits = rate * duration.as_secs_f64();
    let results = &outcome.results;
    let usual = results.total_stats().response_times.quantile(0.5);
    let took = results.elapsed.saturating_sub(usual).max(duration);
    let whole = outcome.visits as f64 / expected_visits.max(1.0) * duration.as_secs_f64()
        / took.as_secs_f64();
    let seconds = duration.as_secs();
    if seconds < MIN_TRIMMABLE_SECONDS || outcome.visits == 0 {
        return whole.min(1.0);
    }
    let (from, to) = (seconds / 4, seconds);
    let inside: u64 = results
        .labels
        .values()
        .flat_map(|series| &series.seconds)
        .filter(|(second, _)| (from..to).contains(&u64::from(**second)))
        .map(|(_, values)| values.sample_count)
        .sum();
    let all: u64 = results.labels.values().map(|series| series.total.count()).sum();
    let per_visit = all as f64 / outcome.visits as f64;
    let visits = inside as f64 / per_visit.max(f64::MIN_POSITIVE);
    (visits / (rate * (to - from) as f64)).max(whole).min(1.0)
}

/// Minimum duration in seconds of a phase that is evaluated in part.
const MIN_TRIMMABLE_SECONDS: u64 = 8;

/// Creates a table with the columns common to all phase tables.
pub(crate) fn phase_grid(title: &str) -> ReportTable {
    ReportTable::new(
        title,
        &["phase", "offered", "achieved", "in flight", "errors", "p50", "p95", "p99", "max", ""],
    )
}

pub(crate) fn add_phase_row(
    grid: &mut ReportTable,
    measured: &PhaseMeasurement,
    tone: ReportTone,
    label: &str,
) {
    let offered = match measured.phase.load_offer.amount {
        LoadAmount::Rate(rate) => format!("{rate:.1}/s"),
        LoadAmount::Users(users) => format!("{users} users"),
    };
    let time =
        |share: f64| format_response_time(measured.total_stats.response_times.quantile(share));
    grid.add_row(
        tone,
        vec![
            measured.phase.name.clone(),
            offered,
            format!("{:.1}/s", measured.achieved_rate),
            format!("{:.1}", measured.in_flight()),
            format!("{:.2} %", measured.total_stats.error_rate() * 100.0),
            time(0.5),
            time(0.95),
            time(0.99),
            format_response_time(measured.total_stats.response_times.max()),
            label.to_owned(),
        ],
    );
}

/// Returns the charts of the tested process over all phases, in the order in which they ran; empty unless it was
/// monitored.
pub(crate) fn process_charts(all: &[&PhaseMeasurement]) -> Vec<ReportPart> {
    let started = |measured: &&PhaseMeasurement| measured.results.started;
    let Some(first) = all.iter().map(started).min() else { return Vec::new() };
    let mut metrics: Vec<process_watch::ProcessMetrics> = Vec::new();
    for measured in all {
        let since = started(measured).duration_since(first).unwrap_or_default();
        let moved = |facts: &process_watch::ProcessMetrics| process_watch::ProcessMetrics {
            elapsed: facts.elapsed + since,
            ..facts.clone()
        };
        metrics.extend(measured.process_metrics.iter().map(moved));
    }
    metrics.sort_by_key(|facts| facts.elapsed);
    target_chart_parts(&metrics)
}

/// Returns a description of the most frequent failure reason.
pub(crate) fn top_failure_reason(stats: &SampleStats) -> String {
    let most = stats.failure_reason_counts.iter().max_by_key(|(_, count)| **count);
    most.map_or_else(|| "no reason".to_owned(), |(reason, count)| format!("{count} x {reason}"))
}
