//! Extracts the resources that JMeter fetches with a page.
//!
//! The rules are those of JMeter's default parser, not those of a browser, which are in `page_reference`.

use std::cell::RefCell;
use std::sync::LazyLock;

use html5ever::tendril::StrTendril;
use html5ever::tokenizer::states::RawKind;
use html5ever::tokenizer::{
    BufferQueue, Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts,
};
use regex::Regex;

use crate::absolute_url::AbsoluteUrl;

/// Returns the URLs of images, scripts, styles, frames and similar resources of a page at `page`, without duplicates
/// and in page order. A `<base href>` applies to what follows it.
pub fn embedded_resource_urls(html: &str, page: &AbsoluteUrl) -> Vec<AbsoluteUrl> {
    let reader = EmbeddedResourceCollector::default();
    reader.state.borrow_mut().base = Some(page.clone());
    let tokenizer = Tokenizer::new(reader, TokenizerOpts::default());
    let input = BufferQueue::default();
    input.push_back(StrTendril::from(html));
    // Scripts of the page are not executed, so nothing interrupts the tokenizer.
    drop(tokenizer.feed(&input));
    tokenizer.end();
    tokenizer.sink.state.into_inner().urls
}

/// Returns the imports of a style sheet in order. JMeter fetches none of its other references.
pub fn stylesheet_imports(css: &str) -> Vec<String> {
    #[expect(clippy::expect_used, reason = "the pattern is a constant")]
    static IMPORT: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"(?i)@import\s+(?:url\(\s*)?["']?([^"'()\s;]+)"#)
            .expect("the pattern is valid")
    });
    let mut imports: Vec<String> = Vec::new();
    for import in IMPORT.captures_iter(css) {
        let reference = import.get(1).map_or("", |reference| reference.as_str());
        if !reference.starts_with("data:") && !imports.iter().any(|existing| existing == reference)
        {
            imports.push(reference.to_owned());
        }
    }
    imports
}

/// Returns the tokenizer mode for the content of an element: in some elements, tags are plain text.
pub fn raw_text_mode(name: &str) -> TokenSinkResult<()> {
    match name {
        "script" => TokenSinkResult::RawData(RawKind::ScriptData),
        "style" | "xmp" | "iframe" | "noembed" | "noframes" => {
            TokenSinkResult::RawData(RawKind::Rawtext)
        }
        "title" | "textarea" => TokenSinkResult::RawData(RawKind::Rcdata),
        "plaintext" => TokenSinkResult::Plaintext,
        _ => TokenSinkResult::Continue,
    }
}

/// Collects URLs from the tags of a page.
#[derive(Debug, Default)]
struct EmbeddedResourceCollector {
    state: RefCell<ResourceCollectorState>,
}

#[derive(Debug, Default)]
struct ResourceCollectorState {
    base: Option<AbsoluteUrl>,
    urls: Vec<AbsoluteUrl>,
    is_scripting_disabled: bool,
}

impl TokenSink for EmbeddedResourceCollector {
    type Handle = ();

    fn process_token(&self, token: Token, _line: u64) -> TokenSinkResult<()> {
        let Token::TagToken(tag) = token else { return TokenSinkResult::Continue };
        let mut state = self.state.borrow_mut();
        let is_start = tag.kind == TagKind::StartTag;
        if &*tag.name == "noscript" {
            state.is_scripting_disabled = is_start;
        }
        if !is_start {
            return TokenSinkResult::Continue;
        }
        if !state.is_scripting_disabled {
            state.collect_tag(&tag);
        }
        raw_text_mode(&tag.name)
    }
}

impl ResourceCollectorState {
    fn collect_tag(&mut self, tag: &Tag) {
        let attribute = |attribute_name: &str| -> Option<String> {
            let matching_attribute =
                tag.attrs.iter().find(|attribute| &*attribute.name.local == attribute_name);
            matching_attribute.map(|attribute| attribute.value.trim().to_owned())
        };
        let is = |name: &str, values: &[&str]| {
            attribute(name)
                .is_some_and(|text| values.iter().any(|value| text.eq_ignore_ascii_case(value)))
        };
        match &*tag.name {
            "base" => {
                let base = attribute("href").and_then(|href| self.base.as_ref()?.join(&href).ok());
                self.base = base.or_else(|| self.base.take());
            }
            "img" | "script" | "iframe" | "frame" | "embed" | "bgsound" => {
                self.add_reference(attribute("src"))
            }
            "link" if is("rel", &["stylesheet", "icon", "shortcut icon", "preload"]) => {
                self.add_reference(attribute("href"));
            }
            "input" if is("type", &["image"]) => self.add_reference(attribute("src")),
            "object" => {
                self.add_reference(attribute("codebase"));
                self.add_reference(attribute("data"));
            }
            "applet" => {
                let page = self.base.clone();
                let folder =
                    attribute("codebase").and_then(|folder| page.as_ref()?.join(&folder).ok());
                self.base = folder.or(self.base.take());
                self.add_reference(attribute("code"));
                self.base = page;
            }
            _ => self.add_reference(attribute("background")),
        }
        if let Some(style) = attribute("style") {
            self.add_reference(background_url(&style).map(str::to_owned));
        }
    }

