//! One commit: writes everything in a batch in one transaction.
//!
//! The steps in order: the lock that a collection waits for; the rescue of condemned rows; the ref updates, which wait
//! for other commits on the same ref; then chunks, blobs, leases, the token that records the outcome, and the messages
//! to the listeners.
//!
//! Invariants
//! * Rows are written in the order of their hashes, so that commits with common chunks wait for each other in one
//!   order.
//! * A condemned chunk is removed from the list of condemned rows before it is stored. Either the sweep has removed the
//!   chunk before and it is stored anew, or the sweep skips it.

use std::sync::Arc;

use bytes::Bytes;
use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection, Row};

use super::column::{root_from_row, time_to_micros};
use super::commit_outcome::PostgresCommitOutcome;
use super::database_error::database_error;
use super::process::MAX_TRANSACTION_ATTEMPTS;
use super::ref_cache::RefMove;
use super::store_state::PostgresStoreState;
use crate::chunk::Chunk;
use crate::error::{Error, Result, is_connection_lost, is_transaction_conflict};
use crate::id::ChunkId;
use crate::interface::chunk_batch::{ChunkBatch, LeaseUpdate, RefUpdate};
use crate::local::{check_lease_update, check_update};

const MAX_SMALL_BLOB_BYTES: usize = 1 << 20;
/// The approximate maximum size in bytes of the rows that one statement stores.
const MAX_STATEMENT_BYTES: usize = 8 << 20;

/// A batch that has been checked.
pub(super) struct PreparedBatch {
    batch: ChunkBatch,
    /// Sorted by hash.
    chunks: Vec<(ChunkId, Chunk)>,
    blobs: Vec<([u8; 32], Bytes)>,
}

/// The reason why an attempt to commit has ended.
enum CommitFailure {
    /// The batch cannot be committed.
    Refused(Error),
    /// The commit failed, and the next attempt can succeed.
    Retryable(Error),
    /// The commit may have succeeded.
    OutcomeUnknown,
    /// The process is no longer registered.
    ProcessLapsed,
}

impl From<Error> for CommitFailure {
    fn from(error: Error) -> Self {
        match error {
            Error::Database { source, action }
                if is_connection_lost(&source) || is_transaction_conflict(&source) =>
            {
                Self::Retryable(Error::Database { action, source })
            }
            other => Self::Refused(other),
        }
    }
}

impl PreparedBatch {
    pub(super) fn new(batch: ChunkBatch) -> Result<Self> {
        batch.ref_updates().iter().try_for_each(check_update)?;
        batch.lease_updates().iter().try_for_each(check_lease_update)?;
        let mut chunks = Vec::with_capacity(batch.chunks().len());
        for (id, bytes) in batch.chunks() {
            chunks.push((*id, Chunk::parse(bytes.clone())?));
        }
        chunks.sort_unstable_by_key(|(id, _)| *id);
        let mut blobs = Vec::with_capacity(batch.blobs().len());
        for (id, bytes) in batch.blobs() {
            if bytes.len() > MAX_SMALL_BLOB_BYTES {
                let (what, length) = ("small blob", bytes.len());
                return Err(Error::TooLong { what, length, limit: MAX_SMALL_BLOB_BYTES });
            }
            blobs.push((*id.digest(), bytes.clone()));
        }
        blobs.sort_unstable_by_key(|(hash, _)| *hash);
        Ok(Self { batch, chunks, blobs })
    }

    /// Returns the approximate number of long statements in its transaction.
    fn statement_count(&self) -> u32 {
        let chunks: usize = self.chunks.iter().map(|(_, chunk)| chunk.bytes().len()).sum();
        let blobs: usize = self.blobs.iter().map(|(_, bytes)| bytes.len()).sum();
        u32::try_from(1 + (chunks + blobs) / MAX_STATEMENT_BYTES).unwrap_or(u32::MAX)
    }

    fn keyed_hashes(&self) -> (Vec<i16>, Vec<[u8; 32]>) {
        let chunks = self.chunks.iter().map(|(id, _)| (0, *id.as_bytes()));
        chunks.chain(self.blobs.iter().map(|(hash, _)| (1, *hash))).unzip()
    }

