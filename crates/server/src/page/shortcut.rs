//! Shortcut for pictures, files and pages: builds a response to visitors directly from the request head, without hyper
//! and without copies.
//!
//! In: a raw request head. Out: the response cached in [`crate::page::hot_response`], with its bytes in an open file or in
//! memory, or a page that it renders; otherwise `None`, and the request takes the regular path.
//!
//! Invariants
//! * A response built here equals that of the routes, including all headers, and is logged and counted in the same way.
//! * A request head that is not plain, or that contains credentials, is left to hyper.

use std::borrow::Cow;
use std::fmt::Write;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use tympan_web::decimal_digits::DecimalDigits;
use tympan_web::http1_response_head::Http1ResponseHead;
use tympan_web::listen::ConnectionPeer;
use tympan_web::log_time::LogTime;
use tympan_web::request_log::{self, RequestLogEventRef};
use tympan_web::sample_mark;
use tympan_web::shortcut::{ReadyResponse, ReadyResponseBody, Shortcut};
use tympan_web::sling_url::REFUSED_READINGS;

use crate::Instance;
use crate::login::has_credentials;
use crate::observe::request_recorder::{CompletedRequest, media_type_essence};
use crate::page::hot_response::{ShortcutHeaders, ShortcutResponse};
use crate::page::{AnonymousPageRequest, NOSNIFF_HEADER};

/// Maximum number of headers; requests with more are left to hyper.
const MAX_SHORTCUT_HEADERS: usize = 48;

/// An instance as the shortcut of a listener, which is tried before hyper.
#[derive(Debug)]
pub struct InstanceShortcut(Arc<Instance>);

impl InstanceShortcut {
    /// Creates the shortcut of an instance.
    #[must_use]
    pub fn new(instance: Arc<Instance>) -> Self {
        Self(instance)
    }
}

/// A request head that the shortcut can handle.
struct PlainRequestHead<'a> {
    method: Method,
    path: &'a str,
    /// The headers that determine the range and conditions of the response, or that exclude the shortcut.
    headers: HeaderMap,
    host: Option<&'a [u8]>,
    accept_language: Option<&'a [u8]>,
    referer: Option<&'a [u8]>,
    user_agent: Option<&'a [u8]>,
    /// The lab sample to which the request belongs.
    lab_sample: Option<&'a str>,
}

impl Shortcut for InstanceShortcut {
    fn try_respond(&self, head: &[u8], peer: ConnectionPeer) -> Option<ReadyResponse> {
        let instance = &self.0;
        let PlainRequestHead {
            method,
            path,
            headers,
            host,
            accept_language,
            referer,
            user_agent,
            lab_sample,
        } = parse_plain_head(head)?;
        if has_credentials(&headers) || headers.contains_key(&REFUSED_READINGS) {
            return None;
        }
        let (started, now) = (Instant::now(), SystemTime::now());
        let ShortcutResponse { status, headers, body } = match instance
            .shortcut_hot_response(&method, path, &headers)
        {
            Some(response) => response,
            None if method == Method::GET => {
                let [host, accept_language, user_agent] =
                    [host, accept_language, user_agent].map(header_text);
                let visit = AnonymousPageRequest { path, host, accept_language, user_agent, peer };
                instance.shortcut_rendered_response(&visit, &headers)?
            }
            None => return None,
        };
        let number = instance.request_numbers.take_next();
        let event = RequestLogEventRef::Entry {
            method: method.as_str(),
            target: path,
            version: "HTTP/1.1",
        };
        let at = LogTime::from_system(now);
        instance.request_log.write_line(&request_log::RequestLogLineRef {
            logged_at: at,
            request_number: number,
            event,
        });
        let length = match &body {
            ReadyResponseBody::Bytes(bytes) => Some(bytes.len()),
            ReadyResponseBody::Empty | ReadyResponseBody::File { .. } => None,
        };
        let head = write_response_head(status, &headers, length, now);
        let mut note = ShortcutRequestRecord {
            number,
            started_at: started,
            status,
            media_type: logged_media_type(&headers),
            bytes: 0,
            log_texts: RequestLogTexts::from_request(
                peer,
                (&method, path),
                [referer, user_agent, lab_sample.map(str::as_bytes)],
            ),
            instance: Arc::clone(instance),
        };
        let done = move |sent| {
            note.bytes = sent;
            drop(note);
        };
        Some(ReadyResponse { head, body, on_sent: Box::new(done) })
    }
}

/// The data of a request handled by the shortcut; recorded on drop.
struct ShortcutRequestRecord {
    number: u64,
    started_at: Instant,
    status: StatusCode,
    media_type: Option<Cow<'static, str>>,
    bytes: u64,
    log_texts: RequestLogTexts,
    instance: Arc<Instance>,
}

