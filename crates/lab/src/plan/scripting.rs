//! When scripts of a plan run, and what comes of what they say.
//!
//! As in JMeter, a script that fails before or after a sample is told and changes nothing; one that fails as an
//! assertion fails the sample, and one that fails as a sampler is a failed sample with code 500.

use std::sync::Arc;
use std::time::Instant;

use super::actor::Actor;
use super::answer::Answer;
use super::judge::Verdict;
use super::model::NodeId;
use super::script::{Script, Stand, Value};

impl Actor {
    /// Runs a script before a sample.
    pub(super) fn run_before(&mut self, script: &Script) {
        let mut stand = self.stand_before();
        if let Err(fault) = script.run(&mut self.scope, &mut stand) {
            self.note_script(&fault);
        }
        self.previous_answer = self.previous_answer.take().map(|_| stand.answer);
    }

    /// Returns what a script sees before its sample: the one before it, if there was one.
    fn stand_before(&mut self) -> Stand {
        match &mut self.previous_answer {
            Some(answer) => Stand::new(std::mem::take(answer), self.last_ok),
            None => Stand::absent(),
        }
    }

    /// Lets scripts that listen know of a sample; what they say of it changes nothing any more.
    pub(super) fn run_listeners(&mut self, scripts: &[Arc<Script>], answer: &Answer, is_ok: bool) {
        for script in scripts {
            let mut stand = Stand::new(answer.clone(), is_ok);
            if let Err(fault) = script.run(&mut self.scope, &mut stand) {
                self.note_script(&fault);
            }
        }
    }

    /// Runs the script of a timer; returns the milliseconds that it gives.
    pub(super) fn run_timer(&mut self, script: &Script) -> f64 {
        let mut stand = self.stand_before();
        let value = script.run(&mut self.scope, &mut stand);
        self.previous_answer = self.previous_answer.take().map(|_| stand.answer);
        match value {
            Ok(value) => value.to_string().trim().parse::<i64>().unwrap_or(0).max(0) as f64,
            Err(fault) => {
                self.note_script(&fault);
                0.0
            }
        }
    }

    /// Runs a script after a sample; what it sets is set in the answer, and whether it succeeded is returned.
    pub(super) fn run_after(&mut self, script: &Script, answer: &mut Answer, is_ok: bool) -> bool {
        let mut stand = Stand::new(std::mem::take(answer), is_ok);
        let outcome = script.run(&mut self.scope, &mut stand);
        *answer = stand.answer;
        if let Err(fault) = outcome {
            self.note_script(&fault);
        }
        self.take_label(stand.label.as_deref());
        stand.is_ok
    }

    /// Runs a script that judges a sample.
    pub(super) fn run_judge(
        &mut self,
        script: &Script,
        answer: &mut Answer,
        is_ok: &mut bool,
    ) -> Verdict {
        let mut stand = Stand::new(std::mem::take(answer), *is_ok);
        let outcome = script.run(&mut self.scope, &mut stand);
        *answer = stand.answer;
        *is_ok = stand.is_ok;
        self.take_label(stand.label.as_deref());
        match (outcome, stand.failure) {
            (Err(fault), _) => {
                self.note_script(&fault);
                Verdict::Wrong(fault)
            }
            (Ok(_), Some(failure)) => Verdict::Wrong(failure),
            (Ok(_), None) => Verdict::Right,
        }
    }

    /// Runs a script that is a sample itself.
    pub(super) fn run_sample(&mut self, node: NodeId, script: &Script, started: Instant) {
        self.scope.label_sample();
        let answer =
            Answer { code: "200".to_owned(), message: "OK".to_owned(), ..Answer::default() };
        let previous = self.previous_answer.clone().map(|answer| Stand::new(answer, self.last_ok));
        let mut stand = Stand::of_sampler(answer, previous);
        match script.run(&mut self.scope, &mut stand) {
            Ok(Value::Null) => {}
            Ok(value) => stand.answer.body = value.to_string(),
            Err(fault) => {
                self.note_script(&fault);
                stand.is_ok = false;
                "500".clone_into(&mut stand.answer.code);
                stand.answer.message = fault;
            }
        }
        self.take_label(stand.label.as_deref());
        self.finish_plain(node, stand.answer, started, stand.is_ok);
    }

    fn take_label(&mut self, label: Option<&str>) {
        if let Some(label) = label {
            self.scope.sampler = label.into();
        }
    }

    fn note_script(&self, fault: &str) {
        tracing::debug!(reason = %fault, "a script of the plan failed");
    }
}
