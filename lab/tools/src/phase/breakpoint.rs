//! Finds the breaking point of a target: increases the load in steps until it no longer keeps pace, and determines the
//! first bottleneck.
//!
//! The knee is the last step before the target achieves less than 97 % of the offered load, or responds more than twice
//! as slowly while it achieves less than 10 % more. The universal scalability law, fitted to all steps, is a
//! cross-check.

use std::time::Duration;

use serde_json::{Value, json};
use tympan_lab_engine::goal::format_response_time;
use tympan_lab_engine::plan_run::{LoadAmount, LoadOffer};
use tympan_lab_engine::report::process_chart;
use tympan_lab_engine::report::report_sheet::{ReportChart, ReportPart, ReportSheet, ReportTone};

use super::{
    LoadPhase, PhaseMeasurement, PhaseSubject, add_phase_row, phase_grid, process_charts,
    run_phase, top_failure_reason,
};
use crate::Result;

/// The growth of the load from step to step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LoadGrowth {
    /// `x1.5`.
    Multiply(f64),
    /// `+10`.
    Add(f64),
}

/// Options of a breakpoint search.
#[derive(Debug, Clone)]
pub struct BreakpointSearch {
    /// The rate or number of users of the first step.
    pub start_level: f64,
    /// True if steps are numbers of persistent users, not visits per second.
    pub steps_are_users: bool,
    /// The growth between steps.
    pub growth: LoadGrowth,
    /// Minimum duration of a step.
    pub min_step_duration: Duration,
    /// Uses the given step duration; otherwise a step lasts at least 50 times the 99th percentile and 2,000 samples.
    pub is_step_duration_fixed: bool,
    /// Maximum number of steps.
    pub max_steps: usize,
    /// Maximum load of a step.
    pub max_level: Option<f64>,
    /// The 95th percentile above which the search stops.
    pub p95_limit: Option<Duration>,
    /// Refines the search between the knee and the step after it.
    pub narrows_knee: bool,
}

/// Minimum share of the offered load that a target must achieve.
const MIN_PACE: f64 = 0.97;
/// Achieving less than this share for two steps ends the search.
const LOST_PACE: f64 = 0.90;
/// A share of errors that ends the search.
const MAX_ERROR_SHARE: f64 = 0.05;
/// The slowdown that counts as overload, and the throughput gain it is compared with.
const SLOWDOWN_FACTOR: f64 = 2.0;
const THROUGHPUT_GAIN_FACTOR: f64 = 1.1;
/// Target number of samples of a step, and its length in 99th percentiles.
const TARGET_STEP_SAMPLES: f64 = 2000.0;
const P99_MULTIPLES_PER_STEP: f64 = 50.0;
/// Maximum factor by which a step is extended beyond its requested duration.
const MAX_STEP_EXTENSION: u32 = 10;

/// The figures of a step that the search evaluates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BreakpointStep {
    /// Rate or number of users.
    pub load_level: f64,
    /// Achieved rate per second.
    pub achieved_rate: f64,
    /// True if `load_level` is a rate, which can be compared with `achieved_rate`.
    pub is_rate: bool,
    /// The 95th percentile, in seconds.
    pub p95_seconds: f64,
    /// The share of failed samples.
    pub error_share: f64,
}

/// The reason why a step is beyond the knee.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverloadSign {
    /// Too many errors.
    TooManyErrors,
    /// The achieved rate is below the offered rate.
    LostPace,
    /// Responses are slower without more throughput.
    SlowerWithoutGain,
    /// The 95th percentile exceeds the given limit.
    P95LimitExceeded,
}

impl OverloadSign {
    fn description(self) -> &'static str {
        match self {
            Self::TooManyErrors => "errors",
            Self::LostPace => "rate below offered",
            Self::SlowerWithoutGain => "slower without more throughput",
            Self::P95LimitExceeded => "p95 over the limit",
        }
    }
}

