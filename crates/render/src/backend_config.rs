//! The section `[back_ends]` of `tympan.toml`: the systems whose data components read.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use http::Uri;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::runtime::Handle;
use tympan_notation::{ByteSize, DurationText, error_chain_text};
use tympan_web::config::OutgoingSection;
use tympan_web::tls::TlsTrust;

use crate::backend::{BackendConfig, BackendRegistry};
use crate::http_backend::{HttpBackendClient, HttpBackendEndpoint};

/// The default number of concurrent requests to a back end.
const DEFAULT_CONNECTIONS: usize = 16;

/// A system whose JSON data components read with `data`; the section is `[back_ends.NAME]`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BackendSection {
    /// The prefix of all its URLs, such as `"http://10.0.0.5:8080/api"`. No request is sent outside of it.
    pub url: String,
    /// The number of concurrent requests; default 16. Raise it if renders wait and the system has capacity.
    pub connections: Option<usize>,
    /// The timeout of a request, including the wait in the queue; default 2 s. A page waits at most this long.
    pub timeout: Option<DurationText>,
    /// The time for which a response is used without a new request; default 10 s.
    pub max_age: Option<DurationText>,
    /// The time for which an old response is used while the system does not respond; default 1 h.
    pub max_stale: Option<DurationText>,
    /// The time without requests to the system after five failures in a row; default 10 s.
    pub retry_after: Option<DurationText>,
    /// The maximum size of a response; default 1 MiB.
    #[serde(alias = "max_answer")]
    pub max_response: Option<ByteSize>,
    /// A PEM file of certificates, one of which must have signed that of an `https` address; default those of the
    /// system.
    pub tls_ca: Option<PathBuf>,
}

impl BackendSection {
    /// Returns a back end with default limits.
    pub fn with_url(url: String) -> Self {
        Self {
            url,
            connections: None,
            timeout: None,
            max_age: None,
            max_stale: None,
            retry_after: None,
            max_response: None,
            tls_ca: None,
        }
    }

    /// Returns the back end with its limits.
    pub fn to_backend_config(&self) -> BackendConfig {
        let usual = BackendConfig::new(&*self.url);
        BackendConfig {
            max_connections: self.connections.unwrap_or(usual.max_connections),
            timeout: self.timeout.map_or(usual.timeout, |span| span.0),
            max_age: self.max_age.map_or(usual.max_age, |span| span.0),
            max_stale: self.max_stale.map_or(usual.max_stale, |span| span.0),
            retry_after: self.retry_after.map_or(usual.retry_after, |span| span.0),
            max_response_bytes: self.max_response.map_or(usual.max_response_bytes, |size| {
                usize::try_from(size.as_bytes()).unwrap_or(usize::MAX)
            }),
            base_url: usual.base_url,
        }
    }
}

/// Creates the back ends of a configuration; `None` if it has none. Must be called within a runtime.
///
/// # Errors
/// If the certificates of one cannot be read, if its address is invalid, or if `[outgoing]` lists an invalid host.
pub fn create_backends(
    configured: &BTreeMap<String, BackendSection>,
    outgoing: &OutgoingSection,
) -> Result<Option<Arc<BackendRegistry>>, String> {
    let Some(runtime) = Handle::try_current().ok().filter(|_| !configured.is_empty()) else {
        return Ok(None);
    };
    let outgoing = outgoing.to_outgoing()?;
    let mut endpoints = Vec::new();
    for (name, backend) in configured {
        let uri = backend.url.parse::<Uri>().map_err(|error| {
            let url = &backend.url;
            format!("tympan.toml: `[back_ends.{name}]`: `{url}` is not an address: {error}")
        })?;
        endpoints.push(HttpBackendEndpoint {
            url_prefix: backend.url.clone(),
            max_idle_connections: backend.connections.unwrap_or(DEFAULT_CONNECTIONS),
            tls_trust: backend_trust(name, backend)?,
            // The configuration names the host, so that it may be on the local network.
            outgoing_policy: outgoing.for_configured_host(&uri),
        });
    }
    let configs =
        configured.iter().map(|(name, backend)| (name.clone(), backend.to_backend_config()));
    let client = Box::new(HttpBackendClient::new(endpoints, runtime));
    Ok(Some(Arc::new(BackendRegistry::new(configs.collect(), client))))
}

/// Reads the certificates that a back end is verified with; `None` without TLS.
fn backend_trust(name: &str, back_end: &BackendSection) -> Result<Option<TlsTrust>, String> {
    if !back_end.url.starts_with("https://") {
        return Ok(None);
    }
    let failed = |reason: &dyn std::error::Error| {
        format!("tympan.toml: `[back_ends.{name}]`: {}", error_chain_text(reason))
    };
    let trust = match &back_end.tls_ca {
        Some(file) => {
            let pem = std::fs::read(file).map_err(|error| {
                let file = file.display();
                format!(
                    "tympan.toml: `tls_ca` of `[back_ends.{name}]`: cannot read `{file}`: {error}"
                )
            })?;
            TlsTrust::from_pem(&pem)
        }
        None => TlsTrust::system_roots(),
    };
    trust.map(Some).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_is_none_is_refused() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _entered = runtime.enter();
        let backend = BackendSection::with_url("http://localhost:1".to_owned());
        let configured = BTreeMap::from([("near".to_owned(), backend)]);
        let hosts = |hosts: &[&str]| OutgoingSection {
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            ..OutgoingSection::default()
        };
        assert!(create_backends(&configured, &hosts(&["a.example"])).is_ok());
        assert!(create_backends(&configured, &hosts(&["a b"])).is_err());
    }
}
