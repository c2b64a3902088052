//! Writing of a cache file: first in the temporary folder, then renamed into place.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The divisor of the file system's size up to which space is freed for a file; no space is freed for larger files.
const MAX_FILE_DISK_FRACTION: u64 = 8;

use http::HeaderMap;
use rustix::fs::{AtFlags, Mode, OFlags, futimens, openat, renameat, statat};
use rustix::io::Errno;

use super::confined_open;
use super::docroot::{Docroot, FLUSH_NUMBERS_FILE, side_file_path};
use super::file_time::{same_timestamps, to_system_time};
use super::stored_headers::StoredHeaders;
use super::usage::DiskAmount;

/// The time for which visitors of a growing page wait for space on a full disk.
const DISK_SPACE_WAIT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of requests for space for one piece of such a page.
const MAX_DISK_SPACE_ATTEMPTS: u32 = 3;

/// A file being written; dropping it removes it.
#[derive(Debug)]
pub(crate) struct TemporaryCacheFile {
    docroot: Arc<Docroot>,
    name: String,
    file: File,
    is_committed: bool,
    /// True if visitors read the part written so far.
    is_shared: bool,
}

/// The description of a file that is about to be put into place.
#[derive(Debug)]
pub(crate) struct NewCacheFile {
    /// The destination path below the document root.
    pub(crate) destination: PathBuf,
    /// The time at which the request that filled it was sent.
    pub(crate) fetched_at: SystemTime,
    /// The headers served with it in addition to those derived from its name.
    pub(crate) headers: HeaderMap,
    /// The end of the render's own time limit.
    pub(crate) expires_at: Option<SystemTime>,
    /// The permissions of new files and folders.
    pub(crate) mode: u32,
}

impl Docroot {
    /// Creates a temporary file.
    ///
    /// # Errors
    /// Also fails while the root is well over its limit, because files arrive faster than others are evicted.
    pub(crate) fn create_temporary(self: &Arc<Self>, mode: u32) -> io::Result<TemporaryCacheFile> {
        if self.usage.is_overflowing() {
            return Err(ErrorKind::StorageFull.into());
        }
        let temporary = self.try_create_temporary(mode);
        self.record_disk_full(&temporary);
        temporary
    }

    fn try_create_temporary(self: &Arc<Self>, mode: u32) -> io::Result<TemporaryCacheFile> {
        let name = self.new_temporary_name();
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file =
            openat(&self.temporary_fd, name.as_str(), flags, Mode::from_raw_mode(mode & 0o777))?;
        let file = File::from(file);
        Ok(TemporaryCacheFile {
            docroot: Arc::clone(self),
            name,
            file,
            is_committed: false,
            is_shared: false,
        })
    }

    /// Writes the record of received flushes.
    pub(crate) fn write_flush_numbers(self: &Arc<Self>, text: &str, mode: u32) -> io::Result<()> {
        self.write_own_file(FLUSH_NUMBERS_FILE, text, mode)
    }

    /// Writes one of the dispatcher's own files in the root and replaces an existing one.
    pub(crate) fn write_own_file(
        self: &Arc<Self>,
        name: &str,
        text: &str,
        mode: u32,
    ) -> io::Result<()> {
        let mut file = self.try_create_temporary(mode & 0o666)?;
        file.write(text.as_bytes())?;
        file.move_into_place(self.root_fd(), Path::new(name), SystemTime::now())
    }

    /// As [`Docroot::write_own_file`], but durably: after a power failure during the call the file has the old or the
    /// new text, and after the call the new one.
    pub(crate) fn write_own_file_durably(
        self: &Arc<Self>,
        name: &str,
        text: &str,
    ) -> io::Result<()> {
        let write = || -> io::Result<()> {
            let mut file = self.try_create_temporary(0o600)?;
            file.append_bytes(text.as_bytes())?;
            file.file.sync_all()?;
            file.move_into_place(self.root_fd(), Path::new(name), SystemTime::now())?;
            Ok(rustix::fs::fsync(self.root_fd())?)
        };
        self.with_disk_full_recorded(write())
    }

