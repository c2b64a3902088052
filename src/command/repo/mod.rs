//! `tympan repo`: looks after a repository.

mod branch;
mod check;
mod clone;
mod gc;
mod log;
mod promote;
mod restore_path;
mod stats;

use std::time::SystemTime;

use crate::args::{Repo, RepoArguments};
use crate::backend;
use crate::command::{Fault, Outcome};
use crate::home::chain;

/// Reads a time from the command line.
fn time(text: &str) -> Result<SystemTime, Fault> {
    let date = tympan_content::Date::parse_lenient(text);
    Ok(date.map_err(|error| Fault::usage(error.to_string()))?.to_system_time())
}

/// Runs the command.
pub(crate) fn run(arguments: &RepoArguments) -> Outcome {
    backend::choose_database(arguments.database.as_deref());
    match &arguments.command {
        Repo::Check { home, repair, json } => {
            let mode = if *repair { check::Mode::Repair } else { check::Mode::Look };
            check::run(home, mode, *json)
        }
        Repo::Clone(arguments) => clone::run(arguments),
        Repo::Promote { home, json } => promote::run(home, *json),
        Repo::Stats { home, json } => stats::run(home, *json),
        Repo::Gc { home, dry_run, json } => gc::run(home, *dry_run, *json),
        Repo::Log { home, branch, limit, json } => log::run(home, branch, *limit, *json),
        Repo::Diff { from, to, home, json } => log::diff(home, [from, to], *json),
        Repo::Revert { root, home, branch } => log::revert(home, branch, root),
        Repo::RestorePath(arguments) => restore_path::run(arguments),
        Repo::Branch(command) => branch::run(command),
    }
}

/// Tells a failure of the content: what cannot be asked for is the caller's mistake.
#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` gives")]
fn failed(error: tympan_content::Error) -> Fault {
    match error {
        tympan_content::Error::Branch { .. }
        | tympan_content::Error::InvalidName { .. }
        | tympan_content::Error::ValueFormat { .. }
        | tympan_content::Error::NodeMissing(_)
        | tympan_content::Error::VersionMissing { .. }
        | tympan_content::Error::Refused { .. } => Fault::usage(error.to_string()),
        _ => Fault::cannot_run(chain(&error)),
    }
}
