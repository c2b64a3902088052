//! From URL to bytes: decomposition, resolution, components, templates.
//!
//! In: a pinned snapshot of content and a [`RenderRequest`]. Out: a [`RenderResponse`]: an outcome, a body, what was
//! read for it and how long each component took.
//!
//! Invariants
//! * A request reads one snapshot, through one door (`reads`).
//! * A component that fails or never ends costs its own place on the page, nothing more.
//! * What authors typed reaches HTML escaped, or as rich text without anything that runs.
//!
//! Not here: HTTP statuses, who asked, replication.

mod answer;
mod backend;
pub mod binary;
mod charset;
mod check;
mod client_library;
mod dependency;
mod dump;
mod dynamic;
mod engine;
mod error;
pub mod export;
mod file;
mod file_delivery;
mod fragment;
mod i18n;
mod image;
mod json;
pub mod ledger;
mod library;
mod link;
mod listing;
mod message;
mod noted;
mod notepad;
mod page;
mod policy;
pub mod profile;
mod reads;
mod request;
mod resolve;
mod resource;
mod response;
mod script;
mod search;
mod strict_url;
mod template;
mod text_picture;
pub mod timing;
mod touched;

pub use backend::{BackEnd, BackEndCounts, BackEnds, Fetch};
pub use check::{Finding, check};
pub use client_library::LibrarySource;
pub use dependency::{Aspects, Dependencies};
pub use engine::{Limits, Mode, Options, Renderer};
pub use error::{Error, Result};
pub use file_delivery::{Containment, FileDelivery};
pub use fragment::{
    FragmentCache, FragmentOptions, FragmentReport, Invalidation, Uncached, UnitReport,
};
pub use image::{Ending, ImageAddress, ImageKey, MAX_SIDE, Shape};
pub use policy::Policy;
pub use reads::{Facts, Reads, Recording};
pub use request::{Flex, Parameters, RenderRequest, Visitor};
pub use response::{Blob, Body, Outcome, Redirect, RenderResponse};
pub use script::{DirSource, RepositorySource, ScriptSet, ScriptSource, UrlParts};
pub use template::FragmentCounts;
pub use touched::Touched;
pub use tympan_web::sling_url as url;
