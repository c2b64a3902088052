//! Backups of homes and instances: what a save reads of them, the saves that an author makes on a schedule, and new homes
//! from a backup.
//!
//! In: the directory of a home or the URL of an instance, and a vault. Out: a source that `backup` saves; a home that an
//! instance can run on.
//!
//! Invariants
//! * A home is read beside its instance, and nothing is changed in it.
//! * The data that a clone reads from its base is saved with it, or the snapshot names the base.
//! * A home that cannot be restored completely is removed again.
//!
//! Not here: the format of vaults (`backup`), opening homes (`home`), printing.

mod config;
mod document_view;
mod error;
mod home_file;
mod repository_save;
mod repository_source;
mod restore;
mod save_throttle;
mod saved_clone;
mod scheduled_save;
mod vault_content;
mod verify;

pub use config::BackupSection;
pub use error::{Error, Result};
pub use home_file::{StateDatabaseInclusion, write_home_files};
pub use repository_save::{RepositorySave, RepositorySaveOptions};
pub use repository_source::{
    BaseCoverage, InstanceAccess, LiveHomeContent, OpenRepositorySource, open_source,
    open_source_by_snapshot_path,
};
pub use restore::{HomeFiller, HomeRestoration, RestoredHome, restore_home};
pub use save_throttle::start_save_throttle;
pub use scheduled_save::{
    SAVE_SCHEDULE_NAME, ScheduledSaveOptions, ScheduledSaveStatus, schedule_saves,
    scheduled_save_log, unschedule_saves,
};
pub use vault_content::{VaultContent, VaultPage, VaultState};
pub use verify::SnapshotVerification;
