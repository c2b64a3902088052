//! The content model over store and blobs; the only door to content.
//!
//! In: edits by path, packages. Out: nodes of a pinned state, and new revisions.
//!
//! Invariants
//! * Content is reached only through [`Snapshot`] and [`Session`]; nothing above this room sees a chunk, except
//!   `replicate`, which moves them unopened.
//! * The stored form depends on the content only: equal content has one root (`boundary`, `body`, `record`).
//! * Index maps and content change in the same commit.
//!
//! Not here: HTTP, templates, full text, stored work.

mod access;
mod blame;
mod body;
mod borrowed;
mod boundary;
mod branch;
mod changes;
mod codec;
mod commit;
mod conflict;
mod counter;
mod date;
mod difference;
mod error;
mod follow;
mod index;
mod index_build;
mod index_check;
mod install;
mod keys;
mod launch;
mod link;
mod listing;
mod markup;
mod merge;
mod moved_apart;
mod order;
pub mod package;
mod path;
mod property_index;
pub mod query;
mod rebase;
mod rebuild;
mod record;
mod recut;
mod reference;
mod repository;
mod retry;
mod session;
mod siblings;
mod snapshot;
mod subtree;
mod transfer;
pub mod types;
mod value;
mod value_key;
mod version;
mod withdrawal;

pub use access::{Cause, Deciding, Privileges, Reason, Sight, Viewer};
pub use borrowed::{BorrowedNode, BorrowedProperty, BorrowedValue};
pub use branch::{Branch, Revising};
pub use changes::{
    ChangeFilter, ChangePage, Cursor, FeedKind, NodeChange, PropertyChange, RevisionChanges,
};
pub use conflict::{ChangedBy, Conflict, ConflictKind};
pub use date::Date;
pub use difference::{ChangeKind, NodeDifference, PropertyDifference};
pub use error::{Error, Result};
pub use index::Index;
pub use index_build::{IndexBuild, IndexState, IndexStatus};
pub use index_check::IndexFault;
pub use launch::{MergeChoice, Merged, PathChange, Side};
pub use listing::{SortPlace, Sorting};
pub use path::{NodePath, check_name};
pub use query::SyntaxError;
pub use rebuild::IndexMaps;
pub use record::Summary;
pub use reference::{KeptReference, Reference, ReferenceKind, Referrer, RewrittenReferences};
pub use repository::Repository;
pub use session::{Place, Session};
pub use snapshot::{ChildList, Node, Snapshot};
pub use subtree::{JCR_CONTENT, MIXIN_TYPES, PRIMARY_TYPE, Subtree};
pub use transfer::{Depth, Needs, StoredDocument};
pub use tympan_blobs::{BlobContent, BlobId, BlobStore};
pub use tympan_store::ChunkId;
pub use types::{NodeTypes, Violation, ViolationKind};
pub use value::{Property, Value, ValueType};
pub use version::{After, CheckIn, DeletedNode, LabelClash, Purged, Version, VersionRetention};
pub use withdrawal::{ActivatedDocument, Withdrawal};
