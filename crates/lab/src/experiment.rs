//! Two arrangements of a system under the same load and the same event, in turn: what a change of configuration gains.
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
//! * Arrangements alternate, so that a machine that grows slower does so for both.
//! * A setup or an event that fails ends the experiment: its figures would be of something else.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::calculate::parse_duration;
use crate::get::Get;
use crate::plan::{Plan, Run};
use crate::program::Program;
use crate::record::Results;
use crate::record::summariser::{Tally, line};
use crate::{Error, Finding, Result, honesty};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    #[serde(default = "two")]
    rounds: usize,
    load: Load,
    event: Option<Event>,
    before: Side,
    after: Side,
}

fn two() -> usize {
    2
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Load {
    plan: Option<PathBuf>,
    properties: HashMap<String, String>,
    urls: Vec<String>,
    users: Option<usize>,
    duration: Option<String>,
    requests: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Event {
    at: String,
    run: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Side {
    setup: Vec<String>,
    requests: Option<PathBuf>,
}

/// What is done, read and checked.
#[derive(Debug)]
pub struct Experiment {
    /// Its name.
    pub name: String,
    /// How often each arrangement is measured.
    pub rounds: usize,
    file: File,
    folder: PathBuf,
    event_at: Duration,
}

/// One measurement of one arrangement.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// Whether this is the second arrangement.
    pub is_after: bool,
    /// JMeter's summary line.
    pub summary: String,
    /// Requests per second that were answered without an error.
    pub rate: f64,
    /// Mean time.
    pub mean_ms: f64,
    /// The longest time.
    pub max_ms: f64,
    /// Share of errors.
    pub error_rate: f64,
    /// Requests that reached the publisher since the event.
    pub reached: Option<u64>,
    /// Why it is no measurement of the target, if it is none.
    pub doubts: Vec<String>,
}

/// What an experiment came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Findings {
    /// All measurements, in their order.
    pub trials: Vec<Trial>,
    /// Requests per second, after divided by before, per round.
    pub gains: Vec<f64>,
}

impl Findings {
    fn of(trials: Vec<Trial>) -> Self {
        let side = |is_after| {
            trials.iter().filter(move |trial| trial.is_after == is_after).map(|trial| trial.rate)
        };
        let gains = side(false)
            .zip(side(true))
            .map(|(one, two)| if one > 0.0 { two / one } else { 0.0 })
            .collect();
        Self { trials, gains }
    }

    /// Returns the mean of the rounds' gains.
    #[must_use]
    pub fn mean_gain(&self) -> f64 {
        self.gains.iter().sum::<f64>() / self.gains.len().max(1) as f64
    }

    /// Returns the mean time before and after, over all rounds.
    #[must_use]
    pub fn mean_times(&self) -> (f64, f64) {
        let mean = |is_after| {
            let times: Vec<f64> = self
                .trials
                .iter()
                .filter(|trial| trial.is_after == is_after)
                .map(|trial| trial.mean_ms)
                .collect();
            times.iter().sum::<f64>() / times.len().max(1) as f64
        };
        (mean(false), mean(true))
    }
}

impl Experiment {
    /// Reads an experiment; names of files count from `folder`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn read(text: &str, name: &str, folder: &Path) -> Result<Self> {
        let refuse = |line: usize, message: String| {
            Error::Refused(vec![Finding {
                file: name.to_owned(),
                line: u32::try_from(line).unwrap_or(0),
                column: 1,
                message,
            }])
        };
        let file: File = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let line = text.get(..at).unwrap_or_default().matches('\n').count() + 1;
            refuse(line, error.message().to_owned())
        })?;
        if file.load.plan.is_some() != file.load.urls.is_empty() {
            return Err(refuse(0, "`load` names either a `plan` or `urls`".to_owned()));
        }
        let time = |text: &str| {
            parse_duration(text)
                .ok_or_else(|| refuse(0, format!("`{text}` is no time, such as 20s")))
        };
        file.load.duration.as_deref().map(time).transpose()?;
        let event_at = file.event.as_ref().map(|event| time(&event.at)).transpose()?;
        if file.load.plan.is_none() && file.load.duration.is_none() && file.load.requests.is_none()
        {
            return Err(refuse(0, "`load` has no end: give `duration` or `requests`".to_owned()));
        }
        if file.rounds == 0 {
            return Err(refuse(0, "`rounds` is at least 1".to_owned()));
        }
        Ok(Self {
            name: file.name.clone(),
            rounds: file.rounds,
            folder: folder.to_owned(),
            event_at: event_at.unwrap_or_default(),
            file,
        })
    }

    /// Carries it out; `tell` hears each trial.
    ///
    /// # Errors
    /// [`Error::Program`] if a setup or the event fails; what a plan or a load returns.
    pub fn run(&self, tell: &mut dyn FnMut(&Trial)) -> Result<Findings> {
        let mut trials = Vec::new();
        for _ in 0..self.rounds {
            for (is_after, side) in [(false, &self.file.before), (true, &self.file.after)] {
                let trial = self.trial(is_after, side)?;
                tell(&trial);
                trials.push(trial);
            }
        }
        Ok(Findings::of(trials))
    }

    fn trial(&self, is_after: bool, side: &Side) -> Result<Trial> {
        for command in &side.setup {
            self.shell(command)?;
        }
        let log = side.requests.as_ref().map(|path| self.folder.join(path));
        let ((results, faults), end) =
            std::thread::scope(|scope| -> Result<((Results, Vec<String>), u64)> {
                let event = scope.spawn(|| self.event(log.as_deref()));
                let load = self.load();
                let end =
                    event.join().map_err(|_| Error::Input("the event broke off".to_owned()))?;
                Ok((load?, end?))
            })?;
        let total = results.total();
        let mut doubts = honesty::doubts(&results);
        doubts.extend(faults);
        if total.statuses.keys().all(|status| *status == 0) {
            doubts.push("the target never answered".to_owned());
        }
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        Ok(Trial {
            is_after,
            summary: summary(&results),
            rate: results.rate(total.count().saturating_sub(total.errors)),
            mean_ms: ms(total.response.mean()),
            max_ms: ms(total.response.max()),
            error_rate: total.error_rate(),
            reached: log.as_deref().map(|path| entries(path, end)).transpose()?,
            doubts,
        })
    }

    fn shell(&self, command: &str) -> Result<()> {
        let folder = self.folder.display().to_string();
        let folder = if folder.is_empty() { ".".to_owned() } else { folder };
        let words = ["sh", "-c", "cd \"$1\" && eval \"$2\"", "sh", &folder, command];
        Program { words: words.map(str::to_owned).to_vec(), metric: None }.measure().map(drop)
    }

    /// Waits for the event's moment and makes it happen; returns where the publisher's log ended just before.
    fn event(&self, log: Option<&Path>) -> Result<u64> {
        let length = || log.and_then(|path| path.metadata().ok()).map_or(0, |data| data.len());
        let Some(event) = &self.file.event else { return Ok(length()) };
        let at = Instant::now() + self.event_at;
        while let Some(left) =
            at.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
        {
            std::thread::sleep(left);
        }
        let before = length();
        self.shell(&event.run)?;
        Ok(before)
    }

    fn load(&self) -> Result<(Results, Vec<String>)> {
        let load = &self.file.load;
        if let Some(plan) = &load.plan {
            let run = Run {
                properties: load.properties.clone(),
                without_listeners: true,
                ..Run::default()
            };
            let outcome = Plan::load(&self.folder.join(plan))?.run(&run, &mut |_| {})?;
            return Ok((outcome.results, outcome.faults));
        }
        let get = Get {
            urls: load.urls.clone(),
            users: load.users.unwrap_or(1),
            requests: load.requests,
            duration: load.duration.as_deref().and_then(parse_duration),
            ..Get::default()
        };
        Ok((get.run()?, Vec::new()))
    }
}

