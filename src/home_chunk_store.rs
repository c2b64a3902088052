//! The chunk store of a home: packs or a database.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use tympan_store::disk::{Disk, DiskLock, DiskLockError, FileDisk};
use tympan_store::{
    ByteSize, ChunkDiskCacheOptions, ChunkStore, LocalStore, LocalStoreOptions, PostgresOptions,
    PostgresStore,
};
use tympan_terminal::{CommandFault, error_chain_text};

use crate::blob_sharing::StorageMembership;
use crate::blob_storage::{self, BlobsSection, HomeBlobStorage};
use crate::config::TympanConfig;
use crate::home::write_private_file;
use crate::home_origin::OverlayWithBlobs;

/// Gives a database named by the environment precedence over the configured one, for commands without an argument for
/// it.
pub(crate) fn set_database_from_environment() {
    set_database_url_override(std::env::var("TYMPAN_DATABASE").ok().as_deref());
}

/// The opened chunk store of a home.
pub(crate) struct HomeChunkStore {
    /// The store of the repository.
    pub(crate) chunks: Arc<dyn ChunkStore>,
    /// The packs of this home, if they store the repository.
    pub(crate) local: Option<Arc<LocalStore>>,
    /// The database, if it stores the repository.
    pub(crate) database: Option<Arc<PostgresStore>>,
    /// The packs layered over the base, and the base's large blobs, if the home is a clone.
    pub(crate) overlay_base: Option<OverlayWithBlobs>,
    /// Excludes other processes if there are no packs that do so.
    pub(crate) lock: Option<DiskLock>,
}

/// The file that marks a home whose repository is stored in a database, without the database's URL.
pub(crate) const DATABASE_MARK_FILE: &str = "in-database";

/// The database given on the command line.
static DATABASE_URL_OVERRIDE: OnceLock<String> = OnceLock::new();

/// Gives a database named on the command line precedence over the configured one.
pub(crate) fn set_database_url_override(url: Option<&str>) {
    if let Some(url) = url {
        // A command line names at most one.
        DATABASE_URL_OVERRIDE.get_or_init(|| url.to_owned());
    }
}

/// The bucket given on the command line.
static BLOB_URL_OVERRIDE: OnceLock<String> = OnceLock::new();

/// Gives a bucket named on the command line precedence over the configured one.
pub(crate) fn set_blob_url_override(url: Option<&str>) {
    if let Some(url) = url {
        // A command line names at most one.
        BLOB_URL_OVERRIDE.get_or_init(|| url.to_owned());
    }
}

/// Set if this process is an instance, rather than a command that manages an instance's home.
static IS_INSTANCE_PROCESS: OnceLock<()> = OnceLock::new();

/// Marks this process as an instance: it determines the storage of blobs, also for later commands.
pub(crate) fn mark_instance_process() {
    IS_INSTANCE_PROCESS.get_or_init(|| ());
}

/// The file that records the blob storage given on the last instance's command line.
const BLOB_URL_FILE: &str = "blobs.url";

/// Returns the blob storage of a home: from the command line; from that of its last instance; or from the
/// configuration.
///
/// # Errors
/// If the home's record cannot be read.
pub(crate) fn effective_blob_section(
    dir: &Path,
    config: &TympanConfig,
) -> Result<BlobsSection, CommandFault> {
    let url = match BLOB_URL_OVERRIDE.get() {
        Some(url) => Some(url.clone()),
        // An instance without the argument uses the configuration again.
        None if IS_INSTANCE_PROCESS.get().is_some() && config.blobs.is_configured() => None,
        None => recorded_blob_url(dir)?,
    };
    Ok(config.blobs.clone().with_bucket_url(url))
}

/// Returns the blob storage of another party's home, regardless of this command line.
///
/// # Errors
/// If the home's record cannot be read.
pub(crate) fn blob_section_of_other_home(
    dir: &Path,
    config: &TympanConfig,
) -> Result<BlobsSection, CommandFault> {
    Ok(config.blobs.clone().with_bucket_url(recorded_blob_url(dir)?))
}

