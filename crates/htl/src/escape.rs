//! Display contexts: how a value is written at a position so that it cannot leave it.
//!
//! The rules are those of Sling's protection API, which encodes with the rules of OWASP's encoder, with the exceptions
//! in `docs/compat/htl.md`.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Write;
use std::sync::LazyLock;

use ammonia::Builder;
use regex::Regex;
use tympan_notation::has_harmless_scheme;

use crate::java_double::write_java_double;

/// The context in which a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DisplayContext {
    Html,
    Text,
    ElementName,
    AttributeName,
    Attribute,
    Uri,
    ScriptToken,
    ScriptString,
    ScriptComment,
    ScriptRegExp,
    StyleToken,
    StyleString,
    StyleComment,
    Comment,
    Number,
    Unsafe,
}

impl DisplayContext {
    /// Finds a context by its name.
    pub(crate) fn find(name: &str) -> Option<Self> {
        Some(match name {
            "html" => Self::Html,
            "text" => Self::Text,
            "elementName" => Self::ElementName,
            "attributeName" => Self::AttributeName,
            "attribute" => Self::Attribute,
            "uri" => Self::Uri,
            "scriptToken" => Self::ScriptToken,
            "scriptString" => Self::ScriptString,
            "scriptComment" => Self::ScriptComment,
            "scriptRegExp" => Self::ScriptRegExp,
            "styleToken" => Self::StyleToken,
            "styleString" => Self::StyleString,
            "styleComment" => Self::StyleComment,
            "comment" => Self::Comment,
            "number" => Self::Number,
            "unsafe" => Self::Unsafe,
            _ => return None,
        })
    }

    /// Returns the context of an attribute's value.
    pub(crate) fn of_attribute(name: &str) -> Self {
        const ADDRESSES: [&str; 8] =
            ["action", "cite", "data", "formaction", "href", "manifest", "poster", "src"];
        if ADDRESSES.iter().any(|address| address.eq_ignore_ascii_case(name)) {
            Self::Uri
        } else {
            Self::Attribute
        }
    }

    /// Returns a text as it is written in the context.
    pub(crate) fn apply<'a>(self, text: &'a str) -> Cow<'a, str> {
        match self {
            Self::Unsafe => Cow::Borrowed(text),
            Self::Text | Self::Comment => encode_markup(text, true),
            Self::Attribute => encode_markup(text, false),
            Self::Html => filter_html(text),
            Self::Uri => valid_uri(text),
            Self::Number => valid_number(text).into(),
            Self::ElementName => keep_if(text.trim(), is_allowed_element),
            Self::AttributeName => keep_if(text.trim(), |name| {
                is_attribute_name(name) && !is_sensitive_attribute(name)
            }),
            Self::ScriptToken => script_token(text),
            Self::ScriptString => encode_script(text, false),
            Self::ScriptRegExp => encode_script(text, true),
            Self::ScriptComment | Self::StyleComment => {
                keep_if(text, |comment| !comment.contains("*/") && !comment.contains("</"))
            }
            Self::StyleToken => keep_if(text, is_style_token),
            Self::StyleString => encode_style(text),
        }
    }
}

fn keep_if(text: &str, is_valid: impl FnOnce(&str) -> bool) -> Cow<'_, str> {
    Cow::Borrowed(if is_valid(text) { text } else { "" })
}

/// Replaces the characters for which `escape` has a text.
fn encode(text: &str, escape: impl Fn(char, &mut String) -> bool) -> Cow<'_, str> {
    let mut buffer = String::new();
    for (at, next) in text.char_indices() {
        if escape(next, &mut buffer) {
            // The first escape: what stands in front of it is copied, then it is written again behind that.
            buffer.clear();
            buffer.reserve(text.len() + 16);
            buffer.push_str(text.get(..at).unwrap_or_default());
            for next in text.get(at..).unwrap_or_default().chars() {
                if !escape(next, &mut buffer) {
                    buffer.push(next);
                }
            }
            return Cow::Owned(buffer);
        }
    }
    Cow::Borrowed(text)
}

/// Returns true for control characters and noncharacters, which have no place in HTML.
fn is_invalid_in_markup(next: char) -> bool {
    matches!(next,
        '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\x7f'..='\u{84}' | '\u{86}'..='\u{9f}'
        | '\u{fdd0}'..='\u{fdef}')
        || (next as u32) & 0xfffe == 0xfffe
}

