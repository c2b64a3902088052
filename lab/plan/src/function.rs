//! The subset of JMeter's functions that plans use.

use super::expression::{self, NumberSemantics};
use super::function_name::JMeterFunction;
use super::html_entity::HTML_ENTITIES;
use super::java_date;
use super::regex_pattern::{compile_pattern, fill_group_template};
use super::script::{self, ScriptDialect};
use super::template::{FunctionCall, TextTemplate};
use super::variable_scope::VariableScope;

impl JMeterFunction {
    /// Returns the minimum number of arguments of a call.
    fn min_argument_count(self) -> usize {
        match self {
            Self::ConvertTime | Self::RandomDate | Self::Substring => 3,
            Self::Random
            | Self::SetProperty
            | Self::Sum
            | Self::Split
            | Self::Digest
            | Self::Regex
            | Self::FileRow
            | Self::Choose => 2,
            Self::Property
            | Self::ShortProperty
            | Self::RandomString
            | Self::Variable
            | Self::Evaluate
            | Self::EvaluateVariable
            | Self::Jexl
            | Self::JavaScript
            | Self::Groovy
            | Self::BeanShell
            | Self::Base64Encode
            | Self::Base64Decode
            | Self::UrlEncode
            | Self::UrlDecode
            | Self::EscapeHtml
            | Self::Lowercase
            | Self::Uppercase
            | Self::ChangeCase
            | Self::IsVariable
            | Self::IsProperty
            | Self::RandomOfVariables
            | Self::Unescape
            | Self::UnescapeHtml
            | Self::EscapeXml
            | Self::EscapePattern
            | Self::Length
            | Self::FileText
            | Self::FileLine
            | Self::Character => 1,
            _ => 0,
        }
    }

