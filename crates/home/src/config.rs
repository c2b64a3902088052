//! The sections of `tympan.toml` that say where a home stores its data, and how long it keeps what is outdated.
//!
//! Not here: the sections of the instance that runs on the home, which the program adds.

use std::path::{Path, PathBuf};
use tympan_notation::ByteSize;
use tympan_notation::DurationText;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tympan_content::VersionRetention;
use tympan_replicate::ActivationVersioning;
use tympan_store::RevisionRetention;

use crate::blob_config::BlobsSection;
use crate::config_value::parse_toml;
use crate::error::{Error, Result};

/// The name of the configuration file in a home.
pub const CONFIG_FILE: &str = "tympan.toml";

/// The configuration of a home.
#[derive(Debug, Clone, Default)]
pub struct HomeConfig {
    /// The section `[store]`.
    pub store: StoreSection,
    /// The section `[database]`.
    pub database: DatabaseSection,
    /// The section `[blobs]`.
    pub blobs: BlobsSection,
    /// The section `[history]`.
    pub history: HistorySection,
    /// The section `[collect]`.
    pub collect: CollectSection,
    /// The section `[versions]`.
    pub versions: VersionsSection,
    /// The section `[maintenance]`.
    pub maintenance: MaintenanceSection,
}

/// Reads `tympan.toml` of a home; returns the default if there is none.
///
/// # Errors
/// [`Error::Refused`] with `file:line:column` and, for an unknown key, the nearest known one.
pub fn read_home_toml<T: DeserializeOwned + Default>(home: &Path) -> Result<T> {
    let file = home.join(CONFIG_FILE);
    match std::fs::exists(&file) {
        Ok(false) => Ok(T::default()),
        _ => read_toml_file(&file),
    }
}

/// Reads a file with sections of `tympan.toml`.
///
/// # Errors
/// As [`read_home_toml`], and if there is no such file.
pub fn read_toml_file<T: DeserializeOwned>(file: &Path) -> Result<T> {
    match std::fs::read_to_string(file) {
        Ok(text) => parse_toml(&file.display().to_string(), &text).map_err(Error::Refused),
        Err(error) => Err(Error::failed(format!("cannot read `{}`", file.display()), error)),
    }
}

/// The chunk store.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StoreSection {
    /// Memory for cached chunks; default 64 MiB.
    pub cache: Option<ByteSize>,
    /// Memory for frequently requested blobs of up to 256 KiB, such as the pictures of popular pages; default 64 MiB.
    /// Raise it on publishers without a dispatcher; 0 disables it.
    pub hot_blobs: Option<ByteSize>,
}

/// The PostgreSQL database that instances share instead of using packs of their own.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DatabaseSection {
    /// `postgres://user:password@host:port/database?sslmode=…`; `--database` and `TYMPAN_DATABASE` take precedence.
    /// Default: none, and the repository is stored in packs below the home.
    pub url: Option<String>,
    /// The schema of the repository's tables; default `tympan`. Each repository in one database needs its own.
    pub schema: Option<String>,
    /// Connections for reads and commits; default 16, and three more are used in addition. The sum of all instances
    /// must fit the server's `max_connections`. Raise it if requests fail because all connections are in use.
    pub max_connections: Option<u32>,
    /// The maximum time that a request waits for a connection, for another commit on the same ref, and for the outcome
    /// of an interrupted commit; default 5 s. After that it is answered with 503.
    #[serde(alias = "wait")]
    pub wait_timeout: Option<DurationText>,
    /// The time after which an idle connection is closed; default 10 min. Lower it if a firewall drops idle
    /// connections.
    #[serde(alias = "idle")]
    pub idle_timeout: Option<DurationText>,
    /// The time after which the server cancels a statement; default 30 s.
    pub statement_timeout: Option<DurationText>,
    /// A PEM file of certificates, one of which must have signed that of the server; with it the host name is verified
    /// as well. Default: the mode of `sslmode` in the URL, with the certificates of the system.
    pub tls_ca: Option<PathBuf>,
    /// The size of the local disk cache of chunks; default 1 GiB, `"0 B"` for none.
    pub cache_size: Option<ByteSize>,
    /// The folder of this cache; default `chunks` below the home.
    pub cache_dir: Option<PathBuf>,
}

