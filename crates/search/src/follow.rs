//! The follower: a thread that brings the index from the root that it has to the newest one, again and again.
//!
//! It looks at the head of the branch when it is woken and otherwise every [`POLL`]; all commits since the last look
//! become one commit of the index. A build from nothing runs beside it and is adopted when it is complete.
//!
//! On failure: searches go on with the last commit of the index. What may heal by itself (a full disk, a database that
//! does not answer) is tried again after a time; an index that makes no sense, or whose root was collected, is built
//! anew.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use tympan_content::{NodePath, Snapshot};

use crate::document::is_indexed;
use crate::error::{Error, Result, chain};
use crate::files;
use crate::folder::{Current, Writer};
use crate::index::{Served, Shared};
use crate::rebuild::{Built, Rebuild};
use crate::write::{Sink, Source};

/// How often the head is looked at without being woken; where a look costs a round trip, less often.
const POLL: Duration = Duration::from_millis(20);
const COSTLY_POLL: Duration = Duration::from_millis(500);
/// How long to wait after a failure: doubled for each one in a row.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
const FIRST_REBUILD_WAIT: Duration = Duration::from_secs(1);
const LONGEST_REBUILD_WAIT: Duration = Duration::from_mins(5);
/// More changed documents than this are read by several threads.
const MANY: usize = 64;
/// How long the indexed root is kept while no process runs, and how old the lease may be.
const KEEP: Duration = Duration::from_hours(24 * 30);
const RENEW: Duration = Duration::from_hours(1);

/// The state of the thread.
pub(crate) struct Follower {
    shared: Arc<Shared>,
    writer: Option<Writer>,
    rebuild: Option<Rebuild>,
    failures: u32,
    failed_builds: u32,
    /// Before this no build begins: one that fails on a full disk fills it each time.
    next_build: Instant,
    leased: Option<SystemTime>,
}

