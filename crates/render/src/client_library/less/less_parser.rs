//! The statements of a LESS file, with their lines.

use std::rc::Rc;

use super::less_fault::LessFault;

/// Maximum nesting depth of blocks.
const MAX_BLOCK_DEPTH: usize = 64;

/// A statement with its place.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LocatedStatement {
    pub file: Rc<str>,
    /// The line of its beginning, from 1.
    pub line: usize,
    pub statement: LessStatement,
}

/// A statement; texts are not evaluated.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LessStatement {
    Declaration { name: String, value: String },
    Variable { name: Rc<str>, value: Rc<str> },
    Rule(Rc<LessRule>),
    AtRule { name: String, prelude: String, body: Option<Rc<[LocatedStatement]>> },
    MixinCall { path: Vec<String>, arguments: Vec<(Option<String>, String)>, is_important: bool },
    Import { target: String, is_optional: bool, text: String },
}

/// A rule set or a mixin.
#[derive(Debug, PartialEq)]
pub(super) struct LessRule {
    pub selector: String,
    /// The parameters of a mixin; `None` for a rule set, which is drawn and may also be called.
    pub parameters: Option<Vec<LessParameter>>,
    pub guard: Option<String>,
    pub body: Rc<[LocatedStatement]>,
}

/// A parameter of a mixin.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LessParameter {
    /// The name without `@`; empty for a pattern.
    pub name: Rc<str>,
    pub default: Option<String>,
    pub takes_rest: bool,
}

/// Parses a file.
///
/// # Errors
/// What is not supported, or is malformed.
pub(super) fn parse_style_sheet(
    file: &str,
    text: &str,
) -> Result<Vec<LocatedStatement>, LessFault> {
    let text = strip_comments(text);
    let mut parser =
        BlockParser { file: file.into(), text: &text, at: 0, line: 1, counted_bytes: 0 };
    let parsed = parser.parse_block(0).and_then(|statements| {
        if parser.at < text.len() {
            parser.count_lines(parser.at);
            return Err("a `}` closes nothing".to_owned());
        }
        Ok(statements)
    });
    parsed.map_err(|reason| LessFault { file: file.to_owned(), line: parser.line, reason })
}

/// Replaces comments by blanks and their line ends, except in strings and in `url()`.
fn strip_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        if rest.starts_with("/*") {
            let end = rest.find("*/").map_or(rest.len(), |end| end + 2);
            let (comment, after) = rest.split_at(end);
            out.push(' ');
            out.extend(comment.chars().filter(|next| *next == '\n'));
            rest = after;
        } else if rest.starts_with("//") {
            rest = rest.find('\n').and_then(|end| rest.get(end..)).unwrap_or_default();
        } else {
            let length = match next {
                '"' | '\'' => string_length(rest, next),
                'u' if rest.starts_with("url(") => rest.find(')').map_or(rest.len(), |at| at + 1),
                other => other.len_utf8(),
            };
            let (taken, left) = rest.split_at(length.min(rest.len()));
            out.push_str(taken);
            rest = left;
        }
    }
    out
}

/// Returns the length of the string at the beginning of a text, with its quotes.
pub(super) fn string_length(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            other if other == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the position of the first of some characters outside of strings, parentheses, brackets and interpolations.
pub(super) fn find_outside(text: &str, stops: &[char]) -> Option<usize> {
    let mut at = 0;
    let mut depth = 0_usize;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let next = rest.chars().next()?;
        if depth == 0 && stops.contains(&next) {
            return Some(at);
        }
        at += match next {
            '"' | '\'' => string_length(rest, next),
            '\\' => 1 + rest.chars().nth(1).map_or(0, char::len_utf8),
            '@' if rest.starts_with("@{") => rest.find('}').map_or(rest.len(), |end| end + 1),
            'u' if rest.starts_with("url(") && !rest.starts_with("url(@") => {
                rest.find(')').map_or(rest.len(), |end| end + 1)
            }
            other => {
                match other {
                    '(' | '[' => depth += 1,
                    ')' | ']' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                other.len_utf8()
            }
        };
    }
    None
}

/// Splits a text at a character outside of strings and parentheses.
pub(super) fn split_outside(text: &str, separator: char) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = find_outside(rest, &[separator]) {
        let (part, after) = rest.split_at(at);
        parts.push(part.trim());
        rest = after.get(separator.len_utf8()..).unwrap_or_default();
    }
    parts.push(rest.trim());
    parts
}

struct BlockParser<'a> {
    file: Rc<str>,
    text: &'a str,
    at: usize,
    /// The line of the statement that is parsed.
    line: usize,
    /// The position up to which lines were counted.
    counted_bytes: usize,
}

