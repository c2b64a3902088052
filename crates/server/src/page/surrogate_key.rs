//! Surrogate keys: the keys by which a cache in front invalidates responses that a change affects.
//!
//! A response has three keys: its URL, the path of the resource without selectors and extension, and one shared by all
//! responses. `purge_keys` agents send the first for responses known to the ledger, the second for changed paths, and
//! the last if the affected responses are unknown. A URL that is too long for a key has only the last one, because the
//! ledger does not know it either.

use http::{HeaderMap, HeaderValue};
use tympan_replicate::{PURGE_ALL_KEY, surrogate_key_of};

use crate::Instance;

/// Content delivery networks truncate or refuse longer keys.
const MAX_SURROGATE_KEY_BYTES: usize = 1024;

/// The headers of content delivery networks that separate keys by commas: Cloudflare's and Akamai's.
const COMMA_SEPARATED_HEADERS: [&str; 2] = ["cache-tag", "edge-cache-tag"];

/// Adds the surrogate keys of a URL's response to its headers, if the configuration specifies a header for them.
pub(crate) fn add_surrogate_keys(instance: &Instance, path: &str, headers: &mut HeaderMap) {
    let Some(name) = &instance.surrogate_key else { return };
    let mut keys = surrogate_keys_of(path);
    if COMMA_SEPARATED_HEADERS.contains(&name.as_str()) {
        keys = keys.replace(' ', ",");
    }
    if let Ok(value) = HeaderValue::from_str(&keys) {
        headers.insert(name.clone(), value);
    }
}

/// Returns the keys of a URL, separated by spaces.
fn surrogate_keys_of(path: &str) -> String {
    let path = &*surrogate_key_of(path);
    if path.len() > MAX_SURROGATE_KEY_BYTES {
        return PURGE_ALL_KEY.to_owned();
    }
    let name = path.rfind('/').map_or(0, |at| at + 1);
    let end = path.get(name..).and_then(|name| name.find('.')).map_or(path.len(), |dot| name + dot);
    match path.get(..end).filter(|resource| *resource != path && !resource.ends_with('/')) {
        Some(resource) => format!("{path} {resource} {PURGE_ALL_KEY}"),
        None => format!("{path} {PURGE_ALL_KEY}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_url_its_resource_and_all() {
        for (path, expected) in [
            ("/content/en.html", "/content/en.html /content/en all"),
            ("/content/en.print.a4.html", "/content/en.print.a4.html /content/en all"),
            ("/content/a.b/c.html", "/content/a.b/c.html /content/a.b/c all"),
            ("/content/en", "/content/en all"),
            ("/content/%C3%A4%20b.html", "/content/%C3%A4%20b.html /content/%C3%A4%20b all"),
            ("/.well-known", "/.well-known all"),
            ("/", "/ all"),
            ("/a,b.html", "/a%2Cb.html /a%2Cb all"),
        ] {
            assert_eq!(surrogate_keys_of(path), expected);
        }
        assert_eq!(surrogate_keys_of(&"/x".repeat(600)), "all");
    }
}
