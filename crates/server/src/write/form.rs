//! Form bodies: urlencoded or multipart. Files are written to temporary files as they arrive.

use std::io::Write;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use encoding_rs::Encoding;
use futures_util::{Stream, StreamExt};
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;
use multer::{Constraints, Multipart, SizeLimit};
use parking_lot::Mutex;
use percent_encoding::percent_decode;
use tempfile::NamedTempFile;
use tympan_web::body_limit::limit_body;

use crate::failure::{RequestFailure, Result};

/// Maximum total size of the text fields of a form, in bytes.
const MAX_FORM_TEXT_BYTES: u64 = 8 * 1024 * 1024;
/// Maximum number of fields in a form.
const MAX_FORM_FIELDS: usize = 2_000;
/// Maximum size of the headers of a part, in bytes.
const MAX_PART_HEADER_BYTES: usize = 16 * 1024;
/// Maximum number of files in a form; each keeps a file open until the request ends.
const MAX_FORM_FILES: usize = 500;

/// A form field.
#[derive(Debug)]
pub(crate) struct FormField {
    pub(crate) name: String,
    pub(crate) value: FormFieldValue,
}

/// The value of a form field.
#[derive(Debug)]
pub(crate) enum FormFieldValue {
    Text(String),
    File(FormUpload),
}

/// An uploaded file.
#[derive(Debug)]
pub(crate) struct FormUpload {
    pub(crate) file: NamedTempFile,
    pub(crate) name: String,
    pub(crate) media_type: Option<String>,
}

#[cfg(test)]
impl FormField {
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            FormFieldValue::Text(text) => Some(text),
            FormFieldValue::File(_) => None,
        }
    }
}

/// Reads a form. `spool` stores the files until the request has processed them.
pub(crate) async fn read_form(
    headers: &HeaderMap,
    body: Body,
    spool: &Path,
) -> Result<Vec<FormField>> {
    let media_type =
        headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if let Ok(boundary) = multer::parse_boundary(media_type) {
        return read_multipart_form(body, boundary, spool).await;
    }
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    if !essence.is_empty() && !essence.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        let message =
            "the body must be a form: multipart/form-data or application/x-www-form-urlencoded";
        return Err(RequestFailure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let bytes = Body::new(limit_body(body, MAX_FORM_TEXT_BYTES));
    let bytes = bytes.collect().await.map_err(|error| body_read_failure(&error))?.to_bytes();
    parse_urlencoded_form(&bytes)
}

async fn read_multipart_form(body: Body, boundary: String, spool: &Path) -> Result<Vec<FormField>> {
    let constraints =
        Constraints::new().size_limit(SizeLimit::new().whole_stream(u64::MAX).per_field(u64::MAX));
    let headers = PartHeaderLimit::default();
    let stream = headers.limit_stream(body.into_data_stream());
    let mut parts = Multipart::with_constraints(stream, boundary, constraints);
    let mut fields = Vec::new();
    let mut texts = Vec::new();
    let mut text_left = MAX_FORM_TEXT_BYTES;
    let mut files = 0;
    loop {
        headers.begin_header();
        let part = parts.next_field().await.map_err(|error| body_read_failure(&error))?;
        headers.end_header();
        let Some(mut part) = part else { break };
        if fields.len() >= MAX_FORM_FIELDS {
            return Err(RequestFailure::bad_request("the form has too many fields"));
        }
        let name = part.name().unwrap_or_default().to_owned();
        text_left = text_left.checked_sub(name.len() as u64).ok_or_else(form_too_long_failure)?;
        let value = match part.file_name().map(str::to_owned) {
            Some(file_name) if !file_name.is_empty() => {
                files += 1;
                if files > MAX_FORM_FILES {
                    return Err(RequestFailure::bad_request("the form has too many files"));
                }
                FormFieldValue::File(read_file_part(part, file_name, spool).await?)
            }
            // A file field for which no file was chosen.
            Some(_) => {
                while part.chunk().await.map_err(|error| body_read_failure(&error))?.is_some() {}
                continue;
            }
            None => {
                let (text, left) = read_text_part(part, text_left).await?;
                text_left = left;
                texts.push((fields.len(), text));
                FormFieldValue::Text(String::new())
            }
        };
        fields.push(FormField { name, value });
    }
    decode_form_texts(fields, texts)
}

fn form_too_long_failure() -> RequestFailure {
    RequestFailure::new(StatusCode::PAYLOAD_TOO_LARGE, "the text fields of the form are too long")
}

/// Limit on the headers of a part, because the parser buffers them in memory until they are complete.
#[derive(Debug, Default, Clone)]
struct PartHeaderLimit(Arc<Mutex<PartHeaderCount>>);

#[derive(Debug, Default)]
struct PartHeaderCount {
    /// True while the parser searches for the start of a part.
    is_in_header: bool,
    /// Number of bytes that the parser has received since then.
    bytes: usize,
}

/// The headers of a part exceed the limit.
#[derive(Debug, thiserror::Error)]
#[error("a part of the form has more than {MAX_PART_HEADER_BYTES} bytes of headers")]
struct PartHeadersTooLong;

impl PartHeaderLimit {
    fn begin_header(&self) {
        *self.0.lock() = PartHeaderCount { is_in_header: true, bytes: 0 };
    }

    fn end_header(&self) {
        self.0.lock().is_in_header = false;
    }

    /// Counts bytes that the parser requests.
    fn count_bytes(&self, bytes: usize) -> Result<(), PartHeadersTooLong> {
        let mut count = self.0.lock();
        if !count.is_in_header {
            return Ok(());
        }
        // The last bytes may already belong to the body of the part.
        if count.bytes > MAX_PART_HEADER_BYTES {
            return Err(PartHeadersTooLong);
        }
        count.bytes += bytes;
        Ok(())
    }

    /// Limits the input of the parser to one piece at a time; otherwise it would read all available data into memory.
    fn limit_stream(
        &self,
        stream: axum::body::BodyDataStream,
    ) -> impl Stream<Item = Result<Bytes, axum::Error>> + Send + use<> {
        let headers = self.clone();
        let counted = stream.map(move |piece| {
            let piece = piece?;
            headers.count_bytes(piece.len()).map_err(axum::Error::new)?;
            Ok(piece)
        });
        SingleItemStream { stream: Box::pin(counted), has_yielded: false }
    }
}

/// A stream that is pending once after each item, so that a consumer that reads all available items handles each one
/// separately.
struct SingleItemStream<S> {
    stream: Pin<Box<S>>,
    has_yielded: bool,
}

impl<S: Stream> Stream for SingleItemStream<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        if std::mem::take(&mut self.has_yielded) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let next = self.stream.as_mut().poll_next(cx);
        self.has_yielded = matches!(next, Poll::Ready(Some(_)));
        next
    }
}

