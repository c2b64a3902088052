//! The input of the renderer.

use std::borrow::Cow;
use std::net::IpAddr;

use percent_encoding::percent_decode;

use crate::dependency::content_reader::ReadRecording;
use crate::response::charset;

/// The parts of a request that rendering needs.
#[derive(Debug, Clone, Copy, Default)]
pub struct RenderRequest<'a> {
    /// The method in upper case; scripts for methods other than GET and HEAD must name it.
    pub method: &'a str,
    /// The raw path of the URL, still percent-encoded, without the query.
    pub path: &'a str,
    /// The raw query without its `?`.
    pub query: &'a str,
    /// `http` or `https`, as requested by the visitor; mappings depend on it.
    pub scheme: &'a str,
    /// The requested host, optionally with a port; without it, nothing is mapped.
    pub host: &'a str,
    /// True to wrap components for the page editor.
    pub is_edit_mode: bool,
    /// Selects whether read paths are recorded; fragments are cached only then.
    pub recording: ReadRecording,
    /// Properties that may distinguish visitors.
    pub visitor: RequestVisitor<'a>,
    /// The user's override of the fragment cache.
    pub cache_override: FragmentCacheOverride,
    /// The urlencoded fields of a submitted form; only scripts for POST get them.
    pub form: &'a str,
    /// True if the client fills in includes, so that parts for single visitors may be left to it.
    pub supports_includes: bool,
    /// True if the response becomes a file for all visitors: parts for single visitors are left to a script.
    pub is_static_export: bool,
    /// True to request no other system: the rendering is only for comparison and is not sent.
    pub is_offline: bool,
}

/// Properties by which components may distinguish visitors.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestVisitor<'a> {
    /// The user; empty for anonymous visitors.
    pub user: &'a str,
    /// The client's address.
    pub ip: Option<IpAddr>,
    /// The requested port.
    pub port: u16,
    /// The client's preferred language.
    pub locale: &'a str,
    /// `User-Agent`.
    pub user_agent: &'a str,
}

/// The user's override of the fragment cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FragmentCacheOverride {
    /// No override.
    #[default]
    None,
    /// Render everything again and cache nothing.
    NoCache,
    /// Render everything again and cache it.
    Recompile,
}

impl<'a> RenderRequest<'a> {
    /// Creates a GET request for a path without a query.
    #[must_use]
    pub fn get(path: &'a str) -> Self {
        Self { method: "GET", path, ..Self::default() }
    }
}

/// The decoded query: names in the order of their first appearance, each with all its values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestParameters(Vec<(String, Vec<String>)>);

/// Maximum number of parameters; more are ignored.
const MAX_PARAMETERS: usize = 1000;

impl RequestParameters {
    /// Parses a query in UTF-8 or in the charset of its parameter `_charset_`; malformed bytes become replacement
    /// characters.
    #[must_use]
    pub fn parse(query: &str) -> Self {
        let mut parameters = Self::default();
        let pairs = || query.split('&').filter(|pair| !pair.is_empty()).take(MAX_PARAMETERS);
        // Browsers submit the charset of the page in a field of this name, regardless of the field's value.
        let charset = pairs().find_map(|pair| pair.strip_prefix("_charset_="));
        for pair in pairs() {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            parameters.add(decode_query_part(name, charset), decode_query_part(value, charset));
        }
        parameters
    }

    fn add(&mut self, name: String, value: String) {
        match self.0.iter_mut().find(|(known_name, _)| *known_name == name) {
            Some((_, values)) => values.push(value),
            None => self.0.push((name, vec![value])),
        }
    }

    /// Returns the values of a name.
    #[must_use]
    pub fn values(&self, name: &str) -> Option<&[String]> {
        self.0
            .iter()
            .find(|(known_name, _)| known_name == name)
            .map(|(_, values)| values.as_slice())
    }

    /// Returns the names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }
}

/// Decodes a part of a query; `+` is a blank.
fn decode_query_part(text: &str, charset: Option<&str>) -> String {
    let text = text.replace('+', " ");
    let bytes: Cow<'_, [u8]> = percent_decode(text.as_bytes()).into();
    charset::decode_parameter(charset, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_queries() {
        let parameters = RequestParameters::parse("q=a+b%20c&x&q=%C3%A4&&=1&bad=%ff%zz");
        assert_eq!(parameters.values("q").unwrap(), ["a b c", "ä"]);
        assert_eq!(parameters.values("x").unwrap(), [""]);
        assert_eq!(parameters.values("bad").unwrap(), ["\u{fffd}%zz"]);
        assert_eq!(parameters.values("none"), None);
        assert_eq!(parameters.names().collect::<Vec<_>>(), ["q", "x", "", "bad"]);
        let parameters = RequestParameters::parse("q=%C4%E3+%BA%C3&_charset_=GBK");
        assert_eq!(parameters.values("q").unwrap(), ["你 好"]);
    }
}
