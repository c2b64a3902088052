//! The sharing of a home's blobs: the members that share them, the blobs that the home needs, and the sweep of blobs
//! that no member needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tympan_notation::error_chain_text;

use parking_lot::Mutex;
use tokio::sync::watch;
use tympan_blobs::garbage_collection::{
    GuestNotes, MarkWriter, SharedBlobStorage, SweepMode, SweepOptions, SweepReport,
    register_member, sweep_storage,
};
use tympan_blobs::{BlobId, ReadBlobs, WriteBlobs};
use tympan_store::{
    ChunkStore, GarbageCollectionMode, GarbageCollectionOptions, GarbageCollectionProgress,
    GarbageCollectionReport, LiveBlobVisitor, RevisionRetention,
};

use crate::blob_storage::HomeBlobStorage;
use crate::error::{Error, Result};
use crate::private_file::create_private_dir;
use crate::storage_membership::{StorageMembership, new_identifier};

/// A blob storage with its display name.
pub(crate) type RoleBlobStorage = (String, Arc<SharedBlobStorage>);

/// The name of a blob storage, and the result of its sweep.
pub type RoleSweepReport = (String, SweepReport);

/// The delay before registering this home again in a storage that could not be reached.
const REGISTRATION_RETRY_INTERVAL: Duration = Duration::from_secs(15);
/// The interval at which a waiting thread checks for the end of the process.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The pace of a walk through content.
pub(crate) type ContentWalkPacer<'a> =
    &'a mut dyn FnMut(&GarbageCollectionProgress) -> ControlFlow<()>;

/// The sharing of a home's blobs with other members.
#[derive(Clone)]
pub struct BlobSharing {
    membership: StorageMembership,
    /// The storages that the home writes to.
    storages: Vec<RoleBlobStorage>,
    /// Folders for notes to the owners of the storages that the home only reads.
    owner_note_folders: Vec<(String, Arc<dyn WriteBlobs>)>,
    /// Folders in which members that only read the home's storages leave their notes.
    guest_note_folders: Vec<Arc<dyn ReadBlobs>>,
    /// The storages that are reached over the network.
    remote_roles: BTreeSet<String>,
}

/// The result of marking.
#[derive(Debug, Default)]
pub struct BlobMarkOutcome {
    /// The number of blobs that the repository needs.
    pub blob_count: u64,
    /// Owners of read-only blobs that could not be notified; their last notification remains valid.
    pub unreachable_owners: Vec<String>,
}

impl fmt::Debug for BlobSharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let roles: Vec<&str> = self.storages.iter().map(|(role, _)| role.as_str()).collect();
        f.debug_struct("BlobSharing").field("roles", &roles).finish_non_exhaustive()
    }
}

impl BlobSharing {
    /// Returns the blob sharing of a member with these storages.
    pub(crate) fn new(membership: StorageMembership, blobs: &HomeBlobStorage) -> Self {
        let far = blobs.buckets.iter().map(|(role, _)| role.clone());
        Self {
            membership,
            storages: blobs.writable.clone(),
            owner_note_folders: blobs.owner_note_folders.clone(),
            guest_note_folders: blobs.guest_note_folders.clone(),
            remote_roles: far.chain(blobs.instance_roles.iter().cloned()).collect(),
        }
    }

    /// Returns the sources of the notes of members that read these blobs over HTTP.
    pub fn guest_note_sources(&self) -> GuestNotes {
        let storage = |(_, storage): &RoleBlobStorage| storage.clone() as Arc<dyn WriteBlobs>;
        GuestNotes::new(self.storages.iter().map(storage).collect())
    }

    /// Registers the home in its folders, at once, and in the folders where it is a guest. A member that stores a blob
    /// is always registered before; but a repository may already refer to blobs that it did not store.
    ///
    /// # Errors
    /// If a folder fails.
    pub fn register(&self) -> Result<()> {
        for (role, storage) in
            self.storages.iter().filter(|(role, _)| !self.remote_roles.contains(role))
        {
            storage.register().map_err(|error| storage_error(role, error))?;
        }
        for (role, notes) in
            self.owner_note_folders.iter().filter(|(role, _)| !self.remote_roles.contains(role))
        {
            self.register_as_guest(&**notes).map_err(|error| storage_error(role, error))?;
        }
        Ok(())
    }

    fn register_as_guest(&self, notes: &dyn WriteBlobs) -> tympan_blobs::Result<()> {
        register_member(notes, &self.membership.member()?, SystemTime::now())
    }

