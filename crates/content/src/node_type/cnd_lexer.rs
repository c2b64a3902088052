//! The lexer of CND: words and signs with their positions.
//!
//! In: a text. Out: tokens, and a diagnostic for each unterminated quoted text.

use std::fmt;

/// A position in a text and the problem found there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CndDiagnostic {
    /// The line, counted from 1; 0 for the whole text.
    pub line: u32,
    /// The character in the line, counted from 1.
    pub column: u32,
    /// The problem and its remedy.
    pub message: String,
}

impl fmt::Display for CndDiagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            return f.write_str(&self.message);
        }
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

/// Line and column, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CndPosition {
    pub(super) line: u32,
    pub(super) column: u32,
}

impl CndPosition {
    pub(super) fn to_diagnostic(self, message: impl Into<String>) -> CndDiagnostic {
        CndDiagnostic { line: self.line, column: self.column, message: message.into() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CndToken {
    /// One of `[ ] < > ( ) { } = , ! ? * + -`.
    Sign(char),
    /// A word without quotes.
    Word(String),
    /// A text in quotes, without them.
    Quoted(String),
}

impl fmt::Display for CndToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sign(sign) => write!(f, "`{sign}`"),
            Self::Word(word) => write!(f, "`{word}`"),
            Self::Quoted(text) => write!(f, "`'{text}'`"),
        }
    }
}

/// Characters that are always signs.
const SIGNS: &str = "[]<>(){}=,!?";
/// Characters that are signs only at the start of a token; names may contain them.
const LEADING_SIGNS: &str = "*+-";

/// Returns true if a name can be written without quotes.
pub(super) fn is_unquoted_name(text: &str) -> bool {
    let mut tokens = tokenize_cnd(text, &mut Vec::new()).into_iter();
    matches!(tokens.next(), Some((_, CndToken::Word(word))) if word == text)
        && tokens.next().is_none()
}

struct CndLexer<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    position: CndPosition,
    diagnostics: &'a mut Vec<CndDiagnostic>,
}

/// Splits a text into tokens.
pub(super) fn tokenize_cnd(
    text: &str,
    diagnostics: &mut Vec<CndDiagnostic>,
) -> Vec<(CndPosition, CndToken)> {
    let spot = CndPosition { line: 1, column: 1 };
    let mut lexer = CndLexer { rest: text.chars().peekable(), position: spot, diagnostics };
    std::iter::from_fn(|| lexer.scan_token()).collect()
}

impl CndLexer<'_> {
    fn next_character(&mut self) -> Option<char> {
        let next = self.rest.next()?;
        if next == '\n' {
            self.position = CndPosition { line: self.position.line.saturating_add(1), column: 1 };
        } else {
            self.position.column = self.position.column.saturating_add(1);
        }
        Some(next)
    }

    fn scan_token(&mut self) -> Option<(CndPosition, CndToken)> {
        loop {
            let spot = self.position;
            let first = self.next_character()?;
            let next = self.rest.peek().copied();
            return Some(match first {
                _ if first.is_whitespace() || first == '\u{feff}' => continue,
                '/' if next == Some('/') => {
                    while self.rest.peek().is_some_and(|next| *next != '\n') {
                        self.next_character();
                    }
                    continue;
                }
                '/' if next == Some('*') => {
                    self.skip_comment(spot);
                    continue;
                }
                '\'' | '"' => (spot, CndToken::Quoted(self.scan_quoted(first, spot))),
                _ if SIGNS.contains(first) || LEADING_SIGNS.contains(first) => {
                    (spot, CndToken::Sign(first))
                }
                _ => (spot, CndToken::Word(self.scan_word(first))),
            });
        }
    }

    fn skip_comment(&mut self, start: CndPosition) {
        self.next_character();
        let mut last = ' ';
        while let Some(next) = self.next_character() {
            if last == '*' && next == '/' {
                return;
            }
            last = next;
        }
        self.diagnostics.push(start.to_diagnostic("the comment is not closed; add `*/`"));
    }

    fn scan_quoted(&mut self, quote: char, start: CndPosition) -> String {
        let mut text = String::new();
        while let Some(next) = self.next_character() {
            match next {
                '\\' => match self.rest.peek().copied() {
                    Some(escaped @ ('\\' | '\'' | '"')) => {
                        self.next_character();
                        text.push(escaped);
                    }
                    Some('n') => {
                        self.next_character();
                        text.push('\n');
                    }
                    // Patterns often contain backslashes, such as `\d`.
                    _ => text.push('\\'),
                },
                _ if next == quote => return text,
                _ => text.push(next),
            }
        }
        self.diagnostics
            .push(start.to_diagnostic(format!("the string is not closed; add a {quote}")));
        text
    }

    fn scan_word(&mut self, first: char) -> String {
        let mut text = String::from(first);
        while let Some(next) = self.rest.peek().copied() {
            let begins_comment = text.ends_with('/') && matches!(next, '/' | '*');
            let is_end = next.is_whitespace() || SIGNS.contains(next) || matches!(next, '\'' | '"');
            if is_end || begins_comment {
                break;
            }
            text.push(next);
            self.next_character();
        }
        text
    }
}
