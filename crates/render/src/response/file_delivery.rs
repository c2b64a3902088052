//! Delivery of stored files: the media type, and the headers that prevent code in a file from running as the site.
//!
//! Input: the file's name, and the media type from content, which any user with upload rights may have set. Output: the
//! media type to send, and the headers that restrict active content.
//!
//! Invariants
//! * A type is sent only if it is well-formed and in the lists below, in their spelling. Any other value, such as
//!   `image/png,text/html`, is never repeated to a browser, as browsers and caches interpret it differently.
//! * A file that may run code when opened on its own is sent with `Content-Security-Policy: sandbox`: its scripts do
//!   not run and it has no origin, so that it cannot use a session. The name is checked as well as the type, as a web
//!   server behind a static export uses the name.
//! * Everything that is not known to be harmless is sent as an attachment.
//!
//! Not here: `X-Content-Type-Options`, without which the type has no effect; the server sends it with every response.

use std::borrow::Cow;

/// The degree of trust in a stored file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileContainment {
    /// It runs no code and is shown like any other part of a page.
    Inline,
    /// It may be opened, but has no origin and runs no code.
    Sandbox,
    /// It is saved, not opened.
    Attachment,
}

/// The media type and headers of a stored file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDelivery {
    media_type: Cow<'static, str>,
    containment: FileContainment,
}

/// The media type of unknown bytes.
const OCTET_STREAM_TYPE: &str = "application/octet-stream";

/// The media types that a browser shows or saves without running any code in them.
///
/// PDF is included: browsers show it in a viewer with its own origin, which a sandbox would disable.
const INLINE_TYPES: &[&str] = &[
    "application/epub+zip",
    "application/gzip",
    "application/javascript",
    "application/json",
    "application/ld+json",
    "application/manifest+json",
    "application/msword",
    "application/pdf",
    "application/postscript",
    "application/rtf",
    "application/vnd.apple.mpegurl",
    "application/vnd.ms-excel",
    "application/vnd.ms-fontobject",
    "application/vnd.ms-powerpoint",
    "application/vnd.oasis.opendocument.graphics",
    "application/vnd.oasis.opendocument.presentation",
    "application/vnd.oasis.opendocument.spreadsheet",
    "application/vnd.oasis.opendocument.text",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "application/vnd.openxmlformats-officedocument.presentationml.slideshow",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "application/wasm",
    "application/x-7z-compressed",
    "application/x-bzip2",
    "application/x-font-ttf",
    "application/x-javascript",
    "application/x-tar",
    "application/zip",
    "audio/aac",
    "audio/flac",
    "audio/midi",
    "audio/mp3",
    "audio/mp4",
    "audio/mpeg",
    "audio/ogg",
    "audio/opus",
    "audio/wav",
    "audio/webm",
    "audio/x-aiff",
    "audio/x-m4a",
    "audio/x-ms-wma",
    "audio/x-wav",
    "font/collection",
    "font/otf",
    "font/ttf",
    "font/woff",
    "font/woff2",
    "image/apng",
    "image/avif",
    "image/bmp",
    "image/gif",
    "image/heic",
    "image/heif",
    "image/jp2",
    "image/jpeg",
    "image/jpg",
    "image/jxl",
    "image/pjpeg",
    "image/png",
    "image/tiff",
    "image/vnd.adobe.photoshop",
    "image/vnd.microsoft.icon",
    "image/webp",
    "image/x-icon",
    "image/x-ms-bmp",
    "image/x-png",
    "model/gltf+json",
    "model/gltf-binary",
    "model/stl",
    "text/calendar",
    "text/css",
    "text/csv",
    "text/ecmascript",
    "text/javascript",
    "text/markdown",
    "text/plain",
    "text/rtf",
    "text/tab-separated-values",
    "text/vcard",
    "text/vtt",
    "video/3gpp",
    "video/mp2t",
    "video/mp4",
    "video/mpeg",
    "video/ogg",
    "video/quicktime",
    "video/webm",
    "video/x-flv",
    "video/x-m4v",
    "video/x-matroska",
    "video/x-ms-wmv",
    "video/x-msvideo",
];

