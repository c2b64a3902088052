//! Faults of single items, which do not end a run.

use std::path::PathBuf;

use parking_lot::Mutex;
use tracing::warn;

/// An item that could not be saved, restored or verified, while the rest could.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupFault {
    /// The path of the item.
    pub path: PathBuf,
    /// The description of the fault.
    pub message: String,
}

impl std::fmt::Display for BackupFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.message)
    }
}

/// Collects faults from many threads.
#[derive(Debug, Default)]
pub(crate) struct FaultCollector(Mutex<Vec<BackupFault>>);

impl FaultCollector {
    pub(crate) fn add(&self, path: impl Into<PathBuf>, message: &impl ToString) {
        let fault = BackupFault { path: path.into(), message: message.to_string() };
        warn!(file = %fault.path.display(), reason = fault.message, "the item is incomplete");
        self.0.lock().push(fault);
    }

    pub(crate) fn into_sorted(self) -> Vec<BackupFault> {
        let mut faults = self.0.into_inner();
        faults.sort_by(|left, right| left.path.cmp(&right.path));
        faults
    }
}
