//! Writing and reading at no more than a rate each.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::{BackendWrapper, StagedFile, VaultBackend, VaultFileKind, VaultFileListing};
use crate::object_id::VaultObjectId;
use crate::rate_limit::{RateLimit, RatePacer};

/// Bytes in a second that go to a place, and come from it, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferLimits {
    /// Those that go there.
    pub upload: Option<RateLimit>,
    /// Those that come from there.
    pub download: Option<RateLimit>,
}

/// A backend that is written and read at no more than a rate, taken over some files: each goes at once when its turn has
/// come.
#[derive(Debug)]
pub struct RateLimitedBackend {
    inner: Arc<dyn VaultBackend>,
    upload: Option<Mutex<RatePacer>>,
    download: Option<Mutex<RatePacer>>,
}

impl RateLimitedBackend {
    /// Bounds how fast a backend is used.
    #[must_use]
    pub fn new(inner: Arc<dyn VaultBackend>, limits: TransferLimits) -> Self {
        let pace = |rate: Option<RateLimit>| rate.map(|rate| Mutex::new(RatePacer::new(rate)));
        Self { inner, upload: pace(limits.upload), download: pace(limits.download) }
    }
}

/// Waits until so many bytes of a file may go.
fn wait_for_rate(pace: Option<&Mutex<RatePacer>>, kind: VaultFileKind, bytes: usize) {
    // A lock says that its process lives: it must not wait behind what the process does.
    if let Some(pace) = pace.filter(|_| kind != VaultFileKind::Lock) {
        let wait = pace.lock().reserve(bytes as u64, Instant::now());
        std::thread::sleep(wait);
    }
}

impl BackendWrapper for RateLimitedBackend {
    fn inner(&self) -> &dyn VaultBackend {
        &*self.inner
    }

    fn read(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<Vec<u8>> {
        wait_for_rate(self.download.as_ref(), kind, 0);
        let bytes = self.inner.read(kind, id)?;
        if let Some(pace) = self.download.as_ref().filter(|_| kind != VaultFileKind::Lock) {
            // How long it is was not known before; whoever reads next waits for it.
            pace.lock().reserve(bytes.len() as u64, Instant::now());
        }
        Ok(bytes)
    }

    fn read_range(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        start: u64,
        length: usize,
    ) -> io::Result<Vec<u8>> {
        wait_for_rate(self.download.as_ref(), kind, length);
        self.inner.read_range(kind, id, start, length)
    }

    fn write(&self, kind: VaultFileKind, id: &VaultObjectId, bytes: &[u8]) -> io::Result<()> {
        wait_for_rate(self.upload.as_ref(), kind, bytes.len());
        self.inner.write(kind, id, bytes)
    }

    fn stage(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        bytes: Vec<u8>,
    ) -> io::Result<StagedFile> {
        wait_for_rate(self.upload.as_ref(), kind, bytes.len());
        self.inner.stage(kind, id, bytes)
    }

    fn reveal(&self, staged: &StagedFile) -> io::Result<()> {
        self.inner.reveal(staged)
    }

    fn reveal_then_list(
        &self,
        staged: &StagedFile,
        kinds: &[VaultFileKind],
    ) -> io::Result<Vec<io::Result<VaultFileListing>>> {
        self.inner.reveal_then_list(staged, kinds)
    }

    fn discard(&self, staged: &StagedFile) {
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
        let id = VaultObjectId::of(b"seven b");
        for kind in [VaultFileKind::Pack, VaultFileKind::Lock] {
            folder.write(kind, &id, b"seven b").unwrap();
        }
        let folder: Arc<dyn VaultBackend> = Arc::new(folder);
        type Call = fn(&RateLimitedBackend, VaultFileKind, &VaultObjectId);
        let calls: [(Call, [u64; 2]); 5] = [
            (
                |paced, kind, id| {
                    assert_eq!(VaultBackend::read(paced, kind, id).unwrap(), b"seven b")
                },
                [0, 7],
            ),
            (
                |paced, kind, id| {
                    assert_eq!(VaultBackend::read_range(paced, kind, id, 1, 4).unwrap(), b"even")
                },
                [0, 4],
            ),
            (|paced, kind, id| VaultBackend::write(paced, kind, id, b"seven b").unwrap(), [7, 0]),
            (
                |paced, kind, id| {
                    drop(VaultBackend::stage(paced, kind, id, b"five.".to_vec()).unwrap())
                },
                [5, 0],
            ),
            (|paced, kind, _| drop(VaultBackend::list(paced, kind).unwrap()), [0, 0]),
        ];
        let rate = Some(RateLimit(NonZeroU64::MIN));
        for (number, (call, seconds)) in calls.into_iter().enumerate() {
            for kind in [VaultFileKind::Pack, VaultFileKind::Lock] {
                let limits = TransferLimits { upload: rate, download: rate };
                let paced = RateLimitedBackend::new(folder.clone(), limits);
                let begin = Instant::now();
                call(&paced, kind, &id);
                let end = Instant::now();
                let taken = [&paced.upload, &paced.download];
                for (pace, seconds) in taken.into_iter().zip(seconds) {
                    let seconds = if kind == VaultFileKind::Lock { 0 } else { seconds };
                    let free_at = pace.as_ref().unwrap().lock().available_at;
                    let span = Duration::from_secs(seconds);
                    let fits = free_at.is_none_or(|at| at >= begin + span && at <= end + span);
                    assert!(fits && free_at.is_some() >= (seconds > 0), "call {number}, {kind}");
                }
            }
        }
        // Without a limit, nothing is counted.
        let free = RateLimitedBackend::new(folder, TransferLimits { upload: rate, download: None });
        VaultBackend::read(&free, VaultFileKind::Pack, &id).unwrap();
        assert!(free.download.is_none() && free.upload.unwrap().lock().available_at.is_none());
    }
}
