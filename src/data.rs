//! Requests of components to the back ends that `tympan.toml` configures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use tokio::runtime::Handle;
use tympan_render::{BackEnds, Fetch};
use tympan_web::client::{Client, Options};
use tympan_web::tls::Trust;

use crate::command::Fault;
use crate::config::{BackEnd, Outgoing};
use crate::home::chain;

/// Makes the back ends of a configuration; nothing if it has none. Called where a runtime runs.
///
/// # Errors
/// If the certificates of one cannot be read, its address is none, or `[outgoing]` lists what is no host.
pub(crate) fn back_ends(
    configured: &BTreeMap<String, BackEnd>,
    outgoing: &Outgoing,
) -> Result<Option<Arc<BackEnds>>, Fault> {
    let Some(runtime) = Handle::try_current().ok().filter(|_| !configured.is_empty()) else {
        return Ok(None);
    };
    let fetch = Box::new(HttpFetch::new(configured, outgoing, runtime)?);
    let places = configured.iter().map(|(name, one)| (name.clone(), one.bounds())).collect();
    Ok(Some(Arc::new(BackEnds::new(places, fetch))))
}

/// Reads whom a back end must be signed by; nothing without TLS.
fn trust_of(name: &str, back_end: &BackEnd) -> Result<Option<Trust>, Fault> {
    if !back_end.url.starts_with("https://") {
        return Ok(None);
    }
    let failed = |reason: &dyn std::error::Error| {
        Fault::usage(format!("tympan.toml: `[back_ends.{name}]`: {}", chain(reason)))
    };
    let trust = match &back_end.tls_ca {
        Some(file) => {
            let pem = std::fs::read(file).map_err(|error| {
                let file = file.display();
                Fault::usage(format!(
                    "tympan.toml: `tls_ca` of `[back_ends.{name}]`: cannot read `{file}`: {error}"
                ))
            })?;
            Trust::from_pem(&pem)
        }
        None => Trust::system(),
    };
    trust.map(Some).map_err(|error| failed(&error))
}

/// Sends requests from threads that draw pages; redirects are not followed.
#[derive(Debug)]
struct HttpFetch {
    /// The begin of each back end's addresses, the longest first, and what asks there.
    clients: Vec<(String, Client)>,
    runtime: Handle,
}

impl HttpFetch {
    fn new(
        configured: &BTreeMap<String, BackEnd>,
        outgoing: &Outgoing,
        runtime: Handle,
    ) -> Result<Self, Fault> {
        let outgoing = outgoing.listed().map_err(Fault::usage)?;
        let mut clients = Vec::new();
        for (name, one) in configured {
            let uri = one.url.parse::<Uri>().map_err(|error| {
                let url = &one.url;
                Fault::usage(format!(
                    "tympan.toml: `[back_ends.{name}]`: `{url}` is no address: {error}"
                ))
            })?;
            let options = Options {
                connect_timeout: None,
                response_timeout: None,
                max_idle_per_host: one.connections.unwrap_or(16),
                trust: trust_of(name, one)?,
                // The configuration names it, which so may be a neighbor.
                outgoing: Some(Arc::new(outgoing.to_named(&uri))),
                ..Options::default()
            };
            clients.push((one.url.clone(), Client::new(options)));
        }
        // Of two back ends on one host, the longer begin of an address is the nearer one.
        clients.sort_by_key(|(url, _)| std::cmp::Reverse(url.len()));
        Ok(Self { clients, runtime })
    }

    fn ask(
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
        let answer = async {
            let answer = client.send(request).await.map_err(|error| chain(&error))?;
            if !matches!(answer.status(), StatusCode::OK | StatusCode::CREATED) {
                return Err(format!("status {}", answer.status().as_u16()));
            }
            let body = Limited::new(answer.into_body(), max_bytes).collect().await;
            Ok(body.map_err(|error| error.to_string())?.to_bytes().to_vec())
        };
        self.runtime.block_on(async {
            tokio::time::timeout(timeout, answer)
                .await
                .unwrap_or_else(|_| Err(format!("no answer within {} ms", timeout.as_millis())))
        })
    }
}

const JSON: &str = "application/json";

impl Fetch for HttpFetch {
    fn fetch(&self, url: &str, timeout: Duration, max_bytes: usize) -> Result<Vec<u8>, String> {
        let request = Request::get(url).header(header::ACCEPT, JSON).body(Full::default());
        self.ask(url, request, (timeout, max_bytes))
    }

    fn send(
        &self,
        url: &str,
        body: &[u8],
        timeout: Duration,
        max_bytes: usize,
    ) -> Result<Vec<u8>, String> {
        let request = Request::post(url)
            .header(header::ACCEPT, JSON)
            .header(header::CONTENT_TYPE, JSON)
            .body(Full::from(Bytes::copy_from_slice(body)));
        self.ask(url, request, (timeout, max_bytes))
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
        let configured = urls.map(|(name, url)| (name.to_owned(), BackEnd::at(url.to_owned())));
        let configured = BTreeMap::from(configured);
        let asking = |outgoing: &Outgoing| {
            HttpFetch::new(&configured, outgoing, runtime.handle().clone()).unwrap()
        };
        let fetch = asking(&Outgoing::default());
        let get = |url: &str| fetch.fetch(url, Duration::from_secs(30), 100);
        assert_eq!(get(&format!("{near}/value")).unwrap(), b"1");
        assert_eq!(get(&format!("{near}/away")).unwrap_err(), "status 302");
        let refused = get("http://169.254.169.254/latest/meta-data").unwrap_err();
        assert!(refused.contains("may not be asked") && refused.contains("secrets"), "{refused}");
        let broken = Outgoing { hosts: vec!["a b".to_owned()], ..Outgoing::default() };
        assert!(HttpFetch::new(&configured, &broken, runtime.handle().clone()).is_err());
    }
}
