//! Who a visitor is, behind proxies and in front of renders, and how much one may ask.

use tympan_testkit::condition_wait::wait_until;
use tympan_testkit::origin_server::{OriginResponse, OriginServer, exchange_bytes};

use crate::front::{Front, Reply, Setup};

fn start(origin: &OriginServer, settings: &str) -> Front {
    Front::start(&Setup {
        renders: vec![origin.addr()],
        settings: settings.to_owned(),
        ..Setup::default()
    })
}

fn text(front: &Front, bytes: &[u8]) -> String {
    String::from_utf8_lossy(&exchange_bytes(front.addr, bytes)).into_owned()
}

const CLOSE: &str = "Host: www.example.com\r\nConnection: close\r\n\r\n";

#[test]
fn a_proxy_header_names_the_client() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let front = start(&origin, "[front]\nproxy_protocol_from = [\"127.0.0.0/8\"]");
    let request = format!("GET /a HTTP/1.1\r\n{CLOSE}");
    let one = format!("PROXY TCP4 192.0.2.7 192.0.2.8 5000 80\r\n{request}");
    assert!(text(&front, one.as_bytes()).contains("page"));
    let mut two = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c".to_vec();
    two.extend([192, 0, 2, 9, 192, 0, 2, 8, 0x13, 0x88, 0, 80]);
    two.extend(request.as_bytes());
    assert!(text(&front, &two).contains("page"));
    let own = format!("PROXY UNKNOWN\r\n{request}");
    assert!(text(&front, own.as_bytes()).contains("page"));
    let seen = origin.requests();
    let clients: Vec<_> = seen.iter().map(|seen| seen.header("x-forwarded-for").unwrap()).collect();
    assert_eq!(clients, ["192.0.2.7", "192.0.2.9", "127.0.0.1"]);
    assert_eq!(text(&front, request.as_bytes()), "", "no header, no connection");
    // Flushes are allowed from 127.0.0.1, which this client is not.
    let flush = format!(
        "PROXY TCP4 192.0.2.7 192.0.2.8 5000 80\r\nGET /dispatcher/invalidate.cache HTTP/1.1\r\n\
         CQ-Action: Activate\r\nCQ-Handle: /content\r\n{CLOSE}"
    );
    assert!(text(&front, flush.as_bytes()).starts_with("HTTP/1.1 403"));
}

#[test]
fn a_visitor_says_nothing_about_the_tls_that_a_proxy_header_tells_of() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let front = start(&origin, "[front]\nproxy_protocol_from = [\"127.0.0.0/8\"]");
    let names = ["Client-Cert", "Cipher", "Keysize", "Session-ID"];
    let said: String =
        names.iter().map(|name| format!("X-Forwarded-SSL-{name}: forged\r\n")).collect();
    // The last part tells of TLS, without a certificate.
    let mut request = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x14".to_vec();
    request.extend([192, 0, 2, 9, 192, 0, 2, 8, 0x13, 0x88, 0, 80]);
    request.extend([0x20, 0, 5, 1, 0, 0, 0, 0]);
    request.extend(format!("GET /a HTTP/1.1\r\n{said}{CLOSE}").as_bytes());
    assert!(text(&front, &request).contains("page"));
    let seen = origin.requests().remove(0);
    assert_eq!(seen.header("x-forwarded-ssl"), Some("on"));
    for name in names {
        assert_eq!(seen.header(&format!("x-forwarded-ssl-{name}")), None, "{name}");
    }
}

#[test]
fn a_proxy_header_of_a_stranger_is_garbage() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let front = start(&origin, "[front]\nproxy_protocol_from = [\"192.0.2.0/24\"]");
    let bytes = format!("PROXY TCP4 192.0.2.7 192.0.2.8 5000 80\r\nGET /a HTTP/1.1\r\n{CLOSE}");
    assert!(text(&front, bytes.as_bytes()).starts_with("HTTP/1.1 400"));
    assert_eq!(origin.request_count(), 0);
}

