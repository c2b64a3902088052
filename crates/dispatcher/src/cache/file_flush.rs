//! Removal and marking of cache files by a flush.
//!
//! A handle is the content path that a flush names. Its files are:
//! * in the parent folder of the handle, the file with exactly its last name, and all entries that begin with that name
//!   and a dot; names are also compared after path parameters are cut as renders cut them, because older caches contain
//!   such names;
//! * below the handle, `_jcr_content` and `jcr:content`;
//! * for a handle that no longer exists, the whole folder.
//!
//! Folders of suffix pages begin with the name of their page and a dot, so that a flush of the page removes all of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, fchmod, fstat, renameat, renameat_with,
    statat,
};
use rustix::io::Errno;

use super::confined_open;
use super::docroot::{Docroot, OWN_FILE_PREFIX, STALE_MARK_MODE, TEMPORARY_FOLDER};
use super::usage::DiskAmount;
use crate::cache::suffix_folder;

/// The effect of a flush on the files of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileEffect {
    /// Remove the files.
    Delete,
    /// Mark the files as stale and keep them.
    Mark,
}

impl FileEffect {
    /// Combines the effects of two flushes.
    fn stronger(self, other: Self) -> Self {
        if self == Self::Delete { self } else { other }
    }
}

/// The result of a flush.
#[derive(Debug, Default)]
pub(crate) struct FileFlushResult {
    /// The number of files and folders removed.
    pub(crate) removed_count: usize,
    /// The number of files marked.
    pub(crate) marked_count: usize,
    /// The first error; the remaining files are processed nevertheless.
    pub(crate) first_error: Option<io::Error>,
}

impl FileFlushResult {
    /// Adds the result of a later step.
    pub(crate) fn merge(&mut self, more: Self) {
        self.removed_count += more.removed_count;
        self.marked_count += more.marked_count;
        if let Some(failure) = more.first_error {
            self.first_error.get_or_insert(failure);
        }
    }

    /// Records the outcome of a step that may fail.
    pub(crate) fn record_outcome(&mut self, outcome: io::Result<()>) {
        if let Err(failure) = outcome {
            self.first_error.get_or_insert(failure);
        }
    }
}

/// A handle whose files are removed or marked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileFlushTarget<'a> {
    /// The path of the handle below the document root.
    pub(crate) handle: &'a Path,
    pub(crate) effect: FileEffect,
}

