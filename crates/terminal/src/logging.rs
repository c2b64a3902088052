//! The log of a program.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::{CommandFault, is_color_shown};

/// Starts logging to standard error, or to the end of a file; `TYMPAN_LOG` sets the filter, such as `debug` or
/// `tympan_dispatcher=trace`.
///
/// # Errors
/// If the file cannot be written.
pub fn start_logging(file: Option<&Path>) -> Result<(), CommandFault> {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TYMPAN_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,sqlx=warn"));
    // Colors are for terminals; in a file or a journal their escape codes would hide words from `grep`.
    let is_colored = file.is_none() && is_color_shown(&std::io::stderr());
    let writer = match file {
        None => BoxMakeWriter::new(std::io::stderr),
        Some(file) => {
            let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(file);
            let opened = opened.map_err(|error| {
                CommandFault::usage(format!("cannot write the log `{}`: {error}", file.display()))
            })?;
            BoxMakeWriter::new(Arc::new(opened))
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(is_colored)
        .with_target(false)
        // An error message about a log that cannot be written would go to the same log, and panic there.
        .log_internal_errors(false)
        .init();
    Ok(())
}
