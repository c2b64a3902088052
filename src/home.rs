//! A home: the directory of one instance, opened.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tympan_blobs::CachedBlobStore;
use tympan_content::Repository;
use tympan_replicate::check_pair_key;
use tympan_store::disk::{Disk, DiskLock, DiskLockError, FileDisk};
use tympan_store::{LayeredStore, LocalStore, PostgresStore, StateDatabase};
use tympan_terminal::{CommandFault, error_chain_text};

use crate::blob_storage::HomeBlobStorage;
use crate::config::{self, TympanConfig};
use crate::home_chunk_store::{self, HomeChunkStore};
use crate::home_origin;

/// The name of the user that is created at the first start.
pub(crate) const ADMIN_USER: &str = "admin";

/// The default memory for frequently read blobs.
const DEFAULT_HOT_BLOB_BYTES: u64 = 64 << 20;

/// An opened home. No other process can open it at the same time.
pub(crate) struct Home {
    pub(crate) dir: PathBuf,
    pub(crate) config: TympanConfig,
    /// The packs of this home, if they store the repository.
    pub(crate) local: Option<Arc<LocalStore>>,
    /// The database, if it stores the repository.
    pub(crate) database: Option<Arc<PostgresStore>>,
    /// The packs layered over the base, if the home is a clone.
    pub(crate) composite: Option<Arc<LayeredStore>>,
    pub(crate) repository: Repository,
    /// The storage of large blobs.
    pub(crate) blobs: HomeBlobStorage,
    /// Excludes other processes if there are no packs that do so.
    _lock: Option<DiskLock>,
}

impl Home {
    /// Opens the stores of a home, which is created if it does not exist.
    ///
    /// # Errors
    /// A [`CommandFault`] that names the process that holds the home, or the damage.
    pub(crate) fn open(dir: &Path) -> Result<Self, CommandFault> {
        home_origin::refuse_standby(dir)?;
        let config = config::read_home_config(dir)?;
        let failed = |error: &(dyn std::error::Error + 'static)| {
            let advice = damage_advice(error, dir);
            let said = error_chain_text(error);
            CommandFault::cannot_run(format!(
                "cannot open the home `{}`: {said}{advice}",
                dir.display()
            ))
        };
        create_private_dir(dir).map_err(|error| failed(&error))?;
        restrict_private_folders(dir);
        let backend = HomeChunkStore::open(dir, &config)?;
        let blobs = backend.open_blobs(dir, &config)?;
        home_chunk_store::record_blob_url(dir, &config)?;
        let HomeChunkStore { chunks, local, database, overlay_base: base, lock } = backend;
        let composite = base.map(|(composite, _)| composite);
        let hot = config.store.hot_blobs.map_or(DEFAULT_HOT_BLOB_BYTES, |size| size.0);
        let store = Arc::new(CachedBlobStore::new(blobs.store.clone(), hot));
        // All observers of content begin with this read.
        chunks.ref_history(home_origin::MAIN_BRANCH, None, 1).map_err(|error| failed(&error))?;
        let repository = Repository::open(chunks, store).map_err(|error| failed(&error))?;
        let dir = dir.to_owned();
        Ok(Self { dir, config, local, database, composite, repository, blobs, _lock: lock })
    }

    /// Opens the stores of an existing home.
    ///
    /// # Errors
    /// [`CommandFault::usage`] if there is no such home; otherwise as [`Home::open`].
    pub(crate) fn open_existing(dir: &Path) -> Result<Self, CommandFault> {
        require_home(dir)?;
        Self::open(dir)
    }

    /// Opens the state database with the tables of all components that use it.
    ///
    /// # Errors
    /// If the database cannot be opened or migrated.
    pub(crate) async fn open_state(&self) -> Result<StateDatabase, CommandFault> {
        open_configured_state(&self.dir, &self.config).await
    }

