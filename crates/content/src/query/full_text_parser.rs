//! The syntax of `CONTAINS`: `text -not "a phrase" OR other wild* begin^2`.
//!
//! Words and phrases in sequence must all match. `OR` separates alternatives and binds less tightly. `-` before a word,
//! phrase or group negates it. `^2` after one boosts its score. `*` and `?` are wildcards. `\` escapes the following
//! character. Parentheses group.
//!
//! Invariants
//! * No input panics or recurses deeper than a fixed bound.
//! * The written form of a [`FullTextExpression`] parses back to an equal expression.

use std::fmt;

use super::full_text::FullTextExpression;
use super::syntax_error::QuerySyntaxError;

/// The maximum length of an expression, in bytes.
const MAX_EXPRESSION_BYTES: usize = 16 * 1024;
/// The maximum nesting depth of groups.
const MAX_GROUP_DEPTH: usize = 50;

impl FullTextExpression {
    /// Parses an expression in the syntax of `CONTAINS`.
    ///
    /// # Errors
    /// [`QuerySyntaxError`] with the column, counted in characters of the expression.
    pub fn parse(text: &str) -> Result<Self, QuerySyntaxError> {
        if text.len() > MAX_EXPRESSION_BYTES {
            return Err(QuerySyntaxError::new(1, "the full-text expression is longer than 16 KiB"));
        }
        let characters: Vec<char> = text.chars().collect();
        let mut parser = FullTextParser { characters: &characters, offset: 0, depth: 0 };
        let expression = parser.parse_alternatives()?;
        match parser.peek() {
            None => Ok(expression),
            Some(_) => {
                Err(parser
                    .expected_error("the end of the expression; this `)` has no matching `(`"))
            }
        }
    }
}

struct FullTextParser<'a> {
    characters: &'a [char],
    offset: usize,
    depth: usize,
}

impl FullTextParser<'_> {
    fn peek(&self) -> Option<char> {
        self.characters.get(self.offset).copied()
    }

    fn expected_error(&self, expectation: &str) -> QuerySyntaxError {
        QuerySyntaxError::new(self.offset + 1, format!("expected {expectation}"))
    }

    fn skip_blanks(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.offset += 1;
        }
    }

    /// Consumes the keyword `OR` if it stands alone.
    fn take_or_keyword(&mut self) -> bool {
        let keyword = self.characters.get(self.offset..self.offset + 2);
        let next = self.characters.get(self.offset + 2);
        let ends = next.is_none_or(|next| next.is_whitespace() || matches!(next, '(' | ')' | '"'));
        let is_or = keyword == Some(&['O', 'R']) && ends;
        if is_or {
            self.offset += 2;
        }
        is_or
    }

    fn parse_alternatives(&mut self) -> Result<FullTextExpression, QuerySyntaxError> {
        let mut parts = vec![self.parse_conjunction()?];
        loop {
            self.skip_blanks();
            if !self.take_or_keyword() {
                break;
            }
            parts.push(self.parse_conjunction()?);
        }
        Ok(join_expressions(parts, FullTextExpression::Or))
    }

    fn parse_conjunction(&mut self) -> Result<FullTextExpression, QuerySyntaxError> {
        let mut parts = Vec::new();
        loop {
            self.skip_blanks();
            let before = self.offset;
            match self.peek() {
                None | Some(')') => break,
                Some(_) if !parts.is_empty() && self.take_or_keyword() => {
                    self.offset = before;
                    break;
                }
                Some(_) => parts.push(self.parse_part()?),
            }
        }
        if parts.is_empty() {
            return Err(self.expected_error("a word or a \"phrase\""));
        }
        Ok(join_expressions(parts, FullTextExpression::And))
    }

    fn parse_part(&mut self) -> Result<FullTextExpression, QuerySyntaxError> {
        let is_denied = self.peek() == Some('-')
            && self.characters.get(self.offset + 1).is_some_and(|next| !next.is_whitespace());
        if is_denied {
            self.offset += 1;
        }
        let inner = match self.peek() {
            Some('"') => self.parse_phrase()?,
            Some('(') => self.parse_group()?,
            _ => self.parse_word()?,
        };
        let inner = self.parse_boost(inner)?;
        Ok(if is_denied { FullTextExpression::Not(Box::new(inner)) } else { inner })
    }

    fn parse_group(&mut self) -> Result<FullTextExpression, QuerySyntaxError> {
        self.depth += 1;
        if self.depth > MAX_GROUP_DEPTH {
            return Err(self.expected_error("at most 50 levels of nesting"));
        }
        self.offset += 1;
        let inner = self.parse_alternatives()?;
        if self.peek() != Some(')') {
            return Err(self.expected_error("`)`"));
        }
        self.offset += 1;
        self.depth -= 1;
        Ok(inner)
    }

    fn parse_phrase(&mut self) -> Result<FullTextExpression, QuerySyntaxError> {
        let start = self.offset;
        self.offset += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None => {
                    self.offset = start;
                    return Err(
                        self.expected_error("a closing `\"` for the phrase that begins here")
                    );
                }
                Some('"') => break,
                Some('\\') if self.characters.get(self.offset + 1).is_some() => self.offset += 1,
                Some(_) => {}
            }
            text.extend(self.peek());
            self.offset += 1;
        }
        self.offset += 1;
        Ok(FullTextExpression::Phrase(text))
    }

    fn parse_word(&mut self) -> Result<FullTextExpression, QuerySyntaxError> {
        let (mut text, mut wildcards, mut last_wildcard) = (String::new(), 0, false);
        while let Some(character) = self.peek() {
            let escaped = self.characters.get(self.offset + 1).copied();
            match (character, escaped) {
                ('\\', Some(escaped)) => {
                    self.offset += 1;
                    last_wildcard = false;
                    // A pattern retains its escapes, so that wildcards stay distinguishable from literal characters.
                    if matches!(escaped, '*' | '?' | '\\') {
                        text.push('\\');
                    }
                    text.push(escaped);
                }
                // A backslash at the end stands for itself.
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
            self.offset += 1;
        }
        if text.is_empty() {
            return Err(self.expected_error("a word or a \"phrase\""));
        }
        Ok(match (wildcards, last_wildcard) {
            (0, _) => FullTextExpression::Term(unescape_text(&text)),
            (1, true) if text.chars().count() > 1 => {
                text.pop();
                FullTextExpression::Prefix(unescape_text(&text))
            }
            _ => FullTextExpression::Wildcard(text),
        })
    }

    /// Reads a boost such as `^2` or `^0.5` after a part.
    fn parse_boost(
        &mut self,
        inner: FullTextExpression,
    ) -> Result<FullTextExpression, QuerySyntaxError> {
        if self.peek() != Some('^') {
            return Ok(inner);
        }
        self.offset += 1;
        let start = self.offset;
        while self.peek().is_some_and(|next| next.is_ascii_digit() || next == '.') {
            self.offset += 1;
        }
        let digits: String =
            self.characters.get(start..self.offset).unwrap_or_default().iter().collect();
        match digits.parse::<f32>() {
            Ok(factor) if factor.is_finite() => {
                Ok(FullTextExpression::Boost(Box::new(inner), factor))
            }
            _ => {
                self.offset = start;
                Err(self.expected_error("a number after `^`"))
            }
        }
    }
}

