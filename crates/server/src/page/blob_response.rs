//! Stored binaries over HTTP: complete, in part, or as 304 if the client already has them.

use axum::body::Body as HttpBody;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tympan_content::{BlobContent, Repository};
use tympan_render::BlobBody;
use tympan_render::conditional_request::{self, BinaryResponsePlan, ConditionalHeaders};
use tympan_web::http_date::format_http_date;
use tympan_web::reader_body::body_from_reader;
use tympan_web::shortcut::{MAX_SHORTCUT_FILE_BYTES, ReadyResponseBody};

use super::response::set_header;
use crate::failure::{RequestFailure, Result};

/// Returns a blob, or the requested range of it.
pub(crate) fn send_blob(
    repository: &Repository,
    blob: &BlobBody,
    request_headers: &HeaderMap,
    is_head: bool,
) -> Result<Response> {
    let part = RequestedBlobPart::from_headers(blob, request_headers);
    let body = match part.has_no_body(is_head) {
        true => None,
        false => {
            let missing = || RequestFailure::from(tympan_content::Error::BlobMissing(blob.id));
            let content = repository.blobs().open(&blob.id);
            let content = content.map_err(tympan_content::Error::from)?.ok_or_else(missing)?;
            Some(read_blob_part(content, part.offset, part.length)?)
        }
    };
    Ok(part.to_response(blob, body))
}

/// Same as `send_blob`, without blocking; `None` if the bytes are not in memory.
pub(crate) fn send_available_blob(
    repository: &Repository,
    blob: &BlobBody,
    request_headers: &HeaderMap,
    is_head: bool,
) -> Option<Response> {
    let part = RequestedBlobPart::from_headers(blob, request_headers);
    let body = match part.has_no_body(is_head) {
        true => None,
        false => {
            let bytes = BlobContent::Bytes(repository.blobs().find_in_memory(&blob.id)?);
            Some(read_blob_part(bytes, part.offset, part.length).ok()?)
        }
    };
    Some(part.to_response(blob, body))
}

/// Same for a socket: returns the head and the source of the body, which is an open file if there is one.
pub(crate) fn send_blob_to_socket(
    repository: &Repository,
    blob: &BlobBody,
    request_headers: &HeaderMap,
    is_head: bool,
) -> Option<(Response, ReadyResponseBody)> {
    let part = RequestedBlobPart::from_headers(blob, request_headers);
    let body = match part.has_no_body(is_head) {
        true => ReadyResponseBody::Empty,
        false => {
            let blobs = repository.blobs();
            let is_sent_from_file = part.length <= MAX_SHORTCUT_FILE_BYTES;
            match is_sent_from_file.then(|| blobs.find_file(&blob.id)).flatten() {
                Some(file) => {
                    ReadyResponseBody::File { file, start: part.offset, length: part.length }
                }
                None => {
                    let bytes = blobs.find_in_memory(&blob.id)?;
                    let (from, to) = (part.offset as usize, (part.offset + part.length) as usize);
                    ReadyResponseBody::Bytes(
                        bytes.slice(from.min(bytes.len())..to.min(bytes.len())),
                    )
                }
            }
        }
    };
    Some((part.to_response(blob, None), body))
}

/// The requested part of a blob.
struct RequestedBlobPart {
    status: StatusCode,
    offset: u64,
    length: u64,
}

impl RequestedBlobPart {
    fn from_headers(blob: &BlobBody, request_headers: &HeaderMap) -> Self {
        let text =
            |name| request_headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let conditions = ConditionalHeaders {
            if_none_match: text(header::IF_NONE_MATCH),
            if_modified_since: text(header::IF_MODIFIED_SINCE),
            range: text(header::RANGE),
            if_range: text(header::IF_RANGE),
        };
        let length = blob.id.length();
        let (status, start, count) = match conditional_request::plan_response(
            &conditions,
            length,
            &blob.etag,
            blob.last_modified,
        ) {
            BinaryResponsePlan::Full => (StatusCode::OK, 0, length),
            BinaryResponsePlan::NotModified => (StatusCode::NOT_MODIFIED, 0, 0),
            BinaryResponsePlan::Partial { start, len } => (StatusCode::PARTIAL_CONTENT, start, len),
            BinaryResponsePlan::Unsatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, 0, 0),
        };
        Self { status, offset: start, length: count }
    }

    fn has_no_body(&self, is_head: bool) -> bool {
        is_head || self.length == 0
    }

    fn to_response(&self, blob: &BlobBody, body: Option<HttpBody>) -> Response {
        let (length, Self { status, offset, length: count }) = (blob.id.length(), self);
        let mut response = match body {
            Some(body) => (*status, body).into_response(),
            None => status.into_response(),
        };
        let headers = response.headers_mut();
        if matches!(*status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(*count));
        }
        match *status {
            StatusCode::PARTIAL_CONTENT => {
                let range = format!("bytes {offset}-{}/{length}", offset + count - 1);
                set_header(headers, header::CONTENT_RANGE, &range);
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                set_header(headers, header::CONTENT_RANGE, &format!("bytes */{length}"))
            }
            _ => {}
        }
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        set_header(headers, header::ETAG, &blob.etag);
        if let Some(date) = blob.last_modified.and_then(format_http_date) {
            set_header(headers, header::LAST_MODIFIED, &date);
        }
        response
    }
}

/// Returns a body with a range of a blob.
fn read_blob_part(content: BlobContent, start: u64, count: u64) -> Result<HttpBody> {
    match content {
        BlobContent::Bytes(bytes) => {
            let (from, to) = (start as usize, (start + count) as usize);
            Ok(HttpBody::from(bytes.slice(from.min(bytes.len())..to.min(bytes.len()))))
        }
        BlobContent::File { mut file, .. } => {
            std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(start))?;
            Ok(HttpBody::new(body_from_reader(file, count)))
        }
    }
}

#[cfg(test)]
mod tests {
    use tympan_content::BlobId;

    use super::*;

    /// A blob that is in no store: any access to it fails.
    #[test]
    fn conditional_requests_are_answered_without_the_blob() {
        let repository = Repository::in_memory().unwrap();
        let id = BlobId::hash_of(b"no store holds this");
        let modified = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000);
        let blob = BlobBody { id, etag: "\"abc\"".to_owned(), last_modified: Some(modified) };
        let check = |name: http::HeaderName, value: &str, is_head: bool| {
            let request_headers = HeaderMap::from_iter([(name, value.parse().unwrap())]);
            send_blob(&repository, &blob, &request_headers, is_head).map(|sent| sent.status()).ok()
        };
        let date = httpdate::fmt_http_date(modified);
        assert_eq!(check(header::IF_NONE_MATCH, "\"abc\"", false), Some(StatusCode::NOT_MODIFIED));
        assert_eq!(check(header::IF_MODIFIED_SINCE, &date, false), Some(StatusCode::NOT_MODIFIED));
        assert_eq!(
            check(header::RANGE, "bytes=99-", false),
            Some(StatusCode::RANGE_NOT_SATISFIABLE)
        );
        assert_eq!(check(header::RANGE, "bytes=0-3", true), Some(StatusCode::PARTIAL_CONTENT));
        assert_eq!(check(header::IF_NONE_MATCH, "\"other\"", true), Some(StatusCode::OK));
        assert_eq!(check(header::IF_NONE_MATCH, "\"other\"", false), None);
        assert_eq!(check(header::RANGE, "bytes=0-3", false), None);
    }
}
