//! The evaluation of samples: scripts, extractors and assertions.
//!
//! As in JMeter, a script that fails before or after a sample is reported and changes nothing; one that fails as an
//! assertion fails the sample, and one that fails as a sampler is a failed sample with code 500.

use std::sync::Arc;
use std::time::Instant;

use tympan_lab_plan::model::{PlanSampler, SampleErrorAction, SamplePostProcessor};
use tympan_lab_plan::script::{PlanScript, ScriptSampleContext};
use tympan_lab_plan::{
    AssertionResult, RegexPatternCache, SampleAssertion, SampleResponse, VariableScope,
};

use super::sample_totals::{SampleTotals, to_millis};

/// The evaluation of the samples of one thread, and its last sample.
#[derive(Debug)]
pub(super) struct SampleEvaluation {
    patterns: RegexPatternCache,
    last_sample_ok: bool,
    /// The last response, if scripts before a sample access it.
    last_response: Option<SampleResponse>,
}

/// The result of a sample.
#[derive(Debug)]
pub(super) struct SampleVerdict {
    pub(super) is_ok: bool,
    /// The message of the first assertion that failed.
    pub(super) failure: String,
    /// The error actions of the sampler that apply if it failed.
    pub(super) error_actions: Vec<SampleErrorAction>,
}

impl Default for SampleEvaluation {
    fn default() -> Self {
        Self { patterns: RegexPatternCache::default(), last_sample_ok: true, last_response: None }
    }
}

impl SampleEvaluation {
    /// Returns true if the last sample succeeded, or there was none.
    pub(super) fn last_sample_ok(&self) -> bool {
        self.last_sample_ok
    }

    /// Evaluates a sample: runs the extractors, scripts and assertions of its sampler.
    pub(super) fn evaluate_sample(
        &mut self,
        sampler: &PlanSampler,
        sum: &mut SampleTotals,
        retains_response: bool,
        scope: &mut VariableScope,
    ) -> SampleVerdict {
        sum.response.elapsed_ms = to_millis(sum.ended.saturating_duration_since(sum.started));
        sum.response.bytes = sum.received_bytes;
        let mut is_ok = sum.is_ok;
        if sampler.assertions.iter().any(SampleAssertion::assumes_success) && sum.status != 0 {
            is_ok = true;
        }
        let mut error_actions = Vec::new();
        // A script sampler may discard its own sample: it is then not processed further.
        let was_ignored = sum.response.script_directives.is_ignored;
        for after in sampler.post_processors.iter().filter(|_| !was_ignored) {
            match after {
                SamplePostProcessor::Extractor(extractor) => {
                    extractor.set_variables(&sum.response, scope, &mut self.patterns);
                }
                SamplePostProcessor::Script(script) => {
                    is_ok = run_post_processor(script, &mut sum.response, is_ok, scope)
                }
                SamplePostProcessor::OnError(action) => error_actions.push(*action),
            }
        }
        let judges = if was_ignored { &[] } else { sampler.assertions.as_slice() };
        let failure = self.apply_assertions(judges, &mut sum.response, &mut is_ok, scope);
        run_listeners(&sampler.listeners, &sum.response, is_ok, scope);
        if retains_response {
            self.last_response = Some(sum.response.clone());
        }
        SampleVerdict { is_ok, failure, error_actions }
    }

    /// Evaluates the assertions for a response; returns the message of the first one that fails.
    pub(super) fn apply_assertions(
        &mut self,
        judges: &[SampleAssertion],
        response: &mut SampleResponse,
        is_ok: &mut bool,
        scope: &mut VariableScope,
    ) -> String {
        let mut failure = String::new();
        for judge in judges {
            let verdict = match judge {
                SampleAssertion::Script(script) => run_assertion(script, response, is_ok, scope),
                _ => judge.evaluate(response, scope, &mut self.patterns),
            };
            match verdict {
                AssertionResult::Passed | AssertionResult::PassedOverridingStatus => {}
                AssertionResult::Failed(fault) => {
                    *is_ok = false;
                    if failure.is_empty() {
                        failure = fault;
                    }
                }
            }
        }
        self.last_sample_ok = *is_ok;
        scope.set_variable("JMeterThread.last_sample_ok", if *is_ok { "true" } else { "false" });
        failure
    }

