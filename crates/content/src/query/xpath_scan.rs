//! The words of XPath, read on demand: whether a name, a function or a symbol comes next depends on what is expected.

use super::sql2::Parsed;
use super::syntax_error::SyntaxError;

pub(crate) struct Scanner<'a> {
    characters: &'a [char],
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(characters: &'a [char]) -> Self {
        Self { characters, at: 0 }
    }

    fn peek(&self) -> Option<char> {
        self.characters.get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    pub(crate) fn column(&mut self) -> usize {
        self.skip_blanks();
        self.at + 1
    }

    pub(crate) fn is_at_end(&mut self) -> bool {
        self.skip_blanks();
        self.peek().is_none()
    }

    pub(crate) fn expected<T>(&mut self, what: &str) -> Parsed<T> {
        self.skip_blanks();
        let found = self.peek().map_or("the end".to_owned(), |found| format!("`{found}`"));
        Err(SyntaxError::new(self.at + 1, format!("expected {what}, not {found}")))
    }

    pub(crate) fn looks_at(&mut self, text: &str) -> bool {
        self.skip_blanks();
        let rest = self.characters.get(self.at..).unwrap_or_default();
        let mut rest = rest.iter();
        text.chars().all(|wanted| rest.next() == Some(&wanted))
    }

    pub(crate) fn take(&mut self, text: &str) -> bool {
        let is_there = self.looks_at(text);
        if is_there {
            self.at += text.chars().count();
        }
        is_there
    }

    /// Takes a symbol behind which no name goes on.
    pub(crate) fn take_alone(&mut self, text: &str) -> bool {
        let before = self.at;
        if self.take(text) && !self.peek().is_some_and(|next| is_name(next) || next == '/') {
            return true;
        }
        self.at = before;
        false
    }

    /// Takes a word that ends where it ends.
    pub(crate) fn take_word(&mut self, word: &str) -> bool {
        let before = self.at;
        if self.take(word) && !self.peek().is_some_and(is_name) {
            return true;
        }
        self.at = before;
        false
    }

    /// Takes a function's name with its opening parenthesis.
    pub(crate) fn take_call(&mut self, function: &str) -> bool {
        let before = self.at;
        if self.take_word(function) && self.take("(") {
            return true;
        }
        self.at = before;
        false
    }

    pub(crate) fn need(&mut self, text: &str) -> Parsed<()> {
        if self.take(text) { Ok(()) } else { self.expected(&format!("`{text}`")) }
    }

    pub(crate) fn is_name_start(&mut self) -> bool {
        self.skip_blanks();
        self.peek().is_some_and(|first| is_name(first) || first == '*')
    }

    /// Tells whether a name has ended here.
    pub(crate) fn is_separator(&self) -> bool {
        !self.peek().is_some_and(is_name)
    }

    /// Reads a name, decoded by ISO 9075.
    pub(crate) fn name(&mut self) -> Parsed<String> {
        self.skip_blanks();
        let start = self.at;
        while self.peek().is_some_and(is_name) {
            self.at += 1;
        }
        let name = self.characters.get(start..self.at).unwrap_or_default();
        if name.is_empty() {
            return self.expected("a name");
        }
        Ok(decoded(name))
    }

    /// Reads up to a character, which is taken too.
    pub(crate) fn until(&mut self, end: char) -> Parsed<String> {
        let start = self.at;
        while self.peek().is_some_and(|one| one != end) {
            self.at += 1;
        }
        let inner = self.characters.get(start..self.at).unwrap_or_default().iter().collect();
        self.need(&end.to_string())?;
        Ok(inner)
    }

    /// Reads a text in single or double quotes, which stand for themselves where they are doubled.
    pub(crate) fn text(&mut self) -> Parsed<Option<String>> {
        self.skip_blanks();
        let Some(quote) = self.peek().filter(|first| matches!(first, '\'' | '"')) else {
            return Ok(None);
        };
        let start = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None => {
                    self.at = start;
                    let message = format!("the `{quote}` that belongs to this is missing");
                    return Err(SyntaxError::new(self.at + 1, message));
                }
                Some(end) if end == quote => {
                    self.at += 1;
                    if self.peek() != Some(quote) {
                        return Ok(Some(text));
                    }
                    text.push(quote);
                }
                Some(other) => text.push(other),
            }
            self.at += 1;
        }
    }

    pub(crate) fn number(&mut self) -> Option<String> {
        self.skip_blanks();
        let start = self.at;
        if self.peek() == Some('-') {
            self.at += 1;
        }
        while self.peek().is_some_and(|one| one.is_ascii_digit() || one == '.') {
            self.at += 1;
        }
        let digits: String =
            self.characters.get(start..self.at).unwrap_or_default().iter().collect();
        if digits.contains(|one: char| one.is_ascii_digit()) {
            return Some(digits);
        }
        self.at = start;
        None
    }
}

fn is_name(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | ':' | '-' | '.')
}

/// Replaces `_x0020_` by the character with this number.
fn decoded(name: &[char]) -> String {
    let mut text = String::with_capacity(name.len());
    let mut at = 0;
    while let Some(character) = name.get(at) {
        match name.get(at..at + 7).and_then(escape) {
            Some(found) => {
                text.push(found);
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

fn escape(part: &[char]) -> Option<char> {
    match part {
        ['_', 'x', digits @ .., '_'] => {
            let digits: String = digits.iter().collect();
            char::from_u32(u32::from_str_radix(&digits, 16).ok()?)
        }
        _ => None,
    }
}
