//! XML names by ISO 9075-14: characters that XML forbids in a name are written as `_xHHHH_`.

use std::fmt::Write as _;

/// Decodes an XML name.
pub(crate) fn decode_name(name: &str) -> String {
    if !name.contains("_x") {
        return name.to_owned();
    }
    let mut units: Vec<u16> = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some(character) = rest.chars().next() {
        if let Some(unit) = escape_code_at(rest) {
            units.push(unit);
            rest = rest.get(7..).unwrap_or_default();
        } else {
            units.extend(character.encode_utf16(&mut [0; 2]).iter());
            rest = rest.get(character.len_utf8()..).unwrap_or_default();
        }
    }
    String::from_utf16_lossy(&units)
}

/// Encodes a name as an XML name. The colon between prefix and local name stays.
pub(crate) fn encode_name(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut is_first = true;
    for (at, character) in name.char_indices() {
        let begins_escape =
            character == '_' && name.get(at..).is_some_and(|rest| escape_code_at(rest).is_some());
        let fits =
            if is_first { is_xml_name_start(character) } else { is_xml_name_part(character) };
        if fits && !begins_escape {
            out.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(out, "_x{unit:04x}_");
            }
        }
        is_first = character == ':';
    }
    out
}

/// Returns the code unit of the `_xHHHH_` at the start of a text, if there is one.
fn escape_code_at(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("_x")?.get(..4)?;
    let is_closed = text.get(6..7) == Some("_");
    let are_digits = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_closed && are_digits).then(|| u16::from_str_radix(digits, 16).ok()).flatten()
}

/// Returns true for the first characters of XML 1.0 names (production 4 without the colon).
fn is_xml_name_start(character: char) -> bool {
    matches!(character,
        'A'..='Z' | '_' | 'a'..='z' | '\u{c0}'..='\u{d6}' | '\u{d8}'..='\u{f6}' | '\u{f8}'..='\u{2ff}'
        | '\u{370}'..='\u{37d}' | '\u{37f}'..='\u{1fff}' | '\u{200c}'..='\u{200d}'
        | '\u{2070}'..='\u{218f}' | '\u{2c00}'..='\u{2fef}' | '\u{3001}'..='\u{d7ff}'
        | '\u{f900}'..='\u{fdcf}' | '\u{fdf0}'..='\u{fffd}' | '\u{10000}'..='\u{effff}')
}

/// Returns true for the other characters of XML 1.0 names (production 4a), with the colon.
fn is_xml_name_part(character: char) -> bool {
    is_xml_name_start(character)
        || matches!(character,
            ':' | '-' | '.' | '0'..='9' | '\u{b7}' | '\u{300}'..='\u{36f}' | '\u{203f}'..='\u{2040}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_xml() {
        for (name, xml) in [
            ("title", "title"),
            ("jcr:content", "jcr:content"),
            ("a b", "a_x0020_b"),
            ("2019", "_x0032_019"),
            ("cq:1st", "cq:_x0031_st"),
            ("a_x0020_b", "a_x005f_x0020_b"),
            ("foo.jsp", "foo.jsp"),
            ("übung", "übung"),
            ("a@b", "a_x0040_b"),
            ("😀", "😀"),
            ("a\u{10ffff}", "a_xdbff__xdfff_"),
        ] {
            assert_eq!(encode_name(name), xml);
            assert_eq!(decode_name(xml), name);
        }
        assert_eq!(decode_name("a_xzz"), "a_xzz");
        assert_eq!(decode_name("_x00"), "_x00");
        assert_eq!(decode_name("é_x0020_"), "é ");
    }
}
