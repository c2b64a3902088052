//! The blobs of a home: who shares them, which of them it needs, and sweeping what nobody does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::watch;
use tympan_blobs::collect::{
    GuestNotes, Identity, Kinship, MarkWriter, Member, SharedBlobs, SharedIdentity, SweepMode,
    SweepOptions, Swept, register, sweep,
};
use tympan_blobs::{BlobId, ReadBlobs, WriteBlobs};
use tympan_store::{
    BlobVisitor, ChunkStore, CollectMode, CollectOptions, Collected, PostgresStore, Progress,
    Retention,
};

use crate::command::Fault;
use crate::home::{Home, chain, create_closed, random_text};
use crate::places::Opened;

/// A place with the name that people know it by.
pub(crate) type Place = (String, Arc<SharedBlobs>);

/// How long to wait before a place is asked again that could not be told of this home.
const REGISTER_AGAIN: Duration = Duration::from_secs(15);
/// How soon a thread that waits sees that the process ends.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The pace of a walk through content.
pub(crate) type Pace<'a> = &'a mut dyn FnMut(&Progress) -> ControlFlow<()>;

/// Who a home is among those who share its blobs.
#[derive(Debug, Clone)]
pub(crate) struct Membership {
    dir: PathBuf,
    /// The database that the repository lies in, if it does: all homes on it are one repository.
    database: Option<Arc<PostgresStore>>,
}

/// A name, and where it is kept.
enum Naming {
    Home(Identity),
    Database(SharedIdentity, String),
}

impl Membership {
    /// Returns who a home is.
    pub(crate) fn of(dir: &Path, database: Option<Arc<PostgresStore>>) -> Self {
        Self { dir: dir.to_owned(), database }
    }

    /// Returns its name for programs and people. A repository that has none gets one.
    ///
    /// # Errors
    /// If its name cannot be read or written.
    pub(crate) fn member(&self) -> tympan_blobs::Result<Member> {
        Ok(self.named(&self.naming()?))
    }

    fn naming(&self) -> tympan_blobs::Result<Naming> {
        let fresh = fresh()?;
        let Some(database) = &self.database else {
            let identity = Identity::open(&self.dir, &machine(), &fresh)?;
            say_if_copied(identity.kinship, &identity.id);
            return Ok(Naming::Home(identity));
        };
        let identity = SharedIdentity::new(database.clone(), database.whereabouts()?);
        let (id, kinship) = identity.open(&fresh)?;
        say_if_copied(kinship, &id);
        Ok(Naming::Database(identity, id))
    }

    fn named(&self, naming: &Naming) -> Member {
        match naming {
            Naming::Home(identity) => {
                Member { id: identity.id.clone(), name: place_name(&self.dir) }
            }
            Naming::Database(_, id) => Member { id: id.clone(), name: "a database".to_owned() },
        }
    }
}

impl Naming {
    /// Makes sure that the last marks in a place are those of this repository, before it marks again with `turn`.
    fn begin_turn(&mut self, place: &dyn WriteBlobs, turn: &str) -> tympan_blobs::Result<()> {
        let fresh = fresh()?;
        match self {
            Self::Home(identity) => {
                let before = identity.id.clone();
                identity.begin_turn(place, (&machine(), &fresh), turn)?;
                if identity.id != before {
                    say_if_copied(identity.kinship, &identity.id);
                }
            }
            Self::Database(identity, id) => {
                let (now, kinship) = identity.begin_turn(place, &fresh, turn)?;
                say_if_copied(kinship, &now);
                *id = now;
            }
        }
        Ok(())
    }
}

/// Returns letters and digits that were never used before.
fn fresh() -> tympan_blobs::Result<String> {
    short().map_err(|fault| {
        tympan_blobs::Error::Source(std::io::Error::other(fault.message().to_owned()))
    })
}

/// Names a folder so that people on other machines know which one it is.
fn place_name(dir: &Path) -> String {
    let dir = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}:{}", host.trim(), dir.display())
}

