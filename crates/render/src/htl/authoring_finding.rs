//! Findings: classes and scripts that a component asks for and that do not exist here.

use tympan_notation::escape_html;

use crate::render_options::RenderMode;
use crate::template::RenderScope;

/// The findings of one component.
#[derive(Debug, Default)]
pub(super) struct AuthoringFindings(Vec<String>);

impl AuthoringFindings {
    /// Adds a finding, and logs it unless it was logged before.
    pub(super) fn add(&mut self, scope: &RenderScope, script: &str, text: &str, message: &str) {
        let line = scope.scripts.htl_script(script).ok().and_then(|compiled| {
            compiled.source.lines().position(|line| line.contains(text)).map(|at| at + 1)
        });
        let place = line.map_or_else(|| script.to_owned(), |line| format!("{script}:{line}"));
        let finding = format!("{place}: {message}");
        if scope.script_cache.claim_finding(&finding) {
            tracing::warn!(file = %place, reason = %message, "a component asks for what does not exist");
        }
        if scope.mode == RenderMode::Author && !self.0.contains(&finding) {
            self.0.push(finding);
        }
    }

    /// Appends the findings for authors.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        for finding in &self.0 {
            let finding = escape_html(finding);
            let markup =
                format!("<div class=\"tympan-error\" role=\"alert\"><pre>{finding}</pre></div>");
            out.extend_from_slice(markup.as_bytes());
        }
    }
}
