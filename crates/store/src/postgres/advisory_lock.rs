//! The advisory locks of one repository.

use sqlx::AssertSqlSafe;

/// The numbers of the advisory locks of one repository; a database may hold several.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdvisoryLockKeys {
    /// Held while tables are created or migrated.
    pub(super) migration: i64,
    /// Held while processes are counted.
    pub(super) registry: i64,
    /// Held shared by writers until they commit; a collection holds it exclusively for the moment at which it takes
    /// effect.
    pub(super) safe_point: i64,
    /// Held by the one collection that runs.
    pub(super) collection: i64,
}

impl AdvisoryLockKeys {
    pub(super) fn for_schema(schema: &str) -> Self {
        let key = |purpose: &str| {
            let hash = blake3::hash(format!("tympan {schema} {purpose}").as_bytes());
            hash.as_bytes().first_chunk::<8>().map_or(0, |head| i64::from_le_bytes(*head))
        };
        Self {
            migration: key("migration"),
            registry: key("registry"),
            safe_point: key("safepoint"),
            collection: key("collection"),
        }
    }

    /// Returns the statement that begins a transaction that writes chunks or relies on them.
    pub(super) fn begin_write_statement(self) -> AssertSqlSafe<String> {
        AssertSqlSafe(format!("begin; select pg_advisory_xact_lock_shared({})", self.safe_point))
    }
}
