//! Writes plans in Tympan's own format from a log or a recording.
//!
//! Not here: reading plans (`tympan_lab_engine::plan_run`).

use std::fmt::Write as _;

/// A plan to write.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlanDraft {
    /// Comment lines at the top of the file.
    pub comment_lines: Vec<String>,
    /// The plan's name.
    pub name: String,
    /// The target server, such as `http://127.0.0.1:8080`.
    pub target: String,
    /// The load settings, as TOML keys and values.
    pub load_settings: Vec<(String, String)>,
    /// The plan's scenarios.
    pub scenarios: Vec<DraftScenario>,
}

/// The requests of one visitor.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DraftScenario {
    /// The scenario's name.
    pub name: String,
    /// The scenario's relative frequency among all scenarios.
    pub weight: u64,
    /// The scenario's requests.
    pub steps: Vec<DraftStep>,
}

/// One request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DraftStep {
    /// The HTTP method, such as `GET`.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The headers to send.
    pub headers: Vec<(String, String)>,
    /// The body, if it is text.
    pub body: String,
    /// An error status that is expected.
    pub expected_status: Option<u16>,
    /// Pause after the request, such as `2s`.
    pub think_time: Option<String>,
}

/// Returns `text` as a TOML string.
pub fn quote_toml(text: &str) -> String {
    // A TOML basic string is a JSON string, except for one control character that JSON leaves unescaped.
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}

/// Returns a path in which nothing can be parsed as a variable of the plan.
fn literal_path(text: &str) -> String {
    text.replace("${", "%24%7B")
}

/// The variable that stands for the dollar sign, which begins variables in bodies and headers.
const DOLLAR_VARIABLE: &str = "dollar";

/// Returns a text that the plan sends literally.
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