/// Records the blob storage of an instance, so that other commands read and write blobs there.
///
/// # Errors
/// If the record cannot be written.
pub(crate) fn record_blob_url(dir: &Path, config: &TympanConfig) -> Result<(), CommandFault> {
    let recorded_url = recorded_blob_url(dir)?;
    let file = dir.join(BLOB_URL_FILE);
    match BLOB_URL_OVERRIDE.get() {
        Some(url) if recorded_url.as_ref() == Some(url) => Ok(()),
        Some(url) => crate::home_origin::write_file_durably(&file, &format!("{url}\n")),
        None if recorded_url.is_some()
            && IS_INSTANCE_PROCESS.get().is_some()
            && config.blobs.is_configured() =>
        {
            std::fs::remove_file(&file).map_err(|error| {
                CommandFault::cannot_run(format!("cannot remove `{}`: {error}", file.display()))
            })
        }
        None => Ok(()),
    }
}

fn recorded_blob_url(dir: &Path) -> Result<Option<String>, CommandFault> {
    let file = dir.join(BLOB_URL_FILE);
    match std::fs::read_to_string(&file) {
        Ok(url) => Ok(Some(url.trim().to_owned()).filter(|url| !url.is_empty())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(CommandFault::cannot_run(format!("cannot read `{}`: {error}", file.display())))
        }
    }
}

/// Returns true if the command line or the configuration names a database for the repository of a home.
///
/// # Errors
/// If the configuration cannot be read.
pub(crate) fn has_database_configured(dir: &Path) -> Result<bool, CommandFault> {
    Ok(DATABASE_URL_OVERRIDE.get().is_some()
        || crate::config::read_home_config(dir)?.database.url.is_some())
}

/// Returns true if the last instance of a home left the mark that a database stores its repository.
pub(crate) fn has_database_mark(dir: &Path) -> bool {
    dir.join("store").join(DATABASE_MARK_FILE).exists()
}

