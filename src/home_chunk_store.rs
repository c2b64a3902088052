//! Which chunk store a home has.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use tympan_store::disk::{Disk, DiskLock, DiskLockError, FileDisk};
use tympan_store::{
    ByteSize, ChunkDiskCacheOptions, ChunkStore, LocalStore, LocalStoreOptions, PostgresOptions,
    PostgresStore,
};

use crate::blob_sharing::StorageMembership;
use crate::blob_storage::{self, BlobsSection, HomeBlobStorage};
use crate::command::CommandFault;
use crate::config::TympanConfig;
use crate::home::{error_chain_text, write_private_file};
use crate::home_origin::OverlayWithBlobs;

/// Lets a database that the environment names go before the one of the configuration, for commands that have no argument
/// for it.
pub(crate) fn set_database_from_environment() {
    set_database_url_override(std::env::var("TYMPAN_DATABASE").ok().as_deref());
}

/// The chunk store of a home, opened.
pub(crate) struct HomeChunkStore {
    /// What the repository lies in.
    pub(crate) chunks: Arc<dyn ChunkStore>,
    /// The packs of this home, if the repository lies in them.
    pub(crate) local: Option<Arc<LocalStore>>,
    /// The database, if the repository lies in one.
    pub(crate) database: Option<Arc<PostgresStore>>,
    /// What the packs lie over, and its large blobs, if the home is a clone.
    pub(crate) overlay_base: Option<OverlayWithBlobs>,
    /// Keeps other processes out where the packs do not.
    pub(crate) lock: Option<DiskLock>,
}

/// Says that the repository lies in a database, whose URL the folder does not name.
pub(crate) const DATABASE_MARK_FILE: &str = "in-database";

/// The database that the command line names.
static DATABASE_URL_OVERRIDE: OnceLock<String> = OnceLock::new();

/// Lets a database that the command line names go before the one of the configuration.
pub(crate) fn set_database_url_override(url: Option<&str>) {
    if let Some(url) = url {
        // A command line names one at most.
        DATABASE_URL_OVERRIDE.get_or_init(|| url.to_owned());
    }
}

/// The bucket that the command line names.
static BLOB_URL_OVERRIDE: OnceLock<String> = OnceLock::new();

/// Lets a bucket that the command line names go before the one of the configuration.
pub(crate) fn set_blob_url_override(url: Option<&str>) {
    if let Some(url) = url {
        // A command line names one at most.
        BLOB_URL_OVERRIDE.get_or_init(|| url.to_owned());
    }
}

/// Whether this process is an instance, rather than a command that looks after the home of one.
static IS_INSTANCE_PROCESS: OnceLock<()> = OnceLock::new();

/// Says that this process is an instance: it decides where blobs lie, also for the commands that come after it.
pub(crate) fn mark_instance_process() {
    IS_INSTANCE_PROCESS.get_or_init(|| ());
}

/// The file with the place of blobs that the last instance was told on its command line.
const BLOB_URL_FILE: &str = "blobs.url";

/// Returns where the blobs of a home lie: by the command line; by that of its last instance; or by the configuration.
///
/// # Errors
/// If the home's note cannot be read.
pub(crate) fn effective_blob_section(
    dir: &Path,
    config: &TympanConfig,
) -> Result<BlobsSection, CommandFault> {
    let url = match BLOB_URL_OVERRIDE.get() {
        Some(url) => Some(url.clone()),
        // An instance that is told nothing goes by the configuration again.
        None if IS_INSTANCE_PROCESS.get().is_some() && config.blobs.is_configured() => None,
        None => recorded_blob_url(dir)?,
    };
    Ok(config.blobs.clone().with_bucket_url(url))
}

/// Returns where the blobs of the home of somebody else lie, whatever this command line says.
///
/// # Errors
/// If the home's note cannot be read.
pub(crate) fn blob_section_of_other_home(
    dir: &Path,
    config: &TympanConfig,
) -> Result<BlobsSection, CommandFault> {
    Ok(config.blobs.clone().with_bucket_url(recorded_blob_url(dir)?))
}

