//! Entry points for the fuzz targets to private functions; present only in their build and in tests.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri};
use tympan_web::sling_url::SlingUrlReading;

use crate::cache::StoredHeaders;
use crate::cache::cache_directives::{MAX_DELTA_SECONDS, ReceivedAge, received_age};
use crate::cache::response_memory::response_key_of;
use crate::cache::storage_terms::{
    ReceivedResponse, STORED_TERMS_HEADER, StorageTerms, StoredTerms,
};
use crate::cache::ttl::StaleLenience;
use crate::cache::vary::{STORED_VARY_HEADER, VarySelection, sort_languages};
use crate::edge::fast_path::{parse_fast_path_head, parse_http2_fields, parse_response_key};
use crate::edge::http2::connection::{
    Http2Connection, Http2Limits, Http2ReadStep, Http2ResponseBody,
};
use crate::edge::http2::hpack::FieldList;
use crate::edge::response_plan::{ResponsePlan, StoredEntity, plan_response};
use crate::flush::propagation::{FlushEvent, FlushEventLog, SiblingMessage};

/// Parses a header file and checks that the result survives a round trip.
pub fn check_header_file(text: &[u8]) {
    let Some(stored) = StoredHeaders::parse(text) else { return };
    assert_eq!(StoredHeaders::parse(&stored.to_text()), Some(stored));
}

/// Splits an input into lines of headers, `name: value`; others are left out.
fn headers_of_lines(input: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in input.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = line.split_at(colon);
        let name = HeaderName::from_bytes(name);
        let value = HeaderValue::from_bytes(value.get(1..).unwrap_or_default().trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value)
            && headers.len() < 100
        {
            headers.append(name, value);
        }
    }
    headers
}

/// Checks that a request matches the response to it, by the headers that its `Vary` names. The headers of both are the
/// same lines.
pub fn check_vary(input: &[u8]) {
    let headers = headers_of_lines(input);
    let selections = [
        VarySelection::of_response(&headers, &headers),
        Some(VarySelection::of_http_response(&headers, &headers)),
    ];
    for selection in selections.into_iter().flatten() {
        assert!(selection.matches(&headers));
        let Some(value) = selection.to_value() else { return };
        let stored = HeaderMap::from_iter([(STORED_VARY_HEADER, value)]);
        assert_eq!(VarySelection::from_stored(&stored).as_ref(), Some(&selection));
        let [first, second] = selection.variant_files("a.html".as_ref(), &headers);
        assert_ne!(first, second);
    }
    let mut sorted = headers.clone();
    sort_languages(&mut sorted);
    let once = sorted.clone();
    sort_languages(&mut sorted);
    assert_eq!(sorted, once, "languages in order stay as they are");
}

/// Checks the terms on which a response with these headers may be stored.
pub fn check_cache_control(input: &[u8]) {
    let headers = headers_of_lines(input);
    let fetch_time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    for (is_authorized, default_lifetime) in
        [(false, Duration::ZERO), (true, Duration::from_secs(60))]
    {
        let terms = StorageTerms::of_response(&ReceivedResponse {
            status: http::StatusCode::OK,
            headers: &headers,
            fetch_time,
            is_authorized,
            default_lifetime,
        });
        let Ok(terms) = terms else { continue };
        let remaining = terms.expiry.duration_since(fetch_time).unwrap_or_default();
        let most = Duration::from_secs(MAX_DELTA_SECONDS);
        assert!(terms.expiry >= fetch_time && remaining <= most);
        assert!(terms.shares_authorized || !is_authorized);
        match received_age(&headers) {
            ReceivedAge::Absent => {}
            ReceivedAge::Known(age) => assert!(terms.initial_age >= age),
            ReceivedAge::Invalid => assert_eq!(terms.expiry, fetch_time),
        }
        assert!(!terms.prohibits_stale || terms.lenience == StaleLenience::default());
        let stored = HeaderMap::from_iter([(STORED_TERMS_HEADER, terms.to_value())]);
        let read = StoredTerms::from_stored(&stored)
            .map(|read| (read.prohibits_stale, read.shares_authorized));
        assert_eq!(read, Some((terms.prohibits_stale, terms.shares_authorized)));
    }
}

