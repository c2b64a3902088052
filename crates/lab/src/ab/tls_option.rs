//! Parses ab's TLS options: `-f`, `-Z`, `-E`.

use std::path::Path;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{ProtocolVersion, SupportedCipherSuite, SupportedProtocolVersion};

use crate::net::{openssl_cipher_name, supported_cipher_suites};
use crate::{Error, Result};

/// The identity of a TLS client: a certificate with its chain, and its key.
pub(super) type TlsClientIdentity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Returns the version that `-f` names; `None` for all versions.
///
/// # Errors
/// [`Error::UnusableInput`] for versions that are no longer supported, and for unknown names.
pub(super) fn parse_tls_version(text: &str) -> Result<Option<&'static SupportedProtocolVersion>> {
    match text.to_ascii_uppercase().as_str() {
        "ALL" => Ok(None),
        "TLS1.2" => Ok(Some(&TLS12)),
        "TLS1.3" => Ok(Some(&TLS13)),
        "SSL2" | "SSL3" | "TLS1" | "TLS1.1" => Err(Error::UnusableInput(format!(
            "-f {text}: this protocol is insecure (RFC 6176, 7568, 8996) and not supported; use TLS1.2, \
             TLS1.3 or ALL"
        ))),
        _ => Err(Error::UnusableInput(format!(
            "-f {text}: unknown protocol; use TLS1.2, TLS1.3 or ALL"
        ))),
    }
}

/// Returns the cipher suites that `-Z` names in OpenSSL's notation, separated by colons, commas or spaces. As with
/// OpenSSL, the suites of TLS 1.3 are always included.
///
/// # Errors
/// [`Error::UnusableInput`] if the TLS library has no such suite.
pub(super) fn parse_cipher_suites(text: &str) -> Result<Vec<SupportedCipherSuite>> {
    let is_newest =
        |suite: &SupportedCipherSuite| suite.version().version == ProtocolVersion::TLSv1_3;
    let all = supported_cipher_suites().iter().copied();
    let mut chosen: Vec<SupportedCipherSuite> = all.clone().filter(is_newest).collect();
    for name in text.split([':', ',', ' ']).filter(|name| !name.is_empty()) {
        if matches!(name, "ALL" | "DEFAULT" | "HIGH") {
            return Ok(all.collect());
        }
        let Some(suite) = all.clone().find(|suite| openssl_cipher_name(*suite) == name) else {
            let names: Vec<String> = all.map(openssl_cipher_name).collect();
            return Err(Error::UnusableInput(format!(
                "-Z {name}: unknown cipher suite; known are {}, and ALL",
                names.join(", ")
            )));
        };
        if !chosen.contains(&suite) {
            chosen.push(suite);
        }
    }
    Ok(chosen)
}

/// Reads the certificate, its chain and its key from the file that `-E` names.
///
/// # Errors
/// [`Error::UnusableInput`] if the file does not hold both in PEM.
pub(super) fn read_identity(path: &Path) -> Result<TlsClientIdentity> {
    let wrong = |problem: &str, error: rustls::pki_types::pem::Error| {
        Error::UnusableInput(format!("-E {}: {problem}: {error}", path.display()))
    };
    let chain = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let chain: Vec<_> = chain.map_err(|error| wrong("cannot read a PEM certificate", error))?;
    if chain.is_empty() {
        return Err(Error::UnusableInput(format!(
            "-E {}: the file contains no certificate",
            path.display()
        )));
    }
    let key = PrivateKeyDer::from_pem_file(path);
    Ok((chain, key.map_err(|error| wrong("cannot read a PEM private key", error))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_known_or_refused_with_a_reason() {
        assert!(parse_tls_version("ALL").unwrap().is_none());
        assert_eq!(parse_tls_version("tls1.2").unwrap().unwrap().version, ProtocolVersion::TLSv1_2);
        assert_eq!(parse_tls_version("TLS1.3").unwrap().unwrap().version, ProtocolVersion::TLSv1_3);
        for old in ["SSL2", "SSL3", "TLS1", "TLS1.1"] {
            assert!(parse_tls_version(old).unwrap_err().to_string().contains("insecure"), "{old}");
        }
        assert!(parse_tls_version("QUIC").is_err());
    }

    #[test]
    fn cipher_suites_are_chosen_beside_those_of_the_newest_protocol() {
        let names = |text: &str| -> Vec<String> {
            parse_cipher_suites(text)
                .unwrap()
                .into_iter()
                .skip(3)
                .map(openssl_cipher_name)
                .collect()
        };
        let suites = "ECDHE-RSA-AES256-GCM-SHA384:ECDHE-RSA-AES128-GCM-SHA256";
        assert_eq!(names(suites), suites.split(':').collect::<Vec<_>>());
        assert_eq!(names("TLS_AES_128_GCM_SHA256"), Vec::<String>::new());
        assert_eq!(parse_cipher_suites("ALL").unwrap().len(), supported_cipher_suites().len());
        let error = parse_cipher_suites("RC4-MD5").unwrap_err().to_string();
        assert!(error.contains("RC4-MD5") && error.contains("ECDHE-RSA-AES128-GCM-SHA256"));
    }
}
