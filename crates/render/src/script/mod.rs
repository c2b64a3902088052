//! Scripts: the templates of resource types, where they come from and which one draws a request.

mod index;
mod name;

pub(crate) use index::ScriptIndex;
pub use name::Wanted;
