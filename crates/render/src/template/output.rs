//! What outputs write at each position: text that stays what it is, whatever an author typed.
//!
//! In: a value and an [`Escape`], as filters that `position` puts around outputs. Out: a safe string.
//!
//! Invariants
//! * Nothing written here ends the attribute, element, text or URL part that it stands in.
//! * A URL never begins with a scheme that runs code. Code comes from client libraries, or from the host and folder that
//!   the template names.
//! * In scripts and styles all but letters, digits and a few harmless marks is escaped, so that a position that was
//!   guessed wrong costs a script that does not parse, no more.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr, ValueKind};
use minijinja::{AutoEscape, Environment, State, Value};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};

use super::escape::{escape, has_special};
use super::filter::decode_entities;
use super::position::{Escape, Reach};
use crate::link::{BLOCKED, Target, read};

/// What stands for the address of code that may not run.
const NO_CODE: &str = "about:invalid";

/// Where authors cannot put code.
const CODE_FOLDER: &str = "/etc.clientlibs/";

/// What no URL can hold as it is.
const URL: &AsciiSet = &CONTROLS
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

/// What ends a URL in a style.
const STYLE_URL: &AsciiSet = &URL.add(b'\'').add(b'(').add(b')');

/// What ends a URL in a list of pictures.
const PICTURE: &AsciiSet = &URL.add(b',');

/// What can change where a URL leads.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Values nested deeper than this become `null` in scripts.
const DEEPEST_VALUE: usize = 32;

/// Adds the filters of all positions.
pub(super) fn add_all(environment: &mut Environment<'_>) {
    for one in Escape::ALL {
        environment.add_filter(one.filter(), move |state: &State<'_, '_>, value: &Value| {
            // Most of what is put out needs nothing, here or where it is written as HTML.
            let is_html = matches!(state.auto_escape(), AutoEscape::Html);
            let is_written = is_html && value.as_str().is_some_and(|text| is_written(one, text));
            if is_written { value.clone() } else { Value::from_safe_string(write(one, value)) }
        });
    }
    environment.add_filter("tojson", |value: &Value| Value::from_object(Literal(script(value))));
}

/// A value as a script writes it, from the filter `tojson`.
#[derive(Debug)]
pub(super) struct Literal(String);

impl Object for Literal {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Tells whether a text is written at a position as it is, as text and as safe markup alike; `false` in doubt.
fn is_written(position: Escape, text: &str) -> bool {
    match position {
        Escape::Text | Escape::TextAlone | Escape::Attribute => !has_special(text),
        Escape::Url(Reach::Whole) => {
            text.starts_with('/') && !text.starts_with("//") && text.bytes().all(is_plain_in_url)
        }
        Escape::Url(Reach::Rest) => text.bytes().all(is_plain_in_url),
        _ => false,
    }
}

/// Tells whether a byte means nothing but itself in a path, and is escaped nowhere.
fn is_plain_in_url(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'.' | b'_')
}

/// Writes a value at a position.
fn write(position: Escape, value: &Value) -> String {
    match position {
        Escape::Text | Escape::TextAlone | Escape::Attribute => text_alone(value),
        Escape::Url(reach) => escape(&url(&plain(value), reach, URL)),
        Escape::CodeUrl(reach) => escape(&code_url(&plain(value), reach)),
        Escape::Pictures => escape(&pictures(&plain(value))),
        Escape::Picture(reach) => escape(&url(&plain(value), reach, PICTURE)),
        Escape::Size => only(&plain(value), |byte| byte.is_ascii_alphanumeric() || byte == b'.'),
        Escape::Script => script(value),
        Escape::ScriptText => script_text(&plain(value)),
        Escape::Style => style(&plain(value), " .,%#_+-"),
        Escape::StyleText => style(&plain(value), " "),
        Escape::StyleUrl(reach) => url(&plain(value), reach, STYLE_URL).replace('&', "\\26 "),
        Escape::TagName => tag_name(&plain(value)).to_owned(),
        Escape::HeadingLevel => heading_level(&plain(value)).to_owned(),
        Escape::Flag => flag(&plain(value)).to_owned(),
        Escape::NamePart => only(&plain(value), |byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
        }),
    }
}

/// Returns the text of a value; markup that is safe as HTML is read as text.
pub(super) fn plain(value: &Value) -> Cow<'_, str> {
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

/// Writes text in which no tag begins and no quote ends; entities of safe markup stay.
fn text_alone(value: &Value) -> String {
    match value.as_str() {
        Some(text) if value.is_safe() => {
            let mut out = String::with_capacity(text.len());
            for character in text.chars() {
                match character {
                    '<' => out.push_str("&lt;"),
                    '>' => out.push_str("&gt;"),
                    '"' => out.push_str("&quot;"),
                    '\'' => out.push_str("&#39;"),
                    other => out.push(other),
                }
            }
            out
        }
        _ => escape(&plain(value)),
    }
}

