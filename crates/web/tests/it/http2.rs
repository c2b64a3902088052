//! HTTP/2: what is answered, and what closes a connection. Frames are written by hand where a client would not send them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio_rustls::client::TlsStream;
use tower::service_fn;
use tympan_web::listen::{
    ConnectionPeer, ListenerCounters, ListenerLimits, ListenerOptions, PortReuse, bind_listener,
    serve_listener,
};
use tympan_web::tls::{TlsServer, TlsServerSettings};

use crate::certificates::{Made, connect};

/// What the service of these tests saw.
#[derive(Default)]
struct Seen {
    begun: AtomicUsize,
    gate: Notify,
}

struct Server {
    addr: SocketAddr,
    made: Made,
    seen: Arc<Seen>,
    counters: Arc<ListenerCounters>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers `/slow` when the gate opens, `/large` with 4 MiB, `/length` with the length of what was sent, everything else at
/// once.
async fn answer(
    request: Request<Incoming>,
    seen: Arc<Seen>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    seen.begun.fetch_add(1, Ordering::SeqCst);
    let peer = *request.extensions().get::<ConnectionPeer>().unwrap();
    let body = match request.uri().path() {
        "/slow" => {
            seen.gate.notified().await;
            "slow".to_owned()
        }
        "/large" => "x".repeat(4 * 1024 * 1024),
        "/length" => request.into_body().collect().await.unwrap().to_bytes().len().to_string(),
        path => format!("{path} {:?} tls {}", request.version(), peer.is_tls),
    };
    Ok(Response::new(Full::from(body)))
}

fn start(limits: ListenerLimits) -> Server {
    let made = Made::for_names(&["localhost"]);
    let offering = TlsServerSettings {
        identities: vec![made.identity()],
        has_http2: true,
        ..TlsServerSettings::default()
    };
    let front = ListenerOptions {
        tls: Some(TlsServer::new(&offering).unwrap()),
        ..ListenerOptions::from(limits)
    };
    let counters = Arc::clone(&front.counters);
    let listener =
        bind_listener(SocketAddr::from(([127, 0, 0, 1], 0)), PortReuse::Exclusive).unwrap();
    let addr = listener.local_addr().unwrap();
    let seen = Arc::new(Seen::default());
    let inner = Arc::clone(&seen);
    let service = service_fn(move |request| answer(request, Arc::clone(&inner)));
    let task = tokio::spawn(async move {
        serve_listener(listener, service, front, std::future::pending()).await.unwrap();
    });
    Server { addr, made, seen, counters, task }
}

impl Server {
    async fn connect(&self, protocol: &[u8]) -> TlsStream<tokio::net::TcpStream> {
        connect(self.addr, "localhost", &self.made.certificate, &[protocol]).await.unwrap()
    }

