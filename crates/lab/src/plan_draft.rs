//! Writes plans of our own: what a log or a recording becomes.
//!
//! Not here: reading plans ([`crate::plan`]).

use std::fmt::Write as _;

/// A plan to be written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlanDraft {
    /// Lines of comment at the top.
    pub comment_lines: Vec<String>,
    /// Its name.
    pub name: String,
    /// Where it goes, such as `http://127.0.0.1:8080`.
    pub target: String,
    /// The load, as key and value in TOML.
    pub load_settings: Vec<(String, String)>,
    /// What is asked.
    pub scenarios: Vec<DraftScenario>,
}

/// What one visitor does.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DraftScenario {
    /// Its name.
    pub name: String,
    /// How often it comes, beside the other scenarios.
    pub weight: u64,
    /// Its requests.
    pub steps: Vec<DraftStep>,
}

/// One request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DraftStep {
    /// `GET`.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Headers that matter.
    pub headers: Vec<(String, String)>,
    /// The body, if it is text.
    pub body: String,
    /// Statuses that are expected although they are errors.
    pub expected_status: Option<u16>,
    /// Pause after the request, such as `2s`.
    pub think_time: Option<String>,
}

/// Returns `text` as a string of TOML.
pub(crate) fn quote_toml(text: &str) -> String {
    // A basic string of TOML is one of JSON, but for the one control character that JSON lets stand.
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}

/// Returns a path without what a plan would take for a variable.
fn literal_path(text: &str) -> String {
    text.replace("${", "%24%7B")
}

/// The variable that stands for the sign with which variables begin, in bodies and headers.
const DOLLAR_VARIABLE: &str = "dollar";

/// Returns a text that a plan sends as it is.
fn literal_text(text: &str) -> String {
    text.replace("${", &format!("${{{DOLLAR_VARIABLE}}}{{"))
}

impl PlanDraft {
    /// Returns the plan's text.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        for remark in &self.comment_lines {
            writeln!(out, "# {}", remark.replace(['\n', '\r'], " ")).ok();
        }
        writeln!(out, "name = {}\ntarget = {}", quote_toml(&self.name), quote_toml(&self.target))
            .ok();
        let steps = || self.scenarios.iter().flat_map(|scenario| &scenario.steps);
        let has_dollar = steps().any(|step| {
            step.body.contains("${") || step.headers.iter().any(|(_, value)| value.contains("${"))
        });
        if has_dollar {
            writeln!(out, "\n[variables]\n{DOLLAR_VARIABLE} = \"$\"").ok();
        }
        if !self.load_settings.is_empty() {
            out.push_str("\n[load]\n");
            for (key, value) in &self.load_settings {
                writeln!(out, "{key} = {value}").ok();
            }
        }
        for scenario in &self.scenarios {
            writeln!(out, "\n[[scenario]]\nname = {}", quote_toml(&scenario.name)).ok();
            if scenario.weight != 1 {
                writeln!(out, "weight = {}", scenario.weight).ok();
            }
            for step in &scenario.steps {
                step.write(&mut out);
            }
        }
        out
    }
}

impl DraftStep {
    fn write(&self, out: &mut String) {
        out.push_str("[[scenario.step]]\n");
        let has_usual_method = self.method == if self.body.is_empty() { "GET" } else { "POST" };
        if !has_usual_method {
            writeln!(out, "method = {}", quote_toml(&self.method)).ok();
        }
        writeln!(out, "path = {}", quote_toml(&literal_path(&self.path))).ok();
        if let Some(think) = &self.think_time {
            writeln!(out, "think = {}", quote_toml(think)).ok();
        }
        if !self.body.is_empty() {
            writeln!(out, "body = {}", quote_toml(&literal_text(&self.body))).ok();
        }
        if !self.headers.is_empty() {
            let pairs: Vec<String> = self
                .headers
                .iter()
                .map(|(name, value)| {
                    format!("{} = {}", quote_toml(name), quote_toml(&literal_text(value)))
                })
                .collect();
            writeln!(out, "headers = {{ {} }}", pairs.join(", ")).ok();
        }
        if let Some(status) = self.expected_status {
            writeln!(out, "expect = {{ status = {status} }}").ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_is_toml_whatever_the_texts() {
        let draft = PlanDraft {
            comment_lines: vec!["from\na log".to_owned()],
            name: "a \"b\" \u{7f}".to_owned(),
            target: "http://x".to_owned(),
            load_settings: vec![("rate".to_owned(), quote_toml("2/s"))],
            scenarios: vec![DraftScenario {
                name: "s".to_owned(),
                weight: 3,
                steps: vec![DraftStep {
                    method: "PUT".to_owned(),
                    path: "/a?b=${c}".to_owned(),
                    headers: vec![("X-A".to_owned(), "b\\".to_owned())],
                    body: "line\nline ${x}".to_owned(),
                    expected_status: Some(404),
                    think_time: Some("2s".to_owned()),
                }],
            }],
        };
        let read: toml::Table = draft.to_toml().parse().unwrap();
        assert_eq!(read["name"].as_str(), Some("a \"b\" \u{7f}"));
        let step = &read["scenario"][0]["step"][0];
        assert_eq!(step["path"].as_str(), Some("/a?b=%24%7Bc}"));
        assert_eq!(step["headers"]["X-A"].as_str(), Some("b\\"));
        assert_eq!(step["body"].as_str(), Some("line\nline ${dollar}{x}"));
        assert_eq!(step["expect"]["status"].as_integer(), Some(404));
    }
}
