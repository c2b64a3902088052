//! Escaping of outputs at each position, safe for any author input.
//!
//! Input: a value and an [`OutputEscape`], as filters that `position` puts around outputs. Output: a safe string.
//!
//! Invariants
//! * No output ends the attribute, element, text or URL part that contains it.
//! * A URL never begins with a scheme that runs code. Code comes from client libraries, or from the host and folder
//!   that the template names.
//! * In scripts and styles everything but letters, digits and a few harmless marks is escaped, so that a wrongly
//!   guessed position only causes a script that does not parse.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr, ValueKind};
use minijinja::{AutoEscape, Environment, State, Value};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use tympan_notation::{escape_html, has_html_special};

use super::autoescape::{OutputEscape, UrlExtent};
use super::markup_text::decode_entities;
use crate::page::link::{AuthorLink, BLOCKED_LINK, parse_author_link};

/// Replacement for the address of code that may not run.
const BLOCKED_CODE_URL: &str = "about:invalid";

/// The folder of code, to which authors cannot write.
const CODE_FOLDER: &str = "/etc.clientlibs/";

/// Characters that no URL may contain unescaped.
const URL_ESCAPES: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}')
    .add(b'^');

/// Characters that end a URL in a style.
const STYLE_URL_ESCAPES: &AsciiSet = &URL_ESCAPES.add(b'\'').add(b'(').add(b')');

/// Characters that end a URL in a list of images.
const SRCSET_URL_ESCAPES: &AsciiSet = &URL_ESCAPES.add(b',');

/// Characters that can change the target of a URL.
const NAME_ESCAPES: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Maximum nesting depth of values in scripts; deeper ones become `null`.
const MAX_VALUE_DEPTH: usize = 32;

/// Adds the filters of all positions.
pub(super) fn add_output_filters(environment: &mut Environment<'_>) {
    for escape in OutputEscape::ALL_FILTERED {
        environment.add_filter(
            escape.filter_name(),
            move |state: &State<'_, '_>, value: &Value| {
                // Most outputs need no escape, here or when they are written as HTML.
                let is_html = matches!(state.auto_escape(), AutoEscape::Html);
                let is_written =
                    is_html && value.as_str().is_some_and(|text| is_written_verbatim(escape, text));
                if is_written {
                    value.clone()
                } else {
                    Value::from_safe_string(write_escaped_value(escape, value))
                }
            },
        );
    }
    environment.add_filter("tojson", |value: &Value| {
        Value::from_object(ScriptLiteral(to_script_literal(value)))
    });
}

/// A value as a script literal, from the filter `tojson`.
#[derive(Debug)]
pub(super) struct ScriptLiteral(String);

impl Object for ScriptLiteral {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns true if a text is written unchanged at a position, both as text and as safe markup; `false` if uncertain.
fn is_written_verbatim(position: OutputEscape, text: &str) -> bool {
    match position {
        OutputEscape::Text | OutputEscape::RawText | OutputEscape::Attribute => {
            !has_html_special(text)
        }
        OutputEscape::Url(UrlExtent::Whole) => {
            text.starts_with('/') && !text.starts_with("//") && text.bytes().all(is_plain_in_url)
        }
        OutputEscape::Url(UrlExtent::SchemeSettled) => text.bytes().all(is_plain_in_url),
        _ => false,
    }
}

/// Returns true if a byte has no special meaning in a path, and is escaped nowhere.
fn is_plain_in_url(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'.' | b'_')
}

