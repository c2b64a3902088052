//! What a flush removes: the files of its handle.
//!
//! In the handle's parent folder these are the entry with exactly its last name (if a file) and all that begin with that
//! name and a dot, also once path parameters are cut as renders cut them: older caches hold such names; below the handle
//! `_jcr_content` and `jcr:content`; and for a handle that is gone the whole folder. Folders of suffix pages begin with the name
//! of their page and a dot, so that a flush of the page takes all of them.

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

use super::beneath;
use super::docroot::{Docroot, MARK, OWN_PREFIX, TEMPORARY_FOLDER};
use super::usage::Amount;
use crate::suffix_folder;

/// What happens to the files of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// They are removed.
    Delete,
    /// They are marked as stale and stay.
    Mark,
}

impl Fate {
    /// Joins what two flushes want.
    fn or(self, other: Self) -> Self {
        if self == Self::Delete { self } else { other }
    }
}

/// What a flush did.
#[derive(Debug, Default)]
pub(crate) struct Deleted {
    /// Files and folders that were removed.
    pub(crate) removed: usize,
    /// Files that were marked.
    pub(crate) marked: usize,
    /// What failed first; all that could be done was done nevertheless.
    pub(crate) failure: Option<io::Error>,
}

impl Deleted {
    /// Adds what a later step did.
    pub(crate) fn add(&mut self, more: Self) {
        self.removed += more.removed;
        self.marked += more.marked;
        if let Some(failure) = more.failure {
            self.failure.get_or_insert(failure);
        }
    }

    /// Notes a step that may have failed.
    pub(crate) fn note(&mut self, outcome: io::Result<()>) {
        if let Err(failure) = outcome {
            self.failure.get_or_insert(failure);
        }
    }
}

/// A handle whose files are removed or marked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named<'a> {
    /// Below the document root.
    pub(crate) handle: &'a Path,
    pub(crate) fate: Fate,
}

