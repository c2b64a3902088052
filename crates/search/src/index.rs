//! The index as the rest of the program has it: opened, asked, watched, closed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwapOption;
use parking_lot::{Condvar, Mutex};
use tantivy::schema::Value;
use tantivy::{DocAddress, Searcher, TantivyDocument, Term};
use tympan_content::query::{FullText, Reader, TextPage, TextRequest};
use tympan_content::{ChunkId, NodePath, Repository, Snapshot};

use crate::document::{Digest, is_indexed};
use crate::error::{Error, Result};
use crate::extract::{Extractor, PdfReader};
use crate::files::{self, Files};
use crate::folder::{Build, Folder, OpenDirectory};
use crate::follow::Follower;
use crate::rebuild::Watched;
use crate::schema::{Fields, schema};
use crate::state::State;
use crate::status::{Counters, Failure, Status};
use crate::top::{Found, Top};

/// The most revisions that the lag is counted in.
const MAX_LAG: usize = 1000;
/// So many failures are named.
const NAMED_FAILURES: usize = 100;

/// How an index works.
#[derive(Debug, Clone)]
pub struct Options {
    /// Threads that read documents while many are indexed; two at least.
    pub threads: usize,
    /// How PDF is read; without it, it is not.
    pub pdf: Option<PdfReader>,
}

impl Default for Options {
    fn default() -> Self {
        Self { threads: 2, pdf: None }
    }
}

/// The full-text index of a repository. A thread follows the content until [`Index::close`], or until it is dropped.
pub struct Index {
    pub(crate) shared: Arc<Shared>,
    follower: Mutex<Option<JoinHandle<()>>>,
}

/// What searches and the follower share.
pub(crate) struct Shared {
    pub(crate) folder: Folder,
    pub(crate) options: Options,
    pub(crate) digest: Digest,
    pub(crate) counters: Counters,
    holder: String,
    served: ArcSwapOption<Served>,
    control: Mutex<Control>,
    /// Whether work under way ends early, as the index is closing.
    pub(crate) is_cancelled: AtomicBool,
    changed: Condvar,
}

/// What the follower is told, and tells.
#[derive(Debug, Default)]
struct Control {
    is_closing: bool,
    is_awake: bool,
    is_rebuild_wanted: bool,
    paused: Option<String>,
    rebuild: Option<Arc<Watched>>,
    /// Passes of the follower that began, and the last one that ended well.
    begun: u64,
    ended: u64,
}

/// What answers: one commit of a build, and the state of the content that it answers for.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) build: Arc<Build>,
    pub(crate) searcher: Searcher,
    /// Keeps the root from being collected while it is served.
    pub(crate) snapshot: Snapshot,
}

impl Served {
    pub(crate) fn new(build: Arc<Build>, snapshot: Snapshot) -> Self {
        Self { searcher: build.reader.searcher(), build, snapshot }
    }
}

impl Shared {
    pub(crate) fn repository(&self) -> &Repository {
        &self.digest.repository
    }

    pub(crate) fn fields(&self) -> &Fields {
        &self.digest.fields
    }

    /// Returns under which name the indexed root is kept.
    pub(crate) fn holder(&self) -> &str {
        &self.holder
    }

    pub(crate) fn served(&self) -> Option<Arc<Served>> {
        self.served.load_full()
    }

    /// Lets searches be answered by a new build from now on; whoever wanted one has it.
    pub(crate) fn adopt(&self, served: Served) {
        self.serve(served);
        self.control.lock().is_rebuild_wanted = false;
    }

    /// Lets searches be answered by this from now on.
    pub(crate) fn serve(&self, served: Served) {
        self.served.store(Some(Arc::new(served)));
        self.control.lock().paused = None;
    }

    /// Begins a pass of the follower; nothing once the index is closing.
    pub(crate) fn begin_pass(&self) -> Option<u64> {
        let mut control = self.control.lock();
        control.is_awake = false;
        control.begun += 1;
        (!control.is_closing).then_some(control.begun)
    }

    pub(crate) fn end_pass(&self, pass: u64) {
        let mut control = self.control.lock();
        // Without anything to answer with, a pass has brought nothing.
        if self.served.load().is_some() {
            control.ended = pass;
            control.paused = None;
        }
        drop(control);
        self.changed.notify_all();
    }

    /// Waits until there may be something to do.
    pub(crate) fn sleep(&self, time: Duration) {
        let deadline = Instant::now() + time;
        let mut control = self.control.lock();
        while !control.is_awake
            && !control.is_closing
            && !self.changed.wait_until(&mut control, deadline).timed_out()
        {}
    }

    pub(crate) fn wake(&self) {
        self.control.lock().is_awake = true;
        self.changed.notify_all();
    }

    pub(crate) fn pause(&self, reason: String) {
        self.counters.pauses.fetch_add(1, Ordering::Relaxed);
        self.control.lock().paused = Some(reason);
        self.changed.notify_all();
    }

