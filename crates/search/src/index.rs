//! The public interface of the index: open, search, monitor, close.

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
use tympan_content::{ChunkId, NodePath, Repository, Snapshot};
use tympan_content_query::{FullTextIndex, FullTextPage, FullTextRequest, ReadableTextFn};

use crate::error::{Error, Result};
use crate::index_document::{IndexDocumentBuilder, is_indexed};
use crate::index_folder::{OpenDirectoryFn, SearchIndexBuild, SearchIndexFolder};
use crate::index_follower::SearchIndexFollower;
use crate::index_status::{IndexingFailure, SearchIndexCounters, SearchIndexStatus};
use crate::index_view::SearchIndexView;
use crate::rebuild::SearchIndexRebuildControl;
use crate::schema::{SearchIndexFields, build_schema};
use crate::text_extraction::{BlobTextExtractor, PdfReader};
use crate::top_hit::{ScoredHit, TopHitsCollector};
use crate::unsynced_directory::{self, UnsyncedDirectory};

/// The maximum number of revisions up to which the lag is counted.
const MAX_LAG_REVISIONS: usize = 1000;
/// The maximum number of failures that are reported in detail.
const MAX_REPORTED_FAILURES: usize = 100;

/// The options of an index.
#[derive(Debug, Clone)]
pub struct SearchIndexOptions {
    /// The number of threads that read documents while many are indexed; at least two.
    pub threads: usize,
    /// The reader for PDF files; `None` to index none of them.
    pub pdf_reader: Option<PdfReader>,
}

impl Default for SearchIndexOptions {
    fn default() -> Self {
        Self { threads: 2, pdf_reader: None }
    }
}

/// The full-text index of a repository. A thread follows the content until [`SearchIndex::close`] is called or the
/// index is dropped.
pub struct SearchIndex {
    pub(crate) state: Arc<SearchIndexState>,
    follower_thread: Mutex<Option<JoinHandle<()>>>,
}

/// The state shared by searches and the follower.
pub(crate) struct SearchIndexState {
    pub(crate) folder: SearchIndexFolder,
    pub(crate) options: SearchIndexOptions,
    pub(crate) document_builder: IndexDocumentBuilder,
    pub(crate) counters: SearchIndexCounters,
    lease_holder: String,
    served_build: ArcSwapOption<ServedBuild>,
    control: Mutex<SearchIndexFollowerControl>,
    /// Set when the index is closing, to end work in progress early.
    pub(crate) is_cancelled: AtomicBool,
    control_changed: Condvar,
}

/// The signals between the index and the follower.
#[derive(Debug, Default)]
struct SearchIndexFollowerControl {
    is_closing: bool,
    is_wake_requested: bool,
    is_rebuild_requested: bool,
    pause_reason: Option<String>,
    rebuild: Option<Arc<SearchIndexRebuildControl>>,
    /// The number of the last pass of the follower that began; the next field has the last one that succeeded.
    last_begun_pass: u64,
    last_ended_pass: u64,
}

/// The build that serves searches: one commit of a build, and the indexed state of the content.
#[derive(Clone)]
pub(crate) struct ServedBuild {
    pub(crate) build: Arc<SearchIndexBuild>,
    pub(crate) searcher: Searcher,
    /// Protects the root from collection while the build is served.
    pub(crate) snapshot: Snapshot,
}

impl ServedBuild {
    pub(crate) fn new(build: Arc<SearchIndexBuild>, snapshot: Snapshot) -> Self {
        Self { searcher: build.reader.searcher(), build, snapshot }
    }
}

impl SearchIndexState {
    pub(crate) fn repository(&self) -> &Repository {
        &self.document_builder.repository
    }

    pub(crate) fn fields(&self) -> &SearchIndexFields {
        &self.document_builder.fields
    }

    /// Returns the name of the lease holder that protects the indexed root.
    pub(crate) fn lease_holder(&self) -> &str {
        &self.lease_holder
    }

    pub(crate) fn served_build(&self) -> Option<Arc<ServedBuild>> {
        self.served_build.load_full()
    }

    /// Serves searches from a new build from now on, and clears a pending rebuild request.
    pub(crate) fn serve_new_build(&self, served: ServedBuild) {
        self.serve_build(served);
        self.control.lock().is_rebuild_requested = false;
    }

