//! Composites of folders: the suite of OAK-7083 over a table of compositions. Those with other delegates run it where
//! these are (`replicate`, `bucket`).

use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use tympan_blobs::{
    BlobContent, BlobDelegate, BlobFolder, BlobId, CompositeBlobStorage, ReadBlobs,
    ReadOnlyBlobFolder, Result, WriteBlobs,
};
use tympan_testkit::composite_conformance::{
    CompositeFixture, ReadOnlyFixture, check_conformance, read_content, sample_blob,
};

/// Tells everything about a folder that a write could change, times of its folders too.
pub(crate) fn trace(dir: &Path) -> String {
    let mut lines = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        let found = fs::metadata(&folder).unwrap();
        lines.push(line(&folder, &found));
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let mut line = line(&path, &fs::metadata(&path).unwrap());
                write!(line, " {}", BlobId::hash_of(&fs::read(&path).unwrap())).unwrap();
                lines.push(line);
            }
        }
    }
    lines.sort();
    lines.join("\n")
}

fn line(path: &Path, found: &fs::Metadata) -> String {
    let written = (found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec());
    let kind = (found.ino(), found.mode(), found.nlink(), found.uid(), found.gid());
    format!("{} {written:?} {kind:?} {}", path.display(), found.size())
}

/// Another home's folder.
pub(crate) fn shelf(dir: PathBuf) -> ReadOnlyFixture {
    let owner = BlobFolder::open(&dir).unwrap();
    ReadOnlyFixture {
        store: Arc::new(ReadOnlyBlobFolder::new_required(&dir)),
        fill: Box::new(move |bytes| owner.put(&mut &*bytes).unwrap()),
        fingerprint: Box::new(move || trace(&dir)),
        is_listable: true,
    }
}

/// A folder laid out as Oak does.
pub(crate) fn oak_shelf(dir: PathBuf) -> ReadOnlyFixture {
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("reference.key"), [7; 32]).unwrap();
    let fill = {
        let dir = dir.clone();
        move |bytes: &[u8]| {
            let id = BlobId::hash_of(bytes);
            let hex = id.to_string()[..64].to_owned();
            let folder = dir.join(&hex[..2]).join(&hex[2..4]).join(&hex[4..6]);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(hex), bytes).unwrap();
            id
        }
    };
    ReadOnlyFixture {
        store: Arc::new(ReadOnlyBlobFolder::new_required(&dir)),
        fill: Box::new(fill),
        fingerprint: Box::new(move || trace(&dir)),
        is_listable: true,
    }
}

fn composition(
    make: impl Fn(&Path) -> (Vec<Arc<dyn WriteBlobs>>, Vec<ReadOnlyFixture>),
) -> CompositeFixture {
    let dir = TempDir::new().unwrap();
    let (writable, read_only) = make(dir.path());
    CompositeFixture { writable, read_only, resources: Box::new(dir) }
}

fn folder(dir: &Path, name: &str) -> Arc<dyn WriteBlobs> {
    Arc::new(BlobFolder::open(&dir.join(name)).unwrap())
}

#[test]
fn file_and_file() {
    check_conformance("file + file", || {
        composition(|dir| (vec![folder(dir, "own")], vec![shelf(dir.join("production"))]))
    });
}

#[test]
fn oak_directory_and_file() {
    check_conformance("Oak directory + file", || {
        composition(|dir| (vec![folder(dir, "own")], vec![oak_shelf(dir.join("production"))]))
    });
}

#[test]
fn three_delegates() {
    check_conformance("two writable + one read-only", || {
        composition(|dir| {
            (vec![folder(dir, "one"), folder(dir, "two")], vec![shelf(dir.join("production"))])
        })
    });
    check_conformance("one writable + two read-only", || {
        composition(|dir| {
            let read_only = vec![shelf(dir.join("production")), oak_shelf(dir.join("archive"))];
            (vec![folder(dir, "own")], read_only)
        })
    });
}

/// A composite of composites, as a delegate of a clone of a clone may be one.
#[test]
fn a_composite_within_a_composite() {
    check_conformance("composite + file", || {
        composition(|dir| {
            let inner = CompositeBlobStorage::new(vec![
                BlobDelegate::writable("one", folder(dir, "one")),
                BlobDelegate::writable("two", folder(dir, "two")),
            ]);
            (vec![Arc::new(inner)], vec![shelf(dir.join("production"))])
        })
    });
}

/// Permissions do not hold back root: then the folder is only looked at.
#[test]
fn a_folder_without_write_permission_is_enough() {
    let dir = TempDir::new().unwrap();
    let production = shelf(dir.path().join("production"));
    let id = (production.fill)(&sample_blob(1));
    set_mode(&dir.path().join("production"), 0o555, 0o444);
    let composite = CompositeBlobStorage::new(vec![
        BlobDelegate::read_only("production", production.store.clone()),
        BlobDelegate::writable("own", folder(dir.path(), "own")),
    ]);
    assert!(composite.contains(&id).unwrap());
    composite.open(&id).unwrap().unwrap();
    composite.touch(&id).unwrap();
    composite.put_named(&id, &mut &*sample_blob(1)).unwrap();
    set_mode(&dir.path().join("production"), 0o755, 0o644);
}

