//! The start time and lifetime of each thread of a group.

use std::time::Duration;

use super::model::{LoadShape, OpenModelArrivals, ThreadGroup, ThreadLifetime};
use super::template::TextTemplate;
use super::variable_scope::VariableScope;
use crate::arrival_schedule::{ArrivalProcess, RateInterval};

/// Maximum number of threads; more are considered an error.
const MAX_GROUP_THREADS: u64 = 1_000_000;

impl ThreadGroup {
    /// Returns the start and the lifetime of each thread; none for a group of the open model.
    ///
    /// # Errors
    /// The invalid number, and the text that it comes from.
    pub fn thread_lifetimes(
        &self,
        scope: &mut VariableScope,
    ) -> Result<Vec<ThreadLifetime>, String> {
        thread_lifetimes(self, scope)
    }

    /// Returns the arrivals of a group of the open model; `None` for other groups.
    ///
    /// # Errors
    /// As [`ThreadGroup::thread_lifetimes`].
    pub fn arrivals(&self, scope: &mut VariableScope) -> Result<Option<OpenModelArrivals>, String> {
        group_arrivals(self, scope)
    }
}

fn thread_lifetimes(
    group: &ThreadGroup,
    scope: &mut VariableScope,
) -> Result<Vec<ThreadLifetime>, String> {
    match &group.load_shape {
        LoadShape::Lifetimes(spans) => Ok(spans.clone()),
        // Threads for visitors are created on arrival.
        LoadShape::Arrivals(_) | LoadShape::ArrivalRates { .. } | LoadShape::ArrivalRamp { .. } => {
            Ok(Vec::new())
        }
        LoadShape::Ramp { threads, ramp, delay, duration } => {
            let count = evaluate_count(threads, "the number of threads", scope)?;
            let ramp = evaluate_seconds(ramp, "the ramp-up", 0.0, scope)?;
            let delay = evaluate_seconds(delay, "the delay", 0.0, scope)?;
            let end = match duration {
                None => None,
                Some(duration) => {
                    Some(evaluate_seconds(duration, "the duration", f64::NAN, scope)?)
                }
            };
            Ok((0..count)
                .map(|thread| {
                    let start = delay + ramp * thread as f64 / count as f64;
                    thread_lifetime(start, end.map(|end| delay + end))
                })
                .collect())
        }
        LoadShape::ThreadRows(rows) => {
            let mut spans = Vec::new();
            for [threads, delay, ramp, hold, shutdown] in rows {
                let count = evaluate_count(threads, "the number of threads", scope)?;
                let delay = evaluate_seconds(delay, "the delay", 0.0, scope)?;
                let ramp = evaluate_seconds(ramp, "the start-up", 0.0, scope)?;
                let hold = evaluate_seconds(hold, "the hold time", 0.0, scope)?;
                let shutdown = evaluate_seconds(shutdown, "the shutdown", 0.0, scope)?;
                for thread in 0..count {
                    let share = thread as f64 / count as f64;
                    let end = delay + ramp + hold + shutdown * share;
                    spans.push(thread_lifetime(delay + ramp * share, Some(end)));
                }
            }
            Ok(spans)
        }
        LoadShape::ThreadSteps(values) => stepped_lifetimes(values, scope),
        LoadShape::Concurrency { target, ramp, steps, hold, in_minutes } => {
            let unit = if *in_minutes { 60.0 } else { 1.0 };
            let count = evaluate_count(target, "the target concurrency", scope)?;
            let ramp = evaluate_seconds(ramp, "the ramp-up", 0.0, scope)? * unit;
            let steps = evaluate_seconds(steps, "the number of steps", 0.0, scope)?;
            let hold = evaluate_seconds(hold, "the hold time", 0.0, scope)? * unit;
            Ok((0..count)
                .map(|thread| {
                    let share = thread as f64 / count as f64;
                    let share = if steps >= 1.0 { (share * steps).floor() / steps } else { share };
                    thread_lifetime(ramp * share, Some(ramp + hold))
                })
                .collect())
        }
    }
}

/// Default maximum number of concurrent visitors of a group of the open model.
const MAX_CONCURRENT_VISITORS: usize = 10_000;

