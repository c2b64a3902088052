//! Several blob storages combined into one: some are written to, the others only read. OAK-7083 calls them delegates.
//!
//! In: ids, and bytes to store. Out: the result of the first delegate that has one: the one that had the blob before,
//! then the writable ones in their order, then the read-only ones.
//!
//! Invariants
//! * Nothing is ever written to a read-only delegate: it is held by a trait that cannot write.
//! * Blobs are put into the first writable delegate, even if another one has them: a read-only one may drop them one
//!   day.
//! * A failing delegate causes an error unless another one has the blob; it never makes a blob absent.
//!
//! Not here: which blobs are small (`LocalBlobStore`), and the configuration keys (the binary).

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use quick_cache::sync::Cache;
use tympan_store::BlobId;

use crate::storage::check_note_name;
use crate::{BlobContent, DelegateIndex, Error, ListedBlob, ReadBlobs, Result, WriteBlobs};

/// Number of blobs whose delegate is remembered, as in Oak: enough for those of tens of thousands of pictures, at an
/// estimated 100 bytes each. Any other blob costs a query to every delegate before the one that has it.
const ORIGIN_CACHE_CAPACITY: usize = 65_536;

/// A delegate of a composite, with its role from the configuration.
#[derive(Debug, Clone)]
pub struct BlobDelegate {
    role: String,
    storage: DelegateStorage,
}

#[derive(Debug, Clone)]
enum DelegateStorage {
    ReadOnly(Arc<dyn ReadBlobs>),
    Writable(Arc<dyn WriteBlobs>),
}

impl BlobDelegate {
    /// Returns a writable delegate.
    pub fn writable(role: impl Into<String>, storage: Arc<dyn WriteBlobs>) -> Self {
        Self { role: role.into(), storage: DelegateStorage::Writable(storage) }
    }

    /// Returns a read-only delegate.
    pub fn read_only(role: impl Into<String>, storage: Arc<dyn ReadBlobs>) -> Self {
        Self { role: role.into(), storage: DelegateStorage::ReadOnly(storage) }
    }

    /// Returns the configured role.
    #[must_use]
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Returns the storage for reading.
    #[must_use]
    pub fn reader(&self) -> &dyn ReadBlobs {
        match &self.storage {
            DelegateStorage::ReadOnly(storage) => &**storage,
            DelegateStorage::Writable(storage) => &**storage,
        }
    }

    /// Returns the storage for writing; `None` if it is read-only.
    #[must_use]
    pub fn writer(&self) -> Option<&dyn WriteBlobs> {
        match &self.storage {
            DelegateStorage::ReadOnly(_) => None,
            DelegateStorage::Writable(storage) => Some(&**storage),
        }
    }

    fn delegate_error(&self, source: Error) -> Error {
        Error::Delegate { role: self.role.clone(), source: Box::new(source) }
    }
}

/// Counters since a composite was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompositeBlobCounts {
    /// Blobs that were found in the remembered delegate.
    pub origin_hits: u64,
    /// Blobs that were not in the remembered delegate. A rise means that delegates change under the composite.
    pub stale_origins: u64,
    /// Failures of delegates, including those where another one had the blob.
    pub delegate_failures: u64,
}

/// Several blob storages combined into one.
pub struct CompositeBlobStorage {
    delegates: Vec<BlobDelegate>,
    /// The delegate in which each recently used blob was found.
    origin_cache: Cache<BlobId, DelegateIndex>,
    origin_hits: AtomicU64,
    stale_origins: AtomicU64,
    delegate_failures: AtomicU64,
}

impl CompositeBlobStorage {
    /// Combines delegates. Writable ones are queried first, in their order, then the others.
    #[must_use]
    pub fn new(delegates: Vec<BlobDelegate>) -> Self {
        let (mut ordered, read_only): (Vec<_>, Vec<_>) =
            delegates.into_iter().partition(|delegate| delegate.writer().is_some());
        ordered.extend(read_only);
        Self {
            delegates: ordered,
            origin_cache: Cache::new(ORIGIN_CACHE_CAPACITY),
            origin_hits: AtomicU64::new(0),
            stale_origins: AtomicU64::new(0),
            delegate_failures: AtomicU64::new(0),
        }
    }

