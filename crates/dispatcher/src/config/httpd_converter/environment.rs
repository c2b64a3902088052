//! Conversion of `SetEnv`, `SetEnvIf`, `BrowserMatch` and similar directives: environment variables other than those
//! that rules set.
//!
//! Input: directives outside every section. Output: rules that set a variable before all other rules of a host, for the
//! variables that converted directives use.
//!
//! Invariants
//! * As in httpd, `SetEnvIf` applies before all rules, regardless of its position, and `SetEnv` after rules and access,
//!   so that only `Header … env=` sees it. The files are therefore read twice: the first pass collects the variables.
//! * Access that depends on a variable which could not be converted is refused as a whole (`access`).

use std::collections::BTreeSet;

use regex::Regex;

use super::host::HttpdHostRule;
use super::{HttpdConfigReader, HttpdDirective, expression, quote_toml};

/// The environment variables of all files, as read.
#[derive(Debug, Clone, Default)]
pub(super) struct HttpdEnvironment {
    /// Variables set by `SetEnvIf` and similar directives.
    set_before_rules: BTreeSet<String>,
    /// Variables set by rules.
    set_by_rules: BTreeSet<String>,
    /// Variables set by `SetEnv`, for the host with this number, or for all hosts.
    set_after_rules: BTreeSet<(Option<usize>, String)>,
    /// Variables set by a directive that was not converted.
    unconverted: BTreeSet<String>,
    /// Variables set to a text that may be empty, which cannot be distinguished from an unset variable.
    possibly_empty: BTreeSet<String>,
    /// Variables used by conditions, targets, values and access rules.
    queried: BTreeSet<String>,
    /// Variables used by `Header`.
    queried_by_headers: BTreeSet<String>,
}

impl HttpdEnvironment {
    /// Returns true if rules may read a variable that `SetEnvIf` sets.
    pub(super) fn is_set_before_rules(&self, name: &str) -> bool {
        self.set_before_rules.contains(name) && !self.unconverted.contains(name)
    }

    /// Returns true if only `SetEnv` sets a variable, for at least one host.
    pub(super) fn is_set_only_after_rules(&self, name: &str) -> bool {
        let is_set_otherwise = [&self.set_before_rules, &self.set_by_rules, &self.unconverted]
            .iter()
            .any(|names| names.contains(name));
        !is_set_otherwise && self.set_after_rules.iter().any(|(_, own)| own == name)
    }

    /// Returns true if access rules may test if a variable is set.
    pub(super) fn is_testable(&self, name: &str) -> bool {
        let is_set = self.set_before_rules.contains(name) || self.set_by_rules.contains(name);
        is_set && !self.unconverted.contains(name) && !self.possibly_empty.contains(name)
    }

    /// Records the variables that a rule sets.
    pub(super) fn record_rule(&mut self, variables: &[(String, String)], is_converted: bool) {
        for (name, value) in variables {
            if is_converted {
                self.set_by_rules.insert(name.clone());
                self.record_value(name, value);
            } else {
                self.unconverted.insert(name.clone());
            }
        }
    }

    fn record_value(&mut self, name: &str, value: &str) {
        if value.is_empty() || value.contains(['%', '$']) {
            self.possibly_empty.insert(name.to_owned());
        }
    }

    /// Records that a variable is used.
    pub(super) fn record_query(&mut self, name: &str) {
        self.queried.insert(name.to_owned());
    }
}

/// A variable that `SetEnvIf` sets to a value template, or unsets.
struct SetEnvIfAssignment {
    name: String,
    value: Option<String>,
}

impl SetEnvIfAssignment {
    fn parse(argument: &str) -> Self {
        match (argument.strip_prefix('!'), argument.split_once('=')) {
            (Some(name), _) => Self { name: name.to_owned(), value: None },
            (None, Some((name, value))) => {
                Self { name: name.to_owned(), value: Some(value_template(value)) }
            }
            (None, None) => Self { name: argument.to_owned(), value: Some("1".to_owned()) },
        }
    }
}

