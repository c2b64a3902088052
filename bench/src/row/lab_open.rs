//! L5 and L6: arrivals by a schedule are sent when they are due, and count from then.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::Outcome;
use crate::alternate::Spread;
use crate::context::{Context, LOAD_CORE};
use crate::figure::{Figure, Goal};
use crate::nginx::{Duty, Nginx};
use crate::outcome::run;
use crate::process::{is_installed, pinned};

/// A generator that says itself that the target did not answer in time is right here.
const CODES: [i32; 2] = [0, 3];
/// Arrivals per second while the server stands still.
const RATE: u32 = 1_000;
/// How long the whole run lasts, and how far in the server is frozen.
const LASTS: Duration = Duration::from_secs(10);
const FREEZE_AT: Duration = Duration::from_secs(4);
const FREEZE: Duration = Duration::from_secs(1);

struct Site {
    program: PathBuf,
    folder: PathBuf,
    url: String,
    server: Nginx,
}

impl Site {
    fn start(context: &Context, body: &str) -> Outcome<Self> {
        let folder = context.new_folder("lab-")?;
        let root = folder.join("root");
        std::fs::create_dir_all(&root)?;
        std::fs::write(root.join("page.html"), body)?;
        let server = Nginx::start(Duty::Files(&root), &folder)?;
        let url = format!("http://{}/page.html", server.address);
        Ok(Self { program: context.program()?.to_owned(), folder, url, server })
    }

    /// Runs `lab get` and returns its report.
    fn get(&self, arguments: &[&str]) -> Outcome<Value> {
        let mut command = pinned(LOAD_CORE, &self.program);
        command.args(["lab", "get", &self.url, "--workers", "1", "--json"]).args(arguments);
        let ran = run(command, &self.folder, Duration::from_secs(120), &CODES)?;
        Ok(serde_json::from_str(&ran.output)?)
    }

    /// Runs something while the server is frozen for a while; returns for how long it was.
    fn frozen<T>(&self, load: impl FnOnce() -> Outcome<T>) -> Outcome<(T, Duration)> {
        let mut processes = vec![self.server.pid()];
        processes.extend(children(self.server.pid())?);
        let processes: Vec<Pid> =
            processes.into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())).collect();
        std::thread::scope(|scope| {
            let freeze = scope.spawn(move || {
                std::thread::sleep(FREEZE_AT);
                freeze(&processes).map_err(|error| error.to_string())
            });
            let told = load();
            let lasted = freeze.join().map_err(|_| "the freeze ended badly")??;
            Ok((told?, lasted))
        })
    }
}

/// Freezes processes for a while; returns for how long.
fn freeze(processes: &[Pid]) -> Outcome<Duration> {
    let begun = Instant::now();
    for process in processes {
        kill_process(*process, Signal::STOP)?;
    }
    std::thread::sleep(FREEZE);
    for process in processes {
        kill_process(*process, Signal::CONT)?;
    }
    Ok(begun.elapsed())
}

/// Returns the processes that a process started.
fn children(pid: u32) -> Outcome<Vec<u32>> {
    let text =
        std::fs::read_to_string(Path::new("/proc").join(format!("{pid}/task/{pid}/children")))?;
    Ok(text.split_whitespace().filter_map(|word| word.parse().ok()).collect())
}

fn number(report: &Value, pointer: &str) -> Outcome<f64> {
    let found = report.pointer(pointer).and_then(Value::as_f64);
    found.ok_or_else(|| format!("the report has no `{pointer}`").into())
}

/// How often each is measured: a moment that the machine gives to others spoils a single run.
fn runs(context: &Context) -> usize {
    if context.is_quick { 1 } else { 5 }
}

/// Measures L5: half of what the server gives arrives when it is due.
pub(super) fn fidelity(context: &mut Context) -> Outcome<Vec<Figure>> {
    let site = Site::start(context, &"lorem ipsum ".repeat(500))?;
    let capacity = number(&site.get(&["-c", "50", "-z", "3s"])?, "/total/per_second")?;
    let rate = (capacity / 2.0).floor();
    let seconds = if context.is_quick { 5 } else { 10 };
    let (rate_text, lasts) = (rate.to_string(), format!("{seconds}s"));
    let (mut lags, mut unsent) = (Vec::new(), Vec::new());
    for _ in 0..runs(context) {
        let report = site.get(&["--rate", &rate_text, "--arrivals", "uniform", "-z", &lasts])?;
        lags.push(number(&report, "/generator/lag_p99_ms")?);
        let sent = number(&report, "/total/samples")? / (rate * f64::from(seconds));
        unsent.push((1.0 - sent).abs());
    }
    let note = format!("{rate:.0} of {capacity:.0} requests a second, {seconds} s each");
    let unsent_of_due = "requests that were not sent, of those that were due";
    Ok(vec![
        Figure::spread("L5", "lag of sending, 99 of 100", &Spread::of(lags), "ms")
            .goal(Goal::AtMost(1.0))
            .note(note),
        Figure::spread("L5", unsent_of_due, &Spread::of(unsent), "").goal(Goal::AtMost(0.001)),
    ])
}

/// Measures L6: what a server that stands still for a second costs those who come meanwhile.
pub(super) fn stall(context: &mut Context) -> Outcome<Vec<Figure>> {
    // Small, so that those who waited are served at once when the server goes on: arithmetic knows no queue.
    let site = Site::start(context, "ok")?;
    let (rate, lasts) = (RATE.to_string(), format!("{}s", LASTS.as_secs()));
    let arguments = ["--rate", &rate, "--arrivals", "uniform", "-z", &lasts];
    let (mut differences, mut note) = (Vec::new(), String::new());
    for _ in 0..runs(context) {
        let (report, frozen) = site.frozen(|| site.get(&arguments))?;
        let told = number(&report, "/total/p95_ms")?;
        // Whoever comes while the server is frozen waits until it goes on, so that waits are spread evenly below the freeze.
        let beyond = LASTS.as_secs_f64() * 0.05;
        let truth = (frozen.as_secs_f64() - beyond) * 1e3;
        differences.push((told / truth - 1.0).abs());
        note = format!("{told:.0} ms told, {truth:.0} ms by arithmetic in the last run");
    }
    if is_installed("wrk") {
        let (wrk, _) = site.frozen(|| site.wrk(&lasts))?;
        note.push_str(&format!("; `wrk` tells of the same: {wrk}"));
    }
    Ok(vec![
        Figure::spread(
            "L6",
            "95th percentile of a stall, told against truth",
            &Spread::of(differences),
            "",
        )
        .goal(Goal::AtMost(0.05))
        .note(note),
    ])
}

impl Site {
    /// Returns the percentiles that `wrk` prints.
    fn wrk(&self, lasts: &str) -> Outcome<String> {
        let mut command: Command = pinned(LOAD_CORE, "wrk");
        command.args(["-t1", "-c50", &format!("-d{lasts}"), "--latency", &self.url]);
        let folder = self.folder.join("wrk");
        std::fs::create_dir_all(&folder)?;
        let ran = run(command, &folder, Duration::from_secs(60), &[0])?;
        let lines = ran.output.lines().map(str::trim);
        let told: Vec<String> = lines
            .filter(|line| line.starts_with("90%") || line.starts_with("99%"))
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        Ok(told.join(", "))
    }
}