/// Escapes text; in attribute values `>` needs none.
fn encode_markup(text: &str, is_content: bool) -> Cow<'_, str> {
    let needs_none = |byte: &u8| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b' ' | b'!' | b'#'..=b'%' | b'('..=b'/' | b':' | b';' | b'=' | b'?'..=b'@' | b'['..=b'~')
    };
    if text.as_bytes().iter().all(needs_none) {
        return Cow::Borrowed(text);
    }
    encode(text, |next, out| {
        out.push_str(match next {
            '&' => "&amp;",
            '<' => "&lt;",
            '>' if is_content => "&gt;",
            '"' => "&#34;",
            '\'' => "&#39;",
            _ if is_invalid_in_markup(next) => " ",
            _ => return false,
        });
        true
    })
}

/// Escapes a text within a string of a script, or within a regular expression.
fn encode_script(text: &str, is_pattern: bool) -> Cow<'_, str> {
    encode(text, |next, out| {
        match next {
            '\x08' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\x0c' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            '"' => out.push_str("\\x22"),
            '\'' => out.push_str("\\x27"),
            '&' => out.push_str("\\x26"),
            '/' => out.push_str("\\/"),
            '\\' => out.push_str("\\\\"),
            '-' => out.push_str("\\u002D"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            '^' | '$' | '.' | '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|'
                if is_pattern =>
            {
                out.push('\\');
                out.push(next);
            }
            '<' | '>' if is_pattern => write!(out, "\\x{:x}", next as u32).unwrap_or_default(),
            '\0'..='\x1f' => write!(out, "\\x{:02x}", next as u32).unwrap_or_default(),
            _ => return false,
        }
        true
    })
}

/// Escapes a text within a string of a style sheet.
fn encode_style(text: &str) -> Cow<'_, str> {
    let is_special = |next: char| {
        matches!(
            next,
            '\0'..='\x1f'
                | '"'
                | '\''
                | '\\'
                | '<'
                | '>'
                | '&'
                | '/'
                | '\x7f'
                | '\u{2028}'
                | '\u{2029}'
        )
    };
    let Some(first) = text.find(is_special) else {
        return Cow::Borrowed(text);
    };
    let (plain, rest) = text.split_at(first);
    let mut out = plain.to_owned();
    let mut chars = rest.chars().peekable();
    while let Some(next) = chars.next() {
        if !is_special(next) {
            out.push(next);
            continue;
        }
        // Style sheets have no escape for U+0000.
        let code = if next == '\0' { 0xfffd } else { next as u32 };
        write!(out, "\\{code:x}").unwrap_or_default();
        // A space ends the escape where the next character would belong to it.
        if chars
            .peek()
            .is_some_and(|after| after.is_ascii_hexdigit() || after.is_ascii_whitespace())
        {
            out.push(' ');
        }
    }
    Cow::Owned(out)
}

/// Returns identifiers, numbers and quoted texts; anything else is empty.
fn script_token(text: &str) -> Cow<'_, str> {
    let token = text.trim();
    if let Some(quote @ ('"' | '\'')) = token.chars().next() {
        let literal = token.get(1..).and_then(|rest| rest.strip_suffix(quote));
        return match literal {
            Some(literal) => format!("{quote}{}{quote}", encode_script(literal, false)).into(),
            None => Cow::Borrowed(""),
        };
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'.');
    keep_if(token, |token| token.bytes().all(is_name) && !token.starts_with('.'))
}

/// A number, dimension, color, identifier, or a function of these, as style sheets have it.
static STYLE_TOKEN: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let number = r"[+-]?[0-9]*\.?[0-9]*(?:e[+-]?[0-9]+)?";
    let identifier = r"-?[a-z_][a-z0-9_-]*";
    let function = format!(r"{identifier}\((?:{number}%?|{identifier}|#[0-9a-f]*|\s|,)*\)");
    Regex::new(&format!(
        "(?i)^(?:{number}|{number}(?:%|{identifier})|#[0-9a-f]*|{identifier}|{function})$"
    ))
    .ok()
});

