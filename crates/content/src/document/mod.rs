//! The stored form of documents: records, their keys, and the order of siblings.

pub(crate) mod borrowed_node;
pub(crate) mod boundary_change;
pub(crate) mod child_listing;
pub(crate) mod codec;
pub(crate) mod document_body;
pub(crate) mod document_boundary;
pub(crate) mod document_scan;
pub(crate) mod record;
pub(crate) mod record_key;
pub(crate) mod sibling;
