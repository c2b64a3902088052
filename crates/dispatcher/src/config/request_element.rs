//! The parts of a request that rules match.

/// A part of the request that a rule may match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestElement {
    /// The method, such as `GET`.
    Method,
    /// The path without query.
    Url,
    /// The text after `?`.
    Query,
    /// The protocol, such as `HTTP/1.1`.
    Protocol,
    /// The path before its first dot.
    Path,
    /// The selectors between path and extension.
    Selectors,
    /// The text between the last dot and the suffix.
    Extension,
    /// The text after the extension, from a slash on.
    Suffix,
}

/// The elements with their keys.
pub const REQUEST_ELEMENT_KEYS: [(RequestElement, &str); 8] = [
    (RequestElement::Method, "method"),
    (RequestElement::Url, "url"),
    (RequestElement::Query, "query"),
    (RequestElement::Protocol, "protocol"),
    (RequestElement::Path, "path"),
    (RequestElement::Selectors, "selectors"),
    (RequestElement::Extension, "extension"),
    (RequestElement::Suffix, "suffix"),
];
