//! `metrics.csv`: the activity of the generator and the target in each second of a run.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{ProcessMetrics, RunResults, TimingHistogram};

/// The header line.
pub const METRICS_CSV_HEADER: &str = "second,requests,errors,bytes,p50_ms,p95_ms,p99_ms,max_ms,active,generator_cpu,generator_lag_ms,generator_late,target_cpu,target_memory,target_files,target_threads";

/// Returns a line per second; columns with unknown values are empty. The generator's CPU time is in processors (1 is
/// one busy processor), and its lag is the worst 99th percentile of its threads. The target's CPU time is in processors
/// too.
#[must_use]
pub fn format_metrics_csv(results: &RunResults) -> String {
    let mut out = format!("{METRICS_CSV_HEADER}\n");
    let watched = target_per_second(&results.target_facts);
    let last = results
        .labels
        .values()
        .filter_map(|series| series.seconds.keys().next_back())
        .chain(results.generator.seconds.keys().next_back())
        .copied()
        .max()
        .unwrap_or(0);
    for second in 0..=last {
        let (mut times, mut errors, mut bytes) = (TimingHistogram::new(), 0, 0);
        for values in results.labels.values().filter_map(|series| series.seconds.get(&second)) {
            errors += values.error_count;
            bytes += values.received_bytes;
            values.time_buckets.iter().for_each(|(us, count)| times.record_us(*us, *count));
        }
        let ms = |share: f64| times.quantile(share).as_secs_f64() * 1000.0;
        // Writing to a string cannot fail.
        write!(
            out,
            "{second},{},{errors},{bytes},{:.3},{:.3},{:.3},{:.3}",
            times.count(),
            ms(0.5),
            ms(0.95),
            ms(0.99),
            ms(1.0)
        )
        .ok();
        match results.generator.seconds.get(&second) {
            Some(own) => write!(
                out,
                ",{},{:.3},{:.3},{}",
                own.active_users,
                own.cpu_time.as_secs_f64(),
                own.lag.as_secs_f64() * 1000.0,
                own.late_arrivals
            )
            .ok(),
            None => write!(out, ",,,,").ok(),
        };
        match watched.get(&second) {
            Some((cpu, facts)) => writeln!(
                out,
                ",{cpu:.3},{},{},{}",
                facts.memory_bytes, facts.open_files, facts.thread_count
            )
            .ok(),
            None => writeln!(out, ",,,,").ok(),
        };
    }
    out
}

/// Returns the metrics of the target at the end of each second, with its CPU time since the previous reading.
fn target_per_second(target: &[ProcessMetrics]) -> BTreeMap<u32, (f64, &ProcessMetrics)> {
    let mut seconds = BTreeMap::new();
    for pair in target.windows(2) {
        let [before, now] = pair else { continue };
        let span = now.elapsed.saturating_sub(before.elapsed).as_secs_f64();
        let cpu = if span > 0.0 {
            now.cpu_time.saturating_sub(before.cpu_time).as_secs_f64() / span
        } else {
            0.0
        };
        let second = now.elapsed.as_secs_f64().round().max(1.0) as u32 - 1;
        seconds.entry(second).or_insert((cpu, now));
    }
    seconds
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn every_second_has_its_line() {
        let mut results = RunResults::new(SystemTime::UNIX_EPOCH);
        for (label, second) in [("a", 0), ("b", 0), ("a", 2)] {
            let values = results.labels.entry(label.into()).or_default().seconds.entry(second);
            let values = values.or_default();
            (values.sample_count, values.error_count, values.received_bytes) = (1, 1, 10);
            values.time_buckets = vec![(2000, 1)];
        }
        let own = results.generator.seconds.entry(0).or_default();
        (own.cpu_time, own.lag, own.active_users) =
            (Duration::from_millis(250), Duration::from_millis(1), 4);
        let facts = |at, cpu| ProcessMetrics {
            elapsed: Duration::from_secs(at),
            cpu_time: Duration::from_millis(cpu),
            memory_bytes: 7,
            open_files: 8,
            thread_count: 9,
            ..ProcessMetrics::default()
        };
        results.target_facts = vec![facts(0, 0), facts(1, 500)];
        let text = format_metrics_csv(&results);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "0,2,2,20,2.000,2.000,2.000,2.000,4,0.250,1.000,0,0.500,7,8,9",
                "1,0,0,0,0.000,0.000,0.000,0.000,,,,,,,,",
                "2,1,1,10,2.000,2.000,2.000,2.000,,,,,,,,",
            ]
        );
        assert!(
            text.lines()
                .all(|line| line.split(',').count() == METRICS_CSV_HEADER.split(',').count())
        );
    }
}
