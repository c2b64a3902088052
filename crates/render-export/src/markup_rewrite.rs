//! Finds the addresses in a rendered page or style sheet, and replaces them.
//!
//! Input: the rendered bytes, and a function that maps each address. Output: the same bytes with other addresses.
//! Everything that is not an address stays unchanged, byte for byte.
//!
//! Invariants
//! * Any text is accepted, well-formed or not. Comments and the text of scripts, as a browser parses them, stay
//!   unchanged.
//! * Replacements are escaped for their context.
//!
//! Not here: resolution of addresses (`address_resolver`).

use std::borrow::Cow;

use tympan_notation::escape_html;
use tympan_render::INCLUDE_ATTRIBUTE;

/// The use of an address, which decides whether its scheme may differ from that of its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressUse {
    /// A link that a visitor may follow.
    Navigation,
    /// A resource that the page shows or loads.
    Subresource,
    /// A resource that a script of the page fetches for each visitor.
    ScriptFetch,
}

/// Elements whose content is no markup.
const RAW_TEXT_ELEMENTS: [&str; 8] =
    ["script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes"];

/// Replaces the addresses in a page. `change` takes each address, unescaped, and returns its replacement.
pub(crate) fn rewrite_html(
    text: &str,
    mut change: impl FnMut(AddressUse, &str) -> Option<String>,
) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        rest = match scan_markup(from) {
            MarkupPiece::Tag(tag) => {
                let (tag, after) = from.split_at(tag);
                rewrite_tag(&mut out, tag, &mut change);
                let name = tag_name(tag);
                match RAW_TEXT_ELEMENTS.iter().find(|raw| name.eq_ignore_ascii_case(raw)) {
                    Some(&"style") => {
                        let (style, after) = split_at_end_tag(after, "style");
                        out.push_str(&rewrite_css(style, |address| {
                            change(AddressUse::Subresource, address)
                        }));
                        after
                    }
                    Some(raw) => {
                        let (content, after) = split_at_end_tag(after, raw);
                        out.push_str(content);
                        after
                    }
                    None => after,
                }
            }
            MarkupPiece::Other(length) => {
                let (verbatim, after) = from.split_at(length);
                out.push_str(verbatim);
                after
            }
        };
    }
    out.push_str(rest);
    out
}

/// A piece that begins with `<`; lengths in bytes.
enum MarkupPiece {
    Tag(usize),
    Other(usize),
}

/// Finds the end of a piece that begins with `<`.
fn scan_markup(text: &str) -> MarkupPiece {
    if let Some(comment) = text.strip_prefix("<!--") {
        // `<!-->` and `<!--->` are whole comments.
        let short = ["->", ">"].iter().find(|end| comment.starts_with(**end));
        let end = short.map(|end| end.len());
        let end = end.or_else(|| comment.find("-->").map(|at| at + 3));
        return MarkupPiece::Other(end.map_or(text.len(), |end| end + 4));
    }
    let is_tag = text.as_bytes().get(1).is_some_and(u8::is_ascii_alphabetic);
    if !is_tag {
        let is_other = text.starts_with("</") || text.starts_with("<!") || text.starts_with("<?");
        let end = text.find('>').filter(|_| is_other);
        return MarkupPiece::Other(end.map_or(1, |end| end + 1));
    }
    let mut quote = None;
    let mut is_after_equals = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match (quote, byte) {
            (Some(open), byte) if open == byte => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') if is_after_equals => quote = Some(byte),
            (None, b'>') => return MarkupPiece::Tag(at + 1),
            (None, _) => {}
        }
        is_after_equals = byte == b'=' || (is_after_equals && byte.is_ascii_whitespace());
    }
    // Browsers ignore an unterminated tag, too.
    MarkupPiece::Other(text.len())
}

