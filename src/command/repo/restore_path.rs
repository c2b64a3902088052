//! `tympan repo restore-path`: brings a node back as it was at a time, in a revision, or in a version of it.

use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::json;
use tympan_content::{After, Error, NodePath, Repository, Snapshot};

use super::{failed, time};
use crate::args::RestorePath;
use crate::command::{Fault, Outcome};
use crate::home::Home;
use crate::say;

const GONE: &str = "this revision removed it";

/// Runs the command.
pub(super) fn run(arguments: &RestorePath) -> Outcome {
    let path = NodePath::new(&arguments.path).map_err(failed)?;
    let to = arguments.to.as_deref().map(NodePath::new).transpose().map_err(failed)?;
    let to = to.unwrap_or_else(|| path.clone());
    let at = arguments.at.as_deref().map(time).transpose()?;
    let home = Home::open_existing(&arguments.home)?;
    let repository = home.repository.on_branch(&arguments.branch).map_err(failed)?;
    let mut session = repository.session("system").map_err(failed)?;
    session.pass_check_ins();
    let now = SystemTime::now();
    let from = match (&arguments.version, at) {
        (Some(version), _) => {
            let snapshot = session.snapshot().map_err(failed)?;
            let version = snapshot.version(&path, version).map_err(failed)?;
            drop(snapshot);
            session.restore_version(&version, &to, now, After::CheckedOut).map_err(failed)?;
            format!("version {}", version.name)
        }
        (None, at) => {
            let from = arguments.from.as_deref().unwrap_or(&arguments.branch);
            let past = home.repository.on_branch(from).map_err(failed)?;
            let source = state(&past, at, arguments.revision)?;
            session.put_from(&source, &path, &to).map_err(failed)?;
            format!("root {}", source.root_id())
        }
    };
    let root = session.commit(&format!("restore {path} from {from}"), now).map_err(failed)?;
    if arguments.json {
        let path = to.as_str();
        say!("{}", json!({ "path": path, "from": from, "root": root.to_string() }));
    } else {
        say!("`{to}` is as in {from}; branch `{}` is at {root}", repository.branch());
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the state to take the node from.
fn state(
    repository: &Repository,
    at: Option<SystemTime>,
    revision: Option<u64>,
) -> Result<Snapshot, Fault> {
    let snapshot = match (at, revision) {
        (Some(at), _) => repository.snapshot_at_time(at),
        (None, revision) => {
            repository.revision(revision.unwrap_or_default()).and_then(|revision| {
                let gone = || Error::Branch { name: repository.branch().to_owned(), reason: GONE };
                repository.snapshot_at(revision.update.new.ok_or_else(gone)?)
            })
        }
    };
    snapshot.map_err(failed)
}
