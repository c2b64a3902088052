//! The store shared by several machines: chunks, small blobs, refs and leases in PostgreSQL.
//!
//! In: [`ChunkBatch`](crate::ChunkBatch)es, each of which is one transaction. Out: verified chunks, from memory, from a
//! folder on the local disk, or by one round trip; and refs, which are cached in memory as long as the database sends
//! notifications of updates.
//!
//! Invariants
//! * A commit succeeds or fails, and the caller learns which: a lost connection is never the final result.
//! * Data that a process relies on is retained while the process sends heartbeats. If other processes declared it dead,
//!   it no longer writes.
//! * Chunks never change, so every cache of them stays valid forever; only refs are watched.
//!
//! On failure: a transaction that conflicted with another, or whose connection was lost before the end, is retried. An
//! exhausted pool returns [`Error::ConnectionsBusy`](crate::Error::ConnectionsBusy) after the configured wait time.
//!
//! Not here: jobs, logins and similar state (`state_database`). The tables are in `docs/formats/postgres.md`.

mod advisory_lock;
mod chunk_store;
mod column;
mod commit;
mod commit_outcome;
mod commit_token;
mod database_error;
mod garbage_collection;
mod heartbeat;
mod mark_set;
mod note;
mod options;
mod postgres_store;
mod process;
mod ref_cache;
mod ref_listener;
mod runtime_bridge;
mod schema;
mod store_query;
mod store_state;

pub use garbage_collection::PostgresCollection;
pub use options::PostgresOptions;
pub use postgres_store::{PostgresCounters, PostgresStore};
