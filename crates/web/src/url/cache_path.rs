//! The mapping from a URL path to a file below the document root, shared by the dispatcher's cache and static export.
//!
//! In: the raw path of a request. Out: [`CanonicalPath`], decoded once, without `//`, `.` and `..`; and from it the
//! relative file name.
//!
//! Invariants
//! * A canonical path begins with `/`, and contains no empty, `.` or `..` segment, no NUL and no segment that another
//!   program could read as `..` (`..;x`); its file is never outside the root.
//! * Two URLs that a server treats alike after decoding share one canonical path.
//!
//! Not here: whether a URL may be cached or served.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

/// Maximum length of a name in common file systems, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// Maximum length of a path in Linux, in bytes, without the final NUL.
pub const MAX_PATH_BYTES: usize = 4095;

/// The reason why a URL path has no canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CanonicalPathError {
    /// The path does not begin with `/`.
    #[error("the path does not begin with a slash")]
    NotAbsolute,
    /// A `%` is not followed by two hexadecimal digits.
    #[error("the path contains a malformed percent escape")]
    BadEscape,
    /// An escape stands for `/`.
    #[error("the path contains an encoded slash")]
    EncodedSlash,
    /// An escape stands for NUL.
    #[error("the path contains a NUL character")]
    Nul,
    /// The decoded bytes are not UTF-8.
    #[error("the path is not UTF-8")]
    NotUtf8,
    /// The path leaves the root.
    #[error("the path escapes the root")]
    AboveRoot,
}

/// The treatment of an escape that stands for `/`, as httpd's `AllowEncodedSlashes` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EncodedSlashes {
    /// The path is refused.
    #[default]
    Refuse,
    /// It separates segments, as `/` does.
    Decode,
    /// It stays `%2F`, a part of a segment. A path is refused if another server could decode it to a different one:
    /// `%252F`, and dot segments beside an encoded slash.
    Keep,
}

/// A decoded URL path in canonical form.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CanonicalPath(String);

impl CanonicalPath {
    /// Parses the path of a URL, without query.
    ///
    /// # Errors
    /// See [`CanonicalPathError`]; no site uses such paths legitimately.
    pub fn parse(raw: &str) -> Result<Self, CanonicalPathError> {
        Self::parse_with_slashes(raw, EncodedSlashes::Refuse)
    }

    /// As [`CanonicalPath::parse`], with another treatment of encoded slashes.
    ///
    /// # Errors
    /// See [`CanonicalPathError`].
    pub fn parse_with_slashes(
        raw: &str,
        encoded_slashes: EncodedSlashes,
    ) -> Result<Self, CanonicalPathError> {
        let wire = resolve_path_with_slashes(raw, encoded_slashes)?;
        // Encoded slashes are kept where there still are some.
        let wire = wire.replace("%2F", "%252F");
        let decoded = percent_decode_str(&wire)
            .decode_utf8()
            .map_err(|_invalid| CanonicalPathError::NotUtf8)?;
        Ok(Self(decoded.into_owned()))
    }

    /// Returns the path; it begins with `/` and ends with `/` if the URL named a directory.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the path ends with a slash, as the root does.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.0.ends_with('/')
    }

    /// Returns the file for this path, relative to the document root; empty for the root.
    #[must_use]
    pub fn relative_file_path(&self) -> PathBuf {
        PathBuf::from(self.0.trim_matches('/'))
    }

    /// Returns the non-empty segments in order.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/').filter(|segment| !segment.is_empty())
    }
}

