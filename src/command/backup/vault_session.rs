//! Opening a vault: its location, and its password, which is never a command-line argument.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tympan_backup::{
    ClientFilter, Error, KeyDerivationCost, Vault, VaultLock, VaultLockMode, VaultOpening,
    VaultPassword, VaultUser,
};
use tympan_terminal::CommandFault;

use super::fault::backup_fault;
use super::interrupt_signal::{interrupted_fault, is_interrupted, listen_for_interrupts};
use super::vault_location::{vault_backend, vault_cache_dir};
use crate::args::backup::{SnapshotClientArgs, VaultArgs, VaultReadArgs};

/// The environment variable with the password.
const PASSWORD_VARIABLE: &str = "TYMPAN_VAULT_PASSWORD";
/// The interval at which locking a vault in use is retried.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// An opened vault.
pub(super) struct VaultSession {
    pub(super) vault: Arc<Vault>,
    pub(super) user: VaultUser,
    lock_timeout: Duration,
}

impl VaultSession {
    /// Locks the vault.
    pub(super) fn lock(&self, mode: VaultLockMode) -> Result<VaultLock, CommandFault> {
        lock_vault(&self.vault, &self.user, mode, self.lock_timeout)
    }

    /// Prevents prunes while the vault is read, unless nothing may be written there.
    pub(super) fn lock_for_reading(
        &self,
        reading: VaultReadArgs,
    ) -> Result<Option<VaultLock>, CommandFault> {
        if reading.no_lock {
            return Ok(None);
        }
        lock_vault_with_error(
            &self.vault,
            &self.user,
            VaultLockMode::Shared,
            self.lock_timeout,
            read_only_lock_fault,
        )
        .map(Some)
    }
}

/// Extends the message of a failed lock with the alternative for commands that only read.
fn read_only_lock_fault(error: Error) -> CommandFault {
    let is_fixed = matches!(&error, Error::Backend { source, .. }
        if matches!(source.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied));
    let fault = backup_fault(error);
    if !is_fixed {
        return fault;
    }
    let text = fault.message();
    CommandFault::with_code(
        format!("{text}; use `--no-lock` to read a vault that is not writable"),
        1,
    )
}

/// Locks a vault, waiting for other processes for at most `wait`. From now on a signal does not end the process by
/// itself, so that no lock is left behind; the holder of the lock must check for interrupts.
pub(super) fn lock_vault(
    vault: &Arc<Vault>,
    user: &VaultUser,
    mode: VaultLockMode,
    wait: Duration,
) -> Result<VaultLock, CommandFault> {
    lock_vault_with_error(vault, user, mode, wait, backup_fault)
}

/// Locks as [`lock_vault`] does, for callers that map errors themselves.
fn lock_vault_with_error(
    vault: &Arc<Vault>,
    user: &VaultUser,
    mode: VaultLockMode,
    wait: Duration,
    meaning: fn(Error) -> CommandFault,
) -> Result<VaultLock, CommandFault> {
    listen_for_interrupts()?;
    let begin = Instant::now();
    loop {
        match VaultLock::acquire(vault, user, mode, Duration::ZERO) {
            Err(Error::Locked { .. }) if is_interrupted() => {
                return Err(interrupted_fault());
            }
            Err(Error::Locked { .. }) if begin.elapsed() < wait => {
                std::thread::sleep(LOCK_POLL_INTERVAL)
            }
            result => return result.map_err(meaning),
        }
    }
}

/// Returns the filter of clients: by default this host.
pub(super) fn selected_clients(arguments: &SnapshotClientArgs) -> ClientFilter {
    if arguments.all_clients {
        return ClientFilter::All;
    }
    let named: Vec<String> =
        arguments.host.iter().filter(|name| !name.is_empty()).cloned().collect();
    ClientFilter::Named(if named.is_empty() { vec![VaultUser::this_process().host] } else { named })
}

/// Returns the folder for caches that may be deleted at any time; `None` if this user has none.
pub(super) fn cache_dir() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").filter(|folder| folder.is_absolute());
    let cache = cache.or_else(|| Some(variable("HOME")?.join(".cache")))?;
    cache.is_absolute().then(|| cache.join("tympan/backup"))
}

/// Returns the file with the log of this user's runs; `None` if this user has no location for it.
pub(super) fn run_log_file(vault: &str) -> Option<PathBuf> {
    user_state_file(&format!("{vault}.jsonl"))
}

