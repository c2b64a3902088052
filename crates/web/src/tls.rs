//! Certificates for the listener and trusted roots for the client, always with the ring provider.
//!
//! The provider is passed explicitly: another dependency may add a second one, and rustls refuses to choose.
//!
//! AES-128 comes first, which is also the preference of browsers: its hash is SHA-256, for which processors have
//! instructions. The hash of AES-256 is SHA-384, for which most have none, and which takes a seventh of the work of a
//! full handshake. Clients that prefer ChaCha20 have no instructions for AES, and get their preference.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    Acceptor, ClientHello, NoClientAuth, ParsedCertificate, ResolvesServerCert,
    WebPkiClientVerifier,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CipherSuite, ClientConfig, RootCertStore, ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::{Error, Result};

/// A certificate chain and its key.
#[derive(Debug, Clone)]
pub struct TlsIdentity(Arc<CertifiedKey>);

impl TlsIdentity {
    /// Parses a certificate chain and its key, both in PEM.
    ///
    /// # Errors
    /// [`Error::Tls`] names the part that is malformed or does not match the other.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self> {
        let chain = parse_certificates(certificate, "certificate")?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| Error::Tls { item: "key", reason: error.to_string() })?;
        let own = CertifiedKey::from_der(chain, key, &ring::default_provider())
            .map_err(|error| Error::Tls { item: "certificate", reason: error.to_string() })?;
        Ok(Self(Arc::new(own)))
    }

    fn is_valid_for(&self, name: &ServerName<'_>) -> bool {
        self.0
            .end_entity_cert()
            .is_ok_and(|certificate| is_certificate_valid_for(certificate, name))
    }
}

/// Client certificates that a listener requests.
#[derive(Debug, Clone, Copy)]
pub struct ClientCertificateRoots<'a> {
    /// The trusted roots, in PEM.
    pub roots_pem: &'a [u8],
    /// True if a client without a certificate is refused.
    pub is_required: bool,
}

/// The TLS settings of a listener.
#[derive(Debug, Clone, Default)]
pub struct TlsServerSettings<'a> {
    /// The certificates. A client gets the first one that matches the requested name, or the first of all.
    pub identities: Vec<TlsIdentity>,
    /// The request for client certificates, if any.
    pub client_roots: Option<ClientCertificateRoots<'a>>,
    /// True if HTTP/2 is offered.
    pub has_http2: bool,
}

/// The TLS configuration of a listener; clones share it.
#[derive(Debug, Clone)]
pub struct TlsServer(Arc<ArcSwap<TlsServerConfigs>>);

/// The two variants of a listener's configuration.
#[derive(Debug)]
struct TlsServerConfigs {
    /// With the cipher order of [`crypto_provider`].
    server_order: Arc<ServerConfig>,
    /// With the cipher order of the client.
    client_order: Arc<ServerConfig>,
}

impl TlsServerConfigs {
    fn new(offering: &TlsServerSettings<'_>) -> Result<Self> {
        let by_client = server_config(offering)?;
        let mut by_listener = by_client.clone();
        by_listener.ignore_client_order = true;
        Ok(Self { server_order: Arc::new(by_listener), client_order: Arc::new(by_client) })
    }

    /// Returns the configuration for a client with these ciphers.
    fn config_for_ciphers(&self, ciphers: &[CipherSuite]) -> &Arc<ServerConfig> {
        // Unknown ciphers serve to test that servers ignore them (RFC 8701).
        let is_known = |suite: &CipherSuite| suite.as_str().is_some();
        let first = ciphers.iter().copied().find(is_known);
        if first.is_some_and(is_chacha) { &self.client_order } else { &self.server_order }
    }
}

