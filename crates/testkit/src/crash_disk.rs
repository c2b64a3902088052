//! A disk that records every call, so that a test can simulate a power failure after any of them.
//!
//! Input: the calls of a store. Output: the possible contents of a real disk after a crash, as a [`MemoryDisk`] to
//! reopen.
//!
//! It also injects failures: no space, failed syncs, bit flips.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tympan_store::disk::{Disk, DiskFile, DiskLock, DiskLockError, MappedFile, MemoryDisk};

/// The fate of unsynced writes after a power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsyncedWrites {
    /// All are lost, including names without a folder sync.
    Lost,
    /// All are preserved.
    Persisted,
    /// Of each file, this many bytes after its synced part are preserved.
    Torn(usize),
    /// All are preserved except for the first bytes, this many of each file, which are zeros: the disk wrote the later
    /// part first.
    Reordered(usize),
}

/// An in-memory disk that records all operations. A clone is the same disk.
#[derive(Clone, Debug, Default)]
pub struct CrashDisk {
    state: Arc<Mutex<CrashDiskState>>,
}

#[derive(Debug, Default)]
struct CrashDiskState {
    calls: Vec<DiskCall>,
    folder: CrashFolder,
    free_bytes: Option<usize>,
    fails_syncs: bool,
    is_locked: bool,
}

#[derive(Clone, Debug)]
enum DiskCall {
    Create { name: String },
    Append { file: usize, bytes: Vec<u8> },
    Truncate { file: usize, length: usize },
    Sync { file: usize },
    Rename { from: String, to: String },
    Remove { name: String },
    SyncFolder,
}

/// The folder after a number of calls: as programs see it, and as a power failure leaves it.
#[derive(Clone, Debug, Default)]
struct CrashFolder {
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    files: Vec<CrashFileState>,
}

#[derive(Clone, Debug, Default)]
struct CrashFileState {
    content: Vec<u8>,
    durable_content: Vec<u8>,
}

impl CrashDisk {
    /// Creates an empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of modifying calls so far; [`CrashDisk::crash`] takes any number up to it.
    #[must_use]
    pub fn call_count(&self) -> usize {
        self.lock_state().calls.len()
    }

    /// Returns the number of file syncs so far.
    #[must_use]
    pub fn sync_count(&self) -> usize {
        let inner = self.lock_state();
        let syncs = inner.calls.iter();
        syncs.filter(|call| matches!(call, DiskCall::Sync { .. })).count()
    }

    /// Returns the number of bytes appended so far.
    #[must_use]
    pub fn appended_bytes(&self) -> usize {
        let inner = self.lock_state();
        let appends = inner.calls.iter().map(|call| match call {
            DiskCall::Append { bytes, .. } => bytes.len(),
            _ => 0,
        });
        appends.sum()
    }

    /// Returns the number of unsynced bytes of the largest file after the first `calls` calls.
    #[must_use]
    pub fn max_unsynced_bytes(&self, calls: usize) -> usize {
        let folder = self.folder_after(calls);
        let unsynced = folder.files.iter();
        let unsynced =
            unsynced.map(|file| file.content.len().saturating_sub(file.durable_content.len()));
        unsynced.max().unwrap_or(0)
    }

    /// Returns the disk after a power failure that follows the first `calls` calls.
    #[must_use]
    pub fn crash(&self, calls: usize, unsynced: UnsyncedWrites) -> MemoryDisk {
        let folder = self.folder_after(calls);
        let names = match unsynced {
            UnsyncedWrites::Lost => &folder.durable_names,
            _ => &folder.names,
        };
        let disk = MemoryDisk::new();
        for (name, file) in names {
            if let Some(file) = folder.files.get(*file) {
                disk.put_file(name, file.after_crash(unsynced));
            }
        }
        disk
    }

