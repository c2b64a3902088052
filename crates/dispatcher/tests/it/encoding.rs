//! Bodies in encodings: made off the request's way, chosen by the visitor's weights, gone with their page.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tympan_testkit::origin_server::{OriginResponse, OriginServer, WAIT_TIMEOUT, exchange_bytes};

use crate::front::{Front, Setup, front};

/// An answer with a body that need not be text.
struct Raw {
    head: String,
    body: Vec<u8>,
}

impl Raw {
    fn header(&self, name: &str) -> Option<&str> {
        let line = self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.map(str::trim)
    }

    fn status(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }

    fn decoded(&self) -> Vec<u8> {
        let mut body = Vec::new();
        match self.header("content-encoding") {
            None => body.clone_from(&self.body),
            Some("gzip") => {
                flate2::read::GzDecoder::new(&*self.body).read_to_end(&mut body).unwrap();
            }
            Some("br") => brotli::BrotliDecompress(&mut &*self.body, &mut body).unwrap(),
            Some("zstd") => body = zstd::stream::decode_all(&*self.body).unwrap(),
            Some(other) => panic!("nobody asked for {other}"),
        }
        body
    }
}

fn ask(front: &Front, method: &str, target: &str, more: &str) -> Raw {
    let head = format!("{method} {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{more}\r\n");
    let bytes = exchange_bytes(front.addr, head.as_bytes());
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    Raw { head, body: bytes[end + 4..].to_vec() }
}

/// Asks until the answer comes in an encoding.
fn ask_encoded(front: &Front, target: &str, accepted: &str) -> Raw {
    let deadline = std::time::Instant::now() + WAIT_TIMEOUT;
    loop {
        let answer = ask(front, "GET", target, &format!("Accept-Encoding: {accepted}\r\n"));
        assert_eq!(answer.header("vary"), Some("Accept-Encoding"), "{}", answer.head);
        if answer.header("content-encoding").is_some() {
            return answer;
        }
        assert!(std::time::Instant::now() < deadline, "{} stays as it is", answer.head);
        std::thread::yield_now();
    }
}

fn text(version: u64) -> String {
    (0..2000).map(|line| format!("<p>line {line} of version {version}</p>\n")).collect()
}

#[test]
fn a_page_comes_in_the_encoding_that_its_visitor_takes() {
    let origin = OriginServer::start_constant(OriginResponse::html(text(1)));
    let front = front(&origin, "/x-compress 1");
    for (accepted, expected) in
        [("gzip, br, zstd", "br"), ("zstd, gzip", "zstd"), ("gzip", "gzip"), ("br;q=0, *", "zstd")]
    {
        let answer = ask_encoded(&front, "/a.html", accepted);
        assert_eq!(answer.header("content-encoding"), Some(expected));
        assert_eq!(answer.decoded(), text(1).as_bytes());
        assert!(answer.body.len() * 3 < text(1).len());
        let length = answer.body.len().to_string();
        assert_eq!(answer.header("content-length"), Some(length.as_str()));
        let head = ask(&front, "HEAD", "/a.html", &format!("Accept-Encoding: {accepted}\r\n"));
        assert_eq!(head.status(), "200");
    }
    for refused in ["", "Accept-Encoding: identity\r\n", "Accept-Encoding: deflate\r\n"] {
        let answer = ask(&front, "GET", "/a.html", refused);
        assert_eq!(answer.header("content-encoding"), None, "{refused}");
        assert_eq!(answer.header("vary"), Some("Accept-Encoding"));
        assert_eq!(answer.body, text(1).as_bytes());
    }
    assert_eq!(origin.request_count(), 1);
    // Nothing of it lies in the document root.
    assert_eq!(front.files(), ["a.html"]);
}

