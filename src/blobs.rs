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
    Identity, Kinship, MarkWriter, Member, SharedBlobs, SweepMode, SweepOptions, Swept, register,
    sweep,
};
use tympan_blobs::{BlobId, ReadBlobs, WriteBlobs};
use tympan_content::Repository;
use tympan_store::{
    BlobVisitor, ChunkId, ChunkStore, CollectMode, CollectOptions, Collected, Progress, Retention,
};

use crate::backend;
use crate::command::Fault;
use crate::config::Config;
use crate::home::{Home, chain, random_text};

/// A place with the name that people know it by.
pub(crate) type Place = (String, Arc<SharedBlobs>);

/// How long to wait before a bucket is asked again that could not be told of this home.
const REGISTER_AGAIN: Duration = Duration::from_secs(15);
/// How soon a thread that waits sees that the process ends.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The pace of a walk through content.
pub(crate) type Pace<'a> = &'a mut dyn FnMut(&Progress) -> ControlFlow<()>;

/// Who a home is among those who share its blobs.
#[derive(Debug, Clone)]
pub(crate) struct Membership {
    dir: PathBuf,
    /// The name of the repository, if it lies in a database: all homes on it are one repository.
    database: Option<String>,
}

impl Membership {
    /// Returns who a home is.
    pub(crate) fn of(dir: &Path, config: &Config) -> Self {
        let database = backend::state_database(config);
        let database = database.map(|(url, schema)| database_name(&url, &schema, &machine()));
        Self { dir: dir.to_owned(), database }
    }

    /// Returns its name for programs and people. A home that has none gets one.
    ///
    /// # Errors
    /// If the files of its name cannot be read or written.
    pub(crate) fn member(&self) -> tympan_blobs::Result<Member> {
        Ok(self.named(self.identity()?.as_ref()))
    }

    /// Returns what the home is; nothing if its repository lies in a database.
    fn identity(&self) -> tympan_blobs::Result<Option<Identity>> {
        if self.database.is_some() {
            return Ok(None);
        }
        let fresh = short().map_err(|fault| {
            tympan_blobs::Error::Source(std::io::Error::other(fault.message().to_owned()))
        })?;
        let identity = Identity::open(&self.dir, &machine(), &fresh)?;
        say_if_copied(&identity);
        Ok(Some(identity))
    }

    fn named(&self, identity: Option<&Identity>) -> Member {
        match (identity, &self.database) {
            (Some(identity), _) => Member { id: identity.id.clone(), name: place_name(&self.dir) },
            (None, database) => {
                Member { id: database.clone().unwrap_or_default(), name: "a database".to_owned() }
            }
        }
    }
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

impl Sharing {
    /// Returns what the home shares.
    pub(crate) fn of(home: &Home) -> Self {
        Self {
            membership: Membership::of(&home.dir, &home.config),
            places: home.blobs.writable.clone(),
            guest_of: home.blobs.guest_of.clone(),
            guests: home.blobs.guests.clone(),
            far: home.blobs.buckets.iter().map(|(role, _)| role.clone()).collect(),
        }
    }

    /// Tells whether the home may sweep by itself: a database goes by its address alone, which another one may have, too,
    /// so that people choose the time there.
    pub(crate) fn sweeps_by_itself(&self) -> bool {
        self.membership.database.is_none()
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
        for (role, notes) in &self.guest_of {
            let member = self.membership.member();
            let done = member.and_then(|member| register(&**notes, &member, SystemTime::now()));
            done.map_err(|error| cannot(role, &error))?;
        }
        Ok(())
    }

    /// Registers the home in its buckets, which may be away, without waiting for them. Returns what is in the way, if
    /// something is.
    pub(crate) fn register_far(
        &self,
        stopped: &watch::Receiver<bool>,
    ) -> impl Fn() -> Option<String> + Send + Sync + use<> {
        let faults = Arc::new(Mutex::new(BTreeMap::new()));
        let far = self.places.iter().filter(|(role, _)| self.far.contains(role));
        for (role, place) in far {
            let (role, place) = (role.clone(), place.clone());
            let (faults, stopped) = (Arc::clone(&faults), stopped.clone());
            // A thread of its own: the process does not wait for it when it ends.
            std::thread::spawn(move || register_until((&role, &place), &faults, &stopped));
        }
        move || {
            let faults = faults.lock();
            let all: Vec<&str> = faults.values().map(String::as_str).collect();
            (!all.is_empty()).then(|| all.join("; "))
        }
    }

