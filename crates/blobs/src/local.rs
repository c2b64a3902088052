//! Blobs on the local disk: files `ab/cd/<hex>` for large ones, pack records for small ones.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;
use tympan_store::{Batch, BlobId, ChunkStore};

use crate::{BlobContent, BlobStore, Error, Result};

/// Blobs shorter than this are pack records: one commit, no file, served from memory.
pub const SMALL_BYTES: usize = 16 * 1024;
/// How much is read and hashed at a time.
const BUFFER_BYTES: usize = 128 * 1024;
/// The folder for files that are still being written, beside the finished ones so that a rename suffices.
const TEMPORARY: &str = "tmp";

/// A blob store in one directory, with the chunk store that holds the small blobs. Several processes may use the
/// directory at the same time.
pub struct LocalBlobs {
    dir: PathBuf,
    small: Arc<dyn ChunkStore>,
    /// The folders for blobs, by the first digits of their names, whose own names are known to be on the disk.
    durable: Mutex<HashSet<PathBuf>>,
}

impl LocalBlobs {
    /// Opens or creates the store in `dir` and removes what a crash left half-written. What another process is writing
    /// stays.
    ///
    /// # Errors
    /// If the directory cannot be created or cleaned.
    pub fn open(dir: &Path, small: Arc<dyn ChunkStore>) -> Result<Self> {
        let temporary = dir.join(TEMPORARY);
        fs::create_dir_all(&temporary).map_err(disk("create", &temporary))?;
        for entry in fs::read_dir(&temporary).map_err(disk("list", &temporary))? {
            let path = entry.map_err(disk("list", &temporary))?.path();
            if is_abandoned(&path)? {
                ignore_absent(fs::remove_file(&path)).map_err(disk("remove", &path))?;
            }
        }
        Ok(Self { dir: dir.to_owned(), small, durable: Mutex::default() })
    }

    /// Stores bytes that exceed the limit for small blobs: `head` was read already, the rest is still in `source`.
    fn put_file(&self, head: &[u8], source: &mut dyn Read) -> Result<BlobId> {
        let mut file = self.temporary_file()?;
        let mut hash = Sha256::new();
        let mut length = 0;
        let mut write = |bytes: &[u8], file: &mut NamedTempFile| -> Result<()> {
            hash.update(bytes);
            length += bytes.len() as u64;
            file.write_all(bytes).map_err(disk("write", file.path()))
        };
        write(head, &mut file)?;
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            match read_some(source, &mut buffer)? {
                [] => break,
                bytes => write(bytes, &mut file)?,
            }
        }
        let id = BlobId::new(hash.finalize().into(), length);
        self.keep(vec![(file, id)])?;
        Ok(id)
    }

    /// Makes a file to write to, locked for as long as it is open.
    fn temporary_file(&self) -> Result<NamedTempFile> {
        let temporary = self.dir.join(TEMPORARY);
        loop {
            let file =
                NamedTempFile::new_in(&temporary).map_err(disk("create a file in", &temporary))?;
            let is_mine = file.as_file().try_lock().is_ok();
            // Another process that opens the store may have taken it for abandoned before it was locked.
            if is_mine && file.path().try_exists().map_err(disk("inspect", file.path()))? {
                return Ok(file);
            }
        }
    }

    /// Makes complete temporary files the blobs' own, durably: first all bytes, then all names.
    fn keep(&self, files: Vec<(NamedTempFile, BlobId)>) -> Result<()> {
        let mut new = Vec::with_capacity(files.len());
        let mut folders = BTreeSet::new();
        for (file, id) in files {
            let path = file_in(&self.dir, &id);
            if self.touch(&path)? {
                // Another writer may have given it its name a moment ago, and not synced the folder yet.
                folders.insert(path.parent().unwrap_or(&self.dir).to_owned());
            } else {
                new.push((file, path));
            }
        }
        for (file, path) in &new {
            file.as_file().sync_data().map_err(disk("sync", path))?;
        }
        for (file, path) in new {
            let folder = path.parent().unwrap_or(&self.dir);
            fs::create_dir_all(folder).map_err(disk("create", folder))?;
            file.persist(&path).map_err(|failed| disk("rename to", &path)(failed.error))?;
            folders.insert(folder.to_owned());
        }
        // The names of blobs, then those of their folders that are new since this process began.
        let (mut wanted, mut new) = (folders.clone(), Vec::new());
        for folder in folders {
            self.add_above(&folder, &mut wanted, &mut new);
        }
        wanted.iter().try_for_each(|folder| sync_folder(folder))?;
        self.durable.lock().extend(new);
        Ok(())
    }

    /// Adds the folders that have to be synced so that a folder's own name is on the disk, as far as that is not known;
    /// `new` gets those whose names will be.
    fn add_above(&self, folder: &Path, wanted: &mut BTreeSet<PathBuf>, new: &mut Vec<PathBuf>) {
        let durable = self.durable.lock();
        for folder in folder.ancestors().take_while(|folder| *folder != self.dir) {
            if durable.contains(folder) {
                return;
            }
            wanted.extend(folder.parent().map(Path::to_owned));
            new.push(folder.to_owned());
        }
    }

    /// Renews the modification time of a file, the clock that garbage collection goes by; `false` if it is absent.
    fn touch(&self, path: &Path) -> Result<bool> {
        match File::options().write(true).open(path) {
            Ok(file) => {
                file.set_modified(SystemTime::now()).map_err(disk("touch", path))?;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(disk("open", path)(error)),
        }
    }
}

