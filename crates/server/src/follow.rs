//! Followers: clients that wait for changes. One task looks whether the content has moved on and wakes all of them.
//!
//! Invariants
//! * Nothing runs while nobody follows.
//! * There are at most [`MAX_FOLLOWERS`]; one more is told to come again.

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
/// How often the newest root is looked at: other processes commit, too.
const PULSE: Duration = Duration::from_millis(100);

/// All followers of an instance.
#[derive(Debug)]
pub(crate) struct Followers {
    places: Arc<Semaphore>,
    head: watch::Sender<Option<ChunkId>>,
    is_watched: Mutex<bool>,
}

/// One client's place among the followers.
#[derive(Debug)]
pub(crate) struct Follower {
    head: watch::Receiver<Option<ChunkId>>,
    _place: OwnedSemaphorePermit,
}

impl Default for Followers {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(MAX_FOLLOWERS)),
            head: watch::channel(None).0,
            is_watched: Mutex::new(false),
        }
    }
}

impl Follower {
    /// Waits until the content has moved on since the last call, or since the follower began.
    pub(crate) async fn changed(&mut self) {
        // The sender lives as long as the instance, which the caller holds.
        self.head.changed().await.ok();
    }
}

impl Instance {
    /// Takes a place among the followers.
    pub(crate) fn follow(self: &Arc<Self>) -> Result<Follower> {
        let followers = &self.followers;
        let place = Arc::clone(&followers.places).try_acquire_owned().map_err(|_| {
            let message =
                format!("{MAX_FOLLOWERS} clients follow the changes already; come again later");
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, message)
        })?;
        let mut is_watched = followers.is_watched.lock();
        let head = followers.head.subscribe();
        if !*is_watched {
            *is_watched = true;
            tokio::spawn(watch_head(Arc::clone(self)));
        }
        Ok(Follower { head, _place: place })
    }
}

/// Looks at the newest root as long as somebody follows.
async fn watch_head(instance: Arc<Instance>) {
    let mut pulse = tokio::time::interval(PULSE);
    loop {
        pulse.tick().await;
        {
            let mut is_watched = instance.followers.is_watched.lock();
            if instance.followers.head.receiver_count() == 0 {
                *is_watched = false;
                return;
            }
        }
        let reader = Arc::clone(&instance);
        let head = tokio::task::spawn_blocking(move || reader.repository.head()).await;
        // A store that cannot be read now says so to whoever asks it for the changes.
        let Ok(Ok(head)) = head else { continue };
        instance.followers.head.send_if_modified(|known| {
            let is_new = *known != Some(head);
            *known = Some(head);
            is_new
        });
    }
}
