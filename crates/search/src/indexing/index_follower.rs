//! The follower: a thread that repeatedly updates the index from its root to the newest one.
//!
//! It checks the head of the branch when it is woken, and otherwise every [`HEAD_POLL_INTERVAL`]. All commits since the
//! last check become one commit of the index. A rebuild runs in parallel and is adopted when it is complete.
//!
//! On failure: searches continue with the last commit of the index. A transient failure (a full disk, a database that
//! does not respond) is retried after a delay. If the index is damaged, or its root was collected, it is rebuilt.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use tympan_content::{NodePath, Snapshot};
use tympan_notation::error_chain_text;

use crate::error::{Error, Result};
use crate::indexing::document_writer::{DocumentSource, IndexDocumentWriter};
use crate::indexing::index_document::is_indexed;
use crate::indexing::index_folder::{CurrentBuild, SearchIndexWriter};
use crate::indexing::index_state::{SearchIndexState, ServedBuild};
use crate::indexing::rebuild::{CompletedBuild, SearchIndexRebuild};
use crate::indexing::unsynced_directory;

/// The interval for checking the head without a wake-up; it is longer if a check costs a round trip.
const HEAD_POLL_INTERVAL: Duration = Duration::from_millis(20);
const COSTLY_HEAD_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The delay after a failure; it doubles with each consecutive one.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(200);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);
const FIRST_REBUILD_DELAY: Duration = Duration::from_secs(1);
const MAX_REBUILD_DELAY: Duration = Duration::from_mins(5);
/// The number of changed documents above which several threads read them.
const PARALLEL_READ_THRESHOLD: usize = 64;
/// The duration for which the indexed root is protected while no process runs, and the maximum age of the lease.
const ROOT_LEASE_DURATION: Duration = Duration::from_hours(24 * 30);
const ROOT_LEASE_RENEW_INTERVAL: Duration = Duration::from_hours(1);

/// The state of the follower thread.
pub(crate) struct SearchIndexFollower {
    shared: Arc<SearchIndexState>,
    writer: Option<SearchIndexWriter>,
    rebuild: Option<SearchIndexRebuild>,
    consecutive_failures: u32,
    failed_builds: u32,
    /// The earliest time of the next rebuild. The delay is needed because each rebuild that fails on a full disk fills
    /// it again.
    next_build_at: Instant,
    lease_renewed_at: Option<SystemTime>,
}

impl SearchIndexFollower {
    pub(crate) fn new(shared: Arc<SearchIndexState>) -> Self {
        Self {
            shared,
            writer: None,
            rebuild: None,
            consecutive_failures: 0,
            failed_builds: 0,
            next_build_at: Instant::now(),
            lease_renewed_at: None,
        }
    }

    /// Follows the content until the index is closed.
    pub(crate) fn run(mut self) {
        let costly = self.shared.repository().chunks().has_costly_round_trips();
        let poll = if costly { COSTLY_HEAD_POLL_INTERVAL } else { HEAD_POLL_INTERVAL };
        while let Some(pass) = self.shared.begin_pass() {
            match self.step() {
                Ok(is_changed) => {
                    self.consecutive_failures = 0;
                    self.shared.end_pass(pass);
                    if !is_changed {
                        self.shared.wait_for_work(poll);
                    }
                }
                Err(error) => self.record_failure(&error),
            }
        }
        if let Some(rebuild) = self.rebuild.take() {
            rebuild.cancel();
            // The rebuild removes its own files.
            drop(rebuild.join());
        }
        self.lease_renewed_at = None;
        self.renew_root_lease();
        self.sync_served_build();
    }

    /// Writes the mark that builds are being written.
    fn mark_unsynced(&self) -> Result<()> {
        let dir = &self.shared.folder.dir;
        unsynced_directory::write_unsynced_marker(dir)
            .map_err(|error| Error::file_access("write", dir, error))
    }

    /// Ends writing, and syncs the served build to disk.
    fn sync_served_build(&mut self) {
        // Merges in progress are abandoned, because nothing depends on them.
        self.writer = None;
        let Some(served) = self.shared.served_build() else { return };
        if let Err(error) =
            unsynced_directory::sync_build(&self.shared.folder.dir, &served.build.dir)
        {
            tracing::debug!(%error, "cannot write the full-text index to disk");
        }
    }

    /// Performs the next step; returns true if anything was done.
    fn step(&mut self) -> Result<bool> {
        if self.rebuild.as_ref().is_some_and(SearchIndexRebuild::is_finished)
            && let Some(rebuild) = self.rebuild.take()
        {
            self.shared.set_rebuild(None);
            let built = rebuild.join();
            match built.and_then(|built| built.map_or(Ok(()), |built| self.adopt_build(built))) {
                Ok(()) => self.failed_builds = 0,
                Err(error) => {
                    self.shared.request_rebuild();
                    let wait = FIRST_REBUILD_DELAY.saturating_mul(1 << self.failed_builds.min(10));
                    self.next_build_at = Instant::now() + wait.min(MAX_REBUILD_DELAY);
                    self.failed_builds += 1;
                    return Err(error);
                }
            }
        }
        if self.rebuild.is_none()
            && Instant::now() >= self.next_build_at
            && self.shared.take_rebuild_request()
        {
            self.mark_unsynced()?;
            let rebuild = SearchIndexRebuild::start(&self.shared)?;
            self.shared.set_rebuild(Some(rebuild.control.clone()));
            self.rebuild = Some(rebuild);
        }
        let Some(served) = self.shared.served_build() else { return Ok(false) };
        let is_changed = self.serve_newest(&served)?;
        self.renew_root_lease();
        Ok(is_changed)
    }

