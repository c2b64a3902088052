//! Names and look-ups of blobs in folders, for reading: nothing here changes a file, a folder or a time.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tympan_store::BlobId;

use crate::place::check_note_name;
use crate::{BlobContent, Error, Listed, Result};

/// Returns the digest of a blob as its file is named.
pub(crate) fn hex_of(id: &BlobId) -> String {
    id.digest().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the file that holds a blob: below two folders, by the first digits of its name.
pub(crate) fn file_in(dir: &Path, id: &BlobId) -> PathBuf {
    let [first, second, ..] = id.digest();
    dir.join(format!("{first:02x}")).join(format!("{second:02x}")).join(hex_of(id))
}

/// The folder for what was discarded.
pub(crate) const TRASH: &str = "trash";

/// Returns the file that holds a blob that was discarded.
pub(crate) fn trashed_in(dir: &Path, id: &BlobId) -> PathBuf {
    dir.join(TRASH).join(hex_of(id))
}

/// Returns the file that holds a blob in a folder of Oak's: below three folders.
pub(crate) fn oak_file_in(dir: &Path, id: &BlobId) -> PathBuf {
    let [first, second, third, ..] = id.digest();
    let folder = format!("{first:02x}/{second:02x}/{third:02x}");
    dir.join(folder).join(hex_of(id))
}

/// Opens the file of a blob.
pub(crate) fn open_file(path: &Path, id: &BlobId) -> Result<Option<BlobContent>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(disk("open", path)(error)),
    };
    let length = file.metadata().map_err(disk("inspect", path))?.len();
    if length != id.length() {
        return Err(Error::Damaged { id: *id, length });
    }
    Ok(Some(BlobContent::File { file, length }))
}

/// Tells whether a file of a blob is there with the blob's length.
pub(crate) fn is_whole(path: &Path, id: &BlobId) -> Result<bool> {
    Ok(modified_of(path, id)?.is_some())
}

/// Returns when the file of a blob was put or touched; nothing if it is absent or has another length.
pub(crate) fn modified_of(path: &Path, id: &BlobId) -> Result<Option<SystemTime>> {
    match fs::metadata(path) {
        Ok(found) if found.len() != id.length() => Ok(None),
        Ok(found) => found.modified().map(Some).map_err(disk("inspect", path)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(disk("inspect", path)(error)),
    }
}

/// Shows the blobs below a folder: files named by 64 hexadecimal digits, below folders named by two.
pub(crate) fn list(
    dir: &Path,
    visit: &mut dyn FnMut(Listed) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    for entry in entries(dir)? {
        let (name, path) = entry?;
        let is_folder = name.len() == 2 && name.bytes().all(is_digit) && path.is_dir();
        if is_folder && list_below(&path, visit)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Shows the blobs in a folder named by two digits, and in such folders below it.
fn list_below(
    folder: &Path,
    visit: &mut dyn FnMut(Listed) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    if list_files(folder, visit)?.is_break() {
        return Ok(ControlFlow::Break(()));
    }
    list(folder, visit)
}

/// Shows the blobs that lie in one folder.
pub(crate) fn list_files(
    folder: &Path,
    visit: &mut dyn FnMut(Listed) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    for entry in entries(folder)? {
        let (name, path) = entry?;
        let Some(digest) = parse_digest(&name) else { continue };
        let found = match fs::metadata(&path) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(disk("inspect", &path)(error)),
        };
        let modified = found.modified().map_err(disk("inspect", &path))?;
        if visit(Listed { id: BlobId::new(digest, found.len()), modified }).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Opens a note.
pub(crate) fn open_note(dir: &Path, name: &str) -> Result<Option<BlobContent>> {
    check_note_name(name)?;
    let path = dir.join(name);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(disk("open", &path)(error)),
    };
    let found = file.metadata().map_err(disk("inspect", &path))?;
    Ok(found.is_file().then(|| BlobContent::File { file, length: found.len() }))
}

/// Returns the names of notes, with the time at which each was written, sorted.
pub(crate) fn list_notes(dir: &Path, prefix: &str) -> Result<Vec<(String, SystemTime)>> {
    let mut notes = Vec::new();
    for entry in entries(dir)? {
        let (name, path) = entry?;
        if !name.starts_with(prefix) || check_note_name(&name).is_err() {
            continue;
        }
        match fs::metadata(&path) {
            Ok(found) if found.is_file() => {
                notes.push((name, found.modified().map_err(disk("inspect", &path))?));
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(disk("inspect", &path)(error)),
        }
    }
    notes.sort();
    Ok(notes)
}

/// Reads a folder; one that does not exist is empty. Names that are not UTF-8 are nobody's here.
fn entries(folder: &Path) -> Result<impl Iterator<Item = Result<(String, PathBuf)>> + use<>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => Some(entries),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(disk("list", folder)(error)),
    };
    let folder = folder.to_owned();
    Ok(entries.into_iter().flatten().filter_map(move |entry| match entry {
        Ok(entry) => entry.file_name().into_string().ok().map(|name| Ok((name, entry.path()))),
        Err(error) => Some(Err(disk("list", &folder)(error))),
    }))
}

/// Reads 64 lower-case hexadecimal digits.
pub(crate) fn parse_digest(name: &str) -> Option<[u8; 32]> {
    let digits = name.as_bytes();
    if digits.len() != 64 || !digits.iter().copied().all(is_digit) {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
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

/// Takes something that is not there for removed: another process was faster.
pub(crate) fn ignore_absent(removed: std::io::Result<()>) -> std::io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Names the file and the action of a failed call.
pub(crate) fn disk(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Disk { action, path, source }
}
