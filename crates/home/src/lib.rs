//! The home of an instance: one directory with the configuration, the stores, the keys and the state of an author or
//! publisher, used by the instance itself and by the commands that manage it.
//!
//! In: a directory, its configuration, and how this process opens homes ([`HomeAccess`]).
//! Out: an opened [`Home`]; or parts of the home of another party, read-only; and the upkeep of both.
//!
//! Invariants
//! * One process has a home open; others read its stores without changing them.
//! * A clone reads what it has not changed from its base, which keeps that as long as the clone's lease lives.
//! * Nothing is removed by the current clock time, but by a time that the clock has passed steadily.
//!
//! Not here: serving requests (`server`), reading the environment and arguments (the program), backups (`backup`).

mod access;
mod blob_check;
mod blob_config;
mod blob_promotion;
mod blob_sharing;
mod blob_storage;
mod chunk_store;
mod clone_home;
mod cluster_facts;
mod config;
mod config_reference;
mod config_setting;
mod config_value;
mod diagnosis;
mod error;
mod garbage_collection;
mod home_format;
mod maintenance;
mod opened_home;
mod origin;
mod private_file;
mod standby;
mod state;
mod storage_membership;
mod store_check;
mod trusted_clock;

pub use access::{BucketSettings, HomeAccess, HomeProcess};
pub use blob_check::{BlobCheckReport, MAX_LISTED_MISSING_BLOBS, check_blobs};
pub use blob_config::{BlobDelegateSection, BlobsSection, NewBlobDestination, is_instance_url};
pub use blob_promotion::{BlobPromotionReport, copy_blobs_to_home};
pub use blob_sharing::{BlobMarkOutcome, BlobSharing, RoleSweepReport};
pub use blob_storage::{HomeBlobStorage, open_other_home_blobs};
pub use chunk_store::HomeChunkStore;
pub use clone_home::{HomeCopyReport, absolute_origin, copy_home, create_clone, find_lease_folder};
pub use cluster_facts::{cluster_facts, require_own_blob_folder, require_same_blob_folder};
pub use config::{
    CONFIG_FILE, CollectSection, DatabaseSection, HistorySection, HomeConfig, MaintenanceSection,
    StoreSection, VersionsSection, read_home_toml, read_toml_file,
};
pub use config_reference::{ConfigKeyInfo, ConfigReference, ConfigSectionInfo};
pub use config_setting::{ConfigOverride, ConfigSetting, SettingOrigin, list_settings};
pub use config_value::parse_toml;
pub use diagnosis::{
    DiagnosisFinding, DiagnosisLevel, diagnose_access, diagnose_address, diagnose_certificate,
    diagnose_clock, diagnose_database, diagnose_disk, diagnose_format, diagnose_open_files,
    is_home_in_use,
};
pub use error::{Error, Result};
pub use garbage_collection::{collect_options, purge_versions};
pub use home_format::{
    HOME_FORMAT_FILE, HOME_FORMAT_VERSION, HomeFormat, check_home_format, read_home_format,
};
pub use maintenance::register_maintenance;
pub use opened_home::{
    Home, KEY_FILE, is_home_locked, read_or_create_replication_key, require_home,
};
pub use origin::{
    BaseAccess, BaseWithBlobs, HomeOrigin, MAIN_BRANCH, create_home_dir, lease_holder_name,
    lease_saved_root, open_base_at, open_own_packs, renew_lease_until_stopped, write_credentials,
};
pub use private_file::{
    create_private_dir, has_database_mark, random_text, write_private_file, write_secret_file,
};
pub use standby::{PromotedStandby, StandbyEvent, StandbyHome, StandbyStatus, promote_standby};
pub use state::{STATE_COPY_FILE, STATE_FILE, StateTableGroup, open_state_database};
pub use store_check::{HomeStoreCheck, RepairMode};
pub use trusted_clock::{
    CLOCK_CHECK_INTERVAL, recorded_trusted_now, trusted_for_vault, trusted_now,
};
