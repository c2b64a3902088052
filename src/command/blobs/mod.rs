//! `tympan blobs`: large blobs, who shares them, and their garbage.

mod check;
mod gc;
mod list;
mod promote;

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::{Value, json};
use tympan_blobs::collect::{Registered, census, forget, registered};
use tympan_blobs::{BlobId, WriteBlobs};
use tympan_content::Date;

use crate::args::{Blobs, BlobsArguments};
use crate::backend;
use crate::blobs::cannot;
use crate::command::{Fault, Outcome};
use crate::home::Home;
use crate::say;

/// Runs the command.
pub(crate) fn run(arguments: &BlobsArguments) -> Outcome {
    backend::choose_database(arguments.database.as_deref());
    match &arguments.command {
        Blobs::Check { home, rehash, json } => check::run(home, *rehash, *json),
        Blobs::Gc { home, dry_run, mark_only, grace, window, json } => {
            let mode = match (dry_run, mark_only) {
                (true, _) => gc::Mode::DryRun,
                (false, true) => gc::Mode::Mark,
                (false, false) => gc::Mode::Sweep,
            };
            gc::run(home, mode, [grace, window], *json)
        }
        Blobs::Stats { home, json } => stats(home, *json),
        Blobs::List { home, trash, json } => list::run(home, *trash, *json),
        Blobs::Undelete { blobs, all, home } => undelete(home, blobs, *all),
        Blobs::Forget { repository, home } => take_out(home, repository),
        Blobs::Promote(promotion) => promote::run(promotion),
    }
}

/// Counts what each place holds.
fn stats(home: &Path, json: bool) -> Outcome {
    let home = Home::open_existing(home)?;
    let mut bodies = Vec::new();
    for (role, place) in &home.blobs.writable {
        let found = census(&**place).map_err(|error| cannot(role, &error))?;
        if json {
            let members: Vec<Value> = found.members.iter().map(member_json).collect();
            bodies.push(json!({
                "role": role, "place": format!("{place:?}"),
                "blobs": found.live.blobs, "bytes": found.live.bytes,
                "trashBlobs": found.trash.blobs, "trashBytes": found.trash.bytes,
                "repositories": members,
            }));
            continue;
        }
        say!("{role} (`{place:?}`): {} blobs, {} bytes", found.live.blobs, found.live.bytes);
        say!("  in the trash: {} blobs, {} bytes", found.trash.blobs, found.trash.bytes);
        for one in &found.members {
            let marked = one.marked.as_ref().map_or_else(
                || "has never said what it needs".to_owned(),
                |marked| format!("needed {} blobs at {}", marked.count, time(marked.begun)),
            );
            say!("  {} ({}) {marked}", one.member.id, one.member.name);
        }
    }
    if json {
        say!("{}", Value::from(bodies));
    }
    Ok(ExitCode::SUCCESS)
}

fn member_json(one: &Registered) -> Value {
    json!({
        "id": one.member.id,
        "name": one.member.name,
        "since": time(one.since),
        "needs": one.marked.as_ref().map(|marked| marked.count),
        "marked": one.marked.as_ref().map(|marked| time(marked.begun)),
    })
}

/// Takes blobs back out of the trash.
fn undelete(home: &Path, blobs: &[String], all: bool) -> Outcome {
    let home = Home::open_existing(home)?;
    let mut wanted: Vec<BlobId> = Vec::new();
    for blob in blobs {
        let id = blob.parse();
        wanted.push(id.map_err(|error: tympan_store::Error| Fault::usage(error.to_string()))?);
    }
    let mut count = 0;
    for (role, place) in &home.blobs.writable {
        let mut chosen = wanted.clone();
        if all {
            let listed = place.list_trash(&mut |listed| {
                chosen.push(listed.id);
                ControlFlow::Continue(())
            });
            listed.map_err(|error| cannot(role, &error))?;
        }
        for id in chosen {
            count += u64::from(place.undelete(&id).map_err(|error| cannot(role, &error))?);
        }
    }
    say!("{count} blobs are back");
    if !all && count < wanted.len() as u64 {
        return Err(Fault::with_code("not all of them are in the trash", super::CHECK_FAILED));
    }
    Ok(ExitCode::SUCCESS)
}

/// Takes a repository out.
fn take_out(home: &Path, repository: &str) -> Outcome {
    let home = Home::open_existing(home)?;
    let mut known = Vec::new();
    let mut is_known = false;
    for (role, place) in &home.blobs.writable {
        let failed = |error: tympan_blobs::Error| cannot(role, &error);
        // Listed first, so that a slip of the hand is told with the names that there are; damaged notes must not stop it.
        let members = registered(&**place).unwrap_or_default();
        known.extend(members.into_iter().map(|one| one.member.id));
        if forget(&**place, repository).map_err(failed)? {
            say!("`{repository}` is taken out of `{role}`");
            is_known = true;
        }
    }
    if is_known {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Fault::usage(format!(
        "no repository `{repository}` shares the blobs; there are: {}",
        known.join(", ")
    )))
}

/// Returns a time as people read it.
fn time(at: SystemTime) -> String {
    Date::from_system_time(at).to_string()
}
