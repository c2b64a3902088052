//! Waits for a condition that another thread or process brings about.
//!
//! The only pauses of tests are here: a test that waits in a loop of its own takes the processor from the program that it
//! waits for.

use std::fmt::Display;
use std::net::{SocketAddr, TcpStream};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum time for which a condition is waited for. Tests share a machine with others, so it is long.
pub const WAIT_LIMIT: Duration = Duration::from_secs(300);

/// The longest pause between two looks.
const MAX_PAUSE: Duration = Duration::from_millis(16);

/// The growing pauses between looks, until the wait has taken too long.
struct Pauses {
    begun: Instant,
    next: Duration,
}

impl Pauses {
    fn begin() -> Self {
        Self { begun: Instant::now(), next: Duration::from_micros(500) }
    }

    /// Returns the next pause.
    ///
    /// # Panics
    /// If the wait has taken too long.
    fn next(&mut self, what: impl FnOnce() -> String) -> Duration {
        assert!(self.begun.elapsed() < WAIT_LIMIT, "not within {WAIT_LIMIT:?}: {}", what());
        let pause = self.next;
        self.next = (pause * 2).min(MAX_PAUSE);
        pause
    }
}

/// Waits until a condition holds.
///
/// # Panics
/// With `what` if it does not hold within [`WAIT_LIMIT`].
pub fn wait_until(what: impl Display, mut holds: impl FnMut() -> bool) {
    let mut pauses = Pauses::begin();
    while !holds() {
        thread::sleep(pauses.next(|| what.to_string()));
    }
}

/// Waits until `look` returns a value. Its errors tell what is there instead.
///
/// # Panics
/// With the last error if there is no value within [`WAIT_LIMIT`].
pub fn wait_for<T>(mut look: impl FnMut() -> Result<T, String>) -> T {
    let mut pauses = Pauses::begin();
    loop {
        match look() {
            Ok(value) => return value,
            Err(state) => thread::sleep(pauses.next(|| state)),
        }
    }
}

/// Waits until a server that runs as a child process accepts connections; returns false if it exits instead, for example
/// if another process took the port.
///
/// # Panics
/// If it does neither within [`WAIT_LIMIT`].
pub fn wait_for_server(address: SocketAddr, server: &mut Child) -> bool {
    let mut accepts = false;
    wait_until(format_args!("a server accepts connections at {address}"), || {
        accepts = TcpStream::connect(address).is_ok();
        accepts || !matches!(server.try_wait(), Ok(None))
    });
    accepts
}

/// Waits until a condition holds, without blocking the runtime.
///
/// # Panics
/// As [`wait_until`].
pub async fn wait_until_async(what: impl Display, mut holds: impl AsyncFnMut() -> bool) {
    let mut pauses = Pauses::begin();
    while !holds().await {
        tokio::time::sleep(pauses.next(|| what.to_string())).await;
    }
}
