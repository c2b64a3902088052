//! Position of an output in a script or style sheet: as a value, or within a text, comment or pattern.
//!
//! Distinguishing a division from a pattern needs a full parser, so this may guess wrong. That is harmless: outputs in
//! scripts are inert in all of these states, and a wrong guess only causes a script that does not parse.

use super::output_escape::{OutputEscape, UrlExtent};
use super::url_state::UrlState;

/// A position in a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ScriptState {
    Code { follows_value: bool },
    Slash { follows_value: bool },
    StringLiteral(u8),
    StringEscape(u8),
    LineComment,
    BlockComment { has_star: bool },
    Pattern { is_in_class: bool },
    PatternEscape { is_in_class: bool },
}

impl ScriptState {
    pub(super) fn new() -> Self {
        Self::Code { follows_value: false }
    }

    pub(super) fn read_byte(&mut self, byte: u8) {
        *self = match *self {
            Self::Code { follows_value } => next_code_state(byte, follows_value),
            Self::Slash { .. } if byte == b'/' => Self::LineComment,
            Self::Slash { .. } if byte == b'*' => Self::BlockComment { has_star: false },
            Self::Slash { follows_value: true } => next_code_state(byte, false),
            Self::Slash { follows_value: false } => next_pattern_state(byte, false),
            Self::StringLiteral(_) if byte == b'\n' && *self != Self::StringLiteral(b'`') => {
                Self::new()
            }
            Self::StringLiteral(quote) if byte == quote => Self::Code { follows_value: true },
            Self::StringLiteral(quote) if byte == b'\\' => Self::StringEscape(quote),
            Self::StringEscape(quote) => Self::StringLiteral(quote),
            Self::LineComment if matches!(byte, b'\n' | b'\r') => Self::new(),
            Self::BlockComment { has_star: true } if byte == b'/' => Self::new(),
            Self::BlockComment { .. } => Self::BlockComment { has_star: byte == b'*' },
            Self::Pattern { is_in_class } => next_pattern_state(byte, is_in_class),
            Self::PatternEscape { is_in_class } => Self::Pattern { is_in_class },
            same => same,
        };
    }

    pub(super) fn apply_output(&mut self) -> OutputEscape {
        match self {
            Self::Code { .. } | Self::Slash { .. } => {
                *self = Self::Code { follows_value: true };
                OutputEscape::Script
            }
            _ => OutputEscape::ScriptText,
        }
    }

    /// Returns true if a script may end here.
    pub(super) fn is_complete(self) -> bool {
        matches!(self, Self::Code { .. } | Self::LineComment)
    }
}

fn next_code_state(byte: u8, follows_value: bool) -> ScriptState {
    match byte {
        b'"' | b'\'' | b'`' => ScriptState::StringLiteral(byte),
        b'/' => ScriptState::Slash { follows_value },
        byte if byte.is_ascii_whitespace() => ScriptState::Code { follows_value },
        b')' | b']' | b'}' | b'_' | b'$' => ScriptState::Code { follows_value: true },
        byte => ScriptState::Code { follows_value: byte.is_ascii_alphanumeric() || byte >= 0x80 },
    }
}

fn next_pattern_state(byte: u8, is_class: bool) -> ScriptState {
    match byte {
        b'/' if !is_class => ScriptState::Code { follows_value: true },
        b'\\' => ScriptState::PatternEscape { is_in_class: is_class },
        b'[' => ScriptState::Pattern { is_in_class: true },
        b']' => ScriptState::Pattern { is_in_class: false },
        // A pattern ends with its line at the latest: the slash was a division.
        b'\n' => ScriptState::new(),
        _ => ScriptState::Pattern { is_in_class: is_class },
    }
}

/// A position in a style sheet.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum StyleState {
    /// The last few bytes, which may begin a URL or a comment.
    Plain(String),
    StringLiteral(u8),
    StringEscape(u8),
    Comment {
        has_star: bool,
    },
    /// In `url(…)`, before its quote or first byte.
    UrlBegin,
    Url {
        quote: Option<u8>,
        url: UrlState,
    },
}

impl StyleState {
    pub(super) fn new() -> Self {
        Self::Plain(String::new())
    }