/// Formats a value for a position.
fn write_escaped_value(position: OutputEscape, value: &Value) -> String {
    match position {
        OutputEscape::Text | OutputEscape::RawText | OutputEscape::Attribute => {
            escape_raw_text(value)
        }
        OutputEscape::Url(reach) => {
            escape_html(&escape_url(&plain_text_of(value), reach, URL_ESCAPES))
        }
        OutputEscape::CodeUrl(reach) => escape_html(&escape_code_url(&plain_text_of(value), reach)),
        OutputEscape::Srcset => escape_html(&escape_srcset(&plain_text_of(value))),
        OutputEscape::SrcsetUrl(reach) => {
            escape_html(&escape_url(&plain_text_of(value), reach, SRCSET_URL_ESCAPES))
        }
        OutputEscape::SrcsetSize => text_if_allowed(&plain_text_of(value), |byte| {
            byte.is_ascii_alphanumeric() || byte == b'.'
        }),
        OutputEscape::Script => to_script_literal(value),
        OutputEscape::ScriptText => escape_script_text(&plain_text_of(value)),
        OutputEscape::Style => escape_style(&plain_text_of(value), " .,%#_+-"),
        OutputEscape::StyleText => escape_style(&plain_text_of(value), " "),
        OutputEscape::StyleUrl(reach) => {
            escape_url(&plain_text_of(value), reach, STYLE_URL_ESCAPES).replace('&', "\\26 ")
        }
        OutputEscape::TagName => safe_tag_name(&plain_text_of(value)).to_owned(),
        OutputEscape::HeadingLevel => safe_heading_level(&plain_text_of(value)).to_owned(),
        OutputEscape::Flag => safe_flag_name(&plain_text_of(value)).to_owned(),
        OutputEscape::NamePart => text_if_allowed(&plain_text_of(value), |byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
        }),
    }
}

/// Returns the text of a value; safe HTML markup is converted to text.
pub(super) fn plain_text_of(value: &Value) -> Cow<'_, str> {
    match value.as_str() {
        Some(text) if value.is_safe() => Cow::Owned(decode_entities(text)),
        Some(text) => Cow::Borrowed(text),
        None => match value.kind() {
            ValueKind::Undefined | ValueKind::None => Cow::Borrowed(""),
            ValueKind::Bool => Cow::Borrowed(if value.is_true() { "true" } else { "false" }),
            _ => Cow::Owned(value.to_string()),
        },
    }
}

/// Formats text that begins no tag and ends no quote; entities of safe markup stay.
fn escape_raw_text(value: &Value) -> String {
    match value.as_str() {
        Some(text) if value.is_safe() => {
            let mut out = String::with_capacity(text.len());
            for character in text.chars() {
                match character {
                    '<' => out.push_str("&lt;"),
                    '>' => out.push_str("&gt;"),
                    '"' => out.push_str("&quot;"),
                    '\'' => out.push_str("&#39;"),
                    plain_character => out.push(plain_character),
                }
            }
            out
        }
        _ => escape_html(&plain_text_of(value)),
    }
}

/// Formats a URL, or the part after its prefix.
fn escape_url(text: &str, reach: UrlExtent, set: &'static AsciiSet) -> String {
    let text = match reach {
        UrlExtent::Whole => match parse_author_link(text) {
            AuthorLink::Blocked => return BLOCKED_LINK.to_owned(),
            AuthorLink::Path { .. } => Cow::Borrowed(text.trim()),
            AuthorLink::External(text) => Cow::Borrowed(text),
        },
        UrlExtent::SchemeOpen => {
            let end = text.find(['/', '?', '#', '\\']).unwrap_or(text.len());
            let (head, rest) = text.split_at(end);
            Cow::Owned(format!("{}{rest}", head.replace(':', "%3A")))
        }
        UrlExtent::SchemeSettled => Cow::Borrowed(text),
    };
    utf8_percent_encode(&text, set).to_string()
}

/// Formats the URL of code, or a name in it.
fn escape_code_url(text: &str, reach: UrlExtent) -> String {
    let text = text.trim();
    if reach == UrlExtent::Whole {
        let lower = text.to_ascii_lowercase();
        let hides = ["%2e", "%2f", "%5c", "\\"].iter().any(|hidden| lower.contains(hidden));
        let is_odd = hides || text.chars().any(char::is_control);
        let climbs = text.split(['/', '?', '#']).any(|name| matches!(name, "." | ".."));
        let is_code = text.starts_with(CODE_FOLDER) && !is_odd && !climbs;
        return if is_code {
            utf8_percent_encode(text, URL_ESCAPES).to_string()
        } else {
            BLOCKED_CODE_URL.to_owned()
        };
    }
    // Names that consist of dots refer to parent folders.
    if text.bytes().all(|byte| byte == b'.') {
        return String::new();
    }
    utf8_percent_encode(text, NAME_ESCAPES).to_string()
}

