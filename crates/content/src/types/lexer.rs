//! The words and signs of CND, with their places.
//!
//! In: a text. Out: tokens, and a diagnostic for each text that is quoted and not closed.

use std::fmt;

/// A place in a text and what is wrong there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The line, counted from 1; 0 where the whole text is meant.
    pub line: u32,
    /// The character in the line, counted from 1.
    pub column: u32,
    /// What is wrong and what to do.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            return f.write_str(&self.message);
        }
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

/// Line and column, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) line: u32,
    pub(super) column: u32,
}

impl Spot {
    pub(super) fn says(self, message: impl Into<String>) -> Diagnostic {
        Diagnostic { line: self.line, column: self.column, message: message.into() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// One of `[ ] < > ( ) { } = , ! ? * + -`.
    Sign(char),
    /// A word without quotes.
    Word(String),
    /// A text in quotes, without them.
    Quoted(String),
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sign(sign) => write!(f, "`{sign}`"),
            Self::Word(word) => write!(f, "`{word}`"),
            Self::Quoted(text) => write!(f, "`'{text}'`"),
        }
    }
}

/// Signs wherever they stand.
const SIGNS: &str = "[]<>(){}=,!?";
/// Signs only where no word has begun: names hold them too.
const FIRST_SIGNS: &str = "*+-";

/// Tells whether a name can stand without quotes.
pub(super) fn is_word(text: &str) -> bool {
    let mut tokens = tokens(text, &mut Vec::new()).into_iter();
    matches!(tokens.next(), Some((_, Token::Word(word))) if word == text) && tokens.next().is_none()
}

struct Lexer<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    spot: Spot,
    diagnostics: &'a mut Vec<Diagnostic>,
}

/// Splits a text into tokens.
pub(super) fn tokens(text: &str, diagnostics: &mut Vec<Diagnostic>) -> Vec<(Spot, Token)> {
    let spot = Spot { line: 1, column: 1 };
    let mut lexer = Lexer { rest: text.chars().peekable(), spot, diagnostics };
    std::iter::from_fn(|| lexer.token()).collect()
}

impl Lexer<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.rest.next()?;
        if next == '\n' {
            self.spot = Spot { line: self.spot.line.saturating_add(1), column: 1 };
        } else {
            self.spot.column = self.spot.column.saturating_add(1);
        }
        Some(next)
    }

    fn token(&mut self) -> Option<(Spot, Token)> {
        loop {
            let spot = self.spot;
            let first = self.next()?;
            let next = self.rest.peek().copied();
            return Some(match first {
                _ if first.is_whitespace() || first == '\u{feff}' => continue,
                '/' if next == Some('/') => {
                    while self.rest.peek().is_some_and(|next| *next != '\n') {
                        self.next();
                    }
                    continue;
                }
                '/' if next == Some('*') => {
                    self.skip_comment(spot);
                    continue;
                }
                '\'' | '"' => (spot, Token::Quoted(self.quoted(first, spot))),
                _ if SIGNS.contains(first) || FIRST_SIGNS.contains(first) => {
                    (spot, Token::Sign(first))
                }
                _ => (spot, Token::Word(self.word(first))),
            });
        }
    }

    fn skip_comment(&mut self, start: Spot) {
        self.next();
        let mut last = ' ';
        while let Some(next) = self.next() {
            if last == '*' && next == '/' {
                return;
            }
            last = next;
        }
        self.diagnostics.push(start.says("the comment has no end; close it with `*/`"));
    }

    fn quoted(&mut self, quote: char, start: Spot) -> String {
        let mut text = String::new();
        while let Some(next) = self.next() {
            match next {
                '\\' => match self.rest.peek().copied() {
                    Some(escaped @ ('\\' | '\'' | '"')) => {
                        self.next();
                        text.push(escaped);
                    }
                    Some('n') => {
                        self.next();
                        text.push('\n');
                    }
                    // Patterns are full of these, as `\d`.
                    _ => text.push('\\'),
                },
                _ if next == quote => return text,
                _ => text.push(next),
            }
        }
        self.diagnostics.push(start.says(format!("the text has no end; close it with {quote}")));
        text
    }

    fn word(&mut self, first: char) -> String {
        let mut word = String::from(first);
        while let Some(next) = self.rest.peek().copied() {
            let begins_comment = word.ends_with('/') && matches!(next, '/' | '*');
            let is_end = next.is_whitespace() || SIGNS.contains(next) || matches!(next, '\'' | '"');
            if is_end || begins_comment {
                break;
            }
            word.push(next);
            self.next();
        }
        word
    }
}
