//! The public interface of the index: open, search, monitor, close.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tantivy::Term;
use tantivy::schema::Value;
use tympan_content::{ChunkId, NodePath, Repository};
use tympan_content_query::{FullTextIndex, FullTextPage, FullTextRequest, ReadableTextFn};

use crate::error::{Error, Result};
use crate::indexing::index_document::{IndexDocumentBuilder, is_indexed};
use crate::indexing::index_folder::{OpenDirectoryFn, SearchIndexBuild, SearchIndexFolder};
use crate::indexing::index_follower::SearchIndexFollower;
use crate::indexing::index_state::{SearchIndexOptions, SearchIndexState, ServedBuild};
use crate::indexing::index_status::{IndexingFailure, SearchIndexCounters, SearchIndexStatus};
use crate::indexing::schema::build_schema;
use crate::indexing::unsynced_directory::{self, UnsyncedDirectory};
use crate::searching::index_view::SearchIndexView;
use crate::searching::top_hit::TopHitsCollector;
use crate::text_extraction::BlobTextExtractor;

/// The maximum number of revisions up to which the lag is counted.
const MAX_LAG_REVISIONS: usize = 1000;
/// The maximum number of failures that are reported in detail.
const MAX_REPORTED_FAILURES: usize = 100;

/// The full-text index of a repository. A thread follows the content until [`SearchIndex::close`] is called or the
/// index is dropped.
pub struct SearchIndex {
    state: Arc<SearchIndexState>,
    follower_thread: Mutex<Option<JoinHandle<()>>>,
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

    fn open_with_directory(
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
        let shared = Arc::new(SearchIndexState::new(folder, options, digest, holder));
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
        self.state.wait_until_current(most)
    }

    /// Stops following. Searches continue with the existing index.
    pub fn close(&self) {
        self.state.begin_closing();
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
        let (pause_reason, rebuild_progress) = self.state.follower_status();
        let mut status =
            SearchIndexStatus { pause_reason, rebuild_progress, ..SearchIndexStatus::default() };
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
            let document = hit.load_document(&served.searcher).map_err(failed_to_read)?;
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
