//! Compares two arrangements of a system under the same load and the same event, in turn, to measure the gain from a
//! change of configuration.
//!
//! ```toml
//! name = "Re-fetching flush"
//! rounds = 2
//! [load]
//! plan = "plan.jmx"                    # or urls = [...], users = 100, duration = "20s"
//! properties = { threads = "100", rampup = "10", duration = "20" }
//! [event]
//! at = "0s"
//! run = "curl -s http://127.0.0.1:8080/dispatcher/invalidate.cache ..."
//! [before]
//! setup = ["./standard-flush.sh"]
//! [after]
//! setup = ["./refetching-flush.sh"]
//! requests = "logs/request.log"        # counted from the event on: what reached the publisher
//! ```
//!
//! Invariants
//! * Arrangements alternate, so that a machine that becomes slower affects both.
//! * A setup or an event that fails ends the experiment, because later measurements would describe a different system.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tympan_lab_engine::get_load::GetLoad;
use tympan_lab_engine::measurement::RunResults;
use tympan_lab_engine::measurement::summariser::{SummaryTally, format_summary_line};
use tympan_lab_engine::plan_run::{RunOptions, run_plan};
use tympan_lab_engine::result_validity;
use tympan_lab_plan::Error as PlanError;
use tympan_lab_plan::{FileFinding, TestPlan};
use tympan_notation::parse_duration;

use crate::comparison::program::MeasuredProgram;
use crate::{Error, Result};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExperimentFile {
    name: String,
    #[serde(default = "default_rounds")]
    rounds: usize,
    load: ExperimentLoad,
    event: Option<ExperimentEvent>,
    before: ExperimentArrangement,
    after: ExperimentArrangement,
}

