//! The lease that keeps a root of a repository readable while it is saved or copied.
//!
//! The lease is short and renewed as long as the run lives: a run may take as long as it needs, and one that was killed
//! retains garbage for no longer than its last lease.
//!
//! Invariant: a run whose root the repository no longer retains ends without a snapshot, unless it had already read
//! everything.
//!
//! Not here: the definition of a lease (`docs/formats/lease.md`); locks of vaults.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, SystemTime};

use tracing::warn;
use tympan_store::{BaseStore, Error as StoreError, RootLease, acquire_lease, renew_lease};

use crate::backup_progress::BackupProgress;
use crate::error::{Error, Result};
use crate::vault::VaultUser;

/// The lifetime of leases and the intervals of their renewal.
#[derive(Clone, Copy, Debug)]
struct LeaseTimes {
    lifetime: Duration,
    renewal_interval: Duration,
    /// The interval after a failed attempt.
    retry_interval: Duration,
}

/// A process that is suspended, or cannot reach the repository, for half an hour loses its root; its lock on the vault
/// is no longer valid by then either.
const LEASE_TIMES: LeaseTimes = LeaseTimes {
    lifetime: Duration::from_mins(30),
    renewal_interval: Duration::from_mins(5),
    retry_interval: Duration::from_secs(5),
};

/// The parameters of a root lease.
#[derive(Clone, Copy)]
pub(crate) struct RootLeaseRequest<'a> {
    /// The repository.
    pub(crate) base: &'a dyn BaseStore,
    /// The ref whose root is leased.
    pub(crate) reference: &'a str,
    /// The operation of the run, as one word.
    pub(crate) operation: &'a str,
    /// The user who runs it.
    pub(crate) user: &'a VaultUser,
}

/// Runs a function while a lease retains the root that a ref points to. If the root is lost, the run is stopped through
/// its progress.
///
/// # Errors
/// [`Error::RootExpired`]; errors of the repository or the function.
pub(crate) fn run_with_root_lease<T>(
    request: RootLeaseRequest<'_>,
    progress: &BackupProgress,
    work: impl FnOnce(&RootLease) -> Result<T>,
) -> Result<T> {
    run_with_lease_times(request, LEASE_TIMES, progress, work)
}

fn run_with_lease_times<T>(
    RootLeaseRequest { base, reference, operation, user }: RootLeaseRequest<'_>,
    times: LeaseTimes,
    progress: &BackupProgress,
    work: impl FnOnce(&RootLease) -> Result<T>,
) -> Result<T> {
    let holder = lease_holder_name(operation, user)?;
    let lease = acquire_lease(base, &holder, reference, SystemTime::now(), times.lifetime)?;
    let lost = OnceLock::new();
    let done = std::thread::scope(|scope| {
        // Dropped when the work ends, including by a panic.
        let (stop, stopped) = channel::<()>();
        let renewing = (base, lease.clone());
        let lost = &lost;
        scope.spawn(move || renew_until_stopped(renewing, times, &stopped, (progress, lost)));
        let done = work(&lease);
        drop(stop);
        done
    });
    if let Err(error) = base.release_lease(&holder) {
        warn!(%error, "cannot release a lease on the repository; it will expire");
    }
    match (done, lost.into_inner()) {
        (Err(_), Some(())) => Err(Error::RootExpired { repository: base.display_name() }),
        (done, _) => done,
    }
}

/// Creates a unique holder name for a run's own lease: other saves of the repository, from this process or from another
/// container with the same names, must not release it.
fn lease_holder_name(operation: &str, user: &VaultUser) -> Result<String> {
    let mut random = [0; 8];
    crate::vault_encryption::fill_random(&mut random)?;
    Ok(format!("{operation} {} {} {:016x}", user.host, user.pid, u64::from_le_bytes(random)))
}

