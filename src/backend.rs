//! Which chunk store a home has.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use tympan_store::disk::{Disk, DiskLock, FileDisk, LockError};
use tympan_store::{
    ByteSize, ChunkStore, LocalOptions, LocalStore, NearCache, PostgresOptions, PostgresStore,
};

use crate::base::Overlaid;
use crate::command::Fault;
use crate::config::Config;
use crate::home::chain;
use crate::places::{self, Blobs, Opened};

/// Lets a database that the environment names go before the one of the configuration, for commands that have no argument
/// for it.
pub(crate) fn choose_database_of_environment() {
    choose_database(std::env::var("TYMPAN_DATABASE").ok().as_deref());
}

/// The chunk store of a home, opened.
pub(crate) struct Backend {
    /// What the repository lies in.
    pub(crate) chunks: Arc<dyn ChunkStore>,
    /// The packs of this home, if the repository lies in them.
    pub(crate) local: Option<Arc<LocalStore>>,
    /// The database, if the repository lies in one.
    pub(crate) database: Option<Arc<PostgresStore>>,
    /// What the packs lie over, and its large blobs, if the home is a clone.
    pub(crate) base: Option<Overlaid>,
    /// Keeps other processes out where the packs do not.
    pub(crate) lock: Option<DiskLock>,
}

/// Says that the repository lies in a database, whose URL the folder does not name.
pub(crate) const MARK: &str = "in-database";

/// The database that the command line names.
static CHOSEN: OnceLock<String> = OnceLock::new();

/// Lets a database that the command line names go before the one of the configuration.
pub(crate) fn choose_database(url: Option<&str>) {
    if let Some(url) = url {
        // A command line names one at most.
        CHOSEN.get_or_init(|| url.to_owned());
    }
}

/// The bucket that the command line names.
static CHOSEN_BLOBS: OnceLock<String> = OnceLock::new();

/// Lets a bucket that the command line names go before the one of the configuration.
pub(crate) fn choose_blobs(url: Option<&str>) {
    if let Some(url) = url {
        // A command line names one at most.
        CHOSEN_BLOBS.get_or_init(|| url.to_owned());
    }
}

/// Returns where blobs lie, by the command line or the configuration.
pub(crate) fn chosen_blobs(config: &Config) -> Blobs {
    match CHOSEN_BLOBS.get() {
        Some(url) => {
            Blobs { url: Some(url.clone()), path: config.blobs.path.clone(), ..Blobs::default() }
        }
        None => config.blobs.clone(),
    }
}

/// Tells whether the repository of a home lies in a database, by the command line or its configuration.
///
/// # Errors
/// If the configuration cannot be read.
pub(crate) fn has_database(dir: &Path) -> Result<bool, Fault> {
    Ok(CHOSEN.get().is_some() || crate::config::read(dir)?.database.url.is_some())
}

impl Backend {
    /// Opens what the configuration of a home names: a database, or the packs in its folder `store`.
    ///
    /// # Errors
    /// A [`Fault`] that says which process holds it, or what is damaged.
    pub(crate) fn open(dir: &Path, config: &Config) -> Result<Self, Fault> {
        let failed = |error: &dyn std::error::Error| {
            Fault::cannot_run(format!("cannot open the home `{}`: {}", dir.display(), chain(error)))
        };
        let folder = dir.join("store");
        let disk = FileDisk::open(&folder).map_err(|error| failed(&error))?;
        if let Some(url) = CHOSEN.get().or(config.database.url.as_ref()) {
            return Self::open_database(dir, &disk, database_options(dir, config, url));
        }
        if folder.join(MARK).exists() {
            return Err(Fault::usage(format!(
                "the repository of `{}` lies in a database; name it by `--database`, by TYMPAN_DATABASE, or as `url` in \
                 the section `[database]` of its `tympan.toml`",
                dir.display()
            )));
        }
        let mut options = LocalOptions::default();
        if let Some(cache) = config.store.cache {
            options.cache = ByteSize::bytes(cache.0);
        }
        let store = LocalStore::open(Arc::new(disk), options).map_err(|error| failed(&error))?;
        let store = Arc::new(store);
        for folder in &config.history.leases {
            // One that is not there may hold leases.
            if !folder.is_dir() {
                return Err(Fault::usage(format!(
                    "tympan.toml: [history]: leases: there is no folder `{}`; make it, or see whether its disk is mounted",
                    folder.display()
                )));
            }
            let folder = FileDisk::open(folder).map_err(|error| failed(&error))?;
            store.heed_leases_in(Arc::new(folder));
        }
        let base = crate::base::lay_over(dir, &store)?;
        let chunks: Arc<dyn ChunkStore> = match &base {
            Some((composite, _)) => composite.clone(),
            None => store.clone(),
        };
        Ok(Self { chunks, local: Some(store), database: None, base, lock: None })
    }

