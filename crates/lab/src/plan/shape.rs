//! When each thread of a group starts, and how long it may live.

use std::time::Duration;

use super::model::{Arrivals, Group, Shape};
use super::scope::Scope;
use super::template::Template;
use crate::load::{Process, Stretch};

/// One thread's time, since the start of its group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Span {
    pub(super) start: Duration,
    pub(super) lives: Option<Duration>,
}

/// More threads than that are a mistake.
const MOST_THREADS: u64 = 1_000_000;

/// Returns the threads of a group.
///
/// # Errors
/// What is no number, and the text that should give it.
pub(super) fn spans(group: &Group, scope: &mut Scope) -> Result<Vec<Span>, String> {
    match &group.shape {
        Shape::Spans(spans) => Ok(spans.clone()),
        // Visitors are hired when they come.
        Shape::Arrivals(_) | Shape::Paced { .. } | Shape::Grown { .. } => Ok(Vec::new()),
        Shape::Ramp { threads, ramp, delay, duration } => {
            let count = count(threads, "the number of threads", scope)?;
            let ramp = seconds(ramp, "the ramp-up", 0.0, scope)?;
            let delay = seconds(delay, "the delay", 0.0, scope)?;
            let end = match duration {
                None => None,
                Some(duration) => Some(seconds(duration, "the duration", f64::NAN, scope)?),
            };
            Ok((0..count)
                .map(|thread| {
                    let start = delay + ramp * thread as f64 / count as f64;
                    span(start, end.map(|end| delay + end))
                })
                .collect())
        }
        Shape::Rows(rows) => {
            let mut spans = Vec::new();
            for [threads, delay, ramp, hold, shutdown] in rows {
                let count = count(threads, "the number of threads", scope)?;
                let delay = seconds(delay, "the delay", 0.0, scope)?;
                let ramp = seconds(ramp, "the start-up", 0.0, scope)?;
                let hold = seconds(hold, "the hold time", 0.0, scope)?;
                let shutdown = seconds(shutdown, "the shutdown", 0.0, scope)?;
                for thread in 0..count {
                    let share = thread as f64 / count as f64;
                    let end = delay + ramp + hold + shutdown * share;
                    spans.push(span(delay + ramp * share, Some(end)));
                }
            }
            Ok(spans)
        }
        Shape::Steps(values) => steps(values, scope),
        Shape::Concurrency { target, ramp, steps, hold, in_minutes } => {
            let unit = if *in_minutes { 60.0 } else { 1.0 };
            let count = count(target, "the target concurrency", scope)?;
            let ramp = seconds(ramp, "the ramp-up", 0.0, scope)? * unit;
            let steps = seconds(steps, "the number of steps", 0.0, scope)?;
            let hold = seconds(hold, "the hold time", 0.0, scope)? * unit;
            Ok((0..count)
                .map(|thread| {
                    let share = thread as f64 / count as f64;
                    let share = if steps >= 1.0 { (share * steps).floor() / steps } else { share };
                    span(ramp * share, Some(ramp + hold))
                })
                .collect())
        }
    }
}

/// Most visitors of a group of the open model at a time, unless it says another number.
const MOST_VISITORS: usize = 10_000;

/// Returns the arrivals of a group of the open model; nothing for other groups.
///
/// # Errors
/// As [`spans`].
pub(super) fn arrivals(group: &Group, scope: &mut Scope) -> Result<Option<Arrivals>, String> {
    let (stretches, most) = match &group.shape {
        Shape::Arrivals(arrivals) => return Ok(Some(arrivals.clone())),
        Shape::Paced { rows, in_minutes, most } => {
            let unit = if *in_minutes { 60.0 } else { 1.0 };
            (stretches(rows, unit, scope)?, most)
        }
        Shape::Grown { values, in_minutes, most } => {
            let unit = if *in_minutes { 60.0 } else { 1.0 };
            let [target, ramp, steps, hold] = values.as_ref();
            let target = seconds(target, "the target rate", 0.0, scope)? / unit;
            let ramp = seconds(ramp, "the ramp-up", 0.0, scope)? * unit;
            let steps = seconds(steps, "the number of steps", 0.0, scope)?.floor();
            let hold = time(seconds(hold, "the hold time", 0.0, scope)? * unit);
            let mut stretches = Vec::new();
            if ramp > 0.0 && steps >= 1.0 {
                let level = |step: u32| target * f64::from(step) / steps;
                let each = time(ramp / steps);
                stretches.extend((1..=steps as u32).map(|step| Stretch::steady(level(step), each)));
            } else if ramp > 0.0 {
                stretches.push(Stretch { from: 0.0, to: target, lasts: time(ramp) });
            }
            stretches.push(Stretch::steady(target, hold));
            (stretches, most)
        }
        _ => return Ok(None),
    };
    let most = seconds(most, "the most visitors", 0.0, scope)? as usize;
    let most = if most == 0 { MOST_VISITORS } else { most };
    Ok(Some(Arrivals { process: Process::Uniform, stretches, most }))
}