impl Docroot {
    /// Removes or marks the files of all these handles; the files in `refetch_files` are always marked.
    ///
    /// A folder is listed once, however many of the handles are in it.
    pub(crate) fn flush_handles(
        &self,
        targets: &[FileFlushTarget<'_>],
        refetch_files: &BTreeSet<PathBuf>,
    ) -> FileFlushResult {
        let mut run =
            FileFlushRun { docroot: self, refetch_files, result: FileFlushResult::default() };
        let mut folders: BTreeMap<&Path, HashMap<&OsStr, FileEffect>> = BTreeMap::new();
        for FileFlushTarget { handle, effect } in targets {
            let Some(name) = handle.file_name() else { continue };
            let parent = handle.parent().unwrap_or(Path::new(""));
            let combined = folders.entry(parent).or_default().entry(name).or_insert(*effect);
            *combined = combined.stronger(*effect);
        }
        for (parent, names) in &folders {
            let outcome = run.flush_handles_in_folder(parent, names);
            run.result.record_outcome(outcome);
            for (name, effect) in names {
                for content in ["_jcr_content", "jcr:content"] {
                    let content = OsStr::new(content);
                    let outcome = run.flush_folder(&parent.join(name), content, *effect);
                    run.result.record_outcome(outcome);
                }
            }
        }
        run.result
    }

    /// Removes the folder `handle` with all its content; for the root, everything except the root and its stat file.
    pub(crate) fn remove_subtree(&self, handle: &Path) -> FileFlushResult {
        let refetch_files = BTreeSet::new();
        let mut run = FileFlushRun {
            docroot: self,
            refetch_files: &refetch_files,
            result: FileFlushResult::default(),
        };
        let outcome = match handle.file_name() {
            Some(name) => {
                let parent = handle.parent().unwrap_or(Path::new(""));
                run.flush_folder(parent, name, FileEffect::Delete)
            }
            None => run.empty_root(),
        };
        run.result.record_outcome(outcome);
        run.result
    }

    /// Removes the folders that flushes moved to the trash.
    pub(crate) fn empty_trash(&self) {
        let trash = std::mem::take(&mut *self.trash.lock());
        for name in trash {
            let path = self.path.join(TEMPORARY_FOLDER).join(name);
            if let Err(error) = std::fs::remove_dir_all(&path) {
                // The next start removes it.
                tracing::warn!(file = %path.display(), reason = %error, "cannot remove a flushed folder");
            }
        }
    }

    /// Moves away a folder of an earlier layout that occupies the path of the page `file`.
    ///
    /// Its suffix pages move to their current folder, unless that exists already. Folders of other users stay.
    pub(crate) fn move_old_folder_away(&self, file: &Path) -> io::Result<()> {
        let Some((name, own)) = file.file_name().zip(suffix_folder::suffix_folder_of_page(file))
        else {
            return Ok(());
        };
        let parent = file.parent().unwrap_or(Path::new(""));
        let Some(folder) =
            none_if_absent(confined_open::open_folder_below(self.root_fd(), parent))?
        else {
            return Ok(());
        };
        let Ok(stat) = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(()) };
        let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !is_folder || stat.st_uid != rustix::process::geteuid().as_raw() {
            return Ok(());
        }
        let own = own.file_name().unwrap_or_default();
        match renameat_with(&folder, name, &folder, own, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            // The earlier folder is not served any more.
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::INVAL | Errno::NOSYS) => {
                self.move_to_trash(&folder, name)?;
                self.empty_trash();
                Ok(())
            }
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes one cache file with its side files.
    pub(crate) fn remove_cache_file(&self, file: &Path) -> io::Result<()> {
        let parent = file.parent().unwrap_or(Path::new(""));
        let Some(folder) =
            none_if_absent(confined_open::open_folder_below(self.root_fd(), parent))?
        else {
            return Ok(());
        };
        let Some(name) = file.file_name() else {
            return Ok(());
        };
        for side in ["", ".h", ".ttl"] {
            let mut name = name.to_owned();
            name.push(side);
            match self.unlink_counted(&folder, &name) {
                Ok(_) | Err(Errno::ISDIR | Errno::PERM) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Moves a folder to the trash in constant time, regardless of its size; [`Docroot::empty_trash`] removes it.
    fn move_to_trash(&self, folder: &OwnedFd, name: &OsStr) -> io::Result<bool> {
        let trash = self.new_temporary_name();
        match renameat(folder, name, &self.temporary_fd, trash.as_str()) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        self.usage.record_unknown_removal();
        self.trash.lock().push(trash);
        Ok(true)
    }

    /// Removes one file and subtracts it from the usage count.
    fn unlink_counted(&self, folder: &OwnedFd, name: &OsStr) -> rustix::io::Result<bool> {
        let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let is_removed = confined_open::unlink_if_present(folder.as_fd(), name)?;
        if let Some(stat) = stat.filter(|_| is_removed) {
            let length = u64::try_from(stat.st_size).unwrap_or(0);
            self.usage.record_replacement(DiskAmount::of_file(length), DiskAmount::default());
        }
        Ok(is_removed)
    }

    /// Marks one cache file as flushed; does nothing if it is absent.
    pub(crate) fn mark_file_stale(&self, file: &Path) -> FileFlushResult {
        self.mark_file_stale_if(file, &|_| true)
    }

    /// As [`Docroot::mark_file_stale`], but only if `is_meant` holds for the time at which the file was requested.
    pub(crate) fn mark_file_stale_if(
        &self,
        file: &Path,
        is_meant: &dyn Fn(SystemTime) -> bool,
    ) -> FileFlushResult {
        let mut result = FileFlushResult::default();
        match self.try_mark_stale(file, is_meant) {
            Ok(is_marked) => result.marked_count += usize::from(is_marked),
            // A file of another owner cannot be marked. Without the file, the page is fetched anew.
            Err(_refused) => {
                result.record_outcome(self.remove_cache_file(file));
                result.removed_count += 1;
            }
        }
        result
    }

    fn try_mark_stale(
        &self,
        file: &Path,
        is_meant: &dyn Fn(SystemTime) -> bool,
    ) -> io::Result<bool> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let Some(file) = none_if_absent(confined_open::open_below(self.root_fd(), file, flags))?
        else {
            return Ok(false);
        };
        let file = File::from(file);
        let is_meant = is_meant(file.metadata()?.modified()?);
        Ok(is_meant && set_stale_mark(&file)?)
    }
}

/// A flush of several handles in progress.
struct FileFlushRun<'a> {
    docroot: &'a Docroot,
    refetch_files: &'a BTreeSet<PathBuf>,
    result: FileFlushResult,
}

impl FileFlushRun<'_> {
    fn flush_handles_in_folder(
        &mut self,
        parent: &Path,
        names: &HashMap<&OsStr, FileEffect>,
    ) -> io::Result<()> {
        for (name, kind) in self.list_folder(parent)? {
            if let Some(effect) = file_effect_of(&name, kind, names) {
                let outcome = self.flush_entry(parent, &name, kind, effect);
                self.result.record_outcome(outcome);
            }
        }
        Ok(())
    }

    fn empty_root(&mut self) -> io::Result<()> {
        for (name, kind) in self.list_folder(Path::new(""))? {
            let is_own = name.as_bytes().starts_with(OWN_FILE_PREFIX.as_bytes());
            if !is_own && name != ".stat" {
                let root = confined_open::open_folder_below(self.docroot.root_fd(), Path::new(""))?;
                let outcome = self.remove_entry(&root, &name, kind);
                self.result.record_outcome(outcome);
            }
        }
        Ok(())
    }

    fn flush_folder(&mut self, parent: &Path, name: &OsStr, effect: FileEffect) -> io::Result<()> {
        let opened = confined_open::open_folder_below(self.docroot.root_fd(), parent);
        let Some(folder) = none_if_absent(opened)? else {
            return Ok(());
        };
        match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                let kind = FileType::from_raw_mode(stat.st_mode);
                drop(folder);
                self.flush_entry(parent, name, kind, effect)
            }
            Err(Errno::NOENT | Errno::NAMETOOLONG) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes or marks one file or folder. A folder that contains files to re-fetch is listed, and they are marked.
    fn flush_entry(
        &mut self,
        parent: &Path,
        name: &OsStr,
        kind: FileType,
        effect: FileEffect,
    ) -> io::Result<()> {
        let path = parent.join(name);
        let contains_refetch_file =
            self.refetch_files.iter().any(|refetch_file| refetch_file.starts_with(&path));
        let belongs_to_refetch_file = is_side_file_of(&path, self.refetch_files);
        if kind == FileType::Directory && (contains_refetch_file || effect == FileEffect::Mark) {
            for (name, kind) in self.list_folder(&path)? {
                let outcome = self.flush_entry(&path, &name, kind, effect);
                self.result.record_outcome(outcome);
            }
            return Ok(());
        }
        if contains_refetch_file || belongs_to_refetch_file || effect == FileEffect::Mark {
            if kind == FileType::RegularFile && !is_side_file_name(name) {
                let marked = self.docroot.mark_file_stale(&path);
                self.result.merge(marked);
            }
            return Ok(());
        }
        let opened = confined_open::open_folder_below(self.docroot.root_fd(), parent);
        let Some(folder) = none_if_absent(opened)? else {
            return Ok(());
        };
        self.remove_entry(&folder, name, kind)
    }

    fn remove_entry(&mut self, folder: &OwnedFd, name: &OsStr, kind: FileType) -> io::Result<()> {
        let is_removed = if kind == FileType::Directory {
            self.docroot.move_to_trash(folder, name)?
        } else {
            self.docroot.unlink_counted(folder, name)?
        };
        self.result.removed_count += usize::from(is_removed);
        Ok(())
    }

    fn list_folder(&self, folder: &Path) -> io::Result<Vec<(OsString, FileType)>> {
        let opened = confined_open::open_folder_below(self.docroot.root_fd(), folder);
        let Some(folder) = none_if_absent(opened)? else {
            return Ok(Vec::new());
        };
        let mut entries = Vec::new();
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let kind = match entry.file_type() {
                // Some file systems do not report the type in the listing.
                FileType::Unknown => statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                kind => kind,
            };
            entries.push((name.to_owned(), kind));
        }
        // Remove a body before its header file: a concurrent reader would take the body alone for a page without
        // headers.
        entries.sort_by_key(|(name, _)| is_side_file_name(name));
        Ok(entries)
    }
}

