//! `SetEnv`, `SetEnvIf`, `BrowserMatch` and their relatives: variables of the environment beside those that rules set.
//!
//! In: directives outside every section. Out: rules that set a variable before all other rules of a host, for those that
//! something converted asks for.
//!
//! Invariants
//! * As in httpd, `SetEnvIf` counts before all rules, wherever it stands, and `SetEnv` after rules and access, so that only
//!   `Header … env=` sees it. The files are read twice for that: the first time tells which variables there are.
//! * Access that hangs on a variable which could not be converted is refused as a whole (`access`).

use std::collections::BTreeSet;

use regex::Regex;

use super::host::Rule;
use super::{Line, Reader, expression, quote};

/// The variables of all files, as they were read.
#[derive(Debug, Clone, Default)]
pub(super) struct Environment {
    /// Set by `SetEnvIf` and its relatives.
    before_rules: BTreeSet<String>,
    /// Set by rules.
    by_rules: BTreeSet<String>,
    /// Set by `SetEnv`, for a host or, without its number, for all.
    after_rules: BTreeSet<(Option<usize>, String)>,
    /// Set by something that was not converted.
    lost: BTreeSet<String>,
    /// Set to a text that may be empty, which is not told apart from a variable that is not set.
    perhaps_empty: BTreeSet<String>,
    /// Asked for by conditions, targets, values and access rules.
    asked: BTreeSet<String>,
    /// Asked for by `Header`.
    asked_by_headers: BTreeSet<String>,
}

impl Environment {
    /// Tells whether rules may read a variable that `SetEnvIf` sets.
    pub(super) fn is_set_before_rules(&self, name: &str) -> bool {
        self.before_rules.contains(name) && !self.lost.contains(name)
    }

    /// Tells whether `SetEnv` alone sets a variable, for one host at least.
    pub(super) fn is_set_after_rules_alone(&self, name: &str) -> bool {
        let is_set_otherwise = [&self.before_rules, &self.by_rules, &self.lost]
            .iter()
            .any(|names| names.contains(name));
        !is_set_otherwise && self.after_rules.iter().any(|(_, own)| own == name)
    }

    /// Tells whether access rules may ask whether a variable is set.
    pub(super) fn is_askable(&self, name: &str) -> bool {
        let is_set = self.before_rules.contains(name) || self.by_rules.contains(name);
        is_set && !self.lost.contains(name) && !self.perhaps_empty.contains(name)
    }

    /// Notes what rules set.
    pub(super) fn note_rule(&mut self, variables: &[(String, String)], is_converted: bool) {
        for (name, value) in variables {
            if is_converted {
                self.by_rules.insert(name.clone());
                self.note_value(name, value);
            } else {
                self.lost.insert(name.clone());
            }
        }
    }

    fn note_value(&mut self, name: &str, value: &str) {
        if value.is_empty() || value.contains(['%', '$']) {
            self.perhaps_empty.insert(name.to_owned());
        }
    }

    /// Notes that something asks for a variable.
    pub(super) fn note_asked(&mut self, name: &str) {
        self.asked.insert(name.to_owned());
    }
}

/// A variable that `SetEnvIf` sets to the template of a value, or unsets.
struct Assignment {
    name: String,
    value: Option<String>,
}

impl Assignment {
    fn of(word: &str) -> Self {
        match (word.strip_prefix('!'), word.split_once('=')) {
            (Some(name), _) => Self { name: name.to_owned(), value: None },
            (None, Some((name, value))) => {
                Self { name: name.to_owned(), value: Some(value_template(value)) }
            }
            (None, None) => Self { name: word.to_owned(), value: Some("1".to_owned()) },
        }
    }
}

/// Turns `$1`, a group of the own pattern, into `%1`, a group of the rule's condition.
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

