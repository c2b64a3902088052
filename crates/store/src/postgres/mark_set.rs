//! Marking on a database: walks everything reachable from the roots, with one round trip for many chunks.
//!
//! Marks are held in memory, slightly more than 32 bytes for each live chunk and small blob.

use std::collections::HashSet;

use sqlx::{PgConnection, Row};

use super::column::hash_from_column;
use super::database_error::database_error;
use super::store_state::PostgresStoreState;
use crate::error::{Error, Result};
use crate::id::ChunkId;
use crate::interface::garbage_collection::LiveBlobVisitor;

/// The number of chunks read together.
const READ_BATCH_CHUNKS: usize = 512;

/// The live rows, and those whose references have still to be marked.
#[derive(Debug, Default)]
pub(super) struct PostgresMarkSet {
    chunks: HashSet<[u8; 32]>,
    blobs: HashSet<[u8; 32]>,
    pending: Vec<[u8; 32]>,
    /// The marks since the last call of [`PostgresMarkSet::take_new_marks`]; recorded only while requested.
    new_marks: Option<NewMarks>,
    /// The visitor that receives the blobs.
    blob_visitor: Option<LiveBlobVisitor>,
}

/// Chunks and blobs, by hash.
pub(super) type NewMarks = (Vec<[u8; 32]>, Vec<[u8; 32]>);

/// The treatment of a missing chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingChunkPolicy {
    /// The root belongs to content: nothing below it may be missing.
    Refuse,
    /// A writer that has not updated a ref stored the chunk; a missing reference of it was never stored.
    Tolerate,
}

/// The result of one marking step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CollectionStepCount {
    pub(super) record_count: u64,
    pub(super) byte_count: u64,
}

impl PostgresMarkSet {
    /// Creates an empty set; `visitor` receives every blob.
    pub(super) fn with_visitor(visitor: Option<LiveBlobVisitor>) -> Self {
        Self { blob_visitor: visitor, ..Self::default() }
    }

    pub(super) fn has_chunk(&self, hash: &[u8; 32]) -> bool {
        self.chunks.contains(hash)
    }

    pub(super) fn has_blob(&self, hash: &[u8; 32]) -> bool {
        self.blobs.contains(hash)
    }

    /// Marks a root; the next steps mark everything reachable from it.
    pub(super) fn add_root(&mut self, hash: [u8; 32]) {
        if self.chunks.insert(hash) {
            self.pending.push(hash);
            if let Some((chunks, _)) = &mut self.new_marks {
                chunks.push(hash);
            }
        }
    }

    pub(super) fn add_blob(&mut self, hash: [u8; 32]) -> bool {
        let is_new = self.blobs.insert(hash);
        if let (true, Some((_, blobs))) = (is_new, &mut self.new_marks) {
            blobs.push(hash);
        }
        is_new
    }

    pub(super) fn is_complete(&self) -> bool {
        self.pending.is_empty()
    }

    /// Starts recording new marks.
    pub(super) fn begin_new_marks(&mut self) {
        self.new_marks = Some((Vec::new(), Vec::new()));
    }

    /// Returns the chunks and blobs that were marked since.
    pub(super) fn take_new_marks(&mut self) -> NewMarks {
        self.new_marks.take().unwrap_or_default()
    }

    /// Reads some of the marked chunks and marks their references.
    pub(super) async fn mark_references(
        &mut self,
        shared: &PostgresStoreState,
        connection: &mut PgConnection,
        gaps: MissingChunkPolicy,
    ) -> Result<CollectionStepCount> {
        let failed = database_error("cannot read chunks to mark them");
        let together = self.pending.split_off(self.pending.len().saturating_sub(READ_BATCH_CHUNKS));
        let query = "select hash, case when terminal then null else data end, octet_length(data)::bigint \
                     from chunk where hash = any($1)";
        let rows = sqlx::query(query).bind(&together);
        let rows = rows.fetch_all(&mut *connection).await.map_err(&failed)?;
        if rows.len() < together.len() && gaps == MissingChunkPolicy::Refuse {
            let mut there = HashSet::new();
            for row in &rows {
                there.insert(hash_from_column(row.try_get(0).map_err(&failed)?)?);
            }
            if let Some(missing) = together.iter().find(|hash| !there.contains(*hash)) {
                return Err(Error::ChunkMissing { id: ChunkId::from_bytes(*missing) });
            }
        }
        let mut counts = CollectionStepCount { record_count: rows.len() as u64, byte_count: 0 };
        let mut blobs = Vec::new();
        for row in &rows {
            let bytes: i64 = row.try_get(2).map_err(&failed)?;
            counts.byte_count += u64::try_from(bytes).unwrap_or(0);
            let data: Option<&[u8]> = row.try_get(1).map_err(&failed)?;
            if data.is_none() {
                continue;
            }
            let (_, chunk) = shared.verify_chunk_row(row)?;
            chunk.chunk_refs().for_each(|id| self.add_root(*id.as_bytes()));
            if let Some(visitor) = &self.blob_visitor {
                chunk.blob_refs().for_each(|id| visitor.visit_blob(&id));
            }
            blobs.extend(
                chunk.blob_refs().map(|id| *id.digest()).filter(|hash| self.add_blob(*hash)),
            );
        }
        if !blobs.is_empty() {
            // A blob that is not in this table is a large one, which is stored elsewhere.
            let query = "select count(*), coalesce(sum(octet_length(data)), 0)::bigint from blob where hash = any($1)";
            let row =
                sqlx::query(query).bind(blobs).fetch_one(connection).await.map_err(&failed)?;
            let number = |column| row.try_get::<i64, _>(column).map_err(&failed);
            counts.record_count += u64::try_from(number(0)?).unwrap_or(0);
            counts.byte_count += u64::try_from(number(1)?).unwrap_or(0);
        }
        Ok(counts)
    }
}