/// Returns the file that records this machine's clock at each prune of the vault; `None` if this user has no location
/// for it.
pub(super) fn clock_record_file(vault: &str) -> Option<PathBuf> {
    user_state_file(&format!("{vault}.clock"))
}

fn user_state_file(name: &str) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let state = variable("XDG_STATE_HOME").filter(|folder| folder.is_absolute());
    let state = state.or_else(|| Some(variable("HOME")?.join(".local/state")))?;
    state.is_absolute().then(|| state.join("tympan/backup").join(name))
}

/// Returns the current time.
pub(super) fn current_timestamp() -> jiff::Timestamp {
    SystemTime::now().try_into().unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}

/// Creates a vault.
pub(super) fn init_vault(arguments: &VaultArgs) -> Result<Vault, CommandFault> {
    let backend = vault_backend(arguments)?;
    let password = read_vault_password(arguments)?;
    let by = VaultUser::this_process();
    Vault::init(
        backend,
        password.as_bytes(),
        KeyDerivationCost::default(),
        (&by, current_timestamp()),
    )
    .map_err(backup_fault)
}

/// Opens a vault.
pub(super) fn open_vault(arguments: &VaultArgs) -> Result<VaultSession, CommandFault> {
    let vault = Arc::new(open_vault_exclusively(arguments)?);
    let wait = arguments.retry_lock;
    Ok(VaultSession { vault, user: VaultUser::this_process(), lock_timeout: wait })
}

/// Opens a vault that no other part of this process uses.
pub(super) fn open_vault_exclusively(arguments: &VaultArgs) -> Result<Vault, CommandFault> {
    open_vault_with(arguments, VaultOpening::default())
}

/// Opens as [`open_vault_exclusively`] does, for callers that take a shared lock next, and save.
pub(super) fn open_vault_to_save(
    arguments: &VaultArgs,
    user: &VaultUser,
) -> Result<Vault, CommandFault> {
    open_vault_with(arguments, VaultOpening { saving_user: Some(user), ..VaultOpening::default() })
}

fn open_vault_with(
    arguments: &VaultArgs,
    opening: VaultOpening<'_>,
) -> Result<Vault, CommandFault> {
    let backend = vault_backend(arguments)?;
    let keys =
        vault_cache_dir(arguments.place.tree_cache_bytes()).map(|folder| folder.join("keys"));
    let opening = VaultOpening { key_cache_dir: keys.as_deref(), ..opening };
    let password = read_vault_password(arguments)?;
    let open = |password: &[u8]| Vault::open_with(backend.clone(), password, opening);
    let mut vault = password.open_with(open).map_err(backup_fault)?;
    if backend.is_remote() {
        enable_vault_cache(&mut vault, arguments.place.tree_cache_bytes());
    } else if let Err(error) = backend.remove_leftovers(SystemTime::now()) {
        // On a remote vault the removal takes time, and is left to a prune.
        tracing::warn!(%error, "cannot remove leftovers of an earlier run from the vault");
    }
    Ok(vault)
}

fn read_vault_password(arguments: &VaultArgs) -> Result<VaultPassword, CommandFault> {
    if let Some(file) = &arguments.password_file {
        return VaultPassword::from_file(file).map_err(backup_fault);
    }
    if let Some(command) = &arguments.password_command {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).stderr(std::process::Stdio::inherit());
        let output = shell.output().map_err(|error| {
            CommandFault::usage(format!("cannot run the password command: {error}"))
        })?;
        if !output.status.success() {
            let text = format!("the password command failed: {}", output.status);
            return Err(CommandFault::usage(text));
        }
        return VaultPassword::from_first_line(&output.stdout)
            .ok_or_else(|| CommandFault::usage("the password command printed nothing"));
    }
    match std::env::var(PASSWORD_VARIABLE) {
        Ok(password) if !password.is_empty() => Ok(VaultPassword::exact(password.into_bytes())),
        _ => Err(CommandFault::usage(format!(
            "no password: name a file with `--password-file`, a command with `--password-command`, or set {PASSWORD_VARIABLE}"
        ))),
    }
}

/// Enables the local cache of a remote vault; does nothing if there is no location for it.
fn enable_vault_cache(vault: &mut Vault, max_bytes: u64) {
    let Some(dir) = vault_cache_dir(max_bytes) else { return };
    if let Err(error) = vault.enable_cache(&dir, max_bytes) {
        tracing::warn!(%error, file = %dir.display(), "cannot enable the local cache of the vault");
    }
}
