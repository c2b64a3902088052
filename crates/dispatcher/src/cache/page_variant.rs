//! Variants of pages by query parameters (`/ignoreUrlParams`, `/x-cacheKeyParams`) and by request headers (`Vary`), each
//! in its own cache file.
//!
//! Input: a farm's lists and the query of a request. Output: the name of the cache file, or the result that there is
//! none.
//!
//! The file of `/content/list.html?page=2&utm_source=x` is `content/list.q~.page=2.html` where `page` is a key and
//! `utm_source` ignored: a flush of `/content/list` includes it, and its type follows from its extension. A variant by
//! headers has its slot behind the parameters: `content/list.q~.page=2~3f.html`.
//!
//! Invariants
//! * Two queries share a file only if their parameters that are not ignored are the same, regardless of the order of
//!   those with different names. Escapes are not decoded: storing a page twice is correct, sharing one file for two
//!   pages is not.
//! * No URL path maps to the file of a variant.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tympan_web::cache_path::{CanonicalPath, MAX_NAME_BYTES, MAX_PATH_BYTES};

use crate::cache::not_cacheable_reason::NotCacheableReason;
use crate::cache::suffix_folder;
use crate::config::CacheConfig;
use crate::request::view::RequestView;

/// The number of bytes that a temporary file's name adds to the name of its cache file.
pub(crate) const TEMPORARY_SUFFIX_BYTES: usize = "_YYYYXXXXXX".len();

/// The mark between a page's name and its parameters, with a dot on either side.
const VARIANT_MARK: &str = "q~";
/// The mark between the parameters and the slot of a variant by headers; parameters have it only escaped.
const HEADER_VARIANT_MARK: char = '~';
/// The escape set of names: the separators of name parts, and the escape sign itself.
const VARIANT_NAME_ESCAPE_SET: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'=').remove(b'&');

/// The maximum number of query parameters. Queries with more name no variant, nor do those with `;`: renders read only
/// a limited number, and some treat the sign as part of a value, so that the rendered page would not match the name.
const MAX_QUERY_PAIRS: usize = 100;

/// The effect of a parameter on a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParameterUse {
    /// It has no effect.
    Ignored,
    /// It makes a variant.
    Key,
    /// The page must not be cached.
    Unknown,
}

/// Returns the effect of a pair of a query.
pub(crate) fn parameter_use(cache: &CacheConfig, pair: &str) -> ParameterUse {
    let name = parameter_name(pair);
    if cache.key_params.allows(&name) && !cache.key_params.rules.is_empty() {
        ParameterUse::Key
    } else if cache.ignore_url_params.allows(&name) && !cache.ignore_url_params.rules.is_empty() {
        ParameterUse::Ignored
    } else {
        ParameterUse::Unknown
    }
}

/// Returns the name of a parameter as renders decode it.
fn parameter_name(pair: &str) -> String {
    let name = pair.split('=').next().unwrap_or(pair).replace('+', " ");
    percent_decode_str(&name).decode_utf8_lossy().into_owned()
}

/// Returns the pairs of a query.
pub(crate) fn query_pairs(query: &str) -> impl Iterator<Item = &str> {
    query.split(['&', ';']).filter(|pair| !pair.is_empty())
}

/// Returns the part of a query that names a variant; empty for the page itself.
///
/// # Errors
/// [`NotCacheableReason::Query`] for a parameter that is in neither list.
pub(crate) fn variant_key<'a>(
    cache: &CacheConfig,
    query: Option<&'a str>,
) -> Result<Cow<'a, str>, NotCacheableReason> {
    let Some(query) = query else { return Ok(Cow::Borrowed("")) };
    let has_lists = !cache.ignore_url_params.rules.is_empty() || !cache.key_params.rules.is_empty();
    if cache.is_http_cache && cache.key_params.rules.is_empty() {
        return http_variant_key(cache, query);
    }
    if !has_lists {
        return Err(NotCacheableReason::Query);
    }
    let has_keys = !cache.key_params.rules.is_empty();
    if has_keys && (query.contains(';') || query_pairs(query).count() > MAX_QUERY_PAIRS) {
        return Err(NotCacheableReason::Query);
    }
    let mut keys = Vec::new();
    for pair in query_pairs(query) {
        match parameter_use(cache, pair) {
            ParameterUse::Ignored => {}
            ParameterUse::Key => keys.push(pair),
            ParameterUse::Unknown => return Err(NotCacheableReason::Query),
        }
    }
    // The order of pairs with the same name may be significant.
    keys.sort_by_cached_key(|pair| parameter_name(pair));
    Ok(Cow::Owned(keys.join("&")))
}