    /// Opens the large blobs of the home, over those of its base if it is a clone.
    ///
    /// # Errors
    /// As [`places::open`].
    pub(crate) fn open_blobs(&self, dir: &Path, config: &Config) -> Result<Opened, Fault> {
        let base = self.base.as_ref().map(|(_, below)| below);
        let section = chosen_blobs(config);
        places::open(dir, &section, self.chunks.clone(), base)
    }

    /// Opens the repository of a home that lies in a database, beside an instance that may run on the home.
    ///
    /// # Errors
    /// A [`Fault`] if no database is named, or it cannot be reached.
    pub(crate) fn open_beside(dir: &Path, config: &Config) -> Result<Arc<dyn ChunkStore>, Fault> {
        let url = CHOSEN.get().or(config.database.url.as_ref()).ok_or_else(|| {
            Fault::usage(format!(
                "the repository of `{}` lies in a database; name it by TYMPAN_DATABASE, or as `url` in the section \
                 `[database]` of its `tympan.toml`",
                dir.display()
            ))
        })?;
        // The chunks at hand belong to the instance.
        let options = PostgresOptions { near: None, ..database_options(dir, config, url) };
        let store = PostgresStore::open(options).map_err(|error| {
            Fault::cannot_run(format!(
                "cannot open the home `{}`: {}",
                dir.display(),
                chain(&error)
            ))
        })?;
        Ok(Arc::new(store))
    }

    fn open_database(dir: &Path, disk: &FileDisk, options: PostgresOptions) -> Result<Self, Fault> {
        let failed = |error: &dyn std::error::Error| {
            Fault::cannot_run(format!("cannot open the home `{}`: {}", dir.display(), chain(error)))
        };
        let files = disk.list("").map_err(|error| failed(&error))?;
        if files.iter().any(|file| file.starts_with("pack-")) {
            return Err(Fault::usage(format!(
                "the home `{}` has a repository of its own in `store`; give a database to a new home",
                dir.display()
            )));
        }
        let lock = disk.lock().map_err(|error| match error {
            LockError::Held { pid } => {
                failed(&tympan_store::Error::Locked { dir: dir.to_owned(), pid })
            }
            LockError::Io(error) => failed(&error),
        })?;
        let store = PostgresStore::open(options).map_err(|error| failed(&error))?;
        std::fs::write(dir.join("store").join(MARK), "").map_err(|error| failed(&error))?;
        let store = Arc::new(store);
        let database = Some(Arc::clone(&store));
        Ok(Self { chunks: store, local: None, database, base: None, lock: Some(lock) })
    }
}

/// Returns where small mutable state lies if the repository lies in a database: its URL, and the name of the schema.
pub(crate) fn state_database(config: &Config) -> Option<(String, String)> {
    let section = &config.database;
    let mut url = CHOSEN.get().or(section.url.as_ref())?.clone();
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
fn database_options(dir: &Path, config: &Config, url: &str) -> PostgresOptions {
    let section = &config.database;
    let mut options = PostgresOptions::new(url);
    if let Some(schema) = &section.schema {
        options.schema.clone_from(schema);
    }
    if let Some(connections) = section.max_connections {
        options.max_connections = connections;
    }
    for (set, span) in [
        (&mut options.wait, section.wait),
        (&mut options.idle, section.idle),
        (&mut options.statement_timeout, section.statement_timeout),
    ] {
        if let Some(span) = span {
            *set = span.0;
        }
    }
    options.tls_ca.clone_from(&section.tls_ca);
    if let Some(cache) = config.store.cache {
        options.cache = ByteSize::bytes(cache.0);
    }
    let size = section.cache_size.map_or(NEAR_BYTES, |size| size.0);
    options.near = (size > 0).then(|| NearCache {
        dir: section.cache_dir.clone().unwrap_or_else(|| dir.join("chunks")),
        size: ByteSize::bytes(size),
    });
    options
}

/// Bytes of chunks that are kept at hand beside the process unless configured.
const NEAR_BYTES: u64 = 1 << 30;
