//! Looking through the scripts of a site before anybody asks for a page.
//!
//! In: the texts of scripts. Out: findings with path, line and column: what does not compile, what cannot be escaped for
//! the place where it stands, names that mean nothing, and queries in templates that only display.

use std::fmt;

use crate::renderer::{RenderLimits, RenderMode};
use crate::script::{CompiledScripts, ScriptSet};
use crate::template::{ComponentFailure, lint_template, new_environment};

/// Something in a script that should be mended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptFinding {
    /// The path of the script.
    pub script: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The column, counted from 1.
    pub column: usize,
    /// What is wrong and what to do.
    pub message: String,
    /// Whether the script works as it is.
    pub is_warning: bool,
}

impl fmt::Display for ScriptFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_warning { "warning: " } else { "" };
        write!(f, "{}:{}:{}: {kind}{}", self.script, self.line, self.column, self.message)
    }
}

/// Finds what is wrong with scripts, by path and line.
#[must_use]
pub fn check_scripts(set: &ScriptSet) -> Vec<ScriptFinding> {
    let environment = new_environment(RenderMode::Author, &RenderLimits::default());
    let mut found = Vec::new();
    for (path, text) in &set.scripts {
        found.extend(lint_template(&environment, path, text).into_iter().map(|objection| {
            ScriptFinding {
                script: path.clone(),
                line: objection.refusal.line,
                column: objection.refusal.column,
                message: objection.refusal.message,
                is_warning: objection.is_warning,
            }
        }));
    }
    let scripts = CompiledScripts::compile(set.clone(), environment);
    for (path, failure) in scripts.script_failures() {
        let (line, column, message) = match failure {
            ComponentFailure::TemplateRefused(refusal, _) => {
                (refusal.line, refusal.column, refusal.message.clone())
            }
            other => {
                let (line, column) = other.line_and_column().unwrap_or((1, 1));
                (line, column, other.describe())
            }
        };
        let script = path.split('#').next().unwrap_or(path).to_owned();
        found.push(ScriptFinding { script, line, column, message, is_warning: false });
    }
    found.sort_by(|one, other| {
        (&one.script, one.line, one.column).cmp(&(&other.script, other.line, other.column))
    });
    found.dedup();
    found
}