/// Returns the key for HTTP, where each query is another resource, in the order of its parameters.
fn http_variant_key<'a>(
    cache: &CacheConfig,
    query: &'a str,
) -> Result<Cow<'a, str>, NotCacheableReason> {
    if query.contains(';') || query_pairs(query).count() > MAX_QUERY_PAIRS {
        return Err(NotCacheableReason::Query);
    }
    let is_key = |pair: &&str| parameter_use(cache, pair) != ParameterUse::Ignored;
    let keys: Vec<&str> = query_pairs(query).filter(is_key).collect();
    Ok(Cow::Owned(keys.join("&")))
}

/// Returns the target to request from a render to fill a cache file. Ignored parameters are removed if the farm is
/// configured so, because the page is shown to visitors who did not send them.
pub(crate) fn variant_target(cache: &CacheConfig, view: &RequestView) -> String {
    let Some(query) = view.query.as_deref().filter(|_| cache.strips_ignored_params) else {
        return view.wire_target();
    };
    let is_wanted = |pair: &&str| parameter_use(cache, pair) != ParameterUse::Ignored;
    let pairs: Vec<&str> = query_pairs(query).filter(is_wanted).collect();
    match pairs.as_slice() {
        [] => view.wire_path.clone(),
        // Some renders treat the sign as part of a value.
        _ if query.contains(';') => view.wire_target(),
        pairs => format!("{}?{}", view.wire_path, pairs.join("&")),
    }
}

/// Returns the file of a page below the document root.
///
/// # Errors
/// [`NotCacheableReason::TemporaryPathTooLong`], or [`NotCacheableReason::ReservedName`] for a path with a name
/// reserved for the cache.
pub(crate) fn variant_file(
    path: &CanonicalPath,
    key: &str,
    root: &Path,
) -> Result<PathBuf, NotCacheableReason> {
    let is_own = |name: &str| {
        variant_base_name(name).is_some() || suffix_folder::is_suffix_folder_name(name)
    };
    if path.segments().any(is_own) {
        return Err(NotCacheableReason::ReservedName);
    }
    let file_without_query = path.relative_file_path();
    let plain_length = file_without_query.as_os_str().len();
    let file = suffix_folder::cache_file_of_path(file_without_query);
    if key.is_empty() && file.as_os_str().len() == plain_length {
        return Ok(file);
    }
    let file = if key.is_empty() { file } else { add_variant_key(&file, key) };
    let whole = root.as_os_str().len() + 1 + file.as_os_str().len();
    let is_too_long = file.iter().any(|name| name.len() + TEMPORARY_SUFFIX_BYTES > MAX_NAME_BYTES)
        || whole + TEMPORARY_SUFFIX_BYTES > MAX_PATH_BYTES;
    if is_too_long { Err(NotCacheableReason::TemporaryPathTooLong) } else { Ok(file) }
}

/// Returns the file of a variant of the page with this file.
fn add_variant_key(file: &Path, key: &str) -> PathBuf {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let (stem, extension) = name.rsplit_once('.').unwrap_or((name, ""));
    let key = utf8_percent_encode(key, VARIANT_NAME_ESCAPE_SET);
    file.with_file_name(format!("{stem}.{VARIANT_MARK}.{key}.{extension}"))
}

