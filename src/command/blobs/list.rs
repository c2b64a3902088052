//! `tympan blobs list`: lists the contents of each storage as a stream.

use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tympan_blobs::{ListedBlob, ReadBlobs, WriteBlobs};
use tympan_terminal::{CommandFault, CommandOutcome};

use super::{format_time, storage_fault};
use crate::home::open_existing_home;

/// Lists the blobs that can be read, or those in the trash.
pub(super) fn run_blob_list(home: &Path, trash: bool, json: bool) -> CommandOutcome {
    let home = open_existing_home(home)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut written = Ok(());
    for (role, storage) in &home.blobs.writable {
        let mut show = |ListedBlob { id, modified }: ListedBlob| {
            let at = format_time(modified);
            written = match json {
                true => {
                    let blob = json!({ "blob": id.to_string(), "at": at, "role": role });
                    writeln!(out, "{blob}")
                }
                false => writeln!(out, "{id} {at} {role}"),
            };
            if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let listed = if trash { storage.list_trash(&mut show) } else { storage.list(&mut show) };
        listed.map_err(|error| storage_fault(role, &error))?;
    }
    match written.and_then(|()| out.flush()) {
        // The reader closed the pipe, which is no failure.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(CommandFault::cannot_run(format!("cannot write the list: {error}"))),
        Ok(()) => Ok(ExitCode::SUCCESS),
    }
}
