//! `tympan blobs check`: whether every blob that content refers to is there, and whole.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use tympan_blobs::collect::{Sorter, missing};
use tympan_blobs::{BlobId, ReadBlobs, id_of};
use tympan_content::{Depth, NodePath};

use crate::blobs::{Sharing, cannot, visit};
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::home::{Home, chain};
use crate::say;

/// Missing blobs that are named; the others are counted.
const NAMED: usize = 10_000;

/// What a check has found.
#[derive(Default)]
struct Found {
    /// Blobs that content refers to.
    checked: u64,
    /// What is wrong, by blob.
    faults: BTreeMap<BlobId, String>,
    missing: u64,
    /// Who refers to a blob of which something is wrong: a branch and a path, or nothing but history.
    places: BTreeMap<BlobId, Vec<String>>,
}

/// Looks for all blobs.
pub(super) fn run(home: &Path, rehash: bool, json: bool) -> Outcome {
    let home = Home::open_existing(home)?;
    let found = look(&home, rehash)?;
    if json {
        say!("{}", to_json(&found));
    } else {
        print(&found);
    }
    let is_clean = found.faults.is_empty() && found.missing == 0;
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED) })
}

fn look(home: &Home, rehash: bool) -> Result<Found, Fault> {
    let failed = |error: tympan_blobs::Error| Fault::cannot_run(chain(&error));
    let scratch = Sharing::of(home).scratch()?;
    let sorters = (Sorter::new(&scratch), Sorter::new(&scratch));
    let go_on = &mut |_: &tympan_store::Progress| ControlFlow::Continue(());
    let needed = visit(&**home.repository.chunks(), sorters, go_on, |(first, second), id| {
        first.add_id(id)?;
        second.add_id(id)
    })?;
    let (needed, to_count) = needed.ok_or_else(|| Fault::cannot_run("the walk was stopped"))?;
    let mut present = Sorter::new(&scratch);
    for (role, place) in &home.blobs.writable {
        let mut fault = None;
        let listed = place.list(&mut |listed| match present.add(&listed) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                fault = Some(error);
                ControlFlow::Break(())
            }
        });
        listed.map_err(|error| cannot(role, &error))?;
        fault.map_or(Ok(()), |error| Err(failed(error)))?;
    }
    let blobs = home.repository.blobs();
    let (gone, count) =
        missing(&mut |id| blobs.contains(id), needed, present, NAMED).map_err(failed)?;
    let mut found = Found { missing: count, ..Found::default() };
    let reason =
        "is missing; restore it from a backup, or take it back with `tympan blobs undelete`";
    found.faults.extend(gone.into_iter().map(|id| (id, reason.to_owned())));
    let mut last = None;
    for one in to_count.finish().map_err(failed)? {
        let id = one.map_err(failed)?.id;
        if last.replace(id) == Some(id) {
            continue;
        }
        found.checked += 1;
        if rehash
            && !found.faults.contains_key(&id)
            && let Some(fault) = damage(home, &id)
        {
            found.faults.insert(id, fault);
        }
    }
    if !found.faults.is_empty() {
        find_places(home, &mut found)?;
    }
    Ok(found)
}

/// Reads a blob; returns what is wrong with it.
fn damage(home: &Home, id: &BlobId) -> Option<String> {
    match home.repository.blobs().open(id) {
        Ok(Some(content)) => match id_of(&mut content.into_reader()) {
            Ok(actual) if actual == *id => None,
            Ok(actual) => {
                Some(format!("is damaged: its bytes are {actual}; restore it from a backup"))
            }
            Err(error) => Some(format!("cannot be read: {error}")),
        },
        Ok(None) => Some("is missing".to_owned()),
        Err(error) => Some(chain(&error)),
    }
}

/// Finds out which nodes refer to what is wrong.
fn find_places(home: &Home, found: &mut Found) -> Result<(), Fault> {
    let failed = |error: tympan_content::Error| Fault::cannot_run(chain(&error));
    for branch in home.repository.branches().map_err(failed)? {
        let snapshot = home.repository.snapshot_at(branch.root).map_err(failed)?;
        for document in snapshot.documents(&NodePath::root(), Depth::Subtree).map_err(failed)? {
            let needs: BTreeSet<BlobId> =
                snapshot.needs_of(&document).map_err(failed)?.blobs.into_iter().collect();
            for id in needs.into_iter().filter(|id| found.faults.contains_key(id)) {
                let place = match branch.name.as_str() {
                    "main" => document.path.to_string(),
                    name => format!("{} (branch `{name}`)", document.path),
                };
                found.places.entry(id).or_default().push(place);
            }
        }
    }
    Ok(())
}

fn print(found: &Found) {
    for (id, fault) in &found.faults {
        say!("{id} {fault}");
        match found.places.get(id) {
            Some(places) => places.iter().for_each(|place| say!("  {place}")),
            None => say!("  only kept revisions and versions refer to it"),
        }
    }
    let unnamed = found.missing.saturating_sub(NAMED as u64);
    if unnamed > 0 {
        say!("… and {unnamed} more are missing");
    }
    let faults = found.faults.len() as u64 + unnamed;
    let verdict = if faults == 0 { "clean".to_owned() } else { format!("{faults} faults") };
    say!("{} blobs: {verdict}", found.checked);
}

fn to_json(found: &Found) -> Value {
    let faults: Vec<Value> = found
        .faults
        .iter()
        .map(|(id, fault)| {
            let places = found.places.get(id).cloned().unwrap_or_default();
            json!({ "blob": id.to_string(), "fault": fault, "paths": places })
        })
        .collect();
    json!({
        "clean": faults.is_empty() && found.missing == 0,
        "blobs": found.checked,
        "missing": found.missing,
        "faults": faults,
    })
}
