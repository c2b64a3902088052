//! The heartbeat of this process: it reports that the process is alive, and the data it retains.
//!
//! A process registers when it starts. Every few seconds it reports that it is alive, which roots its readers have
//! pinned, and which holds have ended. A process that sends no heartbeat for `process_timeout` is removed by the next
//! collection, with everything it retained. If it resumes, it finds itself removed: without pins and holds it registers
//! anew. With them it no longer writes, because data that it relies on may be gone.

use std::sync::Arc;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use super::column::HashKind;
use super::database_error::database_error;
use super::options::PostgresOptions;
use super::process::{MAX_TRANSACTION_ATTEMPTS, ProcessHoldGuard, REMOVE_PROCESSES};
use super::store_state::PostgresStoreState;
use crate::error::{Error, Result, is_connection_lost, is_transaction_conflict};

/// Sends a heartbeat every few seconds for as long as the store lives.
pub(super) async fn run_heartbeat(shared: Arc<PostgresStoreState>) {
    loop {
        tokio::time::sleep(shared.options.heartbeat_interval).await;
        if let Err(error) = shared.publish_heartbeat().await {
            tracing::warn!(reason = %error, "cannot send a heartbeat to the database");
        }
    }
}

impl PostgresStoreState {
    /// Reports that the process is alive, and what it retains.
    async fn publish_heartbeat(&self) -> Result<()> {
        let mut connection = self
            .side_pool
            .acquire()
            .await
            .map_err(database_error("cannot connect to the database"))?;
        let published = self.publish_heartbeat_on(&mut connection).await;
        if let Err(Error::Database { source, .. }) = &published
            && is_connection_lost(source)
        {
            self.discard_connection(connection);
        }
        published
    }

    pub(super) async fn publish_heartbeat_on(&self, connection: &mut PgConnection) -> Result<()> {
        let failed = database_error("cannot send a heartbeat");
        let id = self.process.id();
        let mut transaction =
            connection.begin_with(self.lock_keys.begin_write_statement()).await.map_err(&failed)?;
        let update = "update process set seen = clock_timestamp() where id = $1";
        let result =
            sqlx::query(update).bind(id).execute(&mut *transaction).await.map_err(&failed)?;
        if result.rows_affected() == 0 {
            drop(transaction);
            return self.reregister_process(connection).await;
        }
        let pinned: Vec<[u8; 32]> =
            self.process.pins.pinned_roots().iter().map(|root| *root.as_bytes()).collect();
        let statements = [
            "delete from pin where process = $1 and not root = any($2)",
            "insert into pin (process, root) select $1, root from unnest($2) as new(root) on conflict do nothing",
        ];
        for statement in statements {
            let run = sqlx::query(statement).bind(id).bind(&pinned);
            run.execute(&mut *transaction).await.map_err(&failed)?;
        }
        let ended = "delete from hold where process = $1 and not number = any($2)";
        let ended = sqlx::query(ended).bind(id).bind(self.process.holds.hold_numbers());
        ended.execute(&mut *transaction).await.map_err(&failed)?;
        // Rows found present are retained for every hold that was live at that time.
        let needless = "delete from keep where process = $1 and not exists (select 1 from hold \
                        where hold.process = $1 and hold.number <= keep.hold)";
        let needless = sqlx::query(needless).bind(id);
        needless.execute(&mut *transaction).await.map_err(&failed)?;
        let settled = "delete from token where process = $1 and number < $2";
        let settled = sqlx::query(settled).bind(id).bind(self.process.tokens.first_open_token());
        settled.execute(&mut *transaction).await.map_err(&failed)?;
        // Listeners detect by this message that the connection is alive.
        let beat = sqlx::query("select pg_notify($1, 'beat')").bind(self.notification_channel());
        beat.execute(&mut *transaction).await.map_err(&failed)?;
        transaction.commit().await.map_err(&failed)
    }