/// Returns JMeter's line of a whole run.
fn summary(results: &Results) -> String {
    let total = results.total();
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let tally = Tally {
        count: total.count(),
        sum_ms: ms(total.response.mean().mul_f64(total.count() as f64)),
        min_ms: (total.count() > 0).then(|| ms(total.response.min())),
        max_ms: ms(total.response.max()),
        errors: total.errors,
        first_start: None,
        last_end: 0,
    };
    line("summary", '=', &tally, ms(results.elapsed), None)
}

/// Counts the entries of a request.log behind the byte `from`.
fn entries(path: &Path, from: u64) -> Result<u64> {
    let lost = |error| Error::read(path, error);
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
        let trial = |is_after, rate, mean_ms| Trial {
            is_after,
            summary: String::new(),
            rate,
            mean_ms,
            max_ms: 0.0,
            error_rate: 0.0,
            reached: None,
            doubts: Vec::new(),
        };
        let findings = Findings::of(vec![
            trial(false, 578.2, 123.0),
            trial(true, 2776.4, 26.0),
            trial(false, 560.3, 129.0),
            trial(true, 3141.8, 23.0),
        ]);
        let told: Vec<String> = findings.gains.iter().map(|gain| format!("{gain:.1}x")).collect();
        assert_eq!(told, ["4.8x", "5.6x"]);
        assert_eq!(format!("{:.1}x", findings.mean_gain()), "5.2x");
        assert_eq!(findings.mean_times(), (126.0, 24.5));
    }
}