    /// Returns the disk after the process was killed following the first `calls` calls: all writes are preserved, and
    /// unsynced ones are still unsynced.
    #[must_use]
    pub fn after_process_kill(&self, calls: usize) -> Self {
        let now = self.folder_after(calls);
        let calls = self.lock_state().calls.iter().take(calls).cloned().collect();
        let inner = CrashDiskState { calls, folder: now, ..CrashDiskState::default() };
        Self { state: Arc::new(Mutex::new(inner)) }
    }

    /// Lets appends write `free_bytes` more bytes and then fail with "no space"; `None` removes the limit.
    pub fn set_free_bytes(&self, free_bytes: Option<usize>) {
        self.lock_state().free_bytes = free_bytes;
    }

    /// Makes syncs fail from now on, or succeed again.
    pub fn fail_syncs(&self, fails: bool) {
        self.lock_state().fails_syncs = fails;
    }

    /// Flips one bit of a file without an error.
    pub fn flip_bit(&self, name: &str, offset: usize) {
        let mut inner = self.lock_state();
        let file = inner.folder.names.get(name).copied();
        let state = file.and_then(|file| inner.folder.files.get_mut(file));
        if let Some(byte) = state.and_then(|state| state.content.get_mut(offset)) {
            *byte ^= 1;
        }
    }

    /// Returns the content of a file as programs see it.
    #[must_use]
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        let inner = self.lock_state();
        let file = inner.folder.files.get(*inner.folder.names.get(name)?)?;
        Some(file.content.clone())
    }

    fn folder_after(&self, calls: usize) -> CrashFolder {
        let inner = self.lock_state();
        let mut folder = CrashFolder::default();
        for call in inner.calls.iter().take(calls) {
            folder.apply_call(call);
        }
        folder
    }

    fn lock_state(&self) -> MutexGuard<'_, CrashDiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CrashFileState {
    fn after_crash(&self, unsynced: UnsyncedWrites) -> Vec<u8> {
        // A file that was truncated and not synced may be longer after a crash; the tests of truncation use `Lost`.
        let Some(tail) = self.content.strip_prefix(self.durable_content.as_slice()) else {
            return match unsynced {
                UnsyncedWrites::Lost => self.durable_content.clone(),
                _ => self.content.clone(),
            };
        };
        let mut content = self.durable_content.clone();
        match unsynced {
            UnsyncedWrites::Lost => {}
            UnsyncedWrites::Persisted => content.extend_from_slice(tail),
            UnsyncedWrites::Torn(bytes) => content.extend(tail.iter().take(bytes)),
            UnsyncedWrites::Reordered(bytes) => {
                let zeros = bytes.min(tail.len());
                content.resize(content.len() + zeros, 0);
                content.extend(tail.iter().skip(zeros));
            }
        }
        content
    }
}

impl CrashFolder {
    fn apply_call(&mut self, call: &DiskCall) {
        match call {
            DiskCall::Create { name } => {
                self.names.insert(name.clone(), self.files.len());
                self.files.push(CrashFileState::default());
            }
            DiskCall::Append { file, bytes } => self.change_file(*file, |state| {
                state.content.extend_from_slice(bytes);
            }),
            DiskCall::Truncate { file, length } => self.change_file(*file, |state| {
                state.content.truncate(*length);
            }),
            DiskCall::Sync { file } => self.change_file(*file, |state| {
                state.durable_content.clone_from(&state.content);
            }),
            DiskCall::Rename { from, to } => {
                if let Some(file) = self.names.remove(from) {
                    self.names.insert(to.clone(), file);
                }
            }
            DiskCall::Remove { name } => {
                self.names.remove(name);
            }
            DiskCall::SyncFolder => self.durable_names.clone_from(&self.names),
        }
    }

    fn change_file(&mut self, file: usize, change: impl FnOnce(&mut CrashFileState)) {
        if let Some(state) = self.files.get_mut(file) {
            change(state);
        }
    }
}