    /// Serves searches from this build from now on.
    pub(crate) fn serve_build(&self, served: ServedBuild) {
        self.served_build.store(Some(Arc::new(served)));
        self.control.lock().pause_reason = None;
    }

    /// Begins a pass of the follower; returns `None` if the index is closing.
    pub(crate) fn begin_pass(&self) -> Option<u64> {
        let mut control = self.control.lock();
        control.is_wake_requested = false;
        control.last_begun_pass += 1;
        (!control.is_closing).then_some(control.last_begun_pass)
    }

    pub(crate) fn end_pass(&self, pass: u64) {
        let mut control = self.control.lock();
        // A pass succeeds only if there is a build to serve.
        if self.served_build.load().is_some() {
            control.last_ended_pass = pass;
            control.pause_reason = None;
        }
        drop(control);
        self.control_changed.notify_all();
    }

    /// Waits for a signal, or until the time has passed.
    pub(crate) fn wait_for_work(&self, time: Duration) {
        let deadline = Instant::now() + time;
        let mut control = self.control.lock();
        while !control.is_wake_requested
            && !control.is_closing
            && !self.control_changed.wait_until(&mut control, deadline).timed_out()
        {}
    }

    pub(crate) fn wake_follower(&self) {
        self.control.lock().is_wake_requested = true;
        self.control_changed.notify_all();
    }

    pub(crate) fn pause(&self, reason: String) {
        self.counters.pauses.fetch_add(1, Ordering::Relaxed);
        self.control.lock().pause_reason = Some(reason);
        self.control_changed.notify_all();
    }

    pub(crate) fn set_rebuild(&self, rebuild: Option<Arc<SearchIndexRebuildControl>>) {
        self.control.lock().rebuild = rebuild;
    }

    pub(crate) fn request_rebuild(&self) {
        self.control.lock().is_rebuild_requested = true;
    }

    /// Returns true once for each rebuild request.
    pub(crate) fn take_rebuild_request(&self) -> bool {
        std::mem::take(&mut self.control.lock().is_rebuild_requested)
            || self.served_build.load().is_none()
    }

    fn require_served(&self) -> Result<Arc<ServedBuild>> {
        self.served_build().ok_or_else(|| {
            let rebuild = self.control.lock().rebuild.clone();
            let progress = rebuild.map_or(Default::default(), |rebuild| {
                let progress = rebuild.progress();
                (progress.done_documents, progress.total_documents)
            });
            Error::Building { done: progress.0, total: progress.1 }
        })
    }
}

impl SearchIndex {
    /// Opens the index in a folder, or begins to build it, and follows the repository from now on.
    ///
    /// # Errors
    /// If the folder cannot be created, or the system cannot create a thread. A damaged index is not an error: it is
    /// rebuilt.
    pub fn open(repository: Repository, dir: &Path, options: SearchIndexOptions) -> Result<Self> {
        Self::open_with_directory(repository, dir, options, UnsyncedDirectory::open_unsynced)
    }

    pub(crate) fn open_with_directory(
        repository: Repository,
        dir: &Path,
        options: SearchIndexOptions,
        open: OpenDirectoryFn,
    ) -> Result<Self> {
        let folder = SearchIndexFolder::new(dir, open)?;
        folder.remove_stale_builds();
        let current = folder.read_current();
        let holder =
            current.as_ref().map_or_else(new_lease_holder, |current| current.lease_holder.clone());
        let extractor = BlobTextExtractor { pdf: options.pdf_reader.clone() };
        let digest = IndexDocumentBuilder { repository, extractor, fields: build_schema().1 };
        let shared = Arc::new(SearchIndexState {
            folder,
            options,
            document_builder: digest,
            counters: SearchIndexCounters::default(),
            lease_holder: holder,
            served_build: ArcSwapOption::empty(),
            control: Mutex::default(),
            is_cancelled: AtomicBool::new(false),
            control_changed: Condvar::new(),
        });
        if let Some(current) = current {
            match reopen_current_build(&shared, &current.build_name) {
                Ok(served) => {
                    let build = served.build.clone();
                    shared.serve_build(served);
                    verify_checksums(&shared, build);
                }
                Err(error) => {
                    tracing::warn!(reason = %tympan_notation::error_chain_text(&error), "rebuilding the full-text \
                        index");
                }
            }
        }
        let follower = SearchIndexFollower::new(shared.clone());
        let thread = std::thread::Builder::new().name("search-follow".to_owned());
        let thread = thread.spawn(move || follower.run());
        let thread = thread.map_err(|error| Error::file_access("follow", dir, error))?;
        Ok(Self { state: shared, follower_thread: Mutex::new(Some(thread)) })
    }

