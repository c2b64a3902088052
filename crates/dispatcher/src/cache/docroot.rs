//! One document root: opening it, and looking files up.
//!
//! Invariants
//! * Nothing outside the root is read, written or removed: no symbolic link below it is followed.
//! * A file is visible only when it is complete: it is written in `.tympan-tmp` and renamed into place.
//! * A file's modification time is the moment at which the request that filled it was sent, so that whatever was
//!   flushed since is newer.
//! * The sticky bit on a file means that a flush named it: it may be served only while it is replaced.

use std::fs::{DirBuilder, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, fstat, statat};
use rustix::io::Errno;

use super::beneath;
use super::headers::StoredHeaders;

/// The folder for unfinished files and for folders on their way out.
pub(crate) const TEMPORARY_FOLDER: &str = ".tympan-tmp";

/// A file's mode bit that marks it as flushed.
pub(crate) const MARK: u32 = 0o1000;

/// Side files above this are not ours.
const MAX_HEADERS_BYTES: u64 = 256 * 1024;

/// One document root.
#[derive(Debug)]
pub(crate) struct Docroot {
    pub(super) path: PathBuf,
    pub(super) root: OwnedFd,
    pub(super) temporary: OwnedFd,
    counter: AtomicU64,
    /// Folders in the temporary folder that are to be removed.
    pub(super) trash: Mutex<Vec<String>>,
}

/// A cache file that is open, with what its name and times say.
#[derive(Debug)]
pub(crate) struct CacheFile {
    /// The body.
    pub(crate) body: File,
    /// Its length in bytes.
    pub(crate) length: u64,
    /// When the request that filled it was sent.
    pub(crate) fetched: SystemTime,
    /// When a flush marked it.
    pub(crate) marked: Option<SystemTime>,
    /// The headers stored beside it.
    pub(crate) headers: Option<StoredHeaders>,
    /// When the render's own limit ends, if one was kept.
    pub(crate) expires: Option<SystemTime>,
    /// Which file it is.
    pub(crate) stamp: Stamp,
}

/// Differs for a cache file that was replaced or changed in any way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    length: i64,
    modified: SystemTime,
    changed: SystemTime,
    /// Of the header file's text.
    headers: u64,
}

/// What stands at a place.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "taken apart where it is made, and nearly always a file"
)]
pub(crate) enum Lookup {
    Absent,
    Directory,
    File(CacheFile),
}

