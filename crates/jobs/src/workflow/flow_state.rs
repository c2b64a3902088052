//! Determines the next steps when a step ends: a pure function of model, data and the state of the instance.
//!
//! Invariants
//! * A join fires when as many routes have arrived as lead to it, and then counts anew.
//! * The number of steps of an instance is limited, so a loop in its model ends.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use crate::workflow::model::WorkflowModel;
use crate::workflow::model_step::WorkflowStepKind;
use crate::{Error, Result};

/// Maximum number of steps of one instance.
const MAX_INSTANCE_STEPS: u64 = 10_000;

/// The flow state of an instance.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct FlowState {
    /// Number of routes that have arrived at each join.
    pub(crate) join_arrivals: BTreeMap<String, u64>,
    /// Number of executed steps.
    pub(crate) step_count: u64,
    /// Nesting depth of this workflow.
    pub(crate) nesting_depth: u64,
}

impl FlowState {
    pub(crate) fn to_json(&self) -> Json {
        json!({ "joins": self.join_arrivals, "steps": self.step_count, "depth": self.nesting_depth })
    }

    pub(crate) fn from_json(value: &Json) -> Self {
        let number = |value: &Json| value.as_u64().unwrap_or_default();
        let joins = value.get("joins").and_then(Json::as_object);
        let joins = joins.into_iter().flatten().map(|(name, count)| (name.clone(), number(count)));
        Self {
            join_arrivals: joins.collect(),
            step_count: value.get("steps").map(number).unwrap_or_default(),
            nesting_depth: value.get("depth").map(number).unwrap_or_default(),
        }
    }

    /// Leaves a step, by the route to `route` if one is chosen. Returns the steps that begin.
    pub(crate) fn leave_step(
        &mut self,
        model: &WorkflowModel,
        step: &str,
        data: &Map<String, Json>,
        route: Option<&str>,
    ) -> Result<Vec<String>> {
        let open = self.next_steps(model, step, data, route)?;
        self.enter_steps(model, open, data)
    }

    /// Enters some steps. Returns those that begin: the given ones or, for a step that is not executed by anybody, the
    /// ones after it.
    pub(crate) fn enter_steps(
        &mut self,
        model: &WorkflowModel,
        mut open: Vec<String>,
        data: &Map<String, Json>,
    ) -> Result<Vec<String>> {
        let mut new_steps = Vec::new();
        while let Some(name) = open.pop() {
            self.step_count += 1;
            if self.step_count > MAX_INSTANCE_STEPS {
                return Err(Error::Workflow(format!(
                    "the instance exceeded {MAX_INSTANCE_STEPS} steps"
                )));
            }
            let Some(step) = model.steps.get(&name) else {
                return Err(Error::Workflow(format!("there is no step `{name}`")));
            };
            match step.kind {
                WorkflowStepKind::Process
                | WorkflowStepKind::External
                | WorkflowStepKind::Participant
                | WorkflowStepKind::DynamicParticipant
                | WorkflowStepKind::Container => new_steps.push(name),
                WorkflowStepKind::End => {}
                WorkflowStepKind::AndJoin => {
                    let expected_arrivals =
                        model.transitions.iter().filter(|transition| transition.to == name).count()
                            as u64;
                    let come = self.join_arrivals.entry(name.clone()).or_default();
                    *come += 1;
                    if *come >= expected_arrivals {
                        self.join_arrivals.remove(&name);
                        open.extend(self.next_steps(model, &name, data, None)?);
                    }
                }
                WorkflowStepKind::Goto => {
                    let target = step
                        .text_argument("TARGET_NODE")
                        .or_else(|| step.text_argument("TARGET_ID"));
                    let rule = step
                        .text_argument("RULE")
                        .or_else(|| step.text_argument("ECMA_EXPRESSION"));
                    match target {
                        Some(target) if rule.is_none_or(|rule| evaluate_rule(rule, data)) => {
                            open.push(target.to_owned());
                        }
                        _ => open.extend(self.next_steps(model, &name, data, None)?),
                    }
                }
                WorkflowStepKind::Start
                | WorkflowStepKind::AndSplit
                | WorkflowStepKind::OrSplit
                | WorkflowStepKind::OrJoin => {
                    open.extend(self.next_steps(model, &name, data, None)?);
                }
            }
        }
        // Routes are followed last first; the order of the begun steps is restored here.
        new_steps.reverse();
        Ok(new_steps)
    }

    /// Returns the steps after a step.
    fn next_steps(
        &self,
        model: &WorkflowModel,
        step: &str,
        data: &Map<String, Json>,
        route: Option<&str>,
    ) -> Result<Vec<String>> {
        let mut transitions = model.transitions.iter().filter(|transition| transition.from == step);
        if let Some(route) = route {
            let chosen_transition = transitions.find(|transition| transition.to == route);
            return chosen_transition.map(|transition| vec![transition.to.clone()]).ok_or_else(
                || {
                    Error::Workflow(format!(
                        "no transition leads from the step `{step}` to `{route}`"
                    ))
                },
            );
        }
        if model
            .steps
            .get(step)
            .is_some_and(|definition| definition.kind == WorkflowStepKind::AndSplit)
        {
            return Ok(transitions.map(|transition| transition.to.clone()).collect());
        }
        // The first transition whose rule is true, or the first without one.
        let transitions: Vec<_> = transitions.collect();
        let ruled = transitions.iter().find(|transition| {
            transition.rule.as_deref().is_some_and(|rule| evaluate_rule(rule, data))
        });
        let next_transition =
            ruled.or_else(|| transitions.iter().find(|transition| transition.rule.is_none()));
        let none = || {
            Error::Workflow(format!(
                "no transition can be taken from the step `{step}`: no rule matches"
            ))
        };
        next_transition.map(|transition| vec![transition.to.clone()]).ok_or_else(none)
    }
}

