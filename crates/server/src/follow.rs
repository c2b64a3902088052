//! Followers: clients that wait for changes. One task looks whether any branch has moved on and wakes all of them.
//!
//! Invariants
//! * Nothing runs while nobody follows, and nobody follows an instance that stops.
//! * There are at most [`MAX_FOLLOWERS`], and of one user at most [`MAX_OF_USER`]; one more is told to come again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tympan_content::ChunkId;

use crate::Instance;
use crate::failure::{Failure, Result};

/// Clients that may wait at once.
const MAX_FOLLOWERS: usize = 256;
/// Those of one user among them, so that nobody keeps out all others.
const MAX_OF_USER: usize = 64;
/// How often the newest roots are looked at: other processes commit, too.
const PULSE: Duration = Duration::from_millis(100);

/// The branches and their newest roots.
type Heads = Vec<(String, ChunkId)>;

/// All followers of an instance.
#[derive(Debug)]
pub(crate) struct Followers {
    places: Arc<Semaphore>,
    users: UserPlaces,
    heads: watch::Sender<Heads>,
    is_watched: Mutex<bool>,
    stopped: watch::Sender<bool>,
}

/// Why a follower was woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The content has moved on.
    Changed,
    /// The instance stops.
    Stopping,
}

/// One client's place among the followers.
#[derive(Debug)]
pub(crate) struct Follower {
    heads: watch::Receiver<Heads>,
    stopped: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
    _of_user: UserPlace,
}

/// How many places each user has who has any.
#[derive(Debug, Clone, Default)]
struct UserPlaces(Arc<Mutex<HashMap<String, usize>>>);

/// A place among those of its user.
#[derive(Debug)]
struct UserPlace {
    user: String,
    all: UserPlaces,
}

impl UserPlaces {
    /// Takes a place for a user; nothing if it has as many as it may.
    fn take(&self, user: &str) -> Option<UserPlace> {
        let mut counts = self.0.lock();
        let count = counts.get(user).copied().unwrap_or(0);
        if count >= MAX_OF_USER {
            return None;
        }
        counts.insert(user.to_owned(), count + 1);
        Some(UserPlace { user: user.to_owned(), all: self.clone() })
    }
}

impl Drop for UserPlace {
    fn drop(&mut self) {
        let mut counts = self.all.0.lock();
        if let Some(count) = counts.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.user);
            }
        }
    }
}

impl Default for Followers {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(MAX_FOLLOWERS)),
            users: UserPlaces::default(),
            heads: watch::channel(Heads::new()).0,
            is_watched: Mutex::new(false),
            stopped: watch::channel(false).0,
        }
    }
}

impl Followers {
    /// Lets all followers go.
    pub(crate) fn stop(&self) {
        self.stopped.send_replace(true);
    }
}

impl Follower {
    /// Waits until the content has moved on since the last call, or since the follower began; or until the instance
    /// stops.
    pub(crate) async fn changed(&mut self) -> Woken {
        // The senders live as long as the instance, which the caller holds.
        tokio::select! {
            biased;
            _ = self.stopped.wait_for(|stopped| *stopped) => Woken::Stopping,
            _ = self.heads.changed() => Woken::Changed,
        }
    }

    /// Tells whether the instance stops.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Waits until the instance stops.
    pub(crate) async fn stopping(&self) {
        self.stopped.clone().wait_for(|stopped| *stopped).await.ok();
    }
}

impl Instance {
    /// Takes a place among the followers for a user.
    pub(crate) fn follow(self: &Arc<Self>, user: &str) -> Result<Follower> {
        let followers = &self.followers;
        let of_user = followers.users.take(user).ok_or_else(|| {
            let message = format!(
                "{MAX_OF_USER} clients of `{user}` follow the changes already; come again later"
            );
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, message)
        })?;
        let place = Arc::clone(&followers.places).try_acquire_owned().map_err(|_| {
            let message =
                format!("{MAX_FOLLOWERS} clients follow the changes already; come again later");
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, message)
        })?;
        let mut is_watched = followers.is_watched.lock();
        let heads = followers.heads.subscribe();
        if !*is_watched {
            *is_watched = true;
            tokio::spawn(watch_head(Arc::clone(self)));
        }
        let stopped = followers.stopped.subscribe();
        Ok(Follower { heads, stopped, _place: place, _of_user: of_user })
    }
}

/// Looks at the newest roots as long as somebody follows.
async fn watch_head(instance: Arc<Instance>) {
    let mut pulse = tokio::time::interval(PULSE);
    loop {
        pulse.tick().await;
        {
            let mut is_watched = instance.followers.is_watched.lock();
            if instance.followers.heads.receiver_count() == 0 {
                *is_watched = false;
                return;
            }
        }
        let reader = Arc::clone(&instance);
        let branches = tokio::task::spawn_blocking(move || reader.repository.branches()).await;
        // A store that cannot be read now says so to whoever asks it for the changes.
        let Ok(Ok(branches)) = branches else { continue };
        let heads: Heads = branches.into_iter().map(|one| (one.name, one.root)).collect();
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
        let users = UserPlaces::default();
        let mut places: Vec<_> = (0..MAX_OF_USER).map(|_| users.take("ann").unwrap()).collect();
        assert!(users.take("ann").is_none());
        assert!(users.take("bob").is_some());
        places.pop();
        assert!(users.take("ann").is_some());
        drop(places);
        assert!(users.0.lock().is_empty());
    }
}