impl Docroot {
    /// Opens the root at `path`, making it if it is absent, and clears what a crash left unfinished.
    pub(crate) fn open(path: &Path, mode: u32) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(mode & 0o777).create(path)?;
        // The root itself may be a link; only what is below it must not leave it.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        let temporary =
            beneath::make_folder(root.as_fd(), Path::new(TEMPORARY_FOLDER), Mode::RWXU)?;
        let docroot = Self {
            path: path.to_owned(),
            root,
            temporary,
            counter: AtomicU64::new(0),
            trash: Mutex::default(),
        };
        docroot.sweep();
        Ok(docroot)
    }

    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Returns the root's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Tells whether this is the folder with that identity.
    pub(super) fn is_folder(&self, device: u64, inode: u64) -> bool {
        fstat(&self.root).is_ok_and(|own| own.st_dev == device && own.st_ino == inode)
    }

    /// Tells whether the folder for unfinished files still stands in the root.
    pub(super) fn is_writable(&self) -> bool {
        fstat(&self.temporary).is_ok_and(|own| own.st_nlink > 0)
    }

    /// Looks `file` up; `wants_ttl` says whether its `.ttl` file counts.
    pub(crate) fn look_up(&self, file: &Path, wants_ttl: bool) -> io::Result<Lookup> {
        // A replacement renames header file and body one after the other, so a pair that differs is read again.
        let mut found = self.read_pair(file, wants_ttl)?;
        for _ in 0..3 {
            match &found {
                Lookup::File(cached) if !cached.is_paired() => {
                    found = self.read_pair(file, wants_ttl)?;
                }
                _ => return Ok(found),
            }
        }
        match found {
            Lookup::File(cached) if !cached.is_paired() => Ok(Lookup::Absent),
            found => Ok(found),
        }
    }

    fn read_pair(&self, file: &Path, wants_ttl: bool) -> io::Result<Lookup> {
        // A pipe that someone put there must not block the server.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let body = match beneath::open(self.root(), file, flags) {
            Ok(body) => File::from(body),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NAMETOOLONG) => {
                return Ok(Lookup::Absent);
            }
            Err(error) => return Err(error.into()),
        };
        let stat = fstat(&body)?;
        match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::Directory => return Ok(Lookup::Directory),
            rustix::fs::FileType::RegularFile => {}
            _ => return Ok(Lookup::Absent),
        }
        let is_marked = stat.st_mode & MARK != 0;
        let marked = is_marked.then(|| time(stat.st_ctime, stat.st_ctime_nsec));
        let expires = if wants_ttl { self.modified(&side_file(file, ".ttl")) } else { None };
        let fetched = time(stat.st_mtime, stat.st_mtime_nsec);
        let text = self.read_headers(file);
        let stamp = Stamp {
            device: stat.st_dev,
            inode: stat.st_ino,
            length: stat.st_size,
            modified: fetched,
            changed: time(stat.st_ctime, stat.st_ctime_nsec),
            headers: digest(text.as_deref()),
        };
        Ok(Lookup::File(CacheFile {
            body,
            length: u64::try_from(stat.st_size).unwrap_or(0),
            fetched,
            marked,
            headers: text.and_then(|text| StoredHeaders::parse(&text)),
            expires,
            stamp,
        }))
    }

    fn read_headers(&self, file: &Path) -> Option<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let headers = beneath::open(self.root(), &side_file(file, ".h"), flags).ok()?;
        let mut text = Vec::new();
        File::from(headers).take(MAX_HEADERS_BYTES).read_to_end(&mut text).ok()?;
        Some(text)
    }

    /// Returns the modification time of the file `path`.
    pub(super) fn modified(&self, path: &Path) -> Option<SystemTime> {
        let stat = statat(self.root(), path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(time(stat.st_mtime, stat.st_mtime_nsec))
    }

    /// Returns a name for a temporary file or folder that no other process uses.
    pub(super) fn temporary_name(&self) -> String {
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        format!("{}-{count}", std::process::id())
    }

    /// Removes what earlier processes left in the temporary folder.
    fn sweep(&self) {
        let folder = self.path.join(TEMPORARY_FOLDER);
        let Ok(entries) = std::fs::read_dir(&folder) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|name| name.split('-').next()?.parse::<u32>().ok());
            let is_left_over = owner.is_none_or(|owner| {
                owner == std::process::id() || !Path::new(&format!("/proc/{owner}")).exists()
            });
            if !is_left_over {
                continue;
            }
            let path = entry.path();
            let outcome = match entry.file_type() {
                Ok(kind) if kind.is_dir() => std::fs::remove_dir_all(&path),
                _ => std::fs::remove_file(&path),
            };
            if let Err(error) = outcome {
                tracing::warn!(file = %path.display(), reason = %error, "cannot remove a left-over file");
            }
        }
    }
}

fn digest(text: Option<&[u8]>) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

impl CacheFile {
    /// Tells whether body and header file were written together.
    fn is_paired(&self) -> bool {
        self.headers.as_ref().is_none_or(|headers| headers.fetched == self.fetched)
    }
}

/// Returns the name of a side file.
pub(super) fn side_file(file: &Path, extension: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(extension);
    PathBuf::from(name)
}

pub(super) fn time(seconds: i64, nanoseconds: impl TryInto<u32>) -> SystemTime {
    let nanoseconds = nanoseconds.try_into().unwrap_or(0);
    match u64::try_from(seconds) {
        Ok(seconds) => UNIX_EPOCH + Duration::new(seconds, nanoseconds),
        Err(_before_1970) => UNIX_EPOCH,
    }
}
