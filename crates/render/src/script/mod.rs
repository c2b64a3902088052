//! Scripts: the templates of resource types, their sources, and their selection for a request.

pub(crate) mod check;

mod cache;
mod declared_url_parts;
mod index;
mod name_match;
mod platform;
mod source;

pub(crate) use cache::{
    CompiledHtl, CompiledScripts, HtlScriptCache, ScriptCache, ScriptInfo, ScriptResolution,
};
pub use declared_url_parts::DeclaredUrlParts;
pub(crate) use index::ERROR_HANDLER_TYPE;
pub(crate) use name_match::ScriptCriteria;
pub use platform::is_platform_type;
pub use source::{DirScriptSource, RepositoryScriptSource, ScriptSet, ScriptSource};