impl Docroot {
    /// Removes or marks the files of all these handles; those in `kept` are marked whatever their fate.
    ///
    /// A folder is listed once, however many of the handles lie in it.
    pub(crate) fn flush(&self, named: &[Named<'_>], kept: &BTreeSet<PathBuf>) -> Deleted {
        let mut flushing = Flushing { docroot: self, kept, done: Deleted::default() };
        let mut folders: BTreeMap<&Path, HashMap<&OsStr, Fate>> = BTreeMap::new();
        for Named { handle, fate } in named {
            let Some(name) = handle.file_name() else { continue };
            let parent = handle.parent().unwrap_or(Path::new(""));
            let own = folders.entry(parent).or_default().entry(name).or_insert(*fate);
            *own = own.or(*fate);
        }
        for (parent, names) in &folders {
            let siblings = flushing.flush_siblings(parent, names);
            flushing.done.note(siblings);
            for (name, fate) in names {
                for content in ["_jcr_content", "jcr:content"] {
                    let content = OsStr::new(content);
                    let outcome = flushing.flush_folder(&parent.join(name), content, *fate);
                    flushing.done.note(outcome);
                }
            }
        }
        flushing.done
    }

    /// Removes the folder `handle` with all that is in it; for the root, all but the root and its stat file.
    pub(crate) fn remove_below(&self, handle: &Path) -> Deleted {
        let kept = BTreeSet::new();
        let mut flushing = Flushing { docroot: self, kept: &kept, done: Deleted::default() };
        let outcome = match handle.file_name() {
            Some(name) => {
                let parent = handle.parent().unwrap_or(Path::new(""));
                flushing.flush_folder(parent, name, Fate::Delete)
            }
            None => flushing.empty_root(),
        };
        flushing.done.note(outcome);
        flushing.done
    }

    /// Removes the folders that flushes took out of sight.
    pub(crate) fn empty_trash(&self) {
        let trash = std::mem::take(&mut *self.trash.lock());
        for name in trash {
            let path = self.path.join(TEMPORARY_FOLDER).join(name);
            if let Err(error) = std::fs::remove_dir_all(&path) {
                // The next start sweeps it.
                tracing::warn!(file = %path.display(), reason = %error, "cannot remove a flushed folder");
            }
        }
    }

    /// Moves a folder out of the way that an earlier layout made where the page `file` belongs.
    ///
    /// The suffix pages in it go on from the folder that is theirs now, unless that is there already. Folders of other users
    /// stay.
    pub(crate) fn make_way(&self, file: &Path) -> io::Result<()> {
        let Some((name, own)) = file.file_name().zip(suffix_folder::folder_beside(file)) else {
            return Ok(());
        };
        let parent = file.parent().unwrap_or(Path::new(""));
        let Some(folder) = absent_as_none(beneath::open_folder(self.root(), parent))? else {
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
            // Nobody is served from the earlier folder any more.
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::INVAL | Errno::NOSYS) => {
                self.discard_folder(&folder, name)?;
                self.empty_trash();
                Ok(())
            }
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes one cache file with its side files.
    pub(crate) fn remove_file(&self, file: &Path) -> io::Result<()> {
        let parent = file.parent().unwrap_or(Path::new(""));
        let Some(folder) = absent_as_none(beneath::open_folder(self.root(), parent))? else {
            return Ok(());
        };
        let Some(name) = file.file_name() else {
            return Ok(());
        };
        for side in ["", ".h", ".ttl"] {
            let mut name = name.to_owned();
            name.push(side);
            match self.unlink(&folder, &name) {
                Ok(_) | Err(Errno::ISDIR | Errno::PERM) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes a folder out of sight at once, however much it holds; [`Docroot::empty_trash`] removes it.
    fn discard_folder(&self, folder: &OwnedFd, name: &OsStr) -> io::Result<bool> {
        let trash = self.temporary_name();
        match renameat(folder, name, &self.temporary, trash.as_str()) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        self.usage.note_unknown_removal();
        self.trash.lock().push(trash);
        Ok(true)
    }

    /// Removes one file, which counts no longer then.
    fn unlink(&self, folder: &OwnedFd, name: &OsStr) -> rustix::io::Result<bool> {
        let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let is_removed = beneath::unlink(folder.as_fd(), name)?;
        if let Some(stat) = stat.filter(|_| is_removed) {
            let length = u64::try_from(stat.st_size).unwrap_or(0);
            self.usage.replace(Amount::of_file(length), Amount::default());
        }
        Ok(is_removed)
    }

    /// Marks one cache file as flushed; one that is absent stays absent.
    pub(crate) fn mark_file(&self, file: &Path) -> Deleted {
        self.mark_file_if(file, &|_| true)
    }

    /// As [`Docroot::mark_file`], if `is_meant` holds for the time at which the file was asked for.
    pub(crate) fn mark_file_if(
        &self,
        file: &Path,
        is_meant: &dyn Fn(SystemTime) -> bool,
    ) -> Deleted {
        let mut done = Deleted::default();
        match self.try_mark(file, is_meant) {
            Ok(is_marked) => done.marked += usize::from(is_marked),
            // Another owner's file cannot be marked; without it, the page is fetched anew.
            Err(_refused) => {
                done.note(self.remove_file(file));
                done.removed += 1;
            }
        }
        done
    }

    fn try_mark(&self, file: &Path, is_meant: &dyn Fn(SystemTime) -> bool) -> io::Result<bool> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let Some(file) = absent_as_none(beneath::open(self.root(), file, flags))? else {
            return Ok(false);
        };
        let file = File::from(file);
        let is_meant = is_meant(file.metadata()?.modified()?);
        Ok(is_meant && mark(&file)?)
    }
}

struct Flushing<'a> {
    docroot: &'a Docroot,
    kept: &'a BTreeSet<PathBuf>,
    done: Deleted,
}

impl Flushing<'_> {
    fn flush_siblings(&mut self, parent: &Path, names: &HashMap<&OsStr, Fate>) -> io::Result<()> {
        for (name, kind) in self.list(parent)? {
            if let Some(fate) = fate_of(&name, kind, names) {
                let outcome = self.flush_entry(parent, &name, kind, fate);
                self.done.note(outcome);
            }
        }
        Ok(())
    }

    fn empty_root(&mut self) -> io::Result<()> {
        for (name, kind) in self.list(Path::new(""))? {
            let is_own = name.as_bytes().starts_with(OWN_PREFIX.as_bytes());
            if !is_own && name != ".stat" {
                let root = beneath::open_folder(self.docroot.root(), Path::new(""))?;
                let outcome = self.remove(&root, &name, kind);
                self.done.note(outcome);
            }
        }
        Ok(())
    }

    fn flush_folder(&mut self, parent: &Path, name: &OsStr, fate: Fate) -> io::Result<()> {
        let opened = beneath::open_folder(self.docroot.root(), parent);
        let Some(folder) = absent_as_none(opened)? else {
            return Ok(());
        };
        match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                let kind = FileType::from_raw_mode(stat.st_mode);
                drop(folder);
                self.flush_entry(parent, name, kind, fate)
            }
            Err(Errno::NOENT | Errno::NAMETOOLONG) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn flush_entry(
        &mut self,
        parent: &Path,
        name: &OsStr,
        kind: FileType,
        fate: Fate,
    ) -> io::Result<()> {
        let path = parent.join(name);
        let holds_kept = self.kept.iter().any(|kept| kept.starts_with(&path));
        let side_of_kept = is_side_of(&path, self.kept);
        if kind == FileType::Directory && (holds_kept || fate == Fate::Mark) {
            for (name, kind) in self.list(&path)? {
                let outcome = self.flush_entry(&path, &name, kind, fate);
                self.done.note(outcome);
            }
            return Ok(());
        }
        if holds_kept || side_of_kept || fate == Fate::Mark {
            if kind == FileType::RegularFile && !is_side_name(name) {
                let marked = self.docroot.mark_file(&path);
                self.done.add(marked);
            }
            return Ok(());
        }
        let opened = beneath::open_folder(self.docroot.root(), parent);
        let Some(folder) = absent_as_none(opened)? else {
            return Ok(());
        };
        self.remove(&folder, name, kind)
    }

    fn remove(&mut self, folder: &OwnedFd, name: &OsStr, kind: FileType) -> io::Result<()> {
        let is_removed = if kind == FileType::Directory {
            self.docroot.discard_folder(folder, name)?
        } else {
            self.docroot.unlink(folder, name)?
        };
        self.done.removed += usize::from(is_removed);
        Ok(())
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<(OsString, FileType)>> {
        let opened = beneath::open_folder(self.docroot.root(), folder);
        let Some(folder) = absent_as_none(opened)? else {
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
                // Some file systems do not tell in the listing.
                FileType::Unknown => statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                kind => kind,
            };
            entries.push((name.to_owned(), kind));
        }
        // A body goes before its header file: whoever reads the pair meanwhile would take it for a page without headers.
        entries.sort_by_key(|(name, _)| is_side_name(name));
        Ok(entries)
    }
}

/// Returns what happens to an entry of a folder in which these names are flushed; to delete goes before to mark.
fn fate_of(name: &OsStr, kind: FileType, names: &HashMap<&OsStr, Fate>) -> Option<Fate> {
    let own = fate_of_name(name, kind, names);
    let bytes = name.as_bytes();
    let Some(end) = bytes.iter().position(|byte| *byte == b';') else { return own };
    let before = bytes.get(..end).unwrap_or_default();
    let is_begun_so =
        |whole: &[u8]| whole.strip_prefix(before).is_some_and(|rest| rest.first() == Some(&b'.'));
    // `a;x=1.jpg` is a file of `a.jpg`, and so is whatever lies in a folder `a;x='1`.
    let longer = names.iter().filter(|(name, _)| is_begun_so(name.as_bytes()));
    own.into_iter()
        .chain(fate_of_name(OsStr::from_bytes(before), FileType::RegularFile, names))
        .chain(longer.map(|(_, fate)| *fate))
        .reduce(Fate::or)
}

fn fate_of_name(name: &OsStr, kind: FileType, names: &HashMap<&OsStr, Fate>) -> Option<Fate> {
    let own = names.get(name).filter(|_| kind != FileType::Directory).copied();
    let bytes = name.as_bytes();
    let dots = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'.');
    dots.filter_map(|(dot, _)| names.get(OsStr::from_bytes(bytes.get(..dot)?)).copied())
        .chain(own)
        .reduce(Fate::or)
}

fn is_side_name(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.ends_with(b".h") || name.ends_with(b".ttl")
}

fn is_side_of(path: &Path, kept: &BTreeSet<PathBuf>) -> bool {
    let is_side = |extension: &str| {
        path.extension().is_some_and(|own| own == extension)
            && kept.contains(&path.with_extension(""))
    };
    is_side("h") || is_side("ttl")
}

/// Sets the sticky bit and tells whether it was not set before; the first mark's time is kept.
fn mark(file: &File) -> rustix::io::Result<bool> {
    let stat = fstat(file)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !is_file || stat.st_mode & MARK != 0 {
        return Ok(false);
    }
    fchmod(file, Mode::from_raw_mode((stat.st_mode & 0o777) | MARK))?;
    Ok(true)
}

/// Turns "there is nothing, or a link" into `None`; of a name that is too long there can be nothing.
fn absent_as_none<T>(outcome: rustix::io::Result<T>) -> io::Result<Option<T>> {
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

    use super::{Deleted, Fate, Flushing, fate_of, is_side_name};
    use crate::cache::Docroot;

    #[test]
    fn files_named_with_path_parameters_are_flushed_with_their_page() {
        let is_flushed = |name: &str, handle: &str| {
            let names = HashMap::from([(OsStr::new(handle), Fate::Delete)]);
            [FileType::RegularFile, FileType::Directory]
                .map(|kind| fate_of(OsStr::new(name), kind, &names).is_some())
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
        let kept = BTreeSet::new();
        let flushing = Flushing { docroot: &docroot, kept: &kept, done: Deleted::default() };
        let entries = flushing.list(Path::new("")).unwrap();
        let sides: Vec<bool> = entries.iter().map(|(name, _)| is_side_name(name)).collect();
        assert_eq!(sides.iter().filter(|is_side| **is_side).count(), 100);
        assert!(sides.is_sorted());
    }
}
