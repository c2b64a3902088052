//! The syntax of `CONTAINS`: `text -not "a phrase" OR other wild* begin^2`.
//!
//! Words and phrases that follow each other must all match; `OR` stands between alternatives and binds weaker; `-` before
//! a word, phrase or group denies it; `^2` behind one makes it count more; `*` and `?` are wildcards; `\` takes the
//! meaning from the character behind it. Parentheses group.
//!
//! Invariants
//! * No input panics or recurses deeper than a fixed bound.
//! * What [`TextExpression`] writes reads back as itself.

use std::fmt;

use super::full_text::TextExpression;
use super::syntax_error::SyntaxError;

/// The longest expression, in bytes.
const MAX_BYTES: usize = 16 * 1024;
/// The deepest nesting of groups.
const MAX_DEPTH: usize = 50;

impl TextExpression {
    /// Reads the syntax of `CONTAINS`.
    ///
    /// # Errors
    /// [`SyntaxError`] with the column, counted in characters of the expression.
    pub fn parse(text: &str) -> Result<Self, SyntaxError> {
        if text.len() > MAX_BYTES {
            return Err(SyntaxError::new(1, "the full-text expression is longer than 16 KiB"));
        }
        let characters: Vec<char> = text.chars().collect();
        let mut parser = Parser { characters: &characters, at: 0, depth: 0 };
        let expression = parser.alternatives()?;
        match parser.peek() {
            None => Ok(expression),
            Some(_) => Err(parser.expected("the end of the expression; this `)` opens nowhere")),
        }
    }
}

