//! Regular expressions in plans, in the syntax of Perl 5 (JMeter's own library) and Java.
//!
//! In: an expression. Out: the equivalent expression for the libraries used here, which interpret some characters
//! differently: there a bare `{` is an error and `\<` the beginning of a word, `[` inside brackets opens a set, and `$`
//! matches only at the end of the text.
//!
//! Not here: compilation ([`super::regex_pattern::compile_pattern`]).

use std::fmt::Write as _;
use std::iter::Peekable;
use std::str::CharIndices;

/// The meaning of `$` at the end of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextEndAnchor {
    /// Also matches before a final line feed, as in searches.
    BeforeLineFeed,
    /// Matches only at the very end, as in full matches.
    Exact,
}

/// Translates an expression.
pub(super) fn translate_pattern(pattern: &str, end: TextEndAnchor) -> String {
    let mut translator = RegexTranslator {
        pattern,
        remaining: pattern.char_indices().peekable(),
        output: String::with_capacity(pattern.len() + 8),
        end_anchor: end,
        is_multiline: has_multiline_flag(pattern),
        can_repeat: false,
    };
    translator.translate();
    translator.output
}

/// Returns true if a flag makes `$` match at the end of each line.
fn has_multiline_flag(pattern: &str) -> bool {
    pattern.match_indices("(?").any(|(at, _)| {
        let flags = pattern.get(at + 2..).unwrap_or_default();
        let on = flags.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default();
        on.contains('m')
            && flags.get(on.len()..).is_some_and(|rest| rest.starts_with([')', ':', '-']))
    })
}

struct RegexTranslator<'p> {
    pattern: &'p str,
    remaining: Peekable<CharIndices<'p>>,
    output: String,
    end_anchor: TextEndAnchor,
    is_multiline: bool,
    /// Set if the preceding element can be repeated.
    can_repeat: bool,
}

