//! The blobs of a home: who shares them, which of them it needs, and sweeping what nobody does.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use tympan_blobs::collect::{
    Identity, Kinship, MarkWriter, Member, SweepMode, SweepOptions, Swept, register, sweep,
};
use tympan_blobs::{BlobId, WriteBlobs};
use tympan_content::Repository;
use tympan_store::{
    BlobVisitor, ChunkId, ChunkStore, CollectMode, CollectOptions, Collected, Progress, Retention,
};

use crate::backend;
use crate::command::Fault;
use crate::home::{Home, chain, random_text};

/// A place with the name that people know it by.
pub(crate) type Place = (String, Arc<dyn WriteBlobs>);

/// The pace of a walk through content.
pub(crate) type Pace<'a> = &'a mut dyn FnMut(&Progress) -> ControlFlow<()>;

/// What a home is among those who share its blobs.
#[derive(Clone)]
pub(crate) struct Sharing {
    dir: PathBuf,
    places: Vec<Place>,
    /// The name of the repository, if it lies in a database: all homes on it are one repository.
    database: Option<String>,
    has_buckets: bool,
}

impl Sharing {
    /// Returns what the home shares.
    pub(crate) fn of(home: &Home) -> Self {
        let database = backend::state_database(&home.config);
        let database = database.map(|(url, schema)| database_name(&url, &schema, &machine()));
        let has_buckets = !home.blobs.buckets.is_empty();
        Self { dir: home.dir.clone(), places: home.blobs.writable.clone(), database, has_buckets }
    }

    /// Tells whether the home may sweep by itself: a database goes by its address alone, and two that sweep a bucket at
    /// the same moment are in each other's way, so that people choose the time there.
    pub(crate) fn sweeps_by_itself(&self) -> bool {
        self.database.is_none() && !self.has_buckets
    }

    /// Registers the home wherever it stores blobs. It has to be, before it stores one.
    ///
    /// # Errors
    /// If a place fails.
    pub(crate) fn register(&self) -> Result<(), Fault> {
        let member = self.member(self.identity()?.as_ref())?;
        for (role, place) in &self.places {
            match register(&**place, &member, SystemTime::now()) {
                // It stores nothing either, and new blobs have a day of grace and a week in the trash.
                Err(error) if error.is_transient() => {
                    let reason = chain(&error);
                    tracing::warn!(role, reason, "not registered with those who share the blobs");
                }
                done => done.map_err(|error| cannot(role, &error))?,
            }
        }
        Ok(())
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
        let mut identity = self.identity()?;
        let turn = short()?;
        if let Some(identity) = &mut identity {
            for (role, place) in &self.places {
                let fresh = short()?;
                let begun = identity.begin_turn(&**place, (&machine(), &fresh), &turn);
                begun.map_err(|error| cannot(role, &error))?;
            }
            say_if_copied(identity);
        }
        let member = self.member(identity.as_ref())?;
        let scratch = self.scratch()?;
        let begun = SystemTime::now();
        let mut marks: Vec<MarkWriter> = Vec::new();
        for (role, place) in &self.places {
            let done = register(&**place, &member, begun);
            done.map_err(|error| cannot(role, &error))?;
            marks.push(MarkWriter::begin(begun, &scratch));
        }
        let places = self.places.clone();
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
        for (marks, (role, place)) in marks.into_iter().zip(&self.places) {
            let done = marks.publish(&**place, &member, &turn);
            count = done.map_err(|error| cannot(role, &error))?;
        }
        Ok(Some(count))
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
        Ok(SweepOptions { mode, ..SweepOptions::at(SystemTime::now(), self.scratch()?) })
    }

    /// Returns a folder for temporary files.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn scratch(&self) -> Result<PathBuf, Fault> {
        let dir = self.dir.join("spool");
        fs::create_dir_all(&dir).map_err(|error| {
            Fault::cannot_run(format!("cannot create `{}`: {error}", dir.display()))
        })?;
        Ok(dir)
    }

    /// Returns what the home is; nothing if its repository lies in a database.
    fn identity(&self) -> Result<Option<Identity>, Fault> {
        if self.database.is_some() {
            return Ok(None);
        }
        let identity = Identity::open(&self.dir, &machine(), &short()?);
        let identity = identity.map_err(|error| Fault::cannot_run(chain(&error)))?;
        say_if_copied(&identity);
        Ok(Some(identity))
    }

    fn member(&self, identity: Option<&Identity>) -> Result<Member, Fault> {
        if let Some(database) = &self.database {
            return Ok(Member { id: database.clone(), name: "a database".to_owned() });
        }
        let id = identity.map(|identity| identity.id.clone());
        let id = id
            .ok_or_else(|| Fault::cannot_run("the home has no name among those who share blobs"))?;
        let dir = fs::canonicalize(&self.dir).unwrap_or_else(|_| self.dir.clone());
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = format!("{}:{}", host.trim(), dir.display());
        Ok(Member { id, name })
    }
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
