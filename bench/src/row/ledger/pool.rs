//! The ledger as the program would write it: through the pool of `state.db`, by statements of many rows.

use std::path::Path;

use sqlx::{Any, AssertSqlSafe, Row, Transaction};
use tympan_store::StateDatabase;

use super::table::{Dependency, Form, Set, decode, encode};
use crate::Outcome;

/// The pool and the runtime that it needs.
pub(super) struct Pool {
    runtime: tokio::runtime::Runtime,
    state: StateDatabase,
    form: Form,
}

impl Pool {
    /// Opens an empty ledger.
    pub(super) fn open(file: &Path, form: Form) -> Outcome<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let state = runtime.block_on(async {
            let state = StateDatabase::open(file).await?;
            state.migrate_tables("ledger", form.tables()).await?;
            Ok::<_, tympan_store::Error>(state)
        })?;
        Ok(Self { runtime, state, form })
    }

    /// Replaces what is kept for some pages, in one transaction.
    pub(super) fn write(&mut self, pages: &[(i64, Set)]) -> Outcome<()> {
        self.runtime.block_on(async {
            let mut transaction = self.state.begin_write().await?;
            for (url, set) in pages {
                match self.form {
                    Form::SetAndRows => write_set(&mut transaction, *url, set).await?,
                    _ => write_rows(&mut transaction, *url, set).await?,
                }
            }
            transaction.commit().await?;
            Ok(())
        })
    }
}

async fn write_rows(
    transaction: &mut Transaction<'static, Any>,
    url: i64,
    set: &Set,
) -> sqlx::Result<()> {
    let delete = sqlx::query("DELETE FROM dependency WHERE url = $1").bind(url);
    delete.execute(&mut **transaction).await?;
    insert(transaction, url, set.iter().copied().collect()).await
}

async fn write_set(
    transaction: &mut Transaction<'static, Any>,
    url: i64,
    set: &Set,
) -> sqlx::Result<()> {
    let find = sqlx::query("SELECT paths FROM page WHERE url = $1").bind(url);
    let found = find.fetch_optional(&mut **transaction).await?;
    let old = found.map(|row| row.try_get::<Vec<u8>, _>(0)).transpose()?;
    let old = decode(&old.unwrap_or_default());
    if old == *set {
        return Ok(());
    }
    let put = "INSERT INTO page (url, paths) VALUES ($1, $2)
        ON CONFLICT (url) DO UPDATE SET paths = excluded.paths";
    sqlx::query(put).bind(url).bind(encode(set)).execute(&mut **transaction).await?;
    for (path, kind) in old.difference(set) {
        let delete = "DELETE FROM dependency WHERE path = $1 AND kind = $2 AND url = $3";
        let delete = sqlx::query(delete).bind(*path).bind(*kind).bind(url);
        delete.execute(&mut **transaction).await?;
    }
    insert(transaction, url, set.difference(&old).copied().collect()).await
}

/// Inserts rows by one statement.
async fn insert(
    transaction: &mut Transaction<'static, Any>,
    url: i64,
    rows: Vec<Dependency>,
) -> sqlx::Result<()> {
    let places: Vec<String> = (0..rows.len())
        .map(|row| format!("(${}, ${}, ${})", row * 3 + 1, row * 3 + 2, row * 3 + 3))
        .collect();
    let text = format!("INSERT INTO dependency (path, kind, url) VALUES {}", places.join(", "));
    let mut query = sqlx::query(AssertSqlSafe(text));
    for (path, kind) in rows {
        query = query.bind(path).bind(kind).bind(url);
    }
    query.execute(&mut **transaction).await.map(drop)
}
