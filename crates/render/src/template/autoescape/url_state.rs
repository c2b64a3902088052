//! The state of a URL in static text: whether an output can still determine its scheme, or the host of a script.

use super::output_escape::{OutputEscape, UrlExtent};
use crate::page::link::ALLOWED_SCHEMES;

/// A URL that is followed or loaded.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum UrlState {
    /// The scheme is open after this static text, and possibly an output.
    SchemeOpen { text: String, has_output: bool },
    /// The scheme is determined and harmless.
    SchemeSettled,
    /// The scheme runs code, or is unknown.
    Unsafe,
}

/// A longer open prefix is not a scheme.
const MAX_SCHEME_LENGTH: usize = 32;

impl UrlState {
    pub(super) fn new() -> Self {
        Self::SchemeOpen { text: String::new(), has_output: false }
    }

    pub(super) fn read_byte(&mut self, byte: u8) {
        let Self::SchemeOpen { text, has_output } = self else {
            return;
        };
        match byte {
            b'/' | b'?' | b'#' | b'\\' => *self = Self::SchemeSettled,
            b':' if *has_output => *self = Self::Unsafe,
            b':' => {
                let scheme = text.trim();
                let is_known = ALLOWED_SCHEMES
                    .iter()
                    .any(|allowed_scheme| allowed_scheme.eq_ignore_ascii_case(scheme));
                *self = if is_known { Self::SchemeSettled } else { Self::Unsafe };
            }
            _ if text.len() >= MAX_SCHEME_LENGTH => *self = Self::SchemeSettled,
            _ => text.push(char::from(byte)),
        }
    }

    pub(super) fn apply_output(&mut self) -> Result<UrlExtent, &'static str> {
        match self {
            Self::SchemeOpen { text, has_output } => {
                let reach = if text.is_empty() && !*has_output {
                    UrlExtent::Whole
                } else {
                    UrlExtent::SchemeOpen
                };
                *self = Self::SchemeOpen { text: String::new(), has_output: true };
                Ok(reach)
            }
            Self::SchemeSettled => Ok(UrlExtent::SchemeSettled),
            Self::Unsafe => Err("the scheme of this URL runs code or is not known"),
        }
    }
}

/// A URL whose target runs: a script, a style sheet, a plug-in, the base of all other URLs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum CodeUrlState {
    /// There was no output yet.
    Prefix(String),
    /// The host is determined.
    HostSettled,
}

impl CodeUrlState {
    pub(super) fn new() -> Self {
        Self::Prefix(String::new())
    }

    pub(super) fn read_byte(&mut self, byte: u8) {
        if let Self::Prefix(text) = self {
            text.push(char::from(byte));
            if is_host_settled(text) {
                *self = Self::HostSettled;
            }
        }
    }

    pub(super) fn apply_output(&mut self) -> Result<UrlExtent, &'static str> {
        let reach = match self {
            Self::Prefix(text) if text.is_empty() => UrlExtent::Whole,
            // The output cannot contain a colon or a slash, so it remains a name below this prefix.
            Self::Prefix(text) if !text.contains(':') && !text.starts_with("//") => {
                UrlExtent::SchemeSettled
            }
            Self::Prefix(_) => {
                return Err("the template must name the host that code is loaded from");
            }
            Self::HostSettled => UrlExtent::SchemeSettled,
        };
        *self = Self::HostSettled;
        Ok(reach)
    }
}

/// Returns true if a prefix determines the origin of the URL.
fn is_host_settled(text: &str) -> bool {
    match text.split_once("//") {
        Some(("" | "https:" | "http:", host)) => host.trim_start_matches('/').contains('/'),
        Some(_) => false,
        None => !text.contains(':') && text.len() > 1 && text.contains('/') && !text.ends_with('/'),
    }
}

/// A list of images in `srcset`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum SrcsetState {
    /// Before or within the URL of an image.
    Url { url: UrlState, ends_with_comma: bool, is_first_picture: bool },
    /// After the URL.
    Size,
}

impl SrcsetState {
    pub(super) fn new() -> Self {
        Self::Url { url: UrlState::new(), ends_with_comma: false, is_first_picture: true }
    }

    fn next_picture() -> Self {
        Self::Url { url: UrlState::new(), ends_with_comma: false, is_first_picture: false }
    }

