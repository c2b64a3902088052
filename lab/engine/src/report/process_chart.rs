//! Charts of the readings of a tested process: processors, memory, threads, files, disks and pools.

use crate::load::processor_count;
use crate::measurement::{PoolUsage, ProcessMetrics};

/// A chart of the readings: lines over seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessChart {
    /// The title.
    pub title: &'static str,
    /// The unit of the vertical axis.
    pub unit: &'static str,
    /// Names and points of the lines.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// Maximum number of pools in a chart: those with the highest usage.
const MAX_CHARTED_POOLS: usize = 3;

/// Returns the charts of the readings: processors, memory, threads and open files; disk and pools, if they are
/// reported.
#[must_use]
pub fn build_process_charts(metrics: &[ProcessMetrics]) -> Vec<ProcessChart> {
    let over = |value: &dyn Fn(&ProcessMetrics) -> f64| -> Vec<(f64, f64)> {
        metrics.iter().map(|facts| (facts.elapsed.as_secs_f64(), value(facts))).collect()
    };
    let per_second = |value: &dyn Fn(&ProcessMetrics) -> f64| -> Vec<(f64, f64)> {
        let growth = |pair: &[ProcessMetrics]| -> Option<(f64, f64)> {
            let [before, now] = pair else { return None };
            let span = now.elapsed.saturating_sub(before.elapsed).as_secs_f64();
            let more = (value(now) - value(before)).max(0.0);
            // The last reading follows the previous one immediately; the kernel's ticks are coarser than that.
            (span > MIN_CPU_INTERVAL_SECONDS).then(|| (now.elapsed.as_secs_f64(), more / span))
        };
        metrics.windows(2).filter_map(growth).collect()
    };
    let chart = |title, unit, lines: Vec<(&str, Vec<(f64, f64)>)>| ProcessChart {
        title,
        unit,
        lines: lines.into_iter().map(|(name, points)| (name.to_owned(), points)).collect(),
    };
    let mut charts = vec![
        chart(
            "Processors of the tested process (1 is one busy processor)",
            "",
            vec![("processors", per_second(&|facts| facts.cpu_time.as_secs_f64()))],
        ),
        chart(
            "Memory of the tested process",
            "MB",
            vec![("resident", over(&|facts| facts.memory_bytes as f64 / 1e6))],
        ),
        chart(
            "Threads and open files of the tested process",
            "",
            vec![
                ("threads", over(&|facts| facts.thread_count as f64)),
                ("open files", over(&|facts| facts.open_files as f64)),
            ],
        ),
    ];
    if metrics.iter().any(|facts| facts.disk_bytes > 0) {
        let megabytes = per_second(&|facts| facts.disk_bytes as f64 / 1e6);
        let lines = vec![("read and written", megabytes)];
        charts.push(chart("Disks of the tested process", "MB/s", lines));
    }
    let names = busiest_pools(metrics);
    if !names.is_empty() {
        let lines = |value: &dyn Fn(&PoolUsage) -> f64| -> Vec<(&str, Vec<(f64, f64)>)> {
            let of = |facts: &ProcessMetrics, name: &str| {
                facts.pools.iter().find(|pool| pool.name == name).map_or(0.0, value)
            };
            names.iter().map(|name| (*name, over(&|facts| of(facts, name)))).collect()
        };
        let used_shares = lines(&|pool| pool.used_share() * 100.0);
        charts.push(chart("Pool usage", "%", used_shares));
        charts.push(chart("Waiting for a pool", "", lines(&|pool| pool.waiting)));
    }
    charts
}

/// Returns the names of the pools with the highest usage at any time, the fullest first.
pub fn busiest_pools(metrics: &[ProcessMetrics]) -> Vec<&str> {
    let mut most: Vec<(&str, f64)> = Vec::new();
    for pool in metrics.iter().flat_map(|facts| &facts.pools) {
        match most.iter_mut().find(|(name, _)| *name == pool.name) {
            Some((_, share)) => *share = share.max(pool.used_share()),
            None => most.push((&pool.name, pool.used_share())),
        }
    }
    most.sort_by(|left, right| right.1.total_cmp(&left.1));
    most.into_iter().take(MAX_CHARTED_POOLS).map(|(name, _)| name).collect()
}

/// Minimum interval in seconds between two readings for a meaningful CPU time.
const MIN_CPU_INTERVAL_SECONDS: f64 = 0.2;

/// Returns the share of all processors that the process used between the first and the last reading.
#[must_use]
pub fn cpu_share(metrics: &[ProcessMetrics]) -> Option<f64> {
    let (first, last) = (metrics.first()?, metrics.last()?);
    let span = (last.elapsed - first.elapsed).as_secs_f64() * processor_count() as f64;
    (span > 0.0).then(|| last.cpu_time.saturating_sub(first.cpu_time).as_secs_f64() / span)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_share_is_of_all_processors() {
        let at = |seconds, cpu| ProcessMetrics {
            elapsed: Duration::from_secs(seconds),
            cpu_time: Duration::from_secs(cpu),
            ..ProcessMetrics::default()
        };
        let processors = processor_count() as f64;
        assert_eq!(cpu_share(&[at(0, 10), at(10, 15)]), Some(0.5 / processors));
        assert_eq!(cpu_share(&[at(0, 1)]), None);
    }

    #[test]
    fn charts_show_what_was_used_between_two_looks() {
        let at = |ms: u64, cpu: u64| ProcessMetrics {
            elapsed: Duration::from_millis(ms),
            cpu_time: Duration::from_millis(cpu),
            memory_bytes: 5_000_000,
            open_files: 7,
            thread_count: 3,
            disk_bytes: cpu * 1000,
            pools: Vec::new(),
        };
        let all =
            build_process_charts(&[at(0, 500), at(1000, 1500), at(3000, 2000), at(3010, 2010)]);
        assert_eq!(all[0].lines, [("processors".to_owned(), vec![(1.0, 1.0), (3.0, 0.25)])]);
        assert_eq!(all[1].lines[0].1[3], (3.01, 5.0));
        let [(_, threads), (_, files)] = all[2].lines.as_slice() else { panic!("{all:?}") };
        assert_eq!((threads[0], files[0]), ((0.0, 3.0), (0.0, 7.0)));
        assert!(
            build_process_charts(&[])
                .iter()
                .all(|chart| chart.lines.iter().all(|(_, line)| line.is_empty()))
        );
    }
}