/// Joins expressions; a single one is returned unchanged.
fn join_expressions(
    mut parts: Vec<FullTextExpression>,
    join: fn(Vec<FullTextExpression>) -> FullTextExpression,
) -> FullTextExpression {
    match (parts.len(), parts.pop()) {
        (1, Some(only)) => only,
        (_, last) => {
            parts.extend(last);
            join(parts)
        }
    }
}

fn unescape_text(text: &str) -> String {
    let mut characters = text.chars();
    std::iter::from_fn(|| match characters.next()? {
        '\\' => characters.next(),
        escaped => Some(escaped),
    })
    .collect()
}

impl fmt::Display for FullTextExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Term(term) => write_escaped_word(f, term),
            Self::Phrase(text) => {
                write!(f, "\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
            }
            Self::Prefix(prefix) => {
                write_escaped_word(f, prefix)?;
                f.write_str("*")
            }
            Self::Wildcard(pattern) => write_wildcard(f, pattern),
            Self::And(parts) => write_expressions(f, parts, " "),
            Self::Or(parts) => write_expressions(f, parts, " OR "),
            Self::Not(inner) => {
                f.write_str("-")?;
                write_group(f, inner)
            }
            Self::Boost(inner, factor) => {
                write_group(f, inner)?;
                write!(f, "^{factor}")
            }
            Self::Similar(path) => write!(f, "similar({path})"),
        }
    }
}

fn write_expressions(
    f: &mut fmt::Formatter<'_>,
    parts: &[FullTextExpression],
    between: &str,
) -> fmt::Result {
    for (number, part) in parts.iter().enumerate() {
        if number > 0 {
            f.write_str(between)?;
        }
        match part {
            FullTextExpression::And(_) | FullTextExpression::Or(_) => write!(f, "({part})")?,
            part => write!(f, "{part}")?,
        }
    }
    Ok(())
}

fn write_group(f: &mut fmt::Formatter<'_>, inner: &FullTextExpression) -> fmt::Result {
    match inner {
        FullTextExpression::And(_)
        | FullTextExpression::Or(_)
        | FullTextExpression::Not(_)
        | FullTextExpression::Boost(..) => write!(f, "({inner})"),
        inner => write!(f, "{inner}"),
    }
}

/// Writes a word with all special characters escaped.
fn write_escaped_word(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    if text == "OR" {
        return f.write_str("\\OR");
    }
    for character in text.chars() {
        let is_special = matches!(character, '\\' | '"' | '(' | ')' | '^' | '*' | '?' | '-');
        if is_special || character.is_whitespace() {
            f.write_str("\\")?;
        }
        write!(f, "{character}")?;
    }
    Ok(())
}

/// Writes a pattern; its wildcards and escaped wildcards stay unchanged.
fn write_wildcard(f: &mut fmt::Formatter<'_>, pattern: &str) -> fmt::Result {
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
        let outcome = match FullTextExpression::parse(text) {
            Ok(expression) => format!("{expression:?}").replace('"', "'"),
            Err(error) => format!("{}: {}", error.column, error.message),
        };
        assert_eq!(outcome, expected, "{text}");
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
        check("a \"b", "3: expected a closing `\"` for the phrase that begins here");
        check("a OR", "5: expected a word or a \"phrase\"");
        check("a^x", "3: expected a number after `^`");
        check("a\\", "Term('a\\\\')");
        check("(a", "3: expected `)`");
        check("a)", "2: expected the end of the expression; this `)` has no matching `(`");
    }

    #[test]
    fn deep_and_long_input_is_refused() {
        assert!(FullTextExpression::parse(&"(".repeat(10_000)).is_err());
        assert!(FullTextExpression::parse(&"a ".repeat(10_000)).is_err());
    }

    proptest! {
        #[test]
        fn any_input_is_read_or_refused_and_reads_back(text in "[ab\"()^\\\\*?O R2.\\-]{0,24}") {
            if let Ok(expression) = FullTextExpression::parse(&text) {
                let printed = expression.to_string();
                prop_assert_eq!(FullTextExpression::parse(&printed), Ok(expression), "{}", printed);
            }
        }
    }
}
