//! `tympan backup mount`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tympan_backup::{LockMode, Mounted, Onlookers, Unmounted, mount};

use super::{failed, open};
use crate::args::backup::{ClientArguments, VaultArguments};
use crate::command::{Fault, Outcome};
use crate::say;

/// How soon it is seen that somebody took the mount down.
const GLANCE: Duration = Duration::from_millis(100);

/// Shows the snapshots until the person ends it.
pub(super) fn run(
    (arguments, clients): (&VaultArguments, &ClientArguments),
    dir: &Path,
    allow_other: bool,
) -> Outcome {
    let opened = open::open(arguments)?;
    // Others may save meanwhile; what is looked at must not be pruned.
    let _lock = opened.lock(LockMode::Shared)?;
    let onlookers = if allow_other { Onlookers::All } else { Onlookers::Owner };
    let runtime = crate::command::runtime(1)?;
    let cannot = |error: std::io::Error| Fault::with_code(error.to_string(), 1);
    // Before the mount, so that no signal leaves one behind.
    let mut signals = {
        let _entered = runtime.enter();
        [
            signal(SignalKind::interrupt()).map_err(cannot)?,
            signal(SignalKind::terminate()).map_err(cannot)?,
            signal(SignalKind::hangup()).map_err(cannot)?,
        ]
    };
    let [asked, told, left] = &mut signals;
    let mounted = mount(opened.vault.clone(), dir, (open::clients(clients), onlookers));
    let mounted = mounted.map_err(failed)?;
    if arguments.json {
        say!("{}", json!({ "message_type": "mounted", "path": dir }));
    } else {
        say!("`{}` shows the snapshots; end it with Ctrl-C or `umount`", dir.display());
    }
    runtime.block_on(async {
        tokio::select! {
            _ = asked.recv() => {}
            _ = told.recv() => {}
            _ = left.recv() => {}
            () = taken_down(&mounted) => {}
        }
    });
    match mounted.end().map_err(cannot)? {
        Unmounted::Idle => {}
        Unmounted::InUse => tell_in_use(dir),
    }
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::print_stderr, reason = "a command speaks to the person who called it")]
fn tell_in_use(dir: &Path) {
    eprintln!("tympan: `{}` was in use; whoever uses it gets errors now", dir.display());
}

async fn taken_down(mounted: &Mounted) {
    while !mounted.is_over() {
        tokio::time::sleep(GLANCE).await;
    }
}
