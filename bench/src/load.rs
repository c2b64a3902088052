//! Load on one server: requests on kept connections for some seconds, and the CPU that each cost the server.
//!
//! With `wrk` where it is installed, otherwise with one thread per connection; either is pinned to its own core.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::alternate::alternate;
use crate::context::LOAD_CORE;
use crate::http::Connection;
use crate::process::{is_installed, pinned};
use crate::{Outcome, cpu};

const SCRIPT: &str = r#"done = function(summary, latency)
  local errors = summary.errors
  io.write(string.format("RESULT %d %.4f %.4f %d\n", summary.requests, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"#;

/// A server and what is asked of it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// What is asked, over and over.
    pub(crate) path: String,
    /// The process whose CPU, children's included, counts.
    pub(crate) pid: u32,
}

/// What one run of load gives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Microseconds of the server's CPU for each request.
    pub(crate) cpu_us: f64,
    /// The median of the answer times, in milliseconds.
    pub(crate) p50_ms: f64,
    /// The answer time that one in a hundred exceeds, in milliseconds.
    pub(crate) p99_ms: f64,
}

/// How much load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Intensity {
    /// Connections open at once, each with one request on its way.
    pub(crate) connections: usize,
    /// For how long.
    pub(crate) seconds: u64,
}

/// Loads a server.
///
/// # Errors
/// If an answer failed or was not a success, or none came.
pub(crate) fn run(target: &Target, intensity: Intensity, folder: &Path) -> Outcome<Load> {
    let before = cpu::of_tree(target.pid);
    let counts = if is_installed("wrk") {
        with_wrk(target, intensity, folder)?
    } else {
        with_threads(target, intensity)?
    };
    let spent = cpu::of_tree(target.pid) - before;
    if counts.errors > 0 || counts.requests == 0 {
        let text = format!(
            "http://{}{}: {} of {} requests failed",
            target.address, target.path, counts.errors, counts.requests
        );
        return Err(text.into());
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of requests are far below 2^52")]
    let requests = counts.requests as f64;
    if spent <= 0.0 {
        let text = format!(
            "{}: {requests} requests cost less CPU than the kernel tells; the load had no core of its own",
            target.address
        );
        return Err(text.into());
    }
    Ok(Load { cpu_us: spent * 1e6 / requests, p50_ms: counts.p50_ms, p99_ms: counts.p99_ms })
}

/// Loads two servers in turn.
///
/// # Errors
/// As [`run`].
pub(crate) fn compare(
    pairs: usize,
    targets: [&Target; 2],
    intensity: Intensity,
    folder: &Path,
) -> Outcome<[Vec<Load>; 2]> {
    let [ours, theirs] = targets;
    alternate(pairs, [&mut || run(ours, intensity, folder), &mut || run(theirs, intensity, folder)])
}

struct Counts {
    requests: u64,
    p50_ms: f64,
    p99_ms: f64,
    errors: u64,
}

fn with_wrk(target: &Target, intensity: Intensity, folder: &Path) -> Outcome<Counts> {
    let script: PathBuf = folder.join("wrk.lua");
    std::fs::write(&script, SCRIPT)?;
    let mut command = pinned(LOAD_CORE, "wrk");
    command
        .arg("-t1")
        .arg(format!("-c{}", intensity.connections))
        .arg(format!("-d{}s", intensity.seconds));
    command.arg("-s").arg(script).arg(format!("http://{}{}", target.address, target.path));
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let result = text.lines().find_map(|line| line.strip_prefix("RESULT "));
    let mut fields = result.unwrap_or_default().split(' ');
    let mut field = || fields.next().ok_or("wrk printed no result");
    Ok(Counts {
        requests: field()?.parse()?,
        p50_ms: field()?.parse()?,
        p99_ms: field()?.parse()?,
        errors: field()?.parse()?,
    })
}

fn with_threads(target: &Target, intensity: Intensity) -> Outcome<Counts> {
    let end = Instant::now() + Duration::from_secs(intensity.seconds);
    let workers: Vec<_> = (0..intensity.connections)
        .map(|_| {
            let target = target.clone();
            std::thread::spawn(move || ask_until(&target, end))
        })
        .collect();
    let mut times = Vec::new();
    let mut errors = 0;
    for worker in workers {
        let (own, failed) = worker.join().map_err(|_| "a load thread panicked")?;
        times.extend(own);
        errors += failed;
    }
    times.sort_by(f64::total_cmp);
    let part = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or_default();
    let requests = u64::try_from(times.len())? + errors;
    Ok(Counts { requests, p50_ms: part(50), p99_ms: part(99), errors })
}

/// Asks on one connection until `end`; gives the answer times in milliseconds and the number of failures.
fn ask_until(target: &Target, end: Instant) -> (Vec<f64>, u64) {
    let mut core = CpuSet::new();
    core.set(LOAD_CORE);
    // Without the second core the generator shares the server's.
    sched_setaffinity(None, &core).ok();
    let mut times = Vec::new();
    let Ok(mut connection) = Connection::open(target.address, Duration::from_secs(10)) else {
        return (times, 1);
    };
    while Instant::now() < end {
        let begin = Instant::now();
        match connection.get(&target.path) {
            Ok(answer) if answer.status == 200 => times.push(begin.elapsed().as_secs_f64() * 1e3),
            _ => return (times, 1),
        }
    }
    (times, 0)
}