fn is_style_token(token: &str) -> bool {
    if token.is_empty() || token.contains('\n') {
        return false;
    }
    let quoted = |text: &str, quote: char| {
        let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
        let is_plain = !inner.contains([quote, '\\', '^', '<']);
        Some(is_plain && !inner.to_ascii_lowercase().replace(' ', "").contains("javascript:"))
    };
    if let Some(is_valid) = quoted(token, '"').or_else(|| quoted(token, '\'')) {
        return is_valid;
    }
    let lower = token.to_ascii_lowercase();
    if let Some(address) = lower.strip_prefix("url(").and_then(|rest| rest.strip_suffix(')')) {
        let address = address.trim();
        let quote = if address.starts_with('\'') { '\'' } else { '"' };
        let inner = address.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
        let inner = inner.unwrap_or(address);
        let is_plain = !inner.contains(['"', '\'', '(', ')', '\\', '<', ';']);
        return is_plain && (inner.is_empty() || !valid_uri(inner).is_empty());
    }
    // Calculations and colors; `expression` runs scripts in old browsers.
    !lower.contains("expression")
        && STYLE_TOKEN.as_ref().is_some_and(|pattern| pattern.is_match(token))
}

/// Returns a number as Java writes it, or zero.
fn valid_number(text: &str) -> String {
    if text.contains(['.', 'e', 'E']) {
        let mut number = String::new();
        match text.trim().parse::<f64>() {
            Ok(value) if value.is_finite() => write_java_double(value, &mut number),
            _ => number.push('0'),
        }
        return number;
    }
    text.parse::<i64>().unwrap_or(0).to_string()
}

/// Returns an address with its dangerous characters encoded, or nothing if its scheme is not a known harmless one.
fn valid_uri(text: &str) -> Cow<'_, str> {
    if text.contains(|next: char| next.is_control()) || !has_harmless_scheme(text) {
        return Cow::Borrowed("");
    }
    encode(text, |next, out| {
        out.push_str(match next {
            '"' => "%22",
            '\'' => "%27",
            '>' => "%3E",
            '<' => "%3C",
            '`' => "%60",
            ' ' => "%20",
            _ => return false,
        });
        true
    })
}

fn is_attribute_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || matches!(first, b'_' | b':'))
        && bytes
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b':' | b'.'))
}

/// Returns true for attributes whose values no context protects: `style` and event handlers.
pub(crate) fn is_sensitive_attribute(name: &str) -> bool {
    name.eq_ignore_ascii_case("style")
        || name.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("on"))
}

/// Elements that a computed name may have.
const ALLOWED_ELEMENTS: &[&str] = &[
    "section",
    "nav",
    "article",
    "aside",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "header",
    "footer",
    "address",
    "main",
    "p",
    "pre",
    "blockquote",
    "ul",
    "ol",
    "li",
    "dl",
    "dt",
    "dd",
    "figure",
    "figcaption",
    "div",
    "a",
    "em",
    "strong",
    "small",
    "s",
    "cite",
    "q",
    "dfn",
    "abbr",
    "data",
    "time",
    "code",
    "var",
    "samp",
    "kbd",
    "sub",
    "sup",
    "i",
    "b",
    "u",
    "mark",
    "ruby",
    "rt",
    "rp",
    "bdi",
    "bdo",
    "span",
    "br",
    "wbr",
    "ins",
    "del",
    "table",
    "caption",
    "colgroup",
    "col",
    "tbody",
    "thead",
    "tfoot",
    "tr",
    "td",
    "th",
];

fn is_allowed_element(name: &str) -> bool {
    ALLOWED_ELEMENTS.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
}

/// The policy of the context `html`: ammonia's, with what rich text of authors has besides.
static HTML_POLICY: LazyLock<Builder<'static>> = LazyLock::new(|| {
    let mut policy = Builder::default();
    policy
        .add_tags(["section", "main", "font", "label", "picture", "source"])
        .add_generic_attributes(["class", "id", "title", "lang", "dir", "role", "align", "valign"])
        .add_generic_attribute_prefixes(["aria-", "data-"])
        .add_tag_attributes("a", ["target", "name", "rel"])
        .add_tag_attributes("img", ["srcset", "sizes", "loading", "border"])
        .add_tag_attributes("source", ["srcset", "media", "type", "sizes"])
        .add_tag_attributes("font", ["color", "face", "size"])
        .add_tag_attributes("table", ["border", "cellpadding", "cellspacing", "width", "summary"])
        .add_tag_attributes("td", ["width", "height", "nowrap", "bgcolor"])
        .add_tag_attributes("th", ["width", "height", "nowrap", "bgcolor"])
        .link_rel(None)
        .url_schemes(HashSet::from(["http", "https", "ftp", "mailto", "tel", "sms"]));
    policy
});