/// Notes where an instance has its blobs, so that no other command looks for them elsewhere, or stores them there.
///
/// # Errors
/// If the note cannot be written.
pub(crate) fn record_blob_url(dir: &Path, config: &TympanConfig) -> Result<(), CommandFault> {
    let noted = recorded_blob_url(dir)?;
    let file = dir.join(BLOB_URL_FILE);
    match BLOB_URL_OVERRIDE.get() {
        Some(url) if noted.as_ref() == Some(url) => Ok(()),
        Some(url) => crate::home_origin::write_file_durably(&file, &format!("{url}\n")),
        None if noted.is_some()
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

/// Tells whether the repository of a home lies in a database, by the command line or its configuration.
///
/// # Errors
/// If the configuration cannot be read.
pub(crate) fn has_database_configured(dir: &Path) -> Result<bool, CommandFault> {
    Ok(DATABASE_URL_OVERRIDE.get().is_some()
        || crate::config::read_home_config(dir)?.database.url.is_some())
}

/// Tells whether the repository of a home lies in a database, by the mark of its last instance.
pub(crate) fn has_database_mark(dir: &Path) -> bool {
    dir.join("store").join(DATABASE_MARK_FILE).exists()
}

impl HomeChunkStore {
    /// Opens what the configuration of a home names: a database, or the packs in its folder `store`.
    ///
    /// # Errors
    /// A [`CommandFault`] that says which process holds it, or what is damaged.
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
                "the repository of `{}` lies in a database; name it by `--database`, by TYMPAN_DATABASE, or as `url` in \
                 the section `[database]` of its `tympan.toml`",
                dir.display()
            )));
        }
        let mut options = LocalStoreOptions::default();
        if let Some(cache) = config.store.cache {
            options.cache_size = ByteSize::from_bytes(cache.0);
        }
        let store = LocalStore::open(Arc::new(disk), options).map_err(|error| failed(&error))?;
        let store = Arc::new(store);
        for folder in &config.history.leases {
            // One that is not there may hold leases.
            if !folder.is_dir() {
                return Err(CommandFault::usage(format!(
                    "tympan.toml: [history]: leases: there is no folder `{}`; make it, or see whether its disk is mounted",
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

    /// Opens the large blobs of the home, over those of its base if it is a clone.
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

    /// Opens the repository of a home that lies in a database, beside an instance that may run on the home.
    ///
    /// # Errors
    /// A [`CommandFault`] if no database is named, or it cannot be reached.
    pub(crate) fn open_beside_instance(
        dir: &Path,
        config: &TympanConfig,
    ) -> Result<Arc<dyn ChunkStore>, CommandFault> {
        let url = DATABASE_URL_OVERRIDE.get().or(config.database.url.as_ref()).ok_or_else(|| {
            CommandFault::usage(format!(
                "the repository of `{}` lies in a database; name it by TYMPAN_DATABASE, or as `url` in the section \
                 `[database]` of its `tympan.toml`",
                dir.display()
            ))
        })?;
        // The chunks at hand belong to the instance.
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
                "the home `{}` has a repository of its own in `store`; give a database to a new home",
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

/// Returns where small mutable state lies if the repository lies in a database: its URL, and the name of the schema.
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

/// Returns how the database is used, by the configuration.
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
        options.cache_size = ByteSize::from_bytes(cache.0);
    }
    let size = section.cache_size.map_or(NEAR_CACHE_BYTES, |size| size.0);
    options.disk_cache = (size > 0).then(|| ChunkDiskCacheOptions {
        dir: section.cache_dir.clone().unwrap_or_else(|| dir.join("chunks")),
        max_size: ByteSize::from_bytes(size),
    });
    options
}

/// Bytes of chunks that are kept at hand beside the process unless configured.
const NEAR_CACHE_BYTES: u64 = 1 << 30;