    /// Validates a call, as far as possible before it runs.
    pub(crate) fn check_call(self, call: &FunctionCall) -> Result<(), String> {
        let needed = self.min_argument_count();
        if call.arguments.len() < needed {
            return Err(format!("`${{{}`: {needed} arguments are required", call.source));
        }
        match (self, call.arguments.first()) {
            (Self::Jexl, Some(script)) => expression::check_script(script),
            (Self::JavaScript, Some(script)) => expression::check_javascript(script),
            (Self::Groovy, Some(script)) => expression::check_script(script).or_else(|fault| {
                script::check_function_script(script, ScriptDialect::Groovy).map_err(|_| fault)
            }),
            (Self::BeanShell, Some(script)) => {
                script::check_function_script(script, ScriptDialect::Java)
            }
            (Self::TimeShift, Some(format)) => {
                java_date::check_pattern(format)?;
                java_date::check_locale(format, call.arguments.get(3))
            }
            (Self::Time | Self::RandomDate, Some(format)) => java_date::check_pattern(format),
            (Self::ConvertTime, _) => {
                call.arguments.iter().skip(1).take(2).try_for_each(java_date::check_pattern)
            }
            (Self::Digest, Some(name)) => match name.as_literal() {
                Some(name) if message_digest(name, "").is_none() => {
                    Err(format!("`${{{}`: unknown digest `{name}`", call.source))
                }
                _ => Ok(()),
            },
            (Self::FileLine, _) if call.arguments.get(2).is_some_and(|first| !first.is_empty()) => {
                Err(format!("`${{{}`: numbered files are not supported", call.source))
            }
            (Self::FileRow, Some(file))
                if [Some(file), call.arguments.get(1)].into_iter().flatten().any(is_file_alias) =>
            {
                Err(format!("`${{{}`: file aliases are not supported", call.source))
            }
            // Its default input is the previous response, which is available only through a variable that the call
            // names.
            (Self::Regex, _) if call.arguments.get(6).is_none_or(TextTemplate::is_empty) => {
                Err(format!(
                    "`${{{}`: the seventh argument must name the variable to search",
                    call.source
                ))
            }
            (Self::Regex, Some(pattern)) => match pattern.as_literal() {
                Some(pattern) => compile_pattern(pattern).map(drop),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Returns the value for evaluated arguments. Functions that evaluate texts are not handled here, because they need
    /// templates.
    pub(crate) fn call(
        self,
        arguments: &[String],
        call_site: &str,
        scope: &mut VariableScope,
    ) -> String {
        let text = |index: usize| arguments.get(index).map_or("", String::as_str);
        let number = |index: usize| text(index).trim().parse::<i64>().unwrap_or(0);
        let (value, variable_index) = match self {
            Self::Property => {
                let default = arguments.get(2).cloned().unwrap_or_else(|| text(0).to_owned());
                (scope.run_context.property(text(0)).unwrap_or(default), 1)
            }
            Self::ShortProperty => {
                let default = arguments.get(1).cloned().unwrap_or_else(|| "1".to_owned());
                (scope.run_context.property(text(0)).unwrap_or(default), usize::MAX)
            }
            Self::SetProperty => {
                let old = scope.run_context.set_property(text(0), text(1));
                let wants = text(2).eq_ignore_ascii_case("true");
                (if wants { old.unwrap_or_default() } else { String::new() }, usize::MAX)
            }
            Self::Random => (scope.random_between(number(0), number(1)).to_string(), 2),
            Self::RandomString => (random_string(number(0), text(1), scope), 2),
            Self::Uuid => (random_uuid(scope), usize::MAX),
            Self::Time => (java_date::format_now(text(0), VariableScope::now_ms()), 1),
            Self::TimeShift => {
                (java_date::shift_date(text(0), text(1), text(2), VariableScope::now_ms()), 4)
            }
            Self::ThreadNumber => (scope.thread_number.to_string(), usize::MAX),
            Self::ThreadGroupName => (scope.group_name.to_string(), usize::MAX),
            Self::ThreadName => (scope.thread_name.to_string(), usize::MAX),
            Self::TestPlanName => {
                (scope.run_context.property("tympan.plan").unwrap_or_default(), usize::MAX)
            }
            Self::IterationNumber => (scope.iteration.to_string(), usize::MAX),
            Self::Counter => {
                let count = if text(0).eq_ignore_ascii_case("true") {
                    scope.next_count(call_site)
                } else {
                    scope.run_context.next_count(call_site)
                };
                (count.to_string(), 1)
            }
            Self::Variable => {
                let default = arguments.get(1).cloned().unwrap_or_else(|| text(0).to_owned());
                (scope.variable(text(0)).map_or(default, str::to_owned), usize::MAX)
            }
            Self::Jexl | Self::JavaScript => {
                let is_jexl = self == Self::Jexl;
                let numbers =
                    if is_jexl { NumberSemantics::Jexl } else { NumberSemantics::JavaScript };
                let value =
                    expression::evaluate_expression(text(0), numbers, scope).unwrap_or_default();
                (value_text(&value), 1)
            }
            Self::Groovy => {
                let value =
                    match expression::evaluate_expression(text(0), NumberSemantics::Decimal, scope)
                    {
                        Ok(value) => value_text(&value),
                        // Not a single expression.
                        Err(_) => {
                            match script::run_function_script(text(0), ScriptDialect::Groovy, scope)
                            {
                                Ok(script::ScriptValue::Null) | Err(_) => String::new(),
                                Ok(value) => value.to_string(),
                            }
                        }
                    };
                (value, 1)
            }
            Self::BeanShell => {
                // The value of the last statement is that of the script.
                let value =
                    match script::run_function_script_to_value(text(0), ScriptDialect::Java, scope)
                    {
                        Ok(script::ScriptValue::Null) | Err(_) => String::new(),
                        Ok(value) => value.to_string(),
                    };
                (value, 1)
            }
            Self::Sum => {
                let numbers: Vec<i64> =
                    arguments.iter().map_while(|addend| addend.trim().parse().ok()).collect();
                (numbers.iter().sum::<i64>().to_string(), numbers.len())
            }
            Self::Split => (
                split_into_variables(text(0), text(1), arguments.get(2).map(String::as_str), scope),
                usize::MAX,
            ),
            Self::ChangeCase => (change_case(text(0), text(1)), 2),
            Self::IsVariable => (scope.variable(text(0)).is_some().to_string(), usize::MAX),
            Self::IsProperty => {
                (scope.run_context.property(text(0)).is_some().to_string(), usize::MAX)
            }
            Self::MachineName => (machine_name(), 0),
            Self::MachineAddress => ("127.0.0.1".to_owned(), 0),
            Self::Log => (text(0).to_owned(), usize::MAX),
            // The function only writes to the log, which is not used here.
            Self::LogOnly => (String::new(), usize::MAX),
            Self::ConvertTime => (java_date::convert_date(text(0), text(1), text(2)), 3),
            Self::RandomDate => {
                let random = 1.0 - scope.random_unit();
                (java_date::random_date(text(0), text(1), text(2), random), 4)
            }
            Self::Digest => {
                let salted = format!("{}{}", text(1), text(2));
                let digest = message_digest(text(0), &salted).unwrap_or_default();
                let is_upper = text(3).trim().eq_ignore_ascii_case("true");
                (if is_upper { digest.to_uppercase() } else { digest }, 4)
            }
            Self::RandomOfVariables => (random_variable_value(text(0), scope), 1),
            Self::Regex => {
                let subject = scope.variable(text(6)).unwrap_or_default().to_owned();
                (extract_by_regex(arguments, &subject, scope), usize::MAX)
            }
            Self::Length => (text(0).chars().count().to_string(), 1),
            Self::Substring => {
                let all: Vec<char> = text(0).chars().collect();
                let position = |at: usize| usize::try_from(number(at)).unwrap_or(0).min(all.len());
                let (from, to) = (position(1), position(2));
                (all.get(from..to.max(from)).unwrap_or_default().iter().collect(), 3)
            }
            // Unreadable files give JMeter's error text.
            Self::FileText => (
                scope
                    .run_context
                    .file_text(text(0))
                    .unwrap_or_else(|_| UNREADABLE_FILE_TEXT.to_owned()),
                2,
            ),
            Self::FileLine => {
                let lines = scope.run_context.file_lines(text(0), false).unwrap_or_default();
                // Each call site in the plan has its own position in the lines, shared by all threads.
                let turn = scope.run_context.next_count(call_site).saturating_sub(1);
                let line = cyclic_line(&lines, turn)
                    .map_or_else(|| UNREADABLE_FILE_TEXT.to_owned(), str::to_owned);
                (line, 1)
            }
            Self::FileRow => (current_row_column(text(0), text(1), scope), usize::MAX),
            Self::Choose => {
                // The last argument is the name of the variable.
                let last = arguments.len().saturating_sub(1);
                let most = i64::try_from(last).unwrap_or(1) - 1;
                let at = usize::try_from(scope.random_between(0, most)).unwrap_or(0);
                (text(at).to_owned(), last)
            }
            _ => (transform_text(self, arguments), 1),
        };
        store_result(arguments, variable_index, &value, scope);
        value
    }
}

/// Stores a result in the variable that an argument names: many functions have such a last argument.
pub(super) fn store_result(
    arguments: &[String],
    variable_index: usize,
    value: &str,
    scope: &mut VariableScope,
) {
    if let Some(name) = arguments.get(variable_index).map(|name| name.trim())
        && !name.is_empty()
    {
        scope.set_variable(name, value);
    }
}

/// Returns the value of an expression as text; empty for a missing value.
fn value_text(value: &expression::ExpressionValue) -> String {
    match value {
        expression::ExpressionValue::Null => String::new(),
        value => value.to_string(),
    }
}

/// Functions that convert one text to another.
fn transform_text(function: JMeterFunction, arguments: &[String]) -> String {
    use base64::Engine as _;
    let text = arguments.first().map_or("", String::as_str);
    let base64 = base64::engine::general_purpose::STANDARD;
    match function {
        JMeterFunction::Base64Encode => base64.encode(text),
        JMeterFunction::Base64Decode => {
            String::from_utf8_lossy(&base64.decode(text.trim()).unwrap_or_default()).into_owned()
        }
        JMeterFunction::UrlEncode => super::form_encoding::encode_form(text),
        JMeterFunction::UrlDecode => {
            let spaced = text.replace('+', " ");
            percent_encoding::percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
        }
        JMeterFunction::Unescape => crate::property_file::unescape(text, "b"),
        JMeterFunction::UnescapeHtml => unescape_html(text),
        JMeterFunction::EscapeXml => text
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
            .replace('"', "&quot;")
            .replace('\'', "&apos;"),
        JMeterFunction::EscapePattern => text.chars().fold(String::new(), |mut out, letter| {
            if !letter.is_alphanumeric() && letter != '_' {
                out.push('\\');
            }
            out.push(letter);
            out
        }),
        JMeterFunction::EscapeHtml => escape_html(text),
        JMeterFunction::Lowercase => text.to_lowercase(),
        JMeterFunction::Uppercase => text.to_uppercase(),
        JMeterFunction::Character => arguments
            .iter()
            .filter_map(|argument| {
                let argument = argument.trim();
                let code = match argument.strip_prefix("0x") {
                    Some(hex) => u32::from_str_radix(hex, 16).ok(),
                    None => argument.parse().ok(),
                };
                code.and_then(char::from_u32)
            })
            .collect(),
        _ => String::new(),
    }
}

fn random_string(length: i64, alphabet: &str, scope: &mut VariableScope) -> String {
    let alphabet: Vec<char> = if alphabet.is_empty() {
        ('0'..='9').chain('A'..='Z').chain('a'..='z').collect()
    } else {
        alphabet.chars().collect()
    };
    let last = i64::try_from(alphabet.len()).unwrap_or(1) - 1;
    (0..length.clamp(0, 1 << 20))
        .filter_map(|_| {
            let index = usize::try_from(scope.random_between(0, last)).unwrap_or(0);
            alphabet.get(index).copied()
        })
        .collect()
}

fn random_uuid(scope: &mut VariableScope) -> String {
    let (high, low) = (scope.next_random(), scope.next_random());
    let high = (high & !0xF000) | 0x4000;
    let low = (low & !(0b11 << 62)) | (0b10 << 62);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xFFFF,
        high & 0xFFFF,
        low >> 48,
        low & 0xFFFF_FFFF_FFFF
    )
}

fn change_case(text: &str, mode: &str) -> String {
    match mode.trim().to_ascii_uppercase().as_str() {
        "" | "UPPER" => text.to_uppercase(),
        "LOWER" => text.to_lowercase(),
        "CAPITALIZE" => {
            let mut chars = text.chars();
            let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
            first + chars.as_str()
        }
        _ => text.to_owned(),
    }
}

fn split_into_variables(
    text: &str,
    name: &str,
    delimiter: Option<&str>,
    scope: &mut VariableScope,
) -> String {
    let delimiter = delimiter.filter(|delimiter| !delimiter.is_empty()).unwrap_or(",");
    let mut count = 0;
    for part in text.split(delimiter) {
        count += 1;
        scope.set_variable(&format!("{name}_{count}"), if part.is_empty() { "?" } else { part });
    }
    scope.set_variable(name, text);
    scope.set_variable(&format!("{name}_n"), &count.to_string());
    scope.remove_variable(&format!("{name}_{}", count + 1));
    text.to_owned()
}

fn machine_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .unwrap_or_default()
}

/// The result of functions if a file cannot be read.
const UNREADABLE_FILE_TEXT: &str = "**ERR**";

fn is_file_alias(argument: &TextTemplate) -> bool {
    argument.as_literal().is_some_and(|text| text.trim_start().starts_with('*'))
}

/// Returns the line for a turn; lines repeat after the last.
fn cyclic_line(lines: &[String], turn: u64) -> Option<&str> {
    let count = u64::try_from(lines.len()).ok().filter(|count| *count > 0)?;
    lines.get(usize::try_from(turn % count).ok()?).map(String::as_str)
}

/// Returns a column of the user's current row of a file; `next` releases the row, so that the next column comes from
/// the next unused row.
fn current_row_column(file: &str, column: &str, scope: &mut VariableScope) -> String {
    if column.trim() == "next" {
        scope.file_rows.remove(file);
        return String::new();
    }
    let Ok(rows) = scope.run_context.file_lines(file, true) else { return String::new() };
    let row = match scope.file_rows.get(file) {
        Some(row) => *row,
        None => {
            let count = scope.run_context.next_count(&format!("rows of {file}")).saturating_sub(1);
            let row = usize::try_from(count).unwrap_or(0) % rows.len().max(1);
            scope.file_rows.insert(file.to_owned(), row);
            row
        }
    };
    let column = column.trim().parse::<usize>().ok();
    let cell = column.and_then(|column| rows.get(row)?.split(',').nth(column));
    cell.unwrap_or_default().to_owned()
}

/// Returns a digest in hexadecimal, by its Java name.
fn message_digest(name: &str, text: &str) -> Option<String> {
    use md5::Digest as _;
    let text = text.as_bytes();
    let bytes = match name.trim().to_ascii_uppercase().as_str() {
        "MD2" => md2::Md2::digest(text).to_vec(),
        "MD5" => md5::Md5::digest(text).to_vec(),
        "SHA" | "SHA1" | "SHA-1" => sha1::Sha1::digest(text).to_vec(),
        "SHA-224" | "SHA224" => sha2::Sha224::digest(text).to_vec(),
        "SHA-256" | "SHA256" => sha2::Sha256::digest(text).to_vec(),
        "SHA-384" | "SHA384" => sha2::Sha384::digest(text).to_vec(),
        "SHA-512" | "SHA512" => sha2::Sha512::digest(text).to_vec(),
        "SHA-512/224" => sha2::Sha512_224::digest(text).to_vec(),
        "SHA-512/256" => sha2::Sha512_256::digest(text).to_vec(),
        "SHA3-224" => sha3::Sha3_224::digest(text).to_vec(),
        "SHA3-256" => sha3::Sha3_256::digest(text).to_vec(),
        "SHA3-384" => sha3::Sha3_384::digest(text).to_vec(),
        "SHA3-512" => sha3::Sha3_512::digest(text).to_vec(),
        _ => return None,
    };
    Some(hex::encode(bytes))
}

/// Returns the value of a random one of the variables, which are separated by `|`; a variable with numbered matches
/// counts once for each.
fn random_variable_value(names: &str, scope: &mut VariableScope) -> String {
    let mut values = Vec::new();
    for name in names.split('|').map(str::trim) {
        let count = scope.variable(&format!("{name}_matchNr")).and_then(|count| count.parse().ok());
        match count {
            Some(count) => (1..=u64::min(count, 10_000))
                .filter_map(|number| scope.variable(&format!("{name}_{number}")))
                .for_each(|value| values.push(value.to_owned())),
            None => values.extend(scope.variable(name).map(str::to_owned)),
        }
    }
    let last = i64::try_from(values.len()).unwrap_or(0) - 1;
    let at = usize::try_from(scope.random_between(0, last.max(0))).unwrap_or(0);
    values.into_iter().nth(at).unwrap_or_default()
}

/// Searches a text with a regular expression. The arguments are: template, match (a number, `RAND`, `ALL`), separator
/// for all matches, default, and the variable for the result, with its groups and the number of matches.
fn extract_by_regex(arguments: &[String], subject: &str, scope: &mut VariableScope) -> String {
    let text = |index: usize| arguments.get(index).map_or("", String::as_str);
    let matches =
        compile_pattern(text(0)).map(|pattern| pattern.match_groups(subject)).unwrap_or_default();
    let last = i64::try_from(matches.len()).unwrap_or(0) - 1;
    let chosen = match text(2).trim() {
        "ALL" => matches.last(),
        "RAND" if last >= 0 => {
            let at = usize::try_from(scope.random_between(0, last)).unwrap_or(0);
            matches.get(at)
        }
        "" | "RAND" => matches.first(),
        number => {
            let at = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
            at.and_then(|at| matches.get(at))
        }
    };
    let fill = |groups: &Vec<String>| fill_group_template(text(1), groups);
    let name = text(5).trim();
    let result = chosen.map_or_else(|| text(4).to_owned(), fill);
    if !name.is_empty() {
        scope.set_variable(&format!("{name}_matchNr"), &matches.len().to_string());
        for (number, group) in chosen.into_iter().flatten().enumerate() {
            scope.set_variable(&format!("{name}_g{number}"), group);
        }
        scope.set_variable(name, &result);
    }
    if text(2).trim() == "ALL" && !matches.is_empty() {
        return matches.iter().map(fill).collect::<Vec<_>>().join(text(3));
    }
    result
}

/// Replaces characters by their HTML 4 entity names.
fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match HTML_ENTITIES.binary_search_by_key(&letter, |(_, entity_letter)| *entity_letter) {
            Ok(index) => {
                let name = HTML_ENTITIES.get(index).map_or("", |(name, _)| name);
                out.push('&');
                out.push_str(name);
                out.push(';');
            }
            Err(_) => out.push(letter),
        }
    }
    out
}

