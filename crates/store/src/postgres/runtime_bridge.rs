//! Bridges blocking callers to the async client: a runtime owned by the store.
//!
//! Invariants
//! * A call never runs on the caller's thread, so it may come from inside another runtime: it blocks that thread, and
//!   nothing panics.

use std::future::Future;
use std::sync::mpsc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::error::{Error, Result};

/// The number of threads that wait for the network; the work between is small.
const WORKER_THREADS: usize = 2;

/// The runtime of one store.
#[derive(Debug)]
pub(super) struct AsyncRuntimeBridge {
    runtime: Option<Runtime>,
}

impl AsyncRuntimeBridge {
    pub(super) fn start_runtime() -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(WORKER_THREADS)
            .thread_name("postgres")
            .enable_all()
            .build()
            .map_err(|source| Error::Database {
                action: "cannot start the threads of the database client",
                source: source.into(),
            })?;
        Ok(Self { runtime: Some(runtime) })
    }

    /// Runs a future to its end while the caller's thread waits.
    pub(super) fn block_on<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.spawn_task(async move {
            // The caller waits below for as long as this runs.
            sender.send(future.await).ok();
        });
        receiver.recv().unwrap_or_else(|_| {
            let source = sqlx::Error::WorkerCrashed;
            Err(Error::Database { action: "the database client has stopped", source })
        })
    }

    /// Runs a future in the background.
    pub(super) fn spawn_task(&self, future: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            drop(runtime.spawn(future));
        }
    }

    /// Runs a future for a limited time, then shuts the runtime down.
    pub(super) fn shut_down(
        &mut self,
        last: impl Future<Output = ()> + Send + 'static,
        limit: Duration,
    ) {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.spawn_task(async move {
            last.await;
            sender.send(()).ok();
        });
        receiver.recv_timeout(limit).ok();
        if let Some(runtime) = self.runtime.take() {
            // Unlike a drop, this is allowed inside another runtime.
            runtime.shutdown_background();
        }
    }
}
