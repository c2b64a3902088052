//! `tympan backup`: saves, lists and restores snapshots, and looks after the vault that holds them.
//!
//! Exit codes are restic's: 0 done, 1 failed or found something, 3 incomplete, 10 no vault, 11 locked, 12 wrong
//! password, 130 interrupted; 2 used wrongly.

mod copy;
mod estimate;
mod give_way;
mod home_files;
mod keep;
mod look;
mod mount;
mod open;
mod place;
mod read_only;
mod restore;
mod save;
mod selection;
mod settings;
mod signals;
mod source;
mod transfer;
mod tune;
mod view;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tympan_backup::{Error, Id, Progress, Unlock, Who};

pub(crate) use self::give_way::{Before, GivingWay, Yielded};
pub(crate) use self::home_files::{StateDatabase, read as read_home_files};
use self::open::Opened;
pub(crate) use self::open::Password;
pub(crate) use self::place::{backend_at, keep_here};
pub(crate) use self::settings::Settings;
pub(crate) use self::source::{BesideInstance, LeftBelow, new_spool};
pub(crate) use self::view::ContentView;
use super::{Fault, Outcome};
use crate::args::backup::{Backup, Key, NewPassword, VaultArguments};
use crate::home::chain;
use crate::say;

/// Some of what was asked for is not in the snapshot, or not restored.
const INCOMPLETE: u8 = 3;

/// Runs the command.
pub(crate) fn run(command: &Backup) -> Outcome {
    let done = run_command(command);
    match done {
        Err(fault) if command.is_json() => {
            tell_failure(&fault);
            Ok(fault.exit_code())
        }
        done => done,
    }
}

/// Says in restic's words why a command failed.
fn tell_failure(fault: &Fault) {
    use std::io::Write as _;
    let said = json!({
        "message_type": "exit_error", "code": fault.code(), "message": fault.message(),
    });
    // Where that cannot be written, the exit code has to do.
    writeln!(std::io::stderr(), "{said}").ok();
}

fn run_command(command: &Backup) -> Outcome {
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
        Backup::Copy(arguments) => transfer::copy(arguments),
        Backup::Tag(arguments) => transfer::tag(arguments),
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
        say!("{}", json!({ "message_type": "initialized", "id": vault.id() }));
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
            tell_key(arguments, ("key_added", "added the key"), &id);
        }
        Key::Remove { key } => {
            let id = vault.remove_key(key).map_err(failed)?;
            tell_key(arguments, ("key_removed", "removed the key"), &id);
        }
        Key::Passwd(new) => {
            let id = vault.change_password(&password(new)?, cost, (&who, now)).map_err(failed)?;
            let words = "the vault opens with the new password, by the key";
            tell_key(arguments, ("password_changed", words), &id);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn tell_key(arguments: &VaultArguments, (done, words): (&str, &str), id: &Id) {
    if arguments.json {
        say!("{}", json!({ "message_type": done, "id": id.to_string() }));
    } else {
        say!("{words} {}", id.short());
    }
}

fn unlock(arguments: &VaultArguments, remove_all: bool) -> Outcome {
    let Opened { vault, who, .. } = open::open(arguments)?;
    let which = if remove_all { Unlock::All } else { Unlock::Stale };
    let removed = vault.unlock(&who, which).map_err(failed)?;
    if arguments.json {
        say!("{}", json!({ "message_type": "unlocked", "removed_locks": removed }));
    } else {
        say!("removed {removed} locks");
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows how far a run is, on a terminal or to a program, and stops it when a signal asks for that.
struct Watch {
    done: std::sync::mpsc::Sender<()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watch {
    fn begin(progress: &Arc<Progress>, is_json: bool) -> Self {
        let mut watch = Self::silent(progress);
        let (done, ended) = std::sync::mpsc::channel();
        let shown = progress.clone();
        watch.done = done;
        let show = if is_json { show_status } else { show };
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

/// How often a program is told how far a run is.
const STATUS: Duration = Duration::from_secs(1);

/// A line of JSON now and then, in restic's words.
fn show_status(progress: &Progress, ended: &std::sync::mpsc::Receiver<()>) {
    let begin = Instant::now();
    while ended.recv_timeout(STATUS) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        say!("{}", status(progress, begin.elapsed()));
    }
}

/// Says how far a run is; of how much, where that is known.
fn status(progress: &Progress, elapsed: Duration) -> Value {
    use std::sync::atomic::Ordering::Relaxed;
    let (items, bytes) = (progress.items.load(Relaxed), progress.bytes.load(Relaxed));
    let (all, all_bytes) =
        (progress.expected_items.load(Relaxed), progress.expected_bytes.load(Relaxed));
    let mut said = json!({
        "message_type": "status", "seconds_elapsed": elapsed.as_secs(), "files_done": items, "bytes_done": bytes,
        "percent_done": 0.0,
    });
    if let Some(object) = said.as_object_mut().filter(|_| all > 0) {
        object.insert("total_files".to_owned(), json!(all));
        object.insert("total_bytes".to_owned(), json!(all_bytes));
        // More than was expected is all of it.
        let part = items.min(all) as f64 / all as f64;
        object.insert("percent_done".to_owned(), json!(part));
        let left = seconds_left((items, all), elapsed);
        object.extend(left.map(|left| ("seconds_remaining".to_owned(), json!(left))));
    }
    said
}

/// Returns how long the rest takes if it goes on as before; nothing if nothing is done, or nothing left.
fn seconds_left((items, all): (u64, u64), elapsed: Duration) -> Option<u64> {
    let left = all.checked_sub(items).filter(|left| *left > 0 && items > 0)?;
    Some(left.saturating_mul(elapsed.as_secs().max(1)) / items)
}

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
    let left = seconds_left((items, expected), elapsed);
    let left = left.map_or_else(String::new, |left| format!(" of {expected}, {left} s left"));
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
        let status = |seconds| status(&progress, Duration::from_secs(seconds));
        progress.expected_bytes.store(80 << 10, Relaxed);
        assert_eq!(
            status(10),
            json!({
                "message_type": "status", "seconds_elapsed": 10, "files_done": 50, "bytes_done": 20 << 10,
                "total_files": 200, "total_bytes": 80 << 10, "percent_done": 0.25, "seconds_remaining": 30,
            })
        );
        // More than was expected.
        progress.items.store(201, Relaxed);
        assert_eq!(status(10)["percent_done"], 1.0);
        assert!(status(10).get("seconds_remaining").is_none());
        progress.expected_items.store(0, Relaxed);
        assert_eq!(status(10)["percent_done"], 0.0, "of nobody knows how much");
        progress.expected_items.store(200, Relaxed);
        assert_eq!(told(10), "201, 20.00 KiB, 2.00 KiB/s");
    }
}
