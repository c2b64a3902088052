//! Writing and reading at no more than a rate each.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::{Around, Backend, FileKind, Listing, Staged};
use crate::id::Id;
use crate::pace::{Pace, Rate};

/// Bytes in a second that go to a place, and come from it, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Those that go there.
    pub upload: Option<Rate>,
    /// Those that come from there.
    pub download: Option<Rate>,
}

/// A backend that is written and read at no more than a rate, taken over some files: each goes at once when its turn has
/// come.
#[derive(Debug)]
pub struct PacedBackend {
    inner: Arc<dyn Backend>,
    upload: Option<Mutex<Pace>>,
    download: Option<Mutex<Pace>>,
}

impl PacedBackend {
    /// Bounds how fast a backend is used.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, limits: Limits) -> Self {
        let pace = |rate: Option<Rate>| rate.map(|rate| Mutex::new(Pace::new(rate)));
        Self { inner, upload: pace(limits.upload), download: pace(limits.download) }
    }
}

/// Waits until so many bytes of a file may go.
fn wait(pace: Option<&Mutex<Pace>>, kind: FileKind, bytes: usize) {
    // A lock says that its process lives: it must not wait behind what the process does.
    if let Some(pace) = pace.filter(|_| kind != FileKind::Lock) {
        let wait = pace.lock().take(bytes as u64, Instant::now());
        std::thread::sleep(wait);
    }
}

impl Around for PacedBackend {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    fn read(&self, kind: FileKind, id: &Id) -> io::Result<Vec<u8>> {
        wait(self.download.as_ref(), kind, 0);
        let bytes = self.inner.read(kind, id)?;
        if let Some(pace) = self.download.as_ref().filter(|_| kind != FileKind::Lock) {
            // How long it is was not known before; whoever reads next waits for it.
            pace.lock().take(bytes.len() as u64, Instant::now());
        }
        Ok(bytes)
    }

    fn read_range(
        &self,
        kind: FileKind,
        id: &Id,
        start: u64,
        length: usize,
    ) -> io::Result<Vec<u8>> {
        wait(self.download.as_ref(), kind, length);
        self.inner.read_range(kind, id, start, length)
    }

    fn write(&self, kind: FileKind, id: &Id, bytes: &[u8]) -> io::Result<()> {
        wait(self.upload.as_ref(), kind, bytes.len());
        self.inner.write(kind, id, bytes)
    }

    fn stage(&self, kind: FileKind, id: &Id, bytes: Vec<u8>) -> io::Result<Staged> {
        wait(self.upload.as_ref(), kind, bytes.len());
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
    use std::num::NonZeroU64;
    use std::time::Duration;

    use super::*;
    use crate::backend::LocalBackend;

    /// Nobody waits here: the first who comes goes at once, and what it took is waited for by the next.
    #[test]
    fn what_is_read_and_written_takes_the_time_of_its_own_budget() {
        let dir = tempfile::tempdir().unwrap();
        let folder = LocalBackend::new(dir.path().join("vault"));
        folder.create().unwrap();
        let id = Id::of(b"seven b");
        for kind in [FileKind::Pack, FileKind::Lock] {
            folder.write(kind, &id, b"seven b").unwrap();
        }
        let folder: Arc<dyn Backend> = Arc::new(folder);
        type Call = fn(&PacedBackend, FileKind, &Id);
        let calls: [(Call, [u64; 2]); 5] = [
            (
                |paced, kind, id| assert_eq!(Backend::read(paced, kind, id).unwrap(), b"seven b"),
                [0, 7],
            ),
            (
                |paced, kind, id| {
                    assert_eq!(Backend::read_range(paced, kind, id, 1, 4).unwrap(), b"even")
                },
                [0, 4],
            ),
            (|paced, kind, id| Backend::write(paced, kind, id, b"seven b").unwrap(), [7, 0]),
            (
                |paced, kind, id| drop(Backend::stage(paced, kind, id, b"five.".to_vec()).unwrap()),
                [5, 0],
            ),
            (|paced, kind, _| drop(Backend::list(paced, kind).unwrap()), [0, 0]),
        ];
        let rate = Some(Rate(NonZeroU64::MIN));
        for (number, (call, seconds)) in calls.into_iter().enumerate() {
            for kind in [FileKind::Pack, FileKind::Lock] {
                let limits = Limits { upload: rate, download: rate };
                let paced = PacedBackend::new(folder.clone(), limits);
                let begin = Instant::now();
                call(&paced, kind, &id);
                let end = Instant::now();
                let taken = [&paced.upload, &paced.download];
                for (pace, seconds) in taken.into_iter().zip(seconds) {
                    let seconds = if kind == FileKind::Lock { 0 } else { seconds };
                    let free_at = pace.as_ref().unwrap().lock().free_at;
                    let span = Duration::from_secs(seconds);
                    let fits = free_at.is_none_or(|at| at >= begin + span && at <= end + span);
                    assert!(fits && free_at.is_some() >= (seconds > 0), "call {number}, {kind}");
                }
            }
        }
        // Without a limit, nothing is counted.
        let free = PacedBackend::new(folder, Limits { upload: rate, download: None });
        Backend::read(&free, FileKind::Pack, &id).unwrap();
        assert!(free.download.is_none() && free.upload.unwrap().lock().free_at.is_none());
    }
}
