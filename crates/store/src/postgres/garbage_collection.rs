//! Garbage collection in a database, in steps of one call each.
//!
//! 1. *Begin*: one process leads. The generation is incremented, which marks rows stored from now on. Entries retained
//!    by dead processes are removed. Revisions that are too old are dropped.
//! 2. *Mark*: everything reachable from refs, leases, pins and retained revisions.
//! 3. *Condemn*: lists the rest as a proposal. Commits remove from the list what they store.
//! 4. *Take effect*: for a moment no commit is open. Rows added since are marked and removed from the list; from then
//!    on, listed rows count as absent.
//! 5. *Sweep*: listed rows are deleted, a few at a time, skipping rows that a commit is about to rescue.
//!
//! Invariants
//! * Nothing is deleted before the list has taken effect, and nothing that is not on it.
//! * Commits wait for step 4 only. Step 4 gives way to commits that are open for long.
//! * Rows that are not on the list are complete: everything stored since the generation was incremented, or since the
//!   oldest hold began, is walked too. So no writer is told that a chunk is present while something below it is
//!   removed.
//!
//! On failure: before step 4, nothing has changed but the list, which the next collection clears. After it, the next
//! collection begins by finishing the sweep, in whichever process it runs.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

use super::column::{
    hash_from_column, lease_from_row, root_from_row, time_from_micros, time_to_micros,
};
use super::database_error::database_error;
use super::mark_set::{CollectionStepCount, MissingChunkPolicy, PostgresMarkSet};
use super::postgres_store::PostgresStore;
use super::process::REMOVE_PROCESSES;
use super::schema::CollectionStage;
use super::store_state::PostgresStoreState;
use crate::error::{Error, Result, is_statement_timeout};
use crate::interface::garbage_collection::{
    GarbageCollectionMode, GarbageCollectionOptions, GarbageCollectionPhase,
    GarbageCollectionProgress, GarbageCollectionReport, StorageRetainer,
};

/// The number of rows that one statement reads, condemns or deletes.
const BATCH_ROWS: i64 = 2_000;
/// The maximum number of times that marking catches up with commits before they are blocked.
const MAX_MARK_CATCH_UPS: usize = 8;
/// The time for which the first attempt to block commits may make them wait; it doubles with each attempt, up to the
/// last. A waiting attempt delays all commits that come after it, so it must end well before they time out.
const MIN_LOCK_TIMEOUT: Duration = Duration::from_millis(100);
const MAX_LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum number of attempts: they take about ten minutes, which no commit does.
const MAX_LOCK_ATTEMPTS: u32 = 300;

const COLLECT_ACTION: &str = "cannot collect garbage";

type CollectionStepFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// A collection that is driven step by step. [`PostgresStore::collect`](crate::ChunkStore::collect_garbage) runs all
/// steps.
///
/// Dropping it before the end has the effect of a crash: the next collection continues from there.
pub struct PostgresCollection<'a> {
    store: &'a PostgresStore,
    leader: Option<CollectionLeader>,
    report: GarbageCollectionReport,
    progress: GarbageCollectionProgress,
}

/// The leader of a collection: the connection that holds its lock, and the progress so far.
struct CollectionLeader {
    connection: PgConnection,
    options: GarbageCollectionOptions,
    marks: PostgresMarkSet,
    /// Rows stored in this generation or a later one are not candidates.
    safe_generation: i64,
    /// The start time of the collection minus the grace period, in seconds since 1970 by the server's clock.
    young_since: f64,
    roots: Vec<(String, Vec<[u8; 32]>)>,
    last_chunk: Option<[u8; 32]>,
    last_blob: Option<[u8; 32]>,
    generation: i64,
    retained_revisions: u64,
    dropped_revisions: u64,
}

