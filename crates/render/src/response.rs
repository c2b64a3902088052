//! What rendering hands back. Only the server turns it into HTTP.

use std::borrow::Cow;
use std::time::SystemTime;

use bytes::Bytes;
use tympan_content::BlobId;

use crate::content_reader::RequestReads;
use crate::template::FragmentLookupCounts;
use crate::timing::RenderTiming;

/// The answer to one request.
#[derive(Debug)]
pub struct RenderResponse {
    /// How it went.
    pub outcome: RenderOutcome,
    /// The media type of the body, with its charset; empty without a body.
    pub content_type: Cow<'static, str>,
    /// More headers, with lower-case names.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: RenderResponseBody,
    /// What the body was drawn from.
    pub reads: RequestReads,
    /// How long each component took.
    pub timing: RenderTiming,
    /// How many components failed and left a placeholder.
    pub failed_component_count: u32,
    /// How fragments of it were looked up.
    pub fragment_counts: FragmentLookupCounts,
}

/// How a request went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenderOutcome {
    /// The body is what was asked for.
    Ok,
    /// The client should look elsewhere.
    Redirect {
        /// The URL to look at.
        location: String,
        /// How long that holds.
        kind: RedirectKind,
    },
    /// Too much for one answer; the body lists what can be asked instead.
    MultipleChoices,
    /// The URL cannot be understood.
    BadRequest,
    /// There is no such resource, or nothing draws it.
    NotFound,
    /// Nothing handles the method for this resource.
    MethodNotAllowed,
    /// Drawing failed.
    Error,
}

/// The kinds of redirects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RedirectKind {
    /// Moved for good; the method may become GET.
    Moved,
    /// Found elsewhere this time; the method may become GET.
    #[default]
    Found,
    /// See the other URL, with GET.
    SeeOther,
    /// Elsewhere this time, with the same method.
    Temporary,
    /// Elsewhere for good, with the same method.
    Permanent,
}

impl RedirectKind {
    /// Reads the number by which content and templates name the kind, such as 301.
    #[must_use]
    pub fn from_number(number: i64) -> Option<Self> {
        Some(match number {
            301 => Self::Moved,
            302 => Self::Found,
            303 => Self::SeeOther,
            307 => Self::Temporary,
            308 => Self::Permanent,
            _ => return None,
        })
    }
}

/// The body of an answer.
#[derive(Debug)]
pub enum RenderResponseBody {
    /// No body.
    Empty,
    /// Bytes that were drawn.
    Bytes(Bytes),
    /// Stored bytes; ask [`crate::conditional_request::plan_response`] how many of them, then open the blob.
    Blob(BlobBody),
}

impl From<Vec<u8>> for RenderResponseBody {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes.into())
    }
}

impl From<String> for RenderResponseBody {
    fn from(text: String) -> Self {
        Self::Bytes(text.into())
    }
}

/// A blob to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobBody {
    /// Which blob.
    pub id: BlobId,
    /// The entity tag in its quotes; strong, since it is the hash.
    pub etag: String,
    /// When the binary last changed, if content says so.
    pub last_modified: Option<SystemTime>,
}

/// The media type of pages.
pub(crate) const HTML_MEDIA_TYPE: &str = "text/html; charset=utf-8";

/// Returns the media type for an extension; text gets its charset.
pub(crate) fn media_type(extension: &str) -> Cow<'static, str> {
    // Most answers.
    match extension {
        "html" => return Cow::Borrowed(HTML_MEDIA_TYPE),
        "json" => return Cow::Borrowed("application/json; charset=utf-8"),
        _ => {}
    }
    let guess = mime_guess::from_ext(extension).first_raw().unwrap_or("application/octet-stream");
    let is_text = guess.starts_with("text/")
        || matches!(
            guess,
            "application/json" | "application/xml" | "application/javascript" | "image/svg+xml"
        );
    if is_text { Cow::Owned(format!("{guess}; charset=utf-8")) } else { Cow::Borrowed(guess) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_media_types() {
        for (extension, expected) in [
            ("html", HTML_MEDIA_TYPE),
            ("json", "application/json; charset=utf-8"),
            ("jpg", "image/jpeg"),
            ("css", "text/css; charset=utf-8"),
            ("pdf", "application/pdf"),
            ("nonsense", "application/octet-stream"),
        ] {
            assert_eq!(media_type(extension), expected);
        }
    }
}
