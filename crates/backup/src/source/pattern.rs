//! Path patterns with restic's semantics, which are those of Go's `filepath.Match` for each name.
//!
//! In: a pattern, and paths. Out: true if a path matches.
//!
//! * `*` matches any bytes of a name, `?` one character, `[a-z]` one of a set, `[^a-z]` one outside of it. `[!a]` has
//!   no special meaning: it matches `!` or `a`. `\` escapes the next character. `**`, as a whole name, matches any
//!   number of names.
//! * A pattern that begins with `/` matches a path from its first name on; another one from any name on. Both also
//!   match everything below a matching path.
//! * A pattern that begins with `!` reverts matches of earlier patterns.
//! * Names are bytes; a byte that is not part of valid UTF-8 counts as one character.
//!
//! Not here: what happens to a matching path.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Represents a byte that is not part of valid UTF-8.
const INVALID_BYTE_REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// A malformed pattern.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MalformedPattern {
    /// The pattern.
    pub(crate) pattern: String,
}

/// The treatment of letter case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LetterCase {
    /// Case-sensitive.
    #[default]
    Exact,
    /// Case-insensitive.
    Ignored,
}

/// A list of patterns, of which later ones may revert matches of earlier ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExcludePathPatterns {
    patterns: Vec<ExcludePathPattern>,
    case: LetterCase,
}

impl ExcludePathPatterns {
    /// Parses patterns; empty ones are skipped.
    ///
    /// # Errors
    /// The first malformed pattern.
    pub(crate) fn parse(patterns: &[String], case: LetterCase) -> Result<Self, MalformedPattern> {
        let patterns = patterns.iter().filter(|pattern| !pattern.is_empty());
        let parse = |pattern: &String| {
            let text = match case {
                LetterCase::Exact => pattern.clone(),
                LetterCase::Ignored => lower_case_text(pattern),
            };
            ExcludePathPattern::parse(&text)
                .ok_or_else(|| MalformedPattern { pattern: pattern.clone() })
        };
        Ok(Self { patterns: patterns.map(parse).collect::<Result<_, _>>()?, case })
    }

    /// Returns true if an absolute path matches.
    pub(crate) fn is_match(&self, path: &Path) -> bool {
        if self.patterns.is_empty() {
            return false;
        }
        let bytes = path.as_os_str().as_bytes();
        match self.case {
            LetterCase::Exact => self.matches_path(bytes),
            LetterCase::Ignored => self.matches_path(&lower_case_path(bytes)),
        }
    }

    fn matches_path(&self, path: &[u8]) -> bool {
        let names = split_path_names(path);
        self.patterns.iter().fold(false, |fits, pattern| match pattern.is_negated {
            true => fits && !pattern.matches_names(&names),
            false => fits || pattern.matches_names(&names),
        })
    }
}

/// Splits a path into its names; the first of an absolute one is `/`.
fn split_path_names(path: &[u8]) -> Vec<&[u8]> {
    let mut names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    if let Some(first) = names.first_mut().filter(|first| first.is_empty()) {
        *first = b"/";
    }
    names
}

#[derive(Clone, Debug)]
struct ExcludePathPattern {
    is_negated: bool,
    parts: Vec<PatternPart>,
}

/// One name of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternPart {
    /// `**`.
    AnyNames,
    /// The start of an absolute pattern.
    Root,
    Name(NamePattern),
}

/// A pattern of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamePattern(Vec<NameTerm>);

impl NamePattern {
    /// Parses a pattern of one name; `None` if it is malformed.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        parse_name(text).map(Self)
    }

    /// Returns the only matching name, if the pattern has no wildcards.
    pub(crate) fn as_literal(&self) -> Option<&[u8]> {
        match self.0.as_slice() {
            [NameTerm::Literal(bytes)] => Some(bytes),
            _ => None,
        }
    }

    /// Returns true if a name matches.
    pub(crate) fn matches_name(&self, name: &[u8]) -> bool {
        match_terms(&self.0, name)
    }
}