/// Parses messages of siblings and the event log, and checks that the results survive a round trip.
pub fn check_flush_propagation(bytes: &[u8]) {
    if let Some(sibling_message) = SiblingMessage::parse(bytes) {
        let text = serde_json::to_vec(&sibling_message).unwrap_or_default();
        assert_eq!(SiblingMessage::parse(&text), Some(sibling_message));
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Some(mut log) = FlushEventLog::parse(text, "run".to_owned()) else { return };
    assert_eq!(FlushEventLog::parse(&log.to_text(), "run".to_owned()).as_ref(), Some(&log));
    let line = log.append(FlushEvent::All);
    assert!(
        log.to_text().ends_with(&line),
        "what is added to the file is what the whole file ends with"
    );
}

/// Splits a path and checks that the parts and separators give the path again.
pub fn check_url_path(path: &str) {
    let parts = SlingUrlReading::by_first_dot(path);
    let mut joined = parts.path.to_owned();
    for part in [parts.selectors, parts.extension].into_iter().flatten() {
        joined.push('.');
        joined.push_str(part);
    }
    joined.push_str(parts.suffix.unwrap_or_default());
    // An absent part between dots leaves no trace.
    let plain = |text: &str| text.replace('.', "");
    assert_eq!(plain(&joined), plain(path));
    assert!(path.starts_with(parts.path) && !parts.path.contains('.'));
}

/// Parses the first request of a connection as the fast path does.
pub fn check_fast_path(bytes: &[u8]) {
    let Some((length, method, host, target)) = parse_fast_path_head(bytes) else { return };
    let head = bytes.get(..length).unwrap_or_default();
    assert_eq!(head.len(), length, "a head lies within what was read");
    assert!(head.ends_with(b"\n\r\n") || head.ends_with(b"\n\n"), "a head ends with an empty line");
    assert!(method == "GET" || method == "HEAD");
    assert!(target.starts_with('/') && target.bytes().all(|byte| byte.is_ascii_graphic()));
    assert!(!host.contains(&b'\n') && !host.contains(&b'\r'));
    // No shorter prefix is a complete request: the fast path and hyper see the same end.
    for end in 0..length {
        assert!(
            parse_fast_path_head(bytes.get(..end).unwrap_or_default()).is_none(),
            "ends at {end}"
        );
    }
    // The following bytes belong to the next request.
    assert_eq!(parse_fast_path_head(head).map(|(length, ..)| length), Some(length));
    if let Some(request) = parse_head_with_hyper(head) {
        assert_eq!(
            parse_response_key(head),
            response_key_of(&request, false),
            "both ways find one answer"
        );
    }
}

/// Parses a head as hyper does; `None` if hyper rejects it.
fn parse_head_with_hyper(head: &[u8]) -> Option<Request<()>> {
    let mut headers = [httparse::EMPTY_HEADER; 100];
    let mut parsed = httparse::Request::new(&mut headers);
    parsed.parse(head).ok()?.is_complete().then_some(())?;
    let uri: Uri = parsed.path?.parse().ok()?;
    let mut request = Request::builder().method(parsed.method?).uri(uri).body(()).ok()?;
    for header in parsed.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
        request.headers_mut().append(name, HeaderValue::from_bytes(header.value).ok()?);
    }
    Some(request)
}

