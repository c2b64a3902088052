//! `tympan repo restore-path`: restores a node to its state at a time, in a revision, or in a version.

use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::json;
use tympan_content::{CheckOutState, Error, NodePath, Repository, Snapshot};
use tympan_terminal::{CommandFault, CommandOutcome, say};

use super::{content_fault, parse_time};
use crate::args::RestorePathArgs;
use crate::home::open_existing_home;

const REMOVED_NOTE: &str = "this revision removed it";

/// Runs the command.
pub(super) fn run_restore_path(arguments: &RestorePathArgs) -> CommandOutcome {
    let path = NodePath::new(&arguments.path).map_err(content_fault)?;
    let to = arguments.to.as_deref().map(NodePath::new).transpose().map_err(content_fault)?;
    let to = to.unwrap_or_else(|| path.clone());
    let at = arguments.at.as_deref().map(parse_time).transpose()?;
    let home = open_existing_home(&arguments.home)?;
    let repository = home.repository.open_branch(&arguments.branch).map_err(content_fault)?;
    let mut session = repository.session("system").map_err(content_fault)?;
    session.bypass_check_ins();
    let now = SystemTime::now();
    let from = match (&arguments.version, at) {
        (Some(version), _) => {
            let snapshot = session.snapshot().map_err(content_fault)?;
            let version = snapshot.version(&path, version).map_err(content_fault)?;
            drop(snapshot);
            session
                .versions()
                .restore_version(&version, &to, now, CheckOutState::CheckedOut)
                .map_err(content_fault)?;
            format!("version {}", version.name)
        }
        (None, at) => {
            let from = arguments.from.as_deref().unwrap_or(&arguments.branch);
            let past = home.repository.open_branch(from).map_err(content_fault)?;
            let source = open_restore_snapshot(&past, at, arguments.revision)?;
            session.replace_from_snapshot(&source, &path, &to).map_err(content_fault)?;
            format!("root {}", source.root_id())
        }
    };
    let root =
        session.commit(&format!("restore {path} from {from}"), now).map_err(content_fault)?;
    if arguments.json {
        let path = to.as_str();
        say!("{}", json!({ "path": path, "from": from, "root": root.to_string() }));
    } else {
        say!("restored `{to}` from {from}; branch `{}` is at {root}", repository.branch());
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the state that the node is taken from.
fn open_restore_snapshot(
    repository: &Repository,
    at: Option<SystemTime>,
    revision: Option<u64>,
) -> Result<Snapshot, CommandFault> {
    let snapshot = match (at, revision) {
        (Some(at), _) => repository.snapshot_at_time(at),
        (None, revision) => {
            repository.revision(revision.unwrap_or_default()).and_then(|revision| {
                let removed_error = || Error::InvalidBranch {
                    name: repository.branch().to_owned(),
                    reason: REMOVED_NOTE,
                };
                repository.snapshot_at(revision.update.new_root.ok_or_else(removed_error)?)
            })
        }
    };
    snapshot.map_err(content_fault)
}
