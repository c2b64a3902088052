//! The listeners of instances and dispatchers, as `tympan.toml` configures them.

use tympan_terminal::{CommandFault, error_chain_text};
use tympan_web::listen::{ListenerLimits, ListenerOptions};
use tympan_web::listener_certificate::ListenerCertificate;

use crate::config::TympanConfig;

/// Returns the number of connections to serve concurrently with this limit of open files, and logs a warning if it is
/// lower than `requested_limit`: idle connections are closed in favor of new ones, which the kernel would refuse otherwise.
fn limit_by_open_files(requested_limit: usize, files: Option<u64>) -> usize {
    let most = files.map_or(requested_limit, ListenerLimits::max_connections_for_files);
    if most < requested_limit {
        tracing::warn!(
            requested_limit,
            connections = most,
            files,
            "connection limit lowered because of the limit on open files"
        );
    }
    requested_limit.min(most)
}

/// Reads the certificate of the main listener; `None` without TLS.
///
/// # Errors
/// If a file cannot be read, or the key does not match the certificate.
pub(super) fn read_listener_certificate(
    config: &TympanConfig,
) -> Result<Option<ListenerCertificate>, CommandFault> {
    match (&config.listen.tls_certificate, &config.listen.tls_key) {
        (Some(chain), Some(key)) => ListenerCertificate::read(chain, key)
            .map(Some)
            .map_err(|error| CommandFault::usage(error_chain_text(&error))),
        (None, None) => Ok(None),
        _ => Err(CommandFault::usage(
            "tympan.toml: `tls_certificate` and `tls_key` must be set together",
        )),
    }
}

/// Returns the options of the main listener; a request body may have `body_bytes` bytes by default.
pub(super) fn main_front(
    config: &TympanConfig,
    certificate: Option<&ListenerCertificate>,
    body_bytes: u64,
) -> ListenerOptions {
    let section = &config.listen;
    let mut limits = ListenerLimits { max_body_bytes: body_bytes, ..ListenerLimits::default() };
    if let Some(max) = section.max_connections {
        limits.max_connections = max;
    }
    limits.max_connections = limit_by_open_files(limits.max_connections, open_file_limit());
    if let Some(max) = section.max_header {
        limits.max_header_bytes = usize::try_from(max.as_bytes()).unwrap_or(usize::MAX);
    }
    if let Some(max) = section.max_body {
        limits.max_body_bytes = max.as_bytes();
    }
    if let Some(timeout) = section.header_timeout {
        limits.header_timeout = timeout.0;
    }
    let tls = certificate.map(ListenerCertificate::tls);
    ListenerOptions { limits, tls, ..ListenerOptions::default() }
}

/// Returns the options of the second listener.
pub(super) fn admin_front(config: &TympanConfig) -> ListenerOptions {
    let max_connections = config.admin.max_connections.unwrap_or(16);
    ListenerLimits {
        max_connections,
        max_header_bytes: 16 * 1024,
        max_body_bytes: 64 * 1024,
        ..ListenerLimits::default()
    }
    .into()
}

/// Returns the limit of open files of this process, after it was raised to the maximum; `None` if there is no limit.
fn open_file_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}
