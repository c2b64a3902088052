//! `tympan repo log`, `diff` and `revert`: the history of a branch.

use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::json;
use tympan_content::{ChunkId, Date, Repository, Revising, Snapshot};

use super::failed;
use crate::command::{Fault, Outcome};
use crate::home::Home;
use crate::say;

/// Lists revisions.
pub(super) fn run(home: &Path, branch: &str, limit: usize, json: bool) -> Outcome {
    let home = Home::open_existing(home)?;
    let repository = home.repository.on_branch(branch).map_err(failed)?;
    for revision in repository.revisions(None, limit).map_err(failed)? {
        let update = revision.update;
        let root = update.new.map_or_else(|| "removed".to_owned(), |root| root.to_string());
        let at = Date::from_system_time(update.at).to_string();
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

/// Lists the documents that differ.
pub(super) fn diff(home: &Path, states: [&String; 2], json: bool) -> Outcome {
    let home = Home::open_existing(home)?;
    let [from, to] = states.map(|state| find(&home.repository, state));
    let paths = from?.changed_paths(&to?).map_err(failed)?;
    if json {
        let paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
        say!("{}", json!(paths));
    } else {
        paths.iter().for_each(|path| say!("{path}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Takes a branch back.
pub(super) fn revert(home: &Path, branch: &str, root: &str) -> Outcome {
    let root: ChunkId =
        root.parse().map_err(|error: tympan_store::Error| Fault::usage(error.to_string()))?;
    let home = Home::open_existing(home)?;
    let repository = home.repository.on_branch(branch).map_err(failed)?;
    let message = format!("revert to {root}");
    let revising = Revising { user: "system", message: &message, at: SystemTime::now() };
    repository.revert_to(root, revising).map_err(failed)?;
    say!("branch `{branch}` is at {root}");
    Ok(ExitCode::SUCCESS)
}

/// Opens a state by its root or by the name of a branch.
fn find(repository: &Repository, state: &str) -> Result<Snapshot, Fault> {
    match state.parse::<ChunkId>() {
        Ok(root) => repository.snapshot_at(root).map_err(failed),
        Err(_) => repository.on_branch(state).and_then(|branch| branch.snapshot()).map_err(failed),
    }
}
