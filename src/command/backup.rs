//! `tympan backup`: saves, lists and restores snapshots, and manages the vault that stores them.
//!
//! Exit codes are restic's: 0 done, 1 failed or found something, 3 incomplete, 10 no vault, 11 locked, 12 wrong
//! password, 130 interrupted; 2 invalid usage.

mod copy;
mod estimate;
mod fault;
mod inspection;
mod instance_access;
mod interrupt_signal;
mod mount;
mod restore;
mod retention;
mod save;
mod snapshot_transfer;
mod source_selection;
mod tune;
mod vault_location;
mod vault_session;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tympan_backup::{BackupProgress, UnlockScope, VaultObjectId, VaultUser};
use tympan_terminal::{CommandFault, CommandOutcome, say};

use self::fault::{backup_fault, home_backup_fault};
pub(crate) use self::vault_location::{user_config_dir, vault_access, vault_cache_dir};
use self::vault_session::VaultSession;
use crate::args::backup::{BackupCommand, NewPasswordArgs, VaultArgs, VaultKeyCommand};

/// The exit code if the snapshot or the restored data is incomplete.
const INCOMPLETE_EXIT_CODE: u8 = 3;

/// Runs the command.
pub(crate) fn run_backup_command(command: &BackupCommand) -> CommandOutcome {
    let done = dispatch_backup_command(command);
    match done {
        Err(fault) if command.is_json() => {
            print_failure(&fault);
            Ok(fault.exit_code())
        }
        done => done,
    }
}

/// Prints the reason of a failure in restic's format.
fn print_failure(fault: &CommandFault) {
    use std::io::Write as _;
    let said = json!({
        "message_type": "exit_error", "code": fault.code(), "message": fault.message(),
    });
    // If standard error cannot be written, only the exit code reports the failure.
    writeln!(std::io::stderr(), "{said}").ok();
}

fn dispatch_backup_command(command: &BackupCommand) -> CommandOutcome {
    match command {
        BackupCommand::Init(arguments) => init_vault(arguments),
        BackupCommand::Save(arguments) => save::run_save(arguments),
        BackupCommand::List { vault, clients } => inspection::list_snapshots(vault, clients),
        BackupCommand::Clients(arguments) => inspection::list_clients(arguments),
        BackupCommand::Runs(arguments) => save::list_runs(arguments),
        BackupCommand::Ls { vault, clients, snapshot, path } => {
            inspection::list_snapshot_path((vault, clients), snapshot, path)
        }
        BackupCommand::Find { vault, clients, pattern } => {
            inspection::find_names((vault, clients), pattern)
        }
        BackupCommand::Diff { vault, clients, old, new } => {
            inspection::diff_snapshots((vault, clients), old, new)
        }
        BackupCommand::Dump { vault, clients, snapshot, path } => {
            inspection::dump_file((vault, clients), snapshot, path)
        }
        BackupCommand::Restore(arguments) => restore::run_restore(arguments),
        BackupCommand::Verify { vault, clients, reading, instance, snapshot } => {
            restore::run_verify(vault, clients, *reading, snapshot, instance)
        }
        BackupCommand::Forget(arguments) => retention::forget_snapshots(arguments),
        BackupCommand::Copy(arguments) => snapshot_transfer::copy_snapshots(arguments),
        BackupCommand::Tag(arguments) => snapshot_transfer::tag_snapshots(arguments),
        BackupCommand::Prune { vault, grace } => retention::prune_vault(vault, grace.grace),
        BackupCommand::Check { vault, reading, read_data, read_data_subset } => {
            retention::check_vault((vault, *reading), *read_data, read_data_subset.as_deref())
        }
        BackupCommand::Repair { vault, read_data } => retention::repair_vault(vault, *read_data),
        BackupCommand::Key { vault, command } => run_key_command(vault, command),
        BackupCommand::Unlock { vault, remove_all } => unlock_vault(vault, *remove_all),
        BackupCommand::Estimate(arguments) => estimate::run_save_estimate(arguments),
        BackupCommand::Stats { vault, clients, snapshots } => {
            inspection::print_snapshot_stats((vault, clients), snapshots)
        }
        BackupCommand::Tune(arguments) => tune::run_tune(arguments),
        BackupCommand::Mount { vault, clients, reading, dir, allow_other } => {
            mount::run_mount(vault, clients, *reading, dir, *allow_other)
        }
    }
}

