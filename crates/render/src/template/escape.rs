//! How values become text in templates: HTML escaping without touching `/`, and JCR's spelling of truth values.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Error, Output, State, Value, escape_formatter};

use super::Language;
use super::output::Literal;

/// Chooses the escaping by the language that the template writes.
pub(super) fn by_name(name: &str) -> AutoEscape {
    match Language::of(name) {
        Language::Html | Language::Xml | Language::Style => AutoEscape::Html,
        Language::Json | Language::Script => AutoEscape::Json,
        Language::Text => AutoEscape::None,
    }
}

/// Writes a value into the output.
pub(super) fn format(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    match state.auto_escape() {
        AutoEscape::Html => write_html(out, value),
        AutoEscape::None => write_text(out, value),
        // What `tojson` wrote is JSON already.
        _ if value.downcast_object_ref::<Literal>().is_some() => write_text(out, value),
        _ => escape_formatter(out, state, value),
    }
}

/// Writes a value as text of an HTML document or of an attribute in quotes.
fn write_html(out: &mut Output<'_>, value: &Value) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        if value.is_safe() {
            return Ok(out.write_str(text)?);
        }
        return Ok(write_escaped(out, text)?);
    }
    match value.kind() {
        ValueKind::Undefined | ValueKind::None | ValueKind::Bool | ValueKind::Number => {
            write_text(out, value)
        }
        _ => Ok(write_escaped(out, &value.to_string())?),
    }
}

/// Writes a value without escaping.
fn write_text(out: &mut Output<'_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => {}
        ValueKind::Bool => out.write_str(if value.is_true() { "true" } else { "false" })?,
        _ => write!(out, "{value}")?,
    }
    Ok(())
}

/// Writes the stretches between the characters that need an escape, and the escapes.
fn write_escaped(out: &mut impl Write, mut text: &str) -> std::fmt::Result {
    while let Some(at) = first_special(text.as_bytes()) {
        let (plain, rest) = text.split_at(at);
        out.write_str(plain)?;
        out.write_str(rest.bytes().next().and_then(escape_of).unwrap_or_default())?;
        text = rest.get(1..).unwrap_or_default();
    }
    out.write_str(text)
}

/// Tells whether any character of a text has an escape.
pub(super) fn has_special(text: &str) -> bool {
    first_special(text.as_bytes()).is_some()
}

/// Finds the first byte that has an escape. Most stretches have none, so that eight bytes are looked at together.
fn first_special(bytes: &[u8]) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<8>();
    for (number, word) in words.iter().enumerate() {
        let special = special_in(u64::from_le_bytes(*word));
        if special != 0 {
            return Some(8 * number + special.trailing_zeros() as usize / 8);
        }
    }
    let at = rest.iter().position(|byte| escape_of(*byte).is_some())?;
    Some(8 * words.len() + at)
}

/// Marks the bytes of a word that have an escape, each by its highest bit. The lowest mark is right; others may be wrong.
const fn special_in(word: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    // `<` and `>` differ in the bit of 2 alone, and `"` and `&` in that of 4.
    let angle = (word & !(EACH * 2)) ^ (EACH * b'<' as u64);
    let quote = (word & !(EACH * 4)) ^ (EACH * b'"' as u64);
    let apostrophe = word ^ (EACH * b'\'' as u64);
    (zeros_in(angle) | zeros_in(quote) | zeros_in(apostrophe)) & (EACH << 7)
}

/// Marks the bytes of a word that are zero, by the highest bit of each; what stands above the lowest of them may be marked,
/// too, as it lends to it.
const fn zeros_in(word: u64) -> u64 {
    word.wrapping_sub(0x0101_0101_0101_0101) & !word
}

/// Returns what stands for a byte in HTML.
fn escape_of(byte: u8) -> Option<&'static str> {
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
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    // Writing into a string cannot fail.
    let _ = write_escaped(&mut out, text);
    out
}

/// The filter `escape`: makes a text safe once.
pub(super) fn escape_filter(value: &Value) -> Value {
    if value.is_safe() {
        return value.clone();
    }
    let text = match value.as_str() {
        Some(text) => escape(text),
        None if value.is_undefined() || value.is_none() => String::new(),
        None => {
            let mut text = String::new();
            // Writing into a string cannot fail.
            let _ = write!(text, "{value}");
            escape(&text)
        }
    };
    Value::from_safe_string(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_with_an_escape_is_found_wherever_it_stands() {
        for byte in 0..=u8::MAX {
            for length in 1..20 {
                for at in 0..length {
                    // Neighbors of special bytes, and bytes that lend to those below.
                    for around in
                        [b' ', b'x', b'=', b'#', b'(', 0, 0x80, 0xff, byte.wrapping_add(1)]
                    {
                        let mut bytes = vec![around; length];
                        bytes[at] = byte;
                        let expected = bytes.iter().position(|byte| escape_of(*byte).is_some());
                        assert_eq!(first_special(&bytes), expected, "{bytes:?}");
                    }
                }
            }
        }
        assert_eq!(first_special(b""), None);
        assert!(!has_special("plain text: 100 % \u{e4}\u{20ac}") && has_special("12345678<"));
    }
}
