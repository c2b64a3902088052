//! The store of the content: chunks and the persistent tree.
//!
//! In: sorted maps of records, bodies, small blobs, and names for states. Out: one hash per state ([`ChunkId`] of a
//! [`StoreRoot`]), from which everything is read back, compared and checked.
//!
//! Invariants
//! * Equal content has equal chunk ids, however it was produced.
//! * The target of a ref is durable before the ref moves; both become visible together.
//! * A chunk lists its references, so that walking reachable chunks needs no knowledge of values.
//! * Readers never wait for a write to reach the disk.
//!
//! On failure: a write that cannot be completed leaves nothing behind; a failed sync or a damaged record closes the
//! store for writing and leaves it open for reading.
//!
//! Not here: the meaning of a record (`content`), blobs above a few KiB (`blobs`).

pub mod body;
mod check;
mod chunk;
mod chunk_cache;
pub mod disk;
mod error;
mod id;
mod interface;
pub mod key;
mod layered;
mod local;
mod postgres;
mod ref_committer;
mod repair;
mod state_database;
mod store_root;
mod tree;

pub use check::{
    DamagedLocation, RootOrigin, StoreCheckReport, StoreInspection, check_store, inspect_store,
};
pub use chunk::{
    Chunk, ChunkFrame, ChunkKind, MAX_CHUNK_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES, MapValue,
};
pub use error::{Error, Result};
pub use id::{BlobId, ChunkId, IdParseError};
pub use interface::base_store::{BaseStore, acquire_lease, renew_lease};
pub use interface::chunk_batch::{ChunkBatch, LeaseUpdate, RefUpdate, StagedView};
pub use interface::chunk_reader::ReadChunks;
pub use interface::chunk_store::ChunkStore;
pub use interface::garbage_collection::{
    GarbageCollectionMode, GarbageCollectionOptions, GarbageCollectionPhase,
    GarbageCollectionProgress, GarbageCollectionReport, LiveBlobVisitor, StorageRetainer,
};
pub use interface::history::{Revision, RevisionRetention};
pub use interface::root_retention::{CollectionHold, RootLease, RootPin, RootPins};
pub use layered::cached_base_store::CachedBaseStore;
pub use layered::chunk_disk_cache::ChunkDiskCacheOptions;
pub use layered::chunk_sync::{ChunkSyncReport, ChunkSyncRoute, sync_chunks};
pub use layered::layered_store::LayeredStore;
pub use layered::read_only_base::ReadOnlyBase;
#[cfg(fuzzing)]
pub use local::fuzzing;
pub use local::{LocalStore, LocalStoreOptions, ReadOnlyLocalStore, RecordCompression};
pub use postgres::{PostgresCollection, PostgresCounters, PostgresOptions, PostgresStore};
pub use ref_committer::RefCommitter;
pub use repair::{
    DeriveMaps, RepairedPart, RepairedPartOutcome, RepairedRef, RepairedRevision,
    StoreRepairReport, plan_repair, repair_store,
};
pub use state_database::{
    DatabaseServerInfo, StateDatabase, StateFileUse, copy_state_database, probe_database_server,
    read_applied_steps,
};
pub use store_root::StoreRoot;
pub use tree::{
    ConflictResolution, MapChange, MapDiff, MapMerge, MapMergeConflict, MapMergeResult, MapScan,
    MergeStep, SortedMap,
};
pub use tympan_notation::ByteSize;
