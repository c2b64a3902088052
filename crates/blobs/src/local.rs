//! Blobs on the local disk: files `ab/cd/<hex>` for large ones, pack records for small ones.

use std::fmt;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
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

/// A blob store in one directory, with the chunk store that holds the small blobs.
pub struct LocalBlobs {
    dir: PathBuf,
    small: Arc<dyn ChunkStore>,
}

impl LocalBlobs {
    /// Opens or creates the store in `dir` and removes what a crash left half-written.
    ///
    /// # Errors
    /// If the directory cannot be created or cleaned.
    pub fn open(dir: &Path, small: Arc<dyn ChunkStore>) -> Result<Self> {
        let temporary = dir.join(TEMPORARY);
        fs::create_dir_all(&temporary).map_err(disk("create", &temporary))?;
        for entry in fs::read_dir(&temporary).map_err(disk("list", &temporary))? {
            let path = entry.map_err(disk("list", &temporary))?.path();
            fs::remove_file(&path).map_err(disk("remove", &path))?;
        }
        Ok(Self { dir: dir.to_owned(), small })
    }

    /// Stores bytes that exceed the limit for small blobs: `head` was read already, the rest is still in `source`.
    fn put_file(&self, head: &[u8], source: &mut dyn Read) -> Result<BlobId> {
        let temporary = self.dir.join(TEMPORARY);
        let mut file =
            NamedTempFile::new_in(&temporary).map_err(disk("create a file in", &temporary))?;
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
        self.keep(file, &id)?;
        Ok(id)
    }

    /// Makes a complete temporary file the blob's own, durably.
    fn keep(&self, file: NamedTempFile, id: &BlobId) -> Result<()> {
        let path = file_in(&self.dir, id);
        if self.touch(&path)? {
            return Ok(());
        }
        file.as_file().sync_data().map_err(disk("sync", &path))?;
        let folder = path.parent().unwrap_or(&self.dir);
        let is_new = !folder.exists();
        fs::create_dir_all(folder).map_err(disk("create", folder))?;
        file.persist(&path).map_err(|failed| disk("rename to", &path)(failed.error))?;
        sync_folder(folder)?;
        if is_new {
            folder.ancestors().skip(1).take(2).try_for_each(sync_folder)?;
        }
        Ok(())
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

/// Makes a rename in the folder durable.
fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(disk("sync", folder))
}

/// Names the file and the action of a failed call.
fn disk(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Disk { action, path, source }
}
