//! The caching proxy: farms, filter, cache, balancing, flush.

pub mod any;
mod cacheable;
pub mod config;
mod decision;
mod decompose;
mod farm;
mod filter;
mod freshness;
mod glob;
mod pattern;
mod request;

pub use cacheable::Reason;
pub use decision::{Action, Decision, decide};
pub use farm::Found;
pub use glob::Glob;
pub use pattern::{IfBroken, Pattern};
pub use request::RequestView;
