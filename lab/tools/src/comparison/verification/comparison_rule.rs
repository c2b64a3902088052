//! Differences between two responses that do not indicate a change: dates, nonces, hashes, the site's name.

use std::sync::LazyLock;

use regex::Regex;

use crate::{Error, Result};

/// Headers that describe when, where and how a response was made, not its content.
const IGNORED_HEADERS: [&str; 21] = [
    "date",
    "age",
    "expires",
    "last-modified",
    "etag",
    "server",
    "server-timing",
    "via",
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "accept-ranges",
    "x-request-id",
    "x-correlation-id",
    "x-cache",
    "x-cache-info",
    "x-dispatcher",
    "x-vhost",
    "x-served-by",
    "alt-svc",
];

/// The purpose of a replacement.
struct DefaultReplacement {
    pattern: Regex,
    placeholder: &'static str,
}

/// Longer patterns come first, so that no rule replaces a part of their matches.
#[expect(clippy::expect_used, reason = "the patterns are constants")]
static DEFAULT_REPLACEMENTS: LazyLock<Vec<DefaultReplacement>> = LazyLock::new(|| {
    let usual = |pattern: &str, placeholder| DefaultReplacement {
        pattern: Regex::new(pattern).expect("the pattern is valid"),
        placeholder,
    };
    vec![
        usual(r#"(?i)(\bnonce\s*=\s*["']?|'nonce-)[A-Za-z0-9+/_=-]{8,}"#, "${1}{nonce}"),
        usual(
            r#"(?i)(<(?:input|meta)\b[^>]*\bname\s*=\s*["'][^"'>]*(?:csrf|token|nonce)[^"'>]*["'][^>]*?\b(?:value|content)\s*=\s*["'])[^"'>]*"#,
            "${1}{nonce}",
        ),
        usual(r"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "{uuid}"),
        usual(
            r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?",
            "{date}",
        ),
        usual(
            r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? (?:\d{1,2} [A-Z][a-z]{2}|[A-Z][a-z]{2} \d{1,2}) (?:\d{4} \d\d:\d\d:\d\d(?: ?(?:GMT|UTC|[+-]\d{4})(?:[+-]\d{4})?)?|\d\d:\d\d:\d\d(?: [A-Z]{3,4})? \d{4})",
            "{date}",
        ),
        usual(r"\b\d{2}/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d(?: [+-]\d{4})?", "{date}"),
        usual(r"\b1[0-9]{12}\b", "{time}"),
        usual(r"\b(?:sha(?:256|384|512)-)[A-Za-z0-9+/]{43,88}={0,2}", "{hash}"),
        usual(r"(?i)\b[0-9a-f]{16,128}\b", "{hash}"),
    ]
});

/// The parts of responses that a comparison ignores.
#[derive(Debug, Clone, Default)]
pub struct ComparisonRules {
    /// If true, no default rules apply: dates, nonces and headers about time and place are compared.
    pub is_strict: bool,
    custom_rules: Vec<(Regex, String)>,
    ignored_headers: Vec<String>,
}

impl ComparisonRules {
    /// Adds a rule, `PATTERN=>REPLACEMENT`; without a replacement the match becomes `{own}`.
    ///
    /// # Errors
    /// [`Error::UnusableInput`] for an invalid pattern.
    pub fn add_rule(&mut self, text: &str) -> Result<()> {
        let (pattern, replacement) = text.split_once("=>").unwrap_or((text, "{own}"));
        let pattern = Regex::new(pattern)
            .map_err(|error| Error::UnusableInput(format!("invalid rule `{text}`: {error}")))?;
        self.custom_rules.push((pattern, replacement.to_owned()));
        Ok(())
    }

    /// Ignores the header `name`.
    pub fn ignore_header(&mut self, name: &str) {
        self.ignored_headers.push(name.trim().to_ascii_lowercase());
    }

    /// Returns true if the header `name`, in lower case, is compared.
    pub(super) fn is_header_compared(&self, name: &str) -> bool {
        let is_quiet = !self.is_strict && IGNORED_HEADERS.contains(&name);
        let is_framing = matches!(name, "connection" | "transfer-encoding" | "content-length");
        !is_quiet && !is_framing && !self.ignored_headers.iter().any(|header| header == name)
    }

    /// Returns `text` with all ignored differences replaced; `site` is the address of its origin.
    pub(crate) fn normalize_text(&self, text: &str, site: &str) -> String {
        let mut out = text.to_owned();
        for (pattern, replacement) in &self.custom_rules {
            out = pattern.replace_all(&out, replacement.as_str()).into_owned();
        }
        if self.is_strict {
            return out;
        }
        if !site.is_empty() {
            out = out.replace(&format!("https://{site}"), "{site}");
            out = out.replace(&format!("http://{site}"), "{site}");
            out = out.replace(site, "{site}");
        }
        for usual in DEFAULT_REPLACEMENTS.iter() {
            out = usual.pattern.replace_all(&out, usual.placeholder).into_owned();
        }
        out
    }

    /// Returns a `Set-Cookie` header without the parts that differ for each client: the value and the expiry.
    pub(super) fn normalize_cookie(&self, text: &str) -> String {
        if self.is_strict {
            return text.to_owned();
        }
        let mut parts = text.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().split('=').next().unwrap_or_default();
        let mut out = format!("{name}={{value}}");
        for part in parts {
            let key = part.split('=').next().unwrap_or_default();
            if !key.eq_ignore_ascii_case("expires") {
                out.push_str("; ");
                out.push_str(part);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(ComparisonRules::default().normalize_text(text, "site.example:8080"), expected);
    }

    #[test]
    fn what_differs_by_itself_is_named() {
        check("made 2026-11-21T00:50:16.123Z.", "made {date}.");
        check("made 2026-11-21 00:50.", "made {date}.");
        check("<p>Sat, 21 Nov 2026 00:50:16 GMT</p>", "<p>{date}</p>");
        check("Sat Nov 21 2026 00:50:16 GMT+0000", "{date}");
        check("<script nonce=\"rAnd0m123==\">", "<script nonce=\"{nonce}\">");
        check("script-src 'nonce-rAnd0m123=='", "script-src 'nonce-{nonce}'");
        check(
            "<input type=\"hidden\" name=\":cq_csrf_token\" value=\"abc\">",
            "<input type=\"hidden\" name=\":cq_csrf_token\" value=\"{nonce}\">",
        );
        check("id=123e4567-e89b-12d3-a456-426614174000", "id={uuid}");
        check("/a.0123456789abcdef0123456789abcdef.css", "/a.{hash}.css");
        check("?t=1763686216123&x", "?t={time}&x");
        check("<a href=\"http://site.example:8080/a\">", "<a href=\"{site}/a\">");
    }

    #[test]
    fn what_means_something_stays() {
        for text in ["price 2026", "2026-11-21", "deadbeef", "order 123456789012", "Saturday"] {
            check(text, text);
        }
        let strict = ComparisonRules { is_strict: true, ..ComparisonRules::default() };
        assert_eq!(strict.normalize_text("2026-11-21T00:50:16Z", "x"), "2026-11-21T00:50:16Z");
        assert!(strict.is_header_compared("etag") && !strict.is_header_compared("content-length"));
    }

    #[test]
    fn cookies_are_compared_by_name_and_reach() {
        let rules = ComparisonRules::default();
        assert_eq!(
            rules.normalize_cookie(
                "sid=abc; Path=/; Expires=Sat, 21 Nov 2026 00:50:16 GMT; HttpOnly"
            ),
            "sid={value}; Path=/; HttpOnly"
        );
    }

    #[test]
    fn own_rules_come_first() {
        let mut rules = ComparisonRules::default();
        rules.add_rule(r"visit \d+=>visit N").unwrap();
        rules.add_rule("teaser-[a-z]+").unwrap();
        assert_eq!(rules.normalize_text("visit 7 teaser-abc", ""), "visit N {own}");
        assert!(rules.add_rule("(").is_err());
        rules.ignore_header("X-Node");
        assert!(!rules.is_header_compared("x-node") && rules.is_header_compared("cache-control"));
    }
}
