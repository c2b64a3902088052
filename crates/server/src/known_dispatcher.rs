//! The dispatchers that administrators of an instance see and flush, and requests to their admin listeners.

use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use parking_lot::RwLock;
use serde_json::Value as Json;
use tympan_notation::error_chain_text;
use tympan_web::client::{ClientOptions, HttpClient};
use tympan_web::tls::TlsTrust;

/// Maximum number of dispatchers that an instance knows.
const MAX_DISPATCHERS: usize = 50;
/// Maximum size of a dispatcher's response in bytes.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;
/// Maximum time that a dispatcher may take to answer; a flush with many pages takes longer than a status.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// The admin listener of a dispatcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DispatcherAdmin {
    /// The name that administrators see.
    pub name: String,
    /// The URL of the listener, such as `http://127.0.0.1:8081`.
    pub url: String,
    /// Its token; without one, nothing can be flushed, and only dispatchers on this machine can be read.
    pub token: Option<String>,
}

/// The dispatchers that an instance knows.
#[derive(Debug, Default)]
pub(crate) struct KnownDispatchers {
    dispatchers: RwLock<Vec<DispatcherAdmin>>,
    client: OnceLock<HttpClient>,
}

impl KnownDispatchers {
    /// Adds a dispatcher, or replaces the one of the same name; further ones than the limit are left out.
    pub(crate) fn add(&self, dispatcher: DispatcherAdmin) {
        let mut known = self.dispatchers.write();
        known.retain(|known| known.name != dispatcher.name);
        if known.len() < MAX_DISPATCHERS {
            known.push(dispatcher);
        }
    }

    /// Returns all dispatchers.
    pub(crate) fn all(&self) -> Vec<DispatcherAdmin> {
        self.dispatchers.read().clone()
    }

    fn client(&self) -> &HttpClient {
        self.client.get_or_init(|| {
            HttpClient::new(ClientOptions {
                response_timeout: Some(RESPONSE_TIMEOUT),
                max_idle_per_host: 2,
                tls_trust: TlsTrust::system_roots().ok(),
                ..ClientOptions::default()
            })
        })
    }

    /// Sends a request to a dispatcher; returns its status and its body.
    ///
    /// # Errors
    /// In words, if there is no complete response.
    async fn ask(
        &self,
        dispatcher: &DispatcherAdmin,
        (method, target): (Method, &str),
        body: Option<Json>,
    ) -> Result<(StatusCode, String), String> {
        let uri = format!("{}{target}", dispatcher.url.trim_end_matches('/'));
        let mut request = Request::builder().method(method).uri(uri);
        if let Some(token) = &dispatcher.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| error.to_string())?;
        let response = self.client().send(request).await;
        let response = response.map_err(|error| error_chain_text(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect();
        let body = tokio::time::timeout(RESPONSE_TIMEOUT, body).await;
        let body = body.map_err(|_elapsed| "the response did not arrive in time".to_owned())?;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// Sends a request whose answer is JSON.
    ///
    /// # Errors
    /// In words, if there is none; a refusal of the dispatcher as it is.
    pub(crate) async fn ask_json(
        &self,
        dispatcher: &DispatcherAdmin,
        request: (Method, &str),
        body: Option<Json>,
    ) -> Result<Json, String> {
        match self.ask(dispatcher, request, body).await? {
            (StatusCode::OK, text) => {
                serde_json::from_str(&text).map_err(|_| "the response is not JSON".to_owned())
            }
            (_, text) => Err(text.trim().to_owned()),
        }
    }
}
