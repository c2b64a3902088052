//! Resources used by the process: processor, memory, threads, files, disk; and the version of the program.
//!
//! Names follow Prometheus's own client libraries where these define them. Values that the system does not provide are
//! left out.

use std::fmt::Write;
use std::fs;

/// The unit of times in `/proc`: Linux's `USER_HZ`, which is 100 on all processors that the program is built for.
const CLOCK_TICKS_PER_SECOND: f64 = 100.0;

/// Returns the resources used by the process, and the version of the program, as Prometheus text. Reads files of `/proc`.
#[must_use]
pub fn process_metrics() -> String {
    let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let mut numbers = Vec::new();
    numbers.push(("process_cpu_seconds_total", "counter", "Processor time.", read_cpu_seconds()));
    numbers.extend(read_start_time().map(|seconds| {
        let help = "Start of the process, in seconds since 1970; a change is a restart.";
        ("process_start_time_seconds", "gauge", help, seconds)
    }));
    let status = read("status");
    let kilobytes = |name: &str| parse_field(&status, name).map(|value| value * 1024.0);
    let io = read("io");
    let limits = read("limits");
    for (name, kind, help, value) in [
        ("process_threads", "gauge", "Threads.", parse_field(&status, "Threads:")),
        (
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory, including mapped files.",
            kilobytes("VmRSS:"),
        ),
        (
            "process_anonymous_memory_bytes",
            "gauge",
            "Resident memory without mapped files.",
            kilobytes("RssAnon:"),
        ),
        (
            "process_virtual_memory_bytes",
            "gauge",
            "Size of the address space in use.",
            kilobytes("VmSize:"),
        ),
        ("process_open_fds", "gauge", "Open files and connections.", count_open_files()),
        (
            "process_max_fds",
            "gauge",
            "Maximum number of open files and connections.",
            parse_field(&limits, "Max open files"),
        ),
        (
            "process_disk_read_bytes_total",
            "counter",
            "Bytes read from disks, not from the page cache.",
            parse_field(&io, "read_bytes:"),
        ),
        (
            "process_disk_written_bytes_total",
            "counter",
            "Bytes submitted for writing to disks.",
            parse_field(&io, "write_bytes:"),
        ),
        (
            "process_context_switches_total",
            "counter",
            "Voluntary and involuntary context switches of the main thread.",
            parse_field(&status, "voluntary_ctxt_switches:")
                .zip(parse_field(&status, "nonvoluntary_ctxt_switches:"))
                .map(|(own, forced)| own + forced),
        ),
    ] {
        numbers.extend(value.map(|value| (name, kind, help, value)));
    }
    let mut text = format!(
        "# HELP tympan_build_info The version of the program; the value is 1.\n\
         # TYPE tympan_build_info gauge\n\
         tympan_build_info{{version=\"{}\"}} 1\n",
        env!("CARGO_PKG_VERSION")
    );
    for (name, kind, help, value) in numbers {
        // Writing to a string cannot fail.
        write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n").ok();
    }
    text
}

/// Returns the resident memory of the process in bytes; 0 if the system does not provide it.
pub(crate) fn memory_of_process() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    parse_field(&status, "VmRSS:").map_or(0, |kilobytes| kilobytes as u64 * 1024)
}

/// Returns the number of open files and connections; 0 if the system does not provide it.
pub(crate) fn open_files_of_process() -> u64 {
    count_open_files().map_or(0, |count| count as u64)
}

/// Parses the number that follows a name at the beginning of a line.
pub(crate) fn parse_field(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn read_cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the start of the process in seconds since 1970, to the second: the boot time has whole seconds.
fn read_start_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let started = parse_start_ticks(&stat)? / CLOCK_TICKS_PER_SECOND;
    let boot = parse_field(&fs::read_to_string("/proc/stat").ok()?, "btime")?;
    Some(boot + started)
}

/// Parses the start of the process, in clock ticks since the boot. The name of the program, in parentheses, may have
/// spaces; the start is the 20th field after it.
fn parse_start_ticks(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

fn count_open_files() -> Option<f64> {
    Some(fs::read_dir("/proc/self/fd").ok()?.count() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_tells() {
        let text = process_metrics();
        for name in [
            "process_cpu_seconds_total",
            "process_start_time_seconds",
            "process_threads",
            "process_open_fds",
        ] {
            let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
            let value: f64 = line.unwrap().split(' ').nth(1).unwrap().parse().unwrap();
            assert!(value >= 0.0, "{name}");
        }
        assert!(text.contains("\ntympan_build_info{version=\""), "{text}");
        let stat = "1 (a b) c) S 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 4711 22";
        assert_eq!(parse_start_ticks(stat), Some(4711.0));
        assert_eq!(parse_field("Threads:\t12\nX: 1 kB\n", "X:"), Some(1.0));
        assert_eq!(
            parse_field("Max open files            1024   4096   files\n", "Max open files"),
            Some(1024.0)
        );
    }
}