    /// Returns the delegates in query order.
    #[must_use]
    pub fn delegates(&self) -> &[BlobDelegate] {
        &self.delegates
    }

    /// Returns the writable delegates with their roles; these are the ones that garbage collection sweeps.
    pub fn writable_delegates(&self) -> impl Iterator<Item = (&str, &dyn WriteBlobs)> {
        self.delegates.iter().filter_map(|delegate| Some((delegate.role(), delegate.writer()?)))
    }

    /// Returns the counters since this was created.
    #[must_use]
    pub fn counts(&self) -> CompositeBlobCounts {
        CompositeBlobCounts {
            origin_hits: self.origin_hits.load(Ordering::Relaxed),
            stale_origins: self.stale_origins.load(Ordering::Relaxed),
            delegate_failures: self.delegate_failures.load(Ordering::Relaxed),
        }
    }

    /// Returns the delegate that has a blob; `None` if none does.
    ///
    /// # Errors
    /// [`Error::Delegate`] if one fails and none of the others has it.
    pub fn find_delegate(&self, id: &BlobId) -> Result<Option<DelegateIndex>> {
        let location =
            self.query_delegates(id, |storage| Ok(storage.contains(id)?.then_some(())))?;
        Ok(location.map(|(origin, ())| origin))
    }

    /// Removes all blobs from the writable delegates that were neither put nor touched since, and returns their number.
    /// A failing delegate does not prevent the others.
    ///
    /// # Errors
    /// [`Error::Delegate`] of the first one that failed, after the others are done.
    pub fn delete_unused(&self, unused_since: SystemTime) -> Result<u64> {
        let mut removed = 0;
        self.apply_to_all_writable(|storage| {
            let mut unused = Vec::new();
            storage.list(&mut |listed| {
                if listed.modified < unused_since {
                    unused.push(listed.id);
                }
                ControlFlow::Continue(())
            })?;
            for id in &unused {
                removed += u64::from(storage.delete(id)?);
            }
            Ok(!unused.is_empty())
        })?;
        Ok(removed)
    }

    /// Returns the smallest length that a writable delegate stores; read-only delegates do not count.
    #[must_use]
    pub fn min_written_bytes(&self) -> u64 {
        self.writable_delegates().map(|(_, storage)| storage.min_blob_bytes()).min().unwrap_or(0)
    }

    /// Queries one delegate after another, beginning with the one that had the blob last.
    fn query_delegates<T>(
        &self,
        id: &BlobId,
        ask: impl Fn(&dyn ReadBlobs) -> Result<Option<T>>,
    ) -> Result<Option<(DelegateIndex, T)>> {
        let hint = self.origin_cache.get(id);
        let hinted =
            hint.and_then(|DelegateIndex(at)| Some((at, self.delegates.get(usize::from(at))?)));
        let others = (0..).zip(&self.delegates).filter(|(at, _)| Some(DelegateIndex(*at)) != hint);
        let mut failure = None;
        for (at, delegate) in hinted.into_iter().chain(others) {
            if id.length() < delegate.reader().min_blob_bytes() {
                continue;
            }
            let origin = DelegateIndex(at);
            match ask(delegate.reader()) {
                Ok(Some(result)) => {
                    let counter =
                        if hint == Some(origin) { &self.origin_hits } else { &self.stale_origins };
                    if hint.is_some() {
                        counter.fetch_add(1, Ordering::Relaxed);
                    }
                    if hint != Some(origin) {
                        self.origin_cache.insert(*id, origin);
                    }
                    return Ok(Some((origin, result)));
                }
                Ok(None) => {}
                Err(error) => {
                    self.delegate_failures.fetch_add(1, Ordering::Relaxed);
                    failure.get_or_insert_with(|| delegate.delegate_error(error));
                }
            }
        }
        // A blob that no delegate has may appear in any of them later.
        self.origin_cache.remove(id);
        failure.map_or(Ok(None), Err)
    }

    fn first_writable_delegate(&self) -> Result<(DelegateIndex, &BlobDelegate, &dyn WriteBlobs)> {
        let mut delegates = (0..).zip(&self.delegates);
        let first = delegates
            .find_map(|(at, delegate)| Some((DelegateIndex(at), delegate, delegate.writer()?)));
        first.ok_or_else(|| {
            let roles: Vec<String> =
                self.delegates.iter().map(|delegate| format!("`{}`", delegate.role)).collect();
            Error::NoWritableDelegate { roles: roles.join(", ") }
        })
    }

