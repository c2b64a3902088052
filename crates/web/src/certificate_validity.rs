//! The dates of a certificate: when it begins and ends to be valid.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::{Error, Result};

/// The time in which all certificates of a chain are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificateValidity {
    /// The begin.
    pub not_before: SystemTime,
    /// The end.
    pub not_after: SystemTime,
}

/// Reads the validity of a chain of certificates in PEM.
///
/// # Errors
/// [`Error::Tls`] if there is no certificate, or one is malformed.
pub fn read_certificate_validity(pem: &[u8]) -> Result<CertificateValidity> {
    let fault = |reason: String| Error::Tls { item: "certificate", reason };
    let mut whole: Option<CertificateValidity> = None;
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| fault(error.to_string()))?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&certificate)
            .map_err(|error| fault(error.to_string()))?;
        let dates = parsed.validity();
        let own = CertificateValidity {
            not_before: system_time(dates.not_before.timestamp()),
            not_after: system_time(dates.not_after.timestamp()),
        };
        whole = Some(whole.map_or(own, |whole| CertificateValidity {
            not_before: whole.not_before.max(own.not_before),
            not_after: whole.not_after.min(own.not_after),
        }));
    }
    whole.ok_or_else(|| fault("the file contains none".to_owned()))
}

fn system_time(seconds: i64) -> SystemTime {
    // Certificates that began before 1970 have begun.
    UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