impl fmt::Display for CanonicalPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks that all escapes are well-formed and none stands for NUL.
fn check_escapes(raw: &str) -> Result<(), CanonicalPathError> {
    let mut rest = raw.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match (first, tail) {
            (0, _) | (b'%', [b'0', b'0', ..]) => return Err(CanonicalPathError::Nul),
            (b'%', [high, low, ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {}
            (b'%', _) => return Err(CanonicalPathError::BadEscape),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the path of a URL without `//`, `.` and `..` but with its escapes, for forwarding.
///
/// # Errors
/// See [`CanonicalPathError`]; it fails exactly where [`CanonicalPath::parse`] does, except for encoding errors.
pub fn resolve_encoded_path(raw: &str) -> Result<String, CanonicalPathError> {
    resolve_path_with_slashes(raw, EncodedSlashes::Refuse)
}

/// As [`resolve_encoded_path`], with another treatment of encoded slashes: kept ones are written `%2F`.
///
/// # Errors
/// See [`CanonicalPathError`].
pub fn resolve_path_with_slashes(
    raw: &str,
    encoded_slashes: EncodedSlashes,
) -> Result<String, CanonicalPathError> {
    if !raw.starts_with('/') {
        return Err(CanonicalPathError::NotAbsolute);
    }
    check_escapes(raw)?;
    let has_encoded_slash = raw.contains("%2F") || raw.contains("%2f");
    let raw = match encoded_slashes {
        EncodedSlashes::Keep if raw.contains("%252F") || raw.contains("%252f") => {
            return Err(CanonicalPathError::EncodedSlash);
        }
        _ if !has_encoded_slash => Cow::Borrowed(raw),
        EncodedSlashes::Refuse => return Err(CanonicalPathError::EncodedSlash),
        EncodedSlashes::Decode => Cow::Owned(raw.replace("%2F", "/").replace("%2f", "/")),
        EncodedSlashes::Keep => {
            let raw = raw.replace("%2f", "%2F");
            check_segments_beside_kept_slashes(&raw)?;
            Cow::Owned(raw)
        }
    };
    resolve_dot_segments(&raw)
}

/// Checks that no segment changes its meaning if a server decodes the slashes in it.
fn check_segments_beside_kept_slashes(raw: &str) -> Result<(), CanonicalPathError> {
    for segment in raw.split('/').filter(|segment| segment.contains("%2F")) {
        for part in segment.split("%2F").filter(|part| !part.is_empty()) {
            if !matches!(segment_step(part)?, SegmentStep::Child) {
                return Err(CanonicalPathError::EncodedSlash);
            }
        }
    }
    Ok(())
}

/// The effect of a segment on its path.
enum SegmentStep {
    Current,
    Parent,
    Child,
}

fn segment_step(segment: &str) -> Result<SegmentStep, CanonicalPathError> {
    let decoded = percent_decode_str(segment).collect::<Vec<u8>>();
    // Servlet containers remove `;parameters` before they resolve dot segments, so `..;x` leads upwards behind this
    // front.
    let name = decoded.split(|byte| *byte == b';').next().unwrap_or(&[]);
    match name {
        b"." | b".." if name.len() < decoded.len() => Err(CanonicalPathError::AboveRoot),
        b".." => Ok(SegmentStep::Parent),
        b"." => Ok(SegmentStep::Current),
        _ if decoded.is_empty() => Ok(SegmentStep::Current),
        _ => Ok(SegmentStep::Child),
    }
}

/// Resolves dot segments in a path that is still escaped, so that both forms are resolved identically.
fn resolve_dot_segments(raw: &str) -> Result<String, CanonicalPathError> {
    let mut retained_segments: Vec<&str> = Vec::new();
    let mut names_directory = false;
    for segment in raw.split('/') {
        let step = segment_step(segment)?;
        names_directory = !matches!(step, SegmentStep::Child);
        match step {
            SegmentStep::Current => {}
            SegmentStep::Parent => {
                retained_segments.pop().ok_or(CanonicalPathError::AboveRoot)?;
            }
            SegmentStep::Child => retained_segments.push(segment),
        }
    }
    let mut path = String::with_capacity(raw.len() + 1);
    for segment in &retained_segments {
        path.push('/');
        path.push_str(segment);
    }
    if names_directory {
        path.push('/');
    }
    Ok(path)
}
