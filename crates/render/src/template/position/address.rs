//! How far static text has settled a URL: whether an output can still choose its scheme, or the host of a script.

use super::{Escape, Reach};
use crate::link::SCHEMES;

/// A URL that is followed or loaded.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Address {
    /// The scheme is open after this static text, and perhaps an output.
    Open { text: String, is_put_out: bool },
    /// The scheme is settled and harmless.
    Settled,
    /// The scheme is one that runs code, or cannot be known.
    Unsafe,
}

/// An open begin longer than this is no scheme.
const LONGEST_SCHEME: usize = 32;

impl Address {
    pub(super) fn new() -> Self {
        Self::Open { text: String::new(), is_put_out: false }
    }

    pub(super) fn step(&mut self, byte: u8) {
        let Self::Open { text, is_put_out } = self else {
            return;
        };
        match byte {
            b'/' | b'?' | b'#' | b'\\' => *self = Self::Settled,
            b':' if *is_put_out => *self = Self::Unsafe,
            b':' => {
                let scheme = text.trim();
                let is_known = SCHEMES.iter().any(|known| known.eq_ignore_ascii_case(scheme));
                *self = if is_known { Self::Settled } else { Self::Unsafe };
            }
            _ if text.len() >= LONGEST_SCHEME => *self = Self::Settled,
            _ => text.push(char::from(byte)),
        }
    }

    pub(super) fn put_out(&mut self) -> Result<Reach, &'static str> {
        match self {
            Self::Open { text, is_put_out } => {
                let reach =
                    if text.is_empty() && !*is_put_out { Reach::Whole } else { Reach::Open };
                *self = Self::Open { text: String::new(), is_put_out: true };
                Ok(reach)
            }
            Self::Settled => Ok(Reach::Rest),
            Self::Unsafe => Err("the scheme of this URL runs code or is not known"),
        }
    }
}

/// A URL whose target runs: a script, a style sheet, a plug-in, the base of all other URLs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum CodeAddress {
    /// Nothing was put out yet.
    Begin(String),
    /// The host is settled.
    Settled,
}

impl CodeAddress {
    pub(super) fn new() -> Self {
        Self::Begin(String::new())
    }

    pub(super) fn step(&mut self, byte: u8) {
        if let Self::Begin(text) = self {
            text.push(char::from(byte));
            if is_host_settled(text) {
                *self = Self::Settled;
            }
        }
    }

    pub(super) fn put_out(&mut self) -> Result<Reach, &'static str> {
        let reach = match self {
            Self::Begin(text) if text.is_empty() => Reach::Whole,
            // What follows cannot hold a colon or a slash, so it stays a name below this begin.
            Self::Begin(text) if !text.contains(':') && !text.starts_with("//") => Reach::Rest,
            Self::Begin(_) => return Err("the template must name the host that code comes from"),
            Self::Settled => Reach::Rest,
        };
        *self = Self::Settled;
        Ok(reach)
    }
}

/// Tells whether a begin says where the rest comes from.
fn is_host_settled(text: &str) -> bool {
    match text.split_once("//") {
        Some(("" | "https:" | "http:", host)) => host.trim_start_matches('/').contains('/'),
        Some(_) => false,
        None => !text.contains(':') && text.len() > 1 && text.contains('/') && !text.ends_with('/'),
    }
}

/// A list of pictures, as `srcset` has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Pictures {
    /// Before or within the URL of a picture.
    Url { address: Address, ends_with_comma: bool, is_first: bool },
    /// After it.
    Size,
}

impl Pictures {
    pub(super) fn new() -> Self {
        Self::Url { address: Address::new(), ends_with_comma: false, is_first: true }
    }

    fn next() -> Self {
        Self::Url { address: Address::new(), ends_with_comma: false, is_first: false }
    }

    pub(super) fn step(&mut self, byte: u8) {
        match self {
            Self::Size if byte == b',' => *self = Self::next(),
            Self::Size => {}
            Self::Url { address, ends_with_comma, .. } => {
                let is_begun = *address != Address::new();
                match byte {
                    _ if byte.is_ascii_whitespace() && !is_begun => {}
                    _ if byte.is_ascii_whitespace() && *ends_with_comma => *self = Self::next(),
                    _ if byte.is_ascii_whitespace() => *self = Self::Size,
                    b',' => *ends_with_comma = is_begun,
                    byte => {
                        *ends_with_comma = false;
                        address.step(byte);
                    }
                }
            }
        }
    }

    pub(super) fn put_out(&mut self) -> Result<Escape, &'static str> {
        let Self::Url { address, ends_with_comma, is_first } = self else {
            return Ok(Escape::Size);
        };
        *ends_with_comma = false;
        let is_whole_list = *is_first;
        Ok(match address.put_out()? {
            Reach::Whole if is_whole_list => Escape::Pictures,
            reach => Escape::Picture(reach),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs through static text in which `@` stands for an output and returns what the last one may decide.
    fn reach(text: &str) -> Option<Reach> {
        let mut address = Address::new();
        text.bytes().fold(None, |last, byte| match byte {
            b'@' => address.put_out().ok(),
            byte => {
                address.step(byte);
                last
            }
        })
    }

    fn code_reach(text: &str) -> Option<Reach> {
        let mut address = CodeAddress::new();
        text.bytes().fold(None, |last, byte| match byte {
            b'@' => address.put_out().ok(),
            byte => {
                address.step(byte);
                last
            }
        })
    }

    #[test]
    fn knows_when_a_scheme_is_settled() {
        for (text, expected) in [
            ("@", Some(Reach::Whole)),
            ("java@", Some(Reach::Open)),
            ("@@", Some(Reach::Open)),
            ("@.x@", Some(Reach::Open)),
            ("@/@", Some(Reach::Rest)),
            ("/@", Some(Reach::Rest)),
            ("?q=@", Some(Reach::Rest)),
            ("HTTPS://x/@", Some(Reach::Rest)),
            ("mailto:@", Some(Reach::Rest)),
            ("javascript:@", None),
            ("data:@", None),
            ("@:@", None),
        ] {
            assert_eq!(reach(text), expected, "{text}");
        }
    }

    #[test]
    fn knows_where_code_comes_from() {
        for (text, expected) in [
            ("@", Some(Reach::Whole)),
            ("@@", Some(Reach::Rest)),
            ("/@", Some(Reach::Rest)),
            ("/a/@", Some(Reach::Rest)),
            ("a@", Some(Reach::Rest)),
            ("//@", None),
            ("//host@", None),
            ("//host/@", Some(Reach::Rest)),
            ("https://@", None),
            ("https://host@", None),
            ("https://host/@", Some(Reach::Rest)),
            ("javascript:@", None),
            ("data:text/javascript,//x/@", None),
        ] {
            assert_eq!(code_reach(text), expected, "{text}");
        }
    }

    #[test]
    fn follows_lists_of_pictures() {
        let escape = |text: &str| {
            let mut pictures = Pictures::new();
            text.bytes().fold(None, |last, byte| match byte {
                b'@' => pictures.put_out().ok(),
                byte => {
                    pictures.step(byte);
                    last
                }
            })
        };
        assert_eq!(escape("@"), Some(Escape::Pictures));
        assert_eq!(escape("@/x 640w, @"), Some(Escape::Picture(Reach::Whole)));
        assert_eq!(escape("/a@"), Some(Escape::Picture(Reach::Rest)));
        assert_eq!(escape("/a @"), Some(Escape::Size));
        assert_eq!(escape("/a, /b @"), Some(Escape::Size));
        assert_eq!(escape("/a,b@"), Some(Escape::Picture(Reach::Rest)));
    }
}
