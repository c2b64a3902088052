//! `tympan repo`: manages a repository.

mod branch;
mod check;
mod clone;
mod gc;
mod promote;
mod restore_path;
mod revision_log;
mod stats;

use std::time::SystemTime;

use tympan_home::RepairMode;
use tympan_terminal::{CommandFault, CommandOutcome, error_chain_text};

use crate::args::{RepoArgs, RepoCommand};
use crate::home::set_database_url_override;

/// Parses a time from the command line.
fn parse_time(text: &str) -> Result<SystemTime, CommandFault> {
    let date = tympan_content::JcrDate::parse_lenient(text);
    Ok(date.map_err(|error| CommandFault::usage(error.to_string()))?.to_system_time())
}

/// Runs the command.
pub(crate) fn run_repo_command(arguments: &RepoArgs) -> CommandOutcome {
    set_database_url_override(arguments.database.as_deref());
    match &arguments.command {
        RepoCommand::Check { home, repair, json } => {
            let mode = if *repair { RepairMode::Repair } else { RepairMode::Plan };
            check::run_repository_check(home, mode, *json)
        }
        RepoCommand::Clone(arguments) => clone::run_clone(arguments),
        RepoCommand::Promote { home, json } => promote::promote_standby(home, *json),
        RepoCommand::Stats { home, json } => stats::print_repository_stats(home, *json),
        RepoCommand::Gc { home, dry_run, json } => gc::run_repository_gc(home, *dry_run, *json),
        RepoCommand::Log { home, branch, limit, json } => {
            revision_log::print_revision_log(home, branch, *limit, *json)
        }
        RepoCommand::Diff { from, to, home, json } => {
            revision_log::diff_states(home, [from, to], *json)
        }
        RepoCommand::Revert { root, home, branch } => {
            revision_log::revert_branch(home, branch, root)
        }
        RepoCommand::RestorePath(arguments) => restore_path::run_restore_path(arguments),
        RepoCommand::Branch(command) => branch::run_branch_command(command),
    }
}

/// Converts an error of the content to a fault: an invalid request is a usage error.
#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` gives")]
fn content_fault(error: tympan_content::Error) -> CommandFault {
    match error {
        tympan_content::Error::InvalidBranch { .. }
        | tympan_content::Error::InvalidName { .. }
        | tympan_content::Error::ValueFormat { .. }
        | tympan_content::Error::NodeMissing(_)
        | tympan_content::Error::VersionMissing { .. }
        | tympan_content::Error::InvalidEdit { .. } => CommandFault::usage(error.to_string()),
        _ => CommandFault::cannot_run(error_chain_text(&error)),
    }
}
