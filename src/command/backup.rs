//! `tympan backup`: saves, lists and restores snapshots, and looks after the vault that holds them.
//!
//! Exit codes are restic's: 0 done, 1 failed or found something, 3 incomplete, 10 no vault, 11 locked, 12 wrong
//! password, 130 interrupted; 2 used wrongly.

mod copy;
mod estimate;
mod give_way;
mod keep;
mod look;
mod mount;
mod open;
mod place;
mod read_only;
mod restore;
mod save;
mod settings;
mod signals;
mod source;
mod tune;
mod view;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tympan_backup::{Error, Progress, Unlock, Who};

pub(crate) use self::give_way::{Before, GivingWay, Yielded};
use self::open::Opened;
pub(crate) use self::open::Password;
pub(crate) use self::place::{backend_at, keep_here};
pub(crate) use self::settings::Settings;
pub(crate) use self::source::{LeftBelow, new_spool};
pub(crate) use self::view::ContentView;
use super::{Fault, Outcome};
use crate::args::backup::{Backup, Key, NewPassword, VaultArguments};
use crate::home::chain;
use crate::say;

/// Some of what was asked for is not in the snapshot, or not restored.
const INCOMPLETE: u8 = 3;

/// Runs the command.
pub(crate) fn run(command: &Backup) -> Outcome {
    match command {
        Backup::Init(arguments) => init(arguments),
        Backup::Save(arguments) => save::run(arguments),
        Backup::List { vault, clients } => look::list(vault, clients),
        Backup::Clients(arguments) => look::clients(arguments),
        Backup::Runs(arguments) => save::runs(arguments),
        Backup::Ls { vault, clients, snapshot, path } => look::ls((vault, clients), snapshot, path),
        Backup::Find { vault, clients, pattern } => look::find((vault, clients), pattern),
        Backup::Diff { vault, clients, old, new } => look::diff((vault, clients), old, new),
        Backup::Dump { vault, clients, snapshot, path } => {
            look::dump((vault, clients), snapshot, path)
        }
        Backup::Restore(arguments) => restore::run(arguments),
        Backup::Verify { vault, clients, reading, instance, snapshot } => {
            restore::verify((vault, clients, *reading), (snapshot, instance))
        }
        Backup::Forget(arguments) => keep::forget(arguments),
        Backup::Prune { vault, grace } => keep::prune(vault, grace.grace),
        Backup::Check { vault, reading, read_data, read_data_subset } => {
            keep::check((vault, *reading), *read_data, read_data_subset.as_deref())
        }
        Backup::Repair { vault, read_data } => keep::repair(vault, *read_data),
        Backup::Key { vault, command } => key(vault, command),
        Backup::Unlock { vault, remove_all } => unlock(vault, *remove_all),
        Backup::Estimate(arguments) => estimate::run(arguments),
        Backup::Stats { vault, clients, snapshots } => look::stats((vault, clients), snapshots),
        Backup::Tune(arguments) => tune::run(arguments),
        Backup::Mount { vault, clients, reading, dir, allow_other } => {
            mount::run((vault, clients, *reading), dir, *allow_other)
        }
    }
}

/// Turns an error into what the command ends with.
#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` gives")]
fn failed(error: Error) -> Fault {
    let code = match error {
        Error::NoVault { .. } => 10,
        Error::Locked { .. } => 11,
        Error::WrongPassword => 12,
        Error::Interrupted => signals::INTERRUPTED,
        Error::Refused(_)
        | Error::VaultExists { .. }
        | Error::SnapshotMissing { .. }
        | Error::ClientMissing { .. }
        | Error::SnapshotAmbiguous { .. }
        | Error::PathMissing { .. } => 2,
        _ => 1,
    };
    Fault::with_code(chain(&error), code)
}

