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
    BlobContent, BlobId, Composite, Delegate, Folder, FolderBlobs, ReadBlobs, Result, WriteBlobs,
};
use tympan_testkit::composition::{Composition, Shelf, bytes_of, conform, picture};

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
                write!(line, " {}", BlobId::of(&fs::read(&path).unwrap())).unwrap();
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
pub(crate) fn shelf(dir: PathBuf) -> Shelf {
    let owner = Folder::open(&dir).unwrap();
    Shelf {
        place: Arc::new(FolderBlobs::required(&dir)),
        fill: Box::new(move |bytes| owner.put(&mut &*bytes).unwrap()),
        trace: Box::new(move || trace(&dir)),
        is_listed: true,
    }
}

/// A folder laid out as Oak does.
pub(crate) fn oak_shelf(dir: PathBuf) -> Shelf {
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("reference.key"), [7; 32]).unwrap();
    let fill = {
        let dir = dir.clone();
        move |bytes: &[u8]| {
            let id = BlobId::of(bytes);
            let hex = id.to_string()[..64].to_owned();
            let folder = dir.join(&hex[..2]).join(&hex[2..4]).join(&hex[4..6]);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(hex), bytes).unwrap();
            id
        }
    };
    Shelf {
        place: Arc::new(FolderBlobs::required(&dir)),
        fill: Box::new(fill),
        trace: Box::new(move || trace(&dir)),
        is_listed: true,
    }
}

fn composition(make: impl Fn(&Path) -> (Vec<Arc<dyn WriteBlobs>>, Vec<Shelf>)) -> Composition {
    let dir = TempDir::new().unwrap();
    let (writable, read_only) = make(dir.path());
    Composition { writable, read_only, keep: Box::new(dir) }
}

fn folder(dir: &Path, name: &str) -> Arc<dyn WriteBlobs> {
    Arc::new(Folder::open(&dir.join(name)).unwrap())
}

#[test]
fn file_and_file() {
    conform("file + file", || {
        composition(|dir| (vec![folder(dir, "own")], vec![shelf(dir.join("production"))]))
    });
}

#[test]
fn oak_directory_and_file() {
    conform("Oak directory + file", || {
        composition(|dir| (vec![folder(dir, "own")], vec![oak_shelf(dir.join("production"))]))
    });
}

#[test]
fn three_delegates() {
    conform("two writable + one read-only", || {
        composition(|dir| {
            (vec![folder(dir, "one"), folder(dir, "two")], vec![shelf(dir.join("production"))])
        })
    });
    conform("one writable + two read-only", || {
        composition(|dir| {
            let read_only = vec![shelf(dir.join("production")), oak_shelf(dir.join("archive"))];
            (vec![folder(dir, "own")], read_only)
        })
    });
}

/// A composite of composites, as a delegate of a clone of a clone may be one.
#[test]
fn a_composite_within_a_composite() {
    conform("composite + file", || {
        composition(|dir| {
            let inner = Composite::new(vec![
                Delegate::writable("one", folder(dir, "one")),
                Delegate::writable("two", folder(dir, "two")),
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
    let id = (production.fill)(&picture(1));
    set_mode(&dir.path().join("production"), 0o555, 0o444);
    let composite = Composite::new(vec![
        Delegate::read_only("production", production.place.clone()),
        Delegate::writable("own", folder(dir.path(), "own")),
    ]);
    assert!(composite.contains(&id).unwrap());
    composite.open(&id).unwrap().unwrap();
    composite.touch(&id).unwrap();
    composite.put_named(&id, &mut &*picture(1)).unwrap();
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
            Delegate::writable("own", folder(dir.path(), "own")),
            Delegate::read_only("production", Arc::new(FolderBlobs::required(&production))),
        ]
    };
    let absent = BlobId::of(b"absent");
    let composite = Composite::new(delegates());
    assert!(composite.contains(&absent).is_err());
    fs::create_dir(&production).unwrap();
    let error = composite.open(&absent).unwrap_err();
    assert!(error.to_string().contains("`production`"), "{error}");
    drop(shelf(production.clone()));
    assert!(!composite.contains(&absent).unwrap());
}

/// A place that is far away.
#[derive(Debug)]
struct Far(FolderBlobs);

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
    let [near, far] = [1, 2].map(|seed| (production.fill)(&picture(seed)));
    let path = dir.path().join("production");
    let own = folder(dir.path(), "own");
    let kept = own.put(&mut &*picture(3)).unwrap();
    let read = |file: Option<fs::File>| {
        let mut bytes = Vec::new();
        file?.read_to_end(&mut bytes).unwrap();
        Some(bytes)
    };
    let over = |place: Arc<dyn ReadBlobs>| {
        Composite::new(vec![
            Delegate::writable("own", own.clone()),
            Delegate::read_only("production", place),
        ])
    };
    let composite = over(Arc::new(FolderBlobs::required(&path)));
    assert_eq!(read(composite.open_file(&near)), Some(picture(1)));
    assert_eq!(read(composite.open_file(&kept)), Some(picture(3)));
    assert_eq!(composite.counts().hinted, 0);
    assert_eq!(read(composite.open_file(&near)), Some(picture(1)));
    assert_eq!((composite.counts().hinted, composite.counts().misled), (1, 0));
    assert!(composite.open_file(&BlobId::of(&picture(4))).is_none());

    let composite = over(Arc::new(Far(FolderBlobs::required(&path))));
    assert!(composite.open_file(&kept).is_none(), "nobody knows yet that it is here");
    assert_eq!(bytes_of(composite.open(&kept).unwrap().unwrap()), picture(3));
    assert_eq!(read(composite.open_file(&kept)), Some(picture(3)));
    assert!(composite.open_file(&far).is_none());
    assert_eq!(bytes_of(composite.open(&far).unwrap().unwrap()), picture(2));
    assert_eq!(read(composite.open_file(&far)), Some(picture(2)), "it is kept here since");
}

/// As with a full disk: writes fail, reads go on.
#[test]
fn what_cannot_be_kept_is_served_all_the_same() {
    let dir = TempDir::new().unwrap();
    let production = shelf(dir.path().join("production"));
    let far = Far(FolderBlobs::required(&dir.path().join("production")));
    let own = folder(dir.path(), "own");
    let composite = Composite::new(vec![
        Delegate::writable("own", own.clone()),
        Delegate::read_only("production", Arc::new(far)),
    ]);
    let (first, second) = ((production.fill)(&picture(1)), (production.fill)(&picture(2)));
    assert_eq!(bytes_of(composite.open(&first).unwrap().unwrap()), picture(1));
    assert!(own.contains(&first).unwrap(), "what was read from afar is kept");
    fs::remove_dir(dir.path().join("own/tmp")).unwrap();
    for _ in 0..2 {
        assert_eq!(bytes_of(composite.open(&second).unwrap().unwrap()), picture(2));
    }
    assert!(!own.contains(&second).unwrap());
    assert_eq!(composite.counts().failures, 2);
}
