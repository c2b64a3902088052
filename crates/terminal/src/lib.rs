//! What the programs share when they speak to the person who started them: output, faults with exit codes, the log.
//!
//! Not here: arguments, and anything that a library crate needs.

mod command_fault;
mod error_chain;
mod logging;
mod output;
mod program_file;

pub use command_fault::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome};
pub use error_chain::error_chain_text;
pub use logging::start_logging;
pub use program_file::PROGRAM_FILE;
