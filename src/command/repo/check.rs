//! `tympan repo check`: what is damaged, and what that affects.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tympan_blobs::BlobStore;
use tympan_store::check;

use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::home::{Home, chain};
use crate::say;

/// Re-hashes every record, walks every ref, and looks for every blob that content names.
pub(super) fn run(home: &Path, json: bool) -> Outcome {
    let home = Home::open_existing(home)?;
    let local = home.local.as_ref().ok_or_else(|| {
        Fault::usage("the repository of this home lies in a database, which checks itself")
    })?;
    let report = check(local).map_err(|error| Fault::cannot_run(chain(&error)))?;
    let blobs: &dyn BlobStore = home.repository.blobs();
    let mut faults = report.faults.clone();
    for affected in &report.affected {
        let path =
            tympan_store::key::parse(&affected.key).map(|names| format!("/{}", names.join("/")));
        let path = path.unwrap_or_else(|_| "(a key that is no path)".to_owned());
        faults.push(format!(
            "{} {}: `{path}` cannot be read: {}",
            affected.name, affected.map, affected.fault
        ));
    }
    for blob in &report.blobs_elsewhere {
        match blobs.open(blob) {
            Ok(Some(content)) => faults.extend(damage(blob, content)),
            Ok(None) => {
                faults.push(format!("the blob {blob} is missing; restore it from a backup"))
            }
            Err(error) => faults.push(chain(&error)),
        }
    }
    if json {
        let body = json!({
            "clean": faults.is_empty(),
            "packs": report.packs,
            "chunks": report.chunks,
            "blobs": report.blobs as usize + report.blobs_elsewhere.len(),
            "commits": report.commits,
            "bytes": report.bytes,
            "refs": report.refs,
            "reachable": report.reachable,
            "faults": faults,
        });
        say!("{body}");
    } else {
        faults.iter().for_each(|fault| say!("{fault}"));
        say!(
            "{} packs, {} commits, {} refs, {} chunks ({} reachable), {} blobs, {} bytes: {}",
            report.packs,
            report.commits,
            report.refs,
            report.chunks,
            report.reachable,
            report.blobs as usize + report.blobs_elsewhere.len(),
            report.bytes,
            if faults.is_empty() { "clean".to_owned() } else { format!("{} faults", faults.len()) }
        );
    }
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED) })
}

/// Re-hashes a large blob; nothing if it is what its id says.
fn damage(expected: &tympan_store::BlobId, content: tympan_content::BlobContent) -> Option<String> {
    match tympan_blobs::id_of(&mut content.into_reader()) {
        Ok(actual) if actual == *expected => None,
        Ok(actual) => Some(format!(
            "the blob {expected} is damaged: its bytes are {actual}; restore it from a backup"
        )),
        Err(error) => Some(format!("the blob {expected} cannot be read: {}", chain(&error))),
    }
}
