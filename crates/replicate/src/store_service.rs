//! The answering side of a store that is read over HTTP: from a request's body to an answer's.
//!
//! Not here: who may ask, and HTTP itself (`server`). `docs/formats/remote-store.md` describes the exchange.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tympan_blobs::SMALL_BLOB_BYTES;
use tympan_content::{ChunkId, Repository};
use tympan_store::{ChunkBatch, Revision, RootLease};

use crate::frame_codec::{decode_blob_ids, decode_chunk_ids, encode_frames};
use crate::message::parse_chunk_id;
use crate::{Error, Result};

/// Where the store of an instance is read; the requests are below.
pub const STORE_PATH: &str = "/bin/store";
/// No body of a request to the store is longer.
pub const MAX_STORE_REQUEST_BYTES: u64 = 256 * 1024;
/// No answer holds more revisions.
const MAX_REVISIONS: usize = 1_000;
/// No lease is granted for longer.
const MAX_LEASE_DURATION: Duration = Duration::from_hours(30 * 24);
/// Sets the leases of clients apart from those of this instance.
const REMOTE_HOLDER_PREFIX: &str = "remote:";

/// A revision in an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireRevision {
    /// Its place among all moves of refs.
    pub sequence: u64,
    /// Where the ref was, in hex.
    pub old: Option<String>,
    /// Where it went, in hex.
    pub new: Option<String>,
    /// When, in microseconds since 1970.
    pub at: i64,
    /// Who moved it.
    pub author: String,
    /// Why.
    pub message: String,
}

/// A wish for a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WireLeaseRequest {
    /// Who wants to hold it.
    pub holder: String,
    /// The root to keep, in hex.
    pub root: String,
    /// For how long.
    pub seconds: u64,
}

/// A lease in an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireLease {
    /// The root that is kept, in hex; none if there is no lease.
    pub root: Option<String>,
    /// Until when, in microseconds since 1970.
    pub expires: Option<i64>,
}

/// Returns all refs.
///
/// # Errors
/// Errors of the store.
pub fn list_store_refs(repository: &Repository) -> Result<Vec<(String, String)>> {
    let refs = repository.chunks().list_refs()?;
    Ok(refs.into_iter().map(|(name, root)| (name, root.to_string())).collect())
}

/// Returns revisions of a ref, newest first.
///
/// # Errors
/// Errors of the store.
pub fn list_store_revisions(
    repository: &Repository,
    name: &str,
    before: Option<u64>,
    limit: usize,
) -> Result<Vec<WireRevision>> {
    let revisions = repository.chunks().ref_history(name, before, limit.min(MAX_REVISIONS))?;
    let wire = |Revision { sequence, update }: Revision| WireRevision {
        sequence,
        old: update.expected_root.map(|root| root.to_string()),
        new: update.new_root.map(|root| root.to_string()),
        at: to_unix_micros(update.updated_at),
        author: update.author,
        message: update.message,
    };
    Ok(revisions.into_iter().map(wire).collect())
}

/// Tells for each chunk id in the body whether the chunk is lacking.
///
/// # Errors
/// [`Error::Malformed`] for a body that is no list of ids; errors of the store.
pub fn find_missing_chunks(repository: &Repository, body: &[u8]) -> Result<Bytes> {
    let ids = decode_chunk_ids(body)?;
    let present = repository.chunks().contains_chunks(&ids)?;
    Ok(present.into_iter().map(|is_here| u8::from(!is_here)).collect::<Vec<u8>>().into())
}

/// Reads the chunks whose ids the body holds.
///
/// # Errors
/// [`Error::Malformed`] for a body that is no list of ids; errors of the store.
pub fn read_store_chunks(repository: &Repository, body: &[u8]) -> Result<Bytes> {
    let ids = decode_chunk_ids(body)?;
    encode_frames(&ids, |id| match repository.chunks().read_chunk(&id) {
        Ok(chunk) => Ok(Some(chunk.bytes().clone())),
        Err(
            tympan_store::Error::ChunkMissing { .. } | tympan_store::Error::BaseChunkMissing { .. },
        ) => Ok(None),
        Err(error) => Err(error.into()),
    })
}

/// Reads the small blobs whose ids the body holds.
///
/// # Errors
/// [`Error::Malformed`] for a body that is no list of ids; errors of the store.
pub fn read_store_blobs(repository: &Repository, body: &[u8]) -> Result<Bytes> {
    let ids = decode_blob_ids(body)?;
    encode_frames(&ids, |id| {
        if id.length() >= SMALL_BLOB_BYTES as u64 {
            return Ok(None);
        }
        Ok(repository.chunks().read_blob(&id)?)
    })
}

/// Returns the lease of a client.
///
/// # Errors
/// Errors of the store.
pub fn read_store_lease(repository: &Repository, holder: &str) -> Result<WireLease> {
    let holder = format!("{REMOTE_HOLDER_PREFIX}{holder}");
    let leases = repository.chunks().list_leases()?;
    let lease = leases.into_iter().find(|lease| lease.holder == holder);
    let wire = |lease: RootLease| WireLease {
        root: Some(lease.root.to_string()),
        expires: lease.expires_at.map(to_unix_micros),
    };
    Ok(lease.map(wire).unwrap_or_default())
}

/// Grants or renews the lease of a client.
///
/// # Errors
/// [`Error::Absent`] if the root is not here, [`Error::Malformed`] for a root that is none; errors of the store.
pub fn grant_store_lease(
    repository: &Repository,
    grant: &WireLeaseRequest,
    now: SystemTime,
) -> Result<()> {
    let root: ChunkId = parse_chunk_id(&grant.root)?;
    let life = Duration::from_secs(grant.seconds).min(MAX_LEASE_DURATION);
    let mut batch = ChunkBatch::new();
    let holder = format!("{REMOTE_HOLDER_PREFIX}{}", grant.holder);
    batch.grant_lease(RootLease { holder, root, expires_at: Some(now + life) });
    match repository.chunks().commit(batch) {
        Err(tympan_store::Error::ChunkMissing { id }) => Err(Error::Absent(format!("root {id}"))),
        Err(
            error
            @ (tympan_store::Error::TooLong { .. } | tympan_store::Error::KeyMalformed { .. }),
        ) => Err(Error::Malformed(error.to_string())),
        granted => Ok(granted?),
    }
}

/// Ends the lease of a client.
///
/// # Errors
/// Errors of the store.
pub fn release_store_lease(repository: &Repository, holder: &str) -> Result<()> {
    let mut batch = ChunkBatch::new();
    batch.release_lease(format!("{REMOTE_HOLDER_PREFIX}{holder}"));
    Ok(repository.chunks().commit(batch)?)
}

/// Returns a time in microseconds since 1970.
pub(crate) fn to_unix_micros(at: SystemTime) -> i64 {
    let clamp = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    match at.duration_since(UNIX_EPOCH) {
        Ok(after) => clamp(after),
        Err(before) => -clamp(before.duration()),
    }
}

/// Returns the time of a number of microseconds since 1970.
pub(crate) fn from_unix_micros(micros: i64) -> SystemTime {
    let span = Duration::from_micros(micros.unsigned_abs());
    let at = if micros < 0 { UNIX_EPOCH.checked_sub(span) } else { UNIX_EPOCH.checked_add(span) };
    at.unwrap_or(UNIX_EPOCH)
}
