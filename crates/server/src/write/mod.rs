//! Changes by visitors and authors: Sling's POST servlet, uploads, and what protects content from them.

pub(crate) mod bulk_edit_limits;
pub(crate) mod companion_request;
pub(crate) mod component_placement;
pub(crate) mod form;
pub(crate) mod incoming_blob;
pub(crate) mod package_limits;
pub(crate) mod page_creation;
pub(crate) mod page_modification;
pub(crate) mod property_protection;
pub(crate) mod resource_put;
pub(crate) mod sling_post;
