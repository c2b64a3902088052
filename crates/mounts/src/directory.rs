//! Lists and reads the files of a local directory, or of one that is mounted from elsewhere.
//!
//! Invariants
//! * Nothing outside the directory is read: every folder and file is opened relative to its parent, and no link is
//!   followed, not even one that replaces a folder during the listing.
//! * Reading a file that changes during the read fails at its end.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{Dir, FileType, Mode, OFlags, openat};

use crate::mount_source::{
    MAX_FILES, MAX_FOLDER_DEPTH, MountSource, MountSourceError, SourceFile, SourceItem,
    is_ignored_name, join_escaped_path,
};
use crate::name_escaping::{escape_name, unescape_name};

/// A directory.
#[derive(Debug, Clone)]
pub struct DirectorySource {
    root: PathBuf,
}

impl DirectorySource {
    /// Creates a source for a directory; a link to a directory is resolved.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn open_root(&self) -> Result<OwnedFd, MountSourceError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&self.root, flags, Mode::empty())
            .map_err(|error| self.unreadable_error("", error.into()))
    }

    fn unreadable_error(&self, path: &str, source: io::Error) -> MountSourceError {
        let file = if path.is_empty() {
            self.root.display().to_string()
        } else {
            format!("{}/{path}", self.root.display())
        };
        MountSourceError::Read { file, source }
    }
}

/// A listing in progress.
struct DirectoryScan<'a> {
    directory: &'a DirectorySource,
    visitor: &'a mut dyn FnMut(SourceItem) -> Result<(), MountSourceError>,
    file_count: usize,
}

impl DirectoryScan<'_> {
    fn list_folder(
        &mut self,
        folder: &OwnedFd,
        path: &str,
        depth: usize,
    ) -> Result<(), MountSourceError> {
        let unreadable =
            |error: rustix::io::Errno| self.directory.unreadable_error(path, error.into());
        let entries = Dir::read_from(folder).map_err(unreadable)?;
        for entry in entries {
            let entry =
                entry.map_err(|error| self.directory.unreadable_error(path, error.into()))?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") || is_ignored_name(name) {
                continue;
            }
            let below = join_escaped_path(path, &escape_name(name));
            let kind = entry.file_type();
            if kind == FileType::Directory {
                self.scan_subfolder(folder, entry.file_name(), &below, depth)?;
            } else if matches!(kind, FileType::RegularFile | FileType::Unknown) {
                self.visit_child(folder, entry.file_name(), below, depth)?;
            }
        }
        Ok(())
    }

    fn scan_subfolder(
        &mut self,
        folder: &OwnedFd,
        name: &std::ffi::CStr,
        path: &str,
        depth: usize,
    ) -> Result<(), MountSourceError> {
        if depth >= MAX_FOLDER_DEPTH {
            let reason = format!("it is nested deeper than {MAX_FOLDER_DEPTH} folders");
            return (self.visitor)(SourceItem::Skipped(path.to_owned(), reason));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(folder, name, flags, Mode::empty()) {
            Ok(child) => self.list_folder(&child, path, depth + 1),
            // The entry was removed or replaced since the folder was listed.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
                Ok(())
            }
            Err(error) => Err(self.directory.unreadable_error(path, error.into())),
        }
    }

    fn visit_child(
        &mut self,
        folder: &OwnedFd,
        name: &std::ffi::CStr,
        path: String,
        depth: usize,
    ) -> Result<(), MountSourceError> {
        let looked = rustix::fs::statat(folder, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        let stat = match looked {
            Ok(stat) => stat,
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            Err(error) => return Err(self.directory.unreadable_error(&path, error.into())),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return self.scan_subfolder(folder, name, &path, depth),
            _ => return Ok(()),
        }
        self.file_count += 1;
        if self.file_count > MAX_FILES {
            return Err(MountSourceError::TooMany(self.directory.root.display().to_string()));
        }
        let bytes = u64::try_from(stat.st_size).unwrap_or_default();
        let (seconds, nanos) = (stat.st_mtime, stat.st_mtime_nsec);
        (self.visitor)(SourceItem::File(SourceFile {
            path,
            fingerprint: stat_fingerprint(bytes, seconds, nanos),
            identity: Some(format!("{}:{}", stat.st_dev, stat.st_ino)),
            byte_count: Some(bytes),
            modified_at: u64::try_from(seconds).ok().map(|seconds| {
                SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_nanos(nanos)
            }),
            source_handle: String::new(),
        }))
    }
}

fn stat_fingerprint(bytes: u64, seconds: i64, nanos: u64) -> String {
    format!("{bytes}-{seconds}.{nanos:09}")
}

impl MountSource for DirectorySource {
    fn list_files(
        &self,
        visit_item: &mut dyn FnMut(SourceItem) -> Result<(), MountSourceError>,
    ) -> Result<(), MountSourceError> {
        let root = self.open_root()?;
        DirectoryScan { directory: self, visitor: visit_item, file_count: 0 }
            .list_folder(&root, "", 0)
    }

    fn open_file(&self, entry: &SourceFile) -> Result<Box<dyn Read + Send>, MountSourceError> {
        let unreadable = |error: io::Error| self.unreadable_error(&entry.path, error);
        let mut folder = self.open_root()?;
        let mut names = entry.path.split('/').peekable();
        while let Some(name) = names.next() {
            let name = unescape_name(name)
                .filter(|name| name != b"." && name != b".." && !name.contains(&b'/'))
                .ok_or_else(|| unreadable(io::Error::other("its name is invalid")))?;
            let name = Path::new(std::ffi::OsStr::from_bytes(&name));
            let kind = match names.peek() {
                Some(_) => OFlags::DIRECTORY,
                // Without this flag, a pipe that replaced the file would block until its other end opens.
                None => OFlags::NONBLOCK,
            };
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | kind;
            folder = openat(folder.as_fd(), name, flags, Mode::empty())
                .map_err(|error| unreadable(error.into()))?;
        }
        let file = File::from(folder);
        if !file.metadata().map_err(unreadable)?.is_file() {
            return Err(unreadable(io::Error::other("it is no longer a file")));
        }
        Ok(Box::new(UnchangedFileReader { file, fingerprint: entry.fingerprint.clone() }))
    }
}

/// A reader that compares the file with its listed state at the end.
struct UnchangedFileReader {
    file: File,
    fingerprint: String,
}

impl Read for UnchangedFileReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        if read == 0 && !buffer.is_empty() {
            let now = self.file.metadata()?;
            let nanos = u64::try_from(now.mtime_nsec()).unwrap_or_default();
            if stat_fingerprint(now.len(), now.mtime(), nanos) != self.fingerprint {
                return Err(io::Error::other("it changed while it was read"));
            }
        }
        Ok(read)
    }
}
