//! Several places as one: some are written to, the others only read. OAK-7083 calls them delegates.
//!
//! In: ids, and bytes to store. Out: the first delegate's answer that has one: the one that had the blob before, then
//! the writable ones in their order, then the read-only ones.
//!
//! Invariants
//! * Nothing is ever written to a read-only delegate: it is held by a trait that cannot write.
//! * What is put goes to the first writable delegate, also where another one has it: a read-only one may drop it one day.
//! * A delegate that fails is an error unless another one has the blob; it never makes a blob absent.
//!
//! Not here: which blobs are small (`LocalBlobs`), and what the configuration calls all this (the binary).

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

use crate::place::check_note_name;
use crate::{BlobContent, Error, Listed, Origin, ReadBlobs, Result, WriteBlobs};

/// For how many blobs it is remembered where they were found, as in Oak: for those of tens of thousands of pictures, at an
/// estimated 100 bytes each. Whatever is not remembered costs a look into every delegate before the one that has it.
const ORIGINS: usize = 65_536;

/// One of the places of a composite, with the role that the configuration gives it.
#[derive(Debug, Clone)]
pub struct Delegate {
    role: String,
    place: Place,
}

#[derive(Debug, Clone)]
enum Place {
    ReadOnly(Arc<dyn ReadBlobs>),
    Writable(Arc<dyn WriteBlobs>),
}

impl Delegate {
    /// Returns a delegate that is written to.
    pub fn writable(role: impl Into<String>, place: Arc<dyn WriteBlobs>) -> Self {
        Self { role: role.into(), place: Place::Writable(place) }
    }

    /// Returns a delegate that nothing is written to.
    pub fn read_only(role: impl Into<String>, place: Arc<dyn ReadBlobs>) -> Self {
        Self { role: role.into(), place: Place::ReadOnly(place) }
    }

    /// Returns the role that the configuration gives it.
    #[must_use]
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Returns the place to read from.
    #[must_use]
    pub fn reader(&self) -> &dyn ReadBlobs {
        match &self.place {
            Place::ReadOnly(place) => &**place,
            Place::Writable(place) => &**place,
        }
    }

    /// Returns the place to write to; nothing if it is only read.
    #[must_use]
    pub fn writer(&self) -> Option<&dyn WriteBlobs> {
        match &self.place {
            Place::ReadOnly(_) => None,
            Place::Writable(place) => Some(&**place),
        }
    }

    fn failed(&self, source: Error) -> Error {
        Error::Delegate { role: self.role.clone(), source: Box::new(source) }
    }
}

/// Counts since a composite was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompositeCounts {
    /// Blobs that were found where they were found before.
    pub hinted: u64,
    /// Blobs that were not where they were found before. A rise means that delegates change under the composite.
    pub misled: u64,
    /// Failures of delegates, also where another one had the blob.
    pub failures: u64,
}

/// Several places as one.
pub struct Composite {
    delegates: Vec<Delegate>,
    /// Where blobs were found lately.
    origins: Cache<BlobId, Origin>,
    hinted: AtomicU64,
    misled: AtomicU64,
    failures: AtomicU64,
}

