//! The folder of an export: trees of files, the current one, and their changes.
//!
//! ```text
//! <folder>/current                -> tree-000002, which a web server serves
//! <folder>/tree-000002/           the files
//! <folder>/tree-000002.manifest   what each was drawn from (docs/formats/export.md)
//! <folder>/tmp/                   files on their way
//! <folder>/lock                   held by the process that exports
//! ```
//!
//! Invariants
//! * A file appears complete, by rename. `current` is renamed from one complete tree to another.
//! * Nothing outside of the folder is written, removed or read, regardless of file names and of links in a tree.
//! * Only one process at a time changes a folder.
//!
//! On failure: the next opening removes files that a crash left in `tmp`; an unfinished tree can be resumed.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

const CURRENT_LINK_NAME: &str = "current";
const STAGING_DIR_NAME: &str = "tmp";
const LOCK_FILE_NAME: &str = "lock";
const TREE_PREFIX: &str = "tree-";

/// An opened folder.
#[derive(Debug)]
pub(crate) struct ExportFolder {
    dir: PathBuf,
    next_file_number: AtomicU64,
    _lock: File,
}

/// A complete file that has no name in a tree yet.
#[derive(Debug)]
pub(crate) struct StagedExportFile {
    path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) hash: String,
    is_synced: bool,
}

impl StagedExportFile {
    /// Waits until the bytes are on disk: after a crash, a name may exist without them.
    ///
    /// # Errors
    /// If the disk fails.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if !self.is_synced {
            File::open(&self.path)?.sync_data()?;
            self.is_synced = true;
        }
        Ok(())
    }
}

impl Drop for StagedExportFile {
    fn drop(&mut self) {
        // The path does not exist any more once the file has its name.
        fs::remove_file(&self.path).ok();
    }
}

