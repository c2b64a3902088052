//! Clients that disconnect while they wait.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tower::service_fn;
use tympan_web::disconnect_detection::DisconnectDetection;
use tympan_web::listen::{ListenerOptions, PortReuse, bind_listener, serve_listener};

/// A body with one piece of data, which ends if it is told so, and tells when it is dropped.
struct EventBody {
    data: Option<Bytes>,
    is_endless: bool,
    _dropped: DropReport,
}

impl Body for EventBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        match self.data.take() {
            Some(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
            None if self.is_endless => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}

/// Reports its drop.
struct DropReport(UnboundedSender<String>, String);

impl Drop for DropReport {
    fn drop(&mut self) {
        self.0.send(std::mem::take(&mut self.1)).ok();
    }
}

/// A server whose requests below `/watched` detect clients that disconnect. A request for `…/events` gets a body that
/// does not end, all others wait until they are released.
struct Server {
    address: SocketAddr,
    begun: UnboundedReceiver<String>,
    dropped: UnboundedReceiver<String>,
    release: watch::Sender<bool>,
}

impl Server {
    fn start() -> Self {
        let listener = bind_listener(([127, 0, 0, 1], 0).into(), PortReuse::Exclusive).unwrap();
        let address = listener.local_addr().unwrap();
        let (begin, begun) = unbounded_channel();
        let (drop, dropped) = unbounded_channel();
        let (release, released) = watch::channel(false);
        let service = service_fn(move |request: Request<Incoming>| {
            let path = request.uri().path().to_owned();
            let report = DropReport(drop.clone(), path.clone());
            let (begin, mut released) = (begin.clone(), released.clone());
            async move {
                if path.starts_with("/watched") {
                    request.extensions().get::<DisconnectDetection>().unwrap().enable();
                }
                begin.send(path.clone()).unwrap();
                let is_endless = path.ends_with("/events");
                if !is_endless {
                    released.wait_for(|is_released| *is_released).await.unwrap();
                }
                let data = Some(Bytes::from(format!("answer to {path}")));
                Ok::<_, std::io::Error>(Response::new(EventBody {
                    data,
                    is_endless,
                    _dropped: report,
                }))
            }
        });
        let options = ListenerOptions::default();
        tokio::spawn(serve_listener(listener, service, options, std::future::pending()));
        Self { address, begun, dropped, release }
    }

    /// Sends a request, and waits until it is being handled.
    async fn begin(&mut self, path: &str) -> TcpStream {
        let mut client = TcpStream::connect(self.address).await.unwrap();
        client
            .write_all(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes())
            .await
            .unwrap();
        assert_eq!(self.begun.recv().await.unwrap(), path);
        client
    }
}

#[tokio::test]
async fn a_request_that_waits_ends_with_its_client() {
    let mut server = Server::start();
    for path in ["/watched", "/watched/events"] {
        let client = server.begin(path).await;
        drop(client);
        assert_eq!(server.dropped.recv().await.unwrap(), path);
    }
    let mut client = server.begin("/watched/events").await;
    let mut response = vec![0; 17];
    client.read_exact(&mut response).await.unwrap();
    assert_eq!(&response, b"HTTP/1.1 200 OK\r\n");
    drop(client);
    assert_eq!(server.dropped.recv().await.unwrap(), "/watched/events");
}

#[tokio::test]
async fn another_request_is_answered_though_its_client_closed_its_sending_side() {
    let mut server = Server::start();
    let mut client = server.begin("/plain").await;
    client.shutdown().await.unwrap();
    server.release.send_replace(true);
    let mut response = String::new();
    client.read_to_string(&mut response).await.unwrap();
    assert!(response.contains("answer to /plain"), "{response}");
}

#[tokio::test]
async fn what_a_client_sends_while_it_waits_is_its_next_request() {
    let mut server = Server::start();
    let mut client = server.begin("/watched").await;
    client.write_all(b"GET /next HTTP/1.1\r\nHost: h\r\nConnection: ").await.unwrap();
    // Whatever the server does with it.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    server.release.send_replace(true);
    client.write_all(b"close\r\n\r\n").await.unwrap();
    let mut responses = String::new();
    client.read_to_string(&mut responses).await.unwrap();
    let at = |path: &str| responses.find(&format!("answer to {path}")).unwrap();
    assert!(at("/watched") < at("/next"), "{responses}");
}
