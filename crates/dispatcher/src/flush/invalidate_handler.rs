//! The program that a farm runs at each flush (`/invalidateHandler`).
//!
//! Invariants
//! * A bounded number of programs runs at once, each for a bounded time; farms do not wait for each other's programs.
//! * A call that has begun continues regardless of its caller, even while it is queued.
//!
//! On failure: the failure is reported, and the flush counts as carried out.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tympan_web::flush_message::{FlushMessage, FlushScope};

/// The maximum run time of the program.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum number of concurrent calls: a sibling that was unreachable receives hundreds of flushes together.
const MAX_CONCURRENT_CALLS: usize = 8;
/// The maximum number of running or queued calls; further ones are dropped.
const MAX_PENDING_CALLS: usize = 4096;

/// The calls of a farm's program.
#[derive(Debug)]
pub(crate) struct HandlerCallQueue {
    run_permits: Semaphore,
    queue_permits: Arc<Semaphore>,
}

impl Default for HandlerCallQueue {
    fn default() -> Self {
        Self {
            run_permits: Semaphore::new(MAX_CONCURRENT_CALLS),
            queue_permits: Arc::new(Semaphore::new(MAX_PENDING_CALLS)),
        }
    }
}

impl HandlerCallQueue {
    /// Queues a run of `program` for a flush; `None` if too many calls are queued.
    pub(crate) fn queue_call(
        self: &Arc<Self>,
        program: &str,
        message: &FlushMessage,
    ) -> Option<JoinHandle<()>> {
        let Ok(permit) = Arc::clone(&self.queue_permits).try_acquire_owned() else {
            tracing::error!(file = program, path = %message.handle,
                "too many flushes are waiting for the invalidate handler; not running it for this one");
            return None;
        };
        let scope = match message.scope {
            Some(FlushScope::ResourceOnly) => "ResourceOnly",
            None => "",
        };
        let arguments = [message.handle.clone(), message.action.as_str().to_owned(), scope.into()];
        let (handlers, program) = (Arc::clone(self), program.to_owned());
        Some(tokio::spawn(async move {
            let _place = permit;
            // The semaphore is never closed.
            let _turn = handlers.run_permits.acquire().await;
            run_handler(&program, &arguments).await;
        }))
    }
}

async fn run_handler(program: &str, arguments: &[String]) {
    let run = tokio::process::Command::new(program)
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .status();
    match tokio::time::timeout(RUN_TIMEOUT, run).await {
        Ok(Ok(status)) if status.success() => {}
        Ok(Ok(status)) => {
            tracing::warn!(file = program, status = %status, "the invalidate handler failed");
        }
        Ok(Err(error)) => {
            tracing::error!(file = program, reason = %error, "cannot run the invalidate handler");
        }
        Err(_elapsed) => tracing::warn!(file = program, "the invalidate handler timed out"),
    }
}

/// Waits up to `timeout` until the program has ended for some flushes; calls still running continue independently.
pub(crate) async fn wait_for_calls(
    calls: impl IntoIterator<Item = JoinHandle<()>>,
    farm: &str,
    timeout: Duration,
) {
    let ended = tokio::time::timeout(timeout, join_all(calls)).await;
    if ended.is_err() {
        tracing::warn!(%farm, "the invalidate handler is slow; answering flushes before it has run");
    }
}

#[cfg(test)]
mod tests {
    use super::{
        HandlerCallQueue, MAX_CONCURRENT_CALLS, MAX_PENDING_CALLS, RUN_TIMEOUT, wait_for_calls,
    };
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;
    use tokio::time::Instant;
    use tympan_web::flush_message::{FlushAction, FlushMessage};

    fn message() -> FlushMessage {
        FlushMessage {
            action: FlushAction::Activate,
            handle: "/content/a".to_owned(),
            scope: None,
            refetch: Vec::new(),
            sequence: None,
            numbering: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_does_not_wait_for_what_hangs() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("handler");
        let script = format!(
            "#!/bin/sh\ncd {} || exit 1\nuntil [ -e go ]; do sleep 0.01; done\necho >> told\n",
            folder.path().display()
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let (handlers, program) =
            (Arc::new(HandlerCallQueue::default()), program.to_str().unwrap());
        let mut calls: Vec<_> = (0..MAX_CONCURRENT_CALLS + 4)
            .filter_map(|_| handlers.queue_call(program, &message()))
            .collect();
        let (began, timeout) = (Instant::now(), RUN_TIMEOUT / 2);
        wait_for_calls(calls.pop(), "site", timeout).await;
        assert!(began.elapsed() >= timeout && began.elapsed() < RUN_TIMEOUT);
        assert!(calls.iter().all(|call| !call.is_finished()));
        // The calls continue, including the one whose caller stopped waiting.
        tokio::time::resume();
        std::fs::write(folder.path().join("go"), "").unwrap();
        while handlers.queue_permits.available_permits() < MAX_PENDING_CALLS {
            tokio::task::yield_now().await;
        }
        let record = std::fs::read_to_string(folder.path().join("told")).unwrap();
        assert_eq!(record.lines().count(), MAX_CONCURRENT_CALLS + 4);
    }

    #[tokio::test]
    async fn calls_that_wait_are_bounded() {
        let handlers = Arc::new(HandlerCallQueue::default());
        let _all = handlers
            .run_permits
            .acquire_many(u32::try_from(MAX_CONCURRENT_CALLS).unwrap())
            .await
            .unwrap();
        for _ in 0..MAX_PENDING_CALLS {
            assert!(handlers.queue_call("/bin/true", &message()).is_some());
        }
        assert!(handlers.queue_call("/bin/true", &message()).is_none());
    }
}
