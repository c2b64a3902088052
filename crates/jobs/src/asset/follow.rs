//! What stores a job for every asset whose original is new.
//!
//! In: the newest state of content, and the root that was digested last. Out: jobs of [`TOPIC`].
//!
//! Invariants
//! * The root that is digested is stored after the jobs that follow from it, so that a crash loses none. What it stores
//!   twice has the same key, and finds its asset finished. Roots without any work are stored now and then only.
//! * Of several authors on one database one moves on, whichever comes first.
//! * While content does not change, nothing is read of it.
//!
//! On failure: a root that is gone is no base to compare with; then every asset is looked at.

use std::time::{Duration, SystemTime};

use serde_json::json;
use sha1::{Digest, Sha1};
use tokio::sync::watch;
use tracing::{debug, warn};
use tympan_content::{BlobId, NodePath, Repository, Snapshot};

use super::draw::hex;
use super::handler::TOPIC;
use super::ingest::{ASSET, USER, due_original};
use crate::follower::Rounds;
use crate::{Error, NewJob, Queues, Result, chain};

/// The follower that stores jobs for assets.
const FOLLOWER: &str = "assets";
/// How often the newest root is looked at; where a look costs a round trip, less often.
const LOOK: Duration = Duration::from_millis(100);
const COSTLY_LOOK: Duration = Duration::from_secs(1);
/// How long a root behind which nothing was due may go unstored: after a crash, what changed since is looked at again.
const LAZY: Duration = Duration::from_secs(10);
/// How long it waits for a store or database that fails.
const FAILING: Duration = Duration::from_secs(5);
/// Jobs of one transaction: others that write wait no longer than these take.
const PART: usize = 500;
/// The folder whose children are the tenants of assets.
const DAM: &str = "/content/dam/";

/// Follows content and stores jobs for the assets that are due.
#[derive(Debug)]
pub struct AssetFollower {
    repository: Repository,
    queues: Queues,
    /// The root behind which there was nothing to do.
    seen: Option<String>,
    /// When a root was stored last.
    stored: Option<SystemTime>,
    /// A root up to which nothing was due, beside the one that is stored.
    passed: Option<(String, String)>,
}

impl AssetFollower {
    /// Makes one that goes on where the last one in this database was.
    #[must_use]
    pub fn new(repository: Repository, queues: Queues) -> Self {
        Self { repository, queues, seen: None, stored: None, passed: None }
    }

    /// Follows content until `stop` turns true.
    pub async fn run(mut self, stop: watch::Receiver<bool>) {
        let costly = self.repository.chunks().has_costly_round_trips();
        let look = if costly { COSTLY_LOOK } else { LOOK };
        let mut rounds = Rounds::new("assets", stop, FAILING);
        while !rounds.is_over() {
            let done = self.step(SystemTime::now()).await;
            rounds.end(done.map(|_| look).map_err(|failure| chain(&failure))).await;
        }
    }