impl Composite {
    /// Composes delegates. Writable ones are asked first, in their order, then the others.
    #[must_use]
    pub fn new(delegates: Vec<Delegate>) -> Self {
        let (mut ordered, read_only): (Vec<_>, Vec<_>) =
            delegates.into_iter().partition(|delegate| delegate.writer().is_some());
        ordered.extend(read_only);
        Self {
            delegates: ordered,
            origins: Cache::new(ORIGINS),
            hinted: AtomicU64::new(0),
            misled: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// Returns the delegates in the order in which they are asked.
    #[must_use]
    pub fn delegates(&self) -> &[Delegate] {
        &self.delegates
    }

    /// Returns the delegates that are written to, with their roles: what garbage collection sweeps.
    pub fn writable(&self) -> impl Iterator<Item = (&str, &dyn WriteBlobs)> {
        self.delegates.iter().filter_map(|one| Some((one.role(), one.writer()?)))
    }

    /// Returns what was counted since this was made.
    #[must_use]
    pub fn counts(&self) -> CompositeCounts {
        CompositeCounts {
            hinted: self.hinted.load(Ordering::Relaxed),
            misled: self.misled.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }

    /// Tells which delegate holds a blob; nothing if none does.
    ///
    /// # Errors
    /// [`Error::Delegate`] if one fails and none of the others has it.
    pub fn find(&self, id: &BlobId) -> Result<Option<Origin>> {
        let found = self.look_up(id, |place| Ok(place.contains(id)?.then_some(())))?;
        Ok(found.map(|(origin, ())| origin))
    }

    /// Removes everything from the writable delegates that was neither put nor touched since, and returns how many blobs
    /// that were. A delegate that fails does not keep the others from it.
    ///
    /// # Errors
    /// [`Error::Delegate`] of the first one that failed, after the others are done.
    pub fn delete_unused(&self, unused_since: SystemTime) -> Result<u64> {
        let mut removed = 0;
        self.in_all_writable(|place| {
            let mut unused = Vec::new();
            place.list(&mut |listed| {
                if listed.modified < unused_since {
                    unused.push(listed.id);
                }
                ControlFlow::Continue(())
            })?;
            for id in &unused {
                removed += u64::from(place.delete(id)?);
            }
            Ok(!unused.is_empty())
        })?;
        Ok(removed)
    }

    /// Returns the smallest length that a writable delegate keeps; those that are only read do not count.
    #[must_use]
    pub fn least_written_bytes(&self) -> u64 {
        self.writable().map(|(_, place)| place.least_bytes()).min().unwrap_or(0)
    }

    /// Asks delegate after delegate: first the one that had the blob last.
    fn look_up<T>(
        &self,
        id: &BlobId,
        ask: impl Fn(&dyn ReadBlobs) -> Result<Option<T>>,
    ) -> Result<Option<(Origin, T)>> {
        let hint = self.origins.get(id);
        let hinted = hint.and_then(|Origin(at)| Some((at, self.delegates.get(usize::from(at))?)));
        let others = (0..).zip(&self.delegates).filter(|(at, _)| Some(Origin(*at)) != hint);
        let mut failure = None;
        for (at, delegate) in hinted.into_iter().chain(others) {
            if id.length() < delegate.reader().least_bytes() {
                continue;
            }
            let origin = Origin(at);
            match ask(delegate.reader()) {
                Ok(Some(found)) => {
                    let counter = if hint == Some(origin) { &self.hinted } else { &self.misled };
                    if hint.is_some() {
                        counter.fetch_add(1, Ordering::Relaxed);
                    }
                    if hint != Some(origin) {
                        self.origins.insert(*id, origin);
                    }
                    return Ok(Some((origin, found)));
                }
                Ok(None) => {}
                Err(error) => {
                    self.failures.fetch_add(1, Ordering::Relaxed);
                    failure.get_or_insert_with(|| delegate.failed(error));
                }
            }
        }
        // What is nowhere may come back anywhere.
        self.origins.remove(id);
        failure.map_or(Ok(None), Err)
    }

    fn first_writable(&self) -> Result<(Origin, &Delegate, &dyn WriteBlobs)> {
        let mut places = (0..).zip(&self.delegates);
        let first = places.find_map(|(at, one)| Some((Origin(at), one, one.writer()?)));
        first.ok_or_else(|| {
            let roles: Vec<String> =
                self.delegates.iter().map(|one| format!("`{}`", one.role)).collect();
            Error::NothingWritable { roles: roles.join(", ") }
        })
    }

    /// Does the same in every writable delegate; true if it was done in one. All are tried before the first failure is
    /// told.
    fn in_all_writable(
        &self,
        mut act: impl FnMut(&dyn WriteBlobs) -> Result<bool>,
    ) -> Result<bool> {
        let (mut is_done, mut failure) = (false, None);
        for delegate in &self.delegates {
            let Some(place) = delegate.writer() else { continue };
            match act(place) {
                Ok(done) => is_done |= done,
                Err(error) => {
                    self.failures.fetch_add(1, Ordering::Relaxed);
                    failure.get_or_insert_with(|| delegate.failed(error));
                }
            }
        }
        failure.map_or(Ok(is_done), Err)
    }

    /// Keeps in the first writable delegate what was read from afar.
    fn keep(&self, id: &BlobId, content: BlobContent) -> Result<Option<BlobContent>> {
        let (origin, delegate, place) = self.first_writable()?;
        let kept = place.put_named(id, &mut content.into_reader());
        kept.map_err(|error| sorted(delegate, error))?;
        self.origins.insert(*id, origin);
        place.open(id).map_err(|error| delegate.failed(error))
    }
}

impl fmt::Debug for Composite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.delegates).finish()
    }
}

