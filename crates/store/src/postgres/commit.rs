//! One commit: everything in a batch, in one transaction.
//!
//! In its order: the lock that a collection waits for; the rescue of what is condemned; the moves of refs, which wait for
//! other commits on the same ref; then chunks, blobs, leases, the token that tells the outcome, and the messages to
//! whoever listens.
//!
//! Invariants
//! * Rows are written in the order of their hashes, so that commits with common chunks wait for each other in one order.
//! * A chunk that is condemned is taken off that list before it is stored: then either the sweep has removed it before,
//!   and it is stored anew, or the sweep passes it by.

use std::sync::Arc;

use bytes::Bytes;
use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection, Row};

use super::follow::Move;
use super::outcome::Outcome;
use super::process::TRIES;
use super::read::root_of;
use super::{Shared, failed, to_micros};
use crate::batch::{Batch, LeaseUpdate, RefUpdate};
use crate::chunk::Chunk;
use crate::error::{Error, Result, is_conflict, is_lost};
use crate::id::ChunkId;
use crate::local::{check_lease, check_update};

const MAX_BLOB_BYTES: usize = 1 << 20;
/// A statement stores about this many bytes at most.
const PIECE_BYTES: usize = 8 << 20;

/// A batch that has been checked.
pub(super) struct Prepared {
    batch: Batch,
    /// Sorted by hash.
    chunks: Vec<(ChunkId, Chunk)>,
    blobs: Vec<([u8; 32], Bytes)>,
}

/// Why a try to commit has ended.
enum Failure {
    /// The batch cannot be committed.
    Refused(Error),
    /// It is not done, and the next try can succeed.
    Again(Error),
    /// It may be done.
    Unknown,
    /// The process is not on the list any more.
    Lapsed,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Database { source, action } if is_lost(&source) || is_conflict(&source) => {
                Self::Again(Error::Database { action, source })
            }
            other => Self::Refused(other),
        }
    }
}

impl Prepared {
    pub(super) fn new(batch: Batch) -> Result<Self> {
        batch.ref_updates().iter().try_for_each(check_update)?;
        batch.lease_updates().iter().try_for_each(check_lease)?;
        let mut chunks = Vec::with_capacity(batch.chunks().len());
        for (id, bytes) in batch.chunks() {
            chunks.push((*id, Chunk::parse(bytes.clone())?));
        }
        chunks.sort_unstable_by_key(|(id, _)| *id);
        let mut blobs = Vec::with_capacity(batch.blobs().len());
        for (id, bytes) in batch.blobs() {
            if bytes.len() > MAX_BLOB_BYTES {
                let (what, length) = ("small blob", bytes.len());
                return Err(Error::TooLong { what, length, limit: MAX_BLOB_BYTES });
            }
            blobs.push((*id.digest(), bytes.clone()));
        }
        blobs.sort_unstable_by_key(|(hash, _)| *hash);
        Ok(Self { batch, chunks, blobs })
    }

    /// Returns about how many long statements its transaction has.
    fn statements(&self) -> u32 {
        let chunks: usize = self.chunks.iter().map(|(_, chunk)| chunk.bytes().len()).sum();
        let blobs: usize = self.blobs.iter().map(|(_, bytes)| bytes.len()).sum();
        u32::try_from(1 + (chunks + blobs) / PIECE_BYTES).unwrap_or(u32::MAX)
    }

    fn hashes(&self) -> (Vec<i16>, Vec<[u8; 32]>) {
        let chunks = self.chunks.iter().map(|(id, _)| (0, *id.as_bytes()));
        chunks.chain(self.blobs.iter().map(|(hash, _)| (1, *hash))).unzip()
    }

