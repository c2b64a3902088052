//! The ZIP file of a package: its entries, with bounded sizes and safe names.
//!
//! Invariants
//! * No entry's name is absolute or leaves the archive: names are relative, `/` separates, and no segment is empty, `.`
//!   or `..`.
//! * No entry yields a number of bytes other than its header declares. The sum of these is bounded, also relative to
//!   the size of the ZIP file, and no two entries share bytes, so a small file cannot unpack to a huge one.
//!
//! On failure: [`crate::Error::InvalidPackage`]; nothing of the package is used then.

use std::fmt;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use tympan_content::JcrDate;
use zip::read::{Config, ZipFile};
use zip::result::ZipError;
use zip::unstable::read::ZipIterable;
use zip::{CompressionMethod, ZipArchive};

use crate::{Error, Result};

/// Limits on the content of a package; a package that exceeds one is refused before anything is imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageLimits {
    /// Maximum number of entries of the ZIP file; nested packages are counted separately.
    pub max_entries: usize,
    /// Maximum total of unpacked bytes of all entries.
    pub max_total_bytes: u64,
    /// Maximum ratio of unpacked bytes to the size of the file, beyond the first GiB.
    pub max_inflation: u64,
    /// Maximum size of one XML file in bytes; the file is held in memory while it is read.
    pub max_document_bytes: u64,
    /// Maximum total size in bytes of all XML files that describe nodes; their content is held in memory until the
    /// installation ends. Nested packages count too, here and in the next two limits.
    pub max_all_documents_bytes: u64,
    /// Maximum number of nodes in these files.
    pub max_nodes: usize,
    /// Maximum number of properties in these files.
    pub max_properties: usize,
    /// Maximum size of one attribute of a docview in bytes.
    pub max_value_bytes: usize,
    /// Maximum number of names in a node path.
    pub max_depth: usize,
    /// Maximum depth of nested packages.
    pub max_nesting: usize,
    /// Maximum total size of nested packages in bytes; these are held in memory until the installation ends.
    pub max_nested_bytes: u64,
}

impl Default for PackageLimits {
    fn default() -> Self {
        Self {
            max_entries: 500_000,
            max_total_bytes: 16 << 30,
            max_inflation: 100,
            max_document_bytes: 64 << 20,
            max_all_documents_bytes: 512 << 20,
            max_nodes: 1_000_000,
            max_properties: 8_000_000,
            max_value_bytes: 16 << 20,
            max_depth: 128,
            max_nesting: 4,
            max_nested_bytes: 256 << 20,
        }
    }
}

/// The display name of a file in messages: an entry, or the package itself.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PackageFileName(Arc<str>);

impl PackageFileName {
    pub(crate) fn new(name: &str) -> Self {
        Self(Arc::from(name))
    }

    /// Returns the display name of `entry` in this package; for nested packages it includes the full chain of names.
    pub(crate) fn entry_file_name(&self, nested_in: Option<&Self>, entry: &str) -> Self {
        match nested_in {
            Some(_) => Self(format!("{self}!{entry}").into()),
            None => Self::new(entry),
        }
    }

    /// Creates the error that refuses the package because of this file.
    pub(crate) fn to_error(&self, line: u32, message: impl Into<String>) -> Error {
        Error::InvalidPackage { file: self.to_string(), line, message: message.into() }
    }
}

impl fmt::Display for PackageFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PackageFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The directory information of an entry of the ZIP file.
#[derive(Debug)]
pub(crate) struct PackageEntry {
    /// The name without a final `/`.
    pub(crate) name: String,
    pub(crate) is_directory: bool,
    /// The unpacked size in bytes.
    pub(crate) size: u64,
    pub(crate) modified: JcrDate,
}

/// An opened ZIP file.
pub(crate) struct PackageArchive<R> {
    zip: ZipArchive<R>,
    file_name: PackageFileName,
    nested_in: Option<PackageFileName>,
    pub(crate) entries: Vec<PackageEntry>,
}

/// The unpacked size in bytes that any package may reach, however small its file is.
const MIN_UNPACKED_LIMIT_BYTES: u64 = 1 << 30;

