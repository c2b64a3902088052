//! A back end that goes away, or gets slow, while visitors come: whether pages stay up without it, and are whole after it.
//!
//! In: how it is taken away and brought back, as a command or as an address that is posted to. Out: verdicts about the
//! healthy traffic meanwhile and afterwards.
//!
//! Invariant: once it was taken away it is brought back, whatever fails in between.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::errors::{Trial, costs};
use super::{Measured, Phase, Subject, first_reason, measure};
use crate::client::{Client, Question};
use crate::goal::{Judged, show};
use crate::net::Url;
use crate::report::sheet::{Sheet, Tone};
use crate::{Error, Result};

/// Longest wait for a switch that is an address, and for a page.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a page may take to be whole again, and how often it is looked at.
const RECOVERY: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(500);

/// Something that takes a back end away or brings it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Switch {
    /// A line for the shell.
    Command(String),
    /// An address that is posted to.
    Address(String),
}

/// Back ends that go away.
#[derive(Debug, Clone)]
pub struct Outages {
    /// Their names, and what takes each away.
    pub kinds: Vec<(String, Switch)>,
    /// Brings any of them back.
    pub restore: Switch,
    /// A page, and what stands on it in place of what the back end gives.
    pub placeholder: Option<(String, String)>,
    /// Share of visits that may fail meanwhile, beside those that fail anyway.
    pub allowed: f64,
}

/// What came of one of them.
#[derive(Debug)]
pub(super) struct Survived {
    name: String,
    during: Measured,
    after: Measured,
    /// Whether the placeholder was seen, and how long it stood there afterwards; nothing if none is expected.
    placeholder: Option<(bool, Option<Duration>)>,
}

impl Switch {
    /// Reads one: what begins as an address of the web is one.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if text.starts_with("http://") || text.starts_with("https://") {
            Self::Address(text.to_owned())
        } else {
            Self::Command(text.to_owned())
        }
    }

    fn turn(&self) -> Result<()> {
        match self {
            Self::Command(line) => {
                let failed = |outcome: String| Error::Program {
                    command: line.clone(),
                    outcome,
                    said: String::new(),
                };
                // What it starts in the background may keep its output open for ever, so nothing is read from it.
                let mut command = Command::new("sh");
                command.args(["-c", line]).stdin(Stdio::null()).stdout(Stdio::null());
                let status = command
                    .status()
                    .map_err(|error| failed(format!("cannot be started: {error}")))?;
                if status.success() { Ok(()) } else { Err(failed(format!("failed ({status})"))) }
            }
            Self::Address(address) => {
                let url = Url::parse(address)?;
                let headers = [("Content-Length".to_owned(), "0".to_owned())];
                let question = Question { method: "POST", url: &url, headers: &headers, body: b"" };
                let status = Client::new(PATIENCE).ask(&question)?.status;
                if status < 400 {
                    return Ok(());
                }
                let reason = format!("status {status}");
                Err(Error::Unanswered { url: address.clone(), reason })
            }
        }
    }
}

impl Outages {
    /// Fails if the placeholder stands on the page while nothing is away: it would prove nothing.
    ///
    /// # Errors
    /// [`Error::Input`]; as [`Client::ask`].
    pub(super) fn check(&self) -> Result<()> {
        match &self.placeholder {
            Some((page, text)) if holds(page, text)? => Err(Error::Input(format!(
                "`{page}` shows `{text}` although nothing is away: name what stands there only then"
            ))),
            _ => Ok(()),
        }
    }

    /// Takes away one after the other.
    ///
    /// # Errors
    /// [`Error::Program`] and [`Error::Unanswered`] if a switch fails; as [`measure`].
    pub(super) fn run(
        &self,
        subject: &Subject<'_>,
        trial: &Trial,
        say: &mut dyn FnMut(&str),
    ) -> Result<Vec<Survived>> {
        let healthy = |name: String| Phase { name, offer: trial.healthy.clone() };
        let mut all = Vec::new();
        for (name, switch) in &self.kinds {
            say(&format!("healthy traffic during {name}"));
            // A switch that failed may have done half of its work.
            let during = switch.turn().and_then(|()| {
                let during = measure(subject, healthy(format!("during {name}")))?;
                let page = self.placeholder.as_ref();
                Ok((during, page.map(|(page, text)| holds(page, text)).transpose()))
            });
            let restored = self.restore.turn();
            let (during, seen) = during?;
            restored?;
            let gone = self.placeholder.as_ref().map(|(page, text)| wait_without(page, text));
            say(&format!("healthy traffic after {name}"));
            let after = measure(subject, healthy(format!("after {name}")))?;
            // A page that is not answered shows nothing.
            let seen = seen.unwrap_or(Some(false));
            let placeholder = seen.zip(gone);
            all.push(Survived { name: name.clone(), during, after, placeholder });
        }
        Ok(all)
    }
}

