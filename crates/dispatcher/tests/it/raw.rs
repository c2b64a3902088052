//! Raw bytes at the front: what two servers could read in two ways reaches no render as a second request.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use tympan_testkit::origin_server::{OriginResponse, OriginServer, WAIT_TIMEOUT, exchange_bytes};

use crate::front::{Front, Setup, front};

/// Sends `bytes` and nothing more, so that a connection that would wait for the next request ends.
fn say(addr: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    // The server may close before it took everything; what it said by then is what counts.
    stream.write_all(bytes).ok();
    stream.shutdown(Shutdown::Write).ok();
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// A request within a request; whoever serves it was smuggled past.
const INNER: &str = "GET /smuggled.html HTTP/1.1\r\nHost: h\r\n\r\n";

/// Requests that are refused or whose connection ends after the answer.
fn ambiguous() -> Vec<(&'static str, String)> {
    let post = "POST /form HTTP/1.1\r\nHost: h\r\n";
    let chunked = "Transfer-Encoding: chunked\r\n";
    let length = |bytes: usize| format!("Content-Length: {bytes}\r\n");
    let whole = INNER.len();
    vec![
        (
            "length before chunked",
            format!("{post}{}{chunked}\r\n0\r\n\r\n{INNER}", length(whole + 5)),
        ),
        (
            "chunked before length",
            format!("{post}{chunked}{}\r\n0\r\n\r\n{INNER}", length(whole + 5)),
        ),
        ("chunked alone", format!("{post}{chunked}\r\n0\r\n\r\n{INNER}")),
        ("chunked twice", format!("{post}{chunked}{chunked}\r\n0\r\n\r\n{INNER}")),
        ("two lengths", format!("{post}{}{}\r\n{INNER}", length(0), length(whole))),
        ("two lengths in one", format!("{post}Content-Length: 0, {whole}\r\n\r\n{INNER}")),
        ("a signed length", format!("{post}Content-Length: +0\r\n\r\n{INNER}")),
        ("a hexadecimal length", format!("{post}Content-Length: 0x0\r\n\r\n{INNER}")),
        ("a huge length", format!("{post}Content-Length: 99999999999999999999\r\n\r\n{INNER}")),
        ("an unknown coding", format!("{post}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{INNER}")),
        (
            "chunked not last",
            format!("{post}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{INNER}"),
        ),
        (
            "space before the colon",
            format!("{post}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{INNER}"),
        ),
        ("a folded header", format!("{post}X: a\r\n Transfer-Encoding: chunked\r\n\r\n{INNER}")),
        (
            "chunked in HTTP/1.0",
            format!(
                "POST /form HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\n{chunked}\r\n0\r\n\r\n{INNER}"
            ),
        ),
        ("a chunk size with a sign", format!("{post}{chunked}\r\n+0\r\n\r\n{INNER}")),
        ("a huge chunk size", format!("{post}{chunked}\r\nfffffffffffffffff\r\n{INNER}")),
        ("a bare line feed in a chunk", format!("{post}{chunked}\r\n0\n\r\n{INNER}")),
        (
            "a zero byte in the target",
            format!("GET /x\u{0}.html HTTP/1.1\r\nHost: h\r\n\r\n{INNER}"),
        ),
        (
            "a zero byte in a value",
            format!("GET /x HTTP/1.1\r\nHost: h\r\nX: a\u{0}b\r\n\r\n{INNER}"),
        ),
        ("no host", format!("GET /x.html HTTP/1.1\r\n\r\n{INNER}")),
        ("two hosts", format!("GET /x.html HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n{INNER}")),
        ("a host with a space", format!("GET /x.html HTTP/1.1\r\nHost: h i\r\n\r\n{INNER}")),
        ("a host with a path", format!("GET /x.html HTTP/1.1\r\nHost: h/i\r\n\r\n{INNER}")),
        ("a host with a user", format!("GET /x.html HTTP/1.1\r\nHost: u@h\r\n\r\n{INNER}")),
        ("a target that is a host", format!("GET x.html HTTP/1.1\r\nHost: h\r\n\r\n{INNER}")),
        ("a host of FTP", format!("GET ftp://h/x.html HTTP/1.1\r\nHost: h\r\n\r\n{INNER}")),
        ("a tunnel", format!("CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n\r\n{INNER}")),
        ("a space in the target", format!("GET /x y HTTP/1.1\r\nHost: h\r\n\r\n{INNER}")),
        ("no version", format!("GET /x\r\nHost: h\r\n\r\n{INNER}")),
        ("a small version", format!("GET /x http/1.1\r\nHost: h\r\n\r\n{INNER}")),
        ("a tab before the colon", format!("GET /x HTTP/1.1\r\nHost: h\r\nX\t: y\r\n\r\n{INNER}")),
        ("a header without a colon", format!("GET /x HTTP/1.1\r\nHost: h\r\nX y\r\n\r\n{INNER}")),
        ("a header without a name", format!("GET /x HTTP/1.1\r\nHost: h\r\n: y\r\n\r\n{INNER}")),
        ("a first header that is folded", format!("GET /x HTTP/1.1\r\n Host: h\r\n\r\n{INNER}")),
        (
            "a bare carriage return in a value",
            format!("GET /x HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n{INNER}"),
        ),
        (
            "a length behind a bare line feed",
            format!("{post}X: a\nContent-Length: {whole}\r\n\r\n{INNER}"),
        ),
        (
            "a coding behind a bare line feed",
            format!("{post}X: a\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{INNER}"),
        ),
        (
            "a body of a GET",
            format!("GET /form HTTP/1.1\r\nHost: h\r\n{}\r\n{INNER}", length(whole)),
        ),
        ("two equal lengths", format!("{post}{0}{0}\r\n{INNER}", length(whole))),
        (
            "two equal lengths in one",
            format!("{post}Content-Length: {whole}, {whole}\r\n\r\n{INNER}"),
        ),
        ("a length with a space in it", format!("{post}Content-Length: 0 0\r\n\r\n{INNER}")),
        ("a negative length", format!("{post}Content-Length: -1\r\n\r\n{INNER}")),
        ("an empty length", format!("{post}Content-Length:\r\n\r\n{INNER}")),
        (
            "a coding in quotes",
            format!("{post}Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n{INNER}"),
        ),
        (
            "a coding behind a vertical tab",
            format!("{post}Transfer-Encoding: \u{b}chunked\r\n\r\n0\r\n\r\n{INNER}"),
        ),
        (
            "a coding with an empty part",
            format!("{post}Transfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n{INNER}"),
        ),
        ("two codings", format!("{post}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n{INNER}")),
        ("a chunk size with a prefix", format!("{post}{chunked}\r\n0x0\r\n\r\n{INNER}")),
        ("a chunk size with a space before it", format!("{post}{chunked}\r\n 0\r\n\r\n{INNER}")),
        ("a negative chunk size", format!("{post}{chunked}\r\n-1\r\n\r\n{INNER}")),
        ("an empty chunk size", format!("{post}{chunked}\r\n\r\n\r\n{INNER}")),
        (
            "a chunk that is longer than its size",
            format!("{post}{chunked}\r\n1\r\nab\r\n0\r\n\r\n{INNER}"),
        ),
        (
            "a chunk that ends with a line feed",
            format!("{post}{chunked}\r\n1\r\na\n0\r\n\r\n{INNER}"),
        ),
        (
            "a bare line feed in a chunk's extension",
            format!("{post}{chunked}\r\n0;a\nb\r\n\r\n{INNER}"),
        ),
        (
            "an upgrade to HTTP/2",
            format!(
                "{post}Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nContent-Length: {whole}\r\n\r\n{INNER}"
            ),
        ),
        ("HTTP/2 in the clear", format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{INNER}")),
        (
            "a control character in a name",
            format!("GET /x HTTP/1.1\r\nHo\u{1}st: h\r\n\r\n{INNER}"),
        ),
        ("an unknown version", format!("GET /x HTTP/3.7\r\nHost: h\r\n\r\n{INNER}")),
        ("garbage", format!("\u{16}\u{3}\u{1}\u{2}\u{0}\r\n\r\n{INNER}")),
    ]
}

#[test]
fn nothing_is_smuggled_behind_a_body() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let front = front(&origin, "");
    let mut smuggled = Vec::new();
    for (name, bytes) in ambiguous() {
        let answer = say(front.addr, bytes.as_bytes());
        if answer.matches("HTTP/1.1 ").count() > 1 || front.has("smuggled.html") {
            smuggled.push(format!("{name}: {answer}"));
        }
    }
    assert!(smuggled.is_empty(), "{smuggled:#?}");
    let targets: Vec<String> = origin.requests().into_iter().map(|seen| seen.target).collect();
    assert!(targets.iter().all(|target| target == "/form"), "{targets:?}");
}

#[test]
fn plain_requests_on_one_connection_are_all_answered() {
    let origin = OriginServer::start(|seen| {
        OriginResponse::html(format!("{} {}", seen.target, seen.body.len()))
    });
    let front = front(&origin, "");
    let last = "GET /c.html HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let bytes = format!(
        "GET /a.html HTTP/1.1\r\nHost: h\r\n\r\nPOST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nxyz{last}"
    );
    let answer = exchange_bytes(front.addr, bytes.as_bytes());
    let answer = String::from_utf8_lossy(&answer);
    for expected in ["/a.html 0", "/b 3", "/c.html 0"] {
        assert!(answer.contains(expected), "{expected} in {answer}");
    }
}