    /// Returns the roots that must be present after the batch and that it does not contain itself.
    fn external_roots(&self) -> Vec<[u8; 32]> {
        let moved = self.batch.ref_updates().iter().filter_map(|update| update.new_root);
        let leased = self.batch.lease_updates().iter().filter_map(|update| match update {
            LeaseUpdate::Grant(lease) => Some(lease.root),
            LeaseUpdate::Release { .. } => None,
        });
        let foreign = moved.chain(leased).filter(|root| self.batch.chunk(root).is_none());
        let mut roots: Vec<[u8; 32]> = foreign.map(|root| *root.as_bytes()).collect();
        roots.sort_unstable();
        roots.dedup();
        roots
    }
}

impl PostgresStoreState {
    pub(super) async fn commit_batch(self: Arc<Self>, prepared: PreparedBatch) -> Result<()> {
        if prepared.batch.is_empty() {
            return Ok(());
        }
        let mut last = None;
        for _ in 0..MAX_TRANSACTION_ATTEMPTS {
            let token = self.process.tokens.begin_token();
            let tried = self.try_commit(&prepared, token).await;
            if !matches!(tried, Err(CommitFailure::OutcomeUnknown)) {
                self.process.tokens.end_token(token);
            }
            match tried {
                Ok(moves) => {
                    self.ref_cache.record_moves(moves);
                    for (id, chunk) in prepared.chunks {
                        self.cache.insert(id, chunk);
                    }
                    return Ok(());
                }
                Err(CommitFailure::Refused(error)) => return Err(error),
                Err(CommitFailure::Retryable(error)) => last = Some(error),
                Err(CommitFailure::ProcessLapsed) => self.check_registered().await?,
                Err(CommitFailure::OutcomeUnknown) => match self.find_outcome(token).await {
                    Some(outcome) => {
                        self.process.tokens.end_token(token);
                        if outcome == PostgresCommitOutcome::Committed {
                            return self.reload_moved_refs(&prepared).await;
                        }
                    }
                    None => return Err(self.defer_outcome(&prepared, token)),
                },
            }
        }
        let unreachable = || database_error("cannot commit")(sqlx::Error::PoolTimedOut);
        Err(last.unwrap_or_else(unreachable))
    }

    /// Leaves the outcome of a commit to be determined later.
    fn defer_outcome(self: Arc<Self>, prepared: &PreparedBatch, token: i64) -> Error {
        let first = prepared.batch.ref_updates().first();
        let name = first.map(|update| update.name.clone()).unwrap_or_default();
        tokio::spawn(self.find_outcome_later(token, name.clone()));
        Error::OutcomeUnknown { name }
    }

    /// Reads the current roots of the refs that a commit updated, when the response to the commit was lost.
    async fn reload_moved_refs(&self, prepared: &PreparedBatch) -> Result<()> {
        for update in prepared.batch.ref_updates() {
            // Listeners are notified in any case; this only ensures that the caller sees its own update at once.
            let mut connection = self.acquire_connection().await?;
            if let Some((root, sequence)) = read_ref_position(&mut connection, &update.name).await?
            {
                let name = update.name.clone();
                self.ref_cache.record_moves([RefMove { name, root: Some(root), sequence }]);
            }
        }
        Ok(())
    }

    async fn try_commit(
        &self,
        prepared: &PreparedBatch,
        token: i64,
    ) -> Result<Vec<RefMove>, CommitFailure> {
        let mut connection = self.acquire_connection().await.map_err(CommitFailure::Refused)?;
        let transaction = self.run_commit_transaction(&mut connection, prepared, token);
        let ended = self
            .with_statement_timeout(prepared.statement_count(), async { Ok(transaction.await) })
            .await;
        let result = match ended {
            Ok(result) => result,
            // The commit may have been executed. Without ref updates, the outcome makes no difference.
            Err(_) if !prepared.batch.ref_updates().is_empty() => {
                Err(CommitFailure::OutcomeUnknown)
            }
            Err(source) => {
                self.discard_connection(connection);
                return Err(CommitFailure::Refused(database_error("cannot commit")(source)));
            }
        };
        if !matches!(result, Ok(_) | Err(CommitFailure::Refused(_) | CommitFailure::ProcessLapsed))
        {
            self.discard_connection(connection);
        }
        result
    }

