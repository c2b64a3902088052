//! Which chunk store a home has.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use tympan_store::disk::{Disk, DiskLock, FileDisk, LockError};
use tympan_store::{
    ByteSize, ChunkStore, LocalOptions, LocalStore, NearCache, PostgresOptions, PostgresStore,
};

use crate::base::Overlaid;
use crate::blobs::Membership;
use crate::command::Fault;
use crate::config::Config;
use crate::home::{chain, write_closed};
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

/// Whether this process is an instance, rather than a command that looks after the home of one.
static SERVES: OnceLock<()> = OnceLock::new();

/// Says that this process is an instance: it decides where blobs lie, also for the commands that come after it.
pub(crate) fn serve() {
    SERVES.get_or_init(|| ());
}

/// The file with the place of blobs that the last instance was told on its command line.
const BLOBS_FILE: &str = "blobs.url";

/// Returns where the blobs of a home lie: by the command line; by that of its last instance; or by the configuration.
///
/// # Errors
/// If the home's note cannot be read.
pub(crate) fn chosen_blobs(dir: &Path, config: &Config) -> Result<Blobs, Fault> {
    let url = match CHOSEN_BLOBS.get() {
        Some(url) => Some(url.clone()),
        // An instance that is told nothing goes by the configuration again.
        None if SERVES.get().is_some() && config.blobs.names_a_place() => None,
        None => noted_blobs(dir)?,
    };
    Ok(config.blobs.clone().at(url))
}

/// Returns where the blobs of the home of somebody else lie, whatever this command line says.
///
/// # Errors
/// If the home's note cannot be read.
pub(crate) fn blobs_of_other(dir: &Path, config: &Config) -> Result<Blobs, Fault> {
    Ok(config.blobs.clone().at(noted_blobs(dir)?))
}

/// Notes where an instance has its blobs, so that no other command looks for them elsewhere, or stores them there.
///
/// # Errors
/// If the note cannot be written.
pub(crate) fn note_blobs(dir: &Path, config: &Config) -> Result<(), Fault> {
    let noted = noted_blobs(dir)?;
    let file = dir.join(BLOBS_FILE);
    match CHOSEN_BLOBS.get() {
        Some(url) if noted.as_ref() == Some(url) => Ok(()),
        Some(url) => crate::base::write_durably(&file, &format!("{url}\n")),
        None if noted.is_some() && SERVES.get().is_some() && config.blobs.names_a_place() => {
            std::fs::remove_file(&file).map_err(|error| {
                Fault::cannot_run(format!("cannot remove `{}`: {error}", file.display()))
            })
        }
        None => Ok(()),
    }
}

fn noted_blobs(dir: &Path) -> Result<Option<String>, Fault> {
    let file = dir.join(BLOBS_FILE);
    match std::fs::read_to_string(&file) {
        Ok(url) => Ok(Some(url.trim().to_owned()).filter(|url| !url.is_empty())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Fault::cannot_run(format!("cannot read `{}`: {error}", file.display()))),
    }
}

/// Tells whether the repository of a home lies in a database, by the command line or its configuration.
///
/// # Errors
/// If the configuration cannot be read.
pub(crate) fn has_database(dir: &Path) -> Result<bool, Fault> {
    Ok(CHOSEN.get().is_some() || crate::config::read(dir)?.database.url.is_some())
}

/// Tells whether the repository of a home lies in a database, by the mark of its last instance.
pub(crate) fn is_in_database(dir: &Path) -> bool {
    dir.join("store").join(MARK).exists()
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
        let section = chosen_blobs(dir, config)?;
        let membership = Membership::of(dir, self.database.clone());
        places::open((dir, &section), &membership, self.chunks.clone(), base)
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
        write_closed(&dir.join("store").join(MARK), b"").map_err(|error| failed(&error))?;
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
