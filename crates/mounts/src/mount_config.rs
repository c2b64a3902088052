//! Reads the configured mounts: those of `tympan.toml`, and those in content.
//!
//! In content a mount is a configuration `org.tympan.assets.Mount-NAME` with `source` and `target`; AEM's own
//! configuration of the service gives `scheduler.period`. Content may only name sources in locations that `tympan.toml`
//! lists.

use std::time::Duration;

use serde_json::{Map, Value as Json};
use sha2::{Digest, Sha256};
use tympan_content::NodePath;
use tympan_jobs::{ConfigFault, OsgiConfig, OsgiConfigs};
use tympan_web::outgoing_policy::OutgoingPolicy;

use crate::mount_location::MountLocation;

/// Factory PID of mounts.
pub const MOUNT_FACTORY: &str = "org.tympan.assets.Mount";
/// PIDs of AEM's service, whose `scheduler.period` applies; its documentation spells the name in two ways.
pub const SYNCHRONIZATION_PIDS: [&str; 2] = [
    "com.day.cq.dam.jcrconnector.impl.AssetSynchronizationService",
    "com.day.cq.dam.jcrconnectors.impl.AssetSynchronizationService",
];
/// Default delay between the end of a pass and the next one; AEM's `scheduler.period`.
pub const DEFAULT_SYNCHRONIZATION_PERIOD: Duration = Duration::from_secs(300);
/// Maximum period; longer ones are reduced to it.
const MAX_PERIOD: Duration = Duration::from_secs(100 * 365 * 86_400);
/// The root folder of assets.
const ASSETS_ROOT: &str = "/content/dam";

/// The configuration of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountConfig {
    /// The name, of letters, digits, `-`, `_`.
    pub name: String,
    /// The source of its files.
    pub source: String,
    /// The folder that contains its assets.
    pub target: NodePath,
    /// Delay between the end of a pass and the next one, if it differs from the default.
    pub sync_period: Option<Duration>,
    /// Path of the configuration in content; `None` for `tympan.toml`.
    pub path: Option<String>,
}

impl MountConfig {
    /// Validates and creates a configuration.
    ///
    /// # Errors
    /// A message that describes what is wrong.
    pub fn new(name: &str, source: &str, target: &str) -> Result<Self, String> {
        let is_fine = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_fine) {
            return Err(format!(
                "`{name}` is not a valid mount name; use at most 64 letters, digits, `-` and `_`"
            ));
        }
        if source.is_empty() {
            return Err(format!("the mount `{name}` has no `source`"));
        }
        let target = parse_target_folder(target)?;
        Ok(Self {
            name: name.to_owned(),
            source: source.to_owned(),
            target,
            sync_period: None,
            path: None,
        })
    }
}

/// Parses the path of the target folder.
pub(crate) fn parse_target_folder(target: &str) -> Result<NodePath, String> {
    let path = NodePath::new(target).map_err(|error| error.to_string())?;
    let assets = NodePath::new(ASSETS_ROOT).map_err(|error| error.to_string())?;
    if path == assets || !path.is_within(&assets) {
        return Err(format!(
            "`{target}` is not a folder for assets; use one below `{ASSETS_ROOT}`"
        ));
    }
    Ok(path)
}

/// The mount settings of `tympan.toml`.
#[derive(Debug, Clone, Default)]
pub struct MountSettings {
    /// Delay between the end of a pass and the next one; content may override it.
    pub sync_period: Option<Duration>,
    /// Locations that mounts may use.
    pub locations: Vec<MountLocation>,
    /// The mounts.
    pub mounts: Vec<MountConfig>,
    /// Local and private addresses to which the hosts of the locations may resolve although they did not at first.
    pub outgoing_policy: OutgoingPolicy,
}

/// All mounts of an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfiguredMounts {
    /// The mounts by name, each with its period.
    pub mounts: Vec<MountConfig>,
    /// Faults of invalid mounts.
    pub faults: Vec<ConfigFault>,
}

