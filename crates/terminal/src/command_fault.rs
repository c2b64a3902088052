//! The outcome of a command: an exit code, or a fault that is printed.

use std::io::Write as _;
use std::process::ExitCode;

/// The failure of a command, with its exit code.
#[derive(Debug)]
pub struct CommandFault {
    message: String,
    code: u8,
}

impl CommandFault {
    /// Creates the fault for invalid arguments, or an invalid file that they name.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 2 }
    }

    /// Creates the fault of a command that could not run.
    pub fn cannot_run(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 3 }
    }

    /// Creates a fault with another exit code.
    pub fn with_code(message: impl Into<String>, code: u8) -> Self {
        Self { message: message.into(), code }
    }

    /// Returns the message, for the log.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Writes the message to standard error. If that fails, only the exit code reports the fault.
    pub fn print(&self) {
        writeln!(std::io::stderr(), "tympan: {}", self.message).ok();
    }

    /// Returns the exit code as a number.
    pub const fn code(&self) -> u8 {
        self.code
    }

    /// Returns the exit code of the process.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

/// The result of a command: the exit code of the process, or the fault to print.
pub type CommandOutcome = Result<ExitCode, CommandFault>;

/// The exit code of a check that found something.
pub const CHECK_FAILED_EXIT_CODE: u8 = 1;
