//! Certificates for the listener and trust for the client, always with the ring provider.
//!
//! The provider is passed explicitly: another dependency may bring a second one, and rustls refuses to choose.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::{Error, Result};

/// What a listener proves itself with.
#[derive(Debug, Clone)]
pub struct Tls(Arc<ServerConfig>);

impl Tls {
    /// Reads a certificate chain and its key, both in PEM.
    ///
    /// # Errors
    /// [`Error::Tls`] names the part that is malformed or does not fit the other.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self> {
        let chain = parse_certificates(certificate, "certificate")?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| Error::Tls { what: "key", reason: error.to_string() })?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(|error| Error::Tls { what: "certificate", reason: error.to_string() })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }

    pub(crate) fn acceptor(&self) -> tokio_rustls::TlsAcceptor {
        tokio_rustls::TlsAcceptor::from(Arc::clone(&self.0))
    }
}

/// Whom a client believes.
#[derive(Debug, Clone)]
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// Believes servers whose certificates one of the roots in `pem` signed.
    ///
    /// # Errors
    /// [`Error::Tls`] when `pem` holds no usable certificate.
    pub fn from_pem(pem: &[u8]) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        let (added, _ignored) = roots.add_parsable_certificates(parse_certificates(pem, "roots")?);
        if added == 0 {
            return Err(Error::Tls { what: "roots", reason: "no usable certificate".to_owned() });
        }
        Self::of(roots)
    }

    /// Believes servers whose certificates one of the system's roots signed.
    ///
    /// # Errors
    /// [`Error::Tls`] when the system has none.
    pub fn system() -> Result<Self> {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        let (added, _ignored) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            let reason = "the system has no certificates; install `ca-certificates`".to_owned();
            return Err(Error::Tls { what: "roots", reason });
        }
        Self::of(roots)
    }

    fn of(roots: RootCertStore) -> Result<Self> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Tls { what: "roots", reason: error.to_string() })?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }

    pub(crate) fn connector(&self) -> tokio_rustls::TlsConnector {
        tokio_rustls::TlsConnector::from(Arc::clone(&self.0))
    }
}

fn parse_certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<std::result::Result<_, _>>()
        .map_err(|error| Error::Tls { what, reason: error.to_string() })?;
    if chain.is_empty() {
        return Err(Error::Tls { what, reason: "no certificate in the PEM text".to_owned() });
    }
    Ok(chain)
}
