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
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use rustix::fs::{AtFlags, Mode, OFlags, fstat, statat};
use rustix::io::Errno;

use super::beneath;
use super::headers::StoredHeaders;
use super::usage::Usage;
use crate::gossip::Heard;
use crate::numbering::Numbers;
use crate::suffix_folder;

/// The folder for unfinished files and for folders on their way out.
pub(crate) const TEMPORARY_FOLDER: &str = ".tympan-tmp";

/// The beginning of the names of files and folders that are the dispatcher's own.
pub(crate) const OWN_PREFIX: &str = ".tympan-";

/// The file that tells which flushes came.
pub(crate) const NUMBERS_FILE: &str = ".tympan-flushes";

/// A file's mode bit that marks it as flushed.
pub(crate) const MARK: u32 = 0o1000;

/// A longer file of numbers is not ours.
const MAX_NUMBERS_BYTES: u64 = 4 * 1024 * 1024;

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
    /// What is counted, by the root's name.
    pub(super) usage: Arc<Usage>,
    /// Held for reading while a file is put into place, for writing while one is evicted.
    pub(super) placing: RwLock<()>,
    /// When earlier processes stored or flushed something last.
    pub(super) left: Option<SystemTime>,
    /// Which flushes came, as the file says; nothing before it was read.
    pub(crate) numbers: Mutex<Option<Numbers>>,
    /// How far siblings were heard, as the file says; nothing before it was read.
    pub(crate) heard: Mutex<Option<Heard>>,
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
    pub(crate) fn open(path: &Path, mode: u32, usage: Arc<Usage>) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(mode & 0o777).create(path)?;
        // The root itself may be a link; only what is below it must not leave it.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        let left = statat(&root, TEMPORARY_FOLDER, AtFlags::SYMLINK_NOFOLLOW).ok();
        let left = left.map(|stat| time(stat.st_mtime, stat.st_mtime_nsec));
        let (temporary, _) =
            beneath::make_folder(root.as_fd(), Path::new(TEMPORARY_FOLDER), Mode::RWXU)?;
        let docroot = Self {
            path: path.to_owned(),
            root,
            temporary,
            counter: AtomicU64::new(0),
            trash: Mutex::default(),
            usage,
            placing: RwLock::default(),
            left,
            numbers: Mutex::default(),
            heard: Mutex::default(),
        };
        docroot.sweep();
        Ok(docroot)
    }

    /// Opens the root at `path` beside the process that serves from it: nothing is made, and nothing may be written.
    pub(crate) fn open_to_read(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        let temporary = root.try_clone()?;
        Ok(Self {
            path: path.to_owned(),
            root,
            temporary,
            counter: AtomicU64::new(0),
            trash: Mutex::default(),
            usage: Arc::default(),
            placing: RwLock::default(),
            left: None,
            numbers: Mutex::default(),
            heard: Mutex::default(),
        })
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
        for _ in 0..4 {
            if let Some(found) = self.read_pair(file, wants_ttl)? {
                return Ok(found);
            }
        }
        Ok(Lookup::Absent)
    }

    /// Looks a file up; nothing if it changed meanwhile, or does not fit its header file.
    fn read_pair(&self, file: &Path, wants_ttl: bool) -> io::Result<Option<Lookup>> {
        // A pipe that someone put there must not block the server.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let body = match beneath::open(self.root(), file, flags) {
            Ok(body) => File::from(body),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NAMETOOLONG) => {
                return Ok(Some(Lookup::Absent));
            }
            Err(error) => return Err(error.into()),
        };
        let stat = fstat(&body)?;
        match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            // An earlier layout kept suffix pages there; the folder makes way when the page is stored.
            rustix::fs::FileType::Directory if suffix_folder::folder_beside(file).is_some() => {
                return Ok(Some(Lookup::Absent));
            }
            rustix::fs::FileType::Directory => return Ok(Some(Lookup::Directory)),
            rustix::fs::FileType::RegularFile => {}
            _ => return Ok(Some(Lookup::Absent)),
        }
        let is_marked = stat.st_mode & MARK != 0;
        let marked = is_marked.then(|| time(stat.st_ctime, stat.st_ctime_nsec));
        let expires = if wants_ttl { self.modified(&side_file(file, ".ttl")) } else { None };
        let fetched = time(stat.st_mtime, stat.st_mtime_nsec);
        let text = self.read_headers(file);
        // Whoever removes or replaces a pair begins with the body: without its headers it would be served as another type.
        if text.is_none() && fstat(&body)?.st_nlink == 0 {
            return Ok(None);
        }
        let stamp = Stamp {
            device: stat.st_dev,
            inode: stat.st_ino,
            length: stat.st_size,
            modified: fetched,
            changed: time(stat.st_ctime, stat.st_ctime_nsec),
            headers: digest(text.as_deref()),
        };
        let cached = CacheFile {
            body,
            length: u64::try_from(stat.st_size).unwrap_or(0),
            fetched,
            marked,
            headers: text.and_then(|text| StoredHeaders::parse(&text)),
            expires,
            stamp,
        };
        Ok(cached.is_paired().then_some(Lookup::File(cached)))
    }

    fn read_headers(&self, file: &Path) -> Option<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let headers = beneath::open(self.root(), &side_file(file, ".h"), flags).ok()?;
        let mut text = Vec::new();
        File::from(headers).take(MAX_HEADERS_BYTES).read_to_end(&mut text).ok()?;
        Some(text)
    }

    /// Reads which flushes came; none if nobody wrote that, or what stands there makes no sense.
    pub(crate) fn read_numbers(&self) -> Numbers {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let Ok(file) = beneath::open(self.root(), Path::new(NUMBERS_FILE), flags) else {
            return Numbers::default();
        };
        let mut text = String::new();
        let read = File::from(file).take(MAX_NUMBERS_BYTES).read_to_string(&mut text);
        let numbers = read.ok().and_then(|_| Numbers::parse(&text));
        numbers.unwrap_or_else(|| {
            let file = self.path.join(NUMBERS_FILE);
            tracing::warn!(file = %file.display(), "cannot read which flushes came; the next ones count as after a loss");
            Numbers::default()
        })
    }

    /// Reads one of the dispatcher's own files in the root; nothing if there is none.
    ///
    /// # Errors
    /// Also for a file of more than `max` bytes, and for one that is no text.
    pub(crate) fn read_own(&self, name: &str, max: u64) -> io::Result<Option<String>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = match beneath::open(self.root(), Path::new(name), flags) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut text = String::new();
        let read = file.take(max + 1).read_to_string(&mut text)?;
        if read as u64 > max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(Some(text))
    }

    /// Notes for later processes that a flush came at `now`.
    pub(crate) fn note_flush(&self, now: SystemTime) {
        // What cannot be noted is known as long as this process lives.
        rustix::fs::futimens(&self.temporary, &super::stat::both(now)).ok();
    }

    /// Notes that a file was served.
    pub(crate) fn note_use(&self, file: &Path, now: SystemTime) {
        self.usage.uses.note(file, now);
    }

    /// Tells whether something stands at `file`.
    pub(crate) fn has(&self, file: &Path) -> bool {
        self.modified(file).is_some()
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