    fn add_reference(&mut self, reference: Option<String>) {
        let Some(reference) = reference.filter(|reference| !reference.is_empty()) else { return };
        let scheme = reference.split(':').next().unwrap_or_default().to_ascii_lowercase();
        if reference.contains(':')
            && matches!(scheme.as_str(), "data" | "javascript" | "about" | "blob")
        {
            return;
        }
        let url = self.base.as_ref().and_then(|base| base.join(&reference).ok());
        if let Some(url) = url.filter(|url| !self.urls.contains(url)) {
            self.urls.push(url);
        }
    }
}

/// Returns the URL in the `url(...)` of a `style`, which JMeter recognizes only in quotes.
fn background_url(style: &str) -> Option<&str> {
    #[expect(clippy::expect_used, reason = "the pattern is a constant")]
    static QUOTED: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"(?i)URL\(\s*['"]([^'"]*)['"]\s*\)"#).expect("the pattern is valid")
    });
    Some(QUOTED.captures(style)?.get(1)?.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(html: &str, expected: &[&str]) {
        let page = AbsoluteUrl::parse("http://h/d/p.html").unwrap();
        let targets: Vec<String> =
            embedded_resource_urls(html, &page).into_iter().map(|url| url.path_and_query).collect();
        assert_eq!(targets, expected, "{html}");
    }

    #[test]
    fn a_style_sheet_imports_others() {
        let css = "@import 'a.css'; @import url(b.css) print;@import url( \"c.css?x\" );@IMPORT\n\"a.css\";b{background:url(d.png)}";
        assert_eq!(stylesheet_imports(css), ["a.css", "b.css", "c.css?x"]);
    }

    #[test]
    fn a_page_names_its_parts_once_each() {
        check(
            "<html><link rel=stylesheet href='a.css'><link rel=canonical href=/x><SCRIPT src=\" b.js?x=1&amp;y=2 \"></script>\
             <img src=c.png><img src=\"c.png\"><img src='data:image/png;base64,xx'><input type=IMAGE src=d.gif><a href=e.html>",
            &["/d/a.css", "/d/b.js?x=1&y=2", "/d/c.png", "/d/d.gif"],
        );
    }

    #[test]
    fn a_base_counts_for_what_follows_it() {
        check("<img src=a.png><base href='/x/'><img src=b.png>", &["/d/a.png", "/x/b.png"]);
    }

    #[test]
    fn comments_scripts_and_texts_name_no_parts() {
        check("<!-- <img src=a.png> --><!--[if IE]><img src=b.png><![endif]-->", &[]);
        check("<!--[if !IE]><!--><img src=a.png><!--<![endif]-->", &["/d/a.png"]);
        check(
            "<script>document.write('<img src=a.png>')</script><noscript><img src=b.png></noscript>",
            &[],
        );
        check("<textarea><img src=a.png></textarea><title><img src=b.png></title>", &[]);
    }

    /// As in JMeter 5.6.3: densities, players and unquoted styles are left to browsers.
    #[test]
    fn parts_are_those_that_jmeter_knows() {
        check(
            "<link rel=preload href=a.js><link rel='shortcut icon' href=b.ico><link rel=modulepreload href=no.js>\
             <link rel=manifest href=no.json><link rel='preload stylesheet' href=no.css>",
            &["/d/a.js", "/d/b.ico"],
        );
        check(
            "<img srcset='no.png 1x'><picture><source srcset=no.webp><img src=a.png></picture>\
             <video src=no.mp4 poster=no.png><source src=no.ogg></video><audio src=no.mp3></audio><track src=no.vtt>",
            &["/d/a.png"],
        );
        check(
            "<body background=a.png><div background=b.png><p style=\"x:url('c.png')\"><p style='x:url(no.png)'>\
             <style>a{background:url(no.png)}</style>",
            &["/d/a.png", "/d/b.png", "/d/c.png"],
        );
        check(
            "<object data=o.swf codebase=/cb/></object><applet code=A.class codebase=/ap/></applet><bgsound src=b.mid>",
            &["/cb/", "/d/o.swf", "/ap/A.class", "/d/b.mid"],
        );
    }
}
