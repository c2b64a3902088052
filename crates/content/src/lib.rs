//! The content model over store and blobs; the only access path to content.
//!
//! In: edits by path. Out: nodes of a pinned state, and new revisions.
//!
//! Invariants
//! * Content is accessed only through [`Snapshot`] and [`Session`]. Nothing above this crate accesses chunks, except
//!   `replicate`, which moves them unopened.
//! * The stored form depends only on the content: equal content has one root (`boundary`, `body`, `record`).
//! * Index maps and content change in the same commit.
//!
//! Not here: queries (`content-query`), packages (`content-package`), HTTP, templates, full text, stored work.

mod access;
mod branch;
mod change_feed;
mod commit;
mod document;
mod error;
mod index;
mod installation_undo;
mod model;
pub mod node_type;
mod repository;
mod session;
mod snapshot;
mod state_reader;
mod transfer;
mod version;
mod withdrawal;

pub use access::account::AccountEditor;
pub use access::{
    ADMIN_USER, AccessFingerprint, AccountKind, DecidingEntry, PrivilegeCause,
    PrivilegeExplanation, Privileges, Viewer, is_policy_name, is_restriction_property,
};
pub use branch::BranchState;
pub use branch::branch_ref::RevisionDetails;
pub use branch::merge::{MergeOutcome, PathChange};
pub use change_feed::node_change::{FeedChangeKind, NodeChange, PropertyChange};
pub use change_feed::{ChangeCursor, ChangeFilter, ChangePage, RevisionChanges};
pub use commit::conflict::{ChangeAttribution, ConflictKind, MergeConflict};
pub use commit::merge_options::{MergeOptions, MergeSide};
pub use document::body::BodyNode;
pub use document::borrowed_node::BorrowedNode;
pub use document::borrowed_property::{BorrowedProperty, BorrowedValue};
pub use document::boundary::is_container_type;
pub use document::child_listing::{ListingSort, SortPosition};
pub use document::record::NodeSummary;
pub use error::{Error, LostCursor, Result};
pub use index::LookupIndex;
pub use index::build::{IndexBuild, IndexStatus};
pub use index::build_progress::IndexState;
pub use index::check::IndexFault;
pub use index::property_index::{IndexFunction, PropertyIndex};
pub use index::rebuild::IndexMapRebuilder;
pub use installation_undo::{ReplacedRecords, UndoRefUpdates, UndoReport};
pub use model::date::JcrDate;
pub use model::node_difference::{ChangeKind, NodeDifference, PropertyDifference};
pub use model::node_path::{NodePath, check_item_name, is_path_within, local_name};
pub use model::reference::{NodeReference, ReferenceRewriteReport, SkippedReference};
pub use model::referrer::{ReferenceKind, Referrer};
pub use model::subtree::{JCR_CONTENT, MIXIN_TYPES, PRIMARY_TYPE, Subtree, SubtreeScope};
pub use model::subtree_children::SubtreeChildren;
pub use model::value::{Property, Value, ValueType};
pub use model::value_key::{Comparand, KeySpan, ValueKey, prefix_successor, split_entry};
pub use node_type::type_registration::NodeTypeEditor;
pub use node_type::{ConstraintViolation, ConstraintViolationKind, NodeTypes, PropertyProtection};
pub use repository::Repository;
pub use session::Session;
pub use session::document_edit::DocumentEdit;
pub use session::edited_document::NodeFields;
pub use session::sibling_order::SiblingPosition;
pub use snapshot::{ChildList, LoadedDocument, Node, Snapshot, SubtreeBudget};
pub use state_reader::document_scan::{DocumentScan, ScanScope, ScannedDocument};
pub use state_reader::{IndexEntryKeys, IndexMap, StateReader};
pub use transfer::{DocumentRequirements, StoredDocument};
pub use tympan_blobs::{BlobContent, BlobId, BlobStore, compute_blob_id};
pub use tympan_store::ChunkId;
pub use version::check_in::{LabelConflictPolicy, VersionEditor};
pub use version::history::DeletedNode;
pub use version::purge::{VersionPurgeReport, VersionRetention};
pub use version::version_entry::NodeVersion;
pub use version::{CheckInOptions, CheckOutState};
pub use withdrawal::{ActivatedDocument, Withdrawal, is_replication_stamp};
