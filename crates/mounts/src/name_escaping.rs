//! Converts names of other systems to node names, and back.
//!
//! In: any bytes. Out: a valid node name.
//!
//! A name is escaped as in a URL: each byte that a node name cannot contain, and `%` itself, becomes `%` and two
//! hexadecimal digits. So two names never map to the same node, and [`unescape_name`] restores the bytes. A name that
//! is too long is truncated and ends in `%~` and a hash. Such a name cannot be restored, so an asset stores the whole
//! escaped path of its file.

use sha2::{Digest, Sha256};

/// Maximum length of an escaped name, in bytes; longer ones are truncated. A node's name has at most 256 bytes.
const MAX_ESCAPED_BYTES: usize = 240;
/// Length of the retained part of a truncated name, in bytes.
const TRUNCATED_BYTES: usize = 200;
/// The escape of an empty name, which some systems allow.
const EMPTY_NAME_ESCAPE: &str = "%";

/// Escapes one name of any length.
#[must_use]
pub fn escape_name(name: &[u8]) -> String {
    if name.is_empty() {
        return EMPTY_NAME_ESCAPE.to_owned();
    }
    let is_place = name == b"." || name == b"..";
    let mut escaped = String::with_capacity(name.len());
    let mut left = name.len();
    for piece in name.utf8_chunks() {
        for letter in piece.valid().chars() {
            let is_edge = left == name.len() || left == letter.len_utf8();
            left -= letter.len_utf8();
            if is_place || !is_unescaped_char(letter) || (is_edge && letter.is_whitespace()) {
                let mut bytes = [0; 4];
                letter
                    .encode_utf8(&mut bytes)
                    .bytes()
                    .for_each(|byte| push_escaped_byte(&mut escaped, byte));
            } else {
                escaped.push(letter);
            }
        }
        left -= piece.invalid().len();
        piece.invalid().iter().for_each(|byte| push_escaped_byte(&mut escaped, *byte));
    }
    escaped
}

fn push_escaped_byte(escaped: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    escaped.push('%');
    for half in [byte >> 4, byte & 15] {
        escaped.extend(DIGITS.get(usize::from(half)).map(|digit| char::from(*digit)));
    }
}

/// Returns true if a node's name can contain the character at any position.
fn is_unescaped_char(letter: char) -> bool {
    letter >= ' '
        && !matches!(letter, '%' | '/' | ':' | '[' | ']' | '|' | '*')
        && !matches!(letter, '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}')
}

/// Returns the original bytes; `None` if the text is not an escaped name.
#[must_use]
pub fn unescape_name(escaped: &str) -> Option<Vec<u8>> {
    if escaped == EMPTY_NAME_ESCAPE {
        return Some(Vec::new());
    }
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut half = || char::from(rest.next()?).to_digit(16);
        let (high, low) = (half()?, half()?);
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    Some(bytes)
}

/// Returns the node name for an escaped name.
#[must_use]
pub fn node_name_of_escaped(escaped: &str) -> String {
    if escaped.len() <= MAX_ESCAPED_BYTES {
        return escaped.to_owned();
    }
    let mut cut_length = TRUNCATED_BYTES;
    while !escaped.is_char_boundary(cut_length) {
        cut_length -= 1;
    }
    let head = escaped.get(..cut_length).unwrap_or_default();
    // The cut must not split an escape.
    let head = match head.rfind('%') {
        Some(at) if head.len() - at < 3 => head.get(..at).unwrap_or_default(),
        _ => head,
    };
    let hash = Sha256::digest(escaped.as_bytes());
    format!("{head}%~{:.32}", hex::encode(hash))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tympan_content::check_item_name;

    #[track_caller]
    fn check(name: &[u8], expected: &str) {
        let escaped = escape_name(name);
        assert_eq!(escaped, expected);
        assert_eq!(unescape_name(&escaped).as_deref(), Some(name));
        check_item_name(&node_name_of_escaped(&escaped)).unwrap();
    }

    #[test]
    fn hostile_names_are_escaped_and_come_back() {
        check(b"photo 1.jpg", "photo 1.jpg");
        check("Zürich.jpg".as_bytes(), "Zürich.jpg");
        check(b"", "%");
        check(b".", "%2E");
        check(b"..", "%2E%2E");
        check(b"...", "...");
        check(b"../../etc", "..%2F..%2Fetc");
        check(b"jcr:content", "jcr%3Acontent");
        check(b"a\nb\x07", "a%0Ab%07");
        check(b" a b ", "%20a b%20");
        check(b"100%", "100%25");
        check(b"\xff\xfea", "%FF%FEa");
        check(b"a\xc3", "a%C3");
        check(b"[x]|*", "%5Bx%5D%7C%2A");
        check("\u{85}x\u{a0}".as_bytes(), "%C2%85x%C2%A0");
        check("a\u{ffff}".as_bytes(), "a%EF%BF%BF");
    }

    #[test]
    fn long_names_are_cut_and_stay_apart() {
        let names = ["ü".repeat(300), format!("{}x", "ü".repeat(299)), "%".repeat(100)];
        let cut: Vec<String> =
            names.iter().map(|name| node_name_of_escaped(&escape_name(name.as_bytes()))).collect();
        for name in &cut {
            check_item_name(name).unwrap();
        }
        assert_ne!(cut[0], cut[1]);
        assert_eq!(unescape_name(&cut[0]), None);
    }

    #[test]
    fn any_bytes_come_back() {
        // Each byte at the start, in the middle and at the end, next to a character of two bytes.
        for byte in 0..=255_u8 {
            for name in
                [vec![byte], vec![byte, b'a'], vec![b'a', byte], vec![b'a', byte, b'b', 0xc3, 0xbc]]
            {
                let escaped = escape_name(&name);
                assert_eq!(unescape_name(&escaped), Some(name));
                check_item_name(&escaped).unwrap();
            }
        }
    }
}
