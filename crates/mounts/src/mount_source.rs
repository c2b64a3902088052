//! The interface of a source of files.

use std::fmt::Debug;
use std::io::Read;
use std::time::SystemTime;

/// Maximum number of files of one source; the memory per file is chosen with this number in mind.
pub const MAX_FILES: usize = 1_000_000;
/// Maximum depth of folders.
pub const MAX_FOLDER_DEPTH: usize = 32;
/// Maximum size of a file, in bytes.
pub(crate) const MAX_FILE_BYTES: u64 = 64 << 30;

/// A listed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// The path from the root of the source: each name escaped, joined by `/`.
    pub path: String,
    /// A text that changes when the bytes do.
    pub fingerprint: String,
    /// An identity that survives renames, if the source provides one.
    pub identity: Option<String>,
    /// The file's length in bytes, if the source provides it.
    pub byte_count: Option<u64>,
    /// The time of the last write, if the source provides it and incomplete writes are visible.
    pub modified_at: Option<SystemTime>,
    /// The handle by which the source returns the bytes, if not the path.
    pub source_handle: String,
}

/// An entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceItem {
    /// A file.
    File(SourceFile),
    /// An entry that is skipped: its path, and the reason.
    Skipped(String, String),
}

/// A source of files.
pub trait MountSource: Debug + Send + Sync {
    /// Lists the files, in any order. An error of `visit_item` ends the listing.
    ///
    /// # Errors
    /// If any part of the source cannot be listed; the files reported so far are then incomplete.
    fn list_files(
        &self,
        visit_item: &mut dyn FnMut(SourceItem) -> Result<(), MountSourceError>,
    ) -> Result<(), MountSourceError>;

    /// Returns true if an identity means the same file even if its bytes changed. A directory reuses its inode numbers.
    fn has_persistent_identities(&self) -> bool {
        false
    }

    /// Opens a file. If the reader yields other bytes than were listed, or not all of them, it fails at its end.
    ///
    /// # Errors
    /// If the file cannot be read.
    fn open_file(&self, entry: &SourceFile) -> Result<Box<dyn Read + Send>, MountSourceError>;
}

/// An error of a source. No message contains a password or a signature.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountSourceError {
    /// The source does not respond, or breaks off.
    #[error("`{location}` cannot be reached: {reason}")]
    Unreachable {
        /// The requested location.
        location: String,
        /// The reason.
        reason: String,
    },
    /// The source rejects the request.
    #[error("cannot use `{location}`: {reason}")]
    Refused {
        /// The requested location.
        location: String,
        /// The reason.
        reason: String,
    },
    /// The response is invalid.
    #[error("the listing of `{location}` is malformed: {reason}")]
    Malformed {
        /// The requested location.
        location: String,
        /// The reason.
        reason: String,
    },
    /// The source exceeds a limit.
    #[error("`{0}` holds more than {MAX_FILES} files; mount its folders one by one")]
    TooMany(String),
    /// A local file or folder cannot be read.
    #[error("cannot read `{file}`")]
    Read {
        /// Its path.
        file: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The receiver of the listing stopped it.
    #[error("the listing was stopped")]
    Stopped,
}

impl MountSourceError {
    /// Returns true if a retry can help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Read { .. })
    }
}

/// Returns true if files of this name are ignored: hidden files, and files that programs write before they are
/// complete.
pub(crate) fn is_ignored_name(name: &[u8]) -> bool {
    const PREFIXES: [&[u8]; 2] = [b".", b"~$"];
    const SUFFIXES: [&[u8]; 5] = [b".part", b".partial", b".filepart", b".crdownload", b".tmp"];
    const NAMES: [&[u8]; 2] = [b"Thumbs.db", b"desktop.ini"];
    // `.` and `..` are valid names in a bucket.
    let is_place = name == b"." || name == b"..";
    let is_hidden = !is_place && PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    is_hidden || SUFFIXES.iter().any(|suffix| name.ends_with(suffix)) || NAMES.contains(&name)
}

/// Joins a folder's path with an escaped name.
pub(crate) fn join_escaped_path(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}