/// The media types that browsers open as documents and that may carry code; for XML, those in use on the web.
const ACTIVE_TYPES: &[&str] = &[
    "application/atom+xml",
    "application/mathml+xml",
    "application/rdf+xml",
    "application/rss+xml",
    "application/xhtml+xml",
    "application/xml",
    "application/xslt+xml",
    "image/svg+xml",
    "text/html",
    "text/xml",
];

/// Charsets allowed for text: supersets of ASCII, so that no bytes turn into markup.
const SAFE_CHARSETS: &[&str] = &[
    "us-ascii",
    "utf-8",
    "iso-8859-1",
    "iso-8859-2",
    "iso-8859-5",
    "iso-8859-7",
    "iso-8859-9",
    "iso-8859-15",
    "windows-1250",
    "windows-1251",
    "windows-1252",
    "windows-1253",
    "windows-1254",
    "windows-1257",
    "koi8-r",
    "gbk",
    "gb2312",
    "gb18030",
    "big5",
    "euc-jp",
    "euc-kr",
    "shift_jis",
];

impl FileDelivery {
    /// Decides the delivery from the media type in content, which may be empty, and the file's name.
    #[must_use]
    pub fn new(declared: &str, name: &str) -> Self {
        let by_name = Self::from_name(name);
        match (Self::from_declared_type(declared), by_name) {
            (Some(delivery), Some(by_name)) => {
                let containment = match by_name.containment {
                    FileContainment::Inline => delivery.containment,
                    _ => delivery.containment.max(FileContainment::Sandbox),
                };
                Self { containment, ..delivery }
            }
            (Some(delivery), None) => delivery,
            (None, Some(delivery)) => delivery,
            (None, None) => Self::octet_stream(),
        }
    }

    /// Returns the value of `Content-Type`.
    #[must_use]
    pub fn media_type(&self) -> &str {
        &self.media_type
    }

    /// Returns the degree of trust in the file.
    #[must_use]
    pub fn containment(&self) -> FileContainment {
        self.containment
    }

    /// Returns the restricting headers, with lower-case names.
    #[must_use]
    pub fn headers(&self) -> &'static [(&'static str, &'static str)] {
        match self.containment {
            FileContainment::Inline => &[],
            FileContainment::Sandbox => &[SANDBOX_HEADER],
            FileContainment::Attachment => &[SANDBOX_HEADER, ("content-disposition", "attachment")],
        }
    }

    /// Returns the media type.
    pub(crate) fn into_media_type(self) -> Cow<'static, str> {
        self.media_type
    }

    /// Decides by a file's name; `None` if the extension is unknown.
    fn from_name(name: &str) -> Option<Self> {
        let (_, extension) = name.rsplit_once('.')?;
        let guess = mime_guess::from_ext(extension.trim_end()).first_raw();
        let guess = guess.filter(|guess| *guess != OCTET_STREAM_TYPE)?;
        let charset = guess.starts_with("text/") || guess == "image/svg+xml";
        let charset = if charset { "; charset=utf-8" } else { "" };
        Some(
            Self::from_declared_type(&format!("{guess}{charset}"))
                .unwrap_or_else(Self::octet_stream),
        )
    }

    /// Decides by a media type; `None` if it is empty or not understood.
    fn from_declared_type(declared: &str) -> Option<Self> {
        let (essence, parameters) = declared.split_once(';').unwrap_or((declared, ""));
        let essence = essence.trim_matches([' ', '\t']).to_ascii_lowercase();
        let (kind, subtype) = essence.split_once('/')?;
        if !is_token(kind) || !is_token(subtype) {
            return None;
        }
        let find = |list: &[&'static str]| {
            list.iter().find(|listed_type| **listed_type == essence).copied()
        };
        let (listed, containment) = match (find(INLINE_TYPES), find(ACTIVE_TYPES)) {
            (Some(listed), _) => (listed, FileContainment::Inline),
            (None, Some(listed)) => (listed, FileContainment::Sandbox),
            (None, None) if subtype == "xml" || subtype.ends_with("+xml") => {
                ("application/xml", FileContainment::Sandbox)
            }
            (None, None) => return Some(Self::octet_stream()),
        };
        let media_type = match safe_charset(parameters) {
            Some(charset) => Cow::Owned(format!("{listed}; charset={charset}")),
            None => Cow::Borrowed(listed),
        };
        Some(Self { media_type, containment })
    }

    /// Returns the delivery of unknown bytes.
    fn octet_stream() -> Self {
        Self {
            media_type: Cow::Borrowed(OCTET_STREAM_TYPE),
            containment: FileContainment::Attachment,
        }
    }
}