/// Returns the reason why `step` is beyond the knee, compared with the previous step.
#[must_use]
pub fn detect_overload(
    before: Option<&BreakpointStep>,
    step: &BreakpointStep,
    p95_limit: Option<Duration>,
) -> Option<OverloadSign> {
    if step.error_share > MAX_ERROR_SHARE {
        return Some(OverloadSign::TooManyErrors);
    }
    if p95_limit.is_some_and(|limit| step.p95_seconds > limit.as_secs_f64()) {
        return Some(OverloadSign::P95LimitExceeded);
    }
    if step.is_rate && step.achieved_rate < step.load_level * MIN_PACE {
        return Some(OverloadSign::LostPace);
    }
    let before = before?;
    let is_slower = step.p95_seconds > before.p95_seconds * SLOWDOWN_FACTOR
        && step.achieved_rate < before.achieved_rate * THROUGHPUT_GAIN_FACTOR;
    is_slower.then_some(OverloadSign::SlowerWithoutGain)
}

/// Returns true if the search can end.
fn is_search_complete(steps: &[BreakpointStep], signs: &[Option<OverloadSign>]) -> bool {
    let last_two = |holds: &dyn Fn(usize) -> bool| {
        steps.len() >= 2 && (steps.len() - 2..steps.len()).all(holds)
    };
    let loses = |index: usize| {
        steps
            .get(index)
            .is_some_and(|step| step.is_rate && step.achieved_rate < step.load_level * LOST_PACE)
    };
    let is_hard = matches!(
        signs.last(),
        Some(Some(OverloadSign::TooManyErrors | OverloadSign::P95LimitExceeded))
    );
    is_hard || last_two(&loses) || last_two(&|index| matches!(signs.get(index), Some(Some(_))))
}

/// The universal scalability law: throughput as a function of concurrent requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalabilityLaw {
    /// Throughput per second of one request at a time.
    pub single_throughput: f64,
    /// The cost of contention: requests that wait for each other.
    pub contention: f64,
    /// The cost of coherency: keeping data consistent between concurrent requests.
    pub coherency: f64,
}

impl ScalabilityLaw {
    /// Fits the law to pairs of concurrent requests and throughput; `None` with fewer than three different points.
    #[must_use]
    pub fn fit(points: &[(f64, f64)]) -> Option<Self> {
        let sound: Vec<(f64, f64)> =
            points.iter().copied().filter(|(n, x)| n.is_finite() && *n > 0.0 && *x > 0.0).collect();
        if sound.len() < 3 {
            return None;
        }
        // n / x = (1 + contention (n - 1) + coherency n (n - 1)) / alone: linear in its three coefficients. Costs
        // cannot be negative: if a fit yields negative costs, it is repeated without them.
        for columns in [&[0usize, 1, 2][..], &[0, 1], &[0, 2], &[0]] {
            let Some(coefficients) = least_squares(&sound, columns) else { continue };
            let [inverse_throughput, contention, coherency] = coefficients;
            if inverse_throughput > 0.0 && contention >= 0.0 && coherency >= 0.0 {
                return Some(Self {
                    single_throughput: 1.0 / inverse_throughput,
                    contention: contention / inverse_throughput,
                    coherency: coherency / inverse_throughput,
                });
            }
        }
        None
    }

    /// Returns the throughput with `n` concurrent requests.
    #[must_use]
    pub fn throughput_at(&self, n: f64) -> f64 {
        self.single_throughput * n
            / (1.0 + self.contention * (n - 1.0) + self.coherency * n * (n - 1.0))
    }

    /// Returns the number of concurrent requests with the highest throughput, and that throughput. Without coherency
    /// costs, returns the throughput that is approached but never reached; without any cost, returns `None`.
    #[must_use]
    pub fn peak_throughput(&self) -> Option<(Option<f64>, f64)> {
        if self.coherency > 0.0 {
            let n = ((1.0 - self.contention).max(0.0) / self.coherency).sqrt().max(1.0);
            return Some((Some(n), self.throughput_at(n)));
        }
        (self.contention > 0.0).then(|| (None, self.single_throughput / self.contention))
    }
}

/// Returns the law for the points; `None` if the points refute it, that is, if a measured throughput exceeds its
/// maximum. This happens with far less than one concurrent request, for which the law makes no statement.
fn fit_plausible_law(points: &[(f64, f64)]) -> Option<ScalabilityLaw> {
    let reached = points.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    ScalabilityLaw::fit(points).filter(|law| {
        law.peak_throughput().is_none_or(|(_, most)| most.is_finite() && most >= reached)
    })
}

