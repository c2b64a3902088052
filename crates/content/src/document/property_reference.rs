//! The identifiers and paths that a property holds as references.

use crate::document::borrowed_node::BorrowedNode;
use crate::document::borrowed_property::{BorrowedProperty, BorrowedValue};
use crate::model::referrer::ReferenceKind;
use crate::model::value::ValueType;

/// Returns the properties of a node that hold an identifier or path, with the kind of each reference.
pub(crate) fn referring_properties(
    node: BorrowedNode<'_>,
    target: &str,
) -> Vec<(String, ReferenceKind)> {
    let mut properties = Vec::new();
    for (name, property) in node.properties() {
        let kind =
            property_targets(property).find(|(_, text)| *text == target).map(|(kind, _)| kind);
        properties.extend(kind.map(|kind| (name.to_owned(), kind)));
    }
    properties
}

/// Returns the reference targets of a property: identifiers, and texts that are absolute paths.
pub(crate) fn property_targets(
    property: BorrowedProperty<'_>,
) -> impl Iterator<Item = (ReferenceKind, &str)> {
    property.values().filter_map(|value| {
        let BorrowedValue::Text(value_type, text) = value else { return None };
        match value_type {
            ValueType::Reference => Some((ReferenceKind::Strong, text)),
            ValueType::WeakReference => Some((ReferenceKind::Weak, text)),
            ValueType::String | ValueType::Path => {
                let is_path = text.starts_with("/content/") || text.starts_with("/conf/");
                (is_path && !text.contains(char::is_whitespace))
                    .then_some((ReferenceKind::Path, text))
            }
            _ => None,
        }
    })
}
