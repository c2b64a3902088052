//! Conversions between columns of the tables and values: hashes, times, revisions, leases.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sqlx::Row;
use sqlx::postgres::PgRow;

use super::database_error::database_error;
use crate::error::{Error, Result};
use crate::id::ChunkId;
use crate::interface::chunk_batch::RefUpdate;
use crate::interface::history::Revision;
use crate::interface::root_retention::RootLease;

/// The kind of object that a hash in `keep` and `condemned` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub(super) enum HashKind {
    Chunk = 0,
    Blob = 1,
}

impl HashKind {
    /// Returns the query for the hashes of `$1` that are present and will be retained: condemned rows count as absent
    /// once the list has taken effect.
    pub(super) fn present_query(self) -> &'static str {
        match self {
            Self::Chunk => {
                "select hash from chunk where hash = any($1) and not exists (select 1 from condemned, collection \
                 where stage = 2 and condemned.kind = 0 and condemned.hash = chunk.hash)"
            }
            Self::Blob => {
                "select hash from blob where hash = any($1) and not exists (select 1 from condemned, collection \
                 where stage = 2 and condemned.kind = 1 and condemned.hash = blob.hash)"
            }
        }
    }
}

/// Converts a time to the format of the tables: microseconds since 1970.
pub(super) fn time_to_micros(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_micros()).unwrap_or(i64::MAX),
    }
}

pub(super) fn time_from_micros(micros: i64) -> SystemTime {
    let distance = Duration::from_micros(micros.unsigned_abs());
    let time = if micros < 0 {
        UNIX_EPOCH.checked_sub(distance)
    } else {
        UNIX_EPOCH.checked_add(distance)
    };
    time.unwrap_or(UNIX_EPOCH)
}

/// Reads a hash from a column.
pub(super) fn hash_from_column(bytes: &[u8]) -> Result<[u8; 32]> {
    bytes.try_into().map_err(|_| Error::FileMalformed {
        file: "database".to_owned(),
        fault: "the length of a hash is not 32 bytes",
    })
}

/// Reads a root from a column that may be null.
pub(super) fn root_from_row(row: &PgRow, column: usize) -> Result<Option<ChunkId>> {
    let bytes: Option<&[u8]> = row.try_get(column).map_err(database_error("cannot read a root"))?;
    bytes.map(|bytes| hash_from_column(bytes).map(ChunkId::from_bytes)).transpose()
}

/// Reads `sequence, name, old, new, at, author, message`.
pub(super) fn revision_from_row(row: &PgRow) -> Result<Revision> {
    let failed = database_error("cannot read a revision");
    let sequence: i64 = row.try_get(0).map_err(&failed)?;
    Ok(Revision {
        sequence: u64::try_from(sequence).unwrap_or(0),
        update: RefUpdate {
            name: row.try_get(1).map_err(&failed)?,
            expected_root: root_from_row(row, 2)?,
            new_root: root_from_row(row, 3)?,
            updated_at: time_from_micros(row.try_get(4).map_err(&failed)?),
            author: row.try_get(5).map_err(&failed)?,
            message: row.try_get(6).map_err(&failed)?,
        },
    })
}

/// Reads `holder, root, expires`.
pub(super) fn lease_from_row(row: &PgRow) -> Result<RootLease> {
    let failed = database_error("cannot read a lease");
    let expires: Option<i64> = row.try_get(2).map_err(&failed)?;
    Ok(RootLease {
        holder: row.try_get(0).map_err(&failed)?,
        root: ChunkId::from_bytes(hash_from_column(row.try_get(1).map_err(&failed)?)?),
        expires_at: expires.map(time_from_micros),
    })
}
