//! Looks at a process of this machine once a second: processor time, memory, open files, threads.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What was seen of the process at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
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
    /// Begins to look at a process.
    #[must_use]
    pub fn start(pid: u32) -> Self {
        let end = Arc::new((Mutex::new(false), Condvar::new()));
        let shared = Arc::clone(&end);
        let thread = std::thread::Builder::new().name("watch".to_owned());
        let thread = thread.spawn(move || look(pid, &shared)).ok();
        Self { end, thread }
    }

    /// Ends it; returns what was seen, oldest first.
    #[must_use]
    pub fn stop(mut self) -> Vec<Facts> {
        *self.end.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.end.1.notify_all();
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

fn look(pid: u32, end: &(Mutex<bool>, Condvar)) -> Vec<Facts> {
    let started = Instant::now();
    let (mut seen, mut is_over) = (Vec::new(), false);
    loop {
        seen.extend(facts(pid, started.elapsed()));
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
    Some(Facts {
        at,
        cpu: Duration::from_millis(ticks * 1000 / TICKS),
        memory: kilobytes * 1024,
        files,
        threads: field(17)?,
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
    pub lines: Vec<(&'static str, Vec<(f64, f64)>)>,
}

/// Returns the charts of what was seen: processors, memory, threads and open files.
#[must_use]
pub fn charts(seen: &[Facts]) -> Vec<Chart> {
    let over = |value: &dyn Fn(&Facts) -> f64| -> Vec<(f64, f64)> {
        seen.iter().map(|facts| (facts.at.as_secs_f64(), value(facts))).collect()
    };
    let busy = |pair: &[Facts]| -> Option<(f64, f64)> {
        let [before, now] = pair else { return None };
        let span = now.at.saturating_sub(before.at).as_secs_f64();
        let cpu = now.cpu.saturating_sub(before.cpu).as_secs_f64();
        // The last look follows the one before it at once; the kernel's ticks are coarser than that.
        (span > SHORTEST).then(|| (now.at.as_secs_f64(), cpu / span))
    };
    let processors = seen.windows(2).filter_map(busy).collect();
    let memory = over(&|facts| facts.memory as f64 / 1e6);
    let threads = over(&|facts| facts.threads as f64);
    let files = over(&|facts| facts.files as f64);
    vec![
        Chart {
            title: "Processors of the tested process (1 is one busy processor)",
            unit: "",
            lines: vec![("processors", processors)],
        },
        Chart {
            title: "Memory of the tested process",
            unit: "MB",
            lines: vec![("resident", memory)],
        },
        Chart {
            title: "Threads and open files of the tested process",
            unit: "",
            lines: vec![("threads", threads), ("open files", files)],
        },
    ]
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
        let watch = Watch::start(std::process::id());
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
            memory: 0,
            files: 0,
            threads: 1,
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
        };
        let all = charts(&[at(0, 400), at(1000, 1400), at(3000, 1900), at(3010, 1910)]);
        assert_eq!(all[0].lines, [("processors", vec![(1.0, 1.0), (3.0, 0.25)])]);
        assert_eq!(all[1].lines[0].1[3], (3.01, 5.0));
        let [(_, threads), (_, files)] = all[2].lines.as_slice() else { panic!("{all:?}") };
        assert_eq!((threads[0], files[0]), ((0.0, 3.0), (0.0, 7.0)));
        assert!(
            charts(&[]).iter().all(|chart| chart.lines.iter().all(|(_, line)| line.is_empty()))
        );
    }
}
