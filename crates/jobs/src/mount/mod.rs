//! Places with files that become assets: mounts, which are followed, and imports, which happen once.
//!
//! In: places ([`MountSource`]: a directory, WebDAV, S3, CMIS), and what configures them. Out: assets, by jobs of the
//! durable queues.
//!
//! Invariants
//! * Where nothing is configured nothing runs ([`MountService`]).
//! * Work follows what changed, there and here; the bytes of what did not change are not read.
//! * A place that fails, lies, never ends or empties harms nothing but the freshness of its own assets.
//! * What a mount reaches, and with which credentials, stands in the machine's configuration ([`MountLocation`]), not in
//!   content.
//!
//! Not here: renditions and metadata of the assets (`asset`).

mod cmis;
mod cmis_atom;
mod directory;
mod file_fetch;
mod import;
mod mount_config;
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
mod webdav;
mod xml_reader;

pub use directory::DirectorySource;
pub use import::{IMPORT_TOPIC, ImportRequest, ImportStatus};
pub use mount_config::{
    ConfiguredMounts, DEFAULT_SYNCHRONIZATION_PERIOD, MOUNT_FACTORY, MountConfig, MountSettings,
    SYNCHRONIZATION_PIDS,
};
pub use mount_ledger::{LastMountPass, MOUNT_MIGRATIONS, MountLedger};
pub use mount_location::{MountLocation, MountSecret};
pub use mount_pass::{
    AssetMount, MAX_PASS_CHANGES, MountPassCallback, MountPassError, MountPassOptions,
    MountPurpose, run_mount_pass,
};
pub use mount_service::{MOUNT_TOPIC, MountCounters, MountService, MountStatus};
pub use mount_source::{
    MAX_FILES, MAX_FOLDER_DEPTH, MountSource, MountSourceError, SourceFile, SourceItem,
};
pub(crate) use mount_target::MOUNT_PROPERTY;
pub use name_escaping::{escape_name, node_name_of_escaped, unescape_name};
pub use pass_report::MountPassReport;
