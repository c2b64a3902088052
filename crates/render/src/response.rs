//! The output of the renderer. Only the server converts it to HTTP.

pub(crate) mod charset;
pub mod conditional_request;
pub(crate) mod file_delivery;
pub(crate) mod json_dump;
pub(crate) mod resource_dump;
pub(crate) mod stored_file;

use std::borrow::Cow;
use std::time::SystemTime;

use bytes::Bytes;
use tympan_content::BlobId;

use crate::dependency::content_reader::RequestReads;
use crate::fragment::FragmentLookupCounts;
use crate::image_address::ImageAddress;
use crate::timing::RenderTiming;

/// The response to one request.
#[derive(Debug)]
pub struct RenderResponse {
    /// The outcome.
    pub outcome: RenderOutcome,
    /// The media type of the body, with its charset; empty without a body.
    pub content_type: Cow<'static, str>,
    /// More headers, with lower-case names.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: RenderResponseBody,
    /// The reads of the rendering.
    pub reads: RequestReads,
    /// The time of each component.
    pub timing: RenderTiming,
    /// Number of components that failed and left a placeholder.
    pub failed_component_count: u32,
    /// Counters of its fragment lookups.
    pub fragment_counts: FragmentLookupCounts,
}

impl RenderResponse {
    /// Returns true if the response forbids browsers to run the file as a part of the site.
    #[must_use]
    pub fn is_sandboxed(&self) -> bool {
        self.headers.iter().any(|(name, _)| *name == file_delivery::SANDBOX_HEADER.0)
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenderOutcome {
    /// The body is the requested content.
    Ok,
    /// The client should request another URL.
    Redirect {
        /// The other URL.
        location: String,
        /// The kind of the redirect.
        kind: RedirectKind,
    },
    /// Too large for one response; the body lists alternatives.
    MultipleChoices,
    /// The URL is malformed.
    BadRequest,
    /// The resource does not exist, or nothing renders it.
    NotFound,
    /// Nothing handles the method for this resource.
    MethodNotAllowed,
    /// Rendering failed.
    Error,
}

/// The kinds of redirects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RedirectKind {
    /// 301: moved permanently; the method may become GET.
    Moved,
    /// 302: found at another URL temporarily; the method may become GET.
    #[default]
    Found,
    /// 303: see the other URL, with GET.
    SeeOther,
    /// 307: temporary, with the same method.
    Temporary,
    /// 308: permanent, with the same method.
    Permanent,
}

impl RedirectKind {
    /// Returns the kind for the number used by content and templates, such as 301.
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

/// The body of a response.
#[derive(Debug)]
pub enum RenderResponseBody {
    /// No body.
    Empty,
    /// Rendered bytes.
    Bytes(Bytes),
    /// Stored bytes; use [`crate::response::conditional_request::plan_response`] to select the range, then open the blob.
    Blob(BlobBody),
    /// An image of an asset in a size, which whoever sends the response makes. The address is signed.
    Image(ImageAddress),
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
    /// The identifier of the blob.
    pub id: BlobId,
    /// The quoted entity tag; strong, since it is the hash.
    pub etag: String,
    /// The last modification of the binary, if content has one.
    pub last_modified: Option<SystemTime>,
}

/// The media type of pages.
pub(crate) const HTML_MEDIA_TYPE: &str = "text/html; charset=utf-8";

/// Returns the media type for an extension; text gets its charset.
#[must_use]
pub fn media_type(extension: &str) -> Cow<'static, str> {
    // The most frequent types.
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
