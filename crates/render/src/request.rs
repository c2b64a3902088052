//! What the server asks for.

use std::borrow::Cow;
use std::net::IpAddr;

use percent_encoding::percent_decode;

use crate::charset;
use crate::content_reader::ReadRecording;

/// One request, as far as rendering needs it.
#[derive(Debug, Clone, Copy, Default)]
pub struct RenderRequest<'a> {
    /// The method in capitals; scripts for anything but GET and HEAD must name it.
    pub method: &'a str,
    /// The raw path of the URL, still percent-encoded, without the query.
    pub path: &'a str,
    /// The raw query without its `?`.
    pub query: &'a str,
    /// `http` or `https`, as the visitor asked; mappings depend on it.
    pub scheme: &'a str,
    /// The host that was asked for, perhaps with a port; without it, nothing is mapped.
    pub host: &'a str,
    /// Whether components are wrapped for the page editor.
    pub is_edit_mode: bool,
    /// Whether the paths that were read are kept; fragments are kept only then.
    pub recording: ReadRecording,
    /// What may tell visitors apart.
    pub visitor: RequestVisitor<'a>,
    /// What a user asks of the fragment cache.
    pub cache_override: FragmentCacheOverride,
    /// The fields of a form that was sent, urlencoded; only scripts for POST get them.
    pub form: &'a str,
    /// Whether who asks fills in includes, so that parts for single visitors may be left to it.
    pub supports_includes: bool,
    /// Whether the answer becomes a file, the same for everybody: parts for single visitors are left to a script.
    pub is_static_export: bool,
    /// Whether no other system is asked: the drawing is for comparison and goes to nobody.
    pub is_offline: bool,
}

/// What components may ask to tell visitors apart.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestVisitor<'a> {
    /// Who asks; empty for everybody without a login.
    pub user: &'a str,
    /// The client's address.
    pub ip: Option<IpAddr>,
    /// The port that was asked.
    pub port: u16,
    /// The first language that the client wants.
    pub locale: &'a str,
    /// `User-Agent`.
    pub user_agent: &'a str,
}

/// What a user asks of the fragment cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FragmentCacheOverride {
    /// Nothing.
    #[default]
    None,
    /// Draw everything anew and keep nothing.
    NoCache,
    /// Draw everything anew and keep it.
    Recompile,
}

impl<'a> RenderRequest<'a> {
    /// Makes a GET of a path without a query.
    #[must_use]
    pub fn get(path: &'a str) -> Self {
        Self { method: "GET", path, ..Self::default() }
    }
}

/// The decoded query: names in the order of their first appearance, each with all its values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestParameters(Vec<(String, Vec<String>)>);

/// More parameters than this are ignored.
const MAX_PARAMETERS: usize = 1000;

impl RequestParameters {
    /// Reads a query, in UTF-8 or in the charset that its parameter `_charset_` names; what does not decode is kept with
    /// replacement characters.
    #[must_use]
    pub fn parse(query: &str) -> Self {
        let mut parameters = Self::default();
        let pairs = || query.split('&').filter(|pair| !pair.is_empty()).take(MAX_PARAMETERS);
        // Browsers write the charset of the page into a field of this name, whatever the field says.
        let charset = pairs().find_map(|pair| pair.strip_prefix("_charset_="));
        for pair in pairs() {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            parameters.add(decode_query_part(name, charset), decode_query_part(value, charset));
        }
        parameters
    }

    fn add(&mut self, name: String, value: String) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) => values.push(value),
            None => self.0.push((name, vec![value])),
        }
    }

    /// Returns the values of a name.
    #[must_use]
    pub fn values(&self, name: &str) -> Option<&[String]> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, values)| values.as_slice())
    }

    /// Returns the names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }
}

/// Decodes a part of a query, where `+` is a blank.
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
