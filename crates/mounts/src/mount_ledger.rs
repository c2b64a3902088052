//! The ledger of synchronized files in the state database: the asset of each file, and the file's fingerprint.
//!
//! Content stores the same data: each asset records its mount, file and fingerprint. The ledger exists so that a pass
//! need not read every asset. If it is lost, or behind after a crash, a pass reads assets instead of files.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use sqlx::Row as _;
use tokio::runtime::Handle;
use tympan_jobs::{Error as JobsError, JobQueues};

use crate::mount_source::SourceFile;
use crate::pass_report::MountPassReport;
use crate::{Error, Result};

/// Migrations that create the tables of mounts; each runs once.
pub const MOUNT_MIGRATIONS: &[&str] = &[
    "CREATE TABLE mount_file (
        mount TEXT NOT NULL,
        path TEXT NOT NULL,
        mark TEXT NOT NULL,
        identity TEXT,
        asset TEXT NOT NULL,
        PRIMARY KEY (mount, path)
    );
    CREATE INDEX mount_file_asset ON mount_file (mount, asset)",
    "CREATE TABLE mount_pass (
        mount TEXT PRIMARY KEY,
        root TEXT NOT NULL,
        ended BIGINT NOT NULL,
        report TEXT NOT NULL,
        failure TEXT,
        accepts BIGINT NOT NULL DEFAULT 0
    )",
];

/// Maximum number of rows per statement.
const ROWS_PER_STATEMENT: usize = 500;

/// The ledger of all mounts. Clones share it.
#[derive(Debug, Clone)]
pub struct MountLedger {
    queues: JobQueues,
    runtime: Handle,
}

/// A synchronized file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountFileRow {
    pub(crate) path: String,
    pub(crate) fingerprint: String,
    pub(crate) identity: Option<String>,
    /// The path of the asset.
    pub(crate) asset_path: String,
}

/// The result of the last pass.
#[derive(Debug, Clone, PartialEq)]
pub struct LastMountPass {
    /// The root of content at the start of the pass.
    pub(crate) start_root: String,
    /// End time of the pass.
    pub ended_at: SystemTime,
    /// The report of the pass.
    pub report: MountPassReport,
    /// The reason why it ended early, if it did.
    pub failure: Option<String>,
}

/// A known file in a compact form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KnownMountFile {
    pub(crate) fingerprint_hash: u64,
    pub(crate) is_listed: bool,
}

/// Returns the hash that identifies a path in memory. Collisions do not occur in practice.
pub(crate) fn path_hash(path: &str) -> u128 {
    let hash = Sha256::digest(path.as_bytes());
    hash.iter().take(16).fold(0, |key, byte| key << 8 | u128::from(*byte))
}

pub(crate) fn fingerprint_hash(mark: &str) -> u64 {
    let hash = Sha256::digest(mark.as_bytes());
    hash.iter().take(8).fold(0, |key, byte| key << 8 | u64::from(*byte))
}

fn database_error(action: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |source| JobsError::Database { action, source }.into()
}

/// Returns a time as milliseconds since 1970; earlier times do not occur.
fn to_epoch_millis(time: SystemTime) -> i64 {
    let span = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX / 4)
}

fn from_epoch_millis(millis: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis.unsigned_abs())
}

impl MountLedger {
    /// Opens the ledger in the database of the queues. Its tables are created by [`MOUNT_MIGRATIONS`].
    #[must_use]
    pub fn new(queues: &JobQueues, runtime: Handle) -> Self {
        Self { queues: queues.clone(), runtime }
    }

    /// Returns all files of a mount that became assets.
    pub(crate) fn load_known_files(&self, mount: &str) -> Result<HashMap<u128, KnownMountFile>> {
        let mut known_files = HashMap::new();
        self.for_each_file(mount, |row| {
            known_files.insert(
                path_hash(&row.path),
                KnownMountFile {
                    fingerprint_hash: fingerprint_hash(&row.fingerprint),
                    is_listed: false,
                },
            );
            Ok(())
        })?;
        Ok(known_files)
    }

    /// Calls `with` for each row, in the order of paths. Rows may be changed during the iteration.
    pub(crate) fn for_each_file(
        &self,
        mount: &str,
        mut with: impl FnMut(MountFileRow) -> Result<()>,
    ) -> Result<()> {
        let action = "read the files of a mount";
        let mut after = String::new();
        loop {
            let select = sqlx::query(
                "SELECT path, mark, identity, asset FROM mount_file WHERE mount = $1 AND path > $2 \
                 ORDER BY path LIMIT $3",
            )
            .bind(mount)
            .bind(after.as_str())
            .bind(i64::try_from(ROWS_PER_STATEMENT).unwrap_or(1))
            .fetch_all(self.queues.database_pool());
            let rows = self.runtime.block_on(select).map_err(database_error(action))?;
            for row in &rows {
                let row = MountFileRow {
                    path: row.try_get(0).map_err(database_error(action))?,
                    fingerprint: row.try_get(1).map_err(database_error(action))?,
                    identity: row.try_get(2).map_err(database_error(action))?,
                    asset_path: row.try_get(3).map_err(database_error(action))?,
                };
                row.path.clone_into(&mut after);
                with(row)?;
            }
            if rows.len() < ROWS_PER_STATEMENT {
                return Ok(());
            }
        }
    }