impl fmt::Debug for LocalBlobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalBlobs({})", self.dir.display())
    }
}

impl BlobStore for LocalBlobs {
    fn put(&self, source: &mut dyn Read) -> Result<BlobId> {
        let mut head = Vec::with_capacity(SMALL_BYTES);
        (&mut *source).take(SMALL_BYTES as u64).read_to_end(&mut head).map_err(Error::Source)?;
        if head.len() == SMALL_BYTES {
            return self.put_file(&head, source);
        }
        let id = BlobId::of(&head);
        if !self.small.contains_blob(&id)? {
            let mut batch = Batch::default();
            batch.add_blob(id, Bytes::from(head));
            self.small.commit(batch)?;
        }
        Ok(id)
    }

    fn put_all(&self, blobs: &[&[u8]]) -> Result<Vec<BlobId>> {
        let (mut batch, mut files, mut ids) = (Batch::default(), Vec::new(), Vec::new());
        for bytes in blobs {
            let id = BlobId::of(bytes);
            let is_twice = ids.contains(&id);
            ids.push(id);
            if is_twice {
                continue;
            }
            if bytes.len() >= SMALL_BYTES {
                let mut file = self.temporary_file()?;
                file.write_all(bytes).map_err(disk("write", file.path()))?;
                files.push((file, id));
            } else if !self.small.contains_blob(&id)? {
                batch.add_blob(id, Bytes::copy_from_slice(bytes));
            }
        }
        self.keep(files)?;
        if !batch.is_empty() {
            self.small.commit(batch)?;
        }
        Ok(ids)
    }

    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        if id.length() < SMALL_BYTES as u64 {
            return Ok(self.small.read_blob(id)?.map(BlobContent::Bytes));
        }
        open_in(&self.dir, id)
    }

    fn contains(&self, id: &BlobId) -> Result<bool> {
        if id.length() < SMALL_BYTES as u64 {
            return Ok(self.small.contains_blob(id)?);
        }
        exists_in(&self.dir, id)
    }
}

/// Returns the file that holds a large blob.
fn file_in(dir: &Path, id: &BlobId) -> PathBuf {
    let hex: String = id.digest().iter().map(|byte| format!("{byte:02x}")).collect();
    let (first, rest) = hex.split_at(2);
    let (second, _) = rest.split_at(2);
    dir.join(first).join(second).join(&hex)
}

/// Opens a large blob.
pub(crate) fn open_in(dir: &Path, id: &BlobId) -> Result<Option<BlobContent>> {
    let path = file_in(dir, id);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(disk("open", &path)(error)),
    };
    let length = file.metadata().map_err(disk("inspect", &path))?.len();
    if length != id.length() {
        return Err(Error::Damaged { id: *id, length });
    }
    Ok(Some(BlobContent::File { file, length }))
}

/// Tells whether a folder holds a large blob.
pub(crate) fn exists_in(dir: &Path, id: &BlobId) -> Result<bool> {
    let path = file_in(dir, id);
    path.try_exists().map_err(disk("inspect", &path))
}

/// Reads at least one byte unless the source has ended.
fn read_some<'a>(source: &mut dyn Read, buffer: &'a mut [u8]) -> Result<&'a [u8]> {
    loop {
        match source.read(buffer) {
            Ok(length) => return Ok(buffer.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::Source(error)),
        }
    }
}

/// Tells whether no process writes to a temporary file any more.
fn is_abandoned(path: &Path) -> Result<bool> {
    match File::open(path) {
        Ok(file) => Ok(file.try_lock().is_ok()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(disk("open", path)(error)),
    }
}

/// Takes something that is not there for removed: another process was faster.
fn ignore_absent(removed: std::io::Result<()>) -> std::io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Makes a rename in the folder durable.
fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(disk("sync", folder))
}

/// Names the file and the action of a failed call.
fn disk(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Disk { action, path, source }
}
