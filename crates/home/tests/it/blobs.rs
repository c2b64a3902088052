//! The blobs of a home: checked, and copied to another home.

use std::time::SystemTime;

use tympan_blobs::WriteBlobs;
use tympan_content::{NodePath, Property, Value};
use tympan_home::{Error, Home, check_blobs, copy_blobs_to_home};

use crate::content_home::{command_access, open_home};

/// Stores a file that is too large for the packs at `/file`.
fn add_large_file(home: &Home) -> tympan_content::BlobId {
    let bytes = vec![7; 400_000];
    let blob = home.repository.blobs().put(&mut &bytes[..]).unwrap();
    let mut session = home.repository.session("system").unwrap();
    let path = NodePath::new("/file").unwrap();
    session.add_node(&path, "nt:unstructured").unwrap();
    session.set_property(&path, "data", Property::Single(Value::Binary(blob))).unwrap();
    session.commit("add a file", SystemTime::now()).unwrap();
    blob
}

#[test]
fn a_check_names_the_node_of_a_lost_blob() {
    let dir = tempfile::tempdir().unwrap();
    let home = open_home(&dir.path().join("author"));
    let blob = add_large_file(&home);
    let report = check_blobs(&home, true).unwrap();
    assert_eq!((report.checked_count, report.missing_count), (1, 0));
    assert!(report.faults.is_empty());
    assert!(home.blobs.writable[0].1.delete(&blob).unwrap());
    let report = check_blobs(&home, false).unwrap();
    assert_eq!(report.missing_count, 1);
    assert_eq!(report.referrers[&blob], ["/file"]);
}

#[test]
fn blobs_are_copied_once() {
    let dir = tempfile::tempdir().unwrap();
    let home = open_home(&dir.path().join("author"));
    let target_dir = dir.path().join("target");
    // The folder of an instance that was started once.
    let target = open_home(&target_dir);
    target.blob_sharing().register().unwrap();
    drop(target);
    let blob = add_large_file(&home);
    let blobs = home.referenced_blobs(&["/file".to_owned()]).unwrap();
    assert!(blobs.contains(&blob));
    let invalid = home.referenced_blobs(&["no path".to_owned()]);
    assert!(matches!(invalid, Err(Error::Refused(_))));
    let access = command_access();
    let first = copy_blobs_to_home(&access, &home, &blobs, &target_dir).unwrap();
    assert_eq!((first.blob_count, first.byte_count, first.present_count), (1, 400_000, 0));
    let second = copy_blobs_to_home(&access, &home, &blobs, &target_dir).unwrap();
    assert_eq!((second.blob_count, second.present_count), (0, 1));
}
