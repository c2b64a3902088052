//! Resolves the file names in a plan to paths.
//!
//! Invariant: a plan from another machine reads only the files that came with it.

use std::collections::HashMap;
use std::path::PathBuf;

/// The files of a plan.
#[derive(Debug, Clone, Default)]
pub struct PlanFiles {
    /// The folder that relative names are resolved against.
    base_dir: PathBuf,
    /// The paths, by name, of the files that came with a plan from another machine.
    transferred_files: Option<HashMap<String, PathBuf>>,
}

impl PlanFiles {
    /// Returns the files of a local plan.
    pub(crate) fn in_folder(folder: PathBuf) -> Self {
        Self { base_dir: folder, transferred_files: None }
    }

    /// Returns the files that came with a plan.
    pub fn from_transferred(files: HashMap<String, PathBuf>) -> Self {
        Self { base_dir: PathBuf::new(), transferred_files: Some(files) }
    }

    /// Returns the path of the file that the plan calls `name`.
    ///
    /// # Errors
    /// A message if this process must not read the file.
    pub(crate) fn locate(&self, name: &str) -> Result<PathBuf, String> {
        match &self.transferred_files {
            None => Ok(self.base_dir.join(name)),
            Some(files) => files.get(name.trim()).cloned().ok_or_else(|| {
                format!("`{name}` was not sent to this agent: its name is known only while the plan runs")
            }),
        }
    }
}
