//! The program `tympan-lab`, which `tympan lab` starts: arguments, and the calls of the lab that they become.
//!
//! In: a command line. Out: text or JSON on standard output, reports, an exit code: 0 goals met, 1 a goal missed, 2
//! refused, 3 could not measure.
//!
//! Not here: the lab itself (`tympan-lab-plan`, `tympan-lab-engine`, `tympan-lab-tools`).

mod args;
mod command;

pub use args::command_definition;
pub use command::run_program;
