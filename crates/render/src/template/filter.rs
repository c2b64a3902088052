//! The template filters beside MiniJinja's own.

use std::fmt::Write;
use std::sync::{Arc, LazyLock};

use ammonia::Builder;
use minijinja::{Environment, Value};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tympan_notation::escape_html;

use super::markup_text::strip_markup;
use super::output_filter::plain_text_of;

/// Adds all filters to an environment.
pub(super) fn add_filters(environment: &mut Environment<'_>) {
    environment.add_filter("richtext", sanitize_rich_text);
    // Author input is never safe without a check.
    environment.add_filter("safe", |value: &Value| {
        if value.is_safe() { value.clone() } else { sanitize_rich_text(value) }
    });
    environment.add_filter("split", split_text);
    environment.add_filter("lines", split_lines);
    environment.add_filter("replace", replace_text);
    environment.add_filter("excerpt", text_excerpt);
    environment.add_filter("urlencode", urlencode);
    environment.add_filter("escape", |value: &Value| escape_filter(value));
    environment.add_filter("e", |value: &Value| escape_filter(value));
}

/// The allowed elements of rich text: ammonia's default list with classes for styles and targets for links.
static RICH_TEXT_SANITIZER: LazyLock<Builder<'static>> = LazyLock::new(|| {
    let mut builder = Builder::default();
    builder
        .link_rel(Some("noopener noreferrer"))
        .add_generic_attributes(["class", "id"])
        .add_tag_attributes("a", ["target"])
        .add_tag_attributes("img", ["loading", "srcset", "sizes"]);
    builder
});

/// `richtext`: retains the markup of rich text and removes all active content.
fn sanitize_rich_text(value: &Value) -> Value {
    let Some(text) = value.as_str() else {
        return Value::from_safe_string(String::new());
    };
    if !text.contains(['<', '&']) {
        return Value::from_safe_string(escape_html(text));
    }
    Value::from_safe_string(RICH_TEXT_SANITIZER.clean(text).to_string())
}

/// `split`: like MiniJinja's, but pieces of markup become unsafe text: a piece may end within a tag.
fn split_text(
    value: &Value,
    separator: Option<Arc<str>>,
    most: Option<i64>,
) -> Result<Value, minijinja::Error> {
    minijinja::filters::split(&Value::from(plain_text_of(value).into_owned()), separator, most)
}

/// `lines`: like MiniJinja's, but pieces of markup become unsafe text.
fn split_lines(value: &Value) -> Result<Value, minijinja::Error> {
    minijinja::filters::lines(&Value::from(plain_text_of(value).into_owned()))
}

/// `replace(from, to)`: replaces in the text; a replacement in markup may change its meaning, so the result is unsafe
/// text.
fn replace_text(value: &Value, from: &Value, to: &Value) -> String {
    plain_text_of(value).replace(&*plain_text_of(from), &plain_text_of(to))
}

/// `excerpt(n)`: the text without markup, truncated at a word boundary to at most `n` characters.
fn text_excerpt(value: &Value, length: Option<usize>) -> String {
    let text = strip_markup(value.as_str().unwrap_or_default());
    let length = length.unwrap_or(200);
    if text.chars().count() <= length {
        return text;
    }
    let cut: String = text.chars().take(length).collect();
    let whole_words = cut.rsplit_once(' ').map_or(cut.as_str(), |(words, _)| words);
    format!("{}…", whole_words.trim_end_matches([' ', ',', ';', ':', '.', '–', '-']))
}

/// The characters escaped by `urlencode`: all but letters, digits and the unreserved marks.
const QUERY_ESCAPES: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// `urlencode`: escapes a text as a part of a URL.
fn urlencode(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    utf8_percent_encode(&text, QUERY_ESCAPES).to_string()
}

/// The filter `escape`: escapes a text unless it is safe already.
fn escape_filter(value: &Value) -> Value {
    if value.is_safe() {
        return value.clone();
    }
    let text = match value.as_str() {
        Some(text) => escape_html(text),
        None if value.is_undefined() || value.is_none() => String::new(),
        None => {
            let mut text = String::new();
            // Writing to a string cannot fail.
            let _ = write!(text, "{value}");
            escape_html(&text)
        }
    };
    Value::from_safe_string(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_excerpt(text: &str, length: usize, expected: &str) {
        assert_eq!(text_excerpt(&Value::from(text), Some(length)), expected);
    }

    #[test]
    fn excerpts() {
        check_excerpt("<p>One two</p><p>three</p>", 100, "One two three");
        check_excerpt("One two three", 8, "One two…");
        check_excerpt("One, two three", 5, "One…");
        check_excerpt("Donaudampfschifffahrt", 5, "Donau…");
        check_excerpt("a &lt;b&gt; &amp; &#228;&#xe4; &unknown; &", 100, "a <b> & ää &unknown; &");
        check_excerpt("a<!-- <b> -->b<br>c <", 100, "a b c");
        check_excerpt("a<script>x > y</script>b<STYLE>c</style> d<script>", 100, "a b d");
        check_excerpt("äöü äöü", 5, "äöü…");
        assert_eq!(text_excerpt(&Value::UNDEFINED, None), "");
    }

    #[track_caller]
    fn check_richtext(text: &str, expected: &str) {
        assert_eq!(sanitize_rich_text(&Value::from(text)).to_string(), expected);
    }

    #[test]
    fn rich_text_keeps_markup_and_drops_what_runs() {
        check_richtext("<p class=\"x\">a <b>b</b></p>", "<p class=\"x\">a <b>b</b></p>");
        check_richtext("<p onclick=\"x()\">a</p>", "<p>a</p>");
        check_richtext("a<script>alert(1)</script>b", "ab");
        check_richtext(
            "<a href=\"javascript:alert(1)\">a</a>",
            "<a rel=\"noopener noreferrer\">a</a>",
        );
        check_richtext(
            "<a href=\"/content/a.html\">a</a>",
            "<a href=\"/content/a.html\" rel=\"noopener noreferrer\">a</a>",
        );
        check_richtext("<img src=x onerror=alert(1)>", "<img src=\"x\">");
        check_richtext("<svg><script>x</script></svg>", "");
        check_richtext("a \"b\" > c", "a &quot;b&quot; &gt; c");
        check_richtext("a &amp; b", "a &amp; b");
        assert_eq!(sanitize_rich_text(&Value::UNDEFINED).to_string(), "");
    }

    #[test]
    fn encodes_parts_of_urls() {
        assert_eq!(urlencode(&Value::from("a b/c?ä-_.~")), "a%20b%2Fc%3F%C3%A4-_.~");
    }
}
