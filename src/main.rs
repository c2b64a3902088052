//! The `tympan` command: runs a content website end to end.

mod args;
mod command;
mod config;
mod home;
mod home_fault;
mod ledger;
mod scheduled_backup;

use std::process::ExitCode;

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
        let line: Vec<_> = std::env::args_os().collect();
        let arguments = TympanArgs::parse_line(&line).unwrap_or_else(|error| error.exit());
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
