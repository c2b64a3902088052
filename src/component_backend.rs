//! Requests of components to the back ends that `tympan.toml` configures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use tokio::runtime::Handle;
use tympan_render::{BackendClient, BackendRegistry};
use tympan_web::client::{ClientOptions, HttpClient};
use tympan_web::tls::TlsTrust;

use crate::command::CommandFault;
use crate::config::{BackendSection, OutgoingSection};
use crate::home::error_chain_text;

/// Creates the back ends of a configuration; `None` if it has none. Must be called within a runtime.
///
/// # Errors
/// If the certificates of one cannot be read, if its address is invalid, or if `[outgoing]` lists an invalid host.
pub(crate) fn create_backends(
    configured: &BTreeMap<String, BackendSection>,
    outgoing: &OutgoingSection,
) -> Result<Option<Arc<BackendRegistry>>, CommandFault> {
    let Some(runtime) = Handle::try_current().ok().filter(|_| !configured.is_empty()) else {
        return Ok(None);
    };
    let fetch = Box::new(HttpBackendClient::new(configured, outgoing, runtime)?);
    let backends = configured
        .iter()
        .map(|(name, backend)| (name.clone(), backend.to_backend_config()))
        .collect();
    Ok(Some(Arc::new(BackendRegistry::new(backends, fetch))))
}

/// Reads the certificates that a back end is verified with; `None` without TLS.
fn backend_trust(name: &str, back_end: &BackendSection) -> Result<Option<TlsTrust>, CommandFault> {
    if !back_end.url.starts_with("https://") {
        return Ok(None);
    }
    let failed = |reason: &dyn std::error::Error| {
        CommandFault::usage(format!(
            "tympan.toml: `[back_ends.{name}]`: {}",
            error_chain_text(reason)
        ))
    };
    let trust = match &back_end.tls_ca {
        Some(file) => {
            let pem = std::fs::read(file).map_err(|error| {
                let file = file.display();
                CommandFault::usage(format!(
                    "tympan.toml: `tls_ca` of `[back_ends.{name}]`: cannot read `{file}`: {error}"
                ))
            })?;
            TlsTrust::from_pem(&pem)
        }
        None => TlsTrust::system_roots(),
    };
    trust.map(Some).map_err(|error| failed(&error))
}

/// Sends requests from rendering threads; redirects are not followed.
#[derive(Debug)]
struct HttpBackendClient {
    /// The URL prefix of each back end, the longest first, with its client.
    clients: Vec<(String, HttpClient)>,
    runtime: Handle,
}

impl HttpBackendClient {
    fn new(
        configured: &BTreeMap<String, BackendSection>,
        outgoing: &OutgoingSection,
        runtime: Handle,
    ) -> Result<Self, CommandFault> {
        let outgoing = outgoing.to_outgoing().map_err(CommandFault::usage)?;
        let mut clients = Vec::new();
        for (name, backend) in configured {
            let uri = backend.url.parse::<Uri>().map_err(|error| {
                let url = &backend.url;
                CommandFault::usage(format!(
                    "tympan.toml: `[back_ends.{name}]`: `{url}` is not an address: {error}"
                ))
            })?;
            let options = ClientOptions {
                connect_timeout: None,
                response_timeout: None,
                max_idle_per_host: backend.connections.unwrap_or(16),
                tls_trust: backend_trust(name, backend)?,
                // The configuration names the host, so that it may be on the local network.
                outgoing_policy: Some(Arc::new(outgoing.for_configured_host(&uri))),
                ..ClientOptions::default()
            };
            clients.push((backend.url.clone(), HttpClient::new(options)));
        }
        // If two back ends are on one host, the longer matching prefix wins.
        clients.sort_by_key(|(url, _)| std::cmp::Reverse(url.len()));
        Ok(Self { clients, runtime })
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
            let response = client.send(request).await.map_err(|error| error_chain_text(&error))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_back_end_is_asked_where_it_is_and_nobody_else() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        let redirect =
            || async { (StatusCode::FOUND, [(header::LOCATION, "http://169.254.169.254/latest")]) };
        let router = axum::Router::new()
            .route("/value", axum::routing::get(|| async { "1" }))
            .route("/away", axum::routing::get(redirect));
        runtime.spawn(async move { axum::serve(listener, router).await });
        let near = format!("http://localhost:{port}");
        let urls = [("near", near.as_str()), ("link", "http://169.254.169.254/latest")];
        let configured =
            urls.map(|(name, url)| (name.to_owned(), BackendSection::with_url(url.to_owned())));
        let configured = BTreeMap::from(configured);
        let asking = |outgoing: &OutgoingSection| {
            HttpBackendClient::new(&configured, outgoing, runtime.handle().clone()).unwrap()
        };
        let fetch = asking(&OutgoingSection::default());
        let get = |url: &str| fetch.fetch(url, Duration::from_secs(30), 100);
        assert_eq!(get(&format!("{near}/value")).unwrap(), b"1");
        assert_eq!(get(&format!("{near}/away")).unwrap_err(), "status 302");
        let refused = get("http://169.254.169.254/latest/meta-data").unwrap_err();
        assert!(
            refused.contains("requests to `169.254.169.254` are not allowed")
                && refused.contains("a cloud metadata address"),
            "{refused}"
        );
        let broken =
            OutgoingSection { hosts: vec!["a b".to_owned()], ..OutgoingSection::default() };
        assert!(HttpBackendClient::new(&configured, &broken, runtime.handle().clone()).is_err());
    }
}
