//! Removing files that a snapshot does not contain from the folder that it is restored into.
//!
//! Invariants
//! * Nothing outside of the folder is removed: each folder is opened relative to its parent, without following links.
//! * What is not selected stays, and so do its parent folders.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Removes the selected part of an entry of an open folder, recursively; returns the number of removed items.
///
/// # Errors
/// The first item that cannot be removed.
pub(crate) fn remove_recursively(
    folder: BorrowedFd<'_>,
    name: &[u8],
    path: &Path,
    is_selected: &dyn Fn(&Path) -> bool,
) -> io::Result<u64> {
    if !is_selected(path) {
        return Ok(0);
    }
    let facts = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(facts.st_mode) != FileType::Directory {
        rustix::fs::unlinkat(folder, name, AtFlags::empty())?;
        return Ok(1);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(folder, name, flags, Mode::empty())?;
    let mut removed = 0;
    for below in list_names(opened.as_fd())? {
        let path = path.join(OsStr::from_bytes(&below));
        removed += remove_recursively(opened.as_fd(), &below, &path, is_selected)?;
    }
    match rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR) {
        Ok(()) => Ok(removed + 1),
        // The folder still contains items that are not selected.
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(removed),
        Err(error) => Err(error.into()),
    }
}

/// Lists the names in an open folder.
pub(crate) fn list_names(folder: BorrowedFd<'_>) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
}