/// Decodes the text fields in the charset that the field `_charset_` names.
fn decode_form_texts(
    mut fields: Vec<FormField>,
    texts: Vec<(usize, Vec<u8>)>,
) -> Result<Vec<FormField>> {
    let is_charset = |at: &usize| fields.get(*at).is_some_and(|field| field.name == CHARSET_FIELD);
    let charset = texts.iter().find(|(at, _)| is_charset(at)).map(|(_, text)| text.as_slice());
    let charset = FormCharset::find(charset)?;
    for (at, text) in texts {
        if let Some(field) = fields.get_mut(at) {
            field.value = FormFieldValue::Text(charset.decode(text)?);
        }
    }
    Ok(fields)
}

/// The field that names the charset of the form.
const CHARSET_FIELD: &str = "_charset_";

/// The charset of the text fields of a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FormCharset {
    Utf8,
    /// ISO-8859-1 as in Java: each byte maps to the code point of the same number.
    Latin1,
    Other(&'static Encoding),
}

impl FormCharset {
    /// Finds a charset by name; UTF-8 if there is no name.
    fn find(name: Option<&[u8]>) -> Result<Self> {
        let name = String::from_utf8_lossy(name.unwrap_or(b"utf-8")).trim().to_ascii_lowercase();
        match name.as_str() {
            "" | "utf-8" | "utf8" | "us-ascii" => Ok(Self::Utf8),
            "iso-8859-1" | "latin1" => Ok(Self::Latin1),
            name => match Encoding::for_label(name.as_bytes()) {
                Some(encoding) => Ok(Self::Other(encoding)),
                None => {
                    let message = format!("`_charset_` names an unknown charset: `{name}`");
                    Err(RequestFailure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
                }
            },
        }
    }

    fn decode(self, bytes: Vec<u8>) -> Result<String> {
        match self {
            Self::Utf8 => String::from_utf8(bytes)
                .map_err(|_| RequestFailure::bad_request("the form is not UTF-8")),
            Self::Latin1 => Ok(bytes.into_iter().map(char::from).collect()),
            Self::Other(encoding) => encoding
                .decode_without_bom_handling_and_without_replacement(&bytes)
                .map(std::borrow::Cow::into_owned)
                .ok_or_else(|| {
                    RequestFailure::bad_request(format!("the form is not {}", encoding.name()))
                }),
        }
    }
}

/// Reads a text field as it arrives, limited to `left` bytes; returns the text and the remaining number of bytes.
async fn read_text_part(mut part: multer::Field<'_>, left: u64) -> Result<(Vec<u8>, u64)> {
    let mut bytes = Vec::new();
    while let Some(piece) = part.chunk().await.map_err(|error| body_read_failure(&error))? {
        if (bytes.len() + piece.len()) as u64 > left {
            return Err(form_too_long_failure());
        }
        bytes.extend_from_slice(&piece);
    }
    let left = left - bytes.len() as u64;
    Ok((bytes, left))
}

async fn read_file_part(
    mut part: multer::Field<'_>,
    file_name: String,
    spool: &Path,
) -> Result<FormUpload> {
    // Old browsers sent complete paths.
    let name = file_name.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
    let media_type = part.content_type().map(ToString::to_string);
    let mut file = NamedTempFile::new_in(spool)?;
    while let Some(piece) = part.chunk().await.map_err(|error| body_read_failure(&error))? {
        file = tokio::task::spawn_blocking(move || file.write_all(&piece).map(|()| file)).await??;
    }
    Ok(FormUpload { file, name, media_type })
}

pub(crate) fn parse_urlencoded_form(bytes: &Bytes) -> Result<Vec<FormField>> {
    let decode = |part: &[u8]| -> Vec<u8> {
        let spaced: Vec<u8> =
            part.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
        percent_decode(&spaced).collect()
    };
    let split = |pair: &'_ [u8]| {
        let at = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
        let (name, value) = pair.split_at(at);
        (decode(name), decode(value.get(1..).unwrap_or_default()))
    };
    let pairs = bytes.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty());
    let pairs: Vec<(Vec<u8>, Vec<u8>)> = pairs.take(MAX_FORM_FIELDS + 1).map(split).collect();
    if pairs.len() > MAX_FORM_FIELDS {
        return Err(RequestFailure::bad_request("the form has too many fields"));
    }
    let charset = pairs.iter().find(|(name, _)| name == CHARSET_FIELD.as_bytes());
    let charset = FormCharset::find(charset.map(|(_, name)| name.as_slice()))?;
    let field = |(name, value)| {
        Ok(FormField {
            name: charset.decode(name)?,
            value: FormFieldValue::Text(charset.decode(value)?),
        })
    };
    pairs.into_iter().map(field).collect()
}