    /// Sends raw frames behind the preface, and returns all that comes back until the server closes.
    async fn closes_after(&self, frames: &[u8]) -> Vec<u8> {
        let mut stream = self.connect(b"h2").await;
        let bytes = [PREFACE, &frame(4, 0, 0, &[]), frames].concat();
        // The server may close before it took everything.
        stream.write_all(&bytes).await.ok();
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        let read = tokio::time::timeout(Duration::from_secs(60), read).await;
        read.expect("the server closes the connection").ok();
        answer
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The headers of `GET path`, without indexing.
fn get(path: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x87, 0x04, path.len() as u8];
    block.extend(path.as_bytes());
    block.extend([0x01, 9]);
    block.extend(b"localhost");
    block
}

/// The reasons of all `GOAWAY` frames.
fn farewells(mut bytes: &[u8]) -> Vec<u32> {
    let mut reasons = Vec::new();
    while bytes.len() >= 9 {
        let length = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
        let kind = bytes[3];
        let Some(payload) = bytes.get(9..9 + length) else { break };
        if kind == 7 {
            reasons.push(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
        bytes = &bytes[9 + length..];
    }
    reasons
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ENHANCE_YOUR_CALM: u32 = 11;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_share_a_connection() {
    let server = start(ListenerLimits::default());
    let stream = server.connect(b"h2").await;
    let io = TokioIo::new(stream);
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let ask = |path: &str| {
        let request = Request::get(format!("https://localhost{path}")).version(Version::HTTP_2);
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let mut sender = sender.clone();
        async move {
            let body = sender.send_request(request).await.unwrap().into_body();
            String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
        }
    };
    let slow = tokio::spawn(ask("/slow"));
    assert_eq!(ask("/a").await, "/a HTTP/2.0 tls true", "one that waits holds up no other");
    assert_eq!(ask("/large").await.len(), 4 * 1024 * 1024);
    while server.seen.begun.load(Ordering::SeqCst) < 3 {
        tokio::task::yield_now().await;
    }
    server.seen.gate.notify_one();
    assert_eq!(slow.await.unwrap(), "slow");
    assert_eq!(server.counters.accepted.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_nobody_takes_hold_up_no_other() {
    let server = start(ListenerLimits::default());
    let io = TokioIo::new(server.connect(b"h2").await);
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let send = |path: &str| {
        let body = Full::new(Bytes::from(vec![0; 300_000]));
        let request = Request::post(format!("https://localhost{path}")).body(body).unwrap();
        let mut sender = sender.clone();
        async move {
            let body = sender.send_request(request).await.unwrap().into_body();
            String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
        }
    };
    for number in 1..=20 {
        tokio::spawn(send("/slow"));
        while server.seen.begun.load(Ordering::SeqCst) < number {
            tokio::task::yield_now().await;
        }
    }
    let length = tokio::time::timeout(Duration::from_secs(60), send("/length")).await;
    assert_eq!(length.expect("it passes the others"), "300000");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_ask_for_it_gets_http_1() {
    let server = start(ListenerLimits::default());
    let mut stream = server.connect(b"http/1.1").await;
    stream.write_all(b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("/a HTTP/1.1 tls true"),
        "{answer}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_to_head_has_no_body() {
    let limits =
        ListenerLimits { header_timeout: Duration::from_millis(500), ..ListenerLimits::default() };
    let server = start(limits);
    // A literal method without indexing.
    let mut head = vec![0x02, 4];
    head.extend(b"HEAD");
    head.extend(&get("/a")[1..]);
    let answer = server.closes_after(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &head)).await;
    let mut kinds = Vec::new();
    let mut rest = &answer[..];
    while rest.len() >= 9 {
        let length = u32::from_be_bytes([0, rest[0], rest[1], rest[2]]) as usize;
        kinds.push((rest[3], rest[4] & END_STREAM));
        rest = rest.get(9 + length..).unwrap_or_default();
    }
    assert!(kinds.contains(&(HEADERS, END_STREAM)), "{kinds:?}");
    assert!(kinds.iter().all(|(kind, _)| *kind != 0), "{kinds:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_are_taken_back_at_once_close_the_connection() {
    let server = start(ListenerLimits::default());
    let mut frames = Vec::new();
    for number in 0..20_000 {
        let stream = number * 2 + 1;
        frames.extend(frame(HEADERS, END_STREAM | END_HEADERS, stream, &get("/slow")));
        frames.extend(frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
    }
    server.closes_after(&frames).await;
    let begun = server.seen.begun.load(Ordering::SeqCst);
    assert!(begun < 20_000, "{begun} of 20,000 requests were begun");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_without_end_close_the_connection() {
    let server = start(ListenerLimits { max_header_bytes: 16 * 1024, ..ListenerLimits::default() });
    let mut frames = frame(HEADERS, END_STREAM, 1, &get("/a"));
    // A literal header without indexing, `x: yyy…`.
    let mut header = vec![0x00, 1, b'x', 0x7f, 0x81, 0x1f];
    header.extend([b'y'; 127 + 0x81 - 0x80 + (0x1f << 7)]);
    for _ in 0..2000 {
        frames.extend(frame(CONTINUATION, 0, 1, &header));
    }
    let answer = server.closes_after(&frames).await;
    assert_eq!(server.seen.begun.load(Ordering::SeqCst), 0);
    assert!(farewells(&answer).contains(&ENHANCE_YOUR_CALM), "{:?}", farewells(&answer));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_without_requests_is_closed() {
    let limits =
        ListenerLimits { header_timeout: Duration::from_millis(200), ..ListenerLimits::default() };
    let server = start(limits);
    server.closes_after(&[]).await;
    assert_eq!(server.counters.failed.load(Ordering::Relaxed), 0, "that is no fault");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_opens_no_window_is_closed() {
    let limits =
        ListenerLimits { write_timeout: Duration::from_millis(200), ..ListenerLimits::default() };
    let server = start(limits);
    // SETTINGS_INITIAL_WINDOW_SIZE 0.
    let mut frames = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    frames.extend(frame(HEADERS, END_STREAM | END_HEADERS, 1, &get("/large")));
    server.closes_after(&frames).await;
    assert_eq!(server.seen.begun.load(Ordering::SeqCst), 1);
    while server.counters.failed.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_not_taken_is_ended_and_no_other() {
    let limits =
        ListenerLimits { write_timeout: Duration::from_secs(1), ..ListenerLimits::default() };
    let server = start(limits);
    let mut stream = server.connect(b"h2").await;
    // SETTINGS_INITIAL_WINDOW_SIZE 100: enough for all answers but the large one.
    let mut frames = [PREFACE, &frame(4, 0, 0, &[0, 4, 0, 0, 0, 100])].concat();
    frames.extend(frame(WINDOW_UPDATE, 0, 0, &[0x3f, 0xff, 0, 0]));
    frames.extend(frame(HEADERS, END_STREAM | END_HEADERS, 1, &get("/large")));
    let (mut held, mut next, mut left) = (Vec::new(), 3, 0);
    let mut has_reset = false;
    // One small request after the other, so that there is always something that moves.
    while !has_reset || left > 0 {
        if left == 0 {
            frames.extend(frame(HEADERS, END_STREAM | END_HEADERS, next, &get("/a")));
            (next, left) = (next + 2, 1);
        }
        stream.write_all(&frames).await.unwrap();
        frames.clear();
        let mut piece = [0; 4096];
        let reading = stream.read(&mut piece);
        let count = tokio::time::timeout(Duration::from_secs(60), reading).await.unwrap().unwrap();
        assert!(count > 0, "the connection ended");
        held.extend_from_slice(&piece[..count]);
        while let Some((kind, flags, number, payload)) = take_frame(&mut held) {
            match (kind, number) {
                (RST_STREAM, 1) => {
                    assert_eq!(payload, [0, 0, 0, 8], "canceled");
                    has_reset = true;
                }
                (DATA, 1) => assert!(payload.len() <= 100),
                (DATA, _) if flags & END_STREAM != 0 => left -= 1,
                _ => {}
            }
        }
    }
    assert_eq!(server.counters.failed.load(Ordering::Relaxed), 0);
}

/// Takes a whole frame out of what was read: its kind, flags, stream and payload.
fn take_frame(held: &mut Vec<u8>) -> Option<(u8, u8, u32, Vec<u8>)> {
    let head: [u8; 9] = held.get(..9)?.try_into().unwrap();
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    let payload = held.get(9..9 + length)?.to_vec();
    held.drain(..9 + length);
    let stream = u32::from_be_bytes(head[5..].try_into().unwrap());
    Some((head[3], head[4], stream, payload))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_is_closed_for_others() {
    let server = start(ListenerLimits { max_connections: 1, ..ListenerLimits::default() });
    let ask = async |server: &Server| {
        let io = TokioIo::new(server.connect(b"h2").await);
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
        let connection = tokio::spawn(connection);
        let request = Request::get("https://localhost/page").body(Empty::<Bytes>::new()).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        answer.into_body().collect().await.unwrap();
        (sender, connection)
    };
    let (kept, first) = ask(&server).await;
    assert!(!kept.is_closed());
    let _second = ask(&server).await;
    // It was not cut off: the client was told, and saw its answer.
    first.await.unwrap().unwrap();
    assert_eq!(server.counters.evicted.load(Ordering::Relaxed), 1);
}