/// Formats a list of images with their sizes; each URL is checked.
fn escape_srcset(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.trim_start_matches([' ', ',', '\n', '\t', '\r']);
    while !rest.is_empty() {
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (address, after) = rest.split_at(end);
        let (size, after) = match address.strip_suffix(',') {
            Some(_) => ("", after),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        let address = escape_url(address.trim_end_matches(','), UrlExtent::Whole, URL_ESCAPES);
        let size =
            text_if_allowed(size.trim(), |byte| byte.is_ascii_alphanumeric() || byte == b'.');
        out.push(if size.is_empty() { address } else { format!("{address} {size}") });
        rest = after.trim_start_matches([' ', ',', '\n', '\t', '\r']);
    }
    out.join(", ")
}

/// Returns the text if all of its bytes are allowed; otherwise an empty one.
fn text_if_allowed(text: &str, is_allowed: impl Fn(u8) -> bool) -> String {
    if text.bytes().all(is_allowed) { text.to_owned() } else { String::new() }
}

/// Formats a value as a literal of JavaScript and of JSON.
fn to_script_literal(value: &Value) -> String {
    let mut out = String::new();
    write_script_value(&mut out, value, 0);
    out
}

fn write_script_value(out: &mut String, value: &Value, depth: usize) {
    if let Some(literal) = value.downcast_object_ref::<ScriptLiteral>() {
        out.push_str(&literal.0);
        return;
    }
    match value.kind() {
        _ if depth > MAX_VALUE_DEPTH => out.push_str("null"),
        ValueKind::Undefined | ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => {
            let text = value.to_string();
            let is_plain =
                text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
            // A blank prevents `x-{{ n }}` from becoming a decrement.
            out.push_str(if text.starts_with('-') { " " } else { "" });
            out.push_str(if is_plain { &text } else { "null" });
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter().into_iter().flatten();
            write_delimited_list(out, '[', items, ']', |out, item| {
                write_script_value(out, &item, depth + 1)
            });
        }
        ValueKind::Map => {
            let keys = value.try_iter().into_iter().flatten();
            write_delimited_list(out, '{', keys, '}', |out, key| {
                push_script_string(out, &plain_text_of(&key));
                out.push(':');
                write_script_value(out, &value.get_item(&key).unwrap_or_default(), depth + 1);
            });
        }
        _ => push_script_string(out, &plain_text_of(value)),
    }
}

fn write_delimited_list(
    out: &mut String,
    begin: char,
    items: impl Iterator<Item = Value>,
    end: char,
    mut write: impl FnMut(&mut String, Value),
) {
    out.push(begin);
    for (at, item) in items.enumerate() {
        if at > 0 {
            out.push(',');
        }
        write(out, item);
    }
    out.push(end);
}

fn push_script_string(out: &mut String, text: &str) {
    out.push('"');
    out.push_str(&escape_script_text(text));
    out.push('"');
}

/// Escapes a part of a string in a script; also valid in JSON, so only with `\u`.
fn escape_script_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        let is_inert = character.is_ascii_alphanumeric()
            || matches!(character, ' ' | '_' | '-' | '.' | ',')
            || (!character.is_ascii() && !matches!(character, '\u{2028}' | '\u{2029}' | '\u{85}'));
        if is_inert {
            out.push(character);
        } else {
            // All of these are in the basic multilingual plane. Writing to a string cannot fail.
            let _ = write!(out, "\\u{:04x}", u32::from(character));
        }
    }
    out
}

/// Escapes a value or a string of a style; `inert` are the unescaped marks.
fn escape_style(text: &str, inert: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii_alphanumeric() || !character.is_ascii() || inert.contains(character) {
            out.push(character);
        } else {
            let _ = write!(out, "\\{:x} ", u32::from(character));
        }
    }
    out
}

