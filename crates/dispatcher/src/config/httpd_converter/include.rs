//! The search for the files of an `Include`.
//!
//! httpd resolves them below its own folder (`ServerRoot`). A copy of that folder, or a project that will become one,
//! has the same folders within it, so the file is searched in each folder above the including one.

use std::path::{Component, Path, PathBuf};

use crate::config::any_syntax::expand_pattern;
use crate::config::glob::DispatcherGlob;

/// The default `ServerRoot`, if the files do not set it.
pub(super) const DEFAULT_SERVER_ROOT: &str = "/etc/httpd";

/// The files that an `Include` refers to.
#[derive(Debug)]
pub(super) enum IncludeMatch {
    /// Supplied files, by their index in the list.
    Supplied(Vec<usize>),
    /// Files on disk.
    OnDisk(Vec<PathBuf>),
}

/// The search locations.
pub(super) struct IncludeSearch<'a> {
    pub(super) supplied_files: &'a [(&'a Path, &'a str)],
    pub(super) root: Option<&'a Path>,
    pub(super) server_root: &'a str,
}

impl IncludeSearch<'_> {
    /// Returns the files that `pattern`, a path or pattern in `file`, names; `None` if there are none.
    pub(super) fn find_included(&self, file: &Path, pattern: &str) -> Option<IncludeMatch> {
        let below = pattern.strip_prefix(self.server_root).unwrap_or(pattern);
        let below = below.trim_start_matches('/');
        if below.is_empty() {
            return None;
        }
        let supplied = self.find_supplied(below);
        if !supplied.is_empty() {
            return Some(IncludeMatch::Supplied(supplied));
        }
        let mut candidates: Vec<PathBuf> = Vec::new();
        match self.root {
            Some(root) => {
                candidates.push(root.join(below));
                candidates.push(root.join(pattern.trim_start_matches('/')));
            }
            None => {
                if pattern.starts_with('/') {
                    candidates.push(PathBuf::from(pattern));
                }
                let folders = file.parent().into_iter().flat_map(Path::ancestors);
                candidates.extend(folders.map(|folder| folder.join(below)));
            }
        }
        candidates
            .iter()
            .map(|path| files_on_disk(path))
            .find(|files| !files.is_empty())
            .map(IncludeMatch::OnDisk)
    }

    /// Returns the supplied files whose last folders and name match.
    fn find_supplied(&self, below: &str) -> Vec<usize> {
        let glob = DispatcherGlob::new(below);
        let depth = below.split('/').count();
        let is_meant = |path: &Path| {
            let names: Vec<_> = path
                .components()
                .filter(|component| matches!(component, Component::Normal(_)))
                .map(|component| component.as_os_str().to_string_lossy())
                .collect();
            let from = names.len().checked_sub(depth);
            from.and_then(|from| names.get(from..))
                .is_some_and(|names| glob.matches(&names.join("/")))
        };
        let files = self.supplied_files.iter().enumerate();
        files.filter(|(_, (path, _))| is_meant(path)).map(|(index, _)| index).collect()
    }
}

/// Returns the files of a path, a pattern or a folder, sorted by name.
fn files_on_disk(path: &Path) -> Vec<PathBuf> {
    let pattern = if path.is_dir() { path.join("*") } else { path.to_path_buf() };
    expand_pattern(&pattern).unwrap_or_default()
}

/// Returns the target of a link that was checked out as text.
pub(super) fn link_target(file: &Path, text: &str) -> Option<PathBuf> {
    let target = text.trim();
    let is_link = target.starts_with("../") && !target.contains(char::is_whitespace);
    is_link.then(|| file.parent().unwrap_or(Path::new("")).join(target))
}
