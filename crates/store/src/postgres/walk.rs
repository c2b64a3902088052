//! Marking on a database: what roots reach, by one round trip for many chunks.
//!
//! Marks are kept in memory, 32 bytes and a little more for each live chunk and small blob.

use std::collections::HashSet;

use sqlx::{PgConnection, Row};

use super::{Shared, failed, hash_of};
use crate::collect::BlobVisitor;
use crate::error::{Error, Result};
use crate::id::ChunkId;

/// Chunks that are read together.
const READ_TOGETHER: usize = 512;

/// What is live, and what of it has still to be looked at.
#[derive(Debug, Default)]
pub(super) struct Marks {
    chunks: HashSet<[u8; 32]>,
    blobs: HashSet<[u8; 32]>,
    waiting: Vec<[u8; 32]>,
    /// What has been marked since the last call of [`Marks::take_fresh`]; kept only while asked for.
    fresh: Option<Fresh>,
    /// Who is told of blobs.
    visitor: Option<BlobVisitor>,
}

/// Chunks and blobs, by hash.
pub(super) type Fresh = (Vec<[u8; 32]>, Vec<[u8; 32]>);

/// How to take a chunk that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gaps {
    /// A root of content: nothing may be missing below.
    Refuse,
    /// It was stored by a writer that has not moved a ref; what it lacks, it has never had.
    Pass,
}

/// What one step of marking has found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    pub(super) records: u64,
    pub(super) bytes: u64,
}

impl Marks {
    /// Begins with nothing marked; `visitor` is told of every blob.
    pub(super) fn telling(visitor: Option<BlobVisitor>) -> Self {
        Self { visitor, ..Self::default() }
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
            self.waiting.push(hash);
            if let Some((chunks, _)) = &mut self.fresh {
                chunks.push(hash);
            }
        }
    }

    pub(super) fn add_blob(&mut self, hash: [u8; 32]) -> bool {
        let is_new = self.blobs.insert(hash);
        if let (true, Some((_, blobs))) = (is_new, &mut self.fresh) {
            blobs.push(hash);
        }
        is_new
    }

    pub(super) fn is_done(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Begins to note what is marked from now on.
    pub(super) fn note_fresh(&mut self) {
        self.fresh = Some((Vec::new(), Vec::new()));
    }

    /// Returns the chunks and blobs that were marked since.
    pub(super) fn take_fresh(&mut self) -> Fresh {
        self.fresh.take().unwrap_or_default()
    }

    /// Looks at some of the marked chunks and marks what they refer to.
    pub(super) async fn step(
        &mut self,
        shared: &Shared,
        connection: &mut PgConnection,
        gaps: Gaps,
    ) -> Result<Found> {
        let failed = failed("cannot read chunks to mark them");
        let together = self.waiting.split_off(self.waiting.len().saturating_sub(READ_TOGETHER));
        let query = "select hash, case when terminal then null else data end, octet_length(data)::bigint \
                     from chunk where hash = any($1)";
        let rows = sqlx::query(query).bind(&together);
        let rows = rows.fetch_all(&mut *connection).await.map_err(&failed)?;
        if rows.len() < together.len() && gaps == Gaps::Refuse {
            let mut there = HashSet::new();
            for row in &rows {
                there.insert(hash_of(row.try_get(0).map_err(&failed)?)?);
            }
            if let Some(missing) = together.iter().find(|hash| !there.contains(*hash)) {
                return Err(Error::ChunkMissing { id: ChunkId::from_bytes(*missing) });
            }
        }
        let mut found = Found { records: rows.len() as u64, bytes: 0 };
        let mut blobs = Vec::new();
        for row in &rows {
            let bytes: i64 = row.try_get(2).map_err(&failed)?;
            found.bytes += u64::try_from(bytes).unwrap_or(0);
            let data: Option<&[u8]> = row.try_get(1).map_err(&failed)?;
            if data.is_none() {
                continue;
            }
            let (_, chunk) = shared.verify(row)?;
            chunk.chunk_refs().for_each(|id| self.add_root(*id.as_bytes()));
            if let Some(visitor) = &self.visitor {
                chunk.blob_refs().for_each(|id| visitor.visit(&id));
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
            found.records += u64::try_from(number(0)?).unwrap_or(0);
            found.bytes += u64::try_from(number(1)?).unwrap_or(0);
        }
        Ok(found)
    }
}