#[test]
fn a_chunked_body_reaches_the_render_whole() {
    let origin = OriginServer::start(|seen| OriginResponse::html(seen.body.clone()));
    let front = front(&origin, "");
    let bytes = "POST /b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: x\r\n\r\n";
    let answer = exchange_bytes(front.addr, bytes.as_bytes());
    let answer = String::from_utf8_lossy(&answer);
    assert!(
        answer.contains("abcde") && answer.to_ascii_lowercase().contains("connection: close"),
        "{answer}"
    );
}

#[test]
fn a_body_that_breaks_off_is_the_fault_of_no_render() {
    let origin = OriginServer::start(|seen| OriginResponse::html(seen.body.clone()));
    let front = Front::start(&Setup {
        farm: "/x-health { /failures \"1\" /breaker \"1\" }",
        renders: vec![origin.addr()],
        settings: format!(
            "[[host]]\nnames = [\"*\"]\n[[host.rule]]\nmatch = '^/proxied$'\nproxy = \"http://{}/b\"\n",
            origin.addr()
        ),
        ..Setup::default()
    });
    let coding = "Transfer-Encoding: chunked";
    for target in ["/b", "/proxied"] {
        for (header, body) in [
            (coding, "zz\r\nabc\r\n0\r\n\r\n"),
            (coding, "3\r\nabcX\r\n0\r\n\r\n"),
            (coding, "3\r\nab"),
            ("Content-Length: 5", "abc"),
        ] {
            let request = format!("POST {target} HTTP/1.1\r\nHost: h\r\n{header}\r\n\r\n{body}");
            let answer = say(front.addr, request.as_bytes());
            assert!(answer.starts_with("HTTP/1.1 400"), "{target} {header} {body}: {answer}");
        }
    }
    assert_eq!(front.send("POST", "/b", &[], "whole").body, "whole");
    assert_eq!(front.metric("render_failures_total"), 0);
}

