//! `tympan repo gc`: collects garbage in a home that no instance runs on.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::json;
use tympan_jobs::Queues;
use tympan_store::{ChunkStore, CollectMode, Collected};

use crate::clock::trusted_now;
use crate::collection;
use crate::command::{Fault, Outcome, runtime};
use crate::home::{Home, chain};
use crate::say;

/// Runs the command.
pub(super) fn run(home: &Path, dry_run: bool, json: bool) -> Outcome {
    let home = Home::open_existing(home)?;
    let now = trusted_now(&home.dir, &**home.repository.chunks(), SystemTime::now());
    let mut options = runtime(1)?.block_on(async {
        let state = home.open_state().await?;
        let queues = Queues::new(state.pool().clone());
        let options = collection::options(&home.config, &queues, now).await;
        state.close().await;
        options
    })?;
    let outdated = if dry_run {
        0
    } else {
        let purged = collection::purge(&home.repository, &home.config, now);
        purged.map_err(|error| Fault::cannot_run(chain(&error)))?.removed
    };
    if dry_run {
        options.mode = CollectMode::DryRun;
    }
    let chunks: &dyn ChunkStore = &**home.repository.chunks();
    let done = chunks.collect(&options, &mut |_| ControlFlow::Continue(()));
    let done = done.map_err(|error| Fault::cannot_run(chain(&error)))?;
    if json {
        let mut body = to_json(&done);
        if let Some(body) = body.as_object_mut() {
            body.insert("versionsRemoved".to_owned(), outdated.into());
        }
        say!("{body}");
    } else {
        if outdated > 0 {
            say!("{outdated} outdated versions of nodes taken away");
        }
        print(&done, dry_run);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(done: &Collected, dry_run: bool) {
    for keeper in &done.keepers {
        say!("{:>14} bytes kept by {}", keeper.bytes, keeper.what);
    }
    say!(
        "{} bytes live in {} records; {} revisions kept, {} {}",
        done.live_bytes,
        done.live_records,
        done.revisions_kept,
        done.revisions_dropped,
        if dry_run { "would go" } else { "gone" }
    );
    say!(
        "{} bytes of garbage, {} {}, {} moved",
        done.garbage_bytes,
        done.freed_bytes,
        if dry_run { "would be freed" } else { "freed" },
        done.moved_bytes
    );
}

fn to_json(done: &Collected) -> serde_json::Value {
    let keepers: Vec<serde_json::Value> = done
        .keepers
        .iter()
        .map(|keeper| json!({ "what": keeper.what, "bytes": keeper.bytes }))
        .collect();
    json!({
        "generation": done.generation,
        "liveRecords": done.live_records,
        "liveBytes": done.live_bytes,
        "garbageBytes": done.garbage_bytes,
        "freedBytes": done.freed_bytes,
        "movedBytes": done.moved_bytes,
        "revisionsKept": done.revisions_kept,
        "revisionsDropped": done.revisions_dropped,
        "keepers": keepers,
    })
}
