//! The tokens of JCR-SQL2.

use crate::syntax_error::QuerySyntaxError;

/// A token of a statement, with the column where it begins.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sql2Token {
    pub(crate) column: usize,
    pub(crate) kind: Sql2TokenKind,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Sql2TokenKind {
    /// A keyword or a plain name.
    Word(String),
    /// A name in brackets or double quotes.
    Name(String),
    /// A text in single quotes.
    Text(String),
    /// A number, with or without a fraction.
    Number(String),
    /// `$name`.
    Variable(String),
    /// One of `( ) , . * = <> != < <= > >= + -`.
    Symbol(&'static str),
    /// The end of the statement.
    End,
}

/// The symbols, longer ones first.
const SYMBOLS: [&str; 14] =
    ["<>", "!=", "<=", ">=", "(", ")", ",", ".", "*", "=", "<", ">", "-", "+"];

/// Splits a statement into tokens.
pub(crate) fn tokenize_sql2(text: &str) -> Result<Vec<Sql2Token>, QuerySyntaxError> {
    let characters: Vec<char> = text.chars().collect();
    let mut scanner = Sql2Scanner { characters: &characters, offset: 0 };
    let mut tokens = Vec::new();
    loop {
        while scanner.peek().is_some_and(char::is_whitespace) {
            scanner.offset += 1;
        }
        let column = scanner.offset + 1;
        let kind = scanner.scan_token()?;
        let is_end = kind == Sql2TokenKind::End;
        tokens.push(Sql2Token { column, kind });
        if is_end {
            return Ok(tokens);
        }
    }
}

struct Sql2Scanner<'a> {
    characters: &'a [char],
    offset: usize,
}

impl Sql2Scanner<'_> {
    fn peek(&self) -> Option<char> {
        self.characters.get(self.offset).copied()
    }

    fn scan_token(&mut self) -> Result<Sql2TokenKind, QuerySyntaxError> {
        let Some(first) = self.peek() else {
            return Ok(Sql2TokenKind::End);
        };
        match first {
            '\'' => self.scan_enclosed('\'').map(Sql2TokenKind::Text),
            '"' => self.scan_enclosed('"').map(Sql2TokenKind::Name),
            '[' => self.scan_enclosed(']').map(Sql2TokenKind::Name),
            '$' => {
                self.offset += 1;
                match self.scan_while(is_word_character) {
                    name if name.is_empty() => Err(self.syntax_error("expected a name behind `$`")),
                    name => Ok(Sql2TokenKind::Variable(name)),
                }
            }
            digit if digit.is_ascii_digit() => Ok(Sql2TokenKind::Number(self.scan_number())),
            letter if is_word_character(letter) => {
                Ok(Sql2TokenKind::Word(self.scan_while(is_word_character)))
            }
            _ => self.scan_symbol(),
        }
    }

    fn scan_symbol(&mut self) -> Result<Sql2TokenKind, QuerySyntaxError> {
        let rest = self.characters.get(self.offset..).unwrap_or_default();
        let matched_symbol = SYMBOLS
            .into_iter()
            .find(|symbol| symbol.chars().eq(rest.iter().copied().take(symbol.len())));
        match matched_symbol {
            Some(symbol) => {
                self.offset += symbol.len();
                Ok(Sql2TokenKind::Symbol(symbol))
            }
            None => Err(self.syntax_error("unexpected character")),
        }
    }

    /// Reads up to the closing character. A doubled closing character is an escaped one.
    fn scan_enclosed(&mut self, close: char) -> Result<String, QuerySyntaxError> {
        let start = self.offset;
        self.offset += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None => {
                    self.offset = start;
                    return Err(self.syntax_error(&format!("the closing `{close}` is missing")));
                }
                Some(end) if end == close => {
                    self.offset += 1;
                    if self.peek() != Some(close) {
                        return Ok(text);
                    }
                    text.push(close);
                }
                Some(character) => text.push(character),
            }
            self.offset += 1;
        }
    }

    fn scan_number(&mut self) -> String {
        let mut text = self.scan_while(|character| character.is_ascii_digit());
        if self.peek() == Some('.')
            && self.characters.get(self.offset + 1).is_some_and(char::is_ascii_digit)
        {
            self.offset += 1;
            text.push('.');
            text.push_str(&self.scan_while(|character| character.is_ascii_digit()));
        }
        text
    }

    fn scan_while(&mut self, belongs: impl Fn(char) -> bool) -> String {
        let start = self.offset;
        while self.peek().is_some_and(&belongs) {
            self.offset += 1;
        }
        self.characters.get(start..self.offset).unwrap_or_default().iter().collect()
    }

    fn syntax_error(&self, message: &str) -> QuerySyntaxError {
        QuerySyntaxError::new(self.offset + 1, message)
    }
}

fn is_word_character(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | ':' | '@')
}
