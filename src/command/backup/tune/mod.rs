//! `tympan backup tune`: which settings make saves of these sources into this vault fast, and what they cost in memory.
//!
//! The trials are saves by processes of their own into a vault that is made beside the real one and removed at the end.
//!
//! Invariants
//! * What the trials save can be read by nobody: the password of their vault is random, and in memory alone.
//! * Their vault is emptied also when a signal ends the search.

mod sweep;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tympan_backup::{
    Backend, FileKind, Id, KeyCost, RestAddress, S3Address, SftpAddress, Vault, Who,
};

use self::sweep::{Range, Runs, Trial, sweep};
use super::settings::Settings;
use super::{failed, open, place, signals};
use crate::args::backup::{Scenario, Tune, VaultArguments};
use crate::args::vault::HostKeysCheck;
use crate::command::{Fault, Outcome};
use crate::home::random_text;
use crate::open_program::OPEN_PROGRAM;
use crate::say;

/// Where the usual queue begins, in MiB.
const QUEUE: Range = Range { start: 32, least: 1, most: 2048 };
/// What is kept of a vault elsewhere, in MiB: from little on, as more than what is at work at once brings nothing.
const TREES: Range = Range { start: 4, least: 1, most: 4096 };
const MIB: u64 = 1 << 20;

/// Searches, prints the table, and keeps the settings.
pub(super) fn run(arguments: &Tune) -> Outcome {
    // What does not open is not worth a search.
    open::open(&arguments.vault)?;
    let bench = Bench::new(arguments)?;
    let mut settings = Settings::default();
    let usual = if bench.backend.is_remote() { 5 } else { 2 };
    let connections = Range { start: usual, least: 1, most: 64 };
    let mut searched = vec![("upload-queue", QUEUE, "MiB"), ("connections", connections, "")];
    // A first save reads nothing of the vault, and one here is read where it is.
    if bench.backend.is_remote() && arguments.scenario != Scenario::Full {
        searched.push(("tree-cache", TREES, "MiB"));
    }
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
    let place = &arguments.vault.vault;
    let file = if arguments.dry_run {
        None
    } else {
        // What this scenario does not search stays as another one has found it.
        Some(settings.over(&Settings::read(place)).write(place)?)
    };
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
    backend: Arc<dyn Backend>,
    /// Known to nobody but the processes of the trials.
    password: String,
    cache: tempfile::TempDir,
    now: Arc<Mutex<Now>>,
}

/// What a search is at.
#[derive(Default)]
struct Now {
    /// The process of the trial that runs.
    trial: Option<Pid>,
    /// Whether a signal has asked for the end of the search.
    is_over: bool,
}

