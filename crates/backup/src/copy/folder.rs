//! Plain copies in a folder.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

use super::sink::{CopyDepth, CopySink, target_error};
use crate::error::{Error, Result};
use crate::source::repository_layout::{
    METADATA_FILE_NAME, README_FILE_NAME, README_TEXT, STATE_FOLDER, SavedRepositoryMetadata,
};

/// Marker file that exists while a copy is under way, and after one that did not finish.
pub(crate) const UNFINISHED: &str = "unfinished";
/// Temporary file name; files are written here and renamed.
const TEMP_FILE_NAME: &str = "new";
/// Bytes that are compared at a time.
const COMPARE_BUFFER_BYTES: usize = 64 << 10;

pub(super) struct CopyFolder {
    dir: PathBuf,
    /// Locked until this value is dropped.
    handle: OwnedFd,
    trusts_existing: bool,
    written_files: u64,
}

impl CopyFolder {
    /// Opens a folder exclusively and reads the metadata of an earlier copy.
    pub(super) fn open(
        dir: &Path,
        depth: CopyDepth,
    ) -> Result<(Self, Option<SavedRepositoryMetadata>)> {
        let failed = |source| target_error(dir)(source);
        fs::create_dir_all(dir).map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(dir, flags, Mode::empty());
        let handle = handle.map_err(|error| failed(error.into()))?;
        if rustix::fs::flock(&handle, FlockOperation::NonBlockingLockExclusive).is_err() {
            let text = format!("another copy into `{}` is running", dir.display());
            return Err(Error::InvalidRequest(text));
        }
        let facts = dir.join(METADATA_FILE_NAME);
        let before = match fs::read(&facts) {
            Ok(json) => Some(
                serde_json::from_slice::<SavedRepositoryMetadata>(&json)
                    .map_err(|_| foreign_folder_error(dir))?,
            ),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(source) => return Err(Error::Source { path: facts, source }),
        };
        let is_unfinished = dir.join(UNFINISHED).exists();
        let is_empty = fs::read_dir(dir).map_err(failed)?.next().is_none();
        let is_ours = match &before {
            Some(facts) => facts.copy.is_some(),
            None => is_empty || is_unfinished,
        };
        if !is_ours {
            return Err(foreign_folder_error(dir));
        }
        let counts = before.as_ref().and_then(|facts| facts.copy).unwrap_or_default();
        // Files that are no longer needed are found by an occasional full check.
        let is_due = counts.added > counts.files / 2 + 16;
        let trusts =
            before.is_some() && !is_unfinished && depth == CopyDepth::MissingOnly && !is_due;
        Ok((
            Self { dir: dir.to_owned(), handle, trusts_existing: trusts, written_files: 0 },
            before,
        ))
    }

    /// Returns true if existing files are trusted without comparison.
    pub(super) const fn trusts_existing(&self) -> bool {
        self.trusts_existing
    }

