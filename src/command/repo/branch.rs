//! `tympan repo branch`: branches of the content.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::{Value, json};
use tympan_content::{
    Conflict, Date, Error, MergeChoice, Merged, NodeDifference, NodePath, Property, Revising, Side,
};

use super::{failed, time};
use crate::args::{Branch, MergeBranch, Prefer};
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::home::Home;
use crate::say;

/// Runs the command.
pub(super) fn run(command: &Branch) -> Outcome {
    let by = |message| Revising { user: "system", message, at: SystemTime::now() };
    match command {
        Branch::List { home, json } => return list(home, *json),
        Branch::Create { name, from, at, home } => {
            let at = at.as_deref().map(time).transpose()?;
            let home = Home::open_existing(home)?;
            let from = home.repository.on_branch(from).map_err(failed)?;
            let root = at.map(|at| from.root_at(at)).transpose().map_err(failed)?;
            let made = match root {
                Some(root) => from.create_branch_at(name, root, by("create the branch")),
                None => from.create_branch(name, by("create the branch")),
            };
            let root = made.map_err(failed)?;
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
        Branch::Diff { name, details, home, json } => return diff(home, name, *details, *json),
        Branch::Merge(arguments) => return merge(arguments),
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

/// Lists what a branch changed.
fn diff(home: &Path, name: &str, details: bool, json: bool) -> Outcome {
    let home = Home::open_existing(home)?;
    let [before, after] = home.repository.launched(name).map_err(failed)?;
    for change in before.diff(&after) {
        let change = change.map_err(failed)?;
        let inside = if details { change.details().map_err(failed)? } else { Vec::new() };
        let path = change.path.as_str();
        if json {
            let mut body = json!({ "path": path, "kind": change.kind.name() });
            if let (true, Some(body)) = (details, body.as_object_mut()) {
                let nodes: Vec<Value> = inside.iter().map(node_json).collect();
                body.insert("nodes".to_owned(), nodes.into());
            }
            say!("{body}");
            continue;
        }
        say!("{:8} {path}", change.kind.name());
        for node in inside {
            let at = if node.path.is_empty() { "." } else { &node.path };
            let order = if node.is_reordered { ", its children in another order" } else { "" };
            say!("    {:8} {at}{order}", node.kind.name());
            for property in node.properties {
                let text = |value: &Option<Property>| {
                    value.as_ref().map_or_else(|| "-".to_owned(), text_of)
                };
                say!(
                    "        {}: {} -> {}",
                    property.name,
                    text(&property.before),
                    text(&property.after)
                );
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn node_json(node: &NodeDifference) -> Value {
    let properties: Vec<Value> = node
        .properties
        .iter()
        .map(|one| {
            let text = |value: &Option<Property>| value.as_ref().map(text_of);
            json!({ "name": one.name, "before": text(&one.before), "after": text(&one.after) })
        })
        .collect();
    json!({
        "path": node.path, "kind": node.kind.name(), "reordered": node.is_reordered,
        "properties": properties,
    })
}

fn text_of(property: &Property) -> String {
    let texts: Vec<_> = property.values().iter().map(|value| value.to_text()).collect();
    texts.join(", ")
}

/// Merges a branch, or tells what that would do.
fn merge(arguments: &MergeBranch) -> Outcome {
    let choice = choice(arguments)?;
    let MergeBranch { name, into, dry_run, home, json, .. } = arguments;
    let home = Home::open_existing(home)?;
    let into = home.repository.on_branch(into).map_err(failed)?;
    let message = format!("merge `{name}`");
    let revising = Revising { user: "system", message: &message, at: SystemTime::now() };
    let merged = if *dry_run {
        into.try_merge(name, &choice)
    } else {
        into.merge_part(name, &choice, revising)
    };
    let merged = match merged {
        Err(Error::Conflicts(conflicts)) => Merged { conflicts, ..Merged::default() },
        merged => merged.map_err(failed)?,
    };
    if *json {
        say!("{}", merged_json(&merged));
    } else {
        print_merged(&merged, into.branch(), *dry_run);
    }
    Ok(if merged.conflicts.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED) })
}

fn choice(arguments: &MergeBranch) -> Result<MergeChoice, Fault> {
    let path = |text: &String| NodePath::new(text).map_err(failed);
    let side = |prefer: Prefer| match prefer {
        Prefer::Mine => Side::Mine,
        Prefer::Theirs => Side::Theirs,
    };
    let mut decisions = BTreeMap::new();
    for (paths, side) in [(&arguments.mine, Side::Mine), (&arguments.theirs, Side::Theirs)] {
        for text in paths {
            if decisions.insert(path(text)?, side).is_some_and(|other| other != side) {
                return Err(Fault::usage(format!("`{text}` is given both ways; decide for one")));
            }
        }
    }
    let only = arguments.only.iter().map(path).collect::<Result<_, _>>()?;
    Ok(MergeChoice { only, prefer: arguments.prefer.map(side), decisions })
}

fn print_merged(merged: &Merged, into: &str, is_trial: bool) {
    for (path, kind) in &merged.changes {
        say!("{:8} {path}", kind.name());
    }
    for (conflict, side) in &merged.decided {
        let side = if *side == Side::Mine { "mine" } else { "theirs" };
        say!("decided for {side}: {conflict}");
    }
    for conflict in &merged.conflicts {
        say!("{conflict}");
    }
    match merged.root {
        Some(root) => say!("branch `{into}` is at {root}"),
        None if merged.conflicts.is_empty() => say!("nothing is merged: this was a trial"),
        None if is_trial => say!("{} conflicts", merged.conflicts.len()),
        None => say!("{} conflicts: nothing is merged", merged.conflicts.len()),
    }
}

fn merged_json(merged: &Merged) -> Value {
    let changes: Vec<Value> = merged
        .changes
        .iter()
        .map(|(path, kind)| json!({ "path": path.as_str(), "kind": kind.name() }))
        .collect();
    let decided: Vec<Value> = merged
        .decided
        .iter()
        .map(|(conflict, side)| {
            let side = if *side == Side::Mine { "mine" } else { "theirs" };
            json!({ "conflict": conflict_json(conflict), "side": side })
        })
        .collect();
    json!({
        "root": merged.root.map(|root| root.to_string()),
        "changes": changes,
        "decided": decided,
        "conflicts": merged.conflicts.iter().map(conflict_json).collect::<Vec<_>>(),
    })
}

fn conflict_json(conflict: &Conflict) -> Value {
    let text = |value: &Option<Property>| value.as_ref().map(text_of);
    let changed = conflict.changed.as_ref().map(|by| {
        let at = Date::from_system_time(by.at).to_string();
        json!({ "user": by.user, "at": at, "revision": by.revision, "message": by.message })
    });
    json!({
        "path": conflict.path.as_str(), "kind": conflict.kind.name(), "property": conflict.property,
        "base": text(&conflict.base), "mine": text(&conflict.ours), "theirs": text(&conflict.theirs),
        "changed": changed,
    })
}
