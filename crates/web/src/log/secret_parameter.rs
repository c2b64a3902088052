//! URL parameters whose values must not be logged: the tokens of login links, and passwords that were put into a URL by
//! mistake.
//!
//! All log lines of all fronts are written without them, whatever code writes the line.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// The names of secret parameters.
const SECRET_PARAMETER_NAMES: [&str; 5] =
    ["token", "access_token", "password", "j_password", "current"];
/// The replacement for a secret value.
const REDACTED_VALUE: &str = "-";
/// Maximum number of times a value is decoded in search of nested URLs.
const MAX_DECODE_DEPTH: usize = 3;

/// Returns a text that contains URLs, such as a request line, without the values of secret parameters.
#[must_use]
pub fn redact_secrets(text: &str) -> Cow<'_, str> {
    redact_at_depth(text, MAX_DECODE_DEPTH)
}

fn redact_at_depth(text: &str, depth: usize) -> Cow<'_, str> {
    let Some((path, query)) = text.split_once('?') else { return Cow::Borrowed(text) };
    let mut shown_url = format!("{path}?");
    let mut is_changed = false;
    for pair in query.split_inclusive(['&', '?', ';']) {
        let value =
            pair.split_once('=').filter(|(name, value)| is_secret_parameter(name, value, depth));
        let Some((name, value)) = value else {
            shown_url.push_str(pair);
            continue;
        };
        let end = value.find(['&', '?', ';', ' ', '#', '"']).unwrap_or(value.len());
        shown_url.push_str(name);
        shown_url.push('=');
        shown_url.push_str(REDACTED_VALUE);
        shown_url.push_str(value.get(end..).unwrap_or_default());
        is_changed = true;
    }
    if is_changed { Cow::Owned(shown_url) } else { Cow::Borrowed(text) }
}

/// Returns true if the value of a parameter is a secret, or a URL with one.
fn is_secret_parameter(name: &str, value: &str, depth: usize) -> bool {
    let name = percent_decode_str(name).decode_utf8_lossy();
    if SECRET_PARAMETER_NAMES.iter().any(|secret| name.eq_ignore_ascii_case(secret)) {
        return true;
    }
    let mut text = Cow::Borrowed(value);
    for depth in (0..depth).rev() {
        let decoded = percent_decode_str(&text).decode_utf8_lossy().into_owned();
        if decoded == text {
            return false;
        }
        if matches!(redact_at_depth(&decoded, depth), Cow::Owned(_)) {
            return true;
        }
        text = Cow::Owned(decoded);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_secret_parameters_are_hidden() {
        for (text, expected) in [
            ("/login/link?token=abc", "/login/link?token=-"),
            ("GET /login/link?token=abc HTTP/1.1", "GET /login/link?token=- HTTP/1.1"),
            ("/login/link?x=1&To%6ben=abc&y", "/login/link?x=1&To%6ben=-&y"),
            ("http://h/login/link?token=a=b#c", "http://h/login/link?token=-#c"),
            ("/a?x=1?token=abc;password=d", "/a?x=1?token=-;password=-"),
            ("/login.html?resource=%2Flogin%2Flink%3Ftoken%3Dabc", "/login.html?resource=-"),
            ("/a?b=%252Flogin%253Ftoken%253Dabc&c=1", "/a?b=-&c=1"),
            ("/a.html?tokens=1&q=token", "/a.html?tokens=1&q=token"),
            ("/a.html?q=50%25%20off%3F", "/a.html?q=50%25%20off%3F"),
            ("/a.html?token", "/a.html?token"),
            ("/token=abc", "/token=abc"),
            ("", ""),
        ] {
            assert_eq!(redact_secrets(text), expected);
        }
    }
}
