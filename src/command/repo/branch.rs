//! `tympan repo branch`: branches of the content.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::{Value, json};
use tympan_content::{
    Error, JcrDate, MergeConflict, MergeOptions, MergeOutcome, MergeSide, NodeDifference, NodePath,
    Property, RevisionDetails,
};
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, say};

use super::{content_fault, parse_time};
use crate::args::{MergeBranchArgs, PreferredMergeSide, RepoBranchCommand};
use crate::home::open_existing_home;

/// Runs the command.
pub(super) fn run_branch_command(command: &RepoBranchCommand) -> CommandOutcome {
    let by = |message| RevisionDetails { user: "system", message, time: SystemTime::now() };
    match command {
        RepoBranchCommand::List { home, json } => return list_branches(home, *json),
        RepoBranchCommand::Create { name, from, at, home } => {
            let at = at.as_deref().map(parse_time).transpose()?;
            let home = open_existing_home(home)?;
            let from = home.repository.open_branch(from).map_err(content_fault)?;
            let root = at.map(|at| from.root_at_time(at)).transpose().map_err(content_fault)?;
            let made = match root {
                Some(root) => from.create_branch_at(name, root, by("create the branch")),
                None => from.create_branch(name, by("create the branch")),
            };
            let root = made.map_err(content_fault)?;
            say!("branch `{name}` is at {root}");
        }
        RepoBranchCommand::Rename { from, to, home } => {
            let home = open_existing_home(home)?;
            home.repository
                .rename_branch(from, to, by("rename the branch"))
                .map_err(content_fault)?;
            say!("branch `{from}` is now `{to}`");
        }
        RepoBranchCommand::Delete { name, home } => {
            let home = open_existing_home(home)?;
            home.repository.delete_branch(name, by("delete the branch")).map_err(content_fault)?;
            say!("deleted branch `{name}`");
        }
        RepoBranchCommand::Diff { name, details, home, json } => {
            return diff_branch(home, name, *details, *json);
        }
        RepoBranchCommand::Merge(arguments) => return merge_branch(arguments),
    }
    Ok(ExitCode::SUCCESS)
}