/// Tells whether a directive is about variables of the environment.
pub(super) fn is_environment(name: &str) -> bool {
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

impl Reader<'_> {
    /// Returns the number of the host that is being read; nothing outside every one.
    fn host_number(&self) -> Option<usize> {
        self.is_within(super::Kind::Host).then_some(self.hosts.len())
    }

    /// Reads a directive for which [`is_environment`] holds.
    pub(super) fn environment_directive(&mut self, line: &Line<'_>) {
        match line.name.to_ascii_lowercase().as_str() {
            "setenv" => self.set_env(line),
            "unsetenv" | "passenv" => {
                self.noted.lost.extend(line.words.iter().cloned());
                self.unsupported(line.at, &line.name, "it has no counterpart");
            }
            name => self.set_env_if(line, name),
        }
    }

    /// Notes that what a section sets is not converted.
    pub(super) fn lose_environment(&mut self, line: &Line<'_>) {
        let first = match line.name.to_ascii_lowercase().as_str() {
            "setenvif" | "setenvifnocase" => 2,
            "setenvifexpr" | "browsermatch" | "browsermatchnocase" => 1,
            _ => 0,
        };
        let words = line.words.get(first..).unwrap_or_default();
        self.noted.lost.extend(words.iter().map(|word| Assignment::of(word).name));
    }

    fn set_env(&mut self, line: &Line<'_>) {
        let name = line.word(0).to_owned();
        let is_asked = self.known.asked_by_headers.contains(&name);
        self.noted.after_rules.insert((self.host_number(), name.clone()));
        if !is_asked {
            let why = format!(
                "`{name}` is set behind rewrite and access rules, and none of the `Header` lines asks for it"
            );
            self.unsupported(line.at, &line.name, &why);
        }
    }

    fn set_env_if(&mut self, line: &Line<'_>, name: &str) {
        let first = if name.starts_with("setenvif") && name != "setenvifexpr" { 2 } else { 1 };
        let words = line.words.get(first..).unwrap_or_default();
        let assignments: Vec<Assignment> = words.iter().map(|word| Assignment::of(word)).collect();
        let conditions = self.conditions_of(line, name);
        for Assignment { name, value } in &assignments {
            self.noted.before_rules.insert(name.clone());
            match (&conditions, value) {
                (Err(_), _) => {
                    self.noted.lost.insert(name.clone());
                }
                (Ok(_), Some(value)) => self.noted.note_value(name, value),
                (Ok(_), None) => {}
            }
        }
        let asked = assignments.iter().filter(|one| self.known.asked.contains(&one.name));
        let asked: Vec<&Assignment> = asked.collect();
        if asked.is_empty() {
            let names: Vec<&str> = assignments.iter().map(|one| one.name.as_str()).collect();
            let why = format!("nothing that is converted asks for `{}`", names.join("`, `"));
            return self.unsupported(line.at, &line.name, &why);
        }
        let when = match conditions {
            Ok(when) => when,
            Err(why) => {
                let message = format!("`{}` is not converted: {why}", line.name);
                return self.findings.error(line.at, message);
            }
        };
        let pairs = asked.iter().map(|one| {
            format!("{} = {}", quote(&one.name), quote(one.value.as_deref().unwrap_or_default()))
        });
        let pairs: Vec<String> = pairs.collect();
        let rule = Rule {
            at: line.at.clone(),
            pattern: None,
            ignores_case: false,
            when,
            action: format!("rewrite = \"-\"\nset = {{ {} }}\n", pairs.join(", ")),
            is_asked_anew: false,
        };
        self.host().environment.push(rule);
    }

    /// Returns the conditions under which a variable is set.
    fn conditions_of(&mut self, line: &Line<'_>, name: &str) -> Result<Vec<String>, String> {
        if name == "setenvifexpr" {
            return self.expression_conditions(line.word(0));
        }
        let (attribute, pattern) = match name.starts_with("browsermatch") {
            true => ("User-Agent", line.word(0)),
            false => (line.word(0), line.word(1)),
        };
        if Regex::new(pattern).is_err() {
            return Err(format!(
                "the pattern `{pattern}` is not known; look-around and back references are not"
            ));
        }
        let subject = self.subject(attribute)?;
        let case = if name.ends_with("nocase") { ", ignore_case = true" } else { "" };
        Ok(vec![format!("{{ test = {}, match = {}{case} }}", quote(&subject), quote(pattern))])
    }

    /// Turns an expression into conditions that all must hold.
    fn expression_conditions(&mut self, text: &str) -> Result<Vec<String>, String> {
        let mut when = Vec::new();
        for clause in expression::conditions(text)? {
            let Some((last, alternatives)) = clause.split_last() else {
                return Err("it never holds".to_owned());
            };
            if clause.iter().any(|condition| condition.contains("%{ENV:")) {
                return Err("it asks for another variable".to_owned());
            }
            when.extend(alternatives.iter().map(|one| super::or_next(one)));
            when.push(last.clone());
        }
        Ok(when)
    }

    /// Returns the template for what `SetEnvIf` looks at.
    fn subject(&mut self, attribute: &str) -> Result<String, String> {
        let variable = match attribute.to_ascii_lowercase().as_str() {
            "remote_host" => "REMOTE_HOST",
            "remote_addr" => "REMOTE_ADDR",
            "request_method" => "REQUEST_METHOD",
            "request_protocol" => "SERVER_PROTOCOL",
            "request_uri" => "REQUEST_URI",
            "server_addr" => {
                return Err("the address of the server is not known to rules".to_owned());
            }
            other => {
                self.noted.note_asked(attribute);
                if self.known.before_rules.contains(attribute) {
                    return Ok(format!("%{{ENV:{attribute}}}"));
                }
                let is_name =
                    |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
                return match other.bytes().all(is_name) {
                    true => Ok(format!("%{{HTTP:{attribute}}}")),
                    false => Err(format!("`{attribute}` is a pattern for names of headers")),
                };
            }
        };
        Ok(format!("%{{{variable}}}"))
    }

    /// Tells whether a header with `env=NAME` or `env=!NAME` is always sent, or never; nothing if the request decides.
    pub(super) fn is_header_sent(&mut self, condition: &str) -> Option<bool> {
        let text = condition.strip_prefix("env=")?;
        let (name, is_wanted) = match text.strip_prefix('!') {
            Some(name) => (name, false),
            None => (text, true),
        };
        self.noted.asked_by_headers.insert(name.to_owned());
        if !self.known.is_set_after_rules_alone(name) {
            return None;
        }
        let is_set_for = |host| self.known.after_rules.contains(&(host, name.to_owned()));
        let (is_for_all, host) = (is_set_for(None), self.host_number());
        // Outside every host it would be sent by hosts that do not set it.
        (is_for_all || host.is_some_and(|host| is_set_for(Some(host)))).then_some(is_wanted)
    }
}
