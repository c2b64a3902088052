//! Goals in TOML, and their evaluation against a run.
//!
//! ```toml
//! [goal."*"]
//! p70 = "100ms"
//! p95 = "300ms"
//! p99 = "500ms"
//! max = "1s"
//! error_rate = "0.1%"
//! throughput = ">=200/s"
//! trend = "<2%/h"
//! abort_after = "30s"
//! ```
//! With `abort_after` a run ends when a limit of the same table is missed after that time; the trend of an incomplete
//! run never ends it. The name is a label of the run, or `*` for all labels together.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use crate::measurement::{RunResults, SampleStats, trend};
use crate::report::calculator::parse_duration;
use crate::server_log::log_watch::LogWatchResult;
use crate::{Error, FileFinding, Result};

/// A requirement for one label.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadGoal {
    /// The label; `*` for all.
    pub label: String,
    /// The limit.
    pub limit: GoalLimit,
    /// Time after which a miss ends the run; `None` if a miss never ends it.
    pub abort_after: Option<Duration>,
}

/// The kind and value of a limit.
#[derive(Debug, Clone, PartialEq)]
pub enum GoalLimit {
    /// The share (0 to 1) of requests that must stay under a time; 1 is the maximum.
    PercentileUnder(f64, Duration),
    /// The mean must stay under a time.
    MeanUnder(Duration),
    /// Maximum share of errors, 0 to 1.
    MaxErrorRate(f64),
    /// Minimum number of successful requests per second.
    MinThroughput(f64),
    /// The 95th percentile must not grow, beyond chance, by more than this share of its median per hour.
    MaxTrend(f64),
}

/// A goal with the measured value.
#[derive(Debug, Clone, PartialEq)]
pub struct GoalResult {
    /// The goal's label.
    pub label: String,
    /// The requirement as text.
    pub requirement: String,
    /// The measured value as text.
    pub measured: String,
    /// True if the goal is met.
    pub is_met: bool,
}

impl LogWatchResult {
    /// Returns the evaluated goal that no errors are logged.
    #[must_use]
    pub fn to_judged_goal(&self) -> GoalResult {
        let measured = match (&self.read_failure, self.errors.error_count) {
            (Some(reason), _) => format!("unknown: {reason}"),
            (None, 1) => "1 line".to_owned(),
            (None, count) => format!("{count} lines"),
        };
        GoalResult {
            label: self.log_file.clone(),
            requirement: "no new error lines".to_owned(),
            measured,
            is_met: self.read_failure.is_none() && self.errors.error_count == 0,
        }
    }
}

#[derive(Debug, Deserialize)]
struct GoalFile {
    #[serde(default)]
    goal: BTreeMap<String, BTreeMap<Spanned<String>, Spanned<toml::Value>>>,
}

/// The keys of a goal, used to suggest the nearest one for a misspelled key.
const GOAL_KEYS: [&str; 8] =
    ["p70", "p95", "max", "mean", "error_rate", "throughput", "trend", ABORT_AFTER_KEY];
/// The key of the time after which a miss ends the run.
const ABORT_AFTER_KEY: &str = "abort_after";
/// The measured value if there is no measurement.
const NO_MEASUREMENT: &str = "none";

/// Returns the default latency goals of a site: 70, 95, 99 and 100 % under 100, 300, 500 and 1000 ms.
#[must_use]
pub fn latency_goals() -> Vec<LoadGoal> {
    crate::server_log::request_log::LATENCY_GOAL
        .iter()
        .map(|&(share, ms)| LoadGoal {
            label: "*".to_owned(),
            limit: GoalLimit::PercentileUnder(share, Duration::from_millis(ms)),
            abort_after: None,
        })
        .collect()
}

/// Parses goals.
///
/// # Errors
/// [`Error::InvalidFile`] with every error and its line.
pub fn parse_goals(text: &str, file: &str) -> Result<Vec<LoadGoal>> {
    let position = |at: usize| {
        let before = text.get(..at).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, str::len) + 1;
        (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX))
    };
    let finding = |at: usize, message: String| {
        let (line, column) = position(at);
        FileFinding { file: file.to_owned(), line, column, message }
    };
    let table: toml::Table = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        Error::InvalidFile(vec![finding(at, error.message().to_owned())])
    })?;
    let mut findings: Vec<FileFinding> = table
        .keys()
        .filter(|key| *key != "goal")
        .map(|key| {
            finding(0, format!("unknown table `{key}`; a goals file contains `[goal.\"LABEL\"]`"))
        })
        .collect();
    let parsed: GoalFile = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        Error::InvalidFile(vec![finding(at, error.message().to_owned())])
    })?;
    let mut goals = Vec::new();
    for (label, limits) in parsed.goal {
        let limits = limits.iter().map(|(key, value)| {
            (key.get_ref().as_str(), value.get_ref().as_str().unwrap_or_default(), key.span().start)
        });
        let mut note = |at, message| findings.push(finding(at, message));
        goals.extend(parse_goal_table(&label, limits, &mut note));
    }
    if goals.is_empty() && findings.is_empty() {
        // A run without goals would be reported as one that met its goals.
        findings.push(finding(
            0,
            "no goals; a goals file contains `[goal.\"LABEL\"]` with limits such as `p95 = \"300ms\"`"
                .to_owned(),
        ));
    }
    if findings.is_empty() { Ok(goals) } else { Err(Error::InvalidFile(findings)) }
}