/// Parses the input of an HTTP/2 client in pieces, and answers some of its requests.
pub fn check_http2(bytes: &[u8]) {
    const HEADER_BYTES: usize = 4096;
    let stall_timeout = Duration::from_secs(30);
    let bounds = Http2Limits { max_streams: 4, max_header_bytes: HEADER_BYTES, stall_timeout };
    let (mut session, mut fields) = (Http2Connection::new(bounds, 0), FieldList::default());
    // An input need not contain the preface.
    let greeting: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let input = if bytes.starts_with(b"PRI") { bytes.to_vec() } else { [greeting, bytes].concat() };
    let mut buffer = Vec::new();
    // Time advances, so that responses without a window are given up.
    for (piece, now_ms) in input.chunks(61).zip((0..).step_by(7_000)) {
        session.advance_time(now_ms);
        buffer.extend_from_slice(piece);
        let mut rest = &buffer[..];
        loop {
            match session.read_step(&mut rest, &mut fields) {
                Http2ReadStep::NeedMoreData => break,
                Http2ReadStep::Closed => {
                    assert!(session.is_closing() && !session.has_streams());
                    return;
                }
                Http2ReadStep::Request { stream, is_complete } => {
                    let size: usize =
                        fields.iter().map(|(name, value)| name.len() + value.len()).sum();
                    assert!(size <= HEADER_BYTES, "{size} bytes of fields");
                    let plain = parse_http2_fields(&fields, true).filter(|_| is_complete);
                    match plain {
                        Some(plain) => {
                            // A request that hyper rejects must not have a key.
                            if let Some(request) = parse_fields_with_hyper(&fields) {
                                assert_eq!(
                                    Some(plain.response_key.to_key()),
                                    response_key_of(&request, true)
                                );
                            }
                            let body = Http2ResponseBody::Bytes(vec![b'x'; 20_000].into());
                            session.send_response(stream, &[b"\x88"], body);
                        }
                        None => session.refuse_stream(stream),
                    }
                }
                Http2ReadStep::Trailers { .. } | Http2ReadStep::Data { .. } => {
                    unreachable!("no request was left to the service")
                }
            }
            assert!(rest.len() <= buffer.len());
        }
        let left = rest.len();
        buffer.drain(..buffer.len() - left);
        session.fill_output(40_000);
        session.reset_stalled_streams();
        assert!(session.output.len() < 200_000, "{} bytes wait", session.output.len());
        session.output.clear();
        assert!(session.next_stall_deadline_ms().is_none_or(|end_ms| end_ms > now_ms));
    }
}

/// Parses fields as hyper does; `None` if hyper rejects them.
fn parse_fields_with_hyper(fields: &FieldList) -> Option<Request<()>> {
    let mut uri = Uri::builder();
    let mut request = Request::builder().version(http::Version::HTTP_2);
    for (name, value) in fields.iter() {
        match name {
            b":method" => request = request.method(value),
            b":scheme" => uri = uri.scheme(value),
            b":authority" => uri = uri.authority(value),
            b":path" => uri = uri.path_and_query(value),
            name => request = request.header(name, value),
        }
    }
    request.uri(uri.build().ok()?).body(()).ok()
}

