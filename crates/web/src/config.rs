//! The sections `[listen]`, `[admin]`, `[logs]` and `[outgoing]` of `tympan.toml`.

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use tympan_notation::{ByteSize, DurationText, error_chain_text};

use crate::log::log_file::LogRotation;
use crate::outgoing::outgoing_policy::OutgoingPolicy;
use crate::server::listen::{ListenerLimits, ListenerOptions};
use crate::server::listener_certificate::ListenerCertificate;

/// The main listener.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ListenSection {
    /// The listen address; `--listen` takes precedence. Default 127.0.0.1:4502 for author, :4503 for publish, :8080 for a
    /// dispatcher.
    pub address: Option<SocketAddr>,
    /// The maximum number of open connections; default 10,000. While fewer than one in 16 is free, connections are
    /// closed after their response, and idle ones are closed in favor of new ones. Further connections wait; on authors
    /// and publishers for 5 s, and at most a quarter as many, beyond which they are answered with 503 and
    /// `Retry-After`. Raise it if more clients keep connections open, together with the process's limit of open files.
    pub max_connections: Option<usize>,
    /// The maximum size of a request's head; default 64 KiB.
    pub max_header: Option<ByteSize>,
    /// The maximum size of a request's body; default 4 GiB on author, for uploads, and on publish, for replication.
    pub max_body: Option<ByteSize>,
    /// The maximum time until the next request's head is complete on an open connection; default 60 s.
    pub header_timeout: Option<DurationText>,
    /// The maximum time without data in a request's body; default 30 s. Raise it if uploads come over links that pause.
    pub body_timeout: Option<DurationText>,
    /// The certificate chain in PEM; enables TLS on the listener.
    pub tls_certificate: Option<PathBuf>,
    /// The private key of the certificate in PEM.
    pub tls_key: Option<PathBuf>,
}

impl ListenSection {
    /// Reads the certificate of the listener; `None` without TLS.
    ///
    /// # Errors
    /// If a file cannot be read, if the key does not match the certificate, or if only one of the files is named.
    pub fn read_certificate(&self) -> Result<Option<ListenerCertificate>, String> {
        match (&self.tls_certificate, &self.tls_key) {
            (Some(chain), Some(key)) => ListenerCertificate::read(chain, key)
                .map(Some)
                .map_err(|error| error_chain_text(&error)),
            (None, None) => Ok(None),
            _ => {
                Err("tympan.toml: `tls_certificate` and `tls_key` must be set together".to_owned())
            }
        }
    }

    /// Returns the options of the listener; a request body may have `body_bytes` bytes by default.
    pub fn listener_options(
        &self,
        certificate: Option<&ListenerCertificate>,
        body_bytes: u64,
    ) -> ListenerOptions {
        let mut limits = ListenerLimits { max_body_bytes: body_bytes, ..ListenerLimits::default() };
        if let Some(max) = self.max_connections {
            limits.max_connections = max;
        }
        limits.max_connections = limit_by_open_files(limits.max_connections, open_file_limit());
        if let Some(max) = self.max_header {
            limits.max_header_bytes = usize::try_from(max.as_bytes()).unwrap_or(usize::MAX);
        }
        if let Some(max) = self.max_body {
            limits.max_body_bytes = max.as_bytes();
        }
        if let Some(timeout) = self.header_timeout {
            limits.header_timeout = timeout.0;
        }
        let tls = certificate.map(ListenerCertificate::tls);
        ListenerOptions { limits, tls, ..ListenerOptions::default() }
    }
}

/// Returns the number of connections to serve concurrently with this limit of open files, and logs a warning if it is
/// lower than `requested_limit`: idle connections are closed in favor of new ones, which the kernel would refuse otherwise.
fn limit_by_open_files(requested_limit: usize, files: Option<u64>) -> usize {
    let most = files.map_or(requested_limit, ListenerLimits::max_connections_for_files);
    if most < requested_limit {
        tracing::warn!(
            requested_limit,
            connections = most,
            files,
            "connection limit lowered because of the limit on open files"
        );
    }
    requested_limit.min(most)
}

/// Returns the limit of open files of this process, after it was raised to the maximum; `None` if there is no limit.
fn open_file_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// The second listener, which serves health, metrics and login while the main one is saturated.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdminSection {
    /// The listen address; `--admin-listen` takes precedence. Default: no second listener.
    pub address: Option<SocketAddr>,
    /// The maximum number of open connections; default 16.
    pub max_connections: Option<usize>,
}

impl AdminSection {
    /// Returns the options of the second listener.
    pub fn listener_options(&self) -> ListenerOptions {
        ListenerLimits {
            max_connections: self.max_connections.unwrap_or(16),
            max_header_bytes: 16 * 1024,
            max_body_bytes: 64 * 1024,
            ..ListenerLimits::default()
        }
        .into()
    }
}

/// `request.log` and `access.log`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogsSection {
    /// The number of old files of each log that are kept, one for each day; default 14. Raise it to look further back.
    pub keep: Option<usize>,
    /// The size at which a log continues in a new file on the same day; default unlimited. Set it if disks are small.
    pub max_size: Option<ByteSize>,
}

impl LogsSection {
    /// Returns the rotation policy.
    pub fn rotation(&self) -> LogRotation {
        let default = LogRotation::default();
        LogRotation {
            max_rotated_files: self.keep.unwrap_or(default.max_rotated_files),
            max_bytes: self.max_size.map(ByteSize::as_bytes),
            ..default
        }
    }
}

/// The hosts that workflow steps may send requests to. Mounts and back ends have separate lists, `[[mounts.location]]` and
/// `[back_ends]`, whose hosts are allowed with the addresses that their names first resolve to; other addresses behind
/// them must be listed here as well.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OutgoingSection {
    /// Hosts, such as `["api.example.com", "*.example.org", "hooks.example.net:8443"]`; default none. A host that is
    /// listed by its address, such as `"10.0.0.7:8080"`, is allowed even if the address is not public.
    pub hosts: Vec<String>,
    /// Non-public networks that the names of these hosts may resolve to, such as `["10.20.0.0/16"]`; default none, so
    /// that no name gives access to the machine itself or to its local network.
    pub networks: Vec<String>,
}

impl OutgoingSection {
    /// Returns the outgoing policy.
    ///
    /// # Errors
    /// With the invalid entry.
    pub fn to_outgoing(&self) -> Result<OutgoingPolicy, String> {
        let networks = self.networks.iter().map(|text| text.parse());
        let networks = networks
            .collect::<Result<_, _>>()
            .map_err(|error| format!("tympan.toml: `networks` of `[outgoing]`: {error}"))?;
        OutgoingPolicy::new(&self.hosts, networks)
            .map_err(|error| format!("tympan.toml: `hosts` of `[outgoing]`: {error}"))
    }
}