impl<'a> Bench<'a> {
    fn new(arguments: &'a Tune) -> Result<Self, Fault> {
        let mut vault = arguments.vault.clone();
        vault.vault = place_beside(&vault.vault, std::process::id());
        vault.place.append_only = false;
        let backend = place::backend(&vault)?;
        let cache = tempfile::tempdir();
        let cache = cache.map_err(|error| {
            Fault::cannot_run(format!("cannot make a temporary folder: {error}"))
        })?;
        let now: Arc<Mutex<Now>> = Arc::default();
        let told = now.clone();
        signals::when_asked(Box::new(move || {
            let mut now = told.lock();
            now.is_over = true;
            if let Some(trial) = now.trial {
                // It may have ended just now.
                kill_process(trial, Signal::TERM).ok();
            }
        }))?;
        let by = (&Who::this_process(), open::now());
        let password = random_text()?;
        // Nobody guesses it, so that the key may be cheap to derive.
        Vault::init(backend.clone(), password.as_bytes(), KeyCost { log_rounds: 10 }, by)
            .map_err(failed)?;
        let bench = Self { arguments, vault, backend, password, cache, now };
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
        } else if !self.cache.path().join(settings.cache_name()).exists() {
            // What is kept was there before, in use.
            self.save(settings)?;
        }
        self.save(settings)
    }

    fn save(&self, settings: &Settings) -> Result<Trial, Fault> {
        let mut command = Command::new(OPEN_PROGRAM);
        command.args(["backup", "save", "--json", "-r", &self.vault.vault]);
        command.args(self.place_options()).args(settings.options());
        if self.arguments.scenario == Scenario::Walk {
            command.arg("--force");
        }
        command.args(&self.arguments.sources);
        command.env("TYMPAN_VAULT_PASSWORD", &self.password);
        command.env_remove("TYMPAN_VAULT_APPEND_ONLY");
        // What is kept for the real vault is of no use, and these runs are not to be in any log.
        command.env("XDG_CACHE_HOME", self.cache.path().join(settings.cache_name()));
        command.env("XDG_STATE_HOME", self.cache.path().join("state"));
        command.env("XDG_CONFIG_HOME", self.cache.path().join("config"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let text = self.output_of(command)?;
        let said: Vec<Value> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let number = |one: &Value, name: &str| one.get(name).and_then(Value::as_u64);
        let elapsed: u64 = said.iter().filter_map(|one| number(one, "elapsed_ms")).sum();
        let peak_bytes = said.iter().filter_map(|one| number(one, "peak_bytes")).max();
        Ok(Trial { seconds: elapsed as f64 / 1000.0, peak_bytes: peak_bytes.unwrap_or(0) })
    }

    /// Runs the process of a trial, and returns what it wrote. A signal ends it, and the search.
    fn output_of(&self, mut command: Command) -> Result<String, Fault> {
        let cannot = |error| Fault::cannot_run(format!("cannot run a trial: {error}"));
        let mut child: Child = {
            let mut now = self.now.lock();
            if now.is_over {
                return Err(signals::interrupted());
            }
            let child = command.spawn().map_err(cannot)?;
            now.trial = Some(Pid::from_child(&child));
            child
        };
        let mut output = Vec::new();
        let read = child.stdout.take().map(|mut out| out.read_to_end(&mut output)).transpose();
        // From now on its number may become that of another process.
        self.now.lock().trial = None;
        let status = child.wait().map_err(cannot)?;
        if self.now.lock().is_over {
            return Err(signals::interrupted());
        }
        read.map_err(cannot)?;
        if !matches!(status.code(), Some(0 | 3)) {
            return Err(Fault::with_code(format!("a trial has failed: {status}"), 1));
        }
        Ok(String::from_utf8_lossy(&output).into_owned())
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
        let limits =
            [("--limit-upload", place.limit_upload), ("--limit-download", place.limit_download)];
        for (name, rate) in limits {
            let rate = rate.map(|rate| format!("{} KiB", rate.get().div_ceil(1024)));
            options.extend(rate.into_iter().flat_map(|rate| [name.to_owned(), rate]));
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

/// Names a place for trials beside a vault; below one that is a whole bucket, all of a server, or somebody's home there.
fn place_beside(vault: &str, process: u32) -> String {
    let vault = vault.trim_end_matches('/');
    let is_home = SftpAddress::parse(vault)
        .is_some_and(|address| address.is_ok_and(|address| address.path == "."));
    let is_top = is_home
        || S3Address::parse(vault)
            .is_some_and(|address| address.is_ok_and(|address| address.prefix.is_empty()))
        || RestAddress::parse(vault).is_some_and(|address| {
            address.is_ok_and(|address| address.url.matches('/').count() == 3)
        });
    format!("{vault}{}tune-{process}", if is_top { '/' } else { '-' })
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        let kinds =
            [FileKind::Lock, FileKind::Snapshot, FileKind::Index, FileKind::Pack, FileKind::Key];
        let emptied = self.empty(&kinds);
        let removed = emptied.and_then(|()| {
            let removed = self.backend.remove(FileKind::Config, &Id::default());
            removed
                .and_then(|()| self.backend.remove_folders())
                .map_err(|error| Fault::with_code(error.to_string(), 1))
        });
        if let Err(fault) = removed {
            tracing::warn!(
                reason = fault.message(),
                place = self.backend.place(),
                "something of the vault of the trials is left there"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::place_beside;

    #[test]
    fn trials_stay_in_the_bucket_and_on_the_server() {
        for (vault, trials) in [
            ("/backup/site/", "/backup/site-tune-7"),
            ("sftp://ann@host/~/repo", "sftp://ann@host/~/repo-tune-7"),
            ("sftp://ann@host/~", "sftp://ann@host/~/tune-7"),
            ("sftp:ann@host:~", "sftp:ann@host:~/tune-7"),
            ("sftp:ann@host:site", "sftp:ann@host:site-tune-7"),
            ("s3:host/bucket/site", "s3:host/bucket/site-tune-7"),
            ("s3:http://host:9000/bucket/", "s3:http://host:9000/bucket/tune-7"),
            ("rest:https://ann@host:8000/site/", "rest:https://ann@host:8000/site-tune-7"),
            ("rest:https://ann@host:8000/", "rest:https://ann@host:8000/tune-7"),
        ] {
            assert_eq!(place_beside(vault, 7), trials);
        }
    }
}