/// What a home has to do with those who share its blobs.
#[derive(Clone)]
pub(crate) struct Sharing {
    membership: Membership,
    /// What the home writes to.
    places: Vec<Place>,
    /// Folders for notes to the owners of what the home only reads.
    guest_of: Vec<(String, Arc<dyn WriteBlobs>)>,
    /// Where those leave their notes who only read what the home writes to.
    guests: Vec<Arc<dyn ReadBlobs>>,
    /// The places that are reached over the network.
    far: BTreeSet<String>,
}

/// What became of marking.
#[derive(Debug, Default)]
pub(crate) struct Marked {
    /// How many blobs the repository needs.
    pub(crate) count: u64,
    /// Owners of blobs that are only read, and that could not be told; what they were told before counts.
    pub(crate) untold: Vec<String>,
}

impl Sharing {
    /// Returns what the home shares.
    pub(crate) fn of(home: &Home) -> Self {
        Self::new(Membership::of(&home.dir, home.database.clone()), &home.blobs)
    }

    /// Returns what somebody shares who has these places.
    pub(crate) fn new(membership: Membership, blobs: &Opened) -> Self {
        let far = blobs.buckets.iter().map(|(role, _)| role.clone());
        Self {
            membership,
            places: blobs.writable.clone(),
            guest_of: blobs.guest_of.clone(),
            guests: blobs.guests.clone(),
            far: far.chain(blobs.instances.iter().cloned()).collect(),
        }
    }

    /// Returns where others leave their notes who read these blobs over HTTP.
    pub(crate) fn guest_notes(&self) -> GuestNotes {
        let place = |(_, place): &Place| place.clone() as Arc<dyn WriteBlobs>;
        GuestNotes::new(self.places.iter().map(place).collect())
    }

    /// Registers the home in its folders, at once, and in the folders where it is a guest. Whoever stores a blob is
    /// registered before in any case; but what the home refers to may have come with it.
    ///
    /// # Errors
    /// If a folder fails.
    pub(crate) fn register(&self) -> Result<(), Fault> {
        for (role, place) in self.places.iter().filter(|(role, _)| !self.far.contains(role)) {
            place.register().map_err(|error| cannot(role, &error))?;
        }
        for (role, notes) in self.guest_of.iter().filter(|(role, _)| !self.far.contains(role)) {
            self.register_as_guest(&**notes).map_err(|error| cannot(role, &error))?;
        }
        Ok(())
    }

    fn register_as_guest(&self, notes: &dyn WriteBlobs) -> tympan_blobs::Result<()> {
        register(notes, &self.membership.member()?, SystemTime::now())
    }

    /// Registers the home in its buckets and at the instances whose blobs it reads, which may be away, without waiting for
    /// them. Returns what is in the way, if something is.
    pub(crate) fn register_far(
        &self,
        stopped: &watch::Receiver<bool>,
    ) -> impl Fn() -> Option<String> + Send + Sync + use<> {
        let faults = Arc::new(Mutex::new(BTreeMap::new()));
        // Threads of their own: the process does not wait for them when it ends.
        for (role, place) in self.places.iter().filter(|(role, _)| self.far.contains(role)) {
            let (role, place) = (role.clone(), place.clone());
            let (faults, stopped) = (Arc::clone(&faults), stopped.clone());
            std::thread::spawn(move || {
                register_until((&role, &|| place.register()), &faults, &stopped);
            });
        }
        for (role, notes) in self.guest_of.iter().filter(|(role, _)| self.far.contains(role)) {
            let (role, notes, sharing) = (role.clone(), notes.clone(), self.clone());
            let (faults, stopped) = (Arc::clone(&faults), stopped.clone());
            std::thread::spawn(move || {
                let register = || sharing.register_as_guest(&*notes);
                register_until((&role, &register), &faults, &stopped);
            });
        }
        move || {
            let faults = faults.lock();
            let all: Vec<&str> = faults.values().map(String::as_str).collect();
            (!all.is_empty()).then(|| all.join("; "))
        }
    }

