//! Pages in other charsets than UTF-8: in the one that their head declares.
//!
//! Templates are drawn in UTF-8. A page that says `<meta charset="gbk">`, as pages of sites do that come from elsewhere, is
//! encoded and labeled so at the very end; a letter that the charset lacks becomes a reference by its number. Browsers send
//! forms of such a page in its charset, and its name as `_charset_` where the form has a hidden field of that name.

use std::borrow::Cow;

use bytes::Bytes;
use encoding_rs::{Encoding, UTF_8};
use tympan_web::html_charset;

use crate::response::HTML_MEDIA_TYPE;

/// Encodes a page as its head declares; nothing for what is UTF-8 already, and for what is no page.
pub(crate) fn encode_as_declared(content_type: &str, page: &[u8]) -> Option<(String, Bytes)> {
    if content_type != HTML_MEDIA_TYPE {
        return None;
    }
    let encoding = find_encoding(html_charset::declared_charset(page)?)?;
    let text = std::str::from_utf8(page).ok()?;
    let (encoded, _, _) = encoding.encode(text);
    let media_type = format!("text/html; charset={}", encoding.name().to_ascii_lowercase());
    Some((media_type, Bytes::from(encoded.into_owned())))
}

/// Reads a text by the charset of its media type; nothing if it is damaged.
pub(crate) fn decode_by_media_type<'a>(
    content_type: &str,
    bytes: &'a [u8],
) -> Option<Cow<'a, str>> {
    match media_type_encoding(content_type) {
        None => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Some(encoding) => encoding.decode_without_bom_handling_and_without_replacement(bytes),
    }
}

/// Writes a text by the charset of its media type.
pub(crate) fn encode_by_media_type(content_type: &str, text: String) -> Bytes {
    match media_type_encoding(content_type) {
        None => text.into(),
        Some(encoding) => Bytes::from(encoding.encode(&text).0.into_owned()),
    }
}

/// Decodes a part of a form or query that was sent in a charset; without one that is known, as UTF-8. What does not decode is
/// kept with replacement characters.
pub(crate) fn decode_parameter(label: Option<&str>, bytes: &[u8]) -> String {
    let encoding = label.and_then(find_encoding).unwrap_or(UTF_8);
    encoding.decode_without_bom_handling(bytes).0.into_owned()
}

/// Returns the charset of a media type, if it is another one than UTF-8.
fn media_type_encoding(content_type: &str) -> Option<&'static Encoding> {
    find_encoding(content_type.split_once("charset=")?.1.trim())
}

/// Returns a charset by its label, if it is another one than UTF-8 and can be written.
fn find_encoding(label: &str) -> Option<&'static Encoding> {
    let encoding = Encoding::for_label(label.as_bytes())?;
    (encoding != UTF_8 && encoding.output_encoding() == encoding).then_some(encoding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_encoded_as_they_declare() {
        let gbk = "<meta http-equiv=\"Content-Type\" content=\"text/html; charset=gb2312\">你好 😀";
        let (media_type, bytes) = encode_as_declared(HTML_MEDIA_TYPE, gbk.as_bytes()).unwrap();
        assert_eq!(media_type, "text/html; charset=gbk");
        assert!(bytes.ends_with(b"\">\xc4\xe3\xba\xc3 &#128512;"), "{bytes:?}");
        let text = decode_by_media_type(&media_type, &bytes).unwrap();
        assert_eq!(encode_by_media_type(&media_type, text.into_owned()), bytes);
        for page in [
            "<meta charset=utf-8>你好",
            "<meta charset=utf-16>你好",
            "<meta charset=none>你好",
            "<p>你好",
        ] {
            assert_eq!(encode_as_declared(HTML_MEDIA_TYPE, page.as_bytes()), None, "{page}");
        }
        assert_eq!(encode_as_declared("text/plain; charset=utf-8", gbk.as_bytes()), None);
    }

    #[test]
    fn forms_are_read_as_they_were_sent() {
        assert_eq!(decode_parameter(Some("gbk"), b"\xc4\xe3\xba\xc3"), "你好");
        assert_eq!(decode_parameter(None, "ä".as_bytes()), "ä");
        assert_eq!(decode_parameter(Some("none"), b"\xff"), "\u{fffd}");
    }
}
