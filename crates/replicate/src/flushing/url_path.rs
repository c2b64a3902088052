//! URLs as known to caches, and their candidate node paths.
//!
//! In: the path of a URL as it was requested, or a node path. Out: the other.
//!
//! Not here: the resolution of URLs: only the renderer knows mappings, aliases and vanity paths.

use std::borrow::Cow;
use std::fmt::Write;

use tympan_content::NodePath;

/// Returns the candidate paths of a URL, longest first: the whole path, and each prefix that ends before a dot.
pub(crate) fn owner_path_candidates(url: &str) -> impl Iterator<Item = &str> {
    let dots = url.rmatch_indices('.').map(|(at, _)| at);
    std::iter::once(url.len()).chain(dots).filter_map(|end| url.get(..end))
}

/// Returns the candidate node paths of a URL, longest first.
pub(crate) fn node_path_candidates(url: &str) -> Vec<NodePath> {
    let path = decode_url_path(url).replace("/_jcr_content", "/jcr:content");
    owner_path_candidates(&path).filter_map(|path| NodePath::new(path).ok()).collect()
}

/// Decodes the percent-escapes of a URL's path; an invalid escape is left unchanged.
pub(crate) fn decode_url_path(url: &str) -> Cow<'_, str> {
    if !url.contains('%') {
        return url.into();
    }
    let mut bytes = Vec::with_capacity(url.len());
    let mut rest = url.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.filter(|_| *first == b'%').and_then(|digits| {
            digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then_some(())?;
            u8::from_str_radix(digits, 16).ok()
        });
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { behind.get(2..).unwrap_or_default() } else { behind };
    }
    match String::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => url.into(),
    }
}

/// Returns true if a URL belongs to a path: it is the path followed by a dot.
pub(crate) fn is_url_of_path(url: &str, path: &str) -> bool {
    decode_url_path(url)
        .strip_prefix(path)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Encodes a path for a URL.
pub(crate) fn encode_url_path(path: &str) -> String {
    let mut url = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_graphic()
            && !matches!(byte, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}')
        {
            url.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            write!(url, "%{byte:02X}").ok();
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_belong_to_paths_up_to_a_dot() {
        let owned: Vec<&str> = owner_path_candidates("/content/a.b/c.html").collect();
        assert_eq!(owned, ["/content/a.b/c.html", "/content/a.b/c", "/content/a"]);
        for (url, expected) in [
            ("/content/en.html", true),
            ("/content/en", true),
            ("/content/en.print.html", true),
            ("/content/english.html", false),
            ("/content/en/a.html", false),
            ("/content/%65n.html", true),
        ] {
            assert_eq!(is_url_of_path(url, "/content/en"), expected, "{url}");
        }
        let paths =
            |url| node_path_candidates(url).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(paths("/c/%C3%A4%20b.html"), ["/c/ä b.html", "/c/ä b"]);
        assert_eq!(paths("/c/_jcr_content/x.png"), ["/c/jcr:content/x.png", "/c/jcr:content/x"]);
        for odd in ["/%", "/%4", "/%zz", "/%+1", "/%C3"] {
            assert_eq!(decode_url_path(odd), odd);
        }
    }

    #[test]
    fn paths_are_written_as_urls() {
        assert_eq!(encode_url_path("/a/b c.html"), "/a/b%20c.html");
        assert_eq!(encode_url_path("/ä"), "/%C3%A4");
    }
}
