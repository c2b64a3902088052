//! The lease that keeps a root of a repository readable while it is saved or copied.
//!
//! It is short, and renewed for as long as the run lives: a run takes the time that it needs, and one that was killed keeps
//! garbage for no longer than its last lease.
//!
//! Invariant: a run whose root the repository keeps no more ends without a snapshot, unless it had read all by then.
//!
//! Not here: what a lease is (`docs/formats/lease.md`); locks of vaults.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, SystemTime};

use tracing::warn;
use tympan_store::{Base, Error as StoreError, Lease, renew_lease, take_lease};

use crate::error::{Error, Result};
use crate::save::Progress;
use crate::vault::Who;

/// How long leases last, and when they are renewed.
#[derive(Clone, Copy, Debug)]
struct Times {
    life: Duration,
    renewal: Duration,
    /// After an attempt that failed.
    again: Duration,
}

/// A process that is stopped, or cannot reach the repository, for half an hour loses its root; the lock that it has on its
/// vault counts no longer either.
const TIMES: Times = Times {
    life: Duration::from_mins(30),
    renewal: Duration::from_mins(5),
    again: Duration::from_secs(5),
};

/// What a run wants kept.
#[derive(Clone, Copy)]
pub(crate) struct Kept<'a> {
    /// The repository.
    pub(crate) base: &'a dyn Base,
    /// The ref whose root it is.
    pub(crate) reference: &'a str,
    /// What the run does, in a word.
    pub(crate) what: &'a str,
    /// Who does it.
    pub(crate) who: &'a Who,
}

/// Does some work while the repository keeps the root that a ref points to. If the root is lost, the run is stopped by way
/// of its progress.
///
/// # Errors
/// [`Error::RootLost`]; what the repository or the work says.
pub(crate) fn keep_root<T>(
    kept: Kept<'_>,
    progress: &Progress,
    work: impl FnOnce(&Lease) -> Result<T>,
) -> Result<T> {
    keep_for(kept, TIMES, progress, work)
}

fn keep_for<T>(
    Kept { base, reference, what, who }: Kept<'_>,
    times: Times,
    progress: &Progress,
    work: impl FnOnce(&Lease) -> Result<T>,
) -> Result<T> {
    let holder = holder_of(what, who)?;
    let lease = take_lease(base, &holder, reference, (SystemTime::now(), times.life))?;
    let lost = OnceLock::new();
    let done = std::thread::scope(|scope| {
        // Dropped with the work, also by a panic.
        let (stop, stopped) = channel::<()>();
        let renewing = (base, lease.clone());
        let lost = &lost;
        scope.spawn(move || renew_until(renewing, times, &stopped, (progress, lost)));
        let done = work(&lease);
        drop(stop);
        done
    });
    if let Err(error) = base.release(&holder) {
        warn!(%error, "a lease on the repository ends by itself, as it could not be released");
    }
    match (done, lost.into_inner()) {
        (Err(_), Some(())) => Err(Error::RootLost { repository: base.name() }),
        (done, _) => done,
    }
}

/// Names the holder of a run's own lease: whoever else saves the repository, from this process or from another container
/// with the same names, must not release it.
fn holder_of(what: &str, who: &Who) -> Result<String> {
    let mut random = [0; 8];
    crate::seal::fill_random(&mut random)?;
    Ok(format!("{what} {} {} {:016x}", who.host, who.pid, u64::from_le_bytes(random)))
}

