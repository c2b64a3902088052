//! The HTML Template Language (HTL) 1.4: parse, check, compile, and run over an interface for values and calls.
//!
//! In: the source of a script ([`HtlScript::compile`]), and a [`HtlHost`] that knows the content, the request, the
//! objects of `data-sly-use`, and how to draw resources and other scripts.
//! Out: the bytes of the markup, appended to a buffer; or every fault of the source with its place.
//!
//! Where engines differ, the engine of Apache Sling decides; `docs/compat/htl.md` lists these decisions.
//!
//! Invariants
//! * Markup in which nothing is computed is written byte for byte as it stands in the source. A parser of HTML loses
//!   quotes, case and white space, hence the tokenizer of this crate.
//! * A value is escaped for its position unless the script names a context.
//! * A script ends within its [`HtlBudget`], whatever its source.
//! * A script is immutable and shared by threads; values live in one thread, for the time of one request.
//!
//! Not here: content, requests, HTTP, the resolution of names of scripts and classes, JavaScript.

mod budget;
mod compiler;
mod error;
mod escape;
mod format;
mod host;
mod java_double;
mod markup;
mod operation;
mod program;
mod run;
mod script;
mod syntax;
mod uri;
mod use_list;
mod value;

pub use budget::{HtlBudget, HtlLimit, HtlLimits};
pub use error::{Error, HostError, HtlCompileError, HtlDiagnostic, Result, ScriptPlace};
pub use host::{
    HtlHost, HtlOptions, HtlUseRequest, HtlUseResult, ResourceInclusion, ScriptInclusion,
    TranslationRequest,
};
pub use program::HtlScript;
pub use use_list::HtlUse;
pub use value::{HtlDate, HtlItems, HtlList, HtlMap, HtlObject, HtlTemplate, HtlValue};
