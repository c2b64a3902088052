//! `tympan blobs`: large blobs, the repositories that share them, and their garbage.

mod check;
mod gc;
mod list;
mod promote;

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::{Value, json};
use tympan_blobs::garbage_collection::{
    RegisteredMember, count_blobs, list_members, unregister_member,
};
use tympan_blobs::{BlobId, WriteBlobs};
use tympan_content::JcrDate;
use tympan_terminal::{
    CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, error_chain_text, say,
};

use crate::args::{BlobsArgs, BlobsCommand};
use crate::home::{open_existing_home, set_database_url_override};

/// Runs the command.
pub(crate) fn run_blobs_command(arguments: &BlobsArgs) -> CommandOutcome {
    set_database_url_override(arguments.database.as_deref());
    match &arguments.command {
        BlobsCommand::Check { home, rehash, json } => check::run_blob_check(home, *rehash, *json),
        BlobsCommand::Gc { home, dry_run, mark_only, grace, window, json } => {
            let mode = match (dry_run, mark_only) {
                (true, _) => gc::BlobGcMode::DryRun,
                (false, true) => gc::BlobGcMode::Mark,
                (false, false) => gc::BlobGcMode::Sweep,
            };
            gc::run_blob_gc(home, mode, *grace, *window, *json)
        }
        BlobsCommand::Stats { home, json } => print_blob_stats(home, *json),
        BlobsCommand::List { home, trash, json } => list::run_blob_list(home, *trash, *json),
        BlobsCommand::Undelete { blobs, all, home } => undelete_blobs(home, blobs, *all),
        BlobsCommand::Forget { repository, home } => unregister_repository(home, repository),
        BlobsCommand::Promote(promotion) => promote::run_blob_promote(promotion),
    }
}

/// Prints the counts of each storage.
fn print_blob_stats(home: &Path, json: bool) -> CommandOutcome {
    let home = open_existing_home(home)?;
    let mut bodies = Vec::new();
    for (role, storage) in &home.blobs.writable {
        let counts = count_blobs(&**storage).map_err(|error| storage_fault(role, &error))?;
        if json {
            let members: Vec<Value> = counts.members.iter().map(member_json).collect();
            bodies.push(json!({
                "role": role, "place": format!("{storage:?}"),
                "blobs": counts.live.blob_count, "bytes": counts.live.bytes,
                "trashBlobs": counts.trash.blob_count, "trashBytes": counts.trash.bytes,
                "repositories": members,
            }));
            continue;
        }
        say!(
            "{role} (`{storage:?}`): {} blobs, {} bytes",
            counts.live.blob_count,
            counts.live.bytes
        );
        say!("  in the trash: {} blobs, {} bytes", counts.trash.blob_count, counts.trash.bytes);
        for member in &counts.members {
            let marked = member.last_marks.as_ref().map_or_else(
                || "has never marked the blobs that it needs".to_owned(),
                |marked| {
                    format!(
                        "needed {} blobs at {}",
                        marked.blob_count,
                        format_time(marked.started_at)
                    )
                },
            );
            say!("  {} ({}) {marked}", member.member.id, member.member.name);
        }
    }
    if json {
        say!("{}", Value::from(bodies));
    }
    Ok(ExitCode::SUCCESS)
}

fn member_json(member: &RegisteredMember) -> Value {
    json!({
        "id": member.member.id,
        "name": member.member.name,
        "since": format_time(member.registered_at),
        "needs": member.last_marks.as_ref().map(|marked| marked.blob_count),
        "marked": member.last_marks.as_ref().map(|marked| format_time(marked.started_at)),
    })
}

/// Restores blobs from the trash.
fn undelete_blobs(home: &Path, blobs: &[String], all: bool) -> CommandOutcome {
    let home = open_existing_home(home)?;
    let mut requested_ids: Vec<BlobId> = Vec::new();
    for blob in blobs {
        let id = blob.parse();
        requested_ids.push(
            id.map_err(|error: tympan_store::IdParseError| CommandFault::usage(error.to_string()))?,
        );
    }
    let mut count = 0;
    for (role, storage) in &home.blobs.writable {
        let mut chosen = requested_ids.clone();
        if all {
            let listed = storage.list_trash(&mut |listed| {
                chosen.push(listed.id);
                ControlFlow::Continue(())
            });
            listed.map_err(|error| storage_fault(role, &error))?;
        }
        for id in chosen {
            count += u64::from(storage.undelete(&id).map_err(|error| storage_fault(role, &error))?);
        }
    }
    say!("{count} blobs restored");
    if !all && count < requested_ids.len() as u64 {
        return Err(CommandFault::with_code(
            "not all of them are in the trash",
            CHECK_FAILED_EXIT_CODE,
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes a repository from the members of a storage.
fn unregister_repository(home: &Path, repository: &str) -> CommandOutcome {
    let home = open_existing_home(home)?;
    let mut member_ids = Vec::new();
    let mut is_known = false;
    for (role, storage) in &home.blobs.writable {
        let failed = |error: tympan_blobs::Error| storage_fault(role, &error);
        // The members are listed first, so that the error for a wrong name can show the existing ones; damaged notes
        // must not prevent the removal.
        let members = list_members(&**storage).unwrap_or_default();
        member_ids.extend(members.into_iter().map(|member| member.member.id));
        if unregister_member(&**storage, repository).map_err(failed)? {
            say!("removed `{repository}` from `{role}`");
            is_known = true;
        }
    }
    if is_known {
        return Ok(ExitCode::SUCCESS);
    }
    Err(CommandFault::usage(format!(
        "no repository `{repository}` shares the blobs; those that do: {}",
        member_ids.join(", ")
    )))
}

/// Formats a time for display.
fn format_time(at: SystemTime) -> String {
    JcrDate::from_system_time(at).to_string()
}

/// Returns a fault that names the storage.
fn storage_fault(role: &str, error: &tympan_blobs::Error) -> CommandFault {
    CommandFault::cannot_run(format!("blobs, `{role}`: {}", error_chain_text(error)))
}
