//! A cached response: the head that the regular path produced, ready to send, and the body.
//!
//! Invariants
//! * Heads come from a response of the regular path; only age, date and the decisions of
//!   `edge::response_plan` about conditions are added here.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use parking_lot::Mutex;
use tympan_web::http1_response_head::Http1ResponseHead;

use crate::cache::CacheFileStamp;
use crate::cache::file_response::{self, CacheFileResponse};
use crate::edge::http2::hpack::encode_hpack_response_head;
use crate::edge::response_body::{ResponseBody, file_body, full_body, read_file_at, slice_bytes};
use crate::edge::response_plan::StoredEntity;
use crate::farm_state::FarmState;
use crate::observe::metrics::PrefixCounter;

use super::dispatcher_response::CacheFileContent;
use super::response_encoding::{self, ResponseEncoding, choose_encoding};
use super::response_key::RequestFlags;

/// The maximum size in bytes of bodies held in memory; the kernel sends larger ones from their file.
pub(crate) const SMALL_BODY_BYTES: u64 = 16 * 1024;
/// The same limit for visitors over TLS. The kernel cannot send them a file, so it would be read anew for each of them.
pub(crate) const SMALL_TLS_BODY_BYTES: u64 = 128 * 1024;

/// A cached body.
#[derive(Debug, Clone)]
pub(crate) enum CachedBody {
    Memory(Bytes),
    File(Arc<File>),
}

impl CachedBody {
    /// Reads a body of up to `most` bytes into memory; a larger one stays in its file.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub(crate) fn read(file: File, length: u64, most: u64) -> std::io::Result<Self> {
        if length <= most {
            return read_file_at(&file, 0, length).map(Self::Memory);
        }
        Ok(Self::File(Arc::new(file)))
    }

    /// Returns a part of the body; the range must lie within it.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub(crate) fn read_part(&self, start: u64, length: u64) -> std::io::Result<ResponseBody> {
        match self {
            Self::File(file) => file_body(Arc::clone(file), start, length),
            Self::Memory(bytes) => Ok(full_body(slice_bytes(bytes, start, length))),
        }
    }
}

/// The source of a response.
#[derive(Debug)]
pub(crate) struct ResponseSource {
    pub(crate) farm: Arc<FarmState>,
    /// The serial number of the configuration that produced it.
    pub(crate) config_serial: u64,
    /// The file below the document root.
    pub(crate) file: Box<Path>,
    /// The canonical path of the page, as rules see it.
    pub(crate) path: Box<str>,
    pub(crate) length: u64,
    pub(crate) file_stamp: CacheFileStamp,
    pub(crate) fetch_time: SystemTime,
    /// The age of the response when its request was sent.
    pub(crate) initial_age: Duration,
    /// True if the response has the date of its origin.
    pub(crate) has_own_date: bool,
    pub(crate) etag: HeaderValue,
    pub(crate) modification_time: SystemTime,
    /// The warning written to the dispatcher's own log at each use.
    pub(crate) warning: Option<Box<str>>,
    /// True if the file is stale, and a newer one is awaited.
    pub(crate) is_stale: bool,
}

/// A cached response.
#[derive(Debug)]
pub(crate) struct CachedResponse {
    pub(crate) source: Arc<ResponseSource>,
    /// The flags of the requests that it answers.
    flags: RequestFlags,
    /// The response as produced by the regular path.
    identity: CachedRepresentation,
    /// The encoded representations, if there are any.
    encoded: Option<Box<[Option<CachedRepresentation>; ResponseEncoding::ALL.len()]>>,
    /// The text for the dispatcher's own log, without time; empty if nothing is logged.
    pub(crate) log_text: Box<str>,
    /// The last check of the file.
    pub(crate) last_check: Mutex<LastFileCheck>,
    /// The counter of requests for pages with the same prefix.
    pub(crate) prefix_counter: Arc<PrefixCounter>,
    hits: AtomicU32,
}

