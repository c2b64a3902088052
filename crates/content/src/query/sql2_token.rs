//! The words of JCR-SQL2.

use super::syntax_error::SyntaxError;

/// A word of a statement, with the column where it begins.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Token {
    pub(crate) column: usize,
    pub(crate) kind: TokenKind,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TokenKind {
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
    /// Behind the last word.
    End,
}

/// The symbols, longer ones first.
const SYMBOLS: [&str; 14] =
    ["<>", "!=", "<=", ">=", "(", ")", ",", ".", "*", "=", "<", ">", "-", "+"];

/// Cuts a statement into words.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token>, SyntaxError> {
    let characters: Vec<char> = text.chars().collect();
    let mut scanner = Scanner { characters: &characters, at: 0 };
    let mut tokens = Vec::new();
    loop {
        while scanner.peek().is_some_and(char::is_whitespace) {
            scanner.at += 1;
        }
        let column = scanner.at + 1;
        let kind = scanner.token()?;
        let is_end = kind == TokenKind::End;
        tokens.push(Token { column, kind });
        if is_end {
            return Ok(tokens);
        }
    }
}

struct Scanner<'a> {
    characters: &'a [char],
    at: usize,
}

impl Scanner<'_> {
    fn peek(&self) -> Option<char> {
        self.characters.get(self.at).copied()
    }

    fn token(&mut self) -> Result<TokenKind, SyntaxError> {
        let Some(first) = self.peek() else {
            return Ok(TokenKind::End);
        };
        match first {
            '\'' => self.enclosed('\'').map(TokenKind::Text),
            '"' => self.enclosed('"').map(TokenKind::Name),
            '[' => self.enclosed(']').map(TokenKind::Name),
            '$' => {
                self.at += 1;
                match self.run(is_word) {
                    name if name.is_empty() => Err(self.wrong("expected a name behind `$`")),
                    name => Ok(TokenKind::Variable(name)),
                }
            }
            digit if digit.is_ascii_digit() => Ok(TokenKind::Number(self.number())),
            letter if is_word(letter) => Ok(TokenKind::Word(self.run(is_word))),
            _ => self.symbol(),
        }
    }

    fn symbol(&mut self) -> Result<TokenKind, SyntaxError> {
        let rest = self.characters.get(self.at..).unwrap_or_default();
        let found = SYMBOLS
            .into_iter()
            .find(|symbol| symbol.chars().eq(rest.iter().copied().take(symbol.len())));
        match found {
            Some(symbol) => {
                self.at += symbol.len();
                Ok(TokenKind::Symbol(symbol))
            }
            None => Err(self.wrong("this character has no meaning here")),
        }
    }

    /// Reads up to the closing character, which stands for itself where it is doubled.
    fn enclosed(&mut self, close: char) -> Result<String, SyntaxError> {
        let start = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None => {
                    self.at = start;
                    return Err(
                        self.wrong(&format!("the `{close}` that belongs to this is missing"))
                    );
                }
                Some(end) if end == close => {
                    self.at += 1;
                    if self.peek() != Some(close) {
                        return Ok(text);
                    }
                    text.push(close);
                }
                Some(other) => text.push(other),
            }
            self.at += 1;
        }
    }

    fn number(&mut self) -> String {
        let mut text = self.run(|one| one.is_ascii_digit());
        if self.peek() == Some('.')
            && self.characters.get(self.at + 1).is_some_and(char::is_ascii_digit)
        {
            self.at += 1;
            text.push('.');
            text.push_str(&self.run(|one| one.is_ascii_digit()));
        }
        text
    }

    fn run(&mut self, belongs: impl Fn(char) -> bool) -> String {
        let start = self.at;
        while self.peek().is_some_and(&belongs) {
            self.at += 1;
        }
        self.characters.get(start..self.at).unwrap_or_default().iter().collect()
    }

    fn wrong(&self, message: &str) -> SyntaxError {
        SyntaxError::new(self.at + 1, message)
    }
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | ':' | '@')
}