    /// Records the assets of some files.
    pub(crate) fn record_files(&self, mount: &str, rows: &[(&SourceFile, String)]) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let action = "record the files of a mount";
        let write = async {
            let mut transaction = self.queues.begin_write(action).await?;
            for (entry, asset) in rows {
                sqlx::query(
                    "INSERT INTO mount_file (mount, path, mark, identity, asset) VALUES ($1, $2, $3, $4, $5) \
                     ON CONFLICT (mount, path) DO UPDATE SET mark = excluded.mark, identity = excluded.identity, \
                     asset = excluded.asset",
                )
                .bind(mount)
                .bind(entry.path.as_str())
                .bind(entry.fingerprint.as_str())
                .bind(entry.identity.as_deref())
                .bind(asset.as_str())
                .execute(&mut *transaction)
                .await
                .map_err(database_error(action))?;
            }
            transaction.commit().await.map_err(database_error(action))
        };
        self.runtime.block_on(write)
    }

    /// Removes files from the ledger.
    pub(crate) fn remove_files(&self, mount: &str, paths: &[&str]) -> Result<()> {
        if paths.is_empty() {
            return Ok(());
        }
        let action = "remove files of a mount";
        let write = async {
            let mut transaction = self.queues.begin_write(action).await?;
            for path in paths {
                sqlx::query("DELETE FROM mount_file WHERE mount = $1 AND path = $2")
                    .bind(mount)
                    .bind(*path)
                    .execute(&mut *transaction)
                    .await
                    .map_err(database_error(action))?;
            }
            transaction.commit().await.map_err(database_error(action))
        };
        self.runtime.block_on(write)
    }

    /// Returns the path and fingerprint of an asset's file.
    pub(crate) fn file_of_asset(
        &self,
        mount: &str,
        asset: &str,
    ) -> Result<Option<(String, String)>> {
        let action = "read the file of an asset";
        let select = sqlx::query(
            "SELECT path, mark FROM mount_file WHERE mount = $1 AND asset = $2 LIMIT 1",
        )
        .bind(mount)
        .bind(asset)
        .fetch_optional(self.queues.database_pool());
        let row = self.runtime.block_on(select).map_err(database_error(action))?;
        let Some(row) = row else { return Ok(None) };
        let text = |at: usize| row.try_get::<String, _>(at).map_err(database_error(action));
        Ok(Some((text(0)?, text(1)?)))
    }

    /// Returns the number of known files of a mount.
    pub(crate) async fn count_files(&self, mount: &str) -> Result<u64> {
        let action = "count the files of a mount";
        let row = sqlx::query("SELECT COUNT(*) FROM mount_file WHERE mount = $1")
            .bind(mount)
            .fetch_one(self.queues.database_pool())
            .await
            .map_err(database_error(action))?;
        let count: i64 = row.try_get(0).map_err(database_error(action))?;
        Ok(u64::try_from(count).unwrap_or_default())
    }

    /// Returns the result of a mount's last pass.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn last_pass(&self, mount: &str) -> Result<Option<LastMountPass>> {
        let action = "read the last pass of a mount";
        let row =
            sqlx::query("SELECT root, ended, report, failure FROM mount_pass WHERE mount = $1")
                .bind(mount)
                .fetch_optional(self.queues.database_pool())
                .await
                .map_err(database_error(action))?;
        let Some(row) = row else { return Ok(None) };
        let report: String = row.try_get(2).map_err(database_error(action))?;
        Ok(Some(LastMountPass {
            start_root: row.try_get(0).map_err(database_error(action))?,
            ended_at: from_epoch_millis(row.try_get(1).map_err(database_error(action))?),
            report: serde_json::from_str(&report).unwrap_or_default(),
            failure: row.try_get(3).map_err(database_error(action))?,
        }))
    }

    /// Records the result of a pass.
    pub(crate) fn record_last_pass(&self, mount: &str, last: &LastMountPass) -> Result<()> {
        let report = serde_json::to_value(&last.report).unwrap_or(Json::Null).to_string();
        let write = sqlx::query(
            "INSERT INTO mount_pass (mount, root, ended, report, failure) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (mount) DO UPDATE SET root = excluded.root, ended = excluded.ended, \
             report = excluded.report, failure = excluded.failure, \
             accepts = CASE WHEN excluded.failure IS NULL THEN 0 ELSE mount_pass.accepts END",
        )
        .bind(mount)
        .bind(last.start_root.as_str())
        .bind(to_epoch_millis(last.ended_at))
        .bind(report)
        .bind(last.failure.as_deref())
        .execute(self.queues.database_pool());
        self.runtime.block_on(write).map(drop).map_err(database_error("record a pass of a mount"))
    }

    /// Allows the next pass to accept any number of removed files. Returns true if there was a pass before.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn accept_removals(&self, mount: &str) -> Result<bool> {
        let done = sqlx::query("UPDATE mount_pass SET accepts = 1 WHERE mount = $1")
            .bind(mount)
            .execute(self.queues.database_pool())
            .await
            .map_err(database_error("accept removals of a mount"))?;
        Ok(done.rows_affected() > 0)
    }

    pub(crate) fn accepts_removals(&self, mount: &str) -> Result<bool> {
        let action = "read whether a mount accepts removals";
        let select = sqlx::query("SELECT accepts FROM mount_pass WHERE mount = $1")
            .bind(mount)
            .fetch_optional(self.queues.database_pool());
        let row = self.runtime.block_on(select).map_err(database_error(action))?;
        let accepts =
            row.map(|row| row.try_get::<i64, _>(0)).transpose().map_err(database_error(action))?;
        Ok(accepts.is_some_and(|accepts| accepts != 0))
    }

    pub(crate) fn last_pass_blocking(&self, mount: &str) -> Result<Option<LastMountPass>> {
        self.runtime.block_on(self.last_pass(mount))
    }
}
