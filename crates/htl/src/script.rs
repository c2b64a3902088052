//! Scripts: compiling and running them.

use std::sync::Arc;

use crate::budget::HtlBudget;
use crate::compiler::compile_script;
use crate::error::{HtlCompileError, Result};
use crate::host::HtlHost;
use crate::program::HtlScript;
use crate::run::run_script;

impl HtlScript {
    /// Compiles a script. `name` is its path, for messages and for requests to the host.
    ///
    /// # Errors
    /// All faults of the source.
    pub fn compile(name: &str, source: &str) -> Result<Self, HtlCompileError> {
        Ok(Self(Arc::new(compile_script(name, source)?)))
    }

    /// Runs the script and appends its output.
    ///
    /// # Errors
    /// See [`Error`](crate::Error); what was written until then stays in `out`.
    pub fn render(
        &self,
        host: &mut dyn HtlHost,
        budget: &HtlBudget,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        run_script(&self.0, host, budget, out)
    }
}