/// Returns the goals of one label's table; positions of the keys are used in findings.
pub(crate) fn parse_goal_table<'t>(
    label: &str,
    limits: impl Iterator<Item = (&'t str, &'t str, usize)>,
    note: &mut dyn FnMut(usize, String),
) -> Vec<LoadGoal> {
    let (mut goals, mut abort_after) = (Vec::new(), None);
    for (key, value, at) in limits {
        if key == ABORT_AFTER_KEY {
            abort_after = parse_duration(value);
            if abort_after.is_none() {
                note(
                    at,
                    format!("`{ABORT_AFTER_KEY}` must be a time such as \"30s\", not `{value}`"),
                );
            }
            continue;
        }
        match parse_limit(key, value) {
            Ok(limit) => goals.push(LoadGoal { label: label.to_owned(), limit, abort_after: None }),
            Err(message) => note(at, message),
        }
    }
    goals.iter_mut().for_each(|goal| goal.abort_after = abort_after);
    goals
}

/// Returns the first goal whose miss ends the run at this point; a goal without a measurement never ends it.
pub(crate) fn aborting_breach(goals: &[LoadGoal], results: &RunResults) -> Option<String> {
    let due = |goal: &&LoadGoal| {
        let is_trend = matches!(goal.limit, GoalLimit::MaxTrend(_));
        !is_trend && goal.abort_after.is_some_and(|after| results.elapsed >= after)
    };
    let due: Vec<LoadGoal> = goals.iter().filter(due).cloned().collect();
    if due.is_empty() {
        return None;
    }
    let is_broken = |judged: &GoalResult| !judged.is_met && judged.measured != NO_MEASUREMENT;
    let broken = judge_goals(&due, results).into_iter().find(is_broken)?;
    Some(format!("{}: {}, measured {}", broken.label, broken.requirement, broken.measured))
}

fn parse_limit(key: &str, value: &str) -> Result<GoalLimit, String> {
    let time = || {
        parse_duration(value.trim_start_matches(['<', '=', ' ']))
            .ok_or_else(|| format!("`{key}` must be a time such as \"300ms\", not `{value}`"))
    };
    match key {
        "max" => time().map(|time| GoalLimit::PercentileUnder(1.0, time)),
        "mean" => time().map(GoalLimit::MeanUnder),
        "error_rate" => value
            .trim_start_matches(['<', '=', ' '])
            .strip_suffix('%')
            .and_then(|number| number.trim().parse::<f64>().ok())
            .filter(|percent| (0.0..=100.0).contains(percent))
            .map(|percent| GoalLimit::MaxErrorRate(percent / 100.0))
            .ok_or_else(|| format!("`error_rate` must be a share such as \"0.1%\", not `{value}`")),
        "throughput" => value
            .trim_start_matches(['>', '=', ' '])
            .strip_suffix("/s")
            .and_then(|number| number.trim().parse::<f64>().ok())
            .filter(|rate| rate.is_finite() && *rate > 0.0)
            .map(GoalLimit::MinThroughput)
            .ok_or_else(|| {
                format!("`throughput` must be a rate such as \">=200/s\", not `{value}`")
            }),
        "trend" => value
            .trim_start_matches(['<', '=', ' '])
            .strip_suffix("/h")
            .and_then(|share| share.trim().strip_suffix('%'))
            .and_then(|number| number.trim().parse::<f64>().ok())
            .filter(|percent| percent.is_finite() && *percent >= 0.0)
            .map(|percent| GoalLimit::MaxTrend(percent / 100.0))
            .ok_or_else(|| {
                format!("`trend` must be a share per hour such as \"<2%/h\", not `{value}`")
            }),
        _ => {
            let percent = key.strip_prefix('p').and_then(|digits| digits.parse::<f64>().ok());
            match percent.filter(|percent| *percent > 0.0 && *percent <= 100.0) {
                Some(percent) => {
                    time().map(|time| GoalLimit::PercentileUnder(percent / 100.0, time))
                }
                None => Err(format!("unknown limit `{key}`; known are {}", GOAL_KEYS.join(", "))),
            }
        }
    }
}

