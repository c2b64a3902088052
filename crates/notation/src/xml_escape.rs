//! Escaping of texts for XML, in elements and in attribute values with double quotes.

use std::fmt::Write;

/// Escapes a text for XML. Line breaks and tabs become character references, because attributes and the ends of lines
/// would lose them; characters that XML 1.0 cannot contain are left out.
#[must_use]
pub fn escape_xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\r' | '\t' => {
                // Writing to a string cannot fail.
                let _ = write!(out, "&#{};", u32::from(character));
            }
            character if character.is_control() => {}
            '\u{fffe}' | '\u{ffff}' => {}
            character => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_survive_as_elements_and_as_attributes() {
        for (text, expected) in [
            ("plain 'text' \u{e4}", "plain 'text' \u{e4}"),
            ("a<b>&\"c\"", "a&lt;b&gt;&amp;&quot;c&quot;"),
            ("a\tb\r\n", "a&#9;b&#13;&#10;"),
            ("a\u{1}b\u{fffe}\u{7f}c", "abc"),
        ] {
            assert_eq!(escape_xml(text), expected, "{text:?}");
        }
    }
}
