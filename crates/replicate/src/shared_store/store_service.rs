//! The server side of a store that is read over HTTP: from a request's body to a response's.
//!
//! Not here: authorization, and HTTP itself (`server`). `docs/formats/remote-store.md` describes the exchange.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tympan_blobs::SMALL_BLOB_BYTES;
use tympan_content::{ChunkId, Repository};
use tympan_store::{ChunkBatch, Revision, RootLease};

use crate::delivery::frame_codec::{decode_blob_ids, decode_chunk_ids, encode_frames};
use crate::delivery::message::parse_chunk_id;
use crate::{Error, Result};

/// The path at which the store of an instance is read; the requests are below it.
pub const STORE_PATH: &str = "/bin/store";
/// The maximum length of the body of a request to the store, in bytes.
pub const MAX_STORE_REQUEST_BYTES: u64 = 256 * 1024;
/// The maximum number of revisions in a response.
const MAX_REVISIONS: usize = 1_000;
/// The maximum duration of a lease.
const MAX_LEASE_DURATION: Duration = Duration::from_hours(30 * 24);
/// The prefix that distinguishes the leases of clients from those of this instance.
const REMOTE_HOLDER_PREFIX: &str = "remote:";

/// A revision in a response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireRevision {
    /// The sequence number among all moves of refs.
    pub sequence: u64,
    /// The root before the move, in hex.
    pub old: Option<String>,
    /// The root after the move, in hex.
    pub new: Option<String>,
    /// The time, in microseconds since 1970.
    pub at: i64,
    /// The author of the move.
    pub author: String,
    /// The commit message.
    pub message: String,
}

/// A request for a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WireLeaseRequest {
    /// The holder of the lease.
    pub holder: String,
    /// The root to protect, in hex.
    pub root: String,
    /// The duration, in seconds.
    pub seconds: u64,
}

/// A lease in a response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireLease {
    /// The protected root, in hex; `None` if there is no lease.
    pub root: Option<String>,
    /// The time of expiry, in microseconds since 1970.
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

/// Returns for each chunk id in the body whether the chunk is missing.
///
/// # Errors
/// [`Error::Malformed`] for a body that is not a list of ids; errors of the store.
pub fn find_missing_chunks(repository: &Repository, body: &[u8]) -> Result<Bytes> {
    let ids = decode_chunk_ids(body)?;
    let present = repository.chunks().contains_chunks(&ids)?;
    Ok(present.into_iter().map(|is_here| u8::from(!is_here)).collect::<Vec<u8>>().into())
}

/// Reads the chunks whose ids are in the body.
///
/// # Errors
/// [`Error::Malformed`] for a body that is not a list of ids; errors of the store.
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

/// Reads the small blobs whose ids are in the body.
///
/// # Errors
/// [`Error::Malformed`] for a body that is not a list of ids; errors of the store.
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
/// [`Error::Absent`] if the root does not exist here, [`Error::Malformed`] for an invalid root; errors of the store.
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

/// Converts a time to microseconds since 1970.
pub(crate) fn to_unix_micros(at: SystemTime) -> i64 {
    let clamp = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    match at.duration_since(UNIX_EPOCH) {
        Ok(after) => clamp(after),
        Err(before) => -clamp(before.duration()),
    }
}

/// Converts microseconds since 1970 to a time.
pub(crate) fn from_unix_micros(micros: i64) -> SystemTime {
    let span = Duration::from_micros(micros.unsigned_abs());
    let at = if micros < 0 { UNIX_EPOCH.checked_sub(span) } else { UNIX_EPOCH.checked_add(span) };
    at.unwrap_or(UNIX_EPOCH)
}
