//! Goals in TOML: the limits that a run must keep.
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
use tympan_notation::parse_duration;

use crate::finding::FileFinding;
use crate::{Error, Result};

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
/// The rows of the latency goal: share of requests, and their time limit in milliseconds.
pub const LATENCY_GOAL: [(f64, u64); 4] = [(0.70, 100), (0.95, 300), (0.99, 500), (1.00, 1000)];

/// Returns the default latency goals of a site: 70, 95, 99 and 100 % under 100, 300, 500 and 1000 ms.
#[must_use]
pub fn latency_goals() -> Vec<LoadGoal> {
    LATENCY_GOAL
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
            abort_after = parse_duration(value).ok();
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

fn parse_limit(key: &str, value: &str) -> Result<GoalLimit, String> {
    let time = || {
        parse_duration(value.trim_start_matches(['<', '=', ' ']))
            .map_err(|_| format!("`{key}` must be a time such as \"300ms\", not `{value}`"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_reported_with_their_lines() {
        let error = parse_goals("[goal.page]\np95 = \"300\"\nq9 = \"1s\"\n[goals]\n", "g.toml")
            .unwrap_err();
        let text = error.to_string();
        assert!(text.contains("g.toml:2:1: `p95` must be a time"), "{text}");
        assert!(text.contains("g.toml:3:1: unknown limit `q9`"), "{text}");
        assert!(text.contains("unknown table `goals`"), "{text}");
        assert!(text.ends_with("3 problems; nothing was run"), "{text}");
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
}
