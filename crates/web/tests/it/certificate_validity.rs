//! The dates of certificates.

use std::time::{Duration, UNIX_EPOCH};

use tympan_web::certificate_validity::read_certificate_validity;

/// Returns a certificate that is valid between the beginnings of two years, in PEM.
fn certificate(from: i32, until: i32) -> String {
    let mut parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    parameters.not_before = rcgen::date_time_ymd(from, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(until, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    parameters.self_signed(&key).unwrap().pem()
}

#[test]
fn a_chain_is_valid_while_all_its_certificates_are() {
    let (own, issuer) = (certificate(2001, 2031), certificate(2000, 2030));
    let validity = read_certificate_validity(format!("{own}{issuer}").as_bytes()).unwrap();
    // 2001-01-01 and 2030-01-01.
    assert_eq!(validity.not_before, UNIX_EPOCH + Duration::from_secs(978_307_200));
    assert_eq!(validity.not_after, UNIX_EPOCH + Duration::from_secs(1_893_456_000));
}

#[test]
fn a_file_without_a_certificate_is_an_error() {
    for text in ["", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        assert!(read_certificate_validity(text.as_bytes()).is_err(), "{text}");
    }
}
