//! One kept answer: the head that the full way gave, ready to be sent, and the body.
//!
//! Invariants
//! * Heads come from an answer of the full way; only age, date and what `plan` decides about conditions are added here.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use parking_lot::Mutex;

use crate::cache::CacheFileStamp;
use crate::cache_file_response::{self, CacheFileResponse};
use crate::dispatcher::FarmState;
use crate::http2::hpack::encode_hpack_response_head;
use crate::metrics::PrefixCounter;
use crate::response_body::{ResponseBody, file_body, full_body, read_file_at};
use crate::response_plan::StoredEntity;

use super::response_encoding::{self, ResponseEncoding, choose_encoding};
use super::response_key::RequestFlags;

/// Bodies up to this size are held in memory; the kernel sends larger ones from their file.
pub(crate) const SMALL_BODY_BYTES: u64 = 16 * 1024;
/// The same for visitors over TLS, as the kernel cannot send them a file: it would be read anew for each of them.
pub(crate) const SMALL_TLS_BODY_BYTES: u64 = 128 * 1024;

/// A body that is kept.
#[derive(Debug, Clone)]
pub(crate) enum CachedBody {
    Memory(Bytes),
    File(Arc<File>),
}

impl CachedBody {
    /// Reads a body of up to `most` bytes into memory; a larger one stays in its file.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(crate) fn read(file: File, length: u64, most: u64) -> std::io::Result<Self> {
        if length <= most {
            return read_file_at(&file, 0, length).map(Self::Memory);
        }
        Ok(Self::File(Arc::new(file)))
    }

    /// Returns a part of the body; it must lie within it.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(crate) fn read_part(&self, start: u64, length: u64) -> std::io::Result<ResponseBody> {
        match self {
            Self::File(file) => file_body(Arc::clone(file), start, length),
            Self::Memory(bytes) => Ok(full_body(slice_bytes(bytes, start, length))),
        }
    }
}

/// Returns a part of `bytes`, or what there is of it.
pub(crate) fn slice_bytes(bytes: &Bytes, start: u64, length: u64) -> Bytes {
    let end = usize::try_from(start.saturating_add(length)).unwrap_or(usize::MAX).min(bytes.len());
    let start = usize::try_from(start).unwrap_or(usize::MAX).min(end);
    bytes.slice(start..end)
}

/// What the full way leaves on an answer from a file, for the memory to keep: a valid one, or one that visitors get while a
/// newer one is fetched.
///
/// Whoever changes the body of an answer takes this extension away from it.
#[derive(Debug, Clone)]
pub(crate) struct CacheableResponse {
    pub(crate) source: Arc<ResponseSource>,
    pub(crate) body: CachedBody,
}

/// Where an answer came from.
#[derive(Debug)]
pub(crate) struct ResponseSource {
    pub(crate) farm: Arc<FarmState>,
    /// Of the configuration that gave it.
    pub(crate) config_serial: u64,
    /// Below the document root.
    pub(crate) file: Box<Path>,
    /// The canonical path, by which the rules know the page.
    pub(crate) path: Box<str>,
    pub(crate) length: u64,
    pub(crate) file_stamp: CacheFileStamp,
    pub(crate) fetch_time: SystemTime,
    pub(crate) etag: HeaderValue,
    pub(crate) modification_time: SystemTime,
    /// What the dispatcher's own log is warned of at each use.
    pub(crate) warning: Option<Box<str>>,
    /// Whether the file is out of date, and a newer one is awaited.
    pub(crate) is_stale: bool,
}

/// One kept answer.
#[derive(Debug)]
pub(crate) struct CachedResponse {
    pub(crate) source: Arc<ResponseSource>,
    /// What it answers.
    flags: RequestFlags,
    /// The answer as the full way gave it.
    identity: CachedRepresentation,
    /// The same in encodings, if there are any.
    encoded: Option<Box<[Option<CachedRepresentation>; ResponseEncoding::ALL.len()]>>,
    /// What the dispatcher's own log says of an answer, without time; nothing if it says nothing.
    pub(crate) log_text: Box<str>,
    /// When the file was last compared.
    pub(crate) last_check: Mutex<LastFileCheck>,
    /// What counts its uses beside those of pages near it.
    pub(crate) prefix_counter: Arc<PrefixCounter>,
    hits: AtomicU32,
}

/// One representation of an answer.
#[derive(Debug)]
pub(crate) struct CachedRepresentation {
    /// The head of the whole answer as bytes of its protocol.
    pub(crate) head: CompactResponseHead,
    /// The same as lines of HTTP/1.1, from which the map of headers is made where one is needed: a map takes four times the
    /// memory. Nothing for HTTP/1.1, where they are the same bytes.
    http1_head: Option<Box<CompactResponseHead>>,
    etag: HeaderValue,
    pub(crate) body: CachedBody,
    pub(crate) length: u64,
}

