//! One document root: opening it and looking up files.
//!
//! Invariants
//! * Nothing outside the root is read, written or removed: no symbolic link below it is followed.
//! * A file is visible only when it is complete: it is written in `.tympan-tmp` and renamed into place.
//! * A file's modification time is the time at which the request that filled it was sent, so that every later flush is
//!   newer.
//! * The sticky bit on a file means that a flush named it: it may be served only while it is replaced.

use std::fs::{DirBuilder, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::{Mutex, RwLock};
use rustix::fs::{AtFlags, Mode, OFlags, fstat, statat};
use rustix::io::Errno;

use super::confined_open;
use super::file_time::{same_timestamps, to_system_time};
use super::stored_headers::StoredHeaders;
use super::usage::DocrootUsage;
use crate::cache::storage_terms::StoredTerms;
use crate::cache::suffix_folder;
use crate::cache::vary::VarySelection;
use crate::config::ClientHeaderPolicy;
use crate::flush::numbering::FlushNumbers;
use crate::flush::propagation::ReceivedPositions;

/// The folder for unfinished files and for folders that are being removed.
pub(crate) const TEMPORARY_FOLDER: &str = ".tympan-tmp";

/// The prefix of the names of the dispatcher's own files and folders.
pub(crate) const OWN_FILE_PREFIX: &str = ".tympan-";

/// The file that records the received flushes.
pub(crate) const FLUSH_NUMBERS_FILE: &str = ".tympan-flushes";

/// The mode bit that marks a file as flushed.
pub(crate) const STALE_MARK_MODE: u32 = 0o1000;

/// The maximum size of the file of flush numbers in bytes; a longer one was not written by the dispatcher.
const MAX_FLUSH_NUMBERS_BYTES: u64 = 4 * 1024 * 1024;

/// The maximum size of a header file (`.h`) in bytes; a longer one was not written by the dispatcher.
const MAX_HEADER_FILE_BYTES: u64 = 256 * 1024;

/// One document root.
#[derive(Debug)]
pub(crate) struct Docroot {
    pub(super) path: PathBuf,
    pub(super) root_fd: OwnedFd,
    pub(super) temporary_fd: OwnedFd,
    name_counter: AtomicU64,
    /// The folders in the temporary folder that are to be removed.
    pub(super) trash: Mutex<Vec<String>>,
    /// The usage counters, by the root's name.
    pub(super) usage: Arc<DocrootUsage>,
    /// Held for reading while a file is put into place, and for writing while one is evicted.
    pub(super) placement_lock: RwLock<()>,
    /// The time of the last store or flush by earlier processes.
    pub(super) last_earlier_change: Option<SystemTime>,
    /// The received flushes as recorded in the file; `None` until the file is read.
    pub(crate) flush_numbers: Mutex<Option<FlushNumbers>>,
    /// The positions up to which messages of siblings were received, as recorded in the file; `None` until the file is
    /// read.
    pub(crate) received_positions: Mutex<Option<ReceivedPositions>>,
}

/// An open cache file with the metadata from its name, its times and its header file.
#[derive(Debug)]
pub(crate) struct OpenCacheFile {
    /// The body.
    pub(crate) body: File,
    /// Its length in bytes.
    pub(crate) length: u64,
    /// The time at which the request that filled it was sent.
    pub(crate) fetched_at: SystemTime,
    /// The time at which a flush marked it.
    pub(crate) marked_at: Option<SystemTime>,
    /// The headers stored beside it.
    pub(crate) headers: Option<StoredHeaders>,
    /// The end of the render's own time limit, if one was stored.
    pub(crate) expires_at: Option<SystemTime>,
    /// The identity of the file.
    pub(crate) stamp: CacheFileStamp,
}

/// The identity of a cache file; differs if the file was replaced or changed in any way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheFileStamp {
    device: u64,
    inode: u64,
    length: i64,
    modified_at: SystemTime,
    changed_at: SystemTime,
    /// The digest of the header file's text.
    headers_digest: u64,
}

/// The result of looking up a cache file.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "taken apart where it is made, and nearly always a file"
)]
pub(crate) enum CacheFileLookup {
    Absent,
    Directory,
    File(OpenCacheFile),
}

