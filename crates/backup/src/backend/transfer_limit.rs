//! A backend wrapper that limits upload and download rates.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::staged_file::StagedFile;
use super::vault_backend::VaultBackend;
use super::vault_file::{VaultFileKind, VaultFileListing};
use super::wrapper::BackendWrapper;
use crate::object_id::VaultObjectId;
use crate::rate_pacer::{RateLimit, RatePacer};

/// Maximum transfer rates in bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferLimits {
    /// The upload limit.
    pub upload: Option<RateLimit>,
    /// The download limit.
    pub download: Option<RateLimit>,
}

/// A backend with rate limits that hold on average over several files: each file is transferred at full speed when its
/// turn has come.
#[derive(Debug)]
pub struct RateLimitedBackend {
    inner: Arc<dyn VaultBackend>,
    upload: Option<Mutex<RatePacer>>,
    download: Option<Mutex<RatePacer>>,
}

impl RateLimitedBackend {
    /// Limits the transfer rates of a backend.
    #[must_use]
    pub fn new(inner: Arc<dyn VaultBackend>, limits: TransferLimits) -> Self {
        let pace = |rate: Option<RateLimit>| rate.map(|rate| Mutex::new(RatePacer::new(rate)));
        Self { inner, upload: pace(limits.upload), download: pace(limits.download) }
    }
}

/// Waits until `bytes` bytes of a file may be transferred.
fn wait_for_rate(pace: Option<&Mutex<RatePacer>>, kind: VaultFileKind, bytes: usize) {
    // A lock signals that its process is alive: it must not wait behind the process's data.
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
            // The length was not known before the read; the next read waits for it.
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

    /// The first transfer starts at once, and the next one waits for the time that it took from the budget. This test
    /// never waits.
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
                let rates = [&paced.upload, &paced.download];
                for (pace, seconds) in rates.into_iter().zip(seconds) {
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
