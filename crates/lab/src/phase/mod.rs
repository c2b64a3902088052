//! Tests of several phases over any plan: breakpoint, endurance, going live, errors.
//!
//! In: a [`Plan`] and a load per phase. Out: a [`Sheet`] with verdicts.
//!
//! Invariants
//! * A phase whose generator was saturated is told to be doubtful and never judged as the target's fault.
//! * Every figure of a phase comes from its own run; percentiles are never averaged.

pub mod breakpoint;
pub mod component;
pub mod endure;
pub mod errors;
pub mod golive;
pub mod outage;
mod slow;
pub mod upload;
pub mod watch;

use std::time::Duration;

use serde_json::{Value, json};

use crate::goal::{Goal, Judged, Limit, show};
use crate::live::Live;
use crate::plan::{Amount, Offer, Outcome, Plan, Run};
use crate::record::{Results, Stats};
use crate::report::sheet::{Grid, Part, Tone, target_parts};
use crate::{Result, honesty};

/// What every test of phases is given.
#[derive(Debug)]
pub struct Subject<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// How to run it; its load is replaced in each phase.
    pub run: Run,
    /// What to watch beside the load.
    pub watched: Option<watch::Source>,
    /// Where phases are shown while they run.
    pub show: Option<Show<'a>>,
}

/// Makes the place where a phase is shown, of its name and how long it lasts.
#[derive(Clone, Copy)]
pub struct Show<'a>(pub &'a (dyn Fn(&str, Duration) -> Live + Sync));

impl std::fmt::Debug for Show<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Show")
    }
}

/// One phase.
#[derive(Debug, Clone)]
pub struct Phase {
    /// Such as `peak`.
    pub name: String,
    /// Its load.
    pub offer: Offer,
}

/// What came of a phase.
#[derive(Debug)]
pub struct Measured {
    /// The phase.
    pub phase: Phase,
    /// Its numbers.
    pub results: Results,
    /// All labels together.
    pub total: Stats,
    /// Visits that were finished in the part of the time that counts, per second; samples for users who stay.
    pub achieved: f64,
    /// Why the numbers are the generator's.
    pub doubts: Vec<String>,
    /// What went wrong outside of samples.
    pub faults: Vec<String>,
    /// What was seen of the target's process.
    pub watched: Vec<watch::Facts>,
}

impl Measured {
    /// Returns requests under way at a time, by Little's law.
    #[must_use]
    pub fn in_flight(&self) -> f64 {
        self.results.rate(self.total.count()) * self.total.response.mean().as_secs_f64()
    }

    /// Returns visits that were asked for per second; `None` for users who stay.
    #[must_use]
    pub fn offered(&self) -> Option<f64> {
        match self.phase.offer.amount {
            Amount::Rate(rate) => Some(rate),
            Amount::Users(_) => None,
        }
    }

    /// Reports whether nothing was answered at all.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        self.total.statuses.keys().all(|status| *status == 0)
    }

    /// Returns the phase for machines.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let (rate, users) = match self.phase.offer.amount {
            Amount::Rate(rate) => (Some(rate), None),
            Amount::Users(users) => (None, Some(users)),
        };
        json!({
            "phase": self.phase.name,
            "offered_per_second": rate,
            "users": users,
            "seconds": self.results.elapsed.as_secs_f64(),
            "achieved_per_second": self.achieved,
            "samples": self.total.count(),
            "errors": self.total.errors,
            "in_flight": self.in_flight(),
            "mean_ms": ms(self.total.response.mean()),
            "p50_ms": ms(self.total.response.quantile(0.5)),
            "p95_ms": ms(self.total.response.quantile(0.95)),
            "p99_ms": ms(self.total.response.quantile(0.99)),
            "max_ms": ms(self.total.response.max()),
            "doubts": self.doubts,
            "faults": self.faults,
            "target_cpu": watch::cpu_share(&self.watched),
        })
    }
}

/// Returns goals with a bound of errors, if they have none: what only fails holds any rate.
fn with_errors(goals: &[Goal]) -> Vec<Goal> {
    let mut goals = goals.to_vec();
    if !goals.iter().any(|goal| matches!(goal.limit, Limit::ErrorRate(_))) {
        goals.push(Goal {
            label: "*".to_owned(),
            limit: Limit::ErrorRate(0.01),
            abort_after: None,
        });
    }
    goals
}

/// Judges whether the target kept pace with what was offered; nothing if users wait for their answers.
fn pace(measured: &Measured) -> Option<Judged> {
    let offered = measured.offered()?;
    Some(Judged {
        label: "*".to_owned(),
        wanted: format!("keeps pace with {offered:.1}/s"),
        measured: format!("{:.1}/s", measured.achieved),
        is_met: measured.achieved >= offered * 0.97,
    })
}

