//! A home: the directory of one instance, opened.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tympan_notation::ByteSize;
use tympan_notation::error_chain_text;

use tympan_blobs::CachedBlobStore;
use tympan_content::Repository;
use tympan_replicate::check_pair_key;
use tympan_store::disk::{DiskLock, FileDisk};
use tympan_store::{Error as StoreError, LayeredStore, LocalStore, PostgresStore};

use crate::access::HomeAccess;
use crate::blob_sharing::BlobSharing;
use crate::blob_storage::HomeBlobStorage;
use crate::chunk_store::{HomeChunkStore, open_error};
use crate::config::HomeConfig;
use crate::error::{Error, Result};
use crate::home_format::{check_home_format, record_home_format};
use crate::origin::{MAIN_BRANCH, refuse_standby};
use crate::private_file::{DATABASE_MARK_FILE, create_private_dir, random_text, write_secret_file};
use crate::storage_membership::StorageMembership;

/// The file with the key that author and publish share.
pub const KEY_FILE: &str = "replication.key";

/// The default memory for frequently read blobs.
const DEFAULT_HOT_BLOB_BYTES: u64 = 64 << 20;

/// An opened home. No other process can open it at the same time.
pub struct Home {
    /// The directory.
    pub dir: PathBuf,
    /// The configuration of its stores and of their upkeep.
    pub config: HomeConfig,
    /// The packs of this home, if they store the repository.
    pub local: Option<Arc<LocalStore>>,
    /// The database, if it stores the repository.
    pub database: Option<Arc<PostgresStore>>,
    /// The packs layered over the base, if the home is a clone.
    pub composite: Option<Arc<LayeredStore>>,
    /// The content.
    pub repository: Repository,
    /// The storage of large blobs.
    pub blobs: HomeBlobStorage,
    /// Excludes other processes if there are no packs that do so.
    _lock: Option<DiskLock>,
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Home").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Home {
    /// Opens the stores of a home with this configuration. The home is created if it does not exist.
    ///
    /// # Errors
    /// [`Error::Refused`] for a standby, and for a home of a newer program; otherwise an error that names the process that holds the home, or the damage.
    pub fn open(access: &HomeAccess, dir: &Path, config: HomeConfig) -> Result<Self> {
        refuse_standby(dir)?;
        check_home_format(dir)?;
        create_private_dir(dir).map_err(|error| open_error(dir, error))?;
        restrict_private_folders(dir);
        let backend = HomeChunkStore::open(access, dir, &config)?;
        let blobs = backend.open_blobs(access, dir, &config)?;
        access.record_blob_url(dir, &config)?;
        let HomeChunkStore { chunks, local, database, overlay_base, lock } = backend;
        let composite = overlay_base.map(|(composite, _)| composite);
        let hot = config.store.hot_blobs.map_or(DEFAULT_HOT_BLOB_BYTES, ByteSize::as_bytes);
        let store = Arc::new(CachedBlobStore::new(blobs.store.clone(), hot));
        // All observers of content begin with this read.
        chunks.ref_history(MAIN_BRANCH, None, 1).map_err(|error| content_error(dir, &error))?;
        let repository =
            Repository::open(chunks, store).map_err(|error| content_error(dir, &error))?;
        // The lock is held: no other program uses the home.
        record_home_format(dir)?;
        let dir = dir.to_owned();
        Ok(Self { dir, config, local, database, composite, repository, blobs, _lock: lock })
    }

    /// Returns the sharing of the home's blobs with other members.
    pub fn blob_sharing(&self) -> BlobSharing {
        let membership = StorageMembership::new(&self.dir, self.database.clone());
        BlobSharing::new(membership, &self.blobs)
    }

    /// Seals the written packs, so that the next start need not scan them.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn close(&self) -> Result<()> {
        self.local.as_ref().map_or(Ok(()), |local| Ok(local.close()?))
    }
}