fn renew_until(
    (base, mut lease): (&dyn Base, Lease),
    times: Times,
    stopped: &Receiver<()>,
    (progress, lost): (&Progress, &OnceLock<()>),
) {
    let mut wait = times.renewal;
    while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
        match renew_lease(base, &lease, (SystemTime::now(), times.life)) {
            Ok(renewed) => (lease, wait) = (renewed, times.renewal),
            Err(error @ StoreError::LeaseLost { .. }) => {
                warn!(%error, "the run ends");
                lost.get_or_init(|| ());
                progress.stop();
                return;
            }
            Err(error) => {
                warn!(%error, "a lease on the repository could not be renewed; trying again");
                wait = times.again;
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
    struct State {
        leases: BTreeMap<String, Lease>,
        granted: Vec<Lease>,
        /// So many calls are refused for now.
        refusals: u32,
        /// Whether `main` has gone on, and nothing is remembered of what it was.
        has_moved: bool,
    }

    /// A repository of which only refs and leases are looked at.
    #[derive(Debug, Default)]
    struct Repository {
        state: Mutex<State>,
        changed: Condvar,
    }

    impl Repository {
        /// Waits until something is so.
        fn wait_until(&self, is_so: impl Fn(&State) -> bool) {
            let mut state = self.state.lock();
            while !is_so(&state) {
                self.changed.wait(&mut state);
            }
        }
    }

    const fn id(byte: u8) -> ChunkId {
        ChunkId::from_bytes([byte; 32])
    }

    impl ReadChunks for Repository {
        fn read(&self, id: &ChunkId) -> StoreResult<Chunk> {
            Err(StoreError::ChunkMissing { id: *id })
        }
    }

    impl Base for Repository {
        fn name(&self) -> String {
            "home".to_owned()
        }
        fn contains_many(&self, ids: &[ChunkId]) -> StoreResult<Vec<bool>> {
            Ok(vec![false; ids.len()])
        }
        fn read_blobs(&self, ids: &[BlobId]) -> StoreResult<Vec<Option<bytes::Bytes>>> {
            Ok(vec![None; ids.len()])
        }
        fn refs(&self) -> StoreResult<Vec<(String, ChunkId)>> {
            let has_moved = self.state.lock().has_moved;
            Ok(vec![("main".to_owned(), id(if has_moved { 2 } else { 1 }))])
        }
        fn history(&self, _: &str, _: Option<u64>, _: usize) -> StoreResult<Vec<Revision>> {
            Ok(Vec::new())
        }
        fn lease(&self, holder: &str) -> StoreResult<Option<Lease>> {
            Ok(self.state.lock().leases.get(holder).cloned())
        }
        fn grant(&self, lease: &Lease) -> StoreResult<()> {
            let mut state = self.state.lock();
            self.changed.notify_all();
            if state.refusals > 0 {
                state.refusals -= 1;
                let reason = "it is busy".to_owned();
                return Err(StoreError::Remote { base: self.name(), reason, is_transient: true });
            }
            state.leases.insert(lease.holder.clone(), lease.clone());
            state.granted.push(lease.clone());
            Ok(())
        }
        fn release(&self, holder: &str) -> StoreResult<()> {
            self.state.lock().leases.remove(holder);
            Ok(())
        }
    }

    const SOON: Times = Times {
        life: Duration::from_hours(1),
        renewal: Duration::from_millis(1),
        again: Duration::from_millis(1),
    };

    fn keep<T>(
        repository: &Repository,
        times: Times,
        progress: &Progress,
        work: impl FnOnce(&Lease) -> Result<T>,
    ) -> Result<T> {
        let who = Who::this_process();
        let kept = Kept { base: repository, reference: "main", what: "backup", who: &who };
        keep_for(kept, times, progress, work)
    }

    /// Two grants take the lease; all that follow renew it, also after failures.
    #[test]
    fn a_lease_is_renewed_until_the_run_ends() {
        let (repository, progress) = (Repository::default(), Progress::default());
        let done = keep(&repository, SOON, &progress, |lease| {
            assert_eq!(lease.root, id(1));
            repository.wait_until(|state| state.granted.len() >= 5);
            // Where the ref points to by now makes no difference.
            let count = {
                let mut state = repository.state.lock();
                (state.refusals, state.has_moved) = (3, true);
                state.granted.len()
            };
            repository.wait_until(|state| state.refusals == 0 && state.granted.len() > count);
            progress.go_on()?;
            Ok(7)
        });
        assert_eq!(done.unwrap(), 7);
        let state = repository.state.into_inner();
        assert!(state.granted.iter().all(|one| one.root == id(1)));
        let ends: Vec<_> = state.granted.iter().skip(1).map(|one| one.expires).collect();
        assert!(ends.is_sorted() && ends.first() < ends.last(), "{ends:?}");
        assert!(state.leases.is_empty(), "it was released");
    }

    #[test]
    fn a_run_whose_root_is_lost_ends_without_success() {
        let (repository, progress) = (Repository::default(), Progress::default());
        // A lease that is over at once: a process that was asleep.
        let times = Times { life: Duration::ZERO, ..SOON };
        let done = keep(&repository, times, &progress, |_| -> Result<()> {
            repository.state.lock().has_moved = true;
            loop {
                progress.go_on()?;
                std::thread::yield_now();
            }
        });
        assert!(matches!(done, Err(Error::RootLost { .. })), "{done:?}");
        assert!(repository.state.into_inner().leases.is_empty());

        // While the ref is still there, the lease is taken again.
        let (repository, progress) = (Repository::default(), Progress::default());
        let done = keep(&repository, times, &progress, |_| {
            repository.wait_until(|state| state.granted.len() >= 6);
            progress.go_on()
        });
        done.unwrap();
    }

    #[test]
    fn what_the_work_says_is_returned() {
        let (repository, progress) = (Repository::default(), Progress::default());
        let done = keep(&repository, SOON, &progress, |_| Err::<(), _>(Error::LockLost));
        assert!(matches!(done, Err(Error::LockLost)));
        assert!(repository.state.into_inner().leases.is_empty());
    }
}
