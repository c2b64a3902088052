//! The timers of samplers: the delays before a sample, and the rates that threads share.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tympan_lab_plan::model::{SamplerTimer, ThroughputMode};
use tympan_lab_plan::{SamplePacer, rate_intervals};

use super::sample_evaluation::SampleEvaluation;
use super::thread_context::ThreadContext;

/// Maximum interval between two samples of a constant throughput timer: longer than any run.
const MAX_THROUGHPUT_INTERVAL: Duration = Duration::from_secs(366 * 24 * 3600);

/// The timers of one thread.
#[derive(Debug, Default)]
pub(super) struct SampleTimers {
    /// The due time of the previous sample of each timer that counts this thread alone, by meter.
    previous_sample_times: HashMap<usize, Instant>,
}

impl SampleTimers {
    /// Returns the delay that a timer demands before the next sample.
    pub(super) fn timer_delay(
        &mut self,
        timer: &SamplerTimer,
        now: Instant,
        thread: &mut ThreadContext,
        evaluation: &mut SampleEvaluation,
    ) -> Duration {
        let millis = match timer {
            SamplerTimer::Constant(delay) => thread.evaluate_number(delay),
            SamplerTimer::Uniform { delay, range } => {
                let unit = thread.scope.random_unit();
                thread.evaluate_number(delay) + unit * thread.evaluate_number(range)
            }
            SamplerTimer::Gaussian { delay, range } => {
                let normal = thread.random_normal();
                (normal * thread.evaluate_number(range) + thread.evaluate_number(delay)).abs()
            }
            SamplerTimer::Poisson { delay, range } => {
                let mean = thread.evaluate_number(range);
                thread.evaluate_number(delay)
                    + (mean + thread.random_normal() * mean.max(0.0).sqrt()).max(0.0)
            }
            SamplerTimer::Throughput { per_minute, mode, meter_index: meter } => {
                let per_minute = thread.evaluate_number(per_minute);
                return self.throughput_delay(thread, per_minute, *mode, *meter, now);
            }
            SamplerTimer::Synchronize { .. } => 0.0,
            SamplerTimer::Script(script) => evaluation.run_timer(script, &mut thread.scope),
            SamplerTimer::Precise { .. } | SamplerTimer::ShapedThroughput { .. } => {
                return paced_delay(thread, timer, now);
            }
        };
        Duration::try_from_secs_f64(millis / 1000.0).unwrap_or_default()
    }

    /// Returns the delay until a constant throughput timer allows the next sample. Missed samples are not made up for,
    /// as in JMeter.
    fn throughput_delay(
        &mut self,
        thread: &ThreadContext,
        per_minute: f64,
        mode: ThroughputMode,
        meter: usize,
        now: Instant,
    ) -> Duration {
        // In the open model the schedule determines the times.
        if per_minute <= 0.0 || thread.group_state.is_open_model() {
            return Duration::ZERO;
        }
        let distance =
            Duration::try_from_secs_f64(60.0 / per_minute).unwrap_or(MAX_THROUGHPUT_INTERVAL);
        let times = |count: u64| {
            let count = u32::try_from(count.max(1)).unwrap_or(u32::MAX);
            distance.saturating_mul(count).min(MAX_THROUGHPUT_INTERVAL)
        };
        // A rate of several threads is divided among the processes that run them.
        let processes = thread.scope.run_context.portion.count;
        let distance = match mode {
            ThroughputMode::ThisThread => times(1),
            ThroughputMode::AllThreads => {
                times(thread.run_state.thread_counts().active.saturating_mul(processes))
            }
            ThroughputMode::GroupThreads => times(
                thread.group_state.active_threads.load(Ordering::Relaxed).saturating_mul(processes),
            ),
            ThroughputMode::Shared | ThroughputMode::SharedByGroup => times(processes),
        };
        let due = |last: Option<Instant>| last.map_or(now, |last| (last + distance).max(now));
        let key = match mode {
            ThroughputMode::Shared => 0,
            ThroughputMode::SharedByGroup => thread.group_state.root_node,
            ThroughputMode::ThisThread
            | ThroughputMode::AllThreads
            | ThroughputMode::GroupThreads => {
                let due = due(self.previous_sample_times.get(&meter).copied());
                self.previous_sample_times.insert(meter, due);
                return due - now;
            }
        };
        let Some(shared) = thread.model.meters.get(meter) else { return Duration::ZERO };
        let mut last = shared.last_due.lock().unwrap_or_else(PoisonError::into_inner);
        let due = due(last.get(&key).copied());
        last.insert(key, due);
        due - now
    }
}

/// Returns the delay until the next start time of a timer that all threads share.
fn paced_delay(thread: &mut ThreadContext, timer: &SamplerTimer, now: Instant) -> Duration {
    let model = Arc::clone(&thread.model);
    // In the open model the schedule determines the times.
    if thread.group_state.is_open_model() {
        return Duration::ZERO;
    }
    let (meter, key) = match timer {
        // Each group has its own schedule.
        SamplerTimer::Precise { meter_index: meter, .. } => (*meter, thread.group_state.root_node),
        SamplerTimer::ShapedThroughput { meter_index: meter, .. } => (*meter, 0),
        _ => return Duration::ZERO,
    };
    let Some(shared) = model.meters.get(meter) else { return Duration::ZERO };
    let mut pacers = shared.pacers.lock().unwrap_or_else(PoisonError::into_inner);
    let pacer = match pacers.entry(key) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => {
            let Some(pacer) = create_pacer(thread, timer) else { return Duration::ZERO };
            entry.insert(pacer)
        }
    };
    let moment = pacer.next_start();
    drop(pacers);
    match moment {
        Some(moment) => (thread.run_state.epoch.0 + moment).saturating_duration_since(now),
        None => {
            // The end of the rows ends the test.
            thread.stop_test();
            Duration::ZERO
        }
    }
}

/// Creates the schedule of a timer; `None` if its numbers are invalid.
fn create_pacer(thread: &mut ThreadContext, timer: &SamplerTimer) -> Option<SamplePacer> {
    let portion = thread.scope.run_context.portion;
    match timer {
        SamplerTimer::Precise { settings: values, .. } => {
            let throughput = thread.evaluate_number(&values.throughput);
            let period = thread.evaluate_number(&values.period);
            let duration = thread.evaluate_number(&values.duration);
            let batch = thread.evaluate_number(&values.batch).max(1.0) as u64;
            let apart =
                Duration::try_from_secs_f64(thread.evaluate_number(&values.batch_delay) / 1000.0)
                    .ok()?;
            let count = throughput / period * duration;
            let duration = Duration::try_from_secs_f64(duration).ok()?;
            let seed =
                thread.scope.run_context.seed().wrapping_add(thread.group_state.root_node as u64);
            SamplePacer::with_exact_throughput(count, duration, (batch, apart), seed, portion)
        }
        SamplerTimer::ShapedThroughput { rows, .. } => {
            let stretches = match rate_intervals(rows, 1.0, &mut thread.scope) {
                // Both rates and times are in seconds.
                Ok(stretches) => stretches,
                Err(fault) => {
                    thread.record_run_fault(&format!("throughput shaping timer: {fault}"));
                    return None;
                }
            };
            Some(SamplePacer::with_rate_intervals(&stretches, portion))
        }
        _ => None,
    }
}