    /// Wakes the follower to check the head at once, for example after a commit.
    pub fn wake_follower(&self) {
        self.state.wake_follower();
    }

    /// Requests a rebuild of the index beside the one that serves searches.
    pub fn request_rebuild(&self) {
        self.state.request_rebuild();
        self.state.wake_follower();
    }

    /// Returns a view of the current state of the index.
    fn current_view(&self) -> tympan_content_query::Result<SearchIndexView> {
        let served = self.state.require_served();
        let served = served.inspect_err(|_| {
            self.state.counters.queries.fetch_add(1, Ordering::Relaxed);
            self.state.counters.failed_queries.fetch_add(1, Ordering::Relaxed);
        });
        Ok(SearchIndexView { index_state: self.state.clone(), served_build: served? })
    }

    /// Waits until the index serves the newest state or a later one; returns true if it does within the time.
    #[must_use]
    pub fn wait_until_current(&self, most: Duration) -> bool {
        let deadline = Instant::now() + most;
        let mut control = self.state.control.lock();
        let start_pass = control.last_begun_pass;
        // The wake-up is requested only once: an unsuccessful pass wakes this thread too, and the two would keep waking
        // each other.
        control.is_wake_requested = true;
        self.state.control_changed.notify_all();
        while control.last_ended_pass <= start_pass {
            if control.is_closing {
                return false;
            }
            if self.state.control_changed.wait_until(&mut control, deadline).timed_out() {
                return false;
            }
        }
        true
    }

    /// Stops following. Searches continue with the existing index.
    pub fn close(&self) {
        self.state.control.lock().is_closing = true;
        self.state.is_cancelled.store(true, Ordering::Relaxed);
        self.state.control_changed.notify_all();
        let thread = self.follower_thread.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the content follower thread panicked");
        }
    }

    /// Returns the counters of the index.
    #[must_use]
    pub fn counters(&self) -> &SearchIndexCounters {
        &self.state.counters
    }

    /// Returns the status of the index.
    ///
    /// # Errors
    /// If the history of the content or the index cannot be read.
    pub fn status(&self, now: SystemTime) -> Result<SearchIndexStatus> {
        let control = self.state.control.lock();
        let mut status = SearchIndexStatus {
            pause_reason: control.pause_reason.clone(),
            rebuild_progress: control.rebuild.as_ref().map(|rebuild| rebuild.progress()),
            ..SearchIndexStatus::default()
        };
        drop(control);
        let Some(served) = self.state.served_build() else { return Ok(status) };
        let root = served.snapshot.root_id();
        status.indexed_root = Some(root);
        let revisions = self.state.repository().revisions(None, MAX_LAG_REVISIONS)?;
        for revision in
            revisions.iter().take_while(|revision| revision.update.new_root != Some(root))
        {
            status.lag_revisions += 1;
            status.lag = now.duration_since(revision.update.updated_at).unwrap_or_default();
        }
        status.documents = served.searcher.num_docs();
        status.segments = served.searcher.segment_readers().len() as u64;
        status.bytes = directory_size(&served.build.dir);
        self.add_failures(&served, &mut status)?;
        Ok(status)
    }

    fn add_failures(&self, served: &ServedBuild, status: &mut SearchIndexStatus) -> Result<()> {
        let fields = self.state.fields();
        let failed = Term::from_field_text(fields.has_failed, "true");
        let failed_to_read = |error| Error::index_access("read", &served.build.dir, error);
        let option = tantivy::schema::IndexRecordOption::Basic;
        let query = tantivy::query::TermQuery::new(failed, option);
        let top = TopHitsCollector { limit: MAX_REPORTED_FAILURES, after_hit: None };
        let search = served.searcher.search(&query, &(tantivy::collector::Count, top));
        let (count, hits) = search.map_err(failed_to_read)?;
        status.failure_count = count as u64;
        for hit in hits {
            let document = load_hit_document(&served.searcher, &hit).map_err(failed_to_read)?;
            let reasons: Vec<&str> =
                document.get_all(fields.failure).filter_map(|reason| reason.as_str()).collect();
            status
                .first_failures
                .push(IndexingFailure { path: hit.path, reason: reasons.join("; ") });
        }
        Ok(())
    }
}

