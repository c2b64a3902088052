//! Programs that run to their end: what they wrote, and what they took.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;

/// A program that ended.
#[derive(Clone, Debug)]
pub(crate) struct Ran {
    /// What it wrote to its standard output.
    pub(crate) output: String,
    /// Seconds of processor time, its children's too; exact to a hundredth.
    pub(crate) cpu: f64,
    /// Seconds.
    pub(crate) wall: f64,
    /// Most memory that it held, in MiB.
    pub(crate) peak_mib: f64,
}

/// Runs a program to its end; its errors go to a file in `folder`.
///
/// # Errors
/// If it does not start, takes longer than `limit`, or ends with another code than `codes` allow.
pub(crate) fn run(
    mut command: Command,
    folder: &Path,
    limit: Duration,
    codes: &[i32],
) -> Outcome<Ran> {
    let (output, errors) = (folder.join("output.log"), folder.join("errors.log"));
    let before = of_children();
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(File::create(&output)?)
        .stderr(File::create(&errors)?)
        .spawn()?;
    let mut peak_mib: f64 = 0.0;
    let status = loop {
        peak_mib = peak_mib.max(high_water(child.id()).unwrap_or_default());
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if started.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Err(format!("it still ran after {} s", limit.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let wall = started.elapsed().as_secs_f64();
    if !status.code().is_some_and(|code| codes.contains(&code)) {
        let errors = std::fs::read_to_string(&errors).unwrap_or_default();
        let last = errors.lines().last().unwrap_or_default().to_owned();
        return Err(format!("it ended with {status}: {last}").into());
    }
    let cpu = of_children() - before;
    let output = String::from_utf8_lossy(&std::fs::read(&output)?).into_owned();
    Ok(Ran { output, cpu, wall, peak_mib })
}

/// Returns the processor time of children that ended, in seconds.
fn of_children() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> =
        text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let field = |index: usize| fields.get(index).and_then(|field| field.parse::<u32>().ok());
    f64::from(field(13).unwrap_or_default() + field(14).unwrap_or_default()) / 100.0
}

/// Returns the most memory that a process held so far, in MiB.
fn high_water(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}