#[test]
fn each_encoding_has_its_own_version_and_parts_are_of_the_page_itself() {
    let origin = OriginServer::start_constant(OriginResponse::html(text(1)));
    let front = front(&origin, "/x-compress 1");
    let encoded = ask_encoded(&front, "/a.html", "br");
    let tag = encoded.header("etag").unwrap();
    let known = format!("Accept-Encoding: br\r\nIf-None-Match: {tag}\r\n");
    let answer = ask(&front, "GET", "/a.html", &known);
    assert_eq!((answer.status(), answer.header("etag")), ("304", Some(tag)));
    assert_eq!(answer.header("vary"), Some("Accept-Encoding"));
    // The same tag is not that of the page as it is.
    let other = format!("If-None-Match: {tag}\r\n");
    assert_eq!(ask(&front, "GET", "/a.html", &other).status(), "200");
    let part = ask(&front, "GET", "/a.html", "Accept-Encoding: br\r\nRange: bytes=10-19\r\n");
    assert_eq!((part.status(), part.header("content-encoding")), ("206", None));
    assert_eq!(part.body, &text(1).as_bytes()[10..20]);
    let plain = part.header("etag").unwrap();
    assert_ne!(plain, tag);
    // A part of the encoded page cannot be asked for, so all of the page comes.
    let mixed = format!("Accept-Encoding: br\r\nRange: bytes=10-19\r\nIf-Range: {tag}\r\n");
    assert_eq!(ask(&front, "GET", "/a.html", &mixed).status(), "200");
}

#[test]
fn pictures_small_pages_and_fixed_ones_stay_as_they_are() {
    let origin = OriginServer::start(|seen| {
        let answer = OriginResponse::html(if seen.target == "/small.html" {
            "x".repeat(900)
        } else {
            text(1)
        });
        match seen.target.as_str() {
            "/fixed.html" => answer.with_header("Cache-Control", "max-age=9, no-transform"),
            _ => answer,
        }
    });
    let front = front(&origin, "/x-compress 1 /headers { \"Cache-Control\" }");
    front.write("a.png", &text(1));
    for target in ["/small.html", "/fixed.html", "/a.png", "/after.html"] {
        for _ in 0..3 {
            let answer = ask(&front, "GET", target, "Accept-Encoding: gzip\r\n");
            if target != "/after.html" {
                assert_eq!(answer.header("content-encoding"), None, "{target}");
            }
        }
    }
    // What came later is encoded by now, so the others would be.
    ask_encoded(&front, "/after.html", "gzip");
    for target in ["/fixed.html", "/a.png"] {
        let answer = ask(&front, "GET", target, "Accept-Encoding: gzip\r\n");
        assert_eq!((answer.header("content-encoding"), answer.header("vary")), (None, None));
    }
}

#[test]
fn an_encoded_page_is_never_older_than_a_flush() {
    let version = Arc::new(AtomicU64::new(1));
    let drawn = Arc::clone(&version);
    let origin =
        OriginServer::start(move |_| OriginResponse::html(text(drawn.load(Ordering::SeqCst))));
    let front = front(&origin, "/x-compress 1");
    for current in 2..8 {
        ask_encoded(&front, "/a.html", "gzip");
        version.store(current, Ordering::SeqCst);
        assert_eq!(front.flush("Activate", "/a", &[]).status, 200);
        for _ in 0..4 {
            let answer = ask(&front, "GET", "/a.html", "Accept-Encoding: gzip\r\n");
            assert!(answer.decoded() == text(current).as_bytes(), "not of version {current}");
        }
    }
}

#[test]
fn without_the_switch_nothing_is_encoded() {
    let origin = OriginServer::start_constant(OriginResponse::html(text(1)));
    let front = front(&origin, "");
    for _ in 0..4 {
        let answer = ask(&front, "GET", "/a.html", "Accept-Encoding: gzip, br\r\n");
        assert_eq!((answer.header("content-encoding"), answer.header("vary")), (None, None));
    }
}

#[test]
fn a_page_in_another_charset_survives() {
    let gbk: &[u8] = b"<p>\xc4\xe3\xba\xc3</p>";
    let origin = OriginServer::start(move |_| {
        OriginResponse::with_status(200)
            .with_body(gbk)
            .with_header("Content-Type", "text/html; charset=gbk")
    });
    let front = front(&origin, "");
    for _ in 0..4 {
        let answer = ask(&front, "GET", "/a.html", "");
        assert_eq!(answer.header("content-type"), Some("text/html; charset=gbk"));
        assert_eq!(answer.body, gbk);
    }
    assert_eq!(origin.request_count(), 1);
}

