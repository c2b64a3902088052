//! Monitors the tested process once a second: CPU time, memory, open files, threads, disk, and its pools if it reports
//! them.
//!
//! In: a local process, or the URL of metrics in Prometheus format. Out: [`ProcessMetrics`] of each second.
//!
//! On failure: a second without a successful reading has no metrics.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tympan_lab_engine::load::probe_client::{ProbeClient, ProbeRequest};
use tympan_lab_engine::load::request_authorization::RequestAuthorization;
use tympan_lab_plan::{AbsoluteUrl, parse_user_info};

use crate::Result;
pub use tympan_lab_engine::measurement::{PoolUsage, ProcessMetrics};

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
    /// `Error::InvalidUrl` for an invalid metrics URL.
    pub fn start(source: &ProcessMetricsSource) -> Result<Self> {
        let mut eye = match source {
            ProcessMetricsSource::Process(pid) => ProcessMetricsReader::Process(*pid),
            ProcessMetricsSource::Metrics(url) => {
                let login = parse_user_info(url)
                    .map(|login| RequestAuthorization::basic(&login).to_header());
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

#[cfg(test)]
mod tests {
    use super::*;
    use tympan_lab_engine::report::process_chart::{build_process_charts, busiest_pools};

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
