//! Writing at no more than a rate: what is written uses up a budget that fills with time.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Around, Backend, FileKind, Listing, Staged};
use crate::id::Id;

/// Bytes in a second, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(pub std::num::NonZeroU64);

impl Rate {
    /// Returns how long so many bytes take.
    fn span(self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.0.get());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// When the next bytes may go.
#[derive(Debug)]
struct Pace {
    rate: Rate,
    free_at: Option<Instant>,
}

impl Pace {
    /// Takes the time that some bytes use; returns how long to wait before they go.
    fn take(&mut self, bytes: u64, now: Instant) -> Duration {
        let begin = self.free_at.map_or(now, |free_at| free_at.max(now));
        self.free_at = begin.checked_add(self.rate.span(bytes));
        begin.saturating_duration_since(now)
    }
}

/// A backend that writes at no more than a rate, taken over some files: each goes at once when its turn has come.
#[derive(Debug)]
pub struct PacedBackend {
    inner: Arc<dyn Backend>,
    pace: Mutex<Pace>,
}

impl PacedBackend {
    /// Bounds how fast a backend is written.
    #[must_use]
    pub const fn new(inner: Arc<dyn Backend>, rate: Rate) -> Self {
        Self { inner, pace: Mutex::new(Pace { rate, free_at: None }) }
    }

    /// Waits until a file may go.
    fn wait(&self, kind: FileKind, bytes: usize) {
        // A lock says that its process lives: it must not wait behind what the process writes.
        if kind != FileKind::Lock {
            let wait = self.pace.lock().take(bytes as u64, Instant::now());
            std::thread::sleep(wait);
        }
    }
}

impl Around for PacedBackend {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    fn write(&self, kind: FileKind, id: &Id, bytes: &[u8]) -> io::Result<()> {
        self.wait(kind, bytes.len());
        self.inner.write(kind, id, bytes)
    }

    fn stage(&self, kind: FileKind, id: &Id, bytes: Vec<u8>) -> io::Result<Staged> {
        self.wait(kind, bytes.len());
        self.inner.stage(kind, id, bytes)
    }

    fn reveal(&self, staged: &Staged) -> io::Result<()> {
        self.inner.reveal(staged)
    }

    fn reveal_then_list(
        &self,
        staged: &Staged,
        kinds: &[FileKind],
    ) -> io::Result<Vec<io::Result<Listing>>> {
        self.inner.reveal_then_list(staged, kinds)
    }

    fn discard(&self, staged: &Staged) {
        self.inner.discard(staged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_over_many_files() {
        let rate = Rate(std::num::NonZeroU64::new(1000).unwrap());
        let (mut pace, begin) = (Pace { rate, free_at: None }, Instant::now());
        let mut now = begin;
        let mut sent = 0;
        for bytes in [500, 1, 4000, 0, 250] {
            now += pace.take(bytes, now);
            assert!(now - begin >= rate.span(sent), "{bytes}");
            sent += bytes;
        }
        // Time in which nothing was written is not made up for.
        now += Duration::from_secs(3600);
        assert_eq!(pace.take(2000, now), Duration::ZERO);
        assert_eq!(pace.take(1, now), Duration::from_secs(2));
    }
}
