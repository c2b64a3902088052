//! redb with its default durability: each commit is synced.

use std::path::Path;

use redb::{Database, ReadableDatabase, TableDefinition};

use super::{CACHE_BYTES, Engine, Row, Visit, after};
use crate::Outcome;

const ENTRY: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("entry");

/// A table in a redb file.
#[derive(Debug)]
pub(super) struct Redb {
    database: Database,
}

impl Redb {
    /// Creates the file.
    pub(super) fn open(file: &Path) -> Outcome<Self> {
        let database = Database::builder().set_cache_size(CACHE_BYTES).create(file)?;
        let transaction = database.begin_write()?;
        transaction.open_table(ENTRY)?;
        transaction.commit()?;
        Ok(Self { database })
    }
}

impl Engine for Redb {
    fn name(&self) -> &'static str {
        "redb"
    }

    fn commit(&mut self, rows: &[Row]) -> Outcome<()> {
        let transaction = self.database.begin_write()?;
        {
            let mut table = transaction.open_table(ENTRY)?;
            for (key, value) in rows {
                table.insert(key.as_slice(), value.as_slice())?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn settle(&mut self) -> Outcome<()> {
        Ok(())
    }

    fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Outcome<()> {
        let table = self.database.begin_read()?.open_table(ENTRY)?;
        for row in table.range(prefix..after(prefix).as_slice())? {
            let (key, value) = row?;
            visit(key.value(), value.value());
        }
        Ok(())
    }

    fn read(&self, keys: &[Vec<u8>], visit: Visit<'_>) -> Outcome<()> {
        let table = self.database.begin_read()?.open_table(ENTRY)?;
        for key in keys {
            if let Some(value) = table.get(key.as_slice())? {
                visit(key, value.value());
            }
        }
        Ok(())
    }
}
