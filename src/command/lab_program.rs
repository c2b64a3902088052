//! `tympan lab`: replaces this process by the program `tympan-lab`, which is installed beside it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tympan_terminal::{CommandFault, CommandOutcome};

/// The file name of the program.
const LAB_PROGRAM: &str = "tympan-lab";
/// What the program is called on its help pages: the command that started it.
const LAB_COMMAND: &str = "tympan lab";

/// Replaces this process by the lab's program, which takes these arguments.
pub(super) fn run_lab_program(arguments: Vec<OsString>) -> CommandOutcome {
    replace_process(arguments.into_iter())
}

/// Prints the lab's help for the words `help lab`; returns `None` for another command line.
pub(crate) fn run_lab_help() -> Option<CommandOutcome> {
    let mut arguments = std::env::args_os().skip(1);
    let is_help = arguments.next()? == "help" && arguments.next()? == "lab";
    is_help.then(|| replace_process(std::iter::once(OsString::from("help")).chain(arguments)))
}

fn replace_process(arguments: impl Iterator<Item = OsString>) -> CommandOutcome {
    let own = std::env::current_exe().map_err(|error| {
        CommandFault::cannot_run(format!("cannot find the folder of this program: {error}"))
    })?;
    let program = lab_program_beside(&own);
    if !program.is_file() {
        return Err(CommandFault::cannot_run(missing_program_message(&own)));
    }
    let error = Command::new(&program).arg0(LAB_COMMAND).args(arguments).exec();
    Err(CommandFault::cannot_run(format!("cannot start `{}`: {error}", program.display())))
}

/// Returns the path of the lab's program in the folder of a program file. An upgrade may have replaced that file, so
/// that the system marks its name as deleted; the folder is the same.
fn lab_program_beside(own: &Path) -> PathBuf {
    own.with_file_name(LAB_PROGRAM)
}

fn missing_program_message(own: &Path) -> String {
    format!(
        "`{LAB_PROGRAM}` is not installed beside `{}`; build it with `cargo build --release`, or install it there",
        own.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_beside_this_one_also_after_an_upgrade() {
        for own in ["/opt/tympan/bin/tympan", "/opt/tympan/bin/tympan (deleted)"] {
            assert_eq!(
                lab_program_beside(Path::new(own)),
                Path::new("/opt/tympan/bin/tympan-lab"),
                "{own}"
            );
        }
    }
}
