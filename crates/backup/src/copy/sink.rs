//! The sink for the files of a copy, which a folder and a ZIP file implement.

use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};

/// How much of an existing copy is trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyDepth {
    /// Existing parts are not examined.
    #[default]
    MissingOnly,
    /// Everything is read from the repository and compared with the existing files.
    Everything,
}

/// A sink for the files of a copy.
pub(super) trait CopySink {
    /// Returns true if a part or blob exists, with everything below it.
    fn contains(&self, name: &str) -> bool;
    /// Writes a file of a given length; returns true if it had to be written. If the stream fails, an existing file
    /// stays unchanged.
    fn write_file(&mut self, name: &str, content: (u64, &mut dyn Read)) -> Result<bool>;
}

/// Returns a function that creates the error of a target that cannot be written.
pub(super) fn target_error(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Target { path, source }
}