impl ReadBlobs for Composite {
    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        let found = self.look_up(id, |place| place.open(id))?;
        let Some((Origin(at), content)) = found else { return Ok(None) };
        let Some(delegate) = self.delegates.get(usize::from(at)) else { return Ok(Some(content)) };
        let is_far = delegate.writer().is_none() && delegate.reader().is_remote();
        if !is_far || self.writable().next().is_none() {
            return Ok(Some(content));
        }
        match self.keep(id, content) {
            Ok(kept) => Ok(kept),
            Err(error @ Error::Mismatch { .. }) => Err(delegate.failed(error)),
            Err(error) => {
                // A full disk is no reason not to serve what is there.
                self.failures.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(blob = %id, reason = %error, "a blob that was read from afar is not kept");
                delegate.reader().open(id).map_err(|error| delegate.failed(error))
            }
        }
    }

    fn open_file(&self, id: &BlobId) -> Option<File> {
        let is_near = match self.origins.get(id) {
            Some(Origin(at)) => !self.delegates.get(usize::from(at))?.reader().is_remote(),
            // Who is asked first may not have it.
            None => !self.is_remote(),
        };
        let found = is_near.then(|| self.look_up(id, |place| Ok(place.open_file(id))))?;
        found.ok()?.map(|(_, file)| file)
    }

    fn contains(&self, id: &BlobId) -> Result<bool> {
        Ok(self.find(id)?.is_some())
    }

    /// Shows what several delegates hold once, and needs 16 bytes of memory and more for each blob then.
    fn list(&self, visit: &mut dyn FnMut(Listed) -> ControlFlow<()>) -> Result<()> {
        let mut seen: HashSet<[u8; 16]> = HashSet::new();
        let is_one = self.delegates.len() == 1;
        for delegate in &self.delegates {
            let mut is_ended = false;
            let listed = delegate.reader().list(&mut |listed| {
                let head = listed.id.digest().first_chunk::<16>().copied().unwrap_or_default();
                if !is_one && !seen.insert(head) {
                    return ControlFlow::Continue(());
                }
                let flow = visit(listed);
                is_ended = flow.is_break();
                flow
            });
            listed.map_err(|error| delegate.failed(error))?;
            if is_ended {
                return Ok(());
            }
        }
        Ok(())
    }

    fn open_note(&self, name: &str) -> Result<Option<BlobContent>> {
        check_note_name(name)?;
        for delegate in &self.delegates {
            let found =
                delegate.reader().open_note(name).map_err(|error| delegate.failed(error))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn list_notes(&self, prefix: &str) -> Result<Vec<(String, SystemTime)>> {
        let mut notes: Vec<(String, SystemTime)> = Vec::new();
        for delegate in &self.delegates {
            let listed = delegate.reader().list_notes(prefix);
            for note in listed.map_err(|error| delegate.failed(error))? {
                if !notes.iter().any(|(name, _)| *name == note.0) {
                    notes.push(note);
                }
            }
        }
        notes.sort();
        Ok(notes)
    }

    fn is_remote(&self) -> bool {
        self.delegates.iter().any(|one| one.reader().is_remote())
    }

    fn least_bytes(&self) -> u64 {
        self.delegates.iter().map(|one| one.reader().least_bytes()).min().unwrap_or(0)
    }
}

impl WriteBlobs for Composite {
    fn put(&self, source: &mut dyn Read) -> Result<BlobId> {
        let (origin, delegate, place) = self.first_writable()?;
        let id = place.put(source).map_err(|error| sorted(delegate, error))?;
        self.origins.insert(id, origin);
        Ok(id)
    }

    fn put_all(&self, blobs: &[&[u8]]) -> Result<Vec<BlobId>> {
        if blobs.is_empty() {
            return Ok(Vec::new());
        }
        let (origin, delegate, place) = self.first_writable()?;
        let ids = place.put_all(blobs).map_err(|error| sorted(delegate, error))?;
        ids.iter().for_each(|id| self.origins.insert(*id, origin));
        Ok(ids)
    }

    fn put_named(&self, id: &BlobId, source: &mut dyn Read) -> Result<()> {
        let (origin, delegate, place) = self.first_writable()?;
        place.put_named(id, source).map_err(|error| sorted(delegate, error))?;
        self.origins.insert(*id, origin);
        Ok(())
    }

    fn touch(&self, id: &BlobId) -> Result<bool> {
        self.in_all_writable(|place| place.touch(id))
    }

    fn delete(&self, id: &BlobId) -> Result<bool> {
        self.in_all_writable(|place| place.delete(id))
    }

    fn discard(&self, id: &BlobId, unused_since: SystemTime) -> Result<bool> {
        self.in_all_writable(|place| place.discard(id, unused_since))
    }

    fn undelete(&self, id: &BlobId) -> Result<bool> {
        self.in_all_writable(|place| place.undelete(id))
    }

    fn list_trash(&self, visit: &mut dyn FnMut(Listed) -> ControlFlow<()>) -> Result<()> {
        for delegate in &self.delegates {
            let Some(place) = delegate.writer() else { continue };
            let mut is_ended = false;
            let listed = place.list_trash(&mut |listed| {
                let flow = visit(listed);
                is_ended = flow.is_break();
                flow
            });
            listed.map_err(|error| delegate.failed(error))?;
            if is_ended {
                return Ok(());
            }
        }
        Ok(())
    }

    fn purge(&self, id: &BlobId) -> Result<bool> {
        self.in_all_writable(|place| place.purge(id))
    }

    fn write_note(&self, name: &str, bytes: &[u8]) -> Result<()> {
        check_note_name(name)?;
        self.first_writable()?;
        self.in_all_writable(|place| place.write_note(name, bytes).map(|()| true)).map(|_| ())
    }

    fn create_note(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        check_note_name(name)?;
        let (_, delegate, place) = self.first_writable()?;
        place.create_note(name, bytes).map_err(|error| delegate.failed(error))
    }

    fn delete_note(&self, name: &str) -> Result<bool> {
        check_note_name(name)?;
        self.in_all_writable(|place| place.delete_note(name))
    }
}

/// Names the delegate that failed, but not for what the sender did wrong.
fn sorted(delegate: &Delegate, error: Error) -> Error {
    match error {
        Error::Source(_) | Error::Mismatch { .. } => error,
        error => delegate.failed(error),
    }
}
