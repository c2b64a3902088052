//! Pictures, files and pages for visitors, from the head of a request to an answer without hyper and without a copy.
//!
//! In: a head as it came. Out: the answer that [`crate::hot`] remembers, with its bytes in an open file or in memory, or a
//! page that it draws; nothing for whatever else, which is answered as ever.
//!
//! Invariants
//! * What is answered here is what the routes would answer, header for header, and is logged and counted alike.
//! * A head that is not plain, or that proves who asks, is left to hyper.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use tympan_web::listen::Peer;
use tympan_web::log_time::LogTime;
use tympan_web::request_log::{self, Event};
use tympan_web::shortcut::{Ready, ReadyBody, Shortcut};

use crate::Instance;
use crate::login::has_session;
use crate::observe::Note;

/// More headers than a browser sends are left to hyper.
const MAX_HEADERS: usize = 48;

/// An instance, asked by a listener before hyper is.
#[derive(Debug)]
pub struct InstanceShortcut(Arc<Instance>);

impl InstanceShortcut {
    /// Answers what the instance remembers.
    #[must_use]
    pub fn new(instance: Arc<Instance>) -> Self {
        Self(instance)
    }
}

/// A head that may be answered so.
struct Plain<'a> {
    method: Method,
    path: &'a str,
    /// Those that decide how much is sent, and that tell what takes another way.
    headers: HeaderMap,
    host: Option<&'a [u8]>,
    accept_language: Option<&'a [u8]>,
    referer: Option<&'a [u8]>,
    user_agent: Option<&'a [u8]>,
}

impl Shortcut for InstanceShortcut {
    fn answer(&self, head: &[u8], peer: Peer) -> Option<Ready> {
        let instance = &self.0;
        let Plain { method, path, headers, host, accept_language, referer, user_agent } =
            read(head)?;
        if has_session(&headers) {
            return None;
        }
        let started = Instant::now();
        let at = LogTime::from_system(SystemTime::now());
        let (mut response, body) = match instance.shortcut_answer(&method, path, &headers) {
            Some(answer) => answer,
            None if method == Method::GET => {
                let headers = with_senders(headers, [host, accept_language, user_agent])?;
                instance.shortcut_drawing(path, headers, peer)?
            }
            None => return None,
        };
        if let ReadyBody::Bytes(bytes) = &body {
            let length = HeaderValue::from(bytes.len());
            response.headers_mut().entry(header::CONTENT_LENGTH).or_insert(length);
        }
        let number = instance.numbers.take_next();
        let event = Event::Entry {
            method: method.to_string(),
            target: path.to_owned(),
            version: "HTTP/1.1".to_owned(),
        };
        instance.request_log.write(request_log::Line { at, request: number, event });
        let text =
            |value: Option<&[u8]>| value.map(|value| String::from_utf8_lossy(value).into_owned());
        let mut note = Note {
            number,
            started,
            status: response.status(),
            media_type: Note::media_type_of(response.headers()),
            bytes: 0,
            client: peer.addr.ip().to_string(),
            user: None,
            request_line: format!("{method} {path} HTTP/1.1"),
            referer: text(referer),
            user_agent: text(user_agent),
            instance: instance.clone(),
        };
        let done = move |sent| {
            note.bytes = sent;
            drop(note);
        };
        let head = write_head(response.status(), response.headers());
        Some(Ready { head, body, done: Box::new(done) })
    }
}

/// Reads a head; nothing if it is not plain.
fn read(head: &[u8]) -> Option<Plain<'_>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let status = request.parse(head).ok()?;
    if !matches!(status, httparse::Status::Complete(length) if length == head.len()) {
        return None;
    }
    let method = match (request.method, request.version) {
        (Some("GET"), Some(1)) => Method::GET,
        (Some("HEAD"), Some(1)) => Method::HEAD,
        _ => return None,
    };
    let path = request.path?;
    let is_plain = path.starts_with('/')
        && path.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#'));
    let (mut hosts, mut connections) = (0, 0);
    let mut plain = Plain {
        method,
        path,
        headers: HeaderMap::new(),
        host: None,
        accept_language: None,
        referer: None,
        user_agent: None,
    };
    for one in request.headers.iter() {
        let is = |name: &HeaderName| one.name.eq_ignore_ascii_case(name.as_str());
        if is(&header::HOST) {
            hosts += 1;
            plain.host = Some(one.value);
        } else if is(&header::CONNECTION) {
            connections += 1;
            if !one.value.eq_ignore_ascii_case(b"keep-alive") {
                return None;
            }
        } else if is(&header::REFERER) {
            plain.referer.get_or_insert(one.value);
        } else if is(&header::USER_AGENT) {
            plain.user_agent.get_or_insert(one.value);
        } else if is(&header::ACCEPT_LANGUAGE) {
            plain.accept_language.get_or_insert(one.value);
        } else if !HARMLESS.iter().any(is) {
            let name = HeaderName::from_bytes(one.name.as_bytes()).ok()?;
            plain.headers.append(name, HeaderValue::from_bytes(one.value).ok()?);
        }
    }
    (is_plain && hosts == 1 && connections <= 1).then_some(plain)
}

