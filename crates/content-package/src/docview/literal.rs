//! Property values in docview notation: `{Long}42`, `{Date}[…,…]`, `plain text`.
//!
//! A value may begin with a type in braces. A list is enclosed in brackets, its values separated by commas. A backslash
//! escapes the next character; `\uXXXX` is a character by its number; `\0` is the empty value in a list with no other
//! values, and as a single binary value one without bytes.
//!
//! Invariant: [`parse_literal`] parses the output of [`write_literal()`] to the same property.

use std::borrow::Cow;
use std::fmt::Write as _;

use tympan_content::{Property, Value, ValueType};

use crate::xml_reader::is_xml_character;

/// A property in docview notation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DocviewLiteral {
    /// The value or values.
    Property(Property),
    /// `{Binary}`: the bytes are in a separate file; without one, the existing value stays.
    ExternalBinary,
    /// `{Binary}\0`: a value without bytes; `{Binary}[…]`: a list of values without bytes.
    EmptyBinary {
        /// The number of values.
        value_count: usize,
        /// True for a list.
        is_list: bool,
    },
}

/// Parses the text of an attribute; a text without a type has the type `untyped`.
///
/// # Errors
/// A sentence that describes the fault.
pub fn parse_literal(text: &str, untyped: ValueType) -> Result<DocviewLiteral, String> {
    let (value_type, rest) = split_type(text)?;
    if value_type == Some(ValueType::Binary) {
        let fault = "a docview cannot contain binary data; write `{Binary}` and put the data in a `.binary` \
            file";
        return match rest.strip_prefix('[') {
            None if rest.is_empty() => Ok(DocviewLiteral::ExternalBinary),
            None if rest == "\\0" => {
                Ok(DocviewLiteral::EmptyBinary { value_count: 1, is_list: false })
            }
            None => Err(fault.into()),
            Some(list) => {
                let values = split_list(list)?;
                let count = values.len();
                let is_empty = values.iter().all(|value| value.is_empty());
                if is_empty {
                    Ok(DocviewLiteral::EmptyBinary { value_count: count, is_list: true })
                } else {
                    Err(fault.into())
                }
            }
        };
    }
    let value_type = value_type.unwrap_or(untyped);
    let read =
        |text: Cow<'_, str>| Value::parse(value_type, &text).map_err(|error| error.to_string());
    let property = match rest.strip_prefix('[') {
        Some(list) => {
            let values = split_list(list)?.into_iter().map(read).collect::<Result<_, _>>()?;
            Property::List(value_type, values)
        }
        None => Property::Single(read(unescape_value(rest)?)?),
    };
    Ok(DocviewLiteral::Property(property))
}

/// Splits `{Type}` from the start of a text.
fn split_type(text: &str) -> Result<(Option<ValueType>, &str), String> {
    let Some(inner) = text.strip_prefix('{') else {
        return Ok((None, text));
    };
    let Some((name, rest)) = inner.split_once('}') else {
        return Err("the type after a `{` is not closed; write `\\{` for a literal brace".into());
    };
    let literal_type = ValueType::find(name).filter(|candidate| candidate.name() == name);
    match (literal_type, name) {
        (Some(value_type), _) => Ok((Some(value_type), rest)),
        (None, "undefined") => Ok((None, rest)),
        (None, "BinaryRef") => Err(
            "it refers to the blob store of another system; build the package with its binaries"
                .into(),
        ),
        (None, _) => {
            Err(format!("`{{{name}}}` is not a property type; write `\\{{` for a literal brace"))
        }
    }
}

/// Splits the text after the opening bracket of a list into its values. A list without a closing bracket ends with the
/// text.
fn split_list(list: &str) -> Result<Vec<Cow<'_, str>>, String> {
    // A final bracket closes the list, unless a backslash escapes it.
    let body = match list.strip_suffix(']') {
        Some(body) if is_next_unescaped(body) => body,
        _ => list,
    };
    if body.is_empty() {
        return Ok(Vec::new());
    }
    let mut values = Vec::new();
    let (mut start, mut is_escaped) = (0, false);
    for (at, character) in body.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            ',' => {
                values.push(unescape_value(body.get(start..at).unwrap_or_default())?);
                start = at + 1;
            }
            _ => {}
        }
    }
    values.push(unescape_value(body.get(start..).unwrap_or_default())?);
    Ok(values)
}

/// Returns true if the character after `text` is not escaped: an even number of backslashes precedes it.
fn is_next_unescaped(text: &str) -> bool {
    text.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 0
}

fn unescape_value(text: &str) -> Result<Cow<'_, str>, String> {
    if !text.contains('\\') {
        return Ok(Cow::Borrowed(text));
    }
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (character, character == '\\') {
            (code_point, false) => out.push(code_point),
            (_, true) => match characters.next() {
                Some('u') => {
                    let (decoded, used) = decode_unicode_escape(characters.as_str())?;
                    out.push(decoded);
                    characters = characters.as_str().get(used..).unwrap_or_default().chars();
                }
                Some('0') => {}
                Some(escaped) => out.push(escaped),
                // A trailing backslash escapes nothing and stands for itself.
                None => out.push('\\'),
            },
        }
    }
    Ok(Cow::Owned(out))
}

