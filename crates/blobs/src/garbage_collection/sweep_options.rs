//! Options of a sweep.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::ReadBlobs;

/// Options of a sweep.
#[derive(Debug, Clone)]
pub struct SweepOptions {
    /// The time used for all decisions.
    pub now: SystemTime,
    /// Maximum time from storing a blob to the commit that refers to it, including the clock skew of the machines.
    /// Default 24 h.
    pub grace_period: Duration,
    /// How long blobs stay in the trash. Default 7 days.
    pub trash_retention: Duration,
    /// The mode: move garbage, or only count.
    pub mode: SweepMode,
    /// An existing folder for temporary files, of about 50 bytes for each blob.
    pub scratch_dir: PathBuf,
    /// The name of the sweeper, if no other process sweeps under it: a sweep that it left unfinished is then resumed at
    /// once.
    pub sweeper_name: Option<String>,
    /// How long a sweeping process that stops responding excludes others. Default 10 min.
    pub lease_duration: Duration,
    /// The clock for leases.
    pub clock: SweepClock,
    /// The storages in which repositories that only read this one leave their notes.
    pub guest_storages: Vec<Arc<dyn ReadBlobs>>,
}

impl SweepOptions {
    /// Returns the default options at a time.
    #[must_use]
    pub fn with_defaults(now: SystemTime, scratch: PathBuf) -> Self {
        let (grace, window) = (Duration::from_hours(24), Duration::from_hours(7 * 24));
        Self {
            now,
            grace_period: grace,
            trash_retention: window,
            mode: SweepMode::Remove,
            scratch_dir: scratch,
            sweeper_name: None,
            lease_duration: Duration::from_mins(10),
            clock: SweepClock::new(SystemTime::now),
            guest_storages: Vec::new(),
        }
    }
}

/// The treatment of garbage by a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SweepMode {
    /// Garbage is moved to the trash, and removed from there later.
    Remove,
    /// Garbage is only counted.
    DryRun,
}

/// The clock for leases.
#[derive(Clone)]
pub struct SweepClock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl SweepClock {
    /// Returns a clock that calls `now`.
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub(super) fn now(&self) -> SystemTime {
        (self.0)()
    }
}

impl fmt::Debug for SweepClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}
