//! TLS for targets. Certificates are not verified, as in ab and JMeter.
//!
//! A load test measures speed, commonly of a staging host with a self-signed certificate; certificate verification
//! requires another tool. The caller's credentials are sent only to the host that the plan names.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, NamedGroup, ProtocolVersion,
    SignatureScheme, SupportedCipherSuite, SupportedProtocolVersion,
};

use crate::{Error, Result};

/// TLS options that override the library's defaults.
#[derive(Debug, Default)]
pub struct TlsClientOptions {
    /// The only TLS version offered.
    pub only_version: Option<&'static SupportedProtocolVersion>,
    /// The cipher suites offered, the preferred one first; empty for all.
    pub cipher_suites: Vec<SupportedCipherSuite>,
    /// A client certificate with its chain, and its key, for servers that authenticate clients.
    pub client_identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    /// Omits the server name (SNI) from the handshake.
    pub hides_server_name: bool,
    /// Makes a full handshake for each connection, instead of resuming a session.
    pub disables_resumption: bool,
    /// Offers HTTP/2 instead of HTTP/1.1.
    pub is_http2: bool,
}

/// The negotiated TLS parameters, in OpenSSL's notation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NegotiatedTls {
    /// Version and cipher suite, such as `TLSv1.3,TLS_AES_256_GCM_SHA384,256`.
    pub protocol_and_cipher: String,
    /// The ephemeral key of the connection, such as `X25519 253 bits`.
    pub temporary_key: Option<&'static str>,
}

impl NegotiatedTls {
    /// Returns the negotiated parameters of a connection; `None` before its handshake is complete.
    pub(crate) fn from_connection(tls: &ClientConnection) -> Option<Self> {
        let version = match tls.protocol_version()? {
            ProtocolVersion::TLSv1_2 => "TLSv1.2",
            ProtocolVersion::TLSv1_3 => "TLSv1.3",
            _ => "TLS",
        };
        let suite = openssl_cipher_name(tls.negotiated_cipher_suite()?);
        let bits = if suite.contains("128") { 128 } else { 256 };
        let temporary_key = tls.negotiated_key_exchange_group().and_then(|group| {
            Some(match group.name() {
                NamedGroup::X25519 => "X25519 253 bits",
                NamedGroup::secp256r1 => "ECDH prime256v1 256 bits",
                NamedGroup::secp384r1 => "ECDH secp384r1 384 bits",
                _ => return None,
            })
        });
        Some(Self { protocol_and_cipher: format!("{version},{suite},{bits}"), temporary_key })
    }
}

/// Returns the cipher suites that the library supports.
pub fn supported_cipher_suites() -> &'static [SupportedCipherSuite] {
    ring::ALL_CIPHER_SUITES
}

/// Returns OpenSSL's name of a cipher suite: `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256` is `ECDHE-RSA-AES128-GCM-SHA256`.
pub fn openssl_cipher_name(suite: SupportedCipherSuite) -> String {
    let name = format!("{:?}", suite.suite());
    if let Some(rest) = name.strip_prefix("TLS13_") {
        return format!("TLS_{rest}");
    }
    let short = name.trim_start_matches("TLS_").replace("_WITH_", "_").replace("AES_", "AES");
    // OpenSSL omits the hash in the name of this suite.
    short.replace("POLY1305_SHA256", "POLY1305").replace('_', "-")
}

/// Returns the TLS configuration and server name for connections to `host`.
///
/// # Errors
/// [`Error::Tls`] if `host` is not a valid server name.
pub fn client_tls_config(host: &str) -> Result<(Arc<ClientConfig>, ServerName<'static>)> {
    client_tls_config_with(host, &TlsClientOptions::default())
}

/// Returns the TLS configuration and server name for connections to `host` with the given options.
///
/// # Errors
/// [`Error::Tls`] if `host` is not a valid server name, or if version, suites, certificate and key are incompatible.
pub(crate) fn client_tls_config_with(
    host: &str,
    speech: &TlsClientOptions,
) -> Result<(Arc<ClientConfig>, ServerName<'static>)> {
    let wrong = |error: rustls::Error| Error::Tls(error.to_string());
    let mut provider = ring::default_provider();
    if !speech.cipher_suites.is_empty() {
        provider.cipher_suites.clone_from(&speech.cipher_suites);
    }
    let provider = Arc::new(provider);
    let versions =
        speech.only_version.map_or(rustls::DEFAULT_VERSIONS.to_vec(), |version| vec![version]);
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions)
        .map_err(wrong)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificateVerifier(provider)));
    let mut config = match &speech.client_identity {
        Some((chain, key)) => {
            builder.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(wrong)?
        }
        None => builder.with_no_client_auth(),
    };
    let protocol: &[u8] = if speech.is_http2 { b"h2" } else { b"http/1.1" };
    config.alpn_protocols = vec![protocol.to_vec()];
    config.enable_sni = !speech.hides_server_name;
    if speech.disables_resumption {
        config.resumption = Resumption::disabled();
    }
    let name =
        ServerName::try_from(host.to_owned()).map_err(|error| Error::Tls(error.to_string()))?;
    Ok((Arc::new(config), name))
}

#[derive(Debug)]
struct AnyCertificateVerifier(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificateVerifier {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cipher_suites_have_the_names_that_openssl_gives_them() {
        let mut names: Vec<String> =
            supported_cipher_suites().iter().copied().map(openssl_cipher_name).collect();
        names.sort();
        assert_eq!(
            names,
            [
                "ECDHE-ECDSA-AES128-GCM-SHA256",
                "ECDHE-ECDSA-AES256-GCM-SHA384",
                "ECDHE-ECDSA-CHACHA20-POLY1305",
                "ECDHE-RSA-AES128-GCM-SHA256",
                "ECDHE-RSA-AES256-GCM-SHA384",
                "ECDHE-RSA-CHACHA20-POLY1305",
                "TLS_AES_128_GCM_SHA256",
                "TLS_AES_256_GCM_SHA384",
                "TLS_CHACHA20_POLY1305_SHA256",
            ]
        );
    }
}