/// Maximum size in bytes of the ZIP directory, which is held in memory.
const MAX_DIRECTORY_BYTES: u64 = 128 << 20;

/// The number of entries in a directory.
enum ArchiveEntryCount {
    Exact(usize),
    TooMany(usize),
    /// The directory exceeds its size limit.
    DirectoryTooLarge,
}

/// Counts the entries of a ZIP file without storing them.
fn count_entries<R: Read + Seek>(reader: R, limit: usize) -> Result<ArchiveEntryCount, ZipError> {
    let mut directory = ZipIterable::try_new(reader, Config::default())?;
    let count = directory.len();
    if count > limit {
        return Ok(ArchiveEntryCount::TooMany(count));
    }
    let entries = directory.files()?;
    let begin = entries.reader_mut().stream_position()?;
    while let Some(entry) = entries.next() {
        entry?;
        let length = entries.reader_mut().stream_position()?.saturating_sub(begin);
        if length > MAX_DIRECTORY_BYTES {
            return Ok(ArchiveEntryCount::DirectoryTooLarge);
        }
    }
    Ok(ArchiveEntryCount::Exact(count))
}

impl<R: Read + Seek> PackageArchive<R> {
    /// Opens a ZIP file and checks its whole directory.
    ///
    /// # Errors
    /// If it is not a ZIP file, or an entry is unsafe, unreadable or over a limit.
    pub(crate) fn open(
        mut reader: R,
        file: PackageFileName,
        nested_in: Option<PackageFileName>,
        limits: &PackageLimits,
    ) -> Result<Self> {
        let unreadable = |error: &ZipError| {
            archive_error(&file, error, "cannot be read as a ZIP file; is it complete?")
        };
        let length = reader.seek(SeekFrom::End(0)).map_err(|error| unreadable(&error.into()))?;
        let count = match count_entries(&mut reader, limits.max_entries) {
            Ok(ArchiveEntryCount::Exact(count)) => count,
            Ok(ArchiveEntryCount::TooMany(count)) => {
                let message =
                    format!("the {count} entries exceed the limit of {}", limits.max_entries);
                return Err(file.to_error(0, message));
            }
            Ok(ArchiveEntryCount::DirectoryTooLarge) => {
                let message =
                    format!("its central directory is longer than {MAX_DIRECTORY_BYTES} bytes");
                return Err(file.to_error(0, message));
            }
            Err(error) => return Err(unreadable(&error)),
        };
        let zip = ZipArchive::new(reader).map_err(|error| unreadable(&error))?;
        if zip.len() > count {
            return Err(file.to_error(0, "it has two central directories"));
        }
        if zip.has_duplicate_names() {
            return Err(file.to_error(0, "two entries have the same name"));
        }
        let mut archive = Self { zip, file_name: file, nested_in, entries: Vec::new() };
        let inflated =
            length.saturating_mul(limits.max_inflation).saturating_add(MIN_UNPACKED_LIMIT_BYTES);
        archive.read_directory(limits.max_total_bytes.min(inflated))?;
        Ok(archive)
    }

    fn read_directory(&mut self, limit: u64) -> Result<()> {
        let mut total = 0_u64;
        let mut ranges = Vec::with_capacity(self.zip.len());
        for index in 0..self.zip.len() {
            let entry = self.zip.by_index_raw(index).map_err(|error| {
                archive_error(&self.file_name, &error, "has a damaged directory")
            })?;
            let begin = entry.data_start().unwrap_or_default();
            ranges.push((entry.header_start(), begin.saturating_add(entry.compressed_size())));
            let entry = read_entry_metadata(&self.file_name, &entry)?;
            total = total.saturating_add(entry.size);
            if total > limit {
                let message = format!("unpacks to more than the limit of {limit} bytes");
                return Err(self.file_name.to_error(0, message));
            }
            self.entries.push(entry);
        }
        ranges.sort_unstable();
        let overlaps = |pair: &[(u64, u64)]| matches!(pair, [(_, end), (begin, _)] if end > begin);
        if ranges.windows(2).any(overlaps) {
            return Err(self.file_name.to_error(0, "two entries overlap in the ZIP file"));
        }
        Ok(())
    }

