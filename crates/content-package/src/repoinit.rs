//! Repository initialization: statements of Sling's language `repoinit`, carried out in a session.
//!
//! In: the text of a script. Out: pending edits of a session, and for each statement whether it changed something,
//! found everything as it asks, or was skipped and why.
//!
//! Invariants
//! * A statement that cannot be carried out completely is named, with the reason; nothing is skipped silently.
//! * A script that was carried out changes nothing when it is carried out again.
//! * Nothing is removed but entries of policies, which `remove *` names.
//!
//! Not here: commits; finding scripts in configurations. The language:
//! <https://sling.apache.org/documentation/bundles/repository-initialization.html>.

mod executor;
mod policy_editor;
mod statement;
mod statement_parser;
mod token;

pub use executor::{RepoinitOutcome, RepoinitResult, run_repoinit};
