//! Where in a script or a style an output stands: whether it is a value, or a part of a text, comment or pattern.
//!
//! Telling a division from a pattern needs a whole parser, so this may guess wrong. It is harmless: what outputs write
//! into scripts is inert in all of these states, and a wrong guess costs a script that does not parse.

use super::address::Address;
use super::{Escape, Reach};

/// A place in a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Script {
    Code { follows_value: bool },
    Slash { follows_value: bool },
    Text(u8),
    TextEscape(u8),
    LineComment,
    Comment { star: bool },
    Pattern { is_class: bool },
    PatternEscape { is_class: bool },
}

impl Script {
    pub(super) fn new() -> Self {
        Self::Code { follows_value: false }
    }

    pub(super) fn step(&mut self, byte: u8) {
        *self = match *self {
            Self::Code { follows_value } => in_code(byte, follows_value),
            Self::Slash { .. } if byte == b'/' => Self::LineComment,
            Self::Slash { .. } if byte == b'*' => Self::Comment { star: false },
            Self::Slash { follows_value: true } => in_code(byte, false),
            Self::Slash { follows_value: false } => in_pattern(byte, false),
            Self::Text(_) if byte == b'\n' && *self != Self::Text(b'`') => Self::new(),
            Self::Text(quote) if byte == quote => Self::Code { follows_value: true },
            Self::Text(quote) if byte == b'\\' => Self::TextEscape(quote),
            Self::TextEscape(quote) => Self::Text(quote),
            Self::LineComment if matches!(byte, b'\n' | b'\r') => Self::new(),
            Self::Comment { star: true } if byte == b'/' => Self::new(),
            Self::Comment { .. } => Self::Comment { star: byte == b'*' },
            Self::Pattern { is_class } => in_pattern(byte, is_class),
            Self::PatternEscape { is_class } => Self::Pattern { is_class },
            same => same,
        };
    }

    pub(super) fn put_out(&mut self) -> Escape {
        match self {
            Self::Code { .. } | Self::Slash { .. } => {
                *self = Self::Code { follows_value: true };
                Escape::Script
            }
            _ => Escape::ScriptText,
        }
    }

    /// Tells whether a script may end here.
    pub(super) fn is_at_rest(self) -> bool {
        matches!(self, Self::Code { .. } | Self::LineComment)
    }
}

fn in_code(byte: u8, follows_value: bool) -> Script {
    match byte {
        b'"' | b'\'' | b'`' => Script::Text(byte),
        b'/' => Script::Slash { follows_value },
        byte if byte.is_ascii_whitespace() => Script::Code { follows_value },
        b')' | b']' | b'}' | b'_' | b'$' => Script::Code { follows_value: true },
        byte => Script::Code { follows_value: byte.is_ascii_alphanumeric() || byte >= 0x80 },
    }
}

fn in_pattern(byte: u8, is_class: bool) -> Script {
    match byte {
        b'/' if !is_class => Script::Code { follows_value: true },
        b'\\' => Script::PatternEscape { is_class },
        b'[' => Script::Pattern { is_class: true },
        b']' => Script::Pattern { is_class: false },
        // A pattern ends with its line at the latest: the slash was a division after all.
        b'\n' => Script::new(),
        _ => Script::Pattern { is_class },
    }
}

/// A place in a style.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Style {
    /// The last few bytes tell where a URL or a comment begins.
    Plain(String),
    Text(u8),
    TextEscape(u8),
    Comment {
        star: bool,
    },
    /// In `url(…)`, before its quote or first byte.
    UrlBegin,
    Url {
        quote: Option<u8>,
        address: Address,
    },
}

impl Style {
    pub(super) fn new() -> Self {
        Self::Plain(String::new())
    }