#[test]
fn a_body_in_a_coding_that_is_not_understood_reaches_no_render() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let front = front(&origin, "");
    for coding in ["gzip, chunked", "chunked, chunked", ",chunked"] {
        let request = format!(
            "POST /b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: {coding}\r\n\r\n0\r\n\r\n{INNER}"
        );
        let answer = say(front.addr, request.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 501"), "{coding}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{coding}: {answer}");
    }
    assert_eq!(origin.request_count(), 0);
}

/// Heads that must be refused, with what is wrong.
#[test]
fn heads_that_cannot_be_read_in_one_way_are_answered_400() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let front = front(&origin, "");
    for (name, bytes) in ambiguous() {
        let is_of_host = name.contains("host") && name != "a host"
            || ["a tunnel", "a folded header", "space before the colon"].contains(&name)
            || name.contains("zero byte")
            || name.contains("before the colon");
        if !is_of_host {
            continue;
        }
        let answer = say(front.addr, bytes.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 400"), "{name}: {answer}");
    }
    assert_eq!(origin.request_count(), 0);
}

#[test]
fn the_host_of_an_absolute_target_goes_before_the_header() {
    let origin = OriginServer::start(|seen| {
        OriginResponse::html(seen.header("host").unwrap_or("-").to_owned())
    });
    let text = format!(
        "/farms {{
           /open {{ /virtualhosts {{ \"open.example.com\" }} /clientheaders {{ \"*\" }}
             /renders {{ /r {{ /hostname \"127.0.0.1\" /port \"{0}\" }} }} }}
           /closed {{ /virtualhosts {{ \"closed.example.com\" }} /renders {{ /r {{ /hostname \"127.0.0.1\" /port \"{0}\" }} }}
             /filter {{ /0 {{ /type \"deny\" /url \"*\" }} }} }}
         }}",
        origin.addr().port()
    );
    let front = crate::front::Front::start_text(&text);
    let ask = |target: &str, host: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = exchange_bytes(front.addr, request.as_bytes());
        String::from_utf8_lossy(&answer).into_owned()
    };
    let opened = ask("http://open.example.com/a", "closed.example.com");
    assert!(opened.ends_with("open.example.com"), "the render reads the same host: {opened}");
    let closed = ask("http://closed.example.com/a", "open.example.com");
    assert!(closed.starts_with("HTTP/1.1 404"), "{closed}");
    assert_eq!(origin.request_count(), 1);
}

#[test]
fn a_body_is_asked_for_before_it_is_sent() {
    let origin = OriginServer::start(|seen| OriginResponse::html(seen.body.clone()));
    let front = front(&origin, "");
    let mut stream = TcpStream::connect(front.addr).unwrap();
    let head = "POST /b HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"body").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("body"), "{answer}");
    // What is refused is not asked for.
    let large = head.replace("Content-Length: 4", "Content-Length: 99999999999");
    let answer = exchange_bytes(front.addr, large.as_bytes());
    assert!(answer.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&answer));
}
