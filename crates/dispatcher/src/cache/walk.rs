//! Iteration over all cache files of a document root.

use std::io;
use std::path::{Path, PathBuf};

use super::docroot::Docroot;
use crate::cache::cacheability::is_reserved_name;

impl Docroot {
    /// Calls `visit` with each cache file, below the root; skips unreadable files.
    pub(crate) fn for_each_file(&self, visit: &mut dyn FnMut(&Path)) {
        self.list_files(visit).ok();
    }

    /// Calls `visit` with each cache file, below the root.
    ///
    /// # Errors
    /// Returns the error of the first folder or file that cannot be read, after all others were visited. One that
    /// disappears during the walk is not an error.
    pub(crate) fn list_files(&self, visit: &mut dyn FnMut(&Path)) -> io::Result<()> {
        self.list_files_except(visit, &|_| false)
    }

    /// Calls `visit` with each cache file that this process can serve, below the root.
    ///
    /// # Errors
    /// As [`Docroot::list_files`], except for folders that this process may not enter, such as `lost+found`: it serves
    /// no files of them.
    pub(crate) fn list_servable_files(&self, visit: &mut dyn FnMut(&Path)) -> io::Result<()> {
        let is_closed = |folder: &Path| {
            // `.` can only be resolved with permission to enter the folder.
            let own = folder.join(".").metadata();
            own.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
        };
        self.list_files_except(visit, &is_closed)
    }

    fn list_files_except(
        &self,
        visit: &mut dyn FnMut(&Path),
        is_left_out: &dyn Fn(&Path) -> bool,
    ) -> io::Result<()> {
        let mut failure = None;
        let mut note = |error: io::Error, folder: &Path| {
            let is_gone = error.kind() == io::ErrorKind::NotFound;
            if !is_gone && failure.is_none() && !is_left_out(folder) {
                failure = Some(error);
            }
        };
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            let absolute = self.path().join(&folder);
            let entries = match std::fs::read_dir(&absolute) {
                Ok(entries) => entries,
                Err(error) => {
                    note(error, &absolute);
                    continue;
                }
            };
            for entry in entries {
                let listed = entry.and_then(|entry| Ok((entry.file_name(), entry.file_type()?)));
                let (name, kind) = match listed {
                    Ok(listed) => listed,
                    Err(error) => {
                        note(error, &absolute);
                        continue;
                    }
                };
                if name.to_str().is_none_or(is_reserved_name) {
                    continue;
                }
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

#[cfg(test)]
mod tests {
    use crate::cache::docroot::Docroot;
    use rustix::fs::{Mode, OFlags, mkdirat, openat};
    use std::path::PathBuf;
    use std::sync::Arc;

    #[test]
    fn what_cannot_be_read_is_reported_after_all_else() {
        let root = tempfile::tempdir().unwrap();
        let docroot = Docroot::open(root.path(), 0o755, Arc::default()).unwrap();
        for name in ["a/one.html", "z/two.html"] {
            std::fs::create_dir(root.path().join(name).parent().unwrap()).unwrap();
            std::fs::write(root.path().join(name), "page").unwrap();
        }
        let list = || {
            let (mut files, mut servable) = (Vec::<PathBuf>::new(), Vec::new());
            let all = docroot.list_files(&mut |file| files.push(file.to_owned()));
            let servable_result =
                docroot.list_servable_files(&mut |file| servable.push(file.to_owned()));
            files.sort();
            servable.sort();
            assert_eq!((&files, all.is_ok()), (&servable, servable_result.is_ok()));
            (files, all.is_ok())
        };
        let both = [PathBuf::from("a/one.html"), PathBuf::from("z/two.html")];
        assert_eq!(list(), (both.to_vec(), true));
        // A folder whose path is longer than the system's limit can be created, but not be opened by its path.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut folder = rustix::fs::open(root.path(), flags, Mode::empty()).unwrap();
        for _ in 0..30 {
            let name = "d".repeat(200);
            mkdirat(&folder, &name, Mode::RWXU).unwrap();
            folder = openat(&folder, &name, flags, Mode::empty()).unwrap();
        }
        assert_eq!(list(), (both.to_vec(), false));
    }
}
