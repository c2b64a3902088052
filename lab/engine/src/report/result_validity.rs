//! Checks whether a run is valid: a generator at its own limits measures itself.

use std::time::Duration;

use crate::measurement::{GeneratorStats, RunResults};

/// Lag at the 99th percentile above which the times are the generator's.
const MAX_LAG: Duration = Duration::from_millis(10);
/// Share of its processors above which the generator, not the target, may be the bottleneck.
const MAX_CPU_SHARE: f64 = 0.85;
/// Minimum duration of a run for judging the processor share.
const MIN_RUN_DURATION: Duration = Duration::from_secs(2);
/// Minimum number of scheduled arrivals for judging the 99th percentile.
const MIN_LAG_SAMPLES: u64 = 100;

/// Returns the reasons not to trust the results; empty if there are none.
#[must_use]
pub fn validity_doubts(results: &RunResults) -> Vec<String> {
    let mut doubts = Vec::new();
    if results.processes.is_empty() {
        add_generator_doubts(&results.generator, results.elapsed, "", &mut doubts);
    }
    // Idle agents do not compensate for one at its limits.
    for member in &results.processes {
        add_generator_doubts(
            &member.generator,
            member.elapsed,
            &format!("{}: ", member.name),
            &mut doubts,
        );
    }
    let failures = results.labels.values().flat_map(|series| &series.total.failure_reason_counts);
    let exhausted: u64 = failures
        .filter(|(reason, _)| reason.contains("on the generator"))
        .map(|(_, count)| *count)
        .sum();
    if exhausted > 0 {
        doubts.push(format!("{exhausted} requests found no port or file descriptor left"));
    }
    doubts
}

/// Returns descriptions of the load that is missing because agents were lost.
#[must_use]
pub fn agent_losses(results: &RunResults) -> Vec<String> {
    let lost = results.processes.iter().filter_map(|member| {
        let reason = member.loss_reason.as_ref()?;
        Some(format!(
            "{} was lost after {:.0} s and {} samples ({reason}); its portion of the load is missing from \
             then on",
            member.name,
            member.elapsed.as_secs_f64(),
            member.sample_count
        ))
    });
    lost.collect()
}

fn add_generator_doubts(
    generator: &GeneratorStats,
    elapsed: Duration,
    prefix: &str,
    doubts: &mut Vec<String>,
) {
    let lag = generator.lag.quantile(0.99);
    if generator.lag.count() >= MIN_LAG_SAMPLES && lag > MAX_LAG {
        doubts.push(format!(
            "{prefix}it sent {:.1} ms later than planned (99th percentile; at most {} ms)",
            lag.as_secs_f64() * 1000.0,
            MAX_LAG.as_millis()
        ));
    }
    let share = generator.cpu_share(elapsed);
    if elapsed >= MIN_RUN_DURATION && share > MAX_CPU_SHARE {
        doubts.push(format!(
            "{prefix}it used {:.0} % of the {} processors that its {} threads may use (at most {:.0} %)",
            share * 100.0,
            generator.worker_count.min(generator.processor_count),
            generator.worker_count,
            MAX_CPU_SHARE * 100.0
        ));
    }
    if generator.unsent_arrivals > 0 {
        doubts.push(format!(
            "{prefix}{} arrivals of the schedule were never sent",
            generator.unsent_arrivals
        ));
    }
}

/// Returns the warning to print, if there is one.
#[must_use]
pub fn validity_warning(results: &RunResults) -> Option<String> {
    let doubts = validity_doubts(results);
    (!doubts.is_empty()).then(|| format!("GENERATOR SATURATED: {}", doubts.join("; ")))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn results(lag_us: u64, cpu: f64) -> RunResults {
        let mut results = RunResults::new(SystemTime::UNIX_EPOCH);
        results.elapsed = Duration::from_secs(10);
        results.generator.worker_count = 2;
        results.generator.processor_count = 2;
        results.generator.cpu_time = Duration::from_secs_f64(20.0 * cpu);
        results.generator.lag.record_us(lag_us, 1000);
        results
    }

    #[test]
    fn late_or_busy_generators_are_not_believed() {
        assert_eq!(validity_warning(&results(900, 0.5)), None);
        let late = validity_warning(&results(12_000, 0.5)).unwrap();
        assert!(late.starts_with("GENERATOR SATURATED: it sent 12.0 ms later"), "{late}");
        let busy = validity_warning(&results(900, 0.9)).unwrap();
        assert!(busy.contains("it used 90 % of the 2 processors"), "{busy}");
        assert_eq!(validity_doubts(&results(12_000, 0.9)).len(), 2);
    }

    #[test]
    fn a_moment_is_too_short_to_judge() {
        let mut short = results(900, 0.99);
        short.elapsed = Duration::from_millis(100);
        assert_eq!(validity_warning(&short), None);
    }
}
