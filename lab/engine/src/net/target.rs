//! The destination of requests: scheme, host and port, resolved once.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::tls::{self, NegotiatedTls, TlsClientOptions};
use crate::{Error, Result};

/// A server with its resolved addresses.
#[derive(Debug)]
pub struct LoadTarget {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The TLS configuration and the name to verify; `None` without TLS.
    pub tls_config: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// The local address that connections are bound to; `None` if the system chooses it.
    pub(crate) source_address: Option<IpAddr>,
    /// True if connections use HTTP/2; without TLS from the first byte on.
    pub(crate) is_http2: bool,
    /// Size in bytes of the kernel's socket buffers; `None` if the system chooses it.
    pub(crate) socket_buffer_size: Option<usize>,
    /// The TLS parameters that the first handshake negotiated.
    pub negotiated_tls: OnceLock<NegotiatedTls>,
    addresses: Vec<SocketAddr>,
    next_address: AtomicUsize,
}

impl LoadTarget {
    /// Resolves `host` and prepares TLS for `https`.
    ///
    /// # Errors
    /// [`Error::Resolve`], [`Error::Tls`].
    pub fn resolve(is_tls: bool, host: &str, port: u16) -> Result<Arc<Self>> {
        Self::resolve_from_source(is_tls, host, port, None)
    }

    fn resolve_from_source(
        is_tls: bool,
        host: &str,
        port: u16,
        source: Option<IpAddr>,
    ) -> Result<Arc<Self>> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let lost = |source| Error::Resolve { host: host.to_owned(), source };
        let mut addresses: Vec<_> = (bare, port).to_socket_addrs().map_err(lost)?.collect();
        // Loopback servers commonly listen on IPv4 only, and a refused first address would be an error sample.
        addresses.sort_by_key(SocketAddr::is_ipv6);
        if addresses.is_empty() {
            return Err(lost(io::Error::new(io::ErrorKind::NotFound, "the name has no address")));
        }
        if addresses.first().is_some_and(SocketAddr::is_ipv4) && source.is_none() {
            addresses.retain(SocketAddr::is_ipv4);
        }
        Self::with_addresses(is_tls, host, port, addresses, source)
    }

    /// Resolves the comma-separated `names` as the addresses of `host`, and prepares TLS for `https`.
    ///
    /// # Errors
    /// [`Error::Resolve`] if none of them has an address, [`Error::Tls`].
    fn resolve_names(
        is_tls: bool,
        host: &str,
        port: u16,
        names: &str,
        source: Option<IpAddr>,
    ) -> Result<Arc<Self>> {
        let of = |name: &str| (name, port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        let mut addresses = Vec::new();
        let mut lost = io::Error::new(io::ErrorKind::NotFound, "the plan gives it no address");
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match of(name.trim_start_matches('[').trim_end_matches(']')) {
                Ok(resolved) => addresses.extend(resolved),
                Err(error) => lost = error,
            }
        }
        if addresses.is_empty() {
            return Err(Error::Resolve { host: host.to_owned(), source: lost });
        }
        Self::with_addresses(is_tls, host, port, addresses, source)
    }

    fn with_addresses(
        is_tls: bool,
        host: &str,
        port: u16,
        mut addresses: Vec<SocketAddr>,
        source: Option<IpAddr>,
    ) -> Result<Arc<Self>> {
        // A source address reaches only addresses of the same family.
        if let Some(source) = source
            && addresses.iter().any(|address| address.is_ipv4() == source.is_ipv4())
        {
            addresses.retain(|address| address.is_ipv4() == source.is_ipv4());
        }
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let tls = if is_tls { Some(tls::client_tls_config(bare)?) } else { None };
        Ok(Arc::new(Self {
            host: host.to_owned(),
            port,
            tls_config: tls,
            source_address: source,
            is_http2: false,
            socket_buffer_size: None,
            negotiated_tls: OnceLock::new(),
            addresses,
            next_address: AtomicUsize::new(0),
        }))
    }

    /// Returns the same server with the given TLS options and socket buffer size.
    ///
    /// # Errors
    /// As [`tls::client_tls_config_with`].
    pub fn with_tls_options(
        &self,
        speech: &TlsClientOptions,
        window: Option<usize>,
    ) -> Result<Arc<Self>> {
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        let tls = self
            .tls_config
            .as_ref()
            .map(|_| tls::client_tls_config_with(bare, speech))
            .transpose()?;
        Ok(Arc::new(Self {
            host: self.host.clone(),
            port: self.port,
            tls_config: tls,
            source_address: self.source_address,
            is_http2: speech.is_http2,
            socket_buffer_size: window,
            negotiated_tls: OnceLock::new(),
            addresses: self.addresses.clone(),
            next_address: AtomicUsize::new(0),
        }))
    }

    /// Returns the address for the next connection, in rotation.
    pub fn next_address(&self) -> Option<SocketAddr> {
        let turn = self.next_address.fetch_add(1, Ordering::Relaxed);
        self.addresses.get(turn % self.addresses.len().max(1)).copied()
    }

    /// Returns the value of the `Host` header; the default port of the scheme is omitted.
    pub fn authority(&self) -> String {
        match (self.tls_config.is_some(), self.port) {
            (true, 443) | (false, 80) => self.host.clone(),
            _ => format!("{}:{}", self.host, self.port),
        }
    }
}

