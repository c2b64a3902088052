//! The database of small mutable state.

use sqlx::{Executor, Row};
use tympan_store::{Error, StateDatabase};

const STEPS: &[&str] = &[
    "CREATE TABLE job (id BIGINT PRIMARY KEY, topic TEXT NOT NULL); CREATE INDEX job_topic ON job (topic)",
    "ALTER TABLE job ADD COLUMN attempt BIGINT NOT NULL DEFAULT 0",
];

async fn count(state: &StateDatabase, query: &'static str) -> i64 {
    let row = sqlx::query(query).fetch_one(state.pool()).await.unwrap();
    row.try_get(0).unwrap()
}

#[tokio::test]
async fn steps_are_applied_once_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("st#te 100%.db");
    let state = StateDatabase::open(&file).await.unwrap();
    state.migrate_tables("jobs", &STEPS[..1]).await.unwrap();
    let insert = sqlx::query("INSERT INTO job (id, topic) VALUES ($1, $2)");
    insert.bind(1_i64).bind("dam/ingest").execute(state.pool()).await.unwrap();
    state.migrate_tables("jobs", STEPS).await.unwrap();
    state.migrate_tables("jobs", STEPS).await.unwrap();
    state.close().await;
    let state = StateDatabase::open(&file).await.unwrap();
    state.migrate_tables("jobs", STEPS).await.unwrap();
    assert_eq!(count(&state, "SELECT attempt FROM job WHERE id = 1").await, 0);
    assert_eq!(count(&state, "SELECT COUNT(*) FROM migration").await, 2);
    let older = state.migrate_tables("jobs", &STEPS[..1]).await;
    assert!(matches!(
        older,
        Err(Error::StateDatabaseNewer { applied_steps: 2, known_steps: 1, .. })
    ));
}

/// A copy is one state, made beside whoever writes.
#[tokio::test]
async fn a_copy_is_made_beside_those_who_write() {
    let dir = tempfile::tempdir().unwrap();
    let (file, copy) = (dir.path().join("state.db"), dir.path().join("co#py.db"));
    let state = StateDatabase::open(&file).await.unwrap();
    state.migrate_tables("jobs", STEPS).await.unwrap();
    let insert = "INSERT INTO job (id, topic) VALUES (1, 'x')";
    state.pool().execute(insert).await.unwrap();
    let mut writing = state.begin_write().await.unwrap();
    writing.execute("INSERT INTO job (id, topic) VALUES (2, 'y')").await.unwrap();
    tympan_store::copy_state_database(&file, &copy).await.unwrap();
    writing.commit().await.unwrap();
    let copied = StateDatabase::open(&copy).await.unwrap();
    assert_eq!(count(&copied, "SELECT COUNT(*) FROM job").await, 1, "what is committed");
    assert!(
        tympan_store::copy_state_database(&file, &copy).await.is_err(),
        "nothing is overwritten"
    );
}

/// Wherever the damage is: the message names the file and the way out.
#[tokio::test]
async fn a_damaged_file_is_reported_when_it_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state.db");
    let state = StateDatabase::open(&file).await.unwrap();
    state.migrate_tables("jobs", STEPS).await.unwrap();
    for id in 0..2_000_i64 {
        let insert = sqlx::query("INSERT INTO job (id, topic) VALUES ($1, $2)");
        insert.bind(id).bind(format!("topic/{id}")).execute(state.pool()).await.unwrap();
    }
    state.close().await;
    let whole = std::fs::read(&file).unwrap();
    let middle = whole.len() / 2;
    for (from, to) in [(0, 100), (middle, middle + 9_000)] {
        let mut damaged = whole.clone();
        damaged[from..to].iter_mut().for_each(|byte| *byte ^= 0x5a);
        std::fs::write(&file, damaged).unwrap();
        let error = StateDatabase::open(&file).await.unwrap_err();
        assert!(matches!(&error, Error::StateDatabaseDamaged { .. }), "{from}: {error:?}");
        let said = error.to_string();
        assert!(said.contains("state.db") && said.contains("move it away"), "{said}");
        assert!(!error.is_transient());
    }
    std::fs::write(&file, &whole[..5_000]).unwrap();
    let error = StateDatabase::open(&file).await.unwrap_err();
    assert!(matches!(error, Error::StateDatabaseDamaged { .. }), "{error:?}");
    std::fs::write(&file, whole).unwrap();
    let state = StateDatabase::open(&file).await.unwrap();
    assert_eq!(count(&state, "SELECT COUNT(*) FROM job").await, 2_000);
}