/// Writes a URL, or what follows its begin.
fn url(text: &str, reach: Reach, set: &'static AsciiSet) -> String {
    let text = match reach {
        Reach::Whole => match read(text) {
            Target::Blocked => return BLOCKED.to_owned(),
            Target::Path { .. } => Cow::Borrowed(text.trim()),
            Target::Other(text) => Cow::Borrowed(text),
        },
        Reach::Open => {
            let end = text.find(['/', '?', '#', '\\']).unwrap_or(text.len());
            let (head, rest) = text.split_at(end);
            Cow::Owned(format!("{}{rest}", head.replace(':', "%3A")))
        }
        Reach::Rest => Cow::Borrowed(text),
    };
    utf8_percent_encode(&text, set).to_string()
}

/// Writes the URL of code, or a name in it.
fn code_url(text: &str, reach: Reach) -> String {
    let text = text.trim();
    if reach == Reach::Whole {
        let lower = text.to_ascii_lowercase();
        let hides = ["%2e", "%2f", "%5c", "\\"].iter().any(|hidden| lower.contains(hidden));
        let is_odd = hides || text.chars().any(char::is_control);
        let climbs = text.split(['/', '?', '#']).any(|name| matches!(name, "." | ".."));
        let is_code = text.starts_with(CODE_FOLDER) && !is_odd && !climbs;
        return if is_code {
            utf8_percent_encode(text, URL).to_string()
        } else {
            NO_CODE.to_owned()
        };
    }
    // Names of dots alone climb.
    if text.bytes().all(|byte| byte == b'.') {
        return String::new();
    }
    utf8_percent_encode(text, NAME).to_string()
}

/// Writes a list of pictures with their sizes, each with its URL checked.
fn pictures(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.trim_start_matches([' ', ',', '\n', '\t', '\r']);
    while !rest.is_empty() {
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (address, after) = rest.split_at(end);
        let (size, after) = match address.strip_suffix(',') {
            Some(_) => ("", after),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        let address = url(address.trim_end_matches(','), Reach::Whole, URL);
        let size = only(size.trim(), |byte| byte.is_ascii_alphanumeric() || byte == b'.');
        out.push(if size.is_empty() { address } else { format!("{address} {size}") });
        rest = after.trim_start_matches([' ', ',', '\n', '\t', '\r']);
    }
    out.join(", ")
}

/// Returns the text if all of its bytes are allowed, else nothing.
fn only(text: &str, is_allowed: impl Fn(u8) -> bool) -> String {
    if text.bytes().all(is_allowed) { text.to_owned() } else { String::new() }
}

/// Writes a value as a literal of JavaScript and of JSON.
pub(super) fn script(value: &Value) -> String {
    let mut out = String::new();
    write_script(&mut out, value, 0);
    out
}

fn write_script(out: &mut String, value: &Value, depth: usize) {
    if let Some(literal) = value.downcast_object_ref::<Literal>() {
        out.push_str(&literal.0);
        return;
    }
    match value.kind() {
        _ if depth > DEEPEST_VALUE => out.push_str("null"),
        ValueKind::Undefined | ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => {
            let text = value.to_string();
            let is_plain =
                text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
            // A blank keeps `x-{{ n }}` from becoming a decrement.
            out.push_str(if text.starts_with('-') { " " } else { "" });
            out.push_str(if is_plain { &text } else { "null" });
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter().into_iter().flatten();
            write_list(out, '[', items, ']', |out, item| write_script(out, &item, depth + 1));
        }
        ValueKind::Map => {
            let keys = value.try_iter().into_iter().flatten();
            write_list(out, '{', keys, '}', |out, key| {
                push_text(out, &plain(&key));
                out.push(':');
                write_script(out, &value.get_item(&key).unwrap_or_default(), depth + 1);
            });
        }
        _ => push_text(out, &plain(value)),
    }
}

fn write_list(
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

fn push_text(out: &mut String, text: &str) {
    out.push('"');
    out.push_str(&script_text(text));
    out.push('"');
}

/// Writes a part of a text in a script; in JSON too, so only with `\u`.
fn script_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        let is_inert = character.is_ascii_alphanumeric()
            || matches!(character, ' ' | '_' | '-' | '.' | ',')
            || (!character.is_ascii() && !matches!(character, '\u{2028}' | '\u{2029}' | '\u{85}'));
        if is_inert {
            out.push(character);
        } else {
            // All of these are in the first plane. Writing into a string cannot fail.
            let _ = write!(out, "\\u{:04x}", u32::from(character));
        }
    }
    out
}