fn tag_name(tag: &str) -> &str {
    let inner = tag.get(1..).unwrap_or_default();
    let end =
        inner.find(|letter: char| letter.is_ascii_whitespace() || matches!(letter, '/' | '>'));
    inner.get(..end.unwrap_or(inner.len())).unwrap_or_default()
}

/// Splits a text before the end tag of a raw text element.
fn split_at_end_tag<'a>(text: &'a str, name: &str) -> (&'a str, &'a str) {
    let is_end = |at: usize| {
        let after = text.get(at + 2..at + 2 + name.len());
        after.is_some_and(|tail| tail.eq_ignore_ascii_case(name))
    };
    let end = text.match_indices("</").map(|(at, _)| at).find(|at| is_end(*at));
    text.split_at(end.unwrap_or(text.len()))
}

/// Returns the form of the addresses in the value of an attribute; `None` if it has none.
fn attribute_addresses(element: &str, attribute: &str) -> Option<AttributeAddresses> {
    let is = |names: &[&str], name: &str| {
        names.iter().any(|candidate| name.eq_ignore_ascii_case(candidate))
    };
    if is(&["href"], attribute) {
        let kind = if is(&["a", "area"], element) {
            AddressUse::Navigation
        } else {
            AddressUse::Subresource
        };
        return (!is(&["base"], element)).then_some(AttributeAddresses::Single(kind));
    }
    if is(&["srcset", "imagesrcset"], attribute) {
        return Some(AttributeAddresses::SrcSet);
    }
    if is(&["style"], attribute) {
        return Some(AttributeAddresses::Style);
    }
    if is(&["action", "formaction"], attribute) {
        return Some(AttributeAddresses::Single(AddressUse::Navigation));
    }
    if is(&[INCLUDE_ATTRIBUTE], attribute) {
        return Some(AttributeAddresses::Single(AddressUse::ScriptFetch));
    }
    let is_part = is(&["src", "poster", "data-src", "xlink:href"], attribute)
        || (is(&["data"], attribute) && is(&["object"], element));
    is_part.then_some(AttributeAddresses::Single(AddressUse::Subresource))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttributeAddresses {
    Single(AddressUse),
    SrcSet,
    Style,
}

/// Writes a tag with replaced addresses.
fn rewrite_tag(
    out: &mut String,
    tag: &str,
    change: &mut impl FnMut(AddressUse, &str) -> Option<String>,
) {
    let element = tag_name(tag);
    let mut at = 1 + element.len();
    out.push_str(tag.get(..at).unwrap_or_default());
    while let Some(attribute) = next_attribute(tag, at) {
        out.push_str(tag.get(at..attribute.value_start).unwrap_or_default());
        let written = tag.get(attribute.value_start..attribute.value_end).unwrap_or_default();
        let changed = attribute_addresses(element, attribute.name).and_then(|value| {
            let plain = unescape_attribute(written);
            match value {
                AttributeAddresses::Single(kind) => change(kind, plain.trim()),
                AttributeAddresses::SrcSet => {
                    rewrite_srcset(&plain, |address| change(AddressUse::Subresource, address))
                }
                AttributeAddresses::Style => {
                    let style =
                        rewrite_css(&plain, |address| change(AddressUse::Subresource, address));
                    (style != plain).then_some(style)
                }
            }
        });
        match changed {
            // A value without quotes cannot hold every address.
            Some(text) if attribute.is_quoted => out.push_str(&escape_html(&text)),
            Some(text) => out.push_str(&format!("\"{}\"", escape_html(&text))),
            None => out.push_str(written),
        }
        at = attribute.value_end;
    }
    out.push_str(tag.get(at..).unwrap_or_default());
}

/// An attribute with a value.
struct MarkupAttribute<'a> {
    name: &'a str,
    /// The range of the value, without quotes.
    value_start: usize,
    value_end: usize,
    is_quoted: bool,
}