    /// Returns the display name of an entry for messages.
    pub(crate) fn entry_file_name(&self, index: usize) -> PackageFileName {
        let name = self.entries.get(index).map_or("", |entry| entry.name.as_str());
        self.file_name.entry_file_name(self.nested_in.as_ref(), name)
    }

    /// Finds an entry by its exact name.
    pub(crate) fn find_entry(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.name == name && !entry.is_directory)
    }

    /// Opens an entry's bytes.
    ///
    /// # Errors
    /// If its compression is unknown or its header is damaged.
    pub(crate) fn open_entry(&mut self, index: usize) -> Result<PackageEntryReader<'_, R>> {
        let file = self.entry_file_name(index);
        let size = self.entries.get(index).map_or(0, |entry| entry.size);
        let entry = self
            .zip
            .by_index(index)
            .map_err(|error| archive_error(&file, &error, "cannot be unpacked"))?;
        Ok(PackageEntryReader {
            entry,
            remaining_bytes: size,
            damage_message: None,
            file_name: file,
        })
    }

    /// Reads the beginning of an entry into memory.
    ///
    /// # Errors
    /// If the entry is damaged.
    pub(crate) fn read_entry_beginning(&mut self, index: usize, length: u64) -> Result<Vec<u8>> {
        let mut reader = self.open_entry(index)?;
        let mut bytes = Vec::new();
        match reader.by_ref().take(length).read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(error) => Err(reader.read_error(error)),
        }
    }

    /// Reads an entry into memory.
    ///
    /// # Errors
    /// If it is longer than `limit` bytes, or damaged.
    pub(crate) fn read_entry(&mut self, index: usize, limit: u64) -> Result<Vec<u8>> {
        let mut reader = self.open_entry(index)?;
        if reader.remaining_bytes > limit {
            let message = format!("is longer than the limit of {limit} bytes");
            return Err(reader.file_name.to_error(0, message));
        }
        // A forged size must not make the reader reserve memory that is never filled.
        let expected = usize::try_from(reader.remaining_bytes.min(1 << 20)).unwrap_or(0);
        let mut bytes = Vec::with_capacity(expected);
        match reader.read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(error) => Err(reader.read_error(error)),
        }
    }
}

impl<R> fmt::Debug for PackageArchive<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackageArchive")
            .field("file", &self.file_name)
            .field("entries", &self.entries.len())
            .finish_non_exhaustive()
    }
}

/// The bytes of one entry; reading verifies their number and checksum.
pub(crate) struct PackageEntryReader<'a, R: Read> {
    entry: ZipFile<'a, R>,
    remaining_bytes: u64,
    damage_message: Option<String>,
    file_name: PackageFileName,
}

impl<R: Read> PackageEntryReader<'_, R> {
    /// Returns the error that makes the entry unreadable, if its bytes are damaged.
    pub(crate) fn take_damage_error(&self) -> Option<Error> {
        self.damage_message.as_ref().map(|message| self.file_name.to_error(0, message.clone()))
    }

    fn read_error(&self, source: std::io::Error) -> Error {
        self.take_damage_error()
            .unwrap_or_else(|| Error::Read { input_name: format!("`{}`", self.file_name), source })
    }

    fn record_damage(&mut self, message: &str) -> std::io::Error {
        self.damage_message = Some(message.to_owned());
        std::io::Error::new(std::io::ErrorKind::InvalidData, message.to_owned())
    }
}

impl<R: Read> Read for PackageEntryReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = match self.entry.read(buffer) {
            Ok(count) => count,
            Err(error) if is_archive_damage(&error) => {
                return Err(self.record_damage(&format!("cannot be unpacked: {error}")));
            }
            Err(error) => return Err(error),
        };
        self.remaining_bytes = match self.remaining_bytes.checked_sub(count as u64) {
            Some(left) => left,
            None => {
                return Err(self.record_damage("unpacks to more bytes than the package declares"));
            }
        };
        if count == 0 && self.remaining_bytes > 0 && !buffer.is_empty() {
            return Err(self.record_damage("unpacks to fewer bytes than the package declares"));
        }
        Ok(count)
    }
}

