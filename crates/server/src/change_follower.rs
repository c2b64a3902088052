//! Followers: clients that wait for changes. A single task polls all branches for new roots and wakes all followers.
//!
//! Invariants
//! * The task runs only while there are followers, and an instance that stops accepts none.
//! * There are at most [`MAX_FOLLOWERS`] followers, and at most [`MAX_FOLLOWERS_PER_USER`] per user; further ones are
//!   told to retry later.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tympan_content::{ChunkId, Repository};

use crate::failure::{RequestFailure, Result};

/// Maximum number of clients that wait at once.
const MAX_FOLLOWERS: usize = 256;
/// Maximum number of followers per user, so that no single user can exclude all others.
const MAX_FOLLOWERS_PER_USER: usize = 64;
/// Poll interval for new roots. Polling is necessary because other processes commit, too.
const ROOT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The branches and their latest roots.
type BranchHeads = Vec<(String, ChunkId)>;

/// All followers of an instance.
#[derive(Debug)]
pub(crate) struct ChangeFollowers {
    permits: Arc<Semaphore>,
    user_permits: UserFollowerPermits,
    heads: watch::Sender<BranchHeads>,
    is_polling: Mutex<bool>,
    stop_signal: watch::Sender<bool>,
}

/// The reason why a follower was woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FollowerWakeup {
    /// The content has changed.
    Changed,
    /// The instance is stopping.
    Stopping,
}

/// The registration of one client as a follower.
#[derive(Debug)]
pub(crate) struct ChangeFollower {
    heads: watch::Receiver<BranchHeads>,
    stop_signal: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
    _user_permit: UserFollowerPermit,
}

/// The number of followers of each user who has any.
#[derive(Debug, Clone, Default)]
struct UserFollowerPermits(Arc<Mutex<HashMap<String, usize>>>);

/// A permit counted against the limit of its user.
#[derive(Debug)]
struct UserFollowerPermit {
    user: String,
    permits: UserFollowerPermits,
}

impl UserFollowerPermits {
    /// Acquires a permit for a user; `None` if the user has reached the limit.
    fn acquire(&self, user: &str) -> Option<UserFollowerPermit> {
        let mut counts = self.0.lock();
        let count = counts.get(user).copied().unwrap_or(0);
        if count >= MAX_FOLLOWERS_PER_USER {
            return None;
        }
        counts.insert(user.to_owned(), count + 1);
        Some(UserFollowerPermit { user: user.to_owned(), permits: self.clone() })
    }
}

impl Drop for UserFollowerPermit {
    fn drop(&mut self) {
        let mut counts = self.permits.0.lock();
        if let Some(count) = counts.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.user);
            }
        }
    }
}

impl Default for ChangeFollowers {
    fn default() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(MAX_FOLLOWERS)),
            user_permits: UserFollowerPermits::default(),
            heads: watch::channel(BranchHeads::new()).0,
            is_polling: Mutex::new(false),
            stop_signal: watch::channel(false).0,
        }
    }
}

impl ChangeFollowers {
    /// Releases all followers.
    pub(crate) fn stop(&self) {
        self.stop_signal.send_replace(true);
    }

    /// Registers a follower of the changes of a repository for a user.
    pub(crate) fn follow(
        self: &Arc<Self>,
        repository: &Repository,
        user: &str,
    ) -> Result<ChangeFollower> {
        let of_user = self.user_permits.acquire(user).ok_or_else(|| {
            let message = format!(
                "the limit of {MAX_FOLLOWERS_PER_USER} change feed clients of `{user}` is reached; try again \
                 later"
            );
            RequestFailure::new(StatusCode::SERVICE_UNAVAILABLE, message)
        })?;
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| {
            let message = format!(
                "the limit of {MAX_FOLLOWERS} change feed clients is reached; try again later"
            );
            RequestFailure::new(StatusCode::SERVICE_UNAVAILABLE, message)
        })?;
        let mut is_watched = self.is_polling.lock();
        let heads = self.heads.subscribe();
        if !*is_watched {
            *is_watched = true;
            tokio::spawn(poll_branch_heads(Arc::clone(self), repository.clone()));
        }
        let stopped = self.stop_signal.subscribe();
        Ok(ChangeFollower { heads, stop_signal: stopped, _permit: permit, _user_permit: of_user })
    }
}

impl ChangeFollower {
    /// Waits until the content has changed since the last call, or since the follower was registered, or until the
    /// instance stops.
    pub(crate) async fn wait_for_change(&mut self) -> FollowerWakeup {
        // The senders live as long as the instance, which the caller holds.
        tokio::select! {
            biased;
            _ = self.stop_signal.wait_for(|stopped| *stopped) => FollowerWakeup::Stopping,
            _ = self.heads.changed() => FollowerWakeup::Changed,
        }
    }

    /// Returns true if the instance is stopping.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.stop_signal.borrow()
    }

    /// Waits until the instance stops.
    pub(crate) async fn wait_for_stop(&self) {
        self.stop_signal.clone().wait_for(|stopped| *stopped).await.ok();
    }
}

/// Polls the branches for new roots while there are followers.
async fn poll_branch_heads(followers: Arc<ChangeFollowers>, repository: Repository) {
    let mut pulse = tokio::time::interval(ROOT_POLL_INTERVAL);
    loop {
        pulse.tick().await;
        {
            let mut is_watched = followers.is_polling.lock();
            if followers.heads.receiver_count() == 0 {
                *is_watched = false;
                return;
            }
        }
        let reader = repository.clone();
        let branches = tokio::task::spawn_blocking(move || reader.branches()).await;
        // If the store cannot be read, the clients receive the error when they request the changes.
        let Ok(Ok(branches)) = branches else { continue };
        let heads: BranchHeads =
            branches.into_iter().map(|branch| (branch.name, branch.root)).collect();
        followers.heads.send_if_modified(|last_heads| {
            let is_new = *last_heads != heads;
            *last_heads = heads;
            is_new
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_takes_a_part_of_the_places_and_gives_them_back() {
        let users = UserFollowerPermits::default();
        let mut permits: Vec<_> =
            (0..MAX_FOLLOWERS_PER_USER).map(|_| users.acquire("ann").unwrap()).collect();
        assert!(users.acquire("ann").is_none());
        assert!(users.acquire("bob").is_some());
        permits.pop();
        assert!(users.acquire("ann").is_some());
        drop(permits);
        assert!(users.0.lock().is_empty());
    }
}