/// An element of a name pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NameTerm {
    /// `*`.
    AnyBytes,
    /// `?`.
    AnyCharacter,
    /// `[…]`: ranges with inclusive bounds.
    Class { is_negated: bool, ranges: Vec<(char, char)> },
    /// These bytes.
    Literal(Vec<u8>),
}

impl ExcludePathPattern {
    fn parse(text: &str) -> Option<Self> {
        let (is_negated, text) = match text.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let clean = normalize_pattern(text);
        let mut parts = Vec::new();
        for (index, part) in clean.split('/').enumerate() {
            parts.push(match part {
                "" if index == 0 => PatternPart::Root,
                // The pattern `/` matches everything.
                "" | "**" => PatternPart::AnyNames,
                part => PatternPart::Name(NamePattern::parse(part)?),
            });
        }
        Some(Self { is_negated, parts })
    }

    fn matches_names(&self, names: &[&[u8]]) -> bool {
        let parts: Vec<&PatternPart> = self.parts.iter().collect();
        match_parts(&parts, names)
    }
}

/// Matches the parts of a pattern. `**` is expanded to none, one, two… arbitrary names, as in restic.
fn match_parts(parts: &[&PatternPart], names: &[&[u8]]) -> bool {
    let any_name = PatternPart::Name(NamePattern(vec![NameTerm::AnyBytes]));
    if let Some(at) = parts.iter().position(|part| **part == PatternPart::AnyNames) {
        let (before, after) = parts.split_at(at);
        let after = after.get(1..).unwrap_or_default();
        // More would exceed the number of names in the path.
        let most = (names.len() + 1).checked_sub(parts.len());
        return most.is_some_and(|most| {
            (0..=most).any(|count| {
                let mut parts = before.to_vec();
                parts.extend(std::iter::repeat_n(&any_name, count));
                parts.extend_from_slice(after);
                match_parts(&parts, names)
            })
        });
    }
    let Some(first) = parts.first() else { return names.is_empty() };
    let Some(last_start) = names.len().checked_sub(parts.len()) else { return false };
    let starts = match first {
        PatternPart::Root => 0..=0,
        // A relative pattern matches names, not the root.
        _ if names.first().is_some_and(|name| *name == b"/") => 1..=last_start,
        _ => 0..=last_start,
    };
    starts.into_iter().any(|start| {
        let names = names.get(start..).unwrap_or_default();
        parts.iter().zip(names).all(|(part, name)| match part {
            PatternPart::AnyNames => false,
            PatternPart::Root => *name == b"/",
            PatternPart::Name(pattern) => pattern.matches_name(name),
        })
    })
}

/// Matches one name.
fn match_terms(terms: &[NameTerm], name: &[u8]) -> bool {
    // The last `*` encountered, and the position in the name at which to try its continuation next.
    let mut retry: Option<(usize, usize)> = None;
    let (mut term, mut at) = (0, 0);
    loop {
        let rest = name.get(at..).unwrap_or_default();
        let length = match terms.get(term) {
            None if rest.is_empty() => return true,
            None => None,
            Some(NameTerm::AnyBytes) => {
                retry = Some((term, at + 1));
                Some(0)
            }
            Some(term_kind) => term_kind.match_length(rest),
        };
        if let Some(length) = length {
            (term, at) = (term + 1, at + length);
            continue;
        }
        let Some((star, next)) = retry.filter(|(_, next)| *next <= name.len()) else {
            return false;
        };
        retry = Some((star, next + 1));
        (term, at) = (star + 1, next);
    }
}