impl BlockParser<'_> {
    /// Moves to the line of a position behind those before it.
    fn count_lines(&mut self, at: usize) {
        let text = self.text.get(self.counted_bytes..at).unwrap_or_default();
        self.line += text.matches('\n').count();
        self.counted_bytes = self.counted_bytes.max(at);
    }

    /// Parses statements up to the end of the block; its brace is left.
    fn parse_block(&mut self, depth: usize) -> Result<Vec<LocatedStatement>, String> {
        if depth > MAX_BLOCK_DEPTH {
            return Err(format!("blocks are nested more than {MAX_BLOCK_DEPTH} deep"));
        }
        let mut statements = Vec::new();
        loop {
            let rest = self.text.get(self.at..).unwrap_or_default();
            self.count_lines(self.at + rest.len() - rest.trim_start().len());
            let (file, line) = (Rc::clone(&self.file), self.line);
            let located = |statement| LocatedStatement { file, line, statement };
            let Some(end) = find_outside(rest, &[';', '{', '}']) else {
                if !rest.trim().is_empty() {
                    statements.extend(parse_statement(rest.trim())?.map(located));
                }
                self.at = self.text.len();
                return Ok(statements);
            };
            let head = rest.get(..end).unwrap_or_default().trim().to_owned();
            let stop = rest.get(end..).and_then(|rest| rest.chars().next());
            match stop {
                Some('{') => {
                    self.at += end + 1;
                    let body = self.parse_block(depth + 1)?;
                    let last_line = std::mem::replace(&mut self.line, line);
                    if self.text.get(self.at..).is_none_or(|rest| !rest.starts_with('}')) {
                        return Err(format!("`{head}` has no closing `}}`"));
                    }
                    self.at += 1;
                    statements.push(located(parse_rule(&head, body)?));
                    self.line = last_line;
                }
                Some('}') => {
                    self.at += end;
                    if !head.is_empty() {
                        statements.extend(parse_statement(&head)?.map(located));
                    }
                    return Ok(statements);
                }
                _ => {
                    self.at += end + 1;
                    statements.extend(parse_statement(&head)?.map(located));
                }
            }
        }
    }
}

/// Parses a statement with a block.
fn parse_rule(head: &str, body: Vec<LocatedStatement>) -> Result<LessStatement, String> {
    let body: Rc<[LocatedStatement]> = body.into();
    if let Some(rest) = head.strip_prefix('@').filter(|rest| !rest.starts_with('{')) {
        let end = rest.find(|next: char| !is_name_character(next)).unwrap_or(rest.len());
        let (name, prelude) = rest.split_at(end);
        if prelude.trim_start().starts_with(':') {
            return Err(format!("`@{name}` is a detached rule set, which is not supported"));
        }
        let (name, prelude) = (name.to_owned(), prelude.trim().to_owned());
        return Ok(LessStatement::AtRule { name, prelude, body: Some(body) });
    }
    let (head, guard) = match find_word(head, "when") {
        Some(at) => {
            let (head, guard) = head.split_at(at);
            (head.trim(), Some(guard.trim_start_matches("when").trim().to_owned()))
        }
        None => (head, None),
    };
    let is_mixin = head.starts_with(['.', '#']) && head.ends_with(')');
    let open = head.find('(').filter(|_| is_mixin);
    let name_end = open.filter(|open| {
        head.get(1..*open).is_some_and(|name| name.trim_end().chars().all(is_name_character))
    });
    let (selector, parameters) = match name_end {
        Some(open) => {
            let inner = head.get(open + 1..head.len() - 1).unwrap_or_default();
            let name = head.get(..open).unwrap_or_default().trim().to_owned();
            (name, Some(parse_parameters(inner)))
        }
        None => (head.to_owned(), None),
    };
    Ok(LessStatement::Rule(Rc::new(LessRule { selector, parameters, guard, body })))
}

fn parse_parameters(text: &str) -> Vec<LessParameter> {
    argument_parts(text)
        .into_iter()
        .map(|part| {
            let (name, default) = match part.split_once(':') {
                Some((name, default)) => (name.trim(), Some(default.trim().to_owned())),
                None => (part, None),
            };
            let takes_rest = name.ends_with("...");
            let name = name.trim_end_matches("...").trim();
            match name.strip_prefix('@') {
                Some(name) => LessParameter { name: name.into(), default, takes_rest },
                None if takes_rest => LessParameter { name: "rest".into(), default, takes_rest },
                // A pattern that the argument must equal.
                None => {
                    let default = Some(name.to_owned());
                    LessParameter { name: "".into(), default, takes_rest: false }
                }
            }
        })
        .collect()
}

