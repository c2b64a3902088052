//! Where the files are that a plan calls by name.
//!
//! Invariant: a plan that came from another machine reads no file but those that came with it.

use std::collections::HashMap;
use std::path::PathBuf;

/// The files of a plan.
#[derive(Debug, Clone, Default)]
pub(crate) struct PlanFiles {
    /// The folder that relative names start from.
    base_dir: PathBuf,
    /// By their names, where the files are that came with the plan from another machine.
    transferred_files: Option<HashMap<String, PathBuf>>,
}

impl PlanFiles {
    /// Returns the files of a plan on this machine.
    pub(crate) fn in_folder(folder: PathBuf) -> Self {
        Self { base_dir: folder, transferred_files: None }
    }

    /// Returns the files that came with a plan.
    pub(crate) fn from_transferred(files: HashMap<String, PathBuf>) -> Self {
        Self { base_dir: PathBuf::new(), transferred_files: Some(files) }
    }

    /// Returns where the file that a plan calls `name` is.
    ///
    /// # Errors
    /// What to say if it is none that this process may read.
    pub(crate) fn locate(&self, name: &str) -> Result<PathBuf, String> {
        match &self.transferred_files {
            None => Ok(self.base_dir.join(name)),
            Some(files) => files.get(name.trim()).cloned().ok_or_else(|| {
                format!("`{name}` was not sent to this agent: its name is known only while the plan runs")
            }),
        }
    }
}
