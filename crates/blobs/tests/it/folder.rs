//! A folder that blobs are written to: what is put, touched, discarded, and what half-done things leave.

use std::fs::{self, File};
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tympan_blobs::{
    BlobFolder, BlobId, BlobStore, CachedBlobStore, Error, LocalBlobStore, ReadBlobs,
    ReadOnlyBlobFolder, WriteBlobs,
};
use tympan_testkit::composite_conformance::{read_content, sample_blob};

fn open() -> (TempDir, BlobFolder) {
    let dir = TempDir::new().unwrap();
    let folder = BlobFolder::open(dir.path()).unwrap();
    (dir, folder)
}

fn put(folder: &BlobFolder, seed: u8) -> BlobId {
    folder.put(&mut &*sample_blob(seed)).unwrap()
}

/// Returns the file of a blob.
fn file(dir: &Path, id: &BlobId) -> std::path::PathBuf {
    let hex = id.to_string()[..64].to_owned();
    dir.join(&hex[..2]).join(&hex[2..4]).join(hex)
}

fn age(path: &Path, by: Duration) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - by).unwrap();
}

const HOUR: Duration = Duration::from_hours(1);

#[test]
fn a_shortened_blob_is_healed_by_putting_it_again() {
    let (dir, folder) = open();
    let id = put(&folder, 1);
    for heal in [
        (|folder, bytes| WriteBlobs::put(folder, &mut &*bytes).unwrap())
            as fn(&BlobFolder, Vec<u8>) -> BlobId,
        |folder, bytes| folder.put_all(&[&*bytes]).unwrap()[0],
        |folder, bytes| {
            let id = BlobId::hash_of(&bytes);
            folder.put_named(&id, &mut &*bytes).unwrap();
            id
        },
    ] {
        fs::write(file(dir.path(), &id), b"short").unwrap();
        assert!(!folder.contains(&id).unwrap(), "who asks is to send it again");
        assert!(!folder.touch(&id).unwrap());
        assert!(matches!(folder.open(&id), Err(Error::Damaged { length: 5, .. })));
        assert_eq!(heal(&folder, sample_blob(1)), id);
        assert_eq!(read_content(folder.open(&id).unwrap().unwrap()), sample_blob(1));
    }
}

/// A byte that changed on the disk is an error with advice, by every way to the blob, and putting it again heals it.
#[test]
fn a_blob_with_other_bytes_is_no_blob() {
    let (dir, folder) = open();
    let id = put(&folder, 1);
    let path = file(dir.path(), &id);
    assert_eq!(read_content(folder.open(&id).unwrap().unwrap()), sample_blob(1));
    let flip = || {
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).unwrap();
    };
    for heal in [
        (|folder, bytes| WriteBlobs::put(folder, &mut &*bytes).unwrap())
            as fn(&BlobFolder, Vec<u8>) -> BlobId,
        |folder, bytes| folder.put_all(&[&*bytes]).unwrap()[0],
        |folder, bytes| {
            let id = BlobId::hash_of(&bytes);
            folder.put_named(&id, &mut &*bytes).unwrap();
            id
        },
    ] {
        flip();
        let reader = ReadOnlyBlobFolder::new(dir.path());
        for place in [&folder as &dyn ReadBlobs, &reader] {
            let error = place.open(&id).unwrap_err();
            assert!(matches!(&error, Error::HashMismatch { .. }), "{error:?}");
            assert!(error.to_string().contains("tympan blobs check"), "{error}");
            assert!(place.open_file(&id).is_none());
        }
        assert!(!folder.touch(&id).unwrap(), "who names it is to send its bytes");
        assert_eq!(heal(&folder, sample_blob(1)), id);
        for place in [&folder as &dyn ReadBlobs, &reader] {
            assert_eq!(read_content(place.open(&id).unwrap().unwrap()), sample_blob(1));
            assert!(place.open_file(&id).is_some());
        }
    }
}

