//! Compiles text with `${variables}` and `${__functions(...)}`.
//!
//! Invariants
//! * As in JMeter, a reference to an unknown variable remains unchanged, and backslashes before `$`, `,` and `\` are
//!   removed only in text with references.
//! * An unknown function is reported when the plan is read, not when it runs.

use std::fmt;
use std::sync::Arc;

use super::function_name::{JMeterFunction, is_unsupported_function};
use super::template::{FunctionCall, TextTemplate, TextTemplatePart};

/// A text that cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextTemplateError(pub(crate) String);

impl fmt::Display for TextTemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TextTemplate {
    /// Compiles a text.
    ///
    /// # Errors
    /// [`TextTemplateError`] names a function that is not supported, or misused.
    pub(crate) fn parse(text: &str) -> Result<Self, TextTemplateError> {
        Self::parse_at_call_site(text, "")
    }

    /// Compiles a text at a position of a JMeter plan. The position distinguishes calls that count. An unknown function
    /// remains unchanged, as does an undefined variable.
    ///
    /// # Errors
    /// [`TextTemplateError`] names a function that is not supported, or misused.
    pub(crate) fn parse_at_call_site(
        text: &str,
        call_site: &str,
    ) -> Result<Self, TextTemplateError> {
        if !text.contains("${") {
            return Ok(Self::literal(text));
        }
        if reference_depth(text) > MAX_REFERENCE_DEPTH {
            return Err(TextTemplateError(format!(
                "functions are nested deeper than {MAX_REFERENCE_DEPTH} levels"
            )));
        }
        let parts = parse_parts(text, call_site)?;
        if parts.iter().all(|part| matches!(part, TextTemplatePart::Text(_))) {
            return Ok(Self::literal(text));
        }
        Ok(Self { parts, source: text.into() })
    }
}

/// Maximum nesting depth of references.
const MAX_REFERENCE_DEPTH: usize = 50;

/// Returns the maximum nesting depth of references.
fn reference_depth(text: &str) -> usize {
    let (mut depth, mut most, mut previous) = (0usize, 0, ' ');
    for c in text.chars() {
        match c {
            '{' if previous == '$' => {
                depth += 1;
                most = most.max(depth);
            }
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        previous = c;
    }
    most
}

fn parse_parts(text: &str, call_site: &str) -> Result<Vec<TextTemplatePart>, TextTemplateError> {
    let mut parts = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(escaped) = rest.strip_prefix('\\') {
            let next = escaped.chars().next();
            if !matches!(next, Some('$' | ',' | '\\')) {
                plain.push('\\');
            }
            plain.extend(next);
            rest = escaped.get(next.map_or(0, char::len_utf8)..).unwrap_or_default();
        } else if let Some(inside) = rest.strip_prefix("${") {
            match parse_reference(inside, call_site)? {
                Some((part, after)) => {
                    if !plain.is_empty() {
                        parts.push(TextTemplatePart::Text(std::mem::take(&mut plain).into()));
                    }
                    parts.push(part);
                    rest = after;
                }
                None => {
                    plain.push_str("${");
                    rest = inside;
                }
            }
        } else {
            plain.push(c);
            rest = rest.get(c.len_utf8()..).unwrap_or_default();
        }
    }
    if !plain.is_empty() {
        parts.push(TextTemplatePart::Text(plain.into()));
    }
    Ok(parts)
}

