//! Tests an outage or slowdown of a back end during traffic: pages must stay available without it, and be complete
//! again afterwards.
//!
//! In: how the back end is stopped and restored, as a command or as a URL that is posted to. Out: verdicts about the
//! healthy traffic during and after the outage.
//!
//! Invariant: a back end that was stopped is restored, even if a step in between fails.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tympan_lab_engine::goal::{GoalResult, format_response_time};
use tympan_lab_engine::load::probe_client::{ProbeClient, ProbeRequest};
use tympan_lab_engine::plan_run::LoadOffer;
use tympan_lab_engine::report::report_sheet::{ReportSheet, ReportTone};
use tympan_lab_plan::AbsoluteUrl;

use super::healthy_traffic::judge_healthy_traffic;
use super::{LoadPhase, PhaseMeasurement, PhaseSubject, run_phase, top_failure_reason};
use crate::{Error, Result};

/// Maximum wait for a switch that is a URL, and for a page.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time until a page is complete again, and the interval between checks.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);
const RECOVERY_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// An action that stops or restores a back end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutageSwitch {
    /// A shell command line.
    ShellCommand(String),
    /// A URL that is posted to.
    PostUrl(String),
}

/// Options of back-end outages.
#[derive(Debug, Clone)]
pub struct OutageOptions {
    /// Names of the back ends, and the switch that stops each.
    pub backends: Vec<(String, OutageSwitch)>,
    /// The switch that restores any of them.
    pub restore_switch: OutageSwitch,
    /// A page, and the text that it shows in place of the back end's content.
    pub placeholder: Option<(String, String)>,
    /// Maximum share of visits that may fail during an outage, in addition to the usual failures.
    pub max_failure_share: f64,
}

/// The result of one outage.
#[derive(Debug)]
pub(super) struct OutageResult {
    name: String,
    during_outage: PhaseMeasurement,
    after_outage: PhaseMeasurement,
    /// True if the placeholder was seen, and the time until it disappeared afterwards; `None` if none is expected.
    placeholder_result: Option<(bool, Option<Duration>)>,
}

impl OutageSwitch {
    /// Parses a switch: text that begins like a web URL is a URL.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if text.starts_with("http://") || text.starts_with("https://") {
            Self::PostUrl(text.to_owned())
        } else {
            Self::ShellCommand(text.to_owned())
        }
    }

    fn trigger(&self) -> Result<()> {
        match self {
            Self::ShellCommand(line) => {
                let failed = |outcome: String| Error::ProgramFailed {
                    command: line.clone(),
                    outcome,
                    stderr_tail: String::new(),
                };
                // A background process may hold its output open indefinitely, so the output is not read.
                let mut command = Command::new("sh");
                command.args(["-c", line]).stdin(Stdio::null()).stdout(Stdio::null());
                let status = command
                    .status()
                    .map_err(|error| failed(format!("cannot be started: {error}")))?;
                if status.success() { Ok(()) } else { Err(failed(format!("failed ({status})"))) }
            }
            Self::PostUrl(address) => {
                let url = AbsoluteUrl::parse(address)?;
                let headers = [("Content-Length".to_owned(), "0".to_owned())];
                let question =
                    ProbeRequest { method: "POST", url: &url, headers: &headers, body: b"" };
                let status = ProbeClient::new(REQUEST_TIMEOUT).send(&question)?.status;
                if status < 400 {
                    return Ok(());
                }
                let reason = format!("status {status}");
                Err(Error::NoResponse { url: address.clone(), reason })
            }
        }
    }
}

impl OutageOptions {
    /// Checks that the placeholder is absent while no back end is down; otherwise it would prove nothing.
    ///
    /// # Errors
    /// [`Error::UnusableInput`]; as [`ProbeClient::send`].
    pub(super) fn check_placeholder_absent(&self) -> Result<()> {
        match &self.placeholder {
            Some((page, text)) if page_contains(page, text)? => Err(Error::UnusableInput(format!(
                "`{page}` shows `{text}` although there is no outage: give a text that is shown only during \
                 one"
            ))),
            _ => Ok(()),
        }
    }

    /// Runs the outages one after the other.
    ///
    /// # Errors
    /// [`Error::ProgramFailed`] and [`Error::NoResponse`] if a switch fails; as [`run_phase`].
    pub(super) fn run_outages(
        &self,
        subject: &PhaseSubject<'_>,
        healthy_offer: &LoadOffer,
        say: &mut dyn FnMut(&str),
    ) -> Result<Vec<OutageResult>> {
        let healthy = |name: String| LoadPhase { name, load_offer: healthy_offer.clone() };
        let mut all = Vec::new();
        for (name, switch) in &self.backends {
            say(&format!("healthy traffic during {name}"));
            // A switch that failed may have taken partial effect.
            let during = switch.trigger().and_then(|()| {
                let during = run_phase(subject, healthy(format!("during {name}")))?;
                let page = self.placeholder.as_ref();
                Ok((during, page.map(|(page, text)| page_contains(page, text)).transpose()))
            });
            let restored = self.restore_switch.trigger();
            let (during, visibility) = during?;
            restored?;
            let absence_time =
                self.placeholder.as_ref().map(|(page, text)| wait_until_absent(page, text));
            say(&format!("healthy traffic after {name}"));
            let after = run_phase(subject, healthy(format!("after {name}")))?;
            // A page without a response shows no placeholder.
            let visibility = visibility.unwrap_or(Some(false));
            let placeholder = visibility.zip(absence_time);
            all.push(OutageResult {
                name: name.clone(),
                during_outage: during,
                after_outage: after,
                placeholder_result: placeholder,
            });
        }
        Ok(all)
    }
}