/// Returns the file for a slot of the variants by headers of the page with this file.
pub(crate) fn header_variant_file(page: &Path, slot: u8) -> PathBuf {
    let name = page.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let (stem, extension) = name.rsplit_once('.').unwrap_or((name, ""));
    let mark = if is_variant_file(page) { "" } else { ".q~." };
    page.with_file_name(format!("{stem}{mark}{HEADER_VARIANT_MARK}{slot:02x}.{extension}"))
}

/// Returns the page name of a variant's file; `None` for a file that is not a variant.
pub(crate) fn variant_base_name(name: &str) -> Option<String> {
    let (stem, rest) = name.split_once(&format!(".{VARIANT_MARK}."))?;
    let extension = rest.rsplit_once('.').map_or("", |(_, extension)| extension);
    Some(format!("{stem}.{extension}"))
}

/// Returns the path and query of the page in a cache file.
pub(crate) fn variant_url(file: &str) -> (String, Option<String>) {
    let file = &*suffix_folder::url_path_of_file(file);
    let (folder, name) = file.rsplit_once('/').map_or(("", file), |(folder, name)| (folder, name));
    let parts = name.split_once(&format!(".{VARIANT_MARK}.")).zip(variant_base_name(name));
    let Some(((_, rest), base)) = parts else { return (format!("/{file}"), None) };
    let key = rest.rsplit_once('.').map_or(rest, |(key, _)| key);
    let key = key.split(HEADER_VARIANT_MARK).next().unwrap_or(key);
    let query = percent_decode_str(key).decode_utf8_lossy().into_owned();
    let path = if folder.is_empty() { format!("/{base}") } else { format!("/{folder}/{base}") };
    (path, (!query.is_empty()).then_some(query))
}

/// Returns true if a cache file is that of a variant.
pub(crate) fn is_variant_file(file: &Path) -> bool {
    file.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| variant_base_name(name).is_some())
}

/// Returns the handle that covers all variants of the page with this file, with any extension.
pub(crate) fn variants_handle(file: &Path) -> PathBuf {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    file.with_file_name(format!("{stem}.{VARIANT_MARK}"))
}

#[cfg(test)]
mod tests {
    use super::{
        header_variant_file, is_variant_file, variant_base_name, variant_file, variant_key,
        variant_url, variants_handle,
    };
    use crate::cache::not_cacheable_reason::NotCacheableReason;
    use crate::config::any_syntax::ConfigSources;
    use crate::config::{CacheConfig, DispatcherConfig};
    use proptest::prelude::*;
    use std::path::Path;
    use tympan_web::cache_path::CanonicalPath;

    fn cache(lists: &str) -> CacheConfig {
        let text = format!("/farms {{ /f {{ /renders {{ }} /cache {{ {lists} }} }} }}");
        let loaded = DispatcherConfig::parse(
            text.as_bytes(),
            Path::new("test.any"),
            &ConfigSources::default(),
        );
        loaded.config.farms[0].cache.clone().unwrap()
    }