/// Returns the effect on an entry of a folder in which these names are flushed; deleting takes precedence over
/// marking.
fn file_effect_of(
    name: &OsStr,
    kind: FileType,
    names: &HashMap<&OsStr, FileEffect>,
) -> Option<FileEffect> {
    let own = file_effect_of_name(name, kind, names);
    let bytes = name.as_bytes();
    let Some(end) = bytes.iter().position(|byte| *byte == b';') else { return own };
    let before = bytes.get(..end).unwrap_or_default();
    let is_begun_so =
        |whole: &[u8]| whole.strip_prefix(before).is_some_and(|rest| rest.first() == Some(&b'.'));
    // `a;x=1.jpg` is a file of `a.jpg`, and so is everything in a folder `a;x='1`.
    let longer = names.iter().filter(|(name, _)| is_begun_so(name.as_bytes()));
    own.into_iter()
        .chain(file_effect_of_name(OsStr::from_bytes(before), FileType::RegularFile, names))
        .chain(longer.map(|(_, effect)| *effect))
        .reduce(FileEffect::stronger)
}

fn file_effect_of_name(
    name: &OsStr,
    kind: FileType,
    names: &HashMap<&OsStr, FileEffect>,
) -> Option<FileEffect> {
    let own = names.get(name).filter(|_| kind != FileType::Directory).copied();
    let bytes = name.as_bytes();
    let dots = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'.');
    dots.filter_map(|(dot, _)| names.get(OsStr::from_bytes(bytes.get(..dot)?)).copied())
        .chain(own)
        .reduce(FileEffect::stronger)
}

