//! Going through all cache files of a document root.

use std::path::{Path, PathBuf};

use super::docroot::{Docroot, TEMPORARY_FOLDER};
use crate::cacheable::is_reserved_name;

impl Docroot {
    /// Calls `visit` with each cache file, below the root; what cannot be read is left out.
    pub(crate) fn for_each_file(&self, visit: &mut dyn FnMut(&Path)) {
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            let Ok(entries) = std::fs::read_dir(self.path().join(&folder)) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name();
                let is_own = name.to_str().is_none_or(is_reserved_name) || name == TEMPORARY_FOLDER;
                let Some(kind) = entry.file_type().ok().filter(|_| !is_own) else { continue };
                let path = folder.join(name);
                if kind.is_dir() {
                    folders.push(path);
                } else if kind.is_file() {
                    visit(&path);
                }
            }
        }
    }
}