    pub(super) fn read_byte(&mut self, byte: u8) {
        let next = match self {
            Self::Plain(recent) => next_style_state(byte, recent),
            Self::StringLiteral(quote) if byte == *quote || byte == b'\n' => Some(Self::new()),
            Self::StringLiteral(quote) if byte == b'\\' => Some(Self::StringEscape(*quote)),
            Self::StringLiteral(_) => None,
            Self::StringEscape(quote) => Some(Self::StringLiteral(*quote)),
            Self::Comment { has_star: true } if byte == b'/' => Some(Self::new()),
            Self::Comment { .. } => Some(Self::Comment { has_star: byte == b'*' }),
            Self::UrlBegin => next_url_begin_state(byte),
            Self::Url { quote: Some(quote), .. } if byte == *quote => Some(Self::new()),
            Self::Url { quote: None, .. } if byte == b')' => Some(Self::new()),
            Self::Url { url, .. } => {
                url.read_byte(byte);
                None
            }
        };
        if let Some(next) = next {
            *self = next;
        }
    }

    pub(super) fn apply_output(&mut self) -> Result<OutputEscape, &'static str> {
        match self {
            Self::Plain(recent) => {
                recent.clear();
                Ok(OutputEscape::Style)
            }
            Self::StringLiteral(_) | Self::Comment { .. } => Ok(OutputEscape::StyleText),
            Self::StringEscape(_) => Err("an output cannot follow a backslash"),
            Self::UrlBegin => {
                let mut address = UrlState::new();
                // An unquoted address may begin right here.
                let reach = address.apply_output()?;
                *self = Self::Url { quote: None, url: address };
                Ok(OutputEscape::StyleUrl(reach))
            }
            Self::Url { url: address, .. } => match address.apply_output()? {
                UrlExtent::Whole => Ok(OutputEscape::StyleUrl(UrlExtent::Whole)),
                reach => Ok(OutputEscape::StyleUrl(reach)),
            },
        }
    }

    /// Returns true if a style sheet may end here.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self, Self::Plain(_))
    }
}

fn next_style_state(byte: u8, recent: &mut String) -> Option<StyleState> {
    let byte = byte.to_ascii_lowercase();
    match byte {
        b'"' | b'\'' => return Some(StyleState::StringLiteral(byte)),
        b'*' if recent.ends_with('/') => return Some(StyleState::Comment { has_star: false }),
        b'(' if recent.ends_with("url") => return Some(StyleState::UrlBegin),
        // Only the beginning of `url(` or a comment is stored, so that loops converge.
        b'u' | b'/' => {
            recent.clear();
            recent.push(char::from(byte));
        }
        b'r' if recent == "u" => recent.push('r'),
        b'l' if recent == "ur" => recent.push('l'),
        _ => recent.clear(),
    }
    None
}

fn next_url_begin_state(byte: u8) -> Option<StyleState> {
    match byte {
        byte if byte.is_ascii_whitespace() => None,
        b'"' | b'\'' => Some(StyleState::Url { quote: Some(byte), url: UrlState::new() }),
        b')' => Some(StyleState::new()),
        byte => {
            let mut address = UrlState::new();
            address.read_byte(byte);
            Some(StyleState::Url { quote: None, url: address })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_script(text: &str) -> OutputEscape {
        let mut script = ScriptState::new();
        text.bytes().for_each(|byte| script.read_byte(byte));
        script.apply_output()
    }

    #[test]
    fn tells_values_from_texts() {
        for code in
            ["", "x = ", "f(", "'a' + ", "a / ", "/* c */ ", "// c\n", "/a\"b/.test(", "/[/\"]/ + "]
        {
            assert_eq!(in_script(code), OutputEscape::Script, "{code}");
        }
        for text in ["'", "\"a\\\"", "`${", "// ", "/* * ", "= /a", "`'"] {
            assert_eq!(in_script(text), OutputEscape::ScriptText, "{text}");
        }
    }

    fn in_css(text: &str) -> Option<OutputEscape> {
        let mut style = StyleState::new();
        text.bytes().for_each(|byte| style.read_byte(byte));
        style.apply_output().ok()
    }

    #[test]
    fn tells_parts_of_styles() {
        for (text, expected) in [
            ("color: ", Some(OutputEscape::Style)),
            ("a { width: ", Some(OutputEscape::Style)),
            ("content: '", Some(OutputEscape::StyleText)),
            ("/* ", Some(OutputEscape::StyleText)),
            ("/* x */ a:", Some(OutputEscape::Style)),
            ("background: url(", Some(OutputEscape::StyleUrl(UrlExtent::Whole))),
            ("background: URL( '", Some(OutputEscape::StyleUrl(UrlExtent::Whole))),
            ("background: url(/a/", Some(OutputEscape::StyleUrl(UrlExtent::SchemeSettled))),
            ("background: url(\"/a\") ", Some(OutputEscape::Style)),
            ("background: url(javascript:", None),
        ] {
            assert_eq!(in_css(text), expected, "{text}");
        }
    }
}