    /// States which blobs the repository needs, of all that is still there: kept revisions, leases, readers. Returns
    /// nothing if the pace stopped it.
    ///
    /// # Errors
    /// If the repository or a place that it writes to fails; then the former marks count.
    pub(crate) fn mark(
        &self,
        chunks: &dyn ChunkStore,
        pace: Pace<'_>,
    ) -> Result<Option<Marked>, Fault> {
        let cannot_run = |error: tympan_blobs::Error| Fault::cannot_run(chain(&error));
        let mut naming = self.membership.naming().map_err(cannot_run)?;
        let turn = short()?;
        let mut marked = Marked::default();
        let mut noted = self.noted();
        self.try_all(&mut noted, &mut marked, |place| naming.begin_turn(place, &turn))?;
        let member = self.membership.named(&naming);
        let scratch = self.scratch()?;
        let begun = SystemTime::now();
        self.try_all(&mut noted, &mut marked, |place| register(place, &member, begun))?;
        let marks = noted.iter().map(|_| MarkWriter::begin(begun, &scratch)).collect();
        let places = noted.clone();
        let marks = visit(chunks, marks, pace, move |marks: &mut Vec<MarkWriter>, id| {
            for (marks, (_, place)) in marks.iter_mut().zip(&places) {
                if id.length() >= place.least_bytes() {
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
        self.try_all(&mut noted, &mut marked, |place| {
            if let Some(marks) = marks.next() {
                count = marks.publish(place, &member, &turn)?;
            }
            Ok(())
        })?;
        Ok(Some(Marked { count, ..marked }))
    }

    /// Does something in all places, and leaves out the owners that it cannot be done at: what they keep is for them to say,
    /// and what is stored here can be looked after without them.
    fn try_all(
        &self,
        noted: &mut Vec<(String, Arc<dyn WriteBlobs>)>,
        marked: &mut Marked,
        mut act: impl FnMut(&dyn WriteBlobs) -> tympan_blobs::Result<()>,
    ) -> Result<(), Fault> {
        let mut done = Vec::with_capacity(noted.len());
        for (role, place) in noted.drain(..) {
            let is_guest = self.guest_of.iter().any(|(guest, _)| *guest == role);
            match act(&*place) {
                Ok(()) => done.push((role, place)),
                Err(error) if is_guest && self.far.contains(&role) => {
                    marked.untold.push(cannot(&role, &error).message().to_owned());
                }
                Err(error) => return Err(cannot(&role, &error)),
            }
        }
        *noted = done;
        Ok(())
    }

    /// Returns where the home leaves its marks.
    fn noted(&self) -> Vec<(String, Arc<dyn WriteBlobs>)> {
        let own = self
            .places
            .iter()
            .map(|(role, place)| (role.clone(), place.clone() as Arc<dyn WriteBlobs>));
        own.chain(self.guest_of.iter().cloned()).collect()
    }

    /// Sweeps every place that the home writes to; returns what became of each, by its name.
    ///
    /// # Errors
    /// If a place fails.
    pub(crate) fn sweep(
        &self,
        options: &SweepOptions,
        pace: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Vec<(String, Swept)>, Fault> {
        let mut done = Vec::new();
        for (role, place) in &self.places {
            let swept = sweep(&**place, options, pace).map_err(|error| cannot(role, &error))?;
            done.push((role.clone(), swept));
        }
        Ok(done)
    }

    /// Returns how a sweep of this home works, by a time that [`trusted_now`](crate::clock::trusted_now) gave.
    ///
    /// # Errors
    /// If there is no folder for temporary files.
    pub(crate) fn sweep_options(
        &self,
        mode: SweepMode,
        now: SystemTime,
    ) -> Result<SweepOptions, Fault> {
        // A home has one process at a time; a database has many.
        let sweeper = match &self.membership.database {
            Some(_) => None,
            None => self.membership.member().ok().map(|member| member.id),
        };
        let options = SweepOptions::at(now, self.scratch()?);
        Ok(SweepOptions { mode, sweeper, guests: self.guests.clone(), ..options })
    }

    /// Returns a folder for temporary files.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn scratch(&self) -> Result<PathBuf, Fault> {
        let dir = self.membership.dir.join("spool");
        create_closed(&dir).map_err(|error| {
            Fault::cannot_run(format!("cannot create `{}`: {error}", dir.display()))
        })?;
        Ok(dir)
    }
}

/// Registers far away, however often that has to be tried.
fn register_until(
    (role, register): (&str, &dyn Fn() -> tympan_blobs::Result<()>),
    faults: &Mutex<BTreeMap<String, String>>,
    stopped: &watch::Receiver<bool>,
) {
    while let Err(error) = register() {
        let reason = chain(&error);
        tracing::warn!(role, reason, "not registered with those who share the blobs");
        let fault = format!("this home is not known to those who share `{role}`: {reason}");
        faults.lock().insert(role.to_owned(), fault);
        let mut waited = Duration::ZERO;
        while waited < REGISTER_AGAIN {
            if *stopped.borrow() || stopped.has_changed().is_err() {
                return;
            }
            std::thread::sleep(LOOK_EVERY);
            waited += LOOK_EVERY;
        }
    }
    faults.lock().remove(role);
}

/// Calls `see` with every blob that something in the repository refers to, some more than once; `context` goes through.
/// Nothing comes back if the pace stopped it.
///
/// # Errors
/// If the repository fails, or `see` does.
pub(crate) fn visit<C: Send + 'static>(
    chunks: &dyn ChunkStore,
    context: C,
    pace: Pace<'_>,
    see: impl Fn(&mut C, &BlobId) -> tympan_blobs::Result<()> + Send + Sync + 'static,
) -> Result<Option<C>, Fault> {
    struct Seen<C> {
        context: C,
        failed: Option<tympan_blobs::Error>,
    }
    let seen = Arc::new(Mutex::new(Seen { context, failed: None }));
    let visitor = {
        let seen = Arc::clone(&seen);
        BlobVisitor::new(move |id| {
            let mut seen = seen.lock();
            if seen.failed.is_none() {
                seen.failed = see(&mut seen.context, id).err();
            }
        })
    };
    let options = CollectOptions {
        mode: CollectMode::DryRun,
        // What a collection would drop is still there.
        retention: Retention::ALL,
        blobs: Some(visitor),
        ..CollectOptions::at(SystemTime::now())
    };
    let walked = chunks.collect(&options, &mut |progress| {
        if seen.lock().failed.is_some() { ControlFlow::Break(()) } else { pace(progress) }
    });
    drop(options);
    let Seen { context, failed } = match Arc::try_unwrap(seen) {
        Ok(seen) => seen.into_inner(),
        Err(_) => return Err(Fault::cannot_run("the walk through content has not ended")),
    };
    if let Some(error) = failed {
        return Err(Fault::cannot_run(chain(&error)));
    }
    let Collected { is_stopped, .. } = walked.map_err(|error| Fault::cannot_run(chain(&error)))?;
    Ok((!is_stopped).then_some(context))
}

fn say_if_copied(kinship: Kinship, id: &str) {
    if kinship != Kinship::Copy {
        return;
    }
    tracing::warn!(
        id,
        "this repository is a copy of another one; it has a name of its own beside the blobs now"
    );
}

/// Returns what tells this machine from others.
fn machine() -> String {
    let id = fs::read_to_string(Path::new("/etc/machine-id")).unwrap_or_default();
    id.trim().to_owned()
}

fn short() -> Result<String, Fault> {
    let mut text = random_text()?;
    text.truncate(20);
    Ok(text)
}

/// Names the place in an error.
pub(crate) fn cannot(role: &str, error: &tympan_blobs::Error) -> Fault {
    Fault::cannot_run(format!("blobs, `{role}`: {}", chain(error)))
}
