//! The `tympan` command: runs a content website end to end.

mod args;
mod blob_metrics;
mod blob_sharing;
mod blob_storage;
mod cluster_facts;
mod command;
mod component_backend;
mod config;
mod garbage_collection;
mod home;
mod home_chunk_store;
mod home_origin;
mod ledger;
mod maintenance;
mod mount_config;
mod program_file;
mod scheduled_backup;
mod site;
mod trusted_clock;

use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::args::TympanArgs;
use crate::command::CommandFault;

fn main() -> ExitCode {
    // The process renders pictures that a user waits for, and logs nothing.
    let is_painter =
        std::env::args_os().nth(1).is_some_and(|name| name == args::RENDER_IMAGES_COMMAND);
    let done = if is_painter {
        command::rendition_process::run_rendition_process()
    } else {
        let line = std::env::args_os().collect();
        let arguments =
            TympanArgs::parse_from(args::obnam::normalize_obnam_line::<TympanArgs>(line));
        start_logging(arguments.log_file()).and_then(|()| command::run_command(arguments))
    };
    match done {
        Ok(code) => code,
        Err(fault) => {
            fault.print();
            fault.exit_code()
        }
    }
}

/// Starts logging to standard error, or to the end of a file; `TYMPAN_LOG` sets the filter, such as `debug` or
/// `tympan_dispatcher=trace`.
///
/// # Errors
/// If the file cannot be written.
fn start_logging(file: Option<&Path>) -> Result<(), CommandFault> {
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
