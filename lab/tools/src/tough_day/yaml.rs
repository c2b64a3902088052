//! Parses the subset of YAML that Tough Day's configurations use: maps and lists by indentation, plain and quoted
//! strings, lists in brackets, comments. Other YAML syntax is reported with its line.

use tympan_lab_plan::FileFinding;

/// A value, with the line on which it begins.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct YamlNode {
    pub(super) line: u32,
    pub(super) value: YamlValue,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum YamlValue {
    Text(String),
    List(Vec<YamlNode>),
    /// In the order of the file.
    Map(Vec<(String, YamlNode)>),
}

struct YamlLine<'t> {
    line_number: u32,
    indent: usize,
    text: &'t str,
}

/// Maximum nesting depth.
const MAX_YAML_DEPTH: usize = 30;

/// Parses a file.
///
/// # Errors
/// The line that is not understood.
pub(super) fn parse_yaml(text: &str, file: &str) -> Result<YamlNode, FileFinding> {
    let fault = |line: u32, message: String| FileFinding {
        file: file.to_owned(),
        line,
        column: 1,
        message,
    };
    let mut lines = Vec::new();
    for (number, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let number = u32::try_from(number + 1).unwrap_or(u32::MAX);
        let bare = strip_comment(line).trim_end();
        let trimmed = bare.trim_start();
        if trimmed.is_empty() || (bare == "---" && lines.is_empty()) {
            continue;
        }
        let indent = bare.len() - trimmed.len();
        if bare.get(..indent).is_some_and(|blank| blank.contains('\t')) {
            return Err(fault(
                number,
                "lines must be indented with spaces, not with tabs".to_owned(),
            ));
        }
        lines.push(YamlLine { line_number: number, indent, text: trimmed });
    }
    let mut reader = YamlReader { lines, position: 0 };
    let Some(first) = reader.lines.first() else {
        return Ok(YamlNode { line: 1, value: YamlValue::Map(Vec::new()) });
    };
    let indent = first.indent;
    let node = reader.read_block(indent, 0).map_err(|(line, message)| fault(line, message))?;
    match reader.lines.get(reader.position) {
        None => Ok(node),
        Some(line) => Err(fault(
            line.line_number,
            format!("the indentation of `{}` matches no line above", line.text),
        )),
    }
}

/// Removes a comment: ` #` outside quotes.
fn strip_comment(line: &str) -> &str {
    let (mut quote, mut before) = (None, ' ');
    for (at, letter) in line.char_indices() {
        match quote {
            Some(mark) if letter == mark => quote = None,
            Some(_) => {}
            None if (letter == '"' || letter == '\'') && matches!(before, ' ' | '[' | ',') => {
                quote = Some(letter);
            }
            None if letter == '#' && before.is_whitespace() => {
                return line.get(..at).unwrap_or_default();
            }
            None => {}
        }
        before = letter;
    }
    line
}

struct YamlReader<'t> {
    lines: Vec<YamlLine<'t>>,
    position: usize,
}

type YamlFault = (u32, String);

impl<'t> YamlReader<'t> {
    /// Reads the map or list whose lines have the given indentation.
    fn read_block(&mut self, indent: usize, depth: usize) -> Result<YamlNode, YamlFault> {
        let Some(first) = self.lines.get(self.position) else {
            return Ok(YamlNode { line: 0, value: YamlValue::Text(String::new()) });
        };
        let line = first.line_number;
        if depth > MAX_YAML_DEPTH {
            return Err((line, "it is nested too deeply".to_owned()));
        }
        let is_list = is_list_item(first.text);
        let (mut items, mut entries): (Vec<YamlNode>, Vec<(String, YamlNode)>) =
            (Vec::new(), Vec::new());
        while let Some(next) = self.lines.get(self.position) {
            if next.indent != indent || is_list_item(next.text) != is_list {
                break;
            }
            if is_list {
                items.push(self.read_list_item(indent, depth)?);
            } else {
                let (key, value) = self.read_map_entry(indent, depth)?;
                if entries.iter().any(|(entry_key, _)| *entry_key == key) {
                    return Err((value.line, format!("duplicate key `{key}`")));
                }
                entries.push((key, value));
            }
        }
        if let Some(next) = self.lines.get(self.position).filter(|next| next.indent > indent) {
            return Err((
                next.line_number,
                format!("the indentation of `{}` matches no line above", next.text),
            ));
        }
        let value = if is_list { YamlValue::List(items) } else { YamlValue::Map(entries) };
        Ok(YamlNode { line, value })
    }

    fn read_list_item(&mut self, indent: usize, depth: usize) -> Result<YamlNode, YamlFault> {
        let Some(line) = self.lines.get_mut(self.position) else { return Err((0, String::new())) };
        let number = line.line_number;
        let rest = line.text.strip_prefix('-').unwrap_or_default();
        let inner = rest.trim_start();
        if inner.is_empty() {
            self.position += 1;
            return self.read_nested(indent, number, depth);
        }
        if !is_list_item(inner) && split_key(inner).is_none() {
            let value = parse_scalar(inner, number)?;
            self.position += 1;
            return Ok(value);
        }
        // `- key: value` begins a map whose other keys are on the following lines.
        line.indent = indent + line.text.len() - inner.len();
        line.text = inner;
        let deeper = line.indent;
        self.read_block(deeper, depth + 1)
    }

