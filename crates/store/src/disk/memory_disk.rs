//! A disk in memory, for tests and for stores that need not outlive the process.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use super::file_access::{Disk, DiskFile, DiskLock, DiskLockError};
use super::mapped_file::MappedFile;

/// A folder in memory. Clones share the same folder.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk {
    files: Arc<Mutex<BTreeMap<String, Arc<MemoryFile>>>>,
    is_locked: Arc<AtomicBool>,
}

impl MemoryDisk {
    /// Creates an empty folder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file to the folder, or replaces it.
    pub fn put_file(&self, name: &str, content: Vec<u8>) {
        let file = Arc::new(MemoryFile::new(content));
        self.files.lock().insert(name.to_owned(), file);
    }

    /// Returns the content of a file, or `None` if it does not exist.
    #[must_use]
    pub fn file_content(&self, name: &str) -> Option<Vec<u8>> {
        let file = self.files.lock().get(name).cloned()?;
        Some(file.content.read().clone())
    }

    fn find_file(&self, name: &str) -> io::Result<Arc<MemoryFile>> {
        let file = self.files.lock().get(name).cloned();
        file.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}

impl Disk for MemoryDisk {
    fn open_file(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.find_file(name)?)
    }

    fn create_file(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.put_file(name, Vec::new());
        self.open_file(name)
    }

    fn rename_file(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.files.lock();
        let file = files.remove(from).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove_file(&self, name: &str) -> io::Result<()> {
        let removed = self.files.lock().remove(name);
        removed.map(drop).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    fn list_folder(&self, folder: &str) -> io::Result<Vec<String>> {
        let inside = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let names: BTreeSet<String> = self
            .files
            .lock()
            .keys()
            .filter_map(|name| name.strip_prefix(&inside)?.split('/').next())
            .map(str::to_owned)
            .collect();
        Ok(names.into_iter().collect())
    }

    fn sync_folder(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn lock_folder(&self) -> Result<DiskLock, DiskLockError> {
        if self.is_locked.swap(true, Ordering::AcqRel) {
            let pid = Some(std::process::id());
            return Err(DiskLockError::AlreadyLocked { pid });
        }
        Ok(DiskLock::new(MemoryLockGuard(Arc::clone(&self.is_locked))))
    }

    fn display_path(&self) -> PathBuf {
        PathBuf::from("memory")
    }
}

#[derive(Debug)]
struct MemoryLockGuard(Arc<AtomicBool>);

impl Drop for MemoryLockGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A file in memory.
#[derive(Debug, Default)]
pub struct MemoryFile {
    content: RwLock<Vec<u8>>,
}

impl MemoryFile {
    /// Creates a file with this content.
    #[must_use]
    pub fn new(content: Vec<u8>) -> Self {
        Self { content: RwLock::new(content) }
    }
}

impl DiskFile for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.content.read().len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let content = self.content.read();
        let part = usize::try_from(offset)
            .ok()
            .and_then(|start| content.get(start..)?.get(..buffer.len()))
            .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        buffer.copy_from_slice(part);
        Ok(())
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.content.write().extend_from_slice(bytes);
        Ok(())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        self.content.write().truncate(length);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn map_content(&self) -> io::Result<MappedFile> {
        let content = self.content.read();
        Ok(MappedFile::from_copy(Bytes::copy_from_slice(&content)))
    }
}
