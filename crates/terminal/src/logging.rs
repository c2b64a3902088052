//! The log of a program.

use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::CommandFault;

/// Starts logging to standard error, or to the end of a file; `TYMPAN_LOG` sets the filter, such as `debug` or
/// `tympan_dispatcher=trace`.
///
/// # Errors
/// If the file cannot be written.
pub fn start_logging(file: Option<&Path>) -> Result<(), CommandFault> {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TYMPAN_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,sqlx=warn"));
    let is_terminal = file.is_none() && std::io::stderr().is_terminal();
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
        // Colors are for terminals; in a file or a journal their escape codes would hide words from `grep`.
        .with_ansi(is_terminal && std::env::var_os("NO_COLOR").is_none())
        .with_target(false)
        // An error message about a log that cannot be written would go to the same log, and panic there.
        .log_internal_errors(false)
        .init();
    Ok(())
}