/// Evaluates the goals against a run.
#[must_use]
pub fn judge_goals(goals: &[LoadGoal], results: &RunResults) -> Vec<GoalResult> {
    let total = results.total_stats();
    goals
        .iter()
        .map(|goal| {
            let series = results.labels.get(goal.label.as_str());
            let transaction = results.transactions.get(goal.label.as_str());
            let stats = match goal.label.as_str() {
                "*" => Some(&total),
                _ => series.or(transaction).map(|series| &series.total),
            };
            let is_of_time =
                !matches!(goal.limit, GoalLimit::MaxErrorRate(_) | GoalLimit::MinThroughput(_));
            match stats.filter(|stats| stats.count() > 0) {
                // A site that rejects every request immediately must not count as fast.
                Some(stats) if is_of_time && stats.error_count >= stats.count() => GoalResult {
                    label: goal.label.clone(),
                    requirement: "at least one sample that did not fail".to_owned(),
                    measured: format!("all of {} failed", stats.count()),
                    is_met: false,
                },
                Some(stats) => judge_goal(goal, stats, results),
                None => GoalResult {
                    label: goal.label.clone(),
                    requirement: "at least one sample".to_owned(),
                    measured: NO_MEASUREMENT.to_owned(),
                    is_met: false,
                },
            }
        })
        .collect()
}

fn judge_goal(goal: &LoadGoal, stats: &SampleStats, results: &RunResults) -> GoalResult {
    let (expected, measured, is_met) = match goal.limit {
        GoalLimit::PercentileUnder(share, limit) if share >= 1.0 => {
            let max = stats.response_times.max();
            (
                format!("all under {}", format_response_time(limit)),
                format!("longest {}", format_response_time(max)),
                max <= limit,
            )
        }
        GoalLimit::PercentileUnder(share, limit) => {
            let within = stats.response_times.share_within(limit);
            (
                format!("{:.4} % under {}", share * 100.0, format_response_time(limit))
                    .replace(".0000", ""),
                format!(
                    "{:.2} %; {}",
                    within * 100.0,
                    format_response_time(stats.response_times.quantile(share))
                ),
                within >= share,
            )
        }
        GoalLimit::MeanUnder(limit) => {
            let mean = stats.response_times.mean();
            (
                format!("mean under {}", format_response_time(limit)),
                format_response_time(mean),
                mean <= limit,
            )
        }
        GoalLimit::MaxErrorRate(most) => {
            let rate = stats.error_rate();
            (
                format!("at most {} % errors", most * 100.0),
                format!("{:.3} %", rate * 100.0),
                rate <= most,
            )
        }
        GoalLimit::MaxTrend(most) => {
            let series = results.labels.get(goal.label.as_str());
            let series = series.or_else(|| results.transactions.get(goal.label.as_str()));
            let trend = match goal.label.as_str() {
                "*" => trend::p95_trend(results.labels.values(), results.elapsed, most),
                _ => trend::p95_trend(series.into_iter(), results.elapsed, most),
            };
            (
                format!("p95 grows at most {} % per hour", most * 100.0),
                trend.map_or("too short for a trend".to_owned(), |trend| {
                    format!(
                        "{:+.1} % per hour (interval {:+.2} .. {:+.2} ms)",
                        trend.median_share * 100.0,
                        trend.slope.lower_bound,
                        trend.slope.upper_bound
                    )
                }),
                trend.is_some_and(|trend| !trend.is_worse),
            )
        }
        GoalLimit::MinThroughput(least) => {
            // Failed requests do not count as throughput.
            let rate = results.rate_of(stats.count().saturating_sub(stats.error_count));
            (format!("at least {least}/s"), format!("{rate:.1}/s"), rate >= least)
        }
    };
    GoalResult { label: goal.label.clone(), requirement: expected, measured, is_met }
}