    /// Registers a process again that was declared dead, if it retains nothing.
    async fn reregister_process(&self, connection: &mut PgConnection) -> Result<()> {
        let keeps = !self.process.pins.pinned_roots().is_empty()
            || self.process.holds.newest_hold().is_some();
        // The outcome of a pending commit can no longer be queried, because its token was removed with the
        // registration.
        let asks = self.process.tokens.has_open_token();
        if keeps || asks {
            self.disable_writes(
                "this process sent no heartbeat for so long that another process collected garbage, ignoring \
                 the data that this process holds"
                    .to_owned(),
            );
            return self.check_writable();
        }
        let failed = database_error("cannot register this process again");
        let requested_connections =
            self.options.max_connections.saturating_add(PostgresOptions::EXTRA_CONNECTIONS);
        let row = sqlx::query("insert into process (connections) values ($1) returning id");
        let row = row
            .bind(i64::from(requested_connections))
            .fetch_one(connection)
            .await
            .map_err(&failed)?;
        self.process.set_id(row.try_get(0).map_err(&failed)?);
        tracing::warn!("this process missed its heartbeats and has registered again");
        Ok(())
    }

    /// Returns an error in a transaction if the process is no longer registered.
    pub(super) async fn check_registered(&self) -> Result<()> {
        self.publish_heartbeat().await?;
        self.check_writable()
    }

    pub(super) async fn begin_hold(self: Arc<Self>) -> Result<ProcessHoldGuard> {
        // Added here first, because a heartbeat ends holds in the database that are not in this list.
        let hold = self.process.holds.begin_hold();
        let failed = database_error("cannot begin a hold");
        for _ in 0..MAX_TRANSACTION_ATTEMPTS {
            let mut connection = self.acquire_connection().await?;
            let id = self.process.id();
            let insertion = async {
                let mut transaction =
                    connection.begin_with(self.lock_keys.begin_write_statement()).await?;
                let insert = "insert into hold (process, number, generation) \
                              select $1, $2, generation from collection \
                              where exists (select 1 from process where id = $1) on conflict do nothing";
                let insert = sqlx::query(insert).bind(id).bind(hold.hold_number);
                let done = insert.execute(&mut *transaction).await?.rows_affected();
                transaction.commit().await.map(|()| done)
            };
            match insertion.await {
                Ok(1) => return Ok(hold),
                Ok(_) => {
                    drop(connection);
                    self.check_registered().await?;
                }
                Err(source) if is_connection_lost(&source) || is_transaction_conflict(&source) => {
                    self.discard_connection(connection)
                }
                Err(source) => return Err(failed(source)),
            }
        }
        Err(failed(sqlx::Error::PoolTimedOut))
    }

    /// Finds the rows that are present, and retains them for the live holds.
    pub(super) async fn hold_present(
        &self,
        kind: HashKind,
        hashes: &[[u8; 32]],
        hold: i64,
    ) -> Result<Vec<PgRow>> {
        let failed = database_error("cannot look up chunks");
        let query = format!(
            "with present as ({}), kept as (insert into keep (process, kind, hash, hold) \
               select $2, $3, hash, $4 from present where exists (select 1 from process where id = $2) \
               order by hash \
               on conflict (process, kind, hash) do update set hold = excluded.hold) \
             select hash from present where exists (select 1 from process where id = $2)",
            kind.present_query()
        );
        for _ in 0..MAX_TRANSACTION_ATTEMPTS {
            let mut connection = self.acquire_connection().await?;
            let looked = async {
                let mut transaction =
                    connection.begin_with(self.lock_keys.begin_write_statement()).await?;
                let rows = sqlx::query(AssertSqlSafe(query.clone()))
                    .bind(hashes)
                    .bind(self.process.id())
                    .bind(kind as i16)
                    .bind(hold)
                    .fetch_all(&mut *transaction)
                    .await?;
                transaction.commit().await.map(|()| rows)
            };
            match looked.await {
                Ok(rows) => return Ok(rows),
                Err(source) if is_connection_lost(&source) || is_transaction_conflict(&source) => {
                    self.discard_connection(connection)
                }
                Err(source) => return Err(failed(source)),
            }
        }
        Err(failed(sqlx::Error::PoolTimedOut))
    }

    /// Removes the registration of this process.
    pub(super) async fn deregister_process(&self) {
        let Ok(mut connection) = self.side_pool.acquire().await else {
            return;
        };
        for statement in REMOVE_PROCESSES {
            // The next collection removes whatever remains.
            let ids = [self.process.id()].to_vec();
            sqlx::query(statement).bind(ids).execute(&mut *connection).await.ok();
        }
        self.main_pool.close().await;
    }
}
