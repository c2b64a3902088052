//! File operations that stay below one folder and follow no symbolic links.
//!
//! The kernel resolves a path in one call (`openat2`). Where a sandbox forbids that call, each component is opened
//! separately.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::{Errno, Result};

/// Opens `path` below `root`.
pub(super) fn open_below(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match openat2(root, path, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS | Errno::PERM) => open_by_segments(root, path, flags),
        outcome => outcome,
    }
}

fn open_by_segments(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd> {
    let folder_flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::PATH;
    let mut folder = openat(root, ".", folder_flags, Mode::empty())?;
    let mut names = path
        .components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(Ok(name)),
            Component::CurDir => None,
            _ => Some(Err(Errno::XDEV)),
        })
        .peekable();
    while let Some(name) = names.next() {
        let name = name?;
        if names.peek().is_none() {
            return openat(folder.as_fd(), name, flags, Mode::empty());
        }
        folder = openat(folder.as_fd(), name, folder_flags, Mode::empty())?;
    }
    openat(folder.as_fd(), ".", flags, Mode::empty())
}

/// Opens the folder `path` below `root`.
pub(super) fn open_folder_below(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd> {
    open_below(root, path, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Opens the folder `path` below `root` and creates missing folders; returns the number of folders created.
pub(super) fn create_folder_below(
    root: BorrowedFd<'_>,
    path: &Path,
    mode: Mode,
) -> Result<(OwnedFd, u64)> {
    match open_folder_below(root, path) {
        Err(Errno::NOENT) => {}
        outcome => return outcome.map(|folder| (folder, 0)),
    }
    let mut created_count = 0;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut folder = open_folder_below(root, Path::new(""))?;
    for component in path.components() {
        let Component::Normal(name) = component else {
            continue;
        };
        match rustix::fs::mkdirat(&folder, name, mode) {
            Ok(()) => created_count += 1,
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        folder = openat(&folder, name, flags, Mode::empty())?;
    }
    Ok((folder, created_count))
}

/// Removes a file or link; an absent one counts as removed.
pub(super) fn unlink_if_present(folder: BorrowedFd<'_>, name: &OsStr) -> Result<bool> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}