    /// Makes data appended to one of the dispatcher's own files durable.
    pub(crate) fn sync_own_file(&self, name: &str) -> io::Result<()> {
        match confined_open::open_below(
            self.root_fd(),
            Path::new(name),
            OFlags::WRONLY | OFlags::NONBLOCK,
        ) {
            Ok(file) => self.with_disk_full_recorded(File::from(file).sync_data()),
            // The file was removed, so there is nothing to make durable.
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Truncates one of the dispatcher's own files durably, which needs no space, or creates an empty one.
    pub(crate) fn truncate_own_file(self: &Arc<Self>, name: &str) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NONBLOCK;
        match confined_open::open_below(self.root_fd(), Path::new(name), flags) {
            Ok(file) => File::from(file).sync_all(),
            Err(Errno::NOENT) => self.write_own_file_durably(name, ""),
            Err(error) => Err(error.into()),
        }
    }

    /// Appends to one of the dispatcher's own files in the root; returns true if the file existed.
    pub(crate) fn append_own_file(&self, name: &str, text: &str) -> io::Result<bool> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK;
        match confined_open::open_below(self.root_fd(), Path::new(name), flags) {
            Ok(file) => self
                .with_disk_full_recorded(File::from(file).write_all(text.as_bytes()))
                .map(|()| true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns an outcome unchanged and requests space if it failed because the disk is full.
    fn with_disk_full_recorded<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        self.record_disk_full(&outcome);
        outcome
    }

    /// Requests space if an operation failed because the disk is full.
    pub(crate) fn record_disk_full<T>(&self, outcome: &io::Result<T>) {
        if outcome.as_ref().is_err_and(is_disk_full) {
            self.usage.record_disk_full();
        }
    }

    /// Removes the file `name` beside a cache file, if it is there.
    fn remove_side_file(&self, folder: impl AsFd, name: &Path) -> io::Result<()> {
        confined_open::unlink_if_present(folder.as_fd(), name.as_os_str())?;
        Ok(())
    }

    /// Returns the disk usage of a cache file with its side files, and its expiry time.
    fn existing_file_amount(
        &self,
        folder: &OwnedFd,
        name: &Path,
    ) -> (DiskAmount, Option<SystemTime>) {
        let (mut amount, mut expires) = (DiskAmount::default(), None);
        for side in ["", ".h", ".ttl"] {
            let side_name = side_file_path(name, side);
            let Ok(stat) = statat(folder, &side_name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            amount = amount + DiskAmount::of_file(u64::try_from(stat.st_size).unwrap_or(0));
            if side == ".ttl" {
                expires = Some(to_system_time(stat.st_mtime, stat.st_mtime_nsec));
            }
        }
        (amount, expires)
    }
}

/// Returns true if an operation failed because the disk or the user's quota is full.
fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// The files that are put into place together.
struct CacheFileParts {
    body: TemporaryCacheFile,
    headers: Option<TemporaryCacheFile>,
    /// An empty file whose time is the expiry time of the body.
    ttl: Option<(TemporaryCacheFile, SystemTime)>,
    amount: DiskAmount,
}

impl TemporaryCacheFile {
    /// Appends `bytes`.
    ///
    /// Blocks for some seconds on a full disk if visitors already read the file, because they would get half a page.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.append_bytes(bytes);
        self.docroot.record_disk_full(&written);
        written
    }

    fn append_bytes(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut tries = 0;
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error)
                    if is_disk_full(&error)
                        && self.is_shared
                        && tries < MAX_DISK_SPACE_ATTEMPTS =>
                {
                    tries += 1;
                    if !self.docroot.usage.wait_for_disk_space(DISK_SPACE_WAIT_TIMEOUT) {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Appends the whole of `file`, read from its beginning; returns the number of bytes appended.
    pub(crate) fn append_file(&mut self, file: &File) -> io::Result<u64> {
        let mut from = file;
        let copied = io::copy(&mut from, &mut self.file);
        self.docroot.record_disk_full(&copied);
        copied
    }

    /// Returns a second handle for visitors who read while the file grows, up to `length` bytes if that is known.
    ///
    /// # Errors
    /// Also fails if there is no space for `length` bytes.
    pub(crate) fn open_reader(&mut self, length: Option<u64>) -> io::Result<File> {
        let space = self.docroot.file_system_space()?;
        let written = self.file.metadata()?.len();
        if let Some(length) = length
            && length.saturating_sub(written) > space.free_bytes
        {
            // A request for a huge file must not empty the cache.
            if length <= space.total_bytes / MAX_FILE_DISK_FRACTION {
                self.docroot.usage.record_disk_full();
            }
            return Err(ErrorKind::StorageFull.into());
        }
        self.is_shared = true;
        self.file.try_clone()
    }

    /// Puts the file and its side files into place.
    ///
    /// The body and the header file are two renames. Each carries the time of the fetch, so a reader that finds one old
    /// and one new retries. After a crash between the renames the page counts as absent.
    pub(crate) fn commit_file(self, new: &NewCacheFile) -> io::Result<()> {
        let docroot = Arc::clone(&self.docroot);
        let outcome = self.prepare_parts(new).and_then(|parts| docroot.place_parts(parts, new));
        docroot.record_disk_full(&outcome);
        outcome
    }

    /// Writes the side files. Everything that needs space is written before anything is put into place.
    fn prepare_parts(self, new: &NewCacheFile) -> io::Result<CacheFileParts> {
        let mut amount = DiskAmount::of_file(self.file.metadata()?.len());
        let mut side = |length: usize| {
            amount = amount + DiskAmount::of_file(length as u64);
            self.docroot.try_create_temporary(new.mode)
        };
        let ttl = match new.expires_at {
            Some(expires) => Some((side(0)?, expires)),
            None => None,
        };
        let headers = if new.headers.is_empty() {
            None
        } else {
            let fetched = self.rounded_by_file_system(new.fetched_at)?;
            let text =
                StoredHeaders { fetched_at: fetched, headers: new.headers.clone() }.to_text();
            let mut side = side(text.len())?;
            side.append_bytes(&text)?;
            Some(side)
        };
        Ok(CacheFileParts { body: self, headers, ttl, amount })
    }

    /// Returns `time` with the precision of the file system, which may be coarser.
    fn rounded_by_file_system(&self, time: SystemTime) -> io::Result<SystemTime> {
        futimens(&self.file, &same_timestamps(time))?;
        self.file.metadata()?.modified()
    }

    fn move_into_place(
        mut self,
        folder: impl AsFd,
        name: &Path,
        modified: SystemTime,
    ) -> io::Result<()> {
        futimens(&self.file, &same_timestamps(modified))?;
        renameat(&self.docroot.temporary_fd, self.name.as_str(), folder, name)?;
        self.is_committed = true;
        Ok(())
    }
}

impl Docroot {
    fn place_parts(&self, parts: CacheFileParts, new: &NewCacheFile) -> io::Result<()> {
        let name = Path::new(new.destination.file_name().unwrap_or(OsStr::new("")));
        let parent = new.destination.parent().unwrap_or(Path::new(""));
        let mode = Mode::from_raw_mode(new.mode & 0o777);
        let _nothing_is_evicted = self.placement_lock.read();
        let (folder, created_folder_count) =
            confined_open::create_folder_below(self.root_fd(), parent, mode)?;
        self.usage.record_replacement(
            DiskAmount::default(),
            DiskAmount::of_folder() * created_folder_count,
        );
        let (old, old_expires) = self.existing_file_amount(&folder, name);
        let CacheFileParts { body, headers, ttl, amount } = parts;
        let ttl_name = side_file_path(name, ".ttl");
        // A crash must not leave a body with a longer lifetime than its own: set the earlier end first and the later
        // one last.
        let ends_earlier =
            new.expires_at.is_some_and(|end| old_expires.is_none_or(|old| end < old));
        let (first, last) = if ends_earlier { (ttl, None) } else { (None, ttl) };
        if let Some((ttl, expires)) = first {
            ttl.move_into_place(&folder, &ttl_name, expires)?;
        }
        let headers_name = side_file_path(name, ".h");
        match headers {
            Some(headers) => {
                headers.move_into_place(&folder, &headers_name, new.fetched_at)?;
                body.move_into_place(&folder, name, new.fetched_at)?;
            }
            None => {
                body.move_into_place(&folder, name, new.fetched_at)?;
                // Until here the old headers did not match the new body, so the pair was not served.
                self.remove_side_file(&folder, &headers_name)?;
            }
        }
        match last {
            Some((ttl, expires)) => ttl.move_into_place(&folder, &ttl_name, expires)?,
            None if new.expires_at.is_none() => self.remove_side_file(&folder, &ttl_name)?,
            None => {}
        }
        self.usage.record_replacement(old, amount);
        Ok(())
    }
}

impl Drop for TemporaryCacheFile {
    fn drop(&mut self) {
        if !self.is_committed {
            // If removal fails now, the next start removes it.
            confined_open::unlink_if_present(
                self.docroot.temporary_fd.as_fd(),
                OsStr::new(&self.name),
            )
            .ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::NewCacheFile;
    use crate::cache::docroot::{CacheFileLookup, Docroot};
    use http::{HeaderMap, HeaderValue};
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    fn open() -> (tempfile::TempDir, Arc<Docroot>) {
        let folder = tempfile::tempdir().unwrap();
        let docroot = Docroot::open(folder.path(), 0o755, Arc::default()).unwrap();
        (folder, Arc::new(docroot))
    }

    fn at(second: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(second)
    }

    fn store(
        docroot: &Arc<Docroot>,
        (file, body): (&str, &str),
        headers: HeaderMap,
        expires: Option<SystemTime>,
    ) -> std::io::Result<()> {
        let mut temporary = docroot.create_temporary(0o644)?;
        temporary.write(body.as_bytes())?;
        let new = NewCacheFile {
            destination: file.into(),
            fetched_at: at(5),
            headers,
            expires_at: expires,
            mode: 0o755,
        };
        temporary.commit_file(&new)
    }

    #[test]
    fn a_body_that_cannot_be_replaced_lives_no_longer_than_before() {
        for (old, new, expected) in [
            (Some(100), Some(200), Some(100)),
            (Some(200), Some(100), Some(100)),
            (Some(100), None, Some(100)),
            (None, Some(100), Some(100)),
            (None, None, None),
        ] {
            let (folder, docroot) = open();
            // A body cannot replace a folder; the same state results from a kill at this point.
            std::fs::create_dir(folder.path().join("a.html")).unwrap();
            let ttl = folder.path().join("a.html.ttl");
            if let Some(old) = old {
                std::fs::File::create(&ttl).unwrap().set_modified(at(old)).unwrap();
            }
            let failed = store(&docroot, ("a.html", "new"), HeaderMap::new(), new.map(at));
            assert!(failed.is_err());
            let left = std::fs::metadata(&ttl).ok().map(|stat| stat.modified().unwrap());
            assert_eq!(left, expected.map(at), "{old:?} {new:?}");
        }
    }

    #[test]
    fn a_reader_meets_no_body_without_its_headers() {
        let (_folder, docroot) = open();
        let is_over = AtomicBool::new(false);
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("text/html; charset=gbk"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2000 {
                    store(&docroot, ("a.html", "page"), headers.clone(), None).unwrap();
                    docroot.remove_cache_file(Path::new("a.html")).unwrap();
                }
                is_over.store(true, Ordering::SeqCst);
            });
            while !is_over.load(Ordering::SeqCst) {
                if let CacheFileLookup::File(cached) =
                    docroot.look_up_file(Path::new("a.html"), false).unwrap()
                {
                    assert!(cached.headers.is_some());
                }
            }
        });
    }

    #[test]
    fn what_is_stored_and_removed_is_counted() {
        let (folder, docroot) = open();
        let count = || docroot.usage.current_amount();
        store(&docroot, ("x/y/a.html", "page"), HeaderMap::new(), Some(at(9))).unwrap();
        // Two folders, the page and its empty side file.
        assert_eq!((count().files, count().bytes), (4, 3 * 4096));
        store(&docroot, ("x/y/a.html", &"x".repeat(5000)), HeaderMap::new(), None).unwrap();
        assert_eq!((count().files, count().bytes), (3, 4 * 4096));
        docroot.remove_cache_file(Path::new("x/y/a.html")).unwrap();
        assert_eq!((count().files, count().bytes), (2, 2 * 4096));
        drop(folder);
    }
}