fn read_entry_metadata<R: Read>(
    file: &PackageFileName,
    entry: &ZipFile<'_, R>,
) -> Result<PackageEntry> {
    // Java writes names as UTF-8, with or without the flag for it.
    let name = match std::str::from_utf8(entry.name_raw()) {
        Ok(name) => name.to_owned(),
        Err(_) => entry
            .name()
            .map_err(|error| archive_error(file, &error, "has an unreadable entry name"))?
            .into_owned(),
    };
    let is_directory = name.ends_with('/');
    let stem = name.strip_suffix('/').unwrap_or(&name);
    let refuse = |reason: &str| Err(file.to_error(0, format!("the entry {name:?} {reason}")));
    if let Some(reason) = unsafe_name_reason(stem) {
        return refuse(reason);
    }
    if entry.encrypted() {
        return refuse("is encrypted; packages are read without a password");
    }
    // A directory entry has no content, whatever its mode says.
    if entry.is_symlink() && !is_directory {
        return refuse("is a symbolic link; packages may contain only files and folders");
    }
    if !matches!(entry.compression(), CompressionMethod::Stored | CompressionMethod::Deflated) {
        return refuse("is compressed by a method other than deflate");
    }
    let modified = modification_date(entry);
    Ok(PackageEntry { name: stem.to_owned(), is_directory, size: entry.size(), modified })
}

/// Returns the reason for which a name is unsafe; `None` if it is safe.
fn unsafe_name_reason(name: &str) -> Option<&'static str> {
    if name.is_empty() || name.starts_with('/') {
        Some("is an absolute path; names in a package are relative")
    } else if name.contains('\\') {
        Some("contains a backslash; names in a package are separated by `/`")
    } else if name.contains('\0') {
        Some("contains a NUL character")
    } else if name.as_bytes().get(1) == Some(&b':') {
        Some("contains a drive letter; names in a package are relative")
    } else if name.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
        Some("contains an empty, `.` or `..` segment and could leave its folder")
    } else {
        None
    }
}

/// Returns the modification time of the entry. ZIP files store local time without a zone; it is read as UTC.
fn modification_date<R: Read>(entry: &ZipFile<'_, R>) -> JcrDate {
    let written = entry.last_modified().and_then(|time| {
        let parts = (i16::try_from(time.year()), i8::try_from(time.month()));
        let (Ok(year), Ok(month)) = parts else {
            return None;
        };
        let day = i8::try_from(time.day()).ok()?;
        let hour = i8::try_from(time.hour()).ok()?;
        let minute = i8::try_from(time.minute()).ok()?;
        let second = i8::try_from(time.second()).ok()?;
        let civil = DateTime::new(year, month, day, hour, minute, second, 0).ok()?;
        Some(civil.to_zoned(TimeZone::UTC).ok()?.timestamp().as_millisecond())
    });
    JcrDate { millis: written.unwrap_or(MIN_ZIP_TIME_MILLIS), offset_minutes: 0 }
}

/// 1980-01-01T00:00:00Z, the earliest time that a ZIP file can store.
const MIN_ZIP_TIME_MILLIS: i64 = 315_532_800_000;

/// Returns true if an error is caused by the bytes of the package and not by the disk.
fn is_archive_damage(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{InvalidData, InvalidInput, Other, UnexpectedEof};
    matches!(error.kind(), InvalidData | InvalidInput | Other | UnexpectedEof)
}

fn archive_error(file: &PackageFileName, error: &ZipError, action: &str) -> Error {
    match error {
        ZipError::Io(source) if !is_archive_damage(source) => Error::Read {
            input_name: format!("`{file}`"),
            source: std::io::Error::new(source.kind(), source.to_string()),
        },
        zip_error => file.to_error(0, format!("{action} ({zip_error})")),
    }
}