/// Formats a time with three digits.
#[must_use]
pub fn format_response_time(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1000.0;
    if ms < 10.0 {
        format!("{ms:.2} ms")
    } else if ms < 1000.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{:.2} s", ms / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::measurement::LabelSeries;

    fn results(times: &[u64]) -> RunResults {
        let mut results = RunResults::new(SystemTime::UNIX_EPOCH);
        results.elapsed = Duration::from_secs(2);
        let mut series = LabelSeries::default();
        for &ms in times {
            series.total.response_times.record(Duration::from_millis(ms));
        }
        series.total.error_count = 1;
        results.labels.insert("page".into(), series);
        results
    }

    #[test]
    fn limits_hold_or_do_not() {
        let text = "[goal.page]\np50 = \"20ms\"\nmax = \"1s\"\nerror_rate = \"50%\"\nthroughput = \">=1.5/s\"\nmean='15ms'\n[goal.\"*\"]\np75='20ms'\n";
        let goals = parse_goals(text, "goals.toml").unwrap();
        let met: Vec<bool> = judge_goals(&goals, &results(&[10, 20, 30, 40]))
            .iter()
            .map(|goal| goal.is_met)
            .collect();
        // In the order of the labels, then of the keys: p75 of all; error_rate, max, mean, p50, throughput.
        assert_eq!(met, [false, true, true, false, true, true]);
    }

    #[test]
    fn a_goal_for_what_was_not_measured_is_not_met() {
        let goals = parse_goals("[goal.other]\nmax='1s'", "g").unwrap();
        assert!(!judge_goals(&goals, &results(&[1]))[0].is_met);
    }

    #[test]
    fn faults_are_told_with_their_lines() {
        let error = parse_goals("[goal.page]\np95 = \"300\"\nq9 = \"1s\"\n[goals]\n", "g.toml")
            .unwrap_err();
        let text = error.to_string();
        assert!(text.contains("g.toml:2:1: `p95` must be a time"), "{text}");
        assert!(text.contains("g.toml:3:1: unknown limit `q9`"), "{text}");
        assert!(text.contains("unknown table `goals`"), "{text}");
        assert!(text.ends_with("3 problems; nothing was run"), "{text}");
    }

    #[test]
    fn what_failed_meets_no_goal() {
        let goals = parse_goals("[goal.page]\np95='1s'\nthroughput='>=2/s'", "g").unwrap();
        let met = |errors: u64| -> Vec<bool> {
            let mut results = results(&[1, 1, 1, 1]);
            results.labels.get_mut("page").unwrap().total.error_count = errors;
            judge_goals(&goals, &results).iter().map(|goal| goal.is_met).collect()
        };
        // Four samples in two seconds.
        assert_eq!(met(0), [true, true]);
        assert_eq!(met(1), [true, false]);
        assert_eq!(met(4), [false, false]);
    }

    #[test]
    fn goals_that_nothing_could_miss_or_meet_are_refused() {
        let check = |text: &str, expected: &str| {
            let message = parse_goals(text, "g.toml").unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
        };
        check("", "g.toml:1:1: no goals");
        check("[goal.page]\n", "no goals");
        check("[goal.page]\nerror_rate='inf%'", "`error_rate` must be a share");
        check("[goal.page]\nerror_rate='-1%'", "`error_rate` must be a share");
        check("[goal.page]\nthroughput='>=nan/s'", "`throughput` must be a rate");
        check("[goal.page]\nthroughput='>=0/s'", "`throughput` must be a rate");
        check("[goal.page]\ntrend='2%'", "`trend` must be a share per hour");
    }

    #[test]
    fn a_trend_is_judged_over_the_seconds_of_a_run() {
        let goals = parse_goals(
            "[goal.page]\ntrend='<2%/h'\n[goal.'*']\ntrend='2 %/h'\nabort_after='1s'",
            "g",
        );
        let goals = goals.unwrap();
        let judged = |seconds: u32, ms: &dyn Fn(u32) -> u32| {
            let mut results = results(&[1, 1]);
            results.elapsed = Duration::from_secs(seconds.into());
            let series = results.labels.get_mut("page").unwrap();
            for second in 0..seconds {
                let bucket = series.seconds.entry(second).or_default();
                bucket.sample_count = 1;
                bucket.time_buckets.push((u64::from(ms(second)) * 1000, 1));
            }
            assert_eq!(aborting_breach(&goals, &results), None, "a beginning is no trend");
            let judged = judge_goals(&goals, &results);
            judged.into_iter().map(|goal| (goal.is_met, goal.measured)).collect::<Vec<_>>()
        };
        // A tenth more within an hour, a tenth less, and noise.
        let met = |ms: &dyn Fn(u32) -> u32| {
            judged(3600, ms).iter().map(|verdict| verdict.0).collect::<Vec<_>>()
        };
        assert_eq!(met(&|second| 1000 + second / 36), [false, false]);
        assert_eq!(met(&|second| 1000 - second / 36), [true, true]);
        assert_eq!(met(&|second| 1000 + second * 7919 % 100), [true, true]);
        assert!(judged(3600, &|second| 1000 + second / 36)[0].1.starts_with("+9."));
        assert_eq!(judged(3, &|_| 10)[0], (false, "too short for a trend".to_owned()));
    }

    #[test]
    fn the_latency_goal_has_four_rows() {
        let judged = judge_goals(&latency_goals(), &results(&[50, 60, 70, 80]));
        assert!(judged.iter().all(|row| row.is_met));
        let judged = judge_goals(&latency_goals(), &results(&[50, 60, 70, 2000]));
        assert_eq!(
            judged.iter().map(|row| row.is_met).collect::<Vec<_>>(),
            [true, false, false, false]
        );
    }
}
