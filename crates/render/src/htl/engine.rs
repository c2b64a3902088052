//! Runs HTL scripts.

use std::sync::Arc;

use tympan_htl::{Error, HtlBudget, HtlLimit, HtlLimits};

use super::component_host::HtlComponentHost;
use crate::script::CompiledHtl;
use crate::template::{ComponentFailure, EngineRun, RenderScope, ScriptEngine};

/// Maximum depth of templates and included scripts in one component; their stack use must stay below the 512 KiB that
/// [`crate::RenderLimits::max_stack_bytes`] reserves.
const MAX_CALL_DEPTH: u32 = 40;

/// Runs HTL scripts.
#[derive(Debug)]
pub(crate) struct HtlEngine;

impl ScriptEngine for HtlEngine {
    fn run_script(&self, run: EngineRun<'_>) -> Result<String, ComponentFailure> {
        let EngineRun { scope, resource, script, selectors, output } = run;
        let CompiledHtl { script: program, .. } = scope.scripts.htl_script(script.path())?;
        let budget = HtlBudget::new(HtlLimits {
            steps: scope.component_steps_left(),
            output_bytes: output.remaining_bytes as u64,
            depth: MAX_CALL_DEPTH,
        });
        let mut out = Vec::with_capacity(output.expected_bytes);
        let mut host =
            HtlComponentHost::new(Arc::clone(scope), resource.clone(), selectors, budget.clone());
        let result = program.render(&mut host, &budget, &mut out);
        host.write_findings(&mut out);
        scope.raise_step_count(budget.steps_taken());
        match result {
            Ok(()) => {
                scope.count_output(out.len());
                Ok(String::from_utf8(out)
                    .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
            }
            Err(error) => Err(component_failure(scope, &error)),
        }
    }
}

/// Converts the error of a run to the failure of the component.
fn component_failure(scope: &RenderScope, error: &Error) -> ComponentFailure {
    if let Error::Host { source, .. } = error
        && let Some(error) = source.downcast_ref::<tympan_use_script::Error>()
    {
        return use_script_failure(scope, error);
    }
    match error {
        Error::Budget { limit: HtlLimit::Steps(_), .. } if scope.steps_left() == 0 => {
            ComponentFailure::TooManySteps(scope.limits.max_steps)
        }
        Error::Budget { limit: HtlLimit::Steps(_), .. } => {
            ComponentFailure::TooManyOwnSteps(scope.limits.max_component_steps)
        }
        Error::Budget { limit: HtlLimit::OutputBytes(_), .. } => {
            ComponentFailure::OutputTooLarge(scope.limits.max_output_bytes)
        }
        _ => {
            let place = error.place().clone();
            let message = match error {
                Error::Host { source, .. } => source.to_string(),
                Error::Evaluation { message, .. } => message.clone(),
                other => other.to_string(),
            };
            let source_text = scope
                .scripts
                .htl_script(&place.script)
                .ok()
                .map(|compiled| Arc::clone(&compiled.source));
            ComponentFailure::HtlError { place, message, source_text }
        }
    }
}

/// Converts the error of a JavaScript to the failure of the component.
fn use_script_failure(scope: &RenderScope, error: &tympan_use_script::Error) -> ComponentFailure {
    if let tympan_use_script::Error::Budget { limit: HtlLimit::Steps(_), .. } = error {
        scope.raise_step_count(scope.max_component_steps());
        return ComponentFailure::TooManyOwnSteps(scope.limits.max_component_steps);
    }
    let place = error.place().clone();
    let source_text = scope.scripts.use_script_source(&place.script);
    ComponentFailure::HtlError { place, message: error.message(), source_text }
}
