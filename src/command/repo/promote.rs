//! `tympan repo promote`: promotes a standby.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tympan_store::{ChunkStore, StoreRoot};
use tympan_terminal::{CommandFault, CommandOutcome, error_chain_text, say};

use super::clone::last_status;
use crate::home_origin::{self, HomeOrigin, open_own_packs};

/// Makes a standby an independent home, on which `tympan author` runs.
pub(super) fn promote_standby(home: &Path, json: bool) -> CommandOutcome {
    let origin = HomeOrigin::read_standby(home)?
        .ok_or_else(|| CommandFault::usage(format!("`{}` is not a standby", home.display())))?;
    // A running follower holds the lock: it must have stopped before anything is decided.
    let own = open_own_packs(home)?;
    let failed = |error: tympan_store::Error| {
        CommandFault::cannot_run(format!(
            "cannot promote `{}`: {}",
            home.display(),
            error_chain_text(&error)
        ))
    };
    let root = own.read_ref("main").map_err(failed)?.ok_or_else(|| {
        CommandFault::cannot_run(format!(
            "`{}` does not have a complete state of `{}` yet; keep following until it prints `ready`",
            home.display(),
            origin.from
        ))
    })?;
    StoreRoot::read(own.as_ref(), &root).map_err(failed)?;
    own.close().map_err(failed)?;
    home_origin::promote_standby_home(home)?;
    let status = last_status(home).unwrap_or_default();
    let until = status.get("complete_until").cloned().unwrap_or_default();
    if json {
        say!(
            "{}",
            json!({ "root": root.to_string(), "from": origin.from, "complete_until": until })
        );
    } else {
        say!("`{}` is now an independent home at root {root}", home.display());
        if let Some(until) = until.as_f64() {
            say!("it contains what `{}` acknowledged before {until:.3} (Unix time)", origin.from);
        }
        say!("run it with `tympan author --home {}`", home.display());
    }
    Ok(ExitCode::SUCCESS)
}