#[test]
fn forwarded_headers_are_believed_from_trusted_proxies_only() {
    let trusted = "[front]\ntrusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\"]";
    let stranger = "[front]\ntrusted_proxies = [\"10.0.0.0/8\"]";
    let headers = [
        ("X-Forwarded-For", "6.6.6.6, 192.0.2.7, 10.1.1.1"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Port", "8443"),
        ("X-Forwarded-SSL-Client-Cert", "forged"),
    ];
    let ask = |settings: &str| {
        let origin = OriginServer::start_constant(OriginResponse::html("page"));
        let front = start(&origin, settings);
        assert_eq!(front.send("GET", "/a", &headers, "").status, 200);
        let flush = [&headers[..], &[("CQ-Action", "Test"), ("CQ-Handle", "/content")]].concat();
        let flushed = front.send("GET", "/dispatcher/invalidate.cache", &flush, "").status;
        let seen = origin.requests().remove(0);
        let header = |name: &str| seen.header(name).unwrap_or("-").to_owned();
        let told = [
            header("x-forwarded-for"),
            header("x-forwarded-port"),
            header("x-forwarded-ssl"),
            header("x-forwarded-ssl-client-cert"),
        ];
        (flushed, told.join(" | "))
    };
    // The client is the last address that no trusted proxy has; it may not flush.
    let chain = "6.6.6.6, 192.0.2.7, 10.1.1.1, 127.0.0.1";
    assert_eq!(ask(trusted), (403, format!("{chain} | 8443 | on | forged")));
    assert_eq!(ask(stranger), (200, "127.0.0.1 | 80 | - | -".to_owned()));
    assert_eq!(ask(""), (200, format!("{chain} | 80 | - | forged")), "as httpd does");
}

#[test]
fn a_client_that_its_proxy_names_by_no_address_is_not_the_proxy() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let front = start(&origin, "[front]\ntrusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\"]");
    let flush = |chain: &[u8]| {
        let mut request = b"GET /dispatcher/invalidate.cache HTTP/1.1\r\nCQ-Action: Test\r\n\
            CQ-Handle: /content\r\nX-Forwarded-For: "
            .to_vec();
        request.extend(chain);
        request.extend(b"\r\n");
        request.extend(CLOSE.as_bytes());
        let answer = text(&front, &request);
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    // Flushes are allowed from 127.0.0.1, which is the proxy.
    for chain in [
        &b"\xff, 203.0.113.9"[..],
        b"127.0.0.1\xff, 203.0.113.9",
        b"\xff",
        b"unknown",
        b"127.0.0.1, unknown",
        b"127.0.0.1, \xff, 10.1.1.1",
        b"_hidden:1, 10.1.1.1",
        b"\xff, 127.0.0.1:80, 10.1.1.1,",
    ] {
        assert_eq!(flush(chain), "403", "{}", String::from_utf8_lossy(chain));
    }
    for own in [&b""[..], b" , ", b"127.0.0.1", b"127.0.0.1:80, 10.1.1.1,"] {
        assert_eq!(flush(own), "200", "{}", String::from_utf8_lossy(own));
    }
}

#[test]
fn one_client_gets_its_rate_and_others_theirs() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let settings =
        "[front]\nrequests_per_second = 0.01\nburst = 3\ntrusted_proxies = [\"127.0.0.1\"]";
    let front = start(&origin, settings);
    let ask =
        |client: &str| -> Reply { front.send("GET", "/a", &[("X-Forwarded-For", client)], "") };
    let statuses: Vec<u16> = (0..5).map(|_| ask("192.0.2.7").status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!(ask("192.0.2.8").status, 200);
    let wait: u64 = ask("192.0.2.7").header("retry-after").unwrap().parse().unwrap();
    assert!((1..=101).contains(&wait), "{wait}");
    assert_eq!(front.metric("rate_limited_total"), 3);
    assert_eq!(origin.request_count(), 4, "what is too much reaches no render");
    assert_eq!(front.flush("Test", "/content", &[]).status, 200, "publishers flush in bursts");
    let forged = [("CQ-Action", "Test"), ("CQ-Handle", "/"), ("X-Forwarded-For", "192.0.2.9")];
    let statuses: Vec<u16> = (0..5).map(|_| front.send("GET", "/a", &forged, "").status).collect();
    assert_eq!(statuses, [403, 403, 403, 429, 429]);
    let passed = [("X-Tympan-Passed", "1"), ("X-Forwarded-For", "192.0.2.10")];
    let statuses: Vec<u16> =
        (0..4).map(|_| front.send("POST", "/a", &passed, "x").status).collect();
    assert_eq!(statuses, [403, 403, 403, 429]);
}

#[test]
fn a_client_has_no_more_connections_than_it_may() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let front = start(&origin, "[front]\nmax_connections_per_client = 2");
    let hold = || {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(front.addr).unwrap();
        stream.write_all(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).ok().map(|()| stream)
    };
    let held = [hold(), hold()];
    assert!(held.iter().all(Option::is_some));
    assert!(hold().is_none());
    drop(held);
    wait_until("places are given back", || hold().is_some());
}

#[test]
fn a_connection_ends_after_its_requests() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let front = start(&origin, "[front]\nmax_requests_per_connection = 2");
    let answer = text(&front, "GET /a.html HTTP/1.1\r\nHost: h\r\n\r\n".repeat(3).as_bytes());
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 2, "{answer}");
    assert_eq!(answer.to_ascii_lowercase().matches("connection: close").count(), 1);
}
