//! The local blob store.

use std::io::{self, Read};
use std::sync::Arc;

use tympan_blobs::{BlobContent, BlobId, BlobStore, Error, LocalBlobStore};
use tympan_store::{ChunkStore, LocalStore};

fn bytes_of(content: BlobContent) -> Vec<u8> {
    let mut bytes = Vec::new();
    content.into_reader().read_to_end(&mut bytes).unwrap();
    bytes
}

fn open(dir: &std::path::Path) -> (LocalBlobStore, Arc<dyn ChunkStore>) {
    let small: Arc<dyn ChunkStore> = Arc::new(LocalStore::open_in_memory().unwrap());
    (LocalBlobStore::open(dir, small.clone()).unwrap(), small)
}

/// A source that fails after some bytes.
struct Failing(u64);

impl Read for Failing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::Error::other("the cable was pulled"));
        }
        let length = buffer.len().min(usize::try_from(self.0).unwrap());
        buffer[..length].fill(7);
        self.0 -= length as u64;
        Ok(length)
    }
}

#[test]
fn gives_back_what_was_put_at_every_size() {
    let dir = tempfile::tempdir().unwrap();
    let (blobs, _) = open(dir.path());
    for length in [0, 1, 100, 16_383, 16_384, 16_385, 131_072, 300_001] {
        let bytes: Vec<u8> = (0..length).map(|at: u32| (at % 251) as u8).collect();
        let id = blobs.put(&mut bytes.as_slice()).unwrap();
        assert_eq!(id, BlobId::hash_of(&bytes), "{length}");
        assert!(blobs.contains(&id).unwrap());
        assert_eq!(bytes_of(blobs.open(&id).unwrap().unwrap()), bytes);
        assert_eq!(blobs.put(&mut bytes.as_slice()).unwrap(), id);
    }
}

#[test]
fn absent_blobs_are_absent() {
    let dir = tempfile::tempdir().unwrap();
    let (blobs, _) = open(dir.path());
    for length in [10, 20_000] {
        let id = BlobId::new([9; 32], length);
        assert!(blobs.open(&id).unwrap().is_none());
        assert!(!blobs.contains(&id).unwrap());
    }
}

#[test]
fn a_failing_source_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (blobs, _) = open(dir.path());
    for length in [100, 50_000] {
        assert!(matches!(blobs.put(&mut Failing(length)), Err(Error::Source(_))));
    }
    let files = walk(dir.path());
    assert_eq!(files, Vec::<std::path::PathBuf>::new());
}

#[test]
fn reopening_removes_half_written_files() {
    let dir = tempfile::tempdir().unwrap();
    let (blobs, small) = open(dir.path());
    drop(blobs);
    std::fs::write(dir.path().join("tmp/half"), b"half").unwrap();
    LocalBlobStore::open(dir.path(), small).unwrap();
    assert_eq!(walk(dir.path()), Vec::<std::path::PathBuf>::new());
}

/// Two processes share a folder; the lock is by open file, so that two stores in one process are as strange to each other.
#[test]
fn opening_leaves_what_others_are_writing() {
    let dir = tempfile::tempdir().unwrap();
    let (blobs, small) = open(dir.path());
    let opening = Opening { length: 50_000, dir: dir.path().to_owned(), small };
    let bytes: Vec<u8> = vec![7; 50_000];
    let id = blobs.put(&mut { opening }).unwrap();
    assert_eq!(bytes_of(blobs.open(&id).unwrap().unwrap()), bytes);
    assert_eq!(walk(dir.path()).len(), 1);
}

/// A source in whose middle somebody else opens the store.
struct Opening {
    length: usize,
    dir: std::path::PathBuf,
    small: Arc<dyn ChunkStore>,
}

impl Read for Opening {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        LocalBlobStore::open(&self.dir, self.small.clone()).unwrap();
        let length = buffer.len().min(self.length).min(20_000);
        buffer[..length].fill(7);
        self.length -= length;
        Ok(length)
    }
}

#[test]
fn blobs_that_belong_together_are_stored_as_if_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (blobs, small) = open(dir.path());
    let known = blobs.put(&mut [3_u8; 40_000].as_slice()).unwrap();
    let (large, twice) = (vec![1_u8; 16_384], vec![2_u8; 100]);
    let all = [&large[..], &twice, &[3; 40_000], &twice, &[], &large];
    let ids = blobs.put_all(&all).unwrap();
    assert_eq!(ids, all.map(BlobId::hash_of));
    assert_eq!(ids[2], known);
    let again = LocalBlobStore::open(dir.path(), small).unwrap();
    for (id, bytes) in ids.iter().zip(all) {
        assert_eq!(bytes_of(again.open(id).unwrap().unwrap()), bytes);
    }
    assert_eq!(walk(dir.path()).len(), 2, "each large one once, and nothing else");
    assert_eq!(blobs.put_all(&[]).unwrap(), []);
}

#[test]
fn a_shortened_file_is_damage_not_absence() {
    let dir = tempfile::tempdir().unwrap();
    let (blobs, _) = open(dir.path());
    let id = blobs.put(&mut [1_u8; 20_000].as_slice()).unwrap();
    let file = walk(dir.path()).pop().unwrap();
    std::fs::write(&file, b"short").unwrap();
    assert!(matches!(blobs.open(&id), Err(Error::Damaged { length: 5, .. })));
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(walk(&path)) } else { files.push(path) }
    }
    files
}
