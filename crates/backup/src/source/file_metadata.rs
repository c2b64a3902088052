//! File metadata of the system, converted to the vault's form.

use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::path::Path;

use crate::vault::node::{ExtendedAttribute, NodeTime, SnapshotNodeKind, go_mode};

pub(super) fn node_time(seconds: i64, nanos: i64) -> NodeTime {
    NodeTime { seconds, nanos: u32::try_from(nanos).unwrap_or(0) }
}

/// Converts a system mode to a vault mode.
pub(super) fn to_vault_mode(mode: u32, kind: SnapshotNodeKind) -> u32 {
    let kind = match kind {
        SnapshotNodeKind::File | SnapshotNodeKind::Irregular => 0,
        SnapshotNodeKind::Dir => go_mode::DIR,
        SnapshotNodeKind::Symlink => go_mode::SYMLINK,
        SnapshotNodeKind::Dev => go_mode::DEVICE,
        SnapshotNodeKind::Chardev => go_mode::DEVICE | go_mode::CHARACTER,
        SnapshotNodeKind::Fifo => go_mode::FIFO,
        SnapshotNodeKind::Socket => go_mode::SOCKET,
    };
    let special = [(0o4000, go_mode::SETUID), (0o2000, go_mode::SETGID), (0o1000, go_mode::STICKY)];
    let set = special.iter().filter(|(bit, _)| mode & bit != 0);
    set.fold(mode & 0o777 | kind, |all, (_, bit)| all | bit)
}

/// Reads all extended attributes; returns none if the file system does not support them.
pub(super) fn read_attributes(path: &Path) -> io::Result<Vec<ExtendedAttribute>> {
    let mut names = Vec::new();
    let listed = read_with_growing_buffer(
        &mut names,
        || rustix::fs::llistxattr_query(path),
        |buffer| rustix::fs::llistxattr(path, buffer),
    );
    read_listed_attributes(listed, &names, |name, value| {
        read_with_growing_buffer(
            value,
            || rustix::fs::lgetxattr_query(path, name),
            |buffer| rustix::fs::lgetxattr(path, name, buffer),
        )
    })
}

/// Like [`read_attributes`], for an open file.
pub(crate) fn read_file_attributes(file: BorrowedFd<'_>) -> io::Result<Vec<ExtendedAttribute>> {
    let mut names = Vec::new();
    let listed = read_with_growing_buffer(
        &mut names,
        || rustix::fs::flistxattr_query(file),
        |buffer| rustix::fs::flistxattr(file, buffer),
    );
    read_listed_attributes(listed, &names, |name, value| {
        read_with_growing_buffer(
            value,
            || rustix::fs::fgetxattr_query(file, name),
            |buffer| rustix::fs::fgetxattr(file, name, buffer),
        )
    })
}

/// Reads the attributes with the listed names.
fn read_listed_attributes(
    listed: io::Result<()>,
    names: &[u8],
    read: impl Fn(&[u8], &mut Vec<u8>) -> io::Result<()>,
) -> io::Result<Vec<ExtendedAttribute>> {
    match listed {
        Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(Vec::new()),
        listed => listed?,
    }
    let mut attributes = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = Vec::new();
        match read(name, &mut value) {
            // It was removed after the names were listed, or this user may not read it.
            Err(error) if matches!(error.raw_os_error(), Some(61 | 1 | 13)) => continue,
            read => read?,
        }
        attributes
            .push(ExtendedAttribute { name: String::from_utf8_lossy(name).into_owned(), value });
    }
    attributes.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(attributes)
}

/// Queries the length and fills a buffer of that length, repeating while the value grew in between.
fn read_with_growing_buffer(
    buffer: &mut Vec<u8>,
    query: impl Fn() -> rustix::io::Result<usize>,
    read: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<()> {
    loop {
        let length = query()?;
        if length == 0 {
            buffer.clear();
            return Ok(());
        }
        buffer.resize(length, 0);
        match read(buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(());
            }
            Err(rustix::io::Errno::RANGE) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
