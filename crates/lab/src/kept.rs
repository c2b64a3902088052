//! Copies of plans that are kept with a run, without the secrets that stand in them.
//!
//! In: the text of a plan. Out: the same plan in which each secret is a property, `${__P(kept.password,)}`, with a remark
//! at its head that names the properties. The copy is a plan still: it runs when they are given, and is refused when not.
//!
//! What is a secret
//! * Passwords of authorization managers and proxies, values of cookie managers.
//! * Values of variables, parameters, fields, headers, user parameters and keys of TOML whose names are those of secrets
//!   ([`redact::is_secret`]); in what is sent and in scripts, the same names in addresses, forms, JSON and XML, and where
//!   a script gives a value to one.
//! * Defaults that `__P` and `__property` give such a name.
//!
//! Invariant: what a plan gets from elsewhere (`${PASS}` of a data file, `${__P(password,)}`) stays as it is.
//!
//! Not here: data files, which are not copied, and what no name tells, such as a password in the path of an address or in a
//! comment.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use roxmltree::Node;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::draft::quote;
use crate::plan::read_xml;
use crate::redact::is_secret;

/// How the names of properties begin that stand for secrets.
const PREFIX: &str = "kept.";

/// A copy of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The plan without secrets.
    pub text: String,
    /// The properties that it needs in their place, in the order of their names.
    pub properties: Vec<String>,
}

/// Returns a copy of a plan in TOML; nothing if the text is not TOML.
#[must_use]
pub fn toml(text: &str) -> Option<Kept> {
    let table = DeTable::parse(text).ok()?;
    let mut desk = Desk { text, ..Desk::default() };
    desk.table(table.get_ref(), "");
    Some(desk.finish("# ", "\n"))
}

/// Returns a copy of a plan of JMeter; nothing if the text is not XML.
#[must_use]
pub fn jmx(text: &str) -> Option<Kept> {
    let document = read_xml(text).ok()?;
    let mut desk = Desk { text, ..Desk::default() };
    document.descendants().filter(Node::is_element).for_each(|node| desk.element(node));
    Some(desk.finish("<!-- ", " -->\n"))
}

/// Returns the properties that a kept copy needs.
pub(crate) fn needs(text: &str) -> BTreeSet<String> {
    let found = NEEDED.captures_iter(text);
    found.filter_map(|found| Some(found.get(1)?.as_str().to_owned())).collect()
}

#[expect(clippy::expect_used, reason = "the patterns are constants")]
fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("the pattern reads")
}