/// One representation of a response.
#[derive(Debug)]
pub(crate) struct CachedRepresentation {
    /// The encoded head of the whole response in its protocol.
    pub(crate) head: CompactResponseHead,
    /// The head as HTTP/1.1 lines, from which the header map is built when needed: a map takes four times the memory.
    /// `None` for HTTP/1.1, where the bytes are the same.
    http1_head: Option<Box<CompactResponseHead>>,
    etag: HeaderValue,
    pub(crate) body: CachedBody,
    pub(crate) length: u64,
}

/// The result of the last check of the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastFileCheck {
    /// The change counter before the check; `None` if the folders cannot be watched.
    pub(crate) change_count: Option<u64>,
    /// The time in milliseconds on the memory's own clock.
    pub(crate) memory_ms: u64,
    pub(crate) valid_until: Option<SystemTime>,
}

/// A head split at the age value.
#[derive(Debug)]
pub(crate) struct SplitResponseHead {
    /// The head without the age value and without its end.
    bytes: Vec<u8>,
    /// The offset of the age value.
    age_offset: usize,
}

impl SplitResponseHead {
    /// Returns the parts before and after the age value.
    pub(crate) fn parts(&self) -> [&[u8]; 2] {
        let (before, after) = self.bytes.split_at_checked(self.age_offset).unwrap_or_default();
        [before, after]
    }
}

/// A split head in a single allocation of exact size.
#[derive(Debug)]
pub(crate) struct CompactResponseHead {
    bytes: Box<[u8]>,
    /// The offset of the age value.
    age_offset: u32,
}

impl From<SplitResponseHead> for CompactResponseHead {
    fn from(head: SplitResponseHead) -> Self {
        // A head has at most some thousand bytes.
        let age_offset = u32::try_from(head.age_offset).unwrap_or(u32::MAX);
        Self { bytes: head.bytes.into_boxed_slice(), age_offset }
    }
}

impl CompactResponseHead {
    /// Returns the parts before and after the age value.
    pub(crate) fn parts(&self) -> [&[u8]; 2] {
        let (before, after) = self.bytes.split_at_checked(self.age_offset()).unwrap_or_default();
        [before, after]
    }

    fn age_offset(&self) -> usize {
        usize::try_from(self.age_offset).unwrap_or(usize::MAX)
    }

    /// Returns the heap size in bytes.
    fn heap_bytes(&self) -> usize {
        self.bytes.len() + ALLOCATION_OVERHEAD_BYTES
    }

    /// Parses HTTP/1.1 lines back into a map, in the same order; the age in it is not current.
    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(16);
        // All values share one copy.
        let mut before = Bytes::copy_from_slice(&self.bytes);
        let after = before.split_off(self.age_offset().min(before.len()));
        for part in [before, after] {
            for line in part.split(|&byte| byte == b'\n') {
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                // The status line has no colon. One space follows the colon of a header.
                let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
                let name = HeaderName::from_bytes(line.get(..colon).unwrap_or_default());
                let value = part.slice_ref(line.get(colon + 2..).unwrap_or_default());
                if let (Ok(name), Ok(value)) = (name, HeaderValue::from_maybe_shared(value)) {
                    headers.append(name, value);
                }
            }
        }
        headers
    }
}

/// The average overhead of an allocation in bytes: allocators round up.
const ALLOCATION_OVERHEAD_BYTES: usize = 16;
/// The size of the reference counter of shared bytes.
const SHARED_OVERHEAD_BYTES: usize = 32;

impl CachedRepresentation {
    fn new(
        flags: RequestFlags,
        headers: &HeaderMap,
        etag: HeaderValue,
        (body, length): (CachedBody, u64),
    ) -> Self {
        let lines = encode_http1_head(StatusCode::OK, headers).into();
        let (head, lines) = match flags.is_http2() {
            true => {
                (encode_response_head(flags, StatusCode::OK, headers).into(), Some(Box::new(lines)))
            }
            false => (lines, None),
        };
        Self { head, http1_head: lines, etag, body, length }
    }

    fn headers(&self) -> HeaderMap {
        self.http1_head.as_deref().unwrap_or(&self.head).headers()
    }

