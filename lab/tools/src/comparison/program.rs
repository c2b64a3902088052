//! Runs a program and measures it: elapsed time, processor time, peak memory, and a number that it prints.
//!
//! In: the words of a command line, some with placeholders for settings. Out: a [`ProgramMeasurement`].
//!
//! The peak memory is the kernel's figure for the program and the children that it waited for. The kernel includes the
//! moment before the program replaces its caller, so figures below this process's own size cannot be measured.

use std::io::Read;
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use regex::Regex;

use crate::{Error, Result};

/// Measurements of one run of a program.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProgramMeasurement {
    /// Time from the program's start to its end.
    pub elapsed: Duration,
    /// Processor time, including system time.
    pub cpu_time: Duration,
    /// Peak resident memory, in bytes.
    pub peak_memory: Option<u64>,
    /// The number found in the program's output.
    pub metric: Option<f64>,
    /// The program's standard output.
    pub output: String,
}

/// A program to measure.
#[derive(Debug, Clone)]
pub struct MeasuredProgram {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// The pattern that finds a number in the output.
    pub metric: Option<OutputMetric>,
}

/// A pattern that finds a number in an output: its first group, or its whole match. The last match counts.
#[derive(Debug, Clone)]
pub struct OutputMetric(Regex);

impl OutputMetric {
    /// Parses a regular expression.
    ///
    /// # Errors
    /// [`Error::UnusableInput`].
    pub fn parse(pattern: &str) -> Result<Self> {
        Regex::new(pattern).map(Self).map_err(|error| {
            Error::UnusableInput(format!("invalid regular expression `{pattern}`: {error}"))
        })
    }

    fn find_in(&self, text: &str) -> Option<f64> {
        let captures = self.0.captures_iter(text).last()?;
        let number = captures.get(1).or_else(|| captures.get(0))?.as_str();
        number.trim().replace(',', "").parse().ok()
    }
}

/// Maximum length of standard error that is shown for a failed program.
const MAX_SHOWN_STDERR: usize = 400;

impl MeasuredProgram {
    /// Runs the program to its end.
    ///
    /// # Errors
    /// [`Error::ProgramFailed`] if it cannot be started, fails, or does not print the number.
    pub fn measure(&self) -> Result<ProgramMeasurement> {
        let command = self.words.join(" ");
        let fail = |outcome: String, stderr_tail: String| Error::ProgramFailed {
            command: command.clone(),
            outcome,
            stderr_tail,
        };
        let (program, arguments) = self
            .words
            .split_first()
            .ok_or_else(|| Error::UnusableInput("no program given after `--`".to_owned()))?;
        let started = Instant::now();
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| fail(format!("cannot be started: {error}"), String::new()))?;
        let errors = child.stderr.take();
        let reader = std::thread::spawn(move || errors.map(read_all).unwrap_or_default());
        let output = child.stdout.take().map(read_all).unwrap_or_default();
        let (status, usage) = wait_for_child(child.id()).map_err(Error::Engine)?;
        let elapsed = started.elapsed();
        let stderr = reader.join().unwrap_or_default();
        if !status.success() {
            return Err(fail(format!("failed ({status})"), stderr_tail(&stderr)));
        }
        let metric = match &self.metric {
            None => None,
            Some(metric) => Some(metric.find_in(&output).ok_or_else(|| {
                fail(format!("printed no number that `{}` matches", metric.0), stderr_tail(&output))
            })?),
        };
        Ok(ProgramMeasurement {
            elapsed,
            cpu_time: usage.cpu_time,
            peak_memory: Some(usage.peak_memory),
            metric,
            output,
        })
    }
}

fn read_all(mut input: impl Read) -> String {
    let mut bytes = Vec::new();
    // On a read error, the bytes read so far are the output.
    input.read_to_end(&mut bytes).ok();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn stderr_tail(text: &str) -> String {
    let text = text.trim();
    let from = text.len().saturating_sub(MAX_SHOWN_STDERR);
    let from = (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.get(from..).unwrap_or_default().to_owned()
}

struct ProcessUsage {
    cpu_time: Duration,
    peak_memory: u64,
}

/// Waits for a child and returns its resource usage.
fn wait_for_child(child: u32) -> std::io::Result<(ExitStatus, ProcessUsage)> {
    let pid = libc::pid_t::try_from(child).map_err(std::io::Error::other)?;
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        #[expect(unsafe_code, reason = "the standard library does not return the resource usage")]
        // SAFETY: both pointers lead to places of the right type that outlive the call, and zeros are a valid `rusage`,
        // so it may be read whether or not the call filled it.
        let (waited, usage) = unsafe {
            (libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()), usage.assume_init())
        };
        if waited >= 0 {
            let time = |time: libc::timeval| {
                Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0))
                    + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
            };
            let usage = ProcessUsage {
                cpu_time: time(usage.ru_utime) + time(usage.ru_stime),
                peak_memory: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
            };
            return Ok((ExitStatus::from_raw(status), usage));
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, metric: Option<&str>) -> MeasuredProgram {
        MeasuredProgram {
            words: ["sh", "-c", script].map(str::to_owned).to_vec(),
            metric: metric.map(|pattern| OutputMetric::parse(pattern).unwrap()),
        }
    }

    #[test]
    fn a_program_is_measured_to_its_end() {
        let script = "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; echo first 1/s; echo 'then 1,234.5/s'";
        let measure = shell(script, Some(r"([0-9.,]+)/s")).measure().unwrap();
        assert_eq!(measure.metric, Some(1234.5));
        assert!(measure.output.contains("first"));
        assert!(measure.peak_memory.unwrap() > 100_000, "{:?}", measure.peak_memory);
        assert!(measure.elapsed > Duration::ZERO);
    }

    #[test]
    fn output_of_any_length_does_not_block() {
        let script = "head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2";
        assert_eq!(shell(script, None).measure().unwrap().output.len(), 300_000);
    }

    #[test]
    fn what_fails_says_why() {
        let text = |program: MeasuredProgram| program.measure().unwrap_err().to_string();
        assert_eq!(
            text(shell("echo no disk >&2; exit 3", None)),
            "`sh -c echo no disk >&2; exit 3` failed (exit status: 3); stderr: no disk"
        );
        assert!(text(shell("echo none", Some("[0-9]+"))).contains("printed no number that"));
        let missing = MeasuredProgram { words: vec!["/no/such/program".to_owned()], metric: None };
        assert!(text(missing).contains("cannot be started"));
    }
}
