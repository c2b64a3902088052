//! `tympan repo log`, `diff` and `revert`: the history of a branch.

use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::json;
use tympan_content::{ChunkId, JcrDate, Repository, RevisionDetails, Snapshot};
use tympan_terminal::{CommandFault, CommandOutcome, say};

use super::content_fault;
use crate::home::open_existing_home;

/// Lists revisions.
pub(super) fn print_revision_log(
    home: &Path,
    branch: &str,
    limit: usize,
    json: bool,
) -> CommandOutcome {
    let home = open_existing_home(home)?;
    let repository = home.repository.open_branch(branch).map_err(content_fault)?;
    for revision in repository.revisions(None, limit).map_err(content_fault)? {
        let update = revision.update;
        let root = update.new_root.map_or_else(|| "removed".to_owned(), |root| root.to_string());
        let at = JcrDate::from_system_time(update.updated_at).to_string();
        if json {
            say!(
                "{}",
                json!({
                    "sequence": revision.sequence, "root": root, "at": at,
                    "author": update.author, "message": update.message,
                })
            );
        } else {
            say!("{root}  {at}  {}  {}", update.author, update.message);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists the documents that differ between two states.
pub(super) fn diff_states(home: &Path, states: [&String; 2], json: bool) -> CommandOutcome {
    let home = open_existing_home(home)?;
    let [from, to] = states.map(|state| find_snapshot(&home.repository, state));
    let paths = from?.changed_paths(&to?).map_err(content_fault)?;
    if json {
        let paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
        say!("{}", json!(paths));
    } else {
        paths.iter().for_each(|path| say!("{path}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Reverts a branch to an earlier state.
pub(super) fn revert_branch(home: &Path, branch: &str, root: &str) -> CommandOutcome {
    let root: ChunkId = root
        .parse()
        .map_err(|error: tympan_store::IdParseError| CommandFault::usage(error.to_string()))?;
    let home = open_existing_home(home)?;
    let repository = home.repository.open_branch(branch).map_err(content_fault)?;
    let message = format!("revert to {root}");
    let revising = RevisionDetails { user: "system", message: &message, time: SystemTime::now() };
    repository.revert_to_root(root, revising).map_err(content_fault)?;
    say!("branch `{branch}` is at {root}");
    Ok(ExitCode::SUCCESS)
}

/// Opens a state by its root or by the name of a branch.
fn find_snapshot(repository: &Repository, state: &str) -> Result<Snapshot, CommandFault> {
    match state.parse::<ChunkId>() {
        Ok(root) => repository.snapshot_at(root).map_err(content_fault),
        Err(_) => repository
            .open_branch(state)
            .and_then(|branch| branch.snapshot())
            .map_err(content_fault),
    }
}
