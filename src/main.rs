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
mod scheduled_backup;
mod site;
mod trusted_clock;

use std::process::ExitCode;

use clap::Parser;
use tympan_terminal::start_logging;

use crate::args::TympanArgs;

fn main() -> ExitCode {
    // The process renders images that a user waits for, and logs nothing.
    let is_renderer =
        std::env::args_os().nth(1).is_some_and(|name| name == args::RENDER_IMAGES_COMMAND);
    let done = if is_renderer {
        command::rendition_process::run_rendition_process()
    } else if let Some(done) = command::lab_program::run_lab_help() {
        done
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
