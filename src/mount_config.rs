//! The section `[mounts]` of `tympan.toml`: where mounts of assets may lead, and which there are.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use tympan_jobs::mount::{MountConfig, MountLocation, MountSecret, MountSettings};
use tympan_web::tls::TlsTrust;

use crate::command::CommandFault;
use crate::config::Span;
use crate::home::error_chain_text;

/// Places with files that become assets.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MountsSection {
    /// How long after one pass over a mount the next begins; default 5 min, AEM's `scheduler.period`, which content may
    /// set, too. Raise it where places are slow to list.
    pub(crate) period: Option<Span>,
    /// Where mounts and imports may lead. What content configures, and every import, has to lie in one of them.
    pub(crate) place: Vec<MountLocationSection>,
    /// Mounts; others can be configured in content.
    pub(crate) mount: Vec<MountSection>,
}

/// Somewhere that mounts and imports may lead.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MountLocationSection {
    /// What sources begin with: `/srv/press`, `davs://dav.example.org/press`, `s3://bucket/press` or
    /// `cmis+https://cmis.example.org/browser`.
    url: String,
    /// The user, or the id of an access key; default none. It is sent to the host of `url` only.
    user: Option<String>,
    /// A file with the password or secret key in its first line; default none. A relative path begins at the home.
    password_file: Option<PathBuf>,
    /// The server of a bucket, such as `https://s3.example.org`; default Amazon's of the region.
    endpoint: Option<String>,
    /// The region of a bucket; default `us-east-1`.
    region: Option<String>,
    /// How long the place may say nothing; default 30 s.
    timeout: Option<Span>,
    /// A file with certificates in PEM that the place's must derive from; default those of the system.
    tls_ca: Option<PathBuf>,
}

/// A mount.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MountSection {
    /// Its name: letters, digits, `-` and `_`.
    name: String,
    /// Where its files are, as `url` of a place.
    source: String,
    /// The folder below `/content/dam` that shows them.
    target: String,
    /// How long after one pass the next begins; default as for all.
    period: Option<Span>,
}

impl MountsSection {
    /// Reads files with passwords and certificates.
    ///
    /// # Errors
    /// [`CommandFault::usage`] with what is wrong.
    pub(crate) fn mount_settings(
        &self,
        home: &Path,
        outgoing: &crate::config::OutgoingSection,
    ) -> Result<MountSettings, CommandFault> {
        let places = self
            .place
            .iter()
            .map(|place| place.to_mount_location(home))
            .collect::<Result<_, _>>()?;
        let mounts =
            self.mount.iter().map(MountSection::to_mount_config).collect::<Result<Vec<_>, _>>()?;
        for (at, mount) in mounts.iter().enumerate() {
            if mounts.iter().take(at).any(|other| other.name == mount.name) {
                let name = &mount.name;
                return Err(CommandFault::usage(format!(
                    "tympan.toml: two mounts are named `{name}`"
                )));
            }
        }
        let outgoing = outgoing.to_outgoing().map_err(CommandFault::usage)?;
        Ok(MountSettings {
            sync_period: self.period.map(|period| period.0),
            locations: places,
            mounts,
            outgoing_policy: outgoing,
        })
    }
}

impl MountLocationSection {
    fn to_mount_location(&self, home: &Path) -> Result<MountLocation, CommandFault> {
        let read = |file: &Path| {
            let file = home.join(file);
            std::fs::read(&file).map_err(|error| {
                CommandFault::usage(format!(
                    "tympan.toml: cannot read `{}`: {error}",
                    file.display()
                ))
            })
        };
        let secret = match &self.password_file {
            Some(file) => {
                let text = String::from_utf8(read(file)?).unwrap_or_default();
                Some(MountSecret::new(text.lines().next().unwrap_or_default()))
            }
            None => None,
        };
        let trust = match &self.tls_ca {
            Some(file) => Some(TlsTrust::from_pem(&read(file)?).map_err(|error| {
                CommandFault::usage(format!("tympan.toml: {}", error_chain_text(&error)))
            })?),
            None => None,
        };
        Ok(MountLocation {
            url: self.url.clone(),
            user: self.user.clone(),
            secret,
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            idle_timeout: self.timeout.map(|timeout| timeout.0),
            tls_trust: trust,
        })
    }
}

impl MountSection {
    fn to_mount_config(&self) -> Result<MountConfig, CommandFault> {
        let mut mount = MountConfig::new(&self.name, &self.source, &self.target)
            .map_err(|reason| CommandFault::usage(format!("tympan.toml: {reason}")))?;
        mount.sync_period = self.period.map(|period| period.0);
        Ok(mount)
    }
}
