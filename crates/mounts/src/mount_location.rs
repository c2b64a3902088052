//! The locations that mounts may use, with their credentials.
//!
//! A mount can be configured in content by anyone who may write there. The locations that it can reach, and their
//! credentials, are only in the machine's configuration. So nobody can read the server's disk, or its passwords, by
//! writing content.

use std::fmt;
use std::path::PathBuf;

use tympan_web::tls::TlsTrust;

/// A password or key that no log or error contains.
#[derive(Clone, PartialEq, Eq)]
pub struct MountSecret(String);

impl MountSecret {
    /// Creates a secret from a text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn expose_secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for MountSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// A location that mounts may use.
#[derive(Debug, Clone, Default)]
pub struct MountLocation {
    /// Prefix of the sources: `/srv/press`, `davs://dav.example.org/press`, `s3://bucket/press`, `cmis+https://…`.
    pub url: String,
    /// A user, or the ID of an access key.
    pub user: Option<String>,
    /// The password or secret key.
    pub secret: Option<MountSecret>,
    /// A file of AWS's tools with the access key of a bucket and its session token, instead of a user and a secret. It is
    /// read before each request, so that temporary credentials can be replaced.
    pub credentials_file: Option<PathBuf>,
    /// Endpoint of the bucket's server, if not Amazon's of the region.
    pub endpoint: Option<String>,
    /// The region of the bucket; `None` means `us-east-1`.
    pub region: Option<String>,
    /// Maximum time without data; `None` means 30 s.
    pub idle_timeout: Option<std::time::Duration>,
    /// The trusted certificates; `None` means those of the system.
    pub tls_trust: Option<TlsTrust>,
}

impl MountLocation {
    /// Returns true if a source is within the location.
    #[must_use]
    pub fn contains_source(&self, source: &str) -> bool {
        let url = self.url.trim_end_matches('/');
        let rest = source.strip_prefix(url);
        !url.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '#']))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_covers_what_is_below_it() {
        let check = |url: &str, source: &str, expected: bool| {
            let location = MountLocation { url: url.to_owned(), ..MountLocation::default() };
            assert_eq!(location.contains_source(source), expected, "{source}");
        };
        check("/srv/press", "/srv/press", true);
        check("/srv/press/", "/srv/press/2024", true);
        check("/srv/press", "/srv/press-secret", false);
        check("davs://a.example", "davs://a.example.evil/x", false);
        check("davs://a.example", "davs://a.example:444/x", false);
        check("cmis+https://a/b", "cmis+https://a/b#main/x", true);
        check("", "/etc", false);
        check("/", "/etc", false);
    }

    #[test]
    fn secrets_are_not_shown() {
        let location =
            MountLocation { secret: Some(MountSecret::new("hush")), ..MountLocation::default() };
        assert!(!format!("{location:?}").contains("hush"));
    }
}