/// Replaces `$1`, a group of the directive's own pattern, by `%1`, a group of the rule's condition.
fn value_template(value: &str) -> String {
    let mut template = String::with_capacity(value.len());
    let mut chars = value.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '$' if chars.peek().is_some_and(char::is_ascii_digit) => template.push('%'),
            '$' | '%' | '\\' => template.extend(['\\', char]),
            char => template.push(char),
        }
    }
    template
}

/// Returns true if a directive concerns environment variables.
pub(super) fn is_environment_directive(name: &str) -> bool {
    const NAMES: [&str; 8] = [
        "setenv",
        "unsetenv",
        "passenv",
        "setenvif",
        "setenvifnocase",
        "setenvifexpr",
        "browsermatch",
        "browsermatchnocase",
    ];
    NAMES.contains(&name)
}

impl HttpdConfigReader<'_> {
    /// Returns the number of the current host; `None` outside every host.
    fn host_number(&self) -> Option<usize> {
        self.is_within(super::HttpdContainerKind::Host).then_some(self.hosts.len())
    }

    /// Reads a directive for which [`is_environment_directive`] holds.
    pub(super) fn read_environment_directive(&mut self, line: &HttpdDirective<'_>) {
        match line.name.to_ascii_lowercase().as_str() {
            "setenv" => self.read_set_env(line),
            "unsetenv" | "passenv" => {
                self.recorded_environment.unconverted.extend(line.arguments.iter().cloned());
                self.warn_of_unsupported(line.position, &line.name, "it has no counterpart");
            }
            name => self.read_set_env_if(line, name),
        }
    }

    /// Records that the variables set by a section are not converted.
    pub(super) fn record_unconverted_variables(&mut self, line: &HttpdDirective<'_>) {
        let first = match line.name.to_ascii_lowercase().as_str() {
            "setenvif" | "setenvifnocase" => 2,
            "setenvifexpr" | "browsermatch" | "browsermatchnocase" => 1,
            _ => 0,
        };
        let words = line.arguments.get(first..).unwrap_or_default();
        self.recorded_environment
            .unconverted
            .extend(words.iter().map(|argument| SetEnvIfAssignment::parse(argument).name));
    }

    fn read_set_env(&mut self, line: &HttpdDirective<'_>) {
        let name = line.argument(0).to_owned();
        let is_asked = self.known_environment.queried_by_headers.contains(&name);
        self.recorded_environment.set_after_rules.insert((self.host_number(), name.clone()));
        if !is_asked {
            let why = format!(
                "`{name}` is set after rewrite and access rules, and no `Header` line uses it"
            );
            self.warn_of_unsupported(line.position, &line.name, &why);
        }
    }

    fn read_set_env_if(&mut self, line: &HttpdDirective<'_>, name: &str) {
        let first = if name.starts_with("setenvif") && name != "setenvifexpr" { 2 } else { 1 };
        let words = line.arguments.get(first..).unwrap_or_default();
        let assignments: Vec<SetEnvIfAssignment> =
            words.iter().map(|argument| SetEnvIfAssignment::parse(argument)).collect();
        let conditions = self.set_env_conditions(line, name);
        for SetEnvIfAssignment { name, value } in &assignments {
            self.recorded_environment.set_before_rules.insert(name.clone());
            match (&conditions, value) {
                (Err(_), _) => {
                    self.recorded_environment.unconverted.insert(name.clone());
                }
                (Ok(_), Some(value)) => self.recorded_environment.record_value(name, value),
                (Ok(_), None) => {}
            }
        }
        let queried = assignments
            .iter()
            .filter(|assignment| self.known_environment.queried.contains(&assignment.name));
        let queried: Vec<&SetEnvIfAssignment> = queried.collect();
        if queried.is_empty() {
            let names: Vec<&str> =
                assignments.iter().map(|assignment| assignment.name.as_str()).collect();
            let why = format!("no converted directive uses `{}`", names.join("`, `"));
            return self.warn_of_unsupported(line.position, &line.name, &why);
        }
        let when = match conditions {
            Ok(when) => when,
            Err(why) => {
                let message = format!("`{}` is not converted: {why}", line.name);
                return self.diagnostics.add_error(line.position, message);
            }
        };
        let pairs = queried.iter().map(|assignment| {
            format!(
                "{} = {}",
                quote_toml(&assignment.name),
                quote_toml(assignment.value.as_deref().unwrap_or_default())
            )
        });
        let pairs: Vec<String> = pairs.collect();
        let rule = HttpdHostRule {
            position: line.position.clone(),
            pattern: None,
            ignores_case: false,
            conditions: when,
            action_toml: format!("rewrite = \"-\"\nset = {{ {} }}\n", pairs.join(", ")),
            is_lookup_repeated: false,
        };
        self.current_host().environment_rules.push(rule);
    }

    /// Returns the conditions under which a variable is set.
    fn set_env_conditions(
        &mut self,
        line: &HttpdDirective<'_>,
        name: &str,
    ) -> Result<Vec<String>, String> {
        if name == "setenvifexpr" {
            return self.expression_conditions(line.argument(0));
        }
        let (attribute, pattern) = match name.starts_with("browsermatch") {
            true => ("User-Agent", line.argument(0)),
            false => (line.argument(0), line.argument(1)),
        };
        if Regex::new(pattern).is_err() {
            return Err(format!(
                "the pattern `{pattern}` is malformed, or uses lookaround or backreferences, which are not \
                 supported"
            ));
        }
        let subject = self.subject_template(attribute)?;
        let case = if name.ends_with("nocase") { ", ignore_case = true" } else { "" };
        Ok(vec![format!(
            "{{ test = {}, match = {}{case} }}",
            quote_toml(&subject),
            quote_toml(pattern)
        )])
    }

    /// Converts an expression to conditions that must all hold.
    fn expression_conditions(&mut self, text: &str) -> Result<Vec<String>, String> {
        let mut when = Vec::new();
        for clause in expression::expression_to_conditions(text)? {
            let Some((last, alternatives)) = clause.split_last() else {
                return Err("it is never true".to_owned());
            };
            if clause.iter().any(|condition| condition.contains("%{ENV:")) {
                return Err("it tests another variable".to_owned());
            }
            when.extend(alternatives.iter().map(|alternative| super::with_or_flag(alternative)));
            when.push(last.clone());
        }
        Ok(when)
    }

    /// Returns the template for the attribute that `SetEnvIf` tests.
    fn subject_template(&mut self, attribute: &str) -> Result<String, String> {
        let variable = match attribute.to_ascii_lowercase().as_str() {
            "remote_host" => "REMOTE_HOST",
            "remote_addr" => "REMOTE_ADDR",
            "request_method" => "REQUEST_METHOD",
            "request_protocol" => "SERVER_PROTOCOL",
            "request_uri" => "REQUEST_URI",
            "server_addr" => {
                return Err("rules cannot test the address of the server".to_owned());
            }
            attribute_name => {
                self.recorded_environment.record_query(attribute);
                if self.known_environment.set_before_rules.contains(attribute) {
                    return Ok(format!("%{{ENV:{attribute}}}"));
                }
                let is_name =
                    |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
                return match attribute_name.bytes().all(is_name) {
                    true => Ok(format!("%{{HTTP:{attribute}}}")),
                    false => Err(format!("`{attribute}` is a pattern for header names")),
                };
            }
        };
        Ok(format!("%{{{variable}}}"))
    }

    /// Returns true if a header with `env=NAME` or `env=!NAME` is always sent, and false if never; `None` if it depends
    /// on the request.
    pub(super) fn is_header_always_sent(&mut self, condition: &str) -> Option<bool> {
        let text = condition.strip_prefix("env=")?;
        let (name, is_wanted) = match text.strip_prefix('!') {
            Some(name) => (name, false),
            None => (text, true),
        };
        self.recorded_environment.queried_by_headers.insert(name.to_owned());
        if !self.known_environment.is_set_only_after_rules(name) {
            return None;
        }
        let is_set_for =
            |host| self.known_environment.set_after_rules.contains(&(host, name.to_owned()));
        let (is_for_all, host) = (is_set_for(None), self.host_number());
        // Outside every host it would also be sent by hosts that do not set the variable.
        (is_for_all || host.is_some_and(|host| is_set_for(Some(host)))).then_some(is_wanted)
    }
}