/// Runs one phase, which begins as the first one did: with the first row of data, the first count, the first turn.
///
/// # Errors
/// As [`Plan::run`].
pub fn measure(subject: &Subject<'_>, phase: Phase) -> Result<Measured> {
    let run = Run { offer: Some(phase.offer.clone()), ..subject.run.clone() };
    subject.plan.rewind();
    let watch = subject.watched.as_ref().map(watch::Watch::start).transpose()?;
    let outcome = match subject.show {
        Some(Show(show)) => {
            let mut live = show(&phase.name, phase.offer.lasts);
            subject.plan.run_shown(&run, &mut |_| {}, &mut live)?
        }
        None => subject.plan.run(&run, &mut |_| {})?,
    };
    let watched = watch.map(watch::Watch::stop).unwrap_or_default();
    Ok(sum_up(phase, outcome, watched))
}

fn sum_up(phase: Phase, outcome: Outcome, watched: Vec<watch::Facts>) -> Measured {
    let total = outcome.results.total();
    let achieved = match phase.offer.amount {
        Amount::Rate(rate) => rate * kept_pace(&outcome, rate, phase.offer.lasts),
        Amount::Users(_) => outcome.results.rate(total.count()),
    };
    // Arrivals that an overloaded target leaves unsent are what such a test looks for.
    let mut believed = outcome.results.clone();
    believed.generator.unsent = 0;
    let saturated = honesty::doubts(&believed).into_iter();
    let ended = outcome.faults.iter().map(|fault| format!("THE PLAN ENDED EARLY: {fault}"));
    let doubts =
        saturated.map(|doubt| format!("GENERATOR SATURATED: {doubt}")).chain(ended).collect();
    Measured {
        phase,
        results: outcome.results,
        total,
        achieved,
        doubts,
        faults: outcome.faults,
        watched,
    }
}

/// Returns the share of the offered visits with which the target kept pace.
///
/// Long phases are looked at from their first quarter to their end: as many visits are under way at one moment as at the
/// other where the target keeps pace, so that what is not yet answered at the end is no loss. In short ones the time
/// counts that the target took beyond the schedule.
fn kept_pace(outcome: &Outcome, rate: f64, lasts: Duration) -> f64 {
    let wanted = rate * lasts.as_secs_f64();
    let results = &outcome.results;
    let usual = results.total().response.quantile(0.5);
    let took = results.elapsed.saturating_sub(usual).max(lasts);
    let whole = outcome.visits as f64 / wanted.max(1.0) * lasts.as_secs_f64() / took.as_secs_f64();
    let seconds = lasts.as_secs();
    if seconds < SHORT || outcome.visits == 0 {
        return whole.min(1.0);
    }
    let (from, to) = (seconds / 4, seconds);
    let inside: u64 = results
        .labels
        .values()
        .flat_map(|series| &series.seconds)
        .filter(|(second, _)| (from..to).contains(&u64::from(**second)))
        .map(|(_, values)| values.count)
        .sum();
    let all: u64 = results.labels.values().map(|series| series.total.count()).sum();
    let per_visit = all as f64 / outcome.visits as f64;
    let visits = inside as f64 / per_visit.max(f64::MIN_POSITIVE);
    (visits / (rate * (to - from) as f64)).max(whole).min(1.0)
}

/// Seconds below which a phase has too few of them to be cut.
const SHORT: u64 = 8;

/// Returns the columns that every table of phases has.
pub(crate) fn grid(title: &str) -> Grid {
    Grid::new(
        title,
        &["phase", "offered", "achieved", "in flight", "errors", "p50", "p95", "p99", "max", ""],
    )
}

pub(crate) fn add_row(grid: &mut Grid, measured: &Measured, tone: Tone, word: &str) {
    let offered = match measured.phase.offer.amount {
        Amount::Rate(rate) => format!("{rate:.1}/s"),
        Amount::Users(users) => format!("{users} users"),
    };
    let time = |share: f64| show(measured.total.response.quantile(share));
    grid.add(
        tone,
        vec![
            measured.phase.name.clone(),
            offered,
            format!("{:.1}/s", measured.achieved),
            format!("{:.1}", measured.in_flight()),
            format!("{:.2} %", measured.total.error_rate() * 100.0),
            time(0.5),
            time(0.95),
            time(0.99),
            show(measured.total.response.max()),
            word.to_owned(),
        ],
    );
}

/// Returns the charts of the tested process over all phases, in the order in which they ran; none unless it was watched.
pub(crate) fn target_charts(all: &[&Measured]) -> Vec<Part> {
    let started = |measured: &&Measured| measured.results.started;
    let Some(first) = all.iter().map(started).min() else { return Vec::new() };
    let mut seen: Vec<watch::Facts> = Vec::new();
    for measured in all {
        let since = started(measured).duration_since(first).unwrap_or_default();
        let moved = |facts: &watch::Facts| watch::Facts { at: facts.at + since, ..facts.clone() };
        seen.extend(measured.watched.iter().map(moved));
    }
    seen.sort_by_key(|facts| facts.at);
    target_parts(&seen)
}

/// Returns the most frequent reason of failed samples, in words.
pub(crate) fn first_reason(stats: &Stats) -> String {
    let most = stats.reasons.iter().max_by_key(|(_, count)| **count);
    most.map_or_else(|| "no reason".to_owned(), |(reason, count)| format!("{count} x {reason}"))
}