    pub(super) fn step(&mut self, byte: u8) {
        let next = match self {
            Self::Plain(recent) => in_style(byte, recent),
            Self::Text(quote) if byte == *quote || byte == b'\n' => Some(Self::new()),
            Self::Text(quote) if byte == b'\\' => Some(Self::TextEscape(*quote)),
            Self::Text(_) => None,
            Self::TextEscape(quote) => Some(Self::Text(*quote)),
            Self::Comment { star: true } if byte == b'/' => Some(Self::new()),
            Self::Comment { .. } => Some(Self::Comment { star: byte == b'*' }),
            Self::UrlBegin => in_url_begin(byte),
            Self::Url { quote: Some(quote), .. } if byte == *quote => Some(Self::new()),
            Self::Url { quote: None, .. } if byte == b')' => Some(Self::new()),
            Self::Url { address, .. } => {
                address.step(byte);
                None
            }
        };
        if let Some(next) = next {
            *self = next;
        }
    }

    pub(super) fn put_out(&mut self) -> Result<Escape, &'static str> {
        match self {
            Self::Plain(recent) => {
                recent.clear();
                Ok(Escape::Style)
            }
            Self::Text(_) | Self::Comment { .. } => Ok(Escape::StyleText),
            Self::TextEscape(_) => Err("an output cannot follow a backslash"),
            Self::UrlBegin => {
                let mut address = Address::new();
                // Without quotes, an address may begin right here.
                let reach = address.put_out()?;
                *self = Self::Url { quote: None, address };
                Ok(Escape::StyleUrl(reach))
            }
            Self::Url { address, .. } => match address.put_out()? {
                Reach::Whole => Ok(Escape::StyleUrl(Reach::Whole)),
                reach => Ok(Escape::StyleUrl(reach)),
            },
        }
    }

    /// Tells whether a style may end here.
    pub(super) fn is_at_rest(&self) -> bool {
        matches!(self, Self::Plain(_))
    }
}

fn in_style(byte: u8, recent: &mut String) -> Option<Style> {
    let byte = byte.to_ascii_lowercase();
    match byte {
        b'"' | b'\'' => return Some(Style::Text(byte)),
        b'*' if recent.ends_with('/') => return Some(Style::Comment { star: false }),
        b'(' if recent.ends_with("url") => return Some(Style::UrlBegin),
        // Only what can begin `url(` or a comment is kept, so that loops come to an end.
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

fn in_url_begin(byte: u8) -> Option<Style> {
    match byte {
        byte if byte.is_ascii_whitespace() => None,
        b'"' | b'\'' => Some(Style::Url { quote: Some(byte), address: Address::new() }),
        b')' => Some(Style::new()),
        byte => {
            let mut address = Address::new();
            address.step(byte);
            Some(Style::Url { quote: None, address })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_script(text: &str) -> Escape {
        let mut script = Script::new();
        text.bytes().for_each(|byte| script.step(byte));
        script.put_out()
    }

    #[test]
    fn tells_values_from_texts() {
        for code in
            ["", "x = ", "f(", "'a' + ", "a / ", "/* c */ ", "// c\n", "/a\"b/.test(", "/[/\"]/ + "]
        {
            assert_eq!(in_script(code), Escape::Script, "{code}");
        }
        for text in ["'", "\"a\\\"", "`${", "// ", "/* * ", "= /a", "`'"] {
            assert_eq!(in_script(text), Escape::ScriptText, "{text}");
        }
    }

    fn in_css(text: &str) -> Option<Escape> {
        let mut style = Style::new();
        text.bytes().for_each(|byte| style.step(byte));
        style.put_out().ok()
    }

    #[test]
    fn tells_parts_of_styles() {
        for (text, expected) in [
            ("color: ", Some(Escape::Style)),
            ("a { width: ", Some(Escape::Style)),
            ("content: '", Some(Escape::StyleText)),
            ("/* ", Some(Escape::StyleText)),
            ("/* x */ a:", Some(Escape::Style)),
            ("background: url(", Some(Escape::StyleUrl(Reach::Whole))),
            ("background: URL( '", Some(Escape::StyleUrl(Reach::Whole))),
            ("background: url(/a/", Some(Escape::StyleUrl(Reach::Rest))),
            ("background: url(\"/a\") ", Some(Escape::Style)),
            ("background: url(javascript:", None),
        ] {
            assert_eq!(in_css(text), expected, "{text}");
        }
    }
}
