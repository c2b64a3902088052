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

use crate::cache::Stamp;
use crate::dispatcher::FarmState;
use crate::hit::{self, Told};
use crate::http2::hpack::write_block;
use crate::metrics::Served;
use crate::page::{Body, file_body, full, read_at};
use crate::plan::Entity;

use super::encode::{self, Coding, choose};
use super::key::Kind;

/// Bodies up to this size are held in memory; the kernel sends larger ones from their file.
pub(crate) const SMALL_BODY_BYTES: u64 = 16 * 1024;
/// The same for visitors over TLS, as the kernel cannot send them a file: it would be read anew for each of them.
pub(crate) const SMALL_TLS_BODY_BYTES: u64 = 128 * 1024;

/// A body that is kept.
#[derive(Debug, Clone)]
pub(crate) enum KeptBody {
    Memory(Bytes),
    File(Arc<File>),
}

impl KeptBody {
    /// Reads a body of up to `most` bytes into memory; a larger one stays in its file.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(crate) fn read(file: File, length: u64, most: u64) -> std::io::Result<Self> {
        if length <= most {
            return read_at(&file, 0, length).map(Self::Memory);
        }
        Ok(Self::File(Arc::new(file)))
    }

    /// Returns a part of the body; it must lie within it.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(crate) fn part(&self, start: u64, length: u64) -> std::io::Result<Body> {
        match self {
            Self::File(file) => file_body(Arc::clone(file), start, length),
            Self::Memory(bytes) => Ok(full(slice(bytes, start, length))),
        }
    }
}

/// Returns a part of `bytes`, or what there is of it.
pub(crate) fn slice(bytes: &Bytes, start: u64, length: u64) -> Bytes {
    let end = usize::try_from(start.saturating_add(length)).unwrap_or(usize::MAX).min(bytes.len());
    let start = usize::try_from(start).unwrap_or(usize::MAX).min(end);
    bytes.slice(start..end)
}

/// What the full way leaves on an answer from a file, for the memory to keep: a valid one, or one that visitors get while a
/// newer one is fetched.
///
/// Whoever changes the body of an answer takes this extension away from it.
#[derive(Debug, Clone)]
pub(crate) struct Keepable {
    pub(crate) source: Arc<Source>,
    pub(crate) body: KeptBody,
}

/// Where an answer came from.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) farm: Arc<FarmState>,
    /// Of the configuration that gave it.
    pub(crate) serial: u64,
    /// Below the document root.
    pub(crate) file: Box<Path>,
    /// The canonical path, by which the rules know the page.
    pub(crate) path: Box<str>,
    pub(crate) length: u64,
    pub(crate) stamp: Stamp,
    pub(crate) fetched: SystemTime,
    pub(crate) etag: HeaderValue,
    pub(crate) modified: SystemTime,
    /// What the dispatcher's own log is warned of at each use.
    pub(crate) warning: Option<Box<str>>,
    /// Whether the file is out of date, and a newer one is awaited.
    pub(crate) is_old: bool,
}

/// One kept answer.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) source: Arc<Source>,
    /// What it answers.
    kind: Kind,
    /// The answer as the full way gave it.
    plain: Form,
    /// The same in encodings, if there are any.
    encoded: Option<Box<[Option<Form>; Coding::ALL.len()]>>,
    /// What the dispatcher's own log says of an answer, without time; nothing if it says nothing.
    pub(crate) log_text: Box<str>,
    /// When the file was last compared.
    pub(crate) checked: Mutex<Checked>,
    /// What counts its uses beside those of pages near it.
    pub(crate) served: Arc<Served>,
    hits: AtomicU32,
}

/// One representation of an answer.
#[derive(Debug)]
pub(crate) struct Form {
    /// The head of the whole answer as bytes of its protocol.
    pub(crate) head: KeptHead,
    /// The same as lines of HTTP/1.1, from which the map of headers is made where one is needed: a map takes four times the
    /// memory. Nothing for HTTP/1.1, where they are the same bytes.
    lines: Option<Box<KeptHead>>,
    etag: HeaderValue,
    pub(crate) body: KeptBody,
    pub(crate) length: u64,
}

/// What the last comparison with the file found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Checked {
    /// The change counter before the comparison; nothing if its folders cannot be watched.
    pub(crate) changes: Option<u64>,
    /// Milliseconds of the memory's own clock.
    pub(crate) at_ms: u64,
    pub(crate) until: Option<SystemTime>,
}

