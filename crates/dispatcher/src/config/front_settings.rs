//! `[dispatcher.front]`: the connections that are accepted, and their limits.
//!
//! Input: the settings. Output: the listener's [`ListenerOptions`], and [`RequestGate`], the checks applied to each
//! request.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use schemars::JsonSchema;
use serde::Deserialize;
use tympan_web::body_limit::MinReadRate;
use tympan_web::ip_network::IpNetwork;
use tympan_web::listen::ListenerOptions;
use tympan_web::rate_limit::{RateLimiter, RequestRate};
use tympan_web::tls::{ClientCertificateRoots, TlsIdentity, TlsServer, TlsServerSettings};

use crate::Error;
use crate::config::setting_text::parse_min_rate;
use crate::config::setting_text::settings_error;

/// `[dispatcher.front]`. Certificates, trusted proxies and rates are reloaded with the configuration; changes of other
/// settings take effect at the next start.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FrontSettings {
    /// The certificates; with at least one the dispatcher speaks TLS. A visitor gets the first certificate whose names
    /// contain the requested host, or the first of all. They are reloaded when their files change.
    pub certificate: Vec<CertificateSettings>,
    /// Certificates in PEM that must have signed client certificates. If set, clients are asked for a certificate, for
    /// `/x-flushCertificate` and for renders (`X-Forwarded-SSL-Client-Cert`). Default: clients are not asked.
    pub client_roots: Option<PathBuf>,
    /// If true, clients without a certificate are refused; default false.
    pub require_client_certificate: bool,
    /// If true, HTTP/2 is enabled over TLS; default true.
    pub http2: Option<bool>,
    /// Addresses and ranges, such as `"10.0.0.0/8"`, of load balancers whose connections begin with a PROXY header,
    /// version 1 or 2. Connections from these addresses without the header are closed.
    pub proxy_protocol_from: Vec<String>,
    /// Addresses and ranges of proxies whose `X-Forwarded-…` headers are trusted; from other addresses these headers
    /// are then removed. Default: no proxy is trusted, and renders get the headers unchanged.
    pub trusted_proxies: Vec<String>,
    /// The long-term limit of requests per second for one client; requests beyond it are answered with 429. Default: no
    /// limit. IPv6 addresses of one /64 count as one client.
    pub requests_per_second: Option<f64>,
    /// The number of requests that one client may send at once; default ten seconds' worth.
    pub burst: Option<u32>,
    /// The maximum number of concurrent connections of one client; further ones are closed. Default: no limit. Set it
    /// where visitors connect directly and not through proxies that many share.
    pub max_connections_per_client: Option<usize>,
    /// The maximum number of requests on one HTTP/1.1 connection; default 10,000.
    pub max_requests_per_connection: Option<u64>,
    /// The maximum number of concurrent requests on one HTTP/2 connection; default 100.
    pub max_streams: Option<u32>,
    /// The maximum number of open WebSockets, of all visitors; further ones are answered with 503. Default 1,000. Raise
    /// it together with the limit of open files: each takes two connections.
    pub max_websockets: Option<usize>,
    /// The minimum average rate of a request body after an initial time, such as `"4 KiB/s after 30s"`; slower ones are
    /// answered with 408. Default `"500 B/s after 60s"`, which the slowest line reaches; `"0"` for no limit. Raise it
    /// where clients are near and many slow bodies hold connections.
    pub min_body_rate: Option<String>,
}