/// Returns true if a rule is true: `name==value` or `name!=value` on the data of the instance, joined by `&&`; `true`
/// always is.
pub(crate) fn evaluate_rule(rule: &str, data: &Map<String, Json>) -> bool {
    let value = |name: &str| match data.get(name.trim()) {
        Some(Json::String(text)) => text.clone(),
        Some(Json::Null) | None => String::new(),
        Some(other) => other.to_string(),
    };
    let plain = |text: &str| text.trim().trim_matches(['"', '\'']).to_owned();
    rule.split("&&").all(|part| {
        if let Some((name, expected)) = part.split_once("!=") {
            value(name) != plain(expected)
        } else if let Some((name, expected)) = part.split_once("==") {
            value(name) == plain(expected)
        } else {
            part.trim() == "true"
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workflow::model::WorkflowTransition;
    use crate::workflow::model_step::WorkflowStep;

    /// Creates a model from `name:KIND` and `from>to` or `from>to?rule`.
    fn model(parts: &str) -> WorkflowModel {
        let (mut steps, mut transitions) = (BTreeMap::new(), Vec::new());
        for part in parts.split_whitespace() {
            if let Some((name, kind)) = part.split_once(':') {
                let (kind, target) = kind.split_once('@').unwrap_or((kind, ""));
                let all = [
                    WorkflowStepKind::Start,
                    WorkflowStepKind::End,
                    WorkflowStepKind::Process,
                    WorkflowStepKind::AndSplit,
                    WorkflowStepKind::AndJoin,
                    WorkflowStepKind::OrSplit,
                    WorkflowStepKind::Goto,
                ];
                let kind = all.into_iter().find(|candidate| candidate.name() == kind).unwrap();
                let mut data = Map::new();
                data.insert("TARGET_NODE".to_owned(), target.into());
                data.insert("RULE".to_owned(), "again==yes".into());
                steps.insert(
                    name.to_owned(),
                    WorkflowStep { kind, title: name.to_owned(), arguments: data },
                );
            } else if let Some((from, to)) = part.split_once('>') {
                let (to, rule) =
                    to.split_once('?').map_or((to, None), |(to, rule)| (to, Some(rule)));
                let rule = rule.map(str::to_owned);
                transitions.push(WorkflowTransition {
                    from: from.to_owned(),
                    to: to.to_owned(),
                    rule,
                });
            }
        }
        let (path, title, suffix) = ("/m".to_owned(), String::new(), "m".to_owned());
        WorkflowModel { path, title, topic_suffix: suffix, is_transient: false, steps, transitions }
    }

    fn check(flow: &mut FlowState, model: &WorkflowModel, step: &str, data: &Json, expected: &str) {
        let data = data.as_object().unwrap();
        let new_steps = flow.leave_step(model, step, data, None).map(|steps| steps.join(" "));
        assert_eq!(new_steps.unwrap_or_else(|error| error.to_string()), expected, "{step}");
    }

    #[test]
    fn splits_join_when_all_ways_have_come() {
        let model = model(
            "s:START a:AND_SPLIT x:PROCESS y:PROCESS j:AND_JOIN z:PROCESS e:END \
             s>a a>x a>y x>j y>j j>z z>e",
        );
        let mut flow = FlowState::default();
        check(&mut flow, &model, "s", &json!({}), "x y");
        check(&mut flow, &model, "y", &json!({}), "");
        let mut flow = FlowState::from_json(&flow.to_json());
        check(&mut flow, &model, "x", &json!({}), "z");
        check(&mut flow, &model, "z", &json!({}), "");
        assert!(flow.join_arrivals.is_empty());
    }

    #[test]
    fn rules_choose_the_way() {
        let model = model("s:START o:OR_SPLIT x:PROCESS y:PROCESS s>o o>y o>x?kind==image");
        check(&mut FlowState::default(), &model, "s", &json!({ "kind": "image" }), "x");
        check(&mut FlowState::default(), &model, "s", &json!({ "kind": "text" }), "y");
        let strict = super::tests::model("s:START o:OR_SPLIT x:PROCESS s>o o>x?n==1");
        check(&mut FlowState::default(), &strict, "s", &json!({ "n": 1 }), "x");
        check(
            &mut FlowState::default(),
            &strict,
            "s",
            &json!({}),
            "no transition can be taken from the step `o`: no rule matches",
        );
    }

    #[test]
    fn loops_end() {
        let model = model("s:START x:PROCESS g:GOTO@x e:END s>x x>g g>e");
        check(&mut FlowState::default(), &model, "x", &json!({ "again": "yes" }), "x");
        check(&mut FlowState::default(), &model, "x", &json!({ "again": "no" }), "");
        let endless = super::tests::model("s:START g:GOTO@g e:END s>g g>e");
        let expected = format!("the instance exceeded {MAX_INSTANCE_STEPS} steps");
        check(&mut FlowState::default(), &endless, "s", &json!({ "again": "yes" }), &expected);
    }

    #[test]
    fn rules_compare_data() {
        let data = json!({ "a": "b", "n": 7, "t": true });
        let check = |rule: &str, expected: bool| {
            assert_eq!(evaluate_rule(rule, data.as_object().unwrap()), expected, "{rule}");
        };
        check("a==b", true);
        check("a == 'b' && n!=8", true);
        check("a==c", false);
        check("missing==", true);
        check("t==true", true);
        check("true", true);
        check("something else", false);
    }
}
