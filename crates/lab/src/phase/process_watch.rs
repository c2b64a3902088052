//! Monitors the tested process once a second: CPU time, memory, open files, threads, disk, and its pools if it reports
//! them.
//!
//! In: a local process, or the URL of metrics in Prometheus format. Out: [`ProcessMetrics`] of each second.
//!
//! On failure: a second without a successful reading has no metrics.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Result;
use crate::load::probe_client::{ProbeClient, ProbeRequest};
use crate::load::scripted_fetch::basic_auth_header;
pub use crate::measurement::{PoolUsage, ProcessMetrics};
use crate::net::{AbsoluteUrl, parse_user_info};

/// The source of process metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessMetricsSource {
    /// A local process ID.
    Process(u32),
    /// The URL of metrics in Prometheus format; `user:password@` in it is sent as credentials.
    Metrics(String),
}

/// A monitor that runs until it is stopped.
#[derive(Debug)]
pub struct ProcessWatch {
    stop_signal: Arc<(Mutex<bool>, Condvar)>,
    sampler_thread: Option<JoinHandle<Vec<ProcessMetrics>>>,
}

/// Kernel ticks per second: the unit of CPU time in `/proc`, the same on all supported Linux machines.
const KERNEL_TICKS_PER_SECOND: u64 = 100;

impl ProcessWatch {
    /// Starts monitoring.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`](crate::Error::InvalidUrl) for an invalid metrics URL.
    pub fn start(source: &ProcessMetricsSource) -> Result<Self> {
        let mut eye = match source {
            ProcessMetricsSource::Process(pid) => ProcessMetricsReader::Process(*pid),
            ProcessMetricsSource::Metrics(url) => {
                let login = parse_user_info(url).map(|login| basic_auth_header(&login));
                ProcessMetricsReader::Metrics {
                    url: AbsoluteUrl::parse(url)?,
                    headers: login.into_iter().collect(),
                    client: Box::new(ProbeClient::new(METRICS_TIMEOUT)),
                }
            }
        };
        let end = Arc::new((Mutex::new(false), Condvar::new()));
        let shared = Arc::clone(&end);
        let thread = std::thread::Builder::new().name("watch".to_owned());
        let thread = thread.spawn(move || sample_until_stopped(&mut eye, &shared)).ok();
        Ok(Self { stop_signal: end, sampler_thread: thread })
    }

    /// Stops monitoring; returns the readings, oldest first.
    #[must_use]
    pub fn stop(mut self) -> Vec<ProcessMetrics> {
        *self.stop_signal.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop_signal.1.notify_all();
        self.sampler_thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

/// Maximum wait for metrics: a slower source is busy, and the next reading comes soon.
const METRICS_TIMEOUT: Duration = Duration::from_secs(2);

/// The reader for a metrics source.
enum ProcessMetricsReader {
    Process(u32),
    Metrics { url: AbsoluteUrl, headers: Vec<(String, String)>, client: Box<ProbeClient> },
}

impl ProcessMetricsReader {
    fn sample(&mut self, at: Duration) -> Option<ProcessMetrics> {
        match self {
            Self::Process(pid) => read_proc_metrics(*pid, at),
            Self::Metrics { url, headers, client } => {
                let question = ProbeRequest { method: "GET", url, headers, body: b"" };
                let response =
                    client.send(&question).ok().filter(|response| response.status == 200)?;
                parse_metrics(&String::from_utf8_lossy(&response.body), at)
            }
        }
    }
}

/// Parses metrics in Prometheus format; `None` if they describe no process.
fn parse_metrics(text: &str, at: Duration) -> Option<ProcessMetrics> {
    let mut facts = ProcessMetrics { elapsed: at, ..ProcessMetrics::default() };
    let mut is_known = false;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, value)) = line.rsplit_once(' ') else { continue };
        let Ok(value) = value.parse::<f64>() else { continue };
        let (name, labels) = name.split_once('{').unwrap_or((name, ""));
        let count = value.max(0.0) as u64;
        match name {
            "process_cpu_seconds_total" => {
                facts.cpu_time = Duration::try_from_secs_f64(value).unwrap_or_default();
                is_known = true;
            }
            "process_resident_memory_bytes" => facts.memory_bytes = count,
            "process_open_fds" => facts.open_files = count,
            "process_threads" => facts.thread_count = count,
            "process_disk_read_bytes_total" | "process_disk_written_bytes_total" => {
                facts.disk_bytes += count;
            }
            "tympan_pool_in_use" => pool_for_labels(&mut facts.pools, labels).in_use = value,
            "tympan_pool_limit" => pool_for_labels(&mut facts.pools, labels).limit = value,
            "tympan_pool_waiting" => pool_for_labels(&mut facts.pools, labels).waiting = value,
            _ => {}
        }
    }
    is_known.then_some(facts)
}

