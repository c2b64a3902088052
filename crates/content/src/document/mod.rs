//! The stored form of documents: records, their keys, and the order of siblings.

pub(crate) mod body;
pub(crate) mod borrowed_node;
pub(crate) mod borrowed_property;
pub(crate) mod boundary;
pub(crate) mod boundary_change;
pub(crate) mod child_listing;
pub(crate) mod codec;
pub(crate) mod property_reference;
pub(crate) mod record;
pub(crate) mod record_key;
pub(crate) mod scan;
pub(crate) mod sibling;
