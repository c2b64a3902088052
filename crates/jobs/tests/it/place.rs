//! Where the tests keep their jobs: a file of SQLite, or a schema of a real PostgreSQL.

use tempfile::TempDir;
use tympan_jobs::{JOB_MIGRATIONS, JobQueues};
use tympan_testkit::StateDatabase;
use tympan_testkit::postgres_server::PostgresServer;

/// A state database that can be opened again and again.
pub(crate) enum Place {
    Sqlite(TempDir),
    Postgres(String),
}

/// One of each kind.
pub(crate) fn both() -> [Place; 2] {
    [Place::sqlite(), Place::postgres()]
}

impl Place {
    pub(crate) fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    pub(crate) fn postgres() -> Self {
        PostgresServer::shared_server();
        Self::Postgres(PostgresServer::unique_schema_name())
    }

    /// Opens it as a process of its own would.
    pub(crate) async fn open(&self) -> JobQueues {
        let state = match self {
            Self::Sqlite(dir) => StateDatabase::open(&dir.path().join("state.db")).await.unwrap(),
            Self::Postgres(schema) => {
                StateDatabase::connect(&PostgresServer::shared_server().url(), schema)
                    .await
                    .unwrap()
            }
        };
        state.migrate_tables("jobs", JOB_MIGRATIONS).await.unwrap();
        JobQueues::new(state.pool().clone())
    }
}