fn init(arguments: &VaultArguments) -> Outcome {
    let vault = open::init(arguments)?;
    if arguments.json {
        say!("{}", serde_json::json!({ "message_type": "initialized", "id": vault.id() }));
    } else {
        say!(
            "made the vault `{}`; without its password nothing in it can be read again",
            arguments.vault
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn key(arguments: &VaultArguments, command: &Key) -> Outcome {
    let mut vault = open::open_alone(arguments)?;
    let (who, now) = (Who::this_process(), open::now());
    let password = |new: &NewPassword| open::password_of_file(&new.new_password_file);
    let cost = tympan_backup::KeyCost::default();
    match command {
        Key::List => {
            for key in vault.keys().map_err(failed)? {
                if arguments.json {
                    say!("{}", serde_json::to_string(&key).unwrap_or_default());
                    continue;
                }
                let mark = if key.is_used { '*' } else { ' ' };
                say!("{mark}{} {}@{} {}", key.id.short(), key.user, key.host, key.created);
            }
        }
        Key::Add(new) => {
            let id = vault.add_key(&password(new)?, cost, (&who, now)).map_err(failed)?;
            say!("added the key {}", id.short());
        }
        Key::Remove { key } => {
            let id = vault.remove_key(key).map_err(failed)?;
            say!("removed the key {}", id.short());
        }
        Key::Passwd(new) => {
            let id = vault.change_password(&password(new)?, cost, (&who, now)).map_err(failed)?;
            say!("the vault opens with the new password, by the key {}", id.short());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn unlock(arguments: &VaultArguments, remove_all: bool) -> Outcome {
    let Opened { vault, who, .. } = open::open(arguments)?;
    let which = if remove_all { Unlock::All } else { Unlock::Stale };
    let removed = vault.unlock(&who, which).map_err(failed)?;
    say!("removed {removed} locks");
    Ok(ExitCode::SUCCESS)
}

/// Shows how far a run is, on a terminal, and stops it when a signal asks for that.
struct Watch {
    done: std::sync::mpsc::Sender<()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watch {
    fn begin(progress: &Arc<Progress>) -> Self {
        let mut watch = Self::silent(progress);
        let (done, ended) = std::sync::mpsc::channel();
        let shown = progress.clone();
        watch.done = done;
        watch.thread = Some(std::thread::spawn(move || show(&shown, &ended)));
        watch
    }

    /// Shows nothing.
    fn silent(progress: &Arc<Progress>) -> Self {
        if let Err(fault) = signals::stop_when_asked(progress) {
            tracing::warn!(reason = fault.message(), "signals end the process where it is");
        }
        let (done, _) = std::sync::mpsc::channel();
        Self { done, thread: None }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The thread may have ended by itself.
        self.done.send(()).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// How often a line tells how far a run is, where there is no terminal for a bar.
const LINE: Duration = Duration::from_secs(60);

/// A bar with rate and time left where it is known how much there is, else a count with a rate; plain lines without a
/// terminal.
fn show(progress: &Progress, ended: &std::sync::mpsc::Receiver<()>) {
    let bar = indicatif::ProgressBar::new_spinner();
    let begin = Instant::now();
    let pause = if bar.is_hidden() { LINE } else { Duration::from_millis(250) };
    while ended.recv_timeout(pause) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        let text = how_far(progress, begin.elapsed());
        if bar.is_hidden() {
            tell_how_far(&text);
            continue;
        }
        bar.set_message(text);
        bar.tick();
    }
    bar.finish_and_clear();
}

#[expect(clippy::print_stderr, reason = "a command speaks to the person who called it")]
fn tell_how_far(text: &str) {
    eprintln!("tympan: {text}");
}

fn how_far(progress: &Progress, elapsed: Duration) -> String {
    use std::sync::atomic::Ordering::Relaxed;
    let (items, bytes) = (progress.items.load(Relaxed), progress.bytes.load(Relaxed));
    let expected = progress.expected_items.load(Relaxed);
    let seconds = elapsed.as_secs().max(1);
    let rate = indicatif::HumanBytes(bytes / seconds);
    let left = match expected.saturating_sub(items) {
        left if left > 0 && items > 0 => {
            format!(" of {expected}, {} s left", left.saturating_mul(seconds) / items)
        }
        _ => String::new(),
    };
    format!("{items}{left}, {}, {rate}/s", indicatif::HumanBytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn how_far_a_run_is_and_how_long_it_takes() {
        let progress = Progress::default();
        let told = |seconds| how_far(&progress, Duration::from_secs(seconds));
        assert_eq!(told(0), "0, 0 B, 0 B/s");
        progress.items.store(50, Relaxed);
        progress.bytes.store(20 << 10, Relaxed);
        assert_eq!(told(10), "50, 20.00 KiB, 2.00 KiB/s");
        progress.expected_items.store(200, Relaxed);
        assert_eq!(told(10), "50 of 200, 30 s left, 20.00 KiB, 2.00 KiB/s");
        // More than was expected.
        progress.items.store(201, Relaxed);
        assert_eq!(told(10), "201, 20.00 KiB, 2.00 KiB/s");
    }
}
