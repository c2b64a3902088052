//! The ledger's tables in their forms, and how a page is written into each.

use std::collections::BTreeSet;
use std::path::Path;

use rusqlite::{Connection, OptionalExtension, params};

use crate::Outcome;
use crate::random::Random;

/// What is kept for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A row for each path, found by page and by path.
    Rows,
    /// The same; what stays the same is not written.
    ChangedRows,
    /// The sorted set of paths as one value, found by page.
    OneRow,
    /// The set, and a row for each path, found by path; what stays the same is not written.
    SetAndRows,
}

impl Form {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::ChangedRows => "changed rows",
            Self::OneRow => "set alone",
            Self::SetAndRows => "set and changed rows",
        }
    }

    /// Returns the statements that make the tables.
    pub(super) fn tables(self) -> &'static [&'static str] {
        match self {
            Self::Rows | Self::ChangedRows => &[
                "CREATE TABLE dependency (url BIGINT NOT NULL, path BIGINT NOT NULL, kind BIGINT NOT NULL,
                 PRIMARY KEY (url, path, kind)) WITHOUT ROWID",
                "CREATE INDEX dependency_path ON dependency (path)",
            ],
            Self::OneRow => &[SET],
            Self::SetAndRows => &[
                SET,
                "CREATE TABLE dependency (path BIGINT NOT NULL, kind BIGINT NOT NULL, url BIGINT NOT NULL,
                 PRIMARY KEY (path, kind, url)) WITHOUT ROWID",
            ],
        }
    }
}

const SET: &str = "CREATE TABLE page (url BIGINT PRIMARY KEY, paths BLOB NOT NULL)";

/// SQLite's `synchronous`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Synchronous {
    Normal,
    Full,
}

impl Synchronous {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Normal => "NORMAL",
            Self::Full => "FULL",
        }
    }
}

/// A path that a page was drawn from, as a hash, and how it was read.
pub(super) type Dependency = (i64, i64);
/// What one page was drawn from.
pub(super) type Set = BTreeSet<Dependency>;

pub(super) const ROWS_PER_PAGE: usize = 50;
/// Paths that every page reads: navigation, settings, scripts.
const SHARED: usize = 15;

/// Opens an empty ledger.
pub(super) fn open(file: &Path, form: Form, synchronous: Synchronous) -> Outcome<Connection> {
    let connection = Connection::open(file)?;
    let mode = synchronous.name();
    connection
        .execute_batch(&format!("PRAGMA journal_mode = WAL; PRAGMA synchronous = {mode};"))?;
    form.tables().iter().try_for_each(|table| connection.execute_batch(table))?;
    Ok(connection)
}

/// Replaces what is kept for a page.
pub(super) fn write_page(connection: &Connection, form: Form, url: i64, set: &Set) -> Outcome<()> {
    match form {
        Form::Rows => {
            connection.prepare_cached("DELETE FROM dependency WHERE url = ?1")?.execute([url])?;
            insert(connection, url, set.iter())
        }
        Form::ChangedRows => {
            let mut find =
                connection.prepare_cached("SELECT path, kind FROM dependency WHERE url = ?1")?;
            let old = find.query_map([url], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let old = old.collect::<Result<Set, _>>()?;
            replace(connection, url, &old, set)
        }
        Form::OneRow => put_set(connection, url, set),
        Form::SetAndRows => {
            let mut find = connection.prepare_cached("SELECT paths FROM page WHERE url = ?1")?;
            let old: Option<Vec<u8>> = find.query_row([url], |row| row.get(0)).optional()?;
            let old = decode(&old.unwrap_or_default());
            if old == *set {
                return Ok(());
            }
            put_set(connection, url, set)?;
            replace(connection, url, &old, set)
        }
    }
}

fn put_set(connection: &Connection, url: i64, set: &Set) -> Outcome<()> {
    let mut put =
        connection.prepare_cached("INSERT OR REPLACE INTO page (url, paths) VALUES (?1, ?2)")?;
    put.execute(params![url, encode(set)])?;
    Ok(())
}

/// Deletes and inserts what differs.
fn replace(connection: &Connection, url: i64, old: &Set, new: &Set) -> Outcome<()> {
    let mut delete = connection
        .prepare_cached("DELETE FROM dependency WHERE path = ?1 AND kind = ?2 AND url = ?3")?;
    for (path, kind) in old.difference(new) {
        delete.execute(params![path, kind, url])?;
    }
    insert(connection, url, new.difference(old))
}

fn insert<'a>(
    connection: &Connection,
    url: i64,
    rows: impl Iterator<Item = &'a Dependency>,
) -> Outcome<()> {
    let mut insert = connection
        .prepare_cached("INSERT INTO dependency (path, kind, url) VALUES (?1, ?2, ?3)")?;
    for (path, kind) in rows {
        insert.execute(params![path, kind, url])?;
    }
    Ok(())
}