/// Solves the normal equations for the selected columns of (1, n - 1, n (n - 1)); the others are zero.
fn least_squares(points: &[(f64, f64)], columns: &[usize]) -> Option<[f64; 3]> {
    let row = |n: f64| [1.0, n - 1.0, n * (n - 1.0)];
    let size = columns.len();
    let mut matrix = vec![vec![0.0; size + 1]; size];
    for &(n, x) in points {
        let values = row(n);
        let target_value = n / x;
        for (line, &row_column) in matrix.iter_mut().zip(columns) {
            let left = values.get(row_column)?;
            for (cell, &cell_column) in line.iter_mut().zip(columns) {
                *cell += left * values.get(cell_column)?;
            }
            *line.last_mut()? += left * target_value;
        }
    }
    let solved = solve_linear_system(matrix)?;
    let mut coefficients = [0.0; 3];
    for (value, &column) in solved.iter().zip(columns) {
        *coefficients.get_mut(column)? = *value;
    }
    Some(coefficients)
}

/// Solves linear equations by elimination; each row ends with its right-hand side.
fn solve_linear_system(mut lines: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let size = lines.len();
    for column in 0..size {
        let best = (column..size).max_by(|left, right| {
            let value = |line: usize| {
                lines.get(line).and_then(|line| line.get(column)).map_or(0.0, |v| v.abs())
            };
            value(*left).total_cmp(&value(*right))
        })?;
        lines.swap(column, best);
        let pivot = lines.get(column)?.clone();
        let head = *pivot.get(column)?;
        if head.abs() < 1e-12 {
            return None;
        }
        for (number, line) in lines.iter_mut().enumerate() {
            if number == column {
                continue;
            }
            let factor = line.get(column)? / head;
            line.iter_mut().zip(&pivot).for_each(|(cell, over)| *cell -= factor * over);
        }
    }
    lines.iter().enumerate().map(|(index, line)| Some(line.last()? / line.get(index)?)).collect()
}

/// Searches for the breaking point.
///
/// # Errors
/// As [`run_phase`].
pub fn search_breakpoint(
    subject: &PhaseSubject<'_>,
    search: &BreakpointSearch,
    say: &mut dyn FnMut(&str),
) -> Result<ReportSheet> {
    let mut all = Vec::new();
    let (mut steps, mut signs) = (Vec::new(), Vec::new());
    let mut level = search.start_level;
    while all.len() < search.max_steps.max(1) && search.max_level.is_none_or(|most| level <= most) {
        let measured = run_step(subject, search, level, all.last(), say)?;
        let figures = step_figures(&measured, level);
        // A doubtful measurement is no evidence about the target.
        let is_sound = measured.doubts.is_empty();
        signs.push(detect_overload(steps.last(), &figures, search.p95_limit).filter(|_| is_sound));
        steps.push(figures);
        let is_saturated = !measured.doubts.is_empty();
        let is_unreachable = measured.is_unreachable();
        all.push(measured);
        if is_saturated || is_unreachable || is_search_complete(&steps, &signs) {
            break;
        }
        level = match search.growth {
            LoadGrowth::Multiply(factor) => level * factor,
            LoadGrowth::Add(more) => level + more,
        };
        if search.steps_are_users {
            level = level.round();
        }
    }
    let first_bad = signs.iter().position(Option::is_some);
    let is_honest = all.iter().all(|measured| measured.doubts.is_empty());
    if let (true, true, Some(bad)) = (search.narrows_knee, is_honest, first_bad)
        && bad > 0
    {
        let (low, high) = (steps.get(bad - 1).copied(), steps.get(bad).copied());
        if let (Some(low), Some(high)) = (low, high) {
            // Half a step, in the measure in which steps are equal.
            let middle = match search.growth {
                LoadGrowth::Multiply(_) => (low.load_level * high.load_level).sqrt(),
                LoadGrowth::Add(_) => (low.load_level + high.load_level) / 2.0,
            };
            let middle = if search.steps_are_users { middle.round() } else { middle };
            if middle > low.load_level && middle < high.load_level {
                let measured = run_step(subject, search, middle, all.get(bad - 1), say)?;
                let figures = step_figures(&measured, middle);
                signs.insert(bad, detect_overload(Some(&low), &figures, search.p95_limit));
                steps.insert(bad, figures);
                all.insert(bad, measured);
            }
        }
    }
    Ok(build_breakpoint_sheet(search, &all, &steps, &signs))
}

