//! The state shared by searches and the follower of an index.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::{Condvar, Mutex};
use tantivy::Searcher;
use tympan_content::{Repository, Snapshot};

use crate::error::{Error, Result};
use crate::indexing::index_document::IndexDocumentBuilder;
use crate::indexing::index_folder::{SearchIndexBuild, SearchIndexFolder};
use crate::indexing::index_status::{SearchIndexCounters, SearchIndexProgress};
use crate::indexing::rebuild_control::SearchIndexRebuildControl;
use crate::indexing::schema::SearchIndexFields;
use crate::text_extraction::PdfReader;

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
    /// Creates the state of an index that serves no build yet.
    pub(crate) fn new(
        folder: SearchIndexFolder,
        options: SearchIndexOptions,
        document_builder: IndexDocumentBuilder,
        lease_holder: String,
    ) -> Self {
        Self {
            folder,
            options,
            document_builder,
            counters: SearchIndexCounters::default(),
            lease_holder,
            served_build: ArcSwapOption::empty(),
            control: Mutex::default(),
            is_cancelled: AtomicBool::new(false),
            control_changed: Condvar::new(),
        }
    }

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

    /// Returns the number of passes that the follower began.
    #[cfg(test)]
    pub(crate) fn begun_passes(&self) -> u64 {
        self.control.lock().last_begun_pass
    }

    /// Waits until the follower pauses; returns the reason, or `None` after the timeout.
    #[cfg(test)]
    pub(crate) fn wait_until_paused(&self, timeout: Duration) -> Option<String> {
        let mut control = self.control.lock();
        while control.pause_reason.is_none()
            && !self.control_changed.wait_for(&mut control, timeout).timed_out()
        {}
        control.pause_reason.clone()
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

    pub(crate) fn require_served(&self) -> Result<Arc<ServedBuild>> {
        self.served_build().ok_or_else(|| {
            let rebuild = self.control.lock().rebuild.clone();
            let progress = rebuild.map_or(Default::default(), |rebuild| {
                let progress = rebuild.progress();
                (progress.done_documents, progress.total_documents)
            });
            Error::Building { done: progress.0, total: progress.1 }
        })
    }

    /// Wakes the follower, and waits until a pass that began after the call succeeded; returns true if one did within
    /// the time.
    pub(crate) fn wait_until_current(&self, most: Duration) -> bool {
        let deadline = Instant::now() + most;
        let mut control = self.control.lock();
        let start_pass = control.last_begun_pass;
        // The wake-up is requested only once: an unsuccessful pass wakes this thread too, and the two would keep waking
        // each other.
        control.is_wake_requested = true;
        self.control_changed.notify_all();
        while control.last_ended_pass <= start_pass {
            if control.is_closing {
                return false;
            }
            if self.control_changed.wait_until(&mut control, deadline).timed_out() {
                return false;
            }
        }
        true
    }

    /// Tells the follower to end.
    pub(crate) fn begin_closing(&self) {
        self.control.lock().is_closing = true;
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.control_changed.notify_all();
    }

    /// Returns the reason why the follower is paused, and the progress of a rebuild.
    pub(crate) fn follower_status(&self) -> (Option<String>, Option<SearchIndexProgress>) {
        let control = self.control.lock();
        let rebuild_progress = control.rebuild.as_ref().map(|rebuild| rebuild.progress());
        (control.pause_reason.clone(), rebuild_progress)
    }
}
