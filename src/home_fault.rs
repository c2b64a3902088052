//! Errors of homes as the faults of commands.

use tympan_terminal::{CommandFault, error_chain_text};

/// Converts an error of a home: what a person must change is invalid usage.
pub(crate) fn home_fault(error: tympan_home::Error) -> CommandFault {
    match error {
        tympan_home::Error::Refused(reason) => CommandFault::usage(reason),
        error => CommandFault::cannot_run(error_chain_text(&error)),
    }
}
