//! Opening a vault: where it is, and its password, which never comes from the command line itself.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tympan_backup::{Clients, Error, KeyCost, Lock, LockMode, Opening, Vault, Who};

use super::{failed, place, signals};
use crate::args::backup::{ClientArguments, ReadArguments, VaultArguments};
use crate::command::Fault;

/// The variable that has the password.
const PASSWORD: &str = "TYMPAN_VAULT_PASSWORD";
/// How often it is tried again to lock a vault that others use.
const LOOK: Duration = Duration::from_millis(200);

/// An opened vault.
pub(super) struct Opened {
    pub(super) vault: Arc<Vault>,
    pub(super) who: Who,
    wait: Duration,
}

impl Opened {
    /// Locks the vault.
    pub(super) fn lock(&self, mode: LockMode) -> Result<Lock, Fault> {
        lock(&self.vault, &self.who, (mode, self.wait))
    }

    /// Keeps prunes away while the vault is read, unless nothing may be written there.
    pub(super) fn lock_to_read(&self, reading: ReadArguments) -> Result<Option<Lock>, Fault> {
        if reading.no_lock {
            return Ok(None);
        }
        lock_or(&self.vault, &self.who, (LockMode::Shared, self.wait, unread)).map(Some)
    }
}

/// Says what else helps who only reads.
fn unread(error: Error) -> Fault {
    let is_fixed = matches!(&error, Error::Backend { source, .. }
        if matches!(source.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied));
    let fault = failed(error);
    if !is_fixed {
        return fault;
    }
    let text = fault.message();
    Fault::with_code(format!("{text}; `--no-lock` reads a vault that cannot be written"), 1)
}

/// Locks a vault, waiting for others for at most `wait`. From now on a signal does not end the process by itself, so that
/// none leaves a lock behind; who holds the lock looks whether somebody has asked.
pub(super) fn lock(
    vault: &Arc<Vault>,
    who: &Who,
    (mode, wait): (LockMode, Duration),
) -> Result<Lock, Fault> {
    lock_or(vault, who, (mode, wait, failed))
}

/// As [`lock`], by somebody who says what a failure means.
fn lock_or(
    vault: &Arc<Vault>,
    who: &Who,
    (mode, wait, meaning): (LockMode, Duration, fn(Error) -> Fault),
) -> Result<Lock, Fault> {
    signals::listen()?;
    let begin = Instant::now();
    loop {
        match Lock::take(vault, who, mode, Duration::ZERO) {
            Err(Error::Locked { .. }) if signals::is_asked() => return Err(signals::interrupted()),
            Err(Error::Locked { .. }) if begin.elapsed() < wait => std::thread::sleep(LOOK),
            taken => return taken.map_err(meaning),
        }
    }
}

/// Returns whose snapshots are meant: those of this host unless something else is said.
pub(super) fn clients(arguments: &ClientArguments) -> Clients {
    if arguments.all_clients {
        return Clients::All;
    }
    let named: Vec<String> =
        arguments.host.iter().filter(|name| !name.is_empty()).cloned().collect();
    Clients::Named(if named.is_empty() { vec![Who::this_process().host] } else { named })
}

/// Returns the folder for what spares work and may be thrown away at any time; nothing if this user has none.
pub(super) fn cache() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").filter(|folder| folder.is_absolute());
    let cache = cache.or_else(|| Some(variable("HOME")?.join(".cache")))?;
    cache.is_absolute().then(|| cache.join("tympan/backup"))
}

/// Returns the file with the log of this user's runs; nothing if this user has no place for it.
pub(super) fn runs(vault: &str) -> Option<PathBuf> {
    state_file(&format!("{vault}.jsonl"))
}

/// Returns the file that notes what this machine's clock said when the vault was pruned; nothing if this user has no place
/// for it.
pub(super) fn clock(vault: &str) -> Option<PathBuf> {
    state_file(&format!("{vault}.clock"))
}

fn state_file(name: &str) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let state = variable("XDG_STATE_HOME").filter(|folder| folder.is_absolute());
    let state = state.or_else(|| Some(variable("HOME")?.join(".local/state")))?;
    state.is_absolute().then(|| state.join("tympan/backup").join(name))
}

/// Returns the time now.
pub(super) fn now() -> jiff::Timestamp {
    SystemTime::now().try_into().unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}

/// Makes a vault.
pub(super) fn init(arguments: &VaultArguments) -> Result<Vault, Fault> {
    let backend = place::backend(arguments)?;
    let password = password(arguments)?;
    let by = Who::this_process();
    Vault::init(backend, &password.line, KeyCost::default(), (&by, now())).map_err(failed)
}

/// Opens a vault.
pub(super) fn open(arguments: &VaultArguments) -> Result<Opened, Fault> {
    let vault = Arc::new(open_alone(arguments)?);
    let wait = Duration::from_secs(arguments.retry_lock);
    Ok(Opened { vault, who: Who::this_process(), wait })
}

/// Opens a vault that nothing else in this process uses.
pub(super) fn open_alone(arguments: &VaultArguments) -> Result<Vault, Fault> {
    open_for(arguments, Opening::default())
}

/// As [`open_alone`], for somebody who takes a shared lock next, and saves.
pub(super) fn open_to_save(arguments: &VaultArguments, who: &Who) -> Result<Vault, Fault> {
    open_for(arguments, Opening { saves: Some(who), ..Opening::default() })
}