fn init_vault(arguments: &VaultArgs) -> CommandOutcome {
    let vault = vault_session::init_vault(arguments)?;
    if arguments.json {
        say!("{}", json!({ "message_type": "initialized", "id": vault.id() }));
    } else {
        say!(
            "created the vault `{}`; without its password, its data cannot be read",
            arguments.vault
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn run_key_command(arguments: &VaultArgs, command: &VaultKeyCommand) -> CommandOutcome {
    let mut vault = vault_session::open_vault_exclusively(arguments)?;
    let (user, now) = (VaultUser::this_process(), vault_session::current_timestamp());
    let password = |new: &NewPasswordArgs| {
        tympan_backup::read_password_file(&new.new_password_file).map_err(backup_fault)
    };
    let cost = tympan_backup::KeyDerivationCost::default();
    match command {
        VaultKeyCommand::List => {
            for key in vault.keys().map_err(backup_fault)? {
                if arguments.json {
                    say!("{}", serde_json::to_string(&key).unwrap_or_default());
                    continue;
                }
                let mark = if key.is_used { '*' } else { ' ' };
                say!("{mark}{} {}@{} {}", key.id.short(), key.user, key.host, key.created);
            }
        }
        VaultKeyCommand::Add(new) => {
            let id = vault.add_key(&password(new)?, cost, (&user, now)).map_err(backup_fault)?;
            print_key_change(arguments, "key_added", "added the key", &id);
        }
        VaultKeyCommand::Remove { key } => {
            let id = vault.remove_key(key).map_err(backup_fault)?;
            print_key_change(arguments, "key_removed", "removed the key", &id);
        }
        VaultKeyCommand::Passwd(new) => {
            let id =
                vault.change_password(&password(new)?, cost, (&user, now)).map_err(backup_fault)?;
            let words = "changed the password; the new key is";
            print_key_change(arguments, "password_changed", words, &id);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_key_change(arguments: &VaultArgs, done: &str, words: &str, id: &VaultObjectId) {
    if arguments.json {
        say!("{}", json!({ "message_type": done, "id": id.to_string() }));
    } else {
        say!("{words} {}", id.short());
    }
}

fn unlock_vault(arguments: &VaultArgs, remove_all: bool) -> CommandOutcome {
    let VaultSession { vault, user, .. } = vault_session::open_vault(arguments)?;
    let which = if remove_all { UnlockScope::All } else { UnlockScope::Stale };
    let removed = vault.unlock(&user, which).map_err(backup_fault)?;
    if arguments.json {
        say!("{}", json!({ "message_type": "unlocked", "removed_locks": removed }));
    } else {
        say!("removed {removed} locks");
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows the progress of a run, on a terminal or as JSON, and stops the run on an interrupt.
struct ProgressDisplay {
    done_sender: std::sync::mpsc::Sender<()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl ProgressDisplay {
    fn start(progress: &Arc<BackupProgress>, is_json: bool) -> Self {
        let mut watch = Self::start_silent(progress);
        let (done, ended) = std::sync::mpsc::channel();
        let progress_handle = progress.clone();
        watch.done_sender = done;
        let show = if is_json { print_status_lines } else { show_progress };
        watch.thread = Some(std::thread::spawn(move || show(&progress_handle, &ended)));
        watch
    }

    /// Shows nothing.
    fn start_silent(progress: &Arc<BackupProgress>) -> Self {
        if let Err(fault) = interrupt_signal::stop_on_interrupt(progress) {
            tracing::warn!(
                reason = fault.message(),
                "cannot handle signals; they end the process immediately"
            );
        }
        let (done, _) = std::sync::mpsc::channel();
        Self { done_sender: done, thread: None }
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        // The thread may have ended by itself.
        self.done_sender.send(()).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// The interval of progress lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(60);

/// The interval of JSON status lines.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Prints periodic JSON status lines in restic's format.
fn print_status_lines(progress: &BackupProgress, ended: &std::sync::mpsc::Receiver<()>) {
    let begin = Instant::now();
    while ended.recv_timeout(STATUS_INTERVAL) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        say!("{}", status_json(progress, begin.elapsed()));
    }
}

/// Returns the progress of a run as JSON; with totals if known.
fn status_json(progress: &BackupProgress, elapsed: Duration) -> Value {
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
        // Progress beyond the expected total counts as complete.
        let part = items.min(all) as f64 / all as f64;
        object.insert("percent_done".to_owned(), json!(part));
        let left = seconds_left(items, all, elapsed);
        object.extend(left.map(|left| ("seconds_remaining".to_owned(), json!(left))));
    }
    said
}

/// Returns the estimated remaining seconds at the current rate; `None` if nothing is done, or nothing left.
fn seconds_left(items: u64, all: u64, elapsed: Duration) -> Option<u64> {
    let left = all.checked_sub(items).filter(|left| *left > 0 && items > 0)?;
    Some(left.saturating_mul(elapsed.as_secs().max(1)) / items)
}

/// Shows a bar with rate and remaining time if the total is known, else a count with a rate; plain lines without a
/// terminal.
fn show_progress(progress: &BackupProgress, ended: &std::sync::mpsc::Receiver<()>) {
    let bar = indicatif::ProgressBar::new_spinner();
    let begin = Instant::now();
    let pause = if bar.is_hidden() { LINE_INTERVAL } else { Duration::from_millis(250) };
    while ended.recv_timeout(pause) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        let text = progress_text(progress, begin.elapsed());
        if bar.is_hidden() {
            print_progress_line(&text);
            continue;
        }
        bar.set_message(text);
        bar.tick();
    }
    bar.finish_and_clear();
}

#[expect(clippy::print_stderr, reason = "a command speaks to the person who called it")]
fn print_progress_line(text: &str) {
    eprintln!("tympan: {text}");
}

fn progress_text(progress: &BackupProgress, elapsed: Duration) -> String {
    use std::sync::atomic::Ordering::Relaxed;
    let (items, bytes) = (progress.items.load(Relaxed), progress.bytes.load(Relaxed));
    let expected = progress.expected_items.load(Relaxed);
    let seconds = elapsed.as_secs().max(1);
    let rate = indicatif::HumanBytes(bytes / seconds);
    let left = seconds_left(items, expected, elapsed);
    let left = left.map_or_else(String::new, |left| format!(" of {expected}, {left} s left"));
    format!("{items}{left}, {}, {rate}/s", indicatif::HumanBytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn how_far_a_run_is_and_how_long_it_takes() {
        let progress = BackupProgress::default();
        let text_at = |seconds| progress_text(&progress, Duration::from_secs(seconds));
        assert_eq!(text_at(0), "0, 0 B, 0 B/s");
        progress.items.store(50, Relaxed);
        progress.bytes.store(20 << 10, Relaxed);
        assert_eq!(text_at(10), "50, 20.00 KiB, 2.00 KiB/s");
        progress.expected_items.store(200, Relaxed);
        assert_eq!(text_at(10), "50 of 200, 30 s left, 20.00 KiB, 2.00 KiB/s");
        let status = |seconds| status_json(&progress, Duration::from_secs(seconds));
        progress.expected_bytes.store(80 << 10, Relaxed);
        assert_eq!(
            status(10),
            json!({
                "message_type": "status", "seconds_elapsed": 10, "files_done": 50, "bytes_done": 20 << 10,
                "total_files": 200, "total_bytes": 80 << 10, "percent_done": 0.25, "seconds_remaining": 30,
            })
        );
        // This is more than the expected total.
        progress.items.store(201, Relaxed);
        assert_eq!(status(10)["percent_done"], 1.0);
        assert!(status(10).get("seconds_remaining").is_none());
        progress.expected_items.store(0, Relaxed);
        assert_eq!(status(10)["percent_done"], 0.0, "of nobody knows how much");
        progress.expected_items.store(200, Relaxed);
        assert_eq!(text_at(10), "201, 20.00 KiB, 2.00 KiB/s");
    }
}
