//! Reads: chunks from the caches or by one round trip, small blobs, refs, history and leases.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row};

use super::column::{HashKind, hash_from_column, lease_from_row, revision_from_row, root_from_row};
use super::database_error::{database_error, is_unresponsive_error};
use super::store_state::PostgresStoreState;
use crate::chunk::Chunk;
use crate::error::{Error, Result, is_connection_lost};
use crate::id::{BlobId, ChunkId};
use crate::interface::history::Revision;
use crate::interface::root_retention::RootLease;

impl PostgresStoreState {
    pub(super) async fn ping(&self) -> Result<()> {
        let result = self.query_rows("cannot query the database", || sqlx::query("select 1")).await;
        result.map(drop)
    }

    /// Runs a read-only query; retries it once on another connection if the first was lost.
    async fn query_rows<'q>(
        &self,
        action: &'static str,
        query: impl Fn() -> Query<'q, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>> {
        let mut again = true;
        loop {
            let mut connection = self.acquire_connection().await?;
            match self.with_statement_timeout(1, query().fetch_all(&mut *connection)).await {
                Err(source) if is_unresponsive_error(&source) => {
                    self.discard_connection(connection);
                    return Err(database_error(action)(source));
                }
                Err(source) if again && is_connection_lost(&source) => {
                    again = false;
                    self.discard_connection(connection);
                }
                result => return result.map_err(database_error(action)),
            }
        }
    }

    /// Finds a chunk in memory or in the disk cache.
    pub(super) fn find_cached_chunk(&self, id: &ChunkId) -> Option<Chunk> {
        if let Some(chunk) = self.cache.get(id) {
            return Some(chunk);
        }
        let chunk = self.disk_cache.as_ref()?.find_chunk(id)?;
        self.cache.insert(*id, chunk.clone());
        Some(chunk)
    }

    /// Reads the chunks that were not in a cache.
    pub(super) async fn load_missing_chunks(
        &self,
        pairs: Vec<(ChunkId, Option<Chunk>)>,
    ) -> Result<Vec<Chunk>> {
        let absent = pairs.iter().filter(|(_, cached_chunk)| cached_chunk.is_none());
        let mut missing_hashes: Vec<[u8; 32]> = absent.map(|(id, _)| *id.as_bytes()).collect();
        missing_hashes.sort_unstable();
        missing_hashes.dedup();
        let rows: Vec<PgRow> = self
            .query_rows("cannot read chunks", || {
                sqlx::query("select hash, data from chunk where hash = any($1)")
                    .bind(&missing_hashes)
            })
            .await?;
        self.counters.read_round_trips.fetch_add(1, Ordering::Relaxed);
        self.counters.chunks_read.fetch_add(rows.len() as u64, Ordering::Relaxed);
        let mut read = HashMap::with_capacity(rows.len());
        for row in rows {
            let (id, chunk) = self.verify_chunk_row(&row)?;
            self.cache.insert(id, chunk.clone());
            read.insert(id, chunk);
        }
        if let Some(near) = &self.disk_cache {
            near.add_chunks(read.values());
        }
        let chunks = pairs.into_iter().map(|(id, cached_chunk)| {
            cached_chunk.or_else(|| read.get(&id).cloned()).ok_or(Error::ChunkMissing { id })
        });
        chunks.collect()
    }

    /// Converts a row with a hash and bytes to a chunk, and verifies it.
    pub(super) fn verify_chunk_row(&self, row: &PgRow) -> Result<(ChunkId, Chunk)> {
        let failed = database_error("cannot read a chunk");
        let id = ChunkId::from_bytes(hash_from_column(row.try_get(0).map_err(&failed)?)?);
        let bytes: &[u8] = row.try_get(1).map_err(&failed)?;
        let damaged = |fault| {
            let error = Error::ChunkDamaged { id, fault };
            self.disable_writes(error.to_string());
            error
        };
        if ChunkId::hash_of(bytes) != id {
            return Err(damaged("its content does not match its hash"));
        }
        let chunk = Chunk::parse(Bytes::copy_from_slice(bytes)).map_err(|error| match error {
            Error::ChunkMalformed { fault } => damaged(fault),
            other => other,
        })?;
        Ok((id, chunk))
    }

    pub(super) async fn load_blob(&self, id: &BlobId) -> Result<Option<Bytes>> {
        let row: Option<PgRow> = self
            .query_rows("cannot read a small blob", || {
                sqlx::query("select data from blob where hash = $1").bind(id.digest().as_slice())
            })
            .await?
            .into_iter()
            .next();
        let Some(row) = row else {
            return Ok(None);
        };
        let bytes: &[u8] = row.try_get(0).map_err(database_error("cannot read a small blob"))?;
        let actual = BlobId::hash_of(bytes);
        if actual.digest() != id.digest() {
            let error =
                Error::BlobDamaged { id: *id, fault: "its content does not match its hash" };
            self.disable_writes(error.to_string());
            return Err(error);
        }
        // The digest matches, so a wrong length means that no such blob exists.
        Ok((actual == *id).then(|| Bytes::copy_from_slice(bytes)))
    }

    /// Returns for each hash whether it is present and will be retained; records the reported ones for the holds of
    /// this process.
    pub(super) async fn contains_hashes(
        self: Arc<Self>,
        kind: HashKind,
        hashes: Vec<[u8; 32]>,
    ) -> Result<Vec<bool>> {
        let rows = match self.process.holds.newest_hold() {
            None => {
                self.query_rows("cannot look up chunks", || {
                    sqlx::query(kind.present_query()).bind(&hashes)
                })
                .await?
            }
            Some(hold) => self.hold_present(kind, &hashes, hold).await?,
        };
        let mut present = std::collections::HashSet::with_capacity(rows.len());
        for row in &rows {
            let hash = row.try_get(0).map_err(database_error("cannot look up chunks"))?;
            present.insert(hash_from_column(hash)?);
        }
        Ok(hashes.iter().map(|hash| present.contains(hash)).collect())
    }

    pub(super) async fn load_ref(&self, name: &str) -> Result<Option<ChunkId>> {
        let row: Option<PgRow> = self
            .query_rows("cannot read a ref", || {
                sqlx::query("select root from ref where name = $1").bind(name)
            })
            .await?
            .into_iter()
            .next();
        row.map(|row| root_from_row(&row, 0)).transpose().map(Option::flatten)
    }

    pub(super) async fn load_refs(&self) -> Result<Vec<(String, ChunkId)>> {
        let rows = self
            .query_rows("cannot read the refs", || {
                sqlx::query("select name, root from ref order by name")
            })
            .await?;
        let mut refs = Vec::with_capacity(rows.len());
        for row in &rows {
            let name: String = row.try_get(0).map_err(database_error("cannot read the refs"))?;
            refs.extend(root_from_row(row, 1)?.map(|root| (name, root)));
        }
        Ok(refs)
    }

    pub(super) async fn load_history(
        &self,
        name: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Revision>> {
        let before = before.map_or(i64::MAX, |before| i64::try_from(before).unwrap_or(i64::MAX));
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self
            .query_rows("cannot read the history of a ref", || {
                sqlx::query(
                    "select sequence, name, old, new, at, author, message from revision \
             where name = $1 and sequence < $2 order by sequence desc limit $3",
                )
                .bind(name)
                .bind(before)
                .bind(limit)
            })
            .await?;
        rows.iter().map(revision_from_row).collect()
    }

    pub(super) async fn load_leases(&self) -> Result<Vec<RootLease>> {
        let rows = self
            .query_rows("cannot read the leases", || {
                sqlx::query("select holder, root, expires from lease order by holder")
            })
            .await?;
        rows.iter().map(lease_from_row).collect()
    }
}