/// Parses the text after `${`; `None` if it is not a reference.
fn parse_reference<'a>(
    inside: &'a str,
    call_site: &str,
) -> Result<Option<(TextTemplatePart, &'a str)>, TextTemplateError> {
    let Some(end) = inside.find(['}', '(']) else { return Ok(None) };
    let (name, rest) = inside.split_at(end);
    let name = name.trim();
    if let Some(after) = rest.strip_prefix('}') {
        // JMeter's own controller variables look like functions.
        if name.starts_with("__jm__") {
            return Ok(Some((TextTemplatePart::Variable(name.into()), after)));
        }
        if name.starts_with("__") && !is_unknown_jmeter_function(name, call_site) {
            let function = JMeterFunction::find(name).ok_or_else(|| unknown_function(name))?;
            return Ok(Some((function_call_part(function, Vec::new(), inside, call_site)?, after)));
        }
        return Ok(Some((TextTemplatePart::Variable(name.into()), after)));
    }
    if !name.starts_with("__") || is_unknown_jmeter_function(name, call_site) {
        // A parenthesis is part of a variable's name: such a variable can exist.
        let Some((name, after)) = inside.split_once('}') else { return Ok(None) };
        return Ok(Some((TextTemplatePart::Variable(name.into()), after)));
    }
    let function = JMeterFunction::find(name).ok_or_else(|| unknown_function(name))?;
    let (arguments, after) = parse_arguments(rest.get(1..).unwrap_or_default(), call_site)?;
    let after = after.trim_start();
    let Some(after) = after.strip_prefix('}') else {
        return Err(TextTemplateError(format!("`${{{name}(` does not end with `)}}`")));
    };
    Ok(Some((function_call_part(function, arguments, inside, call_site)?, after)))
}

/// Returns true if a function in a JMeter plan is unknown to JMeter.
fn is_unknown_jmeter_function(name: &str, call_site: &str) -> bool {
    !call_site.is_empty() && JMeterFunction::find(name).is_none() && !is_unsupported_function(name)
}

fn unknown_function(name: &str) -> TextTemplateError {
    TextTemplateError(format!("function {name}: not supported"))
}

fn function_call_part(
    function: JMeterFunction,
    arguments: Vec<TextTemplate>,
    inside: &str,
    call_site: &str,
) -> Result<TextTemplatePart, TextTemplateError> {
    let source: Arc<str> = inside.into();
    let call_site = if call_site.is_empty() {
        Arc::clone(&source)
    } else {
        format!("{call_site} {inside}").into()
    };
    let call = FunctionCall { function, arguments, source, call_site };
    function.check_call(&call).map_err(TextTemplateError)?;
    Ok(TextTemplatePart::Call(Arc::new(call)))
}

/// Parses arguments up to the closing parenthesis, as JMeter's parser does.
fn parse_arguments<'a>(
    text: &'a str,
    call_site: &str,
) -> Result<(Vec<TextTemplate>, &'a str), TextTemplateError> {
    let mut arguments = Vec::new();
    let mut buffer = String::new();
    let (mut functions, mut parentheses) = (0, 0);
    let mut previous = ' ';
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => {
                let next = chars.next().map(|(_, next)| next);
                // Inside a nested reference, its own parsing removes the backslash.
                if functions > 0 || !matches!(next, Some('$' | ',' | '\\')) {
                    buffer.push('\\');
                }
                buffer.extend(next);
                previous = ' ';
                continue;
            }
            ',' if functions == 0 => {
                arguments.push(TextTemplate::parse_at_call_site(
                    &std::mem::take(&mut buffer),
                    call_site,
                )?);
            }
            ')' if functions == 0 && parentheses == 0 => {
                if !(arguments.is_empty() && buffer.is_empty()) {
                    arguments.push(TextTemplate::parse_at_call_site(&buffer, call_site)?);
                }
                return Ok((arguments, text.get(at + 1..).unwrap_or_default()));
            }
            '{' if previous == '$' => {
                functions += 1;
                buffer.push(c);
            }
            '}' if functions > 0 => {
                functions -= 1;
                buffer.push(c);
            }
            ')' if functions == 0 => {
                parentheses -= 1;
                buffer.push(c);
            }
            '(' if functions == 0 => {
                parentheses += 1;
                buffer.push(c);
            }
            _ => buffer.push(c),
        }
        previous = c;
    }
    Err(TextTemplateError(format!("unterminated function arguments: `{text}`")))
}
