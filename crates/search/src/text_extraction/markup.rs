//! Text extraction from markup: rich text written by authors, HTML and XML files.
//!
//! The parser is as tolerant as browsers: `<` followed by a letter begins a tag that ends at `>`, scripts and styles
//! are skipped, and known entities are decoded. The result is for indexing only and must never be output unescaped.

/// Elements whose content is not visible text.
const SKIPPED_ELEMENTS: [&str; 5] = ["script", "style", "template", "noscript", "head"];
/// Elements that may occur inside a word; the tags of all others separate words.
const INLINE_ELEMENTS: [&str; 16] = [
    "a", "abbr", "b", "bdi", "code", "em", "font", "i", "mark", "s", "small", "span", "strong",
    "sub", "sup", "u",
];

/// Returns true if a text contains tags.
pub(crate) fn looks_like_markup(text: &str) -> bool {
    let begins = |(at, _): (usize, &str)| {
        let next = text.as_bytes().get(at + 1);
        next.is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'/')
    };
    // This check runs once: a check at each tag would take quadratic time for a long text with unclosed tags.
    text.contains('>') && text.match_indices('<').any(begins)
}

/// Returns the text without its tags.
pub(crate) fn strip_markup(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['<', '&']) {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        rest = if after.starts_with('&') {
            read_entity(after, &mut out)
        } else {
            skip_tag(after, &mut out)
        };
    }
    out.push_str(rest);
    out
}

/// Skips a tag, a comment or a skipped element; `text` begins with `<`.
fn skip_tag<'a>(text: &'a str, out: &mut String) -> &'a str {
    let inside = text.get(1..).unwrap_or_default();
    if let Some(comment) = inside.strip_prefix("!--") {
        return comment.split_once("-->").map_or("", |(_, rest)| rest);
    }
    if let Some(data) = inside.strip_prefix("![CDATA[") {
        let (data, rest) = data.split_once("]]>").unwrap_or((data, ""));
        out.push_str(data);
        return rest;
    }
    let is_tag = |byte: &u8| byte.is_ascii_alphabetic() || b"/!?".contains(byte);
    if !inside.as_bytes().first().is_some_and(is_tag) {
        out.push('<');
        return inside;
    }
    let name: String = inside
        .trim_start_matches('/')
        .chars()
        .take_while(|character| character.is_ascii_alphanumeric())
        .map(|character| character.to_ascii_lowercase())
        .take(16)
        .collect();
    let rest = text_after_tag(inside);
    if !INLINE_ELEMENTS.contains(&name.as_str()) {
        out.push(' ');
    }
    let is_silent = SKIPPED_ELEMENTS.contains(&name.as_str()) && !inside.starts_with('/');
    let is_closed = text.get(..text.len() - rest.len()).is_some_and(|tag| tag.ends_with("/>"));
    if is_silent && !is_closed { text_after_element(rest, &name) } else { rest }
}

/// Returns the text after a tag; a `>` in quotes does not end the tag.
fn text_after_tag(inside: &str) -> &str {
    let mut quote = None;
    for (at, byte) in inside.bytes().enumerate() {
        match (quote, byte) {
            (None, b'>') => return inside.get(at + 1..).unwrap_or_default(),
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), byte) if open == byte => quote = None,
            _ => {}
        }
    }
    // If a quote is not closed, the first `>` ends the tag.
    inside.split_once('>').map_or("", |(_, rest)| rest)
}

/// Returns the text after the end tag of a skipped element.
fn text_after_element<'a>(text: &'a str, name: &str) -> &'a str {
    for (at, _) in text.match_indices("</") {
        let tail = text.get(at + 2..).unwrap_or_default();
        if tail.get(..name.len()).is_some_and(|tag_name| tag_name.eq_ignore_ascii_case(name)) {
            return tail.split_once('>').map_or("", |(_, rest)| rest);
        }
    }
    ""
}

/// Decodes an entity; `text` begins with `&`.
fn read_entity<'a>(text: &'a str, out: &mut String) -> &'a str {
    let inside = text.get(1..).unwrap_or_default();
    let end = inside.bytes().take(12).position(|byte| byte == b';');
    let decoded = end.and_then(|end| {
        let (name, rest) = inside.split_at(end);
        Some((entity_character(name)?, rest.get(1..).unwrap_or_default()))
    });
    match decoded {
        Some((character, rest)) => {
            out.push(character);
            rest
        }
        None => {
            out.push('&');
            inside
        }
    }
}

/// Returns the character that an entity names.
fn entity_character(name: &str) -> Option<char> {
    if let Some(number) = name.strip_prefix('#') {
        let code = match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16).ok()?,
            None => number.parse().ok()?,
        };
        return char::from_u32(code);
    }
    const NAMED: [(&str, char); 38] = [
        ("amp", '&'),
        ("lt", '<'),
        ("gt", '>'),
        ("quot", '"'),
        ("apos", '\''),
        ("nbsp", ' '),
        ("shy", '\u{ad}'),
        ("auml", 'ä'),
        ("ouml", 'ö'),
        ("uuml", 'ü'),
        ("Auml", 'Ä'),
        ("Ouml", 'Ö'),
        ("Uuml", 'Ü'),
        ("szlig", 'ß'),
        ("eacute", 'é'),
        ("egrave", 'è'),
        ("ecirc", 'ê'),
        ("euml", 'ë'),
        ("aacute", 'á'),
        ("agrave", 'à'),
        ("acirc", 'â'),
        ("aring", 'å'),
        ("aelig", 'æ'),
        ("ccedil", 'ç'),
        ("iacute", 'í'),
        ("icirc", 'î'),
        ("iuml", 'ï'),
        ("ntilde", 'ñ'),
        ("oacute", 'ó'),
        ("ocirc", 'ô'),
        ("oslash", 'ø'),
        ("uacute", 'ú'),
        ("ugrave", 'ù'),
        ("ucirc", 'û'),
        ("ndash", '–'),
        ("mdash", '—'),
        ("hellip", '…'),
        ("euro", '€'),
    ];
    NAMED.iter().find(|(entity_name, _)| *entity_name == name).map(|(_, character)| *character)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(markup: &str, expected: &str) {
        let text = strip_markup(markup);
        assert_eq!(text.split_whitespace().collect::<Vec<_>>().join(" "), expected, "{markup}");
    }

    #[test]
    fn strips_tags() {
        check("<p>Hello <b>wor</b>ld</p><p>again</p>", "Hello world again");
        check("a<br>b", "a b");
        check("<a title=\"x > y\" href='/'>link</a>", "link");
        check("<!-- hidden --> seen", "seen");
        check("<script>var hidden = '<p>';</script>seen", "seen");
        check("<STYLE>p{}</STYLE >seen", "seen");
        check("3 < 4 and 5 > 4", "3 < 4 and 5 > 4");
        check("Gr&uuml;&szlig;e &amp; &#8364;&#x20AC; &unknown; &", "Grüße & €€ &unknown; &");
        check("<![CDATA[kept]]>", "kept");
        check("<p unclosed", "");
        check("<script>never closed", "");
        check("<script src='x'/>seen", "seen");
    }

    #[test]
    fn tells_markup() {
        assert!(looks_like_markup("<p>x</p>"));
        assert!(!looks_like_markup("3 < 4 > 2"));
        assert!(!looks_like_markup("plain"));
    }
}
