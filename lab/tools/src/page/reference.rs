//! Extracts the resources that a page makes a browser fetch, from HTML tags and style sheets.

use std::cell::{Cell, RefCell};

use html5ever::tendril::StrTendril;
use html5ever::tokenizer::{
    BufferQueue, Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts,
};
use tympan_lab_plan::raw_text_mode;

/// The references of a page.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PageReferences {
    /// `<base href>`.
    pub(crate) base_href: Option<String>,
    /// References without duplicates, in page order.
    pub(crate) references: Vec<String>,
}

/// Parses a page.
pub(crate) fn parse_page_references(html: &str) -> PageReferences {
    let sink = PageReferenceSink::default();
    let tokenizer = Tokenizer::new(sink, TokenizerOpts::default());
    let input = BufferQueue::default();
    input.push_back(StrTendril::from(html));
    // Scripts of the page are not executed, so nothing interrupts the tokenizer.
    drop(tokenizer.feed(&input));
    tokenizer.end();
    tokenizer.sink.page_references.into_inner()
}

/// Parses a style sheet: returns the references in `url(...)` and `@import`.
pub(crate) fn parse_style_references(css: &str) -> Vec<String> {
    let mut references = Vec::new();
    let mut rest = css;
    while let Some(at) = rest.find("url(") {
        rest = rest.get(at + 4..).unwrap_or_default();
        let Some(end) = rest.find(')') else { break };
        add_reference(&mut references, trim_css_quotes(rest.get(..end).unwrap_or_default()));
        rest = rest.get(end..).unwrap_or_default();
    }
    let mut rest = css;
    while let Some(at) = rest.find("@import") {
        rest = rest.get(at + 7..).unwrap_or_default().trim_start();
        let Some(quote) = rest.chars().next().filter(|c| matches!(c, '"' | '\'')) else { continue };
        let inside = rest.get(1..).unwrap_or_default();
        let Some(end) = inside.find(quote) else { break };
        add_reference(&mut references, inside.get(..end).unwrap_or_default());
        rest = inside;
    }
    references
}

fn trim_css_quotes(text: &str) -> &str {
    text.trim().trim_matches(['"', '\'']).trim()
}

fn add_reference(references: &mut Vec<String>, reference: &str) {
    let reference = reference.trim();
    let scheme = reference.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let is_other = reference.contains(':')
        && matches!(scheme.as_str(), "data" | "javascript" | "about" | "blob" | "mailto" | "tel");
    if reference.is_empty() || reference.starts_with('#') || is_other {
        return;
    }
    if !references.iter().any(|existing| existing == reference) {
        references.push(reference.to_owned());
    }
}

#[derive(Debug, Default)]
struct PageReferenceSink {
    page_references: RefCell<PageReferences>,
    /// True inside `<noscript>`, which browsers with scripting ignore.
    is_in_noscript: Cell<bool>,
    is_in_style: Cell<bool>,
}

impl TokenSink for PageReferenceSink {
    type Handle = ();

    fn process_token(&self, token: Token, _line: u64) -> TokenSinkResult<()> {
        match token {
            Token::TagToken(tag) => return self.handle_tag(&tag),
            Token::CharacterTokens(text) if self.is_in_style.get() => {
                for reference in parse_style_references(&text) {
                    add_reference(&mut self.page_references.borrow_mut().references, &reference);
                }
            }
            _ => {}
        }
        TokenSinkResult::Continue
    }
}

impl PageReferenceSink {
    fn handle_tag(&self, tag: &Tag) -> TokenSinkResult<()> {
        let name: &str = &tag.name;
        let is_start = tag.kind == TagKind::StartTag;
        if name == "noscript" {
            self.is_in_noscript.set(is_start);
        }
        if name == "style" {
            self.is_in_style.set(is_start);
        }
        if !is_start {
            return TokenSinkResult::Continue;
        }
        if !self.is_in_noscript.get() {
            self.collect_references(name, tag);
        }
        raw_text_mode(name)
    }

    fn collect_references(&self, name: &str, tag: &Tag) {
        let attribute = |attribute_name: &str| -> Option<String> {
            let matching_attribute =
                tag.attrs.iter().find(|attribute| &*attribute.name.local == attribute_name);
            matching_attribute.map(|attribute| attribute.value.to_string())
        };
        let mut parts = self.page_references.borrow_mut();
        let reference = match name {
            "base" => {
                if parts.base_href.is_none() {
                    parts.base_href = attribute("href");
                }
                None
            }
            "link" => {
                let rel = attribute("rel").unwrap_or_default().to_ascii_lowercase();
                let is_fetched = rel.split_whitespace().any(|keyword| {
                    matches!(
                        keyword,
                        "stylesheet" | "icon" | "preload" | "modulepreload" | "manifest"
                    )
                });
                attribute("href").filter(|_| is_fetched)
            }
            "img" => attribute("src").or_else(|| first_srcset_candidate(&attribute("srcset")?)),
            "script" | "iframe" | "frame" | "embed" | "audio" | "track" => attribute("src"),
            "video" => attribute("poster"),
            "object" => attribute("data"),
            "input" => attribute("src").filter(|_| {
                attribute("type").is_some_and(|kind| kind.eq_ignore_ascii_case("image"))
            }),
            "body" | "table" | "td" | "th" => attribute("background"),
            _ => None,
        };
        if let Some(reference) = reference {
            add_reference(&mut parts.references, &reference);
        }
        if let Some(style) = attribute("style") {
            parse_style_references(&style)
                .iter()
                .for_each(|style_reference| add_reference(&mut parts.references, style_reference));
        }
    }
}

/// Returns the first image of a `srcset`, which a browser of normal pixel density uses.
fn first_srcset_candidate(set: &str) -> Option<String> {
    set.split(',').next()?.split_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(html: &str, expected: &[&str]) {
        assert_eq!(parse_page_references(html).references, expected, "{html}");
    }

    #[test]
    fn pages_name_their_parts_as_browsers_read_them() {
        check(
            "<link rel=stylesheet href='a.css'><LINK REL='shortcut icon' HREF=i.ico><link rel=canonical href=/x>",
            &["a.css", "i.ico"],
        );
        check(
            "<script src=\"b.js?x=1&amp;y=2\"></script><script>document.write('<img src=no.png>')</script>",
            &["b.js?x=1&y=2"],
        );
        check(
            "<img src=c.png><img src=\"c.png\"><img src='data:image/png;base64,xx'><img srcset='s.webp 1x, t.webp 2x'>",
            &["c.png", "s.webp"],
        );
        check(
            "<!-- <img src=no.png> --><title><img src=no.png></title><textarea><img src=no.png></textarea>",
            &[],
        );
        check("<noscript><img src=no.png></noscript><img src=yes.png>", &["yes.png"]);
        check(
            "<style>a{background:url( 'x.png' )}@import \"y.css\";</style><p style='background:url(z.png)'>",
            &["x.png", "y.css", "z.png"],
        );
        check(
            "<a href=e.html><iframe src=f.html></iframe><input type=image src=d.gif><input src=no.gif>",
            &["f.html", "d.gif"],
        );
        assert_eq!(
            parse_page_references("<base href='/x/'><base href='/y/'>").base_href.as_deref(),
            Some("/x/")
        );
    }

    proptest! {
        #[test]
        fn any_text_can_be_read(text in "[<>a-z=\"' /!-]{0,200}") {
            parse_page_references(&text);
            parse_style_references(&text);
        }
    }
}
