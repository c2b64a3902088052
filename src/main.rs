//! The `tympan` command: runs a content website end to end.

mod args;
mod backend;
mod backup;
mod base;
mod blob_metrics;
mod blobs;
mod clock;
mod collection;
mod command;
mod config;
mod data;
mod home;
mod ledger;
mod maintenance;
mod mounts;
mod open_program;
mod places;
mod shared;
mod site;

use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::args::Arguments;
use crate::command::Fault;

fn main() -> ExitCode {
    // It is started for pictures that somebody waits for, and logs nothing.
    let is_painter = std::env::args_os().nth(1).is_some_and(|name| name == args::DRAW_PICTURES);
    let done = if is_painter {
        command::picture::draw_pictures()
    } else {
        let line = std::env::args_os().collect();
        let arguments = Arguments::parse_from(args::obnam::in_order::<Arguments>(line));
        start_log(arguments.log_file()).and_then(|()| command::run(arguments))
    };
    match done {
        Ok(code) => code,
        Err(fault) => {
            fault.print();
            fault.exit_code()
        }
    }
}

/// Logs go to standard error, or to the end of a file; `TYMPAN_LOG` chooses what, such as `debug` or
/// `tympan_dispatcher=trace`.
///
/// # Errors
/// If the file cannot be written.
fn start_log(file: Option<&Path>) -> Result<(), Fault> {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TYMPAN_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,sqlx=warn"));
    let is_terminal = file.is_none() && std::io::stderr().is_terminal();
    let writer = match file {
        None => BoxMakeWriter::new(std::io::stderr),
        Some(file) => {
            let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(file);
            let opened = opened.map_err(|error| {
                Fault::usage(format!("cannot write the log `{}`: {error}", file.display()))
            })?;
            BoxMakeWriter::new(Arc::new(opened))
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        // Colors are for people who look; a file or a journal would keep their codes, which hide words from `grep`.
        .with_ansi(is_terminal && std::env::var_os("NO_COLOR").is_none())
        .with_target(false)
        // Its complaint about a log that cannot be written would go to the same place, and panic there.
        .log_internal_errors(false)
        .init();
    Ok(())
}