impl PostgresStore {
    /// Begins a collection: finishes the remains of a crashed one, and opens a new generation.
    ///
    /// # Errors
    /// [`Error::CollectionRunning`] while another runs, in this process or another; otherwise a failed read or write.
    pub fn begin_collection(
        &self,
        options: &GarbageCollectionOptions,
    ) -> Result<PostgresCollection<'_>> {
        if options.mode == GarbageCollectionMode::Remove {
            self.state.check_writable()?;
        }
        let options = options.clone();
        let lead = self.run_blocking(|shared| async move {
            CollectionLeader::begin_collection(&shared, options).await
        })?;
        let report = GarbageCollectionReport {
            generation: u64::try_from(lead.generation).unwrap_or(0),
            retained_revisions: lead.retained_revisions,
            dropped_revisions: lead.dropped_revisions,
            ..GarbageCollectionReport::default()
        };
        let progress = GarbageCollectionProgress {
            phase: GarbageCollectionPhase::Mark,
            record_count: 0,
            byte_count: 0,
        };
        Ok(PostgresCollection { store: self, leader: Some(lead), report, progress })
    }
}

impl PostgresCollection<'_> {
    /// Runs all steps.
    pub(super) fn run_to_end(
        mut self,
        pace: &mut dyn FnMut(&GarbageCollectionProgress) -> ControlFlow<()>,
    ) -> Result<GarbageCollectionReport> {
        let stopped = |report: &GarbageCollectionReport| GarbageCollectionReport {
            is_stopped: true,
            ..report.clone()
        };
        if self.mark_live(pace)?.is_break() || self.list_condemned(pace)?.is_break() {
            return Ok(stopped(&self.report));
        }
        if self.collection_mode()? == GarbageCollectionMode::DryRun {
            self.report.freed_bytes = self.report.garbage_bytes;
            return Ok(self.report.clone());
        }
        self.activate_condemned()?;
        self.progress = GarbageCollectionProgress {
            phase: GarbageCollectionPhase::Sweep,
            record_count: 0,
            byte_count: 0,
        };
        while self.sweep_rows(BATCH_ROWS)? > 0 {
            if pace(&self.progress).is_break() {
                return Ok(stopped(&self.report));
            }
        }
        self.finish_collection()
    }

    /// Marks live rows, one step after the other.
    ///
    /// # Errors
    /// A failed read, or damage.
    pub fn mark_live(
        &mut self,
        pace: &mut dyn FnMut(&GarbageCollectionProgress) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let roots =
            self.run_step(|_, lead| Box::pin(async { Ok(std::mem::take(&mut lead.roots)) }))?;
        for (description, roots) in roots {
            let before = self.report.live_bytes;
            let ControlFlow::Continue(_) =
                self.mark_roots(roots, MissingChunkPolicy::Refuse, pace)?
            else {
                return Ok(ControlFlow::Break(()));
            };
            let bytes = self.report.live_bytes - before;
            if bytes > 0 {
                self.report.retainers.push(StorageRetainer { description, retained_bytes: bytes });
            }
        }
        for _ in 0..MAX_MARK_CATCH_UPS {
            let newer = self.run_step(|_, lead| Box::pin(async { lead.roots_since().await }))?;
            let mut records = 0;
            for (roots, gaps) in newer {
                match self.mark_roots(roots, gaps, pace)? {
                    ControlFlow::Continue(record_count) => records += record_count,
                    ControlFlow::Break(()) => return Ok(ControlFlow::Break(())),
                }
            }
            if records == 0 {
                break;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Lists the rows that are not marked.
    ///
    /// # Errors
    /// A failed read or write.
    pub fn list_condemned(
        &mut self,
        pace: &mut dyn FnMut(&GarbageCollectionProgress) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        loop {
            let listed =
                self.run_step(|_, lead| Box::pin(async { lead.condemn_chunks().await }))?;
            let Some(garbage) = listed else {
                break;
            };
            self.report.garbage_bytes += garbage;
            if pace(&self.progress).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        loop {
            let listed = self.run_step(|_, lead| Box::pin(async { lead.condemn_blobs().await }))?;
            let Some(garbage) = listed else {
                return Ok(ControlFlow::Continue(()));
            };
            self.report.garbage_bytes += garbage;
        }
    }

    /// Activates the list: commits wait while rows added since are marked.
    ///
    /// # Errors
    /// A failed read or write, or damage: nothing has changed then.
    pub fn activate_condemned(&mut self) -> Result<()> {
        let counts = self.run_step(|shared, lead| Box::pin(lead.activate_condemned(shared)))?;
        self.report.live_records += counts.record_count;
        self.report.live_bytes += counts.byte_count;
        Ok(())
    }

    /// Deletes at most `limit` listed rows; returns their number.
    ///
    /// # Errors
    /// A failed write.
    pub fn sweep_rows(&mut self, limit: i64) -> Result<u64> {
        let swept = self.run_step(move |_, lead| {
            Box::pin(delete_condemned_rows(&mut lead.connection, limit))
        })?;
        self.report.freed_bytes += swept.byte_count;
        self.progress.record_count += swept.record_count;
        self.progress.byte_count += swept.byte_count;
        Ok(swept.record_count)
    }

    /// Ends the collection after all listed rows have been deleted.
    ///
    /// # Errors
    /// A failed write.
    pub fn finish_collection(mut self) -> Result<GarbageCollectionReport> {
        self.run_step(|_, lead| {
            Box::pin(set_collection_stage(&mut lead.connection, CollectionStage::Idle))
        })?;
        Ok(self.report.clone())
    }

    fn collection_mode(&mut self) -> Result<GarbageCollectionMode> {
        self.run_step(|_, lead| Box::pin(async { Ok(lead.options.mode) }))
    }

    /// Marks everything reachable from the roots. Returns the number of new marks, or the value with which the pace
    /// stopped the walk.
    fn mark_roots(
        &mut self,
        roots: Vec<[u8; 32]>,
        gaps: MissingChunkPolicy,
        pace: &mut dyn FnMut(&GarbageCollectionProgress) -> ControlFlow<()>,
    ) -> Result<ControlFlow<(), u64>> {
        self.run_step(move |_, lead| {
            roots.into_iter().for_each(|root| lead.marks.add_root(root));
            Box::pin(async { Ok(()) })
        })?;
        let mut records = 0;
        loop {
            let counts = self.run_step(move |shared, lead| {
                Box::pin(async move {
                    if lead.marks.is_complete() {
                        return Ok(None);
                    }
                    lead.marks.mark_references(shared, &mut lead.connection, gaps).await.map(Some)
                })
            })?;
            let Some(CollectionStepCount { record_count, byte_count }) = counts else {
                return Ok(ControlFlow::Continue(records));
            };
            records += record_count;
            self.report.live_records += record_count;
            self.report.live_bytes += byte_count;
            self.progress.record_count += record_count;
            self.progress.byte_count += byte_count;
            if pace(&self.progress).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }

    /// Runs one step on the store's own threads, with the leader.
    fn run_step<T, F>(&mut self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'x> FnOnce(
                &'x PostgresStoreState,
                &'x mut CollectionLeader,
            ) -> CollectionStepFuture<'x, T>
            + Send
            + 'static,
    {
        // The leader is absent only after a failed step, which ends the collection.
        let mut lead = self.leader.take().ok_or(Error::CollectionRunning)?;
        let (lead, result) =
            self.store.run_blocking(|shared: Arc<PostgresStoreState>| async move {
                match work(&shared, &mut lead).await {
                    Ok(result) => Ok((lead, result)),
                    Err(error) => {
                        release_collection_lock(lead.connection, shared.lock_keys.collection).await;
                        Err(error)
                    }
                }
            })?;
        self.leader = Some(lead);
        Ok(result)
    }
}

/// Releases the lock for other collections. Condemned rows are left to the next collection, in whichever process it
/// runs.
impl Drop for PostgresCollection<'_> {
    fn drop(&mut self) {
        if let Some(CollectionLeader { connection, .. }) = self.leader.take() {
            let released = self.store.run_blocking(|shared| async move {
                release_collection_lock(connection, shared.lock_keys.collection).await;
                Ok(())
            });
            // If the server is gone, the lock has ended already.
            drop(released);
        }
    }
}

impl std::fmt::Debug for PostgresCollection<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresCollection").field("report", &self.report).finish_non_exhaustive()
    }
}

impl CollectionLeader {
    async fn begin_collection(
        shared: &PostgresStoreState,
        options: GarbageCollectionOptions,
    ) -> Result<Self> {
        let failed = database_error(COLLECT_ACTION);
        let connection = shared.side_pool.acquire().await.map_err(&failed)?;
        // The connection no longer belongs to the pool: when it is dropped, the server releases its lock.
        let mut connection = connection.detach();
        let lock = format!("select pg_try_advisory_lock({})", shared.lock_keys.collection);
        let row = connection.fetch_one(AssertSqlSafe(lock)).await.map_err(&failed)?;
        if !row.try_get::<bool, _>(0).map_err(&failed)? {
            return Err(Error::CollectionRunning);
        }
        let mut lead = Self {
            connection,
            marks: PostgresMarkSet::with_visitor(options.blob_visitor.clone()),
            options,
            safe_generation: 0,
            young_since: 0.0,
            roots: Vec::new(),
            last_chunk: None,
            last_blob: None,
            generation: 0,
            retained_revisions: 0,
            dropped_revisions: 0,
        };
        if lead.options.mode == GarbageCollectionMode::Remove {
            // Before the collection starts, the heartbeat reports that this process is alive and which roots and holds
            // it no longer retains.
            shared.publish_heartbeat_on(&mut lead.connection).await?;
            lead.finish_previous().await?;
            lead.open_generation(shared).await?;
        }
        lead.read_generation(shared).await?;
        let roots = lead.initial_roots().await?;
        lead.roots = roots;
        Ok(lead)
    }

    /// Finishes or discards the remains of a collection that did not end.
    async fn finish_previous(&mut self) -> Result<()> {
        let failed = database_error(COLLECT_ACTION);
        let row = sqlx::query("select stage from collection")
            .fetch_one(&mut self.connection)
            .await
            .map_err(&failed)?;
        if CollectionStage::from_number(row.try_get(0).map_err(&failed)?) == CollectionStage::Sweep
        {
            // Some listed rows are deleted already, so the rest must be deleted too: a chunk without its references is
            // worse.
            while delete_condemned_rows(&mut self.connection, BATCH_ROWS).await?.record_count > 0 {}
        } else {
            self.connection.execute("delete from condemned").await.map_err(&failed)?;
        }
        set_collection_stage(&mut self.connection, CollectionStage::Idle).await
    }

    /// Opens a generation while no commit is open, and removes dead processes and expired leases.
    async fn open_generation(&mut self, shared: &PostgresStoreState) -> Result<()> {
        let failed = database_error(COLLECT_ACTION);
        begin_exclusive(&mut self.connection, shared).await?;
        let dead = sqlx::query(
            "select id from process where seen < clock_timestamp() - $1 * interval '1 second'",
        )
        .bind(shared.options.process_timeout.as_secs_f64());
        let dead = dead.fetch_all(&mut self.connection).await.map_err(&failed)?;
        let dead: sqlx::Result<Vec<i64>> = dead.iter().map(|row| row.try_get(0)).collect();
        let dead = dead.map_err(&failed)?;
        if !dead.is_empty() {
            tracing::info!(processes = ?dead, "removed processes that sent no heartbeat");
            for statement in REMOVE_PROCESSES {
                let remove = sqlx::query(statement).bind(&dead);
                remove.execute(&mut self.connection).await.map_err(&failed)?;
            }
        }
        let ended = sqlx::query("delete from lease where expires <= $1");
        let ended = ended.bind(time_to_micros(self.options.now));
        ended.execute(&mut self.connection).await.map_err(&failed)?;
        let begin = "update collection set generation = generation + 1, stage = 1";
        self.connection.execute(begin).await.map_err(&failed)?;
        self.connection.execute("commit").await.map_err(&failed).map(drop)
    }

    async fn read_generation(&mut self, shared: &PostgresStoreState) -> Result<()> {
        let failed = database_error(COLLECT_ACTION);
        let query = "select generation, least(generation, (select min(hold.generation) from hold)), \
                     extract(epoch from clock_timestamp())::float8 from collection";
        let row = sqlx::query(query).fetch_one(&mut self.connection).await.map_err(&failed)?;
        self.generation = row.try_get(0).map_err(&failed)?;
        self.safe_generation = row.try_get(1).map_err(&failed)?;
        let now: f64 = row.try_get(2).map_err(&failed)?;
        self.young_since = now - shared.options.grace_period.as_secs_f64();
        if self.options.mode == GarbageCollectionMode::DryRun {
            // As seen by a collection that starts now, everything is older.
            self.safe_generation = i64::MAX;
        }
        Ok(())
    }

    /// Returns the current roots, grouped by what retains them, after dropping the revisions that are too old.
    async fn initial_roots(&mut self) -> Result<Vec<(String, Vec<[u8; 32]>)>> {
        let failed = database_error(COLLECT_ACTION);
        let mut roots = Vec::new();
        let rows = sqlx::query("select root, name from ref order by name")
            .fetch_all(&mut self.connection)
            .await;
        for row in rows.map_err(&failed)? {
            let name: String = row.try_get(1).map_err(&failed)?;
            let root = hash_from_column(row.try_get(0).map_err(&failed)?)?;
            roots.push((format!("ref `{name}`"), vec![root]));
        }
        for lease in self.live_leases().await? {
            roots.push((format!("lease of `{}`", lease.holder), vec![*lease.root.as_bytes()]));
        }
        roots.push(("readers".to_owned(), self.query_hashes(PINNED_ROOTS_QUERY).await?));
        let histories = self.thin_history().await?;
        for (name, revision_roots) in histories {
            roots.push((
                format!("history of `{name}`, {} revisions", revision_roots.len()),
                revision_roots,
            ));
        }
        let replaced = self.recent_revision_roots().await?;
        roots.push(("recently replaced states".to_owned(), replaced));
        Ok(roots)
    }

    /// Drops the revisions that are not retained, and returns the roots of the others by ref.
    async fn thin_history(&mut self) -> Result<BTreeMap<String, Vec<[u8; 32]>>> {
        let failed = database_error(COLLECT_ACTION);
        let query = "select sequence, name, new, at, recorded > to_timestamp($1) from revision order by sequence desc";
        let rows = sqlx::query(query).bind(self.young_since);
        let rows = rows.fetch_all(&mut self.connection).await.map_err(&failed)?;
        let mut by_name: BTreeMap<String, Vec<(u64, std::time::SystemTime)>> = BTreeMap::new();
        for row in &rows {
            let sequence: i64 = row.try_get(0).map_err(&failed)?;
            let at = time_from_micros(row.try_get(3).map_err(&failed)?);
            let name: String = row.try_get(1).map_err(&failed)?;
            by_name.entry(name).or_default().push((u64::try_from(sequence).unwrap_or(0), at));
        }
        let Self { options, .. } = self;
        let stays: BTreeMap<&String, _> = by_name
            .iter()
            .map(|(name, all)| {
                (name, options.retention.select_retained(all.iter().copied(), options.now))
            })
            .collect();
        let mut retained_roots: BTreeMap<String, Vec<[u8; 32]>> = BTreeMap::new();
        let mut dropped: Vec<i64> = Vec::new();
        for row in &rows {
            let sequence: i64 = row.try_get(0).map_err(&failed)?;
            let name: String = row.try_get(1).map_err(&failed)?;
            let is_young: bool = row.try_get(4).map_err(&failed)?;
            let is_kept = stays
                .get(&name)
                .is_some_and(|stays| stays.contains(&u64::try_from(sequence).unwrap_or(0)));
            let root = root_from_row(row, 2)?;
            let is_followed = root.is_some_and(|root| options.retained_roots.contains(&root));
            if is_kept || is_young || is_followed {
                retained_roots.entry(name).or_default().extend(root.map(|root| *root.as_bytes()));
                self.retained_revisions += 1;
            } else {
                dropped.push(sequence);
            }
        }
        self.dropped_revisions = dropped.len() as u64;
        if self.options.mode == GarbageCollectionMode::Remove && !dropped.is_empty() {
            let drop = sqlx::query("delete from revision where sequence = any($1)").bind(dropped);
            drop.execute(&mut self.connection).await.map_err(&failed)?;
        }
        Ok(retained_roots)
    }

    async fn live_leases(&mut self) -> Result<Vec<crate::interface::root_retention::RootLease>> {
        let query = "select holder, root, expires from lease order by holder";
        let rows = sqlx::query(query)
            .fetch_all(&mut self.connection)
            .await
            .map_err(database_error(COLLECT_ACTION))?;
        let leases: Result<Vec<_>> = rows.iter().map(lease_from_row).collect();
        let now = self.options.now;
        Ok(leases?.into_iter().filter(|lease| lease.is_live(now)).collect())
    }

    /// Returns the old and new roots of recent ref updates.
    async fn recent_revision_roots(&mut self) -> Result<Vec<[u8; 32]>> {
        let query = "select root from (select old from revision where recorded > to_timestamp($1) \
                     union select new from revision where recorded > to_timestamp($1)) as young(root) \
                     where root is not null";
        let rows = sqlx::query(query).bind(self.young_since);
        let rows =
            rows.fetch_all(&mut self.connection).await.map_err(database_error(COLLECT_ACTION))?;
        rows.iter()
            .map(|row| hash_from_column(row.try_get(0).map_err(database_error(COLLECT_ACTION))?))
            .collect()
    }

    async fn query_hashes(&mut self, query: &'static str) -> Result<Vec<[u8; 32]>> {
        let rows = sqlx::query(query)
            .fetch_all(&mut self.connection)
            .await
            .map_err(database_error(COLLECT_ACTION))?;
        rows.iter()
            .map(|row| hash_from_column(row.try_get(0).map_err(database_error(COLLECT_ACTION))?))
            .collect()
    }

    /// Returns all roots that may have been added since the last call; marks retained blobs at once.
    async fn roots_since(&mut self) -> Result<Vec<(Vec<[u8; 32]>, MissingChunkPolicy)>> {
        let mut content = self.query_hashes("select root from ref").await?;
        let leases = self.live_leases().await?;
        content.extend(leases.iter().map(|lease| *lease.root.as_bytes()));
        content.extend(self.recent_revision_roots().await?);
        content.extend(self.query_hashes(PINNED_ROOTS_QUERY).await?);
        let mut written = self.query_hashes(HELD_CHUNKS_QUERY).await?;
        for blob in self.query_hashes(HELD_BLOBS_QUERY).await? {
            self.marks.add_blob(blob);
        }
        let young = sqlx::query("select hash from chunk where generation >= $1 and not terminal")
            .bind(self.safe_generation);
        let young =
            young.fetch_all(&mut self.connection).await.map_err(database_error(COLLECT_ACTION))?;
        for row in &young {
            written
                .push(hash_from_column(row.try_get(0).map_err(database_error(COLLECT_ACTION))?)?);
        }
        Ok(vec![(content, MissingChunkPolicy::Refuse), (written, MissingChunkPolicy::Tolerate)])
    }

    /// Lists the next chunks that are not marked. Returns their bytes; `None` after the last chunk.
    async fn condemn_chunks(&mut self) -> Result<Option<u64>> {
        let failed = database_error(COLLECT_ACTION);
        let query = "select hash, octet_length(data)::bigint, generation < $2 from chunk \
                     where $1::bytea is null or hash > $1 order by hash limit $3";
        let last = self.last_chunk.map(|hash| hash.to_vec());
        let rows = sqlx::query(query).bind(last).bind(self.safe_generation).bind(BATCH_ROWS);
        let rows = rows.fetch_all(&mut self.connection).await.map_err(&failed)?;
        let mut garbage = Vec::new();
        for row in &rows {
            let hash = hash_from_column(row.try_get(0).map_err(&failed)?)?;
            self.last_chunk = Some(hash);
            let is_old: bool = row.try_get(2).map_err(&failed)?;
            if is_old && !self.marks.has_chunk(&hash) {
                garbage.push((hash, row.try_get(1).map_err(&failed)?));
            }
        }
        if rows.is_empty() { Ok(None) } else { self.insert_condemned(0, garbage).await.map(Some) }
    }

    /// Lists the next small blobs that are not marked. Returns their bytes; `None` after the last blob.
    async fn condemn_blobs(&mut self) -> Result<Option<u64>> {
        let failed = database_error(COLLECT_ACTION);
        let query = "select hash, octet_length(data)::bigint, generation < $2 from blob \
                     where $1::bytea is null or hash > $1 order by hash limit $3";
        let last = self.last_blob.map(|hash| hash.to_vec());
        let rows = sqlx::query(query).bind(last).bind(self.safe_generation).bind(BATCH_ROWS);
        let rows = rows.fetch_all(&mut self.connection).await.map_err(&failed)?;
        let mut garbage = Vec::new();
        for row in &rows {
            let hash = hash_from_column(row.try_get(0).map_err(&failed)?)?;
            self.last_blob = Some(hash);
            let is_old: bool = row.try_get(2).map_err(&failed)?;
            if is_old && !self.marks.has_blob(&hash) {
                garbage.push((hash, row.try_get(1).map_err(&failed)?));
            }
        }
        if rows.is_empty() { Ok(None) } else { self.insert_condemned(1, garbage).await.map(Some) }
    }

    async fn insert_condemned(&mut self, kind: i16, garbage: Vec<([u8; 32], i64)>) -> Result<u64> {
        let total: i64 = garbage.iter().map(|(_, bytes)| bytes).sum();
        if self.options.mode == GarbageCollectionMode::Remove && !garbage.is_empty() {
            let (hashes, bytes): (Vec<[u8; 32]>, Vec<i64>) = garbage.into_iter().unzip();
            let query = "insert into condemned (kind, hash, bytes) \
                         select $1, hash, bytes from unnest($2, $3) as new(hash, bytes) on conflict do nothing";
            let insert = sqlx::query(query).bind(kind).bind(hashes).bind(bytes);
            insert.execute(&mut self.connection).await.map_err(database_error(COLLECT_ACTION))?;
        }
        Ok(u64::try_from(total).unwrap_or(0))
    }

    async fn activate_condemned(
        &mut self,
        shared: &PostgresStoreState,
    ) -> Result<CollectionStepCount> {
        let failed = database_error(COLLECT_ACTION);
        // The transaction is begun by an explicit statement, because all of this object works on its connection.
        begin_exclusive(&mut self.connection, shared).await?;
        self.marks.begin_new_marks();
        let mut total = CollectionStepCount::default();
        let pinned = shared.process.pins.pinned_roots();
        let mut newer = self.roots_since().await?;
        newer.push((
            pinned.iter().map(|root| *root.as_bytes()).collect(),
            MissingChunkPolicy::Tolerate,
        ));
        for (roots, gaps) in newer {
            roots.into_iter().for_each(|root| self.marks.add_root(root));
            while !self.marks.is_complete() {
                let counts = self.marks.mark_references(shared, &mut self.connection, gaps).await?;
                total.record_count += counts.record_count;
                total.byte_count += counts.byte_count;
            }
        }
        let (chunks, blobs) = self.marks.take_new_marks();
        for (kind, hashes) in [(0_i16, chunks), (1, blobs)] {
            let saved = "delete from condemned where kind = $1 and hash = any($2)";
            let saved = sqlx::query(saved).bind(kind).bind(hashes);
            saved.execute(&mut self.connection).await.map_err(&failed)?;
        }
        set_collection_stage(&mut self.connection, CollectionStage::Sweep).await?;
        self.connection.execute("commit").await.map_err(&failed)?;
        Ok(total)
    }
}

/// A reader that pinned a state too late has nothing to retain.
const PINNED_ROOTS_QUERY: &str =
    "select root from pin where exists (select 1 from chunk where hash = root)";
const HELD_CHUNKS_QUERY: &str = "select hash from keep where kind = 0 and exists (select 1 from hold \
                           where hold.process = keep.process and hold.number <= keep.hold)";
const HELD_BLOBS_QUERY: &str = "select hash from keep where kind = 1 and exists (select 1 from hold \
                          where hold.process = keep.process and hold.number <= keep.hold)";

/// Releases the lock of a collection, whatever the state of the connection.
async fn release_collection_lock(mut connection: PgConnection, key: i64) {
    connection.execute("rollback").await.ok();
    let unlock = format!("select pg_advisory_unlock({key})");
    connection.execute(AssertSqlSafe(unlock)).await.ok();
    connection.close().await.ok();
}

async fn set_collection_stage(connection: &mut PgConnection, stage: CollectionStage) -> Result<()> {
    let set = sqlx::query("update collection set stage = $1").bind(stage as i16);
    set.execute(connection).await.map_err(database_error(COLLECT_ACTION)).map(drop)
}

/// Deletes some of the listed rows, skipping rows that a commit is rescuing; waits for those when no others are left.
async fn delete_condemned_rows(
    connection: &mut PgConnection,
    limit: i64,
) -> Result<CollectionStepCount> {
    let failed = database_error(COLLECT_ACTION);
    let query = "with picked as (select kind, hash from condemned order by kind, hash limit $1 \
                   for update skip locked), \
                 chunks as (delete from chunk using picked where picked.kind = 0 and chunk.hash = picked.hash), \
                 blobs as (delete from blob using picked where picked.kind = 1 and blob.hash = picked.hash), \
                 gone as (delete from condemned using picked where condemned.kind = picked.kind \
                   and condemned.hash = picked.hash returning condemned.bytes) \
                 select count(*), coalesce(sum(bytes), 0)::bigint from gone";
    loop {
        let row =
            sqlx::query(query).bind(limit).fetch_one(&mut *connection).await.map_err(&failed)?;
        let number = |column| row.try_get::<i64, _>(column).map_err(&failed);
        let records = u64::try_from(number(0)?).unwrap_or(0);
        if records > 0 {
            return Ok(CollectionStepCount {
                record_count: records,
                byte_count: u64::try_from(number(1)?).unwrap_or(0),
            });
        }
        let locked = connection.fetch_optional("select 1 from condemned limit 1 for update").await;
        match locked {
            Ok(None) => return Ok(CollectionStepCount::default()),
            Ok(Some(_)) => {}
            // A commit is still running.
            Err(source) if is_statement_timeout(&source) => {}
            Err(source) => return Err(failed(source)),
        }
    }
}

/// Begins a transaction while no other transaction that writes chunks is open. Gives way when one is open for long, so
/// that later ones need not wait.
async fn begin_exclusive(connection: &mut PgConnection, shared: &PostgresStoreState) -> Result<()> {
    let failed = database_error(COLLECT_ACTION);
    let most = MAX_LOCK_TIMEOUT.min(shared.options.wait_timeout / 2).max(MIN_LOCK_TIMEOUT);
    let mut next = MIN_LOCK_TIMEOUT;
    for attempt in 0_u32.. {
        let wait = next;
        next = most.min(wait * 2);
        let begin = format!(
            "begin; set local lock_timeout = {}; select pg_advisory_xact_lock({})",
            wait.as_millis(),
            shared.lock_keys.safe_point
        );
        match connection.execute(sqlx::raw_sql(AssertSqlSafe(begin))).await {
            Ok(_) => return Ok(()),
            Err(source) if is_statement_timeout(&source) && attempt < MAX_LOCK_ATTEMPTS => {
                connection.execute("rollback").await.map_err(&failed)?;
                tokio::time::sleep(wait).await;
            }
            Err(source) => return Err(failed(source)),
        }
    }
    Ok(())
}
