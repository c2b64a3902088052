//! The chunk store of a home: packs or a database.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use tympan_notation::ByteSize;

use tympan_store::disk::{Disk, DiskLock, DiskLockError, FileDisk};
use tympan_store::{
    ChunkDiskCacheOptions, ChunkStore, LocalStore, LocalStoreOptions, PostgresOptions,
    PostgresStore,
};

use crate::access::HomeAccess;
use crate::blob_storage::{self, HomeBlobStorage};
use crate::config::HomeConfig;
use crate::error::{Error, Result};
use crate::origin::{OverlayWithBlobs, open_clone_overlay};
use crate::private_file::{DATABASE_MARK_FILE, write_private_file};
use crate::storage_membership::StorageMembership;

/// The opened chunk store of a home.
pub struct HomeChunkStore {
    /// The store of the repository.
    pub chunks: Arc<dyn ChunkStore>,
    /// The packs of this home, if they store the repository.
    pub local: Option<Arc<LocalStore>>,
    /// The database, if it stores the repository.
    pub database: Option<Arc<PostgresStore>>,
    /// The packs layered over the base, and the base's large blobs, if the home is a clone.
    pub overlay_base: Option<OverlayWithBlobs>,
    /// Excludes other processes if there are no packs that do so.
    pub lock: Option<DiskLock>,
}

impl fmt::Debug for HomeChunkStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HomeChunkStore").field("local", &self.local).finish_non_exhaustive()
    }
}

impl HomeChunkStore {
    /// Opens the store that the configuration of a home names: a database, or the packs in its folder `store`.
    ///
    /// # Errors
    /// An error that names the process that holds it, or the damage.
    pub fn open(access: &HomeAccess, dir: &Path, config: &HomeConfig) -> Result<Self> {
        let folder = dir.join("store");
        let disk = FileDisk::open(&folder).map_err(|error| open_error(dir, error))?;
        if let Some(url) = access.database_url(config) {
            return Self::open_database(dir, &disk, database_options(dir, config, url));
        }
        if folder.join(DATABASE_MARK_FILE).exists() {
            return Err(Error::refused(format!(
                "the repository of `{}` is stored in a database; name it with `--database`, with \
                 TYMPAN_DATABASE, or as `url` in the section `[database]` of its `tympan.toml`",
                dir.display()
            )));
        }
        let mut options = LocalStoreOptions::default();
        if let Some(cache) = config.store.cache {
            options.cache_size = cache;
        }
        let store =
            LocalStore::open(Arc::new(disk), options).map_err(|error| open_error(dir, error))?;
        let store = Arc::new(store);
        for folder in &config.history.leases {
            // A missing folder, such as one that is not mounted, may contain leases.
            if !folder.is_dir() {
                return Err(Error::refused(format!(
                    "tympan.toml: [history]: leases: there is no folder `{}`; create it, or check that its \
                     disk is mounted",
                    folder.display()
                )));
            }
            let folder = FileDisk::open(folder).map_err(|error| open_error(dir, error))?;
            store.add_lease_folder(Arc::new(folder));
        }
        let base = open_clone_overlay(access, dir, &store)?;
        let chunks: Arc<dyn ChunkStore> = match &base {
            Some((composite, _)) => composite.clone(),
            None => store.clone(),
        };
        Ok(Self { chunks, local: Some(store), database: None, overlay_base: base, lock: None })
    }

    /// Opens the large blobs of the home, layered over those of its base if it is a clone.
    ///
    /// # Errors
    /// As [`blob_storage::open_home_blobs`].
    pub fn open_blobs(
        &self,
        access: &HomeAccess,
        dir: &Path,
        config: &HomeConfig,
    ) -> Result<HomeBlobStorage> {
        let base = self.overlay_base.as_ref().map(|(_, below)| below);
        let section = access.effective_blob_section(dir, config)?;
        let membership = StorageMembership::new(dir, self.database.clone());
        let chunks = self.chunks.clone();
        blob_storage::open_home_blobs(access, dir, &section, &membership, chunks, base)
    }

    /// Opens the repository of a home that is stored in a database, while an instance may be running on the home.
    ///
    /// # Errors
    /// An error if no database is named, or it cannot be reached.
    pub fn open_beside_instance(
        access: &HomeAccess,
        dir: &Path,
        config: &HomeConfig,
    ) -> Result<Arc<dyn ChunkStore>> {
        let url = access.database_url(config).ok_or_else(|| {
            Error::refused(format!(
                "the repository of `{}` is stored in a database; name it with TYMPAN_DATABASE, or as `url` in \
                 the section `[database]` of its `tympan.toml`",
                dir.display()
            ))
        })?;
        // The local chunk cache belongs to the instance.
        let options = PostgresOptions { disk_cache: None, ..database_options(dir, config, url) };
        let store = PostgresStore::open(options).map_err(|error| open_error(dir, error))?;
        Ok(Arc::new(store))
    }

    fn open_database(dir: &Path, disk: &FileDisk, options: PostgresOptions) -> Result<Self> {
        let files = disk.list_folder("").map_err(|error| open_error(dir, error))?;
        if files.iter().any(|file| file.starts_with("pack-")) {
            return Err(Error::refused(format!(
                "the home `{}` has its own repository in `store`; use the database with a new home",
                dir.display()
            )));
        }
        let lock = disk.lock_folder().map_err(|error| match error {
            DiskLockError::AlreadyLocked { pid } => {
                open_error(dir, tympan_store::Error::Locked { dir: dir.to_owned(), pid })
            }
            DiskLockError::Io(error) => open_error(dir, error),
        })?;
        let store = PostgresStore::open(options).map_err(|error| open_error(dir, error))?;
        write_private_file(&dir.join("store").join(DATABASE_MARK_FILE), b"")
            .map_err(|error| open_error(dir, error))?;
        let store = Arc::new(store);
        let database = Some(Arc::clone(&store));
        Ok(Self { chunks: store, local: None, database, overlay_base: None, lock: Some(lock) })
    }
}

/// Returns the error of a home that cannot be opened.
pub(crate) fn open_error(
    dir: &Path,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::failed(format!("cannot open the home `{}`", dir.display()), source)
}

/// Returns the database options of the configuration.
fn database_options(dir: &Path, config: &HomeConfig, url: &str) -> PostgresOptions {
    let section = &config.database;
    let mut options = PostgresOptions::new(url);
    if let Some(schema) = &section.schema {
        options.schema.clone_from(schema);
    }
    if let Some(connections) = section.max_connections {
        options.max_connections = connections;
    }
    for (set, span) in [
        (&mut options.wait_timeout, section.wait_timeout),
        (&mut options.idle_timeout, section.idle_timeout),
        (&mut options.statement_timeout, section.statement_timeout),
    ] {
        if let Some(span) = span {
            *set = span.0;
        }
    }
    options.tls_ca.clone_from(&section.tls_ca);
    if let Some(cache) = config.store.cache {
        options.cache_size = cache;
    }
    let size = section.cache_size.map_or(NEAR_CACHE_BYTES, ByteSize::as_bytes);
    options.disk_cache = (size > 0).then(|| ChunkDiskCacheOptions {
        dir: section.cache_dir.clone().unwrap_or_else(|| dir.join("chunks")),
        max_size: ByteSize::from_bytes(size),
    });
    options
}

/// The default size of the local chunk cache in bytes.
const NEAR_CACHE_BYTES: u64 = 1 << 30;