/// Headers that change nothing about a stored file.
static HARMLESS: [HeaderName; 7] = [
    header::ACCEPT,
    header::ACCEPT_ENCODING,
    header::CACHE_CONTROL,
    header::DNT,
    header::PRAGMA,
    header::UPGRADE_INSECURE_REQUESTS,
    header::ORIGIN,
];

/// Adds what pages may ask of their request besides: where it was sent to, and by what.
fn with_senders(
    mut headers: HeaderMap,
    [host, accept_language, user_agent]: [Option<&[u8]>; 3],
) -> Option<HeaderMap> {
    let named = [
        (header::HOST, host),
        (header::ACCEPT_LANGUAGE, accept_language),
        (header::USER_AGENT, user_agent),
    ];
    for (name, value) in named {
        if let Some(value) = value {
            headers.insert(name, HeaderValue::from_bytes(value).ok()?);
        }
    }
    Some(headers)
}

/// Writes a head as hyper does.
fn write_head(status: StatusCode, headers: &HeaderMap) -> Vec<u8> {
    let mut head = Vec::with_capacity(512);
    head.extend_from_slice(b"HTTP/1.1 ");
    head.extend_from_slice(status.as_str().as_bytes());
    head.push(b' ');
    head.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    head.extend_from_slice(b"\r\n");
    let mut add = |name: &HeaderName, value: &[u8]| {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value);
        head.extend_from_slice(b"\r\n");
    };
    headers.iter().for_each(|(name, value)| add(name, value.as_bytes()));
    if status != StatusCode::NOT_MODIFIED && !headers.contains_key(header::CONTENT_LENGTH) {
        add(&header::CONTENT_LENGTH, b"0");
    }
    add(&header::DATE, httpdate::fmt_http_date(SystemTime::now()).as_bytes());
    head.extend_from_slice(b"\r\n");
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_plain(head: &str) -> bool {
        read(format!("{}\r\n\r\n", head.replace('\n', "\r\n")).as_bytes()).is_some()
    }

    #[test]
    fn only_plain_heads_are_answered() {
        for head in [
            "GET /a.jpg HTTP/1.1\nHost: h",
            "HEAD /a.jpg HTTP/1.1\nhost: h\nConnection: Keep-Alive",
            "GET /a.jpg HTTP/1.1\nHost: h\nRange: bytes=0-9\nIf-None-Match: \"x\"\nX-Own: 1",
        ] {
            assert!(is_plain(head), "{head}");
        }
        for head in [
            "GET /a.jpg HTTP/1.0\nHost: h",
            "GET /a.jpg HTTP/1.1",
            "GET /a.jpg HTTP/1.1\nHost: h\nHost: i",
            "GET /a.jpg?x=1 HTTP/1.1\nHost: h",
            "GET /a.jpg#x HTTP/1.1\nHost: h",
            "GET http://h/a.jpg HTTP/1.1\nHost: h",
            "GET /\u{e4}.jpg HTTP/1.1\nHost: h",
            "POST /a.jpg HTTP/1.1\nHost: h",
            "GET /a.jpg HTTP/1.1\nHost: h\nConnection: close",
            "GET /a.jpg HTTP/1.1\nHost: h\nConnection: keep-alive\nConnection: keep-alive",
            "GET /a.jpg HTTP/1.1\nHost: h\nbad header",
            "GET /a.jpg HTTP/1.1\nHost: h\n\nGET /b HTTP/1.1",
        ] {
            assert!(!is_plain(head), "{head}");
        }
    }

    #[test]
    fn heads_say_how_long_the_body_is() {
        let text = |status, headers: &[(HeaderName, &str)]| {
            let headers =
                headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap()));
            let head = write_head(status, &headers.collect());
            let head = String::from_utf8(head).unwrap();
            let (before, date) = head.split_once("date: ").unwrap();
            assert!(date.ends_with(" GMT\r\n\r\n"), "{date}");
            before.to_owned()
        };
        let length = (header::CONTENT_LENGTH, "5");
        assert_eq!(text(StatusCode::OK, &[length]), "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n");
        let tag = (header::ETAG, "\"x\"");
        assert_eq!(
            text(StatusCode::NOT_MODIFIED, &[tag]),
            "HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\n"
        );
        assert_eq!(
            text(StatusCode::RANGE_NOT_SATISFIABLE, &[]),
            "HTTP/1.1 416 Range Not Satisfiable\r\ncontent-length: 0\r\n"
        );
    }
}
