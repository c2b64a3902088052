//! Expansion of glob patterns to existing paths, as in a shell.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::pattern::NamePattern;
use crate::error::{Error, Result};

/// Finds the existing paths that match a pattern, by ascending names: `*` matches anything within a name, `?` a
/// character, `[a-z]` one of a set. A folder that cannot be listed counts as empty. A pattern without wildcards is a
/// path, which is returned whether it exists or not.
///
/// # Errors
/// [`Error::InvalidRequest`] for a malformed pattern.
pub fn expand_glob(pattern: &str) -> Result<Vec<PathBuf>> {
    if !pattern.contains(['*', '?', '[', '\\']) {
        return Ok(vec![PathBuf::from(pattern)]);
    }
    let start = if pattern.starts_with('/') { "/" } else { "" };
    let mut paths = vec![PathBuf::from(start)];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        let name = NamePattern::parse(part)
            .ok_or_else(|| Error::InvalidRequest(format!("invalid source pattern `{pattern}`")))?;
        paths = match name.as_literal() {
            Some(literal) => {
                let below =
                    paths.iter().map(|path| path.join(std::ffi::OsStr::from_bytes(literal)));
                below.filter(|path| path.symlink_metadata().is_ok()).collect()
            }
            None => paths.iter().flat_map(|path| matching_entries(path, &name)).collect(),
        };
    }
    Ok(paths)
}

fn matching_entries(folder: &Path, pattern: &NamePattern) -> Vec<PathBuf> {
    let listed = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let Ok(entries) = fs::read_dir(listed) else { return Vec::new() };
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    let mut names: Vec<OsString> =
        names.filter(|name| pattern.matches_name(name.as_bytes())).collect();
    names.sort();
    names.into_iter().map(|name| folder.join(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_found_by_patterns() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().display().to_string();
        for folder in ["a/x", "b/x", "ä/y", ".hidden/x"] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let check = |pattern: &str, expected: &[&str]| {
            let paths = expand_glob(&format!("{root}/{pattern}")).unwrap();
            let expected: Vec<PathBuf> =
                expected.iter().map(|path| dir.path().join(path)).collect();
            assert_eq!(paths, expected, "{pattern}");
        };
        check("*/x", &[".hidden/x", "a/x", "b/x"]);
        check("?", &["a", "b", "ä"]);
        check("[^a]/*", &["b/x", "ä/y"]);
        check("no*", &[]);
        check("not-there", &["not-there"]);
        check("a/*/deeper", &[]);
        assert!(expand_glob("/[").is_err());
    }
}
