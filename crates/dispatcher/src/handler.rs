//! The program that a farm runs at each flush (`/invalidateHandler`).
//!
//! Invariants
//! * A bounded number of programs runs at once, each for a bounded time; farms do not wait for each other's.
//! * A call that has begun goes on whoever waits for it, also while it waits for its turn.
//!
//! On failure: it is reported, and the flush counts as carried out.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tympan_web::flush_message::{FlushMessage, Scope};

/// How long the program may run.
const RUN_PATIENCE: Duration = Duration::from_secs(60);
/// So many run at once: a sibling that was away is told of hundreds of flushes together.
const MAX_RUNNING: usize = 8;
/// So many calls run or wait; further ones are left out.
const MAX_CALLS: usize = 4096;

/// The calls of a farm's program.
#[derive(Debug)]
pub(crate) struct Handlers {
    turns: Semaphore,
    places: Arc<Semaphore>,
}

impl Default for Handlers {
    fn default() -> Self {
        Self { turns: Semaphore::new(MAX_RUNNING), places: Arc::new(Semaphore::new(MAX_CALLS)) }
    }
}

impl Handlers {
    /// Runs `program` for a flush when it is its turn; nothing if too many calls wait.
    pub(crate) fn call(
        self: &Arc<Self>,
        program: &str,
        message: &FlushMessage,
    ) -> Option<JoinHandle<()>> {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            tracing::error!(file = program, path = %message.handle,
                "too many flushes wait for the invalidate handler; it is not run for this one");
            return None;
        };
        let scope = match message.scope {
            Some(Scope::ResourceOnly) => "ResourceOnly",
            None => "",
        };
        let arguments = [message.handle.clone(), message.action.as_str().to_owned(), scope.into()];
        let (handlers, program) = (Arc::clone(self), program.to_owned());
        Some(tokio::spawn(async move {
            let _place = place;
            // Nobody closes it.
            let _turn = handlers.turns.acquire().await;
            run(&program, &arguments).await;
        }))
    }
}

async fn run(program: &str, arguments: &[String]) {
    let run = tokio::process::Command::new(program)
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .status();
    match tokio::time::timeout(RUN_PATIENCE, run).await {
        Ok(Ok(status)) if status.success() => {}
        Ok(Ok(status)) => {
            tracing::warn!(file = program, status = %status, "the invalidate handler failed");
        }
        Ok(Err(error)) => {
            tracing::error!(file = program, reason = %error, "cannot run the invalidate handler");
        }
        Err(_elapsed) => tracing::warn!(file = program, "the invalidate handler took too long"),
    }
}

/// Waits until the program has ended for some flushes, but not longer than `patience`; then it goes on by itself.
pub(crate) async fn wait_for(
    calls: impl IntoIterator<Item = JoinHandle<()>>,
    farm: &str,
    patience: Duration,
) {
    let ended = tokio::time::timeout(patience, join_all(calls)).await;
    if ended.is_err() {
        tracing::warn!(%farm, "the invalidate handler takes long; flushes are answered before it has run");
    }
}

#[cfg(test)]
mod tests {
    use super::{Handlers, MAX_CALLS, MAX_RUNNING, RUN_PATIENCE, wait_for};
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;
    use tokio::time::Instant;
    use tympan_web::flush_message::{Action, FlushMessage};

    fn message() -> FlushMessage {
        FlushMessage {
            action: Action::Activate,
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
        let (handlers, program) = (Arc::new(Handlers::default()), program.to_str().unwrap());
        let mut calls: Vec<_> =
            (0..MAX_RUNNING + 4).filter_map(|_| handlers.call(program, &message())).collect();
        let (began, patience) = (Instant::now(), RUN_PATIENCE / 2);
        wait_for(calls.pop(), "site", patience).await;
        assert!(began.elapsed() >= patience && began.elapsed() < RUN_PATIENCE);
        assert!(calls.iter().all(|call| !call.is_finished()));
        // They go on, also the one for which nobody waits any more.
        tokio::time::resume();
        std::fs::write(folder.path().join("go"), "").unwrap();
        while handlers.places.available_permits() < MAX_CALLS {
            tokio::task::yield_now().await;
        }
        let told = std::fs::read_to_string(folder.path().join("told")).unwrap();
        assert_eq!(told.lines().count(), MAX_RUNNING + 4);
    }

    #[tokio::test]
    async fn calls_that_wait_are_bounded() {
        let handlers = Arc::new(Handlers::default());
        let _all = handlers.turns.acquire_many(u32::try_from(MAX_RUNNING).unwrap()).await.unwrap();
        for _ in 0..MAX_CALLS {
            assert!(handlers.call("/bin/true", &message()).is_some());
        }
        assert!(handlers.call("/bin/true", &message()).is_none());
    }
}
