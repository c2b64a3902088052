//! Chunks and the persistent tree: what content is kept in.
//!
//! In: sorted maps of records, bodies, small blobs, and names for states.
//! Out: one hash per state ([`ChunkId`] of a [`Root`]), from which everything is read back, compared and checked.
//!
//! Invariants
//! * Equal content has equal chunk ids, however it came about.
//! * What a ref points to is durable before the ref moves; both become visible together.
//! * A chunk lists what it refers to, so that walking what is reachable needs no knowledge of values.
//! * Readers never wait for a write to reach the disk.
//!
//! On failure: a write that cannot be completed leaves nothing behind; a failed sync or a damaged record closes the
//! store for writing and leaves it open for reading.
//!
//! Not here: what a record means (`content`), blobs above a few KiB (`blobs`).

mod base;
mod batch;
pub mod body;
mod byte_size;
mod check;
mod chunk;
mod chunk_store;
mod collect;
mod committer;
mod composite;
pub mod disk;
mod error;
mod hex;
mod history;
mod id;
mod keep;
pub mod key;
mod local;
mod near;
mod near_base;
mod postgres;
mod repair;
mod root;
mod state;
mod sync;
mod tree;

pub use base::{Base, renew_lease, take_lease};
pub use batch::{Batch, LeaseUpdate, RefUpdate, Staged};
pub use byte_size::ByteSize;
pub use check::{Affected, Inspection, Origin, Report, check, inspect};
pub use chunk::{Chunk, ChunkKind, MAX_CHUNK_BYTES};
pub use chunk_store::{ChunkStore, ReadChunks};
pub use collect::{BlobVisitor, CollectMode, CollectOptions, Collected, Keeper, Phase, Progress};
pub use committer::Committer;
pub use composite::CompositeStore;
pub use error::{Error, Result};
pub use history::{Retention, Revision};
pub use id::{BlobId, ChunkId};
pub use keep::{Hold, Lease, Pin, Pins};
#[cfg(fuzzing)]
pub use local::fuzzing;
pub use local::{Compression, FollowedStore, LocalOptions, LocalStore};
pub use near_base::NearBase;
pub use postgres::{
    NearCache, PostgresCollection, PostgresCounters, PostgresOptions, PostgresStore,
};
pub use repair::{
    DeriveMaps, Fate, Repaired, RepairedPart, RepairedRef, RepairedRevision, plan, repair,
};
pub use root::Root;
pub use state::{State, copy_state};
pub use sync::{Route, Synced, sync};
pub use tree::{
    Change, Conflict, Diff, MAX_KEY_BYTES, MAX_VALUE_BYTES, Map, Merge, MergeStep, Merged,
    Resolution, Scan, Value,
};
