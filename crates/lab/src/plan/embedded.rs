//! Finds what a page makes a browser fetch.

use std::sync::LazyLock;

use regex::Regex;

/// Returns the references of images, scripts, styles, frames and the like, each once, in the order of the page.
pub(crate) fn references(html: &str) -> Vec<String> {
    #[expect(clippy::expect_used, reason = "the pattern is a constant")]
    static TAG: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"(?is)<(img|script|link|iframe|frame|embed|source|input|body|table|td|th|tr|object|audio|video)\b([^>]*)>"#)
            .expect("the pattern reads")
    });
    #[expect(clippy::expect_used, reason = "the pattern is a constant")]
    static ATTRIBUTE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"(?is)([a-z-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))"#)
            .expect("the pattern reads")
    });
    let mut found: Vec<String> = Vec::new();
    for tag in TAG.captures_iter(html) {
        let name = tag.get(1).map_or("", |name| name.as_str()).to_ascii_lowercase();
        let text = tag.get(2).map_or("", |text| text.as_str());
        let attribute = |wanted: &str| {
            ATTRIBUTE.captures_iter(text).find_map(|captures| {
                let key = captures.get(1)?.as_str();
                let value = captures.get(2).or(captures.get(3)).or(captures.get(4))?;
                key.eq_ignore_ascii_case(wanted).then(|| value.as_str().trim().to_owned())
            })
        };
        let reference = match name.as_str() {
            "link" => attribute("href").filter(|_| {
                attribute("rel").is_some_and(|rel| {
                    let rel = rel.to_ascii_lowercase();
                    rel.contains("stylesheet") || rel.contains("icon")
                })
            }),
            "input" => attribute("src").filter(|_| {
                attribute("type").is_some_and(|kind| kind.eq_ignore_ascii_case("image"))
            }),
            "body" | "table" | "td" | "th" | "tr" => attribute("background"),
            "object" => attribute("data"),
            _ => attribute("src"),
        };
        if let Some(reference) = reference
            && !reference.is_empty()
            && !reference.starts_with("data:")
            && !reference.starts_with("javascript:")
        {
            let reference = reference.replace("&amp;", "&");
            if !found.contains(&reference) {
                found.push(reference);
            }
        }
    }
    found
}

/// Returns what a style sheet imports, in its order. JMeter fetches nothing else that one names.
pub(crate) fn imports(css: &str) -> Vec<String> {
    #[expect(clippy::expect_used, reason = "the pattern is a constant")]
    static IMPORT: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"(?i)@import\s+(?:url\(\s*)?["']?([^"'()\s;]+)"#).expect("the pattern reads")
    });
    let mut found: Vec<String> = Vec::new();
    for import in IMPORT.captures_iter(css) {
        let reference = import.get(1).map_or("", |reference| reference.as_str());
        if !reference.starts_with("data:") && !found.iter().any(|known| known == reference) {
            found.push(reference.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_style_sheet_imports_others() {
        let css = "@import 'a.css'; @import url(b.css) print;@import url( \"c.css?x\" );@IMPORT\n\"a.css\";b{background:url(d.png)}";
        assert_eq!(imports(css), ["a.css", "b.css", "c.css?x"]);
    }

    #[test]
    fn a_page_names_its_parts_once_each() {
        let html = "<html><link rel=stylesheet href='a.css'><link rel=canonical href=/x><SCRIPT src=\"b.js?x=1&amp;y=2\"></script>\
                    <img src=c.png><img src=\"c.png\"><img src='data:image/png;base64,xx'><input type=image src=d.gif><a href=e.html>";
        assert_eq!(references(html), ["a.css", "b.js?x=1&y=2", "c.png", "d.gif"]);
    }
}
