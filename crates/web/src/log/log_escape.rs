//! Escapes of log values: one line stays one line, and a quoted value stays inside its quotes.
//!
//! `\` is written `\\`, `"` as `\"`, control characters and (where required) spaces as `\xHH`. Parsing reverses exactly
//! these, and leaves any other backslash unchanged, so that foreign logs lose nothing.

use std::fmt::{self, Display, Write};

/// The context of a value, which determines whether spaces are escaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogEscapeContext {
    /// Between spaces.
    Bare,
    /// Between double quotes.
    Quoted,
}

/// Writes the text escaped for its context; in an empty or one-dash value the first character is escaped.
pub(crate) struct EscapedLogField<'a>(pub(crate) &'a str, pub(crate) LogEscapeContext);

/// Bytes that need no escape; a table, because it is used for each byte of each line.
const UNESCAPED_IN_BARE_FIELD: [bool; 256] = unescaped_bytes(false);
/// Same table with the space.
const UNESCAPED_IN_QUOTED_FIELD: [bool; 256] = unescaped_bytes(true);

#[expect(clippy::indexing_slicing, reason = "a byte is below 256")]
const fn unescaped_bytes(is_space_plain: bool) -> [bool; 256] {
    let mut plain = [false; 256];
    let mut byte = 0_u8;
    while byte < u8::MAX {
        plain[byte as usize] = match byte {
            b'\\' | b'"' => false,
            b' ' => is_space_plain,
            byte => byte.is_ascii_graphic(),
        };
        byte += 1;
    }
    plain
}

impl Display for EscapedLogField<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_to(f)
    }
}

impl EscapedLogField<'_> {
    /// Writes the text.
    pub(crate) fn write_to(&self, f: &mut impl Write) -> fmt::Result {
        let Self(text, context) = *self;
        let plain = match context {
            LogEscapeContext::Bare => &UNESCAPED_IN_BARE_FIELD,
            LogEscapeContext::Quoted => &UNESCAPED_IN_QUOTED_FIELD,
        };
        let is_plain = |byte: u8| plain.get(usize::from(byte)).is_some_and(|is_plain| *is_plain);
        // The case of nearly every value; formatting it character by character would cost more than the rest of a line.
        if text != "-" && text.bytes().all(is_plain) {
            return f.write_str(text);
        }
        // A single dash means "absent" in these formats.
        if text == "-" {
            return f.write_str("\\x2d");
        }
        for char in text.chars() {
            match char {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                ' ' if context == LogEscapeContext::Quoted => f.write_char(' ')?,
                char if char.is_ascii() && (char.is_control() || char == ' ') => {
                    write!(f, "\\x{:02x}", char as u32)?;
                }
                // Unicode line separators, at which some readers split lines.
                char if char.is_control() || matches!(char, '\u{2028}' | '\u{2029}') => {
                    write!(f, "\\u{:04x}", char as u32)?;
                }
                char => f.write_char(char)?,
            }
        }
        Ok(())
    }
}

/// Reverses [`EscapedLogField`].
pub(crate) fn unescape_log_field(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        let (char, length) = parse_escape(after);
        plain.push(char);
        rest = after.get(length..).unwrap_or_default();
    }
    plain.push_str(rest);
    plain
}

/// Returns the character for the escape after a backslash, and the length of the escape.
fn parse_escape(after: &str) -> (char, usize) {
    let hex = |digits: usize| {
        let text = after.get(1..=digits)?;
        if !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        char::from_u32(u32::from_str_radix(text, 16).ok()?)
    };
    match after.chars().next() {
        Some(char @ ('\\' | '"')) => (char, 1),
        Some('x') => hex(2).map_or(('\\', 0), |char| (char, 3)),
        Some('u') => hex(4).map_or(('\\', 0), |char| (char, 5)),
        _ => ('\\', 0),
    }
}

/// Returns the quoted value at the start of `text` (unescaped) and the text after its closing quote.
pub(crate) fn split_quoted_field(text: &str) -> Option<(String, &str)> {
    let inner = text.strip_prefix('"')?;
    let mut is_escaped = false;
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return Some((unescape_log_field(inner.get(..at)?), inner.get(at + 1..)?)),
            _ => {}
        }
    }
    None
}
