//! Places with files that become assets: mounts, which are followed, and imports, which happen once.
//!
//! In: places ([`Source`]: a directory, WebDAV, S3, CMIS), and what configures them. Out: assets, by jobs of the
//! durable queues.
//!
//! Invariants
//! * Where nothing is configured nothing runs ([`Mounts`]).
//! * Work follows what changed, there and here; the bytes of what did not change are not read.
//! * A place that fails, lies, never ends or empties harms nothing but the freshness of its own assets.
//! * What a mount reaches, and with which credentials, stands in the machine's configuration ([`Place`]), not in
//!   content.
//!
//! Not here: renditions and metadata of the assets (`asset`).

mod atom;
mod cmis;
mod config;
mod directory;
mod fetch;
mod http;
mod import;
mod ledger;
mod name;
mod pass;
mod place;
mod report;
mod s3;
mod service;
mod source;
mod target;
mod webdav;
mod xml;

pub use config::{
    Configured, MOUNT_FACTORY, MountConfig, MountSettings, SYNCHRONIZATION_PERIOD,
    SYNCHRONIZATION_PIDS,
};
pub use directory::Directory;
pub use import::{IMPORT_TOPIC, ImportStatus, ImportWish};
pub use ledger::{LastPass, Ledger, MOUNT_MIGRATIONS};
pub use name::{escape, node_name, unescape};
pub use pass::{Going, MAX_WORK, Mount, Order, PassError, Purpose, synchronize};
pub use place::{Place, Secret};
pub use report::Report;
pub use service::{MOUNT_TOPIC, MountCounters, MountStatus, Mounts};
pub use source::{Entry, Found, MAX_DEPTH, MAX_FILES, Source, SourceError};
pub(crate) use target::MOUNT;
