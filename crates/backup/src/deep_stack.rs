//! Threads with stacks that are large enough for deeply nested folders.
//!
//! Work on trees recurses from folder to folder, and a thread that waits for a part of it executes another part. Any
//! user may nest folders as deep as the path length allows: on default stacks one such folder would abort the backup of
//! everything.
//!
//! Not here: any other work; it runs on rayon's own threads.

use std::sync::OnceLock;

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Error, Result};
use crate::object_id::VaultObjectId;

/// Stack size reserved for each thread, not committed: a level takes up to 4 KiB, and several walks may be on one stack
/// at once.
const THREAD_STACK_BYTES: usize = 64 << 20;
/// Maximum folder depth: that of a path of 4,096 bytes, the longest that systems accept. A vault with deeper nesting is
/// malicious.
pub(crate) const MAX_FOLDER_DEPTH: usize = 2048;

/// Runs a closure on such threads.
pub(crate) fn run_on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let make = || {
        let threads = ThreadPoolBuilder::new().stack_size(THREAD_STACK_BYTES);
        threads.thread_name(|number| format!("backup-{number}")).build().ok()
    };
    match POOL.get_or_init(make) {
        Some(pool) => pool.install(work),
        // Without these threads, the current stack may still be enough for usual folders.
        None => work(),
    }
}

/// Like [`run_on_deep_stack`], on at least `threads` threads: a thread that waits for another machine needs no
/// processor.
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

/// Returns an error if a folder is nested deeper than any valid path.
pub(crate) fn check_folder_depth(depth: usize, id: &VaultObjectId) -> Result<()> {
    if depth <= MAX_FOLDER_DEPTH {
        return Ok(());
    }
    let fault = format!("it is nested deeper than {MAX_FOLDER_DEPTH} folders");
    Err(Error::UnreadableBlob { what: "folder", id: *id, fault })
}
