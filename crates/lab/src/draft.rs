//! Writes plans of our own: what a log or a recording becomes.
//!
//! Not here: reading plans ([`crate::plan`]).

use std::fmt::Write as _;

/// A plan to be written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Draft {
    /// Lines of comment at the top.
    pub remarks: Vec<String>,
    /// Its name.
    pub name: String,
    /// Where it goes, such as `http://127.0.0.1:8080`.
    pub target: String,
    /// The load, as key and value in TOML.
    pub load: Vec<(String, String)>,
    /// What is asked.
    pub scenarios: Vec<Scenario>,
}

/// What one visitor does.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// How often it comes, beside the other scenarios.
    pub weight: u64,
    /// Its requests.
    pub steps: Vec<Step>,
}

/// One request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Step {
    /// `GET`.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Headers that matter.
    pub headers: Vec<(String, String)>,
    /// The body, if it is text.
    pub body: String,
    /// Statuses that are expected although they are errors.
    pub status: Option<u16>,
    /// Pause after the request, such as `2s`.
    pub think: Option<String>,
}

/// Returns `text` as a string of TOML.
pub(crate) fn quote(text: &str) -> String {
    // A basic string of TOML is one of JSON, but for the one control character that JSON lets stand.
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}

/// Returns a path without what a plan would take for a variable.
fn literal(text: &str) -> String {
    text.replace("${", "%24%7B")
}

/// The variable that stands for the sign with which variables begin, in bodies and headers.
const DOLLAR: &str = "dollar";

/// Returns a text that a plan sends as it is.
fn plain(text: &str) -> String {
    text.replace("${", &format!("${{{DOLLAR}}}{{"))
}

impl Draft {
    /// Returns the plan's text.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        for remark in &self.remarks {
            writeln!(out, "# {}", remark.replace(['\n', '\r'], " ")).ok();
        }
        writeln!(out, "name = {}\ntarget = {}", quote(&self.name), quote(&self.target)).ok();
        let steps = || self.scenarios.iter().flat_map(|scenario| &scenario.steps);
        let has_dollar = steps().any(|step| {
            step.body.contains("${") || step.headers.iter().any(|(_, value)| value.contains("${"))
        });
        if has_dollar {
            writeln!(out, "\n[variables]\n{DOLLAR} = \"$\"").ok();
        }
        if !self.load.is_empty() {
            out.push_str("\n[load]\n");
            for (key, value) in &self.load {
                writeln!(out, "{key} = {value}").ok();
            }
        }
        for scenario in &self.scenarios {
            writeln!(out, "\n[[scenario]]\nname = {}", quote(&scenario.name)).ok();
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

impl Step {
    fn write(&self, out: &mut String) {
        out.push_str("[[scenario.step]]\n");
        let has_usual_method = self.method == if self.body.is_empty() { "GET" } else { "POST" };
        if !has_usual_method {
            writeln!(out, "method = {}", quote(&self.method)).ok();
        }
        writeln!(out, "path = {}", quote(&literal(&self.path))).ok();
        if let Some(think) = &self.think {
            writeln!(out, "think = {}", quote(think)).ok();
        }
        if !self.body.is_empty() {
            writeln!(out, "body = {}", quote(&plain(&self.body))).ok();
        }
        if !self.headers.is_empty() {
            let pairs: Vec<String> = self
                .headers
                .iter()
                .map(|(name, value)| format!("{} = {}", quote(name), quote(&plain(value))))
                .collect();
            writeln!(out, "headers = {{ {} }}", pairs.join(", ")).ok();
        }
        if let Some(status) = self.status {
            writeln!(out, "expect = {{ status = {status} }}").ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_is_toml_whatever_the_texts() {
        let draft = Draft {
            remarks: vec!["from\na log".to_owned()],
            name: "a \"b\" \u{7f}".to_owned(),
            target: "http://x".to_owned(),
            load: vec![("rate".to_owned(), quote("2/s"))],
            scenarios: vec![Scenario {
                name: "s".to_owned(),
                weight: 3,
                steps: vec![Step {
                    method: "PUT".to_owned(),
                    path: "/a?b=${c}".to_owned(),
                    headers: vec![("X-A".to_owned(), "b\\".to_owned())],
                    body: "line\nline ${x}".to_owned(),
                    status: Some(404),
                    think: Some("2s".to_owned()),
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