struct Parser<'a> {
    characters: &'a [char],
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.characters.get(self.at).copied()
    }

    fn expected(&self, what: &str) -> SyntaxError {
        SyntaxError::new(self.at + 1, format!("expected {what}"))
    }

    fn skip_blanks(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    /// Takes the word `OR` where it stands alone.
    fn take_or(&mut self) -> bool {
        let word = self.characters.get(self.at..self.at + 2);
        let next = self.characters.get(self.at + 2);
        let ends = next.is_none_or(|next| next.is_whitespace() || matches!(next, '(' | ')' | '"'));
        let is_or = word == Some(&['O', 'R']) && ends;
        if is_or {
            self.at += 2;
        }
        is_or
    }

    fn alternatives(&mut self) -> Result<TextExpression, SyntaxError> {
        let mut parts = vec![self.conjunction()?];
        loop {
            self.skip_blanks();
            if !self.take_or() {
                break;
            }
            parts.push(self.conjunction()?);
        }
        Ok(joined(parts, TextExpression::Or))
    }

    fn conjunction(&mut self) -> Result<TextExpression, SyntaxError> {
        let mut parts = Vec::new();
        loop {
            self.skip_blanks();
            let before = self.at;
            match self.peek() {
                None | Some(')') => break,
                Some(_) if !parts.is_empty() && self.take_or() => {
                    self.at = before;
                    break;
                }
                Some(_) => parts.push(self.part()?),
            }
        }
        if parts.is_empty() {
            return Err(self.expected("a word or a \"phrase\""));
        }
        Ok(joined(parts, TextExpression::And))
    }

    fn part(&mut self) -> Result<TextExpression, SyntaxError> {
        let is_denied = self.peek() == Some('-')
            && self.characters.get(self.at + 1).is_some_and(|next| !next.is_whitespace());
        if is_denied {
            self.at += 1;
        }
        let inner = match self.peek() {
            Some('"') => self.phrase()?,
            Some('(') => self.group()?,
            _ => self.word()?,
        };
        let inner = self.boosted(inner)?;
        Ok(if is_denied { TextExpression::Not(Box::new(inner)) } else { inner })
    }

    fn group(&mut self) -> Result<TextExpression, SyntaxError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.expected("at most 50 groups in each other"));
        }
        self.at += 1;
        let inner = self.alternatives()?;
        if self.peek() != Some(')') {
            return Err(self.expected("`)`"));
        }
        self.at += 1;
        self.depth -= 1;
        Ok(inner)
    }

    fn phrase(&mut self) -> Result<TextExpression, SyntaxError> {
        let start = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None => {
                    self.at = start;
                    return Err(self.expected("a `\"` that ends the phrase beginning here"));
                }
                Some('"') => break,
                Some('\\') if self.characters.get(self.at + 1).is_some() => self.at += 1,
                Some(_) => {}
            }
            text.extend(self.peek());
            self.at += 1;
        }
        self.at += 1;
        Ok(TextExpression::Phrase(text))
    }

    fn word(&mut self) -> Result<TextExpression, SyntaxError> {
        let (mut text, mut wildcards, mut last_wildcard) = (String::new(), 0, false);
        while let Some(character) = self.peek() {
            let escaped = self.characters.get(self.at + 1).copied();
            match (character, escaped) {
                ('\\', Some(escaped)) => {
                    self.at += 1;
                    last_wildcard = false;
                    // A pattern keeps the escapes, so that it tells what is a wildcard.
                    if matches!(escaped, '*' | '?' | '\\') {
                        text.push('\\');
                    }
                    text.push(escaped);
                }
                // With nothing behind it, it stands for itself.
                ('\\', None) => text.push_str("\\\\"),
                ('"' | '(' | ')' | '^', _) => break,
                (blank, _) if blank.is_whitespace() => break,
                ('*' | '?', _) => {
                    wildcards += 1;
                    last_wildcard = character == '*';
                    text.push(character);
                }
                _ => {
                    last_wildcard = false;
                    text.push(character);
                }
            }
            self.at += 1;
        }
        if text.is_empty() {
            return Err(self.expected("a word or a \"phrase\""));
        }
        Ok(match (wildcards, last_wildcard) {
            (0, _) => TextExpression::Term(unescaped(&text)),
            (1, true) if text.chars().count() > 1 => {
                text.pop();
                TextExpression::Prefix(unescaped(&text))
            }
            _ => TextExpression::Wildcard(text),
        })
    }

    /// Reads `^2` or `^0.5` behind a part.
    fn boosted(&mut self, inner: TextExpression) -> Result<TextExpression, SyntaxError> {
        if self.peek() != Some('^') {
            return Ok(inner);
        }
        self.at += 1;
        let start = self.at;
        while self.peek().is_some_and(|next| next.is_ascii_digit() || next == '.') {
            self.at += 1;
        }
        let digits: String =
            self.characters.get(start..self.at).unwrap_or_default().iter().collect();
        match digits.parse::<f32>() {
            Ok(factor) if factor.is_finite() => Ok(TextExpression::Boost(Box::new(inner), factor)),
            _ => {
                self.at = start;
                Err(self.expected("a number behind `^`"))
            }
        }
    }
}

/// Takes a single part as it is.
fn joined(
    mut parts: Vec<TextExpression>,
    join: fn(Vec<TextExpression>) -> TextExpression,
) -> TextExpression {
    match (parts.len(), parts.pop()) {
        (1, Some(only)) => only,
        (_, last) => {
            parts.extend(last);
            join(parts)
        }
    }
}

fn unescaped(text: &str) -> String {
    let mut characters = text.chars();
    std::iter::from_fn(|| match characters.next()? {
        '\\' => characters.next(),
        other => Some(other),
    })
    .collect()
}

impl fmt::Display for TextExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Term(word) => escaped(f, word),
            Self::Phrase(text) => {
                write!(f, "\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
            }
            Self::Prefix(word) => {
                escaped(f, word)?;
                f.write_str("*")
            }
            Self::Wildcard(pattern) => wildcard(f, pattern),
            Self::And(parts) => list(f, parts, " "),
            Self::Or(parts) => list(f, parts, " OR "),
            Self::Not(inner) => {
                f.write_str("-")?;
                group(f, inner)
            }
            Self::Boost(inner, factor) => {
                group(f, inner)?;
                write!(f, "^{factor}")
            }
            Self::Similar(path) => write!(f, "similar({path})"),
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, parts: &[TextExpression], between: &str) -> fmt::Result {
    for (number, part) in parts.iter().enumerate() {
        if number > 0 {
            f.write_str(between)?;
        }
        match part {
            TextExpression::And(_) | TextExpression::Or(_) => write!(f, "({part})")?,
            part => write!(f, "{part}")?,
        }
    }
    Ok(())
}