    /// States which blobs the repository needs, of all that is still there: kept revisions, leases, readers. Returns how
    /// many, or nothing if the pace stopped it.
    ///
    /// # Errors
    /// If the repository or a place fails; then the former marks count.
    pub(crate) fn mark(
        &self,
        repository: &Repository,
        pace: Pace<'_>,
    ) -> Result<Option<u64>, Fault> {
        let cannot_run = |error: tympan_blobs::Error| Fault::cannot_run(chain(&error));
        let mut identity = self.membership.identity().map_err(cannot_run)?;
        let turn = short()?;
        let noted = self.noted();
        if let Some(identity) = &mut identity {
            for (role, place) in &noted {
                let fresh = short()?;
                let begun = identity.begin_turn(&**place, (&machine(), &fresh), &turn);
                begun.map_err(|error| cannot(role, &error))?;
            }
            say_if_copied(identity);
        }
        let member = self.membership.named(identity.as_ref());
        let scratch = self.scratch()?;
        let begun = SystemTime::now();
        let mut marks: Vec<MarkWriter> = Vec::new();
        for (role, place) in &noted {
            let done = register(&**place, &member, begun);
            done.map_err(|error| cannot(role, &error))?;
            marks.push(MarkWriter::begin(begun, &scratch));
        }
        let places = noted.clone();
        let marks = visit(repository, marks, pace, move |marks, id| {
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
        let mut count = 0;
        for (marks, (role, place)) in marks.into_iter().zip(&noted) {
            let done = marks.publish(&**place, &member, &turn);
            count = done.map_err(|error| cannot(role, &error))?;
        }
        Ok(Some(count))
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

    /// Returns how a sweep of this home works.
    ///
    /// # Errors
    /// If there is no folder for temporary files.
    pub(crate) fn sweep_options(&self, mode: SweepMode) -> Result<SweepOptions, Fault> {
        // A home has one process at a time; a database has many.
        let sweeper = match &self.membership.database {
            Some(_) => None,
            None => self.membership.member().ok().map(|member| member.id),
        };
        let options = SweepOptions::at(SystemTime::now(), self.scratch()?);
        Ok(SweepOptions { mode, sweeper, guests: self.guests.clone(), ..options })
    }

    /// Returns a folder for temporary files.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn scratch(&self) -> Result<PathBuf, Fault> {
        let dir = self.membership.dir.join("spool");
        fs::create_dir_all(&dir).map_err(|error| {
            Fault::cannot_run(format!("cannot create `{}`: {error}", dir.display()))
        })?;
        Ok(dir)
    }
}

/// Registers in a bucket, however often that has to be tried.
fn register_until(
    (role, place): (&str, &SharedBlobs),
    faults: &Mutex<BTreeMap<String, String>>,
    stopped: &watch::Receiver<bool>,
) {
    while let Err(error) = place.register() {
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
    repository: &Repository,
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
    let chunks: &dyn ChunkStore = &**repository.chunks();
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

/// Names a database: as it is found, without who asks and how; `machine` is the one that asks.
fn database_name(url: &str, schema: &str, machine: &str) -> String {
    let place = url.split_once("://").map_or(url, |(_, place)| place);
    let (place, query) = place.split_once('?').unwrap_or((place, ""));
    let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
    let words: Vec<(&str, &str)> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .filter(|(name, _)| ["host", "hostaddr", "port", "dbname"].contains(name))
        .collect();
    let hosts = words.iter().filter(|(name, _)| name.starts_with("host"));
    let host = hosts.map(|(_, host)| *host).next().or(place.split('/').next()).unwrap_or("");
    // The same words mean another database on another machine where they mean "here".
    let is_here = host.is_empty()
        || ["localhost", "127.", "::1", "[::1]", "/", "%2F", "%2f"]
            .iter()
            .any(|here| host.starts_with(here));
    let machine = if is_here { machine } else { "" };
    let text = format!("{place}\n{words:?}\n{machine}\n{schema}");
    let hash = ChunkId::of(text.as_bytes()).to_string();
    format!("db{}", hash.get(..20).unwrap_or_default())
}

fn say_if_copied(identity: &Identity) {
    if identity.kinship != Kinship::Copy {
        return;
    }
    let id = &identity.id;
    tracing::warn!(
        id,
        "this home is a copy of another one; it has a name of its own beside the blobs now"
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

#[cfg(test)]
mod tests {
    use super::database_name;

    #[test]
    fn a_database_is_named_by_what_finds_it() {
        let name = |url| database_name(url, "tympan", "here");
        assert_eq!(
            name("postgres://a:b@db.example/x"),
            name("postgresql://c@db.example/x?sslmode=require")
        );
        assert_ne!(name("postgres://db.example/x"), name("postgres://db.example/y"));
        assert_ne!(name("postgres:///x?host=/run/a"), name("postgres:///x?host=/run/b"));
        assert_ne!(
            name("postgres://db.example/x"),
            database_name("postgres://db.example/x", "other", "here")
        );
        for (url, is_here) in [
            ("postgres://localhost/x", true),
            ("postgres://127.0.0.1:5433/x", true),
            ("postgres:///x", true),
            ("postgres:///x?host=%2Frun", true),
            ("postgres://db.example/x", false),
            ("postgres:///x?host=db.example", false),
        ] {
            assert_eq!(name(url) != database_name(url, "tympan", "there"), is_here, "{url}");
        }
    }
}
