//! `tympan blobs list`: what each place holds, as it comes.

use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tympan_blobs::{Listed, ReadBlobs, WriteBlobs};

use super::time;
use crate::blobs::cannot;
use crate::command::{Fault, Outcome};
use crate::home::Home;

/// Lists the blobs that can be read, or those in the trash.
pub(super) fn run(home: &Path, trash: bool, json: bool) -> Outcome {
    let home = Home::open_existing(home)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut written = Ok(());
    for (role, place) in &home.blobs.writable {
        let mut show = |Listed { id, modified }: Listed| {
            let at = time(modified);
            written = match json {
                true => {
                    let blob = json!({ "blob": id.to_string(), "at": at, "role": role });
                    writeln!(out, "{blob}")
                }
                false => writeln!(out, "{id} {at} {role}"),
            };
            if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let listed = if trash { place.list_trash(&mut show) } else { place.list(&mut show) };
        listed.map_err(|error| cannot(role, &error))?;
    }
    match written.and_then(|()| out.flush()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Fault::cannot_run(format!("cannot write the list: {error}"))),
        Ok(()) => Ok(ExitCode::SUCCESS),
    }
}
