//! Followers: clients that wait for changes. One task looks whether any branch has moved on and wakes all of them.
//!
//! Invariants
//! * Nothing runs while nobody follows, and nobody follows an instance that stops.
//! * There are at most [`MAX_FOLLOWERS`], and of one user at most [`MAX_FOLLOWERS_PER_USER`]; one more is told to come again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tympan_content::ChunkId;

use crate::Instance;
use crate::failure::{RequestFailure, Result};

/// Clients that may wait at once.
const MAX_FOLLOWERS: usize = 256;
/// Those of one user among them, so that nobody keeps out all others.
const MAX_FOLLOWERS_PER_USER: usize = 64;
/// How often the newest roots are looked at: other processes commit, too.
const ROOT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The branches and their newest roots.
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

/// Why a follower was woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FollowerWakeup {
    /// The content has moved on.
    Changed,
    /// The instance stops.
    Stopping,
}

/// One client's place among the followers.
#[derive(Debug)]
pub(crate) struct ChangeFollower {
    heads: watch::Receiver<BranchHeads>,
    stop_signal: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
    _user_permit: UserFollowerPermit,
}

/// How many places each user has who has any.
#[derive(Debug, Clone, Default)]
struct UserFollowerPermits(Arc<Mutex<HashMap<String, usize>>>);

/// A place among those of its user.
#[derive(Debug)]
struct UserFollowerPermit {
    user: String,
    permits: UserFollowerPermits,
}

impl UserFollowerPermits {
    /// Takes a place for a user; nothing if it has as many as it may.
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
    /// Lets all followers go.
    pub(crate) fn stop(&self) {
        self.stop_signal.send_replace(true);
    }
}

impl ChangeFollower {
    /// Waits until the content has moved on since the last call, or since the follower began; or until the instance
    /// stops.
    pub(crate) async fn wait_for_change(&mut self) -> FollowerWakeup {
        // The senders live as long as the instance, which the caller holds.
        tokio::select! {
            biased;
            _ = self.stop_signal.wait_for(|stopped| *stopped) => FollowerWakeup::Stopping,
            _ = self.heads.changed() => FollowerWakeup::Changed,
        }
    }

    /// Tells whether the instance stops.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.stop_signal.borrow()
    }

    /// Waits until the instance stops.
    pub(crate) async fn wait_for_stop(&self) {
        self.stop_signal.clone().wait_for(|stopped| *stopped).await.ok();
    }
}

impl Instance {
    /// Takes a place among the followers for a user.
    pub(crate) fn follow_changes(self: &Arc<Self>, user: &str) -> Result<ChangeFollower> {
        let followers = &self.followers;
        let of_user = followers.user_permits.acquire(user).ok_or_else(|| {
            let message = format!(
                "{MAX_FOLLOWERS_PER_USER} clients of `{user}` follow the changes already; come again later"
            );
            RequestFailure::new(StatusCode::SERVICE_UNAVAILABLE, message)
        })?;
        let place = Arc::clone(&followers.permits).try_acquire_owned().map_err(|_| {
            let message =
                format!("{MAX_FOLLOWERS} clients follow the changes already; come again later");
            RequestFailure::new(StatusCode::SERVICE_UNAVAILABLE, message)
        })?;
        let mut is_watched = followers.is_polling.lock();
        let heads = followers.heads.subscribe();
        if !*is_watched {
            *is_watched = true;
            tokio::spawn(poll_branch_heads(Arc::clone(self)));
        }
        let stopped = followers.stop_signal.subscribe();
        Ok(ChangeFollower { heads, stop_signal: stopped, _permit: place, _user_permit: of_user })
    }
}

/// Looks at the newest roots as long as somebody follows.
async fn poll_branch_heads(instance: Arc<Instance>) {
    let mut pulse = tokio::time::interval(ROOT_POLL_INTERVAL);
    loop {
        pulse.tick().await;
        {
            let mut is_watched = instance.followers.is_polling.lock();
            if instance.followers.heads.receiver_count() == 0 {
                *is_watched = false;
                return;
            }
        }
        let reader = Arc::clone(&instance);
        let branches = tokio::task::spawn_blocking(move || reader.repository.branches()).await;
        // A store that cannot be read now says so to whoever asks it for the changes.
        let Ok(Ok(branches)) = branches else { continue };
        let heads: BranchHeads = branches.into_iter().map(|one| (one.name, one.root)).collect();
        instance.followers.heads.send_if_modified(|known| {
            let is_new = *known != heads;
            *known = heads;
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
        let mut places: Vec<_> =
            (0..MAX_FOLLOWERS_PER_USER).map(|_| users.acquire("ann").unwrap()).collect();
        assert!(users.acquire("ann").is_none());
        assert!(users.acquire("bob").is_some());
        places.pop();
        assert!(users.acquire("ann").is_some());
        drop(places);
        assert!(users.0.lock().is_empty());
    }
}
