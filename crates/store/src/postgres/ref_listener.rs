//! The connection that listens for updates of refs and keeps the cache of their roots current.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Executor, Row};

use super::column::root_from_row;
use super::database_error::database_error;
use super::ref_cache::{RefMove, RefPosition};
use super::store_state::PostgresStoreState;
use crate::error::Result;

/// The delay before the next attempt to listen.
const RECONNECT_DELAY: Duration = Duration::from_millis(200);
/// The number of heartbeat intervals without any message after which the connection counts as lost.
const MAX_MISSED_HEARTBEATS: u32 = 3;
/// Listens for as long as the store lives.
pub(super) async fn run_ref_listener(shared: Arc<PostgresStoreState>) {
    loop {
        if let Err(error) = listen_for_moves(&shared).await {
            tracing::debug!(reason = %error, "cannot listen for moves of refs; reading refs one by one");
        }
        shared.ref_cache.mark_disconnected();
        tokio::time::sleep(RECONNECT_DELAY).await;
    }
}

/// Listens until the connection is lost.
async fn listen_for_moves(shared: &PostgresStoreState) -> Result<()> {
    let failed = database_error("cannot listen for moves of refs");
    // The listener has a pool of its own, so that a dead connection occupies no slot among the others.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(shared.options.wait_timeout)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy_with(shared.connect_options.clone());
    let mut listener = PgListener::connect_with(&pool).await.map_err(&failed)?;
    listener.eager_reconnect(false);
    listener.listen(&shared.notification_channel()).await.map_err(&failed)?;
    // Updates from here on are notified; earlier ones are read.
    let schema = &shared.options.schema;
    let query = format!("select name, root, sequence from \"{schema}\".ref");
    let rows =
        listener.fetch_all(sqlx::query(sqlx::AssertSqlSafe(query))).await.map_err(&failed)?;
    let mut positions = HashMap::with_capacity(rows.len());
    for row in &rows {
        let name: String = row.try_get(0).map_err(&failed)?;
        let sequence = row.try_get(2).map_err(&failed)?;
        positions.insert(name, RefPosition { root: root_from_row(row, 1)?, sequence });
    }
    shared.ref_cache.replace_positions(positions);
    let silence = shared.options.heartbeat_interval * MAX_MISSED_HEARTBEATS;
    while let Ok(event) = tokio::time::timeout(silence, listener.try_recv()).await {
        let Some(notification) = event.map_err(&failed)? else {
            return Ok(());
        };
        shared.ref_cache.record_moves(RefMove::from_message(notification.payload()));
    }
    Ok(())
}

impl PostgresStoreState {
    /// Returns the channel on which updates are notified.
    pub(super) fn notification_channel(&self) -> String {
        format!("tympan_{}", self.options.schema)
    }
}
