//! Files of a directory of this machine, or of one that it mounts from elsewhere.
//!
//! Invariants
//! * Nothing outside of the directory is read: every folder and file is opened from the one above it, and no link is
//!   followed, also one that takes a folder's place between two looks.
//! * A file that changes while it is read fails at its end.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{Dir, FileType, Mode, OFlags, openat};

use super::name::{escape, unescape};
use super::source::{Entry, Found, MAX_DEPTH, MAX_FILES, Source, SourceError, is_left_out, joined};

/// A directory.
#[derive(Debug, Clone)]
pub struct Directory {
    root: PathBuf,
}

impl Directory {
    /// Names a directory; a link to one counts as what it leads to.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn open_root(&self) -> Result<OwnedFd, SourceError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&self.root, flags, Mode::empty())
            .map_err(|error| self.unreadable("", error.into()))
    }

    fn unreadable(&self, path: &str, source: io::Error) -> SourceError {
        let file = if path.is_empty() {
            self.root.display().to_string()
        } else {
            format!("{}/{path}", self.root.display())
        };
        SourceError::Read { file, source }
    }
}

/// A listing on its way.
struct Listing<'a> {
    directory: &'a Directory,
    found: &'a mut dyn FnMut(Found) -> Result<(), SourceError>,
    files: usize,
}

impl Listing<'_> {
    fn list(&mut self, folder: &OwnedFd, path: &str, depth: usize) -> Result<(), SourceError> {
        let unreadable = |error: rustix::io::Errno| self.directory.unreadable(path, error.into());
        let entries = Dir::read_from(folder).map_err(unreadable)?;
        for entry in entries {
            let entry = entry.map_err(|error| self.directory.unreadable(path, error.into()))?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") || is_left_out(name) {
                continue;
            }
            let below = joined(path, &escape(name));
            let kind = entry.file_type();
            if kind == FileType::Directory {
                self.descend(folder, entry.file_name(), &below, depth)?;
            } else if matches!(kind, FileType::RegularFile | FileType::Unknown) {
                self.look_at(folder, entry.file_name(), below, depth)?;
            }
        }
        Ok(())
    }

    fn descend(
        &mut self,
        folder: &OwnedFd,
        name: &std::ffi::CStr,
        path: &str,
        depth: usize,
    ) -> Result<(), SourceError> {
        if depth >= MAX_DEPTH {
            let reason = format!("it lies deeper than {MAX_DEPTH} folders");
            return (self.found)(Found::LeftOut(path.to_owned(), reason));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(folder, name, flags, Mode::empty()) {
            Ok(child) => self.list(&child, path, depth + 1),
            // It went away, or something else took its place, since the folder was listed.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
                Ok(())
            }
            Err(error) => Err(self.directory.unreadable(path, error.into())),
        }
    }

    fn look_at(
        &mut self,
        folder: &OwnedFd,
        name: &std::ffi::CStr,
        path: String,
        depth: usize,
    ) -> Result<(), SourceError> {
        let looked = rustix::fs::statat(folder, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        let stat = match looked {
            Ok(stat) => stat,
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            Err(error) => return Err(self.directory.unreadable(&path, error.into())),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return self.descend(folder, name, &path, depth),
            _ => return Ok(()),
        }
        self.files += 1;
        if self.files > MAX_FILES {
            return Err(SourceError::TooMany(self.directory.root.display().to_string()));
        }
        let bytes = u64::try_from(stat.st_size).unwrap_or_default();
        let (seconds, nanos) = (stat.st_mtime, stat.st_mtime_nsec);
        (self.found)(Found::File(Entry {
            path,
            mark: mark(bytes, seconds, nanos),
            identity: Some(format!("{}:{}", stat.st_dev, stat.st_ino)),
            bytes: Some(bytes),
            modified: u64::try_from(seconds).ok().map(|seconds| {
                SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_nanos(nanos)
            }),
            handle: String::new(),
        }))
    }
}

fn mark(bytes: u64, seconds: i64, nanos: u64) -> String {
    format!("{bytes}-{seconds}.{nanos:09}")
}

impl Source for Directory {
    fn list(
        &self,
        found: &mut dyn FnMut(Found) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let root = self.open_root()?;
        Listing { directory: self, found, files: 0 }.list(&root, "", 0)
    }

    fn open(&self, entry: &Entry) -> Result<Box<dyn Read + Send>, SourceError> {
        let unreadable = |error: io::Error| self.unreadable(&entry.path, error);
        let mut folder = self.open_root()?;
        let mut names = entry.path.split('/').peekable();
        while let Some(name) = names.next() {
            let name = unescape(name)
                .filter(|name| name != b"." && name != b".." && !name.contains(&b'/'))
                .ok_or_else(|| unreadable(io::Error::other("its name leads elsewhere")))?;
            let name = Path::new(std::ffi::OsStr::from_bytes(&name));
            let kind = match names.peek() {
                Some(_) => OFlags::DIRECTORY,
                // A pipe that took the file's place would wait for its other end.
                None => OFlags::NONBLOCK,
            };
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | kind;
            folder = openat(folder.as_fd(), name, flags, Mode::empty())
                .map_err(|error| unreadable(error.into()))?;
        }
        let file = File::from(folder);
        if !file.metadata().map_err(unreadable)?.is_file() {
            return Err(unreadable(io::Error::other("it is no file any more")));
        }
        Ok(Box::new(Watched { file, mark: entry.mark.clone() }))
    }
}

/// A file that is compared with how it was listed when its end is reached.
struct Watched {
    file: File,
    mark: String,
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        if read == 0 && !buffer.is_empty() {
            let now = self.file.metadata()?;
            let nanos = u64::try_from(now.mtime_nsec()).unwrap_or_default();
            if mark(now.len(), now.mtime(), nanos) != self.mark {
                return Err(io::Error::other("it changed while it was read"));
            }
        }
        Ok(read)
    }
}