    /// Runs an operation on every writable delegate; true if it succeeded on one. All are tried before the first
    /// failure is returned.
    fn apply_to_all_writable(
        &self,
        mut act: impl FnMut(&dyn WriteBlobs) -> Result<bool>,
    ) -> Result<bool> {
        let (mut is_done, mut failure) = (false, None);
        for delegate in &self.delegates {
            let Some(storage) = delegate.writer() else { continue };
            match act(storage) {
                Ok(done) => is_done |= done,
                Err(error) => {
                    self.delegate_failures.fetch_add(1, Ordering::Relaxed);
                    failure.get_or_insert_with(|| delegate.delegate_error(error));
                }
            }
        }
        failure.map_or(Ok(is_done), Err)
    }

    /// Copies a blob that was read from a remote delegate to the first writable one.
    fn copy_to_writable(&self, id: &BlobId, content: BlobContent) -> Result<Option<BlobContent>> {
        let (origin, delegate, storage) = self.first_writable_delegate()?;
        let outcome = storage.put_named(id, &mut content.into_reader());
        outcome.map_err(|error| classify_delegate_error(delegate, error))?;
        self.origin_cache.insert(*id, origin);
        storage.open(id).map_err(|error| delegate.delegate_error(error))
    }
}

impl fmt::Debug for CompositeBlobStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.delegates).finish()
    }
}

impl ReadBlobs for CompositeBlobStorage {
    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        let result = self.query_delegates(id, |storage| storage.open(id))?;
        let Some((DelegateIndex(at), content)) = result else { return Ok(None) };
        let Some(delegate) = self.delegates.get(usize::from(at)) else { return Ok(Some(content)) };
        let is_far = delegate.writer().is_none() && delegate.reader().is_remote();
        if !is_far || self.writable_delegates().next().is_none() {
            return Ok(Some(content));
        }
        match self.copy_to_writable(id, content) {
            Ok(copied) => Ok(copied),
            Err(error @ Error::IdMismatch { .. }) => Err(delegate.delegate_error(error)),
            Err(error) => {
                // A full disk must not prevent serving the blob.
                self.delegate_failures.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(blob = %id, reason = %error, "cannot copy the blob to the writable store; \
                    serving it from its current store");
                delegate.reader().open(id).map_err(|error| delegate.delegate_error(error))
            }
        }
    }

    fn open_file(&self, id: &BlobId) -> Option<File> {
        let is_near = match self.origin_cache.get(id) {
            Some(DelegateIndex(at)) => !self.delegates.get(usize::from(at))?.reader().is_remote(),
            // The delegate that is queried first may not have it.
            None => !self.is_remote(),
        };
        let lookup =
            is_near.then(|| self.query_delegates(id, |storage| Ok(storage.open_file(id))))?;
        lookup.ok()?.map(|(_, file)| file)
    }

    fn contains(&self, id: &BlobId) -> Result<bool> {
        Ok(self.find_delegate(id)?.is_some())
    }

    /// Lists blobs that are in several delegates once, which needs at least 16 bytes of memory per blob if there are
    /// several.
    fn list(&self, visit: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>) -> Result<()> {
        let mut digest_heads: HashSet<[u8; 16]> = HashSet::new();
        let is_one = self.delegates.len() == 1;
        for delegate in &self.delegates {
            let mut is_ended = false;
            let listed = delegate.reader().list(&mut |listed| {
                let head = listed.id.digest().first_chunk::<16>().copied().unwrap_or_default();
                if !is_one && !digest_heads.insert(head) {
                    return ControlFlow::Continue(());
                }
                let flow = visit(listed);
                is_ended = flow.is_break();
                flow
            });
            listed.map_err(|error| delegate.delegate_error(error))?;
            if is_ended {
                return Ok(());
            }
        }
        Ok(())
    }

    fn open_note(&self, name: &str) -> Result<Option<BlobContent>> {
        check_note_name(name)?;
        for delegate in &self.delegates {
            let content = delegate
                .reader()
                .open_note(name)
                .map_err(|error| delegate.delegate_error(error))?;
            if content.is_some() {
                return Ok(content);
            }
        }
        Ok(None)
    }

    fn list_notes(&self, prefix: &str) -> Result<Vec<(String, SystemTime)>> {
        let mut notes: Vec<(String, SystemTime)> = Vec::new();
        for delegate in &self.delegates {
            let listed = delegate.reader().list_notes(prefix);
            for note in listed.map_err(|error| delegate.delegate_error(error))? {
                if !notes.iter().any(|(name, _)| *name == note.0) {
                    notes.push(note);
                }
            }
        }
        notes.sort();
        Ok(notes)
    }

    fn is_remote(&self) -> bool {
        self.delegates.iter().any(|delegate| delegate.reader().is_remote())
    }

    fn min_blob_bytes(&self) -> u64 {
        self.delegates.iter().map(|delegate| delegate.reader().min_blob_bytes()).min().unwrap_or(0)
    }
}

