//! `tympan repo promote`: a standby takes over.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tympan_store::{ChunkStore, Root};

use super::clone::last_status;
use crate::base::{self, Origin, open_own};
use crate::command::{Fault, Outcome};
use crate::home::chain;
use crate::say;

/// Makes a standby a home of its own, which `tympan author` runs on.
pub(super) fn run(home: &Path, json: bool) -> Outcome {
    let origin = Origin::of_standby(home)?
        .ok_or_else(|| Fault::usage(format!("`{}` is no standby", home.display())))?;
    // Whoever follows holds the lock: it must have stopped before anything is decided.
    let own = open_own(home)?;
    let failed = |error: tympan_store::Error| {
        Fault::cannot_run(format!("cannot promote `{}`: {}", home.display(), chain(&error)))
    };
    let root = own.read_ref("main").map_err(failed)?.ok_or_else(|| {
        Fault::cannot_run(format!(
            "`{}` holds no complete state of `{}` yet; follow it until it says `ready`",
            home.display(),
            origin.from
        ))
    })?;
    Root::read(own.as_ref(), &root).map_err(failed)?;
    own.close().map_err(failed)?;
    base::end_standby(home)?;
    let status = last_status(home).unwrap_or_default();
    let until = status.get("complete_until").cloned().unwrap_or_default();
    if json {
        say!(
            "{}",
            json!({ "root": root.to_string(), "from": origin.from, "complete_until": until })
        );
    } else {
        say!("`{}` is a home of its own at root {root}", home.display());
        if let Some(until) = until.as_f64() {
            say!("it holds what `{}` acknowledged before {until:.3} (Unix time)", origin.from);
        }
        say!("run it with `tympan author --home {}`", home.display());
    }
    Ok(ExitCode::SUCCESS)
}