    pub(crate) fn watch(&self, rebuild: Option<Arc<Watched>>) {
        self.control.lock().rebuild = rebuild;
    }

    pub(crate) fn want_rebuild(&self) {
        self.control.lock().is_rebuild_wanted = true;
    }

    /// Tells whether a build has to begin, once.
    pub(crate) fn takes_rebuild(&self) -> bool {
        std::mem::take(&mut self.control.lock().is_rebuild_wanted) || self.served.load().is_none()
    }

    fn answering(&self) -> Result<Arc<Served>> {
        self.served().ok_or_else(|| {
            let rebuild = self.control.lock().rebuild.clone();
            let progress = rebuild.map_or(Default::default(), |rebuild| {
                let progress = rebuild.progress();
                (progress.done, progress.total)
            });
            Error::Building { done: progress.0, total: progress.1 }
        })
    }
}

impl Index {
    /// Opens the index in a folder, or begins to build it, and follows the repository from now on.
    ///
    /// # Errors
    /// If the folder cannot be made, or the system gives no thread. A damaged index is no error: it is built anew.
    pub fn open(repository: Repository, dir: &Path, options: Options) -> Result<Self> {
        Self::open_with(repository, dir, options, Files::open)
    }

    pub(crate) fn open_with(
        repository: Repository,
        dir: &Path,
        options: Options,
        open: OpenDirectory,
    ) -> Result<Self> {
        let folder = Folder::new(dir, open)?;
        folder.clean();
        let current = folder.current();
        let holder = current.as_ref().map_or_else(new_holder, |current| current.holder.clone());
        let extractor = Extractor { pdf: options.pdf.clone() };
        let digest = Digest { repository, extractor, fields: schema().1 };
        let shared = Arc::new(Shared {
            folder,
            options,
            digest,
            counters: Counters::default(),
            holder,
            served: ArcSwapOption::empty(),
            control: Mutex::default(),
            is_cancelled: AtomicBool::new(false),
            changed: Condvar::new(),
        });
        if let Some(current) = current {
            match reopen(&shared, &current.build) {
                Ok(served) => {
                    let build = served.build.clone();
                    shared.serve(served);
                    validate(&shared, build);
                }
                Err(error) => {
                    tracing::warn!(reason = %crate::error::chain(&error), "full-text index is built anew");
                }
            }
        }
        let follower = Follower::new(shared.clone());
        let thread = std::thread::Builder::new().name("search-follow".to_owned());
        let thread = thread.spawn(move || follower.run());
        let thread = thread.map_err(|error| Error::of_file("follow", dir, error))?;
        Ok(Self { shared, follower: Mutex::new(Some(thread)) })
    }

    /// Lets the follower look at the head at once, as after a commit.
    pub fn wake(&self) {
        self.shared.wake();
    }

    /// Builds the index anew beside the one that answers.
    pub fn rebuild(&self) {
        self.shared.want_rebuild();
        self.shared.wake();
    }

    /// Returns the index as it is now.
    fn now(&self) -> tympan_content::Result<State> {
        let served = self.shared.answering();
        let served = served.inspect_err(|_| {
            self.shared.counters.queries.fetch_add(1, Ordering::Relaxed);
            self.shared.counters.failed_queries.fetch_add(1, Ordering::Relaxed);
        });
        Ok(State { shared: self.shared.clone(), served: served? })
    }

    /// Waits until the index answers for the newest state, or a later one; tells whether it does in time.
    #[must_use]
    pub fn catch_up(&self, most: Duration) -> bool {
        let deadline = Instant::now() + most;
        let mut control = self.shared.control.lock();
        let begun = control.begun;
        // Once: a pass that brings nothing wakes this thread too, and the two would keep each other awake.
        control.is_awake = true;
        self.shared.changed.notify_all();
        while control.ended <= begun {
            if control.is_closing {
                return false;
            }
            if self.shared.changed.wait_until(&mut control, deadline).timed_out() {
                return false;
            }
        }
        true
    }