impl ExportFolder {
    /// Opens a folder, and creates it if it does not exist.
    ///
    /// # Errors
    /// If it cannot be created, holds something else, or another process exports to it (`WouldBlock`).
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let lock = dir.join(LOCK_FILE_NAME);
        let is_new = !lock.exists();
        if is_new && fs::read_dir(dir)?.next().is_some() {
            let text = "the folder contains other files; use an empty or a new one";
            return Err(io::Error::new(io::ErrorKind::DirectoryNotEmpty, text));
        }
        let lock = File::options().create(true).append(true).open(lock)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let tmp = dir.join(STAGING_DIR_NAME);
        if tmp.exists() {
            fs::remove_dir_all(&tmp)?;
        }
        fs::create_dir_all(&tmp)?;
        Ok(Self { dir: dir.to_owned(), next_file_number: AtomicU64::new(0), _lock: lock })
    }

    /// Returns the number of the tree that is served.
    pub(crate) fn current_tree(&self) -> Option<u64> {
        parse_tree_number(fs::read_link(self.dir.join(CURRENT_LINK_NAME)).ok()?.to_str()?)
    }

    /// Returns the numbers of all trees that have a manifest, in order.
    pub(crate) fn tree_numbers(&self) -> io::Result<Vec<u64>> {
        self.numbers_with_ending(".manifest")
    }

    /// Returns the numbers of all trees with a file of a given ending, in order.
    fn numbers_with_ending(&self, ending: &str) -> io::Result<Vec<u64>> {
        let entries = fs::read_dir(&self.dir)?.flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut numbers: Vec<u64> =
            names.filter_map(|name| parse_tree_number(name.strip_suffix(ending)?)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    pub(crate) fn tree_path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{TREE_PREFIX}{number:06}"))
    }

    pub(crate) fn manifest_path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{TREE_PREFIX}{number:06}.manifest"))
    }

    /// Writes a file that has no name in a tree yet.
    ///
    /// # Errors
    /// If the disk fails; no file is left then.
    pub(crate) fn stage(&self, content: &mut dyn Read) -> io::Result<StagedExportFile> {
        let number = self.next_file_number.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(STAGING_DIR_NAME).join(number.to_string());
        let mut waiting =
            StagedExportFile { path, bytes: 0, hash: String::new(), is_synced: false };
        let mut file = File::create_new(&waiting.path)?;
        let mut hasher = Sha256::new();
        let mut bytes = 0;
        for_each_chunk(content, |part| {
            file.write_all(part)?;
            hasher.update(part);
            bytes += part.len() as u64;
            Ok(())
        })?;
        waiting.bytes = bytes;
        waiting.hash = hex::encode(hasher.finalize());
        Ok(waiting)
    }

    /// Gives a staged file its name in a tree.
    ///
    /// # Errors
    /// `AlreadyExists` or `NotADirectory` if the name of another file conflicts; others if the disk fails.
    pub(crate) fn link_into_tree(
        &self,
        tree: u64,
        waiting: &StagedExportFile,
        name: &str,
    ) -> io::Result<()> {
        let target = self.path_in_tree(tree, name)?;
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::rename(&waiting.path, &target)
    }

    /// Removes a file, and the folders that become empty.
    ///
    /// # Errors
    /// If the disk fails; a missing file is no error.
    pub(crate) fn remove_file(&self, tree: u64, name: &str) -> io::Result<()> {
        let root = self.tree_path(tree);
        match self.path_in_tree(tree, name).and_then(fs::remove_file) {
            // No folder of this tree contains the file.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(()),
            Err(error) if !is_not_found(&error) => return Err(error),
            _ => {}
        }
        let mut folder = Path::new(name).parent();
        while let Some(empty) = folder.filter(|folder| !folder.as_os_str().is_empty()) {
            // A folder with files stays, and so do all its parents.
            if fs::remove_dir(root.join(empty)).is_err() {
                break;
            }
            folder = empty.parent();
        }
        Ok(())
    }

    /// Returns true if the file exists.
    pub(crate) fn has_file(&self, tree: u64, name: &str) -> bool {
        let file = self.path_in_tree(tree, name).and_then(fs::symlink_metadata);
        file.is_ok_and(|file| file.is_file())
    }

    /// Returns true if a file has the recorded hash.
    pub(crate) fn is_file_unchanged(&self, tree: u64, name: &str, hash: &str) -> bool {
        let file = self.path_in_tree(tree, name).and_then(File::open);
        let file_hash = file.and_then(|mut file| hash_content(&mut file));
        self.has_file(tree, name) && file_hash.is_ok_and(|file_hash| file_hash == hash)
    }

    /// Returns the path of a file in a tree, and rejects links that would lead out of the tree.
    ///
    /// # Errors
    /// `NotADirectory` if a folder of the name is a link or a file, or the name leads elsewhere.
    fn path_in_tree(&self, tree: u64, name: &str) -> io::Result<PathBuf> {
        let mut path = self.tree_path(tree);
        let mut names = Path::new(name).components().peekable();
        while let Some(Component::Normal(name)) = names.next() {
            path.push(name);
            if names.peek().is_none() {
                return Ok(path);
            }
            match fs::symlink_metadata(&path) {
                Ok(folder) if !folder.is_dir() => break,
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let text =
            format!("`{name}` leads out of the tree, or through something that is not a folder");
        Err(io::Error::new(io::ErrorKind::NotADirectory, text))
    }

    /// Waits until all writes are on disk.
    ///
    /// # Errors
    /// If the disk fails.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let dir = File::open(&self.dir)?;
        rustix::fs::syncfs(&dir)?;
        Ok(())
    }

    /// Makes a tree the one that is served.
    ///
    /// # Errors
    /// If the disk fails; then the previous tree stays served.
    pub(crate) fn switch_current(&self, tree: u64) -> io::Result<()> {
        self.sync()?;
        let link = self.dir.join(STAGING_DIR_NAME).join(CURRENT_LINK_NAME);
        match fs::remove_file(&link) {
            Err(error) if !is_not_found(&error) => return Err(error),
            _ => {}
        }
        std::os::unix::fs::symlink(format!("{TREE_PREFIX}{tree:06}"), &link)?;
        fs::rename(&link, self.dir.join(CURRENT_LINK_NAME))?;
        self.sync()
    }

    /// Removes all trees except the one that is served and the newest `keep` before it.
    ///
    /// # Errors
    /// If the disk fails.
    pub(crate) fn prune_trees(&self, keep: usize) -> io::Result<()> {
        let Some(current) = self.current_tree() else { return Ok(()) };
        let mut older: Vec<u64> =
            self.tree_numbers()?.into_iter().filter(|tree| *tree < current).collect();
        older.truncate(older.len().saturating_sub(keep));
        older.into_iter().try_for_each(|tree| self.discard_tree(tree))?;
        // A crash may have left trees whose manifests were removed first.
        let left = self.numbers_with_ending("")?.into_iter().filter(|tree| *tree != current);
        let left: Vec<u64> = left.filter(|tree| !self.manifest_path(*tree).exists()).collect();
        left.into_iter().try_for_each(|tree| self.discard_tree(tree))
    }

    /// Removes a tree: its manifest first, so that no run resumes a partly removed tree.
    ///
    /// # Errors
    /// If the disk fails.
    pub(crate) fn discard_tree(&self, tree: u64) -> io::Result<()> {
        for removal in
            [fs::remove_file(self.manifest_path(tree)), fs::remove_dir_all(self.tree_path(tree))]
        {
            match removal {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

fn is_not_found(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn parse_tree_number(name: &str) -> Option<u64> {
    name.strip_prefix(TREE_PREFIX)?.parse().ok()
}

fn hash_content(content: &mut dyn Read) -> io::Result<String> {
    let mut hasher = Sha256::new();
    for_each_chunk(content, |part| {
        hasher.update(part);
        Ok(())
    })?;
    Ok(hex::encode(hasher.finalize()))
}

/// Reads all bytes in chunks.
fn for_each_chunk(
    content: &mut dyn Read,
    mut hear: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match content.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => hear(buffer.get(..count).unwrap_or_default())?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_name_when_it_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let folder = ExportFolder::open(dir.path()).unwrap();
        let waiting = folder.stage(&mut &b"text"[..]).unwrap();
        assert_eq!(waiting.bytes, 4);
        let hash = waiting.hash.clone();
        folder.link_into_tree(1, &waiting, "a/b.html").unwrap();
        assert!(folder.is_file_unchanged(1, "a/b.html", &hash));
        // A name that needs a folder where a file exists, and the other way round.
        for name in ["a/b.html/c.html", "a"] {
            let second = folder.stage(&mut &b"x"[..]).unwrap();
            assert!(folder.link_into_tree(1, &second, name).is_err());
        }
        assert_eq!(fs::read_dir(dir.path().join(STAGING_DIR_NAME)).unwrap().count(), 0);
        folder.remove_file(1, "a/b.html").unwrap();
        assert!(!dir.path().join("tree-000001/a").exists());
        folder.remove_file(1, "a/b.html").unwrap();
    }

    #[test]
    fn no_link_and_no_name_leads_out_of_a_tree() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let letter = outside.path().join("letter.html");
        fs::write(&letter, "mine").unwrap();
        let folder = ExportFolder::open(&dir.path().join("out")).unwrap();
        let stage = || folder.stage(&mut &b"x"[..]).unwrap();
        folder.link_into_tree(1, &stage(), "a/b.html").unwrap();
        let tree = folder.tree_path(1);
        std::os::unix::fs::symlink(outside.path(), tree.join("a/link")).unwrap();
        std::os::unix::fs::symlink(&letter, tree.join("a/letter.html")).unwrap();
        let away = outside.path().join("x.html");
        let hash = stage().hash.clone();
        for name in [
            "a/link/x.html",
            "a/link/y/x.html",
            "../x.html",
            "a/../../../x.html",
            away.to_str().unwrap(),
            "",
        ] {
            assert!(folder.link_into_tree(1, &stage(), name).is_err(), "{name}");
            assert!(
                !folder.has_file(1, name) && !folder.is_file_unchanged(1, name, &hash),
                "{name}"
            );
            folder.remove_file(1, name).ok();
        }
        assert!(!folder.has_file(1, "a/link/letter.html") && !folder.has_file(1, "a/letter.html"));
        folder.remove_file(1, "a/link/letter.html").unwrap();
        // A link at the file's path is replaced, and its target stays.
        folder.link_into_tree(1, &stage(), "a/letter.html").unwrap();
        assert!(folder.is_file_unchanged(1, "a/letter.html", &hash));
        assert_eq!(fs::read_to_string(&letter).unwrap(), "mine");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }

    #[test]
    fn trees_take_turns_and_old_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        let folder = ExportFolder::open(dir.path()).unwrap();
        assert_eq!(folder.current_tree(), None);
        for tree in 1..=4 {
            fs::create_dir_all(folder.tree_path(tree)).unwrap();
            fs::write(folder.manifest_path(tree), "").unwrap();
            folder.switch_current(tree).unwrap();
            assert_eq!(folder.current_tree(), Some(tree));
            folder.prune_trees(1).unwrap();
        }
        assert_eq!(folder.tree_numbers().unwrap(), [3, 4]);
        assert!(folder.tree_path(3).exists() && !folder.tree_path(2).exists());
        // The state after a crash during an earlier pruning.
        fs::create_dir_all(folder.tree_path(2).join("a")).unwrap();
        folder.prune_trees(1).unwrap();
        assert_eq!(folder.numbers_with_ending("").unwrap(), [3, 4]);
    }

    #[test]
    fn a_folder_belongs_to_one_process_and_to_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let folder = ExportFolder::open(dir.path()).unwrap();
        assert_eq!(ExportFolder::open(dir.path()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(folder);
        assert!(ExportFolder::open(dir.path()).is_ok());
        let other_folder = tempfile::tempdir().unwrap();
        fs::write(other_folder.path().join("letter.txt"), "").unwrap();
        assert!(ExportFolder::open(other_folder.path()).is_err());
    }

    #[test]
    fn a_reader_that_fails_leaves_nothing() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("broken"))
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let folder = ExportFolder::open(dir.path()).unwrap();
        assert!(folder.stage(&mut Broken).is_err());
        assert_eq!(fs::read_dir(dir.path().join(STAGING_DIR_NAME)).unwrap().count(), 0);
    }
}
