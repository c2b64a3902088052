//! The homes of this program: opened as its command line, environment and `tympan.toml` say, with the first user and the
//! tables of all components.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use tympan_blobs::{parse_connection_string, parse_profile};
use tympan_content::{NodePath, Session};
use tympan_home::{Home, HomeAccess, HomeProcess, StateTableGroup};
use tympan_store::StateDatabase;
use tympan_store::disk::{Disk, DiskLockError, FileDisk};
use tympan_terminal::{CommandFault, error_chain_text};

use crate::config::{TympanConfig, parse_config_text, read_home_config};
use crate::home_fault::home_fault;

/// The name of the user that is created at the first start.
pub(crate) const ADMIN_USER: &str = "admin";

/// The tables of all components that use the state database.
pub(crate) const STATE_TABLES: [StateTableGroup; 4] = [
    StateTableGroup { name: "jobs", migrations: tympan_jobs::JOB_MIGRATIONS },
    StateTableGroup { name: "mounts", migrations: tympan_mounts::MOUNT_MIGRATIONS },
    StateTableGroup { name: "server", migrations: tympan_server::SERVER_MIGRATIONS },
    StateTableGroup { name: "render", migrations: tympan_render::ledger::MIGRATIONS },
];

/// The database given on the command line.
static DATABASE_URL_OVERRIDE: OnceLock<String> = OnceLock::new();
/// The bucket given on the command line.
static BLOB_URL_OVERRIDE: OnceLock<String> = OnceLock::new();
/// Set if this process is an instance, rather than a command that manages an instance's home.
static IS_INSTANCE_PROCESS: OnceLock<()> = OnceLock::new();

/// Gives a database named by the environment precedence over the configured one, for commands without an argument for
/// it.
pub(crate) fn set_database_from_environment() {
    set_database_url_override(std::env::var("TYMPAN_DATABASE").ok().as_deref());
}

/// Gives a database named on the command line precedence over the configured one.
pub(crate) fn set_database_url_override(url: Option<&str>) {
    if let Some(url) = url {
        // A command line names at most one.
        DATABASE_URL_OVERRIDE.get_or_init(|| url.to_owned());
    }
}

/// Returns the database of the command line or the environment, if there is one.
pub(crate) fn database_url_override() -> Option<&'static str> {
    DATABASE_URL_OVERRIDE.get().map(String::as_str)
}

/// Gives a bucket named on the command line precedence over the configured one.
pub(crate) fn set_blob_url_override(url: Option<&str>) {
    if let Some(url) = url {
        // A command line names at most one.
        BLOB_URL_OVERRIDE.get_or_init(|| url.to_owned());
    }
}

/// Marks this process as an instance: it determines the storage of blobs, also for later commands.
pub(crate) fn mark_instance_process() {
    IS_INSTANCE_PROCESS.get_or_init(|| ());
}

/// Returns how this process opens homes.
pub(crate) fn home_access() -> HomeAccess {
    HomeAccess {
        parse_config: |file, text| Ok(parse_config_text(file, text)?.home_config()),
        read_bucket_settings: default_bucket_settings,
        database_url: DATABASE_URL_OVERRIDE.get().cloned(),
        blob_url: BLOB_URL_OVERRIDE.get().cloned(),
        process: match IS_INSTANCE_PROCESS.get() {
            Some(()) => HomeProcess::Instance,
            None => HomeProcess::Command,
        },
    }
}

/// An opened home, and the whole of its `tympan.toml`.
pub(crate) struct ConfiguredHome {
    pub(crate) home: Home,
    pub(crate) config: TympanConfig,
}

/// Opens a home, which is created if it does not exist.
///
/// # Errors
/// A [`CommandFault`] that names the process that holds the home, or the damage.
pub(crate) fn open_home(dir: &Path) -> Result<ConfiguredHome, CommandFault> {
    let config = read_home_config(dir)?;
    let home = Home::open(&home_access(), dir, config.home_config()).map_err(home_fault)?;
    Ok(ConfiguredHome { home, config })
}