    pub(super) fn read_byte(&mut self, byte: u8) {
        match self {
            Self::Size if byte == b',' => *self = Self::next_picture(),
            Self::Size => {}
            Self::Url { url, ends_with_comma, .. } => {
                let is_begun = *url != UrlState::new();
                match byte {
                    _ if byte.is_ascii_whitespace() && !is_begun => {}
                    _ if byte.is_ascii_whitespace() && *ends_with_comma => {
                        *self = Self::next_picture()
                    }
                    _ if byte.is_ascii_whitespace() => *self = Self::Size,
                    b',' => *ends_with_comma = is_begun,
                    byte => {
                        *ends_with_comma = false;
                        url.read_byte(byte);
                    }
                }
            }
        }
    }

    pub(super) fn apply_output(&mut self) -> Result<OutputEscape, &'static str> {
        let Self::Url { url, ends_with_comma, is_first_picture } = self else {
            return Ok(OutputEscape::SrcsetSize);
        };
        *ends_with_comma = false;
        let is_whole_list = *is_first_picture;
        Ok(match url.apply_output()? {
            UrlExtent::Whole if is_whole_list => OutputEscape::Srcset,
            reach => OutputEscape::SrcsetUrl(reach),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads static text in which `@` represents an output and returns the part of the URL that the last one may
    /// determine.
    fn reach(text: &str) -> Option<UrlExtent> {
        let mut address = UrlState::new();
        text.bytes().fold(None, |last, byte| match byte {
            b'@' => address.apply_output().ok(),
            byte => {
                address.read_byte(byte);
                last
            }
        })
    }

    fn code_reach(text: &str) -> Option<UrlExtent> {
        let mut address = CodeUrlState::new();
        text.bytes().fold(None, |last, byte| match byte {
            b'@' => address.apply_output().ok(),
            byte => {
                address.read_byte(byte);
                last
            }
        })
    }

    #[test]
    fn knows_when_a_scheme_is_settled() {
        for (text, expected) in [
            ("@", Some(UrlExtent::Whole)),
            ("java@", Some(UrlExtent::SchemeOpen)),
            ("@@", Some(UrlExtent::SchemeOpen)),
            ("@.x@", Some(UrlExtent::SchemeOpen)),
            ("@/@", Some(UrlExtent::SchemeSettled)),
            ("/@", Some(UrlExtent::SchemeSettled)),
            ("?q=@", Some(UrlExtent::SchemeSettled)),
            ("HTTPS://x/@", Some(UrlExtent::SchemeSettled)),
            ("mailto:@", Some(UrlExtent::SchemeSettled)),
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
            ("@", Some(UrlExtent::Whole)),
            ("@@", Some(UrlExtent::SchemeSettled)),
            ("/@", Some(UrlExtent::SchemeSettled)),
            ("/a/@", Some(UrlExtent::SchemeSettled)),
            ("a@", Some(UrlExtent::SchemeSettled)),
            ("//@", None),
            ("//host@", None),
            ("//host/@", Some(UrlExtent::SchemeSettled)),
            ("https://@", None),
            ("https://host@", None),
            ("https://host/@", Some(UrlExtent::SchemeSettled)),
            ("javascript:@", None),
            ("data:text/javascript,//x/@", None),
        ] {
            assert_eq!(code_reach(text), expected, "{text}");
        }
    }

    #[test]
    fn follows_lists_of_pictures() {
        let escape = |text: &str| {
            let mut pictures = SrcsetState::new();
            text.bytes().fold(None, |last, byte| match byte {
                b'@' => pictures.apply_output().ok(),
                byte => {
                    pictures.read_byte(byte);
                    last
                }
            })
        };
        assert_eq!(escape("@"), Some(OutputEscape::Srcset));
        assert_eq!(escape("@/x 640w, @"), Some(OutputEscape::SrcsetUrl(UrlExtent::Whole)));
        assert_eq!(escape("/a@"), Some(OutputEscape::SrcsetUrl(UrlExtent::SchemeSettled)));
        assert_eq!(escape("/a @"), Some(OutputEscape::SrcsetSize));
        assert_eq!(escape("/a, /b @"), Some(OutputEscape::SrcsetSize));
        assert_eq!(escape("/a,b@"), Some(OutputEscape::SrcsetUrl(UrlExtent::SchemeSettled)));
    }
}
