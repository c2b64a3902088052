//! `tympan backup tune`: searches the settings that make saves of these sources into this vault fast, and reports what
//! they cost in memory.
//!
//! The trials are saves by separate processes into a temporary vault next to the real one, which is removed at the end.
//!
//! Invariants
//! * The data that the trials save cannot be read by anyone else: the password of their vault is random, and exists
//!   only in memory.
//! * The temporary vault is emptied even if a signal ends the search.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tympan_backup::{
    KeyDerivationCost, SaveTrial, SettingSearch, TunedSaveSettings, TunedSettingRange, Vault,
    VaultBackend, VaultFileKind, VaultObjectId, VaultUser, search_best_setting,
    trial_location_beside,
};
use tympan_home::random_text;
use tympan_terminal::{CommandFault, CommandOutcome, PROGRAM_FILE, say};

use super::{backup_fault, interrupt_signal, vault_location, vault_session};
use crate::args::backup::{BackupTuneArgs, BackupTuneScenario, VaultArgs};
use crate::args::vault::HostKeyCheckMode;
use crate::home_fault::home_fault;

/// The range of upload queue sizes, in MiB; the search starts at the default.
const QUEUE_RANGE: TunedSettingRange = TunedSettingRange { start: 32, min: 1, max: 2048 };
/// The range of sizes of the tree cache, in MiB. It starts small: a cache larger than the working set brings no gain.
const TREE_CACHE_RANGE: TunedSettingRange = TunedSettingRange { start: 4, min: 1, max: 4096 };
const BYTES_PER_MIB: u64 = 1 << 20;