impl TlsServer {
    /// Creates TLS with one certificate, for HTTP/1.1; chain and key are in PEM.
    ///
    /// # Errors
    /// [`Error::Tls`] names the part that is malformed or does not match the other.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self> {
        let identities = vec![TlsIdentity::from_pem(certificate, key)?];
        Self::new(&TlsServerSettings { identities, ..TlsServerSettings::default() })
    }

    /// Creates TLS with the given settings.
    ///
    /// # Errors
    /// [`Error::Tls`] if there is no certificate, or no root for client certificates.
    pub fn new(offering: &TlsServerSettings<'_>) -> Result<Self> {
        Ok(Self(Arc::new(ArcSwap::from_pointee(TlsServerConfigs::new(offering)?))))
    }

    /// Replaces the settings for new connections; open connections stay.
    ///
    /// # Errors
    /// As [`TlsServer::new`]; then nothing changes.
    pub fn replace(&self, offering: &TlsServerSettings<'_>) -> Result<()> {
        self.0.store(Arc::new(TlsServerConfigs::new(offering)?));
        Ok(())
    }

    /// Performs the handshake with a client.
    ///
    /// # Errors
    /// If the client does not use TLS, supports nothing that is offered, or has disconnected.
    pub(crate) async fn accept<T>(&self, stream: T) -> std::io::Result<TlsStream<T>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let configs = self.0.load_full();
        let config = Arc::clone(configs.config_for_ciphers(start.client_hello().cipher_suites()));
        start.into_stream(config).await
    }
}

/// Returns ring's provider with the cipher order of this module.
fn crypto_provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| !is_aes_128(suite.suite()));
    provider
}

fn is_aes_128(suite: CipherSuite) -> bool {
    matches!(
        suite,
        CipherSuite::TLS13_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
    )
}

fn is_chacha(suite: CipherSuite) -> bool {
    matches!(
        suite,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
    )
}

fn server_config(offering: &TlsServerSettings<'_>) -> Result<ServerConfig> {
    if offering.identities.is_empty() {
        return Err(Error::Tls { item: "certificate", reason: "none is configured".to_owned() });
    }
    let fault = |item| move |error: rustls::Error| Error::Tls { item, reason: error.to_string() };
    let provider = Arc::new(crypto_provider());
    let verifier: Arc<dyn ClientCertVerifier> = match &offering.client_roots {
        None => Arc::new(NoClientAuth),
        Some(clients) => {
            let roots = Arc::new(parse_roots(clients.roots_pem)?);
            let builder = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
            let builder =
                if clients.is_required { builder } else { builder.allow_unauthenticated() };
            builder
                .build()
                .map_err(|error| Error::Tls { item: "roots", reason: error.to_string() })?
        }
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(fault("certificate"))?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(CertificateByName(offering.identities.clone())));
    // Tickets contain the resumption state, so that no memory is used for visitors who may never return.
    config.ticketer = ring::Ticketer::new().map_err(fault("key"))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    if offering.has_http2 {
        config.alpn_protocols.insert(0, HTTP2_ALPN.to_vec());
        // A browser then opens one connection, which provides the ticket for the next one. Each further ticket costs a
        // key, an encryption and a record per handshake.
        config.send_tls13_tickets = 1;
    }
    Ok(config)
}

/// The ALPN name of HTTP/2.
pub(crate) const HTTP2_ALPN: &[u8] = b"h2";

/// Selects a certificate by the name that a client requests.
#[derive(Debug)]
struct CertificateByName(Vec<TlsIdentity>);

impl ResolvesServerCert for CertificateByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        // Skip the comparison of names, which would parse the certificate.
        if let [only] = &*self.0 {
            return Some(Arc::clone(&only.0));
        }
        let name = hello.server_name().and_then(|name| ServerName::try_from(name).ok());
        let chosen =
            name.and_then(|name| self.0.iter().find(|identity| identity.is_valid_for(&name)));
        chosen.or(self.0.first()).map(|identity| Arc::clone(&identity.0))
    }
}