/// Decodes HTML entities: common names, and numbers.
fn unescape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let name = after.split(';').next().unwrap_or_default();
        let entity = (name.len() < after.len()).then(|| named_entity(name)).flatten();
        match entity {
            Some(letter) => {
                out.push(letter);
                rest = after.get(name.len() + 1..).unwrap_or_default();
            }
            None => {
                out.push('&');
                rest = after;
            }
        }
    }
    out + rest
}

fn named_entity(name: &str) -> Option<char> {
    if let Some(number) = name.strip_prefix('#') {
        let code = match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16),
            None => number.parse(),
        };
        return code.ok().and_then(char::from_u32);
    }
    if name == "apos" {
        return Some('\'');
    }
    HTML_ENTITIES.iter().find(|(entity_name, _)| *entity_name == name).map(|(_, letter)| *letter)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::variable_scope::RunContext;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let mut scope = VariableScope::new(Arc::new(RunContext::default()));
        scope.set_variable("body", "id=7 id=8");
        scope.set_variable("v_matchNr", "1");
        scope.set_variable("v_1", "seven");
        let template = TextTemplate::parse(text).unwrap();
        assert_eq!(template.evaluate(&mut scope), expected, "{text}");
    }

    #[test]
    fn files_are_read_by_lines_and_by_rows() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("f.txt"), "\u{feff}# names\na,1\n\nb,2\r\n").unwrap();
        let files = crate::plan_file::PlanFiles::in_folder(folder.path().to_owned());
        let world = Arc::new(RunContext::new(std::collections::HashMap::new(), 1, files));
        let mut users = [VariableScope::new(Arc::clone(&world)), VariableScope::new(world)];
        let mut draw = |user: usize, text: &str| {
            TextTemplate::parse(text).unwrap().evaluate(&mut users[user]).into_owned()
        };
        // Each user has a row, and keeps it until it requests the next one.
        assert_eq!(draw(0, "${__CSVRead(f.txt,0)}${__CSVRead(f.txt,1)}"), "a1");
        assert_eq!(draw(1, "${__CSVRead(f.txt,0)}"), "b");
        assert_eq!(draw(0, "${__CSVRead(f.txt,next)}${__CSVRead(f.txt,0)}"), "a");
        assert_eq!(draw(1, "${__CSVRead(f.txt,1)}${__CSVRead(f.txt,9)}"), "2");
        let line = "${__StringFromFile(f.txt)}";
        assert_eq!((draw(0, line), draw(1, line)), ("# names".to_owned(), "a,1".to_owned()));
        assert!(draw(0, "${__FileToString(f.txt)}").starts_with("# names\na,1"));
        assert_eq!(draw(0, "${__FileToString(none)}${__StringFromFile(none)}"), "**ERR****ERR**");
        assert_eq!(draw(0, "${__CSVRead(none,0)}"), "");
    }

    #[test]
    fn functions_give_what_they_give_in_jmeter() {
        check("${__digest(MD5,Errare humanum est,,,)}", "c49f00b92667a35c63708933384dad52");
        check("${__digest(SHA-1,b,a,true,)}", "6C0596B8AC609191181A90517D51C0B486F23799");
        check("${__RandomFromMultipleVars(v)}", "seven");
        check("${__regexFunction(id=(\\d),$1$,ALL,-,none,,body)}", "7-8");
        check("${__regexFunction(no=(\\d),$1$,1,,none,,body)}", "none");
        check("${__unescape(a\\\\tb)}", "a\tb");
        check("${__unescapeHtml(&lt;a&#33; &bogus; &)}", "<a! &bogus; &");
        check("${__escapeXml(<'a'>)}", "&lt;&apos;a&apos;&gt;");
        check("${__escapeOroRegexpChars([^\"].+?,)}", "\\[\\^\\\"\\]\\.\\+\\?");
        check("${__logn(x)}${__log(y)}", "y");
        check(
            "${__changeCase(Hello,lower,)}${__changeCase(Hello,bogus)}${__changeCase(a)}",
            "helloHelloA",
        );
        check("${__digest(MD2,abc,,,)}", "da853b0d3f88d99b30283a69e6ded6bb");
        // The examples of FIPS 202 and FIPS 180-4 for the text `abc`.
        check(
            "${__digest(SHA3-224,abc,,,)}",
            "e642824c3f8cf24ad09234ee7d3c766fc9a3a5168d0c94ad73b46fdf",
        );
        check(
            "${__digest(sha3-256,abc,,,)}",
            "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532",
        );
        check(
            "${__digest(SHA3-384,abc,,,)}",
            "ec01498288516fc926459f58e2c6ad8df9b473cb0fc08c2596da7cf0e49be4b2\
             98d88cea927ac7f539f1edf228376d25",
        );
        check(
            "${__digest(SHA3-512,abc,,,)}",
            "b751850b1a57168a5693cd924b6b096e08f621827444f70d884f5d0240d2712e\
             10e116e9192af3c91a7ec57647e3934057340b4cf408d5a56592f8274eec53f0",
        );
        check(
            "${__digest(SHA-512/224,abc,,,)}",
            "4634270f707b6a54daae7530460842e20e37ed265ceee9a43e8924aa",
        );
        check(
            "${__digest(SHA-512/256,abc,,,)}",
            "53048e2681941ef99b2e29b76b4c7dabe4c2d0c634fc6d46e0e2f13107e7af23",
        );
        check("${__BeanShell(6 * 7)}${__BeanShell(int a = 2; a + 1)}", "423");
        check(
            "${__digest(SHA-256,abc,salt,,)}",
            "169b3a2b0977ebee2eb1fd392c6aa470a3281d439ff32f20baea7309d7f40eec",
        );
        check(
            "${__digest(SHA256,abc,,,)}",
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        );
        check(
            "${__regexFunction((i)d=(\\d),$2$,1,,none,r,body)}|${r}|${r_g1}|${r_g2}|${r_matchNr}",
            "7|7|i|7|2",
        );
        check("${__regexFunction(id=(\\d),$1$,ALL,-,none,r,body)}|${r}", "7-8|8");
        check("${__escapeHtml(<é\u{2013}'€>)}", "&lt;&eacute;&ndash;'&euro;&gt;");
        check("${__unescapeHtml(&hearts;&bogus;&#233;)}", "\u{2665}&bogus;é");
        check(
            "${__jexl3(7/2)}|${__jexl3(10/4*2)}|${__jexl3(7/2.0)}|${__jexl3(-7/2)}",
            "3|4|3.5|-3",
        );
        check(
            "${__jexl3(1.0+2)}|${__jexl3(2*3.5)}|${__jexl3(1.50)}|${__jexl3(1e10)}",
            "3.0|7.0|1.5|1.0E10",
        );
        check(
            "${__jexl3(100000*100000)}|${__jexl3(\"3\"*2)}|${__jexl3(5 - \"2\")}",
            "10000000000|6|3",
        );
        check(
            "${__jexl3(1/0)}|${__jexl3(\"1\"+2)}|${__jexl3(7 div 2)}|${__jexl3(7 mod 4)}",
            "|12|3|3",
        );
        check(
            "${__jexl3(\"10\" > \"9\")}|${__jexl3(\"5\" > 3)}|${__jexl3(2 == 2.0)}",
            "false|true|true",
        );
        check("${__jexl3(\"\" ?: \"d\")}|${__jexl3(empty \"\")}", "d|true");
        check("${__javaScript(7/2)}|${__groovy(7/2)}|${__javaScript(6/2)}", "3.5|3.5|3");
        check("${__strLen(äbc)}${__substring(abcdef,1,3)}", "3bc");
        check("${__chooseRandom(a,a,x)}${x}", "aa");
        check("${__groovy(def n = 2; n * 3)}${__groovy(vars.get('none'))}", "6");
        check("${__dateTimeConvert(01212018,MMddyyyy,yyyy-MM-dd,)}", "2018-01-21");
        check("${__timeShift(yyyy-MM-dd,2019-02-27,P2D,,)}", "2019-03-01");
        check("${__RandomDate(yyyy-MM-dd,2024-02-29,2024-03-01,,)}", "2024-02-29");
    }
}
