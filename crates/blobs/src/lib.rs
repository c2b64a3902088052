//! Large immutable bytes kept beside the tree, named by their hash.
//!
//! In: bytes as a stream, of any length. Out: a [`BlobId`] (SHA-256 and length), and the bytes again.
//!
//! Invariants
//! * A blob that [`BlobStore::put`] acknowledged is complete and durable before any node can name it: small ones with
//!   the commit that names them, large ones on return.
//! * A stored blob never changes; equal bytes are stored once in each place.
//! * Nothing here deletes a blob unless it is told to, and nothing is written to a place that is only read.
//!
//! Not here: who refers to a blob (`content` knows), and media types.

mod blob;
mod bucket;
pub mod collect;
mod composite;
mod error;
mod files;
mod folder;
mod hot;
mod local;
mod memory;
mod place;
mod read_folder;
mod verified;

pub use blob::{BlobContent, BlobStore, id_of};
pub use bucket::{
    Bucket, BucketCounts, BucketOptions, Objects, StagedBlobs, parse_connection_string,
    parse_profile,
};
pub use composite::{Composite, CompositeCounts, Delegate};
pub use error::{Error, Result};
pub use folder::Folder;
pub use hot::HotBlobs;
pub use local::{LocalBlobs, SMALL_BYTES};
pub use memory::MemoryBlobs;
pub use place::{Listed, Origin, ReadBlobs, WriteBlobs};
pub use read_folder::FolderBlobs;
pub use tympan_store::BlobId;