impl MountSettings {
    /// Returns a text that is equal in two processes whose settings result in the same mounts. It contains no password.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mut parts: Vec<String> = vec![format!("{:?}", self.sync_period)];
        parts.extend(self.locations.iter().map(|location| {
            let MountLocation { url, user, endpoint, region, idle_timeout, .. } = location;
            format!("{url:?} {user:?} {endpoint:?} {region:?} {idle_timeout:?}")
        }));
        parts.extend(self.mounts.iter().map(|mount| format!("{mount:?}")));
        // The order of the parts has no meaning.
        parts.sort_unstable();
        let hash = Sha256::digest(parts.join("\n"));
        format!("{:.16}", hex::encode(hash))
    }

    /// Adds the mounts that content configures.
    #[must_use]
    pub fn with_osgi_configs(&self, configs: &OsgiConfigs) -> ConfiguredMounts {
        let mut all = ConfiguredMounts { mounts: self.mounts.clone(), faults: Vec::new() };
        let mut period = self.sync_period.unwrap_or(DEFAULT_SYNCHRONIZATION_PERIOD);
        for config in &configs.configs {
            let fault = |message| ConfigFault { path: config.path.clone(), message };
            if SYNCHRONIZATION_PIDS.contains(&config.pid.as_str()) {
                match read_period(&config.properties) {
                    Ok(parsed_period) => period = parsed_period.unwrap_or(period),
                    Err(message) => all.faults.push(fault(message)),
                }
            } else if config.has_factory(MOUNT_FACTORY) {
                match self.parse_mount_config(config) {
                    Ok(mount)
                        if all.mounts.iter().any(|other_mount| other_mount.name == mount.name) =>
                    {
                        all.faults.push(fault(format!(
                            "another mount is already named `{}`",
                            mount.name
                        )));
                    }
                    Ok(mount) => all.mounts.push(mount),
                    Err(message) => all.faults.push(fault(message)),
                }
            }
        }
        for mount in &mut all.mounts {
            mount.sync_period =
                Some(mount.sync_period.unwrap_or(period).clamp(Duration::from_secs(1), MAX_PERIOD));
        }
        all.mounts.sort_by(|left, right| left.name.cmp(&right.name));
        all
    }

    fn parse_mount_config(&self, config: &OsgiConfig) -> Result<MountConfig, String> {
        let text =
            |name: &str| config.properties.get(name).and_then(Json::as_str).unwrap_or_default();
        let name = config.pid.get(MOUNT_FACTORY.len() + 1..).unwrap_or_default();
        let secrets = ["user", "password", "secret", "credentials"];
        if let Some(secret) = secrets.iter().find(|name| config.properties.contains_key(**name)) {
            return Err(format!(
                "`{secret}` must not be stored in content; write it in `tympan.toml`, section \
                 `[[mounts.location]]`"
            ));
        }
        let mut mount = MountConfig::new(name, text("source"), text("target"))?;
        if !self.locations.iter().any(|location| location.contains_source(&mount.source)) {
            return Err(format!(
                "the source `{}` is not in any location that `tympan.toml` allows; add a `[[mounts.location]]` with \
                 its `url`",
                mount.source
            ));
        }
        mount.sync_period = read_period(&config.properties)?;
        mount.path = Some(config.path.clone());
        Ok(mount)
    }
}

/// Parses `scheduler.period`, in seconds.
fn read_period(properties: &Map<String, Json>) -> Result<Option<Duration>, String> {
    let Some(value) = properties.get("scheduler.period") else { return Ok(None) };
    let seconds = value.as_u64().or_else(|| value.as_str()?.trim().parse().ok());
    match seconds {
        Some(seconds) if seconds > 0 => Ok(Some(Duration::from_secs(seconds))),
        _ => Err(format!("`scheduler.period` must be a number of seconds, not `{value}`")),
    }
}
