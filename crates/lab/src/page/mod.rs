//! Measurements of single pages: visits as a browser makes them, components, service levels, cacheability.

pub mod cacheability;
pub mod component_profile;
pub mod isolated_component;
pub(crate) mod page_reference;
pub mod page_visit;
pub mod slo;
