//! The candidate paths of a flush handle in a document root.
//!
//! Agents write a node's path as it is, or percent-encoded as in a URL; and a name with a prefix, such as
//! `jcr:content`, is `_jcr_content` in the URLs that Sling creates. A handle does not show which form it has, so a
//! flush applies to all of them. Below a path that looks like a page, as in `a.jpg/jcr:content`, the files are in a
//! folder of suffix pages.

use std::path::{Path, PathBuf};

use tympan_web::cache_path::CanonicalPath;
use tympan_web::flush_message::FlushAction;

use crate::cache::suffix_folder;

/// Returns the paths that `handle` may name below a document root, the literal one first.
pub(crate) fn candidate_paths(handle: &str) -> Vec<PathBuf> {
    let literal_path = handle.trim_matches('/');
    let decoded = CanonicalPath::parse(handle).ok();
    // An encoded `.` or `..` leads to another path, which is not intended.
    let depth = literal_path.split('/').filter(|name| !name.is_empty()).count();
    let decoded = decoded.filter(|decoded| decoded.segments().count() == depth);
    let mut paths = vec![PathBuf::from(literal_path)];
    let decoded = decoded.map(|decoded| decoded.as_str().trim_matches('/').to_owned());
    for path in [Some(literal_path.to_owned()), decoded].into_iter().flatten() {
        for path in [PathBuf::from(encode_prefixed_names(&path)), PathBuf::from(path)] {
            for path in [suffix_folder::cache_file_of_path(path.clone()), path] {
                if !paths.contains(&path) {
                    paths.push(path);
                }
            }
        }
    }
    paths
}

/// Replaces prefixed names by the form that Sling uses in URLs.
fn encode_prefixed_names(path: &str) -> String {
    let name_in_url = |name: &str| match name.split_once(':') {
        Some((prefix, rest)) if !prefix.is_empty() && !rest.is_empty() => {
            format!("_{prefix}_{rest}")
        }
        _ => name.to_owned(),
    };
    path.split('/').map(name_in_url).collect::<Vec<_>>().join("/")
}

/// Returns true if a flush of `handle` names `file`; mirrors the removal in `cache::file_flush`.
pub(crate) fn flush_names_file(action: FlushAction, handle: &Path, file: &Path) -> bool {
    let is_node_removed = matches!(action, FlushAction::Deactivate | FlushAction::Delete);
    if is_node_removed && file.starts_with(handle) {
        return true;
    }
    let Some(last_name) = handle.file_name().and_then(|last_name| last_name.to_str()) else {
        return false;
    };
    let parent = handle.parent().unwrap_or(Path::new(""));
    let Ok(relative_file) = file.strip_prefix(parent) else {
        return false;
    };
    let is_content = |name| file.starts_with(handle.join(name));
    if file == handle || ["_jcr_content", "jcr:content"].into_iter().any(is_content) {
        return true;
    }
    let first_name = relative_file.components().next();
    first_name
        .and_then(|first_name| first_name.as_os_str().to_str())
        .and_then(|first_name| first_name.strip_prefix(last_name))
        .is_some_and(|rest| rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::candidate_paths;
    use std::path::PathBuf;

    #[test]
    fn a_handle_counts_as_it_is_written_and_as_urls_have_it() {
        let check = |handle: &str, expected: &[&str]| {
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(candidate_paths(handle), expected, "{handle}");
        };
        check("/content/en", &["content/en"]);
        check("/content//en/", &["content/en"]);
        check("/", &[""]);
        check("/content/a b/ü", &["content/a b/ü"]);
        check("/content/a%20b/%C3%BC", &["content/a%20b/%C3%BC", "content/a b/ü"]);
        check("/content/en/jcr:content", &["content/en/jcr:content", "content/en/_jcr_content"]);
        check("/etc/a%3Ab", &["etc/a%3Ab", "etc/_a_b", "etc/a:b"]);
        check("/content/:a/b:", &["content/:a/b:"]);
        check("/dam/a.jpg", &["dam/a.jpg"]);
        let below = ["dam/a.jpg/jcr:content", "dam/a.jpg.s~/_jcr_content"];
        let below = [&below[..], &["dam/a.jpg/_jcr_content", "dam/a.jpg.s~/jcr:content"]].concat();
        check("/dam/a.jpg/jcr:content", &below);
        // A handle that cannot be decoded, or that leads elsewhere when decoded, is taken literally.
        check("/content/100%", &["content/100%"]);
        check("/content/%2e%2e/x", &["content/%2e%2e/x"]);
        check("/content/%2e", &["content/%2e"]);
        check("/content/a%2fb", &["content/a%2fb"]);
        check("/content/%FF", &["content/%FF"]);
    }
}
