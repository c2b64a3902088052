//! Timeouts of steps.
//!
//! A step configures its timeout in its `metaData`: `timeout` (`90s`, `15m`, `36h`, `2d`) or `timeoutMillis`, and
//! `timeoutHandler`:
//!
//! | handler | does |
//! |---|---|
//! | `AutoAdvancer`, or none | ends the step as if it were done |
//! | `AbsoluteTimeAutoAdvancer` | the same, at the time that `absoluteTime` of the instance's data names in milliseconds |
//! | `JumpTimeoutHandler` | goes to the step that `timeoutTarget` names |
//! | `EscalateTimeoutHandler` | gives the step to `timeoutParticipant`, once |
//!
//! Handlers are named by AEM's class names, of which the last part is matched.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value as Json};
use tympan_notation::parse_duration;

use crate::workflow::model_step::WorkflowStep;

/// The action for a late step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LateStepAction {
    Advance,
    Jump(String),
    Escalate(String),
}

/// The time limit of a step, and the action when it expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepTimeout {
    deadline: StepDeadline,
    pub(crate) late_action: LateStepAction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepDeadline {
    After(Duration),
    /// The time given in the instance's data.
    Absolute,
}

impl StepTimeout {
    /// Reads the timeout of a step; `None` if it has none.
    pub(crate) fn of_step(step: &WorkflowStep) -> Result<Option<Self>, String> {
        let handler = step.text_argument("timeoutHandler").unwrap_or_default();
        let handler = handler.rsplit(['.', '/']).next().unwrap_or_default();
        let after = match (
            step.text_argument("timeout"),
            parse_json_number(step.arguments.get("timeoutMillis")),
        ) {
            (Some(text), _) => Some(parse_duration(text).map_err(|error| error.to_string())?),
            (None, Some(millis)) => Some(Duration::from_millis(millis)),
            (None, None) => None,
        };
        let due = match (handler, after) {
            ("AbsoluteTimeAutoAdvancer", _) => StepDeadline::Absolute,
            (_, Some(after)) => StepDeadline::After(after),
            ("", None) => return Ok(None),
            (_, None) => return Err("`timeout` is missing; write for example `36h`".to_owned()),
        };
        let named = |name: &str| {
            step.text_argument(name)
                .map(str::to_owned)
                .ok_or_else(|| format!("`{name}` is missing"))
        };
        let late = match handler {
            "" | "AutoAdvancer" | "AbsoluteTimeAutoAdvancer" => LateStepAction::Advance,
            "JumpTimeoutHandler" => LateStepAction::Jump(named("timeoutTarget")?),
            "EscalateTimeoutHandler" => LateStepAction::Escalate(named("timeoutParticipant")?),
            other => {
                return Err(format!(
                    "`{other}` is not a timeout handler; use AutoAdvancer, AbsoluteTimeAutoAdvancer, \
                     JumpTimeoutHandler or EscalateTimeoutHandler"
                ));
            }
        };
        Ok(Some(Self { deadline: due, late_action: late }))
    }

    /// Returns the remaining wait; `None` if no time is given.
    pub(super) fn remaining_wait(
        &self,
        data: &Map<String, Json>,
        now: SystemTime,
    ) -> Option<Duration> {
        match self.deadline {
            StepDeadline::After(span) => Some(span),
            StepDeadline::Absolute => {
                let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(
                    parse_json_number(data.get("absoluteTime"))?,
                ))?;
                Some(at.duration_since(now).unwrap_or_default())
            }
        }
    }
}

/// Parses a number that may be a string.
fn parse_json_number(value: Option<&Json>) -> Option<u64> {
    let value = value?;
    value.as_u64().or_else(|| value.as_str()?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::workflow::model_step::WorkflowStepKind;

    fn check(data: &Json, expected: &str) {
        let data = data.as_object().unwrap().clone();
        let step = WorkflowStep {
            kind: WorkflowStepKind::Participant,
            title: String::new(),
            arguments: data,
        };
        let summary = match StepTimeout::of_step(&step) {
            Ok(None) => "none".to_owned(),
            Ok(Some(timeout)) => format!("{:?} {:?}", timeout.deadline, timeout.late_action),
            Err(reason) => reason,
        };
        assert_eq!(summary, expected);
    }

    #[test]
    fn steps_say_when_they_are_late() {
        check(&json!({}), "none");
        check(&json!({ "timeout": "90s" }), "After(90s) Advance");
        check(&json!({ "timeout": "2d" }), "After(172800s) Advance");
        check(&json!({ "timeoutMillis": "1500" }), "After(1.5s) Advance");
        let class = "com.adobe.granite.workflow.core.timeout.AutoAdvancer";
        check(&json!({ "timeoutMillis": 10, "timeoutHandler": class }), "After(10ms) Advance");
        let class = "com.day.cq.workflow.timeout.autoadvance.AbsoluteTimeAutoAdvancer";
        check(&json!({ "timeoutHandler": class }), "Absolute Advance");
        let jump = json!({ "timeout": "1m", "timeoutHandler": "JumpTimeoutHandler" });
        check(&jump, "`timeoutTarget` is missing");
        check(
            &json!({ "timeoutHandler": "AutoAdvancer" }),
            "`timeout` is missing; write for example `36h`",
        );
        check(
            &json!({ "timeout": "soon" }),
            "`soon` is not a duration; write numbers with units, such as `250ms`, `90s`, `30m`, `1h30m`, `1.5h` or `2d`",
        );
    }

    #[test]
    fn an_absolute_time_that_passed_is_now() {
        let due =
            StepTimeout { deadline: StepDeadline::Absolute, late_action: LateStepAction::Advance };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let data = |at: Json| json!({ "absoluteTime": at }).as_object().unwrap().clone();
        assert_eq!(due.remaining_wait(&data(json!(101_000)), now), Some(Duration::from_secs(1)));
        assert_eq!(due.remaining_wait(&data(json!("99000")), now), Some(Duration::ZERO));
        assert_eq!(due.remaining_wait(&Map::new(), now), None);
    }
}
