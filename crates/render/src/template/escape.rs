//! Formatting of values in templates: HTML escaping that leaves `/` unchanged, and JCR's spelling of booleans.

use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Error, Output, State, Value, escape_formatter};
use tympan_notation::write_escaped_text;

use super::output_filter::ScriptLiteral;
use super::template_name::TemplateLanguage;

/// Selects the escaping by the template's output language.
pub(super) fn auto_escape_for(name: &str) -> AutoEscape {
    match TemplateLanguage::from_template_name(name) {
        TemplateLanguage::Html | TemplateLanguage::Xml | TemplateLanguage::Style => {
            AutoEscape::Html
        }
        TemplateLanguage::Json | TemplateLanguage::Script => AutoEscape::Json,
        TemplateLanguage::Text => AutoEscape::None,
    }
}

/// Writes a value into the output.
pub(super) fn write_value(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    match state.auto_escape() {
        AutoEscape::Html => write_html_escaped(out, value),
        AutoEscape::None => write_unescaped(out, value),
        // The output of `tojson` is JSON already.
        _ if value.downcast_object_ref::<ScriptLiteral>().is_some() => write_unescaped(out, value),
        _ => escape_formatter(out, state, value),
    }
}

/// Writes a value as text of an HTML document or of a quoted attribute.
fn write_html_escaped(out: &mut Output<'_>, value: &Value) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        if value.is_safe() {
            return Ok(out.write_str(text)?);
        }
        return Ok(write_escaped_text(out, text)?);
    }
    match value.kind() {
        ValueKind::Undefined | ValueKind::None | ValueKind::Bool | ValueKind::Number => {
            write_unescaped(out, value)
        }
        _ => Ok(write_escaped_text(out, &value.to_string())?),
    }
}

/// Writes a value without escaping.
fn write_unescaped(out: &mut Output<'_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => {}
        ValueKind::Bool => out.write_str(if value.is_true() { "true" } else { "false" })?,
        _ => write!(out, "{value}")?,
    }
    Ok(())
}
