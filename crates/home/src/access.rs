//! How a process opens homes: its reader of their configuration, and what its command line says instead of it.

use std::path::Path;

use crate::blob_config::BlobsSection;
use crate::config::{CONFIG_FILE, HomeConfig};
use crate::error::{Error, Result};
use crate::private_file::write_file_durably;

/// The file that records the blob storage given on the last instance's command line.
const BLOB_URL_FILE: &str = "blobs.url";

/// The settings of a bucket client as name and value, or the reason why they cannot be read.
pub type BucketSettings = Result<Vec<(String, String)>, String>;

/// How a process opens homes.
#[derive(Debug, Clone)]
pub struct HomeAccess {
    /// Parses the text of a `tympan.toml`; an error has the form `file:line:column: message`.
    pub parse_config: fn(file: &str, text: &str) -> Result<HomeConfig, String>,
    /// Returns the settings of bucket clients from the files and the environment of this process's user.
    pub read_bucket_settings: fn() -> BucketSettings,
    /// The database that takes precedence over the configured one.
    pub database_url: Option<String>,
    /// The bucket that takes precedence over the configured storage of blobs.
    pub blob_url: Option<String>,
    /// The kind of the process.
    pub process: HomeProcess,
}

/// The kind of a process that opens homes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HomeProcess {
    /// An instance. It determines the storage of blobs, also for later commands.
    Instance,
    /// A command that manages the home of an instance.
    Command,
}

impl HomeAccess {
    /// Reads the configuration of the home in a directory; returns the default if there is none.
    ///
    /// # Errors
    /// [`Error::Refused`] with `file:line:column` and, for an unknown key, the nearest known one.
    pub fn read_config(&self, dir: &Path) -> Result<HomeConfig> {
        let file = dir.join(CONFIG_FILE);
        match std::fs::read_to_string(&file) {
            Ok(text) => {
                (self.parse_config)(&file.display().to_string(), &text).map_err(Error::Refused)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(HomeConfig::default()),
            Err(error) => Err(Error::failed(format!("cannot read `{}`", file.display()), error)),
        }
    }

    /// Returns the database of a home with this configuration; `None` if its packs store the repository.
    pub(crate) fn database_url<'a>(&'a self, config: &'a HomeConfig) -> Option<&'a String> {
        self.database_url.as_ref().or(config.database.url.as_ref())
    }

    /// Returns true if the command line or the configuration names a database for the repository of a home.
    ///
    /// # Errors
    /// If the configuration cannot be read.
    pub fn has_database_configured(&self, dir: &Path) -> Result<bool> {
        Ok(self.database_url.is_some() || self.read_config(dir)?.database.url.is_some())
    }

    /// Returns the blob storage of a home: from the command line; from that of its last instance; or from the
    /// configuration.
    ///
    /// # Errors
    /// If the home's record cannot be read.
    pub(crate) fn effective_blob_section(
        &self,
        dir: &Path,
        config: &HomeConfig,
    ) -> Result<BlobsSection> {
        let url = match &self.blob_url {
            Some(url) => Some(url.clone()),
            // An instance without the argument uses the configuration again.
            None if self.process == HomeProcess::Instance && config.blobs.is_configured() => None,
            None => recorded_blob_url(dir)?,
        };
        Ok(config.blobs.clone().with_bucket_url(url))
    }

    /// Returns the blob storage of another party's home, regardless of this command line.
    ///
    /// # Errors
    /// If the home's record or configuration cannot be read.
    pub(crate) fn blob_section_of_other_home(&self, dir: &Path) -> Result<BlobsSection> {
        Ok(self.read_config(dir)?.blobs.with_bucket_url(recorded_blob_url(dir)?))
    }

    /// Records the blob storage of an instance, so that other commands read and write blobs there.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub(crate) fn record_blob_url(&self, dir: &Path, config: &HomeConfig) -> Result<()> {
        let recorded_url = recorded_blob_url(dir)?;
        let file = dir.join(BLOB_URL_FILE);
        match &self.blob_url {
            Some(url) if recorded_url.as_ref() == Some(url) => Ok(()),
            Some(url) => write_file_durably(&file, &format!("{url}\n")),
            None if recorded_url.is_some()
                && self.process == HomeProcess::Instance
                && config.blobs.is_configured() =>
            {
                std::fs::remove_file(&file).map_err(|error| {
                    Error::failed(format!("cannot remove `{}`", file.display()), error)
                })
            }
            None => Ok(()),
        }
    }
}

fn recorded_blob_url(dir: &Path) -> Result<Option<String>> {
    let file = dir.join(BLOB_URL_FILE);
    match std::fs::read_to_string(&file) {
        Ok(url) => Ok(Some(url.trim().to_owned()).filter(|url| !url.is_empty())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::failed(format!("cannot read `{}`", file.display()), error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(process: HomeProcess, blob_url: Option<&str>) -> HomeAccess {
        HomeAccess {
            parse_config: |_, _| Ok(HomeConfig::default()),
            read_bucket_settings: || Ok(Vec::new()),
            database_url: None,
            blob_url: blob_url.map(str::to_owned),
            process,
        }
    }

    #[test]
    fn commands_use_the_bucket_of_the_last_instance() {
        let dir = tempfile::tempdir().unwrap();
        let config = HomeConfig::default();
        let url = |access: &HomeAccess, config: &HomeConfig| {
            access.effective_blob_section(dir.path(), config).unwrap().url
        };
        let command = access(HomeProcess::Command, None);
        assert_eq!(url(&command, &config), None);
        let started = access(HomeProcess::Instance, Some("s3://site"));
        started.record_blob_url(dir.path(), &config).unwrap();
        assert_eq!(url(&command, &config).as_deref(), Some("s3://site"));
        let other = access(HomeProcess::Command, Some("s3://other"));
        assert_eq!(url(&other, &config).as_deref(), Some("s3://other"));
        // An instance without the argument, but with a configuration, ends the effect of the record.
        let mut configured = config.clone();
        configured.blobs.url = Some("s3://configured".to_owned());
        let plain = access(HomeProcess::Instance, None);
        assert_eq!(url(&plain, &configured).as_deref(), Some("s3://configured"));
        plain.record_blob_url(dir.path(), &configured).unwrap();
        assert_eq!(url(&command, &configured).as_deref(), Some("s3://configured"));
    }

    #[test]
    fn a_database_on_the_command_line_takes_precedence() {
        let mut config = HomeConfig::default();
        let mut access = access(HomeProcess::Command, None);
        assert_eq!(access.database_url(&config), None);
        config.database.url = Some("postgres://configured".to_owned());
        assert_eq!(access.database_url(&config).unwrap(), "postgres://configured");
        access.database_url = Some("postgres://named".to_owned());
        assert_eq!(access.database_url(&config).unwrap(), "postgres://named");
    }
}
