//! Certificates made when a test runs, and a client that tells which one it got.

use std::io::Result;
use std::net::SocketAddr;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tympan_web::tls::TlsIdentity;

/// A certificate and its key in PEM.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Made {
    /// Makes a certificate that signs itself.
    pub(crate) fn for_names(names: &[&str]) -> Self {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        Self { certificate: made.cert.pem(), key: made.signing_key.serialize_pem() }
    }

    pub(crate) fn identity(&self) -> TlsIdentity {
        TlsIdentity::from_pem(self.certificate.as_bytes(), self.key.as_bytes()).unwrap()
    }
}

/// One who signs certificates.
pub(crate) struct Authority {
    pub(crate) certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn sign(&self, name: &str) -> Made {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Made { certificate, key: key.serialize_pem() }
    }
}

/// Connects as one who believes `roots` and asks for `name` and one of `protocols`.
pub(crate) async fn connect(
    addr: SocketAddr,
    name: &str,
    roots: &str,
    protocols: &[&[u8]],
) -> Result<TlsStream<TcpStream>> {
    connect_as(addr, name, roots, protocols, None).await
}

/// As [`connect`], showing a certificate.
pub(crate) async fn connect_as(
    addr: SocketAddr,
    name: &str,
    roots: &str,
    protocols: &[&[u8]],
    own: Option<&Made>,
) -> Result<TlsStream<TcpStream>> {
    let config = client_config(roots, protocols, own);
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(addr).await?;
    connector.connect(ServerName::try_from(name.to_owned()).unwrap(), stream).await
}

/// Returns what such a client knows; it remembers whom it has met.
pub(crate) fn client_config(roots: &str, protocols: &[&[u8]], own: Option<&Made>) -> ClientConfig {
    client_config_with(&ring::default_provider(), roots, protocols, own)
}

/// As [`client_config`], with the ciphers of a provider.
pub(crate) fn client_config_with(
    provider: &CryptoProvider,
    roots: &str,
    protocols: &[&[u8]],
    own: Option<&Made>,
) -> ClientConfig {
    let mut store = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(roots.as_bytes()) {
        store.add(root.unwrap()).unwrap();
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(provider.clone()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(store);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let chain = CertificateDer::pem_slice_iter(own.certificate.as_bytes());
            let chain = chain.map(|certificate| certificate.unwrap()).collect();
            let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config
}