    /// Creates the first user with a random password, unless there are users. The password is written to
    /// `initial-password`, which only the owner may read, and is returned.
    ///
    /// # Errors
    /// If the system provides no random bytes, or the file or content cannot be written.
    pub(crate) fn create_admin(&self) -> Result<Option<String>, CommandFault> {
        let failed = |error: &dyn std::error::Error| {
            CommandFault::cannot_run(format!(
                "cannot create the user `{ADMIN_USER}`: {}",
                error_chain_text(error)
            ))
        };
        let users = tympan_content::NodePath::new("/home/users").map_err(|error| failed(&error))?;
        let snapshot = self.repository.snapshot().map_err(|error| failed(&error))?;
        if snapshot.node(&users).map_err(|error| failed(&error))?.is_some() {
            return Ok(None);
        }
        let password = random_text()?;
        // The file is written first: a user with an unknown password would be worse than a password without its user.
        write_secret_file(&self.dir.join("initial-password"), &password)?;
        let mut session = self.repository.session("system").map_err(|error| failed(&error))?;
        tympan_server::create_user(&mut session, ADMIN_USER, &password)
            .map_err(|error| failed(&error))?;
        create_content_roots(&mut session).map_err(|error| failed(&error))?;
        session
            .commit("create the first user", SystemTime::now())
            .map_err(|error| failed(&error))?;
        Ok(Some(password))
    }
}

/// Creates the folders that editors and guides start from, `/content` and `/content/dam`, and the indexes that resolve
/// vanity paths and aliases. Existing nodes are not changed.
fn create_content_roots(session: &mut tympan_content::Session) -> tympan_content::Result<()> {
    for (path, node_type) in [("/content", "sling:OrderedFolder"), ("/content/dam", "sling:Folder")]
    {
        let path = tympan_content::NodePath::new(path)?;
        if session.node(&path)?.is_none() {
            session.add_node(&path, node_type)?;
        }
    }
    crate::site::put_indexes(session)
}