/// What is kept open is not given out once it changed.
#[test]
fn a_file_that_is_kept_open_is_not_sent_after_it_changed() {
    let dir = TempDir::new().unwrap();
    let small = Arc::new(tympan_store::LocalStore::open_in_memory().unwrap());
    let store = Arc::new(LocalBlobStore::open(dir.path(), small).unwrap());
    let hot = CachedBlobStore::new(store, 1 << 20);
    let film = vec![7; 2 << 20];
    let id = hot.put(&mut &*film).unwrap();
    assert!(hot.open(&id).unwrap().is_some() && hot.find_file(&id).is_some());
    let mut bytes = film.clone();
    bytes[1 << 20] ^= 1;
    fs::write(file(dir.path(), &id), bytes).unwrap();
    assert!(hot.find_file(&id).is_none());
    assert!(matches!(hot.open(&id), Err(Error::HashMismatch { .. })));
    assert_eq!(hot.put(&mut &*film).unwrap(), id);
    assert_eq!(read_content(hot.open(&id).unwrap().unwrap()), film);
}

/// Another process may have renamed it a moment ago and not synced its folder yet: who relies on it has to.
#[test]
fn what_is_there_already_is_touched_and_its_folder_synced() {
    let (dir, folder) = open();
    let id = put(&folder, 1);
    let path = file(dir.path(), &id);
    for touch in [
        (|folder, _| folder.put(&mut &*sample_blob(1)).map(drop).unwrap())
            as fn(&BlobFolder, &BlobId),
        |folder, _| folder.put_all(&[&sample_blob(1)]).map(drop).unwrap(),
        |folder, id| folder.put_named(id, &mut &*sample_blob(1)).unwrap(),
        |folder, id| assert!(folder.touch(id).unwrap()),
    ] {
        age(&path, 48 * HOUR);
        let other = BlobFolder::open(dir.path()).unwrap();
        touch(&other, &id);
        assert_eq!(other.folder_syncs(), 3, "its folder, the one above, and the store's own");
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        assert!(modified > SystemTime::now() - HOUR);
        touch(&other, &id);
        assert_eq!(other.folder_syncs(), 4, "only the folder with the name");
    }
}

#[test]
fn blobs_that_belong_together_share_the_waits_for_the_disk() {
    let (_dir, folder) = open();
    let pictures: Vec<Vec<u8>> = (0..40).map(sample_blob).collect();
    let all: Vec<&[u8]> = pictures.iter().map(Vec::as_slice).collect();
    folder.put_all(&all).unwrap();
    assert!(folder.folder_syncs() <= 81, "{}", folder.folder_syncs());
}

#[test]
fn a_named_blob_is_compared_not_written_again() {
    let (dir, folder) = open();
    let id = put(&folder, 1);
    let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let before = inode(&file(dir.path(), &id));
    folder.put_named(&id, &mut &*sample_blob(1)).unwrap();
    assert_eq!(inode(&file(dir.path(), &id)), before);
    // Who names a blob without having it learns nothing and gets nothing.
    let wrong = folder.put_named(&id, &mut &*sample_blob(2));
    assert!(matches!(wrong, Err(Error::IdMismatch { expected, .. }) if expected == id));
    let absent = BlobId::hash_of(&sample_blob(3));
    assert!(matches!(
        folder.put_named(&absent, &mut &*sample_blob(4)),
        Err(Error::IdMismatch { .. })
    ));
    assert!(!folder.contains(&absent).unwrap());
    assert!(!folder.contains(&BlobId::hash_of(&sample_blob(4))).unwrap());
    assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
}