    /// The roots that must be there when the batch is done, and that it does not bring itself.
    fn foreign_roots(&self) -> Vec<[u8; 32]> {
        let moved = self.batch.ref_updates().iter().filter_map(|update| update.new);
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

impl Shared {
    pub(super) async fn commit(self: Arc<Self>, prepared: Prepared) -> Result<()> {
        if prepared.batch.is_empty() {
            return Ok(());
        }
        let mut last = None;
        for _ in 0..TRIES {
            let token = self.process.tokens.begin();
            let tried = self.try_commit(&prepared, token).await;
            if !matches!(tried, Err(Failure::Unknown)) {
                self.process.tokens.end(token);
            }
            match tried {
                Ok(moves) => {
                    self.refs.note(moves);
                    for (id, chunk) in prepared.chunks {
                        self.cache.insert(id, chunk);
                    }
                    return Ok(());
                }
                Err(Failure::Refused(error)) => return Err(error),
                Err(Failure::Again(error)) => last = Some(error),
                Err(Failure::Lapsed) => self.on_lapse().await?,
                Err(Failure::Unknown) => match self.find_outcome(token).await {
                    Some(outcome) => {
                        self.process.tokens.end(token);
                        if outcome == Outcome::Done {
                            return self.reread_moved(&prepared).await;
                        }
                    }
                    None => return Err(self.give_up(&prepared, token)),
                },
            }
        }
        let unreachable = || failed("cannot commit")(sqlx::Error::PoolTimedOut);
        Err(last.unwrap_or_else(unreachable))
    }

    /// Leaves the outcome of a commit to be found later.
    fn give_up(self: Arc<Self>, prepared: &Prepared, token: i64) -> Error {
        let first = prepared.batch.ref_updates().first();
        let name = first.map(|update| update.name.clone()).unwrap_or_default();
        tokio::spawn(self.find_outcome_later(token, name.clone()));
        Error::OutcomeUnknown { name }
    }

    /// Learns where the refs are that a commit has moved of which the answer was lost.
    async fn reread_moved(&self, prepared: &Prepared) -> Result<()> {
        for update in prepared.batch.ref_updates() {
            // Whoever listens is told in any case; this only makes sure that the caller sees its own move at once.
            let mut connection = self.connection().await?;
            if let Some((root, sequence)) = read_place(&mut connection, &update.name).await? {
                let name = update.name.clone();
                self.refs.note([Move { name, root: Some(root), sequence }]);
            }
        }
        Ok(())
    }

    async fn try_commit(&self, prepared: &Prepared, token: i64) -> Result<Vec<Move>, Failure> {
        let mut connection = self.connection().await.map_err(Failure::Refused)?;
        let transaction = self.run_transaction(&mut connection, prepared, token);
        let ended = self.within(prepared.statements(), async { Ok(transaction.await) }).await;
        let result = match ended {
            Ok(result) => result,
            // It may have come to the commit. Without moves, it makes no difference.
            Err(_) if !prepared.batch.ref_updates().is_empty() => Err(Failure::Unknown),
            Err(source) => {
                self.lose(connection);
                return Err(Failure::Refused(failed("cannot commit")(source)));
            }
        };
        if !matches!(result, Ok(_) | Err(Failure::Refused(_) | Failure::Lapsed)) {
            self.lose(connection);
        }
        result
    }

    async fn run_transaction(
        &self,
        connection: &mut PgConnection,
        prepared: &Prepared,
        token: i64,
    ) -> Result<Vec<Move>, Failure> {
        let failed = failed("cannot commit");
        let begun = connection.begin_with(self.keys.begin_writing()).await;
        let mut transaction = begun.map_err(&failed)?;
        let generation = self.rescue(&mut transaction, prepared).await?;
        let mut moves = Vec::with_capacity(prepared.batch.ref_updates().len());
        for update in prepared.batch.ref_updates() {
            match move_ref(&mut transaction, update).await? {
                Some(sequence) => moves.push(sequence),
                None => return Err(self.refuse_move(&mut transaction, update).await?.into()),
            }
        }
        check_roots(&mut transaction, prepared.foreign_roots()).await?;
        if let Some(hold) = self.process.holds.newest() {
            self.keep_known(&mut transaction, prepared, hold).await?;
        }
        store_chunks(&mut transaction, prepared, generation).await?;
        store_blobs(&mut transaction, prepared, generation).await?;
        for update in prepared.batch.lease_updates() {
            move_lease(&mut transaction, update).await?;
        }
        if !moves.is_empty() {
            self.announce(&mut transaction, &moves, token).await?;
        }
        match transaction.commit().await {
            Ok(()) => Ok(moves),
            // Without moves, the same once more changes nothing.
            Err(source) if moves.is_empty() => Err(failed(source).into()),
            Err(_) => Err(Failure::Unknown),
        }
    }

    /// Takes what is stored now off the list of the condemned, and returns the generation.
    async fn rescue(
        &self,
        connection: &mut PgConnection,
        prepared: &Prepared,
    ) -> Result<i64, Failure> {
        let failed = failed("cannot commit");
        let (kinds, hashes) = prepared.hashes();
        let query = "with rescued as (delete from condemned using unnest($2, $3) as stored(kind, hash) \
                       where condemned.kind = stored.kind and condemned.hash = stored.hash returning 1) \
                     select generation, exists (select 1 from process where id = $1), \
                       (select count(*) from rescued) from collection";
        let row = sqlx::query(query).bind(self.process.id()).bind(kinds).bind(hashes);
        let row = row.fetch_one(connection).await.map_err(&failed)?;
        let is_listed: bool = row.try_get(1).map_err(&failed)?;
        if !is_listed {
            return Err(Failure::Lapsed);
        }
        Ok(row.try_get(0).map_err(&failed)?)
    }

    /// Says where a ref is that is not where the writer believed it to be.
    async fn refuse_move(
        &self,
        connection: &mut PgConnection,
        update: &RefUpdate,
    ) -> Result<Error, Failure> {
        let place = read_place(connection, &update.name).await?;
        let name = update.name.clone();
        if let Some((root, sequence)) = place {
            // Whoever begins again from what it reads now must not read the old root again.
            self.refs.note([Move { name: name.clone(), root: Some(root), sequence }]);
        }
        let actual = place.map(|(root, _)| root);
        Ok(Error::RefMoved { name, expected: update.expected, actual })
    }

    /// Keeps what was there before for the holds that live, as their writers rely on it now.
    async fn keep_known(
        &self,
        connection: &mut PgConnection,
        prepared: &Prepared,
        hold: i64,
    ) -> Result<(), Failure> {
        let (kinds, hashes) = prepared.hashes();
        let query = "insert into keep (process, kind, hash, hold) \
                     select $1, kind, hash, $2 from unnest($3, $4) as stored(kind, hash) \
                     where case kind when 0 then exists (select 1 from chunk where chunk.hash = stored.hash) \
                       else exists (select 1 from blob where blob.hash = stored.hash) end \
                     order by kind, hash \
                     on conflict (process, kind, hash) do update set hold = excluded.hold";
        let keep = sqlx::query(query).bind(self.process.id()).bind(hold).bind(kinds).bind(hashes);
        keep.execute(connection).await.map_err(failed("cannot commit"))?;
        Ok(())
    }

    /// Writes the token that tells the outcome, and tells whoever listens where the refs are now.
    async fn announce(
        &self,
        connection: &mut PgConnection,
        moves: &[Move],
        token: i64,
    ) -> Result<(), Failure> {
        let messages: Vec<String> = moves.iter().map(Move::to_message).collect();
        let query = "with written as (insert into token (process, number) values ($1, $2)) \
                     select pg_notify($3, message) from unnest($4) as told(message)";
        let announce = sqlx::query(query)
            .bind(self.process.id())
            .bind(token)
            .bind(self.channel())
            .bind(messages);
        announce.execute(connection).await.map_err(failed("cannot commit"))?;
        Ok(())
    }
}

async fn read_place(connection: &mut PgConnection, name: &str) -> Result<Option<(ChunkId, i64)>> {
    let row = sqlx::query("select root, sequence from ref where name = $1").bind(name);
    let row = row.fetch_optional(connection).await.map_err(failed("cannot read a ref"))?;
    let Some(row) = row else {
        return Ok(None);
    };
    let sequence = row.try_get(1).map_err(failed("cannot read a ref"))?;
    Ok(root_of(&row, 0)?.map(|root| (root, sequence)))
}

/// Moves a ref by compare-and-swap and notes the revision. `None` if the ref is elsewhere.
async fn move_ref(connection: &mut PgConnection, update: &RefUpdate) -> Result<Option<Move>> {
    let failed = failed("cannot move a ref");
    let old = update.expected.map(|root| root.as_bytes().to_vec());
    let new = update.new.map(|root| root.as_bytes().to_vec());
    if update.expected.is_none() && update.new.is_some() {
        let insert =
            "insert into ref (name, root, sequence) values ($1, $2, 0) on conflict do nothing";
        let insert = sqlx::query(insert).bind(&update.name).bind(&new);
        let inserted = insert.execute(&mut *connection).await.map_err(&failed)?;
        if inserted.rows_affected() == 0 {
            return Ok(None);
        }
    }
    // Numbers are drawn under the lock of the ref's row, so that those of one ref ascend.
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
        (None, None) => return move_nothing(connection, update).await,
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
        .bind(to_micros(update.at))
        .bind(&update.author)
        .bind(&update.message)
        .fetch_optional(connection)
        .await
        .map_err(&failed)?;
    let Some(row) = row else {
        return Ok(None);
    };
    let sequence = row.try_get(0).map_err(&failed)?;
    Ok(Some(Move { name: update.name.clone(), root: update.new, sequence }))
}

/// Notes that an absent ref stays absent.
async fn move_nothing(connection: &mut PgConnection, update: &RefUpdate) -> Result<Option<Move>> {
    let failed = failed("cannot move a ref");
    let query = "insert into revision (sequence, name, at, author, message) \
                 select nextval('revision_sequence'), $1, $2, $3, $4 \
                 where not exists (select 1 from ref where name = $1) returning sequence";
    let row = sqlx::query(query)
        .bind(&update.name)
        .bind(to_micros(update.at))
        .bind(&update.author)
        .bind(&update.message);
    let row = row.fetch_optional(connection).await.map_err(&failed)?;
    let Some(row) = row else {
        return Ok(None);
    };
    let sequence = row.try_get(0).map_err(&failed)?;
    Ok(Some(Move { name: update.name.clone(), root: None, sequence }))
}

/// Refuses moves to roots that are not here, or about to go.
async fn check_roots(connection: &mut PgConnection, roots: Vec<[u8; 32]>) -> Result<()> {
    if roots.is_empty() {
        return Ok(());
    }
    let query = "select root from unnest($1) as wanted(root) where not exists (select 1 from chunk where hash = root) \
                 or exists (select 1 from condemned, collection where stage = 2 and kind = 0 and hash = root) \
                 limit 1";
    let row = sqlx::query(query).bind(roots);
    let row = row.fetch_optional(connection).await.map_err(failed("cannot find a root"))?;
    match row {
        Some(row) => match root_of(&row, 0)? {
            Some(id) => Err(Error::ChunkMissing { id }),
            None => Ok(()),
        },
        None => Ok(()),
    }
}

async fn store_chunks(
    connection: &mut PgConnection,
    prepared: &Prepared,
    generation: i64,
) -> Result<()> {
    let query = "insert into chunk (hash, generation, terminal, data) \
                 select hash, $1, terminal, data from unnest($2, $3, $4) as new(hash, terminal, data) \
                 on conflict do nothing";
    let mut rest = prepared.chunks.as_slice();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(piece_length(rest, |(_, chunk)| chunk.bytes().len()));
        rest = after;
        let hashes: Vec<&[u8]> = piece.iter().map(|(id, _)| id.as_bytes().as_slice()).collect();
        let is_terminal = |chunk: &Chunk| chunk.chunk_ref_count() + chunk.blob_ref_count() == 0;
        let terminals: Vec<bool> = piece.iter().map(|(_, chunk)| is_terminal(chunk)).collect();
        let data: Vec<&[u8]> = piece.iter().map(|(_, chunk)| chunk.bytes().as_ref()).collect();
        let insert = sqlx::query(query).bind(generation).bind(hashes).bind(terminals).bind(data);
        insert.execute(&mut *connection).await.map_err(failed("cannot store chunks"))?;
    }
    Ok(())
}

async fn store_blobs(
    connection: &mut PgConnection,
    prepared: &Prepared,
    generation: i64,
) -> Result<()> {
    let query = "insert into blob (hash, generation, data) \
                 select hash, $1, data from unnest($2, $3) as new(hash, data) on conflict do nothing";
    let mut rest = prepared.blobs.as_slice();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(piece_length(rest, |(_, bytes)| bytes.len()));
        rest = after;
        let hashes: Vec<&[u8]> = piece.iter().map(|(hash, _)| hash.as_slice()).collect();
        let data: Vec<&[u8]> = piece.iter().map(|(_, bytes)| bytes.as_ref()).collect();
        let insert = sqlx::query(query).bind(generation).bind(hashes).bind(data);
        insert.execute(&mut *connection).await.map_err(failed("cannot store small blobs"))?;
    }
    Ok(())
}

/// Returns how many of the first rows one statement stores; one at least.
fn piece_length<T>(rows: &[T], bytes_of: impl Fn(&T) -> usize) -> usize {
    let mut bytes = 0;
    let fits = rows.iter().take_while(|row| {
        bytes += bytes_of(row);
        bytes <= PIECE_BYTES
    });
    fits.count().max(1)
}

async fn move_lease(connection: &mut PgConnection, update: &LeaseUpdate) -> Result<()> {
    let query = match update {
        LeaseUpdate::Grant(lease) => sqlx::query(
            "insert into lease (holder, root, expires) values ($1, $2, $3) \
             on conflict (holder) do update set root = excluded.root, expires = excluded.expires",
        )
        .bind(&lease.holder)
        .bind(lease.root.as_bytes().to_vec())
        .bind(lease.expires.map(to_micros)),
        LeaseUpdate::Release { holder } => {
            sqlx::query("delete from lease where holder = $1").bind(holder)
        }
    };
    query.execute(connection).await.map_err(failed("cannot change a lease"))?;
    Ok(())
}