/// Scheme, host and port, the addresses that the plan itself assigns to the host, and the local address.
type TargetKey = (bool, String, u16, Option<String>, Option<IpAddr>);

/// The targets of a run, each resolved once.
#[derive(Debug, Default)]
pub struct TargetRegistry {
    targets_by_key: Mutex<HashMap<TargetKey, Arc<LoadTarget>>>,
    /// The address that all requests go to instead of their own.
    detour_address: Option<SocketAddr>,
    /// Addresses that override name resolution, by lowercase host name.
    host_overrides: HashMap<String, String>,
    /// True if each connection makes a full TLS handshake.
    disables_tls_resumption: bool,
    /// True if connections use HTTP/2.
    is_http2: bool,
}

impl TargetRegistry {
    /// Creates a registry that sends everything to `detour` in plain HTTP if it is given; otherwise the names in
    /// `hosts` resolve to the addresses there.
    pub(crate) fn with_detour(detour: Option<SocketAddr>, hosts: &HashMap<String, String>) -> Self {
        let small =
            |(name, addresses): (&String, &String)| (name.to_ascii_lowercase(), addresses.clone());
        Self {
            detour_address: detour,
            host_overrides: hosts.iter().map(small).collect(),
            ..Self::default()
        }
    }

    /// Creates a registry in which each connection makes a full TLS handshake if `forgets_sessions` is true.
    pub(crate) fn without_tls_resumption(forgets_sessions: bool) -> Self {
        Self { disables_tls_resumption: forgets_sessions, ..Self::default() }
    }

    /// Returns the registry with HTTP/2 enabled if `is_http2` is true.
    pub(crate) fn with_http2(self, is_http2: bool) -> Self {
        Self { is_http2, ..self }
    }

    /// Returns the target, which is resolved at its first use.
    ///
    /// # Errors
    /// As [`LoadTarget::resolve`].
    pub fn get_or_resolve(&self, is_tls: bool, host: &str, port: u16) -> Result<Arc<LoadTarget>> {
        if let Some(detour) = self.detour_address {
            let key = (false, detour.ip().to_string(), detour.port(), None, None);
            return self.get_or_resolve_key(key);
        }
        self.get_or_resolve_at(is_tls, host, port, None, None)
    }

    /// Returns the target of a host with optional overriding addresses (comma-separated names or addresses) and an
    /// optional local address.
    ///
    /// # Errors
    /// As [`LoadTarget::resolve_names`].
    pub fn get_or_resolve_at(
        &self,
        is_tls: bool,
        host: &str,
        port: u16,
        addresses: Option<&str>,
        source: Option<IpAddr>,
    ) -> Result<Arc<LoadTarget>> {
        if self.detour_address.is_some() {
            return self.get_or_resolve(is_tls, host, port);
        }
        let name = host.to_ascii_lowercase();
        // Options of the run override those of the plan.
        let address_override =
            self.host_overrides.get(&name).cloned().or_else(|| addresses.map(str::to_owned));
        self.get_or_resolve_key((is_tls, name, port, address_override, source))
    }

    fn get_or_resolve_key(&self, key: TargetKey) -> Result<Arc<LoadTarget>> {
        let mut targets = self.targets_by_key.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(target) = targets.get(&key) {
            return Ok(Arc::clone(target));
        }
        let (is_tls, host, port, addresses, source) = &key;
        let target = match addresses {
            Some(addresses) => LoadTarget::resolve_names(*is_tls, host, *port, addresses, *source)?,
            None => LoadTarget::resolve_from_source(*is_tls, host, *port, *source)?,
        };
        let (forgets_sessions, is_http2) = (self.disables_tls_resumption, self.is_http2);
        let target = match forgets_sessions || is_http2 {
            true => {
                let speech = TlsClientOptions {
                    disables_resumption: forgets_sessions,
                    is_http2,
                    ..TlsClientOptions::default()
                };
                target.with_tls_options(&speech, None)?
            }
            false => target,
        };
        targets.insert(key, Arc::clone(&target));
        Ok(target)
    }
}
