//! What a pass over a place did, for people and for the next look.

use serde::{Deserialize, Serialize};

/// Of what is told one by one, the most of each kind.
const MAX_DETAILS_PER_KIND: usize = 100;

/// What a pass did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MountPassReport {
    /// Assets that are new.
    pub added: u64,
    /// Assets whose file changed.
    pub changed: u64,
    /// Assets whose file has another name or folder.
    pub moved: u64,
    /// Assets whose file is gone.
    pub removed: u64,
    /// Files that are as they were.
    pub unchanged: u64,
    /// Files that were written a moment ago: a later pass takes them.
    pub settling: u64,
    /// Files for which this pass had no room: the next one begins at once.
    pub waiting: u64,
    /// Assets whose file is gone and that stay all the same, because so many at once are more likely a fault of the
    /// place.
    pub held_back: u64,
    /// Files that are left out.
    pub skipped: u64,
    /// The first of them, with the reason.
    pub skipped_files: Vec<(String, String)>,
    /// Bytes that were read.
    pub bytes: u64,
    /// Whether nothing was written, and `added` says what would be.
    pub is_dry: bool,
    /// Of an import: its source and folder.
    pub of: Option<(String, String)>,
}

impl MountPassReport {
    pub(crate) fn add_skipped(&mut self, path: &str, reason: impl Into<String>) {
        self.skipped += 1;
        if self.skipped_files.len() < MAX_DETAILS_PER_KIND {
            self.skipped_files.push((path.to_owned(), reason.into()));
        }
    }

    /// Tells how many assets it changed.
    #[must_use]
    pub fn change_count(&self) -> u64 {
        self.added + self.changed + self.moved + self.removed
    }
}