    /// Registers the home in its buckets and at the instances whose blobs it reads, which may be unreachable, without
    /// waiting for them. Returns the obstacle, if any.
    pub fn register_remotely(
        &self,
        stopped: &watch::Receiver<bool>,
    ) -> impl Fn() -> Option<String> + Send + Sync + use<> {
        let faults = Arc::new(Mutex::new(BTreeMap::new()));
        // These are detached threads: the process does not wait for them when it ends.
        for (role, storage) in
            self.storages.iter().filter(|(role, _)| self.remote_roles.contains(role))
        {
            let (role, storage) = (role.clone(), storage.clone());
            let (faults, stopped) = (Arc::clone(&faults), stopped.clone());
            std::thread::spawn(move || {
                register_with_retries(&role, &|| storage.register(), &faults, &stopped);
            });
        }
        for (role, notes) in
            self.owner_note_folders.iter().filter(|(role, _)| self.remote_roles.contains(role))
        {
            let (role, notes, sharing) = (role.clone(), notes.clone(), self.clone());
            let (faults, stopped) = (Arc::clone(&faults), stopped.clone());
            std::thread::spawn(move || {
                let register = || sharing.register_as_guest(&*notes);
                register_with_retries(&role, &register, &faults, &stopped);
            });
        }
        move || {
            let faults = faults.lock();
            let all: Vec<&str> = faults.values().map(String::as_str).collect();
            (!all.is_empty()).then(|| all.join("; "))
        }
    }

    /// Records which blobs the repository needs, of all states that still exist: kept revisions, leases, readers.
    /// Returns `None` if the pacer stopped it.
    ///
    /// # Errors
    /// If the repository or a storage that it writes to fails; then the former marks remain valid.
    pub fn mark_needed_blobs(
        &self,
        chunks: &dyn ChunkStore,
        pace: ContentWalkPacer<'_>,
    ) -> Result<Option<BlobMarkOutcome>> {
        let mut naming = self.membership.identity()?;
        let turn = new_identifier()?;
        let mut marked = BlobMarkOutcome::default();
        let mut destinations = self.mark_destinations();
        self.try_all_storages(&mut destinations, &mut marked, |storage| {
            naming.begin_mark_round(storage, &turn)
        })?;
        let member = self.membership.member_of(&naming);
        let scratch = self.scratch_dir()?;
        let start_time = SystemTime::now();
        self.try_all_storages(&mut destinations, &mut marked, |storage| {
            register_member(storage, &member, start_time)
        })?;
        let marks = destinations.iter().map(|_| MarkWriter::begin(start_time, &scratch)).collect();
        let storages = destinations.clone();
        let marks =
            visit_referenced_blobs(chunks, marks, pace, move |marks: &mut Vec<MarkWriter>, id| {
                for (marks, (_, storage)) in marks.iter_mut().zip(&storages) {
                    if id.length() >= storage.min_blob_bytes() {
                        marks.add(id)?;
                    }
                }
                Ok(())
            })?;
        let Some(marks) = marks else {
            return Ok(None);
        };
        let mut marks = marks.into_iter();
        let mut count = 0;
        self.try_all_storages(&mut destinations, &mut marked, |storage| {
            if let Some(marks) = marks.next() {
                count = marks.publish(storage, &member, &turn)?;
            }
            Ok(())
        })?;
        Ok(Some(BlobMarkOutcome { blob_count: count, ..marked }))
    }

    /// Runs an operation on all storages, and skips owners for which it fails: owners decide what they keep, and the
    /// local blobs can be managed without them.
    fn try_all_storages(
        &self,
        destinations: &mut Vec<(String, Arc<dyn WriteBlobs>)>,
        marked: &mut BlobMarkOutcome,
        mut act: impl FnMut(&dyn WriteBlobs) -> tympan_blobs::Result<()>,
    ) -> Result<()> {
        let mut done = Vec::with_capacity(destinations.len());
        for (role, storage) in destinations.drain(..) {
            let is_guest = self.owner_note_folders.iter().any(|(guest, _)| *guest == role);
            match act(&*storage) {
                Ok(()) => done.push((role, storage)),
                Err(error) if is_guest && self.remote_roles.contains(&role) => {
                    marked.unreachable_owners.push(error_chain_text(&storage_error(&role, error)));
                }
                Err(error) => return Err(storage_error(&role, error)),
            }
        }
        *destinations = done;
        Ok(())
    }

    /// Returns the places where the home leaves its marks.
    fn mark_destinations(&self) -> Vec<(String, Arc<dyn WriteBlobs>)> {
        let own = self
            .storages
            .iter()
            .map(|(role, storage)| (role.clone(), storage.clone() as Arc<dyn WriteBlobs>));
        own.chain(self.owner_note_folders.iter().cloned()).collect()
    }