fn is_side_file_name(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.ends_with(b".h") || name.ends_with(b".ttl")
}

fn is_side_file_of(path: &Path, refetch_files: &BTreeSet<PathBuf>) -> bool {
    let is_side = |extension: &str| {
        path.extension().is_some_and(|own| own == extension)
            && refetch_files.contains(&path.with_extension(""))
    };
    is_side("h") || is_side("ttl")
}

/// Sets the sticky bit and returns true if it was not set before; the time of the first mark is preserved.
fn set_stale_mark(file: &File) -> rustix::io::Result<bool> {
    let stat = fstat(file)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !is_file || stat.st_mode & STALE_MARK_MODE != 0 {
        return Ok(false);
    }
    fchmod(file, Mode::from_raw_mode((stat.st_mode & 0o777) | STALE_MARK_MODE))?;
    Ok(true)
}

/// Maps "not found" and "is a link" to `None`; a name that is too long cannot exist.
fn none_if_absent<T>(outcome: rustix::io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NAMETOOLONG) => {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::sync::Arc;

    use std::collections::HashMap;
    use std::ffi::OsStr;

    use rustix::fs::FileType;

    use super::{FileEffect, FileFlushResult, FileFlushRun, file_effect_of, is_side_file_name};
    use crate::cache::Docroot;

    #[test]
    fn files_named_with_path_parameters_are_flushed_with_their_page() {
        let is_flushed = |name: &str, handle: &str| {
            let names = HashMap::from([(OsStr::new(handle), FileEffect::Delete)]);
            [FileType::RegularFile, FileType::Directory]
                .map(|kind| file_effect_of(OsStr::new(name), kind, &names).is_some())
        };
        for (name, handle, expected) in [
            ("market;x='1'.jpg", "market.jpg", [true; 2]),
            ("market;x='a", "market.jpg", [true; 2]),
            ("market.jpg;x=1", "market.jpg", [true; 2]),
            ("market.jpg;x=1.png", "market.jpg", [true; 2]),
            ("en;x=1.html", "en", [true; 2]),
            ("en.html;x=1", "en", [true; 2]),
            ("en.html", "en", [true; 2]),
            ("en", "en", [true, false]),
            ("market2;x=1.jpg", "market.jpg", [false; 2]),
            ("mark;x=1.jpg", "market.jpg", [false; 2]),
        ] {
            assert_eq!(is_flushed(name, handle), expected, "{name} {handle}");
        }
    }

    #[test]
    fn bodies_go_before_their_side_files() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..50 {
            for side in [".ttl", ".h", ""] {
                std::fs::write(folder.path().join(format!("p{number}.html{side}")), "x").unwrap();
            }
        }
        let docroot = Docroot::open(folder.path(), 0o755, Arc::default()).unwrap();
        let refetch_files = BTreeSet::new();
        let run = FileFlushRun {
            docroot: &docroot,
            refetch_files: &refetch_files,
            result: FileFlushResult::default(),
        };
        let entries = run.list_folder(Path::new("")).unwrap();
        let sides: Vec<bool> = entries.iter().map(|(name, _)| is_side_file_name(name)).collect();
        assert_eq!(sides.iter().filter(|is_side| **is_side).count(), 100);
        assert!(sides.is_sorted());
    }
}