/// A head around the age.
#[derive(Debug)]
pub(crate) struct Head {
    /// From the status on, up to the age's value.
    before_age: Vec<u8>,
    /// From behind the age on, without the end.
    after_age: Vec<u8>,
}

impl Head {
    /// Returns what stands before the age's value, and what stands behind it.
    pub(crate) fn parts(&self) -> [&[u8]; 2] {
        [&self.before_age, &self.after_age]
    }
}

/// The same in memory that is just large enough.
#[derive(Debug)]
pub(crate) struct KeptHead {
    bytes: Box<[u8]>,
    /// Where the age's value stands.
    age_at: u32,
}

impl From<Head> for KeptHead {
    fn from(head: Head) -> Self {
        // A head that is read or made has no more than some thousand bytes.
        let age_at = u32::try_from(head.before_age.len()).unwrap_or(u32::MAX);
        Self { bytes: head.parts().concat().into(), age_at }
    }
}

impl KeptHead {
    /// Returns what stands before the age's value, and what stands behind it.
    pub(crate) fn parts(&self) -> [&[u8]; 2] {
        let (before, after) = self.bytes.split_at_checked(self.age_at()).unwrap_or_default();
        [before, after]
    }

    fn age_at(&self) -> usize {
        usize::try_from(self.age_at).unwrap_or(usize::MAX)
    }

    /// Returns what it takes beside itself.
    fn bytes(&self) -> usize {
        self.bytes.len() + ALLOCATION_BYTES
    }

    /// Reads lines of HTTP/1.1 back into a map, in the same order; the age in it is not of now.
    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(16);
        // All values share one copy.
        let mut before = Bytes::copy_from_slice(&self.bytes);
        let after = before.split_off(self.age_at().min(before.len()));
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
const ALLOCATION_BYTES: usize = 16;
/// What counts the users of shared bytes.
const SHARED_BYTES: usize = 32;

impl Form {
    fn new(
        kind: Kind,
        headers: &HeaderMap,
        etag: HeaderValue,
        (body, length): (KeptBody, u64),
    ) -> Self {
        let lines = write_lines(StatusCode::OK, headers).into();
        let (head, lines) = match kind.is_http2() {
            true => (write_head(kind, StatusCode::OK, headers).into(), Some(Box::new(lines))),
            false => (lines, None),
        };
        Self { head, lines, etag, body, length }
    }

    fn headers(&self) -> HeaderMap {
        self.lines.as_deref().unwrap_or(&self.head).headers()
    }

    /// Returns what it takes beside itself.
    fn bytes(&self) -> usize {
        let body = match &self.body {
            KeptBody::Memory(bytes) => bytes.len() + ALLOCATION_BYTES + SHARED_BYTES,
            KeptBody::File(_) => 0,
        };
        let lines = self.lines.as_deref();
        let lines =
            lines.map_or(0, |lines| size_of::<KeptHead>() + ALLOCATION_BYTES + lines.bytes());
        body + self.head.bytes() + lines + self.etag.len() + ALLOCATION_BYTES + SHARED_BYTES
    }
}

impl Ready {
    pub(crate) fn new(
        Keepable { source, body }: Keepable,
        (kind, headers): (Kind, &HeaderMap),
        log_text: Box<str>,
        checked: Checked,
    ) -> Self {
        let plain = Form::new(kind, headers, source.etag.clone(), (body, source.length));
        let served = source.farm.tally.served(&source.path);
        Self {
            source,
            kind,
            plain,
            encoded: None,
            log_text,
            checked: Mutex::new(checked),
            served,
            hits: AtomicU32::new(0),
        }
    }

    /// Returns about how many bytes of memory it takes; this never changes, as the memory's bound relies on it.
    pub(crate) fn bytes(&self) -> usize {
        let encoded = self.encoded.iter().map(|forms| {
            size_of_val::<[_]>(&**forms) + forms.iter().flatten().map(Form::bytes).sum::<usize>()
        });
        let source = &self.source;
        let warning = source.warning.as_ref().map_or(0, |warning| warning.len());
        let names =
            source.path.len() + source.file.as_os_str().len() + self.log_text.len() + warning;
        // Both structures, with what counts their users, and the names.
        let around = size_of::<Self>() + size_of::<Source>() + 2 * 16 + 5 * ALLOCATION_BYTES;
        self.plain.bytes() + encoded.sum::<usize>() + names + around
    }

