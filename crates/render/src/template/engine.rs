//! The interface of the engines that run scripts.
//!
//! A component of one engine includes components of the other through [`RenderScope`], which selects the engine by the
//! language of the script.

use std::fmt;
use std::sync::Arc;

use super::failure::ComponentFailure;
use super::scope::RenderScope;
use crate::resource::ContentResource;
use crate::script::ScriptInfo;
use crate::script_language::ScriptLanguage;

/// An engine: runs the scripts of one language.
pub(crate) trait ScriptEngine: fmt::Debug + Send + Sync {
    /// Runs a script for a resource and returns its output.
    ///
    /// # Errors
    /// The failure that replaces the component.
    fn run_script(&self, run: EngineRun<'_>) -> Result<String, ComponentFailure>;
}

/// One run of a script.
#[derive(Debug)]
pub(crate) struct EngineRun<'a> {
    pub scope: &'a Arc<RenderScope>,
    pub resource: &'a ContentResource,
    pub script: &'a ScriptInfo,
    /// The selectors that includes inherit.
    pub selectors: Arc<[String]>,
    pub output: OutputBudget,
}

/// The output budget of a component.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputBudget {
    /// The usual number of bytes.
    pub expected_bytes: usize,
    pub remaining_bytes: usize,
}

/// The engine of each language.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScriptEngines {
    pub mini_jinja: &'static dyn ScriptEngine,
    pub htl: &'static dyn ScriptEngine,
}

impl ScriptEngines {
    /// Returns the engine of a language.
    pub(crate) fn engine(&self, language: ScriptLanguage) -> &'static dyn ScriptEngine {
        match language {
            ScriptLanguage::MiniJinja => self.mini_jinja,
            ScriptLanguage::Htl => self.htl,
        }
    }
}
