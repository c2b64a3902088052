//! `tympan backup mount`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use tympan_backup::{Onlookers, Unmounted, mount};

use super::{failed, open, signals};
use crate::args::backup::{ClientArguments, ReadArguments, VaultArguments};
use crate::command::{Fault, Outcome};
use crate::say;

/// How soon it is seen that somebody took the mount down, or asks for its end.
const GLANCE: Duration = Duration::from_millis(100);

/// Shows the snapshots until the person ends it.
pub(super) fn run(
    (arguments, clients, reading): (&VaultArguments, &ClientArguments, ReadArguments),
    dir: &Path,
    allow_other: bool,
) -> Outcome {
    let opened = open::open(arguments)?;
    // Others may save meanwhile; what is looked at must not be pruned.
    let _lock = opened.lock_to_read(reading)?;
    let onlookers = if allow_other { Onlookers::All } else { Onlookers::Owner };
    // Before the mount, so that no signal leaves one behind.
    signals::listen()?;
    let mounted = mount(opened.vault.clone(), dir, (open::clients(clients), onlookers));
    let mounted = mounted.map_err(failed)?;
    if arguments.json {
        say!("{}", json!({ "message_type": "mounted", "path": dir }));
    } else {
        say!("`{}` shows the snapshots; end it with Ctrl-C or `umount`", dir.display());
    }
    while !mounted.is_over() && !signals::is_asked() {
        std::thread::sleep(GLANCE);
    }
    let ended = mounted.end().map_err(|error| Fault::with_code(error.to_string(), 1))?;
    match ended {
        Unmounted::Idle => {}
        Unmounted::InUse => tell_in_use(dir),
    }
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::print_stderr, reason = "a command speaks to the person who called it")]
fn tell_in_use(dir: &Path) {
    eprintln!("tympan: `{}` was in use; whoever uses it gets errors now", dir.display());
}
