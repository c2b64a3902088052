//! The load of a plan: persistent users (closed model) or arriving visitors (open model), in stages.

use std::time::Duration;

use tympan_notation::parse_duration;

use super::super::model::ThreadLifetime;
use super::super::model::{LoadShape, OpenModelArrivals};
use super::super::template::TextTemplate;
use super::{TomlCompiler, TomlTable};
use crate::arrival_schedule::{ArrivalProcess, RateInterval};

/// Default maximum number of concurrent visitors.
const DEFAULT_MAX_VISITORS: u64 = 10_000;
/// Maximum number of users; more are considered an error.
const MAX_USERS: u64 = 1_000_000;
/// Returns the default load of a plan: one user, one visit.
pub(super) fn single_visit_shape() -> LoadShape {
    LoadShape::Lifetimes(vec![ThreadLifetime { start: Duration::ZERO, lifetime: None }])
}

impl TomlCompiler<'_> {
    /// Returns the shape of a load, its visits per user (`-1` for endless) and the interval between a user's visits.
    pub(super) fn read_load_shape(
        &mut self,
        load: &TomlTable<'_, '_>,
    ) -> (LoadShape, String, Option<Duration>) {
        let stages = load.tables("stage");
        let users = load.has_key("users");
        let rate = load.has_key("rate");
        let is_open = rate || stages.iter().any(|stage| stage.has_key("rate"));
        let is_closed = users || stages.iter().any(|stage| stage.has_key("users"));
        let shape = match (is_open, is_closed) {
            (true, true) => {
                load.add_finding(
                    load.offset,
                    "`load` takes `users` (who wait for responses) or `rate` \
                    (visitors who arrive regardless), not both",
                );
                (single_visit_shape(), "1".to_owned(), None)
            }
            (false, false) => {
                load.add_finding(
                    load.offset,
                    "`load` has neither `users` nor `rate`, and no `stage` with one",
                );
                (single_visit_shape(), "1".to_owned(), None)
            }
            (true, false) => (self.open_load_shape(load, &stages), "-1".to_owned(), None),
            (false, true) => self.closed_load_shape(load, &stages),
        };
        for stage in stages {
            stage.report_unknown_keys();
        }
        shape
    }

    fn open_load_shape(
        &mut self,
        load: &TomlTable<'_, '_>,
        stages: &[TomlTable<'_, '_>],
    ) -> LoadShape {
        let mut stretches = Vec::new();
        let mut before = 0.0;
        if stages.is_empty() {
            let rate = load.rate("rate").unwrap_or(1.0);
            let duration = self.read_duration(load, "duration");
            add_rate_intervals(&mut stretches, 0.0, rate, load.duration("ramp"), duration);
        } else if load.has_key("rate") || load.has_key("duration") {
            load.add_finding(load.offset, "with `stage`, set rates and times in the stages");
        }
        for stage in stages {
            let rate = stage.rate("rate").unwrap_or(before);
            let duration = self.read_duration(stage, "for");
            add_rate_intervals(&mut stretches, before, rate, stage.duration("ramp"), duration);
            before = rate;
        }
        let process = load.text("arrivals");
        let process = match process.as_ref().map(|value| value.text.as_str()) {
            None | Some("poisson") => ArrivalProcess::Poisson,
            Some("uniform") => ArrivalProcess::Uniform,
            Some(other) => {
                let message =
                    format!("`arrivals` must be \"poisson\" or \"uniform\", not \"{other}\"");
                load.add_finding(load.offset_of("arrivals"), message);
                ArrivalProcess::Poisson
            }
        };
        let most = load.count("max_users", 1).unwrap_or(DEFAULT_MAX_VISITORS).min(MAX_USERS);
        LoadShape::Arrivals(OpenModelArrivals {
            process,
            rate_intervals: stretches,
            max_visitors: usize::try_from(most).unwrap_or(usize::MAX),
        })
    }

    fn closed_load_shape(
        &mut self,
        load: &TomlTable<'_, '_>,
        stages: &[TomlTable<'_, '_>],
    ) -> (LoadShape, String, Option<Duration>) {
        let every = load.duration("every");
        if every.is_some_and(|every| every.is_zero()) {
            load.add_finding(load.offset_of("every"), "`every` must be above 0");
        }
        let every = every.filter(|every| !every.is_zero());
        if !stages.is_empty() {
            if load.has_key("users") || load.has_key("duration") {
                load.add_finding(load.offset, "with `stage`, set users and times in the stages");
            }
            let mut levels = Vec::new();
            for stage in stages {
                let users = self.read_user_count(stage);
                let stage_duration = self.read_duration(stage, "for");
                levels.push((users, stage.duration("ramp").unwrap_or_default(), stage_duration));
            }
            return (LoadShape::Lifetimes(staged_lifetimes(&levels)), "-1".to_owned(), every);
        }
        let users = self.read_user_count(load);
        let visits = load.count("visits", 1);
        let duration = load.duration("duration");
        if visits.is_none() && duration.is_none() {
            load.add_finding(
                load.offset,
                "`load` has no end: write `duration` or `visits` (per user)",
            );
        }
        // Users start at equal intervals, so that they do not all send at the same moment forever.
        let ramp = load.duration("ramp").or(every).unwrap_or_default();
        let spans = (0..users)
            .map(|user| {
                let start = ramp.mul_f64(user as f64 / users as f64);
                ThreadLifetime { start, lifetime: duration.map(|end| end.saturating_sub(start)) }
            })
            .collect();
        let loops = visits.map_or_else(|| "-1".to_owned(), |visits| visits.to_string());
        (LoadShape::Lifetimes(spans), loops, every)
    }

    fn read_user_count(&self, table: &TomlTable<'_, '_>) -> u64 {
        let users = table.count("users", 0).unwrap_or(1);
        if users > MAX_USERS {
            table.add_finding(
                table.offset_of("users"),
                format!("more than {MAX_USERS} users are not allowed"),
            );
        }
        users.min(MAX_USERS)
    }

    fn read_duration(&self, table: &TomlTable<'_, '_>, key: &'static str) -> Duration {
        match table.duration(key) {
            Some(duration) => duration,
            None => {
                if !table.has_key(key) {
                    table.add_finding(
                        table.offset,
                        format!("{} has no `{key}`, such as \"30s\"", table.name),
                    );
                }
                Duration::from_secs(1)
            }
        }
    }
}