fn is_certificate_valid_for(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> bool {
    ParsedCertificate::try_from(certificate)
        .is_ok_and(|certificate| verify_server_name(&certificate, name).is_ok())
}

/// The result of a TLS handshake; an extension of requests over TLS.
#[derive(Debug, Clone)]
pub struct TlsHandshake {
    /// The cipher suite, such as `TLS13_AES_128_GCM_SHA256`.
    pub cipher: Option<&'static str>,
    /// The client's certificate, signed by a root of the listener's [`ClientCertificateRoots`].
    pub client_certificate: Option<ClientCertificate>,
}

impl TlsHandshake {
    pub(crate) fn from_connection(connection: &ServerConnection) -> Self {
        let suite = connection.negotiated_cipher_suite();
        let client = connection.peer_certificates().and_then(<[_]>::first);
        Self {
            cipher: suite.and_then(|suite| suite.suite().as_str()),
            client_certificate: client
                .map(|der| ClientCertificate(Arc::new(der.clone().into_owned()))),
        }
    }
}

/// A client certificate with a verified signature.
#[derive(Debug, Clone)]
pub struct ClientCertificate(Arc<CertificateDer<'static>>);

impl ClientCertificate {
    /// Returns true if one of the certificate's alternative names is `name`.
    #[must_use]
    pub fn is_valid_for(&self, name: &str) -> bool {
        ServerName::try_from(name).is_ok_and(|name| is_certificate_valid_for(&self.0, &name))
    }

    /// Returns the certificate as DER.
    #[must_use]
    pub fn der(&self) -> &[u8] {
        &self.0
    }
}

/// The trusted roots of a client.
#[derive(Debug, Clone)]
pub struct TlsTrust(Arc<ClientConfig>);

impl TlsTrust {
    /// Trusts servers whose certificates are signed by a root in `pem`.
    ///
    /// # Errors
    /// [`Error::Tls`] if `pem` contains no usable certificate.
    pub fn from_pem(pem: &[u8]) -> Result<Self> {
        Self::from_roots(parse_roots(pem)?)
    }

    /// Trusts servers as [`TlsTrust::from_pem`] does, and presents a client certificate to those that request it.
    ///
    /// # Errors
    /// [`Error::Tls`] if `pem` contains no usable certificate, or the identity cannot be used.
    pub fn with_identity(pem: &[u8], identity: &TlsIdentity) -> Result<Self> {
        let fault = |error: rustls::Error| Error::Tls { item: "roots", reason: error.to_string() };
        let config = ClientConfig::builder_with_provider(Arc::new(crypto_provider()))
            .with_safe_default_protocol_versions()
            .map_err(fault)?
            .with_root_certificates(parse_roots(pem)?)
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&identity.0))));
        Ok(Self(Arc::new(config)))
    }

    /// Trusts servers whose certificates are signed by a root of the system.
    ///
    /// # Errors
    /// [`Error::Tls`] if the system has no roots.
    pub fn system_roots() -> Result<Self> {
        let mut roots = RootCertStore::empty();
        let certificates = rustls_native_certs::load_native_certs();
        let (added, _ignored) = roots.add_parsable_certificates(certificates.certs);
        if added == 0 {
            let reason =
                "the system has no root certificates; install `ca-certificates`".to_owned();
            return Err(Error::Tls { item: "roots", reason });
        }
        Self::from_roots(roots)
    }

    fn from_roots(roots: RootCertStore) -> Result<Self> {
        let config = ClientConfig::builder_with_provider(Arc::new(crypto_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Tls { item: "roots", reason: error.to_string() })?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }

    pub(crate) fn connector(&self) -> tokio_rustls::TlsConnector {
        tokio_rustls::TlsConnector::from(Arc::clone(&self.0))
    }
}

fn parse_roots(pem: &[u8]) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let (added, _ignored) = roots.add_parsable_certificates(parse_certificates(pem, "roots")?);
    if added == 0 {
        return Err(Error::Tls { item: "roots", reason: "no usable certificate".to_owned() });
    }
    Ok(roots)
}

fn parse_certificates(pem: &[u8], item: &'static str) -> Result<Vec<CertificateDer<'static>>> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<std::result::Result<_, _>>()
        .map_err(|error| Error::Tls { item, reason: error.to_string() })?;
    if chain.is_empty() {
        return Err(Error::Tls { item, reason: "no certificate in the PEM text".to_owned() });
    }
    Ok(chain)
}