#[tokio::test]
async fn a_step_that_fails_leaves_nothing() {
    let state = StateDatabase::open_in_memory().await.unwrap();
    let steps = ["CREATE TABLE one (id BIGINT)", "CREATE TABLE two (id BIGINT); SELECT nonsense"];
    let failed = state.migrate_tables("jobs", &steps).await;
    let message = failed.unwrap_err().to_string();
    assert!(message.contains("`jobs`"), "{message}");
    let tables = "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table'";
    assert_eq!(count(&state, tables).await, 0);
}

#[tokio::test]
async fn writers_wait_for_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDatabase::open(&dir.path().join("state.db")).await.unwrap();
    state.migrate_tables("jobs", &["CREATE TABLE tally (number BIGINT NOT NULL)"]).await.unwrap();
    state.pool().execute("INSERT INTO tally VALUES (0)").await.unwrap();
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let state = state.clone();
            tokio::spawn(async move {
                for _ in 0..25 {
                    // Reads, then writes: without waiting at the begin, one of two such transactions would fail.
                    let mut transaction = state.begin_write().await.unwrap();
                    let row = transaction.fetch_one("SELECT number FROM tally").await.unwrap();
                    let number: i64 = row.try_get(0).unwrap();
                    let write = sqlx::query("UPDATE tally SET number = $1").bind(number + 1);
                    write.execute(&mut *transaction).await.unwrap();
                    transaction.commit().await.unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(count(&state, "SELECT number FROM tally").await, 100);
}

#[tokio::test]
async fn what_is_promised_to_last_is_set() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDatabase::open(&dir.path().join("state.db")).await.unwrap();
    assert_eq!(count(&state, "PRAGMA synchronous").await, 2);
    assert_eq!(count(&state, "PRAGMA foreign_keys").await, 1);
    let row = sqlx::query("PRAGMA journal_mode").fetch_one(state.pool()).await.unwrap();
    assert_eq!(row.try_get::<String, _>(0).unwrap(), "wal");
    let missing = StateDatabase::open(&dir.path().join("no/such/state.db")).await;
    assert!(missing.unwrap_err().to_string().contains("no/such/state.db"));
}

/// As SQLite does on a full disk: it rolls back by itself, and the rollback of whoever began finds no transaction.
#[tokio::test]
async fn a_transaction_that_the_engine_ended_leaves_the_database_usable() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDatabase::open(&dir.path().join("state.db")).await.unwrap();
    let setup =
        "CREATE TABLE job (id BIGINT); CREATE TABLE full (id BIGINT); INSERT INTO full VALUES (1);
                 CREATE TRIGGER no_room BEFORE INSERT ON job WHEN EXISTS (SELECT 1 FROM full)
                 BEGIN SELECT RAISE(ROLLBACK, 'the disk is full'); END";
    state.pool().execute(setup).await.unwrap();
    // As often as there are connections, and more.
    for _ in 0..10 {
        let mut transaction = state.begin_write().await.unwrap();
        transaction.execute("INSERT INTO job VALUES (1)").await.unwrap_err();
    }
    state.pool().execute("DELETE FROM full").await.unwrap();
    for _ in 0..10 {
        let mut transaction = state.begin_write().await.unwrap();
        transaction.execute("INSERT INTO job VALUES (1)").await.unwrap();
        transaction.commit().await.unwrap();
    }
    assert_eq!(count(&state, "SELECT COUNT(*) FROM job").await, 10);
}