/// Finds the next attribute that has a value.
fn next_attribute(tag: &str, from: usize) -> Option<MarkupAttribute<'_>> {
    let bytes = tag.as_bytes();
    let find = |from: usize, is: &dyn Fn(u8) -> bool| {
        bytes.iter().skip(from).position(|byte| is(*byte)).map(|at| at + from)
    };
    let mut at = from;
    loop {
        let is_name =
            |byte: u8| !byte.is_ascii_whitespace() && !matches!(byte, b'/' | b'>' | b'"' | b'\'');
        let begin = find(at, &is_name)?;
        let is_end = |byte: u8| byte.is_ascii_whitespace() || matches!(byte, b'=' | b'/' | b'>');
        // A name may begin with `=`.
        let end = find(begin + 1, &is_end)?;
        let name = tag.get(begin..end)?;
        let equals = find(end, &|byte| !byte.is_ascii_whitespace())?;
        if bytes.get(equals) != Some(&b'=') {
            at = equals;
            continue;
        }
        let value = find(equals + 1, &|byte| !byte.is_ascii_whitespace())?;
        return match bytes.get(value) {
            Some(quote @ (b'"' | b'\'')) => {
                let end = find(value + 1, &|byte| byte == *quote)?;
                Some(MarkupAttribute {
                    name,
                    value_start: value + 1,
                    value_end: end,
                    is_quoted: true,
                })
            }
            Some(b'>') | None => None,
            Some(_) => {
                let is_end = |byte: u8| byte.is_ascii_whitespace() || byte == b'>';
                let end = find(value, &is_end)?;
                Some(MarkupAttribute { name, value_start: value, value_end: end, is_quoted: false })
            }
        };
    }
}

/// Replaces the addresses in a `srcset`; `None` if none changes.
fn rewrite_srcset(text: &str, mut change: impl FnMut(&str) -> Option<String>) -> Option<String> {
    let mut is_changed = false;
    let mut entries = Vec::new();
    let mut rest = text.trim_start_matches(|letter: char| letter.is_whitespace() || letter == ',');
    while !rest.is_empty() {
        // An address may contain commas, but not end with one.
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (url, after) = rest.split_at(end);
        let address = url.trim_end_matches(',');
        let (descriptor, next) = match address.len() < url.len() {
            true => ("", after),
            false => after.split_once(',').unwrap_or((after, "")),
        };
        let written = change(address).inspect(|_| is_changed = true);
        let address = written.unwrap_or_else(|| address.to_owned());
        entries.push(format!("{address} {}", descriptor.trim()).trim_end().to_owned());
        rest = next.trim_start_matches(|letter: char| letter.is_whitespace() || letter == ',');
    }
    is_changed.then(|| entries.join(", "))
}

/// Replaces the addresses in a style sheet: those in `url(…)`, and those that `@import` names without it.
pub(crate) fn rewrite_css(text: &str, mut change: impl FnMut(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let length = match rest.as_bytes() {
            [b'/', b'*', ..] => {
                rest.get(2..).and_then(|rest| rest.find("*/")).map_or(rest.len(), |end| end + 4)
            }
            [b'u' | b'U', ..] if starts_with_ignore_case(rest, "url(") => {
                let Some(end) = rest.find(')') else {
                    out.push_str(rest);
                    return out;
                };
                let inner = rest.get(4..end).unwrap_or_default().trim();
                let end = end + 1;
                let quote = inner.chars().next().filter(|first| matches!(first, '"' | '\''));
                let address = quote.map_or(inner, |quote| inner.trim_matches(quote));
                match change(address) {
                    Some(address) => {
                        out.push_str(&format!("url(\"{}\")", escape_css_string(&address)))
                    }
                    None => out.push_str(rest.get(..end).unwrap_or_default()),
                }
                at += end;
                continue;
            }
            [b'@', ..] if starts_with_ignore_case(rest, "@import") => {
                let head = rest.find(['"', '\'', ';', '(']).unwrap_or(rest.len());
                let quote = rest.get(head..).and_then(|rest| rest.chars().next());
                let Some(quote) = quote.filter(|quote| matches!(quote, '"' | '\'')) else {
                    // The next token is `url(`, or the text ends.
                    out.push_str(rest.get(..7).unwrap_or_default());
                    at += 7;
                    continue;
                };
                let inner = rest.get(head + 1..).unwrap_or_default();
                let end = inner.find(quote).unwrap_or(inner.len());
                let address = inner.get(..end).unwrap_or_default();
                out.push_str(rest.get(..=head).unwrap_or_default());
                let changed = change(address).map(|address| escape_css_string(&address));
                out.push_str(changed.as_deref().unwrap_or(address));
                at += head + 1 + end;
                // Consume the closing quote, so that it does not begin a string.
                if text.get(at..).is_some_and(|rest| rest.starts_with(quote)) {
                    out.push(quote);
                    at += 1;
                }
                continue;
            }
            [quote @ (b'"' | b'\''), ..] => {
                let inner = rest.get(1..).unwrap_or_default();
                let end = inner.find([char::from(*quote), '\n']);
                end.map_or(rest.len(), |end| end + 2)
            }
            _ => rest.chars().next().map_or(1, char::len_utf8),
        };
        out.push_str(rest.get(..length).unwrap_or(rest));
        at += length;
    }
    out
}