fn group_arrivals(
    group: &ThreadGroup,
    scope: &mut VariableScope,
) -> Result<Option<OpenModelArrivals>, String> {
    let (stretches, most) = match &group.load_shape {
        LoadShape::Arrivals(arrivals) => return Ok(Some(arrivals.clone())),
        LoadShape::ArrivalRates { rows, in_minutes, max_visitors: most } => {
            let unit = if *in_minutes { 60.0 } else { 1.0 };
            (rate_intervals(rows, unit, scope)?, most)
        }
        LoadShape::ArrivalRamp { settings, in_minutes, max_visitors: most } => {
            let unit = if *in_minutes { 60.0 } else { 1.0 };
            let [target, ramp, steps, hold] = settings.as_ref();
            let target = evaluate_seconds(target, "the target rate", 0.0, scope)? / unit;
            let ramp = evaluate_seconds(ramp, "the ramp-up", 0.0, scope)? * unit;
            let steps = evaluate_seconds(steps, "the number of steps", 0.0, scope)?.floor();
            let hold =
                duration_from_seconds(evaluate_seconds(hold, "the hold time", 0.0, scope)? * unit);
            let mut stretches = Vec::new();
            if ramp > 0.0 && steps >= 1.0 {
                let level = |step: u32| target * f64::from(step) / steps;
                let each = duration_from_seconds(ramp / steps);
                stretches.extend(
                    (1..=steps as u32).map(|step| RateInterval::constant(level(step), each)),
                );
            } else if ramp > 0.0 {
                stretches.push(RateInterval {
                    start_rate: 0.0,
                    end_rate: target,
                    duration: duration_from_seconds(ramp),
                });
            }
            stretches.push(RateInterval::constant(target, hold));
            (stretches, most)
        }
        _ => return Ok(None),
    };
    let most = evaluate_seconds(most, "the maximum number of visitors", 0.0, scope)? as usize;
    let most = if most == 0 { MAX_CONCURRENT_VISITORS } else { most };
    Ok(Some(OpenModelArrivals {
        process: ArrivalProcess::Uniform,
        rate_intervals: stretches,
        max_visitors: most,
    }))
}

/// Returns rows of start, end and time as intervals; both rates and times are in a unit of the given number of seconds.
///
/// # Errors
/// As [`thread_lifetimes`].
pub fn rate_intervals(
    rows: &[[TextTemplate; 3]],
    unit: f64,
    scope: &mut VariableScope,
) -> Result<Vec<RateInterval>, String> {
    let mut stretches = Vec::new();
    for [from, to, duration] in rows {
        let from = evaluate_seconds(from, "the start rate", 0.0, scope)? / unit;
        let to = evaluate_seconds(to, "the end rate", 0.0, scope)? / unit;
        let duration =
            duration_from_seconds(evaluate_seconds(duration, "the duration", 0.0, scope)? * unit);
        stretches.push(RateInterval { start_rate: from, end_rate: to, duration });
    }
    Ok(stretches)
}

fn duration_from_seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX / 4)
}

fn stepped_lifetimes(
    values: &[TextTemplate; 9],
    scope: &mut VariableScope,
) -> Result<Vec<ThreadLifetime>, String> {
    let [initial, burst, threads, per_step, every, ramp, hold, stop_count, stop_every] = values;
    let all = evaluate_count(threads, "the number of threads", scope)?;
    let initial = evaluate_seconds(initial, "the initial delay", 0.0, scope)?;
    let burst = evaluate_seconds(burst, "the first burst", 0.0, scope)?;
    let per_step = evaluate_seconds(per_step, "the threads per step", 0.0, scope)?.max(1.0);
    let every = evaluate_seconds(every, "the time between steps", 0.0, scope)?;
    let ramp = evaluate_seconds(ramp, "the step's ramp-up", 0.0, scope)?;
    let hold = evaluate_seconds(hold, "the hold time", 0.0, scope)?;
    let stop_count = evaluate_seconds(stop_count, "the threads per stop", 0.0, scope)?.max(1.0);
    let stop_every = evaluate_seconds(stop_every, "the time between stops", 0.0, scope)?;
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
            thread_lifetime(
                start_of(thread),
                Some(full + (thread / stop_count).floor() * stop_every),
            )
        })
        .collect())
}

fn thread_lifetime(start: f64, end: Option<f64>) -> ThreadLifetime {
    ThreadLifetime {
        start: duration_from_seconds(start),
        lifetime: end.map(|end| duration_from_seconds(end - start)),
    }
}

fn evaluate_count(
    template: &TextTemplate,
    subject: &str,
    scope: &mut VariableScope,
) -> Result<u64, String> {
    let text = template.evaluate(scope).trim().to_owned();
    match text.parse::<u64>() {
        Ok(count) if count <= MAX_GROUP_THREADS => Ok(count),
        _ => Err(invalid_number_message(subject, template, &text)),
    }
}

fn evaluate_seconds(
    template: &TextTemplate,
    subject: &str,
    default: f64,
    scope: &mut VariableScope,
) -> Result<f64, String> {
    let text = template.evaluate(scope).trim().to_owned();
    // An expression with an empty result is a missing property; an empty field is not.
    if text.is_empty() && template.as_literal().is_some() && !default.is_nan() {
        return Ok(default);
    }
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds >= 0.0 => Ok(seconds),
        _ => Err(invalid_number_message(subject, template, &text)),
    }
}

fn invalid_number_message(subject: &str, template: &TextTemplate, text: &str) -> String {
    let mut properties = Vec::new();
    template.for_each_call(&mut |call| {
        if let Some(name) = call.arguments.first() {
            properties.push(name.source().to_owned());
        }
    });
    match properties.first() {
        Some(name) => format!(
            "{subject} is `{text}` from `{}`: set the property with -J{name}=NUMBER",
            template.source()
        ),
        None => format!("{subject} is `{text}`, which is not a number"),
    }
}
