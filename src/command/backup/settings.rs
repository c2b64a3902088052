//! The settings that `tympan backup tune` found for a vault, and that saves of this user use unless they say otherwise.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tympan_backup::Id;

use crate::command::Fault;

const MIB: u64 = 1 << 20;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    /// `--upload-queue`, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    upload_queue_mib: Option<u64>,
    /// `--connections`.
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<u8>,
}

impl Settings {
    pub(super) fn set(&mut self, name: &str, value: u64) {
        match name {
            "connections" => self.connections = u8::try_from(value).ok(),
            _ => self.upload_queue_mib = Some(value),
        }
    }

    /// Returns the bytes that may wait to be written.
    pub(crate) fn queue_bytes(&self) -> Option<u64> {
        self.upload_queue_mib.map(|mib| mib.saturating_mul(MIB))
    }

    /// Returns how many calls are on their way at once.
    pub(crate) fn connections(&self) -> Option<u8> {
        self.connections.filter(|count| (1..=64).contains(count))
    }

    /// Writes them as options.
    pub(super) fn options(&self) -> Vec<String> {
        let mut options = Vec::new();
        if let Some(mib) = self.upload_queue_mib {
            options.extend(["--upload-queue".to_owned(), format!("{mib} MiB")]);
        }
        if let Some(connections) = self.connections {
            options.extend(["--connections".to_owned(), connections.to_string()]);
        }
        options
    }

    /// Reads what was found for a vault; nothing if nobody has searched.
    pub(crate) fn read(place: &str) -> Self {
        let Some(file) = file_of(place) else { return Self::default() };
        match fs::read(&file) {
            Ok(json) => serde_json::from_slice(&json).unwrap_or_else(|error| {
                tracing::warn!(%error, file = %file.display(), "the settings of a vault are not understood");
                Self::default()
            }),
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    tracing::warn!(%error, file = %file.display(), "the settings of a vault cannot be read");
                }
                Self::default()
            }
        }
    }

    /// Keeps them for a vault; returns where.
    pub(super) fn write(&self, place: &str) -> Result<PathBuf, Fault> {
        let file = file_of(place).ok_or_else(|| {
            Fault::usage("neither XDG_CONFIG_HOME nor HOME says where settings are kept")
        })?;
        let json = serde_json::to_vec_pretty(self).unwrap_or_default();
        let folder = file.parent().map_or(Ok(()), fs::create_dir_all);
        folder.and_then(|()| fs::write(&file, json)).map_err(|error| {
            Fault::with_code(format!("cannot write `{}`: {error}", file.display()), 1)
        })?;
        Ok(file)
    }
}

/// Names the file by the place: how a vault is reached decides about what is fast.
fn file_of(place: &str) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let config = variable("XDG_CONFIG_HOME").filter(|folder| folder.is_absolute());
    let config = config.or_else(|| Some(variable("HOME")?.join(".config")))?;
    let name = Id::of(place.trim_end_matches('/').as_bytes()).short();
    config.is_absolute().then(|| config.join(format!("tympan/backup/{name}.json")))
}