    async fn run_commit_transaction(
        &self,
        connection: &mut PgConnection,
        prepared: &PreparedBatch,
        token: i64,
    ) -> Result<Vec<RefMove>, CommitFailure> {
        let failed = database_error("cannot commit");
        let result = connection.begin_with(self.lock_keys.begin_write_statement()).await;
        let mut transaction = result.map_err(&failed)?;
        let generation = self.rescue_condemned(&mut transaction, prepared).await?;
        let mut moves = Vec::with_capacity(prepared.batch.ref_updates().len());
        for update in prepared.batch.ref_updates() {
            match apply_ref_update(&mut transaction, update).await? {
                Some(sequence) => moves.push(sequence),
                None => return Err(self.ref_moved_error(&mut transaction, update).await?.into()),
            }
        }
        check_roots_present(&mut transaction, prepared.external_roots()).await?;
        if let Some(hold) = self.process.holds.newest_hold() {
            self.retain_for_holds(&mut transaction, prepared, hold).await?;
        }
        insert_chunks(&mut transaction, prepared, generation).await?;
        insert_blobs(&mut transaction, prepared, generation).await?;
        for update in prepared.batch.lease_updates() {
            apply_lease_update(&mut transaction, update).await?;
        }
        if !moves.is_empty() {
            self.announce_moves(&mut transaction, &moves, token).await?;
        }
        match transaction.commit().await {
            Ok(()) => Ok(moves),
            // Without ref updates, a retry changes nothing.
            Err(source) if moves.is_empty() => Err(failed(source).into()),
            Err(_) => Err(CommitFailure::OutcomeUnknown),
        }
    }

    /// Removes the rows to be stored from the list of condemned rows, and returns the generation.
    async fn rescue_condemned(
        &self,
        connection: &mut PgConnection,
        prepared: &PreparedBatch,
    ) -> Result<i64, CommitFailure> {
        let failed = database_error("cannot commit");
        let (kinds, hashes) = prepared.keyed_hashes();
        let query = "with rescued as (delete from condemned using unnest($2, $3) as stored(kind, hash) \
                       where condemned.kind = stored.kind and condemned.hash = stored.hash returning 1) \
                     select generation, exists (select 1 from process where id = $1), \
                       (select count(*) from rescued) from collection";
        let row = sqlx::query(query).bind(self.process.id()).bind(kinds).bind(hashes);
        let row = row.fetch_one(connection).await.map_err(&failed)?;
        let is_listed: bool = row.try_get(1).map_err(&failed)?;
        if !is_listed {
            return Err(CommitFailure::ProcessLapsed);
        }
        Ok(row.try_get(0).map_err(&failed)?)
    }

    /// Returns the error for a ref that is not at the root that the writer expected.
    async fn ref_moved_error(
        &self,
        connection: &mut PgConnection,
        update: &RefUpdate,
    ) -> Result<Error, CommitFailure> {
        let position = read_ref_position(connection, &update.name).await?;
        let name = update.name.clone();
        if let Some((root, sequence)) = position {
            // A caller that retries with a new read must not read the old root again.
            self.ref_cache.record_moves([RefMove {
                name: name.clone(),
                root: Some(root),
                sequence,
            }]);
        }
        let actual = position.map(|(root, _)| root);
        Ok(Error::RefMoved { name, expected: update.expected_root, actual })
    }

    /// Retains rows that were already present for the live holds, because their writers rely on them now.
    async fn retain_for_holds(
        &self,
        connection: &mut PgConnection,
        prepared: &PreparedBatch,
        hold: i64,
    ) -> Result<(), CommitFailure> {
        let (kinds, hashes) = prepared.keyed_hashes();
        let query = "insert into keep (process, kind, hash, hold) \
                     select $1, kind, hash, $2 from unnest($3, $4) as stored(kind, hash) \
                     where case kind when 0 then exists (select 1 from chunk where chunk.hash = stored.hash) \
                       else exists (select 1 from blob where blob.hash = stored.hash) end \
                     order by kind, hash \
                     on conflict (process, kind, hash) do update set hold = excluded.hold";
        let keep = sqlx::query(query).bind(self.process.id()).bind(hold).bind(kinds).bind(hashes);
        keep.execute(connection).await.map_err(database_error("cannot commit"))?;
        Ok(())
    }