/// The header that disables scripts in a document and separates it from the site's origin.
pub(crate) const SANDBOX_HEADER: (&str, &str) = ("content-security-policy", "sandbox");

/// Returns the charset parameter of a media type if text may be sent in it.
fn safe_charset(parameters: &str) -> Option<&'static str> {
    let value = parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"'))
    })?;
    SAFE_CHARSETS.iter().find(|charset| charset.eq_ignore_ascii_case(value)).copied()
}

/// Returns true if a text is a token of RFC 9110.
fn is_token(text: &str) -> bool {
    let is_special = |byte: u8| b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || is_special(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(declared: &str, name: &str, media_type: &str, containment: FileContainment) {
        let delivery = FileDelivery::new(declared, name);
        assert_eq!(delivery.media_type(), media_type, "{declared:?} {name:?}");
        assert_eq!(delivery.containment(), containment, "{declared:?} {name:?}");
    }

    #[test]
    fn known_types_are_sent_in_their_own_spelling() {
        use FileContainment::{Attachment, Inline, Sandbox};
        check("image/png", "a.png", "image/png", Inline);
        check(" IMAGE/Png ", "a.png", "image/png", Inline);
        check("text/plain; Charset=\"UTF-8\"", "a.txt", "text/plain; charset=utf-8", Inline);
        check("text/plain;charset=utf-7", "a.txt", "text/plain", Inline);
        check("video/mp4; codecs=avc1", "a.mp4", "video/mp4", Inline);
        check("text/html; charset=gbk", "a.html", "text/html; charset=gbk", Sandbox);
        check("image/svg+xml", "a.svg", "image/svg+xml", Sandbox);
        check("application/vnd.google-earth.kml+xml", "a.kml", "application/xml", Sandbox);
        check("application/x-unheard-of", "a", OCTET_STREAM_TYPE, Attachment);
        check(OCTET_STREAM_TYPE, "a.bin", OCTET_STREAM_TYPE, Attachment);
    }

    #[test]
    fn what_is_no_media_type_is_never_repeated() {
        use FileContainment::{Attachment, Inline, Sandbox};
        for odd in [
            "image/png,text/html",
            "image/png, text/html",
            "text/html,image/png",
            "text/html image/png",
            "text/html\n",
            "\u{b}text/html",
            "text/ html",
            "text//html",
            "text/html/",
            "/html",
            "text/",
            "html",
            "",
            " ",
            ";charset=utf-8",
            "text\u{ff0f}html",
            "\"text/html\"",
            "text/html\0",
        ] {
            check(odd, "a", OCTET_STREAM_TYPE, Attachment);
            check(odd, "a.png", "image/png", Inline);
            check(odd, "a.html", "text/html; charset=utf-8", Sandbox);
        }
    }

    #[test]
    fn names_of_documents_are_contained_whatever_their_type() {
        use FileContainment::{Attachment, Inline, Sandbox};
        check("image/png", "a.html", "image/png", Sandbox);
        check("text/plain", "a.SVG", "text/plain", Sandbox);
        check("image/png", "a.xhtml", "image/png", Sandbox);
        check("image/png", "a.mht", "image/png", Sandbox);
        check("image/png", "a.bin", "image/png", Inline);
        check("image/png", "a.unheard-of", "image/png", Inline);
        check("", "a.unheard-of", OCTET_STREAM_TYPE, Attachment);
        check("text/html", "a.png", "text/html", Sandbox);
    }

    #[test]
    fn the_lists_hold_media_types_as_they_are_compared() {
        for listed in INLINE_TYPES.iter().chain(ACTIVE_TYPES) {
            assert_eq!(*listed, listed.to_ascii_lowercase());
            assert!(listed.split_once('/').is_some_and(|(a, b)| is_token(a) && is_token(b)));
        }
        assert!(INLINE_TYPES.iter().all(|one| !one.ends_with("xml") && !one.contains("html")));
        assert!(SAFE_CHARSETS.iter().all(|charset| *charset == charset.to_ascii_lowercase()));
    }
}