impl HomeChunkStore {
    /// Opens the store that the configuration of a home names: a database, or the packs in its folder `store`.
    ///
    /// # Errors
    /// A [`CommandFault`] that names the process that holds it, or the damage.
    pub(crate) fn open(dir: &Path, config: &TympanConfig) -> Result<Self, CommandFault> {
        let failed = |error: &dyn std::error::Error| {
            CommandFault::cannot_run(format!(
                "cannot open the home `{}`: {}",
                dir.display(),
                error_chain_text(error)
            ))
        };
        let folder = dir.join("store");
        let disk = FileDisk::open(&folder).map_err(|error| failed(&error))?;
        if let Some(url) = DATABASE_URL_OVERRIDE.get().or(config.database.url.as_ref()) {
            return Self::open_database(dir, &disk, database_options(dir, config, url));
        }
        if folder.join(DATABASE_MARK_FILE).exists() {
            return Err(CommandFault::usage(format!(
                "the repository of `{}` is stored in a database; name it with `--database`, with \
                 TYMPAN_DATABASE, or as `url` in the section `[database]` of its `tympan.toml`",
                dir.display()
            )));
        }
        let mut options = LocalStoreOptions::default();
        if let Some(cache) = config.store.cache {
            options.cache_size = cache;
        }
        let store = LocalStore::open(Arc::new(disk), options).map_err(|error| failed(&error))?;
        let store = Arc::new(store);
        for folder in &config.history.leases {
            // A missing folder, such as one that is not mounted, may contain leases.
            if !folder.is_dir() {
                return Err(CommandFault::usage(format!(
                    "tympan.toml: [history]: leases: there is no folder `{}`; create it, or check that its \
                     disk is mounted",
                    folder.display()
                )));
            }
            let folder = FileDisk::open(folder).map_err(|error| failed(&error))?;
            store.add_lease_folder(Arc::new(folder));
        }
        let base = crate::home_origin::open_clone_overlay(dir, &store)?;
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
    pub(crate) fn open_blobs(
        &self,
        dir: &Path,
        config: &TympanConfig,
    ) -> Result<HomeBlobStorage, CommandFault> {
        let base = self.overlay_base.as_ref().map(|(_, below)| below);
        let section = effective_blob_section(dir, config)?;
        let membership = StorageMembership::new(dir, self.database.clone());
        blob_storage::open_home_blobs((dir, &section), &membership, self.chunks.clone(), base)
    }

    /// Opens the repository of a home that is stored in a database, while an instance may be running on the home.
    ///
    /// # Errors
    /// A [`CommandFault`] if no database is named, or it cannot be reached.
    pub(crate) fn open_beside_instance(
        dir: &Path,
        config: &TympanConfig,
    ) -> Result<Arc<dyn ChunkStore>, CommandFault> {
        let url = DATABASE_URL_OVERRIDE.get().or(config.database.url.as_ref()).ok_or_else(|| {
            CommandFault::usage(format!(
                "the repository of `{}` is stored in a database; name it with TYMPAN_DATABASE, or as `url` in \
                 the section `[database]` of its `tympan.toml`",
                dir.display()
            ))
        })?;
        // The local chunk cache belongs to the instance.
        let options = PostgresOptions { disk_cache: None, ..database_options(dir, config, url) };
        let store = PostgresStore::open(options).map_err(|error| {
            CommandFault::cannot_run(format!(
                "cannot open the home `{}`: {}",
                dir.display(),
                error_chain_text(&error)
            ))
        })?;
        Ok(Arc::new(store))
    }

    fn open_database(
        dir: &Path,
        disk: &FileDisk,
        options: PostgresOptions,
    ) -> Result<Self, CommandFault> {
        let failed = |error: &dyn std::error::Error| {
            CommandFault::cannot_run(format!(
                "cannot open the home `{}`: {}",
                dir.display(),
                error_chain_text(error)
            ))
        };
        let files = disk.list_folder("").map_err(|error| failed(&error))?;
        if files.iter().any(|file| file.starts_with("pack-")) {
            return Err(CommandFault::usage(format!(
                "the home `{}` has its own repository in `store`; use the database with a new home",
                dir.display()
            )));
        }
        let lock = disk.lock_folder().map_err(|error| match error {
            DiskLockError::AlreadyLocked { pid } => {
                failed(&tympan_store::Error::Locked { dir: dir.to_owned(), pid })
            }
            DiskLockError::Io(error) => failed(&error),
        })?;
        let store = PostgresStore::open(options).map_err(|error| failed(&error))?;
        write_private_file(&dir.join("store").join(DATABASE_MARK_FILE), b"")
            .map_err(|error| failed(&error))?;
        let store = Arc::new(store);
        let database = Some(Arc::clone(&store));
        Ok(Self { chunks: store, local: None, database, overlay_base: None, lock: Some(lock) })
    }
}

/// Returns the location of the state database if a database stores the repository: its URL, and the name of the schema.
pub(crate) fn state_database_location(config: &TympanConfig) -> Option<(String, String)> {
    let section = &config.database;
    let mut url = DATABASE_URL_OVERRIDE.get().or(section.url.as_ref())?.clone();
    if let Some(authority) = &section.tls_ca {
        let joint = if url.contains('?') { '&' } else { '?' };
        let file = percent_encoding::utf8_percent_encode(
            &authority.to_string_lossy(),
            percent_encoding::NON_ALPHANUMERIC,
        )
        .to_string();
        url = format!("{url}{joint}sslmode=verify-full&sslrootcert={file}");
    }
    let schema = section.schema.as_deref().unwrap_or("tympan");
    Some((url, format!("{schema}_state")))
}

/// Returns the database options of the configuration.
fn database_options(dir: &Path, config: &TympanConfig, url: &str) -> PostgresOptions {
    let section = &config.database;
    let mut options = PostgresOptions::new(url);
    if let Some(schema) = &section.schema {
        options.schema.clone_from(schema);
    }
    if let Some(connections) = section.max_connections {
        options.max_connections = connections;
    }
    for (set, span) in [
        (&mut options.wait_timeout, section.wait),
        (&mut options.idle_timeout, section.idle),
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