    /// Returns the body as it is in the file.
    pub(crate) fn body(&self) -> &KeptBody {
        &self.plain.body
    }

    /// Counts a use.
    pub(crate) fn note_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how often it was used.
    pub(crate) fn hits(&self) -> u32 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Goes on counting where another one ended.
    pub(crate) fn count_from(&self, hits: u32) {
        self.hits.store(hits, Ordering::Relaxed);
    }

    /// Returns its age in whole seconds.
    pub(crate) fn age(&self, now: SystemTime) -> u64 {
        hit::age(self.source.fetched, now).as_secs()
    }

    /// Chooses the representation for a request. A part is always one of the body as it is, so that an interrupted
    /// download goes on wherever it is asked for.
    pub(crate) fn form(
        &self,
        accepted: Option<&[u8]>,
        conditions: Option<&HeaderMap>,
        is_head: bool,
    ) -> &Form {
        let names_part =
            conditions.is_some_and(|conditions| conditions.contains_key(header::RANGE));
        let wants_part = names_part && !is_head;
        let Some(accepted) = accepted.filter(|_| !wants_part) else { return &self.plain };
        let form = |coding: Coding| self.encoded.as_ref()?.get(coding as usize)?.as_ref();
        let chosen = choose(accepted, |coding| form(coding).is_some()).and_then(form);
        chosen.unwrap_or(&self.plain)
    }

    /// Decides what a request with these conditions gets; nothing for answers that error documents may replace.
    pub(crate) fn tell(
        &self,
        form: &Form,
        conditions: &HeaderMap,
        is_head: bool,
        now: SystemTime,
    ) -> Option<Told> {
        let modified = self.source.modified;
        let entity =
            Entity { etag: &form.etag, modified, length: form.length, has_parts: !is_head };
        let mut headers = form.headers();
        headers.insert(header::AGE, HeaderValue::from(self.age(now)));
        let told = hit::tell(conditions, &entity, headers);
        (told.status.as_u16() < 400).then_some(told)
    }

    /// Tells whether it is worth to have it in encodings.
    pub(crate) fn is_encodable(&self) -> bool {
        let size = encode::MIN_BYTES..=encode::MAX_BYTES;
        size.contains(&self.source.length) && encode::is_encodable(&self.plain.headers())
    }

    /// Returns the same answer with encodings; takes long. Nothing if the body cannot be read any more.
    pub(crate) fn with_encodings(&self) -> Option<Self> {
        let body = match &self.plain.body {
            KeptBody::Memory(bytes) => bytes.clone(),
            KeptBody::File(file) => match read_at(file, 0, self.source.length) {
                Ok(bytes) => bytes,
                // It was cut, and the next comparison finds that.
                Err(_changed) => return None,
            },
        };
        let plain = self.plain.headers();
        let encoded = Coding::ALL.map(|coding| {
            let encoded = coding.encode(&body)?;
            let length = encoded.len() as u64;
            let mut headers = plain.clone();
            let etag = encode::encoded_tag(&self.plain.etag, coding);
            headers.insert(header::ETAG, etag.clone());
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
            Some(Form::new(self.kind, &headers, etag, (KeptBody::Memory(encoded), length)))
        });
        let head = (self.kind, &plain);
        let checked = *self.checked.lock();
        let keepable = Keepable { source: Arc::clone(&self.source), body: self.plain.body.clone() };
        let encoded = encoded.iter().any(Option::is_some).then(|| Box::new(encoded));
        let ready = Self { encoded, ..Self::new(keepable, head, self.log_text.clone(), checked) };
        ready.count_from(self.hits());
        Some(ready)
    }
}

/// Writes a head without the date and the end, as an answer to a request of this kind.
pub(crate) fn write_head(kind: Kind, status: StatusCode, headers: &HeaderMap) -> Head {
    if kind.is_http2() {
        let (before_age, after_age) = write_block(status, headers);
        return Head { before_age, after_age };
    }
    write_lines(status, headers)
}

/// Writes a head as hyper does.
fn write_lines(status: StatusCode, headers: &HeaderMap) -> Head {
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
    Head { before_age, after_age }
}

/// How long an answer is used at most before its file is compared: changes on some file systems are told to nobody.
pub(crate) const COMPARE_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::{KeptHead, write_lines};
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
        let head = KeptHead::from(write_lines(StatusCode::OK, &headers));
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
