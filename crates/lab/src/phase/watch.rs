//! Looks at the tested process once a second: processor time, memory, open files, threads, disk; and at its pools, if it tells
//! of them.
//!
//! In: a process of this machine, or the address of metrics in Prometheus's form. Out: [`Facts`] of each second.
//!
//! On failure: a second in which nothing could be seen has no facts.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Result;
use crate::browse::basic;
use crate::client::{Client, Question};
use crate::net::{Url, user_info};

/// What is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A process of this machine.
    Process(u32),
    /// An address that answers with metrics in Prometheus's form; `user:password@` in it is sent as a login.
    Metrics(String),
}

/// What was seen of the process at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// Since the first look.
    pub at: Duration,
    /// Processor time that the process has used.
    pub cpu: Duration,
    /// Resident memory in bytes.
    pub memory: u64,
    /// Open files.
    pub files: u64,
    /// Threads.
    pub threads: u64,
    /// Bytes that it has read from disks and written to them.
    pub disk: u64,
    /// Its pools, such as threads that work and connections; nothing if it tells of none.
    pub pools: Vec<Pool>,
}

/// A pool of places that requests take.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pool {
    /// Such as `work`.
    pub name: String,
    /// Places that are taken.
    pub in_use: f64,
    /// Places that there may be.
    pub limit: f64,
    /// Who waits for one.
    pub waiting: f64,
}

impl Pool {
    /// Returns the share of its places that are taken.
    #[must_use]
    pub fn share(&self) -> f64 {
        if self.limit > 0.0 { self.in_use / self.limit } else { 0.0 }
    }
}

/// A look that goes on until it is stopped.
#[derive(Debug)]
pub struct Watch {
    end: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<Vec<Facts>>>,
}

/// Kernel ticks per second: what `/proc` counts processor time in, the same on every Linux of our machines.
const TICKS: u64 = 100;

impl Watch {
    /// Begins to look.
    ///
    /// # Errors
    /// [`Error::Url`](crate::Error::Url) for an address of metrics that is none.
    pub fn start(source: &Source) -> Result<Self> {
        let mut eye = match source {
            Source::Process(pid) => Eye::Process(*pid),
            Source::Metrics(url) => {
                let login = user_info(url).map(|login| basic(&login));
                Eye::Metrics {
                    url: Url::parse(url)?,
                    headers: login.into_iter().collect(),
                    client: Box::new(Client::new(PATIENCE)),
                }
            }
        };
        let end = Arc::new((Mutex::new(false), Condvar::new()));
        let shared = Arc::clone(&end);
        let thread = std::thread::Builder::new().name("watch".to_owned());
        let thread = thread.spawn(move || look(&mut eye, &shared)).ok();
        Ok(Self { end, thread })
    }

    /// Ends it; returns what was seen, oldest first.
    #[must_use]
    pub fn stop(mut self) -> Vec<Facts> {
        *self.end.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.end.1.notify_all();
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

/// Longest wait for metrics: what tells them later is busy, and the next look comes soon.
const PATIENCE: Duration = Duration::from_secs(2);

/// How it is looked.
enum Eye {
    Process(u32),
    Metrics { url: Url, headers: Vec<(String, String)>, client: Box<Client> },
}

impl Eye {
    fn see(&mut self, at: Duration) -> Option<Facts> {
        match self {
            Self::Process(pid) => facts(*pid, at),
            Self::Metrics { url, headers, client } => {
                let question = Question { method: "GET", url, headers, body: b"" };
                let answer = client.ask(&question).ok().filter(|answer| answer.status == 200)?;
                of_metrics(&String::from_utf8_lossy(&answer.body), at)
            }
        }
    }
}

/// Reads metrics in Prometheus's form; `None` if they tell nothing of a process.
fn of_metrics(text: &str, at: Duration) -> Option<Facts> {
    let mut facts = Facts { at, ..Facts::default() };
    let mut is_known = false;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, value)) = line.rsplit_once(' ') else { continue };
        let Ok(value) = value.parse::<f64>() else { continue };
        let (name, labels) = name.split_once('{').unwrap_or((name, ""));
        let count = value.max(0.0) as u64;
        match name {
            "process_cpu_seconds_total" => {
                facts.cpu = Duration::try_from_secs_f64(value).unwrap_or_default();
                is_known = true;
            }
            "process_resident_memory_bytes" => facts.memory = count,
            "process_open_fds" => facts.files = count,
            "process_threads" => facts.threads = count,
            "process_disk_read_bytes_total" | "process_disk_written_bytes_total" => {
                facts.disk += count;
            }
            "tympan_pool_in_use" => pool(&mut facts.pools, labels).in_use = value,
            "tympan_pool_limit" => pool(&mut facts.pools, labels).limit = value,
            "tympan_pool_waiting" => pool(&mut facts.pools, labels).waiting = value,
            _ => {}
        }
    }
    is_known.then_some(facts)
}