impl RegexTranslator<'_> {
    fn translate(&mut self) {
        while let Some((at, letter)) = self.remaining.next() {
            let after = self.pattern.get(at + letter.len_utf8()..).unwrap_or_default();
            match letter {
                '\\' => self.translate_escape(),
                '[' => self.copy_character_set(),
                '{' => match repetition_bounds(after).filter(|_| self.can_repeat) {
                    Some(inside) => {
                        self.output.push('{');
                        self.output.push_str(inside);
                        self.output.push('}');
                        self.skip_bytes(inside.len() + 1);
                    }
                    None => self.push_atom("\\{"),
                },
                '}' => self.push_atom("\\}"),
                ']' => self.push_atom("\\]"),
                '$' if !self.is_multiline => {
                    self.output.push_str(match self.end_anchor {
                        TextEndAnchor::BeforeLineFeed => "(?:\\n?\\z)",
                        TextEndAnchor::Exact => "\\z",
                    });
                    self.can_repeat = false;
                }
                '(' if after.starts_with("?#") => {
                    let inside = after.find(')').unwrap_or(after.len());
                    self.skip_bytes(inside + 1);
                }
                '(' | '|' => {
                    self.output.push(letter);
                    self.can_repeat = false;
                }
                _ => {
                    self.output.push(letter);
                    self.can_repeat = true;
                }
            }
        }
    }

    fn push_atom(&mut self, text: &str) {
        self.output.push_str(text);
        self.can_repeat = true;
    }

    fn push_literal(&mut self, letter: char) {
        if is_special_letter(letter) {
            self.output.push('\\');
        }
        self.output.push(letter);
        self.can_repeat = true;
    }

    /// Skips a number of bytes, which must be whole characters.
    fn skip_bytes(&mut self, bytes: usize) {
        let Some(&(from, _)) = self.remaining.peek() else { return };
        while self.remaining.peek().is_some_and(|(at, _)| *at < from + bytes) {
            self.remaining.next();
        }
    }

    fn translate_escape(&mut self) {
        let Some((at, letter)) = self.remaining.next() else {
            self.output.push('\\');
            return;
        };
        let after = self.pattern.get(at + letter.len_utf8()..).unwrap_or_default();
        match letter {
            'Q' => {
                let quoted = after.split("\\E").next().unwrap_or_default();
                quoted.chars().for_each(|letter| self.push_literal(letter));
                self.skip_bytes(quoted.len() + 2);
            }
            'E' => {}
            'Z' => self.output.push_str("(?:\\n?\\z)"),
            'e' => self.push_atom("\\x1B"),
            'h' => self.push_atom("[ \\t]"),
            'H' => self.push_atom("[^ \\t]"),
            'R' => self.push_atom("(?:\\r\\n|\\n|\\r)"),
            '0' => {
                let digits = octal_digits(after);
                let code = u32::from_str_radix(digits, 8).unwrap_or(0);
                write!(self.output, "\\x{{{code:X}}}").ok();
                self.skip_bytes(digits.len());
                self.can_repeat = true;
            }
            'c' => {
                if let Some((_, control)) = self.remaining.next() {
                    let code = u32::from(control.to_ascii_uppercase()) ^ 64;
                    write!(self.output, "\\x{{{code:X}}}").ok();
                }
                self.can_repeat = true;
            }
            // Whitespace is literal even with a flag that ignores it.
            ' ' => self.push_atom("\\x20"),
            _ if letter.is_ascii_digit() || is_known_escape(letter) => {
                self.output.push('\\');
                self.output.push(letter);
                self.can_repeat = true;
                self.copy_braced_name(letter, after);
            }
            _ => self.push_literal(letter),
        }
    }

    /// Copies the braces after `\p`, `\x` and similar escapes, which are no repetition.
    fn copy_braced_name(&mut self, letter: char, after: &str) {
        let takes_name = matches!(letter, 'p' | 'P' | 'x' | 'u');
        if let Some(end) = after.find('}').filter(|_| takes_name && after.starts_with('{')) {
            self.output.push_str(after.get(..=end).unwrap_or_default());
            self.skip_bytes(end + 1);
        }
    }

    /// Copies a character set; its opening bracket is already consumed.
    fn copy_character_set(&mut self) {
        self.output.push('[');
        self.can_repeat = true;
        if self.remaining.next_if(|(_, letter)| *letter == '^').is_some() {
            self.output.push('^');
        }
        if self.remaining.next_if(|(_, letter)| *letter == ']').is_some() {
            self.output.push_str("\\]");
        }
        // Set if a following hyphen could begin a range.
        let mut can_range = false;
        while let Some((at, letter)) = self.remaining.next() {
            let after = self.pattern.get(at + letter.len_utf8()..).unwrap_or_default();
            match letter {
                ']' => {
                    self.output.push(']');
                    return;
                }
                '[' => match posix_class_name(after) {
                    Some(name) => {
                        self.output.push('[');
                        self.output.push_str(name);
                        self.skip_bytes(name.len());
                        can_range = false;
                    }
                    None => {
                        self.output.push_str("\\[");
                        can_range = true;
                    }
                },
                '-' => {
                    let is_range =
                        can_range && !after.starts_with(']') && !starts_escaped_class(after);
                    self.output.push_str(if is_range { "-" } else { "\\-" });
                    // The end of a range cannot begin another.
                    can_range = !is_range && can_range;
                    if is_range {
                        self.copy_range_end();
                        can_range = false;
                    }
                }
                '\\' => can_range = self.copy_set_escape(),
                '&' | '~' => {
                    self.output.push('\\');
                    self.output.push(letter);
                    can_range = true;
                }
                _ => {
                    self.output.push(letter);
                    can_range = true;
                }
            }
        }
    }

    /// Copies the last character of a range.
    fn copy_range_end(&mut self) {
        match self.remaining.next() {
            Some((_, '\\')) => {
                self.copy_set_escape();
            }
            Some((_, letter)) => {
                if matches!(letter, '[' | '&' | '~' | '-') {
                    self.output.push('\\');
                }
                self.output.push(letter);
            }
            None => {}
        }
    }

    /// Copies an escaped character of a set; returns false if it stands for several characters.
    fn copy_set_escape(&mut self) -> bool {
        let Some((at, letter)) = self.remaining.next() else {
            self.output.push('\\');
            return false;
        };
        let after = self.pattern.get(at + letter.len_utf8()..).unwrap_or_default();
        match letter {
            'b' => self.output.push_str("\\x08"),
            'e' => self.output.push_str("\\x1B"),
            'h' => {
                self.output.push_str(" \\t");
                return false;
            }
            '0'..='7' => {
                let digits = match letter {
                    '0' => octal_digits(after),
                    _ => octal_digits(self.pattern.get(at..).unwrap_or_default()),
                };
                let code = u32::from_str_radix(digits, 8).unwrap_or(0);
                write!(self.output, "\\x{{{code:X}}}").ok();
                self.skip_bytes(if letter == '0' { digits.len() } else { digits.len() - 1 });
            }
            _ if is_known_escape(letter) => {
                self.output.push('\\');
                self.output.push(letter);
                return !starts_escaped_class(&format!("\\{letter}"));
            }
            _ => {
                if is_special_letter(letter) || matches!(letter, '&' | '~' | '-') {
                    self.output.push('\\');
                }
                self.output.push(letter);
            }
        }
        true
    }
}