impl NameTerm {
    /// Returns the length of the matching prefix.
    fn match_length(&self, rest: &[u8]) -> Option<usize> {
        match self {
            Self::AnyBytes => Some(0),
            Self::AnyCharacter => first_character(rest).map(|(_, length)| length),
            Self::Class { is_negated, ranges } => {
                let (letter, length) = first_character(rest)?;
                let is_in = ranges.iter().any(|(low, high)| (low..=high).contains(&&letter));
                (is_in != *is_negated).then_some(length)
            }
            Self::Literal(bytes) => rest.starts_with(bytes).then_some(bytes.len()),
        }
    }
}

/// Returns the first character and its length; for an invalid byte, [`INVALID_BYTE_REPLACEMENT`] and 1.
fn first_character(bytes: &[u8]) -> Option<(char, usize)> {
    let longest = bytes.get(..4).unwrap_or(bytes);
    let chunk = longest.utf8_chunks().next()?;
    Some(
        chunk
            .valid()
            .chars()
            .next()
            .map_or((INVALID_BYTE_REPLACEMENT, 1), |character| (character, character.len_utf8())),
    )
}

fn parse_name(text: &str) -> Option<Vec<NameTerm>> {
    let mut terms = Vec::new();
    let mut literal = Vec::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let term = match letter {
            '*' => NameTerm::AnyBytes,
            '?' => NameTerm::AnyCharacter,
            '[' => {
                let is_negated = letters.next_if_eq(&'^').is_some();
                let mut ranges = Vec::new();
                while ranges.is_empty() || letters.next_if_eq(&']').is_none() {
                    let low = parse_class_character(&mut letters)?;
                    let is_range = letters.next_if_eq(&'-').is_some();
                    let high = if is_range { parse_class_character(&mut letters)? } else { low };
                    ranges.push((low, high));
                }
                NameTerm::Class { is_negated, ranges }
            }
            letter => {
                let letter = if letter == '\\' { letters.next()? } else { letter };
                literal.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
        };
        if !literal.is_empty() {
            terms.push(NameTerm::Literal(std::mem::take(&mut literal)));
        }
        terms.push(term);
    }
    if !literal.is_empty() {
        terms.push(NameTerm::Literal(literal));
    }
    Some(terms)
}

