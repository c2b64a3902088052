//! `[backup]` of `tympan.toml`: an author saves itself on a schedule.

use std::path::PathBuf;
use tympan_notation::DurationText;
use tympan_notation::error_chain_text;

use schemars::JsonSchema;
use serde::Deserialize;
use tympan_backup::{RetentionPolicy, VaultAccess};
use tympan_store::RevisionRetention;

use crate::error::{Error, Result};
use crate::home_file::StateDatabaseInclusion;
use crate::scheduled_save::{DEFAULT_MAX_AGE, DEFAULT_SCHEDULE, ScheduledSaveOptions};

/// Scheduled saves. Without `vault` there are none.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BackupSection {
    /// The vault, created with `tympan backup init`: a folder, `sftp://…`, `s3:…` or `rest:…`; default none, and no
    /// saves are scheduled. Credentials for a bucket or server come from the environment, as for `tympan backup`, or
    /// from the files below.
    pub vault: Option<String>,
    /// Private keys for SSH; default the agent and the usual files of the user that the instance runs as.
    pub ssh_keys: Vec<PathBuf>,
    /// The file of known hosts for SSH; default those of the instance's user and of the system.
    pub ssh_known_hosts: Option<PathBuf>,
    /// For `rest:`: the file with the password of the user that the address names; default TYMPAN_REST_PASSWORD.
    pub rest_password_file: Option<PathBuf>,
    /// For `rest:https:`: a PEM file with the certificate that must have signed the server's; default those of the system.
    pub vault_ca: Option<PathBuf>,
    /// The file with the vault's password; required with `vault`. Only the user of the instance should be able to read
    /// it.
    pub password_file: Option<PathBuf>,
    /// The schedule, as a Quartz expression in UTC or `every 15min`; default `"0 30 2 * * ?"`. The cost of a save
    /// depends on the changes, so short intervals are reasonable if less data may be lost.
    pub schedule: Option<String>,
    /// Folders that are saved in addition to the repository; default none. Name everything else that the machine needs
    /// after a restore.
    pub folders: Vec<PathBuf>,
    /// True if jobs and logins are saved with the repository; default `false`. Set it if a restored instance must
    /// continue the jobs in its queues; each save then stores the changed parts of the state database again.
    pub with_state: bool,
    /// True if earlier revisions of the branch `main` are saved with the repository, as far as `[history]` keeps them;
    /// default `false`. Set it if a restored instance must be able to go back to them; the first save of each revision
    /// reads all of it.
    pub with_history: bool,
    /// The retention policy of this instance's snapshots, as in `--keep` of `tympan backup forget`; default all are
    /// kept. Data that only removed snapshots used is removed in two phases, as by `tympan backup prune`.
    pub keep: Option<String>,
    /// True if a clone also saves the data that it reads from its base; default `false`: the base is only named, and
    /// its owner has to back it up. Set it if the base is not backed up.
    pub with_base: bool,
    /// True if a save slows down while the instance's responses take longer than in the minutes before, as with `tympan
    /// backup save --beside`; default `true`. Set it to `false` if saves must end soon, regardless of the effect on
    /// visitors.
    #[serde(alias = "give_way")]
    pub throttle: Option<bool>,
    /// The name of this client in the vault; default the host's name. Set it if instances on hosts with the same name,
    /// such as containers, share a vault: each is compared only with its own snapshots, and `keep` counts only its own.
    pub client_name: Option<String>,
    /// The maximum age of the last successful save, beyond which `/health` reports it; default 36 h. Set it to a little
    /// more than two intervals.
    pub max_age: Option<DurationText>,
}

impl BackupSection {
    /// Returns the options of scheduled saves: `access` is how the vault is accessed. Returns `None` if there is no vault.
    ///
    /// # Errors
    /// [`Error::Refused`] with the key that is missing or invalid.
    pub fn save_options(
        &self,
        access: VaultAccess,
        history: RevisionRetention,
    ) -> Result<Option<ScheduledSaveOptions>> {
        let Some(vault) = &self.vault else { return Ok(None) };
        let password_file = self.password_file.clone().ok_or_else(|| {
            let reason = "`vault` needs a `password_file`; passwords are not allowed in this file";
            Error::Refused(reason.to_owned())
        })?;
        let retention = self.keep.as_deref().map(RetentionPolicy::parse).transpose();
        let retention = retention
            .map_err(|error| Error::Refused(format!("keep: {}", error_chain_text(&error))))?;
        Ok(Some(ScheduledSaveOptions {
            vault: vault.clone(),
            access,
            password_file,
            cache: None,
            config_dir: None,
            schedule: self.schedule.clone().unwrap_or_else(|| DEFAULT_SCHEDULE.to_owned()),
            folders: self.folders.clone(),
            state: match self.with_state {
                true => StateDatabaseInclusion::Included,
                false => StateDatabaseInclusion::Excluded,
            },
            history: self.with_history.then_some(history),
            includes_base: self.with_base,
            is_throttled: self.throttle.unwrap_or(true),
            retention,
            client: self.client_name.clone().filter(|name| !name.is_empty()),
            max_age: self.max_age.map_or(DEFAULT_MAX_AGE, |span| span.0),
        }))
    }
}
