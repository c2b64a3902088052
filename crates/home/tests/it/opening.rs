//! Opening and closing a home.

use std::path::Path;

use tympan_home::{
    Error, HOME_FORMAT_FILE, Home, HomeConfig, KEY_FILE, STATE_COPY_FILE, STATE_FILE,
    StateTableGroup, is_home_locked, open_state_database, read_home_format,
    read_or_create_replication_key, require_home,
};
use tympan_store::StateDatabase;

use crate::content_home::{add_node, command_access, has_node, open_home};

#[test]
fn a_home_is_open_once_and_keeps_its_content() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("author");
    assert!(matches!(require_home(&dir), Err(Error::Refused(_))));
    let home = open_home(&dir);
    add_node(&home, "page");
    assert!(is_home_locked(&dir).unwrap());
    let second = Home::open(&command_access(), &dir, HomeConfig::default());
    assert!(matches!(second.unwrap_err(), Error::Failed { .. }));
    home.close().unwrap();
    drop(home);
    assert!(!is_home_locked(&dir).unwrap());
    require_home(&dir).unwrap();
    assert!(has_node(&open_home(&dir), "page"));
}

#[test]
fn a_lost_store_is_not_replaced_by_an_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("store")).unwrap();
    let refused = require_home(dir.path()).unwrap_err().to_string();
    assert!(refused.contains("contains no repository"), "{refused}");
}

#[test]
fn a_replication_key_is_created_once() {
    let dir = tempfile::tempdir().unwrap();
    let key = read_or_create_replication_key(dir.path()).unwrap();
    assert_eq!(read_or_create_replication_key(dir.path()).unwrap(), key);
    std::fs::write(dir.path().join(KEY_FILE), "\n").unwrap();
    assert!(matches!(read_or_create_replication_key(dir.path()), Err(Error::Refused(_))));
}

#[test]
fn a_home_of_a_newer_program_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    drop(open_home(dir.path()));
    assert_eq!(read_home_format(dir.path()).unwrap().unwrap().version, 1);
    std::fs::write(dir.path().join(HOME_FORMAT_FILE), "9 3.0.0\n").unwrap();
    let refused = Home::open(&command_access(), dir.path(), HomeConfig::default()).unwrap_err();
    assert!(matches!(refused, Error::Refused(_)));
    assert!(refused.to_string().contains("which release 3.0.0 wrote"), "{refused}");
    let tables = [StateTableGroup { name: "sample", migrations: &[FIRST_STEP] }];
    assert!(open_tables(dir.path(), &tables).is_err());
    assert!(!dir.path().join(STATE_FILE).exists());
}

const FIRST_STEP: &str = "CREATE TABLE sample (name TEXT NOT NULL)";
const SECOND_STEP: &str = "DROP TABLE sample";

fn open_tables(dir: &Path, tables: &[StateTableGroup]) -> tympan_home::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let access = command_access();
        let state = open_state_database(&access, dir, &HomeConfig::default(), tables).await?;
        state.close().await;
        Ok(())
    })
}

async fn count_rows(state: &StateDatabase) -> sqlx::Result<i64> {
    let row = sqlx::query("SELECT COUNT(*) FROM sample").fetch_one(state.pool()).await?;
    sqlx::Row::try_get(&row, 0)
}

/// Returns the number of steps and, if there is the table, of rows in a state database.
fn steps_and_rows(file: &Path) -> (usize, Option<i64>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let state = StateDatabase::open(file).await.unwrap();
        let steps = state.applied_steps("sample").await.unwrap();
        let rows = count_rows(&state).await.ok();
        state.close().await;
        (steps, rows)
    })
}

#[test]
fn the_state_database_is_copied_before_its_tables_are_changed() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let (file, copy) = (dir.path().join(STATE_FILE), dir.path().join(STATE_COPY_FILE));
    let first = [StateTableGroup { name: "sample", migrations: &[FIRST_STEP] }];
    open_tables(dir.path(), &first).unwrap();
    open_tables(dir.path(), &first).unwrap();
    assert!(!copy.exists(), "a new database has nothing to lose, and nothing changed since");
    let second = [StateTableGroup { name: "sample", migrations: &[FIRST_STEP, SECOND_STEP] }];
    // What an interrupted upgrade left.
    std::fs::write(dir.path().join("state.db.before-upgrade.tmp"), "half").unwrap();
    open_tables(dir.path(), &second).unwrap();
    assert_eq!(steps_and_rows(&file), (2, None));
    assert_eq!(steps_and_rows(&copy), (1, Some(0)));
    assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(open_tables(dir.path(), &first).is_err(), "an older program refuses the database");
    std::fs::rename(&copy, &file).unwrap();
    open_tables(dir.path(), &first).unwrap();
}
