//! Redacts plans: makes a copy without secrets, which is stored with a run.
//!
//! In: the text of a plan. Out: the same plan in which each secret is a property, `${__P(kept.password,)}`, with a
//! comment at the top that names the properties. The copy is still a valid plan: it runs if the properties are given,
//! and is rejected if not.
//!
//! Secrets are:
//! * Passwords of authorization managers and proxies, and values of cookie managers.
//! * Values of variables, parameters, fields, headers, user parameters and TOML keys whose names are those of secrets
//!   ([`crate::redaction::is_secret_name`]). In sent texts and scripts, the same names in addresses, forms, JSON and
//!   XML, and in assignments of a script.
//! * Defaults that `__P` and `__property` give for such a name.
//!
//! Invariant: a value that the plan gets from elsewhere (`${PASS}` of a data file, `${__P(password,)}`) is unchanged.
//!
//! Not here: data files, which are not copied, and secrets that no name identifies, such as a password in the path of
//! an address or in a comment.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use roxmltree::Node;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::plan_draft::quote_toml;
use crate::plan_source::parse_xml;
use crate::redaction::is_secret_name;

/// Prefix of the names of properties that replace secrets.
const SECRET_PROPERTY_PREFIX: &str = "kept.";

/// A redacted copy of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedactedPlan {
    /// The plan's text without secrets.
    pub text: String,
    /// The properties that replace the secrets, sorted by name.
    pub required_properties: Vec<String>,
}

/// Returns a redacted copy of a TOML plan; `None` if the text is not TOML.
#[must_use]
pub fn redact_toml_plan(text: &str) -> Option<RedactedPlan> {
    let table = DeTable::parse(text).ok()?;
    let mut redactor = PlanRedactor { source_text: text, ..PlanRedactor::default() };
    redactor.redact_table(table.get_ref(), "");
    Some(redactor.into_redacted_plan("# ", "\n"))
}

/// Returns a redacted copy of a JMeter plan; `None` if the text is not XML.
#[must_use]
pub fn redact_jmx_plan(text: &str) -> Option<RedactedPlan> {
    let document = parse_xml(text).ok()?;
    let mut redactor = PlanRedactor { source_text: text, ..PlanRedactor::default() };
    document.descendants().filter(Node::is_element).for_each(|node| redactor.redact_element(node));
    Some(redactor.into_redacted_plan("<!-- ", " -->\n"))
}

/// Returns the properties that a redacted copy needs.
pub(crate) fn find_required_properties(text: &str) -> BTreeSet<String> {
    let all_captures = REQUIRED_PROPERTY_PATTERN.captures_iter(text);
    all_captures.filter_map(|captures| Some(captures.get(1)?.as_str().to_owned())).collect()
}

#[expect(clippy::expect_used, reason = "the patterns are constants")]
fn compile_pattern(text: &str) -> Regex {
    Regex::new(text).expect("the pattern is valid")
}

static REQUIRED_PROPERTY_PATTERN: LazyLock<Regex> =
    LazyLock::new(|| compile_pattern(r"\$\{__P\((kept\.[a-z0-9._-]+),\)\}"));
/// Matches properties with a default. Groups: the function, the name, the rest.
static DEFAULT_PROPERTY_PATTERN: LazyLock<Regex> =
    LazyLock::new(|| compile_pattern(r"\$\{(__P|__property)\(([^,(){}]+),([^(){}]*)\)\}"));
static URL_USER_PATTERN: LazyLock<Regex> =
    LazyLock::new(|| compile_pattern(r"(?i)\b(https?://)[^/?#\s@{}]+(?:@[^/?#\s@{}]*)*@"));