/// Returns the error of a home whose content cannot be read, with advice if it is damaged.
fn content_error(dir: &Path, error: &(dyn std::error::Error + 'static)) -> Error {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    let is_damage = causes.any(|cause| {
        matches!(
            cause.downcast_ref::<StoreError>(),
            Some(
                StoreError::ChunkDamaged { .. }
                    | StoreError::ChunkMissing { .. }
                    | StoreError::ChunkKindMismatch { .. }
                    | StoreError::FileMalformed { .. }
            )
        )
    });
    let (home, reason) = (dir.display(), error_chain_text(error));
    let advice = match is_damage {
        false => String::new(),
        true => format!(
            "; `tympan repo check --home {home}` shows what is lost in `{home}/store`; with `--repair`, it restores \
             the newest good state; `tympan backup restore --home NEW` creates a home from a backup"
        ),
    };
    Error::failed_alone(format!("cannot open the home `{home}`: {reason}{advice}"))
}

/// Refuses a directory that is no home, or whose repository is missing.
///
/// # Errors
/// [`Error::Refused`] with the reason.
pub fn require_home(dir: &Path) -> Result<()> {
    let Ok(store) = fs::read_dir(dir.join("store")) else {
        return Err(Error::refused(format!(
            "`{}` is not the home of an instance: it has no folder `store`",
            dir.display()
        )));
    };
    // Opening an empty store would create a new one, which would be taken for the missing one.
    let is_store = |name: &str| name.starts_with("pack-") || name.starts_with("live-");
    let mut names = store.flatten().map(|entry| entry.file_name());
    if names.any(|name| name == DATABASE_MARK_FILE || name.to_str().is_some_and(is_store)) {
        return Ok(());
    }
    Err(Error::refused(format!(
        "the folder `store` of `{}` contains no repository; if it did, check that its disk is mounted, or \
         restore the folder from a backup",
        dir.display()
    )))
}

/// Returns true if another process has a home open.
///
/// # Errors
/// If the home's folder cannot be read.
pub fn is_home_locked(dir: &Path) -> Result<bool> {
    let disk = FileDisk::open_read_only(dir.join("store"));
    disk.is_folder_locked().map_err(|error| open_error(dir, error))
}

/// Reads the key that author and publish share, or creates it.
///
/// # Errors
/// If it can be neither read nor created.
pub fn read_or_create_replication_key(dir: &Path) -> Result<String> {
    let file = dir.join(KEY_FILE);
    match fs::read_to_string(&file) {
        Ok(key) if !key.trim().is_empty() => {
            let key = key.trim().to_owned();
            check_pair_key(&key)
                .map_err(|reason| Error::refused(format!("`{}`: {reason}", file.display())))?;
            Ok(key)
        }
        Ok(_) => Err(Error::refused(format!(
            "`{}` is empty; delete it to have a new key created",
            file.display()
        ))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let key = random_text()?;
            write_secret_file(&file, &key)?;
            Ok(key)
        }
        Err(error) => Err(Error::failed(format!("cannot read `{}`", file.display()), error)),
    }
}

/// The folders of a home that other users of the machine must not access.
const PRIVATE_FOLDERS: [&str; 7] = ["blobs", "ledger", "logs", "pairs", "search", "spool", "store"];

/// Restricts folders that an earlier version created accessible to all users. Access for a group is intentional and
/// stays.
fn restrict_private_folders(home: &Path) {
    for folder in PRIVATE_FOLDERS.map(|name| home.join(name)) {
        // A symbolic link leads to a location that is managed elsewhere.
        let Ok(metadata) = fs::symlink_metadata(&folder) else { continue };
        if !metadata.is_dir() || metadata.permissions().mode() & 0o007 == 0 {
            continue;
        }
        if let Err(error) = fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)) {
            tracing::warn!(file = %folder.display(), reason = %error, "cannot restrict the permissions of the \
                folder; other users can read it");
        }
    }
}
