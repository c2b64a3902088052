//! `tympan backup tune`: which settings make saves of these sources into this vault fast, and what they cost in memory.
//!
//! The trials are saves by processes of their own into a vault that is made beside the real one and removed at the end.

mod sweep;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use serde_json::{Value, json};
use tympan_backup::{Backend, FileKind, Id, KeyCost, Vault, Who};

use self::sweep::{Range, Runs, Trial, sweep};
use super::settings::Settings;
use super::{failed, open, place};
use crate::args::backup::{Scenario, Tune, VaultArguments};
use crate::args::vault::HostKeysCheck;
use crate::command::{Fault, Outcome};
use crate::say;

/// The password of the vault for trials is no secret of anybody.
const PASSWORD: &str = "trial";
/// Where the usual queue begins, in MiB.
const QUEUE: Range = Range { start: 32, least: 1, most: 2048 };
const MIB: u64 = 1 << 20;

/// Searches, prints the table, and keeps the settings.
pub(super) fn run(arguments: &Tune) -> Outcome {
    // What does not open is not worth a search.
    open::open(&arguments.vault)?;
    let bench = Bench::new(arguments)?;
    let mut settings = Settings::default();
    let usual = if bench.backend.is_remote() { 5 } else { 2 };
    let connections = Range { start: usual, least: 1, most: 64 };
    let searched = [("upload-queue", QUEUE, "MiB"), ("connections", connections, "")];
    for (name, range, unit) in searched {
        let mut trial = |value: u64| {
            let mut tried = settings.clone();
            tried.set(name, value);
            bench.trial(&tried)
        };
        let (best, tried) = sweep(range, &mut trial)?;
        settings.set(name, best);
        tell(&arguments.vault, (name, unit), (best, &tried));
    }
    let chosen = settings.options().join(" ");
    let file = if arguments.dry_run { None } else { Some(settings.write(&arguments.vault.vault)?) };
    if arguments.vault.json {
        let file = file.map(|file| file.display().to_string());
        say!("{}", json!({ "message_type": "chosen", "options": chosen, "written_to": file }));
    } else {
        say!("chosen: {chosen}");
        if let Some(file) = file {
            say!("saves of this user into this vault use it from now on: `{}`", file.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(
    vault: &VaultArguments,
    (name, unit): (&str, &str),
    (best, tried): (u64, &BTreeMap<u64, Runs>),
) {
    if !vault.json {
        say!("{:<24} {:>17} {:>19} {:>5}", name, "seconds", "peak memory, MiB", "runs");
    }
    for (value, runs) in tried {
        let ((least, most), (low, high)) = (runs.span(), runs.memory());
        if vault.json {
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
        let memory = format!("{} to {}", low / MIB, high / MIB);
        say!(
            "{mark}{:<23} {times:>17} {memory:>19} {:>5}",
            format!("{value} {unit}"),
            runs.0.len()
        );
    }
    let price = price(best, tried);
    if let Some(text) = price.filter(|_| !vault.json) {
        say!("{text}");
    }
}

/// Says what the chosen setting costs and brings beside the smallest that was tried.
fn price(best: u64, tried: &BTreeMap<u64, Runs>) -> Option<String> {
    let (least, small) = tried.first_key_value()?;
    let chosen = tried.get(&best).filter(|_| *least != best)?;
    let memory = (chosen.memory().1 as f64 - small.memory().1 as f64) / MIB as f64;
    let time = (chosen.seconds() / small.seconds() - 1.0) * 100.0;
    Some(format!("beside {least}: {memory:+.0} MiB for {time:+.0} % of the time"))
}

/// A vault for trials.
struct Bench<'a> {
    arguments: &'a Tune,
    vault: VaultArguments,
    backend: std::sync::Arc<dyn Backend>,
    cache: tempfile::TempDir,
}

impl<'a> Bench<'a> {
    fn new(arguments: &'a Tune) -> Result<Self, Fault> {
        let mut vault = arguments.vault.clone();
        let place = vault.vault.trim_end_matches('/');
        vault.vault = format!("{place}-tune-{}", std::process::id());
        vault.place.append_only = false;
        let backend = place::backend(&vault)?;
        let cache = tempfile::tempdir();
        let cache = cache.map_err(|error| {
            Fault::cannot_run(format!("cannot make a temporary folder: {error}"))
        })?;
        let by = (&Who::this_process(), open::now());
        Vault::init(backend.clone(), PASSWORD.as_bytes(), KeyCost { log_rounds: 10 }, by)
            .map_err(failed)?;
        let bench = Self { arguments, vault, backend, cache };
        if arguments.scenario != Scenario::Full {
            bench.save(&Settings::default())?;
        }
        Ok(bench)
    }

    /// Runs one save.
    fn trial(&self, settings: &Settings) -> Result<Trial, Fault> {
        if self.arguments.scenario == Scenario::Full {
            self.empty(&[FileKind::Snapshot, FileKind::Index, FileKind::Pack])?;
            let cannot =
                |error| Fault::with_code(format!("cannot empty a temporary folder: {error}"), 1);
            for entry in fs::read_dir(self.cache.path()).map_err(cannot)? {
                fs::remove_dir_all(entry.map_err(cannot)?.path()).map_err(cannot)?;
            }
        }
        self.save(settings)
    }

    fn save(&self, settings: &Settings) -> Result<Trial, Fault> {
        let program = std::env::current_exe();
        let program = program
            .map_err(|error| Fault::cannot_run(format!("cannot find this program: {error}")))?;
        let mut command = Command::new(program);
        command.args(["backup", "save", "--json", "-r", &self.vault.vault]);
        command.args(self.place_options()).args(settings.options());
        if self.arguments.scenario == Scenario::Walk {
            command.arg("--force");
        }
        command.args(&self.arguments.sources);
        command.env("TYMPAN_VAULT_PASSWORD", PASSWORD).env_remove("TYMPAN_VAULT_APPEND_ONLY");
        // What is kept for the real vault is of no use, and these runs are not to be in any log.
        command.env("XDG_CACHE_HOME", self.cache.path().join("cache"));
        command.env("XDG_STATE_HOME", self.cache.path().join("state"));
        command.env("XDG_CONFIG_HOME", self.cache.path().join("config"));
        command.stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = command.output();
        let output =
            output.map_err(|error| Fault::cannot_run(format!("cannot run a trial: {error}")))?;
        if !matches!(output.status.code(), Some(0 | 3)) {
            return Err(Fault::with_code(format!("a trial has failed: {}", output.status), 1));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let said: Vec<Value> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let number = |one: &Value, name: &str| one.get(name).and_then(Value::as_u64);
        let elapsed: u64 = said.iter().filter_map(|one| number(one, "elapsed_ms")).sum();
        let peak_bytes = said.iter().filter_map(|one| number(one, "peak_bytes")).max();
        Ok(Trial { seconds: elapsed as f64 / 1000.0, peak_bytes: peak_bytes.unwrap_or(0) })
    }

    /// Says to a trial how the vault is reached.
    fn place_options(&self) -> Vec<String> {
        let place = &self.vault.place;
        let path = |path: &Path| path.display().to_string();
        let mut options = Vec::new();
        for key in &place.ssh_key {
            options.extend(["--ssh-key".to_owned(), path(key)]);
        }
        if let Some(file) = &place.ssh_known_hosts {
            options.extend(["--ssh-known-hosts".to_owned(), path(file)]);
        }
        if let Some(file) = &place.rest_password_file {
            options.extend(["--rest-password-file".to_owned(), path(file)]);
        }
        if let Some(file) = &place.vault_ca {
            options.extend(["--vault-ca".to_owned(), path(file)]);
        }
        if place.ssh_host_keys_check == HostKeysCheck::AcceptNew {
            options.extend(["--ssh-host-keys-check".to_owned(), "accept-new".to_owned()]);
        }
        if let Some(rate) = place.limit_upload {
            options.extend([
                "--limit-upload".to_owned(),
                format!("{} KiB", rate.get().div_ceil(1024)),
            ]);
        }
        options
    }

    fn empty(&self, kinds: &[FileKind]) -> Result<(), Fault> {
        let failed = |error| {
            let text = format!("cannot empty `{}`: {error}", self.backend.place());
            Fault::with_code(text, 1)
        };
        for kind in kinds {
            for (id, _) in self.backend.list(*kind).map_err(failed)? {
                self.backend.remove(*kind, &id).map_err(failed)?;
            }
        }
        Ok(())
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        let kinds =
            [FileKind::Lock, FileKind::Snapshot, FileKind::Index, FileKind::Pack, FileKind::Key];
        let emptied = self.empty(&kinds);
        let emptied = emptied.and_then(|()| {
            self.backend
                .remove(FileKind::Config, &Id::default())
                .map_err(|error| Fault::with_code(error.to_string(), 1))
        });
        if !self.backend.is_remote() {
            fs::remove_dir_all(&self.vault.vault).ok();
        } else if let Err(fault) = emptied {
            tracing::warn!(
                reason = fault.message(),
                place = self.backend.place(),
                "the vault of the trials is left there"
            );
        }
    }
}
