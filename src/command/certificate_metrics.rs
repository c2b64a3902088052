//! The end of the validity of certificates, as metrics.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use tympan_web::certificate_validity::read_certificate_validity;

/// Returns as Prometheus text when the certificates of each file end: the first one of a chain that does. A file that
/// cannot be read has ended, as a restart would fail.
pub(crate) fn certificate_metrics(chains: impl IntoIterator<Item = PathBuf>) -> String {
    let chains: BTreeSet<PathBuf> = chains.into_iter().collect();
    if chains.is_empty() {
        return String::new();
    }
    let name = "tympan_certificate_not_after_timestamp_seconds";
    let mut text = format!(
        "# HELP {name} End of the validity of a certificate, in seconds since 1970; 0 if its file cannot be read.\n\
         # TYPE {name} gauge\n"
    );
    for chain in chains {
        let validity =
            std::fs::read(&chain).ok().and_then(|pem| read_certificate_validity(&pem).ok());
        let end = validity.and_then(|validity| validity.not_after.duration_since(UNIX_EPOCH).ok());
        let file = chain.display().to_string().replace('\\', "\\\\").replace('"', "\\\"");
        // Writing to a string cannot fail.
        writeln!(text, "{name}{{file=\"{file}\"}} {}", end.unwrap_or_default().as_secs()).ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate of OpenSSL's, valid for a hundred years.
    const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBPjCB8aADAgECAhQzdwjq01lW1V/dojKdTfkfPCJefTAFBgMrZXAwFDESMBAG\n\
A1UEAwwJbG9jYWxob3N0MCAXDTI2MTEzMDE1MjkyOFoYDzIxMjYxMTA2MTUyOTI4\n\
WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwKjAFBgMrZXADIQBaOQ+2uBFql0eIxN0M\n\
j4YCdVCWg09Z1hxljJs3h2ORzqNTMFEwHQYDVR0OBBYEFAu0mxN7njO6PU5Dwj48\n\
y4h/La0yMB8GA1UdIwQYMBaAFAu0mxN7njO6PU5Dwj48y4h/La0yMA8GA1UdEwEB\n\
/wQFMAMBAf8wBQYDK2VwA0EA4Rbv5rdDfrpjcorrT41nXwxw9+yEHpG/AzYL+IZZ\n\
qNJmRBPp4NiQRPv0BsZcMm55yPrLYPVXiaErDClNw2hKAQ==\n\
-----END CERTIFICATE-----\n\
";

    #[test]
    fn each_file_has_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let [good, missing] = ["good.pem", "a\"b.pem"].map(|name| dir.path().join(name));
        std::fs::write(&good, CERTIFICATE).unwrap();
        // Named twice, it has one series.
        let text = certificate_metrics([good.clone(), missing.clone(), good.clone()]);
        let name = "tympan_certificate_not_after_timestamp_seconds";
        let folder = dir.path().display();
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                format!("{name}{{file=\"{folder}/a\\\"b.pem\"}} 0"),
                format!("{name}{{file=\"{folder}/good.pem\"}} 4949652568"),
            ]
        );
        assert_eq!(certificate_metrics([]), "");
    }
}
