//! Going through all cache files of a document root.

use std::io;
use std::path::{Path, PathBuf};

use super::docroot::Docroot;
use crate::cacheable::is_reserved_name;

impl Docroot {
    /// Calls `visit` with each cache file, below the root; what cannot be read is left out.
    pub(crate) fn for_each_file(&self, visit: &mut dyn FnMut(&Path)) {
        self.list_files(visit).ok();
    }

    /// Calls `visit` with each cache file, below the root.
    ///
    /// # Errors
    /// The first folder that cannot be read, after all others were; one that is gone meanwhile held nothing.
    pub(crate) fn list_files(&self, visit: &mut dyn FnMut(&Path)) -> io::Result<()> {
        let mut failure = None;
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            let entries = match std::fs::read_dir(self.path().join(&folder)) {
                Ok(entries) => entries,
                Err(error) => {
                    let is_gone = error.kind() == io::ErrorKind::NotFound;
                    failure = failure.or(Some(error).filter(|_| !is_gone));
                    continue;
                }
            };
            for entry in entries.flatten() {
                let name = entry.file_name();
                let is_own = name.to_str().is_none_or(is_reserved_name);
                let Some(kind) = entry.file_type().ok().filter(|_| !is_own) else { continue };
                let path = folder.join(name);
                if kind.is_dir() {
                    folders.push(path);
                } else if kind.is_file() {
                    visit(&path);
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }
}
