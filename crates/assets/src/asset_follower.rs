//! Stores a job for every asset whose original is new.
//!
//! In: the newest state of content, and the root that was processed last. Out: jobs of [`ASSET_UPDATE_TOPIC`].
//!
//! Invariants
//! * The processed root is stored after the jobs that follow from it, so a crash loses none. A job that is stored twice
//!   has the same key, and finds its asset finished. Roots without any work are stored only occasionally.
//! * Of several authors on one database, whichever is first advances the follower.
//! * While content does not change, nothing is read from it.
//!
//! On failure: a root that was collected cannot be compared with; then every asset is checked.

use std::time::{Duration, SystemTime};

use serde_json::json;
use sha1::{Digest, Sha1};
use tokio::sync::watch;
use tracing::{debug, warn};
use tympan_content::{BlobId, NodePath, Repository, Snapshot};
use tympan_jobs::{FollowerLoop, JobQueues, NewJob};
use tympan_notation::error_chain_text;

use crate::asset_handler::ASSET_UPDATE_TOPIC;
use crate::asset_processor::{ASSET_NODE_TYPE, ASSET_UPDATE_USER, original_if_due};

/// Name of the follower that stores jobs for assets.
const ASSET_FOLLOWER_NAME: &str = "assets";
/// Interval at which the newest root is polled; longer if polling costs a round trip.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const COSTLY_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time for which a root without due work remains unstored. After a crash, changes since the stored root are
/// checked again.
const IDLE_CURSOR_INTERVAL: Duration = Duration::from_secs(10);
/// Delay after a store or database failure.
const FAILURE_BACKOFF: Duration = Duration::from_secs(5);
/// Maximum number of jobs per transaction, which bounds the wait of other writers.
const JOBS_PER_TRANSACTION: usize = 500;
/// The folder whose children are the tenants of assets.
const DAM_ROOT_PREFIX: &str = "/content/dam/";

