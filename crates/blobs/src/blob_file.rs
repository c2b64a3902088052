//! Paths and look-ups of blobs in folders, for reading: nothing here changes a file, a folder or a time.

use std::fs::{self, DirEntry, File, Metadata};
use std::io::{ErrorKind, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tympan_store::BlobId;

use crate::storage::check_note_name;
use crate::{BlobContent, Error, ListedBlob, Result};

/// The mode of blob folders.
const FOLDER_MODE: u32 = 0o700;

/// Returns the digest of a blob in the form of its file name.
pub(crate) fn blob_hex_digest(id: &BlobId) -> String {
    hex::encode(id.digest())
}

/// Returns the path of a blob's file: below two folders, named by the first digits of its name.
pub(crate) fn blob_path(dir: &Path, id: &BlobId) -> PathBuf {
    let [first, second, ..] = id.digest();
    dir.join(format!("{first:02x}")).join(format!("{second:02x}")).join(blob_hex_digest(id))
}

/// The folder for discarded blobs.
pub(crate) const TRASH_DIR: &str = "trash";

/// Returns the path of a discarded blob's file.
pub(crate) fn trashed_blob_path(dir: &Path, id: &BlobId) -> PathBuf {
    dir.join(TRASH_DIR).join(blob_hex_digest(id))
}

/// Returns the path of a blob's file in an Oak folder: below three folders.
pub(crate) fn oak_blob_path(dir: &Path, id: &BlobId) -> PathBuf {
    let [first, second, third, ..] = id.digest();
    let folder = format!("{first:02x}/{second:02x}/{third:02x}");
    dir.join(folder).join(blob_hex_digest(id))
}

/// Opens the file of a blob.
pub(crate) fn open_blob_file(path: &Path, id: &BlobId) -> Result<Option<BlobContent>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(disk_error("open", path)(error)),
    };
    let length = file.metadata().map_err(disk_error("inspect", path))?.len();
    if length != id.length() {
        return Err(Error::Damaged { id: *id, length });
    }
    Ok(Some(BlobContent::File { file, length }))
}

/// Returns true if the file of a blob exists with the blob's length.
pub(crate) fn is_complete_file(path: &Path, id: &BlobId) -> Result<bool> {
    Ok(blob_modified(path, id)?.is_some())
}

/// Returns when the file of a blob was put or touched; `None` if it is absent or has another length.
pub(crate) fn blob_modified(path: &Path, id: &BlobId) -> Result<Option<SystemTime>> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() != id.length() => Ok(None),
        Ok(metadata) => metadata.modified().map(Some).map_err(disk_error("inspect", path)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(disk_error("inspect", path)(error)),
    }
}

/// The kind of entry that a listing looks for in one folder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListedEntryKind {
    Folders,
    Files,
    Both,
}

/// Lists the blobs below a folder: files named by 64 hexadecimal digits, below folders named by two.
pub(crate) fn list_blobs(
    dir: &Path,
    visit: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    list_folder_entries(dir, ListedEntryKind::Folders, visit)
}

/// Lists the blobs in one folder.
pub(crate) fn list_blob_files(
    folder: &Path,
    visit: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    list_folder_entries(folder, ListedEntryKind::Files, visit)
}

