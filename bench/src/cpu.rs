//! CPU time: of this process, of this thread, and of other processes with their children.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The kernel tells other processes' time in these.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns the CPU time of this process, all threads together.
pub(crate) fn of_this_process() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let part = |number: i64| u64::try_from(number).unwrap_or_default();
    Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec))
}

/// Runs something and returns the seconds of CPU that this process spent on it.
pub(crate) fn spent<T>(run: impl FnOnce() -> T) -> (T, f64) {
    let before = of_this_process();
    let value = run();
    (value, (of_this_process().saturating_sub(before)).as_secs_f64())
}

/// Returns the seconds of CPU that a process and its living children have spent, exact to a hundredth.
pub(crate) fn of_tree(pid: u32) -> f64 {
    let mut total = 0.0;
    let mut open = vec![pid];
    let processes: Vec<Stat> = list().collect();
    while let Some(pid) = open.pop() {
        total +=
            processes.iter().filter(|stat| stat.pid == pid).map(|stat| stat.seconds).sum::<f64>();
        open.extend(processes.iter().filter(|stat| stat.parent == pid).map(|stat| stat.pid));
    }
    total
}

/// Returns the resident memory of a process in MiB.
pub(crate) fn resident_mib(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}

/// Returns how many bytes this process handed to the kernel to write.
pub(crate) fn bytes_written() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("wchar: "))?.trim().parse().ok()
}

struct Stat {
    pid: u32,
    parent: u32,
    seconds: f64,
}

fn list() -> impl Iterator<Item = Stat> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| stat(entry.file_name().to_str()?.parse().ok()?))
}

fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything; what follows it is plain.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |index: usize| fields.get(index)?.parse::<u32>().ok();
    let ticks = f64::from(field(11)?) + f64::from(field(12)?);
    Some(Stat { pid, parent: field(1)?, seconds: ticks / TICKS_PER_SECOND })
}
