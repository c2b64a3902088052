//! Rebuilding of the index from the content, beside the served one.
//!
//! On failure: the written files are removed; the caller retries later.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use tympan_content::Snapshot;

use crate::error::{Error, Result};
use crate::indexing::document_writer::{DocumentSource, IndexDocumentWriter};
use crate::indexing::index_folder::SearchIndexBuild;
use crate::indexing::index_state::SearchIndexState;
use crate::indexing::rebuild_control::SearchIndexRebuildControl;

/// A rebuild that runs in its own thread.
pub(crate) struct SearchIndexRebuild {
    thread: JoinHandle<Result<Option<CompletedBuild>>>,
    pub(crate) control: Arc<SearchIndexRebuildControl>,
}

/// A complete build and the state from which it was built.
pub(crate) struct CompletedBuild {
    pub(crate) build: SearchIndexBuild,
    pub(crate) snapshot: Snapshot,
}

impl SearchIndexRebuild {
    /// Starts a rebuild from the newest state.
    ///
    /// # Errors
    /// If the system cannot create a thread.
    pub(crate) fn start(shared: &Arc<SearchIndexState>) -> Result<Self> {
        let watched = Arc::new(SearchIndexRebuildControl::default());
        let (worker, watch) = (shared.clone(), watched.clone());
        let run = move || {
            let built = build_index(&worker, &watch);
            worker.wake_follower();
            built
        };
        let thread = std::thread::Builder::new().name("search-rebuild".to_owned()).spawn(run);
        let thread =
            thread.map_err(|error| Error::file_access("build", &shared.folder.dir, error))?;
        Ok(Self { thread, control: watched })
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Cancels the rebuild.
    pub(crate) fn cancel(&self) {
        self.control.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Waits for the rebuild; returns `None` if it was cancelled.
    ///
    /// # Errors
    /// The error of the rebuild.
    pub(crate) fn join(self) -> Result<Option<CompletedBuild>> {
        let panicked = || Err(Error::Damaged("the rebuild thread panicked".to_owned()));
        self.thread.join().unwrap_or_else(|_| panicked())
    }
}

fn build_index(
    shared: &SearchIndexState,
    watched: &SearchIndexRebuildControl,
) -> Result<Option<CompletedBuild>> {
    let snapshot = shared.repository().snapshot()?;
    watched.total_documents.store(snapshot.count_documents()?, Ordering::Relaxed);
    let build = shared.folder.create_build()?;
    let written = write_snapshot(shared, watched, &snapshot, &build);
    let is_cancelled = watched.is_cancelled.load(Ordering::Relaxed);
    if written.is_err() || is_cancelled {
        let name = build.name.clone();
        drop(build);
        shared.folder.remove_build(&name);
    } else {
        return Ok(Some(CompletedBuild { build, snapshot }));
    }
    written.map(|()| None)
}

fn write_snapshot(
    shared: &SearchIndexState,
    watched: &SearchIndexRebuildControl,
    snapshot: &Snapshot,
    build: &SearchIndexBuild,
) -> Result<()> {
    let threads = shared.options.threads.max(2);
    let mut writer = build.open_writer(threads)?;
    let sink = IndexDocumentWriter {
        document_builder: &shared.document_builder,
        writer: &writer,
        dir: &build.dir,
        counters: &shared.counters,
        done_documents: Some(&watched.done_documents),
        is_cancelled: &watched.is_cancelled,
    };
    let sources =
        snapshot.document_nodes().map(DocumentSource::from_snapshot).filter(
            |source| match source {
                Ok(source) if !source.is_indexed() => {
                    watched.done_documents.fetch_add(1, Ordering::Relaxed);
                    false
                }
                _ => true,
            },
        );
    sink.write_all(sources, threads)?;
    if watched.is_cancelled.load(Ordering::Relaxed) {
        return Ok(());
    }
    build.commit(&mut writer, snapshot.root_id())?;
    writer.wait_merging_threads().map_err(|error| Error::index_access("write", &build.dir, error))
}
