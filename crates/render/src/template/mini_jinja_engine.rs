//! The engine of MiniJinja templates.

use std::io;
use std::sync::Arc;

use minijinja::{ErrorKind, Value};

use super::engine::{EngineRun, ScriptEngine};
use super::failure::{ComponentFailure, innermost_error};
use super::frame::ComponentFrame;

/// Runs MiniJinja templates.
#[derive(Debug)]
pub(crate) struct MiniJinjaEngine;

impl ScriptEngine for MiniJinjaEngine {
    fn run_script(&self, run: EngineRun<'_>) -> Result<String, ComponentFailure> {
        let EngineRun { scope, resource, script, selectors, output } = run;
        let template = scope.scripts.template(script)?;
        let frame = ComponentFrame::new(Arc::clone(scope), resource.clone(), selectors);
        let mut out = BoundedOutput {
            buffer: Vec::with_capacity(output.expected_bytes),
            remaining_bytes: output.remaining_bytes,
        };
        let captured = template.render_captured_to(Value::from_object(frame), &mut out);
        match &captured {
            Ok(captured) => {
                if let Some((consumed, _)) = captured.state().fuel_levels() {
                    scope.raise_step_count(consumed);
                }
                scope.count_output(out.buffer.len());
            }
            Err(error) if error.kind() == ErrorKind::OutOfFuel => {
                scope.raise_step_count(scope.max_component_steps());
            }
            Err(_) => {}
        }
        match captured {
            Ok(_) => Ok(String::from_utf8(out.buffer).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::OutOfFuel => {
                Err(match scope.max_component_steps() == scope.limits.max_steps {
                    true => ComponentFailure::TooManySteps(scope.limits.max_steps),
                    false => ComponentFailure::TooManyOwnSteps(scope.limits.max_component_steps),
                })
            }
            Err(_) if out.remaining_bytes == 0 => {
                Err(ComponentFailure::OutputTooLarge(scope.limits.max_output_bytes))
            }
            Err(error) => {
                let origin = innermost_error(&error)
                    .name()
                    .and_then(|name| scope.scripts.original_text(name));
                Err(ComponentFailure::TemplateError(Arc::new(error), origin))
            }
        }
    }
}

/// A buffer that refuses to grow beyond its limit.
struct BoundedOutput {
    buffer: Vec<u8>,
    remaining_bytes: usize,
}

impl io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.remaining_bytes.checked_sub(bytes.len()) {
            Some(left) => {
                self.remaining_bytes = left;
                self.buffer.extend_from_slice(bytes);
                Ok(bytes.len())
            }
            None => {
                self.remaining_bytes = 0;
                Err(io::Error::other("the output is too large"))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
