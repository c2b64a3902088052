//! Where the tests keep their jobs: a file of SQLite, or a schema of a real PostgreSQL.

use tempfile::TempDir;
use tympan_jobs::{MIGRATIONS, Queues};
use tympan_testkit::State;
use tympan_testkit::postgres::PostgresServer;

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
        PostgresServer::shared();
        Self::Postgres(PostgresServer::new_schema())
    }

    /// Opens it as a process of its own would.
    pub(crate) async fn open(&self) -> Queues {
        let state = match self {
            Self::Sqlite(dir) => State::open(&dir.path().join("state.db")).await.unwrap(),
            Self::Postgres(schema) => {
                State::connect(&PostgresServer::shared().url(), schema).await.unwrap()
            }
        };
        state.migrate("jobs", MIGRATIONS).await.unwrap();
        Queues::new(state.pool().clone())
    }
}