fn starts_with_ignore_case(text: &str, begin: &str) -> bool {
    text.get(..begin.len()).is_some_and(|head| head.eq_ignore_ascii_case(begin))
}

/// Formats an address as a quoted CSS string.
fn escape_css_string(text: &str) -> String {
    text.replace('\\', "%5C").replace('"', "%22").replace('\n', "%0A")
}

/// Resolves the character references that occur in addresses; others stay unchanged.
fn unescape_attribute(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return Cow::Borrowed(text);
    }
    const NAMED: [(&str, char); 6] =
        [("amp", '&'), ("quot", '"'), ("apos", '\''), ("lt", '<'), ("gt", '>'), ("#x27", '\'')];
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        plain.push_str(before);
        let reference = after.split_once(';').filter(|(name, _)| name.len() <= 8);
        let character_and_rest = reference.and_then(|(name, after)| {
            let named = NAMED
                .iter()
                .find(|(entity_name, _)| *entity_name == name)
                .map(|(_, letter)| *letter);
            let number = || {
                let digits = name.strip_prefix('#')?;
                let number = match digits.strip_prefix(['x', 'X']) {
                    Some(digits) => u32::from_str_radix(digits, 16),
                    None => digits.parse(),
                };
                char::from_u32(number.ok()?)
            };
            Some((named.or_else(number)?, after))
        });
        match character_and_rest {
            Some((letter, after)) => {
                plain.push(letter);
                rest = after;
            }
            None => {
                plain.push('&');
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rewrites `/a…` to `/X/a…` and lists all addresses passed to the function.
    fn seen(text: &str) -> (String, Vec<String>) {
        let mut references = Vec::new();
        let out = rewrite_html(text, |kind, address| {
            references.push(format!("{kind:?} {address}"));
            address.starts_with("/a").then(|| format!("/X{address}"))
        });
        (out, references)
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(seen(text).0, expected, "{text}");
    }

    #[test]
    fn addresses_are_found_where_they_stand() {
        check(r#"<a href="/a.html">x</a>"#, r#"<a href="/X/a.html">x</a>"#);
        check("<a\n class=b href='/a?b&amp;c'>", "<a\n class=b href='/X/a?b&amp;c'>");
        check("<a href=/a>x", "<a href=\"/X/a\">x");
        check("<a href=/b>x", "<a href=/b>x");
        check("<A HREF=\"/a\">", "<A HREF=\"/X/a\">");
        check("<img alt=\"a>b\" src=\"/a\">", "<img alt=\"a>b\" src=\"/X/a\">");
        check("<img/src=\"/a\"/>", "<img/src=\"/X/a\"/>");
        check(
            "<source srcset=\"/a 1x, /b,c 2x,/a 640w\">",
            "<source srcset=\"/X/a 1x, /b,c 2x, /X/a 640w\">",
        );
        check(
            "<p style=\"background:url('/a')\">",
            "<p style=\"background:url(&quot;/X/a&quot;)\">",
        );
        check(
            "<style>p{b:url(/a)}</style><a href=\"/a\">",
            "<style>p{b:url(\"/X/a\")}</style><a href=\"/X/a\">",
        );
        check(
            "<form action=\"/a\"><button formaction=/a>",
            "<form action=\"/X/a\"><button formaction=\"/X/a\">",
        );
        check("<object data=\"/a\"><p data=\"/a\">", "<object data=\"/X/a\"><p data=\"/a\">");
        check("<div data-tympan-include=\"/a\">", "<div data-tympan-include=\"/X/a\">");
    }

    #[test]
    fn what_is_no_address_stays() {
        for text in [
            "",
            "<",
            "<a",
            "<a href=",
            "<a href=\"/a",
            "a < b <1> </a href=\"/a\">",
            "<!-- <a href=\"/a\"> -->",
            "<!--> <!---> <!",
            "<script>var x = '<a href=\"/a\">'</script>",
            "<title><a href=\"/a\"></title>",
            "<textarea><a href=\"/a\">",
            "<base href=\"/a\">",
            "<!DOCTYPE html><?php x ?>",
            "<a hre=\"/a\" ref='/a' href>",
            "<p data-x=\"/a\" ä=\"/a\">ß</p>",
        ] {
            check(text, text);
        }
        check("<!--><a href=\"/a\">", "<!--><a href=\"/X/a\">");
        check("<script></script ><a href=\"/a\">", "<script></script ><a href=\"/X/a\">");
    }

    #[test]
    fn references_are_resolved_and_written_again() {
        let (text, references) = seen("<a href=\"/a?x=1&amp;y=&quot;&#39;&#x41;&nope;&\">");
        assert_eq!(references, ["Navigation /a?x=1&y=\"'A&nope;&"]);
        assert_eq!(text, "<a href=\"/X/a?x=1&amp;y=&quot;&#39;A&amp;nope;&amp;\">");
    }

    #[test]
    fn links_and_parts_are_distinguished() {
        let (_, references) =
            seen("<a href=1><link href=2><img src=3><area href=4><use xlink:href=5>");
        assert_eq!(
            references,
            ["Navigation 1", "Subresource 2", "Subresource 3", "Navigation 4", "Subresource 5"]
        );
    }

    #[test]
    fn style_sheets_name_files() {
        let change = |address: &str| address.starts_with("/a").then(|| format!("/X{address}"));
        for (text, expected) in [
            ("a{b:url(/a)}", "a{b:url(\"/X/a\")}"),
            ("a{b:URL( '/a' )}", "a{b:url(\"/X/a\")}"),
            ("a{b:url(data:x)}", "a{b:url(data:x)}"),
            ("@import \"/a\";b{}", "@import \"/X/a\";b{}"),
            ("@import url(/a);", "@import url(\"/X/a\");"),
            ("/* url(/a) */ x{content:\"url(/a)\"}", "/* url(/a) */ x{content:\"url(/a)\"}"),
            ("url(/a", "url(/a"),
            ("/*", "/*"),
            ("\"", "\""),
            ("ä@import", "ä@import"),
        ] {
            assert_eq!(rewrite_css(text, change), expected, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_stays_where_nothing_changes(
            text in "([<>/='\" a-z!&;#-]|href|src=|<a |<!--|-->|<style>|</style>|url\\(|@import|ä){0,40}",
        ) {
            proptest::prop_assert_eq!(rewrite_html(&text, |_, _| None), text.clone());
            proptest::prop_assert_eq!(rewrite_css(&text, |_| None), text.clone());
            rewrite_html(&text, |_, address| Some(format!("/x{address}")));
        }
    }
}
