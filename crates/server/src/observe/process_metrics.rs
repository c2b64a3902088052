//! Resources used by the process: processor, memory, threads, files, disk.
//!
//! Names follow Prometheus's own client libraries where these define them. Values that the system does not provide are
//! left out.

use std::fmt::Write;
use std::fs;

/// Returns the resources used by the process as Prometheus text.
pub(crate) fn process_metrics() -> String {
    let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let mut numbers = Vec::new();
    numbers.push(("process_cpu_seconds_total", "counter", "Processor time.", read_cpu_seconds()));
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
    let mut text = String::new();
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

fn count_open_files() -> Option<f64> {
    Some(fs::read_dir("/proc/self/fd").ok()?.count() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_tells() {
        let text = process_metrics();
        for name in ["process_cpu_seconds_total", "process_threads", "process_open_fds"] {
            let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
            let value: f64 = line.unwrap().split(' ').nth(1).unwrap().parse().unwrap();
            assert!(value >= 0.0, "{name}");
        }
        assert_eq!(parse_field("Threads:\t12\nX: 1 kB\n", "X:"), Some(1.0));
        assert_eq!(
            parse_field("Max open files            1024   4096   files\n", "Max open files"),
            Some(1024.0)
        );
    }
}
