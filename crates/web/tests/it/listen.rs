//! The listener against raw clients.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tower::service_fn;
use tympan_testkit::client_crowd::{KeepAliveClient, run_crowd};
use tympan_testkit::origin_server::exchange_bytes;
use tympan_web::body_limit::{BodyLimit, is_body_too_large, limit_body};
use tympan_web::listen::{
    ConnectionPeer, ListenerCounters, ListenerLimits, ListenerOptions, OverflowPolicy, PortReuse,
    bind_listener, serve_listener,
};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Reads the body within its limit and tells what it knows about the peer.
async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let BodyLimit(max) = *request.extensions().get().unwrap();
    let peer: ConnectionPeer = *request.extensions().get().unwrap();
    let path = request.uri().path().to_owned();
    let answer = match limit_body(request.into_body(), max).collect().await {
        Ok(body) => Response::new(Full::from(format!(
            "{path} {} bytes, loopback {}, tls {}",
            body.to_bytes().len(),
            peer.is_loopback,
            peer.is_tls
        ))),
        Err(error) => {
            let mut answer = Response::new(Full::default());
            *answer.status_mut() = if is_body_too_large(&*error) {
                StatusCode::PAYLOAD_TOO_LARGE
            } else {
                StatusCode::BAD_REQUEST
            };
            answer
        }
    };
    Ok(answer)
}

struct Server {
    addr: SocketAddr,
    counters: Arc<ListenerCounters>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    fn start(limits: ListenerLimits) -> Self {
        let listener = bind_listener(ANY, PortReuse::Exclusive).unwrap();
        let addr = listener.local_addr().unwrap();
        let front = ListenerOptions::from(limits);
        let counters = Arc::clone(&front.counters);
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let until = async { drop(stopped.await) };
            runtime.block_on(serve_listener(listener, service_fn(echo), front, until)).unwrap();
        });
        Self { addr, counters, stop: Some(stop), thread: Some(thread) }
    }

    fn ask(&self, bytes: &str) -> String {
        String::from_utf8(exchange_bytes(self.addr, bytes.as_bytes())).unwrap()
    }

    fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