/// Matches the ways in which texts assign a value to a name. Groups: the text before the value including the name, the
/// value, the text after it.
static ASSIGNMENT_PATTERNS: LazyLock<[Regex; 5]> = LazyLock::new(|| {
    [
        // A form or a query string.
        compile_pattern(r"((?:^|[?&;])(?P<name>[^=&;#\s?<{]+)=)(?P<value>[^&;#\s]+)()"),
        // JSON.
        compile_pattern(r#"("(?P<name>[^"\\]+)"\s*:\s*")(?P<value>(?:[^"\\]|\\.)+)(")"#),
        // XML.
        compile_pattern(r"(<(?P<name>[\w:.-]+)>)(?P<value>[^<]+)(</)"),
        // `put("name", "value")` in a script.
        compile_pattern(r#"(\(\s*["'](?P<name>[^"']+)["']\s*,\s*["'])(?P<value>[^"'\\]+)(["'])"#),
        // `name = "value"` in a script.
        compile_pattern(r#"(\b(?P<name>\w+)\s*=\s*["'])(?P<value>[^"'\\]+)(["'])"#),
    ]
});

/// Properties of JMeter elements whose texts are sent or are scripts.
const SENT_TEXT_PROPERTIES: [&str; 11] = [
    "Argument.value",
    "Header.value",
    "HTTPSampler.path",
    "HTTPSampler.domain",
    "script",
    "parameters",
    "BeanShellSampler.query",
    "BeanShellSampler.parameters",
    "BeanShellAssertion.query",
    "BeanShellAssertion.parameters",
    "BeanShellPreProcessor.query",
];
/// Parts of element property names that indicate a secret. `auth` and `cookie` are absent because the elements' own
/// property names contain them.
const SECRET_FIELD_PARTS: [&str; 5] = ["pass", "pwd", "secret", "token", "apikey"];
/// Words that precede a secret but are not part of it.
const AUTH_SCHEMES: [&str; 4] = ["basic", "bearer", "digest", "token"];
/// Functions whose arguments contain no secret.
const SECRETLESS_FUNCTIONS: [&str; 7] =
    ["__P", "__property", "__V", "__evalVar", "__Random", "__RandomString", "__time"];
/// Tables of a TOML plan that send nothing.
const UNSENT_TABLES: [&str; 4] = ["load", "expect", "extract", "goal"];

/// State of one redaction.
#[derive(Debug, Default)]
struct PlanRedactor<'t> {
    source_text: &'t str,
    /// Byte ranges of the text and their replacements.
    edits: Vec<(Range<usize>, String)>,
    /// The property of each secret, by the secret's name and value.
    secret_properties: BTreeMap<(String, String), String>,
}

impl PlanRedactor<'_> {
    fn into_redacted_plan(mut self, before: &str, behind: &str) -> RedactedPlan {
        self.edits.sort_by_key(|(range, _)| range.start);
        let mut out = String::with_capacity(self.source_text.len());
        let mut at = 0;
        for (range, new) in self.edits {
            out.push_str(self.source_text.get(at..range.start).unwrap_or_default());
            out.push_str(&new);
            at = range.end;
        }
        out.push_str(self.source_text.get(at..).unwrap_or_default());
        let properties: Vec<String> =
            self.secret_properties.into_values().collect::<BTreeSet<_>>().into_iter().collect();
        if !properties.is_empty() {
            let list: Vec<String> = properties.iter().map(|name| format!("-J{name}=...")).collect();
            let remark = format!(
                "{before}A copy without secrets. To run it, give them: {}{behind}",
                list.join(" ")
            );
            // Nothing may precede the XML declaration.
            let head = match out.starts_with("<?xml") {
                true => out.find("?>").map_or(0, |at| at + 2),
                false => 0,
            };
            let line = if head > 0 { format!("\n{}", remark.trim_end()) } else { remark };
            out.insert_str(head, &line);
        }
        RedactedPlan { text: out, required_properties: properties }
    }

    /// Returns a reference to the property that replaces a secret.
    fn property_reference(&mut self, name: &str, secret: &str) -> String {
        let key = (name.to_ascii_lowercase(), secret.to_owned());
        if let Some(existing_property) = self.secret_properties.get(&key) {
            return format!("${{__P({existing_property},)}}");
        }
        let letters: String = key
            .0
            .chars()
            .map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' })
            .take(40)
            .collect();
        // XML comments cannot contain two hyphens in a row.
        let words: Vec<&str> = letters.split('-').filter(|word| !word.is_empty()).collect();
        let bare = format!("{SECRET_PROPERTY_PREFIX}{}", words.join("-"));
        let is_taken = |name: &String| {
            self.secret_properties.values().any(|existing_name| existing_name == name)
        };
        let mut property = bare.clone();
        let mut number = 1;
        while is_taken(&property) {
            number += 1;
            property = format!("{bare}.{number}");
        }
        self.secret_properties.insert(key, property.clone());
        format!("${{__P({property},)}}")
    }

    /// Returns the replacement for a value whose name is that of a secret.
    fn redact_value(&mut self, name: &str, value: &str) -> String {
        let mut out = String::new();
        for segment in split_references(value) {
            let new = match segment {
                PlanTextSegment::Reference(call) if is_secretless_reference(call) => {
                    remove_secret_defaults(call)
                }
                PlanTextSegment::Reference(secret) => self.property_reference(name, secret),
                PlanTextSegment::Plain(text) => self.redact_plain_value(name, text),
            };
            out.push_str(&new);
        }
        out
    }

    fn redact_plain_value(&mut self, name: &str, text: &str) -> String {
        let start = text.len() - text.trim_start().len();
        let (blank, rest) = text.split_at(start);
        let first_word = rest.split(' ').next().unwrap_or_default();
        let is_scheme = AUTH_SCHEMES.contains(&first_word.to_ascii_lowercase().as_str());
        let (scheme, secret) = match is_scheme {
            true => rest.split_at((first_word.len() + 1).min(rest.len())),
            false => ("", rest),
        };
        if !secret.chars().any(char::is_alphanumeric) {
            return text.to_owned();
        }
        format!("{blank}{scheme}{}", self.property_reference(name, secret))
    }

    /// Returns the text with the values of secret names redacted.
    fn redact_assignments(&mut self, text: &str) -> String {
        let mut text = URL_USER_PATTERN.replace_all(text, "$1").into_owned();
        for pattern in ASSIGNMENT_PATTERNS.iter() {
            let hide = |captures: &Captures<'_>| {
                let part = |number: usize| captures.get(number).map_or("", |part| part.as_str());
                let (name, value) = (&captures["name"], &captures["value"]);
                if !is_secret_name(name) {
                    return part(0).to_owned();
                }
                let behind = captures.get(captures.len() - 1).map_or("", |part| part.as_str());
                format!("{}{}{behind}", part(1), self.redact_value(name, value))
            };
            text = pattern.replace_all(&text, hide).into_owned();
        }
        remove_secret_defaults(&text)
    }

    /// Redacts an element of a JMeter plan.
    fn redact_element(&mut self, node: Node<'_, '_>) {
        let name = node.attribute("name").unwrap_or_default();
        if name == "UserParameters.thread_values" {
            self.redact_user_parameters(node);
            return;
        }
        let is_user_value = node
            .ancestors()
            .skip(1)
            .take(2)
            .any(|above| above.attribute("name") == Some("UserParameters.thread_values"));
        let Some(value) = node.text().filter(|value| !value.trim().is_empty()) else { return };
        if name.is_empty() || is_user_value || !node.tag_name().name().ends_with("Prop") {
            return;
        }
        let new = match secret_property_name(node, name) {
            Some(secret) => self.redact_value(&secret, value),
            None if SENT_TEXT_PROPERTIES.contains(&name) => self.redact_assignments(value),
            None => remove_secret_defaults(value),
        };
        self.replace_node_text(node, value, &new);
    }

    /// Redacts the values of user parameters, which are stored apart from their names.
    fn redact_user_parameters(&mut self, node: Node<'_, '_>) {
        let names = node
            .parent()
            .into_iter()
            .flat_map(|element| element.children())
            .find(|child| child.attribute("name") == Some("UserParameters.names"));
        let texts = |node: Node<'_, '_>| -> Vec<String> {
            let entries = node.children().filter(Node::is_element);
            entries.map(|entry| entry.text().unwrap_or_default().to_owned()).collect()
        };
        let names = names.map(texts).unwrap_or_default();
        for user in node.children().filter(Node::is_element) {
            for (name, entry) in names.iter().zip(user.children().filter(Node::is_element)) {
                let value = entry.text().unwrap_or_default();
                if is_secret_name(name) && !value.is_empty() {
                    let new = self.redact_value(name, value);
                    self.replace_node_text(entry, value, &new);
                }
            }
        }
    }

    fn replace_node_text(&mut self, node: Node<'_, '_>, old: &str, new: &str) {
        if old == new {
            return;
        }
        let (Some(first), Some(last)) = (node.first_child(), node.last_child()) else { return };
        let escaped = new
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
            .replace('\r', "&#xd;");
        self.edits.push((first.range().start..last.range().end, escaped));
    }

    /// Redacts a table of a TOML plan.
    fn redact_table(&mut self, table: &DeTable<'_>, above: &str) {
        for (key, value) in table.iter() {
            let key: &str = key.get_ref();
            let is_whole = above.is_empty();
            if UNSENT_TABLES.contains(&key) || (is_whole && key == "cookies") {
                continue;
            }
            self.redact_toml_value(key, value);
        }
    }

    fn redact_toml_value(&mut self, key: &str, value: &Spanned<DeValue<'_>>) {
        let (range, old) = match value.get_ref() {
            DeValue::Table(table) => return self.redact_table(table, key),
            DeValue::Array(values) => {
                values.iter().for_each(|value| self.redact_toml_value(key, value));
                return;
            }
            DeValue::String(text) => (value.span(), text.to_string()),
            DeValue::Boolean(_) => return,
            _ if is_secret_name(key) => {
                let range = value.span();
                (range.clone(), self.source_text.get(range).unwrap_or_default().to_owned())
            }
            _ => return,
        };
        let new = if is_secret_name(key) {
            self.redact_value(key, &old)
        } else {
            self.redact_assignments(&old)
        };
        if new != old {
            self.edits.push((range, quote_toml(&new)));
        }
    }
}

