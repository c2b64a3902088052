//! The store in one folder: append-only packs with commit records, and an index beside each.
//!
//! In: [`ChunkBatch`](crate::ChunkBatch)es. Out: verified chunks and small blobs, from a bounded cache or by one
//! positioned read.
//!
//! Invariants
//! * A commit is one append and one sync; the ref moves after the sync.
//! * Everything that can be read is durable as soon as any later commit is.
//! * Readers take no lock that is held during a write to the disk.
//!
//! On failure: a failed append is truncated again, so a full disk rejects writes and the store recovers by itself. A
//! failed sync, or a record that does not have its hash, closes the store for writing until it is opened again.
//!
//! Not here: state shared by several processes. The format is `docs/formats/pack.md`.

mod chunk_store;
#[cfg(fuzzing)]
pub mod fuzzing;
mod garbage_collection;
mod history_reader;
mod index_file;
mod lease_file;
mod local_hold;
mod local_store;
mod options;
mod pack_name;
mod pack_repair;
mod pack_scan;
mod pack_survey;
mod pack_writer;
mod read_only_store;
mod record;
mod record_index;
mod record_payload;
mod recovery;
mod rewrite_candidate;

pub use local_store::LocalStore;
pub use options::LocalStoreOptions;
pub(crate) use pack_survey::PackSurvey;
pub use read_only_store::ReadOnlyLocalStore;
pub use record::RecordCompression;
pub(crate) use record_payload::{check_lease_update, check_update};
