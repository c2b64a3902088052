//! The sources of configuration text: files, include patterns, variables.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::glob::DispatcherGlob;

/// The values of `${NAME}` variables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigEnvironment(BTreeMap<String, String>);

impl ConfigEnvironment {
    /// Returns the value of `name`.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for ConfigEnvironment {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(pairs: T) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// The locations from which configuration files are read.
#[derive(Debug, Clone, Default)]
pub struct ConfigSources {
    /// The variables.
    pub environment: ConfigEnvironment,
    /// The folder in which absolute include paths are resolved, for checking another machine's configuration.
    pub root: Option<PathBuf>,
}

impl ConfigSources {
    /// Resolves `path`, a file or pattern named by an include in a file in `folder`.
    pub(super) fn resolve(&self, folder: &Path, path: &str) -> PathBuf {
        match (&self.root, path.strip_prefix('/')) {
            (Some(root), Some(below)) => root.join(below),
            _ => folder.join(path),
        }
    }
}

/// Returns true if an include path is a pattern rather than a file name.
pub(super) fn is_pattern(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.contains(['*', '?', '[']))
}

/// Returns the files that match `pattern`, sorted bytewise because numbered names rely on their order.
///
/// # Errors
/// Fails if a folder cannot be listed. A folder that does not exist has no matches.
pub(crate) fn expand_pattern(pattern: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = vec![PathBuf::new()];
    for component in pattern.components() {
        let mut next = Vec::new();
        for base in paths {
            let name = Path::new(component.as_os_str());
            if is_pattern(name) {
                next.extend(matching_entries(&base, name)?);
            } else {
                next.push(base.join(component));
            }
        }
        paths = next;
    }
    paths.retain(|file| file.is_file());
    paths.sort_by(|left, right| {
        left.as_os_str().as_encoded_bytes().cmp(right.as_os_str().as_encoded_bytes())
    });
    Ok(paths)
}

fn matching_entries(folder: &Path, name: &Path) -> io::Result<Vec<PathBuf>> {
    let glob = DispatcherGlob::new(&name.to_string_lossy());
    let listed = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = match std::fs::read_dir(listed) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry?.file_name();
        let name = entry.to_string_lossy();
        // As in a shell, a wildcard does not match the leading dot of a hidden file.
        if !name.starts_with('.') && glob.matches(&name) {
            paths.push(folder.join(&entry));
        }
    }
    Ok(paths)
}
