//! Node types: the allowed and mandatory properties and children of a node, checked when a session commits.
//!
//! In: the standard set (`standard.cnd`, compiled in), and the types that a site registers as CND or in a package. Out:
//! the [`EffectiveNodeType`] of any node, and the [`ConstraintViolation`]s of a commit.
//!
//! `type_definition` holds the model; `cnd_lexer`, `cnd_parser` and `cnd_writer` its text form; `type_registry` and
//! `effective_type` the inheritance of types and the combination of a node's types; `value_constraint` the rules for
//! values. `stored_type` stores a site's own types below `/jcr:system`, `type_registration` changes them.
//! `commit_validation` processes a commit: `document_completion` adds what the repository sets itself,
//! `node_type_validator` compares nodes with their types, `reference_integrity` checks identifiers and references.
//!
//! Invariants
//! * Only the changes of a commit are validated: content that was stored before a rule stays, and can be edited
//!   elsewhere.
//! * Content from another instance is stored unchanged (`Session::put_document`): it was validated there, and a
//!   publisher holds only a part of the content.
//! * All violations of a commit are reported together, and nothing of the commit is stored then.
//!
//! Not here: permissions, and the choice of children that have records of their own, which `document::boundary` makes by
//! type names.

mod cnd_lexer;
mod cnd_parser;
mod cnd_writer;
mod commit_validation;
mod document_completion;
mod effective_type;
mod namespace;
mod node_type_rules;
mod node_type_validator;
mod protected_property;
mod reference_integrity;
mod stored_type;
mod type_definition;
pub(crate) mod type_registration;
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
pub(crate) use node_type_rules::{MAX_CACHED_RULES, NodeTypeRulesCache};
pub use protected_property::PropertyProtection;
pub(crate) use stored_type::{SYSTEM_PATH, read_stored_types};
pub use type_definition::{
    AvailableQueryOperator, BASE_TYPE, ChildDefinition, ItemFlags, NodeTypeDefinition,
    NodeTypeFlags, OnParentVersion, PropertyDefinition, PropertyQueryUse, RESIDUAL_NAME,
};
pub use type_registry::{NodeType, NodeTypes};
pub(crate) use violation::summarize_violations;
pub use violation::{ConstraintViolation, ConstraintViolationKind};
