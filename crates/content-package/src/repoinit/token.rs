//! The words of a line of repository initialization.

use std::collections::VecDeque;

/// A word or symbol of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RepoinitToken {
    Word(String),
    Quoted(String),
    /// One of `(`, `)`, `{`, `}`, `,` and `=`.
    Symbol(char),
}

/// The words of one line that were not read yet.
#[derive(Debug, Clone)]
pub(super) struct RepoinitLine(VecDeque<RepoinitToken>);

const SYMBOLS: &str = "(){},=";

impl RepoinitLine {
    /// Splits a line into words; a comment begins with `#`.
    ///
    /// # Errors
    /// If a quote is not closed.
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let mut tokens = VecDeque::new();
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            if first == '#' {
                break;
            }
            let length = if SYMBOLS.contains(first) {
                tokens.push_back(RepoinitToken::Symbol(first));
                1
            } else if first == '"' {
                let (text, length) = parse_quoted(rest)?;
                tokens.push_back(RepoinitToken::Quoted(text));
                length
            } else {
                let ends = |letter: char| {
                    letter.is_whitespace() || letter == '"' || SYMBOLS.contains(letter)
                };
                let length = rest.find(ends).unwrap_or(rest.len());
                let word = rest.get(..length).unwrap_or_default();
                tokens.push_back(RepoinitToken::Word(word.to_owned()));
                length
            };
            rest = rest.get(length..).unwrap_or_default().trim_start();
        }
        Ok(Self(tokens))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the given words, if the line goes on with all of them.
    pub(super) fn take_words(&mut self, words: &[&str]) -> bool {
        let is_next = words.iter().enumerate().all(
            |(at, word)| matches!(self.0.get(at), Some(RepoinitToken::Word(next)) if next == word),
        );
        if is_next {
            self.0.drain(..words.len());
        }
        is_next
    }

    /// Reads a symbol, if it is next.
    pub(super) fn take_symbol(&mut self, symbol: char) -> bool {
        let is_next = self.0.front() == Some(&RepoinitToken::Symbol(symbol));
        if is_next {
            self.0.pop_front();
        }
        is_next
    }

    /// Reads a word or a quoted text.
    ///
    /// # Errors
    /// If neither is next.
    pub(super) fn text(&mut self, expected: &str) -> Result<String, String> {
        match self.0.pop_front() {
            Some(RepoinitToken::Word(text) | RepoinitToken::Quoted(text)) => Ok(text),
            Some(RepoinitToken::Symbol(symbol)) => {
                Err(format!("`{symbol}` stands in place of {expected}"))
            }
            None => Err(format!("the line ends in place of {expected}")),
        }
    }

    /// Reads texts with commas between them.
    ///
    /// # Errors
    /// If a text is missing.
    pub(super) fn texts(&mut self, expected: &str) -> Result<Vec<String>, String> {
        let mut texts = vec![self.text(expected)?];
        while self.take_symbol(',') {
            texts.push(self.text(expected)?);
        }
        Ok(texts)
    }

    /// Reads a symbol.
    ///
    /// # Errors
    /// If another word is next.
    pub(super) fn symbol(&mut self, symbol: char) -> Result<(), String> {
        if self.take_symbol(symbol) { Ok(()) } else { Err(format!("`{symbol}` is missing")) }
    }

    /// Checks that the whole line was read.
    ///
    /// # Errors
    /// If words are left.
    pub(super) fn end(&self) -> Result<(), String> {
        match self.0.front() {
            None => Ok(()),
            Some(RepoinitToken::Word(text) | RepoinitToken::Quoted(text)) => {
                Err(format!("`{text}` is not expected here"))
            }
            Some(RepoinitToken::Symbol(symbol)) => Err(format!("`{symbol}` is not expected here")),
        }
    }
}

/// Reads a quoted text at the beginning of a line; returns it and its length with quotes.
fn parse_quoted(line: &str) -> Result<(String, usize), String> {
    let mut text = String::new();
    let mut letters = line.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Ok((text, at + 1)),
            '\\' => text.extend(letters.next().map(|(_, escaped)| escaped)),
            other => text.push(other),
        }
    }
    Err("a quote is not closed".to_owned())
}