    /// Returns the heap size in bytes.
    fn heap_bytes(&self) -> usize {
        let body = match &self.body {
            CachedBody::Memory(bytes) => {
                bytes.len() + ALLOCATION_OVERHEAD_BYTES + SHARED_OVERHEAD_BYTES
            }
            CachedBody::File(_) => 0,
        };
        let lines = self.http1_head.as_deref();
        let lines = lines.map_or(0, |lines| {
            size_of::<CompactResponseHead>() + ALLOCATION_OVERHEAD_BYTES + lines.heap_bytes()
        });
        body + self.head.heap_bytes()
            + lines
            + self.etag.len()
            + ALLOCATION_OVERHEAD_BYTES
            + SHARED_OVERHEAD_BYTES
    }
}

impl CachedResponse {
    pub(crate) fn new(
        CacheFileContent { source, body }: CacheFileContent,
        (flags, headers): (RequestFlags, &HeaderMap),
        log_text: Box<str>,
        last_check: LastFileCheck,
    ) -> Self {
        let identity =
            CachedRepresentation::new(flags, headers, source.etag.clone(), (body, source.length));
        let prefix_counter = source.farm.farm_metrics.prefix_counter(&source.path);
        Self {
            source,
            flags,
            identity,
            encoded: None,
            log_text,
            last_check: Mutex::new(last_check),
            prefix_counter,
            hits: AtomicU32::new(0),
        }
    }

    /// Returns the approximate memory size in bytes; it never changes, as the memory's limit relies on it.
    pub(crate) fn memory_bytes(&self) -> usize {
        let encoded = self.encoded.iter().map(|forms| {
            size_of_val::<[_]>(&**forms)
                + forms.iter().flatten().map(CachedRepresentation::heap_bytes).sum::<usize>()
        });
        let source = &self.source;
        let warning = source.warning.as_ref().map_or(0, |warning| warning.len());
        let names =
            source.path.len() + source.file.as_os_str().len() + self.log_text.len() + warning;
        // Both structures, with their reference counters, and the names.
        let around = size_of::<Self>()
            + size_of::<ResponseSource>()
            + 2 * 16
            + 5 * ALLOCATION_OVERHEAD_BYTES;
        self.identity.heap_bytes() + encoded.sum::<usize>() + names + around
    }

    /// Returns the unencoded body.
    pub(crate) fn identity_body(&self) -> &CachedBody {
        &self.identity.body
    }

    /// Counts a use.
    pub(crate) fn record_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of uses.
    pub(crate) fn hits(&self) -> u32 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Sets the use count, to continue that of an earlier response.
    pub(crate) fn set_hits(&self, hits: u32) {
        self.hits.store(hits, Ordering::Relaxed);
    }

    /// Returns the age in whole seconds.
    pub(crate) fn age_seconds(&self, now: SystemTime) -> u64 {
        let age = file_response::cache_age(self.source.fetch_time, now);
        (self.source.initial_age + age).as_secs()
    }

    /// Chooses the representation for a request. Ranges always refer to the unencoded body, so that an interrupted
    /// download can continue on any server.
    pub(crate) fn choose_representation(
        &self,
        accepted: Option<&[u8]>,
        conditions: Option<&HeaderMap>,
        is_head: bool,
    ) -> &CachedRepresentation {
        let names_part =
            conditions.is_some_and(|conditions| conditions.contains_key(header::RANGE));
        let wants_part = names_part && !is_head;
        let Some(accepted) = accepted.filter(|_| !wants_part) else { return &self.identity };
        let form = |coding: ResponseEncoding| self.encoded.as_ref()?.get(coding as usize)?.as_ref();
        let chosen = choose_encoding(accepted, |coding| form(coding).is_some()).and_then(form);
        chosen.unwrap_or(&self.identity)
    }

    /// Returns the response to a request with these conditions; `None` for responses that error documents may replace.
    pub(crate) fn conditional_response(
        &self,
        form: &CachedRepresentation,
        conditions: &HeaderMap,
        is_head: bool,
        now: SystemTime,
    ) -> Option<CacheFileResponse> {
        let modified = self.source.modification_time;
        let entity = StoredEntity {
            etag: &form.etag,
            modification_time: modified,
            length: form.length,
            supports_ranges: !is_head,
        };
        let mut headers = form.headers();
        headers.insert(header::AGE, HeaderValue::from(self.age_seconds(now)));
        let conditional = file_response::conditional_response(conditions, &entity, headers);
        (conditional.status.as_u16() < 400).then_some(conditional)
    }

