//! A disk that remembers every call, so that a test can cut the power after any of them.
//!
//! In: the calls of a store. Out: what a real disk may hold after a crash, as a [`MemoryDisk`] to reopen.
//!
//! It also fails on demand: no room, syncs that fail, bits that flip.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tympan_store::disk::{Disk, DiskFile, DiskLock, LockError, Mapped, MemoryDisk};

/// What becomes of writes that were not synced when the power went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsynced {
    /// All are lost, also names that no folder sync made durable.
    Lost,
    /// All are there.
    Kept,
    /// Of each file, this many bytes behind its synced part are there.
    Torn(usize),
    /// All are there but the first bytes, this many of each file, which are zeros: the disk wrote the later part first.
    Reordered(usize),
}

/// A disk in memory that records what is done to it. A clone is the same disk.
#[derive(Clone, Debug, Default)]
pub struct CrashDisk {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    calls: Vec<Call>,
    now: Folder,
    room: Option<usize>,
    fails_syncs: bool,
    is_locked: bool,
}

#[derive(Clone, Debug)]
enum Call {
    Create { name: String },
    Append { file: usize, bytes: Vec<u8> },
    Truncate { file: usize, length: usize },
    Sync { file: usize },
    Rename { from: String, to: String },
    Remove { name: String },
    SyncFolder,
}

/// The folder after some calls: as programs see it, and as the power cut leaves it.
#[derive(Clone, Debug, Default)]
struct Folder {
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    files: Vec<FileState>,
}

#[derive(Clone, Debug, Default)]
struct FileState {
    content: Vec<u8>,
    durable: Vec<u8>,
}

impl CrashDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of calls so far that change something; [`CrashDisk::crash`] takes any number up to it.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.inner().calls.len()
    }

    /// Returns the number of file syncs so far.
    #[must_use]
    pub fn syncs(&self) -> usize {
        let inner = self.inner();
        let syncs = inner.calls.iter();
        syncs.filter(|call| matches!(call, Call::Sync { .. })).count()
    }

    /// Returns how many bytes were appended so far.
    #[must_use]
    pub fn appended(&self) -> usize {
        let inner = self.inner();
        let appends = inner.calls.iter().map(|call| match call {
            Call::Append { bytes, .. } => bytes.len(),
            _ => 0,
        });
        appends.sum()
    }

    /// Returns how many bytes of the largest file are not synced after the first `calls` calls.
    #[must_use]
    pub fn unsynced(&self, calls: usize) -> usize {
        let folder = self.folder_after(calls);
        let unsynced = folder.files.iter();
        let unsynced = unsynced.map(|file| file.content.len().saturating_sub(file.durable.len()));
        unsynced.max().unwrap_or(0)
    }

    /// Returns the disk as a power cut after the first `calls` calls leaves it.
    #[must_use]
    pub fn crash(&self, calls: usize, unsynced: Unsynced) -> MemoryDisk {
        let folder = self.folder_after(calls);
        let names = match unsynced {
            Unsynced::Lost => &folder.durable_names,
            _ => &folder.names,
        };
        let disk = MemoryDisk::new();
        for (name, file) in names {
            if let Some(file) = folder.files.get(*file) {
                disk.put(name, file.after_crash(unsynced));
            }
        }
        disk
    }

    /// Returns the disk as the end of the process after the first `calls` calls leaves it: everything is there, and what
    /// was not synced still is not.
    #[must_use]
    pub fn killed(&self, calls: usize) -> Self {
        let now = self.folder_after(calls);
        let calls = self.inner().calls.iter().take(calls).cloned().collect();
        let inner = Inner { calls, now, ..Inner::default() };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Lets appends take `room` more bytes and then fail for want of space; `None` is a disk without end.
    pub fn set_room(&self, room: Option<usize>) {
        self.inner().room = room;
    }

    /// Lets syncs fail from now on, or work again.
    pub fn fail_syncs(&self, fails: bool) {
        self.inner().fails_syncs = fails;
    }

    /// Flips one bit of a file, unnoticed by anyone who does not look.
    pub fn flip_bit(&self, name: &str, offset: usize) {
        let mut inner = self.inner();
        let file = inner.now.names.get(name).copied();
        let state = file.and_then(|file| inner.now.files.get_mut(file));
        if let Some(byte) = state.and_then(|state| state.content.get_mut(offset)) {
            *byte ^= 1;
        }
    }

    /// Returns the content of a file as programs see it.
    #[must_use]
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        let inner = self.inner();
        let file = inner.now.files.get(*inner.now.names.get(name)?)?;
        Some(file.content.clone())
    }

    fn folder_after(&self, calls: usize) -> Folder {
        let inner = self.inner();
        let mut folder = Folder::default();
        for call in inner.calls.iter().take(calls) {
            folder.apply(call);
        }
        folder
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileState {
    fn after_crash(&self, unsynced: Unsynced) -> Vec<u8> {
        // A file that was cut and not synced may come back longer; the tests of cutting look at `Lost`.
        let Some(tail) = self.content.strip_prefix(self.durable.as_slice()) else {
            return match unsynced {
                Unsynced::Lost => self.durable.clone(),
                _ => self.content.clone(),
            };
        };
        let mut content = self.durable.clone();
        match unsynced {
            Unsynced::Lost => {}
            Unsynced::Kept => content.extend_from_slice(tail),
            Unsynced::Torn(bytes) => content.extend(tail.iter().take(bytes)),
            Unsynced::Reordered(bytes) => {
                let zeros = bytes.min(tail.len());
                content.resize(content.len() + zeros, 0);
                content.extend(tail.iter().skip(zeros));
            }
        }
        content
    }
}

impl Folder {
    fn apply(&mut self, call: &Call) {
        match call {
            Call::Create { name } => {
                self.names.insert(name.clone(), self.files.len());
                self.files.push(FileState::default());
            }
            Call::Append { file, bytes } => self.change(*file, |state| {
                state.content.extend_from_slice(bytes);
            }),
            Call::Truncate { file, length } => self.change(*file, |state| {
                state.content.truncate(*length);
            }),
            Call::Sync { file } => self.change(*file, |state| {
                state.durable.clone_from(&state.content);
            }),
            Call::Rename { from, to } => {
                if let Some(file) = self.names.remove(from) {
                    self.names.insert(to.clone(), file);
                }
            }
            Call::Remove { name } => {
                self.names.remove(name);
            }
            Call::SyncFolder => self.durable_names.clone_from(&self.names),
        }
    }

    fn change(&mut self, file: usize, change: impl FnOnce(&mut FileState)) {
        if let Some(state) = self.files.get_mut(file) {
            change(state);
        }
    }
}

impl Inner {
    fn record(&mut self, call: Call) {
        self.now.apply(&call);
        self.calls.push(call);
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        let file = self.now.names.get(name).copied();
        file.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for CrashDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(CrashFile { file: self.inner().find(name)?, disk: self.clone() }))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut inner = self.inner();
        if inner.room == Some(0) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let name_of_file = name.to_owned();
        inner.record(Call::Create { name: name_of_file });
        drop(inner);
        self.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.inner();
        inner.find(from)?;
        let (from, to) = (from.to_owned(), to.to_owned());
        inner.record(Call::Rename { from, to });
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut inner = self.inner();
        inner.find(name)?;
        let name = name.to_owned();
        inner.record(Call::Remove { name });
        Ok(())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let inner = self.inner();
        let names = inner.now.names.keys();
        let names = names.filter(|name| folder.is_empty() || name.starts_with(folder));
        Ok(names.cloned().collect())
    }

    fn sync_folder(&self, _: &str) -> io::Result<()> {
        self.inner().record(Call::SyncFolder);
        Ok(())
    }

    fn lock(&self) -> Result<DiskLock, LockError> {
        let mut inner = self.inner();
        if inner.is_locked {
            return Err(LockError::Held { pid: None });
        }
        inner.is_locked = true;
        Ok(DiskLock::new(Unlock(self.clone())))
    }

    fn dir(&self) -> PathBuf {
        PathBuf::from("crash-disk")
    }
}

