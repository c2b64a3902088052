//! Requests of components to back ends over HTTP.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use tokio::runtime::Handle;
use tympan_web::client::{ClientError, ClientOptions, HttpClient};
use tympan_web::outgoing_policy::OutgoingPolicy;
use tympan_web::tls::TlsTrust;

use crate::backend::BackendClient;

/// The address of a back end, and how it is reached.
#[derive(Debug)]
pub struct HttpBackendEndpoint {
    /// The prefix of all its URLs.
    pub url_prefix: String,
    /// The maximum number of idle connections.
    pub max_idle_connections: usize,
    /// The certificates that it is verified with; `None` without TLS.
    pub tls_trust: Option<TlsTrust>,
    /// The addresses that its host may have.
    pub outgoing_policy: OutgoingPolicy,
}

/// Sends requests from rendering threads to the runtime; redirects are not followed.
#[derive(Debug)]
pub struct HttpBackendClient {
    /// The URL prefix of each back end, the longest first, with its client.
    clients: Vec<(String, HttpClient)>,
    runtime: Handle,
}

impl HttpBackendClient {
    /// Creates the clients of back ends.
    pub fn new(endpoints: impl IntoIterator<Item = HttpBackendEndpoint>, runtime: Handle) -> Self {
        let connect = |endpoint: HttpBackendEndpoint| {
            let options = ClientOptions {
                connect_timeout: None,
                response_timeout: None,
                max_idle_per_host: endpoint.max_idle_connections,
                tls_trust: endpoint.tls_trust,
                outgoing_policy: Some(Arc::new(endpoint.outgoing_policy)),
                ..ClientOptions::default()
            };
            (endpoint.url_prefix, HttpClient::new(options))
        };
        let mut clients: Vec<_> = endpoints.into_iter().map(connect).collect();
        // If two back ends are on one host, the longer matching prefix wins.
        clients.sort_by_key(|(url, _)| std::cmp::Reverse(url.len()));
        Self { clients, runtime }
    }

    fn send_request(
        &self,
        url: &str,
        request: Result<Request<Full<Bytes>>, http::Error>,
        (timeout, max_bytes): (Duration, usize),
    ) -> Result<Vec<u8>, String> {
        let request = request.map_err(|error| format!("the address is not valid: {error}"))?;
        let client =
            self.clients.iter().find(|(begin, _)| url.starts_with(begin.trim_end_matches('/')));
        let Some((_, client)) = client else {
            return Err("no back end has this address".to_owned());
        };
        let exchange = async {
            let response = client.send(request).await.map_err(|error| client_error_text(&error))?;
            if !matches!(response.status(), StatusCode::OK | StatusCode::CREATED) {
                return Err(format!("status {}", response.status().as_u16()));
            }
            let body = Limited::new(response.into_body(), max_bytes).collect().await;
            Ok(body.map_err(|error| error.to_string())?.to_bytes().to_vec())
        };
        self.runtime.block_on(async {
            tokio::time::timeout(timeout, exchange)
                .await
                .unwrap_or_else(|_| Err(format!("no response within {} ms", timeout.as_millis())))
        })
    }
}

/// Joins the message of an error with those of its causes.
fn client_error_text(error: &ClientError) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

const JSON_MEDIA_TYPE: &str = "application/json";

impl BackendClient for HttpBackendClient {
    fn fetch(&self, url: &str, timeout: Duration, max_bytes: usize) -> Result<Vec<u8>, String> {
        let request =
            Request::get(url).header(header::ACCEPT, JSON_MEDIA_TYPE).body(Full::default());
        self.send_request(url, request, (timeout, max_bytes))
    }

    fn post_json(
        &self,
        url: &str,
        body: &[u8],
        timeout: Duration,
        max_bytes: usize,
    ) -> Result<Vec<u8>, String> {
        let request = Request::post(url)
            .header(header::ACCEPT, JSON_MEDIA_TYPE)
            .header(header::CONTENT_TYPE, JSON_MEDIA_TYPE)
            .body(Full::from(Bytes::copy_from_slice(body)));
        self.send_request(url, request, (timeout, max_bytes))
    }
}