fn filter_html(text: &str) -> Cow<'_, str> {
    if text.contains(['<', '>', '&']) {
        HTML_POLICY.clean(text).to_string().into()
    } else {
        Cow::Borrowed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(context: &str, text: &str, expected: &str) {
        let context = DisplayContext::find(context).unwrap();
        assert_eq!(context.apply(text), expected, "{context:?} {text}");
    }

    #[test]
    fn encodes_markup() {
        check(
            "text",
            "<a href=\"x\">'&amp;'</a>",
            "&lt;a href=&#34;x&#34;&gt;&#39;&amp;amp;&#39;&lt;/a&gt;",
        );
        check("text", "plain", "plain");
        check("text", "ä\u{1}\u{fffe}\n", "ä  \n");
        check("attribute", "a>b\"'<&", "a>b&#34;&#39;&lt;&amp;");
        check("comment", "--><b>", "--&gt;&lt;b&gt;");
        check("unsafe", "<b>", "<b>");
    }

    #[test]
    fn encodes_scripts() {
        check("scriptString", "'\"</script>\n-\\", "\\x27\\x22<\\/script>\\n\\u002D\\\\");
        check("scriptToken", " my.name$1 ", "my.name$1");
        check("scriptToken", "'it's'", "'it\\x27s'");
        check("scriptToken", "'", "");
        check("scriptToken", "a()", "");
        check("scriptToken", "12.5", "12.5");
        check("scriptComment", "a */ b", "");
        check("scriptComment", "a </script>", "");
        check("scriptComment", "a * / b", "a * / b");
        check("scriptRegExp", "a.b/c<", "a\\.b\\/c\\x3c");
    }

    #[test]
    fn encodes_styles() {
        check("styleString", "a\"b\n</style>", "a\\22 b\\a\\3c\\2fstyle\\3e");
        for token in [
            "red",
            "-moz-x",
            "#ff00aa",
            "12px",
            "50%",
            "1.5em",
            "'a b'",
            "rgb(1, 2, 3)",
            "url(/a/b.png)",
            "url('x.png')",
        ] {
            check("styleToken", token, token);
        }
        for token in [
            "red;",
            "a b",
            "expression(alert)",
            "url(javascript:alert)",
            "'a",
            "x:y",
            "'javascript :x'",
            "</style>",
        ] {
            check("styleToken", token, "");
        }
    }

    #[test]
    fn keeps_harmless_addresses() {
        for address in [
            "/a/b.html?x=1&y=2#z",
            "a:b@c".trim_start_matches("a:"),
            "#a:b",
            "?a:b",
            "http://a:80/",
            "MAILTO:a@b",
            "tel:+1",
            "//host/a",
            "../x",
            "",
        ] {
            check("uri", address, address);
        }
        check("uri", "/a b\"<>'`", "/a%20b%22%3C%3E%27%60");
        for address in [
            "javascript:alert(1)",
            " javascript:x",
            "java\nscript:x",
            "data:text/html,x",
            "vbscript:x",
            "javascript&colon;x",
            "javascript&#58;x",
            "&#106;avascript:x",
            "JavaScript:x",
        ] {
            check("uri", address, "");
        }
    }

    #[test]
    fn checks_names_and_numbers() {
        check("elementName", " H1 ", "H1");
        check("elementName", "script", "");
        check("attributeName", "data-x", "data-x");
        for name in ["onclick", "STYLE", "a b", "1a", "a=b", ""] {
            check("attributeName", name, "");
        }
        check("number", "15", "15");
        check("number", "1.50", "1.5");
        check("number", "1e3", "1000.0");
        check("number", "x", "0");
        check("number", "0x10", "0");
    }

    #[test]
    fn filters_html() {
        check(
            "html",
            "<p class=\"a\">b<script>x</script><i onclick=y>z</i></p>",
            "<p class=\"a\">b<i>z</i></p>",
        );
        check("html", "<a href=\"javascript:x\">y</a>", "<a>y</a>");
        check("html", "plain 'text'", "plain 'text'");
    }
}