impl CrashDiskState {
    fn record_call(&mut self, call: DiskCall) {
        self.folder.apply_call(&call);
        self.calls.push(call);
    }

    fn find_file(&self, name: &str) -> io::Result<usize> {
        let file = self.folder.names.get(name).copied();
        file.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for CrashDisk {
    fn open_file(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(CrashFile { file: self.lock_state().find_file(name)?, disk: self.clone() }))
    }

    fn create_file(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut inner = self.lock_state();
        if inner.free_bytes == Some(0) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let name_of_file = name.to_owned();
        inner.record_call(DiskCall::Create { name: name_of_file });
        drop(inner);
        self.open_file(name)
    }

    fn rename_file(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.lock_state();
        inner.find_file(from)?;
        let (from, to) = (from.to_owned(), to.to_owned());
        inner.record_call(DiskCall::Rename { from, to });
        Ok(())
    }

    fn remove_file(&self, name: &str) -> io::Result<()> {
        let mut inner = self.lock_state();
        inner.find_file(name)?;
        let name = name.to_owned();
        inner.record_call(DiskCall::Remove { name });
        Ok(())
    }

    fn list_folder(&self, folder: &str) -> io::Result<Vec<String>> {
        let inner = self.lock_state();
        let names = inner.folder.names.keys();
        let names = names.filter(|name| folder.is_empty() || name.starts_with(folder));
        Ok(names.cloned().collect())
    }

    fn sync_folder(&self, _: &str) -> io::Result<()> {
        self.lock_state().record_call(DiskCall::SyncFolder);
        Ok(())
    }

    fn lock_folder(&self) -> Result<DiskLock, DiskLockError> {
        let mut inner = self.lock_state();
        if inner.is_locked {
            return Err(DiskLockError::AlreadyLocked { pid: None });
        }
        inner.is_locked = true;
        Ok(DiskLock::new(CrashDiskUnlock(self.clone())))
    }

    fn display_path(&self) -> PathBuf {
        PathBuf::from("crash-disk")
    }
}

#[derive(Debug)]
struct CrashDiskUnlock(CrashDisk);

impl Drop for CrashDiskUnlock {
    fn drop(&mut self) {
        self.0.lock_state().is_locked = false;
    }
}

#[derive(Debug)]
struct CrashFile {
    disk: CrashDisk,
    file: usize,
}

impl CrashFile {
    fn with_content<T>(&self, read: impl FnOnce(&[u8]) -> T) -> T {
        let inner = self.disk.lock_state();
        let state = inner.folder.files.get(self.file);
        read(state.map_or(&[], |state| state.content.as_slice()))
    }
}

impl DiskFile for CrashFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.with_content(|content| content.len() as u64))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.with_content(|content| {
            let part = usize::try_from(offset)
                .ok()
                .and_then(|start| content.get(start..)?.get(..buffer.len()))
                .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
            buffer.copy_from_slice(part);
            Ok(())
        })
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.disk.lock_state();
        let free_bytes = inner.free_bytes.unwrap_or(usize::MAX);
        let fitting = bytes.get(..free_bytes).unwrap_or(bytes).to_vec();
        inner.free_bytes = inner.free_bytes.map(|free_bytes| free_bytes - fitting.len());
        let is_whole = fitting.len() == bytes.len();
        let (file, bytes) = (self.file, fitting);
        inner.record_call(DiskCall::Append { file, bytes });
        if is_whole { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let file = self.file;
        self.disk.lock_state().record_call(DiskCall::Truncate { file, length });
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut inner = self.disk.lock_state();
        if inner.fails_syncs {
            return Err(io::Error::other("the disk does not answer"));
        }
        let file = self.file;
        inner.record_call(DiskCall::Sync { file });
        Ok(())
    }

    fn map_content(&self) -> io::Result<MappedFile> {
        Ok(self.with_content(|content| MappedFile::from_copy(content.to_vec())))
    }
}