/// Encodes a set as one value.
pub(super) fn encode(set: &Set) -> Vec<u8> {
    let pairs = set.iter().map(|(path, kind)| (path.to_le_bytes(), kind.to_le_bytes()));
    pairs.flat_map(|(path, kind)| [path, kind].concat()).collect()
}

/// Decodes a set.
pub(super) fn decode(value: &[u8]) -> Set {
    let (numbers, _) = value.as_chunks::<8>();
    let (pairs, _) = numbers.as_chunks::<2>();
    pairs
        .iter()
        .map(|[path, kind]| (i64::from_le_bytes(*path), i64::from_le_bytes(*kind)))
        .collect()
}

/// Returns the hash that stands for a page's URL.
pub(super) fn url_of(page: usize) -> i64 {
    hash(1, page)
}

/// Returns what a page was drawn from; `changing` of the paths depend on the version.
pub(super) fn dependencies(page: usize, version: usize, changing: usize) -> Set {
    let kind = |number: usize| i64::try_from(number % 4).unwrap_or_default();
    let shared = (0..SHARED).map(|number| (hash(2, number), kind(number)));
    let own = (0..ROWS_PER_PAGE - SHARED - changing)
        .map(|number| (hash(3, page * ROWS_PER_PAGE + number), kind(number)));
    let first = (version * 10_000 + page) * ROWS_PER_PAGE;
    let changing = (0..changing).map(|number| (hash(4, first + number), kind(number)));
    shared.chain(own).chain(changing).collect()
}

fn hash(what: u64, number: usize) -> i64 {
    let mut random = Random::new((number as u64) << 3 | what);
    random.next();
    random.next().cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads back which paths a page has, by way of each path.
    fn kept(connection: &Connection, form: Form, page: usize) -> Set {
        let sql = match form {
            Form::OneRow => {
                let sql = "SELECT paths FROM page WHERE url = ?1";
                let value: Vec<u8> =
                    connection.query_row(sql, [url_of(page)], |row| row.get(0)).unwrap();
                return decode(&value);
            }
            _ => "SELECT path, kind FROM dependency WHERE url = ?1",
        };
        let mut find = connection.prepare(sql).unwrap();
        let rows = find.query_map([url_of(page)], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.collect::<Result<Set, _>>().unwrap()
    }

    #[test]
    fn every_form_keeps_the_newest_set() {
        let folder = tempfile::tempdir().unwrap();
        for form in [Form::Rows, Form::ChangedRows, Form::OneRow, Form::SetAndRows] {
            let file = folder.path().join(form.name());
            let connection = open(&file, form, Synchronous::Normal).unwrap();
            for (version, changing) in [(1, 5), (2, 5), (2, 5), (3, 0)] {
                let set = dependencies(7, version, changing);
                assert_eq!(set.len(), ROWS_PER_PAGE);
                write_page(&connection, form, url_of(7), &set).unwrap();
                assert_eq!(kept(&connection, form, 7), set, "{form:?} {version}");
            }
        }
    }
}