/// What the last comparison with the file found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastFileCheck {
    /// The change counter before the comparison; nothing if its folders cannot be watched.
    pub(crate) change_count: Option<u64>,
    /// Milliseconds of the memory's own clock.
    pub(crate) memory_ms: u64,
    pub(crate) valid_until: Option<SystemTime>,
}

/// A head around the age.
#[derive(Debug)]
pub(crate) struct SplitResponseHead {
    /// From the status on, up to the age's value.
    before_age: Vec<u8>,
    /// From behind the age on, without the end.
    after_age: Vec<u8>,
}

impl SplitResponseHead {
    /// Returns what stands before the age's value, and what stands behind it.
    pub(crate) fn parts(&self) -> [&[u8]; 2] {
        [&self.before_age, &self.after_age]
    }
}

/// The same in memory that is just large enough.
#[derive(Debug)]
pub(crate) struct CompactResponseHead {
    bytes: Box<[u8]>,
    /// Where the age's value stands.
    age_offset: u32,
}

impl From<SplitResponseHead> for CompactResponseHead {
    fn from(head: SplitResponseHead) -> Self {
        // A head that is read or made has no more than some thousand bytes.
        let age_at = u32::try_from(head.before_age.len()).unwrap_or(u32::MAX);
        Self { bytes: head.parts().concat().into(), age_offset: age_at }
    }
}

impl CompactResponseHead {
    /// Returns what stands before the age's value, and what stands behind it.
    pub(crate) fn parts(&self) -> [&[u8]; 2] {
        let (before, after) = self.bytes.split_at_checked(self.age_offset()).unwrap_or_default();
        [before, after]
    }

    fn age_offset(&self) -> usize {
        usize::try_from(self.age_offset).unwrap_or(usize::MAX)
    }

    /// Returns what it takes beside itself.
    fn heap_bytes(&self) -> usize {
        self.bytes.len() + ALLOCATION_OVERHEAD_BYTES
    }