/// Returns the name that makes a property's value a secret; `None` if the value is not a secret.
fn secret_property_name(node: Node<'_, '_>, name: &str) -> Option<String> {
    let parent = node.parent();
    let beside = |sibling_name: &str| {
        let sibling =
            parent?.children().find(|child| child.attribute("name") == Some(sibling_name))?;
        sibling.text().map(str::to_owned)
    };
    let own = || parent.and_then(|parent| parent.attribute("name")).map(str::to_owned);
    match name {
        "Argument.value" => {
            beside("Argument.name").or_else(own).filter(|name| is_secret_name(name))
        }
        "Header.value" => beside("Header.name").filter(|name| is_secret_name(name)),
        "Cookie.value" => Some(own().filter(|name| !name.is_empty()).unwrap_or_default()),
        _ => {
            let field = name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase();
            SECRET_FIELD_PARTS.iter().any(|part| field.contains(part)).then_some(field)
        }
    }
}

/// A segment of a text.
#[derive(Debug, PartialEq, Eq)]
enum PlanTextSegment<'t> {
    Plain(&'t str),
    /// `${...}`, including nested references.
    Reference(&'t str),
}

/// Splits a text at its references.
fn split_references(text: &str) -> Vec<PlanTextSegment<'_>> {
    let mut segments = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (plain, from) = rest.split_at(at);
        if !plain.is_empty() {
            segments.push(PlanTextSegment::Plain(plain));
        }
        let (mut depth, mut end, mut before) = (0usize, from.len(), ' ');
        for (position, letter) in from.char_indices() {
            match letter {
                '{' if before == '$' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            before = letter;
            if letter == '}' && depth == 0 {
                end = position + 1;
                break;
            }
        }
        let (reference, after) = from.split_at(end);
        segments.push(PlanTextSegment::Reference(reference));
        rest = after;
    }
    if !rest.is_empty() {
        segments.push(PlanTextSegment::Plain(rest));
    }
    segments
}