/// Returns the pool that labels name.
fn pool<'p>(pools: &'p mut Vec<Pool>, labels: &str) -> &'p mut Pool {
    let name = labels.split("pool=\"").nth(1).and_then(|rest| rest.split('"').next());
    let name = name.unwrap_or_default();
    let place = pools.iter().position(|pool| pool.name == name).unwrap_or_else(|| {
        pools.push(Pool { name: name.to_owned(), ..Pool::default() });
        pools.len() - 1
    });
    #[expect(clippy::indexing_slicing, reason = "it was found there, or added last")]
    &mut pools[place]
}

fn look(eye: &mut Eye, end: &(Mutex<bool>, Condvar)) -> Vec<Facts> {
    let started = Instant::now();
    let (mut seen, mut is_over) = (Vec::new(), false);
    loop {
        seen.extend(eye.see(started.elapsed()));
        if is_over {
            return seen;
        }
        let ended = end.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = Duration::from_secs(1);
        let ended = end.1.wait_timeout_while(ended, next, |ended| !*ended);
        is_over = *ended.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Returns what `/proc` tells of a process; `None` if there is none, or it is somebody else's.
fn facts(pid: u32, at: Duration) -> Option<Facts> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |place: usize| fields.get(place)?.parse::<u64>().ok();
    let ticks = field(11)? + field(12)?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = resident.trim().trim_end_matches("kB").trim().parse().ok()?;
    let files =
        std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |files| files.count() as u64);
    // Who may not read this is told nothing of disks.
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let bytes =
        |name: &str| io.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    let disk = bytes("read_bytes:").unwrap_or(0) + bytes("write_bytes:").unwrap_or(0);
    Some(Facts {
        at,
        cpu: Duration::from_millis(ticks * 1000 / TICKS),
        memory: kilobytes * 1024,
        files,
        threads: field(17)?,
        disk,
        pools: Vec::new(),
    })
}

/// One chart of what was seen: lines over seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// What it shows.
    pub title: &'static str,
    /// What its vertical axis counts.
    pub unit: &'static str,
    /// Names and points.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// Most pools in a chart: those that were taken most.
const MOST_POOLS: usize = 3;

/// Returns the charts of what was seen: processors, memory, threads and open files; disk and pools, where they are told.
#[must_use]
pub fn charts(seen: &[Facts]) -> Vec<Chart> {
    let over = |value: &dyn Fn(&Facts) -> f64| -> Vec<(f64, f64)> {
        seen.iter().map(|facts| (facts.at.as_secs_f64(), value(facts))).collect()
    };
    let per_second = |value: &dyn Fn(&Facts) -> f64| -> Vec<(f64, f64)> {
        let growth = |pair: &[Facts]| -> Option<(f64, f64)> {
            let [before, now] = pair else { return None };
            let span = now.at.saturating_sub(before.at).as_secs_f64();
            let more = (value(now) - value(before)).max(0.0);
            // The last look follows the one before it at once; the kernel's ticks are coarser than that.
            (span > SHORTEST).then(|| (now.at.as_secs_f64(), more / span))
        };
        seen.windows(2).filter_map(growth).collect()
    };
    let chart = |title, unit, lines: Vec<(&str, Vec<(f64, f64)>)>| Chart {
        title,
        unit,
        lines: lines.into_iter().map(|(name, points)| (name.to_owned(), points)).collect(),
    };
    let mut charts = vec![
        chart(
            "Processors of the tested process (1 is one busy processor)",
            "",
            vec![("processors", per_second(&|facts| facts.cpu.as_secs_f64()))],
        ),
        chart(
            "Memory of the tested process",
            "MB",
            vec![("resident", over(&|facts| facts.memory as f64 / 1e6))],
        ),
        chart(
            "Threads and open files of the tested process",
            "",
            vec![
                ("threads", over(&|facts| facts.threads as f64)),
                ("open files", over(&|facts| facts.files as f64)),
            ],
        ),
    ];
    if seen.iter().any(|facts| facts.disk > 0) {
        let megabytes = per_second(&|facts| facts.disk as f64 / 1e6);
        let lines = vec![("read and written", megabytes)];
        charts.push(chart("Disks of the tested process", "MB/s", lines));
    }
    let names = busiest_pools(seen);
    if !names.is_empty() {
        let lines = |value: &dyn Fn(&Pool) -> f64| -> Vec<(&str, Vec<(f64, f64)>)> {
            let of = |facts: &Facts, name: &str| {
                facts.pools.iter().find(|pool| pool.name == name).map_or(0.0, value)
            };
            names.iter().map(|name| (*name, over(&|facts| of(facts, name)))).collect()
        };
        let taken = lines(&|pool| pool.share() * 100.0);
        charts.push(chart("Places of pools that are taken", "%", taken));
        charts.push(chart("Who waits for a place", "", lines(&|pool| pool.waiting)));
    }
    charts
}

