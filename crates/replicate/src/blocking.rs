//! Work that blocks, from asynchronous code.

use crate::{Error, Result};

/// Runs blocking reads and writes of content on a thread that may block.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.map_err(|error| Error::Malformed(format!("the task failed: {error}")))
}
