//! Processes that wait, and that notify people.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value as Json};
use tympan_content::JcrDate;
use tympan_notation::parse_duration;

use crate::JobContext;
use crate::queue::sql::to_epoch_millis;
use crate::workflow::step_run::{StepOutcome, StepRun, WorkflowProcess};

/// Maximum interval between checks of a waiting step, because clocks are changed and instances suspended.
const MAX_WAIT_INTERVAL: Duration = Duration::from_hours(1);

/// Waits for a duration or until a time.
pub(super) struct WaitProcess;

impl WaitProcess {
    /// Returns the end of the wait, in milliseconds since 1970.
    fn wait_until_millis(step: &StepRun, now: SystemTime) -> Result<u64, String> {
        if let Some(saved_deadline) = step.saved_data.get("until").and_then(Json::as_u64) {
            return Ok(saved_deadline);
        }
        let now = to_epoch_millis(now).unsigned_abs();
        let span = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        match (step.argument("for"), step.argument("until")) {
            (Some(text), _) => Ok(
                now.saturating_add(span(parse_duration(&text).map_err(|error| error.to_string())?))
            ),
            (None, Some(text)) => {
                // The text is the name of a value in the instance's data, or the time itself.
                let named = match step.data.get(&text) {
                    Some(Json::String(value)) => value.clone(),
                    Some(value) => value.to_string(),
                    None => text,
                };
                let date = || JcrDate::parse_lenient(&named).ok();
                let parsed = named.parse().ok();
                parsed
                    .or_else(|| u64::try_from(date()?.millis).ok())
                    .ok_or_else(|| format!("`{named}` is not a time; write `2026-01-31T08:00:00Z`"))
            }
            (None, None) => Err("set `for`, such as `36h`, or `until` and a time".to_owned()),
        }
    }
}

impl WorkflowProcess for WaitProcess {
    fn name(&self) -> &str {
        "tympan.workflow.process.WaitProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        let now = SystemTime::now();
        let until = match Self::wait_until_millis(step, now) {
            Ok(until) => until,
            Err(reason) => {
                return StepOutcome::Failed(format!("the step `{}`: {reason}", step.title));
            }
        };
        let left = until.saturating_sub(to_epoch_millis(now).unsigned_abs());
        if left == 0 {
            return StepOutcome::Done(Map::new());
        }
        let mut keep = Map::new();
        keep.insert("until".to_owned(), until.into());
        StepOutcome::Wait {
            after: Duration::from_millis(left).min(MAX_WAIT_INTERVAL),
            saved_data: keep,
        }
    }
}

/// Adds a notice to an inbox.
pub(super) struct NotifyProcess;

impl WorkflowProcess for NotifyProcess {
    fn name(&self) -> &str {
        "tympan.workflow.process.NotifyProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        let reader = step.argument("reader").unwrap_or_else(|| "initiator".to_owned());
        let reader = if reader == "initiator" { step.initiator.clone() } else { reader };
        let title = step.argument("title").unwrap_or_else(|| step.title.clone());
        StepOutcome::Notify { reader, title, data: Map::new() }
    }
}
