//! LMDB with its default durability: each commit is synced.

use std::ops::Bound;
use std::path::Path;

use heed::types::Bytes;
use heed::{Database, Env, EnvOpenOptions};

use super::{Engine, Row, Visit, after};
use crate::Outcome;

/// The address space for the file.
const MAP_BYTES: usize = 16 << 30;

/// A table in an LMDB folder.
#[derive(Debug)]
pub(super) struct Lmdb {
    environment: Env,
    table: Database<Bytes, Bytes>,
}

impl Lmdb {
    /// Creates the folder.
    pub(super) fn open(folder: &Path) -> Outcome<Self> {
        std::fs::create_dir_all(folder)?;
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_BYTES);
        // SAFETY: the folder was made for this run, and nothing else opens or cuts its files.
        #[expect(unsafe_code, reason = "mapping a file is unsafe by nature; see SAFETY")]
        let environment = unsafe { options.open(folder)? };
        let mut transaction = environment.write_txn()?;
        let table = environment.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Self { environment, table })
    }
}

impl Engine for Lmdb {
    fn name(&self) -> &'static str {
        "LMDB"
    }

    fn commit(&mut self, rows: &[Row]) -> Outcome<()> {
        let mut transaction = self.environment.write_txn()?;
        for (key, value) in rows {
            self.table.put(&mut transaction, key, value)?;
        }
        Ok(transaction.commit()?)
    }

    fn settle(&mut self) -> Outcome<()> {
        Ok(())
    }

    fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Outcome<()> {
        let transaction = self.environment.read_txn()?;
        let end = after(prefix);
        let range = (Bound::Included(prefix), Bound::Excluded(end.as_slice()));
        for row in self.table.range(&transaction, &range)? {
            let (key, value) = row?;
            visit(key, value);
        }
        Ok(())
    }

    fn read(&self, keys: &[Vec<u8>], visit: Visit<'_>) -> Outcome<()> {
        let transaction = self.environment.read_txn()?;
        for key in keys {
            if let Some(value) = self.table.get(&transaction, key)? {
                visit(key, value);
            }
        }
        Ok(())
    }
}
