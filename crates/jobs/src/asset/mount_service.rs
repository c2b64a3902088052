//! What synchronizes mounts again and again: AEM's asset synchronization service.
//!
//! Invariant: without mounts there is no service, so that nothing runs and nothing is counted.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};
use tympan_content::Repository;

use super::mount::{Mount, Synchronized, synchronize};

/// How long a pass waits for the next unless configured; AEM's `scheduler.period`.
pub const SYNCHRONIZATION_PERIOD: Duration = Duration::from_secs(300);

/// What is known of a mount.
#[derive(Debug, Clone, Default)]
pub struct MountStatus {
    /// Its name.
    pub name: String,
    /// When its last pass ended.
    pub last_run: Option<SystemTime>,
    /// What that pass did, or why it ended early.
    pub last: Option<Result<Synchronized, String>>,
    /// How many files of how many the present pass has done; nothing between passes.
    pub progress: Option<(usize, usize)>,
    /// Passes since the start.
    pub passes: u64,
}

/// Synchronizes mounts until it is dropped.
#[derive(Debug)]
pub struct MountService {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    repository: Repository,
    mounts: Vec<Mount>,
    period: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_stopped: bool,
    is_paused: bool,
    is_wanted_now: bool,
    status: Vec<MountStatus>,
}

impl MountService {
    /// Begins; nothing if there is no mount.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(
        repository: Repository,
        mounts: Vec<Mount>,
        period: Duration,
    ) -> std::io::Result<Option<Self>> {
        if mounts.is_empty() {
            return Ok(None);
        }
        let status = mounts
            .iter()
            .map(|mount| MountStatus { name: mount.name.clone(), ..MountStatus::default() })
            .collect();
        let state = Mutex::new(State { status, ..State::default() });
        let shared =
            Arc::new(Shared { repository, mounts, period, state, changed: Condvar::new() });
        let run = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("asset-mounts".to_owned());
        let thread = Some(builder.spawn(move || work(&run))?);
        Ok(Some(Self { shared, thread }))
    }

    /// Begins a pass at once, also while it is paused.
    pub fn run_now(&self) {
        self.shared.state.lock().is_wanted_now = true;
        self.shared.changed.notify_all();
    }

    /// Ends the present pass after its batch and begins no other, until [`Self::resume`].
    pub fn pause(&self) {
        self.shared.state.lock().is_paused = true;
    }

    /// Lets passes begin again; one that was ended goes on where it was.
    pub fn resume(&self) {
        self.shared.state.lock().is_paused = false;
        self.run_now();
    }

    /// Returns what is known of each mount.
    #[must_use]
    pub fn status(&self) -> Vec<MountStatus> {
        self.shared.state.lock().status.clone()
    }

    /// Waits until each mount has had this many passes since the start.
    pub fn wait_for_passes(&self, passes: u64) {
        let mut state = self.shared.state.lock();
        while state.status.iter().any(|status| status.passes < passes) {
            self.shared.changed.wait(&mut state);
        }
    }
}

impl Drop for MountService {
    fn drop(&mut self) {
        self.shared.state.lock().is_stopped = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            thread.join().ok();
        }
    }
}

fn work(shared: &Shared) {
    let mut next = Instant::now();
    loop {
        let is_asked = {
            let mut state = shared.state.lock();
            loop {
                if state.is_stopped {
                    return;
                }
                let is_due = Instant::now() >= next && !state.is_paused;
                if is_due || state.is_wanted_now {
                    break std::mem::take(&mut state.is_wanted_now);
                }
                let wait = match state.is_paused {
                    true => shared.period,
                    false => next.saturating_duration_since(Instant::now()),
                };
                shared.changed.wait_for(&mut state, wait);
            }
        };
        for (place, mount) in shared.mounts.iter().enumerate() {
            run(shared, place, mount, is_asked);
        }
        next = Instant::now() + shared.period;
    }
}

/// Runs one pass. One that was asked for runs also while passes are paused.
fn run(shared: &Shared, place: usize, mount: &Mount, is_asked: bool) {
    let mut progress = |done: usize, total: usize| {
        let mut state = shared.state.lock();
        if let Some(status) = state.status.get_mut(place) {
            status.progress = Some((done, total));
        }
        !state.is_stopped && (is_asked || !state.is_paused)
    };
    let now = SystemTime::now();
    let result = synchronize(&shared.repository, mount, now, &mut progress);
    if let Err(error) = &result {
        let reason = error_text(error);
        tracing::warn!(mount = %mount.name, reason, "a mount is not synchronized");
    }
    let mut state = shared.state.lock();
    if let Some(status) = state.status.get_mut(place) {
        status.progress = None;
        status.last_run = Some(now);
        status.last = Some(result.map_err(|error| error_text(&error)));
        status.passes += 1;
    }
    shared.changed.notify_all();
}

fn error_text(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
