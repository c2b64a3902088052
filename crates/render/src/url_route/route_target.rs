//! Targets of requests, and the properties of nodes that declare them.

use tympan_content::Node;

use crate::response::RedirectKind;

/// The target of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteTarget {
    /// This path, percent-encoded.
    Internal(String),
    /// A redirect to another address.
    Redirect {
        /// The address: a path or a whole URL.
        location: String,
        /// Which of HTTP's redirects it is.
        kind: RedirectKind,
    },
}

/// Returns the texts of a property.
pub(super) fn text_values(node: &Node, property: &str) -> Vec<String> {
    let property = node.property(property);
    property
        .map(|values| values.values().iter().map(|value| value.to_text().into_owned()).collect())
        .unwrap_or_default()
}

/// Reads the kind of a redirect.
pub(super) fn read_redirect_kind(node: &Node, property: &str) -> RedirectKind {
    let number = text_values(node, property).first().and_then(|text| text.parse().ok());
    number.and_then(RedirectKind::from_number).unwrap_or_default()
}