fn run_step(
    subject: &PhaseSubject<'_>,
    search: &BreakpointSearch,
    level: f64,
    before: Option<&PhaseMeasurement>,
    say: &mut dyn FnMut(&str),
) -> Result<PhaseMeasurement> {
    let amount = if search.steps_are_users {
        LoadAmount::Users(level as u64)
    } else {
        LoadAmount::Rate(level)
    };
    let offer = LoadOffer {
        amount,
        duration: step_duration(search, level, before),
        ramp: Duration::ZERO,
        is_random: false,
    };
    let name =
        if search.steps_are_users { format!("{level} users") } else { format!("{level:.1}/s") };
    say(&format!("step {name} for {}", format_response_time(offer.duration)));
    run_phase(subject, LoadPhase { name, load_offer: offer })
}

/// Returns the duration of a step.
fn step_duration(
    search: &BreakpointSearch,
    level: f64,
    before: Option<&PhaseMeasurement>,
) -> Duration {
    if search.is_step_duration_fixed {
        return search.min_step_duration;
    }
    let by_tail = before.map_or(0.0, |before| {
        before.total_stats.response_times.quantile(0.99).as_secs_f64() * P99_MULTIPLES_PER_STEP
    });
    let by_count = match before {
        Some(before) if search.steps_are_users => {
            TARGET_STEP_SAMPLES / before.achieved_rate.max(0.1)
        }
        _ if search.steps_are_users => 0.0,
        _ => TARGET_STEP_SAMPLES / level,
    };
    let duration = Duration::try_from_secs_f64(by_tail.max(by_count)).unwrap_or_default();
    duration.max(search.min_step_duration).min(search.min_step_duration * MAX_STEP_EXTENSION)
}

fn step_figures(measured: &PhaseMeasurement, level: f64) -> BreakpointStep {
    BreakpointStep {
        load_level: level,
        achieved_rate: measured.achieved_rate,
        is_rate: measured.offered_rate().is_some(),
        p95_seconds: measured.total_stats.response_times.quantile(0.95).as_secs_f64(),
        error_share: measured.total_stats.error_rate(),
    }
}

