//! Texts with placeholders: ICU's message format, as far as sites need it.
//!
//! Input: `{count, plural, =0 {no trains} one {# train} other {# trains}} to {city}` and the values of `count` and
//! `city`. Output: the text in the plural forms of its language.
//!
//! Supported are `{name}`, `{name, number}`, `plural` and `selectordinal` with `offset:`, `=1` and `#`, `select`, and
//! quoted text (`'{'`, `''`). Numbers are written unformatted.

use fixed_decimal::Decimal;
use icu_locale_core::Locale;
use icu_plurals::{PluralCategory, PluralRules};

/// Maximum nesting depth of choices.
const MAX_CHOICE_DEPTH: usize = 8;

/// The value of a name: a text, and its number if it is numeric.
pub(crate) type MessageArguments<'a> = dyn Fn(&str) -> Option<(String, Option<f64>)> + 'a;

/// Replaces the placeholders in a text.
///
/// # Errors
/// A message, if the text is malformed or the value of a name is missing.
pub(crate) fn format_message(
    text: &str,
    language: &str,
    arguments: &MessageArguments<'_>,
) -> Result<String, String> {
    if !text.contains(['{', '}', '\'']) {
        return Ok(text.to_owned());
    }
    let mut reader = MessageParser { rest: text, language, arguments };
    let mut out = String::new();
    reader.write_text(&mut out, (None, 0))?;
    if reader.rest.is_empty() { Ok(out) } else { Err("unmatched `}`".to_owned()) }
}

struct MessageParser<'a> {
    rest: &'a str,
    language: &'a str,
    arguments: &'a MessageArguments<'a>,
}

