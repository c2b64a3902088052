//! Writing a cache file: in the temporary folder first, then renamed into place.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use http::HeaderMap;
use rustix::fs::{Mode, OFlags, futimens, openat, renameat};

use super::beneath;
use super::docroot::{Docroot, side_file};
use super::headers::StoredHeaders;
use super::stat::both;

/// A file that is being written; dropping it removes it.
#[derive(Debug)]
pub(crate) struct Temporary {
    docroot: Arc<Docroot>,
    name: String,
    file: File,
    is_kept: bool,
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
    pub(crate) fn begin(self: &Arc<Self>, mode: u32) -> io::Result<Temporary> {
        let name = self.temporary_name();
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file =
            openat(&self.temporary, name.as_str(), flags, Mode::from_raw_mode(mode & 0o777))?;
        Ok(Temporary { docroot: Arc::clone(self), name, file: File::from(file), is_kept: false })
    }

    /// Removes the file `name` beside a cache file, if it is there.
    fn forget(&self, folder: impl AsFd, name: &Path) -> io::Result<()> {
        beneath::unlink(folder.as_fd(), name.as_os_str())?;
        Ok(())
    }
}

impl Temporary {
    /// Appends `bytes`.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Returns a second handle for reading what was written.
    pub(crate) fn reader(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Puts the file into place, with its side files.
    ///
    /// Body and header file are two renames. Each carries the moment of the fetch, so a reader that meets one old and
    /// one new tries again, and after a crash between them the page counts as absent.
    pub(crate) fn commit(self, new: &NewFile<'_>) -> io::Result<()> {
        let name = new.file.file_name().unwrap_or(OsStr::new(""));
        let name = Path::new(name);
        let parent = new.file.parent().unwrap_or(Path::new(""));
        let mode = Mode::from_raw_mode(new.mode & 0o777);
        let folder = beneath::make_folder(self.docroot.root(), parent, mode)?;
        let docroot = Arc::clone(&self.docroot);
        let (headers, ttl) = (side_file(name, ".h"), side_file(name, ".ttl"));
        match new.expires {
            Some(expires) => {
                let side = docroot.begin(new.mode)?;
                side.place(&folder, &ttl, expires)?;
            }
            None => docroot.forget(&folder, &ttl)?,
        }
        if new.headers.is_empty() {
            self.place(&folder, name, new.fetched)?;
            // Until here the old headers did not fit the new body, so nobody served them together.
            return docroot.forget(&folder, &headers);
        }
        let mut side = docroot.begin(new.mode)?;
        let stored =
            StoredHeaders { fetched: self.as_kept(new.fetched)?, headers: new.headers.clone() };
        side.write(&stored.to_text())?;
        side.place(&folder, &headers, new.fetched)?;
        self.place(&folder, name, new.fetched)
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

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_kept {
            // What cannot be removed now is swept at the next start.
            beneath::unlink(self.docroot.temporary.as_fd(), OsStr::new(&self.name)).ok();
        }
    }
}