/// Writes a value or a text of a style; `inert` are the marks that stay.
fn style(text: &str, inert: &str) -> String {
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

/// Returns the name of an element that holds ordinary markup; `div` for all others.
fn tag_name(text: &str) -> &str {
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

/// Returns the level of a heading; 2 for all that is none.
fn heading_level(text: &str) -> &str {
    let level = text.trim();
    if matches!(level, "1" | "2" | "3" | "4" | "5" | "6") { level } else { "2" }
}

/// Returns the name of an attribute without a value; nothing for all others.
fn flag(text: &str) -> &str {
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
    fn check(position: Escape, value: impl Into<Value>, expected: &str) {
        assert_eq!(write(position, &value.into()), expected);
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
        for position in Escape::ALL {
            for text in texts.into_iter().filter(|text| is_written(position, text)) {
                for value in [Value::from(text), Value::from_safe_string(text.to_owned())] {
                    assert_eq!(write(position, &value), text, "{position:?}");
                }
            }
        }
        assert!(is_written(Escape::Url(Reach::Whole), "/content/a-b_c.html"));
        assert!(is_written(Escape::Attribute, "plain text: 100 %"));
        assert!(!is_written(Escape::Url(Reach::Whole), "//host/a"));
    }

    #[test]
    fn attributes_and_text_alone() {
        check(
            Escape::Attribute,
            "a \"b\" <c> & 'd'",
            "a &quot;b&quot; &lt;c&gt; &amp; &#39;d&#39;",
        );
        check(
            Escape::Attribute,
            Value::from_safe_string("<b title=\"x\">&amp;</b>".into()),
            "&lt;b title=&quot;x&quot;&gt;&amp;&lt;/b&gt;",
        );
        check(Escape::Attribute, Value::UNDEFINED, "");
        check(Escape::Attribute, true, "true");
        check(Escape::TextAlone, "</title>", "&lt;/title&gt;");
    }

    #[test]
    fn urls_cannot_choose_a_scheme_that_runs() {
        let whole = Escape::Url(Reach::Whole);
        check(whole, "/a b?c=\"d\"&e", "/a%20b?c=%22d%22&amp;e");
        check(whole, "https://example.org/ä", "https://example.org/%C3%A4");
        check(whole, "javascript:alert(1)", "#");
        check(whole, " java\nscript:alert(1)", "#");
        check(whole, Value::from_safe_string("java&#115;cript:alert(1)".into()), "#");
        check(whole, "data:text/html,x", "#");
        check(Escape::Url(Reach::Open), "script:alert(1)", "script%3Aalert(1)");
        check(Escape::Url(Reach::Open), ".print.html?a:b", ".print.html?a:b");
        check(Escape::Url(Reach::Rest), "a:b/c", "a:b/c");
    }

    #[test]
    fn code_comes_from_libraries() {
        let whole = Escape::CodeUrl(Reach::Whole);
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
            check(whole, refused, NO_CODE);
        }
        check(Escape::CodeUrl(Reach::Rest), "a/../b:c", "a%2F..%2Fb%3Ac");
        check(Escape::CodeUrl(Reach::Rest), "..", "");
    }

    #[test]
    fn lists_of_pictures() {
        check(Escape::Pictures, "/a 1x, /b 2x", "/a 1x, /b 2x");
        check(Escape::Pictures, "/a, javascript:x 2x", "/a, # 2x");
        check(Escape::Pictures, "/a,b \" onerror=x", "/a,b");
        check(Escape::Picture(Reach::Rest), "a, b", "a%2C%20b");
        check(Escape::Size, "640", "640");
        check(Escape::Size, "1x, /b", "");
    }

    #[test]
    fn scripts() {
        check(Escape::Script, "a</script>\"'", "\"a\\u003c\\u002fscript\\u003e\\u0022\\u0027\"");
        check(Escape::Script, -1, " -1");
        check(Escape::Script, 1.5, "1.5");
        check(Escape::Script, f64::NAN, "null");
        check(Escape::Script, Value::UNDEFINED, "null");
        check(Escape::Script, vec!["a", "b\u{2028}"], "[\"a\",\"b\\u2028\"]");
        check(Escape::Script, Value::from_pairs([("a b", 1)]), "{\"a b\":1}");
        check(Escape::Script, Value::from_object(Literal("[1]".into())), "[1]");
        check(Escape::ScriptText, "${a}`\n", "\\u0024\\u007ba\\u007d\\u0060\\u000a");
    }

    #[test]
    fn styles() {
        check(Escape::Style, "#ff0000", "#ff0000");
        check(Escape::Style, "1.5em, sans-serif", "1.5em, sans-serif");
        check(Escape::Style, "red;x:url(y)", "red\\3b x\\3a url\\28 y\\29 ");
        check(Escape::StyleText, "a'b", "a\\27 b");
        check(Escape::StyleUrl(Reach::Whole), "/a'b)?c&d", "/a%27b%29?c\\26 d");
        check(Escape::StyleUrl(Reach::Whole), "javascript:x", "#");
    }

    #[test]
    fn names() {
        check(Escape::TagName, "section", "section");
        check(Escape::TagName, "script", "div");
        check(Escape::HeadingLevel, 3, "3");
        check(Escape::HeadingLevel, "3 onclick=x", "2");
        check(Escape::Flag, "checked", "checked");
        check(Escape::Flag, "onclick=x", "");
        check(Escape::NamePart, "a-b", "a-b");
        check(Escape::NamePart, "x onclick=y", "");
    }
}
