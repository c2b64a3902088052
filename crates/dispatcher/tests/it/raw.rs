//! Raw bytes at the front: what two servers could read in two ways reaches no render as a second request.

use tympan_testkit::origin::{Answer, Origin, exchange};

use crate::front::front;

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
        ("no host", format!("{}{INNER}", "GET /x\u{0}.html HTTP/1.1\r\n\r\n")),
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
    let origin = Origin::always(Answer::html("page"));
    let front = front(&origin, "");
    let mut smuggled = Vec::new();
    for (name, bytes) in ambiguous() {
        let answer = exchange(front.addr, bytes.as_bytes());
        let answer = String::from_utf8_lossy(&answer);
        if answer.matches("HTTP/1.1 ").count() > 1 || front.has("smuggled.html") {
            smuggled.push(format!("{name}: {answer}"));
        }
    }
    assert!(smuggled.is_empty(), "{smuggled:#?}");
    let targets: Vec<String> = origin.seen().into_iter().map(|seen| seen.target).collect();
    assert!(targets.iter().all(|target| target == "/form"), "{targets:?}");
}

#[test]
fn plain_requests_on_one_connection_are_all_answered() {
    let origin = Origin::start(|seen| Answer::html(format!("{} {}", seen.target, seen.body.len())));
    let front = front(&origin, "");
    let last = "GET /c.html HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let bytes = format!(
        "GET /a.html HTTP/1.1\r\nHost: h\r\n\r\nPOST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nxyz{last}"
    );
    let answer = exchange(front.addr, bytes.as_bytes());
    let answer = String::from_utf8_lossy(&answer);
    for expected in ["/a.html 0", "/b 3", "/c.html 0"] {
        assert!(answer.contains(expected), "{expected} in {answer}");
    }
}

#[test]
fn a_chunked_body_reaches_the_render_whole() {
    let origin = Origin::start(|seen| Answer::html(seen.body.clone()));
    let front = front(&origin, "");
    let bytes = "POST /b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: x\r\n\r\n";
    let answer = exchange(front.addr, bytes.as_bytes());
    let answer = String::from_utf8_lossy(&answer);
    assert!(
        answer.contains("abcde") && answer.to_ascii_lowercase().contains("connection: close"),
        "{answer}"
    );
}
