//! Looking through the scripts of a site before anybody asks for a page.
//!
//! In: the texts of scripts. Out: findings with path, line and column: what does not compile, what cannot be escaped for
//! the place where it stands, names that mean nothing, and queries in templates that only display.

use std::fmt;

use crate::engine::{Limits, Mode};
use crate::script::{ScriptSet, Scripts};
use crate::template::{Failure, environment, lint};

/// Something in a script that should be mended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
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

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_warning { "warning: " } else { "" };
        write!(f, "{}:{}:{}: {kind}{}", self.script, self.line, self.column, self.message)
    }
}

/// Finds what is wrong with scripts, by path and line.
#[must_use]
pub fn check(set: &ScriptSet) -> Vec<Finding> {
    let environment = environment(Mode::Author, &Limits::default());
    let mut found = Vec::new();
    for (path, text) in &set.scripts {
        found.extend(lint(&environment, path, text).into_iter().map(|objection| Finding {
            script: path.clone(),
            line: objection.refusal.line,
            column: objection.refusal.column,
            message: objection.refusal.message,
            is_warning: objection.is_warning,
        }));
    }
    let scripts = Scripts::compile(set.clone(), environment);
    for (path, failure) in scripts.faults() {
        let (line, column, message) = match failure {
            Failure::Refused(refusal, _) => (refusal.line, refusal.column, refusal.message.clone()),
            other => {
                let (line, column) = other.place().unwrap_or((1, 1));
                (line, column, other.reason_in_words())
            }
        };
        let script = path.split('#').next().unwrap_or(path).to_owned();
        found.push(Finding { script, line, column, message, is_warning: false });
    }
    found.sort_by(|one, other| {
        (&one.script, one.line, one.column).cmp(&(&other.script, other.line, other.column))
    });
    found.dedup();
    found
}
