//! Redacts secrets in stored data: command lines, addresses, properties, headers.
//!
//! Invariant: a redacted value is replaced by [`REDACTED`]. Nothing derived from the value remains, neither length nor
//! hash, because a password is short enough to be found from either.
//!
//! Not here: secrets that no name identifies, such as a password in the path of an address.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

/// The text that replaces a secret.
pub const REDACTED: &str = "***";

/// Options whose entire value is a secret.
const SECRET_OPTIONS: [&str; 8] =
    ["-A", "-P", "--login", "--password", "--token", "--secret", "--proxy-login", "--cookie"];
/// Options whose value is a name followed by a secret.
const HEADER_OPTIONS: [&str; 3] = ["-H", "--header", "--visitor"];
const COOKIE_OPTIONS: [&str; 1] = ["-C"];
/// Options whose value is a shell command line, in which anything may be a secret or an address.
const SHELL_OPTIONS: [&str; 1] = ["--restore"];
/// Options whose value is a name followed by a shell command line.
const NAMED_SHELL_OPTIONS: [&str; 1] = ["--outage"];
const PROPERTY_OPTIONS: [&str; 3] = ["-J", "--property", "--jmeterproperty"];
/// Parts of names that indicate a secret.
const SECRET_NAME_PARTS: [&str; 12] = [
    "pass",
    "pwd",
    "secret",
    "token",
    "auth",
    "credential",
    "session",
    "cookie",
    "apikey",
    "api-key",
    "api_key",
    "signature",
];
/// Headers whose values describe the request, not the client's identity.
const PLAIN_HEADERS: [&str; 13] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "connection",
    "content-type",
    "host",
    "origin",
    "pragma",
    "range",
    "user-agent",
    "x-forwarded-proto",
];

#[expect(clippy::expect_used, reason = "the patterns are constants")]
static URL_USER_PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/?#\s@]*(?:@[^/?#\s@]*)*@")
        .expect("the pattern is valid")
});
#[expect(clippy::expect_used, reason = "the patterns are constants")]
static URL_PARAMETER_PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"([?&;])([^=&;#\s?]+)=([^&;#\s]*)").expect("the pattern is valid")
});

/// Returns true if values of this name are secrets.
#[must_use]
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    // The word "author" does not indicate authorization.
    let name = name.replace("authoriz", "auth-").replace("authoris", "auth-").replace("author", "");
    SECRET_NAME_PARTS.iter().any(|part| name.contains(part))
}

/// Returns the text with users, passwords and secret parameters removed from its addresses.
#[must_use]
pub fn redact_text(text: &str) -> String {
    let text = URL_USER_PATTERN.replace_all(text, format!("${{1}}{REDACTED}@"));
    let hide = |captures: &regex::Captures<'_>| {
        let part = |index: usize| captures.get(index).map_or("", |part| part.as_str());
        let value = if is_secret_name(part(2)) { REDACTED } else { part(3) };
        format!("{}{}={value}", part(1), part(2))
    };
    match URL_PARAMETER_PATTERN.replace_all(&text, hide) {
        Cow::Borrowed(text) => text.to_owned(),
        Cow::Owned(text) => text,
    }
}

/// Returns a property, `name=value`, with its value redacted if it is a secret.
#[must_use]
pub fn redact_property(property: &str) -> String {
    match property.split_once('=') {
        Some((name, _)) if is_secret_name(name) => format!("{name}={REDACTED}"),
        Some((name, value)) => format!("{name}={}", redact_text(value)),
        None => property.to_owned(),
    }
}

/// Returns a header, `name: value`, with its value redacted unless the header is known to contain no secret.
#[must_use]
pub fn redact_header(header: &str) -> String {
    let (name, value) = header.split_once(':').unwrap_or((header, ""));
    let name = name.trim().to_ascii_lowercase();
    let value = if PLAIN_HEADERS.contains(&name.as_str()) { value.trim() } else { REDACTED };
    format!("{name}: {value}")
}

/// Returns the words of a command line with secrets redacted.
#[must_use]
pub fn redact_command_line(words: &[String]) -> Vec<String> {
    let mut pending: Option<SecretOptionKind> = None;
    words
        .iter()
        .map(|word| {
            if let Some(kind) = pending.take() {
                return kind.redact(word);
            }
            if let Some(kind) = SecretOptionKind::for_option(word) {
                pending = Some(kind);
                return word.clone();
            }
            let short = word.get(..2).filter(|_| !word.starts_with("--"));
            let joined = match short.zip(word.get(2..)) {
                Some(both) => Some((both.0, "", both.1)),
                None => word.split_once('=').map(|(name, value)| (name, "=", value)),
            };
            match joined.and_then(|it| SecretOptionKind::for_option(it.0).map(|kind| (it, kind))) {
                Some(((name, between, value), kind)) => {
                    format!("{name}{between}{}", kind.redact(value))
                }
                None => match word.split_once('=') {
                    Some((name, _)) if name.starts_with("--") => redact_property(word),
                    _ => redact_text(word),
                },
            }
        })
        .collect()
}

/// Returns a YAML configuration with the values of secret keys redacted.
#[must_use]
pub fn redact_yaml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        match line.split_once(':') {
            Some((key, value))
                if !value.trim().is_empty()
                    && is_secret_name(
                        key.trim().trim_start_matches("- ").trim_matches(['"', '\'']),
                    ) =>
            {
                let end = if line.ends_with('\n') { "\n" } else { "" };
                out.push_str(&format!("{key}: \"{REDACTED}\"{end}"));
            }
            _ => out.push_str(line),
        }
    }
    out
}