/// Reads a character of a class; `None` at the end of the pattern, or for an unescaped `-` or `]`.
fn parse_class_character(letters: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<char> {
    match letters.next()? {
        '-' | ']' => None,
        '\\' => letters.next(),
        letter => Some(letter),
    }
}

/// Removes `.`, `..` and redundant slashes from a pattern, without accessing the file system.
fn normalize_pattern(text: &str) -> String {
    let is_absolute = text.starts_with('/');
    let mut names: Vec<&str> = Vec::new();
    for name in text.split('/') {
        match name {
            "" | "." => {}
            ".." => match names.last() {
                Some(last) if *last != ".." => {
                    names.pop();
                }
                _ if is_absolute => {}
                _ => names.push(name),
            },
            name => names.push(name),
        }
    }
    let joined = names.join("/");
    match (is_absolute, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".to_owned(),
        (false, false) => joined,
    }
}

/// Returns the lower case of a letter; if it maps to several characters, the first.
fn lower_case_char(letter: char) -> char {
    letter.to_lowercase().next().unwrap_or(letter)
}

fn lower_case_text(text: &str) -> String {
    text.chars().map(lower_case_char).collect()
}

/// Returns a path in lower case, with [`INVALID_BYTE_REPLACEMENT`] for each invalid byte.
fn lower_case_path(path: &[u8]) -> Vec<u8> {
    if path.is_ascii() {
        return path.to_ascii_lowercase();
    }
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        text.extend(chunk.valid().chars().map(lower_case_char));
        text.extend(chunk.invalid().iter().map(|_| INVALID_BYTE_REPLACEMENT));
    }
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn check(patterns: &[&str], path: impl AsRef<OsStr>, fits: bool) {
        let texts: Vec<String> = patterns.iter().map(ToString::to_string).collect();
        let parsed = ExcludePathPatterns::parse(&texts, LetterCase::Exact).unwrap();
        let path = Path::new(path.as_ref());
        assert_eq!(parsed.is_match(path), fits, "{patterns:?} {}", path.display());
    }

    #[test]
    fn names_are_matched_by_characters() {
        check(&["?pfel.txt"], "/d/äpfel.txt", true);
        check(&["??pfel.txt"], "/d/äpfel.txt", false);
        check(&["[ä-ü]pfel.txt"], "/d/öpfel.txt", true);
        check(&["?"], OsStr::from_bytes(b"/\xff"), true);
        check(&["?"], OsStr::from_bytes(b"/\xff\xfe"), false);
        check(&["a*b"], OsStr::from_bytes(b"/a\xff\xfeb"), true);
    }

    #[test]
    fn classes_and_escapes_are_those_of_go() {
        check(&["[^a]x"], "/bx", true);
        check(&["[^a]x"], "/ax", false);
        for (path, fits) in [("/ax", true), ("/!x", true), ("/bx", false)] {
            check(&["[!a]x"], path, fits);
        }
        check(&[r"a\*b"], "/a*b", true);
        check(&[r"a\*b"], "/axb", false);
        check(&[r"[\]a-c]"], "/]", true);
        check(&[r"[\]a-c]"], "/b", true);
        check(&["[a-b]]"], "/b]", true);
        for malformed in ["[", "a[", "[]a]", "[a-", "[a-]", "[-a]", "a\\", "[^]", "x/[/y", "[a\\"] {
            let texts = [malformed.to_owned()];
            let parsed = ExcludePathPatterns::parse(&texts, LetterCase::Exact);
            assert_eq!(parsed.unwrap_err().pattern, malformed);
        }
    }

    #[test]
    fn stars_go_as_far_as_they_must() {
        check(&["*.o"], "/a/b.o", true);
        check(&["*.o"], "/.o", true);
        check(&["*.o"], "/a/b.op", false);
        check(&["a*b*c"], "/aXbYbZc", true);
        check(&["a*b*c"], "/aXbYbZ", false);
        check(&["**x"], "/a/yx", true);
        check(&["*"], "/a", true);
    }

    #[test]
    fn absolute_and_relative_patterns_fit_what_is_below_too() {
        check(&["/home/*/cache"], "/home/me/cache", true);
        check(&["/home/*/cache"], "/home/me/cache/deep/file", true);
        check(&["/home/*/cache"], "/x/home/me/cache", false);
        check(&["b/c"], "/a/b/c/d", true);
        check(&["/"], "/a/b", true);
        check(&["tmp/"], "/a/tmp", true);
        check(&["./tmp//x/../y"], "/a/tmp/y", true);
        check(&["a/**/z"], "/a/z", true);
        check(&["a/**/z"], "/q/a/b/c/z", true);
        check(&["a/**/z"], "/ba/z", false);
        check(&["/a/**"], "/a", true);
        check(&["/a/**"], "/b", false);
    }

    #[test]
    fn later_patterns_take_back_what_earlier_ones_fit() {
        check(&["*.txt", "!keep.txt"], "/d/keep.txt", false);
        check(&["*.txt", "!keep.txt"], "/d/lose.txt", true);
        check(&["!keep.txt", "*.txt"], "/d/keep.txt", true);
        check(&["", "!", "a"], "/a", true);
    }

    #[test]
    fn case_is_ignored_where_that_is_asked_for() {
        let texts = ["ÄPFEL.*".to_owned(), "*.JPG".to_owned()];
        let patterns = ExcludePathPatterns::parse(&texts, LetterCase::Ignored).unwrap();
        for path in ["/äpfel.txt", "/ÄPFEL.TXT", "/a.jpg", "/A.Jpg"] {
            assert!(patterns.is_match(Path::new(path)), "{path}");
        }
        assert!(patterns.is_match(Path::new(OsStr::from_bytes(b"/\xff.jpG"))));
        assert!(!patterns.is_match(Path::new("/apfel.txt")));
    }
}
