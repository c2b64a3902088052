//! What a place with files must be able to do, wherever it is.

use std::fmt::Debug;
use std::io::Read;
use std::time::SystemTime;

/// The most files of one place: what is kept in memory for each is counted with this in mind.
pub const MAX_FILES: usize = 1_000_000;
/// The deepest folder that is looked into.
pub const MAX_FOLDER_DEPTH: usize = 32;
/// The largest file that is taken.
pub(crate) const MAX_FILE_BYTES: u64 = 64 << 30;

/// A file as it was listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// The names from the root of the place, each escaped, joined by `/`.
    pub path: String,
    /// A text that differs when the bytes do.
    pub fingerprint: String,
    /// What stays the same when the file gets another name, where the place tells.
    pub identity: Option<String>,
    /// How long it is, where the place tells.
    pub byte_count: Option<u64>,
    /// When it was last written, where the place tells and writes are seen before they are complete.
    pub modified_at: Option<SystemTime>,
    /// By which name the place gives its bytes, if not by the path.
    pub source_handle: String,
}

/// What a listing finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceItem {
    /// A file.
    File(SourceFile),
    /// Something that is left out, by its path, and why.
    Skipped(String, String),
}

/// A place with files.
pub trait MountSource: Debug + Send + Sync {
    /// Tells each file, in any order. An error of `found` ends the listing.
    ///
    /// # Errors
    /// If any part of the place cannot be listed: what was told so far is then not all of it.
    fn list_files(
        &self,
        found: &mut dyn FnMut(SourceItem) -> Result<(), MountSourceError>,
    ) -> Result<(), MountSourceError>;

    /// Tells whether an identity means the same file also when its bytes changed. A directory reuses its numbers.
    fn has_persistent_identities(&self) -> bool {
        false
    }

    /// Opens a file. A reader that gives other bytes than were listed, or not all of them, fails at its end.
    ///
    /// # Errors
    /// If it cannot be read.
    fn open_file(&self, entry: &SourceFile) -> Result<Box<dyn Read + Send>, MountSourceError>;
}

/// Why a place does not give what it should. No message holds a password or a signature.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountSourceError {
    /// It does not answer, or breaks off.
    #[error("`{location}` cannot be reached: {reason}")]
    Unreachable {
        /// What was asked for.
        location: String,
        /// Why.
        reason: String,
    },
    /// It answers, and says no.
    #[error("`{location}` is refused: {reason}")]
    Refused {
        /// What was asked for.
        location: String,
        /// Why.
        reason: String,
    },
    /// What it answers cannot be right.
    #[error("the listing of `{location}` cannot be right: {reason}")]
    Malformed {
        /// What was asked for.
        location: String,
        /// Why.
        reason: String,
    },
    /// It holds more than is followed.
    #[error("`{0}` holds more than {MAX_FILES} files; mount its folders one by one")]
    TooMany(String),
    /// A file or folder of this machine cannot be read.
    #[error("cannot read `{file}`")]
    Read {
        /// Its path.
        file: String,
        /// The cause.
        source: std::io::Error,
    },
    /// Whoever listens wants no more.
    #[error("it was stopped")]
    Stopped,
}

impl MountSourceError {
    /// Tells whether trying again can help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Read { .. })
    }
}

/// Tells why files of this name are none of people's: hidden ones, and what programs write before the file is complete.
pub(crate) fn is_ignored_name(name: &[u8]) -> bool {
    const PREFIXES: [&[u8]; 2] = [b".", b"~$"];
    const SUFFIXES: [&[u8]; 5] = [b".part", b".partial", b".filepart", b".crdownload", b".tmp"];
    const NAMES: [&[u8]; 2] = [b"Thumbs.db", b"desktop.ini"];
    // `.` and `..` are names in a bucket.
    let is_place = name == b"." || name == b"..";
    let is_hidden = !is_place && PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    is_hidden || SUFFIXES.iter().any(|suffix| name.ends_with(suffix)) || NAMES.contains(&name)
}

/// Joins a folder's path and an escaped name.
pub(crate) fn join_escaped_path(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}
