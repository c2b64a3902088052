//! `tympan repo clone`: creates a staging home over another one, a full copy, or a standby.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use tokio::sync::watch;
use tympan_home::{
    BaseAccess, StandbyEvent, StandbyHome, StandbyStatus, absolute_origin, copy_home, create_clone,
    find_lease_folder,
};
use tympan_replicate::RemoteStoreCredentials;
use tympan_terminal::{CommandFault, CommandOutcome, say};

use crate::args::RepoCloneArgs;
use crate::command::process_signals::ProcessSignals;
use crate::command::runtime::create_runtime;
use crate::home::home_access;
use crate::home_fault::home_fault;

/// Clones, copies or follows.
pub(super) fn run_clone(clone: &RepoCloneArgs) -> CommandOutcome {
    let from = absolute_origin(&clone.from).map_err(home_fault)?;
    let access = base_access(clone, &from)?;
    if clone.follow {
        return follow_repository(clone, &from, &access);
    }
    if clone.full {
        return copy_repository(clone, &from, &access);
    }
    let root = create_clone(&home_access(), &clone.to, &from, &access).map_err(home_fault)?;
    if clone.json {
        say!("{}", json!({ "from": from, "to": clone.to, "root": root.to_string() }));
    } else {
        say!("`{}` is a clone of `{from}` at root {root}", clone.to.display());
        say!("run it with `tympan author --home {}`", clone.to.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Copies everything into an independent home.
fn copy_repository(clone: &RepoCloneArgs, from: &str, access: &BaseAccess) -> CommandOutcome {
    let copy = copy_home(&home_access(), &clone.to, from, access).map_err(home_fault)?;
    let root = copy.root.map(|root| root.to_string()).unwrap_or_default();
    let (synced, large_blobs) = (copy.copied.sync_stats, copy.copied.large_blobs);
    let (chunks, blobs) = (synced.fetched_chunks, synced.fetched_blobs + large_blobs);
    if clone.json {
        say!(
            "{}",
            json!({
                "from": from, "to": clone.to, "root": root, "chunks": chunks, "blobs": blobs,
                "bytes": synced.fetched_bytes,
            })
        );
    } else {
        say!(
            "`{}` is a copy of `{from}` at root {root}: {chunks} chunks, {blobs} blobs",
            clone.to.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Follows the origin until a signal.
fn follow_repository(clone: &RepoCloneArgs, from: &str, access: &BaseAccess) -> CommandOutcome {
    let standby =
        StandbyHome::open(&home_access(), &clone.to, (from, access)).map_err(home_fault)?;
    let is_json = clone.json;
    create_runtime(4)?.block_on(async {
        let mut signals = ProcessSignals::listen()?;
        let (stop, stopped) = watch::channel(false);
        let work = tokio::task::spawn_blocking(move || {
            standby.follow_until_stopped(&stopped, &mut |event| match event {
                StandbyEvent::Ready => say!("ready"),
                StandbyEvent::News(status) => print_standby_status(status, is_json),
            });
        });
        signals.wait_for_end().await;
        stop.send_replace(true);
        work.await.map_err(|error| CommandFault::cannot_run(error.to_string()))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn print_standby_status(status: &StandbyStatus, is_json: bool) {
    if is_json {
        say!("{}", serde_json::to_value(status).unwrap_or_default());
        return;
    }
    let behind = status.seconds_behind.map_or_else(
        || "nothing was copied yet".to_owned(),
        |age| {
            format!("complete until {age:.1} s ago, {} revisions behind", status.revisions_behind)
        },
    );
    let root = status.root.as_deref().unwrap_or_default();
    match &status.fault {
        None => say!("{root}: {behind}"),
        Some(fault) => say!("{root}: {behind}; {fault}"),
    }
}

/// Returns the access to a running instance from the arguments.
fn base_access(clone: &RepoCloneArgs, from: &str) -> Result<BaseAccess, CommandFault> {
    let read_secret = |file: &PathBuf| match fs::read_to_string(file) {
        Ok(secret) => Ok(secret.trim().to_owned()),
        Err(error) => {
            Err(CommandFault::usage(format!("cannot read `{}`: {error}", file.display())))
        }
    };
    let secret = match (&clone.key, &clone.token_file, &clone.token) {
        (Some(file), ..) => Some(RemoteStoreCredentials::Key(read_secret(file)?)),
        (None, Some(file), _) => Some(RemoteStoreCredentials::Token(read_secret(file)?)),
        (None, None, Some(token)) => Some(RemoteStoreCredentials::Token(token.clone())),
        (None, None, None) => None,
    };
    let ca = clone.ca.as_ref().map(fs::canonicalize).transpose();
    let ca = ca
        .map_err(|error| CommandFault::usage(format!("cannot read the file of `--ca`: {error}")))?;
    let leases = clone.leases.as_deref();
    let leases = leases.map(|folder| find_lease_folder(&home_access(), folder, from)).transpose();
    Ok(BaseAccess { credentials: secret, ca_file: ca, lease_dir: leases.map_err(home_fault)? })
}
