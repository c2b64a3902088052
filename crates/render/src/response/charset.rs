//! Pages in charsets other than UTF-8, as declared in their head.
//!
//! Templates are rendered in UTF-8. A page that says `<meta charset="gbk">`, as migrated sites do, is encoded and
//! labeled so in the last step. A character that the charset lacks becomes a numeric character reference. Browsers
//! submit forms of such a page in its charset, and send the charset's name as `_charset_` if the form has a hidden
//! field of that name.

use std::borrow::Cow;

use bytes::Bytes;
use encoding_rs::{Encoding, UTF_8};
use tympan_web::html_charset;

use crate::response::HTML_MEDIA_TYPE;

/// Encodes a page as its head declares; `None` if it is UTF-8 already or is no page.
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

/// Decodes a text by the charset of its media type; `None` if it is malformed.
#[must_use]
pub fn decode_by_media_type<'a>(content_type: &str, bytes: &'a [u8]) -> Option<Cow<'a, str>> {
    match media_type_encoding(content_type) {
        None => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Some(encoding) => encoding.decode_without_bom_handling_and_without_replacement(bytes),
    }
}

/// Encodes a text by the charset of its media type.
#[must_use]
pub fn encode_by_media_type(content_type: &str, text: String) -> Bytes {
    match media_type_encoding(content_type) {
        None => text.into(),
        Some(encoding) => Bytes::from(encoding.encode(&text).0.into_owned()),
    }
}

/// Decodes a part of a form or query by its charset, or as UTF-8 if the charset is unknown or absent. Malformed bytes
/// become replacement characters.
pub(crate) fn decode_parameter(label: Option<&str>, bytes: &[u8]) -> String {
    let encoding = label.and_then(find_encoding).unwrap_or(UTF_8);
    encoding.decode_without_bom_handling(bytes).0.into_owned()
}

/// Returns the charset of a media type if it is not UTF-8.
fn media_type_encoding(content_type: &str) -> Option<&'static Encoding> {
    find_encoding(content_type.split_once("charset=")?.1.trim())
}

/// Returns a charset by its label if it is not UTF-8 and can be encoded.
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