impl<'a> MessageParser<'a> {
    /// Writes text up to the brace that closes the enclosing choice.
    fn write_text(
        &mut self,
        out: &mut String,
        (number, depth): (Option<f64>, usize),
    ) -> Result<(), String> {
        if depth > MAX_CHOICE_DEPTH {
            return Err(format!("choices are nested more than {MAX_CHOICE_DEPTH} deep"));
        }
        while let Some(next) = self.rest.chars().next() {
            match (next, number) {
                ('}', _) => return Ok(()),
                ('{', _) => self.write_argument(out, depth)?,
                ('\'', _) => self.write_quoted(out),
                ('#', Some(number)) => {
                    out.push_str(&format_number(number));
                    self.skip(1);
                }
                (character, _) => {
                    out.push(character);
                    self.skip(character.len_utf8());
                }
            }
        }
        Ok(())
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    /// Writes quoted text, which begins with an apostrophe.
    fn write_quoted(&mut self, out: &mut String) {
        self.skip(1);
        if self.rest.starts_with('\'') {
            out.push('\'');
            return self.skip(1);
        }
        if !self.rest.starts_with(['{', '}', '#']) {
            return out.push('\'');
        }
        let (inside, behind) = self.rest.split_once('\'').unwrap_or((self.rest, ""));
        out.push_str(inside);
        self.rest = behind;
    }

    /// Writes the value of a placeholder.
    fn write_argument(&mut self, out: &mut String, depth: usize) -> Result<(), String> {
        self.skip(1);
        let name = self.take_word();
        let (text, number) =
            (self.arguments)(name).ok_or_else(|| format!("no value is given for `{name}`"))?;
        if self.take_char('}') {
            out.push_str(&text);
            return Ok(());
        }
        self.expect_char(',')?;
        let kind = self.take_word();
        if kind == "number" && self.take_char('}') {
            out.push_str(&text);
            return Ok(());
        }
        self.expect_char(',')?;
        let choice = match kind {
            "select" => ChoiceArgument::Keyword(text),
            "plural" | "selectordinal" => {
                let number = number.or_else(|| text.trim().parse().ok());
                let number = number.ok_or_else(|| format!("`{name}` is not a number: `{text}`"))?;
                let offset = self.parse_offset()?;
                let category = plural_category(self.language, number - offset, kind == "plural")?;
                ChoiceArgument::Number { number, displayed_number: number - offset, category }
            }
            unknown_kind => {
                return Err(format!(
                    "`{unknown_kind}` is not a kind of choice; use plural, selectordinal or select"
                ));
            }
        };
        out.push_str(&self.write_choice(&choice, depth)?);
        Ok(())
    }

    /// Parses all choices and writes the selected one; the content of the others may be invalid for this value.
    fn write_choice(&mut self, choice: &ChoiceArgument, depth: usize) -> Result<String, String> {
        let mut best: Option<(u8, &'a str)> = None;
        while !self.take_char('}') {
            let selector = self.take_word();
            self.expect_char('{')?;
            let inside = self.take_braced()?;
            let fit = choice.match_rank(selector);
            if fit > best.map_or(0, |(fit, _)| fit) {
                best = Some((fit, inside));
            }
        }
        let (_, inside) = best.ok_or("a choice has no `other`")?;
        let mut reader =
            MessageParser { rest: inside, language: self.language, arguments: self.arguments };
        let mut text = String::new();
        reader.write_text(&mut text, (choice.displayed_number(), depth + 1))?;
        Ok(text)
    }

    /// Returns the text up to the matching closing brace, and skips both.
    fn take_braced(&mut self) -> Result<&'a str, String> {
        let (mut depth, mut is_quoted, text) = (1_usize, false, self.rest);
        let mut rest = text.char_indices().peekable();
        while let Some((at, character)) = rest.next() {
            let next = rest.peek().map(|(_, next)| *next);
            match character {
                '\'' if is_quoted => is_quoted = false,
                '\'' if next == Some('\'') => drop(rest.next()),
                '\'' => is_quoted = matches!(next, Some('{' | '}' | '#')),
                '{' if !is_quoted => depth += 1,
                '}' if !is_quoted => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                let (inside, behind) = text.split_at(at);
                self.rest = behind.get(1..).unwrap_or_default();
                return Ok(inside);
            }
        }
        Err("a `}` is missing".to_owned())
    }

    fn parse_offset(&mut self) -> Result<f64, String> {
        self.skip_blanks();
        let Some(rest) = self.rest.strip_prefix("offset:") else { return Ok(0.0) };
        self.rest = rest;
        let keyword = self.take_word();
        keyword.parse().map_err(|_| format!("`{keyword}` is not an offset"))
    }

    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take_word(&mut self) -> &'a str {
        self.skip_blanks();
        let end = self.rest.find(|character: char| {
            character.is_whitespace() || matches!(character, ',' | '{' | '}')
        });
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }

    fn take_char(&mut self, expected: char) -> bool {
        self.skip_blanks();
        let rest = self.rest.strip_prefix(expected);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect_char(&mut self, expected: char) -> Result<(), String> {
        if self.take_char(expected) {
            return Ok(());
        }
        let remaining: String = self.rest.chars().take(10).collect();
        Err(format!("`{expected}` is missing before `{remaining}`"))
    }
}

/// The value that selects a choice.
enum ChoiceArgument {
    Keyword(String),
    Number { number: f64, displayed_number: f64, category: &'static str },
}

impl ChoiceArgument {
    fn displayed_number(&self) -> Option<f64> {
        match self {
            Self::Keyword(_) => None,
            Self::Number { displayed_number, .. } => Some(*displayed_number),
        }
    }