/// Evaluates header lines as conditions and ranges for bodies of some lengths.
pub fn check_conditional_request(lines: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = line.split_at(colon);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            headers.append(name, value);
        }
    }
    for length in [0, 1, 6_137, u64::MAX] {
        for etag in ["\"0123\"", "W/\"0123\""] {
            let etag = HeaderValue::from_static(etag);
            let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
            let entity = StoredEntity {
                etag: &etag,
                modification_time: modified,
                length,
                supports_ranges: true,
            };
            let of_head =
                plan_response(&headers, &StoredEntity { supports_ranges: false, ..entity.clone() });
            assert!(!matches!(of_head, ResponsePlan::Part(_) | ResponsePlan::Unsatisfiable));
            match plan_response(&headers, &entity) {
                ResponsePlan::Part(range) => {
                    assert!(range.start() <= range.end() && *range.end() < length);
                }
                ResponsePlan::Whole if headers.is_empty() => {}
                _ => assert!(!headers.is_empty(), "without conditions everything is sent"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        check_cache_control, check_conditional_request, check_fast_path, check_flush_propagation,
        check_header_file, check_http2, check_url_path, check_vary,
    };
    use crate::edge::http2::hpack::push_literal;
    use proptest::prelude::*;

    /// Tokens of the formats in any order, mixed with other bytes.
    fn pieces() -> impl Strategy<Value = Vec<u8>> {
        const KNOWN: [&str; 30] = [
            "GET ",
            "HEAD ",
            "/a.html",
            "?x=1",
            " HTTP/1.1",
            "\r\n",
            "\n",
            "Host: h",
            "host:",
            ": ",
            "Connection: close",
            "Content-Length: 0",
            "Range: bytes=",
            "0-9",
            "-5",
            "if-none-match: ",
            "\"0123\"",
            "W/",
            "tympan-headers 1 ",
            "1795222216123456789",
            ".",
            "/",
            "\0",
            "\r",
            "vary: foo, accept-language",
            "accept-language: en;q=",
            "cache-control: max-age=",
            "no-cache=\"",
            "age: ",
            "cdn-cache-control: ",
        ];
        let known_piece = (0..KNOWN.len()).prop_map(|index| KNOWN[index].as_bytes().to_vec());
        let piece =
            prop_oneof![6 => known_piece, 1 => proptest::collection::vec(any::<u8>(), 0..4)];
        proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn no_input_breaks_a_reader(bytes in pieces()) {
            check_header_file(&bytes);
            check_vary(&bytes);
            check_cache_control(&bytes);
            check_fast_path(&bytes);
            check_http2(&bytes);
            check_conditional_request(&bytes);
            check_url_path(&String::from_utf8_lossy(&bytes));
        }
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    /// An HTTP/2 request whose fields hyper accepts or rejects.
    fn block() -> impl Strategy<Value = Vec<u8>> {
        let method = prop_oneof![Just("GET"), Just("HEAD"), Just("POST")];
        let host = prop_oneof![4 => Just("h"), 1 => Just("a b"), 1 => Just("h:x"), 1 => Just("")];
        let path = prop_oneof![
            4 => Just("/a.html?x"),
            1 => Just("/<"),
            1 => Just("//h/"),
            1 => Just("a"),
            1 => Just("/a#b")
        ];
        let more = prop_oneof![
            Just(("if-none-match", "\"x\"")),
            Just(("Accept", "*")),
            Just(("a b", "c")),
            Just(("te", "gzip")),
            Just((":path", "/b")),
        ];
        let all = (method, host, path, proptest::collection::vec(more, 0..3));
        all.prop_map(|(method, host, path, more)| {
            let first = [(":method", method), (":scheme", "https"), (":authority", host)];
            let fields = first.into_iter().chain([(":path", path)]).chain(more);
            let mut block = Vec::new();
            for (name, value) in fields {
                push_literal(&mut block, name.as_bytes(), value.as_bytes());
            }
            block
        })
    }

    proptest! {
        #[test]
        fn no_frames_break_the_reader_of_http2(
            requests in proptest::collection::vec((block(), 0_u8..6, any::<u8>()), 0..8),
            noise in proptest::collection::vec(any::<u8>(), 0..8),
        ) {
            let mut input = Vec::new();
            for (number, (block, kind, flags)) in requests.iter().enumerate() {
                let stream = u32::try_from(number).unwrap() * 2 + 1;
                match kind {
                    0 => input.extend(frame(8, 0, 0, &[0, 0, flags & 1, 1])),
                    1 => input.extend(frame(3, 0, stream.saturating_sub(2), &[0; 4])),
                    _ => input.extend(frame(1, 5, stream, block)),
                }
            }
            input.extend(noise);
            check_http2(&input);
        }
    }

    #[test]
    fn the_seeds_pass() {
        check_fast_path(b"GET /a.html?x=1 HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\n");
        check_fast_path(
            b"GET //a HTTP/1.1\r\nCookie: a=b\r\nhOST: h:80\r\nX-Dispatcher-Info: 1\r\n\r\n",
        );
        check_fast_path(b"\r\n\r\nHEAD / HTTP/1.1\r\nhost:h\r\nConnection: close\r\n\r\n");
        check_fast_path(b"GET /a HTTP/1.1\nHost: h\n\n");
        check_header_file(b"tympan-headers 1 5\nlink: a\nlink: b\n");
        check_conditional_request(b"range: bytes=0-9\nif-range: \"0123\"");
        check_flush_propagation(
            b"tympan-passed 1 o r1 4\nr1 5 {\"page\":\"/5.html\"}\nr2 6 \"stats\"\n",
        );
        check_flush_propagation(
            b"tympan-passed 1 o r9007199254740991\nr1 9007199254740992 \"all\"\n",
        );
        check_url_path("/a..b...html/");
    }
}
