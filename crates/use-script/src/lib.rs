//! Server-side JavaScript of HTL components: the JavaScript Use-API of Apache Sling, run by QuickJS.
//!
//! In: a script of `data-sly-use` ([`UseScript`]), the options of the statement, and a [`UseScriptHost`] that knows the
//! variables, the other scripts and the time.
//! Out: a value for HTL. Objects of scripts stay in the engine, and are read when an expression asks for a property; a
//! function that is read so is called without arguments.
//!
//! Invariants
//! * A run ends: its calls and iterations are steps of the page's [`HtlBudget`](tympan_htl::HtlBudget), and memory,
//!   stack and time have limits of their own ([`UseScriptLimits`]).
//! * A script reaches nothing but the host's objects: there are no modules, timers, files, sockets, threads, or ways to
//!   compile a text.
//! * Two runs of the same script over the same answers of the host give the same value: the clock is the host's, and
//!   random numbers follow from the host's seed.
//! * What a script reads, it reads from the objects that HTL expressions read, so a caller that records those knows the
//!   dependencies of the script.
//!
//! Not here: finding scripts, content, requests, markup. `docs/decisions/0011-use-script-engine.md` compares engines.

mod conversion;
mod error;
mod host;
mod host_function;
mod limited_allocator;
mod limits;
mod realm;
mod script_object;
mod syntax_check;

pub use error::{Error, Result};
pub use host::{ScriptLogLevel, UseScript, UseScriptHost};
pub use limits::UseScriptLimits;
pub use realm::UseScriptRealm;
pub use syntax_check::check_syntax;