    /// Returns how well a selector matches; 0 for no match.
    fn match_rank(&self, selector: &str) -> u8 {
        match self {
            Self::Keyword(keyword) if keyword == selector => 3,
            Self::Number { number, .. }
                if selector.strip_prefix('=').is_some_and(|exact| exact.parse() == Ok(*number)) =>
            {
                3
            }
            Self::Number { category, .. } if *category == selector => 2,
            _ => u8::from(selector == "other"),
        }
    }
}

/// Formats a number without a needless fraction.
fn format_number(number: f64) -> String {
    number.to_string()
}

/// Returns the plural category of a number in a language.
fn plural_category(language: &str, number: f64, is_cardinal: bool) -> Result<&'static str, String> {
    let locale: Locale = language.parse().unwrap_or(Locale::UNKNOWN);
    let rules = match is_cardinal {
        true => PluralRules::try_new_cardinal((&locale).into()),
        false => PluralRules::try_new_ordinal((&locale).into()),
    };
    let rules = rules.map_err(|error| error.to_string())?;
    let number = Decimal::try_from_str(&format_number(number.abs()));
    let number = number.map_err(|error| error.to_string())?;
    Ok(match rules.category_for(&number) {
        PluralCategory::Zero => "zero",
        PluralCategory::One => "one",
        PluralCategory::Two => "two",
        PluralCategory::Few => "few",
        PluralCategory::Many => "many",
        PluralCategory::Other => "other",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, language: &str, count: &str, expected: Result<&str, &str>) {
        let arguments = |name: &str| match name {
            "count" => Some((count.to_owned(), count.parse().ok())),
            "city" => Some(("Köln {x}".to_owned(), None)),
            _ => None,
        };
        let message = format_message(text, language, &arguments);
        assert_eq!(message.as_deref().map_err(String::as_str), expected, "{text}");
    }

    #[test]
    fn fills_places() {
        check("To {city}", "en", "0", Ok("To Köln {x}"));
        check("{ city }, {count, number}", "en", "7", Ok("Köln {x}, 7"));
        check("it''s '{'city'}' isn't", "en", "0", Ok("it's {city} isn't"));
        check("plain # text", "en", "0", Ok("plain # text"));
    }

    #[test]
    fn knows_the_plurals_of_languages() {
        let text = "{count, plural, =0 {none} one {# train} two {two} few {# few} many {# many} other {# trains}}";
        for (language, count, expected) in [
            ("en", "0", "none"),
            ("en", "1", "1 train"),
            ("en", "2", "2 trains"),
            ("en", "1.5", "1.5 trains"),
            ("de", "1", "1 train"),
            ("pl", "3", "3 few"),
            ("pl", "5", "5 many"),
            ("ar", "2", "two"),
            ("ja", "1", "1 trains"),
            ("fr", "1.5", "1.5 train"),
            ("no such", "2", "2 trains"),
        ] {
            check(text, language, count, Ok(expected));
        }
        let ordinal = "{count, selectordinal, one {#st} two {#nd} few {#rd} other {#th}}";
        for (count, expected) in [("1", "1st"), ("22", "22nd"), ("3", "3rd"), ("11", "11th")] {
            check(ordinal, "en", count, Ok(expected));
        }
        check(
            "{count, plural, offset:1 =0 {nobody} =1 {you} other {you and #}}",
            "en",
            "3",
            Ok("you and 2"),
        );
    }

    #[test]
    fn chooses_by_words() {
        let text = "{count, select, a {A {city}} other {{count, plural, other {#!}}}}";
        check(text, "en", "a", Ok("A Köln {x}"));
        check(text, "en", "5", Ok("5!"));
    }

    #[test]
    fn tells_what_is_wrong() {
        check("{none}", "en", "1", Err("no value is given for `none`"));
        check("{count", "en", "1", Err("`,` is missing before ``"));
        check("a } b", "en", "1", Err("unmatched `}`"));
        check("{count, plural, one {x}}", "en", "2", Err("a choice has no `other`"));
        check("{city, plural, other {x}}", "en", "1", Err("`city` is not a number: `Köln {x}`"));
        check(
            "{count, datum, other {x}}",
            "en",
            "1",
            Err("`datum` is not a kind of choice; use plural, selectordinal or select"),
        );
    }

    proptest::proptest! {
        #[test]
        fn no_text_ends_the_program(text in "[{}#', =acdelnoprstuy0-9]{0,60}") {
            format_message(&text, "en", &|_| Some(("2".to_owned(), Some(2.0)))).ok();
        }
    }
}
