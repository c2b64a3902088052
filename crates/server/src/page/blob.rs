//! Stored binaries over HTTP: whole, in part, or not at all if the client has them.

use axum::body::Body as HttpBody;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tympan_content::{BlobContent, Repository};
use tympan_render::Blob;
use tympan_render::binary::{self, Conditions, Plan};
use tympan_web::read_body::from_reader;
use tympan_web::shortcut::{MAX_FILE, ReadyBody};

use super::answer::set;
use crate::failure::{Failure, Result};

/// Sends a blob, or the part of it that was asked for.
pub(crate) fn send_blob(
    repository: &Repository,
    blob: &Blob,
    asked: &HeaderMap,
    is_head: bool,
) -> Result<Response> {
    let part = Part::of(blob, asked);
    let body = match part.is_without_body(is_head) {
        true => None,
        false => {
            let missing = || Failure::from(tympan_content::Error::BlobMissing(blob.id));
            let content = repository.blobs().open(&blob.id);
            let content = content.map_err(tympan_content::Error::from)?.ok_or_else(missing)?;
            Some(part_of(content, part.start, part.count)?)
        }
    };
    Ok(part.answer(blob, body))
}

/// Does the same without waiting for anything; nothing if the bytes are not in memory.
pub(crate) fn send_known(
    repository: &Repository,
    blob: &Blob,
    asked: &HeaderMap,
    is_head: bool,
) -> Option<Response> {
    let part = Part::of(blob, asked);
    let body = match part.is_without_body(is_head) {
        true => None,
        false => {
            let bytes = BlobContent::Bytes(repository.blobs().find_at_hand(&blob.id)?);
            Some(part_of(bytes, part.start, part.count).ok()?)
        }
    };
    Some(part.answer(blob, body))
}

/// Does the same for a socket: the head, and what the body is sent from; a file where one is open.
pub(crate) fn send_plainly(
    repository: &Repository,
    blob: &Blob,
    asked: &HeaderMap,
    is_head: bool,
) -> Option<(Response, ReadyBody)> {
    let part = Part::of(blob, asked);
    let body = match part.is_without_body(is_head) {
        true => ReadyBody::Empty,
        false => {
            let blobs = repository.blobs();
            let is_sent_from_file = part.count <= MAX_FILE;
            match is_sent_from_file.then(|| blobs.find_file(&blob.id)).flatten() {
                Some(file) => ReadyBody::File { file, start: part.start, length: part.count },
                None => {
                    let bytes = blobs.find_at_hand(&blob.id)?;
                    let (from, to) = (part.start as usize, (part.start + part.count) as usize);
                    ReadyBody::Bytes(bytes.slice(from.min(bytes.len())..to.min(bytes.len())))
                }
            }
        }
    };
    Some((part.answer(blob, None), body))
}

/// What of a blob was asked for.
struct Part {
    status: StatusCode,
    start: u64,
    count: u64,
}

impl Part {
    fn of(blob: &Blob, asked: &HeaderMap) -> Self {
        let text = |name| asked.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let conditions = Conditions {
            if_none_match: text(header::IF_NONE_MATCH),
            if_modified_since: text(header::IF_MODIFIED_SINCE),
            range: text(header::RANGE),
            if_range: text(header::IF_RANGE),
        };
        let length = blob.id.length();
        let (status, start, count) =
            match binary::plan(&conditions, length, &blob.etag, blob.last_modified) {
                Plan::Full => (StatusCode::OK, 0, length),
                Plan::NotModified => (StatusCode::NOT_MODIFIED, 0, 0),
                Plan::Partial { start, len } => (StatusCode::PARTIAL_CONTENT, start, len),
                Plan::Unsatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, 0, 0),
            };
        Self { status, start, count }
    }

    fn is_without_body(&self, is_head: bool) -> bool {
        is_head || self.count == 0
    }

    fn answer(&self, blob: &Blob, body: Option<HttpBody>) -> Response {
        let (length, Self { status, start, count }) = (blob.id.length(), self);
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
                let range = format!("bytes {start}-{}/{length}", start + count - 1);
                set(headers, header::CONTENT_RANGE, &range);
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                set(headers, header::CONTENT_RANGE, &format!("bytes */{length}"))
            }
            _ => {}
        }
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        set(headers, header::ETAG, &blob.etag);
        if let Some(modified) = blob.last_modified {
            set(headers, header::LAST_MODIFIED, &httpdate::fmt_http_date(modified));
        }
        response
    }
}

/// Returns a body of some bytes of a blob.
fn part_of(content: BlobContent, start: u64, count: u64) -> Result<HttpBody> {
    match content {
        BlobContent::Bytes(bytes) => {
            let (from, to) = (start as usize, (start + count) as usize);
            Ok(HttpBody::from(bytes.slice(from.min(bytes.len())..to.min(bytes.len()))))
        }
        BlobContent::File { mut file, .. } => {
            std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(start))?;
            Ok(HttpBody::new(from_reader(file, count)))
        }
    }
}

#[cfg(test)]
mod tests {
    use tympan_content::BlobId;

    use super::*;

    /// A blob that no store holds: whoever looks for it fails.
    #[test]
    fn conditional_requests_are_answered_without_the_blob() {
        let repository = Repository::memory().unwrap();
        let id = BlobId::of(b"no store holds this");
        let modified = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000);
        let blob = Blob { id, etag: "\"abc\"".to_owned(), last_modified: Some(modified) };
        let check = |name: http::HeaderName, value: &str, is_head: bool| {
            let asked = HeaderMap::from_iter([(name, value.parse().unwrap())]);
            send_blob(&repository, &blob, &asked, is_head).map(|sent| sent.status()).ok()
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
