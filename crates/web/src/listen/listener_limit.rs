//! The bounds of a listener.

use std::time::Duration;

/// What becomes of a connection when `max_connections` are open. In both cases idle ones are closed for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OverflowPolicy {
    /// It waits until another one ends; clients see no answer meanwhile.
    #[default]
    Wait,
    /// It waits for 5 seconds, beside at most a quarter of `max_connections`. Others are answered 503, so that a balancer in
    /// front asks elsewhere. Encrypted ones are closed.
    Refuse,
}

/// Bounds of one listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Connections open at once; default 10,000. While fewer than one of 16 is free, answers close their connections. Raise
    /// it with the process's limit of open files ([`ListenerLimits::max_connections_for_files`]).
    pub max_connections: usize,
    /// What becomes of further connections; default is that they wait.
    pub overflow: OverflowPolicy,
    /// Bytes of request line and headers; default 64 KiB. Lower it in front of old applications.
    pub max_header_bytes: usize,
    /// Bytes of a request body; default 64 MiB. Raise it where large assets are uploaded.
    pub max_body_bytes: u64,
    /// Time for the next complete head, from the accept or from the end of the previous answer; default 60 s.
    /// It bounds idle connections as well as clients that send a head byte by byte.
    pub header_timeout: Duration,
    /// Time in which a peer that is being written to must take at least one byte, and less often if it takes less than
    /// [`LEAST_RATE`](crate::slow_client_timeout::MIN_CLIENT_BYTES_PER_SECOND) on average. A TLS handshake must end in it, too. Default 30 s.
    pub write_timeout: Duration,
    /// Time for open requests to finish after the shutdown began; default 10 s.
    pub drain_timeout: Duration,
    /// Connections of one client at once; further ones are closed. Default: any number.
    pub max_connections_per_client: Option<usize>,
    /// Requests on one connection of HTTP/1.1, so that connections move to other processes in time; default 10,000.
    pub max_requests: u64,
    /// Requests at once on one connection of HTTP/2; default 100.
    pub max_streams: u32,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            overflow: OverflowPolicy::Wait,
            max_header_bytes: 64 * 1024,
            max_body_bytes: 64 * 1024 * 1024,
            header_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(10),
            max_connections_per_client: None,
            max_requests: 10_000,
            max_streams: 100,
        }
    }
}

/// Open files of a process beside those that grow with its connections: its stores, its databases, its logs.
const RESERVED_OPEN_FILES: u64 = 64;

impl ListenerLimits {
    /// Returns how many connections a process may serve at most that may have so many files open. A quarter of them is for
    /// the files that it sends and for its own connections to others. Where none is left to accept a connection with, those
    /// on which nothing is asked would not leave for it.
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
    fn connections_leave_room_for_other_files() {
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
