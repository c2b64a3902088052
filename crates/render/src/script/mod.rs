//! Scripts: the templates of resource types, where they come from and which one draws a request.

mod index;
mod name;
mod source;
mod table;
mod url_parts;

pub(crate) use index::ERROR_TYPE;
pub(crate) use name::Wanted;
pub use source::{DirSource, RepositorySource, ScriptSet, ScriptSource};
pub(crate) use table::{Resolution, Script, ScriptTable, Scripts};
pub use url_parts::UrlParts;
