//! Small notes about the repository, shared by all processes that use it, and the identity of the repository.

use sqlx::Row;

use super::database_error::database_error;
use super::postgres_store::PostgresStore;
use super::store_state::PostgresStoreState;
use crate::error::Result;

impl PostgresStore {
    /// Reads a note; `None` if there is no note with this name.
    ///
    /// # Errors
    /// If the database fails.
    pub fn read_note(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let name = name.to_owned();
        self.run_blocking(|shared| async move { shared.read_note(&name).await })
    }

    /// Writes a note if its current value equals `expected`, or if it does not exist and `expected` is `None`;
    /// otherwise returns `false`. Of several concurrent calls, one succeeds. After an error the note may have been
    /// written.
    ///
    /// # Errors
    /// If the database fails.
    pub fn swap_note(&self, name: &str, expected: Option<&[u8]>, new: &[u8]) -> Result<bool> {
        self.state.check_writable()?;
        let (name, expected, new) = (name.to_owned(), expected.map(<[u8]>::to_vec), new.to_vec());
        self.run_blocking(|shared| async move { shared.swap_note(&name, expected, &new).await })
    }

    /// Returns the identity that distinguishes this repository from its copies: the database cluster, the database in
    /// it, and the schema. A repository that was dumped and restored has another identity; a copy of the cluster's
    /// files has the same.
    ///
    /// # Errors
    /// If the database fails.
    pub fn repository_identity(&self) -> Result<String> {
        self.run_blocking(|shared| async move { shared.repository_identity().await })
    }
}

impl PostgresStoreState {
    async fn read_note(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let failed = database_error("cannot read a note of the database");
        let mut connection = self.acquire_connection().await?;
        let row = sqlx::query("select data from note where name = $1").bind(name);
        let row = self
            .with_statement_timeout(1, row.fetch_optional(&mut *connection))
            .await
            .map_err(&failed)?;
        row.map(|row| row.try_get(0)).transpose().map_err(failed)
    }

    async fn swap_note(&self, name: &str, expected: Option<Vec<u8>>, new: &[u8]) -> Result<bool> {
        let failed = database_error("cannot write a note to the database");
        let mut connection = self.acquire_connection().await?;
        let done = match expected {
            None => {
                let query = "insert into note (name, data) values ($1, $2) on conflict do nothing";
                let query = sqlx::query(query).bind(name).bind(new);
                self.with_statement_timeout(1, query.execute(&mut *connection)).await
            }
            Some(expected) => {
                let query = "update note set data = $2 where name = $1 and data = $3";
                let query = sqlx::query(query).bind(name).bind(new).bind(expected);
                self.with_statement_timeout(1, query.execute(&mut *connection)).await
            }
        };
        Ok(done.map_err(failed)?.rows_affected() == 1)
    }

    async fn repository_identity(&self) -> Result<String> {
        let failed = database_error("cannot identify the database");
        let mut connection = self.acquire_connection().await?;
        let database =
            sqlx::query("select oid::text from pg_database where datname = current_database()");
        let database = self.with_statement_timeout(1, database.fetch_one(&mut *connection)).await;
        let database = database.map_err(&failed)?;
        let database: String = database.try_get(0).map_err(&failed)?;
        // A database service may deny its customers this function.
        let cluster = sqlx::query("select system_identifier::text from pg_control_system()");
        let cluster =
            match self.with_statement_timeout(1, cluster.fetch_one(&mut *connection)).await {
                Ok(row) => row.try_get::<String, _>(0).map_err(&failed)?,
                Err(sqlx::Error::Database(_)) => String::new(),
                Err(error) => return Err(failed(error)),
            };
        Ok(format!("{cluster}/{database}/{}", self.options.schema))
    }
}
