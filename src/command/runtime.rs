//! The runtime of a command that serves or sends requests.

use tympan_terminal::CommandFault;

/// Starts the runtime for all async code of a command.
///
/// # Errors
/// If the system cannot create threads.
pub(crate) fn create_runtime(
    blocking_threads: usize,
) -> Result<tokio::runtime::Runtime, CommandFault> {
    raise_open_file_limit();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(blocking_threads)
        .build()
        .map_err(|error| CommandFault::cannot_run(format!("cannot start the runtime: {error}")))
}

/// Raises the limit of open files to the maximum that the system allows: shells and service managers often set 1,024,
/// which many concurrent connections exceed.
fn raise_open_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If it fails, connections beyond the limit wait in the kernel.
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).ok();
}
