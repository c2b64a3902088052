//! Large immutable byte sequences stored beside the tree, named by their hash.
//!
//! In: bytes as a stream, of any length. Out: a [`BlobId`] (SHA-256 and length), and the bytes again.
//!
//! Invariants
//! * A blob that [`BlobStore::put`] acknowledged is complete and durable before any node can name it: small ones with
//!   the commit that names them, large ones on return.
//! * A stored blob never changes; equal bytes are stored once in each storage.
//! * Blobs are deleted only on request, and nothing is written to a read-only storage.
//!
//! Not here: which content refers to a blob (`content` knows), and media types.

mod blob_file;
mod blob_folder;
mod blob_metrics;
mod blob_store;
mod bucket;
mod cached_store;
mod composite_storage;
mod error;
pub mod garbage_collection;
mod local_store;
mod memory_store;
mod read_only_folder;
mod storage;
mod verified_files;

pub use blob_folder::BlobFolder;
pub use blob_metrics::format_blob_metrics;
pub use blob_store::{BlobContent, BlobStore, compute_blob_id};
pub use bucket::{
    BlobBucket, BucketCounts, BucketOptions, ObjectBucket, StagedBlobs, parse_connection_string,
    parse_profile,
};
pub use cached_store::CachedBlobStore;
pub use composite_storage::{BlobDelegate, CompositeBlobCounts, CompositeBlobStorage};
pub use error::{Error, Result};
pub use local_store::LocalBlobStore;
pub use memory_store::MemoryBlobStore;
pub use read_only_folder::ReadOnlyBlobFolder;
pub use storage::{DelegateIndex, ListedBlob, ReadBlobs, SMALL_BLOB_BYTES, WriteBlobs};
pub use tympan_store::BlobId;
