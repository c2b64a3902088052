//! From URL to bytes: decomposition, resolution, components, templates.

pub mod binary;
pub mod link;
pub mod script;
pub mod timing;
pub mod url;
