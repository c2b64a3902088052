//! `tympan repo gc`: collects garbage in a home whose instance is not running.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::json;
use tympan_home::{collect_options, purge_versions, trusted_now};
use tympan_jobs::JobQueues;
use tympan_store::{ChunkStore, GarbageCollectionMode, GarbageCollectionReport};
use tympan_terminal::{CommandFault, CommandOutcome, error_chain_text, say};

use crate::command::runtime::create_runtime;
use crate::home::{open_existing_home, open_state};
use crate::home_fault::home_fault;

/// Runs the command.
pub(super) fn run_repository_gc(home: &Path, dry_run: bool, json: bool) -> CommandOutcome {
    let home = open_existing_home(home)?;
    let now = trusted_now(&home.dir, &**home.repository.chunks(), SystemTime::now());
    let mut options = create_runtime(1)?.block_on(async {
        let state = open_state(&home.dir).await?;
        let queues = JobQueues::new(state.pool().clone());
        let options = collect_options(&home.config, &queues, now).await;
        state.close().await;
        options.map_err(home_fault)
    })?;
    let outdated = if dry_run {
        0
    } else {
        let purged = purge_versions(&home.repository, &home.config, now);
        purged.map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))?.removed_count
    };
    if dry_run {
        options.mode = GarbageCollectionMode::DryRun;
    }
    let chunks: &dyn ChunkStore = &**home.repository.chunks();
    let done = chunks.collect_garbage(&options, &mut |_| ControlFlow::Continue(()));
    let done = done.map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))?;
    if json {
        let mut body = collection_json(&done);
        if let Some(body) = body.as_object_mut() {
            body.insert("versionsRemoved".to_owned(), outdated.into());
        }
        say!("{body}");
    } else {
        if outdated > 0 {
            say!("{outdated} outdated versions of nodes removed");
        }
        print_collection(&done, dry_run);
    }
    Ok(ExitCode::SUCCESS)
}

fn print_collection(done: &GarbageCollectionReport, dry_run: bool) {
    for keeper in &done.retainers {
        say!("{:>14} bytes kept by {}", keeper.retained_bytes, keeper.description);
    }
    say!(
        "{} bytes live in {} records; {} revisions kept, {} {}",
        done.live_bytes,
        done.live_records,
        done.retained_revisions,
        done.dropped_revisions,
        if dry_run { "would be removed" } else { "removed" }
    );
    say!(
        "{} bytes of garbage, {} {}, {} moved",
        done.garbage_bytes,
        done.freed_bytes,
        if dry_run { "would be freed" } else { "freed" },
        done.moved_bytes
    );
}

fn collection_json(done: &GarbageCollectionReport) -> serde_json::Value {
    let keepers: Vec<serde_json::Value> = done
        .retainers
        .iter()
        .map(|keeper| json!({ "what": keeper.description, "bytes": keeper.retained_bytes }))
        .collect();
    json!({
        "generation": done.generation,
        "liveRecords": done.live_records,
        "liveBytes": done.live_bytes,
        "garbageBytes": done.garbage_bytes,
        "freedBytes": done.freed_bytes,
        "movedBytes": done.moved_bytes,
        "revisionsKept": done.retained_revisions,
        "revisionsDropped": done.dropped_revisions,
        "keepers": keepers,
    })
}
