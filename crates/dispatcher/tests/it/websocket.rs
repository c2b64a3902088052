//! WebSockets to servers behind proxy rules, with the client and the server of a WebSocket library.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use tungstenite::client::IntoClientRequest;
use tungstenite::{Message, WebSocket};
use tympan_testkit::origin_server::{OriginResponse, OriginServer, exchange_bytes};

use crate::front::{Front, Setup};

/// A limit that only a test that fails reaches.
const LIMIT: Duration = Duration::from_secs(30);

/// A server that sends each message back, after one with the target of the handshake and its forwarded host.
struct EchoServer {
    addr: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl EchoServer {
    /// Serves this number of connections.
    fn start(connections: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let serving: Vec<_> = (0..connections)
                .map(|_| {
                    let (stream, _) = listener.accept().unwrap();
                    std::thread::spawn(move || echo(stream))
                })
                .collect();
            serving.into_iter().for_each(|serving| serving.join().unwrap());
        });
        Self { addr, thread: Some(thread) }
    }

    fn join(mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

fn echo(stream: TcpStream) {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut greeting = String::new();
    #[expect(clippy::result_large_err, reason = "the signature of the library")]
    let read = |request: &tungstenite::handshake::server::Request,
                mut response: tungstenite::handshake::server::Response| {
        let host = request.headers().get("x-forwarded-host").map(|host| host.to_str().unwrap());
        greeting = format!("{} for {}", request.uri(), host.unwrap_or("-"));
        response.headers_mut().insert("x-greeting", "hello".parse().unwrap());
        Ok(response)
    };
    let mut socket = tungstenite::accept_hdr(stream, read).unwrap();
    socket.send(Message::text(greeting)).unwrap();
    while let Ok(message) = socket.read() {
        if message.is_text() || message.is_binary() {
            socket.send(message).unwrap();
        }
    }
}

fn start(render: &OriginServer, settings: &str) -> Front {
    Front::start(&Setup {
        renders: vec![render.addr()],
        settings: settings.to_owned(),
        ..Setup::default()
    })
}

fn rule(server: SocketAddr) -> String {
    format!("[[host]]\nrule = [{{ match = '^/live/(.*)$', proxy = \"ws://{server}/ws/$1\" }}]")
}

fn render() -> OriginServer {
    OriginServer::start(|seen| OriginResponse::html(format!("render {}", seen.target)))
}

type Client = (WebSocket<TcpStream>, tungstenite::handshake::client::Response);

fn connect(front: &Front, target: &str) -> Result<Client, String> {
    let stream = TcpStream::connect(front.addr).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let request = format!("ws://{}{target}", front.addr).into_client_request().unwrap();
    tungstenite::client(request, stream).map_err(|error| error.to_string())
}

fn text(socket: &mut WebSocket<TcpStream>) -> String {
    socket.read().unwrap().into_text().unwrap().to_string()
}

#[test]
fn messages_pass_both_ways_until_one_side_ends() {
    let (render, echo) = (render(), EchoServer::start(2));
    let front = start(&render, &rule(echo.addr));
    let clients: Vec<_> = (0..2)
        .map(|number| {
            let (mut socket, response) = connect(&front, &format!("/live/{number}?q=1")).unwrap();
            assert_eq!(response.headers()["x-greeting"], "hello");
            assert_eq!(text(&mut socket), format!("/ws/{number}?q=1 for {}", front.addr));
            socket
        })
        .collect();
    for mut socket in clients {
        socket.send(Message::text("one")).unwrap();
        assert_eq!(text(&mut socket), "one");
        let large = "x".repeat(300_000);
        socket.send(Message::text(large.as_str())).unwrap();
        assert_eq!(text(&mut socket), large);
        socket.close(None).unwrap();
        while socket.read().is_ok() {}
    }
    echo.join();
    assert_eq!(front.metric("websockets_total"), 2);
    assert_eq!(render.request_count(), 0);
}

#[test]
fn places_are_limited_and_become_free() {
    let (render, echo) = (render(), EchoServer::start(2));
    let front = start(&render, &format!("[front]\nmax_websockets = 1\n{}", rule(echo.addr)));
    let (mut first, _) = connect(&front, "/live/1").unwrap();
    assert_eq!(text(&mut first), format!("/ws/1 for {}", front.addr));
    let refused = connect(&front, "/live/2").unwrap_err();
    assert!(refused.contains("503"), "{refused}");
    first.close(None).unwrap();
    while first.read().is_ok() {}
    drop(first);
    let mut second = None;
    tympan_testkit::condition_wait::wait_until("the place is free", || {
        second = connect(&front, "/live/3").ok();
        second.is_some()
    });
    drop(second);
    echo.join();
    assert!(front.metric("websockets_refused_total") >= 1);
}

/// A handshake of RFC 6455, section 1.3, whose key is accepted with [`ACCEPT`].
fn handshake(target: &str, more: &str) -> String {
    format!(
        "GET {target} HTTP/1.1\r\nHost: www.example.com\r\nUpgrade: websocket\r\n\
         Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Version: 13\r\n{more}\r\n"
    )
}

const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
/// A request that a visitor tries to send past the rules.
const SMUGGLED: &str = "GET /private HTTP/1.1\r\nHost: internal\r\n\r\n";

/// Answers one request with these bytes; returns all that follows on the connection.
fn answer_once(response: String) -> (SocketAddr, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let seen = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        stream.write_all(response.as_bytes()).unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        rest
    });
    (addr, seen)
}

