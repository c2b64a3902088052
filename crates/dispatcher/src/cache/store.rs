//! Writing a cache file: in the temporary folder first, then renamed into place.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Room is made for a file of one part in so many of the file system, and not for larger ones.
const MOST_OF_DISK: u64 = 8;

use http::HeaderMap;
use rustix::fs::{AtFlags, Mode, OFlags, futimens, openat, renameat, statat};
use rustix::io::Errno;

use super::beneath;
use super::docroot::{Docroot, NUMBERS_FILE, side_file, time};
use super::headers::StoredHeaders;
use super::stat::both;
use super::usage::Amount;

/// How long visitors of a page that grows wait for room on a full disk.
const ROOM_PATIENCE: Duration = Duration::from_secs(10);
/// How often room is asked for at one piece of such a page.
const ROOM_TRIES: u32 = 3;

/// A file that is being written; dropping it removes it.
#[derive(Debug)]
pub(crate) struct Temporary {
    docroot: Arc<Docroot>,
    name: String,
    file: File,
    is_kept: bool,
    /// Whether visitors read what was written so far.
    is_shared: bool,
}

/// What is known about a file that is about to be put into place.
#[derive(Debug)]
pub(crate) struct NewFile<'a> {
    /// Where it goes, below the document root.
    pub(crate) file: &'a Path,
    /// When the request that filled it was sent.
    pub(crate) fetched: SystemTime,
    /// What is served with it beside what its name tells.
    pub(crate) headers: HeaderMap,
    /// When the render's own limit ends.
    pub(crate) expires: Option<SystemTime>,
    /// Permissions of new files and folders.
    pub(crate) mode: u32,
}

impl Docroot {
    /// Begins a file.
    ///
    /// # Errors
    /// Also while the root is well beyond its bound: files come faster than others are evicted.
    pub(crate) fn begin(self: &Arc<Self>, mode: u32) -> io::Result<Temporary> {
        if self.usage.is_overflowing() {
            return Err(ErrorKind::StorageFull.into());
        }
        let begun = self.create(mode);
        self.note_outcome(&begun);
        begun
    }

    fn create(self: &Arc<Self>, mode: u32) -> io::Result<Temporary> {
        let name = self.temporary_name();
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file =
            openat(&self.temporary, name.as_str(), flags, Mode::from_raw_mode(mode & 0o777))?;
        let file = File::from(file);
        Ok(Temporary { docroot: Arc::clone(self), name, file, is_kept: false, is_shared: false })
    }

    /// Writes which flushes came.
    pub(crate) fn write_numbers(self: &Arc<Self>, text: &str, mode: u32) -> io::Result<()> {
        self.write_own(NUMBERS_FILE, text, mode)
    }

    /// Writes one of the dispatcher's own files in the root, in place of what stands there.
    pub(crate) fn write_own(self: &Arc<Self>, name: &str, text: &str, mode: u32) -> io::Result<()> {
        let mut file = self.create(mode & 0o666)?;
        file.write(text.as_bytes())?;
        file.place(self.root(), Path::new(name), SystemTime::now())
    }

    /// As [`Docroot::write_own`], so that a power failure leaves the old text or the new one, and the new one afterwards.
    pub(crate) fn write_own_for_good(self: &Arc<Self>, name: &str, text: &str) -> io::Result<()> {
        let write = || -> io::Result<()> {
            let mut file = self.create(0o600)?;
            file.append(text.as_bytes())?;
            file.file.sync_all()?;
            file.place(self.root(), Path::new(name), SystemTime::now())?;
            Ok(rustix::fs::fsync(self.root())?)
        };
        self.noting(write())
    }