/// Parses the digits after `\u`, and a second escape if the first is half of a surrogate pair. Returns the character
/// and the number of bytes read.
fn decode_unicode_escape(text: &str) -> Result<(char, usize), String> {
    let unit = |at: usize| {
        let digits = text.get(at..at + 4)?;
        let are_digits = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        are_digits.then(|| u16::from_str_radix(digits, 16).ok()).flatten()
    };
    let Some(first) = unit(0) else {
        return Err("`\\u` needs four hexadecimal digits".into());
    };
    if let Some(character) = char::from_u32(u32::from(first)) {
        return Ok((character, 4));
    }
    let second = text.get(4..6).filter(|escape| *escape == "\\u").and_then(|_| unit(6));
    match char::decode_utf16([first, second.unwrap_or_default()]).next() {
        Some(Ok(character)) => Ok((character, 10)),
        _ => Err(format!("`\\u{first:04x}` is an unpaired surrogate")),
    }
}

/// Writes a property so that [`parse_literal`] parses it to the same property, given the same type for untyped text.
/// Blobs are written as `{Binary}`.
#[must_use]
pub fn write_literal(property: &Property, untyped: ValueType) -> String {
    let value_type = property.value_type();
    let mut out = String::new();
    if value_type != untyped {
        // Writing to a string cannot fail.
        let _ = write!(out, "{{{}}}", value_type.name());
    }
    match property {
        _ if value_type == ValueType::Binary => {}
        Property::Single(value) => {
            let text = value.to_text();
            if text.starts_with(['[', '{']) {
                out.push('\\');
            }
            push_escaped_value(&mut out, &text, LiteralContext::SingleValue);
        }
        Property::List(_, values) => {
            out.push('[');
            for (at, value) in values.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                push_escaped_value(&mut out, &value.to_text(), LiteralContext::ListItem);
            }
            if matches!(values.as_slice(), [only] if only.to_text().is_empty()) {
                out.push_str("\\0");
            }
            out.push(']');
        }
    }
    out
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LiteralContext {
    SingleValue,
    ListItem,
}

fn push_escaped_value(out: &mut String, text: &str, context: LiteralContext) {
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            ',' if context == LiteralContext::ListItem => out.push_str("\\,"),
            code_point if is_xml_character(code_point) => out.push(code_point),
            code_point => {
                let _ = write!(out, "\\u{:04x}", u32::from(code_point));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let rendering = match parse_literal(text, ValueType::String) {
            Ok(DocviewLiteral::ExternalBinary) => "kept".to_owned(),
            Ok(DocviewLiteral::EmptyBinary { value_count, is_list }) => {
                format!("{value_count} empty {is_list}")
            }
            Ok(DocviewLiteral::Property(Property::Single(value))) => {
                format!("{} {:?}", value.value_type().name(), value.to_text())
            }
            Ok(DocviewLiteral::Property(Property::List(value_type, values))) => {
                let texts: Vec<_> = values.iter().map(Value::to_text).collect();
                format!("{}[] {texts:?}", value_type.name())
            }
            Err(message) => format!("refused: {message}"),
        };
        assert!(rendering.starts_with(expected), "{text}: {rendering}");
    }

    #[test]
    fn values_are_read_as_documented() {
        check("Hello, world!", r#"String "Hello, world!""#);
        check("", r#"String """#);
        check("{Long}42", r#"Long "42""#);
        check("{Boolean}true", r#"Boolean "true""#);
        check("{Double}[1.0,2.5,3.0]", r#"Double[] ["1.0", "2.5", "3.0"]"#);
        check("{Date}2019-03-01T10:20:30.456+01:00", r#"Date "2019-03-01T10:20:30.456+01:00""#);
        check("{Name}cq:Page", r#"Name "cq:Page""#);
        check("{Name}", r#"Name """#);
        check("{undefined}x", r#"String "x""#);
        check("{Binary}", "kept");
        check("{Binary}\\0", "1 empty false");
        check("{Binary}[\\0]", "1 empty true");
        check("{Binary}[]", "0 empty true");
        check("[a,b]", r#"String[] ["a", "b"]"#);
        check("[]", "String[] []");
        check("{Long}[]", "Long[] []");
        check("[\\0]", r#"String[] [""]"#);
        check("[,]", r#"String[] ["", ""]"#);
        check("[a,]", r#"String[] ["a", ""]"#);
        check("[a\\,b,c]", r#"String[] ["a,b", "c"]"#);
        check("[a]]", r#"String[] ["a]"]"#);
        check("[a,b", r#"String[] ["a", "b"]"#);
        check("[a\\]", r#"String[] ["a]"]"#);
        check("[a\\\\]", r#"String[] ["a\\"]"#);
        check("\\[a]", r#"String "[a]""#);
        check("\\{Long}42", r#"String "{Long}42""#);
        check("a{b}[c]", r#"String "a{b}[c]""#);
        check("a\\\\b", r#"String "a\\b""#);
        check("a\\", r#"String "a\\""#);
        check("\\u0041b", r#"String "Ab""#);
        check("\\ud83d\\ude00!", r#"String "😀!""#);
        check("\\u0001", r#"String "\u{1}""#);
    }

    #[test]
    fn malformed_values_are_refused_with_a_reason() {
        check("{Long}x", "refused: `x` cannot be read as Long");
        check("{Long}[1,x]", "refused: `x` cannot be read as Long");
        check("{Date}yesterday", "refused: `yesterday` cannot be read as Date");
        check("{Bogus}1", "refused: `{Bogus}` is not a property type");
        check("{long}1", "refused: `{long}` is not a property type");
        check("{Long", "refused: the type after a `{` is not closed");
        check("{Binary}AAAA", "refused: a docview cannot contain binary data");
        check("{BinaryRef}x", "refused: it refers to the blob store of another system");
        check("\\u00g0", "refused: `\\u` needs four");
        check("\\u12", "refused: `\\u` needs four");
        check("\\ud83d", "refused: `\\ud83d` is an unpaired surrogate");
    }
}
