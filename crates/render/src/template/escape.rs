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
        return write_escaped(out, text);
    }
    match value.kind() {
        ValueKind::Undefined | ValueKind::None | ValueKind::Bool | ValueKind::Number => {
            write_text(out, value)
        }
        _ => write_escaped(out, &value.to_string()),
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

/// Writes the stretches between the characters that need an escape.
fn write_escaped(out: &mut Output<'_>, mut text: &str) -> Result<(), Error> {
    while let Some(at) = first_special(text.as_bytes()) {
        let (plain, rest) = text.split_at(at);
        out.write_str(plain)?;
        out.write_str(rest.bytes().next().and_then(escape_of).unwrap_or_default())?;
        text = rest.get(1..).unwrap_or_default();
    }
    Ok(out.write_str(text)?)
}

/// Tells whether any character of a text has an escape.
pub(super) fn has_special(text: &str) -> bool {
    first_special(text.as_bytes()).is_some()
}

/// Finds the first byte that has an escape. Most stretches have none, so that many bytes are looked at together.
fn first_special(bytes: &[u8]) -> Option<usize> {
    let (blocks, _) = bytes.as_chunks::<32>();
    let is_plain =
        |block: &&[u8; 32]| !block.iter().fold(false, |any, byte| any | needs_escape(*byte));
    let plain = 32 * blocks.iter().take_while(is_plain).count();
    let rest = bytes.get(plain..)?.iter().position(|byte| needs_escape(*byte))?;
    Some(plain + rest)
}

/// Tells whether a byte has an escape, without a branch, so that the compiler can ask of many bytes at once.
fn needs_escape(byte: u8) -> bool {
    (byte == b'&') | (byte == b'<') | (byte == b'>') | (byte == b'"') | (byte == b'\'')
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
    for character in text.chars() {
        match u8::try_from(character).ok().and_then(escape_of) {
            Some(escape) => out.push_str(escape),
            None => out.push(character),
        }
    }
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
