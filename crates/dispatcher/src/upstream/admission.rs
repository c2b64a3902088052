//! Admission control for a render: the number of concurrent requests and the queue of waiting ones.
//!
//! A render whose threads are all busy does not respond sooner if it gets more requests. Requests over the limit wait
//! here. Requests that do not fit the queue are refused at once, so that visitors of other pages are not delayed.
//!
//! Invariants
//! * At most `max_concurrent` requests are at a render, from the sending of the head to the end of the response body.
//! * At most `max_queue` requests wait, each for at most `queue_wait`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::RenderConfig;

/// The admission control of one render.
#[derive(Debug)]
pub(crate) struct RenderAdmission {
    permits: Option<Arc<Semaphore>>,
    waiting_count: AtomicUsize,
    render: RenderConfig,
}

/// A permit for one request at a render; released when dropped.
#[derive(Debug)]
pub(crate) struct RenderPermit {
    _permit: Option<OwnedSemaphorePermit>,
}

impl RenderPermit {
    /// Returns a permit that does not count toward the limit.
    pub(crate) fn uncounted() -> Self {
        Self { _permit: None }
    }
}

/// Counts one waiting request until it is dropped, for example because the visitor disconnects.
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

    /// Returns true if a new request would not have to wait.
    pub(crate) fn is_free(&self) -> bool {
        self.permits.as_ref().is_none_or(|permits| permits.available_permits() > 0)
    }

    /// Returns the number of waiting requests.
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting_count.load(Ordering::SeqCst)
    }

    /// Waits for a permit; returns `None` if the queue is full or the wait times out.
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
