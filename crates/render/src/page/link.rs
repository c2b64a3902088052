//! Addresses in template output: sanitized author input, and URLs of node paths.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::url::mangle_namespaces;

/// Replacement for an address that must not be followed.
pub(crate) const BLOCKED_LINK: &str = "#";

/// The allowed schemes of author links.
pub(crate) const ALLOWED_SCHEMES: [&str; 6] = ["http", "https", "mailto", "tel", "sms", "ftp"];

/// The characters that are escaped in a URL path; non-ASCII characters always are.
const PATH_ESCAPES: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'`')
    .add(b'%')
    .add(b';')
    .add(b'\\');

/// A parsed author link.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AuthorLink<'a> {
    /// A path of this instance; `rest` is the query and fragment with their delimiters.
    Path { path: &'a str, query_and_fragment: &'a str },
    /// Anything else that is harmless: another host, a mail address, a fragment.
    External(&'a str),
    /// A scheme that runs code or is not expected.
    Blocked,
}

/// Parses an author's link.
pub(crate) fn parse_author_link(href: &str) -> AuthorLink<'_> {
    let href = href.trim();
    if href.starts_with('/') && !href.starts_with("//") {
        let (path, rest) = href.split_at(href.find(['?', '#']).unwrap_or(href.len()));
        return AuthorLink::Path { path, query_and_fragment: rest };
    }
    // Browsers drop tabs and line breaks before they parse the scheme: `java\nscript:` runs.
    let has_odd = href.chars().any(char::is_control);
    let head = href.split(['/', '?', '#']).next().unwrap_or_default();
    let is_allowed = match head.split_once(':') {
        None => true,
        Some((scheme, _)) => {
            ALLOWED_SCHEMES.iter().any(|allowed| scheme.eq_ignore_ascii_case(allowed))
        }
    };
    if is_allowed && !has_odd { AuthorLink::External(href) } else { AuthorLink::Blocked }
}

/// Converts a node path to a URL path: mangled and escaped.
#[must_use]
pub fn encode_path(path: &str) -> String {
    utf8_percent_encode(&mangle_namespaces(path), PATH_ESCAPES).to_string()
}

/// Appends the query of a request to the address that it is redirected to: after the query of the address, if it has
/// one, and before its fragment.
pub(crate) fn append_query(address: &str, query: &str) -> String {
    if query.is_empty() {
        return address.to_owned();
    }
    let (before, fragment) = address.split_at(address.find('#').unwrap_or(address.len()));
    let mark = match before.split_once('?') {
        None => "?",
        Some((_, "")) => "",
        Some(_) => "&",
    };
    format!("{before}{mark}{query}{fragment}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_links() {
        assert_eq!(
            parse_author_link("/content/a?x=1#y"),
            AuthorLink::Path { path: "/content/a", query_and_fragment: "?x=1#y" }
        );
        assert_eq!(
            parse_author_link(" /content/a "),
            AuthorLink::Path { path: "/content/a", query_and_fragment: "" }
        );
        for harmless in [
            "https://example.org/a:b",
            "HTTP://x",
            "mailto:a@b",
            "tel:1",
            "#top",
            "?q=1",
            "a/b:c",
            "//host/a",
            "",
        ] {
            assert_eq!(parse_author_link(harmless), AuthorLink::External(harmless));
        }
        for bad in [
            "javascript:alert(1)",
            " JavaScript:alert(1)",
            "java\nscript:alert(1)",
            "java\tscript:alert(1)",
            "\u{1}javascript:alert(1)",
            "data:text/html,x",
            "vbscript:x",
            "unknown:x",
            "javascript&colon;alert(1):",
        ] {
            assert_eq!(parse_author_link(bad), AuthorLink::Blocked, "{bad:?}");
        }
    }

    #[test]
    fn encodes_paths() {
        assert_eq!(encode_path("/a/jcr:content/b c"), "/a/_jcr_content/b%20c");
        assert_eq!(encode_path("/ä/100%;x"), "/%C3%A4/100%25%3Bx");
        assert_eq!(encode_path("/content/a-b_c.html"), "/content/a-b_c.html");
    }

    #[test]
    fn queries_are_kept() {
        for (address, query, expected) in [
            ("/a.html", "", "/a.html"),
            ("/a.html", "b=c", "/a.html?b=c"),
            ("/a.html?d=e", "b=c&f", "/a.html?d=e&b=c&f"),
            ("/a.html?", "b=c", "/a.html?b=c"),
            ("/a.html#top", "b=c", "/a.html?b=c#top"),
            ("/a.html?d#top?", "b=c", "/a.html?d&b=c#top?"),
            ("http://example.com", "b=c", "http://example.com?b=c"),
        ] {
            assert_eq!(append_query(address, query), expected);
        }
    }
}
