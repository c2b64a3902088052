//! The back ends of components that `tympan.toml` configures.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::Uri;
use tokio::runtime::Handle;
use tympan_render::{BackendRegistry, HttpBackendClient, HttpBackendEndpoint};
use tympan_terminal::{CommandFault, error_chain_text};
use tympan_web::tls::TlsTrust;

use crate::config::{BackendSection, OutgoingSection};

/// The default number of concurrent requests to a back end.
const DEFAULT_CONNECTIONS: usize = 16;

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
    let outgoing = outgoing.to_outgoing().map_err(CommandFault::usage)?;
    let mut endpoints = Vec::new();
    for (name, backend) in configured {
        let uri = backend.url.parse::<Uri>().map_err(|error| {
            let url = &backend.url;
            CommandFault::usage(format!(
                "tympan.toml: `[back_ends.{name}]`: `{url}` is not an address: {error}"
            ))
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
