//! Storage of vault files: the trait that is implemented for local folders, remote folders and buckets.
//!
//! All backends use restic's layout. Calls block, and may come from any number of threads.
//!
//! Invariants of every backend
//! * A file is complete and durable when `write` returns, or does not exist: a partially written file is never visible.
//! * A file is never changed, only created and removed.

mod address;
mod append_only;
mod dry_run;
mod local;
mod location;
pub(crate) mod rest;
mod s3;
pub(crate) mod sftp;
mod staged_file;
mod transfer_limit;
mod vault_backend;
mod vault_file;
mod wrapper;

pub use address::redact_address;
pub use append_only::AppendOnlyBackend;
pub(crate) use dry_run::DryRunBackend;
pub use local::{LocalBackend, NativeFileSystem, VaultFileSystem};
pub use location::{VaultAccess, open_vault_backend, trial_location_beside};
pub use rest::{RestAddress, RestBackend, RestLogin};
pub use s3::{S3Address, S3Backend};
pub use sftp::{SftpAddress, SftpBackend, SftpOptions, UnknownHostPolicy};
pub use staged_file::StagedFile;
pub use transfer_limit::{RateLimitedBackend, TransferLimits};
pub use vault_backend::VaultBackend;
pub use vault_file::VaultFileKind;
pub(crate) use vault_file::VaultFileListing;
pub use wrapper::BackendWrapper;