/// Returns rows of start, end and time, where rates count for a unit of so many seconds, and so do times.
///
/// # Errors
/// As [`spans`].
pub(super) fn stretches(
    rows: &[[Template; 3]],
    unit: f64,
    scope: &mut Scope,
) -> Result<Vec<Stretch>, String> {
    let mut stretches = Vec::new();
    for [from, to, lasts] in rows {
        let from = seconds(from, "the rate at the start", 0.0, scope)? / unit;
        let to = seconds(to, "the rate at the end", 0.0, scope)? / unit;
        let lasts = time(seconds(lasts, "the time", 0.0, scope)? * unit);
        stretches.push(Stretch { from, to, lasts });
    }
    Ok(stretches)
}

fn time(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX / 4)
}

fn steps(values: &[Template; 9], scope: &mut Scope) -> Result<Vec<Span>, String> {
    let [initial, burst, threads, per_step, every, ramp, hold, stop_count, stop_every] = values;
    let all = count(threads, "the number of threads", scope)?;
    let initial = seconds(initial, "the initial delay", 0.0, scope)?;
    let burst = seconds(burst, "the first burst", 0.0, scope)?;
    let per_step = seconds(per_step, "the threads per step", 0.0, scope)?.max(1.0);
    let every = seconds(every, "the step's distance", 0.0, scope)?;
    let ramp = seconds(ramp, "the step's ramp-up", 0.0, scope)?;
    let hold = seconds(hold, "the hold time", 0.0, scope)?;
    let stop_count = seconds(stop_count, "the threads per stop", 0.0, scope)?.max(1.0);
    let stop_every = seconds(stop_every, "the stop's distance", 0.0, scope)?;
    let start_of = |thread: f64| {
        if thread < burst {
            return initial;
        }
        let after = thread - burst;
        let step = (after / per_step).floor();
        let from_burst = if burst > 0.0 { 1.0 } else { 0.0 };
        initial + (step + from_burst) * every + after % per_step / per_step * ramp
    };
    let full = start_of(all.saturating_sub(1) as f64) + hold;
    Ok((0..all)
        .map(|thread| {
            let thread = thread as f64;
            span(start_of(thread), Some(full + (thread / stop_count).floor() * stop_every))
        })
        .collect())
}

fn span(start: f64, end: Option<f64>) -> Span {
    Span { start: time(start), lives: end.map(|end| time(end - start)) }
}

fn count(template: &Template, what: &str, scope: &mut Scope) -> Result<u64, String> {
    let text = template.draw(scope).trim().to_owned();
    match text.parse::<u64>() {
        Ok(count) if count <= MOST_THREADS => Ok(count),
        _ => Err(wrong(what, template, &text)),
    }
}

fn seconds(
    template: &Template,
    what: &str,
    default: f64,
    scope: &mut Scope,
) -> Result<f64, String> {
    let text = template.draw(scope).trim().to_owned();
    // An expression that gives nothing is a property that was forgotten; an empty field is none.
    if text.is_empty() && template.as_literal().is_some() && !default.is_nan() {
        return Ok(default);
    }
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds >= 0.0 => Ok(seconds),
        _ => Err(wrong(what, template, &text)),
    }
}

fn wrong(what: &str, template: &Template, text: &str) -> String {
    let mut properties = Vec::new();
    template.each_call(&mut |call| {
        if let Some(name) = call.arguments.first() {
            properties.push(name.source().to_owned());
        }
    });
    match properties.first() {
        Some(name) => format!(
            "{what} is `{text}` by `{}`: give the property with -J{name}=NUMBER",
            template.source()
        ),
        None => format!("{what} is `{text}`, which is no number"),
    }
}