/// Opens the home of an instance that was started before.
///
/// # Errors
/// [`CommandFault::usage`] if there is no such home; otherwise as [`open_home`].
pub(crate) fn open_existing_home(dir: &Path) -> Result<Home, CommandFault> {
    tympan_home::require_home(dir).map_err(home_fault)?;
    Ok(open_home(dir)?.home)
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
    let config = read_home_config(dir)?.home_config();
    tympan_home::open_state_database(&home_access(), dir, &config, &STATE_TABLES)
        .await
        .map_err(home_fault)
}

/// Closes a home, so that the next start need not scan its packs.
///
/// # Errors
/// If the packs cannot be written.
pub(crate) fn close_home(home: &Home) -> Result<(), CommandFault> {
    home.close().map_err(home_fault)
}

/// Creates the first user with a random password, unless there are users. The password is written to
/// `initial-password`, which only the owner may read, and is returned.
///
/// # Errors
/// If the system provides no random bytes, or the file or content cannot be written.
pub(crate) fn create_admin(home: &Home) -> Result<Option<String>, CommandFault> {
    let failed = |error: &dyn std::error::Error| {
        CommandFault::cannot_run(format!(
            "cannot create the user `{ADMIN_USER}`: {}",
            error_chain_text(error)
        ))
    };
    let users = NodePath::new("/home/users").map_err(|error| failed(&error))?;
    let snapshot = home.repository.snapshot().map_err(|error| failed(&error))?;
    if snapshot.node(&users).map_err(|error| failed(&error))?.is_some() {
        return Ok(None);
    }
    let password = tympan_home::random_text().map_err(home_fault)?;
    // The file is written first: a user with an unknown password would be worse than a password without its user.
    tympan_home::write_secret_file(&home.dir.join("initial-password"), &password)
        .map_err(home_fault)?;
    let mut session = home.repository.session("system").map_err(|error| failed(&error))?;
    tympan_server::create_user(&mut session, ADMIN_USER, &password)
        .map_err(|error| failed(&error))?;
    create_content_roots(&mut session).map_err(|error| failed(&error))?;
    session.commit("create the first user", SystemTime::now()).map_err(|error| failed(&error))?;
    Ok(Some(password))
}

/// Creates the folders that editors and guides start from, `/content` and `/content/dam`, and the indexes that resolve
/// vanity paths and aliases. Existing nodes are not changed.
fn create_content_roots(session: &mut Session) -> tympan_content::Result<()> {
    for (path, node_type) in [("/content", "sling:OrderedFolder"), ("/content/dam", "sling:Folder")]
    {
        let path = NodePath::new(path)?;
        if session.node(&path)?.is_none() {
            session.add_node(&path, node_type)?;
        }
    }
    tympan_site::put_indexes(session)
}

/// Returns the settings of a bucket client from the usual files and the environment.
pub(crate) fn default_bucket_settings() -> Result<Vec<(String, String)>, String> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let mut settings = Vec::new();
    let home = variable("HOME").map(PathBuf::from).unwrap_or_default();
    let profile = variable("AWS_PROFILE");
    for (name, usual) in
        [("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")]
    {
        let file = variable(name).map_or_else(|| home.join(".aws").join(usual), PathBuf::from);
        match std::fs::read_to_string(&file) {
            Ok(text) => {
                settings.extend(parse_profile(&text, profile.as_deref().unwrap_or("default")))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("cannot read `{}`: {error}", file.display())),
        }
    }
    if let Some(text) = variable("AZURE_STORAGE_CONNECTION_STRING") {
        settings.extend(parse_connection_string(&text));
    }
    let is_ours = |name: &str| name.starts_with("AWS_") || name.starts_with("AZURE_");
    settings.extend(std::env::vars().filter(|(name, value)| is_ours(name) && !value.is_empty()));
    Ok(settings)
}
