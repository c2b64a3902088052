//! WebSockets (RFC 6455) to servers behind a proxy rule, over HTTP/1.1.
//!
//! In: a visitor's opening handshake, and the response of the other server. Out: the handshake to send, the response for
//! the visitor, and a tunnel that carries bytes both ways until one side ends or both are silent.
//!
//! Invariants
//! * Bytes pass unread only after the other server has proved that it accepted this very handshake: status 101, the
//!   protocol `websocket`, and the digest of the visitor's key. Any other response is an ordinary one, so that no visitor
//!   can smuggle requests to a server that only seems to change the protocol.
//! * The number of tunnels is limited, as each holds two connections.
//!
//! Not here: the frames of the protocol, and the rules that permit it (`request::host_routing`).

use std::future::Future;
use std::io::{Error, ErrorKind, Result as IoResult};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use sha1::{Digest, Sha1};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tympan_web::connection_tunnel::ConnectionTunnel;

/// The text that a server appends to the key of a handshake (RFC 6455, section 1.3).
const ACCEPT_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The time without a byte in either direction after which a tunnel ends. Clients and servers that stay connected send
/// pings more often.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
const CONNECTION_UPGRADE: HeaderValue = HeaderValue::from_static("Upgrade");
const KEY: HeaderName = header::SEC_WEBSOCKET_KEY;

/// The limit of simultaneous tunnels.
#[derive(Debug, Clone)]
pub(crate) struct TunnelLimiter(Arc<Semaphore>);

impl TunnelLimiter {
    pub(crate) fn new(max_tunnels: usize) -> Self {
        Self(Arc::new(Semaphore::new(max_tunnels.min(Semaphore::MAX_PERMITS))))
    }

    /// Takes the place of a tunnel; `None` if all are taken.
    pub(crate) fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_owned().ok()
    }
}

/// The means to change the protocol of a visitor's connection.
#[derive(Debug)]
pub(crate) struct VisitorUpgrade {
    tunnel: ConnectionTunnel,
    on_upgrade: OnUpgrade,
}

impl VisitorUpgrade {
    /// Takes them from a request; `None` if it asks for no upgrade, or its protocol has none.
    pub(crate) fn take(extensions: &mut http::Extensions) -> Option<Self> {
        let tunnel = extensions.remove::<ConnectionTunnel>()?;
        Some(Self { tunnel, on_upgrade: extensions.remove::<OnUpgrade>()? })
    }
}

/// A visitor's opening handshake.
#[derive(Debug)]
pub(crate) struct WebSocketHandshake {
    expected_accept: HeaderValue,
}

impl WebSocketHandshake {
    /// Reads the handshake of a request; `None` if it asks for no WebSocket. The version is left to the server, which
    /// names those that it supports.
    ///
    /// # Errors
    /// [`StatusCode::BAD_REQUEST`] if it asks for one in an invalid form.
    pub(crate) fn of_request(
        method: &Method,
        version: Version,
        headers: &HeaderMap,
    ) -> Result<Option<Self>, StatusCode> {
        if version != Version::HTTP_11
            || !has_token(headers, &header::UPGRADE, "websocket")
            || !has_token(headers, &header::CONNECTION, "upgrade")
        {
            return Ok(None);
        }
        let mut keys = headers.get_all(KEY).iter();
        let key = match (keys.next(), keys.next()) {
            (Some(key), None) => key.as_bytes().trim_ascii(),
            _ => return Err(StatusCode::BAD_REQUEST),
        };
        let is_nonce = STANDARD.decode(key).is_ok_and(|nonce| nonce.len() == 16);
        let has_body = headers.contains_key(header::TRANSFER_ENCODING)
            || headers.get(header::CONTENT_LENGTH).is_some_and(|length| length != "0");
        if *method != Method::GET || !is_nonce || has_body {
            return Err(StatusCode::BAD_REQUEST);
        }
        let digest = Sha1::new().chain_update(key).chain_update(ACCEPT_SUFFIX).finalize();
        let expected_accept = HeaderValue::from_str(&STANDARD.encode(digest));
        expected_accept
            .map(|expected_accept| Some(Self { expected_accept }))
            .map_err(|_invalid| StatusCode::BAD_REQUEST)
    }

    /// Adds the headers of the handshake that are not forwarded otherwise.
    pub(crate) fn add_to_request(headers: &mut HeaderMap) {
        headers.insert(header::CONNECTION, CONNECTION_UPGRADE);
        headers.insert(header::UPGRADE, WEBSOCKET);
    }

    /// Returns true if a response of status 101 accepts this handshake.
    pub(crate) fn is_accepted_by(&self, response: &Response<Incoming>) -> bool {
        let headers = response.headers();
        headers.get(header::SEC_WEBSOCKET_ACCEPT) == Some(&self.expected_accept)
            && has_token(headers, &header::UPGRADE, "websocket")
    }
}

