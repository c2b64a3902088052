//! The load of a plan: users who stay (closed model) or visitors who come (open model), in stages; and the order in
//! which weighted scenarios take turns.

use std::time::Duration;

use super::super::model::{Arrivals, Shape};
use super::super::shape::Span;
use super::super::template::Template;
use super::{Compiler, Table};
use crate::load::{Process, Stretch};

/// Most visitors at a time unless the plan says otherwise.
const MOST_VISITORS: u64 = 10_000;
/// More users than that are a mistake.
const MOST_USERS: u64 = 1_000_000;
/// Longest order of a mix.
const LONGEST_MIX: u64 = 100_000;

/// Returns the load of a plan that says nothing: one user, one visit.
pub(super) fn once() -> Shape {
    Shape::Spans(vec![Span { start: Duration::ZERO, lives: None }])
}

impl Compiler<'_> {
    /// Returns the shape of a load, its visits per user (`-1` without end) and the distance of a user's visits.
    pub(super) fn shape(&mut self, load: &Table<'_, '_>) -> (Shape, String, Option<Duration>) {
        let stages = load.tables("stage");
        let users = load.has("users");
        let rate = load.has("rate");
        let is_open = rate || stages.iter().any(|stage| stage.has("rate"));
        let is_closed = users || stages.iter().any(|stage| stage.has("users"));
        let shape = match (is_open, is_closed) {
            (true, true) => {
                load.note(load.at, "`load` has `users` (who wait for answers) or `rate` (visitors who come anyway), not both");
                (once(), "1".to_owned(), None)
            }
            (false, false) => {
                load.note(
                    load.at,
                    "`load` has neither `users` nor `rate`, and no `stage` with one",
                );
                (once(), "1".to_owned(), None)
            }
            (true, false) => (self.open(load, &stages), "-1".to_owned(), None),
            (false, true) => self.closed(load, &stages),
        };
        for stage in stages {
            stage.close();
        }
        shape
    }

    fn open(&mut self, load: &Table<'_, '_>, stages: &[Table<'_, '_>]) -> Shape {
        let mut stretches = Vec::new();
        let mut before = 0.0;
        if stages.is_empty() {
            let rate = load.rate("rate").unwrap_or(1.0);
            let lasts = self.lasts(load, "duration");
            add_stretches(&mut stretches, (0.0, rate), load.duration("ramp"), lasts);
        } else if load.has("rate") || load.has("duration") {
            load.note(load.at, "with `stage`, rates and times stand in the stages");
        }
        for stage in stages {
            let rate = stage.rate("rate").unwrap_or(before);
            let lasts = self.lasts(stage, "for");
            add_stretches(&mut stretches, (before, rate), stage.duration("ramp"), lasts);
            before = rate;
        }
        let process = load.text("arrivals");
        let process = match process.as_ref().map(|word| word.text.as_str()) {
            None | Some("poisson") => Process::Poisson,
            Some("uniform") => Process::Uniform,
            Some(other) => {
                let message = format!("`arrivals` is \"poisson\" or \"uniform\", not \"{other}\"");
                load.note(load.at("arrivals"), message);
                Process::Poisson
            }
        };
        let most = load.count("max_users", 1).unwrap_or(MOST_VISITORS).min(MOST_USERS);
        Shape::Arrivals(Arrivals {
            process,
            stretches,
            most: usize::try_from(most).unwrap_or(usize::MAX),
        })
    }

    fn closed(
        &mut self,
        load: &Table<'_, '_>,
        stages: &[Table<'_, '_>],
    ) -> (Shape, String, Option<Duration>) {
        let every = load.duration("every");
        if every.is_some_and(|every| every.is_zero()) {
            load.note(load.at("every"), "`every` is a time above 0");
        }
        let every = every.filter(|every| !every.is_zero());
        if !stages.is_empty() {
            if load.has("users") || load.has("duration") {
                load.note(load.at, "with `stage`, users and times stand in the stages");
            }
            let mut levels = Vec::new();
            for stage in stages {
                let users = self.users(stage);
                let lasts = self.lasts(stage, "for");
                levels.push((users, stage.duration("ramp").unwrap_or_default(), lasts));
            }
            return (Shape::Spans(staged(&levels)), "-1".to_owned(), every);
        }
        let users = self.users(load);
        let visits = load.count("visits", 1);
        let duration = load.duration("duration");
        if visits.is_none() && duration.is_none() {
            load.note(load.at, "`load` has no end: write `duration` or `visits` (per user)");
        }
        // Users at equal distances, so that not all of them come in the same moment for ever.
        let ramp = load.duration("ramp").or(every).unwrap_or_default();
        let spans = (0..users)
            .map(|user| {
                let start = ramp.mul_f64(user as f64 / users as f64);
                Span { start, lives: duration.map(|end| end.saturating_sub(start)) }
            })
            .collect();
        let loops = visits.map_or_else(|| "-1".to_owned(), |visits| visits.to_string());
        (Shape::Spans(spans), loops, every)
    }

    fn users(&self, table: &Table<'_, '_>) -> u64 {
        let users = table.count("users", 0).unwrap_or(1);
        if users > MOST_USERS {
            table.note(table.at("users"), format!("more than {MOST_USERS} users are a mistake"));
        }
        users.min(MOST_USERS)
    }

    fn lasts(&self, table: &Table<'_, '_>, key: &'static str) -> Duration {
        match table.duration(key) {
            Some(lasts) => lasts,
            None => {
                if !table.has(key) {
                    table.note(table.at, format!("{} has no `{key}`, such as \"30s\"", table.name));
                }
                Duration::from_secs(1)
            }
        }
    }
}