    /// Runs a script before a sample.
    pub(super) fn run_pre_processor(&mut self, script: &PlanScript, scope: &mut VariableScope) {
        let mut stand = self.sample_context_before();
        if let Err(fault) = script.run(scope, &mut stand) {
            record_script_fault(&fault);
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

    /// Runs the script of a timer; returns the delay in milliseconds.
    pub(super) fn run_timer(&mut self, script: &PlanScript, scope: &mut VariableScope) -> f64 {
        let mut stand = self.sample_context_before();
        let value = script.run(scope, &mut stand);
        self.last_response = self.last_response.take().map(|_| stand.response);
        match value {
            Ok(value) => {
                let text = value.unwrap_or_default();
                text.trim().parse::<i64>().unwrap_or(0).max(0) as f64
            }
            Err(fault) => {
                record_script_fault(&fault);
                0.0
            }
        }
    }

    /// Runs a script sampler; returns the totals of its sample, which was started then.
    pub(super) fn run_script_sampler(
        &self,
        script: &PlanScript,
        started: Instant,
        scope: &mut VariableScope,
    ) -> SampleTotals {
        scope.label_sample();
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
        match script.run(scope, &mut stand) {
            Ok(None) => {}
            Ok(Some(text)) => stand.response.body = text,
            Err(fault) => {
                record_script_fault(&fault);
                stand.is_ok = false;
                "500".clone_into(&mut stand.response.code);
                stand.response.message = fault;
            }
        }
        apply_script_label(scope, stand.label.as_deref());
        SampleTotals::without_reply(stand.response, started, stand.is_ok)
    }
}

/// Runs listener scripts for a sample; they can no longer change it.
fn run_listeners(
    scripts: &[Arc<PlanScript>],
    response: &SampleResponse,
    is_ok: bool,
    scope: &mut VariableScope,
) {
    for script in scripts {
        let mut stand = ScriptSampleContext::new(response.clone(), is_ok);
        if let Err(fault) = script.run(scope, &mut stand) {
            record_script_fault(&fault);
        }
    }
}

/// Runs a script after a sample; its changes apply to the response, and the success of the sample is returned.
fn run_post_processor(
    script: &PlanScript,
    response: &mut SampleResponse,
    is_ok: bool,
    scope: &mut VariableScope,
) -> bool {
    let mut stand = ScriptSampleContext::new(std::mem::take(response), is_ok);
    let outcome = script.run(scope, &mut stand);
    *response = stand.response;
    if let Err(fault) = outcome {
        record_script_fault(&fault);
    }
    apply_script_label(scope, stand.label.as_deref());
    stand.is_ok
}

/// Runs an assertion script.
fn run_assertion(
    script: &PlanScript,
    response: &mut SampleResponse,
    is_ok: &mut bool,
    scope: &mut VariableScope,
) -> AssertionResult {
    let mut stand = ScriptSampleContext::new(std::mem::take(response), *is_ok);
    let outcome = script.run(scope, &mut stand);
    *response = stand.response;
    *is_ok = stand.is_ok;
    apply_script_label(scope, stand.label.as_deref());
    match (outcome, stand.failure) {
        (Err(fault), _) => {
            record_script_fault(&fault);
            AssertionResult::Failed(fault)
        }
        (Ok(_), Some(failure)) => AssertionResult::Failed(failure),
        (Ok(_), None) => AssertionResult::Passed,
    }
}

fn apply_script_label(scope: &mut VariableScope, label: Option<&str>) {
    if let Some(label) = label {
        scope.sample_label = label.into();
    }
}

fn record_script_fault(fault: &str) {
    tracing::debug!(reason = %fault, "plan script failed");
}
