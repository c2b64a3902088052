//! Backups: sources (repository, directory), the vault in restic's repository format, save, restore, forget, check.
//!
//! It saves data without interpreting it: it knows roots, chunks and blobs, never node types or access control. The
//! vault format is restic's repository version 2, so that stock restic restores what Tympan saved.
//!
//! Invariants
//! * Everything that a snapshot refers to is durable before the snapshot is: pieces, then the index, then the snapshot.
//! * Nothing is removed from a vault except under an exclusive lock, which restic honors too; packs are marked before.
//! * Everything read from a vault has the hash it is named by.
//!
//! Not here: the origin of passwords, the command line, the presentation of content to users.

mod backend;
mod backup_progress;
mod check;
mod compression;
mod copy;
mod deep_stack;
mod error;
mod fault;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_vault_tests;
mod id_map;
mod inspection;
mod mount;
mod object_id;
mod parameter_search;
mod piece_splitter;
mod prune;
mod rate_pacer;
mod removal;
mod repair;
mod request_log_throttle;
mod restore;
mod retag;
mod retention;
#[cfg(test)]
mod rewritten_snapshot_tests;
mod run_log;
mod run_snapshots;
mod save;
mod selection;
mod source;
mod stats;
mod throttle_controller;
mod tuned_settings;
mod vault;
mod vault_encryption;
mod vault_password;
mod verify;

pub use backend::{
    AppendOnlyBackend, BackendWrapper, LocalBackend, NativeFileSystem, RateLimitedBackend,
    RestAddress, RestBackend, RestLogin, S3Address, S3Backend, SftpAddress, SftpBackend,
    SftpOptions, StagedFile, TransferLimits, UnknownHostPolicy, VaultAccess, VaultBackend,
    VaultFileKind, VaultFileSystem, open_vault_backend, redact_address, trial_location_beside,
};
pub use backup_progress::{BackupProgress, SourceReadLimits};
pub use check::{CheckDepth, VaultCheckReport, check_vault};
pub use compression::CompressionMode;
pub use copy::{CopyDepth, CopyReport, CopyTarget, copy_repository};
pub use error::{Error, Result};
pub use fault::BackupFault;
pub use inspection::{
    SnapshotChange, SnapshotDifference, diff_trees, find_path, list_folder, walk_tree,
    write_file_content,
};
pub use mount::{MountAccess, UnmountOutcome, VaultMount, mount_vault};
pub use object_id::VaultObjectId;
pub use parameter_search::{
    SaveTrial, SaveTrialSeries, SettingSearch, TunedSettingRange, search_best_setting,
};
pub use prune::{PruneOptions, PruneReport, prune_snapshots};
pub use rate_pacer::RateLimit;
pub use repair::{RepairReport, repair_vault};
pub use request_log_throttle::{BaselineSource, ThrottleReport, ThrottledSave};
pub use restore::{ExistingFilePolicy, RestoreOptions, RestoreReport, restore_snapshot};
pub use retag::{TagChange, change_tags, copy_snapshot};
pub use retention::{RetentionPolicy, RetentionReason, apply_retention};
pub use run_log::{
    BackupRunKind, BackupRunLog, BackupRunRecord, growth_bytes_per_day, last_run_of_folders,
    upload_bytes_per_second,
};
pub use run_snapshots::{find_repository_snapshot, find_restorable_parts};
pub use save::{ParentSelection, SaveOptions, SaveSession, SaveSummary};
pub use selection::RestoreSelection;
pub use source::base_store::{
    BaseStoreReference, OmittedCounts, SeparateBase, find_folder_base, find_snapshot_base,
};
pub use source::directory::{absolute_path, save_directories, source_path};
pub use source::document_view::{
    DocumentChange, DocumentView, RenderedContent, RenderedFile, RootDocuments,
};
pub use source::estimate::{SaveEstimate, SourceSaveEstimate, estimate_full_save};
pub use source::exclude::{ExcludeRules, FolderMark};
pub use source::glob::expand_glob;
pub use source::import::{
    ImportOptions, ImportReport, MissingContentPolicy, import_folder, import_snapshot,
    read_home_files,
};
pub use source::live_store::LiveStore;
pub use source::repository::{BackupRepositorySource, HomeFile, save_repository};
pub use source::source_list::{
    SaveSources, is_repository_source, parse_folder_mark, parse_pattern_lines,
};
pub use source::stream::save_stream;
pub use stats::{VaultStats, compute_vault_stats};
pub use throttle_controller::{RunThrottle, ServedInterval, ThrottleController};
pub use tuned_settings::TunedSaveSettings;
pub use vault::index::VaultIndex;
pub use vault::lock::{UnlockScope, VaultLock, VaultLockMode};
pub use vault::node::{ExtendedAttribute, NodeTime, SnapshotNode, SnapshotNodeKind, SnapshotTree};
pub use vault::pack_writer::WriteTotals;
pub use vault::snapshot::{ClientFilter, VaultSnapshot, is_internal_tag};
pub use vault::{
    IndexedVault, KeyDerivationCost, KeyMetadata, Vault, VaultOpening, VaultUser, WriterTuning,
};
pub use vault_password::{VaultPassword, read_password_file};
pub use verify::verify_snapshot;
