//! Node types: what properties and children a node may and must have, checked when a session commits.
//!
//! In: the standard set (`standard.cnd`, compiled in), and what a site registers as CND or in a package. Out: the
//! [`EffectiveType`] of any node, and the [`Violation`]s of a commit.
//!
//! `definition` holds the model, `lexer`, `cnd` and `cnd_write` its text form, `registry` and `effective` what types
//! inherit and how a node's types act together, `constraint` the rules for values. `stored` keeps a site's own types
//! below `/jcr:system`, `register` changes them. `check` goes through a commit: `fill` adds what the repository sets
//! itself, `judge` compares nodes with their types, `integrity` looks at identifiers and references.
//!
//! Invariants
//! * Only what a commit changes is judged: content that was stored before a rule stays, and can be edited elsewhere.
//! * What came from another instance is stored as it is (`Session::put_document`): it was judged there, and a publisher
//!   holds a part of the content.
//! * All violations of a commit are reported at once, and nothing of it is stored then.
//!
//! Not here: who may change what, and which children have records of their own, which `boundary` decides by type names.

mod check;
mod cnd;
mod cnd_write;
mod constraint;
mod definition;
mod effective;
mod fill;
mod integrity;
mod judge;
mod lexer;
mod namespace;
mod protect;
mod register;
mod registry;
mod stored;
mod violation;

pub(crate) use check::check;
pub use cnd::{Cnd, parse_cnd};
pub use cnd_write::write_cnd;
pub use definition::{
    BASE, ChildDefinition, ItemFlags, OnParentVersion, Operator, PropertyDefinition, QueryUse,
    RESIDUAL, TypeDefinition, TypeFlags,
};
pub use effective::EffectiveType;
pub(crate) use fill::adopt;
pub use lexer::Diagnostic;
pub use namespace::Namespaces;
pub use registry::{NodeType, NodeTypes};
pub(crate) use stored::{MAX_RULES, RulesCache, SYSTEM, stored_types};
pub(crate) use violation::summary;
pub use violation::{Violation, ViolationKind};
