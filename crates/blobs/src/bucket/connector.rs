//! An adapter that makes this program's HTTP client the transport of `object_store`.

use std::time::Duration;

use async_trait::async_trait;
use http::header;
use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use tympan_web::body_limit::limit_body;
use tympan_web::client::{self, ClientError};
use tympan_web::tls::TlsTrust;

/// Assumed minimum speed of a connection: the timeout of a request is extended by the time that its body takes at this
/// speed.
const MIN_BYTES_PER_SECOND: u64 = 128 * 1024;

/// Creates clients that share their connections.
#[derive(Debug, Clone)]
pub(super) struct BucketConnector {
    client: client::HttpClient,
    idle_timeout: Duration,
}

impl BucketConnector {
    pub(super) fn new(trust: Option<TlsTrust>, idle_timeout: Duration) -> Self {
        // The timeout of a response depends on the request.
        let options = client::ClientOptions {
            tls_trust: trust,
            response_timeout: None,
            ..client::ClientOptions::default()
        };
        Self { client: client::HttpClient::new(options), idle_timeout }
    }
}

/// Returns the time allowed for transferring a number of bytes.
pub(super) fn transfer_time(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1_000) / MIN_BYTES_PER_SECOND)
}

impl HttpConnector for BucketConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for BucketConnector {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // Without it hyper would use chunked encoding, which S3 rejects.
        let length = request.body().content_length();
        if length > 0 || !request.method().is_safe() {
            request.headers_mut().insert(header::CONTENT_LENGTH, length.into());
        }
        let host = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        let after = self.idle_timeout + transfer_time(length as u64);
        let sent = tokio::time::timeout(after, self.client.send(request)).await;
        let response = sent.unwrap_or(Err(ClientError::Timeout { host, timeout: after })).map_err(
            |error| {
                let kind = match &error {
                    ClientError::Connect { .. } => HttpErrorKind::Connect,
                    ClientError::Timeout { .. } => HttpErrorKind::Timeout,
                    ClientError::Broken { .. } => HttpErrorKind::Interrupted,
                    _ => HttpErrorKind::Unknown,
                };
                HttpError::new(kind, error)
            },
        )?;
        let (head, body) = response.into_parts();
        let body = limit_body(body, u64::MAX).with_idle_timeout(self.idle_timeout);
        let body = body.map_err(|error| HttpError::new_boxed(HttpErrorKind::Interrupted, error));
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}