/// Reads each folder once, and queries files relative to it: a path from the root would cost as much again.
fn list_folder_entries(
    folder: &Path,
    kinds: ListedEntryKind,
    visit: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(ControlFlow::Continue(())),
        Err(error) => return Err(disk_error("list", folder)(error)),
    };
    for entry in entries {
        let entry = entry.map_err(disk_error("list", folder))?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if name.len() == 2 && kinds != ListedEntryKind::Files && name.bytes().all(is_digit) {
            let is_folder = is_folder(&entry).map_err(disk_error("inspect", folder))?;
            if is_folder
                && list_folder_entries(&entry.path(), ListedEntryKind::Both, visit)?.is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
            continue;
        }
        let Some(digest) = parse_digest(name).filter(|_| kinds != ListedEntryKind::Folders) else {
            continue;
        };
        let Some(metadata) = entry_metadata(&entry)? else { continue };
        let modified = metadata.modified().map_err(disk_error("inspect", &entry.path()))?;
        if visit(ListedBlob { id: BlobId::new(digest, metadata.len()), modified }).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Returns true if an entry is a folder, or a link to one.
fn is_folder(entry: &DirEntry) -> std::io::Result<bool> {
    let kind = entry.file_type()?;
    Ok(kind.is_dir() || (kind.is_symlink() && entry.path().is_dir()))
}

/// Returns the metadata of a file, or of the target of a link; `None` if it has been removed concurrently.
fn entry_metadata(entry: &DirEntry) -> Result<Option<Metadata>> {
    let metadata = entry.metadata().and_then(|link_metadata| {
        if link_metadata.is_symlink() { fs::metadata(entry.path()) } else { Ok(link_metadata) }
    });
    match metadata {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(disk_error("inspect", &entry.path())(error)),
    }
}

/// Opens a note.
pub(crate) fn open_note(dir: &Path, name: &str) -> Result<Option<BlobContent>> {
    check_note_name(name)?;
    let path = dir.join(name);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(disk_error("open", &path)(error)),
    };
    let metadata = file.metadata().map_err(disk_error("inspect", &path))?;
    Ok(metadata.is_file().then(|| BlobContent::File { file, length: metadata.len() }))
}

/// Returns the names of notes, sorted, with the time at which each was written.
pub(crate) fn list_notes(dir: &Path, prefix: &str) -> Result<Vec<(String, SystemTime)>> {
    let mut notes = Vec::new();
    for entry in read_folder_entries(dir)? {
        let (name, path) = entry?;
        if !name.starts_with(prefix) || check_note_name(&name).is_err() {
            continue;
        }
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => {
                notes.push((name, metadata.modified().map_err(disk_error("inspect", &path))?));
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(disk_error("inspect", &path)(error)),
        }
    }
    notes.sort();
    Ok(notes)
}

/// Reads a folder; one that does not exist is empty. Names that are not UTF-8 are ignored.
fn read_folder_entries(
    folder: &Path,
) -> Result<impl Iterator<Item = Result<(String, PathBuf)>> + use<>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => Some(entries),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(disk_error("list", folder)(error)),
    };
    let folder = folder.to_owned();
    Ok(entries.into_iter().flatten().filter_map(move |entry| match entry {
        Ok(entry) => entry.file_name().into_string().ok().map(|name| Ok((name, entry.path()))),
        Err(error) => Some(Err(disk_error("list", &folder)(error))),
    }))
}

/// Parses 64 lower-case hexadecimal digits.
pub(crate) fn parse_digest(name: &str) -> Option<[u8; 32]> {
    let digits = name.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut digest = [0; 32];
    let (pairs, _) = digits.as_chunks::<2>();
    for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
        *byte = value(*high)? << 4 | value(*low)?;
    }
    Some(digest)
}

fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

/// Reads at least one byte unless the source has ended.
pub(crate) fn read_some<'a>(source: &mut dyn Read, buffer: &'a mut [u8]) -> Result<&'a [u8]> {
    loop {
        match source.read(buffer) {
            Ok(length) => return Ok(buffer.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::Source(error)),
        }
    }
}

/// Treats a missing item as removed: another process was faster.
pub(crate) fn ignore_absent(removed: std::io::Result<()>) -> std::io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// Creates a folder, and its missing parents, accessible only to its owner, whatever the umask of the process.
pub(crate) fn create_folder(path: &Path) -> Result<()> {
    let created = fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path);
    created.map_err(disk_error("create", path))
}

/// Creates the error of a failed call, with the file and the action.
pub(crate) fn disk_error(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Disk { action, path, source }
}