#[test]
fn what_is_unused_goes_to_the_trash_and_back() {
    let (dir, folder) = open();
    let (old, new) = (put(&folder, 1), put(&folder, 2));
    age(&file(dir.path(), &old), 48 * HOUR);
    let since = SystemTime::now() - HOUR;
    assert!(!folder.discard(&new, since).unwrap());
    assert!(folder.discard(&old, since).unwrap());
    assert!(!folder.discard(&old, since).unwrap());
    assert!(!folder.contains(&old).unwrap() && folder.contains(&new).unwrap());
    // Readers that found its name a moment ago get it all the same.
    assert_eq!(read_content(folder.open(&old).unwrap().unwrap()), sample_blob(1));
    let mut trash = Vec::new();
    let mut show = |one| {
        trash.push(one);
        ControlFlow::Continue(())
    };
    folder.list_trash(&mut show).unwrap();
    assert_eq!(trash.iter().map(|one| one.id).collect::<Vec<_>>(), [old]);
    assert!(trash[0].modified > since, "when it was discarded");
    assert!(folder.undelete(&old).unwrap());
    assert!(!folder.undelete(&old).unwrap());
    assert!(folder.contains(&old).unwrap());
    assert!(!folder.discard(&old, since).unwrap(), "it counts as used now");
    age(&file(dir.path(), &old), 48 * HOUR);
    assert!(folder.discard(&old, since).unwrap());
    assert!(folder.purge(&old).unwrap() && !folder.purge(&old).unwrap());
    assert!(folder.open(&old).unwrap().is_none());
    // What is put again after it was discarded is whole.
    assert_eq!(put(&folder, 1), old);
    assert!(folder.contains(&old).unwrap());
}

/// Every blob that a put or touch vouched for is there afterwards, however a collection runs beside it.
#[test]
fn no_blob_is_discarded_while_somebody_puts_it() {
    let (dir, folder) = open();
    let id = put(&folder, 1);
    let path = file(dir.path(), &id);
    let rounds = 300;
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..rounds {
                barrier.wait();
                let old = SystemTime::now() - HOUR;
                folder.discard(&id, old).unwrap();
                barrier.wait();
            }
        });
        for round in 0..rounds {
            if path.exists() {
                age(&path, 48 * HOUR);
            }
            barrier.wait();
            if round % 2 == 0 || !folder.touch(&id).unwrap() {
                put(&folder, 1);
            }
            barrier.wait();
            assert!(folder.contains(&id).unwrap(), "round {round}");
        }
    });
}

/// An upload that begins while another process opens the folder keeps its file.
#[test]
fn uploads_go_on_while_others_open_the_folder() {
    let (dir, folder) = open();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                BlobFolder::open(dir.path()).unwrap();
            }
        });
        for seed in 0..=255 {
            let id = put(&folder, seed);
            assert!(folder.contains(&id).unwrap());
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        opening.join().unwrap();
    });
    assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
}

#[test]
fn what_is_no_blob_is_not_listed() {
    let (dir, folder) = open();
    let id = put(&folder, 1);
    fs::write(dir.path().join("ab"), b"a file, not a folder").unwrap();
    fs::write(dir.path().join("folder.id"), b"a note").unwrap();
    fs::create_dir_all(dir.path().join("cd/ef")).unwrap();
    fs::write(dir.path().join("cd/ef/README"), b"by somebody").unwrap();
    fs::write(dir.path().join("tmp/half"), b"half").unwrap();
    let mut ids = Vec::new();
    let mut show = |one: tympan_blobs::ListedBlob| {
        ids.push(one.id);
        ControlFlow::Continue(())
    };
    folder.list(&mut show).unwrap();
    assert_eq!(ids, [id]);
    let mut shown = 0;
    put(&folder, 2);
    let mut first = |_| {
        shown += 1;
        ControlFlow::Break(())
    };
    folder.list(&mut first).unwrap();
    assert_eq!(shown, 1);
}

#[test]
fn a_note_is_replaced_as_a_whole() {
    let (dir, folder) = open();
    folder.write_note("references-1", &[1; 100_000]).unwrap();
    let mut open = folder.open_note("references-1").unwrap().unwrap().into_reader();
    folder.write_note("references-1", b"short").unwrap();
    let mut old = Vec::new();
    open.read_to_end(&mut old).unwrap();
    assert_eq!(old, [1; 100_000], "who reads it sees one of both");
    assert_eq!(read_content(folder.open_note("references-1").unwrap().unwrap()), b"short");
    assert_eq!(fs::read(dir.path().join("references-1")).unwrap(), b"short");
    assert!(folder.open_note("tmp").is_err(), "a folder of the store is no note");
}