impl Docroot {
    /// Opens the root at `path`, creates it if it is absent, and removes unfinished files left by a crash.
    pub(crate) fn open(path: &Path, mode: u32, usage: Arc<DocrootUsage>) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(mode & 0o777).create(path)?;
        // The root itself may be a link; only paths below it must not leave it.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        let left = statat(&root, TEMPORARY_FOLDER, AtFlags::SYMLINK_NOFOLLOW).ok();
        let left = left.map(|stat| to_system_time(stat.st_mtime, stat.st_mtime_nsec));
        let (temporary, _) = confined_open::create_folder_below(
            root.as_fd(),
            Path::new(TEMPORARY_FOLDER),
            Mode::RWXU,
        )?;
        let docroot = Self {
            path: path.to_owned(),
            root_fd: root,
            temporary_fd: temporary,
            name_counter: AtomicU64::new(0),
            trash: Mutex::default(),
            usage,
            placement_lock: RwLock::default(),
            last_earlier_change: left,
            flush_numbers: Mutex::default(),
            received_positions: Mutex::default(),
        };
        docroot.sweep_temporary_folder();
        Ok(docroot)
    }

    /// Opens the root at `path` while another process serves from it: nothing is created, and nothing may be written.
    pub(crate) fn open_read_only(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        let temporary = root.try_clone()?;
        Ok(Self {
            path: path.to_owned(),
            root_fd: root,
            temporary_fd: temporary,
            name_counter: AtomicU64::new(0),
            trash: Mutex::default(),
            usage: Arc::default(),
            placement_lock: RwLock::default(),
            last_earlier_change: None,
            flush_numbers: Mutex::default(),
            received_positions: Mutex::default(),
        })
    }

    pub(super) fn root_fd(&self) -> BorrowedFd<'_> {
        self.root_fd.as_fd()
    }

    /// Returns the root's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if this folder has the given identity.
    pub(super) fn is_same_folder(&self, device: u64, inode: u64) -> bool {
        fstat(&self.root_fd).is_ok_and(|own| own.st_dev == device && own.st_ino == inode)
    }

    /// Returns true if the temporary folder still exists in the root.
    pub(super) fn is_writable(&self) -> bool {
        fstat(&self.temporary_fd).is_ok_and(|own| own.st_nlink > 0)
    }

    /// Looks up `file`; `wants_ttl` decides if its `.ttl` file is read.
    pub(crate) fn look_up_file(&self, file: &Path, wants_ttl: bool) -> io::Result<CacheFileLookup> {
        // A replacement renames the header file and the body one after the other, so a mismatched pair is read again.
        for _ in 0..4 {
            if let Some(lookup) = self.look_up_once(file, wants_ttl)? {
                return Ok(lookup);
            }
        }
        Ok(CacheFileLookup::Absent)
    }

    /// Looks up a file once; returns `None` if it changed during the look-up or does not match its header file.
    fn look_up_once(&self, file: &Path, wants_ttl: bool) -> io::Result<Option<CacheFileLookup>> {
        // A pipe at this path must not block the server.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let body = match confined_open::open_below(self.root_fd(), file, flags) {
            Ok(body) => File::from(body),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NAMETOOLONG) => {
                return Ok(Some(CacheFileLookup::Absent));
            }
            Err(error) => return Err(error.into()),
        };
        let stat = fstat(&body)?;
        match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            // An earlier layout stored suffix pages there; the folder is moved away when the page is stored.
            rustix::fs::FileType::Directory
                if suffix_folder::suffix_folder_of_page(file).is_some() =>
            {
                return Ok(Some(CacheFileLookup::Absent));
            }
            rustix::fs::FileType::Directory => return Ok(Some(CacheFileLookup::Directory)),
            rustix::fs::FileType::RegularFile => {}
            _ => return Ok(Some(CacheFileLookup::Absent)),
        }
        let is_marked = stat.st_mode & STALE_MARK_MODE != 0;
        let marked = is_marked.then(|| to_system_time(stat.st_ctime, stat.st_ctime_nsec));
        let expires =
            if wants_ttl { self.modified_at(&side_file_path(file, ".ttl")) } else { None };
        let fetched = to_system_time(stat.st_mtime, stat.st_mtime_nsec);
        let text = self.read_header_file(file);
        // Removal and replacement of a pair begin with the body; without its headers the body would be served with a
        // wrong type.
        if text.is_none() && fstat(&body)?.st_nlink == 0 {
            return Ok(None);
        }
        let stamp = CacheFileStamp {
            device: stat.st_dev,
            inode: stat.st_ino,
            length: stat.st_size,
            modified_at: fetched,
            changed_at: to_system_time(stat.st_ctime, stat.st_ctime_nsec),
            headers_digest: digest_text(text.as_deref()),
        };
        let cached = OpenCacheFile {
            body,
            length: u64::try_from(stat.st_size).unwrap_or(0),
            fetched_at: fetched,
            marked_at: marked,
            headers: text.and_then(|text| StoredHeaders::parse(&text)),
            expires_at: expires,
            stamp,
        };
        Ok(cached.matches_header_file().then_some(CacheFileLookup::File(cached)))
    }

    fn read_header_file(&self, file: &Path) -> Option<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let headers =
            confined_open::open_below(self.root_fd(), &side_file_path(file, ".h"), flags).ok()?;
        let mut text = Vec::new();
        File::from(headers).take(MAX_HEADER_FILE_BYTES).read_to_end(&mut text).ok()?;
        Some(text)
    }

    /// Reads the recorded flushes; returns an empty record if the file is absent or malformed.
    pub(crate) fn read_flush_numbers(&self) -> FlushNumbers {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let Ok(file) =
            confined_open::open_below(self.root_fd(), Path::new(FLUSH_NUMBERS_FILE), flags)
        else {
            return FlushNumbers::default();
        };
        let mut text = String::new();
        let read = File::from(file).take(MAX_FLUSH_NUMBERS_BYTES).read_to_string(&mut text);
        let numbers = read.ok().and_then(|_| FlushNumbers::parse(&text));
        numbers.unwrap_or_else(|| {
            let file = self.path.join(FLUSH_NUMBERS_FILE);
            tracing::warn!(file = %file.display(), "cannot read the flush numbers; assuming that flushes were \
                missed");
            FlushNumbers::default()
        })
    }

    /// Reads one of the dispatcher's own files in the root; returns `None` if it is absent.
    ///
    /// # Errors
    /// Also fails for a file of more than `max` bytes and for one that is not text.
    pub(crate) fn read_own_file(&self, name: &str, max: u64) -> io::Result<Option<String>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = match confined_open::open_below(self.root_fd(), Path::new(name), flags) {
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

    /// Records for later processes that a flush came at `now`.
    pub(crate) fn store_flush_time(&self, now: SystemTime) {
        // If recording fails, the time is known for the lifetime of this process.
        rustix::fs::futimens(&self.temporary_fd, &same_timestamps(now)).ok();
    }

    /// Records that a file was served.
    pub(crate) fn record_use(&self, file: &Path, now: SystemTime) {
        self.usage.last_uses.record_use(file, now);
    }

    /// Returns true if something exists at `file`.
    pub(crate) fn exists(&self, file: &Path) -> bool {
        self.modified_at(file).is_some()
    }

    /// Returns the modification time of the file `path`.
    pub(super) fn modified_at(&self, path: &Path) -> Option<SystemTime> {
        let stat = statat(self.root_fd(), path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(to_system_time(stat.st_mtime, stat.st_mtime_nsec))
    }

    /// Returns a name for a temporary file or folder that no other process uses.
    pub(super) fn new_temporary_name(&self) -> String {
        let count = self.name_counter.fetch_add(1, Ordering::Relaxed);
        format!("{}-{count}", std::process::id())
    }

    /// Removes the files that earlier processes left in the temporary folder.
    fn sweep_temporary_folder(&self) {
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
                tracing::warn!(file = %path.display(), reason = %error, "cannot remove a leftover file");
            }
        }
    }
}

fn digest_text(text: Option<&[u8]>) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

impl OpenCacheFile {
    /// Returns the request headers that select the file; `None` if it is for everyone.
    pub(crate) fn selection(&self) -> Option<VarySelection> {
        VarySelection::from_stored(&self.headers.as_ref()?.headers)
    }

    /// Returns the terms of HTTP on which it was stored; `None` if it was stored by other rules.
    pub(crate) fn terms(&self) -> Option<StoredTerms> {
        StoredTerms::from_stored(&self.headers.as_ref()?.headers)
    }

    /// Returns true if not every request to a farm with this policy may get the file.
    pub(crate) fn separates_requests(&self, client_headers: &ClientHeaderPolicy) -> bool {
        self.selection().is_some_and(|own| own.may_separate_requests(client_headers))
    }

    /// Returns true if the body and the header file were written together.
    fn matches_header_file(&self) -> bool {
        self.headers.as_ref().is_none_or(|headers| headers.fetched_at == self.fetched_at)
    }
}

/// Returns the name of a side file.
pub(super) fn side_file_path(file: &Path, extension: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(extension);
    PathBuf::from(name)
}
