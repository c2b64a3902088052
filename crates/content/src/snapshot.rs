//! Snapshots: reading one pinned root, node by node.
//!
//! In: a root of the repository (and, inside a session, its pending edits). Out: [`Node`]s, read lazily.
//!
//! Invariants
//! * Everything read through one snapshot belongs to one state; later commits are never visible.
//! * Listing a folder or a page's sub-pages reads record headers only, no bodies.
//!
//! On failure: looking up nodes returns errors. If a body fails to load later, while properties are read, the
//! properties are absent and the error is in [`Snapshot::failure`], which the caller must check before it sends a
//! response.
//!
//! `snapshot_view` reads records with pending edits applied, `node_location` caches the locations of nodes,
//! `node_lookup` resolves paths, `node` reads one node, and `child_list` lists children.

mod child_list;
mod child_locations;
mod node;
mod node_location;
mod node_lookup;
mod pinned_snapshot;
mod snapshot_view;

pub use self::child_list::ChildList;
pub(crate) use self::child_locations::ChildLocations;
pub use self::node::{LoadedDocument, Node, SubtreeBudget};
pub(crate) use self::node_location::{NodeLocation, NodeLocationKey};
pub use self::pinned_snapshot::Snapshot;
pub(crate) use self::snapshot_view::{RangeRecord, RecordEdits, SnapshotView};
