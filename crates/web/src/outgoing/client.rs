//! A pooled HTTP/1.1 client with timeouts for connecting and for the response head.
//!
//! In: a request with an absolute `http` or `https` URI. Out: the head of the response, and its body as it arrives.
//!
//! Invariants
//! * A request that reached the wire is never sent a second time; one that found its pooled connection closed before a
//!   byte was written is sent again on a new one.
//! * Redirects are returned and not followed: the client requests only what the caller named.
//! * No connection is kept idle longer than `idle_timeout`.
//! * A server changes the protocol (101) only if the request asked for it.
//!
//! Not here: the time that a body may take (the reader knows what it waits for) and the decision to retry
//! ([`ClientError::is_transient`] tells whether a retry can help).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri, header};
use http_body::Body;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::client::legacy::{self, Client as Pool};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tower::Service;

use crate::outgoing::outgoing_policy::{OutgoingPolicy, uri_port};
use crate::tls::TlsTrust;

type ClientBoxError = Box<dyn std::error::Error + Send + Sync>;
type ClientRequestBody = UnsyncBoxBody<Bytes, ClientBoxError>;

/// Options of a client.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Maximum time to resolve, connect and complete the TLS handshake; `None` leaves it to the kernel. Default 5 s.
    pub connect_timeout: Option<Duration>,
    /// Maximum time from sending the request to the complete head of the response; `None` means no limit. Default 60 s.
    pub response_timeout: Option<Duration>,
    /// Maximum time that an idle connection is kept open. Default 60 s.
    pub idle_timeout: Duration,
    /// Maximum number of idle connections per host. Default 64.
    pub max_idle_per_host: usize,
    /// Trusted roots for `https` servers; without them `https` is refused. Default none.
    pub tls_trust: Option<TlsTrust>,
    /// The hosts that the client may connect to, for addresses that come from content; `None` allows all hosts, for
    /// addresses from the machine's configuration. Default `None`.
    pub outgoing_policy: Option<Arc<OutgoingPolicy>>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Some(Duration::from_secs(5)),
            response_timeout: Some(Duration::from_secs(60)),
            idle_timeout: Duration::from_secs(60),
            max_idle_per_host: 64,
            tls_trust: None,
            outgoing_policy: None,
        }
    }
}

/// The reason why there is no response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The connection failed: the name is unknown, the port is closed, or the handshake failed or timed out. Nothing
    /// was sent.
    #[error("cannot connect to `{host}`")]
    Connect {
        /// Host and port.
        host: String,
        /// The cause.
        source: ClientBoxError,
    },
    /// The head of the response did not arrive in time.
    #[error("`{host}` did not respond within {} ms", timeout.as_millis())]
    Timeout {
        /// Host and port.
        host: String,
        /// The timeout.
        timeout: Duration,
    },
    /// The connection ended or the response was malformed after at least a part of the request was sent.
    #[error("the connection to `{host}` was lost before the response was complete")]
    Broken {
        /// Host and port.
        host: String,
        /// The cause.
        source: ClientBoxError,
    },
    /// The host, or the address of its name, is not allowed. Nothing was sent.
    #[error("requests to `{host}` are not allowed: {reason}")]
    NotAllowed {
        /// Host and port.
        host: String,
        /// The host or address that is not allowed.
        reason: String,
    },
    /// The request is invalid, for example because its URI has no host.
    #[error("cannot send the request to `{uri}`: {reason}")]
    Request {
        /// The request's URI.
        uri: String,
        /// The error in the request.
        reason: String,
    },
}

impl ClientError {
    /// Returns true if a retry of the same request can help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        !matches!(self, Self::Request { .. } | Self::NotAllowed { .. })
    }

    /// Returns true if the server cannot have received the request.
    #[must_use]
    pub fn is_unsent(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Request { .. } | Self::NotAllowed { .. })
    }
}

/// A pool of connections; clones share the pool.
#[derive(Debug, Clone)]
pub struct HttpClient {
    pool: Pool<ClientConnector, ClientRequestBody>,
    response_timeout: Option<Duration>,
    outgoing_policy: Option<Arc<OutgoingPolicy>>,
}

impl Default for HttpClient {
    fn default() -> Self {
        Self::new(ClientOptions::default())
    }
}

impl HttpClient {
    /// Returns a client without connections.
    #[must_use]
    pub fn new(options: ClientOptions) -> Self {
        let response_timeout = options.response_timeout;
        let pool = Pool::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(options.idle_timeout)
            .pool_max_idle_per_host(options.max_idle_per_host)
            .build(ClientConnector {
                connect_timeout: options.connect_timeout,
                tls_trust: options.tls_trust,
                outgoing_policy: options.outgoing_policy.clone(),
            });
        Self { pool, response_timeout, outgoing_policy: options.outgoing_policy }
    }

