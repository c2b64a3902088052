//! A scanner for XPath that reads tokens on demand: whether a name, a function or a symbol comes next depends on what
//! is expected.

use crate::sql2_parser::QueryParseResult;
use crate::syntax_error::QuerySyntaxError;

pub(crate) struct XPathScanner<'a> {
    characters: &'a [char],
    offset: usize,
}

impl<'a> XPathScanner<'a> {
    pub(crate) fn new(characters: &'a [char]) -> Self {
        Self { characters, offset: 0 }
    }

    fn peek(&self) -> Option<char> {
        self.characters.get(self.offset).copied()
    }

    fn skip_blanks(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.offset += 1;
        }
    }

    pub(crate) fn current_column(&mut self) -> usize {
        self.skip_blanks();
        self.offset + 1
    }

    pub(crate) fn is_at_end(&mut self) -> bool {
        self.skip_blanks();
        self.peek().is_none()
    }

    pub(crate) fn expected_error<T>(&mut self, expectation: &str) -> QueryParseResult<T> {
        self.skip_blanks();
        let token = self.peek().map_or("the end".to_owned(), |character| format!("`{character}`"));
        Err(QuerySyntaxError::new(self.offset + 1, format!("expected {expectation}, not {token}")))
    }

    pub(crate) fn is_at(&mut self, text: &str) -> bool {
        self.skip_blanks();
        let rest = self.characters.get(self.offset..).unwrap_or_default();
        let mut rest = rest.iter();
        text.chars().all(|expected| rest.next() == Some(&expected))
    }

    pub(crate) fn take_text(&mut self, text: &str) -> bool {
        let is_there = self.is_at(text);
        if is_there {
            self.offset += text.chars().count();
        }
        is_there
    }

    /// Consumes a symbol that is not followed by more characters of a name.
    pub(crate) fn take_symbol(&mut self, text: &str) -> bool {
        let before = self.offset;
        if self.take_text(text)
            && !self.peek().is_some_and(|next| is_name_character(next) || next == '/')
        {
            return true;
        }
        self.offset = before;
        false
    }

    /// Consumes a whole word.
    pub(crate) fn take_word(&mut self, keyword: &str) -> bool {
        let before = self.offset;
        if self.take_text(keyword) && !self.peek().is_some_and(is_name_character) {
            return true;
        }
        self.offset = before;
        false
    }

    /// Consumes the name of a function with its opening parenthesis.
    pub(crate) fn take_call(&mut self, function: &str) -> bool {
        let before = self.offset;
        if self.take_word(function) && self.take_text("(") {
            return true;
        }
        self.offset = before;
        false
    }

    pub(crate) fn expect(&mut self, text: &str) -> QueryParseResult<()> {
        if self.take_text(text) { Ok(()) } else { self.expected_error(&format!("`{text}`")) }
    }

    pub(crate) fn is_name_start(&mut self) -> bool {
        self.skip_blanks();
        self.peek().is_some_and(|first| is_name_character(first) || first == '*')
    }

    /// Returns true if no character of a name is at this position.
    pub(crate) fn is_separator(&self) -> bool {
        !self.peek().is_some_and(is_name_character)
    }

    /// Reads a name, decoded by ISO 9075.
    pub(crate) fn scan_name(&mut self) -> QueryParseResult<String> {
        self.skip_blanks();
        let start = self.offset;
        while self.peek().is_some_and(is_name_character) {
            self.offset += 1;
        }
        let name = self.characters.get(start..self.offset).unwrap_or_default();
        if name.is_empty() {
            return self.expected_error("a name");
        }
        Ok(decode_iso9075(name))
    }

    /// Reads up to a character, and consumes that character.
    pub(crate) fn scan_until(&mut self, end: char) -> QueryParseResult<String> {
        let start = self.offset;
        while self.peek().is_some_and(|character| character != end) {
            self.offset += 1;
        }
        let inner = self.characters.get(start..self.offset).unwrap_or_default().iter().collect();
        self.expect(&end.to_string())?;
        Ok(inner)
    }

    /// Reads a text in single or double quotes; a doubled quote is an escaped one.
    pub(crate) fn scan_text(&mut self) -> QueryParseResult<Option<String>> {
        self.skip_blanks();
        let Some(quote) = self.peek().filter(|first| matches!(first, '\'' | '"')) else {
            return Ok(None);
        };
        let start = self.offset;
        self.offset += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None => {
                    self.offset = start;
                    let message = format!("the closing `{quote}` is missing");
                    return Err(QuerySyntaxError::new(self.offset + 1, message));
                }
                Some(end) if end == quote => {
                    self.offset += 1;
                    if self.peek() != Some(quote) {
                        return Ok(Some(text));
                    }
                    text.push(quote);
                }
                Some(character) => text.push(character),
            }
            self.offset += 1;
        }
    }

    pub(crate) fn scan_number(&mut self) -> Option<String> {
        self.skip_blanks();
        let start = self.offset;
        if self.peek() == Some('-') {
            self.offset += 1;
        }
        while self.peek().is_some_and(|character| character.is_ascii_digit() || character == '.') {
            self.offset += 1;
        }
        let digits: String =
            self.characters.get(start..self.offset).unwrap_or_default().iter().collect();
        if digits.contains(|character: char| character.is_ascii_digit()) {
            return Some(digits);
        }
        self.offset = start;
        None
    }
}

fn is_name_character(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | ':' | '-' | '.')
}

/// Replaces `_x0020_` by the character with this code.
fn decode_iso9075(name: &[char]) -> String {
    let mut text = String::with_capacity(name.len());
    let mut at = 0;
    while let Some(character) = name.get(at) {
        match name.get(at..at + 7).and_then(decode_escape) {
            Some(decoded_character) => {
                text.push(decoded_character);
                at += 7;
            }
            None => {
                text.push(*character);
                at += 1;
            }
        }
    }
    text
}

fn decode_escape(part: &[char]) -> Option<char> {
    match part {
        ['_', 'x', digits @ .., '_'] => {
            let digits: String = digits.iter().collect();
            char::from_u32(u32::from_str_radix(&digits, 16).ok()?)
        }
        _ => None,
    }
}