/// Returns advice on damage to the repository of a home; empty for any other error.
fn damage_advice(error: &(dyn std::error::Error + 'static), dir: &Path) -> String {
    use tympan_store::Error as StoreError;
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
    if !is_damage {
        return String::new();
    }
    format!(
        "; `tympan repo check --home {0}` shows what is lost in `{0}/store`; with `--repair`, it restores the \
         newest good state; `tympan backup restore --home NEW` creates a home from a backup",
        dir.display()
    )
}

/// Refuses a directory that is no home, or whose repository is missing.
///
/// # Errors
/// [`CommandFault::usage`] with the reason.
pub(crate) fn require_home(dir: &Path) -> Result<(), CommandFault> {
    let Ok(store) = fs::read_dir(dir.join("store")) else {
        return Err(CommandFault::usage(format!(
            "`{}` is not the home of an instance: it has no folder `store`",
            dir.display()
        )));
    };
    // Opening an empty store would create a new one, which would be taken for the missing one.
    let is_store = |name: &str| name.starts_with("pack-") || name.starts_with("live-");
    let mut names = store.flatten().map(|entry| entry.file_name());
    if names.any(|name| {
        name == home_chunk_store::DATABASE_MARK_FILE || name.to_str().is_some_and(is_store)
    }) {
        return Ok(());
    }
    Err(CommandFault::usage(format!(
        "the folder `store` of `{}` contains no repository; if it did, check that its disk is mounted, or \
         restore the folder from a backup",
        dir.display()
    )))
}

/// Returns true if another process has a home open.
///
/// # Errors
/// If the home's folder cannot be read.
pub(crate) fn is_home_locked(dir: &Path) -> Result<bool, CommandFault> {
    match FileDisk::open(dir.join("store")).map(|disk| disk.lock_folder()) {
        Ok(Ok(_given_back)) => Ok(false),
        Ok(Err(DiskLockError::AlreadyLocked { .. })) => Ok(true),
        Ok(Err(DiskLockError::Io(error))) | Err(error) => Err(unreadable_home_fault(dir, &error)),
    }
}

/// Refuses a home that another process has open, and names the option that reaches its instance.
///
/// # Errors
/// If another process has it open, or its folder cannot be read.
pub(crate) fn refuse_running_home(dir: &Path) -> Result<(), CommandFault> {
    if !dir.join("store").is_dir() {
        return Ok(());
    }
    match FileDisk::open(dir.join("store")).map(|disk| disk.lock_folder()) {
        Ok(Ok(_given_back)) => Ok(()),
        Ok(Err(DiskLockError::AlreadyLocked { pid })) => {
            let holder =
                pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
            Err(CommandFault::cannot_run(format!(
                "{holder} uses the home `{}`; if it is an instance, name its address instead of the home, such as \
                 `--url http://127.0.0.1:4502`, or stop it first",
                dir.display()
            )))
        }
        Ok(Err(DiskLockError::Io(error))) | Err(error) => Err(unreadable_home_fault(dir, &error)),
    }
}

fn unreadable_home_fault(dir: &Path, error: &dyn std::error::Error) -> CommandFault {
    CommandFault::cannot_run(format!(
        "cannot open the home `{}`: {}",
        dir.display(),
        error_chain_text(error)
    ))
}

/// Opens the state database of a home; its instance may be running.
///
/// # Errors
/// If the database cannot be opened or migrated.
pub(crate) async fn open_state(dir: &Path) -> Result<StateDatabase, CommandFault> {
    open_configured_state(dir, &config::read_home_config(dir)?).await
}

/// Opens the state database: the file of the home, or if a database stores the repository, a schema next to the
/// repository's, so that all instances on it share jobs and logins.
async fn open_configured_state(
    dir: &Path,
    config: &TympanConfig,
) -> Result<StateDatabase, CommandFault> {
    let file = dir.join("state.db");
    let shared = home_chunk_store::state_database_location(config);
    let failed = |error: tympan_store::Error| match &shared {
        Some(_) => CommandFault::cannot_run(format!(
            "cannot open the state database: {}",
            error_chain_text(&error)
        )),
        None => CommandFault::cannot_run(format!(
            "cannot open `{}`: {}",
            file.display(),
            error_chain_text(&error)
        )),
    };
    let state = match &shared {
        Some((url, schema)) => StateDatabase::connect(url, schema).await.map_err(failed)?,
        None => StateDatabase::open(&file).await.map_err(failed)?,
    };
    state.migrate_tables("jobs", tympan_jobs::JOB_MIGRATIONS).await.map_err(failed)?;
    state.migrate_tables("mounts", tympan_mounts::MOUNT_MIGRATIONS).await.map_err(failed)?;
    state.migrate_tables("server", tympan_server::SERVER_MIGRATIONS).await.map_err(failed)?;
    state.migrate_tables("render", tympan_render::ledger::MIGRATIONS).await.map_err(failed)?;
    Ok(state)
}

/// Reads the key that author and publish share, or creates it.
///
/// # Errors
/// If it can be neither read nor created.
pub(crate) fn read_or_create_replication_key(dir: &Path) -> Result<String, CommandFault> {
    let file = dir.join("replication.key");
    match fs::read_to_string(&file) {
        Ok(key) if !key.trim().is_empty() => {
            let key = key.trim().to_owned();
            check_pair_key(&key)
                .map_err(|reason| CommandFault::usage(format!("`{}`: {reason}", file.display())))?;
            Ok(key)
        }
        Ok(_) => Err(CommandFault::usage(format!(
            "`{}` is empty; delete it to have a new key created",
            file.display()
        ))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let key = random_text()?;
            write_secret_file(&file, &key)?;
            Ok(key)
        }
        Err(error) => {
            Err(CommandFault::cannot_run(format!("cannot read `{}`: {error}", file.display())))
        }
    }
}

/// The folders of a home that other users of the machine must not access.
const PRIVATE_FOLDERS: [&str; 7] = ["blobs", "ledger", "logs", "pairs", "search", "spool", "store"];

/// Creates a folder that only its owner may access, regardless of the umask. An existing folder is not changed: it may
/// have been opened on purpose to a web server that serves an export below it.
pub(crate) fn create_private_dir(dir: &Path) -> std::io::Result<()> {
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists || !dir.is_dir() => {
            Err(error)
        }
        _ => Ok(()),
    }
}

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

/// Writes a file of a home that only its owner may read.
pub(crate) fn write_private_file(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).open(file)?.write_all(bytes)
}

/// Writes a file that only its owner may read.
pub(crate) fn write_secret_file(file: &Path, secret: &str) -> Result<(), CommandFault> {
    let write = || -> std::io::Result<()> {
        if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            create_private_dir(folder)?;
        }
        let mut out = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(file)?;
        writeln!(out, "{secret}")?;
        out.sync_all()
    };
    write().map_err(|error| {
        CommandFault::cannot_run(format!("cannot write `{}`: {error}", file.display()))
    })
}

/// Returns a random string of 32 letters and digits that are hard to confuse.
pub(crate) fn random_text() -> Result<String, CommandFault> {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        CommandFault::cannot_run(format!("cannot get random bytes from the system: {error}"))
    })?;
    Ok(bytes
        .iter()
        .filter_map(|byte| LETTERS.get(usize::from(byte % 32)))
        .map(|letter| char::from(*letter))
        .collect())
}
