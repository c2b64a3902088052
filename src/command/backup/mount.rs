//! `tympan backup mount`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use tympan_backup::{MountAccess, UnmountOutcome, mount_vault};
use tympan_terminal::{CommandFault, CommandOutcome, say};

use super::{backup_fault, interrupt_signal, vault_session};
use crate::args::backup::{SnapshotClientArgs, VaultArgs, VaultReadArgs};

/// The interval at which an unmount or an interrupt is checked for.
const UNMOUNT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Mounts the snapshots until the user ends the mount.
pub(super) fn run_mount(
    arguments: &VaultArgs,
    clients: &SnapshotClientArgs,
    reading: VaultReadArgs,
    dir: &Path,
    allow_other: bool,
) -> CommandOutcome {
    let opened = vault_session::open_vault(arguments)?;
    // Other processes may save during the mount; the data that is being read must not be pruned.
    let _lock = opened.lock_for_reading(reading)?;
    let onlookers = if allow_other { MountAccess::All } else { MountAccess::Owner };
    // Registered before the mount, so that no signal leaves a mount behind.
    interrupt_signal::listen_for_interrupts()?;
    let mounted = mount_vault(
        opened.vault.clone(),
        dir,
        (vault_session::selected_clients(clients), onlookers),
    );
    let mounted = mounted.map_err(backup_fault)?;
    if arguments.json {
        say!("{}", json!({ "message_type": "mounted", "path": dir }));
    } else {
        say!("mounted the snapshots at `{}`; unmount them with Ctrl-C or `umount`", dir.display());
    }
    while !mounted.is_unmounted() && !interrupt_signal::is_interrupted() {
        std::thread::sleep(UNMOUNT_POLL_INTERVAL);
    }
    let ended = mounted.unmount().map_err(|error| CommandFault::with_code(error.to_string(), 1))?;
    match ended {
        UnmountOutcome::Idle => {}
        UnmountOutcome::InUse => print_mount_in_use(dir),
    }
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::print_stderr, reason = "a command speaks to the person who called it")]
fn print_mount_in_use(dir: &Path) {
    eprintln!("tympan: `{}` was in use; processes that still use it now get errors", dir.display());
}
