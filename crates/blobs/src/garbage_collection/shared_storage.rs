//! A shared storage: each repository is registered before it stores blobs.
//!
//! Invariants
//! * Nothing is put or touched before the repository's note is in the storage: a sweep knows of it, and waits for its
//!   marks.
//!
//! On failure: nothing is stored. Writing the note is retried with the next blob.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use tympan_store::BlobId;

use super::member::{StorageMember, register_member};
use crate::{BlobContent, ListedBlob, ReadBlobs, Result, WriteBlobs};

/// A storage together with the repository that stores blobs in it.
pub struct SharedBlobStorage {
    storage: Arc<dyn WriteBlobs>,
    member: Box<dyn Fn() -> Result<StorageMember> + Send + Sync>,
    /// The file that records for the next process which repository was registered here.
    registration_file: Option<PathBuf>,
    is_registered: AtomicBool,
    /// Serializes registrations.
    registration_lock: Mutex<()>,
}

impl SharedBlobStorage {
    /// Returns the storage for the repository that `member` returns when called.
    pub fn new(
        storage: Arc<dyn WriteBlobs>,
        member: impl Fn() -> Result<StorageMember> + Send + Sync + 'static,
    ) -> Self {
        let member = Box::new(member);
        let is_registered = AtomicBool::new(false);
        Self {
            storage,
            member,
            registration_file: None,
            is_registered,
            registration_lock: Mutex::new(()),
        }
    }

    /// Allows storing blobs of a repository that an earlier process registered even while the storage is unavailable:
    /// for storages that upload later. The file belongs to this storage and this home.
    #[must_use]
    pub fn with_registration_file(self, file: PathBuf) -> Self {
        Self { registration_file: Some(file), ..self }
    }

    /// Registers the repository, unless this process has done so.
    ///
    /// # Errors
    /// If the repository has no name, or the storage fails.
    pub fn register(&self) -> Result<()> {
        if self.is_registered.load(Ordering::Acquire) {
            return Ok(());
        }
        let _turn = self.registration_lock.lock();
        if self.is_registered.load(Ordering::Acquire) {
            return Ok(());
        }
        let member = (self.member)()?;
        register_member(&*self.storage, &member, SystemTime::now())?;
        if let Some(file) = &self.registration_file {
            // Without the file, the next process queries the storage.
            fs::write(file, &member.id).ok();
        }
        self.is_registered.store(true, Ordering::Release);
        Ok(())
    }

    /// Ensures that the repository is registered, by this process or an earlier one.
    fn ensure_registered(&self) -> Result<()> {
        if self.is_registered.load(Ordering::Acquire) || self.is_registration_recorded()? {
            return Ok(());
        }
        self.register()
    }

    fn is_registration_recorded(&self) -> Result<bool> {
        let Some(file) = &self.registration_file else { return Ok(false) };
        let Ok(recorded_id) = fs::read_to_string(file) else { return Ok(false) };
        Ok((self.member)()?.id == recorded_id)
    }
}

impl fmt::Debug for SharedBlobStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.storage.fmt(f)
    }
}

impl ReadBlobs for SharedBlobStorage {
    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        self.storage.open(id)
    }

    fn open_file(&self, id: &BlobId) -> Option<File> {
        self.storage.open_file(id)
    }

    fn contains(&self, id: &BlobId) -> Result<bool> {
        self.storage.contains(id)
    }

    fn list(&self, visit: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>) -> Result<()> {
        self.storage.list(visit)
    }

    fn open_note(&self, name: &str) -> Result<Option<BlobContent>> {
        self.storage.open_note(name)
    }

    fn list_notes(&self, prefix: &str) -> Result<Vec<(String, SystemTime)>> {
        self.storage.list_notes(prefix)
    }

    fn is_remote(&self) -> bool {
        self.storage.is_remote()
    }

    fn min_blob_bytes(&self) -> u64 {
        self.storage.min_blob_bytes()
    }
}

impl WriteBlobs for SharedBlobStorage {
    fn put(&self, source: &mut dyn Read) -> Result<BlobId> {
        self.ensure_registered()?;
        self.storage.put(source)
    }

    fn put_all(&self, blobs: &[&[u8]]) -> Result<Vec<BlobId>> {
        if blobs.is_empty() {
            return Ok(Vec::new());
        }
        self.ensure_registered()?;
        self.storage.put_all(blobs)
    }

    fn put_named(&self, id: &BlobId, source: &mut dyn Read) -> Result<()> {
        self.ensure_registered()?;
        self.storage.put_named(id, source)
    }

    fn touch(&self, id: &BlobId) -> Result<bool> {
        self.ensure_registered()?;
        self.storage.touch(id)
    }

    fn delete(&self, id: &BlobId) -> Result<bool> {
        self.storage.delete(id)
    }

    fn discard(&self, id: &BlobId, unused_since: SystemTime) -> Result<bool> {
        self.storage.discard(id, unused_since)
    }

    fn undelete(&self, id: &BlobId) -> Result<bool> {
        self.storage.undelete(id)
    }

    fn list_trash(&self, visit: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>) -> Result<()> {
        self.storage.list_trash(visit)
    }

    fn purge(&self, id: &BlobId) -> Result<bool> {
        self.storage.purge(id)
    }

    fn write_note(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.storage.write_note(name, bytes)
    }

    fn create_note(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        self.storage.create_note(name, bytes)
    }

    fn delete_note(&self, name: &str) -> Result<bool> {
        self.storage.delete_note(name)
    }
}