/// Adds a ramp from one rate to the next and the hold after it; the ramp is part of the total time.
fn add_rate_intervals(
    stretches: &mut Vec<RateInterval>,
    from: f64,
    to: f64,
    ramp: Option<Duration>,
    duration: Duration,
) {
    let ramp = ramp.unwrap_or_default().min(duration);
    if !ramp.is_zero() {
        stretches.push(RateInterval { start_rate: from, end_rate: to, duration: ramp });
    }
    stretches.push(RateInterval::constant(to, duration.saturating_sub(ramp)));
}

/// Returns the start and end of each user in a staged load; a stage has the number of users, the ramp to it, and the
/// total time.
fn staged_lifetimes(stages: &[(u64, Duration, Duration)]) -> Vec<ThreadLifetime> {
    let mut spans = Vec::new();
    let mut running: Vec<Duration> = Vec::new();
    let mut now = Duration::ZERO;
    for &(users, ramp, duration) in stages {
        let ramp = ramp.min(duration);
        let before = running.len() as u64;
        let change = users.abs_diff(before);
        for step in 0..change {
            let at = now + ramp.mul_f64(step as f64 / change as f64);
            if users > before {
                running.push(at);
            } else if let Some(start) = running.pop() {
                spans.push(ThreadLifetime { start, lifetime: Some(at.saturating_sub(start)) });
            }
        }
        now += duration;
    }
    spans.extend(
        running
            .into_iter()
            .map(|start| ThreadLifetime { start, lifetime: Some(now.saturating_sub(start)) }),
    );
    spans.sort_by_key(|span| span.start);
    spans
}

/// Returns a pause in milliseconds as a template, from a time or a range of times.
pub(super) fn pause_template(text: &str) -> Option<TextTemplate> {
    let millis = |text: &str| parse_duration(text).ok().map(|time| time.as_millis());
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
    TextTemplate::parse(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_begin_and_end_users() {
        let second = Duration::from_secs(1);
        let spans = staged_lifetimes(&[
            (2, 2 * second, 10 * second),
            (1, Duration::ZERO, 5 * second),
            (3, 2 * second, 5 * second),
        ]);
        let times: Vec<(u64, u64)> = spans
            .iter()
            .map(|span| (span.start.as_secs(), (span.start + span.lifetime.unwrap()).as_secs()))
            .collect();
        assert_eq!(times, [(0, 20), (1, 10), (15, 20), (16, 20)]);
    }

    #[test]
    fn pauses_are_times_or_spans() {
        assert_eq!(pause_template("2s").unwrap().source(), "2000");
        assert_eq!(pause_template("1s..3s").unwrap().source(), "${__Random(1000,3000)}");
        for text in ["2", "3s..1s", "a..b", ""] {
            assert!(pause_template(text).is_none(), "{text}");
        }
    }
}