fn open_for(arguments: &VaultArguments, opening: Opening<'_>) -> Result<Vault, Fault> {
    let backend = place::backend(arguments)?;
    let keys = place::kept_folder(arguments.place.tree_cache()).map(|folder| folder.join("keys"));
    let opening = Opening { keys: keys.as_deref(), ..opening };
    let password = password(arguments)?;
    let open = |password: &[u8]| Vault::open_for(backend.clone(), password, opening);
    let mut vault = password.open_with(open).map_err(failed)?;
    if backend.is_remote() {
        place::keep_here(&mut vault, arguments.place.tree_cache());
    } else if let Err(error) = backend.remove_leftovers(SystemTime::now()) {
        // Elsewhere that costs time, and is left to a prune.
        tracing::warn!(%error, "what an earlier run left in the vault could not be removed");
    }
    Ok(vault)
}

/// A vault's password.
pub(crate) struct Password {
    /// Without what is blank around it.
    line: Vec<u8>,
    /// With that, as vaults may have been made; nothing if it is the same.
    with_blanks: Option<Vec<u8>>,
}

impl Password {
    fn of(text: &[u8], missing: &str) -> Result<Self, Fault> {
        let line = first_line(text, missing)?;
        let whole = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let whole = whole.strip_suffix(b"\r").unwrap_or(whole);
        let is_other = !whole.is_empty() && whole != line.as_slice();
        Ok(Self { with_blanks: is_other.then(|| whole.to_vec()), line })
    }

    /// Reads the password in a file, as [`password_of_file`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn of_file(file: &Path) -> Result<Self, Fault> {
        Self::of(&read(file)?, &format!("`{}` holds no password", file.display()))
    }

    /// Opens a vault by it, and by the whole line with its blanks if that is what opens it.
    ///
    /// # Errors
    /// What `open` says.
    pub(crate) fn open_with<T>(
        &self,
        open: impl Fn(&[u8]) -> tympan_backup::Result<T>,
    ) -> tympan_backup::Result<T> {
        let Some(whole) = &self.with_blanks else { return open(&self.line) };
        match open(&self.line) {
            Err(Error::WrongPassword) => {
                let opened = open(whole)?;
                tracing::warn!(
                    "the vault's password has blanks around it: change it to one without"
                );
                Ok(opened)
            }
            opened => opened,
        }
    }
}

fn password(arguments: &VaultArguments) -> Result<Password, Fault> {
    if let Some(file) = &arguments.password_file {
        return Password::of_file(file);
    }
    if let Some(command) = &arguments.password_command {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).stderr(std::process::Stdio::inherit());
        let output = shell.output().map_err(|error| {
            Fault::usage(format!("cannot run the command for the password: {error}"))
        })?;
        if !output.status.success() {
            let text = format!("the command for the password has failed: {}", output.status);
            return Err(Fault::usage(text));
        }
        return Password::of(&output.stdout, "the command for the password wrote nothing");
    }
    match std::env::var(PASSWORD) {
        Ok(password) if !password.is_empty() => {
            Ok(Password { line: password.into_bytes(), with_blanks: None })
        }
        _ => Err(Fault::usage(format!(
            "no password: name a file with `--password-file`, a command with `--password-command`, or set {PASSWORD}"
        ))),
    }
}

/// Reads the password in a file: its first line, without what is blank around it, as restic reads it.
///
/// # Errors
/// If the file cannot be read, or has none.
pub(crate) fn password_of_file(file: &Path) -> Result<Vec<u8>, Fault> {
    first_line(&read(file)?, &format!("`{}` holds no password", file.display()))
}

fn read(file: &Path) -> Result<Vec<u8>, Fault> {
    std::fs::read(file)
        .map_err(|error| Fault::usage(format!("cannot read `{}`: {error}", file.display())))
}

fn first_line(bytes: &[u8], missing: &str) -> Result<Vec<u8>, Fault> {
    let line = bytes.trim_ascii().split(|byte| matches!(byte, b'\n' | b'\r')).next();
    let line = line.unwrap_or_default().trim_ascii_end();
    if line.is_empty() { Err(Fault::usage(missing)) } else { Ok(line.to_vec()) }
}

#[cfg(test)]
mod tests {
    use tympan_backup::Error;

    use super::{Password, first_line};

    #[test]
    fn vaults_open_by_passwords_with_blanks() {
        let opened_by = |file: &[u8], password: &[u8]| {
            let open = |tried: &[u8]| {
                if tried == password { Ok(()) } else { Err(Error::WrongPassword) }
            };
            Password::of(file, "none").ok().unwrap().open_with(open).is_ok()
        };
        for file in [b" secret \r\nmore\n".as_slice(), b" secret \n", b" secret "] {
            assert!(opened_by(file, b"secret"));
            assert!(opened_by(file, b" secret "));
            assert!(!opened_by(file, b"secret "));
        }
        assert!(!opened_by(b"secret\n", b"secret\n"));
    }

    #[test]
    fn passwords_are_without_what_is_blank_around_them() {
        for text in ["secret word", "secret word\n", " secret word \r\nmore\n", "\n\tsecret word"] {
            let line = first_line(text.as_bytes(), "none").ok();
            assert_eq!(line.as_deref(), Some(b"secret word".as_slice()), "{text:?}");
        }
        assert!(first_line(b" \n", "none").is_err());
    }
}
