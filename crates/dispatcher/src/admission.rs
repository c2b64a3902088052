//! How many requests a render works on at once, and who waits for a turn.
//!
//! A render whose threads are all busy answers nobody sooner for being asked more; what does not fit waits here, and
//! what does not fit here is refused at once, so that visitors of other pages are not held up.
//!
//! Invariants
//! * At most `max_concurrent` requests are at a render, from the sending of the head to the end of the answer's body.
//! * At most `max_queue` wait, each for at most `queue_wait`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::RenderConfig;

/// The door of one render.
#[derive(Debug)]
pub(crate) struct RenderAdmission {
    permits: Option<Arc<Semaphore>>,
    waiting_count: AtomicUsize,
    render: RenderConfig,
}

/// A place at a render, until it is dropped.
#[derive(Debug)]
pub(crate) struct RenderPermit {
    _permit: Option<OwnedSemaphorePermit>,
}

impl RenderPermit {
    /// Returns a place that does not count.
    pub(crate) fn uncounted() -> Self {
        Self { _permit: None }
    }
}

/// Counts one who waits until it is dropped, as when the visitor leaves.
struct AdmissionWaitGuard<'a>(&'a AtomicUsize);

impl Drop for AdmissionWaitGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl RenderAdmission {
    pub(crate) fn new(render: &RenderConfig) -> Self {
        Self {
            permits: render.max_concurrent_requests.map(|max| Arc::new(Semaphore::new(max))),
            waiting_count: AtomicUsize::new(0),
            render: render.clone(),
        }
    }

    /// Tells whether one who comes now need not wait.
    pub(crate) fn is_free(&self) -> bool {
        self.permits.as_ref().is_none_or(|permits| permits.available_permits() > 0)
    }

    /// Returns how many wait.
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting_count.load(Ordering::SeqCst)
    }

    /// Waits for a place; nothing if too many wait already, or for too long.
    pub(crate) async fn acquire(&self) -> Option<RenderPermit> {
        let Some(permits) = &self.permits else {
            return Some(RenderPermit { _permit: None });
        };
        if let Ok(permit) = Arc::clone(permits).try_acquire_owned() {
            return Some(RenderPermit { _permit: Some(permit) });
        }
        let before = self.waiting_count.fetch_add(1, Ordering::SeqCst);
        let _waiting = AdmissionWaitGuard(&self.waiting_count);
        if before >= self.render.max_queued_requests {
            return None;
        }
        let permit = Arc::clone(permits).acquire_owned();
        let permit = tokio::time::timeout(self.render.queue_timeout, permit).await.ok()?.ok()?;
        Some(RenderPermit { _permit: Some(permit) })
    }
}
