//! `tympan repo promote`: promotes a standby.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tympan_home::PromotedStandby;
use tympan_terminal::{CommandOutcome, say};

use crate::home_fault::home_fault;

/// Makes a standby an independent home, on which `tympan author` runs.
pub(super) fn promote_standby(home: &Path, json: bool) -> CommandOutcome {
    let PromotedStandby { root, from, complete_until } =
        tympan_home::promote_standby(home).map_err(home_fault)?;
    if json {
        say!(
            "{}",
            json!({ "root": root.to_string(), "from": from, "complete_until": complete_until })
        );
    } else {
        say!("`{}` is now an independent home at root {root}", home.display());
        if let Some(until) = complete_until {
            say!("it contains what `{from}` acknowledged before {until:.3} (Unix time)");
        }
        say!("run it with `tympan author --home {}`", home.display());
    }
    Ok(ExitCode::SUCCESS)
}