impl Drop for ShortcutRequestRecord {
    fn drop(&mut self) {
        self.instance.record_completed_request(&CompletedRequest {
            number: self.number,
            started_at: self.started_at,
            status: self.status,
            media_type: self.media_type.as_deref(),
            bytes: self.bytes,
            client: self.log_texts.slice(&self.log_texts.client),
            user: None,
            request_line: self.log_texts.slice(&self.log_texts.request_line),
            referer: self.log_texts.referer.as_ref().map(|part| self.log_texts.slice(part)),
            user_agent: self.log_texts.user_agent.as_ref().map(|part| self.log_texts.slice(part)),
            lab_sample: self.log_texts.lab_sample.as_ref().map(|part| self.log_texts.slice(part)),
        });
    }
}

/// The texts of a request head for the logs, as slices of one string.
struct RequestLogTexts {
    text: String,
    client: Range<usize>,
    request_line: Range<usize>,
    referer: Option<Range<usize>>,
    user_agent: Option<Range<usize>>,
    lab_sample: Option<Range<usize>>,
}

impl RequestLogTexts {
    fn from_request(
        peer: ConnectionPeer,
        (method, path): (&Method, &str),
        [referer, user_agent, sample]: [Option<&[u8]>; 3],
    ) -> Self {
        let lengths = [referer, user_agent, sample].map(|text| text.map_or(0, <[u8]>::len));
        let mut all = String::with_capacity(path.len() + lengths.iter().sum::<usize>() + 64);
        push_ip_address(&mut all, peer.addr.ip());
        let client = 0..all.len();
        for part in [method.as_str(), " ", path, " HTTP/1.1"] {
            all.push_str(part);
        }
        let request_line = client.end..all.len();
        let mut add = |text: Option<&[u8]>| {
            let begin = all.len();
            all.push_str(&String::from_utf8_lossy(text?));
            Some(begin..all.len())
        };
        let (referer, user_agent, sample) = (add(referer), add(user_agent), add(sample));
        Self { text: all, client, request_line, referer, user_agent, lab_sample: sample }
    }

    fn slice(&self, part: &Range<usize>) -> &str {
        self.text.get(part.clone()).unwrap_or_default()
    }
}

/// Parses a request head; `None` if it is not plain.
fn parse_plain_head(head: &[u8]) -> Option<PlainRequestHead<'_>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_SHORTCUT_HEADERS];
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
    let mut plain = PlainRequestHead {
        method,
        path,
        headers: HeaderMap::new(),
        host: None,
        accept_language: None,
        referer: None,
        user_agent: None,
        lab_sample: None,
    };
    let mut marks = 0;
    for header in request.headers.iter() {
        let is = |name: &HeaderName| header.name.eq_ignore_ascii_case(name.as_str());
        if is(&header::HOST) {
            hosts += 1;
            plain.host = Some(header.value);
        } else if is(&header::CONNECTION) {
            connections += 1;
            if !header.value.eq_ignore_ascii_case(b"keep-alive") {
                return None;
            }
        } else if is(&header::REFERER) {
            plain.referer.get_or_insert(header.value);
        } else if is(&header::USER_AGENT) {
            plain.user_agent.get_or_insert(header.value);
        } else if is(&header::ACCEPT_LANGUAGE) {
            plain.accept_language.get_or_insert(header.value);
        } else if is(&sample_mark::SAMPLE_MARK_HEADER) {
            // Two sample marks count as none, as in the regular path.
            marks += 1;
            plain.lab_sample = sample_mark::parse_sample_mark(header.value).filter(|_| marks == 1);
        } else if !IGNORED_HEADERS.iter().any(is) {
            let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
            plain.headers.append(name, HeaderValue::from_bytes(header.value).ok()?);
        }
    }
    (is_plain && hosts == 1 && connections <= 1).then_some(plain)
}

/// Headers that do not affect the response for a stored file.
static IGNORED_HEADERS: [HeaderName; 7] = [
    header::ACCEPT,
    header::ACCEPT_ENCODING,
    header::CACHE_CONTROL,
    header::DNT,
    header::PRAGMA,
    header::UPGRADE_INSECURE_REQUESTS,
    header::ORIGIN,
];

/// Returns a header's value as text; empty if it is not text.
fn header_text(value: Option<&[u8]>) -> &str {
    let is_visible = |byte: &u8| matches!(byte, b' '..=b'~' | b'\t');
    let text = value.filter(|value| value.iter().all(is_visible));
    text.and_then(|text| std::str::from_utf8(text).ok()).unwrap_or_default()
}