/// Adds a ramp from one rate to the next and the hold after it; the ramp is a part of the time.
fn add_stretches(
    stretches: &mut Vec<Stretch>,
    (from, to): (f64, f64),
    ramp: Option<Duration>,
    lasts: Duration,
) {
    let ramp = ramp.unwrap_or_default().min(lasts);
    if !ramp.is_zero() {
        stretches.push(Stretch { from, to, lasts: ramp });
    }
    stretches.push(Stretch::steady(to, lasts.saturating_sub(ramp)));
}

/// Returns when each user of a staged load begins and ends; stages are users, the ramp to them, and the whole time.
fn staged(stages: &[(u64, Duration, Duration)]) -> Vec<Span> {
    let mut spans = Vec::new();
    let mut running: Vec<Duration> = Vec::new();
    let mut now = Duration::ZERO;
    for &(users, ramp, lasts) in stages {
        let ramp = ramp.min(lasts);
        let before = running.len() as u64;
        let change = users.abs_diff(before);
        for step in 0..change {
            let at = now + ramp.mul_f64(step as f64 / change as f64);
            if users > before {
                running.push(at);
            } else if let Some(start) = running.pop() {
                spans.push(Span { start, lives: Some(at.saturating_sub(start)) });
            }
        }
        now += lasts;
    }
    spans.extend(
        running.into_iter().map(|start| Span { start, lives: Some(now.saturating_sub(start)) }),
    );
    spans.sort_by_key(|span| span.start);
    spans
}

/// Returns the order in which weighted scenarios take turns, evenly spread; `None` if it is too long.
pub(crate) fn mix(weights: &[u64]) -> Option<Vec<usize>> {
    let divisor = weights.iter().copied().fold(0, greatest_common_divisor).max(1);
    let weights: Vec<i64> =
        weights.iter().map(|weight| i64::try_from(weight / divisor).unwrap_or(i64::MAX)).collect();
    let sum = weights.iter().try_fold(0i64, |sum, weight| sum.checked_add(*weight))?;
    if u64::try_from(sum).ok()? > LONGEST_MIX {
        return None;
    }
    // Each turn everybody gains its weight, and who has most pays the sum: no scenario waits longer than it must.
    let mut credit = vec![0i64; weights.len()];
    let mut order = Vec::new();
    for _ in 0..sum {
        credit.iter_mut().zip(&weights).for_each(|(credit, weight)| *credit += weight);
        let most = credit.iter().copied().max()?;
        let next = credit.iter().position(|credit| *credit == most)?;
        if let Some(credit) = credit.get_mut(next) {
            *credit -= sum;
        }
        order.push(next);
    }
    Some(order)
}

fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}

/// Returns a pause in milliseconds as a text of the engine, of a time or of a span of times.
pub(super) fn pause(text: &str) -> Option<Template> {
    let millis = |text: &str| crate::calculate::parse_duration(text).map(|time| time.as_millis());
    let text = match text.split_once("..") {
        None => millis(text)?.to_string(),
        Some((from, to)) => {
            let (from, to) = (millis(from)?, millis(to)?);
            if to < from {
                return None;
            }
            format!("${{__Random({from},{to})}}")
        }
    };
    Template::parse(&text).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_mix_spreads_its_scenarios_evenly() {
        assert_eq!(mix(&[2, 1]), Some(vec![0, 1, 0]));
        assert_eq!(mix(&[50, 50]), Some(vec![0, 1]));
        assert_eq!(mix(&[7]), Some(vec![0]));
        assert_eq!(mix(&[100_001, 1]), None);
        let order = mix(&[70, 25, 4, 1]).unwrap();
        let count = |which| order.iter().filter(|one| **one == which).count();
        assert_eq!([order.len(), count(0), count(1), count(2), count(3)], [100, 70, 25, 4, 1]);
    }

    proptest! {
        #[test]
        fn every_turn_of_a_mix_has_exactly_its_shares(weights in prop::collection::vec(1u64..40, 1..6)) {
            let order = mix(&weights).unwrap();
            let sum: u64 = weights.iter().sum();
            for (place, weight) in weights.iter().enumerate() {
                let count = order.iter().filter(|one| **one == place).count() as u64;
                prop_assert_eq!(count * sum, weight * order.len() as u64);
            }
        }
    }

    #[test]
    fn stages_begin_and_end_users() {
        let second = Duration::from_secs(1);
        let spans = staged(&[
            (2, 2 * second, 10 * second),
            (1, Duration::ZERO, 5 * second),
            (3, 2 * second, 5 * second),
        ]);
        let told: Vec<(u64, u64)> = spans
            .iter()
            .map(|span| (span.start.as_secs(), (span.start + span.lives.unwrap()).as_secs()))
            .collect();
        assert_eq!(told, [(0, 20), (1, 10), (15, 20), (16, 20)]);
    }

    #[test]
    fn pauses_are_times_or_spans() {
        assert_eq!(pause("2s").unwrap().source(), "2000");
        assert_eq!(pause("1s..3s").unwrap().source(), "${__Random(1000,3000)}");
        for text in ["2", "3s..1s", "a..b", ""] {
            assert!(pause(text).is_none(), "{text}");
        }
    }
}
