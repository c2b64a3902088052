//! The limits of a listener.

use std::time::Duration;

use crate::server::body_limit::BodyLimit;

/// The treatment of a connection while `max_connections` are open. In both cases idle connections are closed to admit
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OverflowPolicy {
    /// It waits until another one ends; the client receives no response in the meantime.
    #[default]
    Wait,
    /// It waits for up to 5 seconds, together with at most a quarter of `max_connections`. Others are answered with
    /// 503, so that a load balancer in front uses another server. Encrypted ones are closed.
    Refuse,
}

/// The limits of one listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Maximum number of open connections; default 10,000. While fewer than one in 16 is free, responses close their
    /// connections. Raise it together with the process's limit of open files
    /// ([`ListenerLimits::max_connections_for_files`]).
    pub max_connections: usize,
    /// Treatment of further connections; by default they wait.
    pub overflow: OverflowPolicy,
    /// Maximum size of request line and headers, in bytes; default 64 KiB. Lower it in front of old applications.
    pub max_header_bytes: usize,
    /// Maximum size of a request body, in bytes; default 64 MiB. Raise it where large assets are uploaded.
    pub max_body_bytes: u64,
    /// Maximum time until the next head is complete, from the accept or from the end of the previous response; default
    /// 60 s. It limits idle connections as well as clients that send a head byte by byte.
    pub header_timeout: Duration,
    /// Maximum time in which a peer must read at least one byte while data is written to it, shortened if it reads less
    /// than [`LEAST_RATE`](crate::server::slow_client_timeout::MIN_CLIENT_BYTES_PER_SECOND) on average. It also limits
    /// the TLS handshake. Default 30 s.
    pub write_timeout: Duration,
    /// Maximum time for open requests to complete after the shutdown began; default 10 s.
    pub drain_timeout: Duration,
    /// Maximum number of connections of one client; further ones are closed. Default: unlimited.
    pub max_connections_per_client: Option<usize>,
    /// Maximum number of requests on one HTTP/1.1 connection, so that connections move to other processes over time;
    /// default 10,000.
    pub max_requests: u64,
    /// Maximum number of concurrent requests on one HTTP/2 connection; default 100.
    pub max_streams: u32,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            overflow: OverflowPolicy::Wait,
            max_header_bytes: 64 * 1024,
            max_body_bytes: BodyLimit::default().0,
            header_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(10),
            max_connections_per_client: None,
            max_requests: 10_000,
            max_streams: 100,
        }
    }
}

/// Open files of a process besides those that grow with its connections: its stores, databases and logs.
const RESERVED_OPEN_FILES: u64 = 64;

impl ListenerLimits {
    /// Returns the maximum number of connections for a process with the given limit of open files. A quarter of the
    /// files is reserved for the files that it sends and for its outgoing connections. If no file is left to accept a
    /// connection with, idle connections are not evicted for it.
    #[must_use]
    pub fn max_connections_for_files(files: u64) -> usize {
        let most = (files - files / 4).saturating_sub(RESERVED_OPEN_FILES);
        usize::try_from(most).unwrap_or(usize::MAX).max(16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_other_files() {
        for (files, connections) in
            [(0, 16), (64, 16), (1024, 704), (4096, 3008), (20_000, 14_936), (1 << 20, 786_368)]
        {
            assert_eq!(ListenerLimits::max_connections_for_files(files), connections, "{files}");
        }
        assert_eq!(
            ListenerLimits::max_connections_for_files(u64::MAX),
            (u64::MAX - u64::MAX / 4 - 64) as usize
        );
    }
}