    /// Writes the token that records the outcome, and notifies listeners of the new roots of the refs.
    async fn announce_moves(
        &self,
        connection: &mut PgConnection,
        moves: &[RefMove],
        token: i64,
    ) -> Result<(), CommitFailure> {
        let messages: Vec<String> = moves.iter().map(RefMove::to_message).collect();
        let query = "with written as (insert into token (process, number) values ($1, $2)) \
                     select pg_notify($3, message) from unnest($4) as told(message)";
        let announce = sqlx::query(query)
            .bind(self.process.id())
            .bind(token)
            .bind(self.notification_channel())
            .bind(messages);
        announce.execute(connection).await.map_err(database_error("cannot commit"))?;
        Ok(())
    }
}

async fn read_ref_position(
    connection: &mut PgConnection,
    name: &str,
) -> Result<Option<(ChunkId, i64)>> {
    let row = sqlx::query("select root, sequence from ref where name = $1").bind(name);
    let row = row.fetch_optional(connection).await.map_err(database_error("cannot read a ref"))?;
    let Some(row) = row else {
        return Ok(None);
    };
    let sequence = row.try_get(1).map_err(database_error("cannot read a ref"))?;
    Ok(root_from_row(&row, 0)?.map(|root| (root, sequence)))
}

/// Updates a ref by compare-and-swap and records the revision. Returns `None` if the ref has another root than
/// expected.
async fn apply_ref_update(
    connection: &mut PgConnection,
    update: &RefUpdate,
) -> Result<Option<RefMove>> {
    let failed = database_error("cannot move a ref");
    let old = update.expected_root.map(|root| root.as_bytes().to_vec());
    let new = update.new_root.map(|root| root.as_bytes().to_vec());
    if update.expected_root.is_none() && update.new_root.is_some() {
        let insert =
            "insert into ref (name, root, sequence) values ($1, $2, 0) on conflict do nothing";
        let insert = sqlx::query(insert).bind(&update.name).bind(&new);
        let inserted = insert.execute(&mut *connection).await.map_err(&failed)?;
        if inserted.rows_affected() == 0 {
            return Ok(None);
        }
    }
    // Sequence numbers are assigned under the lock of the ref's row, so that those of one ref ascend.
    let moved = match (&old, &new) {
        (Some(_), Some(_)) => {
            "update ref set root = $3, sequence = nextval('revision_sequence') \
             where name = $1 and root = $2 returning sequence"
        }
        (None, Some(_)) => {
            "update ref set root = $3, sequence = nextval('revision_sequence') \
             where name = $1 and $2::bytea is null returning sequence"
        }
        (Some(_), None) => {
            "delete from ref where name = $1 and root = $2 and $3::bytea is null \
             returning nextval('revision_sequence') as sequence"
        }
        (None, None) => return apply_absent_ref(connection, update).await,
    };
    let query = format!(
        "with moved as ({moved}) \
         insert into revision (sequence, name, old, new, at, author, message) \
         select sequence, $1, $2, $3, $4, $5, $6 from moved returning sequence"
    );
    let row: Option<PgRow> = sqlx::query(sqlx::AssertSqlSafe(query))
        .bind(&update.name)
        .bind(&old)
        .bind(&new)
        .bind(time_to_micros(update.updated_at))
        .bind(&update.author)
        .bind(&update.message)
        .fetch_optional(connection)
        .await
        .map_err(&failed)?;
    let Some(row) = row else {
        return Ok(None);
    };
    let sequence = row.try_get(0).map_err(&failed)?;
    Ok(Some(RefMove { name: update.name.clone(), root: update.new_root, sequence }))
}

/// Records that an absent ref stays absent.
async fn apply_absent_ref(
    connection: &mut PgConnection,
    update: &RefUpdate,
) -> Result<Option<RefMove>> {
    let failed = database_error("cannot move a ref");
    let query = "insert into revision (sequence, name, at, author, message) \
                 select nextval('revision_sequence'), $1, $2, $3, $4 \
                 where not exists (select 1 from ref where name = $1) returning sequence";
    let row = sqlx::query(query)
        .bind(&update.name)
        .bind(time_to_micros(update.updated_at))
        .bind(&update.author)
        .bind(&update.message);
    let row = row.fetch_optional(connection).await.map_err(&failed)?;
    let Some(row) = row else {
        return Ok(None);
    };
    let sequence = row.try_get(0).map_err(&failed)?;
    Ok(Some(RefMove { name: update.name.clone(), root: None, sequence }))
}