    /// Lets what was added to one of the dispatcher's own files outlive a power failure.
    pub(crate) fn sync_own(&self, name: &str) -> io::Result<()> {
        match beneath::open(self.root(), Path::new(name), OFlags::WRONLY | OFlags::NONBLOCK) {
            Ok(file) => self.noting(File::from(file).sync_data()),
            // Someone removed it, and nothing outlives that.
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Empties one of the dispatcher's own files for good, which takes no room, or makes an empty one.
    pub(crate) fn empty_own(self: &Arc<Self>, name: &str) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NONBLOCK;
        match beneath::open(self.root(), Path::new(name), flags) {
            Ok(file) => File::from(file).sync_all(),
            Err(Errno::NOENT) => self.write_own_for_good(name, ""),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds to one of the dispatcher's own files in the root; tells whether it was there.
    pub(crate) fn append_own(&self, name: &str, text: &str) -> io::Result<bool> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK;
        match beneath::open(self.root(), Path::new(name), flags) {
            Ok(file) => self.noting(File::from(file).write_all(text.as_bytes())).map(|()| true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Passes an outcome on, and asks for room if it failed for want of it.
    fn noting<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        self.note_outcome(&outcome);
        outcome
    }

    /// Asks for room if something failed for want of it.
    pub(crate) fn note_outcome<T>(&self, outcome: &io::Result<T>) {
        if outcome.as_ref().is_err_and(is_full) {
            self.usage.note_full();
        }
    }

    /// Removes the file `name` beside a cache file, if it is there.
    fn forget(&self, folder: impl AsFd, name: &Path) -> io::Result<()> {
        beneath::unlink(folder.as_fd(), name.as_os_str())?;
        Ok(())
    }

    /// Returns what a cache file takes with its side files, and when it expires.
    fn what_stands_at(&self, folder: &OwnedFd, name: &Path) -> (Amount, Option<SystemTime>) {
        let (mut amount, mut expires) = (Amount::default(), None);
        for side in ["", ".h", ".ttl"] {
            let side_name = side_file(name, side);
            let Ok(stat) = statat(folder, &side_name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            amount = amount + Amount::of_file(u64::try_from(stat.st_size).unwrap_or(0));
            if side == ".ttl" {
                expires = Some(time(stat.st_mtime, stat.st_mtime_nsec));
            }
        }
        (amount, expires)
    }
}

/// Tells whether something failed as the disk is full, or the user's share of it.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// What is put into place together.
struct Parts {
    body: Temporary,
    headers: Option<Temporary>,
    /// An empty file whose time says when the body expires.
    ttl: Option<(Temporary, SystemTime)>,
    amount: Amount,
}

impl Temporary {
    /// Appends `bytes`.
    ///
    /// Blocks for some seconds on a full disk if visitors read the file already, as they would get half a page.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.append(bytes);
        self.docroot.note_outcome(&written);
        written
    }

    fn append(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut tries = 0;
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_full(&error) && self.is_shared && tries < ROOM_TRIES => {
                    tries += 1;
                    if !self.docroot.usage.wait_for_room(ROOM_PATIENCE) {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Appends the whole of `file`, read from its begin; returns how many bytes that were.
    pub(crate) fn append_file(&mut self, file: &File) -> io::Result<u64> {
        let mut from = file;
        let copied = io::copy(&mut from, &mut self.file);
        self.docroot.note_outcome(&copied);
        copied
    }

    /// Returns a second handle for visitors who read while the file grows, up to `length` bytes if that is known.
    ///
    /// # Errors
    /// Also if there is no room for so many bytes.
    pub(crate) fn reader(&mut self, length: Option<u64>) -> io::Result<File> {
        let space = self.docroot.space()?;
        let written = self.file.metadata()?.len();
        if let Some(length) = length
            && length.saturating_sub(written) > space.free
        {
            // No visitor empties the cache by asking for something huge.
            if length <= space.all / MOST_OF_DISK {
                self.docroot.usage.note_full();
            }
            return Err(ErrorKind::StorageFull.into());
        }
        self.is_shared = true;
        self.file.try_clone()
    }

    /// Puts the file into place, with its side files.
    ///
    /// Body and header file are two renames. Each carries the moment of the fetch, so a reader that meets one old and
    /// one new tries again, and after a crash between them the page counts as absent.
    pub(crate) fn commit(self, new: &NewFile<'_>) -> io::Result<()> {
        let docroot = Arc::clone(&self.docroot);
        let outcome = self.prepare(new).and_then(|parts| docroot.place(parts, new));
        docroot.note_outcome(&outcome);
        outcome
    }

    /// Writes what goes beside the body: what needs room comes before anything is put into place.
    fn prepare(self, new: &NewFile<'_>) -> io::Result<Parts> {
        let mut amount = Amount::of_file(self.file.metadata()?.len());
        let mut side = |length: usize| {
            amount = amount + Amount::of_file(length as u64);
            self.docroot.create(new.mode)
        };
        let ttl = match new.expires {
            Some(expires) => Some((side(0)?, expires)),
            None => None,
        };
        let headers = if new.headers.is_empty() {
            None
        } else {
            let fetched = self.as_kept(new.fetched)?;
            let text = StoredHeaders { fetched, headers: new.headers.clone() }.to_text();
            let mut side = side(text.len())?;
            side.append(&text)?;
            Some(side)
        };
        Ok(Parts { body: self, headers, ttl, amount })
    }

    /// Returns `time` as the file system keeps it, which may be coarser.
    fn as_kept(&self, time: SystemTime) -> io::Result<SystemTime> {
        futimens(&self.file, &both(time))?;
        self.file.metadata()?.modified()
    }

    fn place(mut self, folder: impl AsFd, name: &Path, modified: SystemTime) -> io::Result<()> {
        futimens(&self.file, &both(modified))?;
        renameat(&self.docroot.temporary, self.name.as_str(), folder, name)?;
        self.is_kept = true;
        Ok(())
    }
}

impl Docroot {
    fn place(&self, parts: Parts, new: &NewFile<'_>) -> io::Result<()> {
        let name = Path::new(new.file.file_name().unwrap_or(OsStr::new("")));
        let parent = new.file.parent().unwrap_or(Path::new(""));
        let mode = Mode::from_raw_mode(new.mode & 0o777);
        let _nothing_is_evicted = self.placing.read();
        let (folder, made) = beneath::make_folder(self.root(), parent, mode)?;
        self.usage.replace(Amount::default(), Amount::of_folder() * made);
        let (old, old_expires) = self.what_stands_at(&folder, name);
        let Parts { body, headers, ttl, amount } = parts;
        let ttl_name = side_file(name, ".ttl");
        // A crash must leave no body with a longer life than its own: the earlier end comes first, the later one last.
        let ends_earlier = new.expires.is_some_and(|end| old_expires.is_none_or(|old| end < old));
        let (first, last) = if ends_earlier { (ttl, None) } else { (None, ttl) };
        if let Some((ttl, expires)) = first {
            ttl.place(&folder, &ttl_name, expires)?;
        }
        let headers_name = side_file(name, ".h");
        match headers {
            Some(headers) => {
                headers.place(&folder, &headers_name, new.fetched)?;
                body.place(&folder, name, new.fetched)?;
            }
            None => {
                body.place(&folder, name, new.fetched)?;
                // Until here the old headers did not fit the new body, so nobody served them together.
                self.forget(&folder, &headers_name)?;
            }
        }
        match last {
            Some((ttl, expires)) => ttl.place(&folder, &ttl_name, expires)?,
            None if new.expires.is_none() => self.forget(&folder, &ttl_name)?,
            None => {}
        }
        self.usage.replace(old, amount);
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_kept {
            // What cannot be removed now is swept at the next start.
            beneath::unlink(self.docroot.temporary.as_fd(), OsStr::new(&self.name)).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::NewFile;
    use crate::cache::docroot::{Docroot, Lookup};
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
        let mut temporary = docroot.begin(0o644)?;
        temporary.write(body.as_bytes())?;
        let new = NewFile { file: Path::new(file), fetched: at(5), headers, expires, mode: 0o755 };
        temporary.commit(&new)
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
            // No body can take the place of a folder, as none does after a kill at this moment.
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
                    docroot.remove_file(Path::new("a.html")).unwrap();
                }
                is_over.store(true, Ordering::SeqCst);
            });
            while !is_over.load(Ordering::SeqCst) {
                if let Lookup::File(cached) = docroot.look_up(Path::new("a.html"), false).unwrap() {
                    assert!(cached.headers.is_some());
                }
            }
        });
    }

    #[test]
    fn what_is_stored_and_removed_is_counted() {
        let (folder, docroot) = open();
        let count = || docroot.usage.amount();
        store(&docroot, ("x/y/a.html", "page"), HeaderMap::new(), Some(at(9))).unwrap();
        // Two folders, the page and its empty side file.
        assert_eq!((count().files, count().bytes), (4, 3 * 4096));
        store(&docroot, ("x/y/a.html", &"x".repeat(5000)), HeaderMap::new(), None).unwrap();
        assert_eq!((count().files, count().bytes), (3, 4 * 4096));
        docroot.remove_file(Path::new("x/y/a.html")).unwrap();
        assert_eq!((count().files, count().bytes), (2, 2 * 4096));
        drop(folder);
    }
}