/// Redacts secrets in all texts of a report, names included.
pub fn redact_json(report: &mut Value) {
    match report {
        Value::String(string) => *string = redact_text(string),
        Value::Array(values) => values.iter_mut().for_each(redact_json),
        Value::Object(entries) => {
            let old = std::mem::take(entries);
            for (name, mut entry) in old {
                redact_json(&mut entry);
                entries.insert(redact_text(&name), entry);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The part of an option's value that is secret.
#[derive(Debug, Clone, Copy)]
enum SecretOptionKind {
    Whole,
    /// The value of a header, after its name.
    Header,
    /// The value of a cookie, after its name.
    Cookie,
    /// The value of a property whose name is that of a secret.
    Property,
    /// A shell command line.
    ShellLine,
    /// A shell command line after a name.
    NamedShellLine,
}

impl SecretOptionKind {
    fn for_option(option: &str) -> Option<Self> {
        let is_one = |options: &[&str]| options.contains(&option);
        if is_one(&SECRET_OPTIONS) {
            Some(Self::Whole)
        } else if is_one(&HEADER_OPTIONS) {
            Some(Self::Header)
        } else if is_one(&COOKIE_OPTIONS) {
            Some(Self::Cookie)
        } else if is_one(&PROPERTY_OPTIONS) {
            Some(Self::Property)
        } else if is_one(&SHELL_OPTIONS) {
            Some(Self::ShellLine)
        } else if is_one(&NAMED_SHELL_OPTIONS) {
            Some(Self::NamedShellLine)
        } else if option.starts_with("--")
            && !option.contains('=')
            && is_secret_name(option)
            && !option.ends_with("-file")
        {
            Some(Self::Whole)
        } else {
            None
        }
    }

    fn redact(self, value: &str) -> String {
        match self {
            Self::Whole => REDACTED.to_owned(),
            Self::Header => {
                let name = value.split(':').next().unwrap_or_default();
                format!("{name}: {REDACTED}")
            }
            Self::ShellLine if value.starts_with("http://") || value.starts_with("https://") => {
                redact_text(value)
            }
            Self::ShellLine => REDACTED.to_owned(),
            Self::NamedShellLine => match value.split_once('=') {
                Some((name, switch)) => format!("{name}={}", Self::ShellLine.redact(switch)),
                None => REDACTED.to_owned(),
            },
            Self::Cookie => {
                let name = value.split('=').next().unwrap_or_default();
                format!("{name}={REDACTED}")
            }
            Self::Property => redact_property(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_keep_no_secret() {
        let check = |words: &[&str], expected: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(redact_command_line(&words), expected);
        };
        check(&["ab", "-A", "u:p", "-n", "5"], &["ab", "-A", "***", "-n", "5"]);
        check(
            &["ab", "-Au:p", "-Csid=1", "-C", "a=b"],
            &["ab", "-A***", "-Csid=***", "-C", "a=***"],
        );
        check(&["-H", "Authorization: Basic x"], &["-H", "Authorization: ***"]);
        check(&["--header=X-Any: y", "-HA: b"], &["--header=X-Any: ***", "-HA: ***"]);
        check(
            &["-Jthreads=5", "-J", "admin.password=x"],
            &["-Jthreads=5", "-J", "admin.password=***"],
        );
        check(&["--property=apiKey=x", "--login=a:b"], &["--property=apiKey=***", "--login=***"]);
        check(
            &["--password", "x", "--password-file", "f"],
            &["--password", "***", "--password-file", "f"],
        );
        check(
            &["--some-token=x", "--some-secret", "y"],
            &["--some-token=***", "--some-secret", "***"],
        );
        check(
            &["get", "http://u:p@h:1/a?b=c&access_token=x#d", "https://h/ok@x"],
            &["get", "http://***@h:1/a?b=c&access_token=***#d", "https://h/ok@x"],
        );
        check(
            &["--author", "http://h:4502", "--authority=x"],
            &["--author", "http://h:4502", "--authority=x"],
        );
        check(&["--authorization", "x"], &["--authorization", "***"]);
        check(&["--target=http://u:p@h/"], &["--target=http://***@h/"]);
        check(&["--target", "http://u:p@w@h/"], &["--target", "http://***@h/"]);
        check(
            &["--outage", "crm down=curl -u a:b h", "--restore", "curl -u a:b --x=y h"],
            &["--outage", "crm down=***", "--restore", "***"],
        );
        check(
            &["--outage=x=http://h/off?token=1", "--restore=http://u:p@h/on?a=b"],
            &["--outage=x=http://h/off?token=***", "--restore=http://***@h/on?a=b"],
        );
        check(&["-é", "-", ""], &["-é", "-", ""]);
    }

    #[test]
    fn headers_are_reported_where_they_are_no_secret() {
        assert_eq!(redact_header("Accept-Language: de"), "accept-language: de");
        assert_eq!(redact_header("Cookie: a=b"), "cookie: ***");
        assert_eq!(redact_header("X-Anything: b"), "x-anything: ***");
    }

    #[test]
    fn configurations_keep_no_secret() {
        assert_eq!(
            redact_yaml(
                "globals:\n  user: admin\n  password: x y\n  - \"token\": 'a:b'\n  passwords:\n    - weight: 5"
            ),
            "globals:\n  user: admin\n  password: \"***\"\n  - \"token\": \"***\"\n  passwords:\n    - weight: 5"
        );
    }

    #[test]
    fn reports_keep_no_secret() {
        let mut report = serde_json::json!({"title": "http://u:p@h/", "labels": {"GET /a?token=x": [1, "b?pwd=y"]}});
        redact_json(&mut report);
        let expected = serde_json::json!({"title": "http://***@h/", "labels": {"GET /a?token=***": [1, "b?pwd=***"]}});
        assert_eq!(report, expected);
    }
}