    /// Marks that a copy is under way.
    pub(super) fn mark_unfinished(&self) -> Result<()> {
        let mark = self.dir.join(UNFINISHED);
        let made = File::create(&mark).and_then(|file| file.sync_all());
        made.map_err(target_error(&mark))?;
        self.sync()?;
        let new = self.dir.join(TEMP_FILE_NAME);
        match fs::remove_dir_all(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(target_error(&new)(error));
            }
            _ => {}
        }
        fs::create_dir(&new).map_err(target_error(&new))
    }

    /// Makes everything durable and then writes the metadata of the state. The unfinished marker stays until
    /// [`CopyFolder::clear_unfinished_mark`].
    pub(super) fn finish(&self, facts: &SavedRepositoryMetadata) -> Result<()> {
        let failed = |source| target_error(&self.dir)(source);
        self.replace_file(README_FILE_NAME, README_TEXT.as_bytes())?;
        rustix::fs::syncfs(&self.handle).map_err(|error| failed(error.into()))?;
        let json = serde_json::to_vec_pretty(facts).unwrap_or_default();
        self.replace_file(METADATA_FILE_NAME, &json)?;
        self.sync()
    }

    /// Removes the unfinished marker after all removals are durable: whenever a part exists, everything below it does,
    /// too.
    pub(super) fn clear_unfinished_mark(&self) -> Result<()> {
        let failed = |source| target_error(&self.dir)(source);
        rustix::fs::syncfs(&self.handle).map_err(|error| failed(error.into()))?;
        let mark = self.dir.join(UNFINISHED);
        fs::remove_file(&mark).map_err(target_error(&mark))?;
        let new = self.dir.join(TEMP_FILE_NAME);
        fs::remove_dir_all(&new).map_err(target_error(&new))?;
        self.sync()
    }

    /// Replaces a small file in the top folder.
    fn replace_file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let (new, path) = (self.dir.join(TEMP_FILE_NAME).join(name), self.dir.join(name));
        let written = File::create(&new).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&new, &path)
        });
        written.map_err(target_error(&path))
    }

    fn sync(&self) -> Result<()> {
        rustix::fs::fsync(&self.handle).map_err(|error| target_error(&self.dir)(error.into()))
    }

    /// Removes files that the state does not need; returns their number.
    pub(super) fn remove_unneeded(&self, needed: &HashSet<String>) -> Result<u64> {
        let state = self.dir.join(STATE_FOLDER);
        let failed = |source| target_error(&state)(source);
        let mut removed = 0;
        for folder in fs::read_dir(&state).map_err(failed)? {
            let folder = folder.map_err(failed)?.path();
            for file in fs::read_dir(&folder).map_err(failed)? {
                let file = file.map_err(failed)?;
                if !file.file_name().to_str().is_some_and(|name| needed.contains(name)) {
                    fs::remove_file(file.path()).map_err(failed)?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }

    fn file_path(&self, name: &str) -> PathBuf {
        self.dir.join(STATE_FOLDER).join(name.get(..2).unwrap_or_default()).join(name)
    }
}

fn foreign_folder_error(dir: &Path) -> Error {
    Error::InvalidRequest(format!(
        "`{}` contains something other than a copy; use a new folder, an empty one, or one with an earlier \
         copy",
        dir.display()
    ))
}

impl CopySink for CopyFolder {
    fn contains(&self, name: &str) -> bool {
        self.trusts_existing && self.file_path(name).exists()
    }

    fn write_file(&mut self, name: &str, (_, content): (u64, &mut dyn Read)) -> Result<bool> {
        let path = self.file_path(name);
        self.written_files += 1;
        let new = self.dir.join(TEMP_FILE_NAME).join(self.written_files.to_string());
        let written = File::create(&new).and_then(|mut file| {
            io::copy(content, &mut file)?;
            // Compare with the existing file, so that an intact one is not replaced.
            if has_same_content(&new, &path)? {
                fs::remove_file(&new)?;
                return Ok(false);
            }
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::rename(&new, &path)?;
            Ok(true)
        });
        written.map_err(target_error(&path))
    }
}

fn has_same_content(left: &Path, right: &Path) -> io::Result<bool> {
    let mut there = match File::open(right) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    let mut here = File::open(left)?;
    if here.metadata()?.len() != there.metadata()?.len() {
        return Ok(false);
    }
    let (mut left_buffer, mut right_buffer) =
        (vec![0; COMPARE_BUFFER_BYTES], vec![0; COMPARE_BUFFER_BYTES]);
    loop {
        let length = here.read(&mut left_buffer)?;
        let (Some(left_part), Some(right_part)) =
            (left_buffer.get(..length), right_buffer.get_mut(..length))
        else {
            return Ok(false);
        };
        there.read_exact(right_part)?;
        if left_part != right_part {
            return Ok(false);
        }
        if length == 0 {
            return Ok(true);
        }
    }
}