/// The reason why due assets were not found, or their jobs not stored.
#[derive(Debug, thiserror::Error)]
pub enum AssetFollowerError {
    /// Content cannot be read.
    #[error(transparent)]
    Content(#[from] tympan_content::Error),
    /// The jobs, or the position of the follower, cannot be read or stored.
    #[error(transparent)]
    Jobs(#[from] tympan_jobs::Error),
    /// The thread that read content ended without a result.
    #[error("the comparison of content ended early")]
    Thread(#[from] tokio::task::JoinError),
}

type Result<T> = std::result::Result<T, AssetFollowerError>;

/// Follows content and stores jobs for the assets that are due.
#[derive(Debug)]
pub struct AssetFollower {
    repository: Repository,
    queues: JobQueues,
    /// The last root after which no work was due.
    processed_root: Option<String>,
    /// Time at which a root was last stored.
    last_stored_at: Option<SystemTime>,
    /// The stored root, and a later root up to which nothing was due.
    skipped_root: Option<(String, String)>,
}

impl AssetFollower {
    /// Creates a follower that continues from the position stored in this database.
    #[must_use]
    pub fn new(repository: Repository, queues: JobQueues) -> Self {
        Self { repository, queues, processed_root: None, last_stored_at: None, skipped_root: None }
    }

    /// Follows content until `stop` turns true.
    pub async fn run(mut self, stop: watch::Receiver<bool>) {
        let costly = self.repository.chunks().has_costly_round_trips();
        let look = if costly { COSTLY_POLL_INTERVAL } else { POLL_INTERVAL };
        let mut rounds = FollowerLoop::new("assets", stop, FAILURE_BACKOFF);
        while !rounds.is_stopped() {
            let done = self.process_newest_root(SystemTime::now()).await;
            rounds
                .finish_round(done.map(|_| look).map_err(|failure| error_chain_text(&failure)))
                .await;
        }
    }

    /// Stores jobs for assets that became due in the newest state. Returns the number of jobs.
    ///
    /// # Errors
    /// If content or the database fail.
    pub async fn process_newest_root(&mut self, now: SystemTime) -> Result<usize> {
        let repository = self.repository.clone();
        let newest = run_blocking(move || Ok(repository.snapshot()?)).await?;
        let root = newest.root_id().to_string();
        let is_seen = self.processed_root.as_ref() == Some(&root);
        if is_seen && (self.skipped_root.is_none() || self.was_stored_recently(now)) {
            return Ok(0);
        }
        let digested = self.queues.followers().root_of(ASSET_FOLLOWER_NAME).await?;
        if digested.as_ref() == Some(&root) {
            (self.processed_root, self.skipped_root) = (Some(root), None);
            return Ok(0);
        }
        let passed =
            self.skipped_root.take().filter(|(stored, _)| digested.as_ref() == Some(stored));
        let (repository, stored) = (self.repository.clone(), digested.clone());
        let jobs = run_blocking(move || {
            // Only the stored root is protected from collection.
            let is_there =
                |root: &String| root.parse().is_ok_and(|root| repository.snapshot_at(root).is_ok());
            let from = passed.map(|(_, root)| root).filter(is_there).or(stored);
            collect_due_jobs(&repository, from.as_deref(), &newest)
        });
        let jobs = jobs.await?;
        let count = jobs.len();
        if let (0, true, Some(stored)) = (count, self.was_stored_recently(now), &digested) {
            self.skipped_root = Some((stored.clone(), root.clone()));
            self.processed_root = Some(root);
            return Ok(0);
        }
        let mut parts = jobs.chunks(JOBS_PER_TRANSACTION).peekable();
        let mut last = Vec::new();
        while let Some(part) = parts.next() {
            if parts.peek().is_some() {
                self.queues.add_jobs(part.to_vec(), now).await?;
            } else {
                last = part.to_vec();
            }
        }
        let step = (digested.as_deref(), &*root);
        if !self.queues.followers().advance(ASSET_FOLLOWER_NAME, step, last, now).await? {
            // Another author was faster; the next poll begins at its position.
            return Ok(0);
        }
        (self.processed_root, self.last_stored_at) = (Some(root), Some(now));
        if count > 0 {
            debug!(jobs = count, "asset jobs queued");
        }
        Ok(count)
    }
}

impl AssetFollower {
    /// Returns true if a root was stored so recently that one without work need not be stored. Otherwise each save by
    /// an editor would cost a sync.
    fn was_stored_recently(&self, now: SystemTime) -> bool {
        let age = self.last_stored_at.and_then(|stored| now.duration_since(stored).ok());
        age.is_some_and(|age| age < IDLE_CURSOR_INTERVAL)
    }
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}

/// Returns jobs for the assets that are due at `newest` and changed since a root; without a root, for all assets that
/// are due.
fn collect_due_jobs(
    repository: &Repository,
    from: Option<&str>,
    newest: &Snapshot,
) -> Result<Vec<NewJob>> {
    let before = from.map(|from| match from.parse() {
        Ok(root) => repository.snapshot_at(root).map_err(|error| error.to_string()),
        Err(_) => Err(format!("`{from}` is not a root")),
    });
    let mut jobs = Vec::new();
    match before {
        Some(Ok(before)) => {
            for path in before.changed_paths(newest)? {
                if let Some(node) = newest.node(&path)?
                    && let Some(original) = original_if_due(&node)?
                {
                    jobs.push(asset_update_job(&path, &original));
                }
            }
            return Ok(jobs);
        }
        Some(Err(reason)) => {
            warn!(reason, "cannot compare with the last processed state; checking all assets")
        }
        None => {}
    }
    // A damaged record is reported elsewhere.
    for node in newest.document_nodes().filter_map(std::result::Result::ok) {
        if node.primary_type() == ASSET_NODE_TYPE
            && let Some(original) = original_if_due(&node)?
        {
            jobs.push(asset_update_job(node.path(), &original));
        }
    }
    Ok(jobs)
}

/// Returns the job that processes an asset with this original.
fn asset_update_job(path: &NodePath, original: &BlobId) -> NewJob {
    let state = json!({ "path": path.as_str(), "original": original.to_string() });
    // Databases index keys, so the key has the same length for every path.
    let key = hex::encode(Sha1::digest(format!("{path}\n{original}")));
    NewJob::new(ASSET_UPDATE_TOPIC, state)
        .with_key(key)
        .with_tenant(asset_tenant(path))
        .with_user(ASSET_UPDATE_USER)
}

/// Returns the tenant of an asset: the folder directly below `/content/dam`.
fn asset_tenant(path: &NodePath) -> &str {
    let below = path.as_str().strip_prefix(DAM_ROOT_PREFIX);
    below.and_then(|below| below.split_once('/')).map_or("dam", |(folder, _)| folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_dam_are_tenants() {
        for (path, expected) in [
            ("/content/dam/one/a.jpg", "one"),
            ("/content/dam/one/two/a.jpg", "one"),
            ("/content/dam/a.jpg", "dam"),
            ("/content/other/a.jpg", "dam"),
        ] {
            assert_eq!(asset_tenant(&NodePath::new(path).unwrap()), expected, "{path}");
        }
    }

    #[test]
    fn keys_name_the_asset_and_its_original() {
        let key = |path: &str, original: &str| {
            asset_update_job(&NodePath::new(path).unwrap(), &original.parse().unwrap()).key.unwrap()
        };
        let first = format!("{}#5", "a".repeat(64));
        let second = format!("{}#5", "b".repeat(64));
        assert_eq!(key("/content/dam/a", &first), key("/content/dam/a", &first));
        assert_ne!(key("/content/dam/a", &first), key("/content/dam/a", &second));
        assert_ne!(key("/content/dam/a", &first), key("/content/dam/b", &first));
    }
}
