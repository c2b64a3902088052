//! The report of a pass, for people and for the next pass.

use serde::{Deserialize, Serialize};

/// Maximum number of individually listed entries per kind.
const MAX_DETAILS_PER_KIND: usize = 100;

/// The report of a pass.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MountPassReport {
    /// New assets.
    pub added: u64,
    /// Assets whose file changed.
    pub changed: u64,
    /// Assets whose file was renamed or moved.
    pub moved: u64,
    /// Assets whose file was removed.
    pub removed: u64,
    /// Unchanged files.
    pub unchanged: u64,
    /// Files that were written too recently; a later pass handles them.
    pub settling: u64,
    /// Files beyond the limit of this pass; the next one begins at once.
    pub waiting: u64,
    /// Assets whose file is missing, but that are retained because so many missing files more likely indicate a fault
    /// of the source.
    pub held_back: u64,
    /// Skipped files.
    pub skipped: u64,
    /// The first skipped files, with the reasons.
    pub skipped_files: Vec<(String, String)>,
    /// Number of bytes read.
    pub bytes: u64,
    /// True for a dry run: nothing was written, and `added` is the number that would be.
    pub is_dry: bool,
    /// The source and folder of an import.
    pub of: Option<(String, String)>,
}

impl MountPassReport {
    pub(crate) fn add_skipped(&mut self, path: &str, reason: impl Into<String>) {
        self.skipped += 1;
        if self.skipped_files.len() < MAX_DETAILS_PER_KIND {
            self.skipped_files.push((path.to_owned(), reason.into()));
        }
    }

    /// Returns the number of changed assets.
    #[must_use]
    pub fn change_count(&self) -> u64 {
        self.added + self.changed + self.moved + self.removed
    }
}
