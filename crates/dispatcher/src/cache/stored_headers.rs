//! The header file `<file>.h`: response headers that are served with a cache file.
//!
//! The first line holds the version and the time of the fetch, which is also the body's modification time. Only a
//! matching pair is served: after a crash between the two renames the times differ, and the page is fetched again.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};

const HEADER_FILE_VERSION: &str = "tympan-headers 1";

/// The stored headers of one cache file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredHeaders {
    /// The time at which the request that filled the file was sent.
    pub(crate) fetched_at: SystemTime,
    /// The headers.
    pub(crate) headers: HeaderMap,
}

impl StoredHeaders {
    pub(crate) fn to_text(&self) -> Vec<u8> {
        let mut text = String::new();
        // Writing to a string cannot fail.
        writeln!(text, "{HEADER_FILE_VERSION} {}", nanoseconds_since_epoch(self.fetched_at)).ok();
        let mut bytes = text.into_bytes();
        for (name, value) in &self.headers {
            bytes.extend_from_slice(name.as_str().as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value.as_bytes());
            bytes.push(b'\n');
        }
        bytes
    }

    /// Returns true if the text begins like a header file of this or another version.
    pub(crate) fn is_header_file(text: &[u8]) -> bool {
        text.starts_with(b"tympan-headers ")
    }

    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut lines = text.strip_suffix(b"\n")?.split(|byte| *byte == b'\n');
        let first = std::str::from_utf8(lines.next()?).ok()?;
        let nanoseconds = first.strip_prefix(HEADER_FILE_VERSION)?.trim().parse().ok()?;
        let mut headers = HeaderMap::new();
        for line in lines {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (name, value) = line.split_at_checked(colon)?;
            let value = value.strip_prefix(b": ")?;
            headers
                .append(HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?);
        }
        Some(Self { fetched_at: UNIX_EPOCH + Duration::from_nanos(nanoseconds), headers })
    }
}

fn nanoseconds_since_epoch(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::StoredHeaders;
    use http::{HeaderMap, HeaderValue};
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn headers_survive_with_order_repeats_and_odd_bytes() {
        let mut headers = HeaderMap::new();
        headers.append("content-type", HeaderValue::from_static("text/html"));
        headers.append("link", HeaderValue::from_static("</a>; rel=x"));
        headers.append("link", HeaderValue::from_static(""));
        headers.append("x-odd", HeaderValue::from_bytes(b"a: b\xff").unwrap());
        let stored = StoredHeaders {
            fetched_at: UNIX_EPOCH + Duration::from_nanos(1_795_222_216_123_456_789),
            headers,
        };
        assert_eq!(StoredHeaders::parse(&stored.to_text()), Some(stored));
    }

    #[test]
    fn the_first_version_still_reads() {
        let text = b"tympan-headers 1 1795222216123456789\ncontent-type: text/html\n";
        let stored = StoredHeaders::parse(text).unwrap();
        assert_eq!(stored.headers["content-type"], "text/html");
    }

    #[test]
    fn other_text_is_no_header_file() {
        for text in [
            "",
            "\n",
            "tympan-headers 2 1\n",
            "tympan-headers 1 x\n",
            "tympan-headers 1 5\nno colon\n",
            "tympan-headers 1 5\na: b",
            "Content-Type: text/html\n",
        ] {
            assert_eq!(StoredHeaders::parse(text.as_bytes()), None, "{text:?}");
        }
    }
}