#[derive(Debug)]
struct Unlock(CrashDisk);

impl Drop for Unlock {
    fn drop(&mut self) {
        self.0.inner().is_locked = false;
    }
}

#[derive(Debug)]
struct CrashFile {
    disk: CrashDisk,
    file: usize,
}

impl CrashFile {
    fn read<T>(&self, read: impl FnOnce(&[u8]) -> T) -> T {
        let inner = self.disk.inner();
        let state = inner.now.files.get(self.file);
        read(state.map_or(&[], |state| state.content.as_slice()))
    }
}

impl DiskFile for CrashFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.read(|content| content.len() as u64))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read(|content| {
            let part = usize::try_from(offset)
                .ok()
                .and_then(|start| content.get(start..)?.get(..buffer.len()))
                .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
            buffer.copy_from_slice(part);
            Ok(())
        })
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.disk.inner();
        let room = inner.room.unwrap_or(usize::MAX);
        let fitting = bytes.get(..room).unwrap_or(bytes).to_vec();
        inner.room = inner.room.map(|room| room - fitting.len());
        let is_whole = fitting.len() == bytes.len();
        let (file, bytes) = (self.file, fitting);
        inner.record(Call::Append { file, bytes });
        if is_whole { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let file = self.file;
        self.disk.inner().record(Call::Truncate { file, length });
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut inner = self.disk.inner();
        if inner.fails_syncs {
            return Err(io::Error::other("the disk does not answer"));
        }
        let file = self.file;
        inner.record(Call::Sync { file });
        Ok(())
    }

    fn map(&self) -> io::Result<Mapped> {
        Ok(self.read(|content| Mapped::copy(content.to_vec())))
    }
}
