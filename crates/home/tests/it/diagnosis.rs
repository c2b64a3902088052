//! Examining a home without changing it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use tympan_home::{
    DiagnosisLevel, HomeConfig, STATE_FILE, StateTableGroup, diagnose_access, diagnose_clock,
    diagnose_disk, diagnose_format, is_home_in_use, open_state_database,
};
use tympan_store::StateDatabase;

use crate::content_home::{command_access, open_home};

const FIRST_STEP: &str = "CREATE TABLE sample (name TEXT NOT NULL)";
const OWN_TABLES: [StateTableGroup; 1] =
    [StateTableGroup { name: "sample", migrations: &[FIRST_STEP] }];
const NEWER_TABLES: [StateTableGroup; 1] =
    [StateTableGroup { name: "sample", migrations: &[FIRST_STEP, "DROP TABLE sample"] }];

/// The time of change and the bytes of each file of a folder; those of a folder are empty.
fn read_folder(dir: &Path) -> BTreeMap<String, (SystemTime, Vec<u8>)> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let metadata = entry.metadata().unwrap();
        let bytes = if metadata.is_dir() {
            let inner = read_folder(&entry.path());
            files.extend(inner.into_iter().map(|(file, facts)| (format!("{name}/{file}"), facts)));
            Vec::new()
        } else {
            fs::read(entry.path()).unwrap()
        };
        files.insert(name, (metadata.modified().unwrap(), bytes));
    }
    files
}

/// Examines a home as `tympan doctor` does, and returns what it says about the state database.
async fn examine(dir: &Path, tables: &[StateTableGroup]) -> (DiagnosisLevel, String) {
    let now = SystemTime::now();
    for finding in [diagnose_clock(Some(dir), now), diagnose_access(dir), diagnose_disk(dir)] {
        assert_ne!(finding.level, DiagnosisLevel::Error, "{finding:?}");
    }
    is_home_in_use(dir);
    let state = diagnose_format(dir, tables).await.pop().unwrap();
    (state.level, state.message)
}

async fn open_tables(dir: &Path) -> StateDatabase {
    open_state_database(&command_access(), dir, &HomeConfig::default(), &OWN_TABLES).await.unwrap()
}

/// Creates a home at rest.
async fn create_home(dir: &Path) {
    open_home(dir).close().unwrap();
    open_tables(dir).await.close().await;
}

#[tokio::test]
async fn a_home_at_rest_is_examined_without_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    create_home(dir.path()).await;
    let before = read_folder(dir.path());
    assert!(!before.contains_key("state.db-wal"), "{:?}", before.keys());
    let (level, message) = examine(dir.path(), &OWN_TABLES).await;
    assert!(message.ends_with("is up to date"), "{message}");
    assert_eq!(level, DiagnosisLevel::Ok);
    let (level, message) = examine(dir.path(), &NEWER_TABLES).await;
    assert_eq!(message, "the next start changes the tables of sample");
    assert_eq!(level, DiagnosisLevel::Warning);
    assert_eq!(read_folder(dir.path()), before);
    // Without a lock file and an index of a log it creates neither.
    fs::remove_file(dir.path().join("store/lock")).unwrap();
    let before = read_folder(dir.path());
    examine(dir.path(), &OWN_TABLES).await;
    assert_eq!(read_folder(dir.path()), before);
}

/// The steps are in the write-ahead log alone.
#[tokio::test]
async fn the_log_of_a_crashed_instance_is_read_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (running, crashed) = (dir.path().join("running"), dir.path().join("crashed"));
    fs::create_dir(&running).unwrap();
    let state = open_tables(&running).await;
    fs::create_dir(&crashed).unwrap();
    for name in [STATE_FILE, "state.db-wal"] {
        fs::copy(running.join(name), crashed.join(name)).unwrap();
    }
    let before = read_folder(&crashed);
    assert_eq!(before[STATE_FILE].1.len(), 4096, "a header without tables");
    let (_, message) = examine(&crashed, &OWN_TABLES).await;
    assert!(message.ends_with("is up to date"), "{message}");
    assert_eq!(read_folder(&crashed), before);
    state.close().await;
}

#[tokio::test]
async fn a_running_instance_is_examined_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let home = open_home(dir.path());
    let state = open_tables(dir.path()).await;
    // The index of the log is in shared memory, where each reader registers itself.
    let content = || {
        let mut files = read_folder(dir.path());
        files.remove("state.db-shm");
        files
    };
    let before = content();
    let (_, message) = examine(dir.path(), &OWN_TABLES).await;
    assert!(message.ends_with("is up to date"), "{message}");
    assert_eq!(content(), before);
    assert!(is_home_in_use(dir.path()));
    state.close().await;
    drop(home);
}

#[tokio::test]
async fn a_damaged_state_database_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    create_home(dir.path()).await;
    fs::write(dir.path().join(STATE_FILE), "this is no database").unwrap();
    let (level, message) = examine(dir.path(), &OWN_TABLES).await;
    assert_eq!(level, DiagnosisLevel::Error);
    assert!(message.contains("state.db") && message.contains("not a database"), "{message}");
}
