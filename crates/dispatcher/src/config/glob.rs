//! Globs, the syntax of every double-quoted pattern.
//!
//! A glob matches the whole text. `*` matches any characters (also `/`), `?` matches one character, `[a-z]` one of a
//! class and `[!a-z]` or `[^a-z]` one outside it; inside a class `*` and `?` are literal. An unclosed class matches
//! nothing.

/// A compiled glob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DispatcherGlob {
    source: String,
    parts: Option<Vec<GlobPart>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum GlobPart {
    Literal(char),
    AnyChar,
    AnySequence,
    Class { is_negated: bool, ranges: Vec<(char, char)> },
}

impl DispatcherGlob {
    /// Compiles `source`; every text is a valid glob.
    #[must_use]
    pub fn new(source: &str) -> Self {
        Self { source: source.to_owned(), parts: compile_glob(source) }
    }

    /// Returns the source text of the glob.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns true if the glob matches the whole of `text`.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        self.parts.as_deref().is_some_and(|parts| matches_parts(parts, text))
    }
}

fn compile_glob(source: &str) -> Option<Vec<GlobPart>> {
    let mut parts = Vec::new();
    let mut rest = source.chars();
    while let Some(char) = rest.next() {
        let part = match char {
            '*' if parts.last() == Some(&GlobPart::AnySequence) => continue,
            '*' => GlobPart::AnySequence,
            '?' => GlobPart::AnyChar,
            '[' => {
                let (class, after) = parse_char_class(rest.as_str())?;
                rest = after.chars();
                class
            }
            char => GlobPart::Literal(char),
        };
        parts.push(part);
    }
    Some(parts)
}

/// Parses a class after its `[`.
fn parse_char_class(text: &str) -> Option<(GlobPart, &str)> {
    let (is_negated, text) = match text.strip_prefix(['!', '^']) {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    // A leading bracket is a member of the class.
    let end = text.char_indices().skip(1).find(|(_, char)| *char == ']')?.0;
    let members: Vec<char> = text.get(..end)?.chars().collect();
    let mut ranges = Vec::new();
    let mut left = members.as_slice();
    loop {
        left = match left {
            [] => break,
            [from, '-', to, rest @ ..] => {
                ranges.push((*from, *to));
                rest
            }
            [char, rest @ ..] => {
                ranges.push((*char, *char));
                rest
            }
        };
    }
    Some((GlobPart::Class { is_negated, ranges }, text.get(end + 1..)?))
}

/// Matches in one pass; at a mismatch the last `*` takes one more character, so the cost is at most the product of both
/// lengths.
fn matches_parts(parts: &[GlobPart], text: &str) -> bool {
    let (mut parts_left, mut text_left) = (parts, text);
    let mut retry: Option<(&[GlobPart], &str)> = None;
    loop {
        if let [GlobPart::AnySequence, rest @ ..] = parts_left {
            parts_left = rest;
            retry = Some((rest, text_left));
            continue;
        }
        let mut chars = text_left.chars();
        match (parts_left, chars.next()) {
            ([], None) => return true,
            ([part, rest @ ..], Some(char)) if part.matches_char(char) => {
                parts_left = rest;
                text_left = chars.as_str();
            }
            _ => {
                let Some((rest, from)) = retry else {
                    return false;
                };
                let mut chars = from.chars();
                if chars.next().is_none() {
                    return false;
                }
                retry = Some((rest, chars.as_str()));
                (parts_left, text_left) = (rest, chars.as_str());
            }
        }
    }
}

impl GlobPart {
    fn matches_char(&self, char: char) -> bool {
        match self {
            Self::Literal(own) => *own == char,
            Self::AnyChar => true,
            Self::AnySequence => false,
            Self::Class { is_negated, ranges } => {
                let is_member = ranges.iter().any(|(from, to)| (*from..=*to).contains(&char));
                is_member != *is_negated
            }
        }
    }
}
