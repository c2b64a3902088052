//! Measurements of single pages: visits as a browser makes them, components, service levels, cacheability.

pub mod cacheability;
pub mod component_profile;
pub mod isolated_component;
pub(crate) mod reference;
pub mod slo;
pub mod visit;