/// Classifies an error that occurred while a body was read.
pub(crate) fn body_read_failure(error: &(dyn std::error::Error + 'static)) -> RequestFailure {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    if causes.any(|cause| cause.is::<PartHeadersTooLong>()) {
        RequestFailure::new(StatusCode::PAYLOAD_TOO_LARGE, PartHeadersTooLong.to_string())
    } else {
        RequestFailure::unreadable_body(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_in_the_charset_of_the_form() {
        let check = |form: &'static [u8], expected: &str| {
            let fields = parse_urlencoded_form(&Bytes::from_static(form)).unwrap();
            let text = |field: &FormField| format!("{}={}", field.name, field.text().unwrap());
            assert_eq!(fields.iter().map(text).collect::<Vec<_>>().join(" "), expected);
        };
        check(b"a=%C3%BC&b+c=1%2B1", "a=\u{fc} b c=1+1");
        check(b"a=%FC&_charset_=ISO-8859-1", "a=\u{fc} _charset_=ISO-8859-1");
        check(b"a=%C4%E3%BA%C3&_charset_=gbk", "a=你好 _charset_=gbk");
        let damaged = parse_urlencoded_form(&Bytes::from_static(b"a=%C4%FF&_charset_=gbk"));
        assert!(damaged.is_err());
        check(b"a&=b&&c=", "a= =b c=");
        assert!(parse_urlencoded_form(&Bytes::from_static(b"a=%FC")).is_err());
        let unknown = parse_urlencoded_form(&Bytes::from_static(b"a=b&_charset_=ebcdic"));
        assert_eq!(unknown.unwrap_err().status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
}
