//! The errors of the store, one variant per decision of a caller.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::id::{BlobId, ChunkId, IdParseError};

/// The result of a store operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another writer moved the ref. Read it again, rebase, and commit again.
    #[error("ref `{name}` was moved concurrently: expected {}, found {}", describe_root(.expected), describe_root(.actual))]
    RefMoved {
        /// The name of the ref.
        name: String,
        /// The root that the writer expected; `None` if absent.
        expected: Option<ChunkId>,
        /// The actual root of the ref; `None` if absent.
        actual: Option<ChunkId>,
    },
    /// No store holds the chunk.
    #[error(
        "chunk `{id}` is missing; run `tympan repo check` to see what it affects, with `--repair` to go back to the newest good state"
    )]
    ChunkMissing {
        /// The chunk.
        id: ChunkId,
    },
    /// Neither a composite store nor its base holds the chunk.
    #[error(
        "chunk `{id}` is missing from `{base}`, where the lease `{holder}` should keep it; check whether the \
         lease has expired or was removed, and clone again"
    )]
    BaseChunkMissing {
        /// The chunk.
        id: ChunkId,
        /// The base.
        base: String,
        /// The holder of the lease.
        holder: String,
    },
    /// The base no longer retains the state that a composite store is layered over.
    #[error(
        "the lease `{holder}` has expired and `{base}` no longer retains the root `{root}`: local writes are \
         kept, but content of the base may be gone; clone again"
    )]
    LeaseLost {
        /// The base.
        base: String,
        /// The holder of the lease.
        holder: String,
        /// The state that was leased.
        root: ChunkId,
    },
    /// The ref does not exist.
    #[error("`{store}` has no ref `{name}`")]
    RefNotFound {
        /// The name of the ref.
        name: String,
        /// The name of the store.
        store: String,
    },
    /// The store of another instance did not respond, or sent an invalid response.
    #[error("cannot use the store of `{base}`: {reason}")]
    Remote {
        /// The name of the other instance.
        base: String,
        /// The reason of the failure.
        reason: String,
        /// True if a retry can succeed.
        is_transient: bool,
    },
    /// The stored bytes do not have the hash that names them, or cannot be decoded.
    #[error(
        "chunk `{id}` is damaged: {fault}; run `tympan repo check` to see what it affects, with `--repair` to go back to the newest good state"
    )]
    ChunkDamaged {
        /// The chunk.
        id: ChunkId,
        /// The fault of the chunk.
        fault: &'static str,
    },
    /// The stored bytes of a small blob fail their checksum.
    #[error("blob `{id}` is damaged: {fault}; run `tympan repo check` to see what it affects")]
    BlobDamaged {
        /// The blob.
        id: BlobId,
        /// The fault of the blob.
        fault: &'static str,
    },
    /// The bytes offered as a chunk are not a valid chunk.
    #[error("not a chunk: {fault}")]
    ChunkMalformed {
        /// The fault of the bytes.
        fault: &'static str,
    },
    /// A chunk has another kind than the caller needs.
    #[error("chunk `{id}` is not a {expected}")]
    ChunkKindMismatch {
        /// The chunk.
        id: ChunkId,
        /// The kind that the caller needs.
        expected: &'static str,
    },
    /// The text is not a valid id.
    #[error(transparent)]
    IdMalformed(#[from] IdParseError),
    /// A key, value, name or blob exceeds the limits of the format.
    #[error("{what} of {length} bytes is too long: at most {limit} are allowed")]
    TooLong {
        /// The thing that is too long.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A list has more entries than the format allows.
    #[error("{count} {what} are too many: at most {limit} are allowed")]
    TooMany {
        /// The entries and what lists them, as a plural.
        what: &'static str,
        /// The number of entries.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// A path component cannot be part of a key.
    #[error("`{}` cannot be part of a key: {fault}", component.escape_debug())]
    KeyMalformed {
        /// The component.
        component: String,
        /// The fault of the component.
        fault: &'static str,
    },
    /// Records offered to a bulk build are not in strictly ascending order.
    #[error("record {position} is not in ascending order of keys")]
    Unsorted {
        /// Number of the record, from 0.
        position: u64,
    },
    /// Another process has the store open.
    #[error("`{}` is in use by {}; stop it first", dir.display(), describe_lock_holder(.pid))]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// The process that holds the lock, if its lock file says.
        pid: Option<u32>,
    },
    /// An earlier failure closed the store for writing.
    #[error(
        "the store no longer accepts writes: {reason}; reads still work; restart, then run `tympan repo \
         check`"
    )]
    WriteDisabled {
        /// The earlier failure.
        reason: String,
    },
    /// Another collection is running on this store.
    #[error("a garbage collection is already running")]
    CollectionRunning,
    /// A file cannot be written; the write is undone.
    #[error("cannot write `{file}`")]
    FileWrite {
        /// The file, relative to the store's directory.
        file: String,
        /// The cause.
        source: io::Error,
    },
    /// A file cannot be read.
    #[error("cannot read `{file}`")]
    FileRead {
        /// The file, relative to the store's directory.
        file: String,
        /// The cause.
        source: io::Error,
    },
    /// The format of a file is not one that this program reads.
    #[error("`{file}` cannot be used: {fault}")]
    FileMalformed {
        /// The file, relative to the store's directory.
        file: String,
        /// The fault of the file.
        fault: &'static str,
    },
    /// The file of the state database is damaged.
    #[error(
        "`{}` is damaged: {reason}; it contains jobs, logins and the pages that publish has rendered, but no \
         content: restore it from a backup, or move it away together with the files `-wal` and `-shm` beside \
         it, and restart to create a new one: everyone then has to log in again, waiting jobs are lost, and \
         the caches of dispatchers have to be flushed",
        file.display()
    )]
    StateDatabaseDamaged {
        /// The path of the file.
        file: PathBuf,
        /// The message of the database engine.
        reason: String,
    },
    /// The database of small mutable state was used by a newer program.
    #[error(
        "the tables of `{table_group}` are at migration step {applied_steps}, but this program knows only \
         {known_steps}: a newer program has used this home; start that one, or restore a backup from before the upgrade"
    )]
    StateDatabaseNewer {
        /// The name of the table group.
        table_group: String,
        /// The number of migration steps applied to the database.
        applied_steps: usize,
        /// The number of migration steps that this program knows.
        known_steps: usize,
    },
    /// All connections to the database were in use for the maximum wait time of a caller.
    #[error(
        "all {connection_limit} database connections were in use for {wait_time:?} \
         (if this repeats, raise `max_connections` in `[database]`)"
    )]
    ConnectionsBusy {
        /// The maximum number of connections.
        connection_limit: u32,
        /// The time that the caller has waited.
        wait_time: Duration,
    },
    /// The connection to the database was lost during a commit, and the database cannot be queried for the result.
    #[error(
        "the connection to the database was lost during a commit, and it is not known yet whether the commit \
         succeeded; the store finds out when the database is back; read `{name}` then"
    )]
    OutcomeUnknown {
        /// The first ref that the commit updates.
        name: String,
    },
    /// The processes that share a database would use more connections than it has.
    #[error(
        "{requested} connections and {in_use} of other processes are more than the {server_limit} that the \
         database server allows; lower `max_connections` in `[database]` or raise it on the server"
    )]
    TooManyConnections {
        /// The number of connections that this process may use.
        requested: u32,
        /// The number of connections that the other processes may use.
        in_use: u32,
        /// The number of connections that the server has for all of them.
        server_limit: u32,
    },
    /// The settings of the database are invalid.
    #[error("invalid database settings: {fault}")]
    DatabaseSettings {
        /// The fault of the settings, without the password.
        fault: String,
    },
    /// The database that holds the chunks returned an error or cannot be reached.
    #[error("{action}")]
    Database {
        /// The action that failed.
        action: &'static str,
        /// The cause.
        source: sqlx::Error,
    },
    /// The database of small mutable state returned an error.
    #[error("{action}")]
    StateDatabase {
        /// The action that failed.
        action: String,
        /// The cause.
        source: sqlx::Error,
    },
}

