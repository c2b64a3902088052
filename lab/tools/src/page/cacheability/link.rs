//! Extracts the links of a page.

use std::sync::LazyLock;

use regex::Regex;

use crate::page::reference;

/// Returns the references of a page without duplicates: links first, then embedded resources.
pub(super) fn extract_references(html: &str) -> Vec<String> {
    #[expect(clippy::expect_used, reason = "the pattern is a constant")]
    static LINK: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"(?is)<(?:a|area)\b[^>]*?\bhref\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))"#)
            .expect("the pattern is valid")
    });
    let mut references: Vec<String> = Vec::new();
    let links = LINK.captures_iter(html).filter_map(|captures| {
        let value = captures.get(1).or(captures.get(2)).or(captures.get(3))?;
        Some(value.as_str().trim().replace("&amp;", "&"))
    });
    for reference in links.chain(reference::parse_page_references(html).references) {
        if !reference.is_empty() && !references.contains(&reference) {
            references.push(reference);
        }
    }
    references
}

/// Returns true if a reference leads to a page or file over HTTP and does not end a session.
pub(super) fn is_followable(reference: &str) -> bool {
    let lower = reference.to_ascii_lowercase();
    if lower.starts_with('#') || lower.contains("logout") || lower.contains("signout") {
        return false;
    }
    let scheme = lower.split(['/', '?', '#']).next().unwrap_or_default().split_once(':');
    match scheme {
        Some((scheme, _)) => matches!(scheme, "http" | "https"),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_parts_of_a_page_are_found() {
        let html = "<a class=x href=\"/a.html?b=1&amp;c=2\">x</a><A HREF='b.html'>y</A><area href=c>\
                    <img src=d.png><a href=b.html>again</a><a name=here>";
        assert_eq!(extract_references(html), ["/a.html?b=1&c=2", "b.html", "c", "d.png"]);
    }

    #[test]
    fn only_what_leads_somewhere_is_followed() {
        for yes in ["/a", "a/b", "http://x/", "?a=b", "//x/y"] {
            assert!(is_followable(yes), "{yes}");
        }
        for no in ["#top", "mailto:a@b", "javascript:void(0)", "tel:1", "/logout", "data:x,y"] {
            assert!(!is_followable(no), "{no}");
        }
    }
}