impl Follower {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            writer: None,
            rebuild: None,
            failures: 0,
            failed_builds: 0,
            next_build: Instant::now(),
            leased: None,
        }
    }

    /// Follows until the index is closed.
    pub(crate) fn run(mut self) {
        let costly = self.shared.repository().chunks().has_costly_round_trips();
        let poll = if costly { COSTLY_POLL } else { POLL };
        while let Some(pass) = self.shared.begin_pass() {
            match self.step() {
                Ok(is_changed) => {
                    self.failures = 0;
                    self.shared.end_pass(pass);
                    if !is_changed {
                        self.shared.sleep(poll);
                    }
                }
                Err(error) => self.fail(&error),
            }
        }
        if let Some(rebuild) = self.rebuild.take() {
            rebuild.cancel();
            // What it has written is removed by itself.
            drop(rebuild.join());
        }
        self.leased = None;
        self.keep_root();
        self.settle();
    }

    /// Notes that builds are being written to.
    fn mark(&self) -> Result<()> {
        let dir = &self.shared.folder.dir;
        files::mark(dir).map_err(|error| Error::of_file("write", dir, error))
    }

    /// Ends writing: what is served is on disk from now on.
    fn settle(&mut self) {
        // Merges under way are given up: nobody waits for them.
        self.writer = None;
        let Some(served) = self.shared.served() else { return };
        if let Err(error) = files::settle(&self.shared.folder.dir, &served.build.dir) {
            tracing::debug!(%error, "full-text index not written to disk");
        }
    }

    /// Does what is next, and tells whether anything was done.
    fn step(&mut self) -> Result<bool> {
        if self.rebuild.as_ref().is_some_and(Rebuild::is_finished)
            && let Some(rebuild) = self.rebuild.take()
        {
            self.shared.watch(None);
            let built = rebuild.join();
            match built.and_then(|built| built.map_or(Ok(()), |built| self.adopt(built))) {
                Ok(()) => self.failed_builds = 0,
                Err(error) => {
                    self.shared.want_rebuild();
                    let wait = FIRST_REBUILD_WAIT.saturating_mul(1 << self.failed_builds.min(10));
                    self.next_build = Instant::now() + wait.min(LONGEST_REBUILD_WAIT);
                    self.failed_builds += 1;
                    return Err(error);
                }
            }
        }
        if self.rebuild.is_none()
            && Instant::now() >= self.next_build
            && self.shared.takes_rebuild()
        {
            self.mark()?;
            let rebuild = Rebuild::start(&self.shared)?;
            self.shared.watch(Some(rebuild.watched.clone()));
            self.rebuild = Some(rebuild);
        }
        let Some(served) = self.shared.served() else { return Ok(false) };
        let is_changed = self.follow(&served)?;
        self.keep_root();
        Ok(is_changed)
    }

    /// Brings the index to the newest state; tells whether it was behind.
    fn follow(&mut self, served: &Served) -> Result<bool> {
        let newer = self.advance(served)?;
        let is_changed = newer.is_some();
        if let Some(newer) = newer {
            self.shared.serve(newer);
        }
        Ok(is_changed)
    }

    /// Brings a build to the newest state, without letting it answer; nothing if it is there, or the index is closing.
    fn advance(&mut self, served: &Served) -> Result<Option<Served>> {
        let old = &served.snapshot;
        if self.shared.repository().head()? == old.root_id() {
            return Ok(None);
        }
        let new = self.shared.repository().snapshot()?;
        let paths = match old.changed_paths(&new) {
            Ok(paths) => paths,
            Err(error) if error.is_transient() => return Err(error.into()),
            Err(error) => {
                return Err(Error::Damaged(format!("its state is gone: {}", chain(&error))));
            }
        };
        let build = served.build.clone();
        if !build.is_there() {
            return Err(Error::Damaged("its files were deleted".to_owned()));
        }
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => {
                self.mark()?;
                build.writer(1)?
            }
        };
        self.write((&writer, &build.dir), &new, &paths)?;
        if self.shared.is_cancelled.load(Ordering::Relaxed) {
            // What was written is not whole, and is forgotten with the writer.
            return Ok(None);
        }
        build.commit(&mut writer, new.root_id())?;
        // A writer that failed is not kept: it is opened anew, at the last commit.
        self.writer = Some(writer);
        self.shared.counters.commits.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(root = %new.root_id(), documents = paths.len(), "full-text index followed");
        Ok(Some(Served::new(build, new)))
    }

    fn write(
        &self,
        (writer, dir): (&Writer, &Path),
        new: &Snapshot,
        paths: &[NodePath],
    ) -> Result<()> {
        let sink = Sink {
            digest: &self.shared.digest,
            writer,
            dir,
            counters: &self.shared.counters,
            done: None,
            is_cancelled: &self.shared.is_cancelled,
        };
        let sources = paths.iter().filter_map(|path| {
            sink.remove(path);
            let found = is_indexed(path).then(|| new.document_node(path).transpose())?;
            found.map(Source::of)
        });
        let threads = if paths.len() > MANY { self.shared.options.threads.max(2) } else { 1 };
        sink.write_all(sources, threads)
    }

    /// Makes a complete build the one that answers, once it has what was committed while it was made: nobody who has
    /// found something loses sight of it.
    fn adopt(&mut self, built: Built) -> Result<()> {
        let Built { build, snapshot } = built;
        self.writer = None;
        let current =
            Current { build: build.name.clone(), holder: self.shared.holder().to_owned() };
        let built = Served::new(Arc::new(build), snapshot);
        let served = self.advance(&built)?.unwrap_or(built);
        self.shared.folder.switch(&current)?;
        self.shared.counters.rebuilds.fetch_add(1, Ordering::Relaxed);
        tracing::info!(root = %served.snapshot.root_id(), "full-text index built");
        self.shared.adopt(served);
        self.leased = None;
        self.shared.folder.clean();
        Ok(())
    }

    /// Notes a failure and waits before the next try.
    fn fail(&mut self, error: &Error) {
        let reason = chain(error);
        tracing::warn!(reason = %reason, "full-text index does not follow");
        self.writer = None;
        if matches!(error, Error::Damaged(_)) {
            self.shared.want_rebuild();
        }
        self.shared.pause(reason);
        let wait = FIRST_WAIT.saturating_mul(1 << self.failures.min(10)).min(LONGEST_WAIT);
        self.failures += 1;
        self.shared.sleep(wait);
    }

    /// Renews the lease on the root that is served. Without it the index is built anew after a long absence, no more.
    fn keep_root(&mut self) {
        let now = SystemTime::now();
        let is_fresh = |leased: SystemTime| now.duration_since(leased).is_ok_and(|age| age < RENEW);
        if self.leased.is_some_and(is_fresh) {
            return;
        }
        let Some(served) = self.shared.served() else { return };
        let root = served.snapshot.root_id();
        self.leased = Some(now);
        if let Err(error) = self.shared.repository().keep(self.shared.holder(), root, now + KEEP) {
            tracing::debug!(root = %root, reason = %chain(&error), "root of the full-text index not leased");
        }
    }
}
