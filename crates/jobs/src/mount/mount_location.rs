//! The locations that mounts may use, with their credentials.
//!
//! A mount can be configured in content by anyone who may write there. The locations that it can reach, and their
//! credentials, are only in the machine's configuration. So nobody can read the server's disk, or its passwords, by
//! writing content.

use std::fmt;
use std::sync::Arc;

use tympan_web::tls::TlsTrust;

use super::cmis::CmisSource;
use super::directory::DirectorySource;
use super::mount_source::MountSource;
use super::s3::BucketSource;
use super::source_http::SourceNetwork;
use super::webdav::WebDavSource;

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

/// Opens a source.
///
/// # Errors
/// A message that describes what is wrong.
pub(crate) fn open_mount_source(
    source: &str,
    locations: &[MountLocation],
    network: &SourceNetwork,
) -> Result<Arc<dyn MountSource>, String> {
    let lies_in = locations.iter().filter(|candidate| candidate.contains_source(source));
    let location = lies_in.max_by_key(|candidate| candidate.url.len()).cloned().unwrap_or_default();
    let address = source.split('#').next().unwrap_or_default();
    if address.split('/').any(|name| matches!(name, ".." | ".")) {
        return Err(format!("`{source}` holds `..` or `.`; write the place that it leads to"));
    }
    let scheme = source.split_once("://").map(|(scheme, _)| scheme);
    if scheme.is_some() && address.split('/').nth(2).is_some_and(|host| host.contains('@')) {
        return Err("user and password do not stand in the address; write them in `tympan.toml`, \
                    section `[[mounts.place]]`"
            .to_owned());
    }
    match scheme {
        None if source.starts_with('/') => Ok(Arc::new(DirectorySource::new(source))),
        Some("dav" | "davs") => Ok(Arc::new(WebDavSource::new(source, &location, network)?)),
        Some("s3") => Ok(Arc::new(BucketSource::new(source, &location, network)?)),
        Some("cmis+http" | "cmis+https") => {
            Ok(Arc::new(CmisSource::new(source, &location, network)?))
        }
        _ => Err(format!(
            "`{source}` is no source; write `/folder`, `davs://host/folder`, `s3://bucket/folder` or \
             `cmis+https://host/service#repository/folder`"
        )),
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