impl FullTextIndex for SearchIndex {
    fn search(&self, request: &FullTextRequest) -> tympan_content_query::Result<FullTextPage> {
        self.current_view()?.search(request)
    }

    fn suggest(
        &self,
        prefix: &str,
        limit: usize,
        reader: Option<ReadableTextFn<'_>>,
    ) -> tympan_content_query::Result<Vec<String>> {
        self.current_view()?.suggest(prefix, limit, reader)
    }

    fn spellcheck(
        &self,
        text: &str,
        limit: usize,
        reader: Option<ReadableTextFn<'_>>,
    ) -> tympan_content_query::Result<Vec<String>> {
        self.current_view()?.spellcheck(text, limit, reader)
    }

    fn indexed_root(&self) -> Option<ChunkId> {
        self.state.served_build().map(|served| served.snapshot.root_id())
    }

    fn pinned_state(&self) -> Option<Arc<dyn FullTextIndex>> {
        let served = self.state.served_build()?;
        Some(Arc::new(SearchIndexView { index_state: self.state.clone(), served_build: served }))
    }

    fn covers(&self, path: &NodePath) -> bool {
        is_indexed(path)
    }

    fn has_property(&self, property: &str) -> tympan_content_query::Result<bool> {
        self.current_view()?.has_property(property)
    }
}

impl Drop for SearchIndex {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for SearchIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Index({})", self.state.folder.dir.display())
    }
}

/// Opens the current build, if its root still exists and no part of it is lost.
fn reopen_current_build(shared: &SearchIndexState, name: &str) -> Result<ServedBuild> {
    let (build, root) = shared.folder.open_build(name)?;
    if unsynced_directory::may_be_lost(&shared.folder.dir) {
        let damaged = unsynced_directory::find_damaged_files(&build.index);
        let damaged = damaged.map_err(|error| Error::index_access("read", &build.dir, error))?;
        if let Some(file) = damaged.first() {
            return Err(Error::Damaged(format!(
                "`{}` does not match its checksum",
                file.display()
            )));
        }
    }
    let snapshot = shared.repository().snapshot_at(root)?;
    Ok(ServedBuild::new(Arc::new(build), snapshot))
}

/// Verifies the checksums of an existing build in the background; a wrong one causes a rebuild.
fn verify_checksums(shared: &Arc<SearchIndexState>, build: Arc<SearchIndexBuild>) {
    let shared = Arc::downgrade(shared);
    let run = move || {
        let Ok(damaged) = unsynced_directory::find_damaged_files(&build.index) else { return };
        if let Some(shared) = shared.upgrade()
            && !damaged.is_empty()
            && shared.served_build().is_some_and(|served| served.build.name == build.name)
        {
            tracing::error!(file = ?damaged, "full-text index damaged; rebuilding it");
            shared.request_rebuild();
            shared.wake_follower();
        }
    };
    // Without a thread, damage is detected when it is read.
    drop(std::thread::Builder::new().name("search-validate".to_owned()).spawn(run));
}

pub(crate) fn load_hit_document(
    searcher: &Searcher,
    hit: &ScoredHit,
) -> tantivy::Result<TantivyDocument> {
    searcher.doc(DocAddress::new(hit.segment, hit.document))
}

/// Creates a lease holder name for a new follower.
fn new_lease_holder() -> String {
    let mut bytes = [0; 8];
    // Without random bytes, two homes on one database may share a lease, which costs one of them a rebuild.
    getrandom::fill(&mut bytes).ok();
    format!("search-{:016x}", u64::from_le_bytes(bytes))
}

fn directory_size(dir: &PathBuf) -> u64 {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

#[cfg(test)]
mod tests;