    /// Reads lines of HTTP/1.1 back into a map, in the same order; the age in it is not of now.
    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(16);
        // All values share one copy.
        let mut before = Bytes::copy_from_slice(&self.bytes);
        let after = before.split_off(self.age_offset().min(before.len()));
        for part in [before, after] {
            for line in part.split(|&byte| byte == b'\n') {
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                // The status line has no colon. Behind the colon of a header stands one space.
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

/// What an allocation takes beyond what was asked for, in the mean: allocators round up.
const ALLOCATION_OVERHEAD_BYTES: usize = 16;
/// What counts the users of shared bytes.
const SHARED_OVERHEAD_BYTES: usize = 32;

impl CachedRepresentation {
    fn new(
        kind: RequestFlags,
        headers: &HeaderMap,
        etag: HeaderValue,
        (body, length): (CachedBody, u64),
    ) -> Self {
        let lines = encode_http1_head(StatusCode::OK, headers).into();
        let (head, lines) = match kind.is_http2() {
            true => {
                (encode_response_head(kind, StatusCode::OK, headers).into(), Some(Box::new(lines)))
            }
            false => (lines, None),
        };
        Self { head, http1_head: lines, etag, body, length }
    }

    fn headers(&self) -> HeaderMap {
        self.http1_head.as_deref().unwrap_or(&self.head).headers()
    }

    /// Returns what it takes beside itself.
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
        CacheableResponse { source, body }: CacheableResponse,
        (kind, headers): (RequestFlags, &HeaderMap),
        log_text: Box<str>,
        checked: LastFileCheck,
    ) -> Self {
        let plain =
            CachedRepresentation::new(kind, headers, source.etag.clone(), (body, source.length));
        let served = source.farm.farm_metrics.prefix_counter(&source.path);
        Self {
            source,
            flags: kind,
            identity: plain,
            encoded: None,
            log_text,
            last_check: Mutex::new(checked),
            prefix_counter: served,
            hits: AtomicU32::new(0),
        }
    }

    /// Returns about how many bytes of memory it takes; this never changes, as the memory's bound relies on it.
    pub(crate) fn memory_bytes(&self) -> usize {
        let encoded = self.encoded.iter().map(|forms| {
            size_of_val::<[_]>(&**forms)
                + forms.iter().flatten().map(CachedRepresentation::heap_bytes).sum::<usize>()
        });
        let source = &self.source;
        let warning = source.warning.as_ref().map_or(0, |warning| warning.len());
        let names =
            source.path.len() + source.file.as_os_str().len() + self.log_text.len() + warning;
        // Both structures, with what counts their users, and the names.
        let around = size_of::<Self>()
            + size_of::<ResponseSource>()
            + 2 * 16
            + 5 * ALLOCATION_OVERHEAD_BYTES;
        self.identity.heap_bytes() + encoded.sum::<usize>() + names + around
    }

    /// Returns the body as it is in the file.
    pub(crate) fn identity_body(&self) -> &CachedBody {
        &self.identity.body
    }

    /// Counts a use.
    pub(crate) fn record_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how often it was used.
    pub(crate) fn hits(&self) -> u32 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Goes on counting where another one ended.
    pub(crate) fn set_hits(&self, hits: u32) {
        self.hits.store(hits, Ordering::Relaxed);
    }

    /// Returns its age in whole seconds.
    pub(crate) fn age_seconds(&self, now: SystemTime) -> u64 {
        cache_file_response::cache_age(self.source.fetch_time, now).as_secs()
    }

    /// Chooses the representation for a request. A part is always one of the body as it is, so that an interrupted
    /// download goes on wherever it is asked for.
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

    /// Decides what a request with these conditions gets; nothing for answers that error documents may replace.
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
        let told = cache_file_response::conditional_response(conditions, &entity, headers);
        (told.status.as_u16() < 400).then_some(told)
    }

    /// Tells whether it is worth to have it in encodings.
    pub(crate) fn is_encodable(&self) -> bool {
        let size = response_encoding::MIN_ENCODED_BYTES..=response_encoding::MAX_ENCODED_BYTES;
        size.contains(&self.source.length)
            && response_encoding::is_encodable(&self.identity.headers())
    }

    /// Returns the same answer with encodings; takes long. Nothing if the body cannot be read any more.
    pub(crate) fn with_encodings(&self) -> Option<Self> {
        let body = match &self.identity.body {
            CachedBody::Memory(bytes) => bytes.clone(),
            CachedBody::File(file) => match read_file_at(file, 0, self.source.length) {
                Ok(bytes) => bytes,
                // It was cut, and the next comparison finds that.
                Err(_changed) => return None,
            },
        };
        let plain = self.identity.headers();
        let encoded = ResponseEncoding::ALL.map(|coding| {
            let encoded = coding.encode(&body)?;
            let length = encoded.len() as u64;
            let mut headers = plain.clone();
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
        let head = (self.flags, &plain);
        let checked = *self.last_check.lock();
        let keepable = CacheableResponse {
            source: Arc::clone(&self.source),
            body: self.identity.body.clone(),
        };
        let encoded = encoded.iter().any(Option::is_some).then(|| Box::new(encoded));
        let ready = Self { encoded, ..Self::new(keepable, head, self.log_text.clone(), checked) };
        ready.set_hits(self.hits());
        Some(ready)
    }
}

/// Writes a head without the date and the end, as an answer to a request of this kind.
pub(crate) fn encode_response_head(
    kind: RequestFlags,
    status: StatusCode,
    headers: &HeaderMap,
) -> SplitResponseHead {
    if kind.is_http2() {
        let (before_age, after_age) = encode_hpack_response_head(status, headers);
        return SplitResponseHead { before_age, after_age };
    }
    encode_http1_head(status, headers)
}

/// Writes a head as hyper does.
fn encode_http1_head(status: StatusCode, headers: &HeaderMap) -> SplitResponseHead {
    let mut before_age = Vec::with_capacity(512);
    let mut after_age = Vec::with_capacity(256);
    let reason = status.canonical_reason().unwrap_or("");
    before_age.extend_from_slice(format!("HTTP/1.1 {} {reason}\r\n", status.as_u16()).as_bytes());
    let mut is_behind = false;
    for (name, value) in headers {
        let line = if is_behind { &mut after_age } else { &mut before_age };
        line.extend_from_slice(name.as_str().as_bytes());
        line.extend_from_slice(b": ");
        if name == header::AGE {
            is_behind = true;
        } else {
            line.extend_from_slice(value.as_bytes());
            line.extend_from_slice(b"\r\n");
        }
    }
    if is_behind {
        after_age.splice(0..0, *b"\r\n");
    }
    SplitResponseHead { before_age, after_age }
}

/// How long an answer is used at most before its file is compared: changes on some file systems are told to nobody.
pub(crate) const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::{CompactResponseHead, encode_http1_head};
    use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

    #[test]
    fn a_kept_head_gives_its_headers_back() {
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
