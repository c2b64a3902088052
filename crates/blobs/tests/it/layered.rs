//! Blobs of a home over those of another one.

use std::io::Read;
use std::sync::Arc;

use tympan_blobs::{
    BlobContent, BlobId, BlobStore, FolderBlobs, LayeredBlobs, LocalBlobs, ReadBlobs,
};
use tympan_store::LocalStore;

fn local(dir: &std::path::Path) -> LocalBlobs {
    LocalBlobs::open(dir, Arc::new(LocalStore::memory().unwrap())).unwrap()
}

fn bytes_of(content: BlobContent) -> Vec<u8> {
    let mut bytes = Vec::new();
    content.into_reader().read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn own_blobs_come_first_and_the_base_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let (production, staging) = (dir.path().join("production"), dir.path().join("staging"));
    let theirs = local(&production);
    let old = theirs.put(&mut &[1; 20_000][..]).unwrap();
    let upload = production.join("tmp/upload");
    std::fs::write(&upload, b"on its way").unwrap();
    let base = FolderBlobs::new(&production);
    assert!(base.contains(&old).unwrap());
    let ours = LayeredBlobs::new(local(&staging), Arc::new(base));
    assert_eq!(bytes_of(ours.open(&old).unwrap().unwrap()), [1; 20_000]);
    assert!(ours.contains(&old).unwrap());
    let new = ours.put(&mut &[2; 30_000][..]).unwrap();
    assert!(!theirs.contains(&new).unwrap());
    assert_eq!(bytes_of(ours.open(&new).unwrap().unwrap()), [2; 30_000]);
    // Production may drop what staging has put too.
    assert_eq!(ours.put(&mut &[1; 20_000][..]).unwrap(), old);
    std::fs::remove_dir_all(production.join(&old.to_string()[..2])).unwrap();
    assert_eq!(bytes_of(ours.open(&old).unwrap().unwrap()), [1; 20_000]);
    for length in [100, 50_000] {
        let absent = BlobId::new([9; 32], length);
        assert!(ours.open(&absent).unwrap().is_none() && !ours.contains(&absent).unwrap());
    }
    let small = ours.put(&mut &b"small"[..]).unwrap();
    assert_eq!(bytes_of(ours.open(&small).unwrap().unwrap()), b"small");
    assert!(upload.exists(), "opening the base cleans nothing up");
    assert!(!FolderBlobs::new(&dir.path().join("nowhere")).contains(&old).unwrap());
}