fn renew_until_stopped(
    (base, mut lease): (&dyn BaseStore, RootLease),
    times: LeaseTimes,
    stopped: &Receiver<()>,
    (progress, lost): (&BackupProgress, &OnceLock<()>),
) {
    let mut wait = times.renewal_interval;
    while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
        match renew_lease(base, &lease, (SystemTime::now(), times.lifetime)) {
            Ok(renewed) => (lease, wait) = (renewed, times.renewal_interval),
            Err(error @ StoreError::LeaseLost { .. }) => {
                warn!(%error, "lease lost; stopping the run");
                lost.get_or_init(|| ());
                progress.request_stop();
                return;
            }
            Err(error) => {
                warn!(%error, "cannot renew a lease on the repository; retrying");
                wait = times.retry_interval;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use parking_lot::{Condvar, Mutex};
    use tympan_store::{BlobId, Chunk, ChunkId, ReadChunks, Result as StoreResult, Revision};

    use super::*;

    #[derive(Debug, Default)]
    struct FakeLeaseState {
        leases: BTreeMap<String, RootLease>,
        granted: Vec<RootLease>,
        /// The number of upcoming calls to refuse.
        pending_refusals: u32,
        /// True if `main` has moved, and its earlier roots are not remembered.
        has_main_moved: bool,
    }

    /// A fake repository with only refs and leases.
    #[derive(Debug, Default)]
    struct FakeLeaseRepository {
        state: Mutex<FakeLeaseState>,
        changed: Condvar,
    }

    impl FakeLeaseRepository {
        /// Waits until a condition holds.
        fn wait_until(&self, is_so: impl Fn(&FakeLeaseState) -> bool) {
            let mut state = self.state.lock();
            while !is_so(&state) {
                self.changed.wait(&mut state);
            }
        }
    }

    const fn id(byte: u8) -> ChunkId {
        ChunkId::from_bytes([byte; 32])
    }

    impl ReadChunks for FakeLeaseRepository {
        fn read_chunk(&self, id: &ChunkId) -> StoreResult<Chunk> {
            Err(StoreError::ChunkMissing { id: *id })
        }
    }

    impl BaseStore for FakeLeaseRepository {
        fn display_name(&self) -> String {
            "home".to_owned()
        }
        fn contains_chunks(&self, ids: &[ChunkId]) -> StoreResult<Vec<bool>> {
            Ok(vec![false; ids.len()])
        }
        fn read_blobs(&self, ids: &[BlobId]) -> StoreResult<Vec<Option<bytes::Bytes>>> {
            Ok(vec![None; ids.len()])
        }
        fn list_refs(&self) -> StoreResult<Vec<(String, ChunkId)>> {
            let has_moved = self.state.lock().has_main_moved;
            Ok(vec![("main".to_owned(), id(if has_moved { 2 } else { 1 }))])
        }
        fn ref_history(&self, _: &str, _: Option<u64>, _: usize) -> StoreResult<Vec<Revision>> {
            Ok(Vec::new())
        }
        fn find_lease(&self, holder: &str) -> StoreResult<Option<RootLease>> {
            Ok(self.state.lock().leases.get(holder).cloned())
        }
        fn grant_lease(&self, lease: &RootLease) -> StoreResult<()> {
            let mut state = self.state.lock();
            self.changed.notify_all();
            if state.pending_refusals > 0 {
                state.pending_refusals -= 1;
                let reason = "it is busy".to_owned();
                return Err(StoreError::Remote {
                    base: self.display_name(),
                    reason,
                    is_transient: true,
                });
            }
            state.leases.insert(lease.holder.clone(), lease.clone());
            state.granted.push(lease.clone());
            Ok(())
        }
        fn release_lease(&self, holder: &str) -> StoreResult<()> {
            self.state.lock().leases.remove(holder);
            Ok(())
        }
    }

    const SOON: LeaseTimes = LeaseTimes {
        lifetime: Duration::from_hours(1),
        renewal_interval: Duration::from_millis(1),
        retry_interval: Duration::from_millis(1),
    };

    fn keep<T>(
        repository: &FakeLeaseRepository,
        times: LeaseTimes,
        progress: &BackupProgress,
        work: impl FnOnce(&RootLease) -> Result<T>,
    ) -> Result<T> {
        let user = VaultUser::this_process();
        let request = RootLeaseRequest {
            base: repository,
            reference: "main",
            operation: "backup",
            user: &user,
        };
        run_with_lease_times(request, times, progress, work)
    }

    /// Two grants acquire the lease; all that follow renew it, also after failures.
    #[test]
    fn a_lease_is_renewed_until_the_run_ends() {
        let (repository, progress) = (FakeLeaseRepository::default(), BackupProgress::default());
        let done = keep(&repository, SOON, &progress, |lease| {
            assert_eq!(lease.root, id(1));
            repository.wait_until(|state| state.granted.len() >= 5);
            // The current root of the ref makes no difference.
            let count = {
                let mut state = repository.state.lock();
                (state.pending_refusals, state.has_main_moved) = (3, true);
                state.granted.len()
            };
            repository
                .wait_until(|state| state.pending_refusals == 0 && state.granted.len() > count);
            progress.check_running()?;
            Ok(7)
        });
        assert_eq!(done.unwrap(), 7);
        let state = repository.state.into_inner();
        assert!(state.granted.iter().all(|one| one.root == id(1)));
        let ends: Vec<_> = state.granted.iter().skip(1).map(|grant| grant.expires_at).collect();
        assert!(ends.is_sorted() && ends.first() < ends.last(), "{ends:?}");
        assert!(state.leases.is_empty(), "it was released");
    }

    #[test]
    fn a_run_whose_root_is_lost_ends_without_success() {
        let (repository, progress) = (FakeLeaseRepository::default(), BackupProgress::default());
        // A lease that expires at once, as for a suspended process.
        let times = LeaseTimes { lifetime: Duration::ZERO, ..SOON };
        let done = keep(&repository, times, &progress, |_| -> Result<()> {
            repository.state.lock().has_main_moved = true;
            loop {
                progress.check_running()?;
                std::thread::yield_now();
            }
        });
        assert!(matches!(done, Err(Error::RootExpired { .. })), "{done:?}");
        assert!(repository.state.into_inner().leases.is_empty());

        // As long as the ref exists, the lease is acquired again.
        let (repository, progress) = (FakeLeaseRepository::default(), BackupProgress::default());
        let done = keep(&repository, times, &progress, |_| {
            repository.wait_until(|state| state.granted.len() >= 6);
            progress.check_running()
        });
        done.unwrap();
    }

    #[test]
    fn what_the_work_says_is_returned() {
        let (repository, progress) = (FakeLeaseRepository::default(), BackupProgress::default());
        let done = keep(&repository, SOON, &progress, |_| Err::<(), _>(Error::LockLost));
        assert!(matches!(done, Err(Error::LockLost)));
        assert!(repository.state.into_inner().leases.is_empty());
    }
}