static NEEDED: LazyLock<Regex> = LazyLock::new(|| pattern(r"\$\{__P\((kept\.[a-z0-9._-]+),\)\}"));
/// Properties with a default: the function, the name, the rest.
static DEFAULT: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"\$\{(__P|__property)\(([^,(){}]+),([^(){}]*)\)\}"));
static USER: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?i)\b(https?://)[^/?#\s@{}]+(?:@[^/?#\s@{}]*)*@"));
/// Ways in which texts give a value to a name: before it with the name, the value, behind it.
static GIVEN: LazyLock<[Regex; 5]> = LazyLock::new(|| {
    [
        // A form or an address.
        pattern(r"((?:^|[?&;])(?P<name>[^=&;#\s?<{]+)=)(?P<value>[^&;#\s]+)()"),
        // JSON.
        pattern(r#"("(?P<name>[^"\\]+)"\s*:\s*")(?P<value>(?:[^"\\]|\\.)+)(")"#),
        // XML.
        pattern(r"(<(?P<name>[\w:.-]+)>)(?P<value>[^<]+)(</)"),
        // `put("name", "value")` in a script.
        pattern(r#"(\(\s*["'](?P<name>[^"']+)["']\s*,\s*["'])(?P<value>[^"'\\]+)(["'])"#),
        // `name = "value"` in a script.
        pattern(r#"(\b(?P<name>\w+)\s*=\s*["'])(?P<value>[^"'\\]+)(["'])"#),
    ]
});

/// Properties of JMeter's elements whose texts are sent, or are scripts.
const SENT: [&str; 11] = [
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
/// Parts of property names of elements that secrets go by; `auth` and `cookie` are parts of the elements' own.
const FIELDS: [&str; 5] = ["pass", "pwd", "secret", "token", "apikey"];
/// Words before a secret that are none.
const SCHEMES: [&str; 4] = ["basic", "bearer", "digest", "token"];
/// Functions whose arguments hold no secret.
const PLAIN: [&str; 7] =
    ["__P", "__property", "__V", "__evalVar", "__Random", "__RandomString", "__time"];
/// Tables of a plan in TOML that send nothing.
const SILENT: [&str; 4] = ["load", "expect", "extract", "goal"];

/// Where a copy is made.
#[derive(Debug, Default)]
struct Desk<'t> {
    text: &'t str,
    /// What stands in the place of which bytes.
    edits: Vec<(Range<usize>, String)>,
    /// The property of each secret, by the name that it goes by and itself.
    properties: BTreeMap<(String, String), String>,
}

impl Desk<'_> {
    fn finish(mut self, before: &str, behind: &str) -> Kept {
        self.edits.sort_by_key(|(range, _)| range.start);
        let mut out = String::with_capacity(self.text.len());
        let mut at = 0;
        for (range, new) in self.edits {
            out.push_str(self.text.get(at..range.start).unwrap_or_default());
            out.push_str(&new);
            at = range.end;
        }
        out.push_str(self.text.get(at..).unwrap_or_default());
        let properties: Vec<String> =
            self.properties.into_values().collect::<BTreeSet<_>>().into_iter().collect();
        if !properties.is_empty() {
            let list: Vec<String> = properties.iter().map(|name| format!("-J{name}=...")).collect();
            let remark = format!(
                "{before}A copy without secrets. To run it, give them: {}{behind}",
                list.join(" ")
            );
            // Nothing may stand before the declaration of XML.
            let head = match out.starts_with("<?xml") {
                true => out.find("?>").map_or(0, |at| at + 2),
                false => 0,
            };
            let line = if head > 0 { format!("\n{}", remark.trim_end()) } else { remark };
            out.insert_str(head, &line);
        }
        Kept { text: out, properties }
    }

    /// Returns a reference to the property that stands for a secret.
    fn reference(&mut self, name: &str, secret: &str) -> String {
        let key = (name.to_ascii_lowercase(), secret.to_owned());
        if let Some(known) = self.properties.get(&key) {
            return format!("${{__P({known},)}}");
        }
        let letters: String = key
            .0
            .chars()
            .map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' })
            .take(40)
            .collect();
        // Comments of XML hold no two hyphens in a row.
        let words: Vec<&str> = letters.split('-').filter(|word| !word.is_empty()).collect();
        let bare = format!("{PREFIX}{}", words.join("-"));
        let is_taken = |name: &String| self.properties.values().any(|known| known == name);
        let mut property = bare.clone();
        let mut number = 1;
        while is_taken(&property) {
            number += 1;
            property = format!("{bare}.{number}");
        }
        self.properties.insert(key, property.clone());
        format!("${{__P({property},)}}")
    }

    /// Returns what stands in the place of the value of a name that secrets go by.
    fn hide(&mut self, name: &str, value: &str) -> String {
        let mut out = String::new();
        for segment in segments(value) {
            let new = match segment {
                Segment::Reference(call) if needs_nothing(call) => without_default(call),
                Segment::Reference(secret) => self.reference(name, secret),
                Segment::Plain(text) => self.hide_plain(name, text),
            };
            out.push_str(&new);
        }
        out
    }

    fn hide_plain(&mut self, name: &str, text: &str) -> String {
        let start = text.len() - text.trim_start().len();
        let (blank, rest) = text.split_at(start);
        let word = rest.split(' ').next().unwrap_or_default();
        let is_scheme = SCHEMES.contains(&word.to_ascii_lowercase().as_str());
        let (scheme, secret) = match is_scheme {
            true => rest.split_at((word.len() + 1).min(rest.len())),
            false => ("", rest),
        };
        if !secret.chars().any(char::is_alphanumeric) {
            return text.to_owned();
        }
        format!("{blank}{scheme}{}", self.reference(name, secret))
    }

    /// Returns a text in which the values of names that secrets go by are hidden.
    fn hide_within(&mut self, text: &str) -> String {
        let mut text = USER.replace_all(text, "$1").into_owned();
        for pattern in GIVEN.iter() {
            let hide = |found: &Captures<'_>| {
                let part = |number: usize| found.get(number).map_or("", |part| part.as_str());
                let (name, value) = (&found["name"], &found["value"]);
                if !is_secret(name) {
                    return part(0).to_owned();
                }
                let behind = found.get(found.len() - 1).map_or("", |part| part.as_str());
                format!("{}{}{behind}", part(1), self.hide(name, value))
            };
            text = pattern.replace_all(&text, hide).into_owned();
        }
        without_default(&text)
    }

    /// Looks at an element of a plan of JMeter.
    fn element(&mut self, node: Node<'_, '_>) {
        let name = node.attribute("name").unwrap_or_default();
        if name == "UserParameters.thread_values" {
            self.user_parameters(node);
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
        let new = match secret_name(node, name) {
            Some(secret) => self.hide(&secret, value),
            None if SENT.contains(&name) => self.hide_within(value),
            None => without_default(value),
        };
        self.replace(node, value, &new);
    }

    /// Hides the values of user parameters, which stand apart from their names.
    fn user_parameters(&mut self, node: Node<'_, '_>) {
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
                if is_secret(name) && !value.is_empty() {
                    let new = self.hide(name, value);
                    self.replace(entry, value, &new);
                }
            }
        }
    }

    fn replace(&mut self, node: Node<'_, '_>, old: &str, new: &str) {
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

    /// Looks at a table of a plan in TOML.
    fn table(&mut self, table: &DeTable<'_>, above: &str) {
        for (key, value) in table.iter() {
            let key: &str = key.get_ref();
            let is_whole = above.is_empty();
            if SILENT.contains(&key) || (is_whole && key == "cookies") {
                continue;
            }
            self.value(key, value);
        }
    }

    fn value(&mut self, key: &str, value: &Spanned<DeValue<'_>>) {
        let (range, old) = match value.get_ref() {
            DeValue::Table(table) => return self.table(table, key),
            DeValue::Array(values) => {
                values.iter().for_each(|value| self.value(key, value));
                return;
            }
            DeValue::String(text) => (value.span(), text.to_string()),
            DeValue::Boolean(_) => return,
            _ if is_secret(key) => {
                let range = value.span();
                (range.clone(), self.text.get(range).unwrap_or_default().to_owned())
            }
            _ => return,
        };
        let new = if is_secret(key) { self.hide(key, &old) } else { self.hide_within(&old) };
        if new != old {
            self.edits.push((range, quote(&new)));
        }
    }
}

/// Returns the name that a property's value is a secret by; nothing if it is none.
fn secret_name(node: Node<'_, '_>, name: &str) -> Option<String> {
    let parent = node.parent();
    let beside = |wanted: &str| {
        let found = parent?.children().find(|child| child.attribute("name") == Some(wanted))?;
        found.text().map(str::to_owned)
    };
    let own = || parent.and_then(|parent| parent.attribute("name")).map(str::to_owned);
    match name {
        "Argument.value" => beside("Argument.name").or_else(own).filter(|name| is_secret(name)),
        "Header.value" => beside("Header.name").filter(|name| is_secret(name)),
        "Cookie.value" => Some(own().filter(|name| !name.is_empty()).unwrap_or_default()),
        _ => {
            let field = name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase();
            FIELDS.iter().any(|part| field.contains(part)).then_some(field)
        }
    }
}

/// A piece of a text.
#[derive(Debug, PartialEq, Eq)]
enum Segment<'t> {
    Plain(&'t str),
    /// `${...}`, references inside it included.
    Reference(&'t str),
}

/// Splits a text at its references.
fn segments(text: &str) -> Vec<Segment<'_>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (plain, from) = rest.split_at(at);
        if !plain.is_empty() {
            found.push(Segment::Plain(plain));
        }
        let (mut depth, mut end, mut before) = (0usize, from.len(), ' ');
        for (place, letter) in from.char_indices() {
            match letter {
                '{' if before == '$' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            before = letter;
            if letter == '}' && depth == 0 {
                end = place + 1;
                break;
            }
        }
        let (reference, after) = from.split_at(end);
        found.push(Segment::Reference(reference));
        rest = after;
    }
    if !rest.is_empty() {
        found.push(Segment::Plain(rest));
    }
    found
}

/// Reports whether a reference tells no secret: a variable, or a function without texts of its own.
fn needs_nothing(reference: &str) -> bool {
    let inner = reference.trim_start_matches("${").trim_end_matches('}');
    let Some((name, arguments)) = inner.split_once('(') else { return true };
    PLAIN.contains(&name.trim()) || !arguments.chars().any(char::is_alphanumeric)
}

/// Leaves out what properties with the names of secrets are if nobody gives them.
fn without_default(text: &str) -> String {
    let hide = |found: &Captures<'_>| match is_secret(&found[2]) && !found[3].is_empty() {
        true => format!("${{__P({},)}}", &found[2]),
        false => found[0].to_owned(),
    };
    DEFAULT.replace_all(text, hide).into_owned()
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
        let kept = toml(text).unwrap();
        assert_eq!(
            kept.properties,
            ["kept.apikey", "kept.authorization", "kept.password", "kept.password.2", "kept.token"]
        );
        assert!(!kept.text.contains("pw"), "{}", kept.text);
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
            assert!(kept.text.contains(expected), "{expected}\n{}", kept.text);
        }
        assert_eq!(needs(&kept.text), kept.properties.iter().cloned().collect());
        assert_eq!(toml(&kept.text).unwrap().properties.len(), 0, "a copy of a copy");
        let plain = "name = \"x\"\n";
        assert_eq!(toml(plain), Some(Kept { text: plain.to_owned(), properties: Vec::new() }));
        assert_eq!(toml("no toml"), None);
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
        let kept = jmx(&text).unwrap();
        assert!(!kept.text.contains("pw"), "{}", kept.text);
        assert!(
            kept.text.starts_with("<?xml version=\"1.0\"?>\n<!-- A copy without secrets."),
            "{}",
            kept.text
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
            assert!(kept.text.contains(expected), "{expected}\n{}", kept.text);
        }
        assert!(jmx(&kept.text).unwrap().properties.is_empty(), "a copy of a copy");
    }
}
