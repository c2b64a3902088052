//! Files and folders of a home that only its owner may access.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use crate::error::{Error, Result};

/// The file that marks a home whose repository is stored in a database, without the database's URL.
pub(crate) const DATABASE_MARK_FILE: &str = "in-database";

/// Returns true if the last instance of a home left the mark that a database stores its repository.
pub fn has_database_mark(dir: &Path) -> bool {
    dir.join("store").join(DATABASE_MARK_FILE).exists()
}

/// Creates a folder that only its owner may access, regardless of the umask. An existing folder is not changed: it may
/// have been opened on purpose to a web server that serves an export below it.
pub fn create_private_dir(dir: &Path) -> std::io::Result<()> {
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists || !dir.is_dir() => {
            Err(error)
        }
        _ => Ok(()),
    }
}

/// Writes a file of a home that only its owner may read.
pub fn write_private_file(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).open(file)?.write_all(bytes)
}

/// Writes a file that only its owner may read.
pub fn write_secret_file(file: &Path, secret: &str) -> Result<()> {
    let write = || -> std::io::Result<()> {
        if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            create_private_dir(folder)?;
        }
        let mut out = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(file)?;
        writeln!(out, "{secret}")?;
        out.sync_all()
    };
    write().map_err(|error| Error::failed(format!("cannot write `{}`", file.display()), error))
}

/// Returns a random string of 32 letters and digits that are hard to confuse.
pub fn random_text() -> Result<String> {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::failed("cannot get random bytes from the system", std::io::Error::from(error))
    })?;
    Ok(bytes
        .iter()
        .filter_map(|byte| LETTERS.get(usize::from(byte % 32)))
        .map(|letter| char::from(*letter))
        .collect())
}

/// Writes a file atomically: after a crash it is complete or absent.
pub(crate) fn write_file_durably(file: &Path, text: &str) -> Result<()> {
    let unfinished = file.with_extension("tmp");
    let write = || -> std::io::Result<()> {
        write_private_file(&unfinished, text.as_bytes())?;
        fs::File::open(&unfinished)?.sync_all()?;
        fs::rename(&unfinished, file)?;
        file.parent().map_or(Ok(()), sync_folder)
    };
    write().map_err(|error| Error::failed(format!("cannot write `{}`", file.display()), error))
}

/// Makes the entries of a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> std::io::Result<()> {
    fs::File::open(folder)?.sync_all()
}
