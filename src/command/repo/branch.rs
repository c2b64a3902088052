//! `tympan repo branch`: branches of the content.

use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::json;
use tympan_content::{Error, Revising};

use super::failed;
use crate::args::Branch;
use crate::command::{CHECK_FAILED, Outcome};
use crate::home::Home;
use crate::say;

/// Runs the command.
pub(super) fn run(command: &Branch) -> Outcome {
    let by = |message| Revising { user: "system", message, at: SystemTime::now() };
    match command {
        Branch::List { home, json } => return list(home, *json),
        Branch::Create { name, from, home } => {
            let home = Home::open_existing(home)?;
            let from = home.repository.on_branch(from).map_err(failed)?;
            let root = from.create_branch(name, by("create the branch")).map_err(failed)?;
            say!("branch `{name}` is at {root}");
        }
        Branch::Rename { from, to, home } => {
            let home = Home::open_existing(home)?;
            home.repository.rename_branch(from, to, by("rename the branch")).map_err(failed)?;
            say!("branch `{from}` is now `{to}`");
        }
        Branch::Delete { name, home } => {
            let home = Home::open_existing(home)?;
            home.repository.delete_branch(name, by("delete the branch")).map_err(failed)?;
            say!("branch `{name}` is gone");
        }
        Branch::Merge { name, into, home } => return merge(home, name, into),
    }
    Ok(ExitCode::SUCCESS)
}

fn list(home: &Path, json: bool) -> Outcome {
    let home = Home::open_existing(home)?;
    for branch in home.repository.branches().map_err(failed)? {
        if json {
            let base = branch.base.map(|base| base.to_string());
            let root = branch.root.to_string();
            say!("{}", json!({ "name": branch.name, "root": root, "base": base }));
        } else {
            say!("{}  {}", branch.root, branch.name);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn merge(home: &Path, name: &str, into: &str) -> Outcome {
    let home = Home::open_existing(home)?;
    let into = home.repository.on_branch(into).map_err(failed)?;
    let message = format!("merge `{name}`");
    let revising = Revising { user: "system", message: &message, at: SystemTime::now() };
    match into.merge_branch(name, revising) {
        Ok(root) => {
            say!("branch `{}` is at {root}", into.branch());
            Ok(ExitCode::SUCCESS)
        }
        Err(Error::Conflicts(conflicts)) => {
            for conflict in &conflicts {
                let property = conflict.property.as_deref().unwrap_or("");
                say!("{} {} {property}", conflict.kind.name(), conflict.path);
            }
            say!("{} conflicts: nothing is merged", conflicts.len());
            Ok(ExitCode::from(CHECK_FAILED))
        }
        Err(error) => Err(failed(error)),
    }
}
