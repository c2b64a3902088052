//! Relative paths in the lists and style sheets of client libraries.

/// Resolves a relative path against a folder; the result never leaves the root.
pub(super) fn resolve_relative_path(base: &str, relative: &str) -> String {
    let mut names: Vec<&str> =
        base.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
    for name in relative.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    names.join("/")
}