/// Returns the names of the pools that were taken most at any time, the fullest first.
pub(crate) fn busiest_pools(seen: &[Facts]) -> Vec<&str> {
    let mut most: Vec<(&str, f64)> = Vec::new();
    for pool in seen.iter().flat_map(|facts| &facts.pools) {
        match most.iter_mut().find(|(name, _)| *name == pool.name) {
            Some((_, share)) => *share = share.max(pool.share()),
            None => most.push((&pool.name, pool.share())),
        }
    }
    most.sort_by(|one, other| other.1.total_cmp(&one.1));
    most.into_iter().take(MOST_POOLS).map(|(name, _)| name).collect()
}

/// Seconds between two looks that are too few to tell of processor time.
const SHORTEST: f64 = 0.2;

/// Returns the share of all processors that the process used between the first and the last look.
#[must_use]
pub fn cpu_share(seen: &[Facts]) -> Option<f64> {
    let (first, last) = (seen.first()?, seen.last()?);
    let span = (last.at - first.at).as_secs_f64() * crate::load::processors() as f64;
    (span > 0.0).then(|| last.cpu.saturating_sub(first.cpu).as_secs_f64() / span)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_process_can_be_seen() {
        let watch = Watch::start(&Source::Process(std::process::id())).unwrap();
        let seen = watch.stop();
        let last = seen.last().unwrap();
        assert!(last.memory > 100_000 && last.files > 0 && last.threads >= 1, "{last:?}");
        assert_eq!(facts(u32::MAX, Duration::ZERO), None);
    }

    #[test]
    fn the_share_is_of_all_processors() {
        let at = |seconds, cpu| Facts {
            at: Duration::from_secs(seconds),
            cpu: Duration::from_secs(cpu),
            ..Facts::default()
        };
        let processors = crate::load::processors() as f64;
        assert_eq!(cpu_share(&[at(0, 10), at(10, 15)]), Some(0.5 / processors));
        assert_eq!(cpu_share(&[at(0, 1)]), None);
    }

    #[test]
    fn charts_show_what_was_used_between_two_looks() {
        let at = |ms: u64, cpu: u64| Facts {
            at: Duration::from_millis(ms),
            cpu: Duration::from_millis(cpu),
            memory: 5_000_000,
            files: 7,
            threads: 3,
            disk: cpu * 1000,
            pools: Vec::new(),
        };
        let all = charts(&[at(0, 500), at(1000, 1500), at(3000, 2000), at(3010, 2010)]);
        assert_eq!(all[0].lines, [("processors".to_owned(), vec![(1.0, 1.0), (3.0, 0.25)])]);
        assert_eq!(all[1].lines[0].1[3], (3.01, 5.0));
        let [(_, threads), (_, files)] = all[2].lines.as_slice() else { panic!("{all:?}") };
        assert_eq!((threads[0], files[0]), ((0.0, 3.0), (0.0, 7.0)));
        assert!(
            charts(&[]).iter().all(|chart| chart.lines.iter().all(|(_, line)| line.is_empty()))
        );
    }

    const METRICS: &str = "# TYPE process_threads gauge\nprocess_cpu_seconds_total 1.5\nprocess_threads 9\n\
        process_resident_memory_bytes 5e6\nprocess_open_fds 12\nprocess_disk_read_bytes_total 3\n\
        process_disk_written_bytes_total 4\nno number\ntympan_pool_in_use{role=\"publish\",pool=\"work\"} 6\n\
        tympan_pool_limit{role=\"publish\",pool=\"work\"} 8\ntympan_pool_waiting{role=\"publish\",pool=\"work\"} 2\n\
        tympan_pool_in_use{role=\"publish\",pool=\"state\"} 1\ntympan_pool_limit{role=\"publish\",pool=\"state\"} 100\n";

    #[test]
    fn metrics_tell_the_process_and_its_pools() {
        let facts = of_metrics(METRICS, Duration::from_secs(1)).unwrap();
        assert_eq!((facts.cpu, facts.memory), (Duration::from_millis(1500), 5_000_000));
        assert_eq!((facts.threads, facts.files, facts.disk), (9, 12, 7));
        let work = &facts.pools[0];
        assert_eq!((work.name.as_str(), work.share(), work.waiting), ("work", 0.75, 2.0));
        assert_eq!(busiest_pools(std::slice::from_ref(&facts)), ["work", "state"]);
        let later = Facts { at: Duration::from_secs(2), ..facts.clone() };
        let all = charts(&[facts, later]);
        let titles: Vec<&str> = all.iter().map(|chart| chart.title).collect();
        assert_eq!(titles[4..], ["Places of pools that are taken", "Who waits for a place"]);
        assert_eq!(all[4].lines[0], ("work".to_owned(), vec![(1.0, 75.0), (2.0, 75.0)]));
        assert_eq!(of_metrics("up 1\n", Duration::ZERO), None);
        assert_eq!(of_metrics("", Duration::ZERO), None);
    }

    #[test]
    fn an_address_that_is_none_is_refused() {
        assert!(Watch::start(&Source::Metrics("no address".to_owned())).is_err());
    }
}
