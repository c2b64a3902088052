//! The settings that the process of an instance uses. The program that runs the instance supplies them, without secrets.

use std::sync::OnceLock;

/// A setting that the process uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectiveSetting {
    /// The path of its key in `tympan.toml`.
    pub key: String,
    /// The value as TOML, or in words if it is the default; a secret is replaced by `***`.
    pub value: String,
    /// The source of a value that somebody set, such as `tympan.toml:3`; `None` for the default.
    pub source: Option<String>,
    /// The first sentence of the key's description.
    pub summary: String,
}

/// The settings of a process, known once it has started.
#[derive(Debug, Default)]
pub(crate) struct EffectiveSettings(OnceLock<Vec<EffectiveSetting>>);

impl EffectiveSettings {
    /// Sets the settings; later calls are ignored.
    pub(crate) fn set(&self, settings: Vec<EffectiveSetting>) {
        self.0.set(settings).ok();
    }

    /// Returns the settings; none before they are set.
    pub(crate) fn all(&self) -> &[EffectiveSetting] {
        self.0.get().map_or(&[], Vec::as_slice)
    }
}