/// Begins a tunnel between a visitor and the server that accepted its handshake, after the response.
pub(crate) fn begin_tunnel(
    visitor: VisitorUpgrade,
    response: Response<Incoming>,
    place: OwnedSemaphorePermit,
) {
    let VisitorUpgrade { tunnel, on_upgrade } = visitor;
    tunnel.run_after_response(async move {
        let _place = place;
        let ends = futures_util::future::try_join(on_upgrade, hyper::upgrade::on(response)).await;
        let outcome = match ends {
            Ok((visitor, server)) => relay_bytes(visitor, server).await,
            Err(error) => Err(Error::other(error)),
        };
        if let Err(error) = outcome {
            tracing::debug!(reason = %error, "WebSocket ended early");
        }
    });
}

/// Adds the headers that tell the visitor of the new protocol.
pub(crate) fn add_upgrade_headers(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, CONNECTION_UPGRADE);
    headers.insert(header::UPGRADE, WEBSOCKET);
}

async fn relay_bytes(visitor: Upgraded, server: Upgraded) -> IoResult<()> {
    // All bytes pass the visitor's side, so one timer watches both directions.
    let mut visitor = IdleTimeoutStream::new(TokioIo::new(visitor), IDLE_TIMEOUT);
    let mut server = TokioIo::new(server);
    copy_bidirectional(&mut visitor, &mut server).await.map(drop)
}

/// Returns true if a list header has a token, in any case.
fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let lists = headers.get_all(name).into_iter();
    let mut members = lists.flat_map(|list| list.as_bytes().split(|byte| *byte == b','));
    members.any(|member| member.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

/// A stream that fails if nothing is read or written for a time.
struct IdleTimeoutStream<T> {
    inner: T,
    timeout: Duration,
    timer: Pin<Box<Sleep>>,
}

impl<T> IdleTimeoutStream<T> {
    fn new(inner: T, timeout: Duration) -> Self {
        Self { inner, timeout, timer: Box::pin(tokio::time::sleep(timeout)) }
    }

    /// Restarts the timer after progress, and fails when it has run out.
    fn watch<R>(&mut self, cx: &mut Context<'_>, outcome: Poll<IoResult<R>>) -> Poll<IoResult<R>> {
        if outcome.is_ready() {
            self.timer.as_mut().reset(Instant::now() + self.timeout);
            return outcome;
        }
        match self.timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for IdleTimeoutStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<IoResult<()>> {
        let outcome = Pin::new(&mut self.inner).poll_read(cx, buffer);
        self.watch(cx, outcome)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for IdleTimeoutStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<IoResult<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.watch(cx, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::{IdleTimeoutStream, WebSocketHandshake};
    use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// The sample of RFC 6455, section 1.3.
    const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

    fn read(
        method: &str,
        version: Version,
        pairs: &[(&'static str, &str)],
    ) -> Result<Option<String>, StatusCode> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        let method: Method = method.parse().unwrap();
        let read = WebSocketHandshake::of_request(&method, version, &headers)?;
        Ok(read.map(|read| read.expected_accept.to_str().unwrap().to_owned()))
    }

    #[test]
    fn only_a_proper_handshake_asks_for_a_tunnel() {
        let (upgrade, connection, key) = (
            ("upgrade", "WebSocket"),
            ("connection", "keep-alive, Upgrade"),
            ("sec-websocket-key", KEY),
        );
        let proper = [upgrade, connection, key];
        let accept = Ok(Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_owned()));
        assert_eq!(read("GET", Version::HTTP_11, &proper), accept);
        for others in
            [&[upgrade, key][..], &[connection, key], &[("upgrade", "h2c"), connection, key]]
        {
            assert_eq!(read("GET", Version::HTTP_11, others), Ok(None), "{others:?}");
        }
        assert_eq!(read("GET", Version::HTTP_10, &proper), Ok(None));
        let refused = Err(StatusCode::BAD_REQUEST);
        assert_eq!(read("POST", Version::HTTP_11, &proper), refused);
        for others in [
            &[upgrade, connection][..],
            &[upgrade, connection, key, key],
            &[upgrade, connection, ("sec-websocket-key", "c2hvcnQ=")],
            &[upgrade, connection, key, ("content-length", "5")],
            &[upgrade, connection, key, ("transfer-encoding", "chunked")],
        ] {
            assert_eq!(read("GET", Version::HTTP_11, others), refused, "{others:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_ends_and_one_that_is_used_does_not() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut watched = IdleTimeoutStream::new(near, Duration::from_secs(10));
        let mut byte = [0; 1];
        for _ in 0..3 {
            tokio::time::advance(Duration::from_secs(8)).await;
            far.write_all(b"x").await.unwrap();
            watched.read_exact(&mut byte).await.unwrap();
        }
        tokio::time::advance(Duration::from_secs(8)).await;
        watched.write_all(b"y").await.unwrap();
        tokio::time::advance(Duration::from_secs(8)).await;
        far.write_all(b"x").await.unwrap();
        watched.read_exact(&mut byte).await.unwrap();
        let silent = watched.read_exact(&mut byte).await.unwrap_err();
        assert_eq!(silent.kind(), std::io::ErrorKind::TimedOut);
    }
}
