//! Errors of backups as the faults of commands, with restic's exit codes.

use tympan_backup::Error;
use tympan_terminal::{CommandFault, error_chain_text};

use super::interrupt_signal::INTERRUPTED_EXIT_CODE;
use crate::home_fault::home_fault;

/// Converts an error to the fault of the command.
#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` gives")]
pub(super) fn backup_fault(error: Error) -> CommandFault {
    let code = match error {
        Error::NoVault { .. } => 10,
        Error::Locked { .. } => 11,
        Error::WrongPassword => 12,
        Error::Interrupted => INTERRUPTED_EXIT_CODE,
        Error::InvalidRequest(_)
        | Error::VaultExists { .. }
        | Error::SnapshotMissing { .. }
        | Error::ClientMissing { .. }
        | Error::SnapshotAmbiguous { .. }
        | Error::PathMissing { .. } => 2,
        _ => 1,
    };
    CommandFault::with_code(error_chain_text(&error), code)
}

/// Converts an error of saving or restoring a home to the fault of the command.
pub(super) fn home_backup_fault(error: tympan_home_backup::Error) -> CommandFault {
    use tympan_home_backup::Error as HomeBackupError;
    match error {
        HomeBackupError::Refused(reason) => CommandFault::usage(reason),
        HomeBackupError::Home(error) => home_fault(error),
        HomeBackupError::Backup(error) => backup_fault(*error),
        error @ (HomeBackupError::Read { .. } | HomeBackupError::Store(_)) => {
            CommandFault::with_code(error_chain_text(&error), 1)
        }
        error => CommandFault::cannot_run(error_chain_text(&error)),
    }
}