fn build_breakpoint_sheet(
    search: &BreakpointSearch,
    all: &[PhaseMeasurement],
    steps: &[BreakpointStep],
    signs: &[Option<OverloadSign>],
) -> ReportSheet {
    let mut sheet = ReportSheet::new("Breakpoint");
    let unit = if search.steps_are_users { "users" } else { "visits/s" };
    let first_bad = signs.iter().position(Option::is_some);
    let doubts: Vec<&str> =
        all.iter().flat_map(|measurement| &measurement.doubts).map(String::as_str).collect();
    let knee = first_bad.and_then(|bad| bad.checked_sub(1)).and_then(|good| all.get(good));
    if let Some(doubt) = doubts.first() {
        sheet.add_verdict(
            ReportTone::Doubtful,
            format!("{doubt}; the figures of that step say nothing about the target"),
        );
    }
    match (first_bad, knee) {
        _ if all.iter().all(PhaseMeasurement::is_unreachable) => {
            sheet.add_verdict(ReportTone::Doubtful, "the target never responded");
        }
        (Some(bad), Some(knee)) => {
            let broken = signs.get(bad).copied().flatten().map_or("", OverloadSign::description);
            sheet.add_verdict(ReportTone::Plain, format!(
                "breaks at {} ({:.1} responses/s, {:.1} requests in flight, p95 {}): the next step shows {broken}",
                knee.phase.name, knee.achieved_rate, knee.in_flight(), format_response_time(knee.total_stats.response_times.quantile(0.95)),
            ));
        }
        (Some(_), None) => sheet.add_verdict(
            ReportTone::Bad,
            format!("overloaded from the first step on; start with fewer {unit}"),
        ),
        // A generator at its limit may have missed the breaking point.
        (None, _) if !doubts.is_empty() => {
            let sound = all.iter().zip(steps).filter(|(measured, _)| measured.doubts.is_empty());
            let highest_level = sound.map(|(_, step)| step.load_level).fold(0.0, f64::max);
            let level_note = match highest_level > 0.0 {
                true => format!("; it held up to {highest_level} {unit}"),
                false => String::new(),
            };
            sheet.add_verdict(
                ReportTone::Doubtful,
                format!("the breaking point is unknown: the generator was late{level_note}"),
            );
        }
        (None, _) => sheet.add_verdict(
            ReportTone::Plain,
            format!(
                "did not break up to {} {unit}",
                steps.last().map_or(0.0, |step| step.load_level)
            ),
        ),
    }
    if let Some(bad) = first_bad.and_then(|bad| all.get(bad)) {
        sheet.add_verdict(
            ReportTone::Plain,
            format!("what broke first: {}", describe_bottleneck(bad)),
        );
    }
    let points: Vec<(f64, f64)> = all
        .iter()
        .map(|measurement| {
            (measurement.in_flight(), measurement.results.rate_of(measurement.total_stats.count()))
        })
        .collect();
    let law = fit_plausible_law(&points);
    if let Some((at, most)) = law.as_ref().and_then(ScalabilityLaw::peak_throughput) {
        let at = at.map_or_else(
            || "never quite reached".to_owned(),
            |at| format!("with {at:.1} requests in flight"),
        );
        sheet.add_verdict(
            ReportTone::Plain,
            format!("the scalability law predicts at most {most:.1} requests/s, {at}"),
        );
    }
    let mut table = phase_grid("Steps");
    for (index, measured) in all.iter().enumerate() {
        let is_knee = first_bad == Some(index + 1);
        let (tone, label) = match signs.get(index).copied().flatten() {
            _ if !measured.doubts.is_empty() => (ReportTone::Doubtful, "saturated"),
            Some(sign) => (ReportTone::Bad, sign.description()),
            None if is_knee => (ReportTone::Good, "knee"),
            None => (ReportTone::Good, "holds"),
        };
        add_phase_row(&mut table, measured, tone, label);
    }
    sheet.parts.push(ReportPart::Table(table));
    sheet.parts.extend(build_curves(steps, unit).map(ReportPart::Chart));
    sheet.parts.extend(process_charts(&all.iter().collect::<Vec<_>>()));
    sheet.json_result = breakpoint_to_json(all, knee, law, signs, first_bad);
    sheet
}

fn build_curves(steps: &[BreakpointStep], unit: &str) -> [ReportChart; 2] {
    let line = |value: &dyn Fn(&BreakpointStep) -> f64| -> Vec<(f64, f64)> {
        steps.iter().map(|step| (step.load_level, value(step))).collect()
    };
    let curves = |title: &str, unit_of: &str, lines| ReportChart {
        title: title.to_owned(),
        vertical_unit: unit_of.to_owned(),
        horizontal_unit: unit.to_owned(),
        lines,
    };
    [
        curves(
            "Throughput against load",
            "1/s",
            vec![("achieved".to_owned(), line(&|step| step.achieved_rate))],
        ),
        curves(
            "95th percentile against load",
            "ms",
            vec![("p95".to_owned(), line(&|step| step.p95_seconds * 1000.0))],
        ),
    ]
}

/// Returns a description of the bottleneck in the first step beyond the knee.
fn describe_bottleneck(bad: &PhaseMeasurement) -> String {
    let mut symptoms = Vec::new();
    if bad.total_stats.error_count > 0 {
        let share = bad.total_stats.error_rate() * 100.0;
        symptoms.push(format!("errors ({share:.1} %: {})", top_failure_reason(&bad.total_stats)));
    }
    if let Some(share) =
        process_chart::cpu_share(&bad.process_metrics).filter(|share| *share > 0.85)
    {
        symptoms.push(format!("processors ({:.0} % used by the target)", share * 100.0));
    }
    if let (Some(first), Some(last)) = (bad.process_metrics.first(), bad.process_metrics.last())
        && last.thread_count > first.thread_count * 2
    {
        symptoms.push(format!("threads ({} to {})", first.thread_count, last.thread_count));
    }
    let most = |name: &str| {
        let all = bad.process_metrics.iter().flat_map(|facts| &facts.pools);
        all.filter(|pool| pool.name == name).map(|pool| pool.waiting).fold(0.0, f64::max)
    };
    for name in process_chart::busiest_pools(&bad.process_metrics) {
        let waiting = most(name);
        if waiting > 0.0 {
            symptoms.push(format!("the pool `{name}` ({waiting:.0} waiting)"));
        }
    }
    if symptoms.is_empty() {
        let waits = bad.total_stats.connect_times.quantile(0.95)
            > bad.total_stats.service_times.quantile(0.95) / 2;
        let cause = if waits {
            "connecting takes most of the time"
        } else {
            "requests wait inside the target"
        };
        let hint = if bad.process_metrics.is_empty() {
            "; use --pid or --metrics to watch its processors and threads too"
        } else {
            ""
        };
        return format!("{cause}, without errors{hint}");
    }
    symptoms.join(", ")
}

