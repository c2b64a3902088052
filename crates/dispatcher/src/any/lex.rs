//! Text to tokens.
//!
//! Follows the rules G1 to G8 and G19 of `docs/compat/dispatcher.md`: white space only separates, `#` opens a comment
//! outside quotes, `\\` and escaped quotes are resolved and other backslashes stay, `${NAME}` is replaced.

use std::path::Path;
use std::sync::Arc;

use super::diagnostic::Findings;
use super::tree::{Key, Quote, Text};
use super::{Environment, Position};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    Key(Key),
    Text(Text),
    Open(Position),
    Close(Position),
}

impl Token {
    pub(super) fn at(&self) -> &Position {
        match self {
            Self::Key(key) => &key.at,
            Self::Text(text) => &text.at,
            Self::Open(at) | Self::Close(at) => at,
        }
    }
}

/// Splits `source` into tokens; faults go to `findings`.
pub(super) fn lex(
    source: &str,
    file: &Arc<Path>,
    environment: &Environment,
    findings: &mut Findings,
) -> Vec<Token> {
    let mut lexer = Lexer {
        rest: source.strip_prefix('\u{feff}').unwrap_or(source),
        file,
        line: 1,
        column: 1,
        environment,
        findings,
        tokens: Vec::new(),
    };
    lexer.run();
    lexer.tokens
}

struct Lexer<'a> {
    rest: &'a str,
    file: &'a Arc<Path>,
    line: u32,
    column: u32,
    environment: &'a Environment,
    findings: &'a mut Findings,
    tokens: Vec<Token>,
}

impl Lexer<'_> {
    fn run(&mut self) {
        while let Some(next) = self.peek() {
            let at = self.position();
            match next {
                '#' => self.skip_line(),
                '{' => {
                    self.advance();
                    self.tokens.push(Token::Open(at));
                }
                '}' => {
                    self.advance();
                    self.tokens.push(Token::Close(at));
                }
                '"' | '\'' => self.quoted(next, at),
                '/' => {
                    self.advance();
                    let name = self.word();
                    self.tokens.push(Token::Key(Key { name, at }));
                }
                next if next.is_whitespace() => self.advance(),
                _ => self.bare(at),
            }
        }
    }

    fn quoted(&mut self, quote: char, at: Position) {
        self.advance();
        // A quote that is never closed ends with its line, so that the lines below are still checked.
        let (mut raw, mut is_closed) = self.until_quote(quote);
        if !is_closed {
            self.findings.error(&at, format!("the string is not closed; add a {quote}"));
            raw.truncate(raw.find('\n').unwrap_or(raw.len()));
            is_closed = false;
        }
        for char in raw.chars() {
            self.step(char);
        }
        if is_closed {
            self.step(quote);
        }
        let length = raw.len() + if is_closed { quote.len_utf8() } else { 0 };
        self.rest = self.rest.get(length..).unwrap_or_default();
        let quote = if quote == '"' { Quote::Double } else { Quote::Single };
        let text = self.substitute(&resolve_escapes(&raw), &at);
        self.tokens.push(Token::Text(Text { text, quote, at }));
        if is_closed {
            self.warn_of_glued_text();
        }
    }

    /// Returns the raw text up to the closing quote, and whether there is one.
    fn until_quote(&self, quote: char) -> (String, bool) {
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

    fn warn_of_glued_text(&mut self) {
        let is_separated = self
            .peek()
            .is_none_or(|next| next.is_whitespace() || matches!(next, '{' | '}' | '#' | '/'));
        if is_separated {
            return;
        }
        let at = self.position();
        if matches!(self.peek(), Some('"' | '\'')) {
            self.findings.warn(&at, "a string begins where another one ends; put a space between");
            return;
        }
        let glued = self.word();
        self.findings.warn(&at, format!("`{glued}` after the closing quote is ignored"));
    }

    fn bare(&mut self, at: Position) {
        let raw = self.word();
        let text = self.substitute(&raw, &at);
        let quote = Quote::Bare;
        self.tokens.push(Token::Text(Text { text, quote, at }));
    }

    /// Takes characters up to white space, a brace, a quote or a comment; `${NAME}` counts as part of the word.
    fn word(&mut self) -> String {
        let mut word = String::new();
        while let Some(next) = self.peek() {
            let is_end = next.is_whitespace() || matches!(next, '{' | '}' | '"' | '\'' | '#');
            if is_end && !(next == '{' && word.ends_with('$') && self.closes_on_this_line()) {
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

    fn closes_on_this_line(&self) -> bool {
        self.rest.chars().take_while(|char| !char.is_whitespace()).any(|char| char == '}')
    }

    /// Replaces `${NAME}`; an unknown name stays as it is, which matches no address and no file.
    fn substitute(&mut self, text: &str, at: &Position) -> String {
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
                    self.findings.warn(at, format!("the variable `{name}` is not set"));
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
            self.step(char);
        }
    }

    fn step(&mut self, char: char) {
        if char == '\n' {
            self.line += 1;
            self.column = 1;
        } else {
            self.column += 1;
        }
    }

    fn position(&self) -> Position {
        Position { file: Arc::clone(self.file), line: self.line, column: self.column }
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
