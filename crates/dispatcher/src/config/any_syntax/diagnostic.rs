//! Diagnostics of configuration files and their source positions.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A position in a configuration file; lines and columns count from 1, columns in characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourcePosition {
    /// The path of the file as given.
    pub file: Arc<Path>,
    /// The line number.
    pub line: u32,
    /// The column number.
    pub column: u32,
}

impl fmt::Display for SourcePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file.display(), self.line, self.column)
    }
}

/// The severity of a diagnostic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiagnosticSeverity {
    /// The configuration works, but possibly not as intended.
    Warning,
    /// The configuration must not be used.
    Error,
}

/// A diagnostic of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigDiagnostic {
    /// The position it refers to.
    pub position: SourcePosition,
    /// Its severity.
    pub severity: DiagnosticSeverity,
    /// The problem and how to fix it.
    pub message: String,
}

impl fmt::Display for ConfigDiagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            DiagnosticSeverity::Warning => "warning",
            DiagnosticSeverity::Error => "error",
        };
        write!(f, "{}: {severity}: {}", self.position, self.message)
    }
}

/// Collects diagnostics while a file is read.
#[derive(Debug, Default)]
pub(crate) struct DiagnosticCollector(pub(crate) Vec<ConfigDiagnostic>);

impl DiagnosticCollector {
    pub(crate) fn add_error(&mut self, at: &SourcePosition, message: impl Into<String>) {
        self.push(DiagnosticSeverity::Error, at, message.into());
    }

    pub(crate) fn add_warning(&mut self, at: &SourcePosition, message: impl Into<String>) {
        self.push(DiagnosticSeverity::Warning, at, message.into());
    }

    fn push(&mut self, severity: DiagnosticSeverity, at: &SourcePosition, message: String) {
        self.0.push(ConfigDiagnostic { position: at.clone(), severity, message });
    }
}

/// Returns the known key that `key` is most likely a misspelling of; `None` if none is close enough.
#[must_use]
pub fn nearest_key<'a>(key: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let allowed = (key.chars().count() / 3).max(1);
    let key = key.to_lowercase();
    candidates
        .iter()
        .map(|candidate| (strsim::levenshtein(&key, &candidate.to_lowercase()), *candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest_key;

    #[test]
    fn only_near_keys_are_proposed() {
        let candidates = ["rules", "invalidate", "headers"];
        assert_eq!(nearest_key("rule", &candidates), Some("rules"));
        assert_eq!(nearest_key("RULES", &candidates), Some("rules"));
        assert_eq!(nearest_key("invalidates", &candidates), Some("invalidate"));
        assert_eq!(nearest_key("cache", &candidates), None);
    }
}
