//! Checks the scripts and style sheets of a site before any page is requested.
//!
//! Input: the texts of scripts and client libraries. Output: findings with path, line and column: compile errors, outputs
//! that cannot be escaped for their context, undefined names, queries in templates that only display, and syntax errors of
//! the JavaScripts that HTL scripts use.

use std::fmt;

use tympan_use_script::{UseScript, check_syntax};

use crate::render_options::{RenderLimits, RenderMode};
use crate::script::{CompiledScripts, HtlScriptCache, ScriptSet};
use crate::script_language::ScriptLanguage;
use crate::template::{ComponentFailure, lint_template, new_environment};

/// A problem in a script or a style sheet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptFinding {
    /// The path of the script or style sheet.
    pub script: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The column, counted from 1.
    pub column: usize,
    /// The problem and its solution.
    pub message: String,
    /// True if the script works as it is.
    pub is_warning: bool,
}

impl fmt::Display for ScriptFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_warning { "warning: " } else { "" };
        write!(f, "{}:{}:{}: {kind}{}", self.script, self.line, self.column, self.message)
    }
}

/// Returns the problems of scripts and of the style sheets of client libraries, sorted by path and line.
#[must_use]
pub fn check_scripts(set: &ScriptSet) -> Vec<ScriptFinding> {
    let environment = new_environment(RenderMode::Author, &RenderLimits::default());
    let mut findings = Vec::new();
    for (path, text) in &set.scripts {
        if ScriptLanguage::from_file_name(path) != Some(ScriptLanguage::MiniJinja) {
            continue;
        }
        findings.extend(lint_template(&environment, path, text).into_iter().map(|objection| {
            ScriptFinding {
                script: path.clone(),
                line: objection.refusal.line,
                column: objection.refusal.column,
                message: objection.refusal.message,
                is_warning: objection.is_warning,
            }
        }));
    }
    for (path, source) in &set.use_scripts {
        let script = UseScript { path: path.as_str().into(), source: source.as_str().into() };
        if let Err(error) = check_syntax(&script) {
            findings.push(ScriptFinding {
                script: path.clone(),
                line: error.place().line as usize,
                column: error.place().column as usize,
                message: error.message(),
                is_warning: false,
            });
        }
    }
    let (htl_cache, mode) = (HtlScriptCache::default(), RenderMode::Author);
    let scripts = CompiledScripts::compile(set.clone(), environment, &htl_cache, mode);
    for fault in scripts.client_libraries().faults() {
        findings.push(ScriptFinding {
            script: fault.path.clone(),
            line: fault.line,
            column: 1,
            message: fault.message(),
            is_warning: false,
        });
    }
    for (diagnostic, is_warning) in scripts.htl_diagnostics() {
        findings.push(ScriptFinding {
            script: diagnostic.place.script.to_string(),
            line: diagnostic.place.line as usize,
            column: diagnostic.place.column as usize,
            message: diagnostic.message.clone(),
            is_warning,
        });
    }
    for (path, failure) in scripts.script_failures() {
        if matches!(failure, ComponentFailure::HtlRefused(..)) {
            continue;
        }
        let (line, column, message) = match failure {
            ComponentFailure::TemplateRefused(refusal, _) => {
                (refusal.line, refusal.column, refusal.message.clone())
            }
            error => {
                let (line, column) = error.line_and_column().unwrap_or((1, 1));
                (line, column, error.describe())
            }
        };
        let script = path.split('#').next().unwrap_or(path).to_owned();
        findings.push(ScriptFinding { script, line, column, message, is_warning: false });
    }
    findings.sort_by(|left, right| {
        (&left.script, left.line, left.column).cmp(&(&right.script, right.line, right.column))
    });
    findings.dedup();
    findings
}