fn list_branches(home: &Path, json: bool) -> CommandOutcome {
    let home = open_existing_home(home)?;
    for branch in home.repository.branches().map_err(content_fault)? {
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

/// Lists the changes of a branch.
fn diff_branch(home: &Path, name: &str, details: bool, json: bool) -> CommandOutcome {
    let home = open_existing_home(home)?;
    let [before, after] = home.repository.branch_change_states(name).map_err(content_fault)?;
    for change in before.changed_documents(&after) {
        let change = change.map_err(content_fault)?;
        let inside =
            if details { change.node_differences().map_err(content_fault)? } else { Vec::new() };
        let path = change.path.as_str();
        if json {
            let mut body = json!({ "path": path, "kind": change.kind.name() });
            if let (true, Some(body)) = (details, body.as_object_mut()) {
                let nodes: Vec<Value> = inside.iter().map(node_difference_json).collect();
                body.insert("nodes".to_owned(), nodes.into());
            }
            say!("{body}");
            continue;
        }
        say!("{:8} {path}", change.kind.name());
        for node in inside {
            let at = if node.path.is_empty() { "." } else { &node.path };
            let order = if node.is_reordered { ", children reordered" } else { "" };
            say!("    {:8} {at}{order}", node.kind.name());
            for property in node.properties {
                let text = |value: &Option<Property>| {
                    value.as_ref().map_or_else(|| "-".to_owned(), property_text)
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

fn node_difference_json(node: &NodeDifference) -> Value {
    let properties: Vec<Value> = node
        .properties
        .iter()
        .map(|change| {
            let text = |value: &Option<Property>| value.as_ref().map(property_text);
            json!({ "name": change.name, "before": text(&change.before), "after": text(&change.after) })
        })
        .collect();
    json!({
        "path": node.path, "kind": node.kind.name(), "reordered": node.is_reordered,
        "properties": properties,
    })
}

fn property_text(property: &Property) -> String {
    let texts: Vec<_> = property.values().iter().map(|value| value.to_text()).collect();
    texts.join(", ")
}

/// Merges a branch, or prints what a merge would do.
fn merge_branch(arguments: &MergeBranchArgs) -> CommandOutcome {
    let choice = merge_choice(arguments)?;
    let MergeBranchArgs { name, into, dry_run, home, json, .. } = arguments;
    let home = open_existing_home(home)?;
    let into = home.repository.open_branch(into).map_err(content_fault)?;
    let message = format!("merge `{name}`");
    let revising = RevisionDetails { user: "system", message: &message, time: SystemTime::now() };
    let merged = if *dry_run {
        into.preview_merge(name, &choice)
    } else {
        into.merge_branch_part(name, &choice, revising)
    };
    let merged = match merged {
        Err(Error::Conflicts(conflicts)) => MergeOutcome { conflicts, ..MergeOutcome::default() },
        merged => merged.map_err(content_fault)?,
    };
    if *json {
        say!("{}", merged_json(&merged));
    } else {
        print_merge(&merged, into.branch(), *dry_run);
    }
    Ok(if merged.conflicts.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(CHECK_FAILED_EXIT_CODE)
    })
}

fn merge_choice(arguments: &MergeBranchArgs) -> Result<MergeOptions, CommandFault> {
    let path = |text: &String| NodePath::new(text).map_err(content_fault);
    let side = |prefer: PreferredMergeSide| match prefer {
        PreferredMergeSide::Mine => MergeSide::Ours,
        PreferredMergeSide::Theirs => MergeSide::Theirs,
    };
    let mut decisions = BTreeMap::new();
    for (paths, side) in
        [(&arguments.mine, MergeSide::Ours), (&arguments.theirs, MergeSide::Theirs)]
    {
        for text in paths {
            if decisions.insert(path(text)?, side).is_some_and(|other_side| other_side != side) {
                return Err(CommandFault::usage(format!(
                    "`{text}` is in both `--mine` and `--theirs`; choose one"
                )));
            }
        }
    }
    let only = arguments.only.iter().map(path).collect::<Result<_, _>>()?;
    Ok(MergeOptions { included_paths: only, default_side: arguments.prefer.map(side), decisions })
}

fn print_merge(merged: &MergeOutcome, into: &str, is_trial: bool) {
    for (path, kind) in &merged.document_changes {
        say!("{:8} {path}", kind.name());
    }
    for (conflict, side) in &merged.resolved_conflicts {
        let side = if *side == MergeSide::Ours { "mine" } else { "theirs" };
        say!("resolved as {side}: {conflict}");
    }
    for conflict in &merged.conflicts {
        say!("{conflict}");
    }
    match merged.root {
        Some(root) => say!("branch `{into}` is at {root}"),
        None if merged.conflicts.is_empty() => say!("nothing was merged: this was a dry run"),
        None if is_trial => say!("{} conflicts", merged.conflicts.len()),
        None => say!("{} conflicts: nothing was merged", merged.conflicts.len()),
    }
}

fn merged_json(merged: &MergeOutcome) -> Value {
    let changes: Vec<Value> = merged
        .document_changes
        .iter()
        .map(|(path, kind)| json!({ "path": path.as_str(), "kind": kind.name() }))
        .collect();
    let decided: Vec<Value> = merged
        .resolved_conflicts
        .iter()
        .map(|(conflict, side)| {
            let side = if *side == MergeSide::Ours { "mine" } else { "theirs" };
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

fn conflict_json(conflict: &MergeConflict) -> Value {
    let text = |value: &Option<Property>| value.as_ref().map(property_text);
    let changed = conflict.last_change.as_ref().map(|by| {
        let at = JcrDate::from_system_time(by.time).to_string();
        json!({ "user": by.user, "at": at, "revision": by.revision, "message": by.message })
    });
    json!({
        "path": conflict.path.as_str(), "kind": conflict.kind.name(), "property": conflict.property,
        "base": text(&conflict.base), "mine": text(&conflict.ours), "theirs": text(&conflict.theirs),
        "changed": changed,
    })
}