#[test]
fn what_is_no_accepted_handshake_opens_no_tunnel() {
    let switched = |headers: &str| format!("HTTP/1.1 101 Switching Protocols\r\n{headers}\r\n");
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
    let accept = format!("Sec-WebSocket-Accept: {ACCEPT}\r\n");
    for (response, expected) in [
        ("HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno".to_owned(), "426"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_owned(), "200"),
        (switched(upgrade), "502"),
        (switched(&format!("{upgrade}Sec-WebSocket-Accept: AAAA\r\n")), "502"),
        (switched(&format!("Connection: Upgrade\r\nUpgrade: h2c\r\n{accept}")), "502"),
    ] {
        let render = render();
        let (addr, seen) = answer_once(response.clone());
        let front = start(&render, &rule(addr));
        let bytes = format!("{}{SMUGGLED}", handshake("/live/1", ""));
        let close = "GET /last.html HTTP/1.1\r\nHost: www.example.com\r\nConnection: close\r\n\r\n";
        let answer = exchange_bytes(front.addr, format!("{bytes}{close}").as_bytes());
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected} ")), "{response}: {answer}");
        drop(front);
        assert_eq!(seen.join().unwrap(), "", "{response}");
    }
}

#[test]
fn invalid_handshakes_reach_no_server() {
    let render = render();
    let portal = OriginServer::start_constant(OriginResponse::html("portal"));
    let front = start(&render, &rule(portal.addr()));
    let status = |bytes: &str| {
        let answer = exchange_bytes(front.addr, bytes.as_bytes());
        String::from_utf8_lossy(&answer).split(' ').nth(1).map(str::to_owned)
    };
    let body = handshake("/live/1", &format!("Content-Length: {}\r\n", SMUGGLED.len()));
    assert_eq!(status(&format!("{body}{SMUGGLED}")).as_deref(), Some("400"));
    let twice = handshake("/live/1", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n");
    assert_eq!(status(&twice).as_deref(), Some("400"));
    assert_eq!(portal.request_count(), 0);
}

#[test]
fn other_rules_and_farms_pass_no_upgrade_on() {
    let render = render();
    let portal = OriginServer::start_constant(OriginResponse::html("portal"));
    let settings = format!(
        "[[host]]\nrule = [{{ match = '^/plain', proxy = \"http://{0}/\" }}, {{ match = '^/live', proxy = \"ws://{0}/\" }}]",
        portal.addr()
    );
    let front = start(&render, &settings);
    for target in ["/plain", "/page.html"] {
        let request = handshake(target, "Connection: close\r\n");
        let answer = exchange_bytes(front.addr, request.as_bytes());
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{target}");
    }
    assert_eq!(front.get("/live").body, "portal", "an ordinary request of the same rule");
    let seen = [portal.requests().remove(0), render.requests().remove(0)];
    assert!(seen.iter().all(|seen| seen.header("upgrade").is_none()));
}

#[test]
fn a_render_changes_no_protocol_by_itself() {
    let switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
    let (addr, seen) = answer_once(switched.to_owned());
    let front = Front::start(&Setup { renders: vec![addr], ..Setup::default() });
    let request = format!(
        "POST /form HTTP/1.1\r\nHost: www.example.com\r\nContent-Length: 1\r\n\r\nx{SMUGGLED}"
    );
    let close = "GET /last.html HTTP/1.1\r\nHost: www.example.com\r\nConnection: close\r\n\r\n";
    let answer = exchange_bytes(front.addr, format!("{request}{close}").as_bytes());
    assert!(answer.starts_with(b"HTTP/1.1 502 "), "{}", String::from_utf8_lossy(&answer));
    drop(front);
    assert!(!seen.join().unwrap().contains("private"));
}