    /// Returns true if encoding the body is worthwhile.
    pub(crate) fn is_encodable(&self) -> bool {
        let size = response_encoding::MIN_ENCODED_BYTES..=response_encoding::MAX_ENCODED_BYTES;
        size.contains(&self.source.length)
            && response_encoding::is_encodable(&self.identity.headers())
    }

    /// Returns the same response with encodings, which takes long; `None` if the body cannot be read any more.
    pub(crate) fn with_encodings(&self) -> Option<Self> {
        let body = match &self.identity.body {
            CachedBody::Memory(bytes) => bytes.clone(),
            CachedBody::File(file) => match read_file_at(file, 0, self.source.length) {
                Ok(bytes) => bytes,
                // The file was truncated, which the next check detects.
                Err(_changed) => return None,
            },
        };
        let headers_without_encoding = self.identity.headers();
        let encoded = ResponseEncoding::ALL.map(|coding| {
            let encoded = coding.encode(&body)?;
            let length = encoded.len() as u64;
            let mut headers = headers_without_encoding.clone();
            let etag = response_encoding::encoded_etag(&self.identity.etag, coding);
            headers.insert(header::ETAG, etag.clone());
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
            Some(CachedRepresentation::new(
                self.flags,
                &headers,
                etag,
                (CachedBody::Memory(encoded), length),
            ))
        });
        let head = (self.flags, &headers_without_encoding);
        let last_check = *self.last_check.lock();
        let content =
            CacheFileContent { source: Arc::clone(&self.source), body: self.identity.body.clone() };
        let encoded = encoded.iter().any(Option::is_some).then(|| Box::new(encoded));
        let response =
            Self { encoded, ..Self::new(content, head, self.log_text.clone(), last_check) };
        response.set_hits(self.hits());
        Some(response)
    }
}

/// Encodes a head without the date and the end, for a request of this kind.
pub(crate) fn encode_response_head(
    kind: RequestFlags,
    status: StatusCode,
    headers: &HeaderMap,
) -> SplitResponseHead {
    if kind.is_http2() {
        let (bytes, age_offset) = encode_hpack_response_head(status, headers);
        return SplitResponseHead { bytes, age_offset };
    }
    encode_http1_head(status, headers)
}

/// Encodes a head as hyper does.
fn encode_http1_head(status: StatusCode, headers: &HeaderMap) -> SplitResponseHead {
    let mut head = Http1ResponseHead::new(status);
    let mut age_offset = None;
    for (name, value) in headers {
        if name == header::AGE {
            age_offset = Some(head.add_header_without_value(name.as_str()));
        } else {
            head.add_header(name.as_str(), value.as_bytes());
        }
    }
    let bytes = head.into_lines();
    SplitResponseHead { age_offset: age_offset.unwrap_or(bytes.len()), bytes }
}

/// The maximum time for which a response is used before its file is checked: some file systems do not report changes.
pub(crate) const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::{CompactResponseHead, encode_http1_head};
    use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

    #[test]
    fn a_cached_head_returns_its_headers() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("content-type", "text/html; charset=utf-8"),
            ("x-empty", ""),
            ("link", "</a.css>; rel=preload"),
            ("age", "7"),
            ("link", "<https://b.example/b>; rel=\"next\""),
            ("x-colons", "a: b:  c "),
            ("x-space", " d"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers.insert("x-bytes", HeaderValue::from_bytes(b"\xfc:\t\xff").unwrap());
        let head = CompactResponseHead::from(encode_http1_head(StatusCode::OK, &headers));
        let text = String::from_utf8_lossy(head.parts()[0]);
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\nage: "), "{text}");

        let mut read = head.headers();
        assert_eq!(read.insert("age", HeaderValue::from_static("7")).unwrap(), "");
        assert_eq!(read, headers);
        let order = |headers: &HeaderMap| -> Vec<String> {
            headers.keys().map(ToString::to_string).collect()
        };
        assert_eq!(order(&read), order(&headers));
    }
}