/// Returns an error for updates to roots that are missing or about to be removed.
async fn check_roots_present(connection: &mut PgConnection, roots: Vec<[u8; 32]>) -> Result<()> {
    if roots.is_empty() {
        return Ok(());
    }
    let query = "select root from unnest($1) as wanted(root) where not exists (select 1 from chunk where hash = root) \
                 or exists (select 1 from condemned, collection where stage = 2 and kind = 0 and hash = root) \
                 limit 1";
    let row = sqlx::query(query).bind(roots);
    let row = row.fetch_optional(connection).await.map_err(database_error("cannot find a root"))?;
    match row {
        Some(row) => match root_from_row(&row, 0)? {
            Some(id) => Err(Error::ChunkMissing { id }),
            None => Ok(()),
        },
        None => Ok(()),
    }
}

async fn insert_chunks(
    connection: &mut PgConnection,
    prepared: &PreparedBatch,
    generation: i64,
) -> Result<()> {
    let query = "insert into chunk (hash, generation, terminal, data) \
                 select hash, $1, terminal, data from unnest($2, $3, $4) as new(hash, terminal, data) \
                 on conflict do nothing";
    let mut rest = prepared.chunks.as_slice();
    while !rest.is_empty() {
        let (piece, after) =
            rest.split_at(statement_row_count(rest, |(_, chunk)| chunk.bytes().len()));
        rest = after;
        let hashes: Vec<&[u8]> = piece.iter().map(|(id, _)| id.as_bytes().as_slice()).collect();
        let is_terminal = |chunk: &Chunk| chunk.chunk_ref_count() + chunk.blob_ref_count() == 0;
        let terminals: Vec<bool> = piece.iter().map(|(_, chunk)| is_terminal(chunk)).collect();
        let data: Vec<&[u8]> = piece.iter().map(|(_, chunk)| chunk.bytes().as_ref()).collect();
        let insert = sqlx::query(query).bind(generation).bind(hashes).bind(terminals).bind(data);
        insert.execute(&mut *connection).await.map_err(database_error("cannot store chunks"))?;
    }
    Ok(())
}

async fn insert_blobs(
    connection: &mut PgConnection,
    prepared: &PreparedBatch,
    generation: i64,
) -> Result<()> {
    let query = "insert into blob (hash, generation, data) \
                 select hash, $1, data from unnest($2, $3) as new(hash, data) on conflict do nothing";
    let mut rest = prepared.blobs.as_slice();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(statement_row_count(rest, |(_, bytes)| bytes.len()));
        rest = after;
        let hashes: Vec<&[u8]> = piece.iter().map(|(hash, _)| hash.as_slice()).collect();
        let data: Vec<&[u8]> = piece.iter().map(|(_, bytes)| bytes.as_ref()).collect();
        let insert = sqlx::query(query).bind(generation).bind(hashes).bind(data);
        insert
            .execute(&mut *connection)
            .await
            .map_err(database_error("cannot store small blobs"))?;
    }
    Ok(())
}

/// Returns the number of leading rows that one statement stores; at least one.
fn statement_row_count<T>(rows: &[T], bytes_of: impl Fn(&T) -> usize) -> usize {
    let mut bytes = 0;
    let fits = rows.iter().take_while(|row| {
        bytes += bytes_of(row);
        bytes <= MAX_STATEMENT_BYTES
    });
    fits.count().max(1)
}

async fn apply_lease_update(connection: &mut PgConnection, update: &LeaseUpdate) -> Result<()> {
    let query = match update {
        LeaseUpdate::Grant(lease) => sqlx::query(
            "insert into lease (holder, root, expires) values ($1, $2, $3) \
             on conflict (holder) do update set root = excluded.root, expires = excluded.expires",
        )
        .bind(&lease.holder)
        .bind(lease.root.as_bytes().to_vec())
        .bind(lease.expires_at.map(time_to_micros)),
        LeaseUpdate::Release { holder } => {
            sqlx::query("delete from lease where holder = $1").bind(holder)
        }
    };
    query.execute(connection).await.map_err(database_error("cannot change a lease"))?;
    Ok(())
}
