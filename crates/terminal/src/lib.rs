//! What the programs share when they speak to the person who started them: output, colors, faults with exit codes, the
//! log, completions and man pages.
//!
//! Not here: arguments, and anything that a library crate needs.

mod color;
mod command_fault;
mod logging;
mod man_page;
mod output;
mod program_file;
mod shell_completion;

pub use color::is_color_shown;
pub use command_fault::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome};
pub use logging::start_logging;
pub use man_page::write_man_pages;
pub use program_file::PROGRAM_FILE;
pub use shell_completion::{CompletionShell, print_completions};
pub use tympan_notation::error_chain_text;