/// Returns the media type of a response for the log.
fn logged_media_type(headers: &ShortcutHeaders) -> Option<Cow<'static, str>> {
    match headers {
        ShortcutHeaders::Rendered(media_type) => {
            Some(Cow::Borrowed(media_type.split(';').next().unwrap_or_default()))
        }
        ShortcutHeaders::Other(headers) => {
            Some(Cow::Owned(media_type_essence(headers.get(header::CONTENT_TYPE)?).into_owned()))
        }
    }
}

/// Writes a response head like hyper; `length` is the length of a body whose headers do not contain it.
fn write_response_head(
    status: StatusCode,
    headers: &ShortcutHeaders,
    length: Option<usize>,
    now: SystemTime,
) -> Vec<u8> {
    let mut head = Http1ResponseHead::new(status);
    let tells_length = match headers {
        ShortcutHeaders::Rendered(media_type) => {
            head.add_header(header::CONTENT_TYPE.as_str(), media_type.as_bytes());
            let (name, value) = &NOSNIFF_HEADER;
            head.add_header(name.as_str(), value.as_bytes());
            false
        }
        ShortcutHeaders::Other(headers) => {
            for (name, value) in headers {
                head.add_header(name.as_str(), value.as_bytes());
            }
            headers.contains_key(header::CONTENT_LENGTH)
        }
    };
    let is_told = tells_length || (length.is_none() && status == StatusCode::NOT_MODIFIED);
    if !is_told {
        head.add_number(header::CONTENT_LENGTH.as_str(), length.unwrap_or(0) as u64);
    }
    head.add_date(now);
    head.finish()
}

/// Appends an address; faster than the formatter of the standard library, which handles more cases.
fn push_ip_address(text: &mut String, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            for (index, byte) in address.octets().into_iter().enumerate() {
                text.push_str(if index == 0 { "" } else { "." });
                text.push_str(DecimalDigits::from_number(byte.into()).as_str());
            }
        }
        // Writing to a string cannot fail.
        IpAddr::V6(address) => write!(text, "{address}").unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_plain(head: &str) -> bool {
        parse_plain_head(format!("{}\r\n\r\n", head.replace('\n', "\r\n")).as_bytes()).is_some()
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
    fn a_marked_request_goes_the_same_way_and_two_marks_are_none() {
        let sample = |headers: &str| {
            let head = format!("GET /a.jpg HTTP/1.1\r\nHost: h\r\n{headers}\r\n");
            let plain = parse_plain_head(head.as_bytes()).unwrap();
            assert!(plain.headers.is_empty(), "{headers}");
            plain.lab_sample.map(str::to_owned)
        };
        assert_eq!(sample("X-Tympan-Lab: 1a2b-7\r\n").as_deref(), Some("1a2b-7"));
        assert_eq!(sample("X-Tympan-Lab: 1a2b-7; 9ms\r\n"), None);
        assert_eq!(sample("X-Tympan-Lab: a-1\r\nX-Tympan-Lab: a-2\r\n"), None);
    }

    #[test]
    fn addresses_are_written_as_ever() {
        for text in ["0.0.0.0", "127.0.0.1", "255.10.9.100", "::1", "2001:db8::7", "::ffff:1.2.3.4"]
        {
            let mut written = String::new();
            push_ip_address(&mut written, text.parse().unwrap());
            assert_eq!(written, text);
        }
    }

    #[test]
    fn heads_say_how_long_the_body_is() {
        let text = |status, headers: &[(HeaderName, &str)]| {
            let headers =
                headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap()));
            let headers = ShortcutHeaders::Other(headers.collect());
            let head = write_response_head(status, &headers, None, SystemTime::now());
            let head = String::from_utf8(head).unwrap();
            let (before, date) = head.split_once("date: ").unwrap();
            assert!(date.ends_with(" GMT\r\n\r\n"), "{date}");
            before.to_owned()
        };
        let media_type = "text/html; charset=utf-8";
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static(media_type)),
            (NOSNIFF_HEADER.0.clone(), HeaderValue::from_static(NOSNIFF_HEADER.1)),
        ];
        let [plain, map] = [
            ShortcutHeaders::Rendered(media_type),
            ShortcutHeaders::Other(headers.into_iter().collect()),
        ]
        .map(|headers| {
            assert_eq!(logged_media_type(&headers).as_deref(), Some("text/html"));
            write_response_head(StatusCode::OK, &headers, Some(7), SystemTime::UNIX_EPOCH)
        });
        assert_eq!(plain, map);
        assert!(String::from_utf8(plain).unwrap().contains("\r\ncontent-length: 7\r\n"));
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