    /// Sweeps every storage that the home writes to; returns the result of each, by its name.
    ///
    /// # Errors
    /// If a storage fails.
    pub fn sweep(
        &self,
        options: &SweepOptions,
        pace: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Vec<RoleSweepReport>> {
        let mut done = Vec::new();
        for (role, storage) in &self.storages {
            let swept = sweep_storage(&**storage, options, pace)
                .map_err(|error| storage_error(role, error))?;
            done.push((role.clone(), swept));
        }
        Ok(done)
    }

    /// Returns the sweep options of this home, for a time that [`trusted_now`](crate::trusted_clock::trusted_now)
    /// returned.
    ///
    /// # Errors
    /// If there is no folder for temporary files.
    pub fn sweep_options(&self, mode: SweepMode, now: SystemTime) -> Result<SweepOptions> {
        // A home has one process at a time; a database has several.
        let sweeper = match &self.membership.database {
            Some(_) => None,
            None => self.membership.member().ok().map(|member| member.id),
        };
        let options = SweepOptions::with_defaults(now, self.scratch_dir()?);
        Ok(SweepOptions {
            mode,
            sweeper_name: sweeper,
            guest_storages: self.guest_note_folders.clone(),
            ..options
        })
    }

    /// Returns a folder for temporary files.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn scratch_dir(&self) -> Result<PathBuf> {
        let dir = self.membership.dir.join("spool");
        create_private_dir(&dir)
            .map_err(|error| Error::failed(format!("cannot create `{}`", dir.display()), error))?;
        Ok(dir)
    }
}

/// Registers in a remote storage, with retries until it succeeds.
fn register_with_retries(
    role: &str,
    register: &dyn Fn() -> tympan_blobs::Result<()>,
    faults: &Mutex<BTreeMap<String, String>>,
    stopped: &watch::Receiver<bool>,
) {
    while let Err(error) = register() {
        let reason = error_chain_text(&error);
        tracing::warn!(role, reason, "cannot register this home in the shared blob storage");
        let fault =
            format!("this home is not registered in the shared blob storage `{role}`: {reason}");
        faults.lock().insert(role.to_owned(), fault);
        let mut waited = Duration::ZERO;
        while waited < REGISTRATION_RETRY_INTERVAL {
            if *stopped.borrow() || stopped.has_changed().is_err() {
                return;
            }
            std::thread::sleep(STOP_POLL_INTERVAL);
            waited += STOP_POLL_INTERVAL;
        }
    }
    faults.lock().remove(role);
}

/// Calls `see` with every blob that something in the repository refers to, some more than once; `context` is passed
/// through. Returns `None` if the pacer stopped it.
///
/// # Errors
/// If the repository fails, or `see` does.
pub(crate) fn visit_referenced_blobs<C: Send + 'static>(
    chunks: &dyn ChunkStore,
    context: C,
    pace: ContentWalkPacer<'_>,
    see: impl Fn(&mut C, &BlobId) -> tympan_blobs::Result<()> + Send + Sync + 'static,
) -> Result<Option<C>> {
    struct Seen<C> {
        context: C,
        failed: Option<tympan_blobs::Error>,
    }
    let state = Arc::new(Mutex::new(Seen { context, failed: None }));
    let visitor = {
        let state = Arc::clone(&state);
        LiveBlobVisitor::new(move |id| {
            let mut state = state.lock();
            if state.failed.is_none() {
                state.failed = see(&mut state.context, id).err();
            }
        })
    };
    let options = GarbageCollectionOptions {
        mode: GarbageCollectionMode::DryRun,
        // The walk includes data that a collection would drop but that still exists.
        retention: RevisionRetention::KEEP_ALL,
        blob_visitor: Some(visitor),
        ..GarbageCollectionOptions::at_time(SystemTime::now())
    };
    let walked = chunks.collect_garbage(&options, &mut |progress| {
        if state.lock().failed.is_some() { ControlFlow::Break(()) } else { pace(progress) }
    });
    drop(options);
    let Seen { context, failed } = match Arc::try_unwrap(state) {
        Ok(state) => state.into_inner(),
        Err(_) => {
            return Err(Error::failed_alone("the traversal of the content did not finish"));
        }
    };
    if let Some(error) = failed {
        return Err(error.into());
    }
    let GarbageCollectionReport { is_stopped, .. } = walked?;
    Ok((!is_stopped).then_some(context))
}

/// Returns an error that names the storage.
pub(crate) fn storage_error(role: &str, error: tympan_blobs::Error) -> Error {
    Error::failed(format!("blobs, `{role}`"), error)
}
