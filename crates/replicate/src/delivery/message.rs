//! The message from author to publisher, and the framing of chunks.
//!
//! `docs/formats/replication.md` describes the exchange.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tympan_content::{ChunkId, NodePath, StoredDocument};

use crate::{Error, Result};

/// The header with the key that author and publisher share, or with that of a pair.
pub const REPLICATION_KEY_HEADER: &str = "x-tympan-replication-key";
/// The path at which a publisher receives messages; chunks and blobs are sent to paths below it.
pub const RECEIVE_PATH: &str = "/bin/receive";

/// One replication request with everything except the bytes of bodies and blobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicationMessage {
    /// The sending agent.
    pub agent: String,
    /// The number of the agent's job, which increases with each job.
    pub sequence: i64,
    /// `Activate` or `Deactivate`.
    pub action: String,
    /// The node of the user's request.
    pub path: String,
    /// The user.
    pub user: String,
    /// The folders and pages above the node, outermost first, as path and primary type. Missing ones are created.
    pub ancestors: Vec<(String, String)>,
    /// The documents, parents first; none for a deactivation.
    pub documents: Vec<WireDocument>,
    /// The chunks that the documents need, in hex.
    pub chunks: Vec<String>,
    /// The blobs that the documents need.
    pub blobs: Vec<String>,
    /// For a deactivation: the documents at and below the node that stay unchanged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<String>,
    /// For a part of a deactivation: the documents that are removed with everything below them, children first; the
    /// rest of the node stays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taken_away: Vec<String>,
}

/// A document in a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WireDocument {
    /// The path of the document.
    pub path: String,
    /// The record, in base64.
    pub record: String,
    /// The body's chunk id in hex, if the body is not in the record.
    pub body: Option<String>,
}

impl WireDocument {
    pub(crate) fn from_stored(document: &StoredDocument) -> Self {
        Self {
            path: document.path.to_string(),
            record: STANDARD.encode(&document.record_bytes),
            body: document.body.map(|id| id.to_string()),
        }
    }

    pub(crate) fn to_stored(&self) -> Result<StoredDocument> {
        let record =
            STANDARD.decode(&self.record).map_err(|error| Error::Malformed(error.to_string()))?;
        let body = self.body.as_deref().map(parse_chunk_id).transpose()?;
        Ok(StoredDocument { path: NodePath::new(&self.path)?, record_bytes: record.into(), body })
    }
}

pub(crate) fn parse_chunk_id(text: &str) -> Result<ChunkId> {
    text.parse().map_err(|_| Error::Malformed(format!("`{text}` is not a chunk id")))
}

/// Encodes chunks as frames: each is its length in four bytes, big-endian, followed by its bytes.
pub(crate) fn encode_framed_chunks<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Bytes {
    let mut out = Vec::new();
    for chunk in chunks {
        out.extend_from_slice(&u32::try_from(chunk.len()).unwrap_or(u32::MAX).to_be_bytes());
        out.extend_from_slice(chunk);
    }
    out.into()
}

/// Decodes framed chunks.
///
/// # Errors
/// [`Error::Malformed`] if a length exceeds the remaining bytes.
pub(crate) fn decode_framed_chunks(bytes: &Bytes) -> Result<Vec<Bytes>> {
    let malformed = || Error::Malformed("a chunk is truncated".to_owned());
    let mut chunks = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let length = bytes.get(at..).and_then(<[u8]>::first_chunk::<4>).ok_or_else(malformed)?;
        let start = at + 4;
        let end = start.saturating_add(u32::from_be_bytes(*length) as usize);
        if end > bytes.len() {
            return Err(malformed());
        }
        chunks.push(bytes.slice(start..end));
        at = end;
    }
    Ok(chunks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn framed_chunks_come_apart_again() {
        let framed = encode_framed_chunks([&b"one"[..], b"", b"three"]);
        assert_eq!(decode_framed_chunks(&framed).unwrap(), [&b"one"[..], b"", b"three"]);
        for cut in 1..framed.len() {
            // The result does not matter, but decoding must not panic.
            decode_framed_chunks(&framed.slice(..cut)).ok();
        }
        assert!(decode_framed_chunks(&framed.slice(..framed.len() - 1)).is_err());
        assert!(decode_framed_chunks(&Bytes::from_static(&[0xff; 8])).is_err());
    }
}