fn breakpoint_to_json(
    all: &[PhaseMeasurement],
    knee: Option<&PhaseMeasurement>,
    law: Option<ScalabilityLaw>,
    signs: &[Option<OverloadSign>],
    first_bad: Option<usize>,
) -> Value {
    let steps: Vec<Value> = all
        .iter()
        .zip(signs)
        .map(|(measured, sign)| {
            let mut step = measured.to_json();
            if let Value::Object(fields) = &mut step {
                fields.insert("sign".to_owned(), Value::from(sign.map(OverloadSign::description)));
            }
            step
        })
        .collect();
    json!({
        "steps": steps,
        "knee": knee.map(PhaseMeasurement::to_json),
        "broke": first_bad.is_some(),
        "scalability": law.map(|law| json!({
            "alone_per_second": law.single_throughput,
            "contention": law.contention,
            "coherency": law.coherency,
            "peak_per_second": law.peak_throughput().map(|(_, most)| most),
        })),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(level: f64, achieved: f64, p95: f64) -> BreakpointStep {
        BreakpointStep {
            load_level: level,
            achieved_rate: achieved,
            is_rate: true,
            p95_seconds: p95,
            error_share: 0.0,
        }
    }

    #[test]
    fn every_sign_has_its_rule() {
        let before = step(100.0, 100.0, 0.010);
        let check = |step: BreakpointStep, expected: Option<OverloadSign>| {
            assert_eq!(
                detect_overload(Some(&before), &step, Some(Duration::from_secs(1))),
                expected,
                "{step:?}"
            );
        };
        check(step(150.0, 149.0, 0.015), None);
        check(step(150.0, 145.5, 0.015), None);
        check(step(150.0, 145.4, 0.015), Some(OverloadSign::LostPace));
        check(step(109.0, 109.0, 0.021), Some(OverloadSign::SlowerWithoutGain));
        check(step(109.0, 109.0, 0.020), None);
        check(step(111.0, 111.0, 0.030), None);
        check(step(150.0, 150.0, 1.1), Some(OverloadSign::P95LimitExceeded));
        check(
            BreakpointStep { error_share: 0.06, ..step(150.0, 150.0, 0.01) },
            Some(OverloadSign::TooManyErrors),
        );
        // Persistent users are not compared with the achieved rate.
        check(BreakpointStep { is_rate: false, ..step(400.0, 120.0, 0.015) }, None);
    }

    /// A late generator has not observed the target under the full load.
    #[test]
    fn a_late_generator_does_not_say_that_nothing_broke() {
        let measured = |level: f64, doubts: &[&str]| PhaseMeasurement {
            phase: LoadPhase {
                name: format!("{level}/s"),
                load_offer: LoadOffer {
                    amount: LoadAmount::Rate(level),
                    duration: Duration::from_secs(1),
                    ramp: Duration::ZERO,
                    is_random: false,
                },
            },
            results: {
                let mut results = tympan_lab_engine::measurement::RunResults::new(
                    std::time::SystemTime::UNIX_EPOCH,
                );
                results.elapsed = Duration::from_secs(1);
                results
            },
            total_stats: {
                let mut total = tympan_lab_engine::measurement::SampleStats::default();
                total.response_times.record(Duration::from_millis(1));
                *total.status_counts.entry(200).or_default() += 1;
                total
            },
            achieved_rate: level,
            doubts: doubts.iter().map(|doubt| (*doubt).to_owned()).collect(),
            faults: Vec::new(),
            process_metrics: Vec::new(),
        };
        let search = BreakpointSearch {
            start_level: 100.0,
            steps_are_users: false,
            growth: LoadGrowth::Multiply(2.0),
            min_step_duration: Duration::from_secs(1),
            is_step_duration_fixed: true,
            max_steps: 2,
            max_level: None,
            p95_limit: None,
            narrows_knee: false,
        };
        let steps = [step(100.0, 100.0, 0.001), step(200.0, 200.0, 0.001)];
        let render = |doubts: &[&str]| {
            let all = [measured(100.0, &[]), measured(200.0, doubts)];
            let sheet = build_breakpoint_sheet(&search, &all, &steps, &[None, None]);
            (sheet.to_plain_text(), sheet.is_doubtful())
        };
        let (text, is_doubtful) =
            render(&["GENERATOR SATURATED: it sent 30.0 ms later than planned"]);
        assert!(is_doubtful && !text.contains("did not break"), "{text}");
        assert!(text.contains("it held up to 100 visits/s"), "{text}");
        let (text, is_doubtful) = render(&[]);
        assert!(!is_doubtful && text.contains("did not break up to 200 visits/s"), "{text}");
    }

    #[test]
    fn the_search_ends_by_its_rules() {
        let slow = Some(OverloadSign::LostPace);
        let check = |achieved: [f64; 2], signs: [Option<OverloadSign>; 2], expected: bool| {
            let steps = [step(100.0, achieved[0], 0.01), step(150.0, achieved[1], 0.01)];
            assert_eq!(is_search_complete(&steps, &signs), expected, "{achieved:?} {signs:?}");
        };
        check([100.0, 150.0], [None, None], false);
        check([100.0, 140.0], [None, slow], false);
        check([80.0, 100.0], [slow, slow], true);
        check([96.0, 140.0], [slow, slow], true);
        check([100.0, 150.0], [None, Some(OverloadSign::TooManyErrors)], true);
    }

    #[test]
    fn the_law_is_found_again_in_its_own_points() {
        let law = ScalabilityLaw { single_throughput: 100.0, contention: 0.02, coherency: 0.0005 };
        let points: Vec<(f64, f64)> =
            [1.0, 2.0, 5.0, 10.0, 30.0, 60.0].iter().map(|&n| (n, law.throughput_at(n))).collect();
        let fitted_law = ScalabilityLaw::fit(&points).unwrap();
        assert!(
            (fitted_law.single_throughput - 100.0).abs() < 0.1
                && (fitted_law.coherency - 0.0005).abs() < 1e-5,
            "{fitted_law:?}"
        );
        let (at, most) = fitted_law.peak_throughput().unwrap();
        assert!((at.unwrap() - 44.27).abs() < 0.1 && (most - law.throughput_at(44.27)).abs() < 0.1);
        // A target that scales without limit has no peak, and two points do not define a curve.
        let linear: Vec<(f64, f64)> = (1..6).map(|n| (f64::from(n), f64::from(n) * 50.0)).collect();
        assert!(
            ScalabilityLaw::fit(&linear)
                .unwrap()
                .peak_throughput()
                .is_none_or(|(_, most)| most > 10_000.0)
        );
        assert_eq!(ScalabilityLaw::fit(&points[..2]), None);
    }

    #[test]
    fn a_law_that_was_refuted_is_not_reported() {
        // A site that is mostly idle: less than one request at a time.
        assert_eq!(fit_plausible_law(&[(0.1, 100.0), (0.2, 300.0), (0.4, 900.0)]), None);
        let law = ScalabilityLaw { single_throughput: 100.0, contention: 0.05, coherency: 0.001 };
        let points: Vec<(f64, f64)> =
            [1.0, 4.0, 16.0, 64.0].map(|n| (n, law.throughput_at(n))).to_vec();
        assert!(fit_plausible_law(&points).is_some());
    }

    #[test]
    fn equations_without_an_answer_have_none() {
        assert_eq!(solve_linear_system(vec![vec![1.0, 2.0, 3.0], vec![2.0, 4.0, 6.0]]), None);
        assert_eq!(
            solve_linear_system(vec![vec![0.0, 2.0, 4.0], vec![1.0, 1.0, 5.0]]),
            Some(vec![3.0, 2.0])
        );
    }
}
