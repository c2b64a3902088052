//! The log of the backup runs of an instance, and the schedule that saves it.

use std::io;
use std::sync::OnceLock;
use std::time::SystemTime;

use serde_json::{Value as Json, json};
use tympan_content::JcrDate;

/// One backup run of an instance.
#[derive(Debug, Clone)]
pub struct BackupRun {
    /// Start time.
    pub start: SystemTime,
    /// End time.
    pub end: SystemTime,
    /// Result of the run: `full`, `incremental`, `unchanged`, `copy` or `failed`.
    pub kind: &'static str,
    /// The paths that were saved.
    pub paths: Vec<String>,
    /// The snapshot that was created, if any.
    pub snapshot: Option<String>,
    /// Number of items examined.
    pub items: u64,
    /// Number of examined items that had to be read.
    pub read_items: u64,
    /// Total size of all examined items, in bytes.
    pub bytes: u64,
    /// Number of bytes that the vault did not have before.
    pub added_bytes: u64,
    /// Number of bytes that the added data occupies in the vault.
    pub stored_bytes: u64,
    /// Number of items that could not be saved.
    pub faults: u64,
    /// Error message, if the run failed.
    pub error: Option<String>,
}

impl BackupRun {
    /// Describes the run as JSON.
    pub(crate) fn to_json(&self) -> Json {
        let iso = |time| JcrDate::from_system_time(time).to_string();
        json!({
            "start": iso(self.start),
            "end": iso(self.end),
            "kind": self.kind,
            "paths": self.paths,
            "snapshot": self.snapshot,
            "items": self.items,
            "readItems": self.read_items,
            "bytes": self.bytes,
            "addedBytes": self.added_bytes,
            "storedBytes": self.stored_bytes,
            "faults": self.faults,
            "error": self.error,
        })
    }
}

type BackupRunSource = Box<dyn Fn() -> io::Result<Vec<BackupRun>> + Send + Sync>;

/// Source of the backup log, and the schedule that saves the instance.
#[derive(Default)]
pub(crate) struct BackupLog {
    source: OnceLock<BackupRunSource>,
    schedule: OnceLock<&'static str>,
}

impl std::fmt::Debug for BackupLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BackupLog")
    }
}

impl BackupLog {
    /// Sets the source of the runs; later calls are ignored.
    pub(crate) fn set_source(&self, source: BackupRunSource) {
        self.source.set(source).ok();
    }

    /// Sets the schedule that saves the instance; later calls are ignored.
    pub(crate) fn set_schedule(&self, schedule: &'static str) {
        self.schedule.set(schedule).ok();
    }

    /// Returns all runs, oldest first; `None` without a source.
    pub(crate) fn runs(&self) -> Option<io::Result<Vec<BackupRun>>> {
        self.source.get().map(|source| source())
    }

    /// Returns the schedule that saves the instance, if there is one.
    pub(crate) fn schedule(&self) -> Option<&'static str> {
        self.schedule.get().copied()
    }
}
