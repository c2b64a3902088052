//! The execution of a plan's scripts and the handling of their results.
//!
//! As in JMeter, a script that fails before or after a sample is reported and changes nothing; one that fails as an
//! assertion fails the sample, and one that fails as a sampler is a failed sample with code 500.

use std::sync::Arc;
use std::time::Instant;

use tympan_lab_plan::script::{PlanScript, ScriptSampleContext};
use tympan_lab_plan::{AssertionResult, PlanNodeId, SampleResponse};

use super::plan_thread::PlanThread;

impl PlanThread {
    /// Runs a script before a sample.
    pub(super) fn run_pre_processor(&mut self, script: &PlanScript) {
        let mut stand = self.sample_context_before();
        if let Err(fault) = script.run(&mut self.scope, &mut stand) {
            self.record_script_fault(&fault);
        }
        self.last_response = self.last_response.take().map(|_| stand.response);
    }

    /// Returns the context of a script before its sample: the previous sample, if there was one.
    fn sample_context_before(&mut self) -> ScriptSampleContext {
        match &mut self.last_response {
            Some(response) => {
                ScriptSampleContext::new(std::mem::take(response), self.last_sample_ok)
            }
            None => ScriptSampleContext::absent(),
        }
    }

    /// Runs listener scripts for a sample; they can no longer change it.
    pub(super) fn run_listeners(
        &mut self,
        scripts: &[Arc<PlanScript>],
        response: &SampleResponse,
        is_ok: bool,
    ) {
        for script in scripts {
            let mut stand = ScriptSampleContext::new(response.clone(), is_ok);
            if let Err(fault) = script.run(&mut self.scope, &mut stand) {
                self.record_script_fault(&fault);
            }
        }
    }

    /// Runs the script of a timer; returns the delay in milliseconds.
    pub(super) fn run_timer(&mut self, script: &PlanScript) -> f64 {
        let mut stand = self.sample_context_before();
        let value = script.run(&mut self.scope, &mut stand);
        self.last_response = self.last_response.take().map(|_| stand.response);
        match value {
            Ok(value) => {
                let text = value.unwrap_or_default();
                text.trim().parse::<i64>().unwrap_or(0).max(0) as f64
            }
            Err(fault) => {
                self.record_script_fault(&fault);
                0.0
            }
        }
    }

    /// Runs a script after a sample; its changes apply to the response, and the success of the sample is returned.
    pub(super) fn run_post_processor(
        &mut self,
        script: &PlanScript,
        response: &mut SampleResponse,
        is_ok: bool,
    ) -> bool {
        let mut stand = ScriptSampleContext::new(std::mem::take(response), is_ok);
        let outcome = script.run(&mut self.scope, &mut stand);
        *response = stand.response;
        if let Err(fault) = outcome {
            self.record_script_fault(&fault);
        }
        self.apply_script_label(stand.label.as_deref());
        stand.is_ok
    }

    /// Runs an assertion script.
    pub(super) fn run_assertion(
        &mut self,
        script: &PlanScript,
        response: &mut SampleResponse,
        is_ok: &mut bool,
    ) -> AssertionResult {
        let mut stand = ScriptSampleContext::new(std::mem::take(response), *is_ok);
        let outcome = script.run(&mut self.scope, &mut stand);
        *response = stand.response;
        *is_ok = stand.is_ok;
        self.apply_script_label(stand.label.as_deref());
        match (outcome, stand.failure) {
            (Err(fault), _) => {
                self.record_script_fault(&fault);
                AssertionResult::Failed(fault)
            }
            (Ok(_), Some(failure)) => AssertionResult::Failed(failure),
            (Ok(_), None) => AssertionResult::Passed,
        }
    }

    /// Runs a script sampler.
    pub(super) fn run_script_sampler(
        &mut self,
        node: PlanNodeId,
        script: &PlanScript,
        started: Instant,
    ) {
        self.scope.label_sample();
        let response = SampleResponse {
            code: "200".to_owned(),
            message: "OK".to_owned(),
            ..SampleResponse::default()
        };
        let previous = self
            .last_response
            .clone()
            .map(|response| ScriptSampleContext::new(response, self.last_sample_ok));
        let mut stand = ScriptSampleContext::for_sampler(response, previous);
        match script.run(&mut self.scope, &mut stand) {
            Ok(None) => {}
            Ok(Some(text)) => stand.response.body = text,
            Err(fault) => {
                self.record_script_fault(&fault);
                stand.is_ok = false;
                "500".clone_into(&mut stand.response.code);
                stand.response.message = fault;
            }
        }
        self.apply_script_label(stand.label.as_deref());
        self.finish_without_reply(node, stand.response, started, stand.is_ok);
    }

    fn apply_script_label(&mut self, label: Option<&str>) {
        if let Some(label) = label {
            self.scope.sample_label = label.into();
        }
    }

    fn record_script_fault(&self, fault: &str) {
        tracing::debug!(reason = %fault, "plan script failed");
    }
}
