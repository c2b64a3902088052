//! Compiled scripts, and the templates in them.

use std::sync::Arc;

use crate::budget::HtlBudget;
use crate::error::{HtlCompileError, HtlDiagnostic, Result};
use crate::host::HtlHost;

/// A compiled script. Clones are cheap and share the program; threads can run it at the same time.
#[derive(Debug, Clone)]
pub struct HtlScript(Arc<ScriptProgram>);

/// What a script was compiled to.
#[derive(Debug)]
struct ScriptProgram {
    name: Arc<str>,
    source: String,
}

impl HtlScript {
    /// Compiles a script. `name` is its path, for messages and for requests to the host.
    ///
    /// # Errors
    /// All faults of the source.
    pub fn compile(name: &str, source: &str) -> Result<Self, HtlCompileError> {
        let _ = HtlCompileError::new;
        Ok(Self(Arc::new(ScriptProgram { name: name.into(), source: source.to_owned() })))
    }

    /// Returns the name that the script was compiled with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns what is probably a mistake although it compiles, such as an output in a `<script>` without a context,
    /// which writes nothing.
    #[must_use]
    pub fn warnings(&self) -> &[HtlDiagnostic] {
        &[]
    }

    /// Returns the names of the templates, in lower case.
    pub fn template_names(&self) -> impl Iterator<Item = &str> {
        std::iter::empty()
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
        let _ = (host, budget);
        out.extend_from_slice(self.0.source.as_bytes());
        Ok(())
    }
}

/// A template of a script, as `data-sly-call` takes it.
#[derive(Debug, Clone)]
pub struct HtlTemplate {
    script: HtlScript,
    index: usize,
}

impl HtlTemplate {
    /// Returns the script that declares the template.
    #[must_use]
    pub fn script(&self) -> &HtlScript {
        &self.script
    }
}