fn set_mode(dir: &Path, folders: u32, files: u32) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            set_mode(&path, folders, files);
        } else {
            fs::set_permissions(&path, fs::Permissions::from_mode(files)).unwrap();
        }
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(folders)).unwrap();
}

/// An unmounted disk is an empty folder, or none.
#[test]
fn a_read_only_folder_that_went_away_is_an_error() {
    let dir = TempDir::new().unwrap();
    let production = dir.path().join("production");
    let delegates = || {
        vec![
            BlobDelegate::writable("own", folder(dir.path(), "own")),
            BlobDelegate::read_only(
                "production",
                Arc::new(ReadOnlyBlobFolder::new_required(&production)),
            ),
        ]
    };
    let absent = BlobId::hash_of(b"absent");
    let composite = CompositeBlobStorage::new(delegates());
    assert!(composite.contains(&absent).is_err());
    fs::create_dir(&production).unwrap();
    let error = composite.open(&absent).unwrap_err();
    assert!(error.to_string().contains("`production`"), "{error}");
    drop(shelf(production.clone()));
    assert!(!composite.contains(&absent).unwrap());
}

/// A place that is far away.
#[derive(Debug)]
struct Far(ReadOnlyBlobFolder);

impl ReadBlobs for Far {
    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        self.0.open(id)
    }

    fn contains(&self, id: &BlobId) -> Result<bool> {
        self.0.contains(id)
    }

    fn is_remote(&self) -> bool {
        true
    }
}

/// A socket is given files by the thread that all connections share: nothing may be fetched from afar there.
#[test]
fn files_are_opened_where_they_lie_and_never_from_afar() {
    let dir = TempDir::new().unwrap();
    let production = shelf(dir.path().join("production"));
    let [near, far] = [1, 2].map(|seed| (production.fill)(&sample_blob(seed)));
    let path = dir.path().join("production");
    let own = folder(dir.path(), "own");
    let kept = own.put(&mut &*sample_blob(3)).unwrap();
    let read = |file: Option<fs::File>| {
        let mut bytes = Vec::new();
        file?.read_to_end(&mut bytes).unwrap();
        Some(bytes)
    };
    let over = |place: Arc<dyn ReadBlobs>| {
        CompositeBlobStorage::new(vec![
            BlobDelegate::writable("own", own.clone()),
            BlobDelegate::read_only("production", place),
        ])
    };
    let composite = over(Arc::new(ReadOnlyBlobFolder::new_required(&path)));
    assert_eq!(read(composite.open_file(&near)), Some(sample_blob(1)));
    assert_eq!(read(composite.open_file(&kept)), Some(sample_blob(3)));
    assert_eq!(composite.counts().origin_hits, 0);
    assert_eq!(read(composite.open_file(&near)), Some(sample_blob(1)));
    assert_eq!((composite.counts().origin_hits, composite.counts().stale_origins), (1, 0));
    assert!(composite.open_file(&BlobId::hash_of(&sample_blob(4))).is_none());

    let composite = over(Arc::new(Far(ReadOnlyBlobFolder::new_required(&path))));
    assert!(composite.open_file(&kept).is_none(), "nobody knows yet that it is here");
    assert_eq!(read_content(composite.open(&kept).unwrap().unwrap()), sample_blob(3));
    assert_eq!(read(composite.open_file(&kept)), Some(sample_blob(3)));
    assert!(composite.open_file(&far).is_none());
    assert_eq!(read_content(composite.open(&far).unwrap().unwrap()), sample_blob(2));
    assert_eq!(read(composite.open_file(&far)), Some(sample_blob(2)), "it is kept here since");
}

/// As with a full disk: writes fail, reads go on.
#[test]
fn what_cannot_be_cached_is_served_all_the_same() {
    let dir = TempDir::new().unwrap();
    let production = shelf(dir.path().join("production"));
    let far = Far(ReadOnlyBlobFolder::new_required(&dir.path().join("production")));
    let own = folder(dir.path(), "own");
    let composite = CompositeBlobStorage::new(vec![
        BlobDelegate::writable("own", own.clone()),
        BlobDelegate::read_only("production", Arc::new(far)),
    ]);
    let (first, second) = ((production.fill)(&sample_blob(1)), (production.fill)(&sample_blob(2)));
    assert_eq!(read_content(composite.open(&first).unwrap().unwrap()), sample_blob(1));
    assert!(own.contains(&first).unwrap(), "what was read from afar is kept");
    fs::remove_dir(dir.path().join("own/tmp")).unwrap();
    for _ in 0..2 {
        assert_eq!(read_content(composite.open(&second).unwrap().unwrap()), sample_blob(2));
    }
    assert!(!own.contains(&second).unwrap());
    assert_eq!(composite.counts().delegate_failures, 2);
}
