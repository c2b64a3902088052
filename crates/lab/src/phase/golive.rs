//! Going live: the average, the peak and the launch, side by side against the same goals.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::time::Duration;

use serde_json::{Value, json};
use tympan_web::access_log;

use super::{Measured, Phase, Subject, add_row, grid, measure, pace, target_charts};
use crate::goal::{Goal, Judged, judge};
use crate::plan::{Amount, Offer};
use crate::report::sheet::{Curves, Part, Sheet, Tone};
use crate::{Error, Result};

/// How many visits per second are expected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// On average.
    pub average: f64,
    /// In the busiest minute.
    pub peak: f64,
}

/// A launch.
#[derive(Debug, Clone)]
pub struct Launch {
    /// What is expected afterwards.
    pub expected: Expected,
    /// How many times the peak the first days bring.
    pub factor: f64,
    /// How long each phase is held.
    pub hold: Duration,
    /// A soft launch before it: this share of the launch's load.
    pub soft: Option<f64>,
    /// What every phase must reach.
    pub goals: Vec<Goal>,
}

/// Returns the average and the busiest minute of an access log.
///
/// # Errors
/// [`Error::File`]; [`Error::Input`] if no line of it is one of such a log.
pub fn expected_from(input: &mut dyn BufRead, name: &str) -> Result<Expected> {
    let mut minutes: BTreeMap<i64, u64> = BTreeMap::new();
    let mut text = Vec::new();
    let (mut first, mut last, mut count) = (i64::MAX, i64::MIN, 0u64);
    loop {
        text.clear();
        let read = input.read_until(b'\n', &mut text);
        if read.map_err(|source| Error::read(std::path::Path::new(name), source))? == 0 {
            break;
        }
        let Ok(line) = access_log::parse_line(String::from_utf8_lossy(&text).trim_end()) else {
            continue;
        };
        let at = line.at.unix_seconds();
        (first, last) = (first.min(at), last.max(at));
        count += 1;
        *minutes.entry(at.div_euclid(60)).or_default() += 1;
    }
    if count == 0 {
        return Err(Error::Input(format!("{name}: no line of it is one of an access.log")));
    }
    // Both ends count: a log of one second lasts a second.
    let seconds = (last - first + 1).max(1) as f64;
    let busiest = minutes.values().copied().max().unwrap_or(0) as f64 / seconds.min(60.0);
    Ok(Expected { average: count as f64 / seconds, peak: busiest })
}

/// Runs the phases.
///
/// # Errors
/// As [`measure`].
pub fn run(subject: &Subject<'_>, launch: &Launch, say: &mut dyn FnMut(&str)) -> Result<Sheet> {
    let full = launch.expected.peak * launch.factor;
    let mut rates = vec![("average", launch.expected.average), ("peak", launch.expected.peak)];
    if let Some(soft) = launch.soft {
        rates.push(("soft launch", full * soft));
    }
    rates.push((LAUNCH, full));
    let mut all = Vec::new();
    for (name, rate) in rates {
        say(&format!("{name}: {rate:.1}/s"));
        let offer = Offer {
            amount: Amount::Rate(rate),
            lasts: launch.hold,
            ramp: Duration::ZERO,
            is_random: true,
        };
        let measured = measure(subject, Phase { name: name.to_owned(), offer })?;
        let is_over = measured.is_unreachable() || !measured.doubts.is_empty();
        all.push(measured);
        if is_over {
            break;
        }
    }
    Ok(tell(launch, &all))
}

/// The last phase.
const LAUNCH: &str = "launch";

/// Returns the goals of a launch for which none were given.
#[must_use]
pub fn default_goals() -> Vec<Goal> {
    let errors = Goal {
        label: "*".to_owned(),
        limit: crate::goal::Limit::ErrorRate(0.01),
        abort_after: None,
    };
    crate::goal::latency_goal().into_iter().chain([errors]).collect()
}

/// Judges a phase by the goals, and by whether the target kept pace.
fn judge_phase(goals: &[Goal], measured: &Measured) -> Vec<Judged> {
    let mut judged = judge(goals, &measured.results);
    judged.extend(pace(measured));
    for goal in &mut judged {
        goal.label = format!("{}: {}", measured.phase.name, goal.label);
    }
    judged
}

fn tell(launch: &Launch, all: &[Measured]) -> Sheet {
    let mut sheet = Sheet::new("Going live");
    let mut table = grid("Phases");
    let mut phases = Vec::new();
    let mut held = 0.0f64;
    for measured in all {
        let judged = judge_phase(&launch.goals, measured);
        let missed = judged.iter().filter(|goal| !goal.is_met).count();
        let (tone, word) = match (measured.doubts.is_empty(), missed) {
            (false, _) => (Tone::Doubt, "not measured".to_owned()),
            (true, 0) => (Tone::Good, "met".to_owned()),
            (true, missed) => (Tone::Bad, format!("{missed} of {} missed", judged.len())),
        };
        if missed == 0 && measured.doubts.is_empty() {
            held = held.max(measured.offered().unwrap_or(0.0));
        }
        for doubt in &measured.doubts {
            sheet.say(Tone::Doubt, format!("in {}: {doubt}", measured.phase.name));
        }
        if measured.is_unreachable() {
            sheet.say(Tone::Doubt, "the target never answered");
        }
        add_row(&mut table, measured, tone, &word);
        phases.push(measured.to_json());
        sheet.goals.extend(judged);
    }
    let times = if launch.expected.peak > 0.0 { held / launch.expected.peak } else { 0.0 };
    let is_whole = all.last().is_some_and(|last| last.phase.name == LAUNCH)
        && all.iter().all(|measured| measured.doubts.is_empty() && !measured.is_unreachable());
    let (tone, verdict) = if !is_whole {
        (Tone::Doubt, "not measured up to the launch: there is no verdict".to_owned())
    } else if sheet.goals.iter().all(|goal| goal.is_met) {
        (Tone::Good, format!("ready: the goals hold up to the launch, {times:.1} times the peak"))
    } else {
        (
            Tone::Bad,
            format!(
                "not ready: the goals hold up to {times:.1} times the peak, and the launch is {} times",
                launch.factor
            ),
        )
    };
    sheet.say(tone, verdict);
    sheet.parts.push(Part::Grid(table));
    let quantiles = [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)].map(|(name, share)| {
        let points = all.iter().map(|measured| {
            (
                measured.offered().unwrap_or(0.0),
                measured.total.response.quantile(share).as_secs_f64() * 1000.0,
            )
        });
        (name.to_owned(), points.collect())
    });
    sheet.parts.push(Part::Curves(Curves {
        title: "Response time by load".to_owned(),
        unit: "ms".to_owned(),
        axis: "visits/s".to_owned(),
        lines: quantiles.into(),
    }));
    sheet.parts.extend(target_charts(&all.iter().collect::<Vec<_>>()));
    sheet.json = json!({
        "phases": phases,
        "average_per_second": launch.expected.average,
        "peak_per_second": launch.expected.peak,
        "factor": launch.factor,
        "holds_times_the_peak": if held > 0.0 { Value::from(times) } else { Value::Null },
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
        let expected = expected_from(&mut text.as_bytes(), "access.log").unwrap();
        assert_eq!(expected, Expected { average: 300.0 / 240.0, peak: 3.0 });
        assert!(
            expected_from(&mut "x\n".as_bytes(), "a.log")
                .unwrap_err()
                .to_string()
                .contains("a.log")
        );
    }
}
