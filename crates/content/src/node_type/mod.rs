//! Node types: what properties and children a node may and must have, checked when a session commits.
//!
//! In: the standard set (`standard.cnd`, compiled in), and what a site registers as CND or in a package. Out: the
//! [`EffectiveNodeType`] of any node, and the [`ConstraintViolation`]s of a commit.
//!
//! `definition` holds the model, `lexer`, `cnd` and `cnd_writer` its text form, `registry` and `effective` what types
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

mod cnd_lexer;
mod cnd_parser;
mod cnd_writer;
mod commit_validation;
mod document_completion;
mod effective_type;
mod namespace;
mod node_type_validator;
mod protected_property;
mod reference_integrity;
mod stored_type;
mod type_definition;
mod type_registration;
mod type_registry;
mod value_constraint;
mod violation;

pub use cnd_lexer::CndDiagnostic;
pub use cnd_parser::{CndDocument, parse_cnd};
pub use cnd_writer::write_cnd;
pub(crate) use commit_validation::validate_edits;
pub(crate) use document_completion::adopt_created_items;
pub use effective_type::EffectiveNodeType;
pub use namespace::NamespaceRegistry;
pub(crate) use stored_type::{
    MAX_CACHED_RULES, NodeTypeRulesCache, SYSTEM_PATH, read_stored_types,
};
pub use type_definition::{
    AvailableQueryOperator, BASE_TYPE, ChildDefinition, ItemFlags, NodeTypeDefinition,
    NodeTypeFlags, OnParentVersion, PropertyDefinition, PropertyQueryUse, RESIDUAL_NAME,
};
pub use type_registry::{NodeType, NodeTypes};
pub(crate) use violation::summarize_violations;
pub use violation::{ConstraintViolation, ConstraintViolationKind};