/// Returns true if the page responds and contains the text.
fn page_contains(page: &str, text: &str) -> Result<bool> {
    let url = AbsoluteUrl::parse(page)?;
    let question = ProbeRequest { method: "GET", url: &url, headers: &[], body: b"" };
    let response = ProbeClient::new(REQUEST_TIMEOUT).send(&question)?;
    Ok(String::from_utf8_lossy(&response.body).contains(text))
}

/// Waits until a page responds without the text; returns the elapsed time, or `None` if the text stays.
fn wait_until_absent(page: &str, text: &str) -> Option<Duration> {
    let began = Instant::now();
    loop {
        if matches!(page_contains(page, text), Ok(false)) {
            return Some(began.elapsed());
        }
        if began.elapsed() > RECOVERY_TIMEOUT {
            return None;
        }
        std::thread::sleep(RECOVERY_POLL_INTERVAL);
    }
}

impl OutageResult {
    pub(super) fn measurements(&self) -> [&PhaseMeasurement; 2] {
        [&self.during_outage, &self.after_outage]
    }

    /// Returns the evaluated goals of the time without the back end.
    fn judge_outage(
        &self,
        outages: &OutageOptions,
        max_error_p95: Duration,
        max_slowdown: f64,
        alone: &PhaseMeasurement,
    ) -> Vec<GoalResult> {
        let (before, failed) =
            (alone.total_stats.error_rate(), self.during_outage.total_stats.error_rate());
        let p95 = self.during_outage.total_stats.response_times.quantile(0.95);
        let usual = alone.total_stats.response_times.quantile(0.95).mul_f64(1.0 + max_slowdown);
        let within = max_error_p95.max(usual);
        let judged = |expected: String, measured: String, is_met: bool| GoalResult {
            label: self.name.clone(),
            requirement: expected,
            measured,
            is_met,
        };
        let percent = |share: f64| format!("{:.2} %", share * 100.0);
        let most = before + outages.max_failure_share;
        let mut all = vec![
            judged(
                format!("pages stay up: at most {} fail", percent(most)),
                match self.during_outage.total_stats.error_count {
                    0 => "none fail".to_owned(),
                    _ => format!(
                        "{} fail: {}",
                        percent(failed),
                        top_failure_reason(&self.during_outage.total_stats)
                    ),
                },
                failed <= most && self.during_outage.total_stats.count() > 0,
            ),
            judged(
                format!("95 % within {}", format_response_time(within)),
                format_response_time(p95),
                p95 <= within,
            ),
        ];
        if let (Some((_, text)), Some((is_seen, whole))) =
            (&outages.placeholder, &self.placeholder_result)
        {
            let visibility = if *is_seen { "shown" } else { "not shown" };
            all.push(judged(format!("the page shows `{text}`"), visibility.to_owned(), *is_seen));
            let measured = match whole {
                Some(after) => format!("after {}", format_response_time(*after)),
                None => format!("not within {}", format_response_time(RECOVERY_TIMEOUT)),
            };
            all.push(judged(
                "the page is complete again afterwards".to_owned(),
                measured,
                whole.is_some(),
            ));
        }
        all
    }

    /// Adds the result to a report.
    pub(super) fn add_to_sheet(
        &self,
        sheet: &mut ReportSheet,
        outages: &OutageOptions,
        max_error_p95: Duration,
        max_slowdown: f64,
        alone: &PhaseMeasurement,
    ) -> Value {
        let during = self.judge_outage(outages, max_error_p95, max_slowdown, alone);
        let after = judge_healthy_traffic(max_slowdown, alone, &self.after_outage);
        let stays_up = during.iter().all(|goal| goal.is_met);
        let recovers = after.iter().all(|goal| goal.is_met);
        sheet.judged_goals.extend(during);
        sheet.judged_goals.extend(after);
        let name = &self.name;
        let (tone, label) = if stays_up {
            (ReportTone::Good, "stay up")
        } else {
            (ReportTone::Bad, "do not stay up")
        };
        sheet.add_verdict(tone, format!("{name}: pages {label} during the outage"));
        let (tone, label) = if recovers {
            (ReportTone::Good, "visitors are served as before")
        } else {
            (ReportTone::Bad, "visitors are not served as before")
        };
        sheet.add_verdict(tone, format!("{name}: {label} afterwards"));
        let placeholder = self.placeholder_result.as_ref();
        json!({
            "name": name,
            "during": self.during_outage.to_json(),
            "after": self.after_outage.to_json(),
            "failed_share": self.during_outage.total_stats.error_rate(),
            "reasons": self.during_outage.total_stats.failure_reason_counts,
            "placeholder_shown": placeholder.map(|(is_seen, _)| is_seen),
            "recovered_after_s": placeholder.and_then(|(_, whole)| Some((*whole)?.as_secs_f64())),
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
        assert_eq!(
            OutageSwitch::parse("http://h/off"),
            OutageSwitch::PostUrl("http://h/off".to_owned())
        );
        assert_eq!(
            OutageSwitch::parse("kill -STOP 7"),
            OutageSwitch::ShellCommand("kill -STOP 7".to_owned())
        );
    }

    #[test]
    fn a_command_that_fails_is_reported_and_one_that_leaves_something_running_ends() {
        let turn = |line: &str| OutageSwitch::ShellCommand(line.to_owned()).trigger();
        assert!(turn("sleep 1000 & echo $! > /dev/null; kill $!").is_ok());
        let error = turn("exit 7").unwrap_err();
        assert!(error.to_string().contains("`exit 7` failed"), "{error}");
    }
}