    /// Stores jobs for what is due in the newest state and was not before. Returns how many.
    ///
    /// # Errors
    /// If content or the database fail.
    pub async fn step(&mut self, now: SystemTime) -> Result<usize> {
        let repository = self.repository.clone();
        let newest = blocking(move || Ok(repository.snapshot()?)).await?;
        let root = newest.root_id().to_string();
        let is_seen = self.seen.as_ref() == Some(&root);
        if is_seen && (self.passed.is_none() || self.is_early(now)) {
            return Ok(0);
        }
        let digested = self.queues.digested(FOLLOWER).await?;
        if digested.as_ref() == Some(&root) {
            (self.seen, self.passed) = (Some(root), None);
            return Ok(0);
        }
        let passed = self.passed.take().filter(|(stored, _)| digested.as_ref() == Some(stored));
        let (repository, stored) = (self.repository.clone(), digested.clone());
        let jobs = blocking(move || {
            // Only the stored root is kept from being collected.
            let is_there =
                |root: &String| root.parse().is_ok_and(|root| repository.snapshot_at(root).is_ok());
            let from = passed.map(|(_, root)| root).filter(is_there).or(stored);
            due_since(&repository, from.as_deref(), &newest)
        });
        let jobs = jobs.await?;
        let count = jobs.len();
        if let (0, true, Some(stored)) = (count, self.is_early(now), &digested) {
            self.passed = Some((stored.clone(), root.clone()));
            self.seen = Some(root);
            return Ok(0);
        }
        let mut parts = jobs.chunks(PART).peekable();
        let mut last = Vec::new();
        while let Some(part) = parts.next() {
            if parts.peek().is_some() {
                self.queues.add_all(part.to_vec(), now).await?;
            } else {
                last = part.to_vec();
            }
        }
        let step = (digested.as_deref(), &*root);
        if !self.queues.digest(FOLLOWER, step, last, now).await? {
            // Another author was faster; the next look begins where that one is.
            return Ok(0);
        }
        (self.seen, self.stored) = (Some(root), Some(now));
        if count > 0 {
            debug!(jobs = count, "assets are due");
        }
        Ok(count)
    }
}

impl AssetFollower {
    /// Tells whether a root was stored so lately that one without work need not be: it would be a sync for each save of
    /// an editor.
    fn is_early(&self, now: SystemTime) -> bool {
        let age = self.stored.and_then(|stored| now.duration_since(stored).ok());
        age.is_some_and(|age| age < LAZY)
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::Group(error.to_string()))?
}

/// Returns jobs for the assets that are due at `newest` and changed since a root; for all that are due without one.
fn due_since(
    repository: &Repository,
    from: Option<&str>,
    newest: &Snapshot,
) -> Result<Vec<NewJob>> {
    let before = from.map(|from| match from.parse() {
        Ok(root) => repository.snapshot_at(root).map_err(|error| error.to_string()),
        Err(_) => Err(format!("`{from}` is no root")),
    });
    let mut jobs = Vec::new();
    match before {
        Some(Ok(before)) => {
            for path in before.changed_paths(newest)? {
                if let Some(node) = newest.node(&path)?
                    && let Some(original) = due_original(&node)?
                {
                    jobs.push(job_of(&path, &original));
                }
            }
            return Ok(jobs);
        }
        Some(Err(reason)) => warn!(reason, "every asset is looked at"),
        None => {}
    }
    // A record that is damaged is somebody else's to report.
    for node in newest.document_nodes().filter_map(std::result::Result::ok) {
        if node.primary_type() == ASSET
            && let Some(original) = due_original(&node)?
        {
            jobs.push(job_of(node.path(), &original));
        }
    }
    Ok(jobs)
}

/// Describes the processing of an asset with this original.
pub(crate) fn job_of(path: &NodePath, original: &BlobId) -> NewJob {
    let state = json!({ "path": path.as_str(), "original": original.to_string() });
    // As short for a long path as for any other: databases index keys.
    let key = hex(&Sha1::digest(format!("{path}\n{original}")));
    NewJob::new(TOPIC, state).key(key).tenant(tenant_of(path)).user(USER)
}

/// Returns whose asset it is: folders directly below `/content/dam` take turns.
fn tenant_of(path: &NodePath) -> &str {
    let below = path.as_str().strip_prefix(DAM);
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
            assert_eq!(tenant_of(&NodePath::new(path).unwrap()), expected, "{path}");
        }
    }

    #[test]
    fn keys_name_the_asset_and_its_original() {
        let key = |path: &str, original: &str| {
            job_of(&NodePath::new(path).unwrap(), &original.parse().unwrap()).key.unwrap()
        };
        let one = format!("{}#5", "a".repeat(64));
        let other = format!("{}#5", "b".repeat(64));
        assert_eq!(key("/content/dam/a", &one), key("/content/dam/a", &one));
        assert_ne!(key("/content/dam/a", &one), key("/content/dam/a", &other));
        assert_ne!(key("/content/dam/a", &one), key("/content/dam/b", &one));
    }
}