/// Returns true if a reference reveals no secret: it is a variable, or a function without literal text of its own.
fn is_secretless_reference(reference: &str) -> bool {
    let inner = reference.trim_start_matches("${").trim_end_matches('}');
    let Some((name, arguments)) = inner.split_once('(') else { return true };
    SECRETLESS_FUNCTIONS.contains(&name.trim()) || !arguments.chars().any(char::is_alphanumeric)
}

/// Removes the defaults of properties whose names are those of secrets.
fn remove_secret_defaults(text: &str) -> String {
    let hide =
        |captures: &Captures<'_>| match is_secret_name(&captures[2]) && !captures[3].is_empty() {
            true => format!("${{__P({},)}}", &captures[2]),
            false => captures[0].to_owned(),
        };
    DEFAULT_PROPERTY_PATTERN.replace_all(text, hide).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_a_plan_in_toml_become_properties() {
        let text = "# a shop\ntarget = \"http://u:pw1@h\"\ncookies = \"visit\"\n[variables]\nlang = \"de\"\npassword = 'pw2' # of all\n\
            [headers]\nAuthorization = \"Bearer pw3${run}\"\nX-Token = \"${TOKEN}\"\n[[scenario]]\n[[scenario.step]]\npath = \"/login?token=pw4&x=1\"\n\
            form = { user = \"ann\", password = \"pw2\", pin = 7 }\nexpect = { text = \"password\" }\nextract = { name = \"token\", regex = \"token=(.*)\" }\n\
            [[scenario.step]]\npath = \"/b\"\nbody = '{\"password\": \"pw5\", \"secret\": \"${PASS}\"}'\njson = { apiKey = 12, author = \"bob\" }\n";
        let redacted = redact_toml_plan(text).unwrap();
        assert_eq!(
            redacted.required_properties,
            ["kept.apikey", "kept.authorization", "kept.password", "kept.password.2", "kept.token"]
        );
        assert!(!redacted.text.contains("pw"), "{}", redacted.text);
        for expected in [
            "# A copy without secrets. To run it, give them: -Jkept.apikey=... ",
            "target = \"http://h\"",
            "password = \"${__P(kept.password,)}\" # of all",
            "Authorization = \"Bearer ${__P(kept.authorization,)}${run}\"",
            "X-Token = \"${TOKEN}\"",
            "path = \"/login?token=${__P(kept.token,)}&x=1\"",
            "form = { user = \"ann\", password = \"${__P(kept.password,)}\", pin = 7 }",
            "expect = { text = \"password\" }\nextract = { name = \"token\", regex = \"token=(.*)\" }",
            "\\\"password\\\": \\\"${__P(kept.password.2,)}\\\", \\\"secret\\\": \\\"${PASS}\\\"",
            "json = { apiKey = \"${__P(kept.apikey,)}\", author = \"bob\" }",
        ] {
            assert!(redacted.text.contains(expected), "{expected}\n{}", redacted.text);
        }
        assert_eq!(
            find_required_properties(&redacted.text),
            redacted.required_properties.iter().cloned().collect()
        );
        assert_eq!(
            redact_toml_plan(&redacted.text).unwrap().required_properties.len(),
            0,
            "a copy of a copy"
        );
        let plain = "name = \"x\"\n";
        assert_eq!(
            redact_toml_plan(plain),
            Some(RedactedPlan { text: plain.to_owned(), required_properties: Vec::new() })
        );
        assert_eq!(redact_toml_plan("no toml"), None);
    }

    fn prop(name: &str, value: &str) -> String {
        format!("<stringProp name=\"{name}\">{value}</stringProp>")
    }

    #[test]
    fn secrets_of_a_plan_of_jmeter_become_properties() {
        let pair = |kind: &str, name: &str, value: &str| {
            let (name, value) =
                (prop(&format!("{kind}.name"), name), prop(&format!("{kind}.value"), value));
            format!("<elementProp name=\"\">{name}{value}</elementProp>")
        };
        let user_parameters = "<UserParameters><collectionProp name=\"UserParameters.names\"><stringProp name=\"1\">user</stringProp>\
            <stringProp name=\"2\">password</stringProp></collectionProp><collectionProp name=\"UserParameters.thread_values\"><collectionProp name=\"3\">\
            <stringProp name=\"4\">ann</stringProp><stringProp name=\"5\">pw6</stringProp></collectionProp></collectionProp></UserParameters>";
        let parts = [
            prop("Authorization.username", "admin"),
            prop("Authorization.password", "pw1 &amp; more"),
            prop("Authorization.url", "http://h/"),
            format!(
                "<elementProp name=\"sid\">{}{}</elementProp>",
                prop("Cookie.value", "pw2"),
                prop("Cookie.path", "/")
            ),
            pair("Argument", "password", "pw3"),
            pair("Argument", "password", "${__P(admin.password,pw4)}"),
            pair("Argument", "q", "token"),
            pair("Header", "Authorization", "Basic ${__base64Encode(admin:pw5)}"),
            pair("Header", "Accept", "text/html"),
            user_parameters.to_owned(),
            prop("HTTPSampler.path", "/a?access_token=pw7"),
            prop(
                "script",
                "vars.put(\"password\", \"pw8\"); def secret = 'pw9'; if (vars.get('token') == 'x') {}",
            ),
            prop("RegexExtractor.regex", "\"access_token\":\"([^\"]+)\""),
            pair(
                "Argument",
                "body",
                "&lt;login&gt;&lt;password&gt;pw10&lt;/password&gt;&lt;/login&gt;",
            ),
        ];
        let text = format!("<?xml version=\"1.0\"?><plan>{}</plan>", parts.concat());
        let redacted = redact_jmx_plan(&text).unwrap();
        assert!(!redacted.text.contains("pw"), "{}", redacted.text);
        assert!(
            redacted.text.starts_with("<?xml version=\"1.0\"?>\n<!-- A copy without secrets."),
            "{}",
            redacted.text
        );
        for expected in [
            "\"Authorization.username\">admin<",
            "\"Authorization.url\">http://h/<",
            "\"Argument.value\">${__P(admin.password,)}<",
            "\"Header.value\">Basic ${__P(kept.authorization,)}<",
            "\"Header.value\">text/html<",
            ">ann</stringProp><stringProp name=\"5\">${__P(kept.password",
            "/a?access_token=${__P(kept.access-token,)}<",
            "vars.put(\"password\", \"${__P(kept.password",
            "vars.get('token') == 'x'",
            "\"access_token\":\"([^\"]+)\"",
            "&lt;password&gt;${__P(kept.password",
            "\"Argument.value\">token<",
        ] {
            assert!(redacted.text.contains(expected), "{expected}\n{}", redacted.text);
        }
        assert!(
            redact_jmx_plan(&redacted.text).unwrap().required_properties.is_empty(),
            "a copy of a copy"
        );
    }
}
