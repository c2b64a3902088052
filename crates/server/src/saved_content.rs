//! The backups of an instance as a source of lost pages. The program that runs the instance supplies it.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

/// A state of the instance in its backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedState {
    /// The id of the snapshot.
    pub id: String,
    /// The time at which the save began.
    pub time: SystemTime,
    /// True if the snapshot lacks parts of what was to be saved.
    pub is_incomplete: bool,
}

/// A page in a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedPage {
    /// The text of the page and its content as a docview.
    pub docview: Vec<u8>,
    /// True if values of the page are in files of their own, which the docview does not contain.
    pub has_files: bool,
}

/// Reads the backups of an instance. Calls may take long, and fail with a message for administrators.
pub trait SavedContent: Send + Sync {
    /// Lists the newest states, the newest first.
    ///
    /// # Errors
    /// In words.
    fn list_states(&self, limit: usize) -> Result<Vec<SavedState>, String>;

    /// Lists the names of the documents directly below a path in a state.
    ///
    /// # Errors
    /// In words.
    fn list_names(&self, state: &str, path: &str) -> Result<Vec<String>, String>;

    /// Reads a page of a state.
    ///
    /// # Errors
    /// In words.
    fn read_page(&self, state: &str, path: &str) -> Result<SavedPage, String>;
}

/// The backups of an instance, if it has any.
#[derive(Default)]
pub(crate) struct SavedContentSource(OnceLock<Arc<dyn SavedContent>>);

impl std::fmt::Debug for SavedContentSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SavedContentSource")
    }
}

impl SavedContentSource {
    /// Sets the source; later calls are ignored.
    pub(crate) fn set(&self, source: Arc<dyn SavedContent>) {
        self.0.set(source).ok();
    }

    /// Returns the source, if there is one.
    pub(crate) fn get(&self) -> Option<Arc<dyn SavedContent>> {
        self.0.get().cloned()
    }
}