    /// Updates the index to the newest state; returns true if it was behind.
    fn serve_newest(&mut self, served: &ServedBuild) -> Result<bool> {
        let newer = self.advance(served)?;
        let is_changed = newer.is_some();
        if let Some(newer) = newer {
            self.shared.serve_build(newer);
        }
        Ok(is_changed)
    }

    /// Updates a build to the newest state, without serving it; `None` if it is current, or if the index is closing.
    fn advance(&mut self, served: &ServedBuild) -> Result<Option<ServedBuild>> {
        let old = &served.snapshot;
        if self.shared.repository().head_root()? == old.root_id() {
            return Ok(None);
        }
        let new = self.shared.repository().snapshot()?;
        let paths = match old.changed_paths(&new) {
            Ok(paths) => paths,
            Err(error) if error.is_transient() => return Err(error.into()),
            Err(error) => {
                return Err(Error::Damaged(format!(
                    "its content state no longer exists: {}",
                    error_chain_text(&error)
                )));
            }
        };
        let build = served.build.clone();
        if !build.exists() {
            return Err(Error::Damaged("its files were deleted".to_owned()));
        }
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => {
                self.mark_unsynced()?;
                build.open_writer(1)?
            }
        };
        self.write_changes(&writer, &build.dir, &new, &paths)?;
        if self.shared.is_cancelled.load(Ordering::Relaxed) {
            // The written documents are incomplete; they are discarded with the writer.
            return Ok(None);
        }
        build.commit(&mut writer, new.root_id())?;
        // A writer that failed is not kept; a new one is opened at the last commit.
        self.writer = Some(writer);
        self.shared.counters.commits.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(root = %new.root_id(), documents = paths.len(), "full-text index updated");
        Ok(Some(ServedBuild::new(build, new)))
    }

    fn write_changes(
        &self,
        writer: &SearchIndexWriter,
        dir: &Path,
        new: &Snapshot,
        paths: &[NodePath],
    ) -> Result<()> {
        let sink = IndexDocumentWriter {
            document_builder: &self.shared.document_builder,
            writer,
            dir,
            counters: &self.shared.counters,
            done_documents: None,
            is_cancelled: &self.shared.is_cancelled,
        };
        let sources = paths.iter().filter_map(|path| {
            sink.remove_document(path);
            let node = is_indexed(path).then(|| new.document_node(path).transpose())?;
            node.map(DocumentSource::from_snapshot)
        });
        let threads = if paths.len() > PARALLEL_READ_THRESHOLD {
            self.shared.options.threads.max(2)
        } else {
            1
        };
        sink.write_all(sources, threads)
    }

    /// Makes a complete build the served one, after it was updated with the commits since its start, so that no
    /// document found before is missing from the results.
    fn adopt_build(&mut self, built: CompletedBuild) -> Result<()> {
        let CompletedBuild { build, snapshot } = built;
        self.writer = None;
        let current = CurrentBuild {
            build_name: build.name.clone(),
            lease_holder: self.shared.lease_holder().to_owned(),
        };
        let built = ServedBuild::new(Arc::new(build), snapshot);
        let served = self.advance(&built)?.unwrap_or(built);
        self.shared.folder.switch_current(&current)?;
        self.shared.counters.rebuilds.fetch_add(1, Ordering::Relaxed);
        tracing::info!(root = %served.snapshot.root_id(), "full-text index built");
        self.shared.serve_new_build(served);
        self.lease_renewed_at = None;
        self.shared.folder.remove_stale_builds();
        Ok(())
    }

    /// Records a failure, and waits before the next attempt.
    fn record_failure(&mut self, error: &Error) {
        let reason = error_chain_text(error);
        tracing::warn!(reason = %reason, "cannot update the full-text index");
        self.writer = None;
        if matches!(error, Error::Damaged(_)) {
            self.shared.request_rebuild();
        }
        self.shared.pause(reason);
        let wait = FIRST_RETRY_DELAY
            .saturating_mul(1 << self.consecutive_failures.min(10))
            .min(MAX_RETRY_DELAY);
        self.consecutive_failures += 1;
        self.shared.wait_for_work(wait);
    }

    /// Renews the lease on the served root. Without it, the only consequence is a rebuild after a long downtime.
    fn renew_root_lease(&mut self) {
        let now = SystemTime::now();
        let is_fresh = |leased: SystemTime| {
            now.duration_since(leased).is_ok_and(|age| age < ROOT_LEASE_RENEW_INTERVAL)
        };
        if self.lease_renewed_at.is_some_and(is_fresh) {
            return;
        }
        let Some(served) = self.shared.served_build() else { return };
        let root = served.snapshot.root_id();
        self.lease_renewed_at = Some(now);
        if let Err(error) = self.shared.repository().retain_root(
            self.shared.lease_holder(),
            root,
            now + ROOT_LEASE_DURATION,
        ) {
            tracing::debug!(root = %root, reason = %error_chain_text(&error), "cannot lease the root of the \
                full-text index");
        }
    }
}