/// `[[dispatcher.front.certificate]]`: files in PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CertificateSettings {
    /// The certificate and the intermediate certificates.
    pub chain: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl FrontSettings {
    /// Returns the files that are read.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let pairs = self.certificate.iter().flat_map(|pair| [pair.chain.as_path(), &*pair.key]);
        pairs.chain(self.client_roots.as_deref())
    }

    /// Adds these settings to `front`.
    ///
    /// # Errors
    /// [`Error::Setting`] names the key that cannot be used.
    pub fn apply_to(&self, mut front: ListenerOptions) -> Result<ListenerOptions, Error> {
        if !self.certificate.is_empty() {
            let roots = self.read_client_roots()?;
            let tls = TlsServer::new(&self.certificate_offering(roots.as_deref())?);
            front.tls =
                Some(tls.map_err(|error| settings_error("front.certificate", error.to_string()))?);
        } else if self.client_roots.is_some() {
            return Err(settings_error(
                "front.client_roots",
                "it needs a `[[dispatcher.front.certificate]]`",
            ));
        }
        front.proxies =
            parse_networks("front.proxy_protocol_from", &self.proxy_protocol_from)?.into();
        let limits = &mut front.limits;
        limits.max_connections_per_client = self.max_connections_per_client;
        limits.max_requests =
            self.max_requests_per_connection.unwrap_or(limits.max_requests).max(1);
        limits.max_streams = self.max_streams.unwrap_or(limits.max_streams).max(1);
        Ok(front)
    }

    /// Reloads the certificates for new connections.
    ///
    /// # Errors
    /// [`Error::Setting`] names the key that cannot be used; the old certificates stay in use.
    pub fn reload_certificates(&self, front: &ListenerOptions) -> Result<(), Error> {
        let Some(tls) = front.tls.as_ref().filter(|_| !self.certificate.is_empty()) else {
            return Ok(());
        };
        let roots = self.read_client_roots()?;
        let renewed = tls.replace(&self.certificate_offering(roots.as_deref())?);
        renewed.map_err(|error| settings_error("front.certificate", error.to_string()))
    }

    fn read_client_roots(&self) -> Result<Option<Vec<u8>>, Error> {
        let read = |file: &PathBuf| read_certificate_file("front.client_roots", file);
        self.client_roots.as_ref().map(read).transpose()
    }

    fn certificate_offering<'a>(
        &self,
        roots: Option<&'a [u8]>,
    ) -> Result<TlsServerSettings<'a>, Error> {
        let read = |pair: &CertificateSettings| {
            let key = "front.certificate";
            let (chain, secret) =
                (read_certificate_file(key, &pair.chain)?, read_certificate_file(key, &pair.key)?);
            TlsIdentity::from_pem(&chain, &secret).map_err(|error| {
                settings_error(key, format!("{error} (`{}`)", pair.chain.display()))
            })
        };
        let is_required = self.require_client_certificate;
        Ok(TlsServerSettings {
            identities: self.certificate.iter().map(read).collect::<Result<_, _>>()?,
            client_roots: roots.map(|pem| ClientCertificateRoots { roots_pem: pem, is_required }),
            has_http2: self.http2.unwrap_or(true),
        })
    }
}

/// The checks applied to each request first.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestGate {
    pub(crate) trusted_proxies: Vec<IpNetwork>,
    /// The minimum rate of request bodies.
    pub(crate) min_body_rate: Option<MinReadRate>,
    rate_limiter: Option<Arc<RateLimiter>>,
}

impl RequestGate {
    /// Creates the gate from settings; `old` is the previous gate, whose clients are remembered if the rate is
    /// unchanged.
    pub(crate) fn from_settings(
        settings: &FrontSettings,
        old: Option<&Self>,
    ) -> Result<Self, Error> {
        let rate = match settings.requests_per_second {
            None => None,
            Some(per_second) if per_second > 0.0 && per_second.is_finite() => {
                #[expect(clippy::cast_possible_truncation, reason = "saturates, and is positive")]
                #[expect(clippy::cast_sign_loss, reason = "is positive")]
                let usual = (per_second * 10.0).ceil() as u32;
                Some(RequestRate::new(per_second, settings.burst.unwrap_or(usual).max(1)))
            }
            Some(_) => {
                return Err(settings_error(
                    "front.requests_per_second",
                    "it must be a number above 0",
                ));
            }
        };
        let previous_limiter = old.and_then(|old| old.rate_limiter.as_ref());
        let rate = rate.map(|rate| {
            match previous_limiter.filter(|previous_limiter| previous_limiter.rate() == rate) {
                Some(previous_limiter) => Arc::clone(previous_limiter),
                None => Arc::new(RateLimiter::new(rate)),
            }
        });
        let trusted = parse_networks("front.trusted_proxies", &settings.trusted_proxies)?;
        let pace = parse_min_rate("front.min_body_rate", settings.min_body_rate.as_deref())?;
        Ok(Self { trusted_proxies: trusted, min_body_rate: pace, rate_limiter: rate })
    }

    /// Counts a request of `client` and admits it.
    ///
    /// # Errors
    /// Returns the number of seconds to wait if the client exceeds its rate.
    pub(crate) fn admit(&self, client: std::net::IpAddr) -> Result<(), u64> {
        let Some(rate) = &self.rate_limiter else { return Ok(()) };
        rate.take_token(client, Instant::now()).map_err(|wait| wait.as_secs().saturating_add(1))
    }
}

fn parse_networks(key: &str, texts: &[String]) -> Result<Vec<IpNetwork>, Error> {
    texts
        .iter()
        .map(|text| text.parse().map_err(|error| settings_error(key, format!("{error}"))))
        .collect::<Result<Vec<IpNetwork>, Error>>()
}

fn read_certificate_file(key: &str, file: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(file)
        .map_err(|error| settings_error(key, format!("cannot read `{}`: {error}", file.display())))
}