/// Returns the name of an element with ordinary markup; `div` for any other name.
fn safe_tag_name(text: &str) -> &str {
    const NAMES: [&str; 36] = [
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "p",
        "div",
        "span",
        "section",
        "article",
        "aside",
        "header",
        "footer",
        "nav",
        "main",
        "figure",
        "figcaption",
        "ul",
        "ol",
        "li",
        "dl",
        "dt",
        "dd",
        "blockquote",
        "strong",
        "em",
        "b",
        "i",
        "small",
        "td",
        "th",
        "tr",
        "label",
        "legend",
        "summary",
    ];
    let name = text.trim();
    if NAMES.contains(&name) { name } else { "div" }
}

/// Returns the level of a heading; 2 if it is invalid.
fn safe_heading_level(text: &str) -> &str {
    let level = text.trim();
    if matches!(level, "1" | "2" | "3" | "4" | "5" | "6") { level } else { "2" }
}

/// Returns the name of an attribute without a value; empty for any other name.
fn safe_flag_name(text: &str) -> &str {
    const FLAGS: [&str; 21] = [
        "allowfullscreen",
        "autofocus",
        "autoplay",
        "checked",
        "controls",
        "default",
        "defer",
        "disabled",
        "download",
        "formnovalidate",
        "hidden",
        "inert",
        "itemscope",
        "loop",
        "multiple",
        "muted",
        "novalidate",
        "open",
        "playsinline",
        "readonly",
        "selected",
    ];
    let name = text.trim();
    match name {
        "required" | "reversed" => name,
        name if FLAGS.contains(&name) => name,
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(position: OutputEscape, value: impl Into<Value>, expected: &str) {
        assert_eq!(write_escaped_value(position, &value.into()), expected);
    }

    #[test]
    fn what_is_left_as_it_is_would_be_written_so() {
        let texts = [
            "",
            "/",
            "//",
            "/a",
            "a",
            "//host/a",
            "/content/a-b_c.html",
            "/a b",
            "/a?b=c&d",
            "/ä",
            "javascript:x",
            "a &amp; b",
            "a < b",
            "'",
            "plain text: 100 %",
            "/a:b",
            ".html",
        ];
        for position in OutputEscape::ALL_FILTERED {
            for text in texts.into_iter().filter(|text| is_written_verbatim(position, text)) {
                for value in [Value::from(text), Value::from_safe_string(text.to_owned())] {
                    assert_eq!(write_escaped_value(position, &value), text, "{position:?}");
                }
            }
        }
        assert!(is_written_verbatim(OutputEscape::Url(UrlExtent::Whole), "/content/a-b_c.html"));
        assert!(is_written_verbatim(OutputEscape::Attribute, "plain text: 100 %"));
        assert!(!is_written_verbatim(OutputEscape::Url(UrlExtent::Whole), "//host/a"));
    }

    #[test]
    fn attributes_and_text_alone() {
        check(
            OutputEscape::Attribute,
            "a \"b\" <c> & 'd'",
            "a &quot;b&quot; &lt;c&gt; &amp; &#39;d&#39;",
        );
        check(
            OutputEscape::Attribute,
            Value::from_safe_string("<b title=\"x\">&amp;</b>".into()),
            "&lt;b title=&quot;x&quot;&gt;&amp;&lt;/b&gt;",
        );
        check(OutputEscape::Attribute, Value::UNDEFINED, "");
        check(OutputEscape::Attribute, true, "true");
        check(OutputEscape::RawText, "</title>", "&lt;/title&gt;");
    }

    #[test]
    fn urls_cannot_choose_a_scheme_that_runs() {
        let whole = OutputEscape::Url(UrlExtent::Whole);
        check(whole, "/a b?c=\"d\"&e", "/a%20b?c=%22d%22&amp;e");
        check(whole, "https://example.org/ä", "https://example.org/%C3%A4");
        check(whole, "javascript:alert(1)", "#");
        check(whole, " java\nscript:alert(1)", "#");
        check(whole, Value::from_safe_string("java&#115;cript:alert(1)".into()), "#");
        check(whole, "data:text/html,x", "#");
        check(OutputEscape::Url(UrlExtent::SchemeOpen), "script:alert(1)", "script%3Aalert(1)");
        check(OutputEscape::Url(UrlExtent::SchemeOpen), ".print.html?a:b", ".print.html?a:b");
        check(OutputEscape::Url(UrlExtent::SchemeSettled), "a:b/c", "a:b/c");
    }

    #[test]
    fn code_comes_from_libraries() {
        let whole = OutputEscape::CodeUrl(UrlExtent::Whole);
        check(whole, "/etc.clientlibs/a.js?x=1", "/etc.clientlibs/a.js?x=1");
        check(whole, "/etc.clientlibs/a%20b.js", "/etc.clientlibs/a%20b.js");
        for refused in [
            "//evil/x.js",
            "https://evil/x.js",
            "/content/dam/x.js",
            "/etc.clientlibs/../x.js",
            "/etc.clientlibs/%2e%2e/x",
            "data:,x",
        ] {
            check(whole, refused, BLOCKED_CODE_URL);
        }
        check(OutputEscape::CodeUrl(UrlExtent::SchemeSettled), "a/../b:c", "a%2F..%2Fb%3Ac");
        check(OutputEscape::CodeUrl(UrlExtent::SchemeSettled), "..", "");
    }

    #[test]
    fn lists_of_pictures() {
        check(OutputEscape::Srcset, "/a 1x, /b 2x", "/a 1x, /b 2x");
        check(OutputEscape::Srcset, "/a, javascript:x 2x", "/a, # 2x");
        check(OutputEscape::Srcset, "/a,b \" onerror=x", "/a,b");
        check(OutputEscape::SrcsetUrl(UrlExtent::SchemeSettled), "a, b", "a%2C%20b");
        check(OutputEscape::SrcsetSize, "640", "640");
        check(OutputEscape::SrcsetSize, "1x, /b", "");
    }

    #[test]
    fn scripts() {
        check(
            OutputEscape::Script,
            "a</script>\"'",
            "\"a\\u003c\\u002fscript\\u003e\\u0022\\u0027\"",
        );
        check(OutputEscape::Script, -1, " -1");
        check(OutputEscape::Script, 1.5, "1.5");
        check(OutputEscape::Script, f64::NAN, "null");
        check(OutputEscape::Script, Value::UNDEFINED, "null");
        check(OutputEscape::Script, vec!["a", "b\u{2028}"], "[\"a\",\"b\\u2028\"]");
        check(OutputEscape::Script, Value::from_pairs([("a b", 1)]), "{\"a b\":1}");
        check(OutputEscape::Script, Value::from_object(ScriptLiteral("[1]".into())), "[1]");
        check(OutputEscape::ScriptText, "${a}`\n", "\\u0024\\u007ba\\u007d\\u0060\\u000a");
    }

    #[test]
    fn styles() {
        check(OutputEscape::Style, "#ff0000", "#ff0000");
        check(OutputEscape::Style, "1.5em, sans-serif", "1.5em, sans-serif");
        check(OutputEscape::Style, "red;x:url(y)", "red\\3b x\\3a url\\28 y\\29 ");
        check(OutputEscape::StyleText, "a'b", "a\\27 b");
        check(OutputEscape::StyleUrl(UrlExtent::Whole), "/a'b)?c&d", "/a%27b%29?c\\26 d");
        check(OutputEscape::StyleUrl(UrlExtent::Whole), "javascript:x", "#");
    }

    #[test]
    fn names() {
        check(OutputEscape::TagName, "section", "section");
        check(OutputEscape::TagName, "script", "div");
        check(OutputEscape::HeadingLevel, 3, "3");
        check(OutputEscape::HeadingLevel, "3 onclick=x", "2");
        check(OutputEscape::Flag, "checked", "checked");
        check(OutputEscape::Flag, "onclick=x", "");
        check(OutputEscape::NamePart, "a-b", "a-b");
        check(OutputEscape::NamePart, "x onclick=y", "");
    }
}
