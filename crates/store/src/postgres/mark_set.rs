//! Marking on a database: what roots reach, by one round trip for many chunks.
//!
//! Marks are kept in memory, 32 bytes and a little more for each live chunk and small blob.

use std::collections::HashSet;

use sqlx::{PgConnection, Row};

use super::{PostgresStoreState, database_error, hash_from_column};
use crate::error::{Error, Result};
use crate::garbage_collection::LiveBlobVisitor;
use crate::id::ChunkId;

/// Chunks that are read together.
const READ_BATCH_CHUNKS: usize = 512;

/// What is live, and what of it has still to be looked at.
#[derive(Debug, Default)]
pub(super) struct PostgresMarkSet {
    chunks: HashSet<[u8; 32]>,
    blobs: HashSet<[u8; 32]>,
    pending: Vec<[u8; 32]>,
    /// What has been marked since the last call of [`PostgresMarkSet::take_new_marks`]; kept only while asked for.
    new_marks: Option<NewMarks>,
    /// Who is told of blobs.
    blob_visitor: Option<LiveBlobVisitor>,
}

/// Chunks and blobs, by hash.
pub(super) type NewMarks = (Vec<[u8; 32]>, Vec<[u8; 32]>);

/// How to take a chunk that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingChunkPolicy {
    /// A root of content: nothing may be missing below.
    Refuse,
    /// It was stored by a writer that has not moved a ref; what it lacks, it has never had.
    Tolerate,
}

/// What one step of marking has found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CollectionStepCount {
    pub(super) record_count: u64,
    pub(super) byte_count: u64,
}

impl PostgresMarkSet {
    /// Begins with nothing marked; `visitor` is told of every blob.
    pub(super) fn with_visitor(visitor: Option<LiveBlobVisitor>) -> Self {
        Self { blob_visitor: visitor, ..Self::default() }
    }

    pub(super) fn has_chunk(&self, hash: &[u8; 32]) -> bool {
        self.chunks.contains(hash)
    }

    pub(super) fn has_blob(&self, hash: &[u8; 32]) -> bool {
        self.blobs.contains(hash)
    }

    /// Marks a root; what it reaches comes with the next steps.
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

    /// Begins to note what is marked from now on.
    pub(super) fn begin_new_marks(&mut self) {
        self.new_marks = Some((Vec::new(), Vec::new()));
    }

    /// Returns the chunks and blobs that were marked since.
    pub(super) fn take_new_marks(&mut self) -> NewMarks {
        self.new_marks.take().unwrap_or_default()
    }

    /// Looks at some of the marked chunks and marks what they refer to.
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
        let mut found = CollectionStepCount { record_count: rows.len() as u64, byte_count: 0 };
        let mut blobs = Vec::new();
        for row in &rows {
            let bytes: i64 = row.try_get(2).map_err(&failed)?;
            found.byte_count += u64::try_from(bytes).unwrap_or(0);
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
            // One that is not here is a large one, which lies elsewhere.
            let query = "select count(*), coalesce(sum(octet_length(data)), 0)::bigint from blob where hash = any($1)";
            let row =
                sqlx::query(query).bind(blobs).fetch_one(connection).await.map_err(&failed)?;
            let number = |column| row.try_get::<i64, _>(column).map_err(&failed);
            found.record_count += u64::try_from(number(0)?).unwrap_or(0);
            found.byte_count += u64::try_from(number(1)?).unwrap_or(0);
        }
        Ok(found)
    }
}