    fn read_map_entry(
        &mut self,
        indent: usize,
        depth: usize,
    ) -> Result<(String, YamlNode), YamlFault> {
        let Some(line) = self.lines.get(self.position) else { return Err((0, String::new())) };
        let (number, text) = (line.line_number, line.text);
        let Some((key, rest)) = split_key(text) else {
            return Err((number, format!("`{text}` is not a `key: value` pair")));
        };
        let key = unquote(key).to_owned();
        self.position += 1;
        if !rest.is_empty() {
            return Ok((key, parse_scalar(rest, number)?));
        }
        Ok((key, self.read_nested(indent, number, depth)?))
    }

    /// Reads the lines indented deeper than their parent. A list may have the same indentation as its key.
    fn read_nested(
        &mut self,
        indent: usize,
        number: u32,
        depth: usize,
    ) -> Result<YamlNode, YamlFault> {
        match self.lines.get(self.position) {
            Some(next) if next.indent > indent => {
                let deeper = next.indent;
                self.read_block(deeper, depth + 1)
            }
            Some(next) if next.indent == indent && is_list_item(next.text) => {
                self.read_block(indent, depth + 1)
            }
            _ => Ok(YamlNode { line: number, value: YamlValue::Text(String::new()) }),
        }
    }
}

fn is_list_item(text: &str) -> bool {
    text == "-" || text.starts_with("- ")
}

fn split_key(text: &str) -> Option<(&str, &str)> {
    if let Some(key) = text.strip_suffix(':') {
        return Some((key.trim_end(), ""));
    }
    let at = text.find(": ")?;
    Some((text.get(..at)?.trim_end(), text.get(at + 1..)?.trim()))
}

fn unquote(text: &str) -> &str {
    let inner = |mark| text.strip_prefix(mark).and_then(|text| text.strip_suffix(mark));
    inner('"').or_else(|| inner('\'')).unwrap_or(text)
}

fn parse_scalar(text: &str, line: u32) -> Result<YamlNode, YamlFault> {
    let unsupported =
        |feature: &str| Err((line, format!("`{text}`: YAML {feature} are not supported")));
    let plain =
        |text: &str| YamlNode { line, value: YamlValue::Text(unquote(text.trim()).to_owned()) };
    match text.chars().next() {
        Some('&' | '*') => unsupported("anchors"),
        Some('|' | '>') => unsupported("block scalars"),
        Some('!') => unsupported("tags"),
        Some('{') => unsupported("flow mappings"),
        Some('[') => match text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
            None => Err((line, format!("unterminated list `{text}`"))),
            Some(inner) => {
                let parts = inner.split(',').filter(|part| !part.trim().is_empty());
                Ok(YamlNode { line, value: YamlValue::List(parts.map(plain).collect()) })
            }
        },
        _ => Ok(plain(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(node: &YamlNode) -> String {
        match &node.value {
            YamlValue::Text(text) => format!("'{text}'"),
            YamlValue::List(items) => {
                format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(" "))
            }
            YamlValue::Map(entries) => {
                let entries = entries.iter().map(|(key, value)| format!("{key}={}", shown(value)));
                format!("{{{}}}", entries.collect::<Vec<_>>().join(" "))
            }
        }
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(shown(&parse_yaml(text, "x").unwrap()), expected);
    }

    #[test]
    fn configurations_of_tough_day_are_read() {
        check(
            "globals:\n  host: localhost # here\n  port : 4502\ntests:\n- add: CreatePageTree\n  properties:\n    weight: 15\n    \
             title: \"a # b\"\n- exclude: X\nmetrics:\n  - add: passed\n  -\n    add: failed\nlist: [a, 'b']\nempty:\n",
            "{globals={host='localhost' port='4502'} tests=[{add='CreatePageTree' properties={weight='15' title='a # b'}} \
             {exclude='X'}] metrics=[{add='passed'} {add='failed'}] list=['a' 'b'] empty=''}",
        );
        check("", "{}");
        check("---\na: http://x:80/y", "{a='http://x:80/y'}");
    }

    #[test]
    fn what_is_not_understood_is_reported_with_its_line() {
        for (text, line) in [
            ("a: 1\n\tb: 2", 2),
            ("a: 1\n   b: 2", 2),
            ("a:\n  b: 1\n c: 2", 3),
            ("a: &x 1", 1),
            ("a: |", 1),
            ("a: [1", 1),
            ("a: 1\na: 2", 2),
            ("- a\nb: 1", 2),
            ("words", 1),
        ] {
            assert_eq!(parse_yaml(text, "x").unwrap_err().line, line, "{text}");
        }
        let deep: String = (0..100).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
        assert!(parse_yaml(&deep, "x").is_err());
    }
}