impl Error {
    /// Returns true if the base of this store failed, temporarily or permanently.
    #[must_use]
    pub fn is_base_error(&self) -> bool {
        matches!(self, Self::Remote { .. } | Self::BaseChunkMissing { .. } | Self::LeaseLost { .. })
    }

    /// Returns true if the same call can succeed later without any other change.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Remote { is_transient, .. } => *is_transient,
            Self::FileWrite { .. }
            | Self::Locked { .. }
            | Self::CollectionRunning
            | Self::ConnectionsBusy { .. } => true,
            Self::Database { source, .. } => {
                is_connection_lost(source)
                    || is_transaction_conflict(source)
                    || is_statement_timeout(source)
            }
            Self::StateDatabase { source, .. } => {
                matches!(source, sqlx::Error::PoolTimedOut | sqlx::Error::Io(_))
            }
            _ => false,
        }
    }
}

/// Returns true if the connection to a database server, or the server, is gone.
pub(crate) fn is_connection_lost(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::BeginFailed
        | sqlx::Error::WorkerCrashed => true,
        // Connection exceptions, shutdown and start of the server, too many connections, idle transaction timeout.
        sqlx::Error::Database(source) => source.code().is_some_and(|code| {
            code.starts_with("08")
                || matches!(code.as_ref(), "57P01" | "57P02" | "57P03" | "53300" | "25P03")
        }),
        _ => false,
    }
}

/// Returns true if the server canceled a statement that ran too long, or waited too long for another one.
pub(crate) fn is_statement_timeout(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|source| source.code());
    matches!(code.as_deref(), Some("57014" | "55P03"))
}

/// Returns true if two transactions conflicted, so that a retry can succeed.
pub(crate) fn is_transaction_conflict(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(source) = error else {
        return false;
    };
    let code = source.code();
    matches!(code.as_deref(), Some("40001" | "40P01"))
}

fn describe_root(id: &Option<ChunkId>) -> String {
    id.map_or_else(|| "none".to_owned(), |id| format!("`{id}`"))
}

fn describe_lock_holder(pid: &Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}
