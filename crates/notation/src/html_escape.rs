//! Escaping of texts for HTML, in elements and in quoted attribute values; `/` is unchanged.

use std::fmt::Write;

/// Writes the runs between the characters that need an escape, and the escapes.
///
/// # Errors
/// Those of the writer.
pub fn write_escaped_text(out: &mut impl Write, mut text: &str) -> std::fmt::Result {
    while let Some(at) = first_html_special(text.as_bytes()) {
        let (plain, rest) = text.split_at(at);
        out.write_str(plain)?;
        out.write_str(rest.bytes().next().and_then(html_escape_of).unwrap_or_default())?;
        text = rest.get(1..).unwrap_or_default();
    }
    out.write_str(text)
}

/// Returns true if a text contains a character that needs an escape.
#[must_use]
pub fn has_html_special(text: &str) -> bool {
    first_html_special(text.as_bytes()).is_some()
}

/// Finds the first byte that needs an escape. Most runs have none, so eight bytes are checked at a time.
fn first_html_special(bytes: &[u8]) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<8>();
    for (number, word) in words.iter().enumerate() {
        let special = mark_special_bytes(u64::from_le_bytes(*word));
        if special != 0 {
            return Some(8 * number + special.trailing_zeros() as usize / 8);
        }
    }
    let at = rest.iter().position(|byte| html_escape_of(*byte).is_some())?;
    Some(8 * words.len() + at)
}

/// Sets the highest bit of each byte of a word that needs an escape. The lowest mark is correct; higher ones may be
/// wrong.
const fn mark_special_bytes(word: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    // `<` and `>` differ only in the bit of 2, and `"` and `&` in that of 4.
    let angle = (word & !(EACH * 2)) ^ (EACH * b'<' as u64);
    let quote = (word & !(EACH * 4)) ^ (EACH * b'"' as u64);
    let apostrophe = word ^ (EACH * b'\'' as u64);
    (mark_zero_bytes(angle) | mark_zero_bytes(quote) | mark_zero_bytes(apostrophe)) & (EACH << 7)
}

/// Sets the highest bit of each zero byte of a word; bytes above the lowest of them may be marked, too, because of the
/// borrow.
const fn mark_zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(0x0101_0101_0101_0101) & !word
}

/// Returns the HTML escape of a byte; `None` if it needs none.
fn html_escape_of(byte: u8) -> Option<&'static str> {
    Some(match byte {
        b'&' => "&amp;",
        b'<' => "&lt;",
        b'>' => "&gt;",
        b'"' => "&quot;",
        b'\'' => "&#39;",
        _ => return None,
    })
}

/// Escapes a text for HTML.
#[must_use]
pub fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    // Writing to a string cannot fail.
    let _ = write_escaped_text(&mut out, text);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_with_an_escape_is_found_wherever_it_stands() {
        for byte in 0..=u8::MAX {
            for length in 1..20 {
                for at in 0..length {
                    // Neighbors of special bytes, and bytes affected by a borrow.
                    for around in
                        [b' ', b'x', b'=', b'#', b'(', 0, 0x80, 0xff, byte.wrapping_add(1)]
                    {
                        let mut bytes = vec![around; length];
                        bytes[at] = byte;
                        let expected =
                            bytes.iter().position(|byte| html_escape_of(*byte).is_some());
                        assert_eq!(first_html_special(&bytes), expected, "{bytes:?}");
                    }
                }
            }
        }
        assert_eq!(first_html_special(b""), None);
        assert!(
            !has_html_special("plain text: 100 % \u{e4}\u{20ac}") && has_html_special("12345678<")
        );
    }
}