#[test]
fn requests_carry_their_peer() {
    let server = Server::start(ListenerLimits::default());
    let answer = server.ask("GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with("/x 0 bytes, loopback true, tls false"), "{answer}");
}

#[test]
fn requests_follow_each_other_on_one_connection() {
    let server = Server::start(ListenerLimits::default());
    let answers = server.ask(
        "GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n\
         POST /c HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc\
         GET /d HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    );
    let places: Vec<_> = ["/a 0", "/b 0", "/c 3", "/d 0"]
        .map(|part| answers.find(&format!("{part} bytes")).unwrap_or_else(|| panic!("{answers}")))
        .into();
    assert!(places.is_sorted(), "{answers}");
    assert_eq!(server.counters.accepted.load(Ordering::Relaxed), 1);
}

#[test]
fn a_connection_has_as_many_requests_as_it_may() {
    let server = Server::start(ListenerLimits { max_requests: 2, ..ListenerLimits::default() });
    let answers = server.ask(&"GET /x HTTP/1.1\r\nHost: h\r\n\r\n".repeat(3));
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
    assert_eq!(answers.to_lowercase().matches("connection: close").count(), 1, "{answers}");
}

#[test]
fn http_1_0_is_answered_and_closed() {
    let server = Server::start(ListenerLimits::default());
    let answer = server.ask("GET /x HTTP/1.0\r\n\r\n");
    assert!(answer.ends_with("/x 0 bytes, loopback true, tls false"), "{answer}");
    let answer = server.ask("POST /x HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc");
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    assert!(answer.ends_with("/x 3 bytes, loopback true, tls false"), "{answer}");
}

#[test]
fn a_large_head_is_answered_431() {
    let server =
        Server::start(ListenerLimits { max_header_bytes: 8 * 1024, ..ListenerLimits::default() });
    let filler = "a".repeat(9 * 1024);
    let answer = server.ask(&format!("GET / HTTP/1.1\r\nHost: h\r\nX: {filler}\r\n\r\n"));
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let answer = server.ask(&format!("GET / HTTP/1.1\r\nHost: h\r\nX: {filler}{filler}"));
    assert!(answer.starts_with("HTTP/1.1 431"), "a head that never ends: {answer}");
}

#[test]
fn a_large_body_is_answered_413() {
    let server = Server::start(ListenerLimits { max_body_bytes: 5, ..ListenerLimits::default() });
    let sized =
        "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 6\r\n\r\nabcdef";
    assert!(server.ask(sized).starts_with("HTTP/1.1 413"));
    assert_eq!(server.counters.bodies_refused.load(Ordering::Relaxed), 1);
    let chunked = "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
                   3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n";
    assert!(server.ask(chunked).starts_with("HTTP/1.1 413"));
    assert_eq!(server.counters.bodies_refused.load(Ordering::Relaxed), 1);
    let fits = "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 5\r\n\r\nabcde";
    assert!(server.ask(fits).starts_with("HTTP/1.1 200"));
}

#[test]
fn a_head_that_does_not_arrive_closes_the_connection() {
    let server = Server::start(ListenerLimits {
        header_timeout: Duration::from_millis(50),
        ..ListenerLimits::default()
    });
    assert_eq!(server.ask("GET / HTTP/1.1\r\nHo"), "");
    assert_eq!(server.ask(""), "");
}

#[test]
fn connections_over_the_limit_wait_for_their_turn() {
    let server = Server::start(ListenerLimits { max_connections: 1, ..ListenerLimits::default() });
    let first = std::net::TcpStream::connect(server.addr).unwrap();
    let addr = server.addr;
    let second = std::thread::spawn(move || {
        exchange_bytes(addr, b"GET /second HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    });
    while server.counters.saturated.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(server.counters.accepted.load(Ordering::Relaxed), 1);
    drop(first);
    assert!(String::from_utf8(second.join().unwrap()).unwrap().contains("/second"));
}

#[test]
fn all_who_wait_are_accepted_at_once() {
    const CLIENTS: u64 = 300;
    let listener = bind_listener(ANY, PortReuse::Exclusive).unwrap();
    let addr = listener.local_addr().unwrap();
    let clients: Vec<_> =
        (0..CLIENTS).map(|_| std::net::TcpStream::connect(addr).unwrap()).collect();
    let front = ListenerOptions::from(ListenerLimits {
        drain_timeout: Duration::ZERO,
        ..ListenerLimits::default()
    });
    let counters = Arc::clone(&front.counters);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let turns = runtime.block_on(async move {
        let serving =
            tokio::spawn(serve_listener(listener, service_fn(echo), front, std::future::pending()));
        // Whatever else the runtime does meanwhile.
        let mut turns = 0;
        loop {
            tokio::task::yield_now().await;
            match counters.accepted.load(Ordering::Relaxed) {
                CLIENTS => break,
                0 => {}
                _some => turns += 1,
            }
        }
        serving.abort();
        turns
    });
    // The last of them may have come late.
    assert!(turns <= 1, "others had {turns} turns between the first and the last");
    drop(clients);
}

#[test]
fn a_taken_port_is_named() {
    let first = bind_listener(ANY, PortReuse::Exclusive).unwrap();
    let addr = first.local_addr().unwrap();
    let error = bind_listener(addr, PortReuse::Exclusive).unwrap_err();
    assert!(error.to_string().contains(&addr.to_string()), "{error}");
    assert!(bind_listener(ANY, PortReuse::PerCore).is_ok());
}

#[test]
fn shutdown_answers_what_is_open_and_refuses_what_is_new() {
    let mut server = Server::start(ListenerLimits::default());
    let keep_alive = std::net::TcpStream::connect(server.addr).unwrap();
    while server.counters.open.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    server.stop();
    assert!(std::net::TcpStream::connect(server.addr).is_err());
    drop(keep_alive);
}

#[test]
fn connections_over_the_limit_are_told_to_retry_later() {
    let server = Server::start(ListenerLimits {
        max_connections: 1,
        overflow: OverflowPolicy::Refuse,
        ..ListenerLimits::default()
    });
    let first = std::net::TcpStream::connect(server.addr).unwrap();
    while server.counters.open.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    let answer = server.ask("GET /second HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("\r\nRetry-After: 1"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{answer}");
    assert_eq!(server.counters.refused.load(Ordering::Relaxed), 1);
    assert_eq!(server.counters.accepted.load(Ordering::Relaxed), 1);
    drop(first);
    while server.counters.open.load(Ordering::Relaxed) > 0 {
        std::thread::yield_now();
    }
    let ask = || server.ask("GET /third HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    // The place may come free a moment after the count.
    while !ask().contains("/third") {
        std::thread::yield_now();
    }
}

/// Sixty visitors keep connections, and fifty have room: in each round all ask, and then think until all are answered.
#[test]
fn more_visitors_than_places_take_turns() {
    for overflow in [OverflowPolicy::Wait, OverflowPolicy::Refuse] {
        let server = Server::start(ListenerLimits {
            max_connections: 50,
            overflow,
            ..ListenerLimits::default()
        });
        let met = run_crowd(server.addr, (60, 20), |visitor, round| format!("/{visitor}/{round}"));
        assert_eq!((met.succeeded, met.failures), (60 * 20, Vec::new()), "{overflow:?}");
        let read = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        let counters = &server.counters;
        assert!(read(&counters.saturated) > 0, "{overflow:?}");
        assert!(read(&counters.evicted) + read(&counters.closed_when_scarce) > 0, "{overflow:?}");
        assert_eq!(
            (read(&counters.refused), read(&counters.wait_timed_out)),
            (0, 0),
            "{overflow:?}"
        );
        // Who has a place keeps it for more than one request.
        assert!(met.connection_count < 60 * 20, "{} connections", met.connection_count);
    }
}

#[test]
fn who_has_asked_nothing_for_longest_leaves_for_a_new_visitor() {
    for overflow in [OverflowPolicy::Wait, OverflowPolicy::Refuse] {
        let server = Server::start(ListenerLimits {
            max_connections: 4,
            overflow,
            ..ListenerLimits::default()
        });
        let mut old: Vec<KeepAliveClient> =
            (0..4).map(|_| KeepAliveClient::new(server.addr)).collect();
        // The first one asks last.
        for number in [0, 1, 2, 3, 0] {
            assert_eq!(old[number].send_request("/old").unwrap(), 200);
            // Times are told apart by milliseconds.
            let asked = std::time::Instant::now();
            while asked.elapsed() < Duration::from_millis(2) {
                std::thread::yield_now();
            }
        }
        let mut new = KeepAliveClient::new(server.addr);
        assert_eq!(new.send_request("/new").unwrap(), 200);
        let kept: Vec<bool> = old.iter().map(KeepAliveClient::has_open_connection).collect();
        assert_eq!(kept, [true, false, true, true], "{overflow:?}");
        assert_eq!(server.counters.evicted.load(Ordering::Relaxed), 1);
        assert_eq!(old[1].send_request("/again").unwrap(), 200, "and comes again");
    }
}

#[test]
fn answers_close_their_connections_while_hardly_any_place_is_free() {
    let server = Server::start(ListenerLimits { max_connections: 32, ..ListenerLimits::default() });
    let mut many: Vec<KeepAliveClient> =
        (0..30).map(|_| KeepAliveClient::new(server.addr)).collect();
    for visitor in &mut many {
        assert_eq!(visitor.send_request("/").unwrap(), 200);
    }
    assert!(many.iter().all(KeepAliveClient::has_open_connection), "two places are free");
    let mut last = KeepAliveClient::new(server.addr);
    assert_eq!(last.send_request("/").unwrap(), 200);
    assert!(!last.has_open_connection());
    assert_eq!(server.counters.closed_when_scarce.load(Ordering::Relaxed), 1);
    assert!(many.iter().all(KeepAliveClient::has_open_connection));
}

#[test]
fn a_request_that_comes_while_its_connection_is_to_leave_is_answered() {
    let server = Server::start(ListenerLimits { max_connections: 1, ..ListenerLimits::default() });
    let mut first = std::net::TcpStream::connect(server.addr).unwrap();
    // A part of a request holds the place, and its answer gives it back.
    first.write_all(b"GET /first HTTP/1.1\r\nHost: h\r\n").unwrap();
    let addr = server.addr;
    let second = std::thread::spawn(move || {
        exchange_bytes(addr, b"GET /second HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    });
    while server.counters.waiting.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    first.write_all(b"\r\n").unwrap();
    let mut answer = String::new();
    first.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("/first") && answer.contains("\r\nconnection: close\r\n"), "{answer}");
    assert!(String::from_utf8(second.join().unwrap()).unwrap().contains("/second"));
}
