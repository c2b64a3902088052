//! Threads with room for folders in folders.
//!
//! Work on trees follows them from folder to folder, and whoever waits for a part of it takes up another. Anybody may nest
//! folders as deep as a path is long: on usual stacks one such folder would end the backup of all.
//!
//! Not here: any other work; it has rayon's own threads.

use std::sync::OnceLock;

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Error, Result};
use crate::object_id::VaultObjectId;

/// Reserved for each thread, not used: a level takes up to 4 KiB, and some walks may lie on one stack at once.
const THREAD_STACK_BYTES: usize = 64 << 20;
/// Folders in a path of 4,096 bytes, the longest that systems take. A vault that nests more was made to do harm.
pub(crate) const MAX_FOLDER_DEPTH: usize = 2048;

/// Runs work on such threads.
pub(crate) fn run_on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let make = || {
        let threads = ThreadPoolBuilder::new().stack_size(THREAD_STACK_BYTES);
        threads.thread_name(|number| format!("backup-{number}")).build().ok()
    };
    match POOL.get_or_init(make) {
        Some(pool) => pool.install(work),
        // A system that gives no such threads may have enough room for usual folders.
        None => work(),
    }
}

/// As [`run_on_deep_stack`], on at least so many threads: who waits for another machine needs no processor.
pub(crate) fn run_on_deep_stacks<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    if threads <= rayon::current_num_threads() {
        return run_on_deep_stack(work);
    }
    let many = ThreadPoolBuilder::new().stack_size(THREAD_STACK_BYTES).num_threads(threads);
    match many.thread_name(|number| format!("backup-far-{number}")).build() {
        Ok(pool) => pool.install(work),
        Err(_) => run_on_deep_stack(work),
    }
}

/// Fails if a folder lies deeper than any path leads.
pub(crate) fn check_folder_depth(depth: usize, id: &VaultObjectId) -> Result<()> {
    if depth <= MAX_FOLDER_DEPTH {
        return Ok(());
    }
    let fault = format!("it lies deeper than {MAX_FOLDER_DEPTH} folders");
    Err(Error::UnreadableBlob { what: "folder", id: *id, fault })
}
