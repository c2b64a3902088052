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
}