/// The retention of revisions.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HistorySection {
    /// The time for which every revision is kept; default 24 h.
    pub all: Option<DurationText>,
    /// The number of hours for which the last revision of each hour is kept; default 48.
    pub hourly: Option<u32>,
    /// The number of days for which the last revision of each day is kept; default 30.
    pub daily: Option<u32>,
    /// The number of weeks for which the last revision of each week is kept; default 52.
    pub weekly: Option<u32>,
    /// Folders in which clones of this home store their leases (`tympan repo clone --leases`); default none. Name one
    /// if a staging machine must not write anything into this home.
    pub leases: Vec<PathBuf>,
}

impl HistorySection {
    /// Returns the retention policy.
    pub fn retention(&self) -> RevisionRetention {
        let default = RevisionRetention::default();
        RevisionRetention {
            full_period: self.all.map_or(default.full_period, |span| span.0),
            hourly_count: self.hourly.unwrap_or(default.hourly_count),
            daily_count: self.daily.unwrap_or(default.daily_count),
            weekly_count: self.weekly.unwrap_or(default.weekly_count),
        }
    }
}

/// The retention of versions of nodes. Labeled versions, the newest of each node and the one that it is based on are
/// always kept.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VersionsSection {
    /// The maximum number of versions of one node; default 50, 0 for unlimited. Raise it if editors look back further.
    pub max_count: Option<usize>,
    /// The maximum age of a version; default unlimited. Set it if states must not be kept for long. It then also
    /// applies to the newest version of a deleted node.
    pub max_age: Option<DurationText>,
    /// True if an author creates a version of activated content; default true. Set it to false if editors do not look
    /// back at published states, or if another system stores them.
    pub on_activation: Option<bool>,
}

impl VersionsSection {
    /// Returns whether activated content is versioned.
    pub fn version_keeping(&self) -> ActivationVersioning {
        match self.on_activation {
            Some(false) => ActivationVersioning::NoVersion,
            _ => ActivationVersioning::CreateVersion,
        }
    }

    /// Returns the retention policy.
    pub fn retention(&self) -> VersionRetention {
        let default = VersionRetention::default();
        VersionRetention {
            max_count: self
                .max_count
                .map_or(default.max_count, |max| Some(max).filter(|max| *max > 0)),
            max_age: self.max_age.map(|span| span.0).or(default.max_age),
        }
    }
}

/// The schedule and the speed of garbage collection.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CollectSection {
    /// The interval between collections of a running instance, in whole seconds or milliseconds; default 6 h, `"0s"`
    /// for none.
    #[serde(alias = "every")]
    pub interval: Option<DurationText>,
    /// The maximum number of bytes per second that a collection reads and writes; default 32 MiB. Lower it if
    /// collections slow down commits.
    pub rate: Option<ByteSize>,
}

/// The schedules of cleanup tasks other than garbage collection.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MaintenanceSection {
    /// The schedule for removing outdated versions, as a Quartz expression in UTC; default `"0 0 2 * * ?"`, at two
    /// every night. Choose a time of low activity.
    pub daily: Option<String>,
    /// The schedule for marking the blobs that this home needs and sweeping unused ones, in the same notation; default
    /// `"0 30 3 * * ?"`. All members that share a blob store must run it: blobs stored since a member's last run are
    /// kept until its next one.
    pub blobs: Option<String>,
    /// The schedule for removing ended workflows, in the same notation; default `"0 0 1 ? * SAT"`.
    pub weekly: Option<String>,
    /// The time for which ended workflows are kept with their history; default unlimited. Set it if thousands end per
    /// day.
    pub workflows: Option<DurationText>,
}
