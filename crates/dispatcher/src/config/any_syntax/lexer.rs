//! The tokenizer of `dispatcher.any` files.
//!
//! Follows the rules G1 to G8 and G19 of `docs/compat/dispatcher.md`: white space only separates, `#` opens a comment
//! outside quotes, `\\` and escaped quotes are resolved and other backslashes stay, `${NAME}` is replaced.

use std::path::Path;
use std::sync::Arc;

use super::diagnostic::DiagnosticCollector;
use super::syntax_tree::{ConfigKey, ConfigText, QuoteStyle};
use super::{ConfigEnvironment, SourcePosition};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ConfigToken {
    Key(ConfigKey),
    Text(ConfigText),
    Open(SourcePosition),
    Close(SourcePosition),
}

impl ConfigToken {
    pub(super) fn position(&self) -> &SourcePosition {
        match self {
            Self::Key(key) => &key.position,
            Self::Text(text) => &text.position,
            Self::Open(at) | Self::Close(at) => at,
        }
    }
}

/// Splits `source` into tokens; appends errors to `findings`.
pub(super) fn tokenize(
    source: &str,
    file: &Arc<Path>,
    environment: &ConfigEnvironment,
    findings: &mut DiagnosticCollector,
) -> Vec<ConfigToken> {
    let mut lexer = ConfigLexer {
        rest: source.strip_prefix('\u{feff}').unwrap_or(source),
        file,
        line: 1,
        column: 1,
        environment,
        diagnostics: findings,
        tokens: Vec::new(),
    };
    lexer.tokenize();
    lexer.tokens
}

struct ConfigLexer<'a> {
    rest: &'a str,
    file: &'a Arc<Path>,
    line: u32,
    column: u32,
    environment: &'a ConfigEnvironment,
    diagnostics: &'a mut DiagnosticCollector,
    tokens: Vec<ConfigToken>,
}

impl ConfigLexer<'_> {
    fn tokenize(&mut self) {
        while let Some(next) = self.peek() {
            let at = self.position();
            match next {
                '#' => self.skip_line(),
                '{' => {
                    self.advance();
                    self.tokens.push(ConfigToken::Open(at));
                }
                '}' => {
                    self.advance();
                    self.tokens.push(ConfigToken::Close(at));
                }
                '"' | '\'' => self.lex_quoted(next, at),
                '/' => {
                    self.advance();
                    let name = self.take_word();
                    self.tokens.push(ConfigToken::Key(ConfigKey { name, position: at }));
                }
                next if next.is_whitespace() => self.advance(),
                _ => self.lex_bare(at),
            }
        }
    }

    fn lex_quoted(&mut self, quote: char, at: SourcePosition) {
        self.advance();
        // An unclosed quote ends at the end of its line, so that the following lines are still checked.
        let (mut raw, mut is_closed) = self.text_until_quote(quote);
        if !is_closed {
            self.diagnostics.add_error(&at, format!("the string is not closed; add a {quote}"));
            raw.truncate(raw.find('\n').unwrap_or(raw.len()));
            is_closed = false;
        }
        for char in raw.chars() {
            self.advance_over(char);
        }
        if is_closed {
            self.advance_over(quote);
        }
        let length = raw.len() + if is_closed { quote.len_utf8() } else { 0 };
        self.rest = self.rest.get(length..).unwrap_or_default();
        let quote = if quote == '"' { QuoteStyle::Double } else { QuoteStyle::Single };
        let text = self.substitute_variables(&resolve_escapes(&raw), &at);
        self.tokens.push(ConfigToken::Text(ConfigText { text, quote, position: at }));
        if is_closed {
            self.warn_of_adjacent_text();
        }
    }

    /// Returns the raw text up to the closing quote, and true if there is a closing quote.
    fn text_until_quote(&self, quote: char) -> (String, bool) {
        let mut is_escaped = false;
        for (index, char) in self.rest.char_indices() {
            match char {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                char if char == quote => {
                    return (self.rest.get(..index).unwrap_or_default().to_owned(), true);
                }
                _ => {}
            }
        }
        (self.rest.to_owned(), false)
    }

    fn warn_of_adjacent_text(&mut self) {
        let is_separated = self
            .peek()
            .is_none_or(|next| next.is_whitespace() || matches!(next, '{' | '}' | '#' | '/'));
        if is_separated {
            return;
        }
        let at = self.position();
        if matches!(self.peek(), Some('"' | '\'')) {
            self.diagnostics
                .add_warning(&at, "a string begins where another one ends; put a space between");
            return;
        }
        let glued = self.take_word();
        self.diagnostics.add_warning(&at, format!("`{glued}` after the closing quote is ignored"));
    }

    fn lex_bare(&mut self, at: SourcePosition) {
        let raw = self.take_word();
        let text = self.substitute_variables(&raw, &at);
        let quote = QuoteStyle::Bare;
        self.tokens.push(ConfigToken::Text(ConfigText { text, quote, position: at }));
    }

    /// Takes characters up to white space, a brace, a quote or a comment; `${NAME}` counts as part of the word.
    fn take_word(&mut self) -> String {
        let mut word = String::new();
        while let Some(next) = self.peek() {
            let is_end = next.is_whitespace() || matches!(next, '{' | '}' | '"' | '\'' | '#');
            if is_end && !(next == '{' && word.ends_with('$') && self.has_closing_brace_on_line()) {
                break;
            }
            if next == '{' {
                while let Some(inner) = self.peek() {
                    word.push(inner);
                    self.advance();
                    if inner == '}' {
                        break;
                    }
                }
                continue;
            }
            word.push(next);
            self.advance();
        }
        word
    }

    fn has_closing_brace_on_line(&self) -> bool {
        self.rest.chars().take_while(|char| !char.is_whitespace()).any(|char| char == '}')
    }

    /// Replaces `${NAME}`. An undefined name stays unchanged and therefore matches no address and no file.
    fn substitute_variables(&mut self, text: &str, at: &SourcePosition) -> String {
        let mut replaced = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            replaced.push_str(before);
            let Some((name, tail)) = after.split_once('}') else {
                replaced.push_str("${");
                rest = after;
                continue;
            };
            match self.environment.value(name) {
                Some(value) => replaced.push_str(value),
                None => {
                    self.diagnostics.add_warning(at, format!("the variable `{name}` is not set"));
                    replaced.push_str(&format!("${{{name}}}"));
                }
            }
            rest = tail;
        }
        replaced.push_str(rest);
        replaced
    }

    fn skip_line(&mut self) {
        while let Some(next) = self.peek() {
            if next == '\n' {
                return;
            }
            self.advance();
        }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn advance(&mut self) {
        let mut chars = self.rest.chars();
        if let Some(char) = chars.next() {
            self.rest = chars.as_str();
            self.advance_over(char);
        }
    }

    fn advance_over(&mut self, char: char) {
        if char == '\n' {
            self.line += 1;
            self.column = 1;
        } else {
            self.column += 1;
        }
    }

    fn position(&self) -> SourcePosition {
        SourcePosition { file: Arc::clone(self.file), line: self.line, column: self.column }
    }
}

/// `\\` becomes a backslash, `\"` and `\'` the quote; any other pair stays, so that `\.` reaches the pattern.
fn resolve_escapes(raw: &str) -> String {
    let mut text = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(char) = chars.next() {
        if char != '\\' {
            text.push(char);
            continue;
        }
        match chars.next() {
            Some(next @ ('\\' | '"' | '\'')) => text.push(next),
            Some(next) => text.extend(['\\', next]),
            None => text.push('\\'),
        }
    }
    text
}