impl WriteBlobs for CompositeBlobStorage {
    fn put(&self, source: &mut dyn Read) -> Result<BlobId> {
        let (origin, delegate, storage) = self.first_writable_delegate()?;
        let id = storage.put(source).map_err(|error| classify_delegate_error(delegate, error))?;
        self.origin_cache.insert(id, origin);
        Ok(id)
    }

    fn put_all(&self, blobs: &[&[u8]]) -> Result<Vec<BlobId>> {
        if blobs.is_empty() {
            return Ok(Vec::new());
        }
        let (origin, delegate, storage) = self.first_writable_delegate()?;
        let ids =
            storage.put_all(blobs).map_err(|error| classify_delegate_error(delegate, error))?;
        ids.iter().for_each(|id| self.origin_cache.insert(*id, origin));
        Ok(ids)
    }

    fn put_named(&self, id: &BlobId, source: &mut dyn Read) -> Result<()> {
        let (origin, delegate, storage) = self.first_writable_delegate()?;
        storage.put_named(id, source).map_err(|error| classify_delegate_error(delegate, error))?;
        self.origin_cache.insert(*id, origin);
        Ok(())
    }

    fn touch(&self, id: &BlobId) -> Result<bool> {
        self.apply_to_all_writable(|storage| storage.touch(id))
    }

    fn delete(&self, id: &BlobId) -> Result<bool> {
        self.apply_to_all_writable(|storage| storage.delete(id))
    }

    fn discard(&self, id: &BlobId, unused_since: SystemTime) -> Result<bool> {
        self.apply_to_all_writable(|storage| storage.discard(id, unused_since))
    }

    fn undelete(&self, id: &BlobId) -> Result<bool> {
        self.apply_to_all_writable(|storage| storage.undelete(id))
    }

    fn list_trash(&self, visit: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>) -> Result<()> {
        for delegate in &self.delegates {
            let Some(storage) = delegate.writer() else { continue };
            let mut is_ended = false;
            let listed = storage.list_trash(&mut |listed| {
                let flow = visit(listed);
                is_ended = flow.is_break();
                flow
            });
            listed.map_err(|error| delegate.delegate_error(error))?;
            if is_ended {
                return Ok(());
            }
        }
        Ok(())
    }

    fn purge(&self, id: &BlobId) -> Result<bool> {
        self.apply_to_all_writable(|storage| storage.purge(id))
    }

    fn write_note(&self, name: &str, bytes: &[u8]) -> Result<()> {
        check_note_name(name)?;
        self.first_writable_delegate()?;
        self.apply_to_all_writable(|storage| storage.write_note(name, bytes).map(|()| true))
            .map(|_| ())
    }

    fn create_note(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        check_note_name(name)?;
        let (_, delegate, storage) = self.first_writable_delegate()?;
        storage.create_note(name, bytes).map_err(|error| delegate.delegate_error(error))
    }

    fn delete_note(&self, name: &str) -> Result<bool> {
        check_note_name(name)?;
        self.apply_to_all_writable(|storage| storage.delete_note(name))
    }
}

/// Adds the name of the failing delegate, except to errors that the sender caused.
fn classify_delegate_error(delegate: &BlobDelegate, error: Error) -> Error {
    match error {
        Error::Source(_) | Error::IdMismatch { .. } => error,
        error => delegate.delegate_error(error),
    }
}