    /// Ends following. Searches go on with what there is.
    pub fn close(&self) {
        self.shared.control.lock().is_closing = true;
        self.shared.is_cancelled.store(true, Ordering::Relaxed);
        self.shared.changed.notify_all();
        let thread = self.follower.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the thread that follows content panicked");
        }
    }

    /// Returns what the index counts.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Tells how the index is.
    ///
    /// # Errors
    /// If the history of the content or the index cannot be read.
    pub fn status(&self, now: SystemTime) -> Result<Status> {
        let control = self.shared.control.lock();
        let mut status = Status {
            paused: control.paused.clone(),
            rebuilding: control.rebuild.as_ref().map(|rebuild| rebuild.progress()),
            ..Status::default()
        };
        drop(control);
        let Some(served) = self.shared.served() else { return Ok(status) };
        let root = served.snapshot.root_id();
        status.indexed_root = Some(root);
        let revisions = self.shared.repository().revisions(None, MAX_LAG)?;
        for revision in revisions.iter().take_while(|revision| revision.update.new != Some(root)) {
            status.lag_revisions += 1;
            status.lag = now.duration_since(revision.update.at).unwrap_or_default();
        }
        status.documents = served.searcher.num_docs();
        status.segments = served.searcher.segment_readers().len() as u64;
        status.bytes = bytes_below(&served.build.dir);
        self.add_failures(&served, &mut status)?;
        Ok(status)
    }

    fn add_failures(&self, served: &Served, status: &mut Status) -> Result<()> {
        let fields = self.shared.fields();
        let failed = Term::from_field_text(fields.failed, "true");
        let failed_to_read = |error| Error::of_index("read", &served.build.dir, error);
        let option = tantivy::schema::IndexRecordOption::Basic;
        let query = tantivy::query::TermQuery::new(failed, option);
        let top = Top { limit: NAMED_FAILURES, after: None };
        let search = served.searcher.search(&query, &(tantivy::collector::Count, top));
        let (count, found) = search.map_err(failed_to_read)?;
        status.failures = count as u64;
        for found in found {
            let document = document(&served.searcher, &found).map_err(failed_to_read)?;
            let reasons: Vec<&str> =
                document.get_all(fields.failure).filter_map(|reason| reason.as_str()).collect();
            status.first_failures.push(Failure { path: found.path, reason: reasons.join("; ") });
        }
        Ok(())
    }
}

impl FullText for Index {
    fn search(&self, request: &TextRequest) -> tympan_content::Result<TextPage> {
        self.now()?.search(request)
    }

    fn suggest(
        &self,
        prefix: &str,
        limit: usize,
        reader: Option<Reader<'_>>,
    ) -> tympan_content::Result<Vec<String>> {
        self.now()?.suggest(prefix, limit, reader)
    }

    fn spellcheck(
        &self,
        text: &str,
        limit: usize,
        reader: Option<Reader<'_>>,
    ) -> tympan_content::Result<Vec<String>> {
        self.now()?.spellcheck(text, limit, reader)
    }

    fn indexed_root(&self) -> Option<ChunkId> {
        self.shared.served().map(|served| served.snapshot.root_id())
    }

    fn state(&self) -> Option<Arc<dyn FullText>> {
        let served = self.shared.served()?;
        Some(Arc::new(State { shared: self.shared.clone(), served }))
    }

    fn covers(&self, path: &NodePath) -> bool {
        is_indexed(path)
    }

    fn has_property(&self, property: &str) -> tympan_content::Result<bool> {
        self.now()?.has_property(property)
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Index({})", self.shared.folder.dir.display())
    }
}

/// Opens the build that counts, if its root is still there and nothing of it is lost.
fn reopen(shared: &Shared, name: &str) -> Result<Served> {
    let (build, root) = shared.folder.open_build(name)?;
    if files::may_be_lost(&shared.folder.dir) {
        let damaged = files::damaged(&build.index);
        let damaged = damaged.map_err(|error| Error::of_index("read", &build.dir, error))?;
        if let Some(file) = damaged.first() {
            return Err(Error::Damaged(format!("`{}` is not as it was written", file.display())));
        }
    }
    let snapshot = shared.repository().snapshot_at(root)?;
    Ok(Served::new(Arc::new(build), snapshot))
}

/// Compares the checksums of a build that was found, beside following: it is built anew if one is wrong.
fn validate(shared: &Arc<Shared>, build: Arc<Build>) {
    let shared = Arc::downgrade(shared);
    let run = move || {
        let Ok(damaged) = files::damaged(&build.index) else { return };
        if let Some(shared) = shared.upgrade()
            && !damaged.is_empty()
            && shared.served().is_some_and(|served| served.build.name == build.name)
        {
            tracing::error!(file = ?damaged, "full-text index is damaged; it is built anew");
            shared.want_rebuild();
            shared.wake();
        }
    };
    // Without a thread damage shows when it is read.
    drop(std::thread::Builder::new().name("search-validate".to_owned()).spawn(run));
}

pub(crate) fn document(searcher: &Searcher, found: &Found) -> tantivy::Result<TantivyDocument> {
    searcher.doc(DocAddress::new(found.segment, found.document))
}

/// Makes a name for a new follower.
fn new_holder() -> String {
    let mut bytes = [0; 8];
    // Without random bytes two homes on one database may share a lease, which costs one of them a rebuild.
    getrandom::fill(&mut bytes).ok();
    format!("search-{:016x}", u64::from_le_bytes(bytes))
}

fn bytes_below(dir: &PathBuf) -> u64 {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

#[cfg(test)]
mod tests;
