//! The settings that `tympan backup tune` found for a vault, which saves of this user use by default.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::object_id::VaultObjectId;

const BYTES_PER_MIB: u64 = 1 << 20;

/// The settings that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TunedSaveSettings {
    /// `--upload-queue`, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    upload_queue_mib: Option<u64>,
    /// `--connections`.
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<u8>,
    /// `--tree-cache`, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    tree_cache_mib: Option<u64>,
}

impl TunedSaveSettings {
    /// Sets the value of an option of `tympan backup save` by its name: `connections`, `tree-cache` in MiB, or the
    /// upload queue in MiB.
    pub fn set_value(&mut self, name: &str, value: u64) {
        match name {
            "connections" => self.connections = u8::try_from(value).ok(),
            "tree-cache" => self.tree_cache_mib = Some(value),
            _ => self.upload_queue_mib = Some(value),
        }
    }

    /// Returns these settings, with missing values taken from `before`.
    pub fn merged_over(&self, before: &Self) -> Self {
        Self {
            upload_queue_mib: self.upload_queue_mib.or(before.upload_queue_mib),
            connections: self.connections.or(before.connections),
            tree_cache_mib: self.tree_cache_mib.or(before.tree_cache_mib),
        }
    }

    /// Returns the maximum number of bytes that may wait to be written.
    pub fn queue_bytes(&self) -> Option<u64> {
        self.upload_queue_mib.map(|mib| mib.saturating_mul(BYTES_PER_MIB))
    }

    /// Returns the number of concurrent requests.
    pub fn connection_count(&self) -> Option<u8> {
        self.connections.filter(|count| (1..=64).contains(count))
    }

    /// Returns the size of the local cache of a vault on another machine.
    pub fn tree_cache_bytes(&self) -> Option<u64> {
        self.tree_cache_mib.map(|mib| mib.saturating_mul(BYTES_PER_MIB))
    }

    /// Returns the name of the cache folder of trials with these settings.
    pub fn trial_cache_name(&self) -> String {
        self.tree_cache_mib.map_or_else(|| "cache".to_owned(), |mib| format!("cache-{mib}"))
    }

    /// Returns the settings as command-line options.
    pub fn to_command_options(&self) -> Vec<String> {
        let mut options = Vec::new();
        if let Some(mib) = self.upload_queue_mib {
            options.extend(["--upload-queue".to_owned(), format!("{mib} MiB")]);
        }
        if let Some(connections) = self.connections {
            options.extend(["--connections".to_owned(), connections.to_string()]);
        }
        if let Some(mib) = self.tree_cache_mib {
            options.extend(["--tree-cache".to_owned(), format!("{mib} MiB")]);
        }
        options
    }

    /// Reads the settings of a vault from a user's folder for configuration; empty if there was no search.
    pub fn read(config_dir: Option<&Path>, location: &str) -> Self {
        let Some(file) = config_dir.map(|dir| settings_file(dir, location)) else {
            return Self::default();
        };
        match fs::read(&file) {
            Ok(json) => serde_json::from_slice(&json).unwrap_or_else(|error| {
                tracing::warn!(%error, file = %file.display(), "cannot parse the settings of the vault");
                Self::default()
            }),
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    tracing::warn!(%error, file = %file.display(), "cannot read the settings of the vault");
                }
                Self::default()
            }
        }
    }

    /// Stores the settings of a vault in a user's folder for configuration; returns the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, config_dir: &Path, location: &str) -> Result<PathBuf> {
        let file = settings_file(config_dir, location);
        let json = serde_json::to_vec_pretty(self).unwrap_or_default();
        let folder = file.parent().map_or(Ok(()), fs::create_dir_all);
        let written = folder.and_then(|()| fs::write(&file, json));
        written.map_err(|source| Error::Target { path: file.clone(), source })?;
        Ok(file)
    }
}

/// Returns the settings file of a vault location: the connection determines which settings are fast.
fn settings_file(config_dir: &Path, location: &str) -> PathBuf {
    let name = VaultObjectId::of(location.trim_end_matches('/').as_bytes()).short();
    config_dir.join(format!("tympan/backup/{name}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_reported_as_options() {
        let mut settings = TunedSaveSettings::default();
        assert!(settings.to_command_options().is_empty());
        assert_eq!(
            (settings.queue_bytes(), settings.connection_count(), settings.tree_cache_bytes()),
            (None, None, None)
        );
        for (name, value) in [("upload-queue", 64), ("connections", 8), ("tree-cache", 256)] {
            settings.set_value(name, value);
        }
        let options = "--upload-queue 64 MiB --connections 8 --tree-cache 256 MiB";
        assert_eq!(settings.to_command_options().join(" "), options);
        assert_eq!(
            (settings.queue_bytes(), settings.connection_count()),
            (Some(64 << 20), Some(8))
        );
        assert_eq!(settings.tree_cache_bytes(), Some(256 << 20));
        let parsed_settings: TunedSaveSettings =
            serde_json::from_slice(&serde_json::to_vec(&settings).unwrap()).unwrap();
        assert_eq!(parsed_settings, settings);
        // Settings of an earlier version of the program remain valid.
        let old: TunedSaveSettings = serde_json::from_str(r#"{"connections":3}"#).unwrap();
        assert_eq!((old.connection_count(), old.tree_cache_bytes()), (Some(3), None));
        // A first save reads nothing, so that a search for it finds no cache size.
        let mut first = TunedSaveSettings::default();
        first.set_value("connections", 5);
        let both = first.merged_over(&settings);
        assert_eq!((both.connection_count(), both.tree_cache_bytes()), (Some(5), Some(256 << 20)));
    }
}
