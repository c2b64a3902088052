//! What the programs share when they speak to the person who started them: output, faults with exit codes, the log.
//!
//! Not here: arguments, and anything that a library crate needs.

mod command_fault;
mod logging;
mod output;
mod program_file;

pub use command_fault::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome};
pub use logging::start_logging;
pub use program_file::PROGRAM_FILE;
pub use tympan_notation::error_chain_text;
