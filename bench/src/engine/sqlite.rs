//! SQLite: write-ahead log, `synchronous = FULL`, pages of 8 KiB.

use std::path::Path;

use rusqlite::{Connection, params};

use super::{CACHE_BYTES, Engine, Row, Shape, Visit, after};
use crate::Outcome;

/// A table in a SQLite file.
#[derive(Debug)]
pub(super) struct Sqlite {
    connection: Connection,
}

impl Sqlite {
    /// Creates the file.
    pub(super) fn open(file: &Path, shape: Shape) -> Outcome<Self> {
        let connection = Connection::open(file)?;
        // SQLite's manual advises `WITHOUT ROWID` up to a twentieth of a page.
        let layout = if shape == Shape::Nodes { "WITHOUT ROWID" } else { "" };
        connection.execute_batch(&format!(
            "PRAGMA page_size = 8192; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -{};
             CREATE TABLE entry (key BLOB PRIMARY KEY, value BLOB NOT NULL) {layout};",
            CACHE_BYTES / 1024
        ))?;
        Ok(Self { connection })
    }
}

impl Engine for Sqlite {
    fn name(&self) -> &'static str {
        "SQLite"
    }

    fn commit(&mut self, rows: &[Row]) -> Outcome<()> {
        let transaction = self.connection.transaction()?;
        {
            let mut put = transaction
                .prepare_cached("INSERT OR REPLACE INTO entry (key, value) VALUES (?1, ?2)")?;
            for (key, value) in rows {
                put.execute(params![key, value])?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn settle(&mut self) -> Outcome<()> {
        Ok(self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?)
    }

    fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Outcome<()> {
        let mut find = self.connection.prepare_cached(
            "SELECT key, value FROM entry WHERE key >= ?1 AND key < ?2 ORDER BY key",
        )?;
        let mut rows = find.query(params![prefix, after(prefix)])?;
        while let Some(row) = rows.next()? {
            visit(row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?);
        }
        Ok(())
    }

    fn read(&self, keys: &[Vec<u8>], visit: Visit<'_>) -> Outcome<()> {
        let transaction = self.connection.unchecked_transaction()?;
        {
            let mut find = transaction.prepare_cached("SELECT value FROM entry WHERE key = ?1")?;
            for key in keys {
                let mut rows = find.query(params![key])?;
                if let Some(row) = rows.next()? {
                    visit(key, row.get_ref(0)?.as_blob()?);
                }
            }
        }
        Ok(transaction.finish()?)
    }
}