/// Returns true for characters with a special meaning outside a set.
fn is_special_letter(letter: char) -> bool {
    matches!(
        letter,
        '\\' | '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$' | '#'
    )
}

/// Returns true for characters whose escape means the same in both syntaxes.
fn is_known_escape(letter: char) -> bool {
    matches!(
        letter,
        'd' | 'D'
            | 'w'
            | 'W'
            | 's'
            | 'S'
            | 'b'
            | 'B'
            | 'A'
            | 'z'
            | 'n'
            | 'r'
            | 't'
            | 'f'
            | 'a'
            | 'x'
            | 'u'
            | 'p'
            | 'P'
            | 'k'
            | 'G'
    )
}

/// Returns true if an escaped character class begins, which cannot end a range.
fn starts_escaped_class(text: &str) -> bool {
    ["\\d", "\\D", "\\w", "\\W", "\\s", "\\S", "\\p", "\\P"]
        .iter()
        .any(|class| text.starts_with(class))
}

/// Returns up to three octal digits.
fn octal_digits(text: &str) -> &str {
    let end = text.bytes().take(3).take_while(|byte| matches!(byte, b'0'..=b'7')).count();
    text.get(..end).unwrap_or_default()
}

/// Returns the content of repetition braces: `3`, `3,` or `3,5`.
fn repetition_bounds(text: &str) -> Option<&str> {
    let (inside, _) = text.split_once('}')?;
    let (least, most) = inside.split_once(',').unwrap_or((inside, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    (!least.is_empty() && is_number(least) && is_number(most)).then_some(inside)
}

/// Returns `:alpha:]` and similar names.
fn posix_class_name(text: &str) -> Option<&str> {
    let name = text.strip_prefix(':')?;
    let end = name.find(":]")?;
    let is_name = name.get(..end)?.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'^');
    is_name.then(|| text.get(..end + 3)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, expected: &str) {
        assert_eq!(
            translate_pattern(pattern, TextEndAnchor::BeforeLineFeed),
            expected,
            "{pattern}"
        );
    }

    #[test]
    fn what_both_read_alike_stays_as_it_is() {
        for pattern in [
            "name=\"token\" value=\"(.+?)\"",
            "(?i)^a|b*c+?(?:d){2,3}[a-z0-9_]+\\d\\.\\w{4}",
            "[^\"]+[[:alpha:]]",
            "(?=x)(?!y)(?<=z)(?<name>w)\\1",
            "ü+\\x41\\u00e9",
            r"\p{Lu}\P{L}+\x{41}{2}",
        ] {
            check(pattern, pattern);
        }
    }

    #[test]
    fn letters_that_are_read_otherwise_are_written_otherwise() {
        check(r#"{"id":"(.+?)"}"#, r#"\{"id":"(.+?)"\}"#);
        check("a{x}b{,3}", r"a\{x\}b\{,3\}");
        check(r"\<b\>\/\-\_\'", "<b>/-_'");
        check("[[a]", r"[\[a]");
        check("[]a]", r"[\]a]");
        check(r"[\w-]+[a-][+--][\w-.]", r"[\w\-]+[a\-][+-\-][\w\-.]");
        check("[a&&b~]", r"[a\&\&b\~]");
        check(r"[\b\101\0]", r"[\x08\x{41}\x{0}]");
        check(r"\Qa.b\E.", r"a\.b.");
        check(r"x\Z|y$", r"x(?:\n?\z)|y(?:\n?\z)");
        check("(?m)x$", "(?m)x$");
        check("a(?#remark)b", "ab");
        check(r"\cA\e\h\R\012", r"\x{1}\x1B[ \t](?:\r\n|\n|\r)\x{A}");
        assert_eq!(translate_pattern("x$", TextEndAnchor::Exact), r"x\z");
    }

    #[test]
    fn broken_expressions_end() {
        for pattern in ["\\", "[", "[\\", "[a-", "\\c", "\\Q", "(?#", "{", "[[:", "a{9"] {
            translate_pattern(pattern, TextEndAnchor::Exact);
        }
    }
}
