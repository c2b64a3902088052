//! The content model over store and blobs; the only access path to content.
//!
//! In: edits by path, packages. Out: nodes of a pinned state, and new revisions.
//!
//! Invariants
//! * Content is accessed only through [`Snapshot`] and [`Session`]. Nothing above this crate accesses chunks, except
//!   `replicate`, which moves them unopened.
//! * The stored form depends only on the content: equal content has one root (`boundary`, `body`, `record`).
//! * Index maps and content change in the same commit.
//!
//! Not here: HTTP, templates, full text, stored work.

mod access;
mod blame;
mod borrowed_node;
mod boundary_change;
mod branch;
mod branch_merge;
mod change_feed;
mod child_listing;
mod codec;
mod commit;
mod commit_retry;
mod conflict;
mod counter;
mod date;
mod diverged_move;
mod document_body;
mod document_boundary;
mod document_scan;
mod error;
mod index;
mod index_build;
mod index_check;
mod index_rebuild;
mod markup;
mod node_difference;
mod node_merge;
mod node_path;
pub mod node_type;
mod order_key;
pub mod package;
mod property_index;
pub mod query;
mod rebase;
mod record;
mod record_key;
mod reference;
mod repository;
mod session;
mod session_install_target;
mod sibling;
mod snapshot;
mod subtree;
mod text_link;
mod transfer;
mod value;
mod value_key;
mod version;
mod withdrawal;

pub use access::{
    AccessFingerprint, DecidingEntry, PrivilegeCause, PrivilegeExplanation, Privileges, Viewer,
};
pub use borrowed_node::{BorrowedNode, BorrowedProperty, BorrowedValue};
pub use branch::{BranchState, RevisionDetails};
pub use branch_merge::{MergeOptions, MergeOutcome, MergeSide, PathChange};
pub use change_feed::{
    ChangeCursor, ChangeFilter, ChangePage, FeedChangeKind, NodeChange, PropertyChange,
    RevisionChanges,
};
pub use child_listing::{ListingSort, SortPosition};
pub use conflict::{ChangeAttribution, ConflictKind, MergeConflict};
pub use date::JcrDate;
pub use error::{Error, Result};
pub use index::LookupIndex;
pub use index_build::{IndexBuild, IndexState, IndexStatus};
pub use index_check::IndexFault;
pub use index_rebuild::IndexMapRebuilder;
pub use node_difference::{ChangeKind, NodeDifference, PropertyDifference};
pub use node_path::{NodePath, check_item_name};
pub use node_type::{ConstraintViolation, ConstraintViolationKind, NodeTypes};
pub use query::QuerySyntaxError;
pub use record::NodeSummary;
pub use reference::{
    NodeReference, ReferenceKind, ReferenceRewriteReport, Referrer, SkippedReference,
};
pub use repository::Repository;
pub use session::{Session, SiblingPosition};
pub use snapshot::{ChildList, Node, Snapshot};
pub use subtree::{JCR_CONTENT, MIXIN_TYPES, PRIMARY_TYPE, Subtree};
pub use transfer::{DocumentRequirements, StoredDocument, SubtreeScope};
pub use tympan_blobs::{BlobContent, BlobId, BlobStore};
pub use tympan_store::ChunkId;
pub use value::{Property, Value, ValueType};
pub use version::{
    CheckInOptions, CheckOutState, DeletedNode, LabelConflictPolicy, NodeVersion,
    VersionPurgeReport, VersionRetention,
};
pub use withdrawal::{ActivatedDocument, Withdrawal};
