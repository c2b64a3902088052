//! `metrics.csv`: what generator and target did in each second of a run.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Results, Timing};
use crate::phase::watch::Facts;

/// The first line.
pub const HEADER: &str = "second,requests,errors,bytes,p50_ms,p95_ms,p99_ms,max_ms,active,generator_cpu,generator_lag_ms,generator_late,target_cpu,target_memory,target_files,target_threads";

/// Returns a line per second; columns of what is not known are empty. The generator's processor time is in processors (1 is
/// one busy processor), its lag the worst 99th percentile of its threads; the target's processor time is in processors too.
#[must_use]
pub fn text(results: &Results) -> String {
    let mut out = format!("{HEADER}\n");
    let watched = per_second(&results.target);
    let last = results
        .labels
        .values()
        .filter_map(|series| series.seconds.keys().next_back())
        .chain(results.generator.seconds.keys().next_back())
        .copied()
        .max()
        .unwrap_or(0);
    for second in 0..=last {
        let (mut times, mut errors, mut bytes) = (Timing::new(), 0, 0);
        for values in results.labels.values().filter_map(|series| series.seconds.get(&second)) {
            errors += values.errors;
            bytes += values.received;
            values.times.iter().for_each(|(us, count)| times.record_us(*us, *count));
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
                own.active,
                own.cpu.as_secs_f64(),
                own.lag.as_secs_f64() * 1000.0,
                own.late
            )
            .ok(),
            None => write!(out, ",,,,").ok(),
        };
        match watched.get(&second) {
            Some((cpu, facts)) => {
                writeln!(out, ",{cpu:.3},{},{},{}", facts.memory, facts.files, facts.threads).ok()
            }
            None => writeln!(out, ",,,,").ok(),
        };
    }
    out
}

/// Returns what was seen of the target at the end of each second, with its processor time since the look before.
fn per_second(target: &[Facts]) -> BTreeMap<u32, (f64, &Facts)> {
    let mut seconds = BTreeMap::new();
    for pair in target.windows(2) {
        let [before, now] = pair else { continue };
        let span = now.at.saturating_sub(before.at).as_secs_f64();
        let cpu =
            if span > 0.0 { now.cpu.saturating_sub(before.cpu).as_secs_f64() / span } else { 0.0 };
        let second = now.at.as_secs_f64().round().max(1.0) as u32 - 1;
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
        let mut results = Results::new(SystemTime::UNIX_EPOCH);
        for (label, second) in [("a", 0), ("b", 0), ("a", 2)] {
            let values = results.labels.entry(label.into()).or_default().seconds.entry(second);
            let values = values.or_default();
            (values.count, values.errors, values.received) = (1, 1, 10);
            values.times = vec![(2000, 1)];
        }
        let own = results.generator.seconds.entry(0).or_default();
        (own.cpu, own.lag, own.active) = (Duration::from_millis(250), Duration::from_millis(1), 4);
        let facts = |at, cpu| Facts {
            at: Duration::from_secs(at),
            cpu: Duration::from_millis(cpu),
            memory: 7,
            files: 8,
            threads: 9,
            ..Facts::default()
        };
        results.target = vec![facts(0, 0), facts(1, 500)];
        let text = text(&results);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "0,2,2,20,2.000,2.000,2.000,2.000,4,0.250,1.000,0,0.500,7,8,9",
                "1,0,0,0,0.000,0.000,0.000,0.000,,,,,,,,",
                "2,1,1,10,2.000,2.000,2.000,2.000,,,,,,,,",
            ]
        );
        assert!(text.lines().all(|line| line.split(',').count() == HEADER.split(',').count()));
    }
}