/// Returns the pool that the labels name.
fn pool_for_labels<'p>(pools: &'p mut Vec<PoolUsage>, labels: &str) -> &'p mut PoolUsage {
    let name = labels.split("pool=\"").nth(1).and_then(|rest| rest.split('"').next());
    let name = name.unwrap_or_default();
    let index = pools.iter().position(|pool| pool.name == name).unwrap_or_else(|| {
        pools.push(PoolUsage { name: name.to_owned(), ..PoolUsage::default() });
        pools.len() - 1
    });
    #[expect(clippy::indexing_slicing, reason = "it was found there, or added last")]
    &mut pools[index]
}

fn sample_until_stopped(
    eye: &mut ProcessMetricsReader,
    end: &(Mutex<bool>, Condvar),
) -> Vec<ProcessMetrics> {
    let started = Instant::now();
    let (mut metrics, mut is_over) = (Vec::new(), false);
    loop {
        metrics.extend(eye.sample(started.elapsed()));
        if is_over {
            return metrics;
        }
        let ended = end.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = Duration::from_secs(1);
        let ended = end.1.wait_timeout_while(ended, next, |ended| !*ended);
        is_over = *ended.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Returns the `/proc` metrics of a process; `None` if it does not exist or is not accessible.
fn read_proc_metrics(pid: u32, at: Duration) -> Option<ProcessMetrics> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name in parentheses may contain any characters.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let ticks = field(11)? + field(12)?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = resident.trim().trim_end_matches("kB").trim().parse().ok()?;
    let files =
        std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |files| files.count() as u64);
    // Without permission to read this file, disk metrics are omitted.
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let bytes =
        |name: &str| io.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    let disk = bytes("read_bytes:").unwrap_or(0) + bytes("write_bytes:").unwrap_or(0);
    Some(ProcessMetrics {
        elapsed: at,
        cpu_time: Duration::from_millis(ticks * 1000 / KERNEL_TICKS_PER_SECOND),
        memory_bytes: kilobytes * 1024,
        open_files: files,
        thread_count: field(17)?,
        disk_bytes: disk,
        pools: Vec::new(),
    })
}

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
pub(crate) fn busiest_pools(metrics: &[ProcessMetrics]) -> Vec<&str> {
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
    let span = (last.elapsed - first.elapsed).as_secs_f64() * crate::load::processor_count() as f64;
    (span > 0.0).then(|| last.cpu_time.saturating_sub(first.cpu_time).as_secs_f64() / span)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_process_can_be_seen() {
        let watch =
            ProcessWatch::start(&ProcessMetricsSource::Process(std::process::id())).unwrap();
        let metrics = watch.stop();
        let last = metrics.last().unwrap();
        assert!(
            last.memory_bytes > 100_000 && last.open_files > 0 && last.thread_count >= 1,
            "{last:?}"
        );
        assert_eq!(read_proc_metrics(u32::MAX, Duration::ZERO), None);
    }

    #[test]
    fn the_share_is_of_all_processors() {
        let at = |seconds, cpu| ProcessMetrics {
            elapsed: Duration::from_secs(seconds),
            cpu_time: Duration::from_secs(cpu),
            ..ProcessMetrics::default()
        };
        let processors = crate::load::processor_count() as f64;
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

    const METRICS: &str = "# TYPE process_threads gauge\nprocess_cpu_seconds_total 1.5\nprocess_threads 9\n\
        process_resident_memory_bytes 5e6\nprocess_open_fds 12\nprocess_disk_read_bytes_total 3\n\
        process_disk_written_bytes_total 4\nno number\ntympan_pool_in_use{role=\"publish\",pool=\"work\"} 6\n\
        tympan_pool_limit{role=\"publish\",pool=\"work\"} 8\ntympan_pool_waiting{role=\"publish\",pool=\"work\"} 2\n\
        tympan_pool_in_use{role=\"publish\",pool=\"state\"} 1\ntympan_pool_limit{role=\"publish\",pool=\"state\"} 100\n";

    #[test]
    fn metrics_tell_the_process_and_its_pools() {
        let facts = parse_metrics(METRICS, Duration::from_secs(1)).unwrap();
        assert_eq!((facts.cpu_time, facts.memory_bytes), (Duration::from_millis(1500), 5_000_000));
        assert_eq!((facts.thread_count, facts.open_files, facts.disk_bytes), (9, 12, 7));
        let work = &facts.pools[0];
        assert_eq!((work.name.as_str(), work.used_share(), work.waiting), ("work", 0.75, 2.0));
        assert_eq!(busiest_pools(std::slice::from_ref(&facts)), ["work", "state"]);
        let later = ProcessMetrics { elapsed: Duration::from_secs(2), ..facts.clone() };
        let all = build_process_charts(&[facts, later]);
        let titles: Vec<&str> = all.iter().map(|chart| chart.title).collect();
        assert_eq!(titles[4..], ["Pool usage", "Waiting for a pool"]);
        assert_eq!(all[4].lines[0], ("work".to_owned(), vec![(1.0, 75.0), (2.0, 75.0)]));
        assert_eq!(parse_metrics("up 1\n", Duration::ZERO), None);
        assert_eq!(parse_metrics("", Duration::ZERO), None);
    }

    #[test]
    fn an_address_that_is_none_is_refused() {
        assert!(
            ProcessWatch::start(&ProcessMetricsSource::Metrics("no address".to_owned())).is_err()
        );
    }
}