#[test]
fn a_stored_page_without_headers_says_the_charset_of_its_head() {
    let origin = OriginServer::start_constant(OriginResponse::html("not asked"));
    let front = front(&origin, "");
    let gbk = "<META http-equiv=\"Content-Type\" content=\"text/html; charset=gbk\"><p>";
    let utf8 = "<meta charset=\"UTF-8\"><p>";
    for (name, text, expected) in [
        ("gbk.html", gbk, "text/html; charset=gbk"),
        ("utf8.html", utf8, "text/html; charset=utf-8"),
        ("plain.html", "<p>", "text/html; charset=utf-8"),
        ("gbk.txt", gbk, "text/plain; charset=utf-8"),
    ] {
        front.write(name, text);
        for _ in 0..2 {
            let answer = ask(&front, "GET", &format!("/{name}"), "");
            assert_eq!(answer.header("content-type"), Some(expected), "{name}");
        }
    }
    assert_eq!(origin.request_count(), 0);
}

#[test]
fn head_tells_what_get_would_bring() {
    let origin = OriginServer::start_constant(OriginResponse::html(text(1)));
    let front = front(&origin, "/x-compress 1");
    let encoded = ask_encoded(&front, "/a.html", "br");
    // Its own answer has to be kept before that of the GET stands in for it.
    ask(&front, "HEAD", "/a.html", "");
    let plain = ask(&front, "GET", "/a.html", "");
    // The lane and, for an odd header of the connection, the memory behind hyper.
    for way in ["", "Connection: x\r\n"] {
        let both = |method: &str, more: &str| {
            let more = format!("{way}{more}");
            let answer = ask(&front, method, "/a.html", &more);
            let mut lines: Vec<String> = answer.head.lines().map(str::to_owned).collect();
            lines.retain(|line| !line.starts_with("date: "));
            lines
        };
        for more in [
            "Accept-Encoding: br\r\n",
            "Accept-Encoding: gzip;q=0.5, zstd;q=0.4\r\n",
            "Accept-Encoding: br;q=0\r\n",
            "",
            &format!(
                "Accept-Encoding: br\r\nIf-None-Match: {}\r\n",
                encoded.header("etag").unwrap()
            ),
            &format!("Accept-Encoding: br\r\nIf-None-Match: {}\r\n", plain.header("etag").unwrap()),
        ] {
            let answer = ask(&front, "HEAD", "/a.html", &format!("{way}{more}"));
            assert!(answer.body.is_empty());
            assert_eq!(both("HEAD", more), both("GET", more), "{way}{more}");
        }
        // No part of it can be asked for, so the whole encoded page is told of.
        let ranged = "Accept-Encoding: br\r\nRange: bytes=0-9\r\n";
        assert_eq!(both("HEAD", ranged), both("GET", "Accept-Encoding: br\r\n"));
    }
    assert_eq!(origin.request_count(), 1);
}

/// A render that answers every request with these bytes. Answers in the coding `identity` leave their connection open.
struct RawOrigin {
    address: SocketAddr,
}