fn default_rounds() -> usize {
    2
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ExperimentLoad {
    plan: Option<PathBuf>,
    properties: HashMap<String, String>,
    urls: Vec<String>,
    users: Option<usize>,
    duration: Option<String>,
    requests: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExperimentEvent {
    at: String,
    run: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ExperimentArrangement {
    setup: Vec<String>,
    requests: Option<PathBuf>,
}

/// A load experiment as read from its file.
#[derive(Debug)]
pub struct LoadExperiment {
    /// Its name.
    pub name: String,
    /// Number of measurements per arrangement.
    pub rounds: usize,
    definition: ExperimentFile,
    base_folder: PathBuf,
    event_delay: Duration,
}

/// One measurement of one arrangement.
#[derive(Debug, Clone, PartialEq)]
pub struct ExperimentTrial {
    /// True if this is the second arrangement.
    pub is_after_arrangement: bool,
    /// JMeter's summary line.
    pub summary: String,
    /// Successful requests per second.
    pub rate: f64,
    /// Mean time in milliseconds.
    pub mean_ms: f64,
    /// Maximum time in milliseconds.
    pub max_ms: f64,
    /// Share of failed requests.
    pub error_rate: f64,
    /// Number of requests that reached the publisher since the event.
    pub publisher_requests: Option<u64>,
    /// Reasons why the trial is not a valid measurement of the target; empty if it is valid.
    pub doubts: Vec<String>,
}

/// The results of an experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct ExperimentResults {
    /// All trials, in execution order.
    pub trials: Vec<ExperimentTrial>,
    /// Requests per second after the change divided by those before it, per round.
    pub gains: Vec<f64>,
}

impl ExperimentResults {
    fn from_trials(trials: Vec<ExperimentTrial>) -> Self {
        let side = |is_after| {
            trials
                .iter()
                .filter(move |trial| trial.is_after_arrangement == is_after)
                .map(|trial| trial.rate)
        };
        let gains = side(false)
            .zip(side(true))
            .map(|(before, after)| if before > 0.0 { after / before } else { 0.0 })
            .collect();
        Self { trials, gains }
    }

    /// Returns the mean gain over all rounds.
    #[must_use]
    pub fn mean_gain(&self) -> f64 {
        self.gains.iter().sum::<f64>() / self.gains.len().max(1) as f64
    }

    /// Returns the mean times before and after the change, over all rounds.
    #[must_use]
    pub fn mean_times(&self) -> (f64, f64) {
        let mean = |is_after| {
            let times: Vec<f64> = self
                .trials
                .iter()
                .filter(|trial| trial.is_after_arrangement == is_after)
                .map(|trial| trial.mean_ms)
                .collect();
            times.iter().sum::<f64>() / times.len().max(1) as f64
        };
        (mean(false), mean(true))
    }
}

impl LoadExperiment {
    /// Parses an experiment; relative file names are resolved against `folder`.
    ///
    /// # Errors
    /// `Error::InvalidFile`.
    pub fn parse(text: &str, name: &str, folder: &Path) -> Result<Self> {
        let refuse = |line: usize, message: String| {
            Error::Plan(PlanError::InvalidFile(vec![FileFinding {
                file: name.to_owned(),
                line: u32::try_from(line).unwrap_or(0),
                column: 1,
                message,
            }]))
        };
        let file: ExperimentFile = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let line = text.get(..at).unwrap_or_default().matches('\n').count() + 1;
            refuse(line, error.message().to_owned())
        })?;
        if file.load.plan.is_some() != file.load.urls.is_empty() {
            return Err(refuse(0, "`load` must have either a `plan` or `urls`".to_owned()));
        }
        let time = |text: &str| parse_duration(text).map_err(|error| refuse(0, error.to_string()));
        file.load.duration.as_deref().map(time).transpose()?;
        let event_at = file.event.as_ref().map(|event| time(&event.at)).transpose()?;
        if file.load.plan.is_none() && file.load.duration.is_none() && file.load.requests.is_none()
        {
            return Err(refuse(0, "`load` has no end: give `duration` or `requests`".to_owned()));
        }
        if file.rounds == 0 {
            return Err(refuse(0, "`rounds` must be at least 1".to_owned()));
        }
        Ok(Self {
            name: file.name.clone(),
            rounds: file.rounds,
            base_folder: folder.to_owned(),
            event_delay: event_at.unwrap_or_default(),
            definition: file,
        })
    }

    /// Runs the experiment; `tell` receives each trial.
    ///
    /// # Errors
    /// [`Error::ProgramFailed`] if a setup or the event fails; the errors of the plan or the load.
    pub fn run(&self, tell: &mut dyn FnMut(&ExperimentTrial)) -> Result<ExperimentResults> {
        let mut trials = Vec::new();
        for _ in 0..self.rounds {
            for (is_after, side) in
                [(false, &self.definition.before), (true, &self.definition.after)]
            {
                let trial = self.run_trial(is_after, side)?;
                tell(&trial);
                trials.push(trial);
            }
        }
        Ok(ExperimentResults::from_trials(trials))
    }

    fn run_trial(&self, is_after: bool, side: &ExperimentArrangement) -> Result<ExperimentTrial> {
        for command in &side.setup {
            self.run_shell_command(command)?;
        }
        let log = side.requests.as_ref().map(|path| self.base_folder.join(path));
        let ((results, faults), end) =
            std::thread::scope(|scope| -> Result<((RunResults, Vec<String>), u64)> {
                let event = scope.spawn(|| self.trigger_event(log.as_deref()));
                let load = self.run_load();
                let end = event
                    .join()
                    .map_err(|_| Error::UnusableInput("the event thread panicked".to_owned()))?;
                Ok((load?, end?))
            })?;
        let total = results.total_stats();
        let mut doubts = result_validity::validity_doubts(&results);
        doubts.extend(faults);
        if total.status_counts.keys().all(|status| *status == 0) {
            doubts.push("the target never responded".to_owned());
        }
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        Ok(ExperimentTrial {
            is_after_arrangement: is_after,
            summary: jmeter_summary_line(&results),
            rate: results.rate_of(total.count().saturating_sub(total.error_count)),
            mean_ms: ms(total.response_times.mean()),
            max_ms: ms(total.response_times.max()),
            error_rate: total.error_rate(),
            publisher_requests: log
                .as_deref()
                .map(|path| count_log_entries(path, end))
                .transpose()?,
            doubts,
        })
    }

    fn run_shell_command(&self, command: &str) -> Result<()> {
        let folder = self.base_folder.display().to_string();
        let folder = if folder.is_empty() { ".".to_owned() } else { folder };
        let words = ["sh", "-c", "cd \"$1\" && eval \"$2\"", "sh", &folder, command];
        MeasuredProgram { words: words.map(str::to_owned).to_vec(), metric: None }
            .measure()
            .map(drop)
    }

    /// Waits until the event is due and triggers it; returns the size of the publisher's log immediately before.
    fn trigger_event(&self, log: Option<&Path>) -> Result<u64> {
        let length = || log.and_then(|path| path.metadata().ok()).map_or(0, |data| data.len());
        let Some(event) = &self.definition.event else { return Ok(length()) };
        let at = Instant::now() + self.event_delay;
        while let Some(left) =
            at.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
        {
            std::thread::sleep(left);
        }
        let before = length();
        self.run_shell_command(&event.run)?;
        Ok(before)
    }

    fn run_load(&self) -> Result<(RunResults, Vec<String>)> {
        let load = &self.definition.load;
        if let Some(plan) = &load.plan {
            let run = RunOptions {
                properties: load.properties.clone(),
                without_listeners: true,
                ..RunOptions::default()
            };
            let outcome =
                run_plan(&TestPlan::load(&self.base_folder.join(plan))?, &run, &mut |_| {})?;
            return Ok((outcome.results, outcome.errors));
        }
        let get = GetLoad {
            urls: load.urls.clone(),
            users: load.users.unwrap_or(1),
            requests: load.requests,
            duration: load.duration.as_deref().and_then(|text| parse_duration(text).ok()),
            ..GetLoad::default()
        };
        Ok((get.run()?, Vec::new()))
    }
}

