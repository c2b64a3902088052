//! Sources of files that become assets: mounts, which are synchronized continuously, and imports, which run once.
//!
//! In: sources ([`MountSource`]: a directory, WebDAV, S3, CMIS), and their configuration. Out: assets, by jobs of the
//! durable queues.
//!
//! Invariants
//! * Without configuration nothing runs ([`MountService`]).
//! * Work is proportional to the changes on both sides; the bytes of unchanged files are not read.
//! * A source that fails, sends wrong data, never ends or becomes empty affects only the freshness of its own assets.
//! * The locations that a mount can reach, and the credentials, are in the machine's configuration ([`MountLocation`]),
//!   not in content.
//!
//! Not here: renditions and metadata of the assets (`tympan_assets`).

mod asset_mount;
mod cmis;
mod cmis_atom;
mod config;
mod directory;
mod error;
mod file_fetch;
mod import;
mod mount_config;
mod mount_job_handler;
mod mount_ledger;
mod mount_location;
mod mount_pass;
mod mount_service;
mod mount_source;
mod mount_target;
mod name_escaping;
mod pass_report;
mod s3;
mod source_http;
mod source_opening;
mod webdav;
mod xml_reader;

pub use asset_mount::{AssetMount, MountPurpose};
pub use config::{MountLocationSection, MountSection, MountsSection};
pub use directory::DirectorySource;
pub use error::{Error, Result};
pub use import::{IMPORT_TOPIC, ImportRequest, ImportStatus};
pub use mount_config::{
    ConfiguredMounts, DEFAULT_SYNCHRONIZATION_PERIOD, MOUNT_FACTORY, MountConfig, MountSettings,
    SYNCHRONIZATION_PIDS,
};
pub use mount_ledger::{LastMountPass, MOUNT_MIGRATIONS, MountLedger};
pub use mount_location::{MountLocation, MountSecret};
pub use mount_pass::{
    MAX_PASS_CHANGES, MountPassCallback, MountPassError, MountPassOptions, run_mount_pass,
};
pub use mount_service::{MOUNT_TOPIC, MountCounters, MountService, MountStatus};
pub use mount_source::{
    MAX_FILES, MAX_FOLDER_DEPTH, MountSource, MountSourceError, SourceFile, SourceItem,
};
pub use name_escaping::{escape_name, node_name_of_escaped, unescape_name};
pub use pass_report::MountPassReport;