impl RawOrigin {
    /// Serves as long as the process lives.
    fn start(answer: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stays_open = String::from_utf8_lossy(&answer).contains("identity");
        std::thread::spawn(move || {
            let mut open = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) > 0 {
                    head.extend(byte);
                }
                stream.write_all(&answer).ok();
                if stays_open {
                    open.push(stream);
                }
            }
        });
        Self { address }
    }
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn zlib(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn brotli(text: &[u8]) -> Vec<u8> {
    let mut coded = Vec::new();
    let parameters = brotli::enc::BrotliEncoderParams { quality: 2, ..Default::default() };
    brotli::BrotliCompress(&mut &*text, &mut coded, &parameters).unwrap();
    coded
}

/// Renders are asked without `Accept-Encoding`; some answer in a coding all the same.
#[test]
fn pages_that_come_in_a_coding_are_stored_and_sent_without_it() {
    let large = text(7).repeat(40);
    for coding in ["gzip", "x-gzip", "GZIP", "identity", "br", "zstd", "deflate"] {
        for body in [text(3), large.clone()] {
            let sent = match coding {
                "identity" => body.clone().into_bytes(),
                "br" => brotli(body.as_bytes()),
                "zstd" => zstd::bulk::compress(body.as_bytes(), 3).unwrap(),
                "deflate" => zlib(body.as_bytes()),
                _ => gzip(body.as_bytes()),
            };
            let answer = OriginResponse::html(sent).with_header("Content-Encoding", coding);
            let origin = OriginServer::start_constant(answer.with_header("ETag", "\"tag\""));
            let front = front(&origin, "/headers { \"Content-Encoding\" \"ETag\" }");
            for target in ["/a.html", "/a.html"] {
                let answer = ask(&front, "GET", target, "");
                assert_eq!(answer.status(), "200", "{coding}");
                assert_eq!(answer.header("content-encoding"), None, "{coding}");
            }
            front.wait_for("fetches", 0);
            assert_eq!(front.read("a.html"), body, "{coding}");
            assert_eq!(ask(&front, "GET", "/a.html", "").body, body.as_bytes());
            assert_eq!(origin.request_count(), 1, "{coding}");
            // What is not stored is the visitor's and the render's own business.
            let passed = ask(&front, "GET", "/a.html?x=1", "Accept-Encoding: gzip\r\n");
            assert_eq!(passed.header("content-encoding"), Some(coding));
        }
    }
    // What is no such body never reaches anybody as one.
    for (coding, body) in [
        ("gzip", b"hello".to_vec()),
        ("gzip", gzip(b"hello")[..12].to_vec()),
        ("br", b"\xff\xff\xff".to_vec()),
        ("zstd", b"hello".to_vec()),
        ("deflate", zlib(b"hello")[..5].to_vec()),
    ] {
        let origin = OriginServer::start_constant(
            OriginResponse::html(body).with_header("Content-Encoding", coding),
        );
        let front = front(&origin, "");
        assert_eq!(ask(&front, "GET", "/a.html", "").status(), "502");
        assert!(!front.has("a.html"));
    }
    let origin = OriginServer::start_constant(
        OriginResponse::html("x").with_header("Content-Encoding", "compress"),
    );
    let front = front(&origin, "");
    assert_eq!(front.get("/a.html").info(), "not cacheable: response is encoded");
}

/// Transfer codings are between the render and the dispatcher, whether or not a page is stored.
#[test]
fn transfer_codings_of_renders_are_taken_off() {
    let answer = |head: &str, body: &[u8]| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{head}\r\n\r\n");
        [head.as_bytes(), body].concat()
    };
    let chunked = |body: &[u8]| {
        let size = format!("{:x}\r\n", body.len());
        [size.as_bytes(), body, b"\r\n0\r\n\r\n"].concat()
    };
    let coded = gzip(text(1).as_bytes());
    let length = text(1).len();
    for (answer, expected) in [
        (answer("Transfer-Encoding: gzip, chunked", &chunked(&coded)), "200"),
        (answer("Transfer-Encoding: x-gzip\r\nContent-Length: 3", &coded), "200"),
        (
            answer(
                &format!("Transfer-Encoding: identity\r\nContent-Length: {length}"),
                text(1).as_bytes(),
            ),
            "200",
        ),
        (answer("Transfer-Encoding: gzip, chunked", &chunked(b"hello")), "502"),
        (answer("Transfer-Encoding: compress, chunked", &chunked(b"hello")), "502"),
    ] {
        let origin = RawOrigin::start(answer);
        let setup = Setup { renders: vec![origin.address], ..Setup::default() };
        let front = Front::start(&setup);
        let page = ask(&front, "GET", "/a.html", "");
        assert_eq!(page.status(), expected);
        if expected == "200" {
            assert_eq!(page.body, text(1).as_bytes());
            assert_eq!(front.read("a.html"), text(1));
            assert_eq!(front.get("/a.html?x=1").body, text(1));
        } else {
            assert!(!front.has("a.html"));
        }
    }
}
