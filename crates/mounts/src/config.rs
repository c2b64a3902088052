//! The section `[mounts]` of `tympan.toml`: the allowed locations of asset mounts, and the mounts.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tympan_notation::{DurationText, error_chain_text};
use tympan_web::outgoing_policy::OutgoingPolicy;
use tympan_web::tls::TlsTrust;

use crate::mount_config::{MountConfig, MountSettings};
use crate::mount_location::{MountLocation, MountSecret};

/// Locations of files that become assets.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MountsSection {
    /// The time between the end of a pass over a mount and the next pass; default 5 min, AEM's `scheduler.period`,
    /// which content may set as well. Raise it if locations are slow to list.
    pub period: Option<DurationText>,
    /// The allowed locations of mounts and imports. Mounts that are configured in content, and all imports, must be in
    /// one of them.
    #[serde(alias = "place")]
    pub location: Vec<MountLocationSection>,
    /// Mounts; others can be configured in content.
    pub mount: Vec<MountSection>,
}

/// An allowed location of mounts and imports.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MountLocationSection {
    /// The prefix of sources: `/srv/press`, `davs://dav.example.org/press`, `s3://bucket/press` or
    /// `cmis+https://cmis.example.org/browser`.
    url: String,
    /// The user, or the id of an access key; default none. It is sent only to the host of `url`.
    user: Option<String>,
    /// A file whose first line is the password or secret key; default none. A relative path is resolved from the home.
    password_file: Option<PathBuf>,
    /// A file of AWS's tools with the keys of a bucket in its profile `default`, in place of `user` and `password_file`.
    /// It is read before each request, so that temporary credentials, which have a session token, can be replaced.
    credentials_file: Option<PathBuf>,
    /// The endpoint of a bucket, such as `https://s3.example.org`; default Amazon's of the region.
    endpoint: Option<String>,
    /// The region of a bucket; default `us-east-1`.
    region: Option<String>,
    /// The maximum time without data from the location; default 30 s.
    timeout: Option<DurationText>,
    /// A PEM file of certificates, one of which must have signed that of the location; default those of the system.
    tls_ca: Option<PathBuf>,
}

/// A mount.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MountSection {
    /// The name: letters, digits, `-` and `_`.
    name: String,
    /// The location of the files, in the form of `url` of a place.
    source: String,
    /// The folder below `/content/dam` that shows them.
    target: String,
    /// The time between the end of a pass and the next one; default that of `[mounts]`.
    period: Option<DurationText>,
}

impl MountsSection {
    /// Returns the settings of mounts; reads the files with passwords and certificates.
    ///
    /// # Errors
    /// With the fault.
    pub fn mount_settings(
        &self,
        home: &Path,
        outgoing_policy: OutgoingPolicy,
    ) -> Result<MountSettings, String> {
        let locations = self
            .location
            .iter()
            .map(|location| location.to_mount_location(home))
            .collect::<Result<_, _>>()?;
        let mounts =
            self.mount.iter().map(MountSection::to_mount_config).collect::<Result<Vec<_>, _>>()?;
        for (at, mount) in mounts.iter().enumerate() {
            if mounts.iter().take(at).any(|earlier_mount| earlier_mount.name == mount.name) {
                let name = &mount.name;
                return Err(format!("tympan.toml: two mounts are named `{name}`"));
            }
        }
        Ok(MountSettings {
            sync_period: self.period.map(|period| period.0),
            locations,
            mounts,
            outgoing_policy,
        })
    }
}

impl MountLocationSection {
    fn to_mount_location(&self, home: &Path) -> Result<MountLocation, String> {
        let read = |file: &Path| {
            let file = home.join(file);
            std::fs::read(&file)
                .map_err(|error| format!("tympan.toml: cannot read `{}`: {error}", file.display()))
        };
        let secret = match &self.password_file {
            Some(file) => {
                let text = String::from_utf8(read(file)?).unwrap_or_default();
                Some(MountSecret::new(text.lines().next().unwrap_or_default()))
            }
            None => None,
        };
        let trust = match &self.tls_ca {
            Some(file) => Some(
                TlsTrust::from_pem(&read(file)?)
                    .map_err(|error| format!("tympan.toml: {}", error_chain_text(&error)))?,
            ),
            None => None,
        };
        Ok(MountLocation {
            url: self.url.clone(),
            user: self.user.clone(),
            secret,
            credentials_file: self.credentials_file.as_ref().map(|file| home.join(file)),
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            idle_timeout: self.timeout.map(|timeout| timeout.0),
            tls_trust: trust,
        })
    }
}

impl MountSection {
    fn to_mount_config(&self) -> Result<MountConfig, String> {
        let mut mount = MountConfig::new(&self.name, &self.source, &self.target)
            .map_err(|reason| format!("tympan.toml: {reason}"))?;
        mount.sync_period = self.period.map(|period| period.0);
        Ok(mount)
    }
}