    const BOTH: &str = "/ignoreUrlParams { /0 { /glob \"utm_*\" /type \"allow\" } }
        /x-cacheKeyParams { /0 { /glob \"page\" /type \"allow\" } /1 { /glob \"s?rt\" /type \"allow\" } }";

    #[test]
    fn keys_hold_what_makes_a_page_another_one() {
        let both = cache(BOTH);
        for (query, expected) in [
            ("", Ok("")),
            ("utm_source=x", Ok("")),
            ("page=2", Ok("page=2")),
            ("sort=a&utm_source=x&page=2&&", Ok("page=2&sort=a")),
            ("page=2&page=1", Ok("page=2&page=1")),
            ("p%61ge=2", Ok("p%61ge=2")),
            ("page", Ok("page")),
            ("page=2;other=1", Err(NotCacheableReason::Query)),
            ("page=2&utm", Err(NotCacheableReason::Query)),
        ] {
            assert_eq!(variant_key(&both, Some(query)).as_deref(), expected.as_deref(), "{query}");
        }
        assert_eq!(variant_key(&both, None).as_deref(), Ok(""));
        assert_eq!(variant_key(&cache(""), Some("")).as_deref(), Err(&NotCacheableReason::Query));
        let keys = cache("/x-cacheKeyParams { /0 { /glob \"page\" /type \"allow\" } }");
        assert_eq!(variant_key(&keys, Some("page=1")).as_deref(), Ok("page=1"));
        assert_eq!(variant_key(&keys, Some("utm_x=1")).as_deref(), Err(&NotCacheableReason::Query));
    }

    #[test]
    fn variants_have_names_of_their_own() {
        let file = |path: &str, key: &str| {
            let path = CanonicalPath::parse(path).unwrap();
            variant_file(&path, key, Path::new("/root"))
                .map(|file| file.to_str().unwrap().to_owned())
        };
        for (path, key, expected) in [
            ("/a/list.html", "", "a/list.html"),
            ("/a/list.html", "page=2&sort=a", "a/list.q~.page=2&sort=a.html"),
            ("/a/list.print.html", "page=2", "a/list.print.q~.page=2.html"),
            ("/list.html", "page=../x%2F.q~.y", "list.q~.page=%2E%2E%2Fx%252F%2Eq%7E%2Ey.html"),
            ("/a/list.html/x.html", "", "a/list.html.s~/x.html"),
            ("/a.jpg/list.html", "page=2", "a.jpg.s~/list.q~.page=2.html"),
        ] {
            assert_eq!(file(path, key).as_deref(), Ok(expected));
            let name = expected.rsplit('/').next().unwrap();
            let base = path.rsplit('/').next().unwrap();
            assert_eq!(variant_base_name(name).as_deref(), (!key.is_empty()).then_some(base));
            assert_eq!(is_variant_file(Path::new(expected)), !key.is_empty());
            let query = (!key.is_empty()).then(|| key.to_owned());
            assert_eq!(variant_url(expected), (path.to_owned(), query));
        }
        for own in
            ["/a/list.q~.page=2.html", "/a/list.q~.page=2.html/x.html", "/a.s~", "/a.s~/x.html"]
        {
            assert_eq!(file(own, ""), Err(NotCacheableReason::ReservedName), "{own}");
        }
        let long = format!("/{}.html/x.html", "x".repeat(240));
        assert_eq!(file(&long, ""), Err(NotCacheableReason::TemporaryPathTooLong));
        assert_eq!(
            file("/a/list.html", &"x".repeat(240)),
            Err(NotCacheableReason::TemporaryPathTooLong)
        );
        for (page, expected, url, query) in [
            ("a/list.html", "a/list.q~.~07.html", "/a/list.html", None),
            ("list.q~.page=2.html", "list.q~.page=2~07.html", "/list.html", Some("page=2")),
            ("a.html.s~/b.c.html", "a.html.s~/b.c.q~.~07.html", "/a.html/b.c.html", None),
        ] {
            let file = header_variant_file(Path::new(page), 7);
            assert_eq!(file.to_str(), Some(expected));
            assert!(is_variant_file(&file));
            assert_eq!(variant_url(expected), (url.to_owned(), query.map(str::to_owned)));
        }
        let handle = variants_handle(Path::new("a/list.print.html"));
        assert_eq!(handle.to_str(), Some("a/list.print.q~"));
    }

    proptest! {
        /// Different parameters never share a file, and no file is placed elsewhere.
        #[test]
        fn no_two_keys_share_a_file(one in "[a-z0-9=&%./~;+?é-]{0,12}", two in "[a-z0-9=&%./~;+?é-]{0,12}") {
            let path = CanonicalPath::parse("/content/list.html").unwrap();
            let file = |key: &str| variant_file(&path, key, Path::new("/root")).unwrap();
            prop_assert_eq!(one == two, file(&one) == file(&two));
            let first_file = file(&one);
            prop_assert_eq!(first_file.parent(), Some(Path::new("content")));
            prop_assert_eq!(is_variant_file(&first_file), !one.is_empty());
        }
    }
}