/// Searches, prints the table, and stores the settings.
pub(super) fn run_tune(arguments: &BackupTuneArgs) -> CommandOutcome {
    // Fail early if the vault does not open.
    vault_session::open_vault(&arguments.vault)?;
    let bench = SaveTrialBench::new(arguments)?;
    let mut settings = TunedSaveSettings::default();
    let usual = if bench.backend.is_remote() { 5 } else { 2 };
    let connections = TunedSettingRange { start: usual, min: 1, max: 64 };
    let mut searched = vec![("upload-queue", QUEUE_RANGE, "MiB"), ("connections", connections, "")];
    // A first save reads nothing from the vault, and a local vault needs no cache.
    if bench.backend.is_remote() && arguments.scenario != BackupTuneScenario::Full {
        searched.push(("tree-cache", TREE_CACHE_RANGE, "MiB"));
    }
    for (name, range, unit) in searched {
        let mut trial = |value: u64| {
            let mut tried = settings.clone();
            tried.set_value(name, value);
            bench.run_trial(&tried)
        };
        let search = search_best_setting(range, &mut trial)?;
        settings.set_value(name, search.best);
        print_tried_settings(&search, name, unit, arguments.vault.json);
    }
    let chosen = settings.to_command_options().join(" ");
    let location = &arguments.vault.vault;
    let file = if arguments.dry_run {
        None
    } else {
        let config_dir = vault_location::user_config_dir().ok_or_else(|| {
            CommandFault::usage(
                "cannot locate the settings: neither XDG_CONFIG_HOME nor HOME is set",
            )
        })?;
        // Settings that this scenario does not search keep the values of earlier searches.
        let earlier = TunedSaveSettings::read(Some(&config_dir), location);
        Some(settings.merged_over(&earlier).write(&config_dir, location).map_err(backup_fault)?)
    };
    if arguments.vault.json {
        let file = file.map(|file| file.display().to_string());
        say!("{}", json!({ "message_type": "chosen", "options": chosen, "written_to": file }));
    } else {
        say!("chosen: {chosen}");
        if let Some(file) = file {
            say!("later saves by this user into this vault will use it: `{}`", file.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_tried_settings(search: &SettingSearch, name: &str, unit: &str, json: bool) {
    let best = search.best;
    if !json {
        say!("{:<24} {:>17} {:>19} {:>5}", name, "seconds", "peak memory, MiB", "runs");
    }
    for (value, runs) in &search.tried {
        let ((least, most), (low, high)) = (runs.seconds_range(), runs.peak_memory_range());
        if json {
            say!(
                "{}",
                json!({
                    "message_type": "tried", "setting": name, "value": value, "unit": unit, "best": *value == best,
                    "seconds_min": least, "seconds_max": most, "peak_bytes_min": low, "peak_bytes_max": high,
                    "runs": runs.0.len(),
                })
            );
            continue;
        }
        let mark = if *value == best { '*' } else { ' ' };
        let times = format!("{least:.2} to {most:.2}");
        let memory = format!("{} to {}", low / BYTES_PER_MIB, high / BYTES_PER_MIB);
        say!(
            "{mark}{:<23} {times:>17} {memory:>19} {:>5}",
            format!("{value} {unit}"),
            runs.0.len()
        );
    }
    if let Some(text) = search.tradeoff().filter(|_| !json) {
        say!("{text}");
    }
}

/// A temporary vault for trials.
struct SaveTrialBench<'a> {
    arguments: &'a BackupTuneArgs,
    vault: VaultArgs,
    backend: Arc<dyn VaultBackend>,
    /// Known only to the processes of the trials.
    password: String,
    cache_dir: tempfile::TempDir,
    search_state: Arc<Mutex<SaveTrialSearch>>,
}

/// The state of a search.
#[derive(Default)]
struct SaveTrialSearch {
    /// The process of the running trial.
    trial_process: Option<Pid>,
    /// True if a signal has requested the end of the search.
    is_stopped: bool,
}

impl<'a> SaveTrialBench<'a> {
    fn new(arguments: &'a BackupTuneArgs) -> Result<Self, CommandFault> {
        let mut vault = arguments.vault.clone();
        vault.vault = trial_location_beside(&vault.vault, std::process::id());
        vault.place.append_only = false;
        let backend = vault_location::vault_backend(&vault)?;
        let cache = tempfile::tempdir();
        let cache = cache.map_err(|error| {
            CommandFault::cannot_run(format!("cannot create a temporary folder: {error}"))
        })?;
        let now: Arc<Mutex<SaveTrialSearch>> = Arc::default();
        let state_handle = now.clone();
        interrupt_signal::call_on_interrupt(Box::new(move || {
            let mut now = state_handle.lock();
            now.is_stopped = true;
            if let Some(trial) = now.trial_process {
                // The process may have ended in the meantime.
                kill_process(trial, Signal::TERM).ok();
            }
        }))?;
        let by = (&VaultUser::this_process(), vault_session::current_timestamp());
        let password = random_text().map_err(home_fault)?;
        // The password is random, so that a cheap key derivation is safe.
        Vault::init(backend.clone(), password.as_bytes(), KeyDerivationCost { log_rounds: 10 }, by)
            .map_err(backup_fault)?;
        let bench =
            Self { arguments, vault, backend, password, cache_dir: cache, search_state: now };
        if arguments.scenario != BackupTuneScenario::Full {
            bench.run_save(&TunedSaveSettings::default())?;
        }
        Ok(bench)
    }

    /// Runs one save.
    fn run_trial(&self, settings: &TunedSaveSettings) -> Result<SaveTrial, CommandFault> {
        if self.arguments.scenario == BackupTuneScenario::Full {
            self.remove_files(&[
                VaultFileKind::Snapshot,
                VaultFileKind::Index,
                VaultFileKind::Pack,
            ])?;
            let cannot = |error| {
                CommandFault::with_code(format!("cannot empty a temporary folder: {error}"), 1)
            };
            for entry in fs::read_dir(self.cache_dir.path()).map_err(cannot)? {
                fs::remove_dir_all(entry.map_err(cannot)?.path()).map_err(cannot)?;
            }
        } else if !self.cache_dir.path().join(settings.trial_cache_name()).exists() {
            // The first run fills the cache, as it is in normal use.
            self.run_save(settings)?;
        }
        self.run_save(settings)
    }

    fn run_save(&self, settings: &TunedSaveSettings) -> Result<SaveTrial, CommandFault> {
        let mut command = Command::new(PROGRAM_FILE);
        command.args(["backup", "save", "--json", "-r", &self.vault.vault]);
        command.args(self.location_options()).args(settings.to_command_options());
        if self.arguments.scenario == BackupTuneScenario::Walk {
            command.arg("--force");
        }
        command.args(&self.arguments.sources);
        command.env("TYMPAN_VAULT_PASSWORD", &self.password);
        command.env_remove("TYMPAN_VAULT_APPEND_ONLY");
        // The cache of the real vault is of no use, and these runs must not appear in any log.
        command.env("XDG_CACHE_HOME", self.cache_dir.path().join(settings.trial_cache_name()));
        command.env("XDG_STATE_HOME", self.cache_dir.path().join("state"));
        command.env("XDG_CONFIG_HOME", self.cache_dir.path().join("config"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let text = self.run_trial_process(command)?;
        let said: Vec<Value> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let number = |record: &Value, name: &str| record.get(name).and_then(Value::as_u64);
        let elapsed: u64 = said.iter().filter_map(|record| number(record, "elapsed_ms")).sum();
        let peak_bytes = said.iter().filter_map(|record| number(record, "peak_bytes")).max();
        Ok(SaveTrial { seconds: elapsed as f64 / 1000.0, peak_bytes: peak_bytes.unwrap_or(0) })
    }

    /// Runs the process of a trial, and returns its output. A signal ends it, and the search.
    fn run_trial_process(&self, mut command: Command) -> Result<String, CommandFault> {
        let cannot = |error| CommandFault::cannot_run(format!("cannot run a trial: {error}"));
        let mut child: Child = {
            let mut now = self.search_state.lock();
            if now.is_stopped {
                return Err(interrupt_signal::interrupted_fault());
            }
            let child = command.spawn().map_err(cannot)?;
            now.trial_process = Some(Pid::from_child(&child));
            child
        };
        let mut output = Vec::new();
        let read = child.stdout.take().map(|mut out| out.read_to_end(&mut output)).transpose();
        // From now on its process id may be reused.
        self.search_state.lock().trial_process = None;
        let status = child.wait().map_err(cannot)?;
        if self.search_state.lock().is_stopped {
            return Err(interrupt_signal::interrupted_fault());
        }
        read.map_err(cannot)?;
        if !matches!(status.code(), Some(0 | 3)) {
            return Err(CommandFault::with_code(format!("a trial failed: {status}"), 1));
        }
        Ok(String::from_utf8_lossy(&output).into_owned())
    }

    /// Returns the options that tell a trial how to reach the vault.
    fn location_options(&self) -> Vec<String> {
        let location = &self.vault.place;
        let path = |path: &Path| path.display().to_string();
        let mut options = Vec::new();
        for key in &location.ssh_key {
            options.extend(["--ssh-key".to_owned(), path(key)]);
        }
        if let Some(file) = &location.ssh_known_hosts {
            options.extend(["--ssh-known-hosts".to_owned(), path(file)]);
        }
        if let Some(file) = &location.rest_password_file {
            options.extend(["--rest-password-file".to_owned(), path(file)]);
        }
        if let Some(file) = &location.vault_ca {
            options.extend(["--vault-ca".to_owned(), path(file)]);
        }
        if location.ssh_host_keys_check == HostKeyCheckMode::AcceptNew {
            options.extend(["--ssh-host-keys-check".to_owned(), "accept-new".to_owned()]);
        }
        let limits = [
            ("--limit-upload", location.limit_upload),
            ("--limit-download", location.limit_download),
        ];
        for (name, rate) in limits {
            let rate = rate.map(|rate| format!("{} KiB", rate.get().div_ceil(1024)));
            options.extend(rate.into_iter().flat_map(|rate| [name.to_owned(), rate]));
        }
        options
    }

    fn remove_files(&self, kinds: &[VaultFileKind]) -> Result<(), CommandFault> {
        let failed = |error| {
            let text = format!("cannot empty `{}`: {error}", self.backend.location());
            CommandFault::with_code(text, 1)
        };
        for kind in kinds {
            for (id, _) in self.backend.list(*kind).map_err(failed)? {
                self.backend.remove(*kind, &id).map_err(failed)?;
            }
        }
        Ok(())
    }
}

impl Drop for SaveTrialBench<'_> {
    fn drop(&mut self) {
        let kinds = [
            VaultFileKind::Lock,
            VaultFileKind::Snapshot,
            VaultFileKind::Index,
            VaultFileKind::Pack,
            VaultFileKind::Key,
        ];
        let emptied = self.remove_files(&kinds);
        let removed = emptied.and_then(|()| {
            let removed = self.backend.remove(VaultFileKind::Config, &VaultObjectId::default());
            removed
                .and_then(|()| self.backend.remove_folders())
                .map_err(|error| CommandFault::with_code(error.to_string(), 1))
        });
        if let Err(fault) = removed {
            tracing::warn!(
                reason = fault.message(),
                place = self.backend.location(),
                "cannot remove the temporary vault of the trials"
            );
        }
    }
}