/// Reports whether a page is answered and holds a text.
fn holds(page: &str, text: &str) -> Result<bool> {
    let url = Url::parse(page)?;
    let question = Question { method: "GET", url: &url, headers: &[], body: b"" };
    let answer = Client::new(PATIENCE).ask(&question)?;
    Ok(String::from_utf8_lossy(&answer.body).contains(text))
}

/// Waits until a page is answered without a text; returns how long that took, or nothing if it stays.
fn wait_without(page: &str, text: &str) -> Option<Duration> {
    let began = Instant::now();
    loop {
        if matches!(holds(page, text), Ok(false)) {
            return Some(began.elapsed());
        }
        if began.elapsed() > RECOVERY {
            return None;
        }
        std::thread::sleep(LOOK);
    }
}

impl Survived {
    pub(super) fn measured(&self) -> [&Measured; 2] {
        [&self.during, &self.after]
    }

    /// Returns what is judged of the time without the back end.
    fn during(&self, trial: &Trial, outages: &Outages, alone: &Measured) -> Vec<Judged> {
        let (before, failed) = (alone.total.error_rate(), self.during.total.error_rate());
        let p95 = self.during.total.response.quantile(0.95);
        let usual = alone.total.response.quantile(0.95).mul_f64(1.0 + trial.delta);
        let within = trial.within.max(usual);
        let judged = |wanted: String, measured: String, is_met: bool| Judged {
            label: self.name.clone(),
            wanted,
            measured,
            is_met,
        };
        let percent = |share: f64| format!("{:.2} %", share * 100.0);
        let most = before + outages.allowed;
        let mut all = vec![
            judged(
                format!("pages stay up: at most {} fail", percent(most)),
                match self.during.total.errors {
                    0 => "none fail".to_owned(),
                    _ => format!("{} fail: {}", percent(failed), first_reason(&self.during.total)),
                },
                failed <= most && self.during.total.count() > 0,
            ),
            judged(format!("95 % within {}", show(within)), show(p95), p95 <= within),
        ];
        if let (Some((_, text)), Some((is_seen, whole))) = (&outages.placeholder, &self.placeholder)
        {
            let word = if *is_seen { "it does" } else { "it does not" };
            all.push(judged(format!("the page shows `{text}`"), word.to_owned(), *is_seen));
            let measured = match whole {
                Some(after) => format!("after {}", show(*after)),
                None => format!("not within {}", show(RECOVERY)),
            };
            all.push(judged(
                "the page is whole again afterwards".to_owned(),
                measured,
                whole.is_some(),
            ));
        }
        all
    }

    /// Adds what came of it to a report.
    pub(super) fn tell(
        &self,
        sheet: &mut Sheet,
        (trial, outages): (&Trial, &Outages),
        alone: &Measured,
    ) -> Value {
        let during = self.during(trial, outages, alone);
        let after = costs(trial, alone, &self.after);
        let stays_up = during.iter().all(|goal| goal.is_met);
        let recovers = after.iter().all(|goal| goal.is_met);
        sheet.goals.extend(during);
        sheet.goals.extend(after);
        let name = &self.name;
        let (tone, word) =
            if stays_up { (Tone::Good, "stay up") } else { (Tone::Bad, "do not stay up") };
        sheet.say(tone, format!("{name}: pages {word} meanwhile"));
        let (tone, word) = if recovers {
            (Tone::Good, "visitors are served as before")
        } else {
            (Tone::Bad, "visitors are not served as before")
        };
        sheet.say(tone, format!("{name}: {word} afterwards"));
        let shown = self.placeholder.as_ref();
        json!({
            "name": name,
            "during": self.during.to_json(),
            "after": self.after.to_json(),
            "failed_share": self.during.total.error_rate(),
            "reasons": self.during.total.reasons,
            "placeholder_shown": shown.map(|(is_seen, _)| is_seen),
            "whole_again_s": shown.and_then(|(_, whole)| Some((*whole)?.as_secs_f64())),
            "stays_up": stays_up,
            "recovers": recovers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_an_address_or_a_command() {
        assert_eq!(Switch::parse("http://h/off"), Switch::Address("http://h/off".to_owned()));
        assert_eq!(Switch::parse("kill -STOP 7"), Switch::Command("kill -STOP 7".to_owned()));
    }

    #[test]
    fn a_command_that_fails_is_told_and_one_that_leaves_something_running_ends() {
        let turn = |line: &str| Switch::Command(line.to_owned()).turn();
        assert!(turn("sleep 1000 & echo $! > /dev/null; kill $!").is_ok());
        let error = turn("exit 7").unwrap_err();
        assert!(error.to_string().contains("`exit 7` failed"), "{error}");
    }
}