    /// Sends `request` and returns the head of the response; the body is streamed.
    ///
    /// # Errors
    /// See [`ClientError`]; [`ClientError::is_unsent`] tells whether a request with side effects may be sent again.
    pub async fn send<B>(&self, request: Request<B>) -> Result<Response<Incoming>, ClientError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<ClientBoxError>,
    {
        let host = match request.uri().authority() {
            Some(authority) => authority.to_string(),
            None => {
                return Err(ClientError::Request {
                    uri: request.uri().to_string(),
                    reason: "the URI has no host".to_owned(),
                });
            }
        };
        if let Some(outgoing) = &self.outgoing_policy
            && !outgoing
                .allows_host(request.uri().host().unwrap_or_default(), uri_port(request.uri()))
        {
            let reason = "it matches no entry of `hosts` in `[outgoing]` of `tympan.toml`";
            return Err(ClientError::NotAllowed { host, reason: reason.to_owned() });
        }
        let asks_for_upgrade = request.headers().contains_key(header::UPGRADE);
        let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
        let response = self.pool.request(request);
        let response = match self.response_timeout {
            None => response.await,
            Some(after) => match tokio::time::timeout(after, response).await {
                Ok(response) => response,
                Err(_elapsed) => return Err(ClientError::Timeout { host, timeout: after }),
            },
        };
        match response {
            // Its connection no longer carries HTTP, so nothing that follows on it may reach a client.
            Ok(response)
                if response.status() == StatusCode::SWITCHING_PROTOCOLS && !asks_for_upgrade =>
            {
                let source = "it changed the protocol without being asked to".into();
                Err(ClientError::Broken { host, source })
            }
            Ok(response) => Ok(response),
            Err(error) => Err(classify_error(error, host)),
        }
    }
}

fn classify_error(error: legacy::Error, host: String) -> ClientError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(inner_error) = cause {
        if let Some(AddressNotAllowed(reason)) = inner_error.downcast_ref() {
            return ClientError::NotAllowed { host, reason: reason.clone() };
        }
        cause = inner_error.source();
    }
    let source = error.into();
    let is_connect = |source: &ClientBoxError| {
        source.downcast_ref::<legacy::Error>().is_some_and(legacy::Error::is_connect)
    };
    if is_connect(&source) {
        ClientError::Connect { host, source }
    } else {
        ClientError::Broken { host, source }
    }
}

/// The address of a name is not allowed, with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct AddressNotAllowed(String);

#[derive(Debug, Clone)]
struct ClientConnector {
    connect_timeout: Option<Duration>,
    tls_trust: Option<TlsTrust>,
    outgoing_policy: Option<Arc<OutgoingPolicy>>,
}

impl ClientConnector {
    async fn connect(self, uri: Uri) -> Result<ClientStream, ClientBoxError> {
        let is_tls = uri.scheme_str() == Some("https");
        let host = uri.host().ok_or("the URI has no host")?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri_port(&uri);
        let stream = match &self.outgoing_policy {
            None => TcpStream::connect((host.as_str(), port)).await?,
            Some(outgoing) => {
                let addresses = tokio::net::lookup_host((host.as_str(), port)).await?;
                let (admitted, others) = outgoing.partition_addresses(addresses);
                match others.first() {
                    Some(refused_address) if admitted.is_empty() => {
                        return Err(AddressNotAllowed(
                            outgoing.refusal_reason(refused_address.ip()),
                        )
                        .into());
                    }
                    // Connect to the checked addresses, not to the name, which may resolve differently by now.
                    _ => TcpStream::connect(&*admitted).await?,
                }
            }
        };
        stream.set_nodelay(true)?;
        if !is_tls {
            return Ok(ClientStream::Plain(TokioIo::new(stream)));
        }
        let trust = self.tls_trust.ok_or("no trusted roots are configured for TLS")?;
        let stream = trust.connector().connect(ServerName::try_from(host)?, stream).await?;
        Ok(ClientStream::Tls(Box::new(TokioIo::new(stream))))
    }
}

impl Service<Uri> for ClientConnector {
    type Response = ClientStream;
    type Error = ClientBoxError;
    type Future = Pin<Box<dyn Future<Output = Result<ClientStream, ClientBoxError>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), ClientBoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let timeout = self.connect_timeout;
        let stream = self.clone().connect(uri);
        Box::pin(async move {
            match timeout {
                None => stream.await,
                Some(after) => tokio::time::timeout(after, stream).await?,
            }
        })
    }
}

enum ClientStream {
    Plain(TokioIo<TcpStream>),
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
}

impl Connection for ClientStream {
    fn connected(&self) -> Connected {
        match self {
            Self::Plain(stream) => stream.connected(),
            Self::Tls(stream) => stream.inner().get_ref().0.connected(),
        }
    }
}

impl Read for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl Write for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