/// Splits arguments at semicolons if there are any, else at commas.
fn argument_parts(text: &str) -> Vec<&str> {
    let separator = if find_outside(text, &[';']).is_some() { ';' } else { ',' };
    let parts = split_outside(text, separator).into_iter();
    parts.filter(|part| !part.is_empty()).collect()
}

/// Parses a statement without a block; `None` if it is empty.
fn parse_statement(text: &str) -> Result<Option<LessStatement>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    if text.contains('`') {
        return Err("JavaScript in style sheets is not supported".to_owned());
    }
    if text.contains(":extend(") {
        return Err("`:extend` is not supported".to_owned());
    }
    if let Some(rest) = text.strip_prefix('@').filter(|rest| !rest.starts_with('{')) {
        let end = rest.find(|next: char| !is_name_character(next)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let after = after.trim();
        if let Some(value) = after.strip_prefix(':') {
            let (name, value) = (name.into(), value.trim().into());
            return Ok(Some(LessStatement::Variable { name, value }));
        }
        return match name {
            "import" => Ok(Some(parse_import(text, after))),
            "plugin" => Err("`@plugin` is not supported".to_owned()),
            _ if after.starts_with('(') => {
                Err(format!("`@{name}` is called as a detached rule set, which is not supported"))
            }
            _ => {
                let (name, prelude) = (name.to_owned(), after.to_owned());
                Ok(Some(LessStatement::AtRule { name, prelude, body: None }))
            }
        };
    }
    if text.starts_with(['.', '#'])
        && let Some(call) = parse_mixin_call(text)
    {
        return Ok(Some(call));
    }
    let colon =
        find_outside(text, &[':']).ok_or_else(|| format!("`{text}` is not a declaration"))?;
    let (name, value) = text.split_at(colon);
    let value = value.get(1..).unwrap_or_default().trim().to_owned();
    Ok(Some(LessStatement::Declaration { name: name.trim().to_owned(), value }))
}

fn parse_import(text: &str, rest: &str) -> LessStatement {
    let (options, target) = match rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
        Some((options, target)) => (options, target.trim()),
        None => ("", rest),
    };
    let target = target.trim_start_matches("url(").trim_end_matches(')');
    let target = target.trim_matches(['"', '\'']).to_owned();
    let is_optional = options.split(',').any(|option| option.trim() == "optional");
    LessStatement::Import { target, is_optional, text: text.to_owned() }
}

/// Parses a call such as `.m`, `.m(1px; 2px) !important` or `#ns > .m()`.
fn parse_mixin_call(text: &str) -> Option<LessStatement> {
    let (text, is_important) = match text.trim_end().strip_suffix("!important") {
        Some(text) => (text.trim_end(), true),
        None => (text, false),
    };
    let (path, arguments) = match text.find('(') {
        Some(open) if text.ends_with(')') => {
            (text.get(..open)?, text.get(open + 1..text.len() - 1)?)
        }
        Some(_) => return None,
        None => (text, ""),
    };
    let spaced = path.replace('>', " ").replace('.', " .").replace('#', " #");
    let names: Vec<String> = spaced.split_whitespace().map(str::to_owned).collect();
    let is_name = |name: &String| {
        name.starts_with(['.', '#'])
            && name.get(1..).is_some_and(|name| name.chars().all(is_name_character))
    };
    if names.is_empty() || !names.iter().all(is_name) {
        return None;
    }
    let arguments = argument_parts(arguments).into_iter().map(|part| match part.split_once(':') {
        Some((name, value)) if name.trim().starts_with('@') => {
            (Some(name.trim().trim_start_matches('@').to_owned()), value.trim().to_owned())
        }
        _ => (None, part.to_owned()),
    });
    Some(LessStatement::MixinCall { path: names, arguments: arguments.collect(), is_important })
}

/// Returns the position of a word outside of strings and parentheses.
fn find_word(text: &str, word: &str) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = text.get(at..)?;
        let space = find_outside(rest, &[' ', '\n', '\t', ')'])?;
        at += space + 1;
        let rest = text.get(at..)?.trim_start();
        let start = text.len() - rest.len();
        if rest.strip_prefix(word).is_some_and(|after| after.starts_with([' ', '(', '\n', '\t'])) {
            return Some(start);
        }
        if rest.is_empty() {
            return None;
        }
    }
}

/// Returns true if a character may occur in a name.
pub(super) fn is_name_character(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '-' | '_' | '\\') || !character.is_ascii()
}