fn group(f: &mut fmt::Formatter<'_>, inner: &TextExpression) -> fmt::Result {
    match inner {
        TextExpression::And(_)
        | TextExpression::Or(_)
        | TextExpression::Not(_)
        | TextExpression::Boost(..) => write!(f, "({inner})"),
        inner => write!(f, "{inner}"),
    }
}

/// Writes a word so that nothing in it has a meaning of its own.
fn escaped(f: &mut fmt::Formatter<'_>, word: &str) -> fmt::Result {
    if word == "OR" {
        return f.write_str("\\OR");
    }
    for character in word.chars() {
        let is_special = matches!(character, '\\' | '"' | '(' | ')' | '^' | '*' | '?' | '-');
        if is_special || character.is_whitespace() {
            f.write_str("\\")?;
        }
        write!(f, "{character}")?;
    }
    Ok(())
}

/// Writes a pattern, whose wildcards and escaped wildcards stay as they are.
fn wildcard(f: &mut fmt::Formatter<'_>, pattern: &str) -> fmt::Result {
    let mut is_escaped = false;
    for character in pattern.chars() {
        let is_special = matches!(character, '"' | '(' | ')' | '^' | '-');
        if !is_escaped && (is_special || character.is_whitespace()) {
            f.write_str("\\")?;
        }
        is_escaped = !is_escaped && character == '\\';
        write!(f, "{character}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, expected: &str) {
        let found = match TextExpression::parse(text) {
            Ok(expression) => format!("{expression:?}").replace('"', "'"),
            Err(error) => format!("{}: {}", error.column, error.message),
        };
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn reads_what_contains_takes() {
        check("word", "Term('word')");
        check("a b", "And([Term('a'), Term('b')])");
        check("a -b", "And([Term('a'), Not(Term('b'))])");
        check(
            "text -not \"a phrase\" OR x",
            "Or([And([Term('text'), Not(Term('not')), Phrase('a phrase')]), Term('x')])",
        );
        check("wor*", "Prefix('wor')");
        check("w?r* *", "And([Wildcard('w?r*'), Wildcard('*')])");
        check("a^2 \"b c\"^0.5", "And([Boost(Term('a'), 2.0), Boost(Phrase('b c'), 0.5)])");
        check("a\\*b \\-c", "And([Term('a*b'), Term('-c')])");
        check("ORANGE or OR x", "Or([And([Term('ORANGE'), Term('or')]), Term('x')])");
        check("a (b OR c)", "And([Term('a'), Or([Term('b'), Term('c')])])");
        check("well-known - x", "And([Term('well-known'), Term('-'), Term('x')])");
        check("", "1: expected a word or a 'phrase'".replace('\'', "\"").as_str());
        check("a \"b", "3: expected a `\"` that ends the phrase beginning here");
        check("a OR", "5: expected a word or a \"phrase\"");
        check("a^x", "3: expected a number behind `^`");
        check("a\\", "Term('a\\\\')");
        check("(a", "3: expected `)`");
        check("a)", "2: expected the end of the expression; this `)` opens nowhere");
    }

    #[test]
    fn deep_and_long_input_is_refused() {
        assert!(TextExpression::parse(&"(".repeat(10_000)).is_err());
        assert!(TextExpression::parse(&"a ".repeat(10_000)).is_err());
    }

    proptest! {
        #[test]
        fn any_input_is_read_or_refused_and_reads_back(text in "[ab\"()^\\\\*?O R2.\\-]{0,24}") {
            if let Ok(expression) = TextExpression::parse(&text) {
                let printed = expression.to_string();
                prop_assert_eq!(TextExpression::parse(&printed), Ok(expression), "{}", printed);
            }
        }
    }
}
