//! A place that others share: whoever stores there is registered first.
//!
//! Invariants
//! * Nothing is put or touched before the repository's note is in the place: a sweep knows of it, and waits for its marks.
//!
//! On failure: nothing is stored. The note is tried anew with the next blob.

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

use super::member::{Member, register};
use crate::{BlobContent, Listed, ReadBlobs, Result, WriteBlobs};

/// A place together with the repository that stores there.
pub struct SharedBlobs {
    place: Arc<dyn WriteBlobs>,
    member: Box<dyn Fn() -> Result<Member> + Send + Sync>,
    /// Where it is noted for the next process who was registered here.
    memory: Option<PathBuf>,
    is_registered: AtomicBool,
    /// One registration at a time.
    turn: Mutex<()>,
}

impl SharedBlobs {
    /// Returns the place for the repository that `member` names when it is asked.
    pub fn new(
        place: Arc<dyn WriteBlobs>,
        member: impl Fn() -> Result<Member> + Send + Sync + 'static,
    ) -> Self {
        let member = Box::new(member);
        let is_registered = AtomicBool::new(false);
        Self { place, member, memory: None, is_registered, turn: Mutex::new(()) }
    }

    /// Stores blobs of a repository that an earlier process registered also while the place is away: for places that
    /// upload later. The file is that of this place in this home.
    #[must_use]
    pub fn remembering(self, file: PathBuf) -> Self {
        Self { memory: Some(file), ..self }
    }

    /// Registers the repository, unless this process has done so.
    ///
    /// # Errors
    /// If the repository has no name, or the place fails.
    pub fn register(&self) -> Result<()> {
        if self.is_registered.load(Ordering::Acquire) {
            return Ok(());
        }
        let _turn = self.turn.lock();
        if self.is_registered.load(Ordering::Acquire) {
            return Ok(());
        }
        let member = (self.member)()?;
        register(&*self.place, &member, SystemTime::now())?;
        if let Some(file) = &self.memory {
            // Without it the next process asks the place.
            fs::write(file, &member.id).ok();
        }
        self.is_registered.store(true, Ordering::Release);
        Ok(())
    }

    /// Makes sure that the repository is registered, by this process or an earlier one.
    fn ensure(&self) -> Result<()> {
        if self.is_registered.load(Ordering::Acquire) || self.was_registered()? {
            return Ok(());
        }
        self.register()
    }

    fn was_registered(&self) -> Result<bool> {
        let Some(file) = &self.memory else { return Ok(false) };
        let Ok(known) = fs::read_to_string(file) else { return Ok(false) };
        Ok((self.member)()?.id == known)
    }
}

impl fmt::Debug for SharedBlobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

impl ReadBlobs for SharedBlobs {
    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        self.place.open(id)
    }

    fn open_file(&self, id: &BlobId) -> Option<File> {
        self.place.open_file(id)
    }

    fn contains(&self, id: &BlobId) -> Result<bool> {
        self.place.contains(id)
    }

    fn list(&self, visit: &mut dyn FnMut(Listed) -> ControlFlow<()>) -> Result<()> {
        self.place.list(visit)
    }

    fn open_note(&self, name: &str) -> Result<Option<BlobContent>> {
        self.place.open_note(name)
    }

    fn list_notes(&self, prefix: &str) -> Result<Vec<(String, SystemTime)>> {
        self.place.list_notes(prefix)
    }

    fn is_remote(&self) -> bool {
        self.place.is_remote()
    }

    fn least_bytes(&self) -> u64 {
        self.place.least_bytes()
    }
}

impl WriteBlobs for SharedBlobs {
    fn put(&self, source: &mut dyn Read) -> Result<BlobId> {
        self.ensure()?;
        self.place.put(source)
    }

    fn put_all(&self, blobs: &[&[u8]]) -> Result<Vec<BlobId>> {
        if blobs.is_empty() {
            return Ok(Vec::new());
        }
        self.ensure()?;
        self.place.put_all(blobs)
    }

    fn put_named(&self, id: &BlobId, source: &mut dyn Read) -> Result<()> {
        self.ensure()?;
        self.place.put_named(id, source)
    }

    fn touch(&self, id: &BlobId) -> Result<bool> {
        self.ensure()?;
        self.place.touch(id)
    }

    fn delete(&self, id: &BlobId) -> Result<bool> {
        self.place.delete(id)
    }

    fn discard(&self, id: &BlobId, unused_since: SystemTime) -> Result<bool> {
        self.place.discard(id, unused_since)
    }

    fn undelete(&self, id: &BlobId) -> Result<bool> {
        self.place.undelete(id)
    }

    fn list_trash(&self, visit: &mut dyn FnMut(Listed) -> ControlFlow<()>) -> Result<()> {
        self.place.list_trash(visit)
    }

    fn purge(&self, id: &BlobId) -> Result<bool> {
        self.place.purge(id)
    }

    fn write_note(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.place.write_note(name, bytes)
    }

    fn create_note(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        self.place.create_note(name, bytes)
    }

    fn delete_note(&self, name: &str) -> Result<bool> {
        self.place.delete_note(name)
    }
}