/// Returns JMeter's summary line for the whole run.
fn jmeter_summary_line(results: &RunResults) -> String {
    let total = results.total_stats();
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let summary = SummaryTally {
        count: total.count(),
        sum_ms: ms(total.response_times.mean().mul_f64(total.count() as f64)),
        min_ms: (total.count() > 0).then(|| ms(total.response_times.min())),
        max_ms: ms(total.response_times.max()),
        errors: total.error_count,
        first_start: None,
        last_end: 0,
    };
    format_summary_line("summary", '=', &summary, ms(results.elapsed), None)
}

/// Counts the entries of a request.log after byte offset `from`.
fn count_log_entries(path: &Path, from: u64) -> Result<u64> {
    let lost = |error| Error::read_failed(path, error);
    let mut file = std::fs::File::open(path).map_err(lost)?;
    let length = file.metadata().map_err(lost)?.len();
    file.seek(SeekFrom::Start(if length < from { 0 } else { from })).map_err(lost)?;
    let mut count = 0;
    for line in BufReader::new(file).split(b'\n') {
        let line = line.map_err(lost)?;
        count += u64::from(line.windows(4).any(|part| part == b" -> "));
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_s_gain_is_that_of_its_rounds() {
        let trial = |is_after, rate, mean_ms| ExperimentTrial {
            is_after_arrangement: is_after,
            summary: String::new(),
            rate,
            mean_ms,
            max_ms: 0.0,
            error_rate: 0.0,
            publisher_requests: None,
            doubts: Vec::new(),
        };
        let findings = ExperimentResults::from_trials(vec![
            trial(false, 578.2, 123.0),
            trial(true, 2776.4, 26.0),
            trial(false, 560.3, 129.0),
            trial(true, 3141.8, 23.0),
        ]);
        let gains: Vec<String> = findings.gains.iter().map(|gain| format!("{gain:.1}x")).collect();
        assert_eq!(gains, ["4.8x", "5.6x"]);
        assert_eq!(format!("{:.1}x", findings.mean_gain()), "5.2x");
        assert_eq!(findings.mean_times(), (126.0, 24.5));
    }
}
