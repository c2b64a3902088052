//! Opening and closing a home.

use tympan_home::{
    Error, Home, HomeConfig, KEY_FILE, is_home_locked, read_or_create_replication_key, require_home,
};

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
